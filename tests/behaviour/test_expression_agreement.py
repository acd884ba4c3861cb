"""All forms of an expression against DuckDB: the same value, the same type, the same error.

Random typed expressions over a table with every type, random rows full of extremes. DuckDB answers twice:
with its optimizer off, which is the reference for values and errors, and on, where it may drop a
computation that would fail, so only values count. DuckDB evaluates AND and OR in no promised order; an
error in an expression that holds one is not compared.

Inside a task of Spark rows come in Spark's types, and are cast as those of a load are; what the form for batches makes of
them there is compared with the form for rows.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import duckdb
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from sqlglot import exp

import tablecast
from tablecast.codec.arrow_types import arrow_schema, arrow_type
from tablecast.codec.values import coercion
from tablecast.core.columns_cast import cast_column
from tablecast.core.expression import Expression, compile_expression, parse_expression
from tablecast.core.expression.casing import lower, upper
from tablecast.core.expression.rowform import row_function
from tablecast.core.expression.textual import SPACES
from tablecast.core.expression.tree import And, Call, ColumnRef, Const, Node, Or, walk
from tablecast.errors import ExpressionError, InvalidRequest
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = int(os.environ.get("TABLECAST_EXAMPLES", "180"))

COLUMNS = {
    "id": ColumnType(TypeName.BIGINT),
    "b": ColumnType(TypeName.BOOLEAN),
    "b2": ColumnType(TypeName.BOOLEAN),
    "s": ColumnType(TypeName.SMALLINT),
    "i": ColumnType(TypeName.INT),
    "l": ColumnType(TypeName.BIGINT),
    "f": ColumnType(TypeName.FLOAT),
    "d": ColumnType(TypeName.DOUBLE),
    "d2": ColumnType(TypeName.DOUBLE),
    "m": ColumnType(TypeName.DECIMAL, 4, 1),
    "n": ColumnType(TypeName.DECIMAL, 18, 3),
    "w": ColumnType(TypeName.DECIMAL, 38, 10),
    "t": ColumnType(TypeName.TEXT),
    "t2": ColumnType(TypeName.TEXT),
    "y": ColumnType(TypeName.BYTES),
    "y2": ColumnType(TypeName.BYTES),
    "j": ColumnType(TypeName.JSON),
    "ts": ColumnType(TypeName.TIMESTAMP),
    "ts2": ColumnType(TypeName.TIMESTAMP),
    "da": ColumnType(TypeName.DATE),
    "ti": ColumnType(TypeName.TIME),
    "ti2": ColumnType(TypeName.TIME),
    "u": ColumnType(TypeName.UUID),
    "u2": ColumnType(TypeName.UUID),
}
SCHEMA = TableSchema(
    table_id=1,
    namespace="app",
    name="everything",
    kind=TableKind.SHARED,
    columns=tuple(Column(name, column_type) for name, column_type in COLUMNS.items()),
    primary_key=("id",),
)
Row = msgspec.defstruct("Row", [(f"c{index}", Any) for index in range(len(COLUMNS))])
Rows = list[tuple[Any, ...]]
DUCKDB_TYPES = {"INT": "INTEGER", "TEXT": "VARCHAR", "BYTES": "BLOB"}


# --- rows ---------------------------------------------------------------------------------------------------

HOSTILE = [
    "",
    " ",
    "a",
    "A",
    "ab",
    "a%b",
    "a_b",
    "\\",
    "'",
    '"',
    "\0",
    "a\0b",
    "\n",
    "é",
    "e\u0301",
    "É",
    "ß",
    "ẞ",
]
HOSTILE += [
    "İ",
    "ı",
    "ſ",
    "K",
    "Σς",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "😀",
    "👩\u200d👩\u200d👧",
    "\u00a0x\u3000",
    "日本",
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet="aAbB%_\\$é😀 \0", max_size=8))
plain_texts = texts.map(lambda text: text.replace("\0", ""))
FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    0.1,
    1e-300,
    5e-324,
    1e300,
    -1.7976931348623157e308,
    1e15,
    1e16,
]
FLOATS += [
    2147483647.5,
    -2147483648.5,
    32767.5,
    -32768.5,
    9.2233720368547758e18,
    -9.2233720368547758e18,
    123456.789,
]
FLOATS += [
    9999999.95,
    0.05,
    1e-5,
    3.4028234663852886e38,
    3.4028235677973366e38,
    16777217.0,
    4503599627370497.5,
]


def integers(bits: int) -> st.SearchStrategy[int]:
    bound = 1 << (bits - 1)
    edges = [0, 1, -1, 2, 3, 7, 10, -10, 15, 25, -25, bound - 1, -bound, bound - 2, -bound + 1]
    if bits == 64:
        edges += [2**53 + 1, -(2**53) - 1, 2**62 + 2**38 + 1, 9007199791611905, 2**31, -(2**31)]
    return st.one_of(st.sampled_from(edges), st.integers(-bound, bound - 1))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    edges = [
        0,
        1,
        -1,
        5,
        -5,
        10**scale,
        15 * 10**scale // 10,
        -(25 * 10**scale) // 10,
        top,
        -top,
        top // 2,
        2**53 + 1,
    ]
    unscaled = st.one_of(st.sampled_from([edge for edge in edges if abs(edge) <= top]), st.integers(-top, top))
    return unscaled.map(lambda number: _decimal(number, scale))


def _decimal(number: int, scale: int) -> Decimal:
    return Decimal((number < 0, tuple(int(digit) for digit in str(abs(number))), -scale))


def float32(value: float) -> float:
    narrowed: float = pa.scalar(value, pa.float64()).cast(pa.float32()).as_py()
    return narrowed


MOMENTS = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1970, 1, 1)]
MOMENTS += [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 2, 29, 12, 30, 15, 120000)]
MOMENTS += [
    dt.datetime(2020, 12, 31),
    dt.datetime(2021, 1, 3, 1),
    dt.datetime(1900, 3, 1),
    dt.datetime(2026, 1, 1),
]
moments = st.one_of(st.sampled_from(MOMENTS), st.datetimes())
doubles = st.one_of(st.sampled_from(FLOATS), st.floats(allow_nan=False, allow_infinity=False))
bytestrings = st.one_of(st.sampled_from([b"", b"\0", b"a", b"\xff", b"\x7f'\"\\ ~"]), st.binary(max_size=5))
uuids = st.one_of(st.sampled_from([UUID(int=0), UUID(int=2**127), UUID(int=2**128 - 1)]), st.uuids())

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "SMALLINT": integers(16),
    "INT": integers(32),
    "BIGINT": integers(64),
    "FLOAT": doubles.filter(lambda value: abs(value) <= 3.4028234663852886e38).map(float32),
    "DOUBLE": doubles,
    "DECIMAL(4,1)": decimals(4, 1),
    "DECIMAL(18,3)": decimals(18, 3),
    "DECIMAL(38,10)": decimals(38, 10),
    "TEXT": texts,
    "BYTES": bytestrings,
    "JSON": st.sampled_from(["{}", "[1, 2]", '"x"', "null", "1.50", '{"a": "é"}']),
    "TIMESTAMP": moments.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    "DATE": moments.map(lambda moment: moment.date()),
    "TIME": moments.map(lambda moment: moment.time()),
    "UUID": uuids,
}


def value_of(column_type: ColumnType) -> st.SearchStrategy[Any]:
    some = VALUES[str(column_type)]
    return st.one_of(some, some, some, st.none())


@functools.cache
def rows(used: frozenset[str]) -> st.SearchStrategy[Rows]:
    """Rows with values in the columns that are `used`; drawing the others would only take time."""
    cells = [value_of(found) if name in used else st.none() for name, found in COLUMNS.items()]
    return st.lists(st.tuples(*cells), min_size=1, max_size=4)


# --- expressions --------------------------------------------------------------------------------------------

Sql = st.SearchStrategy[str]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def apply(template: str, *parts: Sql) -> Sql:
    return st.tuples(*parts).map(lambda values: template.format(*values))


def names(*wanted: str) -> Sql:
    return st.sampled_from([name for name, found in COLUMNS.items() if found.name.value in wanted])


INTEGERS = ("SMALLINT", "INT", "BIGINT")
LITERAL_INTEGERS = ["0", "1", "2", "3", "-1", "(-7)", "10", "100", "32767", "32768", "-32769", "2147483647"]
LITERAL_INTEGERS += ["2147483648", "-2147483648", "9223372036854775807", "-9223372036854775808"]
LITERAL_NUMBERS = [
    "0.0",
    "0.1",
    "1.5",
    "-2.25",
    "2.50",
    "99.95",
    "0.000001",
    "12345678901234567.89",
    "1e0",
    "2.5e0",
]
LITERAL_NUMBERS += ["-1e-3", "1e300", "5e-324", "123456789012345678901234567890.5", "16777217.5"]
NUMERIC_TYPES = [
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(4,1)",
    "DECIMAL(12,6)",
    "DECIMAL(38,10)",
]
ARITHMETIC = ["+", "-", "*", "/", "//", "%"]
COMPARED = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
PARTS = ["year", "quarter", "month", "week", "day", "doy", "dow", "isodow", "hour", "minute", "second"]
PARTS += ["millisecond", "microsecond"]

integer_columns = names(*INTEGERS)
numeric_leaves = st.one_of(
    names(*INTEGERS, "FLOAT", "DOUBLE", "DECIMAL"),
    names(*INTEGERS, "FLOAT", "DOUBLE", "DECIMAL"),
    st.sampled_from(LITERAL_INTEGERS),
    st.sampled_from(LITERAL_NUMBERS),
)


@functools.cache
def integer(depth: int) -> Sql:
    if depth == 0:
        return st.one_of(integer_columns, st.sampled_from(LITERAL_INTEGERS))
    inner = integer(depth - 1)
    return st.one_of(
        apply("({0} {1} {2})", inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner),
        apply("LENGTH({0})", text(depth - 1)),
        apply("EXTRACT({0} FROM {1})", st.sampled_from(PARTS), names("TIMESTAMP", "DATE")),
        apply("DATE_PART('{0}', {1})", st.sampled_from(PARTS[8:]), names("TIME")),
        apply("ROUND({0}, {1})", inner, st.sampled_from(["0", "1", "-1", "-2", "-5", "s"])),
        mixed(inner, depth),
    )


@functools.cache
def numeric(depth: int) -> Sql:
    if depth == 0:
        return numeric_leaves
    inner = numeric(depth - 1)
    return st.one_of(
        integer(depth),
        apply("({0} {1} {2})", inner, st.sampled_from(ARITHMETIC), inner),
        apply("({0} {1} {2})", inner, st.sampled_from(ARITHMETIC), inner),
        apply("(-{0})", names(*INTEGERS, "FLOAT", "DOUBLE", "DECIMAL")),
        apply("{0}({1})", st.sampled_from(["ABS", "FLOOR", "CEIL", "ROUND"]), inner),
        apply("ROUND({0}, {1})", inner, st.sampled_from(["0", "1", "2", "4", "-1", "-2", "-3", "-20"])),
        apply("{0}({1} AS {2})", st.sampled_from(["CAST", "TRY_CAST"]), inner, st.sampled_from(NUMERIC_TYPES)),
        apply("CAST({0} AS {1})", names("BOOLEAN"), st.sampled_from(NUMERIC_TYPES)),
        mixed(inner, depth),
    )


def mixed(inner: Sql, depth: int) -> Sql:
    """What picks among values of one kind."""
    return st.one_of(
        apply("CASE WHEN {0} THEN {1} ELSE {2} END", boolean(depth - 1), inner, inner),
        apply("CASE WHEN {0} THEN {1} WHEN {2} THEN {3} END", boolean(0), inner, boolean(depth - 1), inner),
        apply("CASE {0} WHEN {1} THEN {2} WHEN {3} THEN NULL ELSE {0} END", inner, inner, inner, inner),
        apply("COALESCE({0}, {1}, {2})", inner, inner, inner),
        apply("COALESCE(NULL, {0})", inner),
        apply("NULLIF({0}, {1})", inner, inner),
        apply("{0}({1}, {2}, {3})", st.sampled_from(["GREATEST", "LEAST"]), inner, inner, inner),
    )


@functools.cache
def text(depth: int) -> Sql:
    leaves = st.one_of(names("TEXT"), names("TEXT"), plain_texts.map(quoted))
    if depth == 0:
        return leaves
    inner = text(depth - 1)
    shown = names(*(name.value for name in TypeName))
    place = st.one_of(st.integers(-6, 6).map(str), integer(depth - 1))
    return st.one_of(
        apply("{0}({1})", st.sampled_from(["LOWER", "UPPER", "TRIM", "LTRIM", "RTRIM"]), inner),
        apply("{0}({1}, {2})", st.sampled_from(["TRIM", "LTRIM", "RTRIM"]), inner, inner),
        apply("SUBSTRING({0}, {1}, {2})", inner, place, place),
        apply("SUBSTRING({0}, {1})", inner, place),
        apply("REPLACE({0}, {1}, {2})", inner, inner, inner),
        apply(
            "({0} || {1})",
            inner,
            st.one_of(inner, names(*INTEGERS, "DECIMAL", "DOUBLE", "FLOAT", "DATE", "UUID")),
        ),
        apply("CONCAT({0}, {1}, NULL, {2})", inner, shown, shown),
        apply("CAST({0} AS TEXT)", shown),
        mixed(inner, depth),
    )


@functools.cache
def moment(depth: int) -> Sql:
    literals = st.sampled_from(
        [
            "TIMESTAMP '2024-02-29 12:30:15.12'",
            "TIMESTAMP '2026-01-01'",
            "DATE '2021-01-03'",
            "DATE '0001-01-01'",
        ]
    )
    leaves = st.one_of(names("TIMESTAMP", "DATE"), names("TIMESTAMP", "DATE"), literals)
    if depth == 0:
        return leaves
    inner = moment(depth - 1)
    return st.one_of(
        apply("DATE_TRUNC('{0}', {1})", st.sampled_from(PARTS[:5]), inner),
        apply("DATE_TRUNC('{0}', {1})", st.sampled_from(PARTS[8:11]), names("TIMESTAMP")),
        apply("CAST({0} AS {1})", inner, st.sampled_from(["TIMESTAMP", "DATE"])),
        mixed(inner, depth),
    )


UUID_LITERAL = "'80000000-0000-0000-0000-000000000000'"


def pairs(depth: int) -> st.SearchStrategy[tuple[str, str]]:
    """Two values that can be compared."""
    return st.one_of(
        st.tuples(numeric(depth), numeric(depth)),
        st.tuples(numeric(depth), numeric(depth)),
        st.tuples(text(depth), text(depth)),
        st.tuples(moment(depth), moment(depth)),
        st.tuples(names("TIMESTAMP", "DATE"), st.sampled_from(["'2024-02-29'", "'0001-01-01'"])),
        st.tuples(names("TIMESTAMP"), st.sampled_from(["'2024-02-29 12:30:15.12'", "'2026-01-01T00:00:00Z'"])),
        st.tuples(names("TIME"), st.one_of(names("TIME"), st.just("'12:30:15.12'"), st.just("CAST(ts AS TIME)"))),
        st.tuples(
            names("UUID"),
            st.one_of(names("UUID"), st.just(UUID_LITERAL), st.just(f"CAST({UUID_LITERAL} AS UUID)")),
        ),
        st.tuples(names("BYTES"), st.one_of(names("BYTES"), st.just("X'ff'"), st.just("(y || X'00')"))),
        st.tuples(names("BOOLEAN"), st.one_of(boolean(depth), st.sampled_from(["TRUE", "'false'", "1", "i"]))),
        st.tuples(names(*INTEGERS), st.sampled_from(["'15'", "'-1'", "NULL"])),
        st.tuples(names("DECIMAL", "DOUBLE", "FLOAT"), st.sampled_from(["'1.5'", "'-2.25'", "NULL"])),
    )


PATTERNS = st.text(alphabet="aAbB%_\\é😀", max_size=5)


@functools.cache
def boolean(depth: int) -> Sql:
    leaves = st.one_of(names("BOOLEAN"), st.sampled_from(["TRUE", "FALSE", "(s > 1)", "(t = 'a')", "(d < 0.5)"]))
    if depth == 0:
        return leaves
    inner = boolean(depth - 1)
    number, words = numeric(depth - 1), text(depth - 1)
    everything = names(*(name.value for name in TypeName))
    compared = st.tuples(pairs(depth - 1), st.sampled_from(COMPARED)).map(lambda p: f"({p[0][0]} {p[1]} {p[0][1]})")
    return st.one_of(
        compared,
        compared,
        compared,
        apply("({0} {1} {2})", inner, st.sampled_from(["AND", "OR"]), inner),
        apply("({0} {1} {2})", inner, st.sampled_from(["AND", "OR"]), inner),
        apply("(NOT {0})", inner),
        apply("({0} IS {1}NULL)", st.one_of(everything, inner, number), st.sampled_from(["", "NOT "])),
        apply("({0} IS {1}{2})", inner, st.sampled_from(["", "NOT "]), st.sampled_from(["TRUE", "FALSE"])),
        apply("({0} {1}BETWEEN {2} AND {3})", number, st.sampled_from(["", "NOT "]), number, number),
        apply("({0} BETWEEN {1} AND {2})", words, words, words),
        apply("({0} {1}IN ({2}, {3}, {4}))", number, st.sampled_from(["", "NOT "]), number, number, number),
        apply("({0} {1}IN (1, NULL, {2}))", integer(0), st.sampled_from(["", "NOT "]), integer(0)),
        apply("({0} IN ({1}, {2}))", words, words, words),
        apply("(u IN ({0}, u2))", st.just(UUID_LITERAL)),
        apply(
            "({0} {1} {2})",
            words,
            st.sampled_from(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"]),
            PATTERNS.map(quoted),
        ),
        apply("({0} {1} {2})", words, st.sampled_from(["LIKE", "ILIKE"]), words),
        apply(
            "({0} {1} {2} ESCAPE '$')",
            words,
            st.sampled_from(["LIKE", "ILIKE"]),
            st.sampled_from(["'$%'", "'a$_%'", "'%$$'"]),
        ),
        apply("{0}({1}, {2})", st.sampled_from(["STARTS_WITH", "CONTAINS"]), words, words),
        apply("CAST({0} AS BOOLEAN)", names(*INTEGERS, "DECIMAL", "DOUBLE")),
        mixed(inner, depth),
    )


expressions = st.one_of(boolean(2), boolean(1), boolean(3), numeric(1), numeric(2), text(1), text(2), moment(2))


# --- three ways to an answer --------------------------------------------------------------------------------


class Failed:
    def __repr__(self) -> str:
        return "error"


FAILED = Failed()
RUNTIME_ERRORS = (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)


class Reference:
    """DuckDB over one Arrow table; TIMESTAMP columns are naive there."""

    tells_zeros_apart = True

    def __init__(self, *, optimizer: bool) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET threads = 1")
        if not optimizer:
            self._connection.execute("PRAGMA disable_optimizer")

    def answers(self, sql: str, batch: pa.RecordBatch) -> tuple[str, list[Any]]:
        try:
            return self._query(sql, batch)
        except RUNTIME_ERRORS:
            found = [self._one(sql, batch.slice(index, 1)) for index in range(batch.num_rows)]
            return next((name for name, _ in found if name), ""), [value for _, value in found]

    def attempts(self, sql: str, batch: pa.RecordBatch) -> list[Any]:
        """NULL where the answer is an error."""
        try:
            return self._query(f"TRY({sql})", batch)[1]
        except RUNTIME_ERRORS:  # in a constant part
            return [None] * batch.num_rows

    def _one(self, sql: str, batch: pa.RecordBatch) -> tuple[str, Any]:
        try:
            name, values = self._query(sql, batch)
        except RUNTIME_ERRORS:
            return "", FAILED
        return name, values[0]

    def _query(self, sql: str, batch: pa.RecordBatch) -> tuple[str, list[Any]]:
        self._connection.register("everything", pa.Table.from_batches([batch]))
        typed = "SELECT * REPLACE (CAST(j AS JSON) AS j) FROM everything"
        found = self._connection.sql(f"SELECT {sql} AS answer FROM ({typed})")
        return str(found.types[0]), [row[0] for row in found.fetchall()]


@pytest.fixture(scope="module")
def plain() -> Reference:
    return Reference(optimizer=False)


@pytest.fixture(scope="module")
def optimized() -> Reference:
    return Reference(optimizer=True)


def batch_of(data: Rows) -> pa.RecordBatch:
    columns = zip(*data, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(cells), found) for cells, found in zip(columns, arrow_schema(SCHEMA).types, strict=True)],
        schema=arrow_schema(SCHEMA),
    )


def naive(batch: pa.RecordBatch) -> pa.RecordBatch:
    fields = [
        pa.field(field.name, pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
        for field in batch.schema
    ]
    return pa.RecordBatch.from_arrays(
        [
            array.cast(field.type) if pa.types.is_timestamp(field.type) else array
            for array, field in zip(batch.columns, fields, strict=True)
        ],
        schema=pa.schema(fields),
    )


def by_row(expression: Expression, data: Rows, params: tuple[Any, ...] = ()) -> list[Any]:
    answers = []
    for row in data:
        try:
            answers.append(expression.row(Row(*row), params))
        except ExpressionError:
            answers.append(FAILED)
    return answers


def by_batch(expression: Expression, data: Rows, params: tuple[Any, ...] = ()) -> list[Any]:
    return over(expression, batch_of(data), params)


def over(expression: Expression, batch: pa.RecordBatch, params: tuple[Any, ...] = ()) -> list[Any]:
    """All rows at once; one by one if some row fails."""
    try:
        return _listed(expression, batch, params)
    except ExpressionError:
        answers = []
        for index in range(batch.num_rows):
            try:
                answers += _listed(expression, batch.slice(index, 1), params)
            except ExpressionError:
                answers.append(FAILED)
        return answers


def _listed(expression: Expression, batch: pa.RecordBatch, params: tuple[Any, ...]) -> list[Any]:
    array = expression.batch(batch, params)
    assert array.type == (pa.null() if expression.type is None else arrow_type(expression.type))
    listed: list[Any] = array.to_pylist()
    return listed


def exactly(value: Any) -> Any:
    """Equal only for what is the same in every bit that counts."""
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else value.hex())
    if isinstance(value, Decimal):
        return ("decimal", value.as_tuple())
    if isinstance(value, dt.datetime):
        return ("datetime", value.replace(tzinfo=None, fold=0))
    if isinstance(value, dt.time):
        return ("time", value.replace(fold=0))
    return (type(value).__name__, value)


def compiled(sql: str) -> Expression:
    """Or gives up on an example that we refuse: two types that do not meet, a DECIMAL of more than 38 digits."""
    try:
        return compile_expression(sql, SCHEMA)
    except InvalidRequest:
        reject()


def may_spare(node: Node) -> bool:
    """DuckDB skips later arguments when an earlier one is NULL in the whole vector; an error in them may not happen."""
    if not isinstance(node, Call):
        return False
    certain = [isinstance(arg, ColumnRef) or (isinstance(arg, Const) and arg.value is not None) for arg in node.args]
    return any(not done and not all(certain[i + 1 :]) for i, done in enumerate(certain))


def is_failing_constant(node: Node) -> bool:
    """DuckDB may compute a constant part before it looks at a row, and fail where no row would."""
    if any(isinstance(part, ColumnRef) for part in walk(node)):
        return False
    try:
        row_function(node, "a constant part")(None)
    except ExpressionError:
        return True
    return False


class Agreement:
    """One expression, ready to be compared over rows."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        nodes = list(walk(expression.tree))
        self._unordered = any(isinstance(node, And | Or) or is_failing_constant(node) for node in nodes)
        self._sparing = any(may_spare(node) for node in nodes)

    def check(self, data: Rows, reference: Reference, *, errors: bool) -> None:
        """Row by row: value, type and, where DuckDB promises an order and `errors` count, the failures."""
        type_name, theirs = reference.answers(self._expression.sql, naive(batch_of(data)))
        self._check_type(type_name)
        ours = by_row(self._expression, data)
        assert [exactly(value) for value in by_batch(self._expression, data)] == [exactly(value) for value in ours]
        for mine, other, row in zip(ours, theirs, data, strict=True):
            if FAILED in (mine, other) and (self._unordered or not errors or (self._sparing and mine is FAILED)):
                continue
            self._check_value(mine, other, row)

    def check_many(self, data: Rows, reference: Reference | Selecting) -> None:
        """In one query that gives NULL for a failure: for many rows."""
        ours = by_row(self._expression, data)
        theirs = reference.attempts(self._expression.sql, naive(batch_of(data)))
        fine = [(*triple,) for triple in zip(ours, theirs, data, strict=True) if triple[0] is not FAILED]
        if not (self._unordered or self._sparing):
            assert all(other is None for mine, other in zip(ours, theirs, strict=True) if mine is FAILED)
        for mine, other, row in fine:
            if mine == other == 0 and not reference.tells_zeros_apart:
                continue
            if other is not None or not self._unordered:
                self._check_value(mine, other, row)
        if fine:
            batched = by_batch(self._expression, [row for _, _, row in fine])
            assert [exactly(value) for value in batched] == [exactly(mine) for mine, _, _ in fine], self._expression.sql

    def _check_type(self, type_name: str) -> None:
        found = self._expression.type
        if found is not None and type_name:
            assert type_name == DUCKDB_TYPES.get(str(found), str(found)), self._expression.sql

    def _check_value(self, ours: Any, theirs: Any, row: tuple[Any, ...]) -> None:
        cells = {name: value for name, value in zip(COLUMNS, row, strict=True) if name in self._expression.columns}
        assert exactly(ours) == exactly(theirs), (self._expression.sql, cells)


# --- the properties -----------------------------------------------------------------------------------------


class Pool(Rows):
    """Rows that do not fill the report of a failure."""

    def __repr__(self) -> str:
        return f"{len(self)} rows"


@pytest.fixture(scope="module")
def hundred_rows() -> Rows:
    drawn: Rows = []

    @settings(max_examples=60, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(rows(frozenset(COLUMNS)))
    def draw(some: Rows) -> None:
        drawn.extend(some)

    draw()
    return Pool(drawn[-100:])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sql=expressions, data=st.data())
def test_both_forms_agree_with_duckdb(
    sql: str, data: st.DataObject, hundred_rows: Rows, plain: Reference, optimized: Reference
) -> None:
    expression = compiled(sql)
    agreement = Agreement(expression)
    agreement.check(data.draw(rows(expression.columns)), plain, errors=True)
    agreement.check(hundred_rows[:5], optimized, errors=False)
    agreement.check_many(hundred_rows, plain)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(sql=expressions)
def test_the_canonical_text_gives_equal_results(sql: str, hundred_rows: Rows) -> None:
    first = compiled(sql)
    again = compile_expression(first.sql, SCHEMA)
    assert (again.sql, again.type, again.columns) == (first.sql, first.type, first.columns)
    answers = [[exactly(value) for value in by_row(each, hundred_rows)] for each in (first, again)]
    assert answers[0] == answers[1]


@settings(max_examples=EXAMPLES // 4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sql=expressions, data=st.data())
def test_a_parameter_is_like_a_column_of_its_type(sql: str, data: st.DataObject) -> None:
    expression = compiled(sql)
    row = data.draw(rows(expression.columns))[0]
    order = {name: number for number, name in enumerate(COLUMNS, 1)}

    def numbered(node: exp.Expr) -> exp.Expr:
        return exp.Placeholder(this=str(order[node.name])) if isinstance(node, exp.Column) else node

    parsed = parse_expression(sql).transform(numbered)
    given_params = compile_expression(parsed, SCHEMA, param_types=list(COLUMNS.values()))
    assert not given_params.columns
    [expected] = by_row(expression, [row])
    nothing = tuple(None for _ in COLUMNS)
    assert [exactly(value) for value in by_row(given_params, [nothing], row)] == [exactly(expected)]
    assert [exactly(value) for value in by_batch(given_params, [nothing], row)] == [exactly(expected)]


def test_lower_upper_and_trim_agree_on_every_code_point() -> None:
    everything = "".join(chr(code) for code in range(1, 0x110000) if not 0xD800 <= code <= 0xDFFF)
    columns = {"text": everything, "low": lower(everything), "high": upper(everything)}
    ours = pa.table({name: pa.array(list(characters)) for name, characters in columns.items()})
    connection = duckdb.connect()
    connection.register("ours", ours)
    connection.execute("SELECT text FROM ours WHERE lower(text) <> low OR upper(text) <> high")
    assert connection.fetchall() == []
    connection.execute("SELECT string_agg(text, '' ORDER BY text) FROM ours WHERE trim(text) = ''")
    assert connection.fetchall() == [(SPACES,)]


# --- every operator and function on its own, over every pair of types and a hundred rows ---------------------

PICKS = ["COALESCE", "NULLIF", "GREATEST", "LEAST"]
NANS = ["d % 0", "d / 0", "f % 0"]
LISTS = ["1, 7", "1, NULL", "s, 15", "0.5, 1e0", "d, w, NULL", "'15', 0"]
LOGIC = ["b", "b2", "NULL", "TRUE", "(s > 1)"]
TESTED = ["NULL", "NOT NULL", "TRUE", "NOT TRUE", "FALSE", "NOT FALSE"]
LIKE_PATTERNS = ["''", "'%'", "'_'", "'a%'", "'%a'", "'%A%'", "'a%a'", "'ab%b'", "'%a_b%'", "'_%_'", "'%é%'", "'%\\%'"]
LIKE_PATTERNS += ["'$%%' ESCAPE '$'", "'%$_%' ESCAPE '$'", "'%\\%%' ESCAPE '\\'", "'%ß%'", "'%😀'"]
SUBJECTS = ["''", "'a'", "'ab'", "'aba'", "'a%b'", "'aab'", "'é😀'"]
EXACT = ["s", "i", "l"]
NUMBERS = [*EXACT, "f", "d", "m", "n", "w"]
SINGLE = [f"{left} {op} {right}" for op in ARITHMETIC for left in NUMBERS for right in [*NUMBERS, "2", "0.7", "3e0"]]
SINGLE += [f"{left} {op} {right}" for op in ("=", "<", ">=") for left in NUMBERS for right in [*NUMBERS, "1", "0.1"]]
SINGLE += [f"CAST({name} AS {to})" for name in [*NUMBERS, "b"] for to in [*NUMERIC_TYPES, "TEXT"]]
SINGLE += [f"CAST({name} AS BOOLEAN)" for name in NUMBERS]
SINGLE += [f"CAST(CAST({name} AS DECIMAL(38,0)) AS {to})" for name in "lw" for to in ("FLOAT", "DOUBLE", "INT", "TEXT")]
SINGLE += [f"TRY_CAST({name} AS {to})" for name in NUMBERS for to in ("SMALLINT", "BIGINT", "DECIMAL(4,1)", "FLOAT")]
SINGLE += [f"{function}({name})" for function in ("ABS", "FLOOR", "CEIL", "ROUND", "-") for name in NUMBERS]
SINGLE += [f"ROUND({name}, {digits})" for name in NUMBERS for digits in (1, 2, 5, 16, 20, -1, -2, -3)]
SINGLE += [f"ROUND({name}, {digits})" for name in (*EXACT, "f", "d") for digits in ("s", "-18", "-19", "-40", "-400")]
SINGLE += [f"ROUND(CAST({name} AS DECIMAL({digits},0)), -1)" for name in "sl" for digits in (5, 18, 19, 38)]
SINGLE += [f"{function}(t)" for function in ("LOWER", "UPPER", "LENGTH", "TRIM", "LTRIM", "RTRIM")]
SINGLE += [
    f"{function}(t, t2)" for function in ("TRIM", "LTRIM", "RTRIM", "STARTS_WITH", "CONTAINS", "GREATEST", "LEAST")
]
SINGLE += ["SUBSTRING(t, s % 7)", "SUBSTRING(t, s % 7, i % 5)", "SUBSTRING(t, l, 3)", "SUBSTRING(t, 1, l)"]
SINGLE += ["REPLACE(t, t2, 'x')", "t LIKE t2", "t ILIKE t2", "t || t2", "y || y2", "t < t2", "y < y2", "u < u2"]
SINGLE += ["ts < ts2", "ti < ti2", "da < ts", "GREATEST(f, s)", "LEAST(d, d2)", "GREATEST(m, n)"]
SINGLE += [f"EXTRACT({part} FROM {name})" for part in PARTS for name in ("ts", "da")]
SINGLE += [f"DATE_TRUNC('{part}', {name})" for part in PARTS[:5] for name in ("ts", "da")]
SINGLE += [f"DATE_TRUNC('{part}', ts)" for part in PARTS[8:11]]
SINGLE += [f"CAST({name} AS TEXT)" for name in ("y", "ts", "da", "ti", "u", "j")]
SINGLE += ["CAST(ts AS DATE)", "CAST(ts AS TIME)", "CAST(da AS TIMESTAMP)"]
SINGLE += [
    f"{pick}({left}, {right})" for pick in PICKS for left in NUMBERS for right in [*NUMBERS, "1", "40000", "NULL"]
]
SINGLE += [f"CASE WHEN b THEN {left} ELSE {right} END" for left in NUMBERS for right in [*NUMBERS, "1", "'1'", "NULL"]]
SINGLE += [f"CASE {left} WHEN {right} THEN 'x' WHEN 1 THEN 'y' END" for left in NUMBERS for right in NUMBERS]
SINGLE += [
    f"{left} IS {negated}DISTINCT FROM {right}" for negated in ("", "NOT ") for left in NUMBERS for right in "sfdw"
]
SINGLE += [f"({value}) {op} ({other})" for op in COMPARED for value in NANS for other in [*NANS, "d2"]]
SINGLE += [f"{pick}({value}, {other})" for pick in PICKS for value in NANS for other in [*NANS, "d2"]]
SINGLE += [f"{value} {negated}IN ({items})" for value in NUMBERS for negated in ("", "NOT ") for items in LISTS]
SINGLE += [
    f"{value} {negated}BETWEEN {low} AND {high}"
    for value in "sdn"
    for negated in ("", "NOT ")
    for low in "iw"
    for high in "lm"
]
SINGLE += [f"{left} {op} {right}" for op in ("AND", "OR") for left in LOGIC for right in LOGIC]
SINGLE += [f"NOT {left}" for left in LOGIC] + [f"{left} IS {tested}" for left in ("b", "NULL") for tested in TESTED]
SINGLE += [f"(t || t2) {op} {pattern}" for op in ("LIKE", "ILIKE", "NOT LIKE") for pattern in LIKE_PATTERNS]
SINGLE += [f"{subject} LIKE {pattern}" for subject in SUBJECTS for pattern in LIKE_PATTERNS]
SINGLE += [f"{name} IN ({name}2, NULL)" for name in ("t", "y", "ts", "ti", "u")] + [
    "t IN ('a', 'é', '')",
    "da IN (ts, '2024-02-29')",
]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(SINGLE), 200))
def test_each_operator_over_many_rows(start: int, hundred_rows: Rows, plain: Reference) -> None:
    for sql in SINGLE[start : start + 200]:
        Agreement(compile_expression(sql, SCHEMA)).check_many(hundred_rows, plain)


# --- in a SELECT of ours --------------------------------------------------------------------------------------

LITERAL_CASTS = ["CAST('5.5' AS INT)", "'-2.5'::SMALLINT", "'yes'::BOOLEAN", "'0'::BOOLEAN", "'1.005'::DECIMAL(6,2)"]
LITERAL_CASTS += [
    "'2020-1-1'::DATE",
    "'9:05'::TIME",
    "'2020-01-01 10:00+02:00'::TIMESTAMP",
    "'2020-1-1 8:00'::TIMESTAMP",
]
LITERAL_CASTS += ["'\\x0aa'::BYTES", "X'0aff'", "CAST('a' AS BYTES)", ".5::INT", "'5.'::DOUBLE", "'.5'::FLOAT"]
MEETINGS = [
    "ts < '2020-01-01 10:00+02:00'",
    "'2020-01-01 10:00-0130' >= ts",
    "ts IN ('2024-02-29 14:30:15.12+02', ts2)",
]
MEETINGS += [
    "i = '5.5'",
    "b = 'no'",
    "da > '2021-1-3'",
    "ti <= '12:30'",
    "y = X'ff'",
    "y || '\\xff'::BYTES > y2",
    "n = '.5'",
]


class Selecting:
    """Our own SELECT over a table that holds the rows: NULL where the answer is an error."""

    tells_zeros_apart = False  # the optimizer takes GREATEST(f, f) for f, whose zero may be a negative one

    def __init__(self, db: tablecast.Database, data: Rows) -> None:
        self._db = db
        columns = ", ".join(f"{column.name} {column.type}" for column in SCHEMA.columns[1:])
        db.execute(f"CREATE NAMESPACE app; CREATE TABLE app.everything (id BIGINT PRIMARY KEY, {columns})")
        db.insert("app.everything", data)
        self._kept: dict[str, list[Any]] = {}
        self._kept_by_row: dict[str, list[Any]] = {}
        self._count = len(data)

    def ask(self, expressions: Sequence[str]) -> None:
        """Many in one query; one by one where a constant part fails, or one that stands there twice, as in (s + s) * (s + s): the
        optimizer takes it out of TRY. Then row by row."""
        tried = ", ".join(f"TRY({sql}) AS c{number}" for number, sql in enumerate(expressions))
        try:
            found = self._db.query(f"SELECT {tried} FROM app.everything ORDER BY id").rows
        except InvalidRequest:
            if len(expressions) == 1:
                self._kept_by_row[expressions[0]] = [self._of_row(expressions[0], at) for at in range(self._count)]
                return
            for sql in expressions:
                self.ask([sql])
            return
        for number, sql in enumerate(expressions):
            self._kept[sql] = [row[number] for row in found]

    def _of_row(self, sql: str, number: int) -> Any:
        try:
            return self._db.query(f"SELECT TRY({sql}) FROM app.everything WHERE id = ?", [number]).scalar()
        except InvalidRequest:
            return None

    def attempts(self, sql: str, batch: pa.RecordBatch) -> list[Any]:
        return self._kept[sql] if sql in self._kept else self._kept_by_row[sql]


def test_forms_agree_with_select(hundred_rows: Rows) -> None:
    data = Pool((number, *row[1:]) for number, row in enumerate(taken(hundred_rows)))
    fixed = [*LITERAL_CASTS, *MEETINGS, *SINGLE[::3], "(s + s) + (s + s)"]
    wanted = [compile_expression(sql, SCHEMA) for sql in [*fixed, *random_expressions(50)]]
    with tablecast.open(":memory:") as db:
        select = Selecting(db, data)
        for start in range(0, len(wanted), 40):
            select.ask([expression.sql for expression in wanted[start : start + 40]])
        for text, expression in zip(LITERAL_CASTS, wanted, strict=False):
            # As it was written too, for what is written down shows a type by DuckDB's name.
            assert db.query(f"SELECT {text}").rows == [(expression.row(Row(*data[0])),)], text
    for expression in wanted:
        Agreement(expression).check_many(data, select)
    assert len(select._kept) > 0.9 * len({expression.sql for expression in wanted})


# --- inside a task of Spark ------------------------------------------------------------------------------------

NUMBER = "_number"  # which row it is
Told = tuple[str, list[int], list[str]]  # an expression, rows, and the value for each as `shown`


def shown(values: list[Any]) -> list[str]:
    return [repr(exactly(value)) for value in values]


@dataclass(frozen=True)
class Evaluating:
    """Travels to the executors: every expression over every row that comes, a `Told` for each, as JSON."""

    expressions: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        compiled_here = [compile_expression(sql, SCHEMA) for sql in self.expressions]
        for batch in batches:
            numbers = batch.column(NUMBER).to_pylist()
            typed = self._typed(batch)
            for expression in compiled_here:
                told = msgspec.json.encode((expression.sql, numbers, shown(over(expression, typed))))
                yield pa.RecordBatch.from_arrays([pa.array([told.decode()])], names=["told"])

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        cast = [cast_column(column, batch.column(column.name)) for column in SCHEMA.columns]
        assert not any(refused is not None and refused.any() for _, refused in cast)
        return pa.RecordBatch.from_arrays([array for array, _ in cast], schema=arrow_schema(SCHEMA))


def taken(data: Rows) -> Rows:
    """As a write of single rows takes them: JSON, for one, has its own spelling."""
    takes = [coercion(column.type, column.name) for column in SCHEMA.columns]
    return [
        tuple(None if value is None else take(value) for take, value in zip(takes, row, strict=True)) for row in data
    ]


def random_expressions(count: int) -> list[str]:
    drawn: dict[str, None] = {}

    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate])
    @given(expressions)
    def draw(sql: str) -> None:
        drawn[compiled(sql).sql] = None

    draw()
    return list(drawn)


@pytest.mark.hypothesis
def test_what_a_task_computes_on_spark_is_what_the_row_form_gives(spark: SparkSession, hundred_rows: Rows) -> None:
    from pyspark import cloudpickle

    from tablecast.spark.arrow_map import map_arrow
    from tablecast.spark.types import arrow_of, spark_columns, table_struct

    wanted = [compile_expression(sql, SCHEMA) for sql in [*SINGLE, *random_expressions(EXAMPLES)]]
    struct = table_struct(SCHEMA)
    columns = spark_columns(batch_of(hundred_rows).columns, arrow_of(struct))
    given_rows = pa.Table.from_arrays(
        [*columns, pa.array(range(len(hundred_rows)))], names=[*struct.fieldNames(), NUMBER]
    )
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tests are not installed where tasks run
    try:
        frame = spark.createDataFrame(given_rows).repartition(2, NUMBER)
        told = map_arrow(frame, Evaluating([each.sql for each in wanted]), "told string").collect()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])

    answers: dict[tuple[str, int], str] = {}
    for row in told:
        sql, numbers, values = msgspec.json.decode(row.told, type=Told)
        answers |= {(sql, number): value for number, value in zip(numbers, values, strict=True)}
    stored = taken(hundred_rows)
    for expression in wanted:
        there = [answers[expression.sql, number] for number in range(len(hundred_rows))]
        assert there == shown(by_row(expression, stored)), expression.sql
