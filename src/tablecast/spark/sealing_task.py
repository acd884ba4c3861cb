"""Sealing in a task: its rows leave the executor as finished rows and messages.

    batches ──▶ Sealer ──▶ Sealed ──▶ SST and log batches ──▶ one file ──▶ the server's staging
                  └──▶ rejects

One part is on this machine's disk at a time, next to the SST it was made of; both are gone when it is staged. The parts
of one task follow one another: the server takes a load's parts in the order of their numbers, so messages stand on
their topics in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from tablecast.client.bulk import SEALED, BulkClient, LoadBegun
from tablecast.client.failures import Failure, rebuilt
from tablecast.core.seal import Sealer
from tablecast.core.seal_judge import Reject
from tablecast.core.seal_values import LoadValues
from tablecast.spark.task import Staged, Task, local_directory
from tablecast.storage.parts import PartSealer, seal_parts

_TOLD_REJECTS = 3  # reasons in an error; it says how many more there are

Rejected = Callable[[Sequence[Reject]], None]


def send_sealed(
    client: BulkClient,
    load: LoadBegun,
    batches: Iterable[pa.RecordBatch],
    task: Task,
    rejected: Rejected | None = None,
) -> Staged:
    """Seals all batches, whose columns have the table's names, and stages them. `rejected` hears of rows that do not fit
    and the rest goes on; without it one such row fails the task, and with it the write."""
    sealer = Sealer(load.table, load.routes, load.load_number, load_values(load), rejected or _refuse)
    return send_parts(client, load, sealer, batches, task)


def send_parts(
    client: BulkClient, load: LoadBegun, sealer: PartSealer, batches: Iterable[pa.RecordBatch], task: Task
) -> Staged:
    """Stages what a sealer makes of all batches."""
    parts: list[tuple[int, str]] = []
    rows = 0
    with TemporaryDirectory(prefix="tablecast-seal-", dir=local_directory()) as directory:
        for file in seal_parts(sealer, batches, Path(directory), "rows"):
            number = task.part(len(parts))
            client.put_part(load.load_id, number, file.path, attempt=task.attempt, content_type=SEALED)
            file.path.unlink()
            parts.append((number, task.attempt))
            rows += file.rows
    return Staged(load.load_id, tuple(parts), rows)


def load_values(load: LoadBegun) -> LoadValues:
    """What fills columns that are not given: the same NOW() in every task of the load."""
    return LoadValues(load.created_ms, load.user_id)


def _refuse(found: Sequence[Reject]) -> None:
    """The words of the row path for the first ones, and how many there are among the rows just looked at."""
    first, others = found[0], len(found) - _TOLD_REJECTS
    told = "; ".join(f"row {reject.row}: {reject.reason}" for reject in found[:_TOLD_REJECTS])
    more = f"; and {others:,} more rows near them" if others > 0 else ""
    details = {"rejects": len(found), "row": first.row, "column": first.column}
    raise rebuilt(Failure(first.code, told + more, details))
