"""What makes a request or a message happen once: remembered requests, dedup entries, and the entries that end them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec import keys
from tablecast.codec.catalog import Namespace
from tablecast.codec.log import LogBatch, MessageClass
from tablecast.codec.rows import row_codec
from tablecast.core.routing import Append
from tablecast.core.snowflake import SnowflakeIds
from tablecast.engine.bounds import KeyBounds
from tablecast.engine.catalog import Catalog
from tablecast.engine.commit import Commit, PendingCommit
from tablecast.engine.decision import Decision
from tablecast.engine.dedup import decode_seen, dedup_key, encode_seen
from tablecast.engine.idempotency import (
    KEPT_MS,
    Once,
    Remembered,
    decode_remembered,
    encode_remembered,
    idempotency_key,
)
from tablecast.engine.logs import LogState
from tablecast.engine.rows import Written
from tablecast.errors import CorruptData, IdempotencyMismatch, InvalidRequest
from tablecast.model.change import ChangeRun, Op
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode, Route, Topic
from tablecast.storage.base import Family
from tablecast.storage.memory import MemoryStore

NOW = 1_640_995_200_000
WINDOW_MS = 60_000
NOTES = TableSchema(
    7, "app", "notes", TableKind.USER,
    (Column("id", ColumnType(TypeName.INT)), Column("text", ColumnType(TypeName.TEXT))), ("id",),
)  # fmt: skip
CODEC = row_codec(NOTES)


def topic(payload: PayloadMode = PayloadMode.FULL) -> Topic:
    return Topic(3, "app", "events", routes=(Route(7, tuple(Op), payload=payload),), dedup_window_seconds=60)


@dataclass
class Database:
    """A store, and commits one after the other."""

    store: MemoryStore
    catalog: Catalog
    logs: LogState
    seq: int = 0

    @staticmethod
    def new(payload: PayloadMode = PayloadMode.FULL) -> Database:
        return Database(MemoryStore(), Catalog.of([Namespace("app")], [NOTES], [topic(payload)]), LogState())

    def pending(self, ts_ms: int = NOW) -> PendingCommit:
        self.seq += 1
        return PendingCommit(self.store, self.catalog, self.logs, KeyBounds(self.store), self.seq, ts_ms)

    def write(self, pending: PendingCommit) -> Commit:
        batch, commit = pending.close(SnowflakeIds())
        self.store.write(batch)
        return commit

    def commit(self, *decisions: Decision, ts_ms: int = NOW) -> Commit:
        pending = self.pending(ts_ms)
        for decision in decisions:
            pending.apply(decision)
        return self.write(pending)

    def said(self) -> list[tuple[str | None, bytes]]:
        batches = [LogBatch(value) for _, value in self.store.scan(Family.LOG)]
        return [(message.user_id, message.key) for batch in batches for message in batch.messages(3, 0)]


def insert(user: str, *rows: Any) -> Decision:
    stored_keys = [CODEC.key_of_row(CODEC.prefix(user), row) for row in rows]
    return Decision(runs=[ChangeRun(7, 1, Op.INSERT, stored_keys, [], list(rows), [], user)])


def note(key: int, text: str = "hello") -> Any:
    return CODEC.struct(key, text)


# --- dedup ---------------------------------------------------------------------------------------------------


def test_the_same_message_is_said_once_within_the_window() -> None:
    db = Database.new()
    assert db.commit(insert("ann", note(1))).deduplicated == 0
    assert db.commit(insert("ann", note(1)), ts_ms=NOW + WINDOW_MS - 1).deduplicated == 1
    assert db.commit(insert("ann", note(1, "other")), ts_ms=NOW + WINDOW_MS - 1).deduplicated == 0
    assert db.commit(insert("ann", note(1)), ts_ms=NOW + WINDOW_MS).deduplicated == 0
    assert db.said() == [("ann", b"[1]")] * 3


def test_within_one_commit_too() -> None:
    db = Database.new()
    assert db.commit(insert("ann", note(1), note(1), note(2)), insert("ann", note(2))).deduplicated == 2
    assert db.said() == [("ann", b"[1]"), ("ann", b"[2]")]


def test_two_users_rows_are_two_messages_even_if_they_say_the_same() -> None:
    db = Database.new()
    db.commit(insert("ann", note(1)), insert("bob", note(1)))
    db.commit(insert("eve", note(1)))
    assert db.said() == [("ann", b"[1]"), ("bob", b"[1]"), ("eve", b"[1]")]


def test_a_decision_that_fails_leaves_no_trace_and_is_not_counted() -> None:
    db = Database.new(PayloadMode.KEY)
    db.commit(insert("ann", note(1)))
    pending = db.pending()
    with pytest.raises(UnicodeEncodeError):  # the payload is the key alone, so only storing the row fails
        pending.apply(insert("ann", note(1, "\ud800"), note(2)))
    assert pending.empty
    commit = db.write(pending)
    assert commit.deduplicated == 0
    assert db.said() == [("ann", b"[1]")]
    assert len(list(db.store.scan(Family.KEYS))) == 1


def test_every_dedup_entry_has_the_entry_that_ends_it() -> None:
    db = Database.new()
    db.commit(insert("ann", note(1), note(2)))
    entries = [key for key, _ in db.store.scan(Family.KEYS)]
    ends = [keys.decode_expiry_key(key) for key, _ in db.store.scan(Family.EXPIRY)]
    assert len(entries) == 2
    assert sorted(ends) == sorted((NOW + WINDOW_MS, "keys", key) for key in entries)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
messages = st.builds(
    lambda topic_id, source, op, user, key, payload: Append(
        topic_id, 0, MessageClass(source, op, PayloadMode.FULL, user), [key], [payload], [0]
    ),
    st.integers(0, 3),
    texts,
    st.sampled_from(Op),
    st.none() | texts.filter(bool),
    st.binary(max_size=3),
    st.binary(max_size=3),
)


@given(messages, messages)
def test_dedup_keys_are_equal_exactly_for_equal_messages(a: Append, b: Append) -> None:
    """No way of cutting the parts differently makes two messages one."""
    same = (a.topic_id, a.message_class, a.keys, a.payloads) == (b.topic_id, b.message_class, b.keys, b.payloads)
    assert (dedup_key(a, 0) == dedup_key(b, 0)) == same
    assert dedup_key(a, 0).startswith(b"d" + keys.topic_prefix(a.topic_id))
    assert len(dedup_key(a, 0)) == 21


@given(st.integers(0, 2**64 - 1))
def test_the_time_of_a_dedup_entry_comes_back(ts_ms: int) -> None:
    assert decode_seen(encode_seen(ts_ms)) == ts_ms


@pytest.mark.parametrize("value", [b"", b"\x01", encode_seen(1)[:-1], encode_seen(1) + b"\x00", b"\x02" + bytes(8)])
def test_what_is_not_a_dedup_entry(value: bytes) -> None:
    with pytest.raises(CorruptData, match="dedup entry"):
        decode_seen(value)


# --- remembered requests -------------------------------------------------------------------------------------


@dataclass
class Insert:
    """A command that counts how often it is decided."""

    rows: list[Any]
    decided: int = 0
    weight: int = 1

    def decide(self, view: Any) -> Decision:
        self.decided += 1
        runs = insert("ann", *self.rows).runs if self.rows else []
        return Decision(Written(view.seq, len(self.rows), self.rows), runs)


def once(db: Database, command: Insert, fingerprint: bytes = b"same", ts_ms: int = NOW) -> Written:
    pending = db.pending(ts_ms)
    decision = Once("ann", "order-42", fingerprint, command, 7).decide(pending)
    pending.apply(decision)
    db.write(pending)
    answer: Written = decision.response
    return answer


def test_a_repeated_request_is_answered_from_memory() -> None:
    db, command = Database.new(), Insert([note(1), note(2)])
    first = once(db, command)
    again = once(db, command, ts_ms=NOW + KEPT_MS - 1)
    assert again == first == Written(1, 2, [note(1), note(2)])
    assert command.decided == 1
    assert db.said() == [("ann", b"[1]"), ("ann", b"[2]")]


def test_after_a_day_the_key_is_new() -> None:
    db, command = Database.new(), Insert([note(1)])
    once(db, command)
    assert once(db, command, ts_ms=NOW + KEPT_MS).seq == 2
    assert command.decided == 2


def test_another_request_under_the_same_key_is_refused() -> None:
    db, command = Database.new(), Insert([note(1)])
    once(db, command)
    with pytest.raises(IdempotencyMismatch, match="'order-42' was used for another request"):
        once(db, command, b"other")
    assert command.decided == 1


def test_a_remembered_request_has_the_entry_that_ends_it() -> None:
    db = Database.new()
    once(db, Insert([]))
    ((key, value),) = db.store.scan(Family.KEYS)
    assert key == b"iann\x00\x01order-42"
    assert decode_remembered(value) == Remembered(b"same", NOW + KEPT_MS, 1, 0, 7, [])
    assert [key for key, _ in db.store.scan(Family.EXPIRY)] == [keys.expiry_key(NOW + KEPT_MS, "keys", key)]


@pytest.mark.parametrize("key", ["x", "é" * 127, "x" * 255, "\x00"])
def test_idempotency_keys(key: str) -> None:
    assert idempotency_key("ann", key) == b"iann\x00\x01" + key.encode()


@pytest.mark.parametrize("key", ["", "x" * 256, "é" * 128, "a\ud800"])
def test_what_is_not_an_idempotency_key(key: str) -> None:
    with pytest.raises(InvalidRequest, match="idempotency key"):
        idempotency_key("ann", key)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(names, names, names, names)
def test_a_key_belongs_to_its_user(user: str, key: str, other_user: str, other_key: str) -> None:
    """No way of cutting user and key differently makes two requests one."""
    same = (user, key) == (other_user, other_key)
    assert (idempotency_key(user, key) == idempotency_key(other_user, other_key)) == same


STORED = encode_remembered(Remembered(b"0123456789abcdef", NOW, 258, 2, 7, [b"\x92\x01\xa1x", b""]))


def test_remembered_requests_come_back() -> None:
    assert encode_remembered(decode_remembered(STORED)) == STORED


@pytest.mark.parametrize("cut", range(len(STORED)))
def test_every_truncation_is_corrupt_data(cut: int) -> None:
    with pytest.raises(CorruptData, match="idempotency record"):
        decode_remembered(STORED[:cut])


@given(st.integers(0, len(STORED) - 1), st.integers(0, 255))
def test_any_damaged_byte_is_corrupt_data_or_another_record(at: int, byte: int) -> None:
    try:
        found = decode_remembered(STORED[:at] + bytes([byte]) + STORED[at + 1 :])
    except CorruptData:
        return
    assert isinstance(found, Remembered)


def test_another_format_is_refused() -> None:
    with pytest.raises(CorruptData, match="format 2; this tablecast reads 1"):
        decode_remembered(b"\x02" + STORED[1:])


def test_a_field_that_is_unknown_is_left_out() -> None:
    more = msgspec.msgpack.decode(STORED[1:]) | {"colour": "red"}
    assert decode_remembered(b"\x01" + msgspec.msgpack.encode(more)) == decode_remembered(STORED)
