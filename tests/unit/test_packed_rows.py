"""Rows that arrive packed mean what the same rows mean in Python: the same rows stored, or the same error."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tablecast
from tablecast import Database, TablecastError
from tablecast.client.values import from_extension, pack, pack_rows
from tablecast.codec.packed_rows import PackedRows
from tablecast.errors import InvalidRequest

COLUMNS = """(id BIGINT PRIMARY KEY, small SMALLINT, whole INT NOT NULL, big BIGINT, yes BOOLEAN, single FLOAT, double DOUBLE,
    amount DECIMAL(12,2), fine DECIMAL(38,10), words TEXT, name TEXT NOT NULL DEFAULT 'nobody', raw BYTES, doc JSON, at TIMESTAMP,
    day DATE, hour TIME, ref UUID)"""
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "small": st.integers(-(2**15), 2**15 - 1),
    "whole": st.integers(-(2**31), 2**31 - 1),
    "big": st.integers(-(2**63), 2**63 - 1),
    "yes": st.booleans(),
    "single": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "amount": st.decimals(-(10**9), 10**9, places=2),
    "fine": st.decimals(-(10**9), 10**9, places=10),
    "words": st.text(max_size=20),
    "name": st.text(max_size=20),
    "raw": st.binary(max_size=20),
    "doc": st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=2),
    "at": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    "day": st.dates(),
    "hour": st.times(),
    "ref": st.uuids(),
}
ODD = st.sampled_from(
    [
        None, True, 0, -1, 1.0, 1.5, 2**15, 2**31, 2**63, 2**64, -(2**63) - 1, float("nan"), float("inf"), "", "12", "12.345", "true",
        "x", "\ud800", b"x", b"x" * 16, Decimal("0"), Decimal("-0.00"), Decimal("7"), Decimal("1.005"), Decimal("1e30"),
        Decimal("NaN"), Decimal("Infinity"), Decimal("-1E+3"), datetime(2026, 1, 31, 12), date(2026, 1, 31), time(12, 30),
        UUID(int=7), [1], {"a": None},
        "2026-01-31", "2026-01-31T12:00:00Z", "12:30", "00000000-0000-0000-0000-000000000007",
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with tablecast.open(":memory:", jobs_interval_seconds=3600) as database:
        for name in ("given", "packed"):
            database.execute(f"CREATE TABLE {name} {COLUMNS}")
        yield database


@st.composite
def batches(draw: st.DrawFn) -> list[list[Any]]:
    """Usual rows, and now and then something odd among them, in a row or in a whole column."""
    columns = [
        draw(st.lists(kind | st.none() if draw(st.booleans()) else kind, min_size=3, max_size=3))
        for kind in USUAL.values()
    ]
    rows = [[number, *(column[number] for column in columns)] for number in range(3)]
    for _ in range(draw(st.integers(0, 2))):
        at, odd = draw(st.integers(0, len(USUAL))), draw(ODD)
        for row in rows if draw(st.booleans()) else rows[1:2]:
            row[at] = odd
    if draw(st.integers(0, 9)) == 0:
        rows[draw(st.integers(0, 2))].append(1)
    return rows


def stored(db: Database, table: str, rows: Any) -> Any:
    try:
        db.insert(table, rows)
    except TablecastError as error:
        return error.code, error.message.replace(f"default.{table}", "default.T")
    found = [db.engine.catalog.table(f"default.{table}").codec.values(row) for row in written(db, table)]
    db.execute(f"DELETE FROM {table}")
    return [[(type(value), str(value)) for value in row] for row in found]


def written(db: Database, table: str) -> list[Any]:
    from tablecast.engine.reading import WHOLE, scan_values

    known = db.engine.catalog.table(f"default.{table}")
    return [known.codec.decode(value) for _, value in scan_values(db.engine.snapshot, known, None, WHOLE, 0)]


@settings(max_examples=300)
@given(batches())
def test_packed_rows_are_stored_or_refused_like_any(db: Database, rows: list[list[Any]]) -> None:
    try:
        packed = PackedRows(*pack_rows(rows), from_extension)
    except TablecastError as error:  # a lone surrogate does not even travel
        assert error.code == "type_mismatch"
        return
    assert stored(db, "packed", packed) == stored(db, "given", rows)


def test_usual_rows_are_read_without_the_builder(db: Database) -> None:
    """What makes it quick: if this ends, everything still works, but slowly."""

    def build(*_: Any) -> Any:
        raise AssertionError("the builder was asked")

    def read(row: list[Any]) -> tuple[list[int], tuple[Any, ...]]:
        data, decimals = pack_rows([row])
        (made,) = PackedRows(data, decimals, from_extension).read(table.schema, build, None) or [None]  # type: ignore[arg-type]
        return decimals, table.codec.values(made)

    table = db.engine.catalog.table("default.packed")
    plain = [1, 2, 3, 4, True, None, 1.5, Decimal("12.50"), Decimal("1.0000000001"), "é", "n", b"r", *[None] * 5]
    timed = [*plain[:13], datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), None, UUID(int=7)]
    assert read(plain) == ([7, 8], tuple(plain))
    assert read(timed) == ([], tuple(timed)), (
        "a date among them: each value was looked at, and a DECIMAL is an extension"
    )


def test_where_decimals_stand_is_told_for_whole_columns() -> None:
    assert pack_rows([(1, Decimal("1.5"), "a"), (2, None, "b")]) == (pack([[1, "1.5", "a"], [2, None, "b"]]), [1])
    assert pack_rows([(1, Decimal("1.5")), (2, 1.5)])[1] == []
    assert pack_rows([{"a": Decimal("1.5")}])[1] == []
    assert pack_rows([]) == (pack([]), [])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an array of arrays or of maps"),
        (pack({"a": 1}), "an array of arrays or of maps"),
        (pack([1]), "the rows are wrong"),
        (pack([[1, "x"]])[:-1], "the rows are wrong"),
        (b"\x91\x92\x01\xa1\xff", "the rows are wrong"),
        (pack([[1, "many"]]), "'many', is no number: decimals names its position"),
    ],
)
def test_what_is_no_rows_says_so(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        rows = PackedRows(data, [1], from_extension)
        assert len(rows) == 1
        rows.plain()


def test_numbers_of_rows_in_every_size() -> None:
    for count in (0, 15, 16, 65_535, 65_536):
        assert len(PackedRows(msgspec.msgpack.encode([[]] * count), [], from_extension)) == count
