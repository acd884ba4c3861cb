"""Rows as events and back: nothing is lost on the way, one key per row, and what is no row is refused."""

from __future__ import annotations

import string
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tablecast.codec.events import decode_event, encode_event
from tablecast.codec.rows import row_codec
from tablecast.core.replicated_rows import is_bare, replicated_rows, table_of, why_not_replicated
from tablecast.errors import InvalidEvent
from tablecast.model.replication import Event, Version
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName

T = TypeName


def column(name: str, kind: T, **more: Any) -> Column:
    column_type = ColumnType(kind, 12, 2) if kind is T.DECIMAL else ColumnType(kind)
    return Column(name, column_type, **more)


def table(*columns: Column, key: tuple[str, ...] = ("id",), name: str = "orders", **more: Any) -> TableSchema:
    return TableSchema(7, "app", name, TableKind.SHARED, columns, key, **more)


ORDERS = table(column("id", T.BIGINT), column("customer", T.TEXT, not_null=True), column("note", T.JSON))
KV = table(column("key", T.TEXT), column("value", T.TEXT), key=("key",), name="kv")
PAIRS = table(column("a", T.TEXT), column("b", T.TEXT), key=("a", "b"), name="pairs")

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text("%,2C5:.", max_size=8)
VALUES: dict[T, st.SearchStrategy[Any]] = {
    T.BOOLEAN: st.booleans(),
    T.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    T.INT: st.integers(-(2**31), 2**31 - 1),
    T.BIGINT: st.integers(-(2**63), 2**63 - 1),
    T.FLOAT: st.floats(allow_nan=False, allow_infinity=False, width=32),
    T.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    T.DECIMAL: st.decimals(-(10**9), 10**9, places=2).map(lambda d: d.copy_abs() if d.is_zero() else d),
    T.TEXT: text,
    T.BYTES: st.binary(max_size=8),
    T.JSON: st.sampled_from(["null", "1.50", "[1,null]", '{"b":1,"a":"é"}', '"null"', "true", "1e5"]),
    T.TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
    T.DATE: st.dates(),
    T.TIME: st.times(),
    T.UUID: st.uuids(),
}


def all_columns(kinds: list[T]) -> TableSchema:
    columns = [column(f"k{i}", kind) for i, kind in enumerate(kinds)]
    others = [column(f"v_{kind.lower()}", kind) for kind in T]
    return table(*columns, *others, key=tuple(c.name for c in columns), name="everything")


@given(st.lists(st.sampled_from([kind for kind in T if kind is not T.JSON]), min_size=1, max_size=3), st.data())
def test_every_row_survives_the_way(kinds: list[T], data: st.DataObject) -> None:
    schema = all_columns(kinds)
    codec, rows = row_codec(schema), replicated_rows(schema)
    values = [data.draw(VALUES[kind]) for kind in kinds] + [data.draw(st.none() | VALUES[kind]) for kind in T]
    row = codec.builder(schema.column_names)(values, None)  # type: ignore[arg-type]
    stored_under = codec.key_of_row(codec.prefix(None), row)
    event = decode_event(encode_event(Event(rows.key(row), Version(1, "n", 1), rows.value(row))))
    assert event.value is not None
    arrived = rows.row(event.key, event.value)
    assert codec.encode(arrived) == codec.encode(row)
    assert rows.storage_key(event.key) == stored_under
    assert rows.key_at(stored_under, 4) == event.key
    assert table_of(event.key) == "app.everything"


@given(st.tuples(text, text), st.tuples(text, text))
def test_two_rows_never_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assume(one != other)
    rows, codec = replicated_rows(PAIRS), row_codec(PAIRS)
    assert rows.key(codec.struct(*one)) != rows.key(codec.struct(*other))


@pytest.mark.parametrize(
    ("kinds", "values", "expected"),
    [
        ([T.BIGINT], (-5,), "-5"),
        ([T.TEXT], ("a,b%:c",), "a,b%:c"),
        ([T.TEXT], ("",), ""),
        ([T.TEXT, T.TEXT], ("a,b", "50%"), "a%2Cb,50%25"),
        ([T.TEXT, T.TEXT], ("", ""), ","),
        ([T.DECIMAL, T.BOOLEAN], (Decimal("12.50"), True), "12.50,true"),
        ([T.TIMESTAMP], (datetime(2022, 1, 1, tzinfo=UTC),), "2022-01-01T00:00:00Z"),
        ([T.TIMESTAMP], (datetime(2022, 1, 1, 0, 0, 0, 7, UTC),), "2022-01-01T00:00:00.000007Z"),
        ([T.DATE, T.TIME], (date(2022, 1, 1), time(1, 2, 3)), "2022-01-01,01:02:03"),
        ([T.BYTES], (b"\xff\x00",), "/wA="),
        ([T.DOUBLE], (-0.0,), "0.0"),
        ([T.UUID], (UUID(int=1),), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_keys_read_well(kinds: list[T], values: tuple[Any, ...], expected: str) -> None:
    columns = [column(f"k{i}", kind) for i, kind in enumerate(kinds)]
    schema = table(*columns, key=tuple(c.name for c in columns))
    assert replicated_rows(schema).key(row_codec(schema).struct(*values)) == f"app.orders:{expected}"


def test_a_value_is_the_full_payload() -> None:
    row = row_codec(ORDERS).struct(42, "ann", '{"gift":true}')
    said = '{"_table":"app.orders","id":"42","customer":"ann","note":{"gift":true}}'
    assert replicated_rows(ORDERS).value(row) == said


def test_null_and_the_null_of_json_stay_apart() -> None:
    rows, make = replicated_rows(ORDERS), row_codec(ORDERS).struct
    assert "_json_null" not in rows.value(make(1, "a", None))
    assert rows.value(make(1, "a", "null")).endswith('"note":null,"_json_null":["note"]}')


@pytest.mark.parametrize(
    "key", ["app.orders:x", "app.orders:", "app.orders:05", "app.orders: 5", "app.orders:5.0", "app.orders:+5"]
)
def test_a_key_has_one_text(key: str) -> None:
    with pytest.raises(InvalidEvent, match="key"):
        replicated_rows(ORDERS).storage_key(key)


@pytest.mark.parametrize("key", ["app.pairs:a", "app.pairs:a,b,c", "app.pairs:a%2c,b", "app.pairs:%,b"])
def test_a_composite_key_has_one_text(key: str) -> None:
    with pytest.raises(InvalidEvent):
        replicated_rows(PAIRS).storage_key(key)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "not a row"),
        ("[]", "not a row"),
        ('{"_table":"app.other","id":"5","customer":"a"}', "not a row"),
        ('{"_table":"app.orders","id":"5"}', "NOT NULL"),
        ('{"_table":"app.orders","customer":"a"}', "NOT NULL"),
        ('{"_table":"app.orders","id":"6","customer":"a"}', "not that of the row"),
        ('{"_table":"app.orders","id":"5","customer":7}', "cannot hold"),
        ('{"_table":"app.orders","id":"5","customer":"a","extra":1}', "extra"),
        ('{"_table":"app.orders","id":"5","customer":"a","_json_null":["customer"]}', "_json_null"),
        ('{"_table":"app.orders","id":"5","customer":"a","note":1,"_json_null":["note"]}', "_json_null"),
        ('{"_table":"app.orders","id":"5","customer":"a","_json_null":["nothing"]}', "_json_null"),
        ('{"_table":"app.orders","id":"5","customer":"a","note":1e999}', "not a row"),
    ],
)
def test_what_is_no_row_of_the_table_is_refused(value: str, said: str) -> None:
    with pytest.raises(InvalidEvent, match=said):
        replicated_rows(ORDERS).row("app.orders:5", value)


def test_a_value_need_not_name_its_table_again() -> None:
    assert replicated_rows(ORDERS).row("app.orders:5", '{"id":5,"customer":"a"}') == row_codec(ORDERS).struct(
        5, "a", None
    )


def test_columns_that_the_writer_did_not_have_hold_their_default() -> None:
    added = [
        column("status", T.TEXT, default=Default(DefaultKind.LITERAL, "new")),
        column("data", T.BYTES),
        column("tags", T.JSON, default=Default(DefaultKind.LITERAL, "[1]")),
        column("since", T.TIMESTAMP, default=Default(DefaultKind.NOW)),
    ]
    newer = msgspec.structs.replace(ORDERS, columns=(*ORDERS.columns, *added), version=2)
    old = replicated_rows(ORDERS).value(row_codec(ORDERS).struct(5, "ann", None))
    arrived = replicated_rows(newer).row("app.orders:5", old)
    assert row_codec(newer).values(arrived) == (5, "ann", None, "new", None, "[1]", None)


def test_a_key_value_table_maps_to_bare_keys_and_values() -> None:
    rows, make = replicated_rows(KV), row_codec(KV).struct
    assert is_bare(KV)
    assert not is_bare(ORDERS)
    row = make("golden-key", "golden-value")
    assert (rows.key(row), rows.value(row)) == ("golden-key", "golden-value")
    assert rows.row("golden-key", "golden-value") == row
    assert rows.storage_key("golden-key") == row_codec(KV).key_of_row(row_codec(KV).prefix(None), row)


def test_what_a_bare_event_cannot_tell() -> None:
    with pytest.raises(InvalidEvent, match="NULL"):
        replicated_rows(KV).value(row_codec(KV).struct("k", None))
    with pytest.raises(InvalidEvent, match=r"reads as a row of the table app\.orders"):
        replicated_rows(KV).check_key("app.orders:5")
    replicated_rows(KV).check_key("app:orders.5")
    replicated_rows(ORDERS).check_key("app.orders:5")


@given(st.text(string.ascii_letters + string.digits + "_.:é", max_size=10))
def test_a_bare_key_never_reads_as_a_row_of_a_table(key: str) -> None:
    before, colon, _ = key.partition(":")
    parts = before.split(".")
    named = bool(colon) and len(parts) == 2 and all(p.isascii() and p.isidentifier() and p[0] != "_" for p in parts)
    assert (table_of(key) is not None) == named


def test_tables_that_cannot_replicate() -> None:
    assert why_not_replicated(ORDERS) is None
    assert "SHARED" in str(why_not_replicated(msgspec.structs.replace(ORDERS, kind=TableKind.USER)))
    assert "TTL" in str(why_not_replicated(msgspec.structs.replace(ORDERS, ttl_seconds=5)))
