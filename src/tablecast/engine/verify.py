"""Proves a database sound, or names what is not.

Every stored thing is read and decoded, and what two places say about the same fact is compared:

1. catalog      every record decodes; ids are below the next ids; accounts stand under their names, and their hashes
                are hashes; audit entries are of commits that happened
2. rows         each decodes, stands under its own key, and is not newer than the last commit; a load has no more rows
                than it brought, and its record and its writer's are of commits that happened
3. log          batches are contiguous from the log's start to its end; offsets, commit numbers, times, ids and byte
                positions grow as they must; every content hash is its payload's
4. groups       each state decodes and lies within its partition's log
5. expiry       every row with a TTL, remembered key and audit entry has the entry that will remove it
6. coverage     the last write of each row is on every topic that asked for it, with the content that the row has; and
                a topic that takes everything in full, folded, is its table
7. changes      what is kept of a table's changes is whole, and in step with its rows (engine.verify_changes)
8. replication  versions, rows, buckets and the outbox agree (engine.verify_replication)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import (
    AuditEntry,
    CommitMark,
    DroppedUser,
    History,
    LoadStamp,
    LoadWriter,
    LogStart,
    NextIds,
    User,
    decode_record,
)
from tablecast.codec.log import ID_STEP, LogBatch
from tablecast.codec.rows import Row, row_load
from tablecast.core.routing import content_hash
from tablecast.engine.audit import AUDIT_KEPT_MS
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.engine import Engine
from tablecast.engine.idempotency import decode_remembered
from tablecast.engine.intents import stored_intent
from tablecast.engine.load_batches import BatchName, forgotten_ms
from tablecast.engine.logs import OUTBOX
from tablecast.engine.passwords import is_hash
from tablecast.engine.positions import group_places
from tablecast.engine.recovery import load_catalog, load_logs
from tablecast.engine.rows import is_live
from tablecast.engine.verify_changes import check_changes
from tablecast.engine.verify_replication import check_replication
from tablecast.errors import TablecastError
from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.topic import PayloadMode, Route, Topic
from tablecast.model.verify import Progress, VerifyReport
from tablecast.storage.base import Family, Reader

MAX_PROBLEMS = 100


class _Enough(Exception):
    pass


def verify_engine(engine: Engine, progress: Progress | None = None) -> VerifyReport:
    """Checks an open database while it goes on working."""
    return verify(engine.whole_snapshot(), engine.now_ms(), progress)


def verify(reader: Reader, now_ms: int, progress: Progress | None = None) -> VerifyReport:
    """Checks everything `reader` holds. `progress(what, count)` is called now and then."""
    verifier = _Verifier(reader, now_ms, progress or (lambda what, count: None))
    try:
        verifier.run()
    except TablecastError as e:
        verifier.report.problems.append(f"{e.code}: {e.message}")
    except _Enough:
        pass
    return verifier.report


class _Verifier:
    def __init__(self, reader: Reader, now_ms: int, progress: Progress) -> None:
        self._reader = reader
        self._now_ms = now_ms
        self._progress = progress
        self.report = VerifyReport()

    def run(self) -> None:
        stored = self._reader.get(Family.META, records.COMMIT_KEY)
        if stored is None:
            self._bad("there is no commit record")
            return
        self._mark = decode_record(CommitMark, stored)
        self._catalog: Catalog = load_catalog(self._reader)
        self._logs = load_logs(self._reader, self._catalog)
        self.report.warnings += self._catalog.alias_clashes()
        self._check_ids()
        self._check_history()
        self._check_users()
        self._check_audit()
        self._check_loads()
        for table in self._catalog.tables.values():
            self._check_rows(table)
        for topic in self._catalog.topics.values():
            self._check_topic(topic)
        self._check_keys()
        self.report.changes = check_changes(self._reader, self._catalog, self._mark.seq, self._bad)
        outbox = self._batches("the outbox", OUTBOX, self._logs.at(*OUTBOX).start)
        self.report.versions = check_replication(self._reader, self._catalog, self._logs, outbox, self._bad)

    def _bad(self, what: str) -> None:
        self.report.problems.append(what)
        if len(self.report.problems) >= MAX_PROBLEMS:
            raise _Enough

    def _check_ids(self) -> None:
        stored = self._reader.get(Family.META, records.IDS_KEY)
        self._ids = ids = NextIds() if stored is None else decode_record(NextIds, stored)
        if any(table_id >= ids.table for table_id in self._catalog.tables):
            self._bad(f"a table's id is not below the next one, {ids.table}")
        if any(topic_id >= ids.topic for topic_id in self._catalog.topics):
            self._bad(f"a topic's id is not below the next one, {ids.topic}")
        for topic in self._catalog.topics.values():
            for route in topic.routes:
                if route.table_id not in self._catalog.tables:
                    self._bad(f"topic {topic.full_name} has a source whose table {route.table_id} does not exist")

    def _check_history(self) -> None:
        stored = self._reader.get(Family.META, records.HISTORY_KEY)
        if stored is None or not decode_record(History, stored).id:
            self._bad("there is no record that says which history the commit numbers are of")

    # --- accounts ---

    def _check_users(self) -> None:
        for key, value in self._range(records.USERS):
            user = decode_record(User, value)
            if records.user_key(user.name) != key:
                self._bad(f"user {user.name!r} stands under another key than its own: {key!r}")
            if user.token_epoch > self._mark.seq:
                self._bad(f"user {user.name!r} is of commit {user.token_epoch}, but the last is {self._mark.seq}")
            if user.password is not None and not is_hash(user.password):
                self._bad(f"user {user.name!r} has a password hash that is none")
        for key, value in self._range(records.DROPPED_USERS):
            if records.dropped_user_key(decode_record(DroppedUser, value).name) != key:
                self._bad(f"a dropped user stands under another key than its own: {key!r}")

    def _check_audit(self) -> None:
        for key, value in self._range(records.AUDIT):
            seq, _ = records.decode_audit_key(key)
            entry = decode_record(AuditEntry, value)
            if seq > self._mark.seq:
                self._bad(f"an audit entry is of commit {seq}, but the last commit is {self._mark.seq}")
            expiry = keys.expiry_key(entry.time_ms + AUDIT_KEPT_MS, Family.META, key)
            if self._reader.get(Family.EXPIRY, expiry) is None:
                self._bad(f"the audit entry of commit {seq} ({entry.action}) has no expiry entry")

    # --- loads ---

    def _check_loads(self) -> None:
        self._brought: dict[tuple[int, int], int] = {}
        for key, value in self._range(records.LOADS):
            table_id, number = records.decode_load_key(key)
            load = decode_record(LoadStamp, value)
            self._brought[table_id, number] = load.rows
            self._check_load(f"load {number}", table_id, load.seq)
            if number >= self._ids.load:
                self._bad(f"load {number} is not below the next one, {self._ids.load}")
        for key, value in self._range(records.LOAD_WRITERS):
            writer = decode_record(LoadWriter, value)
            table_id = int.from_bytes(key[len(records.LOAD_WRITERS) :][:4], "big")
            what = f"the writer {writer.writer_id!r}"
            self._check_load(what, table_id, writer.seq)
            if BatchName(table_id, writer.writer_id, writer.batch_id).key != key:
                self._bad(f"{what} stands under another key than its own")
            ends_ms = forgotten_ms(writer)
            entry = None if ends_ms is None else keys.expiry_key(ends_ms, Family.META, key)
            if entry is not None and self._reader.get(Family.EXPIRY, entry) is None:
                self._bad(f"{what} is forgotten after a time, but has no expiry entry")
        intent = stored_intent(self._reader)
        if intent is not None and intent.seq != self._mark.seq:
            self._bad(f"the intent of commit {intent.seq} is still there after commit {self._mark.seq}")

    def _check_load(self, what: str, table_id: int, seq: int) -> None:
        if table_id not in self._catalog.tables:
            self._bad(f"{what} is of table {table_id}, which does not exist")
        if seq > self._mark.seq:
            self._bad(f"{what} is of commit {seq}, but the last is {self._mark.seq}")

    def _range(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._reader.scan(Family.META, prefix, keys.after(prefix))

    # --- rows ---

    def _check_rows(self, table: Table) -> None:
        self.report.tables += 1
        name = table.schema.full_name
        loaded: Counter[int] = Counter()
        for key, value, row in self._rows(table):
            seq, ts_ms = table.stamp(value)
            number = row_load(value)
            if number is not None:
                loaded[number] += 1
            prefix = table.codec.prefix(table.codec.owner(key))
            if table.codec.key_of_row(prefix, row) != key:
                self._bad(f"a row of {name} stands under another key than its own: {key.hex()}")
            if seq > self._mark.seq:
                self._bad(f"a row of {name} is of commit {seq}, but the last commit is {self._mark.seq}")
            if table.ttl_ms is not None:
                entry = keys.expiry_key(ts_ms + table.ttl_ms, Family.ROWS, key)
                if self._reader.get(Family.EXPIRY, entry) is None:
                    self._bad(f"a row of {name} has a TTL but no expiry entry: {key.hex()}")
            self.report.rows += 1
            if self.report.rows % 10_000 == 0:
                self._progress("rows", self.report.rows)
        for number, count in loaded.items():
            if count > self._brought.get((table.table_id, number), 0):
                self._bad(f"{name} has {count} rows of load {number}, which brought fewer")

    def _rows(self, table: Table) -> Iterator[tuple[bytes, bytes, Row]]:
        prefix = keys.table_prefix(table.table_id)
        for key, value in self._reader.scan(Family.ROWS, prefix, keys.after(prefix)):
            yield key, value, table.codec.decode(value)

    # --- topics ---

    def _check_topic(self, topic: Topic) -> None:
        self.report.topics += 1
        said = _Said(self._catalog, topic)
        complete = True
        for partition in range(topic.partitions):
            start = self._logs.at(topic.topic_id, partition).start
            complete = complete and start.offset == 0
            where = f"{topic.full_name}, partition {partition}"
            for batch in self._batches(where, (topic.topic_id, partition), start):
                messages = batch.messages(topic.topic_id, partition)
                self._check_messages(topic, messages)
                said.take(messages)
                self.report.messages += len(messages)
                self._progress("messages", self.report.messages)
        for group, partition, state, _ in group_places(self._reader, topic.topic_id):
            self.report.groups += 1
            end = self._logs.at(topic.topic_id, partition).next_offset
            if partition >= topic.partitions or state.next_offset > end:
                self._bad(
                    f"group {group!r} of {topic.full_name} is at offset {state.next_offset} of partition {partition}, "
                    f"whose log ends at {end}"
                )
        if not topic.dedup_window_seconds:
            for route in topic.routes:
                self._check_coverage(topic, route, said, complete)

    def _batches(self, where: str, place: tuple[int, int], start: LogStart) -> Iterator[LogBatch]:
        prefix = keys.log_prefix(*place)
        offset, position, seq, ts_ms, last_id = start.offset, start.bytes_before, 0, 0, -1
        for key, value in self._reader.scan(Family.LOG, prefix, keys.after(prefix)):
            batch = LogBatch(value)
            head = batch.head
            if keys.log_offset(key) != head.first_offset or head.first_offset != offset:
                self._bad(f"{where}: offset {offset} should follow, but a batch begins at {head.first_offset}")
            if head.bytes_before != position:
                self._bad(
                    f"{where}: the batch at {offset} stands at byte {position}, its head says {head.bytes_before}"
                )
            if head.seq < seq or head.ts_ms < ts_ms or head.first_id <= last_id or head.seq > self._mark.seq:
                self._bad(
                    f"{where}: the batch at {offset} is older than the one before it, or newer than the last commit"
                )
            offset, position = head.end_offset, head.bytes_before + len(value)
            seq, ts_ms, last_id = head.seq, head.ts_ms, head.first_id + (head.count - 1) * ID_STEP
            yield batch
        end = self._logs.at(*place).next_offset
        if offset != end:
            self._bad(f"{where}: the log ends at {offset}, its counter says {end}")

    def _check_messages(self, topic: Topic, messages: list[Message]) -> None:
        for message in messages:
            if content_hash(message.op, message.payload) != message.content_hash:
                self._bad(f"{topic.full_name}: the message at offset {message.offset} does not match its content hash")

    def _check_coverage(self, topic: Topic, route: Route, said: _Said, complete: bool) -> None:
        """Each row's last write is on the topic; a topic of everything is its table, and nothing else."""
        table = self._catalog.tables[route.table_id]
        if not {Op.INSERT, Op.UPDATE} <= set(route.ops) or not complete:
            return
        compiled = next(r for r in table.routes[Op.INSERT] if r.topic_id == topic.topic_id)
        expected: set[tuple[str | None, bytes]] = set()
        for key, value, row in self._rows(table):
            seq, _ = table.stamp(value)
            place = table.codec.owner(key), table.payload.message_key(row)
            if not is_live(table, value, self._now_ms):
                continue
            expected.add(place)
            if seq < route.from_seq or (seq == route.from_seq and not route.backfilled):
                continue
            if compiled.matches is not None and compiled.matches(row) is not True:
                continue
            self._check_row_said(topic, route, table, place, seq, row, said)
        if route.filter is None and Op.DELETE in route.ops and table.ttl_ms is None:
            self.report.folded += 1
            extra = said.living(table.schema.full_name, route.from_seq) - expected
            if extra:
                self._bad(
                    f"{topic.full_name} tells of a row that {table.schema.full_name} does not have: {min(extra)!r}"
                )

    def _check_row_said(
        self, topic: Topic, route: Route, table: Table, place: tuple[str | None, bytes], seq: int, row: Row, said: _Said
    ) -> None:
        found = said.last(table.schema.full_name, place)
        what = f"{table.schema.full_name} {place[1].decode()}"
        if found is None or found.seq < seq:
            self._bad(f"the write of {what} in commit {seq} is not on {topic.full_name}")
        elif found.seq > seq or route.payload is not PayloadMode.FULL:
            return
        elif not any(_same(word, table, row) for word in found.words()):
            self._bad(f"the last message of {what} on {topic.full_name} (offset {found.offset}) differs from the row")

    # --- remembered keys ---

    def _check_keys(self) -> None:
        for key, value in self._reader.scan(Family.KEYS):
            if key[:1] == b"i":
                expires = decode_remembered(value).expires_ms
                if self._reader.get(Family.EXPIRY, keys.expiry_key(expires, Family.KEYS, key)) is None:
                    self._bad(f"idempotency key {key[1:]!r} has no expiry entry")
        for entry, _ in self._reader.scan(Family.EXPIRY):
            keys.decode_expiry_key(entry)


@dataclass(slots=True)
class _Last:
    partition: int
    offset: int
    seq: int
    op: Op
    content_hash: int
    payload: bytes | None  # kept only if the table was altered: older messages lack the newer columns
    rival: _Last | None  # of the same commit, in a partition that the row moved from or to: either may be the last

    def words(self) -> Iterator[_Last]:
        yield self
        if self.rival is not None:
            yield from self.rival.words()


class _Said:
    """What a topic last said of each row."""

    def __init__(self, catalog: Catalog, topic: Topic) -> None:
        self._sources = {
            catalog.tables[route.table_id].schema.full_name: catalog.tables[route.table_id].schema.version > 1
            for route in topic.routes
        }
        self._last: dict[str, dict[tuple[str | None, bytes], _Last]] = {name: {} for name in self._sources}

    def take(self, messages: list[Message]) -> None:
        """Partition by partition, each in its order."""
        for m in messages:
            last = self._last.get(m.source_table)
            if last is None:
                continue
            before = last.get((m.user_id, m.key))
            if before is not None and before.partition != m.partition_id and before.seq > m.seq:
                continue  # the row has moved between partitions since: its newest message is elsewhere
            rival = before.rival if before is not None and before.partition == m.partition_id else before
            if rival is not None and rival.seq != m.seq:
                rival = None
            payload = m.payload if self._sources[m.source_table] else None
            word = _Last(m.partition_id, m.offset, m.seq, m.op, m.content_hash, payload, rival)
            last[m.user_id, m.key] = word

    def last(self, table: str, place: tuple[str | None, bytes]) -> _Last | None:
        return self._last[table].get(place)

    def living(self, table: str, from_seq: int) -> set[tuple[str | None, bytes]]:
        """Rows that it says are there, since the source was added: what happened before that, nobody told it."""
        return {
            place
            for place, last in self._last[table].items()
            if last.seq >= from_seq and all(word.op is not Op.DELETE for word in last.words())
        }


def _same(last: _Last, table: Table, row: Row) -> bool:
    payload = table.payload.full(row)
    if content_hash(last.op, payload) == last.content_hash:
        return True
    if last.payload is None:
        return False
    now, then = msgspec.json.decode(payload), msgspec.json.decode(last.payload)
    return all(now.get(name) == value for name, value in then.items())
