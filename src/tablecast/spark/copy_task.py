"""A task of a COPY: rows of files in, staged parts of a load out, with what could not be loaded.

What a task gives back to Spark are texts of two kinds:

    rejects    one line of JSON per row that was not loaded (see `rejects`); only if they are to be kept
    staged     one line per task: which parts it staged, how many rows, how many rejects, and why the first ones

Spark takes the texts of one attempt at each task, so parts of attempts that failed or came second are named nowhere, and
never seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.client.bulk import BulkClient, LoadBegun, PartStaged, Server
from tablecast.client.connection import ARROW_STREAM
from tablecast.core.row_rules import duplicate_key
from tablecast.core.seal import SLICE_ROWS
from tablecast.core.seal_judge import Reject, reject
from tablecast.errors import DuplicateKey
from tablecast.model.schema import TableSchema
from tablecast.spark.copy_files import CORRUPT, FILE
from tablecast.spark.copy_rows import RowsJudge
from tablecast.spark.rejects import MALFORMED, RejectLines, malformed_line, reject_line
from tablecast.spark.sealing_task import send_sealed
from tablecast.spark.sending import send_rows
from tablecast.spark.task import Staged, current_task
from tablecast.spark.worker import settle

REJECTS, STAGED = "rejects", "staged"
RESULT = "what string, text string"
KEY, THERE = "_key", "_there"
TOLD_REASONS = 3  # of a task's rejects, for an error that tells what is wrong
KEPT_ROWS = 4 * SLICE_ROWS  # of rows that went by: sealing puts batches together, and so looks ahead of its rejects
_ADDED = (FILE, CORRUPT, KEY, THERE)


class StagedRows(msgspec.Struct, frozen=True):
    """What one task did. `twice` counts keys that came twice in a part, and were left out without being told."""

    parts: list[tuple[int, str]]
    rows: int = 0
    rejects: int = 0
    reasons: list[str] = []
    twice: int = 0


@dataclass(frozen=True)
class CopyTask:
    """Travels to the executors. `dry`: a rehearsal, which sends nothing."""

    server: Server
    load: LoadBegun
    sealed: bool
    keep_rejects: bool
    dry: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        with RejectLines(TOLD_REASONS) as rejects:
            staged = self._staged(Given(self.load.table, batches, rejects))
            if self.keep_rejects:
                for texts in rejects.texts():
                    yield _result(REJECTS, texts)
            yield _result(STAGED, pa.array([msgspec.json.encode(staged).decode()]))

    def _staged(self, given: Given) -> StagedRows:
        with (Rehearsal if self.dry else BulkClient)(self.server) as client:
            done = self._sent(client, given)
        rejects = given.rejects
        return StagedRows(list(done.parts), done.rows, rejects.count, rejects.first, given.twice)

    def _sent(self, client: BulkClient, given: Given) -> Staged:
        load, task = self.load, current_task()
        if self.sealed:
            return send_sealed(client, load, given.good(), task, given.rejected)
        judge = RowsJudge(load.table, given.rejected)
        fitting = map(judge.fitting, given.good())
        return send_rows(client, load.load_id, load.table, fitting, task)


class Rehearsal(BulkClient):
    """Sends no part."""

    def put_part(
        self,
        load_id: str,
        part: int,
        source: bytes | str | Path | Callable[[], Any],
        *,
        attempt: str = "0",
        content_type: str = ARROW_STREAM,
    ) -> PartStaged:
        return PartStaged(part, attempt, 0, 0)


def _result(what: str, texts: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([what] * len(texts), pa.string()), texts], names=["what", "text"])


# --- rows as they come ----------------------------------------------------------------------------------------------


class Given:
    """The rows of a task: malformed ones and repeated keys are told and left out; the others go on to be judged. Their
    rejects are told by number, a little after the rows went by, so the last batches are kept."""

    def __init__(self, table: TableSchema, batches: Iterator[pa.RecordBatch], rejects: RejectLines) -> None:
        self.rejects = rejects
        self.count = self.twice = 0
        self._table, self._batches = table, batches
        self._recent: deque[tuple[int, pa.RecordBatch]] = deque()  # with the number of their first row
        self._last_key: bytes | None = None

    def good(self) -> Iterator[pa.RecordBatch]:
        for whole in self._batches:
            batch = self._unique(self._well_formed(whole))
            if batch.num_rows:
                self._keep(batch)
                yield _own(batch)

    def _keep(self, batch: pa.RecordBatch) -> None:
        self._recent.append((self.count, batch))
        self.count += batch.num_rows
        while len(self._recent) > 1 and self._recent[1][0] <= self.count - batch.num_rows - KEPT_ROWS:
            self._recent.popleft()

    def rejected(self, found: Sequence[Reject]) -> None:
        for each in found:
            if each.code == DuplicateKey.code:  # told when the part is full: its batch is long gone
                self.twice += 1
            else:
                first, batch = next(kept for kept in reversed(self._recent) if kept[0] <= each.row)
                self._tell(batch, each.row - first, each)

    def _tell(self, batch: pa.RecordBatch, at: int, why: Reject) -> None:
        row = batch.slice(at, 1)
        (given,) = _own(row).to_pylist()
        self.rejects.add(reject_line(row.column(FILE)[0].as_py(), why, given), why.reason)

    def _well_formed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if CORRUPT not in batch.schema.names or batch.column(CORRUPT).null_count == batch.num_rows:
            return batch
        bad = batch.column(CORRUPT).is_valid()
        broken = batch.filter(bad)
        for line, file in zip(broken.column(CORRUPT).to_pylist(), broken.column(FILE).to_pylist(), strict=True):
            self.rejects.add(malformed_line(file, line), f"{MALFORMED}: {line[:100]!r}")
        return batch.filter(pc.invert(bad))

    def _unique(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without rows whose key the table has, or the row before: where there are keys, equal ones stand together."""
        if KEY not in batch.schema.names or not batch.num_rows:
            return batch
        there = np.asarray(batch.column(THERE))
        keys: list[bytes | None] = batch.column(KEY).to_pylist()
        before = [self._last_key, *keys[:-1]]
        repeated = np.array([key is not None and key == last for key, last in zip(keys, before, strict=True)])
        self._last_key = keys[-1]
        for at in np.flatnonzero(there | repeated).tolist():
            self._tell_repeated(batch, at, "the table has it already" if there[at] else "it comes twice in the files")
        return batch.filter(pa.array(~(there | repeated)))

    def _tell_repeated(self, batch: pa.RecordBatch, at: int, what: str) -> None:
        key = [batch.column(name)[at].as_py() for name in self._table.primary_key]
        why = reject(at, duplicate_key(self._table, key))
        self._tell(batch, at, why._replace(reason=f"{why.reason}: {what}"))


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What the files gave, without what was added to it on the way."""
    return batch.select([name for name in batch.schema.names if name not in _ADDED])
