"""SELECT through DuckDB: names, `_seq`, types, parameters, errors, limits, threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import sqlglot

from tablecast.codec.result import Result
from tablecast.errors import (
    DatabaseClosed,
    ExpressionError,
    InvalidRequest,
    TablecastError,
    Timeout,
    TooLarge,
    TypeMismatch,
    UnknownColumn,
    UnknownTable,
    UnsupportedSql,
)
from tablecast.sql.query import QueryEngine
from tablecast.sql.query_bind import bind_select
from tablecast.sql.query_types import TYPE_MARK

INSTANT = pa.timestamp("us", tz="UTC")
ORDERS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "customer": pa.array(["ann", "bob", "ann"]),
        "amount": pa.array([Decimal("1.50"), Decimal("20.00"), None], pa.decimal128(12, 2)),
        "_seq": pa.array([7, 8, 9], pa.int64()),
    }
)
CUSTOMERS = pa.table({"customer": ["ann", "bob"], "city": ["Oslo", "Rome"], "_seq": pa.array([1, 2], pa.int64())})
OTHER_ORDERS = pa.table({"id": pa.array([1, 2], pa.int64()), "customer": ["x", "y"]})
TABLES = {
    ("app", "orders"): ORDERS,
    (None, "orders"): ORDERS,
    (None, "customers"): CUSTOMERS,
    ("old", "orders"): OTHER_ORDERS,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    engine = QueryEngine(memory_limit_mb=64)
    yield engine
    engine.close()


def run(engine: QueryEngine, sql: str, params: Sequence[Any] = (), tables: Any = TABLES) -> pa.Table:
    return engine.run(sqlglot.parse_one(sql, dialect="duckdb"), tables, params)


def rows(engine: QueryEngine, sql: str, params: Sequence[Any] = (), tables: Any = TABLES) -> list[tuple[Any, ...]]:
    return Result.of_arrow(run(engine, sql, params, tables)).rows


# --- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM app.orders WHERE customer = 'bob'",
        "SELECT orders.id FROM app.orders WHERE orders.customer = 'bob'",
        "SELECT app.orders.id FROM app.orders WHERE app.orders.customer = 'bob'",
        "SELECT o.id FROM app.orders AS o WHERE o.customer = 'bob'",
        "SELECT id FROM orders WHERE orders.customer = 'bob'",
        "SELECT id FROM (SELECT * FROM app.orders) AS s WHERE s.customer = 'bob'",
        "WITH c AS (SELECT * FROM app.orders) SELECT id FROM c WHERE customer = 'bob'",
        "WITH orders AS (SELECT * FROM orders WHERE customer = 'bob') SELECT id FROM orders",
        "SELECT id FROM app.orders WHERE id IN (SELECT max(id) FROM app.orders AS i WHERE i.id < 3)",
        "SELECT id FROM app.orders o WHERE EXISTS (SELECT 1 FROM customers c WHERE c.customer = o.customer AND city = 'Rome')",
        "FROM app.orders SELECT id WHERE customer = 'bob'",
        "SELECT a.id FROM app.orders a JOIN app.orders b ON a.id = b.id AND b.customer = 'bob'",
        "SELECT app.orders.id FROM app.orders JOIN old.orders ON app.orders.id = old.orders.id WHERE old.orders.customer = 'y'",
        "SELECT id FROM app.orders WHERE customer = 'bob' UNION SELECT id FROM old.orders WHERE customer = 'y'",
    ],
)
def test_tables_by_every_name(engine: QueryEngine, sql: str) -> None:
    assert rows(engine, sql) == [(2,)]


def test_recursive_cte(engine: QueryEngine) -> None:
    sql = "WITH RECURSIVE r AS (SELECT min(id) AS n FROM orders UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT sum(n) FROM r"
    assert rows(engine, sql) == [(15,)]


def test_a_cte_is_visible_only_in_its_own_scope(engine: QueryEngine) -> None:
    with pytest.raises(UnknownTable, match="'hidden'"):
        run(engine, "SELECT * FROM (WITH hidden AS (SELECT 1) SELECT * FROM hidden), hidden")


def test_the_given_tree_is_not_changed(engine: QueryEngine) -> None:
    tree = sqlglot.parse_one("SELECT *, _seq FROM app.orders", dialect="duckdb")
    before = tree.sql("duckdb")
    engine.run(tree, TABLES)
    assert tree.sql("duckdb") == before


def test_a_tree_is_bound_again_when_its_tables_have_other_columns(engine: QueryEngine) -> None:
    tree = sqlglot.parse_one("SELECT *, 1 AS _seq FROM orders", dialect="duckdb")
    assert engine.run(tree, {(None, "orders"): OTHER_ORDERS}).column_names == ["id", "customer", "_seq"]
    assert engine.run(tree, {(None, "orders"): ORDERS}).column_names == ["id", "customer", "amount", "_seq"]


# --- _seq ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM orders", "id customer amount"),
        ("SELECT orders.* FROM orders", "id customer amount"),
        ("SELECT app.orders.* FROM app.orders WHERE _seq > 0", "id customer amount"),
        ("SELECT _seq FROM orders", "_seq"),
        ("SELECT *, _seq FROM orders", "id customer amount _seq"),
        ("SELECT *, orders._seq AS s FROM orders", "id customer amount s"),
        ("SELECT _seq, o.* FROM orders o", "_seq id customer amount"),
        ("SELECT * FROM orders ORDER BY _seq", "id customer amount"),
        ("SELECT * FROM orders WHERE _seq > 7", "id customer amount"),
        ("SELECT * EXCLUDE (id) FROM orders WHERE _seq > 7", "customer amount"),
        ("SELECT * EXCLUDE (_seq) FROM orders", "id customer amount"),
        ("SELECT * REPLACE (_seq AS id) FROM orders", "id customer amount"),
        ("SELECT * FROM orders JOIN customers USING (customer)", "id customer amount city"),
        ("SELECT * FROM orders NATURAL JOIN customers", "id customer amount city"),
        ("SELECT * FROM orders o JOIN customers c USING (customer) WHERE o._seq > c._seq", "id customer amount city"),
        ("SELECT * FROM orders, customers WHERE orders._seq = 7", "id customer amount customer city"),
        ("SELECT o.*, c._seq FROM orders o, customers c", "id customer amount _seq"),
        ("SELECT * FROM orders SEMI JOIN customers ON orders.customer = customers.customer AND customers._seq > 0", "id customer amount"),  # noqa: E501
        ("SELECT * FROM (SELECT id, _seq FROM orders)", "id _seq"),
        ("SELECT * FROM (SELECT *, _seq FROM orders) s", "id customer amount _seq"),
        ("SELECT * FROM (SELECT * FROM orders WHERE _seq > 1) s", "id customer amount"),
        ("SELECT * FROM (SELECT customer, _seq FROM orders) s JOIN customers c USING (customer)", "customer _seq city"),
        ("WITH c AS (SELECT * FROM orders WHERE _seq > 1) SELECT * FROM c", "id customer amount"),
        ("WITH c AS (SELECT *, _seq FROM orders) SELECT * FROM c", "id customer amount _seq"),
        ("SELECT *, 1 AS _seq FROM orders", "id customer amount _seq"),
        ("SELECT * FROM orders WHERE _seq = 7 UNION ALL SELECT * FROM orders WHERE _seq = 8", "id customer amount"),
        ("SELECT columns('c.*') FROM orders", "customer"),
    ],
)  # fmt: skip
def test_star_hides_seq_unless_named(engine: QueryEngine, sql: str, columns: str) -> None:
    assert run(engine, sql).column_names == columns.split()


def test_count_star_with_seq(engine: QueryEngine) -> None:
    assert rows(engine, "SELECT count(*), max(_seq) FROM orders WHERE _seq >= 8") == [(2, 9)]
    assert rows(engine, "SELECT count(*) FROM orders") == [(3,)]


def test_natural_join_does_not_join_on_seq(engine: QueryEngine) -> None:
    assert len(rows(engine, "SELECT * FROM orders NATURAL JOIN customers")) == 3
    with pytest.raises(UnsupportedSql, match="write the columns out"):
        run(engine, "SELECT *, orders._seq FROM orders NATURAL JOIN customers")


def test_seq_of_a_table_without_it(engine: QueryEngine) -> None:
    with pytest.raises(UnknownColumn, match="_seq"):
        run(engine, "SELECT _seq FROM old.orders")


# --- types ---------------------------------------------------------------------------------------------------

WHEN = datetime(2024, 5, 1, 12, 30, 0, 123456, tzinfo=UTC)
TYPED = pa.table(
    [
        pa.array([True, None]),
        pa.array([-(2**15), None], pa.int16()),
        pa.array([2**31 - 1, None], pa.int32()),
        pa.array([2**63 - 1, None], pa.int64()),
        pa.array([1.5, None], pa.float32()),
        pa.array([0.1, None], pa.float64()),
        pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2)),
        pa.array(["Grüße 😀", None]),
        pa.array([b"\x00\xff", None]),
        pa.array(['{"a": [1, 2]}', None]),
        pa.array([WHEN, None], INSTANT),
        pa.array([date(1969, 12, 31), None], pa.date32()),
        pa.array([time(23, 59, 59, 999999), None], pa.time64("us")),
        pa.array([UUID(int=2**127 + 5), None], pa.uuid()),
    ],
    schema=pa.schema(
        [
            *(("b", pa.bool_()), ("i2", pa.int16()), ("i4", pa.int32()), ("i8", pa.int64())),
            *(("f4", pa.float32()), ("f8", pa.float64()), ("d", pa.decimal128(38, 2)), ("s", pa.string())),
            *(("y", pa.binary()), pa.field("j", pa.string(), metadata={TYPE_MARK: b"JSON"})),
            *(("ts", INSTANT), ("dt", pa.date32()), ("tm", pa.time64("us")), ("u", pa.uuid())),
        ]
    ),
)


def test_every_type_comes_out_as_it_went_in(engine: QueryEngine) -> None:
    found = run(engine, "SELECT * FROM t", tables={(None, "t"): TYPED})
    assert found.schema.types == TYPED.schema.types
    assert found.to_pylist() == TYPED.to_pylist()
    assert found.schema.field("j").metadata == {TYPE_MARK: b"JSON"}


def test_uuid_as_text(engine: QueryEngine) -> None:
    text = pa.table({"u": [str(UUID(int=5))]})
    assert rows(engine, "SELECT u FROM t WHERE u = $1", [UUID(int=5)], {(None, "t"): text}) == [(str(UUID(int=5)),)]


def test_a_timestamp_is_an_instant(engine: QueryEngine) -> None:
    tables = {(None, "t"): TYPED}
    assert rows(engine, "SELECT ts + INTERVAL 1 DAY FROM t WHERE b", (), tables) == [(WHEN + timedelta(days=1),)]
    assert rows(engine, "SELECT date_trunc('hour', ts) FROM t WHERE b", (), tables) == [
        (datetime(2024, 5, 1, 12, tzinfo=UTC),)
    ]
    elsewhere = WHEN.astimezone(timezone(timedelta(hours=9)))
    for same in (WHEN, elsewhere, WHEN.replace(tzinfo=None)):
        assert rows(engine, "SELECT s FROM t WHERE ts = $1", [same], tables) == [("Grüße 😀",)]
    assert rows(engine, "SELECT ts::TIMESTAMPTZ, ts::TIMESTAMP_NS, ts::TIMESTAMP_S FROM t WHERE b", (), tables) == [
        (WHEN, WHEN, WHEN.replace(microsecond=0))
    ]


@pytest.mark.parametrize(
    ("expression", "kind", "value"),
    [
        ("sum(id)", pa.decimal128(38, 0), 6),
        ("sum(id) * 20000000000000000000", pa.decimal128(38, 0), 120 * 10**18),
        ("-sum(id)", pa.decimal128(38, 0), -6),
        ("sum(id) FILTER (WHERE id > 9)", pa.decimal128(38, 0), None),
        ("18446744073709551615::UBIGINT", pa.decimal128(38, 0), 2**64 - 1),
        ("max(id)::UTINYINT", pa.int16(), 3),
        ("max(id)::UINTEGER", pa.int64(), 3),
        ("count(*) > 2", pa.bool_(), True),
        ("NULL", pa.string(), None),
        ("'a'::ENUM('a', 'b')", pa.string(), "a"),
        ("avg(amount)", pa.float64(), 10.75),
        ("sum(amount)", pa.decimal128(38, 2), Decimal("21.50")),
        ("list(id ORDER BY id)", pa.list_(pa.int64()), [1, 2, 3]),
        ("[count(*) > 2]", pa.list_(pa.bool_()), [True]),
        ("{'at': TIMESTAMP '2024-01-01'}", pa.struct([("at", INSTANT)]), {"at": datetime(2024, 1, 1, tzinfo=UTC)}),
    ],
)  # fmt: skip
def test_results_in_plain_types(engine: QueryEngine, expression: str, kind: Any, value: Any) -> None:
    found = run(engine, f"SELECT {expression} AS x FROM orders")
    assert found.schema.field("x").type == kind
    answer = Result.of_arrow(found).scalar()
    assert answer == value
    assert type(answer) is type(value)


@pytest.mark.parametrize("expression", ["'101'::BIT", "1::UHUGEINT", "[sum(id)]"])
def test_types_that_arrow_has_no_plain_form_for(engine: QueryEngine, expression: str) -> None:
    with pytest.raises(UnsupportedSql, match=r"column 'x' .*cast it to TEXT"):
        run(engine, f"SELECT {expression} AS x FROM orders")


def test_json_made_by_the_query(engine: QueryEngine) -> None:
    assert rows(engine, "SELECT json_object('n', id) FROM orders WHERE id = 1") == [({"n": 1},)]
    assert rows(engine, "SELECT j->>'$.a[1]' FROM t WHERE b", (), {(None, "t"): TYPED}) == [("2",)]


def test_two_columns_of_one_name(engine: QueryEngine) -> None:
    found = run(engine, "SELECT id, customer AS id FROM orders WHERE id = 2")
    assert found.column_names == ["id", "id"]
    assert Result.of_arrow(found).rows == [(2, "bob")]


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM t", "SELECT *, _seq FROM t", "SELECT a.* FROM t a, t b WHERE a.id = b.id"]
)
def test_readers_are_read_like_tables(engine: QueryEngine, sql: str) -> None:
    table = pa.table({"id": [1, 2, 3], "ts": pa.array([0, 1, 2], INSTANT), "_seq": [4, 5, 6]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=2))
    by_reader = run(engine, sql, tables={(None, "t"): reader})
    by_table = run(engine, sql, tables={(None, "t"): table})
    assert by_reader.schema == by_table.schema
    assert sorted(by_reader.to_pylist(), key=str) == sorted(by_table.to_pylist(), key=str)


def test_no_rows(engine: QueryEngine) -> None:
    found = run(engine, "SELECT * FROM orders WHERE id > 100")
    assert found.num_rows == 0
    assert found.schema.types == ORDERS.schema.types[:3]


# --- parameters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -(2**63), 2**63, -(2**127) + 1, 1.5, Decimal("-1.20"), "", "it's", "\x00 nul", "ü😀\U0010ffff"),
        *(b"", b"\x00\xff", WHEN, date(2024, 2, 29), time(1, 2, 3, 4), UUID(int=1), [1, 2], "'; DROP TABLE t; --"),
    ],
)  # fmt: skip
def test_a_parameter_is_its_value(engine: QueryEngine, value: Any) -> None:
    assert rows(engine, "SELECT $1", [value]) == [(value,)]


def test_parameters_by_number(engine: QueryEngine) -> None:
    assert rows(engine, "FROM orders SELECT $2 || customer WHERE id = $1", [1, "dear "]) == [("dear ann",)]
    assert rows(engine, "SELECT $1 + $1 + $2", [1, 5]) == [(7,)]


@pytest.mark.parametrize("params", [[], [1, 2, 3]])
def test_the_number_of_parameters_must_fit(engine: QueryEngine, params: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="arameter"):
        run(engine, "SELECT $1, $2", params)


@pytest.mark.parametrize("value", [2**200, "\ud800", object()])
def test_values_that_are_no_sql_values(engine: QueryEngine, value: Any) -> None:
    with pytest.raises(TypeMismatch):
        run(engine, "SELECT $1", [value])


# --- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error", "text"),
    [
        ("SELECT nope FROM orders", UnknownColumn, 'Referenced column "nope" not found'),
        (
            "SELECT orders.nope FROM orders",
            UnknownColumn,
            'Table "orders" does not have a column named "nope"',
        ),
        ("SELECT z.id FROM orders", UnknownTable, 'Referenced table "z" not found'),
        ("SELECT * FROM app.nope", UnknownTable, "there is no table 'app.nope'"),
        ("SELECT nope(id) FROM orders", UnsupportedSql, "Function with name nope does not exist"),
        ("SELECT customer - 1 FROM orders", TypeMismatch, "(VARCHAR, INTEGER"),
        ("SELECT customer::INT FROM orders", ExpressionError, "'ann'"),
        ("SELECT 9223372036854775807 + id FROM orders", ExpressionError, "Overflow"),
        ("SELECT (SELECT id FROM orders)", ExpressionError, "More than one row"),
        ("SELECT id, count(*) FROM orders", InvalidRequest, "GROUP BY"),
        ("SELECT customer FROM orders, customers", InvalidRequest, "Ambiguous"),
        ("SELECT id FROM orders LIMIT -1", InvalidRequest, "cannot be negative"),
        ("SELECT error('as asked')", ExpressionError, "as asked"),
    ],
)
def test_errors_are_ours(engine: QueryEngine, sql: str, error: type[TablecastError], text: str) -> None:
    with pytest.raises(error) as caught:
        run(engine, sql)
    assert text in caught.value.message
    assert type(caught.value) is error
    for noise in ("LINE 1", "table 0", "Candidate functions", 'Use "SET', "Error:", "\n"):
        assert noise not in caught.value.message


def test_an_error_names_its_culprit(engine: QueryEngine) -> None:
    with pytest.raises(UnknownColumn) as caught:
        run(engine, "SELECT nope FROM orders")
    assert caught.value.details == {"column": "nope"}


# --- limits --------------------------------------------------------------------------------------------------

RUNAWAY = "SELECT count(*) FROM range(10000000000) a, range(10000) b WHERE a.range + b.range = 7"
ENDLESS = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"


@pytest.mark.parametrize("sql", [RUNAWAY, ENDLESS])
def test_a_runaway_query_is_interrupted(sql: str) -> None:
    engine = QueryEngine(memory_limit_mb=64, timeout_s=0.2)
    with pytest.raises(Timeout, match=r"0\.2 s") as caught:
        run(engine, sql)
    assert caught.value.details == {"limit_s": 0.2}
    assert rows(engine, "SELECT count(*) FROM orders") == [(3,)]
    engine.close()


def test_a_timeout_hits_only_the_query_that_is_late() -> None:
    engine = QueryEngine(timeout_s=0.3)
    done = threading.Event()

    def short_queries() -> int:
        count = 0
        while not done.is_set():
            assert rows(engine, "SELECT sum(id) FROM orders") == [(6,)]
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        shorts = pool.submit(short_queries)
        try:
            with pytest.raises(Timeout):
                run(engine, RUNAWAY)
        finally:
            done.set()
        assert shorts.result() > 0
    engine.close()


def test_memory_is_limited() -> None:
    engine = QueryEngine(memory_limit_mb=32)
    with pytest.raises(TooLarge, match="32 MB"):
        run(
            engine,
            "SELECT range, md5(range::TEXT) AS h FROM range(5000000) ORDER BY h LIMIT 1 OFFSET 4000000",
        )
    assert rows(engine, "SELECT count(*) FROM orders") == [(3,)]
    engine.close()


def test_threads_do_not_see_each_others_tables(engine: QueryEngine) -> None:
    tree = sqlglot.parse_one("SELECT min(id), max(id), count(*) FROM t", dialect="duckdb")

    def query(i: int) -> bool:
        table = pa.table({"id": pa.array([i] * (i + 1), pa.int64())})
        return engine.run(tree, {(None, "t"): table}).to_pylist() == [
            {"min(id)": i, "max(id)": i, "count_star()": i + 1}
        ]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(query, range(100)))


def test_closed() -> None:
    engine = QueryEngine()
    rows(engine, "SELECT 1")
    engine.close()
    engine.close()
    with pytest.raises(DatabaseClosed):
        run(engine, "SELECT 1")


def test_bound_statements_are_forgotten_in_time() -> None:
    engine = QueryEngine()
    for i in range(300):
        engine.run(sqlglot.parse_one(f"SELECT {i}", dialect="duckdb"), {})
    assert len(engine._bound) == 256
    engine.close()


def test_the_text_that_duckdb_gets() -> None:
    tree = sqlglot.parse_one("SELECT *, a.o._seq FROM a.o JOIN b.o ON a.o.id = b.o.id, c.x", dialect="duckdb")
    bound = bind_select(tree, {("a", "o"): True, ("b", "o"): False, ("c", "x"): True})
    assert bound.sql == (
        'SELECT * EXCLUDE ("a.o"."_seq", "x"."_seq"), "a.o"._seq FROM "table 0" AS "a.o" '
        'JOIN "table 1" AS "b.o" ON "a.o".id = "b.o".id, "table 2" AS "x"'
    )
    assert [(s.view, s.key, s.with_seq, s.uses) for s in bound.sources] == [
        ("table 0", ("a", "o"), True, 1),
        ("table 1", ("b", "o"), True, 1),
        ("table 2", ("c", "x"), True, 1),
    ]
