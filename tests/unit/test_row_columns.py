"""Stored rows as Arrow columns, all at once: the same as one row after the other, of any type and any age."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablecast.codec.row_columns import row_columns, stamps
from tablecast.codec.rows import loaded_row_header, row_codec, row_header
from tablecast.engine.catalog import compile_table
from tablecast.engine.reading import rows_arrow
from tablecast.errors import CorruptData
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName

T = TypeName
VALUES: dict[TypeName, st.SearchStrategy[Any]] = {
    T.BOOLEAN: st.booleans(),
    T.SMALLINT: st.integers(-(2**15), 2**15 - 1),
    T.INT: st.integers(-(2**31), 2**31 - 1),
    T.BIGINT: st.integers(-(2**63), 2**63 - 1),
    T.FLOAT: st.floats(width=32, allow_nan=False, allow_infinity=False),
    T.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    T.DECIMAL: st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-8)),
    T.TEXT: st.text(st.characters(exclude_categories=("Cs",))),
    T.BYTES: st.binary(),
    T.JSON: st.sampled_from(['{"a":1}', "null", "[]", '"x"']),
    T.TIMESTAMP: st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda d: d.replace(tzinfo=UTC)),
    T.DATE: st.dates(date(1, 1, 1), date(9999, 12, 31)),
    T.TIME: st.times(),
    T.UUID: st.uuids(),
}
LITERALS = {
    T.BOOLEAN: "true", T.SMALLINT: "3", T.INT: "-4", T.BIGINT: "5", T.FLOAT: "1.5", T.DOUBLE: "2.5", T.DECIMAL: "1.25",
    T.TEXT: "text", T.BYTES: "AGk=", T.JSON: '{"a":1}', T.TIMESTAMP: "2026-01-31T12:00:00Z", T.DATE: "2026-01-31",
    T.TIME: "12:00:00", T.UUID: "01890a5d-ac96-774b-bcce-b302099a8057",
}  # fmt: skip


def column(i: int, name: TypeName, *, with_default: bool = False) -> Column:
    kind = ColumnType(name, *((22, 8) if name is T.DECIMAL else ()))
    default = Default(DefaultKind.LITERAL, LITERALS[name]) if with_default and name is not T.BYTES else None
    return Column(f"col{i}", kind, default=default)


def schema(columns: list[Column]) -> TableSchema:
    return TableSchema(7, "app", "t", TableKind.SHARED, (Column("id", ColumnType(T.BIGINT)), *columns), ("id",))


ALL = schema([column(i, name) for i, name in enumerate(VALUES)])
rows_of_all = st.lists(
    st.tuples(st.integers(0, 2**40), *(st.none() | values for values in VALUES.values())), max_size=8
)


@given(rows_of_all)
@settings(deadline=None)
def test_columns_are_those_of_the_rows_one_by_one(rows: list[tuple[Any, ...]]) -> None:
    codec = row_codec(ALL)
    built = [codec.struct(*row) for row in rows]
    values = [row_header(3, 4) + codec.encode(row) for row in built]
    columns = row_columns(ALL).columns(values)
    expected = rows_arrow(compile_table(ALL, []), [codec.decode(value) for value in values])
    assert [c.to_pylist() for c in columns] == [c.to_pylist() for c in expected.columns]
    assert [c.type for c in columns] == [c.type for c in expected.columns]


def test_rows_from_before_columns_were_added_hold_their_defaults() -> None:
    old, new = schema([]), schema([column(i, name, with_default=True) for i, name in enumerate(VALUES)])
    values = [row_header(1, 2) + row_codec(old).encode(row_codec(old).struct(i)) for i in range(3)]
    columns = row_columns(new).columns(values)
    expected = rows_arrow(compile_table(new, []), [row_codec(new).decode(value) for value in values])
    assert [c.to_pylist() for c in columns] == [c.to_pylist() for c in expected.columns]
    assert columns[T_INDEX[T.DECIMAL]].to_pylist() == [Decimal("1.25000000")] * 3
    assert columns[T_INDEX[T.UUID]].to_pylist() == [UUID(LITERALS[T.UUID])] * 3
    assert columns[T_INDEX[T.TIME]].to_pylist() == [time(12)] * 3


T_INDEX = {name: i + 1 for i, name in enumerate(VALUES)}


def test_commit_numbers_come_from_headers_and_from_loads() -> None:
    values = [row_header(5, 0), loaded_row_header(2), row_header(7, 0), loaded_row_header(9), loaded_row_header(2)]
    seqs = {2: 20, 9: 90}
    asked = []

    def stamp(value: bytes) -> tuple[int, int]:
        asked.append(value)
        return seqs[int.from_bytes(value[1:9], "big")], 0

    assert stamps(values, stamp).tolist() == [5, 20, 7, 90, 20]
    assert len(asked) == 2, "once per load, not once per row"


@pytest.mark.parametrize(
    "value",
    [b"", b"\x01" * 16, row_header(1, 1) + b"\xc1", row_header(1, 1) + b"\x91\xa1x", row_header(1, 1) + b"\x92\x01"],
)
def test_what_does_not_decode_is_corrupt(value: bytes) -> None:
    table = compile_table(ALL, [])
    with pytest.raises(CorruptData):
        stamps([value], table.stamp)
        row_columns(ALL).columns([value])


def test_an_unknown_format_is_corrupt() -> None:
    with pytest.raises(CorruptData):
        stamps([b"\x09" + row_header(1, 1)[1:]], compile_table(ALL, []).stamp)
