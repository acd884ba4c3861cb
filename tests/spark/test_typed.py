"""Payloads as typed columns: every way of decoding gives what a plain JSON parser and the codec give."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablecast.core.payload import payload_encoder
from tablecast.errors import PayloadMismatch
from tablecast.model.change import Op
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode
from tablecast.spark.typed import PayloadDecoder
from tablecast.spark.typed_layout import Layout, NotLaidOut

T = TypeName
DECIMAL = ColumnType(T.DECIMAL, 12, 2)
WIDE = ColumnType(T.DECIMAL, 38, 10)


def table(*columns: Column, name: str = "orders") -> TableSchema:
    return TableSchema(1, "app", name, TableKind.SHARED, columns, (columns[0].name,))


def column(name: str, kind: TypeName | ColumnType, **more: Any) -> Column:
    return Column(name, kind if isinstance(kind, ColumnType) else ColumnType(kind), **more)


EVERYTHING = table(
    column("id", T.BIGINT),
    *(column(f"c_{kind.value.lower()}", kind) for kind in T if kind not in (T.DECIMAL, T.JSON)),
    column("amount", DECIMAL),
    column("wide", WIDE),
    column("note", T.JSON),
    column("last", T.SMALLINT),
)
ORDERS = table(column("id", T.BIGINT), column("customer", T.TEXT), column("n", T.INT), column("amount", DECIMAL))


def payloads(schema: TableSchema, rows: list[tuple[Any, ...]]) -> pa.Array:
    made = msgspec.defstruct("Row", [(f"c{i}", object) for i in range(len(schema.columns))])
    built = [made(*row) for row in rows]
    return pa.array(payload_encoder(schema).payloads(PayloadMode.FULL, Op.INSERT, built, built), pa.binary())


# --- the plain way: Python's own parser, and one line per type ------------------------------------------------------


def _plain_value(column_type: ColumnType, value: Any, raw: str) -> Any:
    if value is None:
        return None
    match column_type.name:
        case T.BIGINT:
            return int(value)
        case T.DECIMAL:
            return Decimal(value)
        case T.BYTES:
            return b64decode(value)
        case T.TIMESTAMP:
            return datetime.fromisoformat(value)
        case T.DATE:
            return date.fromisoformat(value)
        case T.TIME:
            return time.fromisoformat(value)
        case T.JSON:
            return raw
        case _:
            return value


def plain(schema: TableSchema, found: pa.Array) -> list[list[Any]]:
    columns: list[list[Any]] = [[] for _ in schema.columns]
    raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
    for payload in found.to_pylist():
        said, raws = json.loads(payload), raw.decode(payload)
        for values, c in zip(columns, schema.columns, strict=True):
            values.append(_plain_value(c.type, said[c.name], bytes(raws[c.name]).decode()))
    return columns


def as_values(columns: list[pa.Array]) -> list[list[Any]]:
    return [[_comparable(value) for value in column.to_pylist()] for column in columns]


def _comparable(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


# --- any rows -------------------------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"', "\\", '\\"', 'a\\\\"b', "\n\t", '","n":1,', "null", "", "é€😀", "\\u0041", "\x00\x1f\x7f"]
)


def _value(column_type: ColumnType) -> st.SearchStrategy[Any]:
    match column_type.name:
        case T.BOOLEAN:
            return st.booleans()
        case T.SMALLINT:
            return st.integers(-(2**15), 2**15 - 1)
        case T.INT:
            return st.integers(-(2**31), 2**31 - 1)
        case T.BIGINT:
            return st.integers(-(2**63), 2**63 - 1)
        case T.FLOAT:
            return st.floats(allow_nan=False, allow_infinity=False, width=32)
        case T.DOUBLE:
            return st.floats(allow_nan=False, allow_infinity=False)
        case T.DECIMAL:
            digits = 10**column_type.precision - 1
            return st.integers(-digits, digits).map(lambda n: _decimal(n, column_type.scale))
        case T.TEXT:
            return _text
        case T.BYTES:
            return st.binary(max_size=12)
        case T.JSON:
            return st.recursive(
                st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _text,
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
                max_leaves=5,
            ).map(lambda v: msgspec.json.encode(v).decode())
        case T.TIMESTAMP:
            return st.datetimes(timezones=st.just(UTC))
        case T.DATE:
            return st.dates()
        case T.TIME:
            return st.times()
        case _:
            return st.uuids()


def _decimal(unscaled: int, scale: int) -> Decimal:
    sign, digits, _ = Decimal(unscaled).as_tuple()
    made = Decimal((sign, digits, -scale))
    return made.copy_abs() if made.is_zero() else made


@st.composite
def _tables_with_rows(draw: st.DrawFn) -> tuple[TableSchema, list[tuple[Any, ...]]]:
    kinds = draw(
        st.lists(st.sampled_from([*(ColumnType(k) for k in T if k is not T.DECIMAL), DECIMAL, WIDE]), max_size=5)
    )
    columns = [column("id", T.BIGINT), *(column(f"c{i}", kind) for i, kind in enumerate(kinds))]
    nullable = draw(st.booleans())
    cells = [
        _value(columns[0].type),
        *(_value(c.type) | st.none() if nullable else _value(c.type) for c in columns[1:]),
    ]
    return table(*columns), draw(st.lists(st.tuples(*cells), min_size=1, max_size=6))


@given(_tables_with_rows())
@settings(max_examples=300)
def test_every_way_gives_what_a_plain_parser_gives(made: tuple[TableSchema, list[tuple[Any, ...]]]) -> None:
    schema, rows = made
    found, decoder = payloads(schema, rows), PayloadDecoder(schema)
    expected = plain(schema, found)
    assert as_values(decoder.parsed(found)) == expected
    assert as_values(decoder.columns(found)) == expected
    assert [c.type for c in decoder.columns(found)] == decoder.types
    for c in decoder.columns(found):
        c.validate(full=True)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), _text | st.none(), st.integers(-9, 9) | st.none(),
                          _value(DECIMAL) | st.none()), min_size=1, max_size=40))  # fmt: skip
@settings(max_examples=200)
def test_rows_without_json_columns_are_never_parsed(rows: list[tuple[Any, ...]]) -> None:
    """The quick way takes quotes, escapes and NULLs wherever they are: it must not fall back in silence."""
    found, decoder = payloads(ORDERS, rows), PayloadDecoder(ORDERS)
    walked = Layout(ORDERS, decoder.types).columns(found)
    assert as_values([c for c in walked if c is not None]) == plain(ORDERS, found)


def test_a_slice_of_a_larger_array_decodes_alone() -> None:
    found = payloads(ORDERS, [(i, f"c{i}" if i % 3 else None, i, None) for i in range(50)])
    decoder = PayloadDecoder(ORDERS)
    assert as_values(decoder.columns(found.slice(7, 20))) == plain(ORDERS, found.slice(7, 20))
    assert as_values(decoder.columns(found.slice(49))) == plain(ORDERS, found.slice(49))
    assert [len(c) for c in decoder.columns(found.slice(50))] == [0, 0, 0, 0]


def test_texts_of_any_length_and_any_run_of_backslashes_are_walked() -> None:
    """Few long ones among short ones, and so many that all of them are looked at together."""
    texts = ["\\" * n + quote + "x" * n for n in (0, 1, 2, 7, 8, 9, 63, 64, 65, 5_000) for quote in ("", '"', '"\\')]
    for repeats in (1, 8):
        rows = [(i, text, i, None) for i, text in enumerate(texts * repeats)]
        found, decoder = payloads(ORDERS, rows), PayloadDecoder(ORDERS)
        walked = Layout(ORDERS, decoder.types).columns(found)
        assert as_values([column for column in walked if column is not None]) == plain(ORDERS, found)


def test_a_text_without_its_end_is_no_endless_search() -> None:
    whole = payloads(ORDERS, [(i, "some text", 1, None) for i in range(100)])
    cut = pa.array([payload[:-30] if i == 99 else payload for i, payload in enumerate(whole.to_pylist())], pa.binary())
    with pytest.raises(NotLaidOut):
        Layout(ORDERS, PayloadDecoder(ORDERS).types).columns(cut)


# --- columns that were added later --------------------------------------------------------------------------------

LATER = table(
    *ORDERS.columns,
    column("status", T.TEXT, default=Default(DefaultKind.LITERAL, "new")),
    column("score", DECIMAL, default=Default(DefaultKind.LITERAL, "1.50")),
    column("uid", T.UUID, default=Default(DefaultKind.LITERAL, str(UUID(int=7)))),
    column("at", T.TIMESTAMP, default=Default(DefaultKind.NOW)),
)
_ADDED = ["new", Decimal("1.50"), str(UUID(int=7)), None]


def test_what_was_written_before_a_column_reads_as_its_default() -> None:
    found = payloads(ORDERS, [(1, "ann", 2, None), (2, "bob", None, Decimal("1.00"))])
    decoder = PayloadDecoder(LATER)
    assert [c.to_pylist() for c in decoder.columns(found)[4:]] == [[value] * 2 for value in _ADDED]
    assert decoder.columns(found) == decoder.parsed(found)


def test_a_batch_across_an_added_column_has_both() -> None:
    old = payloads(ORDERS, [(1, "ann", 2, None)])
    new = payloads(LATER, [(2, "bob", 3, None, "paid", Decimal("9.00"), UUID(int=8), datetime(2024, 1, 1, tzinfo=UTC))])
    columns = PayloadDecoder(LATER).columns(pa.concat_arrays([old, new]))
    assert columns[4].to_pylist() == ["new", "paid"]
    assert columns[6].to_pylist() == [str(UUID(int=7)), str(UUID(int=8))]
    assert columns[7].to_pylist() == [None, datetime(2024, 1, 1, tzinfo=UTC)]


# --- what is not a row of the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b'{"_table":"app.orders","id":"x","customer":"ann","n":1,"amount":null}',
        b'{"_table":"app.orders","id":"1","customer":"ann","n":1.5,"amount":null}',
        b'{"_table":"app.orders","id":"1","customer":{"old":"a","new":"b"},"n":1,"amount":null}',
        b'{"_table":"app.other","id":"1","customer":"ann","n":1,"amount":null}',
        b'{"id":"1","customer":"ann","n":1,"amount":null}',
        b'{"_table":"app.orders","id":"1","customer":"ann","n":1,"amount":nul',
        b"[]",
        b"",
        b'"',
    ],
)
def test_what_is_not_a_row_is_refused_with_its_place(payload: bytes) -> None:
    good = payloads(ORDERS, [(1, "ann", 2, None)]).to_pylist()
    with pytest.raises(PayloadMismatch) as caught:
        PayloadDecoder(ORDERS).columns(pa.array([*good, payload, *good], pa.binary()))
    assert caught.value.details["row"] == 1
    assert "app.orders" in caught.value.message


@pytest.mark.parametrize(
    "payload",
    [
        b'{"_table":"app.orders","n":1,"id":"1","customer":"ann","amount":null}',
        b'{"_table":"app.orders","id":"1","customer":"ann","n":1,"amount":null,"more":"x"}',
        b'{ "_table": "app.orders", "id": "1", "customer": "ann", "n": 1, "amount": null}',
        b'{"_table":"app.orders","id":"1","customer":"a\\u006en","n":1,"amount":null}',
    ],
)
def test_the_same_row_in_another_layout_is_parsed(payload: bytes) -> None:
    """Other writers' JSON: order, spaces and further members do not change what a row says."""
    columns = PayloadDecoder(ORDERS).columns(pa.array([payload], pa.binary()))
    assert [c.to_pylist() for c in columns] == [[1], ["ann"], [1], [None]]


def test_column_names_that_json_escapes() -> None:
    odd = table(column("id", T.BIGINT), column('a"b', T.TEXT), column("é", T.INT))
    found = payloads(odd, [(1, "x", 5)])
    assert [c.to_pylist() for c in PayloadDecoder(odd).columns(found)] == [[1], ["x"], [5]]
