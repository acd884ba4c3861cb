"""A commit under construction.

Commands are decided one after the other. Deciding reads a `View` and returns a `Decision`; only `PendingCommit.apply`
takes it in, whole or not at all, so a command that fails leaves no trace. What a pending commit holds is visible to the
commands after it (they may rely on it: all of them become durable together) and to nobody else.

`close` turns it into one batch: rows, records, one log batch per partition that got messages, and what the changed rows
were before, of tables whose changes are kept (engine.undo).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import ChangeStart, LogStart
from tablecast.codec.changes import Befores
from tablecast.codec.log import Place
from tablecast.codec.rows import row_header
from tablecast.core.routing import Append, route_run
from tablecast.core.snowflake import SnowflakeIds
from tablecast.engine.bounds import KeyBounds
from tablecast.engine.catalog import Catalog
from tablecast.engine.decision import Decision, Loaded, Record, Sums
from tablecast.engine.dedup import deduplicate
from tablecast.engine.guards import Guards
from tablecast.engine.local_writes import NO_EVENTS, local_writes
from tablecast.engine.logs import Appended, LogState
from tablecast.engine.overlay import Overlay, merged
from tablecast.engine.undo import ChangeIndex, KeptTable, Listed, Undo
from tablecast.engine.versions import add_sum, bucket_record
from tablecast.model.change import ChangeRun, Op
from tablecast.model.replication import Quarantined
from tablecast.storage.base import Batch, Family, Store

SMALL_BATCH_BYTES = 16 * 2**10  # a log batch up to this size is at hand for who waits for it; a larger one is read


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
    appended: Mapping[tuple[int, int], int]  # (topic, partition) -> how many messages it got
    letters: int  # of them dead letters, and what was sent back as a new message
    loaded: Loaded | None = None  # a sealed load: rows that are in no run, and files that are still to be taken in
    touched: frozenset[int] = frozenset()  # tables whose rows it changed: by runs, by a load, or as their time was over
    befores: Mapping[int, Befores] = field(default_factory=dict)  # of those whose changes are kept
    small_batches: Sequence[tuple[int, int, bytes]] = ()  # (topic, partition, log batch), for who waits for messages
    set_aside: Sequence[Quarantined] = ()  # events of its rows that no node could take

    @property
    def unlisted(self) -> frozenset[int]:
        """Tables that it changed without listing how: who follows one must fetch it again."""
        return self.touched.difference(self.befores)


class PendingCommit:
    """Implements `View` over the store and everything already applied to this commit."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        logs: LogState,
        bounds: KeyBounds,
        seq: int,
        ts_ms: int,
        guards: Guards | None = None,
        *,
        follows_load: bool = False,
        changes: ChangeIndex | None = None,
    ) -> None:
        self._store = store
        self._logs = logs
        self._bounds = bounds
        self._guards = guards or Guards()
        self._follows_load = follows_load  # then this commit removes the intent of the one before
        self._loaded: Loaded | None = None
        self._changes = changes or ChangeIndex()
        self._undo = Undo(store, bounds, self._changes) if self._changes.tables else None
        self._change_starts: dict[int, ChangeStart | None] = {}
        self._touched: set[int] = set()
        self.catalog = catalog
        self.seq = seq
        self.ts_ms = ts_ms
        self._header = row_header(seq, ts_ms)
        self._batch: Batch = store.batch()
        self._overlay = Overlay()
        self._appended: dict[tuple[int, int], Appended] = {}
        self._small_batches: list[tuple[int, int, bytes]] = []
        self._log_starts: dict[tuple[int, int], LogStart] = {}
        self._sums: Sums = {}
        self._set_aside: list[Quarantined] = []
        self._runs: list[ChangeRun] = []
        self._deduplicated = 0
        self._letters = 0
        self._dirty = False

    @property
    def empty(self) -> bool:
        return not self._dirty

    # --- View ---

    def get(self, family: Family, key: bytes) -> bytes | None:
        overlay = self._overlay.of(family)
        if key in overlay:
            return overlay[key]
        return self._store.get(family, key)

    def are_new(self, prefix: bytes, lowest: bytes, keys: Sequence[bytes]) -> bool:
        if not self._bounds.are_beyond(prefix, lowest):
            return False
        overlay = self._overlay.of(Family.ROWS)
        return not overlay or overlay.keys().isdisjoint(keys)

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        overlay = self._overlay.of(family)
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
        return merged(self._store, self._overlay.of(family), family, start, end)

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

    def kept_changes(self, table_id: int) -> KeptTable | None:
        return self._changes.tables.get(table_id)

    # --- taking decisions in ---

    def apply(self, decision: Decision) -> None:
        """All of it. Whatever can fail (routing, encoding, reading) happens before anything is taken in."""
        if _adds(decision):
            self._store.require_room()
        appends, dedup_records, deduplicated = self._route(decision)
        writes = [(run, self._row_values(run)) for run in decision.runs]
        befores = None if self._undo is None else self._undo.look(self.catalog, decision.runs, decision.expired)
        replicated, limit = decision.runs + decision.untold, self._logs.outbox_limit
        told = NO_EVENTS if decision.arrived else local_writes(self, replicated, limit)
        catalog = self.catalog if decision.catalog is None else decision.catalog
        if self._undo is not None and befores:
            self._undo.take(befores)
        for key in decision.expired:
            self._put(Family.ROWS, key, None)
            self._touched.add(int.from_bytes(key[:4], "big"))
        for run, values in writes:
            self._write_rows(run, values)
        for family, key, value in decision.records + dedup_records + told.records:
            self._put(family, key, value)
        for family, many, stored in decision.bulk:
            self._batch.put_many(family, many, stored)
            self._overlay.put_many(family, many, stored)
            self._dirty = True
        for family, start, end in decision.ranges:
            self._batch.delete_range(family, start, end)
            self._dirty = True
        for append in appends + told.appends:
            self._append(append)
        for sums in (decision.sums, told.sums):
            for place, change in sums.items():
                add_sum(self._sums, place, change)
        if decision.log_starts:
            self._log_starts.update(decision.log_starts)
            self._dirty = True
        if decision.change_starts:
            self._change_starts.update(decision.change_starts)
            self._dirty = True
        self._runs += decision.runs
        self._set_aside += told.set_aside
        self._deduplicated += deduplicated
        self._letters += len(decision.letters)
        self.catalog = catalog
        if decision.loaded is not None:
            self._take_load(decision.loaded)

    def _route(self, decision: Decision) -> tuple[list[Append], list[Record], int]:
        """The messages, the records that remember them, and how many were dropped as said before.

        A dead letter is all that is left of its message, so it is not dropped for saying what another one said.
        """
        appends = decision.appends
        for run in decision.runs:
            table = self.catalog.tables[run.table_id]
            routes = table.routes[run.op]
            if routes:
                appends = appends + route_run(run, routes, table.payload, table.schema.full_name)
        deduplicating = [a for a in appends if self.catalog.topics[a.topic_id].dedup_window_seconds]
        if not deduplicating:
            return decision.letters + appends, [], 0
        kept, remembered, dropped = deduplicate(self, appends)
        return decision.letters + kept, remembered, dropped

    def _row_values(self, run: ChangeRun) -> list[bytes | None]:
        if run.op is Op.DELETE:
            return [None] * len(run.keys)
        header = self._header
        if run.bodies:
            return [header + body for body in run.bodies]
        encode = self.catalog.tables[run.table_id].codec.encode
        return [header + encode(row) for row in run.after]

    def _write_rows(self, run: ChangeRun, values: list[bytes | None]) -> None:
        batch, rows = self._batch, Family.ROWS
        if run.op is Op.DELETE:
            for key in run.keys:
                batch.delete(rows, key)
        else:
            batch.put_many(rows, run.keys, values)  # type: ignore[arg-type]  # only deletes have None
        self._overlay.put_many(rows, run.keys, values)
        self._touched.add(run.table_id)
        table = self.catalog.tables[run.table_id]
        if run.op is Op.INSERT:
            self._bounds.raise_to(table.codec.prefix(run.user_id), max(run.keys))
        self._guards.note(run.table_id, run.op, run.keys)
        self._dirty = True
        if table.ttl_ms is not None and run.op is not Op.DELETE:
            expires = self.ts_ms + table.ttl_ms
            for key in run.keys:
                batch.put(Family.EXPIRY, keys.expiry_key(expires, Family.ROWS, key), b"")

    def _take_load(self, loaded: Loaded) -> None:
        table = self.catalog.tables[loaded.table_id]
        if loaded.rows:
            self._bounds.raise_to(table.codec.prefix(None), loaded.last_key)
            self._guards.note_load(loaded.table_id, (loaded.first_key, loaded.last_key))
            table.loads[loaded.load_number] = self.seq, loaded.ts_ms
            self._touched.add(loaded.table_id)
        self._loaded = loaded
        self._dirty = True

    def _put(self, family: Family, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._batch.delete(family, key)
        else:
            self._batch.put(family, key, value)
        self._overlay.put(family, key, value)
        self._dirty = True

    def _append(self, append: Append) -> None:
        place = append.topic_id, append.partition
        appended = self._appended.get(place)
        if appended is None:
            appended = self._appended[place] = Appended()
        appended.add(append)
        self._dirty = True

    # --- closing ---

    def close(self, ids: SnowflakeIds) -> tuple[Batch, Commit]:
        """The batch to write and what to tell once it is durable. Moves the log counters."""
        ends = {place: self._log(place, appended, ids) for place, appended in self._appended.items()}
        for (topic_id, partition), start in self._log_starts.items():
            self._logs.at(topic_id, partition).start = start
            self._batch.put(Family.META, records.log_start_key(topic_id, partition), records.encode_record(start))
        self._close_load(ends)
        befores = self._close_changes()
        for place, change in self._sums.items():
            self._put(*bucket_record(self._store, place, change))
        mark = records.CommitMark(self.seq, self.ts_ms, ids.last)
        self._batch.put(Family.META, records.COMMIT_KEY, records.encode_record(mark))
        starts = {place: start.offset for place, start in self._log_starts.items()}
        counts = {place: len(appended.keys) for place, appended in self._appended.items()}
        if self._loaded is not None:
            counts |= {place: end.appended for place, end in self._loaded.ends.items()}
        commit = Commit(
            self.seq, self.ts_ms, tuple(self._runs), ends, starts, self.catalog, self._deduplicated, counts, self._letters,
            self._loaded, frozenset(self._touched), befores, self._small_batches, self._set_aside,
        )  # fmt: skip
        return self._batch, commit

    def _close_load(self, ends: dict[tuple[int, int], int]) -> None:
        """Moves the log counters over what a load brought; its intent takes the place of the one before."""
        intent = None if self._loaded is None else self._loaded.intent
        if intent is not None:
            self._batch.put(Family.META, records.INTENT_KEY, records.encode_record(intent))
        elif self._follows_load:
            self._batch.delete(Family.META, records.INTENT_KEY)
        for place, end in ({} if self._loaded is None else self._loaded.ends).items():
            log = self._logs.at(*place)
            ends[place] = log.next_offset = end.offset
            log.bytes_end = end.bytes

    def _close_changes(self) -> dict[int, Listed]:
        """What is listed of each table."""
        changes, batch = self._changes, self._batch
        for table_id, start in self._change_starts.items():
            if start is None:
                changes.end(batch, table_id)
            else:
                changes.begin(batch, table_id, start)
        if self._undo is None:
            return {}
        for table_id, befores, size in self._undo.close():
            changes.put(batch, table_id, self.seq, self.ts_ms, befores, size)
        for table_id in self._touched:
            if table_id in changes.tables and table_id not in self._undo.listed:
                changes.begin_anew(batch, table_id, self.seq)
        return self._undo.listed

    def _log(self, where: tuple[int, int], appended: Appended, ids: SnowflakeIds) -> int:
        log = self._logs.at(*where)
        for start, stop in appended.cuts():
            first_id = ids.take(self.ts_ms, stop - start)
            place = Place(log.next_offset, self.seq, self.ts_ms, first_id, log.bytes_end)
            value = appended.encode(start, stop, place)
            self._batch.put(Family.LOG, keys.log_key(*where, log.next_offset), value)
            log.next_offset += stop - start
            log.bytes_end += len(value)
            if len(value) <= SMALL_BATCH_BYTES:
                self._small_batches.append((*where, value))
        return log.next_offset


def _adds(decision: Decision) -> bool:
    """Whether it makes the database larger for long: rows, or messages beside rows. Definitions and positions are small."""
    return (
        decision.loaded is not None or bool(decision.appends) or any(run.op is not Op.DELETE for run in decision.runs)
    )
