"""Rows read column by column are what the same rows are one by one: the same bytes stored and told, or the same error."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_packed_rows import COLUMNS, ODD, USUAL

import tablecast
from tablecast import Database, TablecastError
from tablecast.client.values import from_extension, pack_rows
from tablecast.codec import column_rows
from tablecast.codec.column_rows import ColumnRows, column_reader
from tablecast.codec.packed_rows import PackedRows
from tablecast.codec.rows import row_codec
from tablecast.core.payload import payload_encoder
from tablecast.engine.rows import encode_rows
from tablecast.model.change import Op
from tablecast.model.topic import PayloadMode
from tablecast.storage.base import Family
from tablecast.testing.clock import FakeClock


class Word(str):
    """A text that is more than a text."""


class Colour(str, enum.Enum):  # noqa: UP042 - what str() says of it is not its text
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


STRANGE = ODD | st.sampled_from([Word("w"), Colour.RED, Number.ONE, object(), "a\nb", 'q"\\', "\x00", "é", Decimal("0.00"),
                                 Decimal("-0.01"), Decimal("9999999999.99"), Decimal("10000000000.00"), Decimal("1E-10"),
                                 datetime(2026, 1, 1, tzinfo=UTC)])  # fmt: skip

TOPICS = """
CREATE TOPIC everything; ALTER TOPIC everything ADD SOURCE t ON ANY;
CREATE TOPIC keys PARTITIONS 3; ALTER TOPIC keys ADD SOURCE t ON INSERT WITH (payload = 'key');
CREATE TOPIC changes WITH (dedup_window_seconds = 60); ALTER TOPIC changes ADD SOURCE t ON ANY WITH (payload = 'diff');
CREATE TOPIC few; ALTER TOPIC few ADD SOURCE t ON INSERT WHERE whole > 0 AND words IS NOT NULL;
CREATE TOPIC spread PARTITIONS 4; ALTER TOPIC spread ADD SOURCE t ON ANY PARTITION BY name;
"""


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    """Usual rows, of which some share a key, and now and then something odd among them, in a row or in a whole column."""
    count = draw(st.integers(1, 5))
    several = {"min_size": count, "max_size": count}
    ids = draw(st.lists(st.integers(-2, 9) | USUAL["big"], **several, unique=draw(st.integers(0, 4)) > 0))
    columns = [ids] + [
        draw(st.lists(kind | st.none() if draw(st.booleans()) and name not in ("whole", "name") else kind, **several))
        for name, kind in USUAL.items()
    ]
    rows: list[Any] = [list(row) for row in zip(*columns, strict=True)]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at, odd = draw(st.integers(0, len(USUAL))), draw(STRANGE)
        for row in rows if draw(st.booleans()) else rows[-1:]:
            row[at] = odd
    if draw(st.integers(0, 19)) == 0:
        rows[-1].append(1)
    return [tuple(row) for row in rows] if draw(st.booleans()) else rows


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with tablecast.open(":memory:", jobs_interval_seconds=3600) as database:
        database.execute(f"CREATE TABLE t {COLUMNS}")
        yield database


@settings(max_examples=300)
@given(batches())
def test_columns_hold_what_rows_hold(db: Database, rows: list[Any]) -> None:
    table = db.engine.catalog.table("default.t")
    codec, payload, prefix = table.codec, table.payload, table.codec.prefix(None)
    build = codec.builder(table.schema.column_names)
    read = column_reader(codec).read(rows)
    try:
        built = [build(row, None) for row in rows]  # type: ignore[arg-type]
    except (TablecastError, ValueError):
        assert read is None
        return
    assert read is not None
    assert encode_rows(table, read) == encode_rows(table, built)
    assert read.keys(prefix) == codec.keys_of_rows(prefix, built)
    assert payload.message_keys(read) == payload.message_keys(built)
    for mode in PayloadMode:
        assert payload.payloads(mode, Op.INSERT, [], read) == payload.payloads(mode, Op.INSERT, [], built)
    assert len(read) == len(built)
    for mine, theirs in zip(read, built, strict=True):
        assert mine == theirs
        assert [*map(type, codec.values(mine))] == [*map(type, codec.values(theirs))]


@settings(max_examples=60)
@given(st.lists(batches(), min_size=1, max_size=3), st.sampled_from(["insert", "upsert"]))
@example([[(1, None, 1, *[None] * 7, "n", *[None] * 6)] * 2], "insert")
def test_a_database_cannot_tell_how_rows_were_read(written: list[list[Any]], mode: str) -> None:
    one_by_one, by_column = (_after(written, mode, many) for many in (10**9, 1))
    assert by_column == one_by_one


@settings(max_examples=40)
@given(batches(), st.booleans(), st.sampled_from(["insert", "upsert"]))
def test_nor_of_mappings(db: Database, rows: list[Any], some: bool, mode: str) -> None:
    names = db.engine.catalog.table("default.t").schema.column_names
    given = [dict(reversed([*zip(names, row, strict=False)])) for row in rows]
    if some:
        del given[-1]["ref"]
    assert _after([given], mode, 1) == _after([given], mode, 10**9)


@settings(max_examples=40)
@given(st.lists(batches(), min_size=1, max_size=3))
def test_nor_how_packed_rows_were_read(written: list[list[Any]]) -> None:
    try:
        packed = [PackedRows(*pack_rows(rows), from_extension) for rows in written]
    except TablecastError:  # not everything travels
        return
    assert _after(packed, "insert", 1) == _after([rows.plain() for rows in packed], "insert", 10**9)


def _after(written: Sequence[Any], mode: str, many: int) -> tuple[list[Any], dict[Family, list[tuple[bytes, bytes]]]]:
    """What each write answers, and every byte of it."""
    clock = FakeClock(1_750_000_000_000)
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as db, _columns_from(many):
        db.execute(f"CREATE TABLE t {COLUMNS}; {TOPICS}")
        answers = [_written(db, rows, mode) for rows in written]
        store = db.engine.store
        return answers, {f: list(store.scan(f)) for f in Family if f is not Family.META}


def _written(db: Database, rows: Any, mode: str) -> Any:
    try:
        return db.insert("t", rows, mode=mode).row_count
    except TablecastError as error:
        return error.code, error.message


@contextmanager
def _columns_from(many: int) -> Iterator[None]:
    before, column_rows.MANY = column_rows.MANY, many
    try:
        yield
    finally:
        column_rows.MANY = before


def test_usual_values_are_taken_as_they_are(db: Database) -> None:
    """What makes it quick: if this ends, everything still works, but slowly."""
    codec = db.engine.catalog.table("default.t").codec
    reader = column_reader(codec)
    amounts = [Decimal(f"{sign}{n}.{n % 100:02}") for n in (1, 7, 10**9) for sign in ("", "-")]
    given = [[i, i, i, i, True, None, 1.5, a, None, "é", "n", b"r", *[None] * 5] for i, a in enumerate(amounts)]
    read = reader.read(given)
    assert read is not None
    assert read.bodies[7] == list(map(str, amounts))
    assert [row.c7 for row in read] == amounts
    assert read[1:3] == [*read][1:3]


@pytest.mark.parametrize(
    "rows",
    [[{1: 2}], [iter([1, 2])], [(1,)], [(1, 2, 3)], ["ab"], [range(2)], [None]],
    ids=lambda rows: type(rows[0]).__name__ + str(len(rows)),
)
def test_what_is_no_row_of_all_columns_is_left_to_the_builder(db: Database, rows: list[Any]) -> None:
    assert column_reader(db.engine.catalog.table("default.t").codec).read(rows) is None


@pytest.mark.parametrize("owner", [None, "ann", "a\x00"])
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("id INT", [-(2**31), -1, 0, 7]),
        ("id BIGINT", [-(2**63), -1, 0, 2**63 - 1]),
        ("id TEXT", ["", "é", "a\x00b", 'q"\n']),
        ("id DECIMAL(20,2)", [Decimal("-1.50"), Decimal("0.00"), Decimal("12.25"), Decimal("7")]),
        ("id TIMESTAMP", [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]),
        ("id BIGINT, part SMALLINT", [(n, 3 - n) for n in range(4)]),
    ],
)
def test_keys_of_every_kind(key: str, values: list[Any], owner: str | None) -> None:
    with tablecast.open(":memory:", jobs_interval_seconds=3600) as db:
        names = ", ".join(word for word in ("id", "part") if word in key.split())
        db.execute(f"CREATE TABLE k ({key}, x TEXT, PRIMARY KEY ({names}))")
        schema = db.engine.catalog.table("default.k").schema
    given = [(*(value if isinstance(value, tuple) else (value,)), "x") for value in values]
    escaped = replace(schema, columns=(*schema.columns[:-1], replace(schema.columns[-1], name="x\\y")))
    for each in (schema, escaped):  # a name that JSON escapes takes another way
        codec, payload = row_codec(each), payload_encoder(each)
        build, prefix = codec.builder(each.column_names), codec.prefix(owner)
        read = column_reader(codec).read(given)
        built = [build(row, None) for row in given]  # type: ignore[arg-type]
        assert read is not None
        assert read.keys(prefix) == codec.keys_of_rows(prefix, built)
        assert payload.message_keys(read) == payload.message_keys(built)
        for mode in PayloadMode:
            assert payload.payloads(mode, Op.INSERT, [], read) == payload.payloads(mode, Op.INSERT, [], built)


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        ("DECIMAL(2,2)", ["0.99", "-0.01", "0.00"], ["1.00", "5.25", "-1.00"]),
        ("DECIMAL(3,0)", ["0", "999", "-7"], ["1000", "-1000"]),
        ("DECIMAL(38,38)", ["0." + "0" * 37 + "1"], ["1"]),
        ("DECIMAL(12,2)", ["-0.00", "1E+3", "1.005", "12.5"], ["NaN", "-Infinity", "1e30"]),
    ],
)
def test_decimals_are_judged_by_their_texts(kind: str, fits: list[str], does_not: list[str]) -> None:
    with tablecast.open(":memory:", jobs_interval_seconds=3600) as db:
        db.execute(f"CREATE TABLE d (id INT PRIMARY KEY, amount {kind})")
        table = db.engine.catalog.table("default.d")
        build = table.codec.builder(("id", "amount"))
        for text in fits + does_not:
            given = [(n, Decimal(text)) for n in range(3)]
            read = column_reader(table.codec).read(given)
            assert (read is None) == (text in does_not), text
            if isinstance(read, ColumnRows):
                built = [build(row, None) for row in given]  # type: ignore[arg-type]
                assert encode_rows(table, read) == encode_rows(table, built)
                payloads = [table.payload.payloads(PayloadMode.FULL, Op.INSERT, [], rows) for rows in (read, built)]
                assert payloads[0] == payloads[1]
