"""A result in all its forms."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tablecast.codec.result import Result
from tablecast.errors import InvalidRequest
from tablecast.model.schema import ColumnType, TypeName
from tablecast.sql.query_types import HUGEINT_MARK, JSON_MARK

WHEN = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
TYPES = {
    "b": ColumnType(TypeName.BOOLEAN),
    "i2": ColumnType(TypeName.SMALLINT),
    "i4": ColumnType(TypeName.INT),
    "i8": ColumnType(TypeName.BIGINT),
    "f4": ColumnType(TypeName.FLOAT),
    "f8": ColumnType(TypeName.DOUBLE),
    "d": ColumnType(TypeName.DECIMAL, 12, 2),
    "s": ColumnType(TypeName.TEXT),
    "y": ColumnType(TypeName.BYTES),
    "j": ColumnType(TypeName.JSON),
    "ts": ColumnType(TypeName.TIMESTAMP),
    "dt": ColumnType(TypeName.DATE),
    "tm": ColumnType(TypeName.TIME),
    "u": ColumnType(TypeName.UUID),
}
STORED = (
    *(True, -1, 2, 2**63 - 1, 1.5, 0.1, Decimal("1.50"), "ü", b"\x00", '{"a":[1,null]}', WHEN),
    *(date(2024, 5, 1), time(1, 2, 3, 4), UUID(int=5)),
)
DECODED = tuple({"a": [1, None]} if i == 9 else value for i, value in enumerate(STORED))
NULLS = (None,) * len(STORED)


def of_rows() -> Result:
    return Result.of_rows(tuple(TYPES), tuple(TYPES.values()), [STORED, NULLS])


def of_arrow() -> Result:
    return Result.of_arrow(of_rows().arrow())


@pytest.fixture(params=[of_rows, of_arrow])
def result(request: pytest.FixtureRequest) -> Result:
    made: Result = request.param()
    return made


def test_rows_have_python_values(result: Result) -> None:
    assert result.rows == [DECODED, NULLS]
    assert list(result) == result.rows
    assert [type(value) for value in result.rows[0]] == [type(value) for value in DECODED]
    assert result.rows[0][list(TYPES).index("ts")].tzinfo is UTC


def test_stored_rows_keep_json_as_text(result: Result) -> None:
    assert result.stored_rows() == [STORED, NULLS]


def test_what_it_says_of_itself(result: Result) -> None:
    assert result.columns == tuple(TYPES)
    assert result.schema == tuple((name, str(kind)) for name, kind in TYPES.items())
    assert (len(result), result.row_count, result.is_query, result.seq, result.message) == (
        2,
        2,
        True,
        None,
        "",
    )
    assert repr(result) == f"<Result 2 rows: {', '.join(TYPES)}>"


def test_shortcuts(result: Result) -> None:
    assert result.first() == DECODED
    assert result.scalar() is True
    assert result.dicts()[0] == dict(zip(TYPES, DECODED, strict=True))


def test_arrow(result: Result) -> None:
    table = result.arrow()
    assert table is result.arrow()
    assert table.schema.field("j").type == pa.string()
    assert table.schema.field("u").type == pa.uuid()
    assert table.schema.field("ts").type == pa.timestamp("us", tz="UTC")
    assert [tuple(row.values()) for row in table.to_pylist()] == [STORED, NULLS]


def test_pandas(result: Result) -> None:
    frame = result.pandas()
    assert list(frame.columns) == list(TYPES)
    assert frame["d"][0] == Decimal("1.50")
    assert frame["ts"][0].to_pydatetime() == WHEN


def test_polars(result: Result) -> None:
    frame = result.polars()
    assert frame.columns == list(TYPES)
    assert frame["u"].to_list() == [str(UUID(int=5)), None]
    assert frame["i8"].to_list() == [2**63 - 1, None]


def test_polars_needs_distinct_names() -> None:
    twice = Result.of_rows(("a", "a"), (TYPES["i4"], TYPES["i4"]), [(1, 2)])
    assert twice.rows == [(1, 2)]
    with pytest.raises(InvalidRequest, match="'a'"):
        twice.polars()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_say_what_to_install(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InvalidRequest, match=r"pip install tablecast\[frames\]"):
        getattr(of_rows(), library)()


def test_no_rows() -> None:
    for empty in (
        Result.of_rows(("a", "j"), (TYPES["i4"], TYPES["j"]), []),
        Result.of_arrow(pa.table({"a": pa.array([], pa.int32()), "j": pa.array([], pa.string())})),
    ):
        assert (empty.rows, len(empty), empty.first(), empty.scalar(), empty.dicts()) == (
            [],
            0,
            None,
            None,
            [],
        )
        assert empty.arrow().column_names == ["a", "j"]
        assert empty.is_query
        assert bool(empty)


def test_a_write() -> None:
    written = Result.of_write(3, "INSERT 3", 42)
    assert (written.row_count, written.message, written.seq) == (3, "INSERT 3", 42)
    assert (written.rows, len(written), written.columns, written.schema) == ([], 0, (), ())
    assert not written.is_query
    assert written.scalar() is None
    assert written.arrow().num_columns == 0
    assert repr(written) == "<Result INSERT 3>"


def test_returning() -> None:
    result = Result.of_rows(("id",), (TYPES["i8"],), [(1,), (2,)], message="INSERT 2", seq=7, row_count=2)
    assert (result.rows, result.row_count, result.message, result.seq) == ([(1,), (2,)], 2, "INSERT 2", 7)


@pytest.mark.parametrize("make", [of_rows, of_arrow, lambda: Result.of_write(3, "UPDATE 3", None)])
def test_with_seq(make: Any) -> None:
    before = make()
    after = before.with_seq(9)
    assert (before.seq, after.seq) == (None, 9)
    assert (after.rows, after.columns, after.schema) == (before.rows, before.columns, before.schema)
    assert (after.row_count, after.message) == (before.row_count, before.message)


def test_marks_of_the_query_engine() -> None:
    fields = [
        pa.field("h", pa.decimal128(38, 0), metadata=HUGEINT_MARK),
        pa.field("d", pa.decimal128(38, 0)),
        pa.field("j", pa.string(), metadata=JSON_MARK),
        pa.field("l", pa.list_(pa.int64())),
    ]
    arrays = [pa.array([value], field.type) for value, field in zip([5, 5, "[1]", [1]], fields, strict=True)]
    result = Result.of_arrow(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))
    assert result.rows == [(5, Decimal(5), [1], [1])]
    assert [type(value) for value in result.rows[0]] == [int, Decimal, list, list]
    assert result.schema == (("h", "HUGEINT"), ("d", "DECIMAL(38,0)"), ("j", "JSON"), ("l", None))


def test_rows_without_columns() -> None:
    result = Result.of_rows((), (), [(), ()])
    assert result.rows == [(), ()]
    with pytest.raises(InvalidRequest, match="no columns"):
        result.scalar()
