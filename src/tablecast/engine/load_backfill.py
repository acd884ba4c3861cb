"""Backfills that are made elsewhere: loads of mode `backfill`, whose commit adds a source and takes in its messages.

    begin ──▶ a snapshot of the table ──▶ parts: what the source says of its rows, no rows ──▶ commit
      └── from here on a guard notes every key of the table that is written

Rows that were written since are told wrongly by the parts, or not at all. So what was noted is told again, as it is now:

    the messages of the parts, but for those of noted rows  +  noted rows that are there, as inserts

That makes the log what a backfill in the very commit would have said. It is done outside of the writer for as long as
much was noted, and last in the writer for the little that came meanwhile. A guard is in memory: a backfill does not
outlive the process that it began in, and is begun again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tablecast.codec.catalog import AuditEntry, LoadIntent
from tablecast.codec.log import NOWHERE, LogBatch
from tablecast.codec.sealed import SealedBatch, SealedPart, read_batch
from tablecast.core.columns import as_list
from tablecast.core.routing import Append, route_run
from tablecast.core.seal_log import without
from tablecast.core.snowflake import SnowflakeIds
from tablecast.engine.audit import audit_entry, entry_records
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.ddl import AddSource
from tablecast.engine.decision import Decision, Loaded, View
from tablecast.engine.guards import ChangeGuard, TakeNoted
from tablecast.engine.load_batches import BatchName, LoadCommitted
from tablecast.engine.load_sealed import (
    LogPlacer,
    Part,
    PlacedLog,
    Routes,
    StoredBatch,
    batches_of,
    plan_of,
    why_not_sealable,
)
from tablecast.engine.logs import Appended
from tablecast.engine.staging import LOG_FILE, Description, storing
from tablecast.errors import InvalidPart, NotSealable, StaleLoad
from tablecast.model.change import ChangeRun, Op
from tablecast.storage.base import Family, Reader

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine

BACKFILL = "backfill"  # the mode of such a load
ROUNDS = 4  # outside of the writer, at most: each has less to tell again than the one before
FEW_KEYS = 256  # noted: the writer tells as many again in some milliseconds
_CHUNK_ROWS = 10_000  # told again at once: rows are held decoded


# --- the plan ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Backfill:
    """What a load of this mode is about, and who watches its table."""

    source: AddSource
    guard: ChangeGuard


def backfill_routes(catalog: Catalog, source: AddSource) -> Routes:
    """The source alone. Raises what ADD SOURCE raises, and NotSealable where only the writer can tell the rows."""
    topic, route = source.planned(catalog, 0)
    schema = catalog.table(source.table).schema
    why = why_not_sealable(schema, ((topic, route),))
    if why is not None:
        raise NotSealable(
            f"{schema.full_name} cannot be backfilled on Spark: {why}; use backfill = TRUE, which runs in the database",
            table=schema.full_name,
            topic=topic.full_name,
        )
    return ((topic, route),)


def require_no_rows(sealed: SealedPart) -> None:
    if sealed.rows:
        raise InvalidPart(f"a part of a backfill has messages only, and this one has {sealed.rows} rows")


# --- telling again -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Teller:
    """Says what a source says of rows. `table` has it as its only one; log batches go to files in `directory`."""

    table: Table
    directory: Path

    def again(self, batches: Sequence[StoredBatch], keys: set[bytes], reader: Reader | View) -> list[StoredBatch]:
        """The log batches without what they say of the rows with these keys, and what is to be said of those now."""
        said = self._message_keys(keys)
        with storing(self.directory), _BatchFile(self.directory) as file:
            kept = [made for stored in batches for made in _without(stored, said, file)]
            return kept + [made for append in self._appends(sorted(keys), reader) for made in file.add_append(append)]

    def _message_keys(self, keys: set[bytes]) -> set[bytes]:
        """As messages have them: of each row that a key may be of."""
        table = self.table
        prefix, names = len(table.codec.prefix(None)), [f"c{i}" for i in table.schema.key_indexes]
        rows = [
            SimpleNamespace(**dict(zip(names, values, strict=True)))
            for key in keys
            for values in product(*map(_spellings, table.codec.decode_key(key, prefix)))
        ]
        return set(table.payload.message_keys(rows))

    def _appends(self, keys: list[bytes], reader: Reader | View) -> Iterator[Append]:
        table = self.table
        for at in range(0, len(keys), _CHUNK_ROWS):
            chunk = keys[at : at + _CHUNK_ROWS]
            found = zip(chunk, reader.get_many(Family.ROWS, chunk), strict=True)
            there = [(key, table.codec.decode(value)) for key, value in found if value is not None]
            if there:
                run = ChangeRun(
                    table.table_id, table.schema.version, Op.INSERT, [key for key, _ in there], [],
                    [row for _, row in there], [], None,
                )  # fmt: skip
                yield from route_run(run, table.routes[Op.INSERT], table.payload, table.schema.full_name)


def _spellings(value: Any) -> tuple[Any, ...]:
    """The values that one element of a key stands for: 0.0 and -0.0 are one key, and two texts."""
    return (0.0, -0.0) if isinstance(value, float) and value == 0 else (value,)


def _without(stored: StoredBatch, said: set[bytes], file: _BatchFile) -> Iterator[StoredBatch]:
    path, batch = stored
    with path.open("rb") as source:
        data = read_batch(source, batch)
    places = np.flatnonzero([key in said for key in as_list(LogBatch(data).key_array())])
    if not len(places):
        yield stored
        return
    for count, made in without([data], places):
        yield file.add(batch.topic_id, batch.partition, count, made)


class _BatchFile:
    """Log batches without their places, in a file of their own. It is gone with its load, so it need not be synced."""

    def __init__(self, directory: Path) -> None:
        descriptor, name = tempfile.mkstemp(dir=directory, prefix="retold-")
        self._path, self._file = Path(name), os.fdopen(descriptor, "wb")
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, topic_id: int, partition: int, count: int, data: bytes) -> StoredBatch:
        at = self._written
        self._file.write(data)
        self._written += len(data)
        return self._path, SealedBatch(topic_id, partition, at, len(data), count)

    def add_append(self, append: Append) -> Iterator[StoredBatch]:
        appended = Appended()
        appended.add(append)
        for start, stop in appended.cuts():
            yield self.add(append.topic_id, append.partition, stop - start, appended.encode(start, stop, NOWHERE))


# --- the command -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CommitBackfill:
    """Adds the source, and its messages. `prepared` is used if nothing was noted since, and it is where the log goes on."""

    name: BatchName
    load_id: str
    load_number: int
    plan: bytes
    backfill: Backfill
    teller: Teller
    batches: Sequence[StoredBatch]
    ids: SnowflakeIds
    entry: AuditEntry
    prepared: PlacedLog | None = None
    weight: int = 1
    alone = True

    def decide(self, view: View) -> Decision:
        known = self.name.recall(view)
        if known is not None:
            return Decision(known)
        self._check(view)
        noted = self.backfill.guard.noted
        batches = self.teller.again(self.batches, noted, view) if noted else self.batches
        placer = LogPlacer(batches, self.ids, self.teller.directory)
        log = placer.placed(view, None if noted else self.prepared)
        count = sum(batch.count for _, batch in batches)
        decision = self.backfill.source.added(view)
        decision.records += log.records + entry_records(view, self.entry)
        intent = self._intent(view, log) if placer.in_file else None
        decision.loaded = Loaded(self.name.table_id, self.load_number, 0, log.ts_ms, b"", b"", log.ends, intent)
        self.name.committed(decision, view, count)
        return decision

    def _check(self, view: View) -> None:
        catalog, source = view.catalog, self.backfill.source
        routes = backfill_routes(catalog, source)
        if plan_of(catalog.table(source.table).schema, routes) != self.plan:
            raise StaleLoad(f"{source.table} or {source.topic} changed since the backfill began: begin it again")
        if self.backfill.guard.overrun:
            raise StaleLoad(
                f"a load was committed into {source.table} since the backfill began, or more of its rows were written "
                "than a guard notes: begin it again",
                table=source.table,
            )

    def _intent(self, view: View, log: PlacedLog) -> LoadIntent:
        return LoadIntent(self.load_id, view.seq, (), (LOG_FILE,), b"", log.first_key, self.load_number)


def commit_backfill(
    engine: Engine, about: Description, name: BatchName, backfill: Backfill, parts: Sequence[Part], directory: Path
) -> LoadCommitted:
    source = backfill.source
    teller = Teller(source.alone_in(engine.catalog, 0), directory)
    batches = _settled(engine, backfill.guard, teller, batches_of(parts))
    placer = LogPlacer(batches, engine.ids, directory)
    began = {place: engine.log_end(*place) for place in placer.places}
    prepared = placer.place(engine.seq + 1, engine.now_ms(), began)
    entry = audit_entry(about.actor, "ADD SOURCE", source.topic, detail=f"source {source.table}")
    command = CommitBackfill(
        name, about.load_id, about.load_number, about.plan, backfill, teller, batches, engine.ids, entry, prepared
    )
    done: LoadCommitted = engine.execute(command)
    return done


def _settled(
    engine: Engine, guard: ChangeGuard, teller: Teller, batches: Sequence[StoredBatch]
) -> Sequence[StoredBatch]:
    """The log batches, with most of what was noted told again. Another attempt at the commit begins with all of it."""
    for number in range(ROUNDS):
        noted: set[bytes] = engine.execute(TakeNoted(guard, everything=number == 0))
        if noted:
            batches = teller.again(batches, noted, engine.published.snapshot)
        if len(noted) <= FEW_KEYS:
            break
    return batches
