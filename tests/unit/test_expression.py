"""What an expression means, topic by topic: every vector is checked in the row form and in the Arrow form."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from sqlglot import exp

from tablecast.codec.arrow_types import arrow_schema, arrow_type
from tablecast.core.expression import compile_expression, compile_filter, parse_expression
from tablecast.errors import (
    ExpressionError,
    SqlSyntaxError,
    TooLarge,
    TypeMismatch,
    UnknownColumn,
    UnsupportedSql,
)
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName

NOON = dt.datetime(2024, 2, 29, 12, 30, 15, 120000, tzinfo=dt.UTC)
ID = UUID("80000000-0000-0000-0000-00000000000a")
CELLS: dict[str, tuple[ColumnType, Any]] = {
    "yes": (ColumnType(TypeName.BOOLEAN), True),
    "no": (ColumnType(TypeName.BOOLEAN), False),
    "unknown": (ColumnType(TypeName.BOOLEAN), None),
    "small": (ColumnType(TypeName.SMALLINT), 32767),
    "i": (ColumnType(TypeName.INT), -7),
    "big": (ColumnType(TypeName.BIGINT), 9223372036854775807),
    "none": (ColumnType(TypeName.INT), None),
    "f": (ColumnType(TypeName.FLOAT), 0.10000000149011612),
    "d": (ColumnType(TypeName.DOUBLE), 0.1),
    "amount": (ColumnType(TypeName.DECIMAL, 12, 2), Decimal("100.50")),
    "wide": (ColumnType(TypeName.DECIMAL, 38, 10), Decimal("9999999999999999999999999999.9999999999")),
    "name": (ColumnType(TypeName.TEXT), "Ann_50%"),
    "nobody": (ColumnType(TypeName.TEXT), None),
    "raw": (ColumnType(TypeName.BYTES), b"A\x00"),
    "doc": (ColumnType(TypeName.JSON), '{"a": 1}'),
    "at": (ColumnType(TypeName.TIMESTAMP), NOON),
    "day": (ColumnType(TypeName.DATE), NOON.date()),
    "clock": (ColumnType(TypeName.TIME), NOON.time()),
    "key": (ColumnType(TypeName.UUID), ID),
}
SCHEMA = TableSchema(
    table_id=7,
    namespace="app",
    name="orders",
    kind=TableKind.SHARED,
    columns=tuple(Column(name, column_type) for name, (column_type, _) in CELLS.items()),
    primary_key=("key",),
)
Row = msgspec.defstruct("Row", [(f"c{index}", Any) for index in range(len(CELLS))])
ROW = Row(*(value for _, value in CELLS.values()))
BATCH = pa.RecordBatch.from_arrays(
    [pa.array([value], arrow_type(column_type)) for column_type, value in CELLS.values()], schema=arrow_schema(SCHEMA)
)


def value_of(sql: str) -> Any:
    expression = compile_expression(sql, SCHEMA)
    value = expression.row(ROW)
    [batched] = expression.batch(BATCH).to_pylist()
    assert (type(batched), repr(batched)) == (type(value), repr(value)) or batched == value
    return value


def type_of(sql: str) -> str:
    return str(compile_expression(sql, SCHEMA).type)


VECTORS: dict[str, list[tuple[str, Any]]] = {
    "three-valued logic": [
        ("yes AND unknown", None),
        ("unknown AND no", False),
        ("no OR unknown", None),
        ("unknown OR yes", True),
        ("NOT unknown", None),
        ("unknown IS TRUE", False),
        ("unknown IS NOT TRUE", True),
        ("yes AND NULL", None),
        ("NULL = NULL", None),
    ],
    "null tests": [
        ("none IS NULL", True),
        ("i IS NOT NULL", True),
        ("none IS DISTINCT FROM NULL", False),
        ("none IS NOT DISTINCT FROM i", False),
        ("i IS DISTINCT FROM -7.0", False),
        ("COALESCE(none, i, 1)", -7),
        ("COALESCE(NULL, NULL)", None),
        ("NULLIF(i, -7)", None),
        ("NULLIF(i, none)", -7),
    ],
    "comparisons across types": [
        ("i < 1.5", True),
        ("amount = 100.5", True),
        ("amount > 100", True),
        ("f = 0.1", True),  # a DECIMAL beside a FLOAT is a FLOAT
        ("d = 0.1", True),
        ("f = d", False),  # a FLOAT beside a DOUBLE is a DOUBLE
        ("big = 9223372036854775807.0", True),
        ("yes = 1", True),
        ("name > 'Ann'", True),
        ("'\ue000' < '\U0001f600'", True),  # by code point, not by UTF-16 unit
        ("raw = X'4100'", True),
        ("key = '80000000-0000-0000-0000-00000000000A'", True),
        ("key > CAST('7fffffff-ffff-ffff-ffff-ffffffffffff' AS UUID)", True),
        ("at > TIMESTAMP '2024-02-29'", True),
        ("at > '2024-02-29 12:30:15.12'", False),
        ("at > day", True),
        ("day = '2024-02-29'", True),
        ("clock < TIME '12:30:16'", True),
    ],
    "lists and ranges": [
        ("i IN (1, -7)", True),
        ("i IN (1, NULL)", None),
        ("i NOT IN (1, NULL)", None),
        ("i NOT IN (-7, NULL)", False),
        ("none IN (1)", None),
        ("i IN (none, -7)", True),
        ("name IN ('a', nobody)", None),
        ("i BETWEEN -7 AND 0", True),
        ("i BETWEEN none AND -8", False),
        ("i BETWEEN none AND 0", None),
        ("i NOT BETWEEN 0 AND 1.5", True),
    ],
    "patterns": [
        ("name LIKE 'Ann%'", True),
        ("name LIKE 'ann%'", False),
        ("name ILIKE 'ANN%'", True),
        ("name LIKE '___\\_%'", False),  # a backslash is itself
        ("name LIKE 'Ann$_50$%' ESCAPE '$'", True),
        ("name LIKE '%$_$_%' ESCAPE '$'", False),
        ("name NOT LIKE '%5_%'", False),
        ("nobody LIKE '%'", None),
        ("'a\nb' LIKE 'a_b'", True),
        ("'aXbXc' LIKE 'a%X%c'", True),
        ("'ab' LIKE 'ab%b'", False),  # both ends may not share a character
        ("'ẞ' ILIKE 'ß'", True),
    ],
    "conditionals": [
        ("CASE WHEN unknown THEN 1 WHEN yes THEN 2 ELSE 3 END", 2),
        ("CASE i WHEN 1 THEN 'a' WHEN -7 THEN 'b' END", "b"),
        ("CASE none WHEN NULL THEN 1 ELSE 2 END", 2),
        ("CASE WHEN no THEN 1 END", None),
        ("CASE WHEN yes THEN 1 ELSE 2.5 END", Decimal("1.0")),
        ("GREATEST(i, none, 3)", 3),
        ("LEAST(none, NULL)", None),
    ],
    "arithmetic": [
        ("i // 2", -3),
        ("i % 2", -1),
        ("i / 2", -3.5),
        ("i / 0", float("-inf")),
        ("d % 0 = d % 0", True),  # NaN equals NaN
        ("d % 0 > 1e308", True),
        ("-i", 7),
        ("amount + 1", Decimal("101.50")),
        ("amount * 0.5", Decimal("50.250")),
        ("amount % 3", Decimal("1.50")),
        ("amount / 2", 50.25),
        ("0.1 + 0.2 = 0.3", True),
        ("0.1e0 + 0.2e0 = 0.3e0", False),
        ("f * 3", 0.30000001192092896),
        ("ABS(i)", 7),
        ("FLOOR(-amount)", Decimal("-101")),
        ("CEIL(i)", -7.0),
        ("ROUND(2.5e0)", 3.0),
        ("ROUND(amount, -1)", Decimal("100")),
        ("ROUND(15, -1)", 20),
    ],
    "text": [
        ("name || '!' || i", "Ann_50%!-7"),
        ("name || nobody", None),
        ("CONCAT(name, nobody, 1.50, yes)", "Ann_50%1.50true"),
        ("LOWER('ÀİΣ')", "àiσ"),
        ("UPPER('straße')", "STRAẞE"),
        ("LENGTH('e\u0301')", 2),
        ("TRIM('\u00a0 a\t ')", "a\t"),
        ("LTRIM(name, 'An')", "_50%"),
        ("RTRIM('a  ')", "a"),
        ("SUBSTRING(name, 5, 2)", "50"),
        ("SUBSTRING(name, -3)", "50%"),
        ("SUBSTRING(name, 0, 2)", "A"),
        ("SUBSTRING(name, 3, -2)", "An"),
        ("REPLACE(name, '', 'x')", "Ann_50%"),
        ("STARTS_WITH(name, 'Ann')", True),
        ("CONTAINS(name, '_5')", True),
    ],
    "dates": [
        ("EXTRACT(YEAR FROM at)", 2024),
        ("EXTRACT(DOW FROM DATE '2021-01-03')", 0),
        ("EXTRACT(WEEK FROM DATE '2021-01-03')", 53),
        ("DATE_PART('second', clock)", 15),
        ("EXTRACT(MILLISECOND FROM at)", 15120),
        ("EXTRACT(HOUR FROM day)", 0),
        ("DATE_TRUNC('month', at)", dt.datetime(2024, 2, 1, tzinfo=dt.UTC)),
        ("DATE_TRUNC('week', day)", dt.datetime(2024, 2, 26, tzinfo=dt.UTC)),
    ],
    "casts": [
        ("CAST(2.5 AS INT)", 3),
        ("CAST(2.5e0 AS INT)", 2),
        ("amount::INT", 101),
        ("TRY_CAST(big AS INT)", None),
        ("CAST(amount AS DECIMAL(5,1))", Decimal("100.5")),
        ("CAST('1.005' AS DECIMAL(4,2))", Decimal("1.01")),
        ("CAST(1.005e0 AS DECIMAL(4,2))", Decimal("1.00")),
        ("CAST(1e16 AS TEXT)", "1e+16"),
        ("CAST(f AS TEXT)", "0.1"),
        ("CAST(at AS TEXT)", "2024-02-29 12:30:15.12"),
        ("CAST(at AS DATE)", dt.date(2024, 2, 29)),
        ("CAST(at AS TIME)", dt.time(12, 30, 15, 120000)),
        ("CAST(raw AS TEXT)", "A\\x00"),
        ("CAST(doc AS TEXT)", '{"a": 1}'),
        ("CAST(key AS TEXT)", str(ID)),
        ("'\\x41b'::BYTES", b"Ab"),
        ("CAST(NULL AS INT)", None),
        ("yes::INT + 1", 2),
    ],
}


@pytest.mark.parametrize("topic", VECTORS)
def test_values(topic: str) -> None:
    found = [(sql, value_of(sql)) for sql, _ in VECTORS[topic]]
    assert [(sql, repr(value)) for sql, value in found] == [(sql, repr(value)) for sql, value in VECTORS[topic]]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("small + 1", "SMALLINT"),
        ("small + 40000", "INT"),
        ("i + 3000000000", "BIGINT"),
        ("1 + 1", "INT"),
        ("i / 2", "DOUBLE"),
        ("f / 2", "FLOAT"),
        ("f + amount", "FLOAT"),
        ("amount + 1", "DECIMAL(13,2)"),
        ("amount + big", "DECIMAL(22,2)"),
        ("amount * amount", "DECIMAL(18,4)"),
        ("wide + wide", "DECIMAL(38,10)"),
        ("COALESCE(small, 1)", "SMALLINT"),
        ("CASE WHEN yes THEN 1 WHEN no THEN small END", "INT"),
        ("CASE WHEN yes THEN 1 ELSE small END", "SMALLINT"),
        ("COALESCE(day, at)", "TIMESTAMP"),
        ("LENGTH(name)", "BIGINT"),
        ("ROUND(amount, 1)", "DECIMAL(12,1)"),
        ("NULL", "None"),
    ],
)
def test_result_types(sql: str, expected: str) -> None:
    assert type_of(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "big + 1",
        "small * 2",
        "-(small) - 2",
        "i // 0",
        "i % 0",
        "amount % 0",
        "d // 0",
        "wide * 10",
        "CAST(big AS INT)",
        "CAST(amount AS DECIMAL(3,2))",
        "CAST(1e300 AS FLOAT)",
        "SUBSTRING(name, big)",
    ],
)
def test_a_value_that_cannot_be_computed_is_an_error_naming_the_expression(sql: str) -> None:
    expression = compile_expression(sql, SCHEMA)
    for compute in (lambda: expression.row(ROW), lambda: expression.batch(BATCH)):
        with pytest.raises(ExpressionError) as caught:
            compute()
        assert expression.sql in caught.value.message


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("no AND big + 1 > 0", False),
        ("yes OR big + 1 > 0", True),
        ("CASE WHEN no THEN big + 1 ELSE 0 END", 0),
        ("COALESCE(i, big + 1)", -7),
        ("CASE i WHEN -7 THEN 1 WHEN big + 1 THEN 2 END", 1),
    ],
)
def test_an_error_in_a_part_that_is_not_reached_does_not_happen(sql: str, expected: Any) -> None:
    assert value_of(sql) == expected


@pytest.mark.parametrize("sql", ["unknown AND big + 1 > 0", "big + 1 > 0 AND no", "COALESCE(none, big + 1)"])
def test_an_error_in_a_part_that_is_reached_happens(sql: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(sql, SCHEMA).row(ROW)


@pytest.mark.parametrize(
    ("sql", "error", "words"),
    [
        ("amuont > 1", UnknownColumn, ["amuont", "app.orders", "amount"]),
        ("other.i > 1", UnknownColumn, ["other.i"]),
        ("NOW() > at", UnsupportedSql, ["NOW()", "COALESCE"]),
        ("RANDOM() > 1", UnsupportedSql, ["RANDOM()"]),
        ("CURRENT_TIMESTAMP > at", UnsupportedSql, ["CURRENT_TIMESTAMP"]),
        ("SUM(i) > 1", UnsupportedSql, ["SUM(i)", "more than one row"]),
        ("ROW_NUMBER() OVER () = 1", UnsupportedSql, ["ROW_NUMBER()"]),
        ("i IN (SELECT 1)", UnsupportedSql, ["IN takes a list"]),
        ("EXISTS(SELECT 1)", UnsupportedSql, ["subquery"]),
        ("doc -> 'a' = 1", UnsupportedSql, ["doc -> "]),
        ("doc = '{}'", UnsupportedSql, ["JSON", "CAST to TEXT"]),
        ("doc = doc", UnsupportedSql, ["JSON", "CAST to TEXT"]),
        ("name ~ 'a'", UnsupportedSql, ["REGEXP_MATCHES(name, 'a')"]),
        ("at - at", TypeMismatch, ["needs numbers", "TIMESTAMP"]),
        ("CAST(name AS INT)", UnsupportedSql, ["TEXT", "INT"]),
        ("CAST(i AS HUGEINT)", UnsupportedSql, ["INT128", "SMALLINT"]),
        ("i > 9223372036854775808", UnsupportedSql, ["9223372036854775808", "BIGINT"]),
        ("name LIKE 'a$' ESCAPE '$'", SqlSyntaxError, ["ends with its escape"]),
        ("name LIKE nobody ESCAPE '$'", UnsupportedSql, ["literal"]),
        ("name = 1", TypeMismatch, ["name, 1", "TEXT and INT"]),
        ("i = 'seven'", TypeMismatch, ["'seven'", "INT"]),
        ("day = '29.2.2024'", TypeMismatch, ["YYYY-MM-DD"]),
        ("day = '2024/2/29'", TypeMismatch, ["YYYY-MM-DD"]),
        ("i = '1e3'", TypeMismatch, ["a number from -2147483648"]),
        ("at = '2024-02-29 12:00 Europe/Berlin'", TypeMismatch, ["offset like +02:00"]),
        ("at = '0001-01-01 00:00+02:00'", TypeMismatch, ["0001-01-01"]),
        ("i AND yes", TypeMismatch, ["a condition needs BOOLEAN", "i is INT"]),
        ("CAST(amount AS DECIMAL(38,38)) + wide = CAST(wide AS DECIMAL(38,0))", TypeMismatch, ["38"]),
        ("DATE_TRUNC('hour', day) = day", UnsupportedSql, ["DATE has no hour"]),
        ("ROUND(d, 1, 2)", UnsupportedSql, ["ROUND(d, 1, 2)", "arguments"]),
        ("SUBSTRING(name)", UnsupportedSql, ["arguments"]),
        ("i = 1 = yes", SqlSyntaxError, ["parentheses"]),
        ("i >", SqlSyntaxError, ["i >"]),
        ("i; i", SqlSyntaxError, ["one expression"]),
        ("", SqlSyntaxError, []),
        ("i > ?", TypeMismatch, ["no parameter 1"]),
        ("i > :limit", UnsupportedSql, ["named parameters"]),
    ],
)
def test_what_is_refused_says_why(sql: str, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        compile_expression(sql, SCHEMA)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_filter_is_boolean() -> None:
    assert compile_filter("amount > 100 AND name IS NOT NULL", SCHEMA).row(ROW) is True
    with pytest.raises(TypeMismatch, match=r"amount \+ 1 is DECIMAL\(13,2\)"):
        compile_filter("amount + 1", SCHEMA)


@pytest.mark.parametrize(
    "sql",
    [
        "(" * 200 + "i" + ")" * 200,
        "LOWER(" * 200 + "name" + ")" * 200,
        "NOT " * 5000 + "yes",
        "CASE WHEN yes THEN " * 200 + "1" + " END" * 200,
        "i" + " + i" * 2000,
        "name = '" + "x" * 100_000 + "'",
    ],
)
def test_what_is_too_deep_or_too_long_is_refused(sql: str) -> None:
    with pytest.raises(TooLarge):
        parse_expression(sql)


def test_nesting_up_to_the_limit_and_long_chains_work() -> None:
    assert value_of("CASE WHEN yes THEN " * 20 + "i" + " END" * 20) == -7
    assert value_of("COALESCE(none, " * 20 + "i" + ")" * 20) == -7
    assert value_of("(no OR (yes AND " * 10 + "yes" + "))" * 10) is True
    assert value_of(" AND ".join(["i = -7"] * 2000)) is True
    assert value_of("i IN (" + ", ".join(str(number) for number in range(-3000, 3000)) + ")") is True


def test_the_canonical_text_is_stable_and_means_the_same() -> None:
    written = (
        "  NOT(I<=-8) and Orders.NAME not like 'a$_%' escape '$' /* why */ and raw != x'00' and at::date is not null"
    )
    first = compile_expression(written, SCHEMA)
    again = compile_expression(first.sql, SCHEMA)
    assert first.sql == again.sql
    assert "why" not in first.sql
    assert first.columns == again.columns == {"i", "name", "raw", "at"}
    assert first.row(ROW) is again.row(ROW) is True


def test_parameters_are_numbered_and_typed() -> None:
    decimal = CELLS["amount"][0]
    expression = compile_expression("amount > ? AND name = ?", SCHEMA, param_types=[decimal, CELLS["name"][0]])
    assert expression.sql == "amount > $1 AND name = $2"
    assert expression.row(ROW, (Decimal("99.00"), "Ann_50%")) is True
    assert expression.batch(BATCH, (Decimal("99.00"), None)).to_pylist() == [None]
    swapped = compile_expression("? || $1", SCHEMA, param_types=[CELLS["name"][0]])
    assert swapped.row(ROW, ("a",)) == "aa"
    always_null = compile_expression("COALESCE(?, 1)", SCHEMA, param_types=[None])
    assert always_null.row(ROW, (None,)) == 1


def test_parameters_count_in_the_order_of_the_text() -> None:
    text = CELLS["name"][0]
    sql = "CASE ? WHEN ? THEN ? ELSE CONCAT(?, ?) END"
    assert compile_expression(sql, SCHEMA, param_types=[text] * 5).row(ROW, ("a", "b", "c", "d", "e")) == "de"
    with pytest.raises(UnsupportedSql, match="number the parameters"):
        compile_expression("TRIM(BOTH ? FROM ?)", SCHEMA, param_types=[text, text])


def test_a_syntax_tree_is_compiled_without_being_changed() -> None:
    tree = parse_expression("i > ? AND CAST(raw AS BYTES) = raw")
    before = tree.copy()
    compile_expression(tree, SCHEMA, param_types=[CELLS["i"][0]])
    assert tree == before
    assert isinstance(tree, exp.And)


def test_a_batch_is_read_by_column_name() -> None:
    expression = compile_expression("i < 0 AND at > TIMESTAMP '2024-01-01'", SCHEMA)
    naive = pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us"))
    some = pa.record_batch({"at": naive, "i": pa.array([-1], pa.int32())})
    assert expression.batch(some).to_pylist() == [True]
    with pytest.raises(TypeMismatch, match="no column 'at'"):
        expression.batch(some.select(["i"]))
    with pytest.raises(TypeMismatch, match="int64, expected int32"):
        expression.batch(pa.record_batch({"at": naive, "i": pa.array([1], pa.int64())}))


def test_constants_and_nulls_fill_a_batch() -> None:
    three = pa.record_batch({"i": pa.array([1, 2, 3], pa.int32())})
    assert compile_expression("1 = 1", SCHEMA).batch(three).to_pylist() == [True, True, True]
    assert compile_expression("NULL", SCHEMA).batch(three).type == pa.null()
    assert compile_expression("i > 5", SCHEMA).batch(three.slice(0, 0)).to_pylist() == []
    listed = compile_expression("COALESCE(NULL, CAST('80000000-0000-0000-0000-00000000000a' AS UUID))", SCHEMA)
    assert listed.batch(three).to_pylist() == [ID, ID, ID]


def test_the_arrow_types_are_the_documented_ones() -> None:
    found = {str(field.type) for field in arrow_schema(SCHEMA)}
    assert found == {
        *("bool", "int16", "int32", "int64", "float", "double", "decimal128(12, 2)", "decimal128(38, 10)", "string"),
        *("binary", "timestamp[us, tz=UTC]", "date32[day]", "time64[us]", "extension<arrow.uuid>"),
    }
