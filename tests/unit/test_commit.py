"""A commit under construction: what it takes in, what later commands see of it, and the log batches it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec import keys
from tablecast.codec.catalog import Namespace
from tablecast.codec.log import LogBatch, MessageClass
from tablecast.codec.rows import row_codec
from tablecast.core.routing import Append, content_hash
from tablecast.core.snowflake import STEP, SnowflakeIds
from tablecast.engine import logs
from tablecast.engine.bounds import KeyBounds
from tablecast.engine.catalog import Catalog
from tablecast.engine.commit import PendingCommit
from tablecast.engine.decision import Decision
from tablecast.engine.logs import LogState
from tablecast.engine.overlay import merged
from tablecast.engine.rows import CommitTransaction, InsertRows
from tablecast.errors import DuplicateKey
from tablecast.model.change import ChangeRun, Op
from tablecast.model.message import Message
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode, Topic
from tablecast.storage.base import Family
from tablecast.storage.memory import MemoryStore

ORDERS = TableSchema(7, "app", "orders", TableKind.SHARED, (Column("id", ColumnType(TypeName.INT)),), ("id",))
CODEC = row_codec(ORDERS)
PREFIX = CODEC.prefix(None)


@dataclass
class Writer:
    """Commits one after the other, as the engine's single writer does."""

    store: MemoryStore = field(default_factory=MemoryStore)
    logs: LogState = field(default_factory=LogState)
    ids: SnowflakeIds = field(default_factory=SnowflakeIds)
    catalog: Catalog = field(
        default_factory=lambda: Catalog.of([Namespace("app")], [ORDERS], [Topic(3, "app", "events", 2)])
    )
    seq: int = 0

    def __post_init__(self) -> None:
        self.reopen()

    def reopen(self) -> None:
        self.bounds = KeyBounds(self.store)

    def commit(self, *commands: Any) -> PendingCommit:
        self.seq += 1
        pending = PendingCommit(self.store, self.catalog, self.logs, self.bounds, self.seq, 1_640_995_200_000)
        for command in commands:
            pending.apply(command if isinstance(command, Decision) else command.decide(pending))
        batch, _ = pending.close(self.ids)
        self.store.write(batch)
        return pending

    def messages(self, partition: int = 0) -> list[Message]:
        prefix = keys.log_prefix(3, partition)
        found: list[Message] = []
        position = 0
        for key, value in self.store.scan(Family.LOG, prefix, keys.after(prefix)):
            head = LogBatch(value).head
            assert keys.log_offset(key) == head.first_offset == len(found)
            assert head.bytes_before == position
            position += len(value)
            found += LogBatch(value).messages(3, partition)
        assert self.logs.at(3, partition).bytes_end == position
        assert self.logs.at(3, partition).next_offset == len(found)
        return found


def key(number: int) -> bytes:
    return CODEC.encode_key(PREFIX, (number,))


def insert(*numbers: int) -> InsertRows:
    rows = [CODEC.struct(number) for number in numbers]
    return InsertRows(7, 1, None, [key(n) for n in numbers], rows, [CODEC.encode(row) for row in rows])


def transaction(*numbers: int) -> CommitTransaction:
    rows = [CODEC.struct(number) for number in numbers]
    run = ChangeRun(7, 1, Op.INSERT, [key(n) for n in numbers], [], rows, [], None)
    return CommitTransaction([run], {key(n): None for n in numbers})


# --- a key that exists is never taken for a new one ----------------------------------------------------------


def test_after_a_transaction_at_the_low_end_existing_keys_are_still_known() -> None:
    """A transaction inserts without asking for the table's last key; that must not pass for knowing it."""
    writer = Writer()
    writer.commit(insert(50, 100))
    writer.reopen()
    writer.commit(transaction(1))
    with pytest.raises(DuplicateKey, match="id = 50"):
        writer.commit(insert(50))


def test_a_key_of_the_same_commit_is_known() -> None:
    with pytest.raises(DuplicateKey, match="id = 5"):
        Writer().commit(transaction(5), insert(5))


numbers = st.lists(st.integers(0, 12), min_size=1, max_size=3, unique=True)
steps = st.lists(st.tuples(st.sampled_from(["insert", "transaction", "reopen", "commit"]), numbers), max_size=12)


@given(steps)
def test_any_mix_of_inserts_refuses_exactly_the_keys_there_are(plan: list[tuple[str, list[int]]]) -> None:
    writer = Writer()
    there: set[int] = set()
    for what, wanted in plan:
        free = [n for n in wanted if n not in there]
        if what == "reopen":
            writer.reopen()
        elif what == "insert" and len(free) < len(wanted):
            with pytest.raises(DuplicateKey):
                writer.commit(insert(*wanted))
        elif free:
            made = {"insert": [insert(*free)], "transaction": [transaction(*free)]}
            writer.commit(*made.get(what, [transaction(free[0]), *([insert(*free[1:])] if free[1:] else [])]))
            there.update(free)
    assert {int.from_bytes(k[-4:], "big") - 2**31 for k, _ in writer.store.scan(Family.ROWS)} == there


# --- log batches ---------------------------------------------------------------------------------------------

CLASSES = [MessageClass("app.orders", op, PayloadMode.FULL, user) for op in Op for user in (None, "ann")]


def append(payloads: list[bytes], message_class: MessageClass = CLASSES[0], partition: int = 0) -> Decision:
    hashes = [content_hash(message_class.op, payload) for payload in payloads]
    return Decision(appends=[Append(3, partition, message_class, [b"[1]"] * len(payloads), payloads, hashes)])


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(0, 5), st.integers(0, 1)), max_size=6), max_size=4
    )
)
def test_messages_are_in_the_log_once_in_order_and_gapless(
    commands: list[list[tuple[MessageClass, int, int]]],
) -> None:
    writer = Writer()
    expected: dict[int, list[tuple[MessageClass, bytes]]] = {0: [], 1: []}
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(logs, "LOG_BATCH_MESSAGES", 3)
        limits.setattr(logs, "LOG_BATCH_BYTES", 8)
        for decisions in commands:
            writer.commit(*(append([b"x" * size] * 2, c, partition) for c, size, partition in decisions))
            for message_class, size, partition in decisions:
                expected[partition] += [(message_class, b"x" * size)] * 2
    for partition, said in expected.items():
        found = writer.messages(partition)
        assert [(MessageClass(m.source_table, m.op, m.payload_mode, m.user_id), m.payload) for m in found] == said
        ids = [m.message_id for m in found]
        assert ids == sorted(set(ids))
        assert writer.ids.last >= max(ids, default=-1)


def test_a_batch_is_cut_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BATCH_MESSAGES", 3)
    monkeypatch.setattr(logs, "LOG_BATCH_BYTES", 10)
    writer = Writer()
    writer.commit(append([b"1", b"2", b"3", b"4"]), append([b"x" * 9, b"y" * 9, b"z" * 99]))
    assert [LogBatch(value).head.count for _, value in writer.store.scan(Family.LOG)] == [3, 2, 1, 1]
    assert [m.payload for m in writer.messages()] == [b"1", b"2", b"3", b"4", b"x" * 9, b"y" * 9, b"z" * 99]


def test_a_cut_batch_has_the_classes_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BATCH_MESSAGES", 2)
    writer = Writer()
    writer.commit(*(append([b"x"] * 2, message_class) for message_class in CLASSES[:3]))
    batches = [LogBatch(value) for _, value in writer.store.scan(Family.LOG)]
    assert [batch.classes() for batch in batches] == [[CLASSES[0]], [CLASSES[1]], [CLASSES[2]]]


def test_ids_of_one_batch_are_one_run() -> None:
    writer = Writer()
    writer.commit(append([b"x"] * 5))
    ids = [m.message_id for m in writer.messages()]
    assert [b - a for a, b in pairwise(ids)] == [STEP] * 4


def test_no_messages_are_no_batch() -> None:
    writer = Writer()
    writer.commit(append([]))
    assert writer.messages() == []


# --- what later commands see ---------------------------------------------------------------------------------

entries = st.dictionaries(st.binary(min_size=1, max_size=2), st.binary(max_size=2), max_size=8)
changes = st.dictionaries(st.binary(min_size=1, max_size=2), st.none() | st.binary(max_size=2), max_size=8)
bounds = st.binary(max_size=2)


@given(entries, changes, bounds, st.none() | bounds)
def test_a_scan_sees_the_store_with_the_pending_writes_over_it(
    stored: dict[bytes, bytes], laid: dict[bytes, bytes | None], start: bytes, end: bytes | None
) -> None:
    store = MemoryStore()
    batch = store.batch()
    for k, v in stored.items():
        batch.put(Family.ROWS, k, v)
    store.write(batch)
    now = {k: v for k, v in {**stored, **laid}.items() if v is not None}
    expected = sorted((k, v) for k, v in now.items() if k >= start and (end is None or k < end))
    assert list(merged(store, laid, Family.ROWS, start, end)) == expected
