"""Sealing against the row path: the same rows give the same bytes, and the same rejects for the same reasons.

Random tables over every type, with odd column names, defaults, CHECKs and composite keys; random routes with filters,
PARTITION BY and every payload mode; random rows full of extremes, given in the table's Arrow types and in others.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from row_path import sealed, written

from tablecast.codec.arrow_types import arrow_type
from tablecast.core import seal, seal_log
from tablecast.core.seal import Sealer
from tablecast.core.seal_values import LoadValues
from tablecast.engine import logs
from tablecast.errors import InvalidRequest
from tablecast.model.change import Op
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode, Route, Topic

EXAMPLES = int(os.environ.get("TABLECAST_EXAMPLES", "180"))
T = TypeName
VALUES = LoadValues(1_640_995_200_123, "änn", random=lambda count: bytes(range(count)))

NAMES = ["id", "a", "B c", "ü", 'qu"ote', "back\\slash", "new\nline", "日本", "x'y", "%s", "{}", "\x7f"]
TEXTS = ["", "a", "customer-1", 'say "hi"', "back\\slash", "tab\tnew\nline", "\x00", "a\x00b", "\x1f\x7f", "é", "😀", "日本",
         "\u2028", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "y" * 70_000]  # fmt: skip
INTEGERS = [0, 1, -1, 31, 32, -31, -32, -33, 127, 128, 255, 256, -127, -128, -129, 32_767, -32_768, 65_535, 65_536,
            -32_769, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**32, -(2**31) - 1, 2**63 - 1, -(2**63)]  # fmt: skip
FLOATS = [0.0, -0.0, 0.5, -1.5, 0.1, 1e16, 1e17, 1e22, 1e-5, 1e-7, 123456789.125, 5e-324, 1.7976931348623157e308, 1e300]
SECONDS = [0, 1, -1, 2**32 - 1, 2**32, 2**34 - 1, 2**34, -62_135_596_800, 253_402_300_799, 1_640_995_200]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
JSONS = ["{}", "null", ' {"a": [1, 2.50, "x"]} ', '"text"', "[1e300]", '{"é":"\\u00e9"}']


def integers(bits: int) -> st.SearchStrategy[int]:
    bound = 1 << (bits - 1)
    return st.one_of(
        st.sampled_from([n for n in INTEGERS if -bound <= n < bound]),
        st.integers(-bound, bound - 1),
        st.integers(-3, 3),
    )


def decimals(column_type: ColumnType) -> st.SearchStrategy[Decimal]:
    top = 10**column_type.precision - 1
    unscaled = st.one_of(st.sampled_from([0, 1, -1, top, -top]), st.integers(-top, top), st.integers(-9, 9))
    return unscaled.map(lambda n: Decimal((0 if n >= 0 else 1, tuple(map(int, str(abs(n)))), -column_type.scale)))


timestamps = st.builds(
    lambda seconds, micros: EPOCH + dt.timedelta(seconds=seconds, microseconds=micros),
    st.one_of(st.sampled_from(SECONDS), st.integers(1_500_000_000, 1_700_000_000)),
    st.sampled_from([0, 0, 1, 999_999, 120_000]),
)
float32s = st.one_of(
    st.sampled_from([0.0, -0.0, 0.1, 1.5, 3e38, 1e-40]), st.floats(width=32, allow_nan=False, allow_infinity=False)
)
SIMPLE: dict[TypeName, st.SearchStrategy[Any]] = {
    T.BOOLEAN: st.booleans(),
    T.SMALLINT: integers(16),
    T.INT: integers(32),
    T.BIGINT: integers(64),
    T.FLOAT: float32s,
    T.DOUBLE: st.one_of(st.sampled_from(FLOATS), st.floats(allow_nan=False, allow_infinity=False)),
    T.TEXT: st.one_of(st.sampled_from(TEXTS), st.text(max_size=12)),
    T.BYTES: st.one_of(st.sampled_from([b"", b"\x00", b"a\x00\xff", b"z" * 256, b"z" * 70_000]), st.binary(max_size=12)),
    T.JSON: st.sampled_from(JSONS),
    T.TIMESTAMP: timestamps,
    T.DATE: st.one_of(st.sampled_from([dt.date.min, dt.date.max, dt.date(1970, 1, 1), dt.date(2022, 2, 3)]), st.dates()),
    T.TIME: st.one_of(st.sampled_from([dt.time(), dt.time(23, 59, 59, 999_999), dt.time(3, 4, 5)]), st.times()),
    T.UUID: st.uuids(),
}  # fmt: skip


def good_values(column_type: ColumnType) -> st.SearchStrategy[Any]:
    return decimals(column_type) if column_type.name is T.DECIMAL else SIMPLE[column_type.name]


def bad_values(column_type: ColumnType) -> list[Any]:
    """What the column's own Arrow type can hold and the column cannot."""
    if column_type.name in (T.FLOAT, T.DOUBLE):
        return [math.nan, math.inf, -math.inf]
    return ["{", "[1,]", "nothing", "1" * 400, "[" * 101 + "]" * 101] if column_type.name is T.JSON else []


# --- tables -------------------------------------------------------------------------------------------------------

decimal_types = st.sampled_from([(1, 0), (12, 2), (18, 6), (18, 18), (19, 7), (38, 10), (38, 38), (38, 0)]).map(
    lambda found: ColumnType(T.DECIMAL, *found)
)
column_types = st.one_of(st.sampled_from([t for t in T if t is not T.DECIMAL]).map(ColumnType), decimal_types)
LITERALS = {
    T.BOOLEAN: "true", T.SMALLINT: "7", T.INT: "-70000", T.BIGINT: "9007199254740993", T.FLOAT: "0.1", T.DOUBLE: "0.1",
    T.TEXT: 'de"fault', T.JSON: '{"a": 1}', T.TIMESTAMP: "2022-01-01", T.DATE: "2022-01-01", T.TIME: "01:02:03",
    T.UUID: "00000000-0000-0000-0000-000000000001", T.DECIMAL: "0.5",
}  # fmt: skip
GENERATED = {
    T.TIMESTAMP: DefaultKind.NOW, T.DATE: DefaultKind.NOW, T.TIME: DefaultKind.NOW, T.TEXT: DefaultKind.CURRENT_USER,
    T.UUID: DefaultKind.UUID_V7,
}  # fmt: skip


@st.composite
def columns(draw: st.DrawFn, name: str) -> Column:
    column_type = draw(column_types)
    default = None
    kind = draw(st.sampled_from(["none", "none", "literal", "generated"]))
    if kind == "literal" and column_type.name in LITERALS and column_type != ColumnType(T.DECIMAL, 38, 38):
        default = Default(DefaultKind.LITERAL, LITERALS[column_type.name])
    elif kind == "generated" and column_type.name in GENERATED:
        default = Default(GENERATED[column_type.name])
    return Column(name, column_type, draw(st.integers(0, 3)) == 0, default)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def conditions(found: Sequence[Column]) -> list[str]:
    """Filters and CHECKs that mean something for these columns; some fail on some rows."""
    said = []
    for column in found:
        name = quoted(column.name)
        said.append(f"{name} IS NOT NULL")
        match column.type.name:
            case T.SMALLINT | T.INT | T.BIGINT:
                said += [
                    f"{name} > 0",
                    f"{name} + 1 > -5",
                    f"{name} * {name} < 100",
                    f"{name} % 2 = 0 OR {name} IS NULL",
                ]
            case T.DECIMAL | T.DOUBLE:
                said += [f"{name} >= 0", f"CAST({name} AS SMALLINT) > 0"]
            case T.TEXT:
                said += [f"{name} LIKE 'c%'", f"length({name}) < 20", f"CAST({name} AS INT) > 0"]
            case T.TIMESTAMP:
                said += [f"{name} > TIMESTAMP '2000-01-01 00:00:00'"]
            case T.BOOLEAN:
                said += [name, f"NOT {name}"]
    return said


def partitionings(found: Sequence[Column]) -> list[str]:
    said = [quoted(column.name) for column in found if column.type.name is not T.JSON]
    whole = [quoted(c.name) for c in found if c.type.name in (T.SMALLINT, T.INT, T.BIGINT)]
    return (
        said + [f"{name} + 1" for name in whole] + [f"lower({quoted(c.name)})" for c in found if c.type.name is T.TEXT]
    )


@st.composite
def tables(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True))
    found = [draw(columns(name)) for name in names]
    able = [column.name for column in found if column.type.name is not T.JSON]
    assume(able)
    key = draw(st.lists(st.sampled_from(able), min_size=1, max_size=3, unique=True))
    said = draw(st.lists(st.sampled_from(conditions(found)), max_size=2, unique=True)) if draw(st.booleans()) else []
    return TableSchema(258, "app", 'or"ders', TableKind.SHARED, tuple(found), tuple(key), checks=tuple(said))


@st.composite
def routes(draw: st.DrawFn, schema: TableSchema) -> list[tuple[Topic, Route]]:
    made = []
    for topic_id in range(draw(st.sampled_from([1, 2, 2, 3, 0]))):
        said, by = conditions(schema.columns), partitionings(schema.columns)
        route = Route(
            schema.table_id,
            (Op.INSERT, Op.UPDATE),
            draw(st.sampled_from(said)) if draw(st.integers(0, 2)) == 2 else None,
            draw(st.sampled_from(by)) if draw(st.booleans()) else None,
            draw(st.sampled_from(list(PayloadMode))),
        )
        made.append((Topic(topic_id, "app", f"t{topic_id}", draw(st.sampled_from([1, 2, 7]))), route))
    return made


# --- rows, given as they are or in another form ---------------------------------------------------------------------


def same(value: Any) -> Any:
    return value


def other_forms(column_type: ColumnType) -> list[tuple[pa.DataType, Any]]:
    """Arrow types that a caller may use instead of the column's own, and how a value becomes one of them."""
    match column_type.name:
        case T.SMALLINT | T.INT | T.BIGINT:
            return [(pa.int64(), same), (pa.string(), str), (pa.decimal128(38, 2), same), (pa.bool_(), lambda v: v > 0)]
        case T.DECIMAL:
            return [
                (pa.string(), str),
                (pa.float64(), float),
                (pa.decimal256(76, 38), same),
                (pa.int64(), lambda v: int(v) % 2**60),
            ]
        case T.DOUBLE | T.FLOAT:
            return [(pa.float64(), same), (pa.string(), repr)]
        case T.TEXT:
            return [
                (pa.large_string(), same),
                (pa.dictionary(pa.int32(), pa.string()), same),
                (pa.binary(), str.encode),
            ]
        case T.BYTES:
            return [(pa.large_binary(), same), (pa.string(), lambda v: v.hex())]
        case T.TIMESTAMP:
            return [
                (pa.string(), dt.datetime.isoformat),
                (pa.timestamp("us"), lambda v: v.replace(tzinfo=None)),
                (pa.timestamp("ms", "UTC"), lambda v: v.replace(microsecond=0)),
                (pa.date32(), dt.datetime.date),
            ]
        case T.DATE:
            return [(pa.string(), str), (pa.timestamp("us"), lambda v: dt.datetime(v.year, v.month, v.day))]
        case T.TIME:
            return [(pa.string(), str), (pa.time32("s"), lambda v: v.replace(microsecond=0))]
        case T.UUID:
            return [(pa.string(), str), (pa.binary(16), lambda v: v.bytes), (pa.string(), lambda v: v.hex.upper())]
        case T.BOOLEAN:
            return [(pa.string(), str), (pa.int8(), int)]
    return [(pa.large_string(), same)]  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn, column: Column, rows: int, required: bool) -> pa.Array:
    holes = draw(st.sampled_from([0, 0, 4] if not required else [0] * 12 + [9]))
    faults = bad_values(column.type) if draw(st.integers(0, 4)) == 0 else []
    values: list[Any] = []
    for _ in range(rows):
        if holes and draw(st.integers(0, holes)) == 0:
            values.append(None)
        elif faults and draw(st.integers(0, 5)) == 0:
            values.append(draw(st.sampled_from(faults)))
        else:
            values.append(draw(good_values(column.type)))
    if draw(st.integers(0, 3)) == 0:
        kind, form = draw(st.sampled_from(other_forms(column.type)))
        try:
            return pa.array([None if value is None else form(value) for value in values], kind)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            pass  # the value does not go into that form
    if column.type.name is T.UUID:
        stored = pa.array([None if value is None else value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), stored)
    return pa.array(values, arrow_type(column.type))


@st.composite
def loads(draw: st.DrawFn) -> tuple[TableSchema, list[tuple[Topic, Route]], pa.RecordBatch, list[int]]:
    schema = draw(tables())
    count = draw(st.integers(1, 12))
    needed = {c.name for c in schema.columns if c.default is None and (c.not_null or c.name in schema.primary_key)}
    careful = draw(st.integers(0, 9)) > 0  # else a column that every row needs may be missing
    kept = [c for c in schema.columns if (careful and c.name in needed) or draw(st.integers(0, 3)) > 0]
    assume(kept)
    given_columns = draw(st.permutations(kept))
    batch = pa.RecordBatch.from_arrays(
        [draw(arrays(column, count, column.not_null or column.name in schema.primary_key)) for column in given_columns],
        [column.name for column in given_columns],
    )
    if draw(st.booleans()):  # rows that repeat others
        batch = batch.take(pa.array(draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=count))))
    if draw(st.booleans()):  # columns that begin in the middle of their buffers
        batch = batch.slice(draw(st.integers(0, count - 1)))
    return schema, draw(routes(schema)), batch, draw(st.lists(st.integers(1, 5), max_size=3))


def cut(batch: pa.RecordBatch, sizes: Sequence[int]) -> list[pa.RecordBatch]:
    made, at = [], 0
    for size in sizes:
        made.append(batch.slice(at, size))
        at += size
    return [*made, batch.slice(at)]


def small_steps(patch: pytest.MonkeyPatch) -> None:
    """Everything that happens every so many rows happens every few."""
    patch.setattr(seal, "SLICE_ROWS", 5)
    patch.setattr(seal, "_FEW", 2)
    for module in (logs, seal_log):
        patch.setattr(module, "LOG_BATCH_MESSAGES", 3)
        patch.setattr(module, "LOG_BATCH_BYTES", 400)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(loads(), st.booleans())
def test_sealing_says_what_the_row_path_says(
    load: tuple[TableSchema, list[tuple[Topic, Route]], pa.RecordBatch, list[int]], small: bool
) -> None:
    schema, said, batch, sizes = load
    with pytest.MonkeyPatch.context() as patch:
        if small:
            small_steps(patch)
        try:
            sealer = Sealer(schema, said, 7, VALUES)
        except InvalidRequest:
            assume(False)  # a condition that this table does not allow
        rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        expected = written(schema, said, 7, VALUES, batch.schema.names, rows)
        found = sealed(sealer, cut(batch, sizes))
    for code in {code for _, code, _ in expected.rejects} or {"none"}:
        event(f"rejects: {code}")
    event(f"messages: {bool(expected.batches)}")
    assert found.rejects == expected.rejects
    assert found.keys == expected.keys
    assert found.values == expected.values
    assert found.batches == expected.batches


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([t for t in T if t is not T.DECIMAL] + [T.DECIMAL] * 3))
def test_every_type_in_every_place(data: st.DataObject, name: TypeName) -> None:
    """One column of one type, as key where it may be one, in a larger batch: each form of a value beside each other."""
    column_type = data.draw(decimal_types) if name is T.DECIMAL else ColumnType(name)
    is_key = name is not T.JSON and data.draw(st.booleans())
    found = (Column("id", ColumnType(T.INT)), Column("v", column_type))
    schema = TableSchema(1, "app", "t", TableKind.SHARED, found, ("v", "id") if is_key else ("id",))
    said = [
        (Topic(1, "app", "a", 3), Route(1, (Op.INSERT,), partition_by=None if name is T.JSON else "v")),
        (Topic(2, "app", "b", 3), Route(1, (Op.INSERT,), payload=PayloadMode.KEY)),
    ]
    values = data.draw(st.lists(good_values(column_type), min_size=1, max_size=30))
    holes = not is_key and data.draw(st.booleans())
    if holes:
        values[data.draw(st.integers(0, len(values) - 1))] = None
    stored = [None if v is None else v.bytes for v in values] if name is T.UUID else values
    array = pa.array(stored, pa.binary(16) if name is T.UUID else arrow_type(column_type))
    if name is T.UUID:
        array = pa.ExtensionArray.from_storage(pa.uuid(), array)
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(values)), pa.int32()), array], ["id", "v"])
    rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    expected = written(schema, said, 2**40, VALUES, ("id", "v"), rows)
    assert not expected.rejects
    made = sealed(Sealer(schema, said, 2**40, VALUES), [batch])
    assert (made.keys, made.values, made.batches) == (expected.keys, expected.values, expected.batches)


EXTREMES: dict[TypeName, list[Any]] = {
    T.BOOLEAN: [True, False],
    T.SMALLINT: [n for n in INTEGERS if -(2**15) <= n < 2**15],
    T.INT: [n for n in INTEGERS if -(2**31) <= n < 2**31],
    T.BIGINT: INTEGERS,
    T.FLOAT: [0.0, -0.0, 0.5, 3.4028234663852886e38, 1.401298464324817e-45],
    T.DOUBLE: FLOATS,
    T.TEXT: TEXTS,
    T.BYTES: [text.encode() for text in TEXTS],
    T.JSON: JSONS,
    T.TIMESTAMP: [EPOCH + dt.timedelta(seconds=s, microseconds=us) for s in SECONDS for us in (0, 1, 999_999)],
    T.DATE: [dt.date.min, dt.date.max, dt.date(1969, 12, 31), dt.date(1970, 1, 1)],
    T.TIME: [dt.time(), dt.time(0, 0, 0, 1), dt.time(23, 59, 59), dt.time(23, 59, 59, 999_999)],
    T.DECIMAL: [Decimal(n).scaleb(-7) for n in (0, 1, -1, 10, 999_999_999_999, -999_999_999_999)],
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_beside_one_another_and_alone(name: TypeName) -> None:
    """Columns whose values all take one form go another way than those that mix them."""
    column_type = ColumnType(name, 12, 7) if name is T.DECIMAL else ColumnType(name)
    found = (Column("id", ColumnType(T.INT)), Column("v", column_type))
    schema = TableSchema(1, "app", "t", TableKind.SHARED, found, ("id",) if name is T.JSON else ("v", "id"))
    said = [(Topic(1, "app", "a", 5), Route(1, (Op.INSERT,)))]
    values = EXTREMES[name]
    for chosen in [values, *([value] for value in values)]:
        batch = pa.RecordBatch.from_arrays(
            [pa.array(range(len(chosen)), pa.int32()), pa.array(chosen, arrow_type(column_type))], ["id", "v"]
        )
        expected = written(schema, said, 1, VALUES, ("id", "v"), list(enumerate(chosen)))
        made = sealed(Sealer(schema, said, 1, VALUES), [batch])
        assert not expected.rejects
        assert (made.keys, made.values, made.batches) == (expected.keys, expected.values, expected.batches)


def test_the_reference_takes_uuids_as_uuids() -> None:
    """The two sides are given one and the same: Arrow's UUIDs are Python's."""
    array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))
    assert array.to_pylist() == [UUID(int=0)]
