"""A commit under construction.

Commands are decided one after the other. Deciding reads a `View` and returns a `Decision`; only `PendingCommit.apply`
takes it in, whole or not at all, so a command that fails leaves no trace. What a pending commit holds is visible to the
commands after it (they may rely on it: all of them become durable together) and to nobody else.

`close` turns it into one batch: rows, records, and one log batch per partition that got messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import LogStart
from tablecast.codec.log import MessageClass, Place, encode_log_batch
from tablecast.codec.rows import row_header
from tablecast.core.routing import Append, picked, route_run
from tablecast.core.snowflake import SnowflakeIds
from tablecast.engine.bounds import KeyBounds
from tablecast.engine.catalog import Catalog
from tablecast.errors import CorruptData, TablecastError
from tablecast.model.change import ChangeRun, Op
from tablecast.model.topic import Topic
from tablecast.storage.base import Batch, Family, Reader, Store

LOG_BATCH_MESSAGES = 16_384  # one log batch at most: a reader decodes a whole batch to serve one message of it
LOG_BATCH_BYTES = 4 * 2**20  # and at most about this many payload bytes, for the same reason
DEDUP_DIGEST_BYTES = 16
_SEEN_FORMAT = 1
_SEEN = struct.Struct(">BQ")

Record = tuple[Family, bytes, bytes | None]  # None removes the key


class RowView(Protocol):
    """What deciding about rows may read: the state as of everything decided before."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def seq(self) -> int: ...
    @property
    def ts_ms(self) -> int: ...
    def get(self, family: Family, key: bytes) -> bytes | None: ...
    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def are_new(self, prefix: bytes, keys: Sequence[bytes]) -> bool:
        """True only if no row has any of these keys, which all begin with `prefix`. False: they must be looked up."""
        ...

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """As `Reader.scan`; `floor` sees only what is already written."""
        ...


class View(RowView, Protocol):
    """And about logs. Messages of this very commit are counted by `log_end` only: they cannot be read yet."""

    def log_start(self, topic_id: int, partition: int) -> int: ...
    def log_end(self, topic_id: int, partition: int) -> int: ...
    def written_end(self, topic_id: int, partition: int) -> int: ...
    def written_bytes(self, topic_id: int, partition: int) -> int:
        """Bytes of log ever written to the partition."""
        ...


@dataclass(slots=True)
class Decision:
    """What a command does and answers."""

    response: Any = None
    runs: list[ChangeRun] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)  # messages that no row change causes: dead letters, redrives
    records: list[Record] = field(default_factory=list)
    ranges: list[tuple[Family, bytes, bytes]] = field(default_factory=list)
    catalog: Catalog | None = None
    log_starts: dict[tuple[int, int], LogStart] = field(default_factory=dict)


class Command(Protocol):
    """A typed request to the writer. `weight` is about how many rows it touches.

    One that has `alone = True` gets a commit of its own.
    """

    @property
    def weight(self) -> int: ...
    def decide(self, view: View) -> Decision: ...


@dataclass(slots=True)
class PartitionLog:
    """Where a partition's log ends, in messages and in bytes since its first; and where it begins."""

    next_offset: int = 0
    bytes_end: int = 0
    start: LogStart = field(default_factory=lambda: LogStart(0))


class LogState:
    """Every partition's counters. Owned by the writer."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[int, int], PartitionLog] = {}

    def at(self, topic_id: int, partition: int) -> PartitionLog:
        found = self.partitions.get((topic_id, partition))
        if found is None:
            found = self.partitions[topic_id, partition] = PartitionLog()
        return found


class _Appended:
    """The messages of this commit for one partition."""

    __slots__ = ("class_index", "class_of", "classes", "hashes", "keys", "payloads")

    def __init__(self) -> None:
        self.classes: list[MessageClass] = []
        self.class_index: dict[MessageClass, int] = {}
        self.class_of: list[int] = []
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.hashes: list[int] = []

    def add(self, append: Append) -> None:
        index = self.class_index.get(append.message_class)
        if index is None:
            index = self.class_index[append.message_class] = len(self.classes)
            self.classes.append(append.message_class)
        self.class_of += [index] * len(append.keys)
        self.keys += append.keys
        self.payloads += append.payloads
        self.hashes += append.hashes

    def cuts(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of each log batch, cut to the limits of one."""
        count = len(self.keys)
        if 0 < count <= LOG_BATCH_MESSAGES and sum(map(len, self.payloads)) <= LOG_BATCH_BYTES:
            yield 0, count
            return
        start = 0
        while start < count:
            stop = self._cut(start)
            yield start, stop
            start = stop

    def _cut(self, start: int) -> int:
        stop = min(start + LOG_BATCH_MESSAGES, len(self.keys))
        size = 0
        for i in range(start, stop):
            size += len(self.payloads[i])
            if size > LOG_BATCH_BYTES:
                return max(i, start + 1)
        return stop

    def encode(self, start: int, stop: int, place: Place) -> bytes:
        if start == 0 and stop == len(self.keys):
            return encode_log_batch(self.classes, self.class_of, self.keys, self.payloads, self.hashes, place)
        part = slice(start, stop)
        used = sorted(set(self.class_of[part]))
        renumbered = {old: new for new, old in enumerate(used)}
        return encode_log_batch(
            [self.classes[i] for i in used],
            [renumbered[i] for i in self.class_of[part]],
            self.keys[part],
            self.payloads[part],
            self.hashes[part],
            place,
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """What was written, for those who follow the log."""

    seq: int
    ts_ms: int
    runs: tuple[ChangeRun, ...]
    ends: Mapping[tuple[int, int], int]  # (topic, partition) -> next offset, for each that got messages
    starts: Mapping[tuple[int, int], int]  # likewise for partitions whose log start moved
    catalog: Catalog
    deduplicated: int


class PendingCommit:
    """Implements `View` over the store and everything already applied to this commit."""

    def __init__(self, store: Store, catalog: Catalog, logs: LogState, bounds: KeyBounds, seq: int, ts_ms: int) -> None:
        self._store = store
        self._logs = logs
        self._bounds = bounds
        self.catalog = catalog
        self.seq = seq
        self.ts_ms = ts_ms
        self._header = row_header(seq, ts_ms)
        self._batch: Batch = store.batch()
        self._overlay: dict[Family, dict[bytes, bytes | None]] = {family: {} for family in Family}
        self._appended: dict[tuple[int, int], _Appended] = {}
        self._log_starts: dict[tuple[int, int], LogStart] = {}
        self._runs: list[ChangeRun] = []
        self._deduplicated = 0
        self._dirty = False

    @property
    def empty(self) -> bool:
        return not self._dirty

    # --- View ---

    def get(self, family: Family, key: bytes) -> bytes | None:
        overlay = self._overlay[family]
        if key in overlay:
            return overlay[key]
        return self._store.get(family, key)

    def are_new(self, prefix: bytes, keys: Sequence[bytes]) -> bool:
        return self._bounds.are_beyond(prefix, min(keys)) and self._overlay[Family.ROWS].keys().isdisjoint(keys)

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        overlay = self._overlay[family]
        if not overlay:
            return self._store.get_many(family, keys)
        get = self._store.get
        return [overlay[key] if key in overlay else get(family, key) for key in keys]

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        if reverse or floor:
            return self._store.scan(family, start, end, reverse=reverse, floor=floor)
        return merged(self._store, self._overlay[family], family, start, end)

    def log_end(self, topic_id: int, partition: int) -> int:
        appended = self._appended.get((topic_id, partition))
        return self._logs.at(topic_id, partition).next_offset + (len(appended.keys) if appended else 0)

    def written_end(self, topic_id: int, partition: int) -> int:
        return self._logs.at(topic_id, partition).next_offset

    def log_start(self, topic_id: int, partition: int) -> int:
        pending = self._log_starts.get((topic_id, partition))
        return pending.offset if pending else self._logs.at(topic_id, partition).start.offset

    def written_bytes(self, topic_id: int, partition: int) -> int:
        return self._logs.at(topic_id, partition).bytes_end

    # --- taking decisions in ---

    def apply(self, decision: Decision) -> None:
        """All of it. Whatever can fail (routing, encoding) happens before anything is taken in."""
        appends, dedup_records, deduplicated = self._route(decision)
        writes = [(run, self._row_values(run)) for run in decision.runs]
        catalog = self.catalog if decision.catalog is None else decision.catalog
        for run, values in writes:
            self._write_rows(run, values)
        for family, key, value in decision.records + dedup_records:
            self._put(family, key, value)
        for family, start, end in decision.ranges:
            self._batch.delete_range(family, start, end)
            self._dirty = True
        for append in appends:
            self._append(append)
        if decision.log_starts:
            self._log_starts.update(decision.log_starts)
            self._dirty = True
        self._runs += decision.runs
        self._deduplicated += deduplicated
        self.catalog = catalog

    def _route(self, decision: Decision) -> tuple[list[Append], list[Record], int]:
        """The messages, the records that remember them, and how many were dropped as said before."""
        appends = decision.appends
        for run in decision.runs:
            table = self.catalog.tables[run.table_id]
            routes = table.routes[run.op]
            if routes:
                appends = appends + route_run(run, routes, table.payload, table.schema.full_name)
        deduplicating = [a for a in appends if self.catalog.topics[a.topic_id].dedup_window_seconds]
        if not deduplicating:
            return appends, [], 0
        return self._deduplicate(appends)

    def _deduplicate(self, appends: list[Append]) -> tuple[list[Append], list[Record], int]:
        """Drops messages that said the same inside the topic's window, and remembers the others."""
        kept: list[Append] = []
        remembered: dict[bytes, Record] = {}
        found: list[Record] = []
        dropped = 0
        for append in appends:
            topic = self.catalog.topics[append.topic_id]
            if not topic.dedup_window_seconds:
                kept.append(append)
                continue
            fresh = [i for i in range(len(append.keys)) if self._is_fresh(topic, append, i, remembered, found)]
            dropped += len(append.keys) - len(fresh)
            if fresh:
                kept.append(picked(append, fresh))
        return kept, found, dropped

    def _is_fresh(
        self, topic: Topic, append: Append, i: int, remembered: dict[bytes, Record], found: list[Record]
    ) -> bool:
        window_ms = topic.dedup_window_seconds * 1000
        key = dedup_key(append, i)
        seen = self.get(Family.KEYS, key)
        if key in remembered or (seen is not None and self.ts_ms - decode_seen(seen) < window_ms):
            return False
        expires = keys.expiry_key(self.ts_ms + window_ms, Family.KEYS, key)
        remembered[key] = (Family.KEYS, key, encode_seen(self.ts_ms))
        found += [remembered[key], (Family.EXPIRY, expires, b"")]
        return True

    def _row_values(self, run: ChangeRun) -> list[bytes | None]:
        if run.op is Op.DELETE:
            return [None] * len(run.keys)
        header = self._header
        if run.bodies:
            return [header + body for body in run.bodies]
        encode = self.catalog.tables[run.table_id].codec.encode
        return [header + encode(row) for row in run.after]

    def _write_rows(self, run: ChangeRun, values: list[bytes | None]) -> None:
        overlay, batch = self._overlay[Family.ROWS], self._batch
        put, rows = batch.put, Family.ROWS
        if run.op is Op.DELETE:
            for key in run.keys:
                batch.delete(rows, key)
        else:
            batch.put_many(rows, run.keys, values)  # type: ignore[arg-type]  # only deletes have None
        overlay.update(zip(run.keys, values, strict=True))
        table = self.catalog.tables[run.table_id]
        if run.op is Op.INSERT:
            self._bounds.raise_to(table.codec.prefix(run.user_id), max(run.keys))
        self._dirty = True
        if table.ttl_ms is not None and run.op is not Op.DELETE:
            expires = self.ts_ms + table.ttl_ms
            for key in run.keys:
                put(Family.EXPIRY, keys.expiry_key(expires, Family.ROWS, key), b"")

    def _put(self, family: Family, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._batch.delete(family, key)
        else:
            self._batch.put(family, key, value)
        self._overlay[family][key] = value
        self._dirty = True

    def _append(self, append: Append) -> None:
        place = append.topic_id, append.partition
        appended = self._appended.get(place)
        if appended is None:
            appended = self._appended[place] = _Appended()
        appended.add(append)
        self._dirty = True

    # --- closing ---

    def close(self, ids: SnowflakeIds) -> tuple[Batch, Commit]:
        """The batch to write and what to tell once it is durable. Moves the log counters."""
        ends = {place: self._log(place, appended, ids) for place, appended in self._appended.items()}
        for (topic_id, partition), start in self._log_starts.items():
            self._logs.at(topic_id, partition).start = start
            self._batch.put(Family.META, records.log_start_key(topic_id, partition), records.encode_record(start))
        mark = records.CommitMark(self.seq, self.ts_ms, ids.last)
        self._batch.put(Family.META, records.COMMIT_KEY, records.encode_record(mark))
        starts = {place: start.offset for place, start in self._log_starts.items()}
        commit = Commit(self.seq, self.ts_ms, tuple(self._runs), ends, starts, self.catalog, self._deduplicated)
        return self._batch, commit

    def _log(self, where: tuple[int, int], appended: _Appended, ids: SnowflakeIds) -> int:
        log = self._logs.at(*where)
        for start, stop in appended.cuts():
            first_id = ids.take(self.ts_ms, stop - start)
            place = Place(log.next_offset, self.seq, self.ts_ms, first_id, log.bytes_end)
            value = appended.encode(start, stop, place)
            self._batch.put(Family.LOG, keys.log_key(*where, log.next_offset), value)
            log.next_offset += stop - start
            log.bytes_end += len(value)
        return log.next_offset


def dedup_key(append: Append, i: int) -> bytes:
    """What a dedup entry is filed under: topic, then a digest of source table, op, user, key and content.

    A cryptographic digest: two messages taken for one would be a lost event. The user is part of a row's identity:
    in a USER table two people's rows may have one key and say the same.
    """
    said = blake2b(digest_size=DEDUP_DIGEST_BYTES)
    source, op, _, user_id = append.message_class
    for part in (source.encode(), op.label.encode(), (user_id or "").encode(), append.keys[i]):
        said.update(len(part).to_bytes(4, "big"))
        said.update(part)
    said.update(append.payloads[i])
    return b"d" + keys.topic_prefix(append.topic_id) + said.digest()


def encode_seen(ts_ms: int) -> bytes:
    """The value of a dedup entry: when the message was last let through."""
    return _SEEN.pack(_SEEN_FORMAT, ts_ms)


def decode_seen(value: bytes) -> int:
    if len(value) != _SEEN.size or value[0] != _SEEN_FORMAT:
        raise CorruptData(f"a dedup entry is {value.hex()}, which is not format {_SEEN_FORMAT} and a time")
    ts_ms: int = _SEEN.unpack(value)[1]
    return ts_ms


def merged(
    store: Reader, overlay: Mapping[bytes, bytes | None], family: Family, start: bytes, end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """A scan of the store with uncommitted writes laid over it."""
    pending = sorted(k for k in overlay if k >= start and (end is None or k < end))
    at = 0
    for key, value in store.scan(family, start, end):
        while at < len(pending) and pending[at] < key:
            laid = overlay[pending[at]]
            if laid is not None:
                yield pending[at], laid
            at += 1
        if at < len(pending) and pending[at] == key:
            laid = overlay[key]
            at += 1
            if laid is not None:
                yield key, laid
            continue
        yield key, value
    for key in pending[at:]:
        laid = overlay[key]
        if laid is not None:
            yield key, laid


class StalePlan(TablecastError):
    """The table changed between planning a statement and deciding it. The caller plans again; users never see it."""

    code = "stale_plan"
    retryable = True
