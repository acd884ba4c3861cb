"""Loads of kind `sealed`: parts whose rows and messages are finished; their commit looks at no row.

What must be known about rows is found out before, outside of the writer: that no key comes twice, in or across parts,
and that none is in the table. A guard notes the keys that others write meanwhile (engine.guards). Then one command,
alone in its commit, compares what the guard noted, gives every log batch its place and leaves an intent to take the
files in (engine.intents).

Messages that are small in all go into the commit's batch. Larger ones become one file, written before the writer is
asked, at the places that they will have if nobody else commits first; if somebody does, it is written again, in the
writer, which waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128_digest

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import LoadIntent, LoadStamp, encode_record
from tablecast.codec.log import decode_head, stamp
from tablecast.codec.sealed import SealedBatch, SealedPart, read_batch, read_key_blocks
from tablecast.core.snowflake import SnowflakeIds
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.decision import Decision, Loaded, LogEnd, Record, StalePlan, View
from tablecast.engine.guards import InsertGuard, KeyRange
from tablecast.engine.load_batches import BatchName
from tablecast.engine.staging import LOG_FILE, sst_of
from tablecast.errors import DuplicateKey, InvalidPart, NotSealable, StaleLoad
from tablecast.model.change import Op
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Route, Topic
from tablecast.storage.base import Family, Reader
from tablecast.storage.home import sync_directory
from tablecast.storage.sst import write_sst

INLINE_LOG_BYTES = 8 * 2**20  # log batches up to here go into the commit's batch: below the size of the store's WAL
_FEW_ROWS = 4096  # up to here the table's own keys in a range are compared, instead of looking up all of a part's

Place = tuple[int, int]  # topic id, partition
Routes = tuple[tuple[Topic, Route], ...]


# --- what can be sealed ------------------------------------------------------------------------------------------


def insert_routes(catalog: Catalog, table_id: int) -> Routes:
    return tuple(
        (topic, route)
        for topic in catalog.topics.values()
        for route in topic.routes
        if route.table_id == table_id and Op.INSERT in route.ops
    )


def plan_of(schema: TableSchema, routes: Routes) -> bytes:
    """A fingerprint of all that a sealed part depends on."""
    fed = [(topic.topic_id, topic.partitions, topic.dedup_window_seconds, route) for topic, route in routes]
    return xxh3_128_digest(msgspec.msgpack.encode((schema, fed)))


def require_sealable(schema: TableSchema, routes: Routes, mode: str) -> None:
    why = why_not_sealable(schema, routes)
    if mode != "insert":
        why = f"mode {mode} depends on the rows that are there; only insert does not"
    if why is not None:
        raise NotSealable(f"{schema.full_name} takes no sealed load: {why}; use kind rows", table=schema.full_name)


def why_not_sealable(schema: TableSchema, routes: Routes) -> str | None:
    if schema.per_user:
        return f"it is a {schema.kind.value} table, whose rows belong to users"
    if schema.ttl_seconds is not None:
        return "its rows expire after a time that begins with their commit"
    if schema.replicate:
        return "each row's version and event for other nodes is made in the commit"
    for topic, _ in routes:
        if topic.dedup_window_seconds:
            return f"topic {topic.full_name} drops repeats, which depends on what it holds"
    return None


# --- parts -------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A staged part: its number, its file, and what it says of itself."""

    number: int
    path: Path
    sealed: SealedPart

    def key_blocks(self) -> Iterator[pa.Array]:
        with self.path.open("rb") as file:
            yield from read_key_blocks(file, self.sealed)


def check_part(table_id: int, load_number: int, routes: Routes, path: Path, sealed: SealedPart) -> None:
    """That a part was sealed for this load, and that its messages are for partitions that there are."""
    if (sealed.table_id, sealed.load_number) != (table_id, load_number):
        raise InvalidPart(
            f"the part was sealed for load {sealed.load_number} of table {sealed.table_id}, "
            f"not for load {load_number} of table {table_id}"
        )
    partitions = {topic.topic_id: topic.partitions for topic, _ in routes}
    with path.open("rb") as file:
        for batch in sealed.batches:
            if batch.partition >= partitions.get(batch.topic_id, 0):
                raise InvalidPart(f"topic {batch.topic_id} is not fed by the table, or has no {batch.partition}")
            if decode_head(read_batch(file, batch)).count != batch.count:
                raise InvalidPart(f"the log batch at byte {batch.offset} does not hold {batch.count} messages")


# --- keys --------------------------------------------------------------------------------------------------------


def check_keys(reader: Reader, table: Table, parts: Sequence[Part]) -> None:
    """That no key comes twice, or is in the table: DuplicateKey."""
    filled = sorted((part for part in parts if part.sealed.rows), key=lambda part: part.sealed.first_key)
    for cluster in _overlapping(filled):
        if len(cluster) > 1:
            _check_across(table, cluster)
    for part in filled:
        if _has_rows(reader, part.sealed.first_key, part.sealed.last_key):
            _check_against(reader, table, part)


def _overlapping(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts, in the order of their first keys, put together where their ranges meet."""
    cluster: list[Part] = []
    last = b""
    for part in parts:
        if cluster and part.sealed.first_key > last:
            yield cluster
            cluster = []
        cluster.append(part)
        last = max(last, part.sealed.last_key) if len(cluster) > 1 else part.sealed.last_key
    if cluster:
        yield cluster


def _has_rows(reader: Reader, first: bytes, last: bytes) -> bool:
    return next(iter(reader.scan(Family.ROWS, first, last + b"\x00")), None) is not None


def _check_across(table: Table, cluster: list[Part]) -> None:
    """Goes through all parts together, in key order, one piece after the other: memory holds one block of each."""
    waiting = [(part.key_blocks(), part) for part in cluster]
    held: list[pa.Array] = [next(blocks) for blocks, _ in waiting]
    while held:
        bound = min(block[-1].as_py() for block in held)
        taken = []
        for i, block in enumerate(held):
            count = pc.sum(pc.less_equal(block, bound)).as_py()  # of sorted keys: the first so many
            taken.append(block[:count])
            held[i] = block[count:]
        _require_different(table, taken, [part for _, part in waiting])
        for i in reversed(range(len(held))):
            if not len(held[i]):
                following = next(waiting[i][0], None)
                if following is None:
                    del held[i], waiting[i]
                else:
                    held[i] = following


def _require_different(table: Table, taken: list[pa.Array], parts: list[Part]) -> None:
    together = pa.concat_arrays(taken)
    if pc.count_distinct(together).as_py() == len(together):
        return
    counts = pc.value_counts(together)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0].as_py()
    holders = [p.number for p, mine in zip(parts, taken, strict=True) if pc.index(mine, twice).as_py() >= 0]
    raise _duplicate(table, twice, "comes twice in the load", holders)


def _check_against(reader: Reader, table: Table, part: Part) -> None:
    for block in part.key_blocks():
        first, last = block[0].as_py(), block[-1].as_py()
        there: list[bytes] = []
        for key, _ in reader.scan(Family.ROWS, first, last + b"\x00"):
            there.append(key)
            if len(there) > _FEW_ROWS:
                break
        if len(there) <= _FEW_ROWS:
            _require_free(table, part, block, there)
            continue
        wanted = block.to_pylist()
        for key, value in zip(wanted, reader.get_many(Family.ROWS, wanted), strict=True):
            if value is not None:
                raise _duplicate(table, key, "is in the table already", [part.number])


def _require_free(table: Table, part: Part, block: pa.Array, there: Sequence[bytes]) -> None:
    if there:
        met = pc.is_in(pa.array(there, pa.binary()), value_set=block)
        if pc.any(met).as_py():
            key = there[pc.index(met, True).as_py()]
            raise _duplicate(table, key, "is in the table already", [part.number])


def check_noted(table: Table, parts: Sequence[Part], noted: Sequence[bytes]) -> None:
    """Keys that others wrote while the load was checked: none may be one of the load's."""
    for part in parts:
        if part.sealed.rows:
            within = [key for key in noted if part.sealed.first_key <= key <= part.sealed.last_key]
            for block in part.key_blocks() if within else ():
                _require_free(table, part, block, within)


def check_loads(parts: Sequence[Part], others: Sequence[KeyRange]) -> None:
    """Other loads that were committed while this one was checked: if their rows are among its own, it is looked again."""
    first, last = _between(parts)
    if any(theirs[0] <= last and first <= theirs[1] for theirs in others):
        raise StalePlan("another load was committed between the keys of this one, while it was checked")


def _between(parts: Sequence[Part]) -> KeyRange:
    filled = [part.sealed for part in parts if part.sealed.rows]
    return min((part.first_key for part in filled), default=b""), max((part.last_key for part in filled), default=b"")


def _duplicate(table: Table, key: bytes, what: str, parts: list[int]) -> DuplicateKey:
    values = table.codec.decode_key(key, len(table.codec.prefix(None)))
    shown = ", ".join(f"{name} = {v!r}" for name, v in zip(table.schema.primary_key, values, strict=True))
    where = f"part {parts[0]}" if len(parts) == 1 else "parts " + ", ".join(map(str, parts))
    return DuplicateKey(
        f"{where}: the key {shown} of {table.schema.full_name} {what}", table=table.schema.full_name, key=shown,
        parts=parts,
    )  # fmt: skip


# --- messages ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PlacedLog:
    """Log batches at their places: in a file, or as records. Good for a commit with this number, after these ends."""

    seq: int
    ts_ms: int
    began: dict[Place, tuple[int, int]]
    ends: dict[Place, LogEnd]
    first_key: bytes
    records: list[Record] = field(default_factory=list)


StoredBatch = tuple[Path, SealedBatch]  # a log batch without its place, and the file that it is in


def batches_of(parts: Sequence[Part]) -> list[StoredBatch]:
    return [(part.path, batch) for part in parts for batch in part.sealed.batches]


class LogPlacer:
    """Gives the log batches of a load their places."""

    def __init__(self, batches: Sequence[StoredBatch], ids: SnowflakeIds, directory: Path) -> None:
        self._ids = ids
        self._file = directory / LOG_FILE
        by_place: dict[Place, list[StoredBatch]] = {}
        for path, batch in batches:
            by_place.setdefault((batch.topic_id, batch.partition), []).append((path, batch))
        self._batches = dict(sorted(by_place.items()))  # in the order of their keys in the store
        self.size = sum(batch.size for _, batch in batches)

    @property
    def places(self) -> list[Place]:
        return list(self._batches)

    @property
    def in_file(self) -> bool:
        return self.size > INLINE_LOG_BYTES

    def placed(self, view: View, prepared: PlacedLog | None) -> PlacedLog:
        """What was prepared, if it is where the log goes on."""
        began = {place: (view.written_end(*place), view.written_bytes(*place)) for place in self.places}
        if prepared is not None and (prepared.seq, prepared.began) == (view.seq, began):
            return prepared
        return self.place(view.seq, view.ts_ms, began)

    def place(self, seq: int, ts_ms: int, began: dict[Place, tuple[int, int]]) -> PlacedLog:
        """`began` is where each partition's log ends now, in messages and bytes."""
        offsets = {place: offset for place, (offset, _) in began.items()}
        log_keys = [
            keys.log_key(*place, first)
            for place, found in self._batches.items()
            for first in _firsts(offsets[place], [batch.count for _, batch in found])
        ]
        placed = PlacedLog(seq, ts_ms, began, self._ends(began), log_keys[0] if log_keys else b"")
        if self.in_file:
            self._file.unlink(missing_ok=True)
            write_sst(self._file, log_keys, self._stamped(placed))
            sync_directory(self._file)
            sync_directory(self._file.parent)
        else:
            stamped = self._stamped(placed)
            placed.records = [(Family.LOG, key, value) for key, value in zip(log_keys, stamped, strict=True)]
        return placed

    def _ends(self, began: dict[Place, tuple[int, int]]) -> dict[Place, LogEnd]:
        ends = {}
        for place, found in self._batches.items():
            count, size = sum(batch.count for _, batch in found), sum(batch.size for _, batch in found)
            ends[place] = LogEnd(began[place][0] + count, began[place][1] + size, count)
        return ends

    def _stamped(self, placed: PlacedLog) -> Iterator[bytes]:
        for place, found in self._batches.items():
            offset, position = placed.began[place]
            for path, batch in found:
                first_id = self._ids.take(placed.ts_ms, batch.count)
                with path.open("rb") as file:
                    data = read_batch(file, batch)
                yield stamp(
                    data, first_offset=offset, seq=placed.seq, ts_ms=placed.ts_ms, first_id=first_id,
                    bytes_before=position,
                )  # fmt: skip
                offset += batch.count
                position += batch.size


def _firsts(first: int, counts: Sequence[int]) -> Iterator[int]:
    for count in counts:
        yield first
        first += count


# --- the command -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CommitSealed:
    """Decides a sealed load. `prepared` is used if it is where the log goes on."""

    name: BatchName
    load_id: str
    load_number: int
    plan: bytes
    parts: Sequence[Part]
    guard: InsertGuard
    placer: LogPlacer
    prepared: PlacedLog | None
    weight: int = 1
    alone = True

    def decide(self, view: View) -> Decision:
        known = self.name.recall(view)
        if known is not None:
            return Decision(known)
        table = require_plan(view.catalog, self.name.table_id, self.plan)
        if self.guard.overrun:
            raise StalePlan("more was written to the table than a guard notes, while the load was checked")
        check_loads(self.parts, self.guard.loads)
        check_noted(table, self.parts, self.guard.take())
        log = self.placer.placed(view, self.prepared)
        rows = sum(part.sealed.rows for part in self.parts)
        stamped = LoadStamp(view.seq, log.ts_ms, rows)
        saved: list[Record] = list(log.records)
        if rows:
            key = records.load_key(self.name.table_id, self.load_number)
            saved.append((Family.META, key, encode_record(stamped)))
        loaded = Loaded(
            self.name.table_id, self.load_number, rows, log.ts_ms, *_between(self.parts), log.ends,
            self._intent(view, log),
        )  # fmt: skip
        decision = Decision(records=saved, loaded=loaded)
        self.name.committed(decision, view, rows)
        return decision

    def _intent(self, view: View, log: PlacedLog) -> LoadIntent | None:
        filled = [part for part in self.parts if part.sealed.rows]
        if not filled and not self.placer.in_file:
            return None
        return LoadIntent(
            self.load_id, view.seq, tuple(sst_of(part.path).name for part in filled),
            (LOG_FILE,) if self.placer.in_file else (), filled[0].sealed.first_key if filled else b"",
            log.first_key if self.placer.in_file else b"", self.load_number,
        )  # fmt: skip


def require_plan(catalog: Catalog, table_id: int, plan: bytes) -> Table:
    table = catalog.tables.get(table_id)
    if table is None:
        raise StaleLoad("the table was dropped since the load began")
    if plan_of(table.schema, insert_routes(catalog, table_id)) != plan:
        raise StaleLoad(
            f"{table.schema.full_name} or a source that it feeds changed since the load began: begin it again, and "
            f"seal its parts for what the table is now",
            table=table.schema.full_name,
        )
    return table
