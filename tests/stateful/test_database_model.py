"""The whole database against a model of dicts and lists, with crashes in between.

Every rule sends one request to both and compares the answers, errors included. After each step the rows, the new
messages, the logs' bounds and the groups must agree; at the end of a run everything is read again, by every path there
is. A crash keeps what was synced and nothing else, so what was acknowledged must all be there.

A longer search: pytest --hypothesis-profile=thorough tests/stateful/test_database_model.py
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pytest
from database_model import DAY_MS, DatabaseModel, Remembered, Said, SourceModel, TopicModel
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from model_groups import GroupModel
from model_statements import ChangeModel, Insert, TableModel, Write
from model_strategies import (
    ADDED_COLUMNS,
    CONSUMERS,
    GROUPS,
    INITIAL_SOURCES,
    SEED,
    USERS,
    by_key,
    claimed_or_any,
    inserts,
    keys,
    new_tables,
    new_topics,
    sources,
    writes,
)

from tablecast.codec.arrow_types import arrow_schema
from tablecast.codec.keys import table_prefix
from tablecast.codec.result import Result
from tablecast.core import failpoint
from tablecast.engine import system
from tablecast.engine.audit import AUDIT_KEPT_MS
from tablecast.engine.loads import LoadCommitted, LoadInfo
from tablecast.errors import (
    DatabaseClosed,
    DuplicateSource,
    IdempotencyMismatch,
    InUse,
    InvalidTopic,
    OffsetOutOfRange,
    TablecastError,
    TransactionConflict,
    UnknownGroup,
    UnknownSource,
    WritesStopped,
)
from tablecast.model.change import Op
from tablecast.model.message import Consumed, Message
from tablecast.model.position import EARLIEST, LATEST, Start, StartKind
from tablecast.model.schema import Actor, Role
from tablecast.sql.database import Database
from tablecast.sql.session import Session
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.testing.clock import FakeClock
from tablecast.testing.failpoints import raising

sys.path.insert(0, str(Path(__file__).parents[1] / "behaviour"))
from load_parts import arrow_part, sealed_part, table_of

EVERYTHING = 100_000
NEVER_SECONDS = 3600.0  # jobs run when a rule says so
SURVIVES = {"before_write": False, "after_write": False, "before_sync": False, "after_sync": True, "before_ack": True}
STEPS_MS = (1, 999, 10_000, 30_000, 40_000, 60_000, 121_000, DAY_MS)

topics = st.sampled_from([topic.name for topic in new_topics()])
fed_topics = st.sampled_from([topic.name for topic in new_topics() if topic.name != "app.dead"])
tables = st.sampled_from([table.name for table in new_tables()])


Expected = TypeVar("Expected")
Actual = TypeVar("Actual")


class DatabaseMachine(RuleBasedStateMachine):
    """`open` and `reopen` are the store's; everything else is the same for all of them."""

    db: Database
    survives = SURVIVES

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model = DatabaseModel(new_tables(), new_topics(), self.clock)
        self.checked = {(t.name, p): 0 for t in self.model.topics.values() for p in range(t.partitions)}
        self.anonymous = 0
        self.batches = 0
        self.open()
        self.define_everything()

    def open(self) -> None:
        raise NotImplementedError

    def reopen(self) -> None:
        raise NotImplementedError

    def database(self, store: Any) -> Database:
        self.sessions: dict[str, Session] = {}
        return Database(store, clock=self.clock, jobs_interval_seconds=NEVER_SECONDS)

    def define_everything(self) -> None:
        self.db.execute("CREATE NAMESPACE app")
        for table in self.model.tables.values():
            self.db.execute(table.create_sql())
        for topic in self.model.topics.values():
            if topic.name != "app.dead":  # made with the topic whose dead letters it takes
                self.create_topic(topic)
        self.add_initial_sources()
        for write in SEED:
            self.write(write)

    def add_initial_sources(self) -> None:
        """Those that are missing: a run in which nothing is routed would show little."""
        for name, table, mode in INITIAL_SOURCES:
            topic = self.model.topics[name]
            if table not in {source.table for source in topic.sources}:
                self.feed(topic, SourceModel(table, frozenset(Op), None, None, mode))

    def create_topic(self, topic: TopicModel) -> None:
        options = {
            "dedup_window_seconds": topic.dedup_ms // 1000,
            "retention_seconds": "NULL" if topic.retention_ms is None else topic.retention_ms // 1000,
            "max_deliveries": topic.max_deliveries,
        } | ({"dead_letter": f"'{topic.dead_letter}'"} if topic.dead_letter else {})
        shown = ", ".join(f"{name} = {value}" for name, value in options.items())
        self.db.execute(f"CREATE TOPIC {topic.name} PARTITIONS {topic.partitions} WITH ({shown})")
        topic.topic_id = self.db.topic(topic.name).topic_id

    def session(self, user: str) -> Session:
        if user not in self.sessions:
            self.sessions[user] = self.db.session(user, "service")
        return self.sessions[user]

    @property
    def next_seq(self) -> int:
        return self.db.engine.seq + 1

    # --- writing ---

    def run(self, session: Session, write: Write, key: str | None = None) -> Result:
        statement, table = write.statement, self.model.tables[write.table]
        if isinstance(statement, Insert) and statement.bulk:
            rows = [dict(zip(statement.columns, row, strict=True)) for row in statement.values]
            mode = "insert" if statement.conflict is None else "upsert"
            return session.insert(write.table, rows, mode=mode, idempotency_key=key)
        return session.execute(*statement.sql(table), idempotency_key=key)

    def write(self, write: Write) -> list[ChangeModel]:
        """A statement of its own, here and in the model."""
        session, seq = self.session(write.user), self.next_seq
        changes, result = agree(lambda: self.model.effect(write), lambda: self.run(session, write)) or ([], None)
        if result is not None:
            assert result.row_count == count_rows(changes)
            assert result.seq == seq or not changes
            self.model.commit(changes, seq)
        return changes

    @rule(data=st.data(), count=st.integers(1, 4))
    def change_rows(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.write(data.draw(writes(list(self.model.tables.values()))))

    @rule(data=st.data(), name=tables, user=st.sampled_from(USERS), count=st.integers(1, 3))
    def delete_by_key(self, data: st.DataObject, name: str, user: str, count: int) -> None:
        """Past SQL, as `db.insert` in mode delete; a key may come twice."""
        table = self.model.tables[name]
        wanted = [data.draw(keys(table)) for _ in range(count)]
        seq, places = self.next_seq, dict.fromkeys((table.owner(user), key) for key in wanted)
        live = table.live(self.clock())
        changes = [ChangeModel(name, Op.DELETE, place, live[place].row, None) for place in places if place in live]
        result = self.session(user).insert(name, wanted, columns=table.key, mode="delete")
        assert result.row_count == len(changes)
        self.model.commit(changes, seq)

    @rule(data=st.data(), sealed=st.booleans(), parts=st.integers(1, 3), again=st.booleans())
    def load(self, data: st.DataObject, sealed: bool, parts: int, again: bool) -> None:
        """An INSERT as a load: of rows into any table, or sealed into one that allows it. Again it changes nothing."""
        tables = [self.model.tables["app.orders"]] if sealed else list(self.model.tables.values())
        made = data.draw(st.sampled_from(tables).flatmap(lambda table: st.tuples(st.just(table), inserts(table))))
        table, statement = made[0], replace(made[1], conflict=None if sealed else made[1].conflict and "update")
        write = Write(table.name, data.draw(st.sampled_from(USERS)), statement)
        mode, kind = "upsert" if statement.conflict else "insert", "sealed" if sealed else "rows"
        if sealed and any(source.table == table.name for source in self.model.topics["app.dedup"].sources):
            self.drop_source("app.dedup", table.name, None)
        self.batches += 1

        def begin() -> LoadInfo:
            actor = Actor(write.user, Role.SERVICE)
            return self.db.engine.loads.begin(actor, table.name, "model", self.batches, mode=mode, kind=kind)

        changes = self._loaded(write, statement, begin(), kind, parts)
        if again and changes:
            committed = begin().committed
            assert committed is not None
            assert (committed.row_count, committed.already) == (len(changes), True)

    def _loaded(
        self, write: Write, statement: Insert, info: LoadInfo, kind: str, parts: int
    ) -> list[ChangeModel] | None:
        def call() -> LoadCommitted:
            for number in range(parts):
                self.db.engine.loads.stage(info.load_id, number, "a", self._part(statement, info, kind, number, parts))
            return self.db.engine.loads.commit(info.load_id, [(number, "a") for number in range(parts)])

        if kind == "sealed" and not self._can_be_sealed(write, statement):
            return None  # whoever seals refuses it: there is nothing to send
        found = agree(lambda: self._load_effect(write, statement, parts), call)
        if found is None:
            self.db.engine.loads.abort(info.load_id)
            return None
        changes, done = found
        assert (done.row_count, done.already) == (len(changes), False)
        self.model.commit(changes, done.seq)
        return changes

    def _load_effect(self, write: Write, statement: Insert, parts: int) -> list[ChangeModel]:
        """What a row demands of itself is judged part by part, before any row meets those of the table."""
        empty = replace(self.model.tables[write.table], rows={})
        for number in range(parts):
            alone = replace(statement, values=_values_of(statement, number, parts), conflict="nothing")
            alone.effect(empty, write.user, self.clock())
        return self.model.effect(write)

    def _can_be_sealed(self, write: Write, statement: Insert) -> bool:
        table = self.model.tables[write.table]
        try:
            statement.effect(replace(table, rows={}), write.user, self.clock())
        except TablecastError:
            return False
        return True

    def _part(self, statement: Insert, info: LoadInfo, kind: str, number: int, parts: int) -> io.BytesIO:
        """Consecutive rows: messages come in the order of the parts."""
        values = _values_of(statement, number, parts)
        fields = {field.name: field for field in arrow_schema(info.table)}
        if kind == "rows":
            columns = list(zip(*values, strict=True)) or [()] * len(statement.columns)
            schema = pa.schema([fields[name] for name in statement.columns])
            return arrow_part(pa.table([list(column) for column in columns], schema=schema))
        table = self.model.tables[info.table.full_name]
        defaults = {column.name: column.default for column in table.columns}
        rows = [defaults | dict(zip(statement.columns, row, strict=True)) for row in values]
        codec = table_of(info).codec
        build = codec.builder(info.table.column_names)
        made = [build([row[name] for name in info.table.column_names], NO_DEFAULTS) for row in rows]
        return sealed_part(info, [codec.values(row) for row in made])

    @rule(data=st.data(), key=st.sampled_from(["k1", "k2"]), again=st.booleans())
    def write_once(self, data: st.DataObject, key: str, again: bool) -> None:
        """A retried request commits once; another request of its user under its key is refused."""
        write = data.draw(writes(list(self.model.tables.values())))
        remembered = self.model.remembered.get((write.user, key))
        if remembered is None or remembered.expires_ms <= self.clock():
            seq = self.next_seq
            done = agree(lambda: self.model.effect(write), lambda: self.run(self.session(write.user), write, key))
            if done is not None:
                changes, result = done
                assert result.row_count == count_rows(changes)
                self.model.commit(changes, seq)
                known = Remembered(write, self.clock() + DAY_MS, result.seq, result.row_count)
                self.model.remembered[write.user, key] = known
        elif again or self.request(write) == self.request(remembered.write):
            write = remembered.write
            result = self.run(self.session(write.user), write, key)
            assert (result.row_count, result.seq) == (remembered.count, remembered.seq)
        else:
            with pytest.raises(IdempotencyMismatch):
                self.run(self.session(write.user), write, key)

    def request(self, write: Write) -> tuple[Any, ...]:
        """What makes two requests the same."""
        statement = write.statement
        if isinstance(statement, Insert) and statement.bulk:
            return write.user, write.table, statement
        return write.user, *statement.sql(self.model.tables[write.table])

    @rule(data=st.data(), user=st.sampled_from(USERS), commit=st.booleans())
    def transaction(self, data: st.DataObject, user: str, commit: bool) -> None:
        """Its statements see each other and nothing that others commit meanwhile; the first committer wins."""
        everything = list(self.model.tables.values())
        statements = data.draw(st.lists(writes(everything), min_size=1, max_size=4))
        other = data.draw(st.one_of(st.none(), writes(everything)))
        session = self.db.session(user, "service")
        before = deepcopy(self.model.tables)
        session.begin()
        changes = [change for write in statements for change in self._in_transaction(session, write.by(user))]
        seen = self.model.tables
        self.model.tables = before
        taken = [] if other is None else self.write(other)
        for table in seen.values():
            self._check_rows(table, session, user)
        if not commit:
            session.rollback()
        elif {(c.table, c.place) for c in changes} & {(c.table, c.place) for c in taken}:
            with pytest.raises(TransactionConflict):
                session.commit()
        else:
            seq = self.next_seq
            assert session.commit().row_count == len(changes)
            self.model.commit(changes, seq)
        assert not session.in_transaction

    def _in_transaction(self, session: Session, write: Write) -> list[ChangeModel]:
        done = agree(lambda: self.model.effect(write), lambda: self.run(session, write))
        changes: list[ChangeModel] = [] if done is None else done[0]
        assert done is None or done[1].row_count == count_rows(changes)
        for change in changes:
            self.model.keep(change, self.db.engine.seq)
        return changes

    # --- definitions ---

    @rule(name=tables)
    def add_column(self, name: str) -> None:
        table = self.model.tables[name]
        missing = [column for column in ADDED_COLUMNS if column not in table.columns]
        if missing:
            column = missing[0]
            default = "" if column.default is None else f" DEFAULT {column.default}"
            self.db.execute(f"ALTER TABLE {name} ADD COLUMN {column.name} {column.type}{default}")
            self.model.add_column(table, column)

    @rule(name=tables)
    def drop_and_create_table(self, name: str) -> None:
        fed = any(source.table == name for topic in self.model.topics.values() for source in topic.sources)
        if fed:
            with pytest.raises(InUse):
                self.db.execute(f"DROP TABLE {name}")
        self.db.execute(f"DROP TABLE {name}{' CASCADE' if fed else ''}")
        table = self.model.tables[name]
        self.model.drop_table(table)
        table.columns = [column for column in table.columns if column not in ADDED_COLUMNS]
        self.db.execute(table.create_sql())
        self.add_initial_sources()

    @rule(data=st.data(), name=fed_topics, backfill=st.booleans())
    def add_source(self, data: st.DataObject, name: str, backfill: bool) -> None:
        self.feed(self.model.topics[name], data.draw(sources(list(self.model.tables.values()))), backfill)

    def feed(self, topic: TopicModel, source: SourceModel, backfill: bool = False) -> None:
        def effect() -> None:
            if any(s.table == source.table and s.ops & source.ops for s in topic.sources):
                raise DuplicateSource(source.table)
            if backfill and Op.INSERT not in source.ops:
                raise InvalidTopic("backfill")

        where = "" if source.where is None else f" WHERE {source.where.sql}"
        by = "" if source.partition_by is None else f" PARTITION BY {source.partition_by}"
        ops, options = on(source.ops), f"payload = '{source.mode}', backfill = {str(backfill).upper()}"
        sql = f"ALTER TOPIC {topic.name} ADD SOURCE {source.table} {ops}{where}{by} WITH ({options})"
        seq = self.next_seq
        done = agree(effect, lambda: self.db.execute(sql))
        if done is not None:
            assert done[1].row_count == self.model.add_source(topic, source, backfill, seq)

    @rule(name=fed_topics, table=tables, ops=st.one_of(st.none(), st.sets(st.sampled_from(Op), min_size=1)))
    def drop_source(self, name: str, table: str, ops: set[Op] | None) -> None:
        topic = self.model.topics[name]
        mine = {op for source in topic.sources if source.table == table for op in source.ops}
        everything = ops is None or ops == set(Op)

        def effect() -> None:
            if not mine or not (everything or (ops or set()) <= mine):
                raise UnknownSource(table)

        sql = f"ALTER TOPIC {name} DROP SOURCE {table} {'' if ops is None else on(ops)}"
        if agree(effect, lambda: self.db.execute(sql)) is not None:
            self.model.drop_source(topic, table, frozenset(Op) if ops is None else frozenset(ops))

    @rule(name=st.sampled_from(["app.plain", "app.dedup", "app.brief"]))
    def drop_and_create_topic(self, name: str) -> None:
        topic = self.model.topics[name]
        self.db.execute(f"DROP TOPIC {name}")
        topic.clear_all()
        self.create_topic(topic)
        self.checked |= {(name, partition): 0 for partition in range(topic.partitions)}
        self.add_initial_sources()

    @rule(name=topics)
    def clear_topic(self, name: str) -> None:
        assert self.db.execute(f"CLEAR TOPIC {name}").row_count == self.model.clear(self.model.topics[name])

    # --- groups ---

    @rule(
        data=st.data(), name=topics, group=st.sampled_from(GROUPS), consumer=st.sampled_from(CONSUMERS),
        limit=st.integers(1, 5), visibility_ms=st.sampled_from([1, 10_000, 40_000]), reset=st.booleans(),
    )  # fmt: skip
    def consume(
        self, data: st.DataObject, name: str, group: str, consumer: str | None, limit: int, visibility_ms: int,
        reset: bool,
    ) -> None:  # fmt: skip
        topic = self.model.topics[name]
        partition = data.draw(st.integers(0, topic.partitions - 1))
        start = data.draw(self.starts(topic, partition))
        self.claim(topic, group, partition, consumer, limit, start, visibility_ms, reset)

    def claim(
        self, topic: TopicModel, group: str, partition: int, consumer: str | None, limit: int, start: Start,
        visibility_ms: int, reset: bool,
    ) -> list[int]:  # fmt: skip
        """The offsets that both gave."""
        seq = self.next_seq

        def effect() -> tuple[dict[int, int], bool]:
            starts = () if group in topic.groups else self.begins(topic, partition, start)
            return self.model.claim(
                topic, group, partition, consumer=self.named(consumer), limit=limit, starts=starts,
                visibility_ms=visibility_ms, skip_lost=reset, seq=seq,
            )  # fmt: skip

        def call() -> Consumed:
            return self.db.consume(
                topic.name, group=group, start=start, partition=partition, limit=limit, consumer=consumer,
                visibility_seconds=visibility_ms / 1000, auto_offset_reset=reset,
            )  # fmt: skip

        done = agree(effect, call)
        if done is None:
            return []
        (given, skipped), found = done
        assert {m.offset: m.delivery for m in found.messages} == given
        assert [said(m) for m in found.messages] == [topic.logs[partition][at] for at in given]
        assert bool(found.skipped) == skipped
        return list(given)

    def begins(self, topic: TopicModel, read: int, start: Start) -> list[int]:
        """Where a first read of one partition makes the group begin: an offset is that partition's alone."""
        is_offset = start.kind is StartKind.OFFSET
        return [
            topic.starts[p] if is_offset and p != read else resolved(topic, p, start) for p in range(topic.partitions)
        ]

    @rule(
        name=st.sampled_from(["app.work", "app.work", "app.plain"]), group=st.sampled_from(GROUPS),
        consumer=st.sampled_from(CONSUMERS), ways=st.lists(st.sampled_from(["upto", "single", "nack", "nack", "keep"]), max_size=9),
        pause_ms=st.sampled_from([0, 0, 10_000]),
    )  # fmt: skip
    def work(self, name: str, group: str, consumer: str | None, ways: list[str], pause_ms: int) -> None:
        """What a consumer does all day: it takes some, and is done with them, or not."""
        topic = self.model.topics[name]
        self.clock.advance(pause_ms)
        for i, how in enumerate(ways):
            partition = i // 3 % topic.partitions  # several times in a row, so that deliveries are used up
            given = self.claim(topic, group, partition, consumer, 3, EARLIEST, 10_000, reset=True)
            if given and how != "keep":
                self.settle_offsets(topic, group, partition, given[-1:] if how == "upto" else given, consumer, how)

    @rule(group=st.sampled_from(GROUPS), partition=st.integers(0, 2), clear=st.booleans(), again=st.booleans())
    def give_up(self, group: str, partition: int, clear: bool, again: bool) -> None:
        """Until what was claimed is dead; then perhaps it is sent back, with or without the log it came from."""
        topic = self.model.topics["app.work"]
        for _ in range(topic.max_deliveries):
            given = self.claim(topic, group, partition, "one", 2, EARLIEST, 10_000, reset=True)
            if given:
                self.settle_offsets(topic, group, partition, given, "one", "nack")
        self.claim(topic, group, partition, "two", 2, EARLIEST, 10_000, reset=True)
        if clear:
            self.clear_topic(topic.name)
        if again:
            self.send_back(None)

    @rule(name=st.sampled_from(["app.plain", "app.dedup", "app.brief"]), group=st.sampled_from(GROUPS))
    def consume_all_partitions(self, name: str, group: str) -> None:
        topic = self.model.topics[name]

        def effect() -> list[tuple[int, int, int]]:
            held, given = deepcopy(topic.groups), []
            try:
                for p in range(topic.partitions):
                    claimed, _ = self.model.claim(
                        topic, group, p, consumer="all", limit=EVERYTHING, starts=topic.starts,
                        visibility_ms=60_000, skip_lost=False, seq=0,
                    )  # fmt: skip
                    given += [(p, offset, count) for offset, count in claimed.items()]
            except OffsetOutOfRange:
                topic.groups = held  # one partition that cannot go on, and none was claimed
                raise
            return given

        done = agree(effect, lambda: self.db.consume(name, group=group, limit=EVERYTHING, consumer="all"))
        if done is not None:
            given, found = done
            assert sorted((m.partition_id, m.offset, m.delivery) for m in found.messages) == given

    def named(self, consumer: str | None) -> str:
        """A reader without a name gets one of its own for each claim."""
        self.anonymous += 1
        return consumer or f"anonymous-{self.anonymous}"

    def starts(self, topic: TopicModel, partition: int) -> st.SearchStrategy[Start]:
        return st.one_of(
            st.sampled_from([EARLIEST, LATEST]),
            st.integers(0, topic.end(partition) + 1).map(lambda n: Start(StartKind.OFFSET, n)),
            st.sampled_from(STEPS_MS).map(lambda ms: Start(StartKind.TIMESTAMP, self.clock() - ms)),
        )

    @rule(
        data=st.data(), name=topics, group=st.sampled_from(GROUPS), consumer=st.sampled_from(CONSUMERS),
        how=st.sampled_from(["upto", "single", "nack"]),
    )  # fmt: skip
    def settle(self, data: st.DataObject, name: str, group: str, consumer: str | None, how: str) -> None:
        topic = self.model.topics[name]
        partition = data.draw(st.integers(0, topic.partitions - 1))
        state = self.model.settled(topic, group)[partition]
        offset = claimed_or_any(state, topic.end(partition))
        offsets = data.draw(st.lists(offset, min_size=1, max_size=1 if how == "upto" else 3))
        self.settle_offsets(topic, group, partition, offsets, consumer, how)

    def settle_offsets(
        self, topic: TopicModel, group: str, partition: int, offsets: list[int], consumer: str | None, how: str
    ) -> None:
        def effect() -> int | None:
            if how == "nack" and group not in topic.groups:
                raise UnknownGroup(group)
            states = self.model.settled(topic, group)
            answer = settled(states[partition], topic.end(partition), offsets, consumer, how)
            topic.groups[group] = states
            return answer

        def call() -> int | None:
            if how == "upto":
                return self.db.ack(topic.name, group, offsets[0], partition=partition, consumer=consumer)
            if how == "single":
                return self.db.ack(topic.name, group, offsets=offsets, partition=partition, consumer=consumer)
            return self.db.nack(topic.name, group, offsets, reason="bad luck", partition=partition, consumer=consumer)

        done = agree(effect, call)
        assert done is None or done[0] == done[1]

    @rule(name=topics, group=st.sampled_from(GROUPS), consumer=st.sampled_from(["one", "two"]), renew=st.booleans())
    def hold_or_let_go(self, name: str, group: str, consumer: str, renew: bool) -> None:
        states = self.model.topics[name].groups.get(group, {}).values()
        if renew:
            held = sum(state.extend(consumer, self.clock() + 40_000) for state in states)
            assert self.db.extend(name, group, consumer, 40.0) == held
        else:
            held = sum(state.release(consumer) for state in states)
            assert self.db.release(name, group, consumer) == held

    @rule(data=st.data(), name=topics, group=st.sampled_from(GROUPS), everywhere=st.booleans())
    def reset_group(self, data: st.DataObject, name: str, group: str, everywhere: bool) -> None:
        topic = self.model.topics[name]
        one = data.draw(st.integers(0, topic.partitions - 1))
        partitions = range(topic.partitions) if everywhere else [one]
        start = data.draw(self.starts(topic, one))

        def effect() -> dict[int, int]:
            return {partition: resolved(topic, partition, start) for partition in partitions}

        where = "" if everywhere else f" PARTITION {one}"
        sql = f"RESET GROUP '{group}' ON {name}{where} TO {to(start)}"
        done = agree(effect, lambda: self.db.execute(sql))
        if done is not None:
            for partition, offset in done[0].items():
                self.model.reset(topic, group, partition, offset)

    @rule(data=st.data(), everything=st.booleans())
    def redrive(self, data: st.DataObject, everything: bool) -> None:
        end = self.model.topics["app.dead"].end(0)
        self.send_back(None if everything else data.draw(st.integers(0, end)))

    def send_back(self, only: int | None) -> None:
        dead, seq = self.model.topics["app.dead"], self.next_seq

        def effect() -> int:
            if only is not None and not dead.starts[0] <= only < dead.end(0):
                raise OffsetOutOfRange(str(only))
            return self.model.redrive(dead, only, seq)

        sql = f"REDRIVE TOPIC app.dead {'ALL' if only is None else f'OFFSET {only}'}"
        done = agree(effect, lambda: self.db.execute(sql))
        assert done is None or done[1].row_count == done[0]

    # --- time and jobs ---

    @rule(ms=st.sampled_from(STEPS_MS))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.sampled_from([0, 121_000]))
    def run_retention(self, ms: int) -> None:
        self.clock.advance(ms)
        assert self.db.run_job("retention").count == self.model.retain()

    @rule(ms=st.sampled_from([0, 10_000]))
    def run_claims(self, ms: int) -> None:
        self.clock.advance(ms)
        seq, count = self.next_seq, 0
        for topic in sorted(self.model.topics.values(), key=lambda topic: topic.topic_id):
            for group, partition in sorted((g, p) for g, states in topic.groups.items() for p in states):
                done = self.model.expire(topic, group, partition, seq)
                count, seq = count + done, seq + bool(done)
        assert self.db.run_job("claims").count == count

    @rule(ms=st.sampled_from([0, 30_000, 60_000]))
    def run_expiry(self, ms: int) -> None:
        self.clock.advance(ms)
        self.db.run_job("expiry")
        self.model.remove_expired()

    # --- crashes ---

    @rule()
    def crash(self) -> None:
        self.reopen()

    @rule(data=st.data(), place=st.sampled_from(sorted(SURVIVES)))
    def crash_in_a_write(self, data: st.DataObject, place: str) -> None:
        """What was synced is there after a crash, whole; what was not is gone, whole."""
        write = data.draw(writes(list(self.model.tables.values())))
        try:
            changes = self.model.effect(write)
        except TablecastError:
            return
        if not changes:
            return
        seq = self.next_seq
        with failpoint.armed(place, raising(StorageFailure("the disk is gone"))) as point:
            with pytest.raises(WritesStopped):
                self.run(self.session(write.user), write)
            assert point.fired
        with pytest.raises(WritesStopped):
            self.db.execute("CREATE NAMESPACE never")
        self.reopen()
        if self.survives[place]:
            self.model.commit(changes, seq)

    # --- what must hold after every step ---

    @invariant()
    def rows_agree(self) -> None:
        for table in self.model.tables.values():
            for user in USERS if table.per_user else USERS[:1]:
                self._check_rows(table, self.session(user), user)

    def _check_rows(self, table: TableModel, session: Session, user: str) -> None:
        found = session.execute(f"SELECT * FROM {table.name}")
        assert found.columns == tuple(column.name for column in table.columns)
        assert found.dicts() == visible(table, user, self.clock())

    @invariant()
    def logs_agree(self) -> None:
        for topic in self.model.topics.values():
            found = self.db.topic(topic.name)
            for partition in range(topic.partitions):
                bounds = (topic.starts[partition], topic.end(partition))
                assert self.db.engine.log_range(found.topic_id, partition) == bounds
                self._check_messages(topic, partition, max(self.checked[topic.name, partition], bounds[0]))
                self.checked[topic.name, partition] = bounds[1]

    def _check_messages(self, topic: TopicModel, partition: int, offset: int) -> None:
        start = Start(StartKind.OFFSET, offset)
        found = self.db.consume(topic.name, start=start, partition=partition, limit=EVERYTHING)
        assert [said(message) for message in found.messages] == topic.logs[partition][offset:]
        assert [m.offset for m in found.messages] == list(range(offset, topic.end(partition)))
        assert {m.delivery for m in found.messages} <= {1}
        assert (found.next_offset, found.has_more) == (topic.end(partition), False)

    @invariant()
    def groups_agree(self) -> None:
        found = system.SYSTEM_TABLES["topic_groups"].make(self.db.engine).drop_columns(["lag_seconds"]).to_pylist()
        assert by_place(found) == by_place(self._expected_groups())

    def _expected_groups(self) -> Iterator[dict[str, Any]]:
        for topic in self.model.topics.values():
            for group, states in topic.groups.items():
                for partition, state in states.items():
                    yield {
                        "topic": topic.name,
                        "group_id": group,
                        "partition_id": partition,
                        "committed": state.committed,
                        "claimed": len(state.where("claimed")),
                        "end_offset": topic.end(partition),
                        "lag": state.lag(topic.end(partition)),
                    }

    # --- and at the end ---

    def teardown(self) -> None:
        try:
            self.rows_by_every_path()
            self.whole_logs()
            assert (
                by_place(self.db.execute("SELECT * FROM system.topic_groups").dicts()).keys()
                == by_place(self._expected_groups()).keys()
            )
            assert self.db.verify().problems == []
            self.nothing_is_left_behind()
        finally:
            self.db.close()

    def rows_by_every_path(self) -> None:
        """Through DuckDB, by key and backwards: the same rows, with their commit numbers."""
        for table in self.model.tables.values():
            for user in USERS if table.per_user else USERS[:1]:
                session, expected = self.session(user), visible(table, user, self.clock())
                order = ", ".join(table.key)
                queried = session.execute(f"SELECT *, _seq FROM {table.name} WHERE 1 + 1 = 2 ORDER BY {order}").dicts()
                seqs = [s.seq for place, s in table.live(self.clock()).items() if place[0] == table.owner(user)]
                assert queried == [row | {"_seq": seq} for row, seq in zip(expected, seqs, strict=True)]
                backwards = ", ".join(f"{name} DESC" for name in table.key)
                assert session.execute(f"SELECT * FROM {table.name} ORDER BY {backwards}").dicts() == expected[::-1]
                for row in expected:
                    where = by_key(table, tuple(row[name] for name in table.key))
                    assert session.execute(f"SELECT * FROM {table.name} WHERE {where.sql}", where.params).dicts() == [
                        row
                    ]

    def whole_logs(self) -> None:
        for topic in self.model.topics.values():
            for partition in range(topic.partitions):
                self._check_messages(topic, partition, topic.starts[partition])
                arrow = self.db.read_arrow(topic.name, partition=partition)
                assert arrow.column("offset").to_pylist() == list(range(topic.starts[partition], topic.end(partition)))

    def nothing_is_left_behind(self) -> None:
        """When everything that expires has expired and the jobs ran, no trace of it is stored."""
        self.clock.advance(AUDIT_KEPT_MS + DAY_MS)
        for job in ("expiry", "retention", "claims"):
            self.db.run_job(job)
        store = self.db.engine.store
        assert list(store.scan(Family.EXPIRY)) == []
        assert list(store.scan(Family.KEYS)) == []
        assert self.db.query("SELECT * FROM system.audit_log").rows == []
        clicks = table_prefix(self.db.engine.catalog.table("app.clicks").table_id)
        assert [key for key, _ in store.scan(Family.ROWS, clicks) if key.startswith(clicks)] == []


def agree(effect: Callable[[], Expected], call: Callable[[], Actual]) -> tuple[Expected, Actual] | None:
    """What the model does and what the database answers. None if both refuse, which must be for the same reason."""
    try:
        expected = effect()
    except TablecastError as refusal:
        with pytest.raises(TablecastError) as raised:
            call()
        assert type(raised.value) is type(refusal), f"{refusal!r}, but {raised.value!r}"
        return None
    return expected, call()


def _values_of(statement: Insert, part: int, parts: int) -> tuple[tuple[Any, ...], ...]:
    size = -(-len(statement.values) // parts)
    return statement.values[part * size : (part + 1) * size]


NO_DEFAULTS: Any = None  # every column is given


def count_rows(changes: list[ChangeModel]) -> int:
    """A row that moved to another key is a delete and an insert, but one row."""
    moved = {c.op for c in changes} >= {Op.DELETE, Op.INSERT}
    return sum(c.op is not Op.DELETE for c in changes) if moved else len(changes)


def visible(table: TableModel, user: str, now_ms: int) -> list[dict[str, Any]]:
    return [stored.row for place, stored in table.live(now_ms).items() if place[0] == table.owner(user)]


def said(message: Message) -> Said:
    return Said(
        message.op, message.source_table, message.payload_mode.value, message.user_id,
        msgspec.json.decode(message.key), message.value, message.seq, message.ts,
    )  # fmt: skip


def by_place(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(row["topic"], row["group_id"], row["partition_id"]): row for row in rows}


def on(ops: Iterable[Op]) -> str:
    named = sorted(ops)
    return "ON ANY" if len(named) == len(Op) else "ON " + ", ".join(op.name for op in named)


def to(start: Start) -> str:
    if start.kind is StartKind.OFFSET:
        return f"OFFSET {start.value}"
    if start.kind is StartKind.TIMESTAMP:
        return f"TIMESTAMP '{datetime.fromtimestamp(start.value / 1000, UTC).isoformat(timespec='milliseconds')}'"
    return start.kind.name


def settled(state: GroupModel, end: int, offsets: list[int], consumer: str | None, how: str) -> int | None:
    if how == "nack":
        return state.nack(offsets, consumer, "bad luck")
    if state.simple:
        return state.commit(list(range(offsets[0] + 1)) if how == "upto" else offsets, end)
    return state.ack_upto(offsets[0], consumer) if how == "upto" else state.ack(offsets, consumer)


def resolved(topic: TopicModel, partition: int, start: Start) -> int:
    first, end = topic.starts[partition], topic.end(partition)
    if start.kind is StartKind.TIMESTAMP:
        log = topic.logs[partition]
        return next((offset for offset in range(first, end) if log[offset].ts_ms >= start.value), end)
    if start.kind is StartKind.OFFSET and not first <= start.value <= end:
        raise OffsetOutOfRange(str(start.value))
    return {StartKind.EARLIEST: first, StartKind.LATEST: end}.get(start.kind, start.value)


# --- the stores ----------------------------------------------------------------------------------------------


class MemoryMachine(DatabaseMachine):
    """A crash is a power cut: what was not synced is gone."""

    def open(self) -> None:
        self.db = self.database(MemoryStore(read_sorted))

    def reopen(self) -> None:
        store = self.db.engine.store
        assert isinstance(store, MemoryStore)
        survivor = store.crash()
        with suppress(DatabaseClosed):
            self.db.close()
        self.db.close()
        self.db = self.database(survivor)


class RocksMachine(DatabaseMachine):
    """Closed and opened again: what was written is there, also if it was not synced yet."""

    survives = dict.fromkeys(SURVIVES, True) | {"before_write": False}

    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.db = self.database(RocksStore.open(str(Path(self.folder.name) / "db"), create=True))

    def reopen(self) -> None:
        self.db.close()
        self.db = self.database(RocksStore.open(str(Path(self.folder.name) / "db"), create=False))

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


def examples(share: float) -> settings:
    return settings(max_examples=max(1, round(settings().max_examples * share)), stateful_step_count=40)


TestMemoryDatabase = MemoryMachine.TestCase
TestMemoryDatabase.settings = examples(0.4)
TestRocksDatabase = RocksMachine.TestCase
TestRocksDatabase.settings = examples(0.06)
