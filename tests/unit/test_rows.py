"""Rows: built from what a caller gives, stored, and read back; also by a table that has more columns by now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import combinations
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec.rows import (
    DEFAULT,
    HEADER_SIZE,
    RowCodec,
    loaded_row_header,
    row_codec,
    row_header,
    row_load,
    row_stamp,
)
from tablecast.errors import CorruptData, InvalidRequest, NotNullViolation, TypeMismatch, UnknownColumn
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName

NOW = datetime(2022, 1, 1, 12, 30, 0, 5, UTC)
T = TypeName


def column(name: str, type_name: TypeName, not_null: bool = False, default: Default | None = None) -> Column:
    return Column(name, ColumnType(type_name, *((12, 2) if type_name is T.DECIMAL else ())), not_null, default)


def literal(text: str | None) -> Default:
    return Default(DefaultKind.LITERAL, text)


def table(*columns: Column, key: tuple[str, ...] = ("id",), kind: TableKind = TableKind.SHARED) -> RowCodec:
    return RowCodec(TableSchema(7, "app", "orders", kind, columns, key))


@dataclass
class Generated:
    """Implements codec.rows.Defaults; each id is new."""

    last: int = 0

    def now(self) -> datetime:
        return NOW

    def snowflake_id(self) -> int:
        self.last += 1
        return self.last

    def uuid_v7(self) -> UUID:
        return UUID(int=7)

    def current_user(self) -> str:
        return "ann"


EVERYTHING = table(
    column("id", T.BIGINT),
    column("flag", T.BOOLEAN),
    column("small", T.SMALLINT),
    column("medium", T.INT),
    column("single", T.FLOAT),
    column("double", T.DOUBLE),
    column("amount", T.DECIMAL),
    column("note", T.TEXT),
    column("raw", T.BYTES),
    column("doc", T.JSON),
    column("at", T.TIMESTAMP),
    column("day", T.DATE),
    column("hour", T.TIME),
    column("ref", T.UUID),
)
FULL = (
    1, True, -2, 3, 0.5, -0.25, Decimal("12.30"), "é", b"\x00\xff", '{"a":1}',
    datetime(2022, 1, 1, tzinfo=UTC), date(2022, 1, 2), time(3, 4, 5, 6), UUID(int=9),
)  # fmt: skip

bigints = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ROWS = st.tuples(
    bigints,
    *(
        st.none() | values
        for values in (
            st.booleans(),
            st.integers(-(2**15), 2**15 - 1),
            st.integers(-(2**31), 2**31 - 1),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.floats(allow_nan=False, allow_infinity=False),
            st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2)),
            text,
            st.binary(max_size=20),
            st.sampled_from(["null", "[]", '{"a":[1,"x"]}']),
            st.datetimes(timezones=st.just(UTC)),
            st.dates(),
            st.times(),
            st.uuids(),
        )
    ),
)


# --- storing -------------------------------------------------------------------------------------------------


@given(ROWS)
def test_what_was_stored_comes_back(values: tuple[Any, ...]) -> None:
    build = EVERYTHING.builder(EVERYTHING.schema.column_names)
    row = build(values, Generated())
    assert EVERYTHING.values(row) == values
    stored = row_header(5, 6) + EVERYTHING.encode(row)
    again = EVERYTHING.decode(stored)
    assert EVERYTHING.values(again) == values
    assert list(map(type, EVERYTHING.values(again))) == list(map(type, values))
    assert EVERYTHING.encode(again) == stored[HEADER_SIZE:]


@given(ROWS)
def test_the_quick_path_and_the_coercion_agree(values: tuple[Any, ...]) -> None:
    build = EVERYTHING.builder(EVERYTHING.schema.column_names)
    row = build(values, Generated())
    assert EVERYTHING.replace(row, dict(enumerate(values))) == row


def test_rows_of_one_schema_are_equal_however_many_other_tables_came_between() -> None:
    """The codecs of a thousand tables don't all stay in memory; a row that did is still the row that is read again."""
    column = Column("id", ColumnType(TypeName.BIGINT))
    schema = TableSchema(1, "app", "t", TableKind.SHARED, (column,), ("id",))
    kept = row_codec(schema).struct(7)
    for table_id in range(2, 1000):
        row_codec(TableSchema(table_id, "app", "t", TableKind.SHARED, (column,), ("id",)))
    assert row_codec(schema).struct(7) == kept


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_header_comes_back(seq: int, ts_ms: int) -> None:
    assert row_stamp(row_header(seq, ts_ms)) == (seq, ts_ms)
    assert len(row_header(seq, ts_ms)) == HEADER_SIZE


def test_golden_header() -> None:
    assert row_header(258, 1_640_995_200_000).hex() == "0100000000000001020000017e12ef9c00"


GOLDEN_BODY = (
    "9e" "01" "c3" "fe" "03" "cb3fe0000000000000" "cbbfd0000000000000" "a531322e3330" "a2c3a9" "c40200ff"
    "a77b2261223a317d" "d6ff61cf9980" "aa323032322d30312d3032" "af30333a30343a30352e303030303036"
    "c41000000000000000000000000000000009"
)  # fmt: skip


def test_golden_body() -> None:
    row = EVERYTHING.struct(*FULL)
    assert EVERYTHING.encode(row).hex() == GOLDEN_BODY
    assert EVERYTHING.values(EVERYTHING.decode(row_header(0, 0) + bytes.fromhex(GOLDEN_BODY))) == FULL


def test_golden_nulls() -> None:
    assert EVERYTHING.encode(EVERYTHING.struct(1)).hex() == "9e01" + "c0" * 13


def test_the_ends_of_time_are_stored_exactly() -> None:
    for moment in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        row = EVERYTHING.replace(EVERYTHING.struct(1), {10: moment})
        assert EVERYTHING.decode(row_header(0, 0) + EVERYTHING.encode(row)).c10 == moment


# --- older rows ----------------------------------------------------------------------------------------------

ADDED = (
    column("status", T.TEXT, True, literal("new")),
    column("amount", T.DECIMAL, False, literal("1.5")),
    column("at", T.TIMESTAMP, False, literal("2022-01-01")),
    column("note", T.TEXT),
    column("nothing", T.INT, False, literal(None)),
)


@pytest.mark.parametrize("known", range(len(ADDED) + 1))
def test_a_row_of_an_older_version_holds_the_defaults_of_what_was_added(known: int) -> None:
    old = table(column("id", T.BIGINT), *ADDED[:known])
    new = table(column("id", T.BIGINT), *ADDED)
    given = (5, "paid", Decimal("2.00"), NOW, "hello", 3)[: known + 1]
    stored = row_header(1, 2) + old.encode(old.struct(*given))
    defaults = (5, "new", Decimal("1.50"), datetime(2022, 1, 1, tzinfo=UTC), None, None)
    assert new.values(new.decode(stored)) == given + defaults[known + 1 :]


def test_a_reader_with_an_older_table_leaves_newer_columns_out() -> None:
    old, new = table(column("id", T.BIGINT)), table(column("id", T.BIGINT), *ADDED)
    stored = row_header(1, 2) + new.encode(new.struct(5, "paid"))
    assert old.values(old.decode(stored)) == (5,)


# --- corrupt bytes -------------------------------------------------------------------------------------------

STORED = row_header(1, 2) + bytes.fromhex(GOLDEN_BODY)


@pytest.mark.parametrize("cut", range(len(STORED)))
def test_every_truncation_is_corrupt_data(cut: int) -> None:
    with pytest.raises(CorruptData, match=r"app\.orders"):
        EVERYTHING.decode(STORED[:cut])


@pytest.mark.parametrize("cut", range(HEADER_SIZE))
def test_a_stamp_needs_a_whole_header(cut: int) -> None:
    with pytest.raises(CorruptData, match="shorter than its header"):
        row_stamp(STORED[:cut])


@given(st.integers(0, len(STORED) - 1), st.integers(0, 255))
def test_any_damaged_byte_is_corrupt_data_or_another_row(at: int, byte: int) -> None:
    damaged = STORED[:at] + bytes([byte]) + STORED[at + 1 :]
    try:
        row = EVERYTHING.decode(damaged)
    except CorruptData:
        return
    assert len(EVERYTHING.values(row)) == len(FULL)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_row_or_corrupt_data(body: bytes) -> None:
    try:
        row = EVERYTHING.decode(row_header(0, 0) + body)
    except CorruptData:
        return
    assert len(EVERYTHING.values(row)) == len(FULL)


@pytest.mark.parametrize("version", [0, 3, 255])
def test_another_format_is_refused(version: int) -> None:
    other = bytes([version]) + STORED[1:]
    for read in (EVERYTHING.decode, row_stamp, row_load):
        with pytest.raises(CorruptData, match=f"format {version}"):
            read(other)


# --- rows of sealed loads ------------------------------------------------------------------------------------

LOADED = loaded_row_header(258) + bytes.fromhex(GOLDEN_BODY)


def test_the_header_of_a_loaded_row_names_its_load() -> None:
    assert LOADED[:HEADER_SIZE].hex() == "02" + "0000000000000102" + "00" * 8
    assert row_load(LOADED) == 258
    assert row_load(STORED) is None


def test_a_loaded_row_is_the_same_row() -> None:
    assert EVERYTHING.decode(LOADED) == EVERYTHING.decode(STORED)


def test_a_loaded_row_has_no_commit_number_of_its_own() -> None:
    with pytest.raises(CorruptData, match="format 2"):
        row_stamp(LOADED)


@pytest.mark.parametrize("cut", range(HEADER_SIZE))
def test_a_load_number_needs_a_whole_header(cut: int) -> None:
    with pytest.raises(CorruptData, match="shorter than its header"):
        row_load(LOADED[:cut])


def test_text_that_is_not_utf8_is_corrupt() -> None:
    only = table(column("id", T.TEXT))
    with pytest.raises(CorruptData):
        only.decode(row_header(0, 0) + b"\x91\xa1\xff")


def test_endless_nesting_is_corrupt() -> None:
    only = table(column("id", T.INT))
    with pytest.raises(CorruptData):
        only.decode(row_header(0, 0) + b"\x92\x01" + b"\x91" * 100_000 + b"\xc0")


# --- building ------------------------------------------------------------------------------------------------

DEFAULTED = table(
    column("id", T.BIGINT, False, Default(DefaultKind.SNOWFLAKE_ID)),
    column("who", T.TEXT, True, Default(DefaultKind.CURRENT_USER)),
    column("at", T.TIMESTAMP, False, Default(DefaultKind.NOW)),
    column("ref", T.UUID, False, Default(DefaultKind.UUID_V7)),
    column("status", T.TEXT, False, literal("new")),
    column("amount", T.DECIMAL, True, literal("1.5")),
    column("note", T.TEXT),
)
WITHOUT = (1, "ann", NOW, UUID(int=7), "new", Decimal("1.50"), None)
GIVEN = (44, "bob", datetime(2020, 1, 1, tzinfo=UTC), UUID(int=1), "paid", Decimal("3.00"), "hi")
SUBSETS = [subset for n in range(8) for subset in combinations(range(7), n)]


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_every_subset_of_columns(subset: tuple[int, ...]) -> None:
    names = DEFAULTED.schema.column_names
    build = DEFAULTED.builder(tuple(names[i] for i in subset))
    expected = tuple(GIVEN[i] if i in subset else WITHOUT[i] for i in range(7))
    assert DEFAULTED.values(build(tuple(GIVEN[i] for i in subset), Generated())) == expected
    asked = DEFAULTED.builder(names)
    values = [GIVEN[i] if i in subset else DEFAULT for i in range(7)]
    assert DEFAULTED.values(asked(values, Generated())) == expected


def test_columns_come_in_any_order() -> None:
    build = DEFAULTED.builder(("note", "id"))
    row = build(("hi", 9), Generated())
    assert (row.c0, row.c6) == (9, "hi")


def test_each_row_generates_anew_and_a_given_value_generates_nothing() -> None:
    generated = Generated()
    build = DEFAULTED.builder(("note",))
    assert [build(("x",), generated).c0 for _ in range(3)] == [1, 2, 3]
    DEFAULTED.builder(("id",))((5,), generated)
    assert generated.last == 3


@pytest.mark.parametrize(
    ("type_name", "kind", "expected"),
    [
        (T.TEXT, DefaultKind.SNOWFLAKE_ID, "1"),
        (T.TEXT, DefaultKind.UUID_V7, str(UUID(int=7))),
        (T.DATE, DefaultKind.NOW, date(2022, 1, 1)),
        (T.TIME, DefaultKind.NOW, time(12, 30, 0, 5)),
    ],
)
def test_generated_values_take_the_type_of_their_column(type_name: TypeName, kind: DefaultKind, expected: Any) -> None:
    codec = table(column("id", T.INT), column("made", type_name, True, Default(kind)))
    assert codec.builder(("id",))((1,), Generated()).c1 == expected
    assert codec.default_value(1, Generated()) == expected


@pytest.mark.parametrize(
    ("type_name", "text", "expected"),
    [
        (T.BOOLEAN, "true", True),
        (T.SMALLINT, "-5", -5),
        (T.DOUBLE, "1.5", 1.5),
        (T.JSON, '{"a": 1}', '{"a":1}'),
        (T.DATE, "2022-01-01", date(2022, 1, 1)),
        (T.UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
    ],
)
def test_a_literal_default_is_read_as_the_columns_type(type_name: TypeName, text: str, expected: Any) -> None:
    codec = table(column("id", T.INT), column("made", type_name, False, literal(text)))
    assert codec.builder(("id",))((1,), Generated()).c1 == expected
    assert codec.default_value(1, Generated()) == expected


def test_a_literal_that_is_not_of_the_type_is_refused_with_the_table() -> None:
    with pytest.raises(TypeMismatch, match="column 'made'"):
        table(column("id", T.INT), column("made", T.INT, False, literal("abc")))


@pytest.mark.parametrize("values", [(None,), (DEFAULT,)], ids=["NULL", "DEFAULT"])
def test_not_null(values: tuple[Any, ...]) -> None:
    codec = table(column("id", T.BIGINT), column("name", T.TEXT, True))
    with pytest.raises(NotNullViolation) as caught:
        codec.builder(("name", "id"))((*values, 1), Generated())
    assert caught.value.details == {"table": "app.orders", "column": "name"}


def test_a_column_that_is_not_named_may_not_be_required() -> None:
    codec = table(column("id", T.BIGINT), column("name", T.TEXT, True))
    with pytest.raises(NotNullViolation, match="'name'"):
        codec.builder(("id",))((1,), Generated())


def test_a_key_is_never_null() -> None:
    with pytest.raises(NotNullViolation, match="'id'"):
        EVERYTHING.builder(("id",))((None,), Generated())
    with pytest.raises(NotNullViolation, match="'id'"):
        EVERYTHING.replace(EVERYTHING.struct(*FULL), {0: None})


def test_an_unknown_column_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownColumn, match=r"no column 'nmae'; it has: id, note") as caught:
        table(column("id", T.BIGINT), column("note", T.TEXT)).builder(("id", "nmae"))
    assert caught.value.details == {"table": "app.orders", "column": "nmae"}


def test_a_column_named_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'id' is named twice"):
        EVERYTHING.builder(("id", "note", "id"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flag", 1), ("small", 2**15), ("small", True), ("medium", "x"), ("id", 2**63), ("double", float("nan")),
        ("double", float("inf")), ("single", 1e39), ("amount", "x"), ("note", 5), ("note", "a\ud800"),
        ("raw", "text"), ("doc", "{"), ("at", "x"), ("day", NOW), ("hour", "x"), ("ref", "x"),
    ],
)  # fmt: skip
def test_a_builder_refuses_what_the_column_cannot_hold(name: str, value: Any) -> None:
    columns = ("id", name) if name != "id" else ("id",)
    with pytest.raises(TypeMismatch, match=f"column '{name}'"):
        EVERYTHING.builder(columns)((1, value)[-len(columns) :], Generated())


@pytest.mark.parametrize(
    ("given", "held"),
    [("12.50", "12.50"), ("12.5", "12.50"), ("12.505", "12.51"), ("-0.00", "0.00"), ("1E+3", "1000.00")],
)
def test_a_decimal_takes_the_scale_of_its_column(given: str, held: str) -> None:
    row = EVERYTHING.builder(("id", "amount"))((1, Decimal(given)), Generated())
    assert str(row.c6) == held


@pytest.mark.parametrize("given", ["10000000000.00", "-10000000000.00", "NaN", "sNaN", "Infinity", "-Infinity"])
def test_a_decimal_that_does_not_fit_is_refused(given: str) -> None:
    with pytest.raises(TypeMismatch, match="column 'amount'"):
        EVERYTHING.builder(("id", "amount"))((1, Decimal(given)), Generated())


def test_builders_take_what_is_not_the_usual_type_too() -> None:
    build = EVERYTHING.builder(EVERYTHING.schema.column_names)
    row = build(
        (
            "1", "true", -2.0, Decimal(3), 1, 2, 12.3, "é", bytearray(b"x"), {"a": 1},
            "2022-01-01", "2022-01-02", "03:04", str(UUID(int=9)),
        ),
        Generated(),
    )  # fmt: skip
    assert EVERYTHING.values(row) == (
        1, True, -2, 3, 1.0, 2.0, Decimal("12.30"), "é", b"x", '{"a":1}',
        datetime(2022, 1, 1, tzinfo=UTC), date(2022, 1, 2), time(3, 4), UUID(int=9),
    )  # fmt: skip


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3)])
def test_a_row_of_another_width_is_a_value_error(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="unpack"):
        table(column("id", T.BIGINT), column("n", T.INT)).builder(("id", "n"))(values, Generated())


def test_builders_and_codecs_are_made_once() -> None:
    assert EVERYTHING.builder(("id",)) is EVERYTHING.builder(("id",))
    assert row_codec(EVERYTHING.schema) is row_codec(msgspec.structs.replace(EVERYTHING.schema))


def test_names_never_become_code() -> None:
    codec = table(column("class", T.BIGINT), column("c0", T.TEXT), column("a'); print('", T.INT), key=("class",))
    row = codec.builder(codec.schema.column_names)((1, "x", 2), Generated())
    assert codec.values(row) == (1, "x", 2)


# --- keys ----------------------------------------------------------------------------------------------------


def test_keys_of_rows_and_of_values_are_the_same_bytes() -> None:
    codec = table(column("a", T.TEXT), column("b", T.INT), column("c", T.TEXT), key=("c", "b"))
    row = codec.struct("x", 5, "y\x00")
    prefix = codec.prefix(None)
    key = codec.key_of_row(prefix, row)
    assert key == codec.encode_key(prefix, ("y\x00", 5))
    assert key.hex() == "000000077900ff000180000005"
    assert codec.decode_key(key, len(prefix)) == ("y\x00", 5)
    assert codec.coerce_key(["y\x00", "5"]) == ("y\x00", 5)
    assert codec.owner(key) is None


def test_a_users_rows_stand_under_the_user() -> None:
    codec = table(column("id", T.INT), kind=TableKind.USER)
    key = codec.key_of_row(codec.prefix("ann"), codec.struct(1))
    assert key.hex() == "00000007616e6e000180000001"
    assert codec.owner(key) == "ann"
    assert codec.decode_key(key, len(codec.prefix("ann"))) == (1,)


def test_a_key_of_another_width_is_refused() -> None:
    codec = table(column("a", T.INT), column("b", T.INT), key=("a", "b"))
    with pytest.raises(ValueError, match="zip"):
        codec.coerce_key([1])
    with pytest.raises(CorruptData):
        codec.decode_key(codec.prefix(None) + b"\x80\x00\x00\x01", 4)
