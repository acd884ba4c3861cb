"""Catalog records: golden bytes, round trips, keys, and what is not a record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec import catalog, keys
from tablecast.codec.catalog import (
    AuditEntry,
    ChangeStart,
    CommitMark,
    DroppedUser,
    History,
    JobRecord,
    LoadIntent,
    LoadStamp,
    LoadWriter,
    LogStart,
    Namespace,
    NextIds,
    User,
    decode_record,
    encode_record,
)
from tablecast.errors import CorruptData
from tablecast.model.change import Op
from tablecast.model.schema import (
    AccessLevel,
    Column,
    ColumnType,
    Default,
    DefaultKind,
    Role,
    TableKind,
    TableSchema,
    TypeName,
)
from tablecast.model.topic import PayloadMode, Route, Topic

TABLE = TableSchema(
    7,
    "app",
    "orders",
    TableKind.STREAM,
    (
        Column("id", ColumnType(TypeName.BIGINT), True, Default(DefaultKind.SNOWFLAKE_ID)),
        Column("amount", ColumnType(TypeName.DECIMAL, 12, 2), False, Default(DefaultKind.LITERAL, "1.5")),
    ),
    ("id",),
    ("amount > 0",),
    3600,
    AccessLevel.PUBLIC,
    True,
    3,
    1_640_995_200_000,
)
TOPIC = Topic(
    3,
    "app",
    "order_events",
    4,
    "orders",
    (Route(7, (Op.INSERT, Op.DELETE), "amount > 100", "id", PayloadMode.DIFF, 12, True),),
    604_800,
    2**30,
    60,
    5,
    "app.dead",
    1,
)
RECORDS: list[Any] = [
    Namespace("app", 5),
    TABLE,
    TOPIC,
    Topic(1, "app", "bare"),
    LogStart(10, 2**40),
    CommitMark(258, 1_640_995_200_000, -1),
    NextIds(8, 4),
    LoadStamp(258, 1_640_995_200_000, 1000),
    LoadWriter("job:1", 3, 258, 1000, 1_640_995_200_000),
    LoadIntent("ab", 258, ("0.a.sst",), ("log.sst",), b"\x00", b"\x01", 7),
    LoadIntent("ab", 258),
    ChangeStart(258, 2**40),
    History("7f3a90c1d2e4b586", ends=True),
    JobRecord("retention", "failed", 1, None, 2, 3, 4, "disk full"),
    User("ann", Role.DBA, "$argon2id$v=19$m=8,t=1,p=1$c2FsdA$aGFzaA", 1, 2, 258),
    DroppedUser("ann", 5),
    AuditEntry("ann", None, "SIGN IN", "", "failed", "a detail", "r-1", 5),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_come_back(record: Any) -> None:
    assert decode_record(type(record), encode_record(record)) == record


GOLDEN = [
    (Namespace("app", 5), "0182a46e616d65a3617070aa637265617465645f6d7305"),
    (LogStart(258, 77), "0182a66f6666736574cd0102ac62797465735f6265666f72654d"),
    (
        CommitMark(258, 1_640_995_200_000, 4096),
        "0183a3736571cd0102a574735f6d73cf0000017e12ef9c00a76c6173745f6964cd1000",
    ),
    (NextIds(8, 4, 2), "0183a57461626c6508a5746f70696304a46c6f616402"),
    (ChangeStart(258, 77), "0182a866726f6d5f736571cd0102ac62797465735f6265666f72654d"),
    (History("ab", ends=True), "0182a26964a26162a4656e6473c3"),
    (LoadStamp(258, 5, 3), "0183a3736571cd0102a574735f6d7305a4726f777303"),
]


@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=lambda v: type(v).__name__)
def test_golden_vectors(record: Any, text: str) -> None:
    assert encode_record(record).hex() == text
    assert decode_record(type(record), bytes.fromhex(text)) == record


def test_a_field_that_is_missing_has_its_default() -> None:
    """How a record of an older tablecast is read."""
    assert decode_record(Namespace, b"\x01" + msgspec.msgpack.encode({"name": "app"})) == Namespace("app", 0)
    assert decode_record(NextIds, bytes.fromhex("0182a57461626c6508a5746f70696304")) == NextIds(8, 4, 1)


def test_a_field_that_is_unknown_is_left_out() -> None:
    stored = b"\x01" + msgspec.msgpack.encode({"name": "app", "created_ms": 5, "colour": "red"})
    assert decode_record(Namespace, stored) == Namespace("app", 5)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_truncation_is_corrupt_data(record: Any) -> None:
    stored = encode_record(record)
    for cut in range(len(stored)):
        with pytest.raises(CorruptData, match=type(record).__name__):
            decode_record(type(record), stored[:cut])


@given(st.sampled_from(RECORDS), st.data())
def test_a_damaged_byte_is_corrupt_data_or_another_record(record: Any, data: st.DataObject) -> None:
    stored = encode_record(record)
    at, byte = data.draw(st.integers(0, len(stored) - 1)), data.draw(st.integers(0, 255))
    try:
        found = decode_record(type(record), stored[:at] + bytes([byte]) + stored[at + 1 :])
    except CorruptData as e:
        assert type(record).__name__ in e.message
    else:
        assert type(found) is type(record)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_format_is_refused(version: int) -> None:
    with pytest.raises(CorruptData, match=f"format {version}; this tablecast reads 1"):
        decode_record(NextIds, bytes([version]) + encode_record(NextIds())[1:])


@pytest.mark.parametrize(
    "body",
    [b"\x81\xa4name\xa1\xff", b"\xc0", b"\x81\xa4name\x05", b"\x82\xa4name\xa1a\xa1x" + b"\x91" * 100_000 + b"\xc0"],
    ids=["not UTF-8", "nil", "a number for a name", "endless nesting"],
)
def test_what_is_not_a_record(body: bytes) -> None:
    with pytest.raises(CorruptData, match="Namespace record does not decode"):
        decode_record(Namespace, b"\x01" + body)


# --- keys ----------------------------------------------------------------------------------------------------


def test_golden_keys() -> None:
    assert catalog.namespace_key("app") == b"namespace/app"
    assert catalog.table_key(258) == b"table/\x00\x00\x01\x02"
    assert catalog.topic_key(258) == b"topic/\x00\x00\x01\x02"
    assert catalog.log_start_key(258, 3) == b"log-start/\x00\x00\x01\x02\x00\x03"
    assert catalog.job_key("retention") == b"job/retention"
    assert catalog.user_key("ann") == b"user/ann"
    assert catalog.dropped_user_key("ann") == b"dropped-user/ann"
    assert catalog.audit_key(258, 3) == b"audit/" + bytes(6) + b"\x01\x02" + bytes(3) + b"\x03"
    assert (catalog.COMMIT_KEY, catalog.IDS_KEY) == (b"commit", b"ids")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1))
def test_log_start_keys_come_back(topic_id: int, partition: int) -> None:
    assert catalog.decode_log_start_key(catalog.log_start_key(topic_id, partition)) == (topic_id, partition)


@pytest.mark.parametrize(
    "key", [b"log-start/", b"log-start/\x00\x00\x00\x01\x00", b"log-start/\x00\x00\x00\x01\x00\x00\x00"]
)
def test_a_log_start_key_of_another_length_is_corrupt(key: bytes) -> None:
    with pytest.raises(CorruptData, match="log start"):
        catalog.decode_log_start_key(key)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_audit_keys_come_back(seq: int, number: int) -> None:
    assert catalog.decode_audit_key(catalog.audit_key(seq, number)) == (seq, number)


@pytest.mark.parametrize("key", [b"audit/", catalog.audit_key(1, 1)[:-1], catalog.audit_key(1, 1) + b"\x00"])
def test_an_audit_key_of_another_length_is_corrupt(key: bytes) -> None:
    with pytest.raises(CorruptData, match="audit entry"):
        catalog.decode_audit_key(key)


def test_a_user_does_not_show_its_hash() -> None:
    assert "argon2" not in repr(User("ann", Role.DBA, "$argon2id$v=19$m=8"))


KINDS = [
    catalog.NAMESPACES, catalog.TABLES, catalog.TOPICS, catalog.LOG_STARTS, catalog.JOBS, catalog.USERS,
    catalog.DROPPED_USERS, catalog.AUDIT,
]  # fmt: skip


@given(st.sampled_from(KINDS), st.binary(max_size=8))
def test_each_kind_of_record_is_one_range_of_its_own(kind: bytes, rest: bytes) -> None:
    for other in KINDS:
        end = keys.after(other)
        assert end is not None
        assert (other <= kind + rest < end) == (kind is other)
        for single in (catalog.COMMIT_KEY, catalog.IDS_KEY):
            assert not other <= single < end
