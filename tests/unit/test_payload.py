"""What a message says: the JSON of every type and mode, exactly."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec.rows import RowCodec
from tablecast.core.payload import PayloadEncoder, payload_encoder
from tablecast.model.change import Op
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode

T = TypeName


def schema(*columns: tuple[str, ColumnType], key: tuple[str, ...] = ("id",), name: str = "orders") -> TableSchema:
    made = tuple(Column(column, column_type) for column, column_type in columns)
    return TableSchema(1, "app", name, TableKind.SHARED, made, key)


def plain(name: TypeName, precision: int = 0, scale: int = 0) -> ColumnType:
    return ColumnType(name, precision, scale)


def of(table: TableSchema, *values: Any) -> Any:
    return RowCodec(table).struct(*values)


FORMS: list[tuple[ColumnType, Any, str]] = [
    (plain(T.BOOLEAN), True, "true"),
    (plain(T.SMALLINT), -5, "-5"),
    (plain(T.INT), 2147483647, "2147483647"),
    (plain(T.BIGINT), 9007199254740993, '"9007199254740993"'),  # a browser would make it …992
    (plain(T.FLOAT), 0.10000000149011612, "0.10000000149011612"),  # the 32-bit value, written as the double it is
    (plain(T.DOUBLE), 0.1, "0.1"),
    (plain(T.DOUBLE), 1e300, "1e300"),
    (plain(T.DOUBLE), -0.0, "-0.0"),
    (plain(T.DOUBLE), 3.0, "3.0"),
    (plain(T.DECIMAL, 12, 2), Decimal("1.50"), '"1.50"'),
    (plain(T.DECIMAL, 38, 0), Decimal(10**38 - 1), f'"{"9" * 38}"'),
    (plain(T.DECIMAL, 12, 6), Decimal("0.000001"), '"0.000001"'),
    (plain(T.DECIMAL, 12, 8), Decimal("0.00000001"), '"0.00000001"'),  # never 1E-8
    (plain(T.DECIMAL, 38, 20), Decimal("0E-20"), '"0.00000000000000000000"'),
    (plain(T.TEXT), 'a"\\\n\x00é\U0001f600\u2028', '"a\\"\\\\\\n\\u0000é\U0001f600\u2028"'),
    (plain(T.TEXT), "", '""'),
    (plain(T.BYTES), b"\x00\xff", '"AP8="'),
    (plain(T.JSON), '{"b":[1,1.50],"a":null}', '{"b":[1,1.50],"a":null}'),
    (plain(T.JSON), '"text"', '"text"'),
    (plain(T.JSON), "null", "null"),
    (plain(T.TIMESTAMP), datetime(2022, 1, 1, tzinfo=UTC), '"2022-01-01T00:00:00Z"'),
    (plain(T.TIMESTAMP), datetime(2022, 1, 1, 1, 2, 3, 40, UTC), '"2022-01-01T01:02:03.000040Z"'),
    (plain(T.TIMESTAMP), datetime.min.replace(tzinfo=UTC), '"0001-01-01T00:00:00Z"'),
    (plain(T.DATE), date(2022, 1, 2), '"2022-01-02"'),
    (plain(T.TIME), time(3, 4), '"03:04:00"'),
    (plain(T.TIME), time.max, '"23:59:59.999999"'),
    (plain(T.UUID), UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
]
IDS = [f"{column_type} {text[:20]}" for column_type, _, text in FORMS]


@pytest.mark.parametrize(("column_type", "value", "text"), FORMS, ids=IDS)
def test_each_types_form_in_every_mode(column_type: ColumnType, value: Any, text: str) -> None:
    table = schema(("id", plain(T.INT)), ("v", column_type))
    encoder = PayloadEncoder(table)
    row, before = of(table, 1, value), of(table, 1, None)
    assert encoder.full(row).decode() == f'{{"_table":"app.orders","id":1,"v":{text}}}'
    assert encoder.key(row).decode() == '{"_table":"app.orders","id":1}'
    assert encoder.diff(before, row).decode() == f'{{"_table":"app.orders","id":1,"v":{{"old":null,"new":{text}}}}}'
    assert encoder.diff(row, before).decode() == f'{{"_table":"app.orders","id":1,"v":{{"old":{text},"new":null}}}}'


@pytest.mark.parametrize(
    ("column_type", "value", "text"), [form for form in FORMS if form[0].name is not T.JSON], ids=lambda v: str(v)[:20]
)
def test_each_types_form_as_a_key(column_type: ColumnType, value: Any, text: str) -> None:
    table = schema(("id", column_type))
    encoder = PayloadEncoder(table)
    row = of(table, value)
    assert encoder.message_key(row).decode() == f"[{text}]"
    assert encoder.key(row).decode() == f'{{"_table":"app.orders","id":{text}}}'
    assert encoder.diff(row, row).decode() == f'{{"_table":"app.orders","id":{text}}}'


@pytest.mark.parametrize("column_type", {str(form[0]): form[0] for form in FORMS}.values(), ids=str)
def test_null_is_null(column_type: ColumnType) -> None:
    table = schema(("id", plain(T.INT)), ("v", column_type))
    assert PayloadEncoder(table).full(of(table, 1, None)).decode() == '{"_table":"app.orders","id":1,"v":null}'


def test_a_composite_key_keeps_the_order_of_the_primary_key() -> None:
    table = schema(("a", plain(T.TEXT)), ("b", plain(T.BIGINT)), ("c", plain(T.INT)), key=("c", "a"))
    encoder, row = PayloadEncoder(table), of(table, "x", 2, 3)
    assert encoder.message_key(row) == b'[3,"x"]'
    assert encoder.key(row) == b'{"_table":"app.orders","c":3,"a":"x"}'
    assert encoder.full(row) == b'{"_table":"app.orders","a":"x","b":"2","c":3}'
    assert encoder.diff(row, of(table, "x", None, 3)) == (
        b'{"_table":"app.orders","c":3,"a":"x","b":{"old":"2","new":null}}'
    )


def test_a_diff_of_equal_rows_is_empty() -> None:
    table = schema(("id", plain(T.INT)), ("v", plain(T.TEXT)))
    row = of(table, 1, "x")
    assert PayloadEncoder(table).diff(row, of(table, 1, "x")) == b'{"_table":"app.orders","id":1}'


NAMES = [
    "class",
    "lambda",
    "None",
    "c1",
    "encode",
    "Said",
    "self",
    "old",
    "a b",
    "é",
    'quo"te',
    "back\\slash",
    "new\nline",
    "",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_column_name_is_said_as_it_is(name: str) -> None:
    table = schema(("id", plain(T.BIGINT)), (name, plain(T.JSON)), key=("id",))
    encoder, row = PayloadEncoder(table), of(table, 1, "[2]")
    for payload, value in (
        (encoder.full(row), [2]),
        (encoder.diff(of(table, 1, None), row), {"old": None, "new": [2]}),
    ):
        assert list(json.loads(payload).items()) == [("_table", "app.orders"), ("id", "1"), (name, value)]


@pytest.mark.parametrize("name", NAMES)
def test_any_key_columns_name_is_said_as_it_is(name: str) -> None:
    table = schema((name, plain(T.BIGINT)), key=(name,))
    encoder, row = PayloadEncoder(table), of(table, 1)
    assert json.loads(encoder.key(row)) == {"_table": "app.orders", name: "1"}
    assert encoder.message_key(row) == b'["1"]'


def test_the_table_is_named_first_whatever_it_is_called() -> None:
    table = schema(("id", plain(T.INT)), name='or"ders')
    encoder, row = PayloadEncoder(table), of(table, 1)
    for payload in (encoder.full(row), encoder.key(row), encoder.diff(row, row)):
        assert payload == b'{"_table":"app.or\\"ders","id":1}'


# --- which mode says what ------------------------------------------------------------------------------------

TABLE = schema(("id", plain(T.INT)), ("v", plain(T.TEXT)))
OLD, NEW = of(TABLE, 1, "old"), of(TABLE, 1, "new")
FULL_OLD, FULL_NEW = b'{"_table":"app.orders","id":1,"v":"old"}', b'{"_table":"app.orders","id":1,"v":"new"}'
KEY = b'{"_table":"app.orders","id":1}'
DIFF = b'{"_table":"app.orders","id":1,"v":{"old":"old","new":"new"}}'


@pytest.mark.parametrize(
    ("mode", "op", "said"),
    [
        (PayloadMode.FULL, Op.INSERT, FULL_NEW),
        (PayloadMode.FULL, Op.UPDATE, FULL_NEW),
        (PayloadMode.FULL, Op.DELETE, FULL_OLD),
        (PayloadMode.KEY, Op.INSERT, KEY),
        (PayloadMode.KEY, Op.UPDATE, KEY),
        (PayloadMode.KEY, Op.DELETE, KEY),
        (PayloadMode.DIFF, Op.INSERT, FULL_NEW),
        (PayloadMode.DIFF, Op.UPDATE, DIFF),
        (PayloadMode.DIFF, Op.DELETE, FULL_OLD),
    ],
)
def test_modes(mode: PayloadMode, op: Op, said: bytes) -> None:
    before = [] if op is Op.INSERT else [OLD, OLD]
    after = [] if op is Op.DELETE else [NEW, NEW]
    assert PayloadEncoder(TABLE).payloads(mode, op, before, after) == [said, said]


def test_encoders_are_made_once_per_table() -> None:
    assert payload_encoder(TABLE) is payload_encoder(msgspec.structs.replace(TABLE))


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | st.text(st.characters(exclude_categories=["Cs"]))))
)
def test_payloads_are_the_rows(values: list[tuple[int, str | None]]) -> None:
    rows = [of(TABLE, *pair) for pair in values]
    said = PayloadEncoder(TABLE).payloads(PayloadMode.FULL, Op.INSERT, [], rows)
    assert [json.loads(payload) for payload in said] == [{"_table": "app.orders", "id": i, "v": v} for i, v in values]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text()), max_size=40))
def test_many_rows_say_what_each_says(given_rows: list[tuple[int, str]]) -> None:
    table = schema(("id", plain(T.BIGINT)), ("note", plain(T.TEXT)), ("more", plain(T.JSON)))
    rows = [of(table, number, text, '{"a":1}') for number, text in given_rows]
    encoder = payload_encoder(table)
    for mode in (PayloadMode.FULL, PayloadMode.KEY):
        alone = [encoder.payloads(mode, Op.INSERT, [], [row])[0] for row in rows]
        assert encoder.payloads(mode, Op.INSERT, [], rows) == alone


def test_a_line_break_in_stored_json_makes_no_row_two() -> None:
    """None of ours is stored so; whoever wrote it, a row is one payload."""
    table = schema(("id", plain(T.INT)), ("note", plain(T.JSON)))
    rows = [of(table, number, '{"a":\n1}') for number in range(20)]
    payloads = payload_encoder(table).payloads(PayloadMode.FULL, Op.INSERT, [], rows)
    assert [json.loads(payload)["id"] for payload in payloads] == list(range(20))
