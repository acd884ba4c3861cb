"""`df.write.format("tablecast")`: what arrives, and what is refused before or while it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from writing import Writing, writing

BULK = ("always", "never")


@pytest.fixture(scope="module")
def w(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writing]:
    with writing(tmp_path_factory.mktemp("server") / "data") as made:
        yield made


def orders(spark: SparkSession, first: int, last: int, partitions: int = 3) -> DataFrame:
    return spark.range(first, last, 1, partitions).selectExpr(
        "id", "concat('customer ', id % 7) AS customer", "cast(id % 1000 / 4 AS decimal(12,2)) AS amount"
    )


ORDERS = "id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2)"


@pytest.mark.parametrize("bulk", BULK)
def test_rows_and_their_messages_are_one_commit(w: Writing, spark: SparkSession, bulk: str) -> None:
    table = w.table(f"orders_{bulk}", ORDERS)
    w.save(orders(spark, 0, 3000), table, bulk=bulk)
    rows = w.rows(table, "id, customer, amount, _seq")
    assert [row[:2] for row in rows] == [(i, f"customer {i % 7}") for i in range(3000)]
    told = w.messages(table)
    assert len(told) == 3000
    assert {message.seq for message in told} == {row[3] for row in rows}
    assert len({message.seq for message in told}) == 1
    assert w.open_loads() == []


def test_sealed_rows_and_sent_rows_say_the_same_as_an_insert(w: Writing, spark: SparkSession) -> None:
    """One meaning: rows, messages, keys, hashes and partitions."""
    columns = f"{ORDERS}, state TEXT DEFAULT 'new'"
    tables = [w.table(f"same_{way}", columns) for way in ("always", "never", "sdk")]
    frame = orders(spark, 0, 500)
    w.save(frame, tables[0], bulk="always")
    w.save(frame, tables[1], bulk="never")
    w.client.insert(tables[2], frame.toArrow())
    assert w.rows(tables[0]) == w.rows(tables[1]) == w.rows(tables[2])
    seen = [
        sorted(
            (m.partition_id, m.key, m.payload.replace(table.encode(), b"app.x"), m.op.label) for m in w.messages(table)
        )
        for table in tables
    ]
    assert len(seen[0]) == 500
    assert seen[0] == seen[1] == seen[2]


TYPES = """
    id BIGINT PRIMARY KEY, a BOOLEAN, b SMALLINT, c INT, d FLOAT, e DOUBLE, f DECIMAL(20,4), g TEXT, h BYTES, i JSON,
    j TIMESTAMP, k DATE, l TIME, m UUID
"""
NATIVE = """
    SELECT 1L AS id, true AS a, 7S AS b, 8 AS c, 1.5F AS d, 2.5D AS e, cast(12.3456 AS decimal(20,4)) AS f, 'é' AS g,
        X'00ff' AS h, '{"x": [1]}' AS i, timestamp'2026-02-03 04:05:06.789' AS j, date'2026-02-03' AS k,
        time'04:05:06.789' AS l, '0190d6b2-0000-7000-8000-000000000001' AS m
"""
NULLS = "SELECT 2L AS id, " + ", ".join(f"null AS {name}" for name in "abcdefghijklm")
AS_TEXT = """
    SELECT 3L AS id, 'true' AS a, '7' AS b, '8' AS c, '1.5' AS d, '2.5' AS e, '12.3456' AS f, 'é' AS g, X'00ff' AS h,
        '{"x": [1]}' AS i, '2026-02-03T04:05:06.789' AS j, '2026-02-03' AS k, '04:05:06.789' AS l,
        '0190D6B2-0000-7000-8000-000000000001' AS m
"""
OF_OTHER_TYPES = """
    SELECT 4L AS id, true AS a, 7.0D AS b, cast(8 AS decimal(10,2)) AS c, 1.5D AS d, 2.5F AS e, 12.34561D AS f, 'é' AS g,
        X'00ff' AS h, '{"x": [1]}' AS i, timestamp_ntz'2026-02-03 04:05:06.789' AS j, date'2026-02-03' AS k,
        time'04:05:06.789' AS l, X'0190d6b2000070008000000000000001' AS m
"""


@pytest.mark.parametrize("bulk", BULK)
def test_every_type_in_every_form_that_fits(w: Writing, spark: SparkSession, bulk: str) -> None:
    table = w.table(f"types_{bulk}", TYPES)
    for sql in (NATIVE, NULLS, AS_TEXT, OF_OTHER_TYPES):
        w.save(spark.sql(sql), table, bulk=bulk)
    expected = w.table(f"types_sql_{bulk}", TYPES)
    w.client.execute(
        f"""INSERT INTO {expected} VALUES (1, true, 7, 8, 1.5, 2.5, 12.3456, 'é', ?, '{{"x": [1]}}',
        '2026-02-03T04:05:06.789Z', '2026-02-03', '04:05:06.789', '0190d6b2-0000-7000-8000-000000000001')""",
        [b"\x00\xff"],
    )
    (wanted,) = w.rows(expected)
    native, nulls, text, other = w.rows(table)
    assert native == wanted
    assert nulls == (2, *[None] * 13)
    assert text[1:] == wanted[1:]
    assert other[1:] == wanted[1:]


def test_a_timestamp_is_the_same_moment_in_any_time_zone(w: Writing, spark: SparkSession) -> None:
    table = w.table("zoned", "id BIGINT PRIMARY KEY, at TIMESTAMP")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        w.save(spark.sql("SELECT 1L AS id, timestamp'2026-02-03 09:00:00' AS at"), table)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert w.client.query(f"SELECT at = TIMESTAMP '2026-02-03 00:00:00' FROM {table}").scalar()


# --- changing rows ------------------------------------------------------------------------------------------------


def test_upsert_changes_what_is_named_and_adds_what_is_new(w: Writing, spark: SparkSession) -> None:
    table = w.table("upserted", ORDERS)
    w.save(orders(spark, 0, 4), table)
    w.save(spark.sql("SELECT 3L AS id, 'ann' AS customer UNION ALL SELECT 4L, 'bob'"), table, mode="upsert")
    assert w.rows(table, "id, customer")[3:] == [(3, "ann"), (4, "bob")]
    amounts = dict(w.rows(table, "id, amount"))
    assert amounts[3] is not None
    assert amounts[4] is None
    assert sorted(op for op, _ in w.told(table)) == ["insert"] * 5 + ["update"]


def test_delete_takes_the_key_alone(w: Writing, spark: SparkSession) -> None:
    table = w.table("deleted", ORDERS)
    w.save(orders(spark, 0, 10), table)
    w.save(orders(spark, 5, 20), table, mode="delete")
    assert [row[0] for row in w.rows(table)] == [0, 1, 2, 3, 4]
    assert sorted(op for op, _ in w.told(table)) == ["delete"] * 5 + ["insert"] * 10


def test_rows_that_carry_their_op_are_applied_in_order(w: Writing, spark: SparkSession) -> None:
    table = w.table("changed", "id BIGINT PRIMARY KEY, n INT")
    steps = [
        (1, 1, "insert"),
        (1, 2, "update"),
        (2, 1, "upsert"),
        (1, None, "DELETE"),
        (1, 5, "insert"),
        (2, 9, "upsert"),
    ]
    frame = spark.createDataFrame(steps, "id bigint, n int, what string").coalesce(1)
    w.save(frame, table, opColumn="What")
    assert w.rows(table) == [(1, 5), (2, 9)]
    story = [(op, row["n"]) for op, row in w.told(table) if row["id"] == "1"]
    assert story == [("insert", 1), ("update", 2), ("delete", 2), ("insert", 5)]


# --- once ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bulk", BULK)
def test_a_job_that_is_run_again_writes_once(w: Writing, spark: SparkSession, bulk: str) -> None:
    table = w.table(f"again_{bulk}", ORDERS)
    for _ in range(2):
        w.save(orders(spark, 0, 100, 1), table, bulk=bulk, writerId="nightly", batchId="1")
    w.save(orders(spark, 100, 150, 1), table, bulk=bulk, writerId="nightly", batchId="2")
    assert len(w.rows(table)) == len(w.messages(table)) == 150


def test_no_rows_at_all(w: Writing, spark: SparkSession) -> None:
    table = w.table("empty", ORDERS)
    w.save(orders(spark, 0, 10).where("id < 0"), table)
    w.save(spark.createDataFrame([], orders(spark, 0, 1).schema), table, bulk="never")
    assert w.rows(table) == []
    assert w.open_loads() == []


# --- refused ------------------------------------------------------------------------------------------------------


def refused(write: Any) -> str:
    with pytest.raises(PySparkException) as error:
        write()
    return str(error.value)


def test_what_is_refused_when_a_write_is_planned(w: Writing, spark: SparkSession) -> None:
    table = w.table("planned", ORDERS)
    frame = orders(spark, 0, 5)
    overwriting = w.options(frame.write, table=table).mode("overwrite")
    assert 'only .mode("append")' in refused(overwriting.save)
    for wrong, said in (
        (frame.withColumnRenamed("amount", "amont"), "app.planned has no column 'amont'; it has: id, customer, amount"),
        (frame.selectExpr("id", "array(customer) AS customer"), "column 'customer' of app.planned is TEXT"),
    ):
        assert said in refused(lambda wrong=wrong: w.save(wrong, table))
    assert w.rows(table) == []
    assert w.open_loads() == []


@pytest.mark.parametrize("bulk", BULK)
def test_a_value_that_does_not_fit_fails_all_and_is_named(w: Writing, spark: SparkSession, bulk: str) -> None:
    table = w.table(f"unfit_{bulk}", "id BIGINT PRIMARY KEY, n SMALLINT, CHECK (n <> 13)")
    frame = spark.range(0, 100, 1, 2)
    for wrong, said in (
        ("CASE WHEN id = 77 THEN 40000 ELSE 1 END", "row 27: column 'n' is SMALLINT and cannot hold 40000"),
        ("CASE WHEN id = 99 THEN 13 ELSE 1 END", "violates CHECK"),
    ):
        error = refused(lambda wrong=wrong: w.save(frame.selectExpr("id", f"{wrong} AS n"), table, bulk=bulk))
        assert said in error
    assert w.rows(table) == w.messages(table) == []
    assert w.open_loads() == []


@pytest.mark.parametrize("bulk", BULK)
def test_a_key_that_is_there_or_comes_twice(w: Writing, spark: SparkSession, bulk: str) -> None:
    table = w.table(f"keys_{bulk}", ORDERS)
    w.client.execute(f"INSERT INTO {table} VALUES (5, 'x', 1)")
    there = refused(lambda: w.save(orders(spark, 0, 10, 2), table, bulk=bulk))
    assert "DuplicateKey: partition 1" in there
    assert "id = 5" in there
    twice = orders(spark, 20, 30).union(orders(spark, 29, 31))
    assert "id = 29" in refused(lambda: w.save(twice, table, bulk=bulk))
    assert [row[0] for row in w.rows(table)] == [5]


def test_a_table_that_cannot_be_sealed_is_written_as_rows(w: Writing, spark: SparkSession) -> None:
    table = w.table("generated", "id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), n BIGINT")
    frame = spark.range(100).selectExpr("id AS n")
    w.save(frame, table)
    assert sorted(row[1] for row in w.rows(table)) == list(range(100))
    assert "SNOWFLAKE_ID()" in refused(lambda: w.save(frame, table, bulk="always"))
    w.save(spark.range(100, 200).selectExpr("id", "id AS n"), table, bulk="always")
    assert len(w.rows(table)) == 200


@pytest.mark.parametrize("bulk", BULK)
def test_what_fills_the_columns_that_are_not_given(w: Writing, spark: SparkSession, bulk: str) -> None:
    table = w.table(
        f"filled_{bulk}",
        "id BIGINT PRIMARY KEY, who TEXT DEFAULT CURRENT_USER(), at TIMESTAMP DEFAULT NOW(), "
        "u UUID DEFAULT UUID_V7(), n INT DEFAULT 7",
    )
    w.save(spark.range(0, 50, 1, 2), table, bulk=bulk)
    rows = w.rows(table, "who, at, u, n")
    assert {row[0] for row in rows} == {"system"}
    assert len({row[1] for row in rows}) == 1
    assert len({row[2] for row in rows}) == 50
    assert {row[3] for row in rows} == {7}


def test_a_task_of_many_arrow_batches(w: Writing, spark: SparkSession) -> None:
    table = w.table("wide", "id BIGINT PRIMARY KEY, word TEXT")
    w.save(spark.range(0, 40_000, 1, 1).selectExpr("id", "repeat('x', 300) AS word"), table, mode="upsert")
    assert w.client.query(f"SELECT count(*), min(length(word)) FROM {table}").rows == [(40_000, 300)]


@pytest.mark.parametrize("bulk", BULK)
def test_hundreds_of_partitions(w: Writing, spark: SparkSession, bulk: str) -> None:
    """Parts are numbered by partition, in steps: a thousand machines have as many."""
    table, last = w.table(f"scattered_{bulk}", "id BIGINT PRIMARY KEY"), 299
    w.save(spark.range(0, last + 1, 1, last + 1).where(f"id IN (0, {last})"), table, bulk=bulk)
    assert w.rows(table) == [(0,), (last,)]


@pytest.mark.parametrize("bulk", BULK)
def test_a_topic_is_written_through_its_source_table(w: Writing, spark: SparkSession, bulk: str) -> None:
    """What arrives is what an INSERT into the table makes, on this topic and on every other that the table feeds."""
    table, other = w.table(f"fed_{bulk}", ORDERS), w.table(f"plain_{bulk}", ORDERS)
    w.client.execute_all(
        f"CREATE TOPIC {table}_few; ALTER TOPIC {table}_few ADD SOURCE {table} ON INSERT WHERE id < 10"
    )
    frame = orders(spark, 0, 300)
    w.options(frame.write, topic=f"{table}_told", bulk=bulk).mode("append").save()
    w.client.insert(other, frame.toArrow())
    assert w.rows(table) == w.rows(other)
    assert sorted(m.payload.replace(table.encode(), other.encode()) for m in w.messages(table)) == sorted(
        m.payload for m in w.messages(other)
    )
    ends = "SELECT sum(end_offset), count(*) FROM system.topic_partitions WHERE topic = ?"
    assert w.client.query(ends, [f"{table}_few"]).rows == [(10, 1)]


def test_a_topic_of_no_table_or_of_several_is_not_written_to(w: Writing, spark: SparkSession) -> None:
    one, two = w.table("of_many_a", ORDERS), w.table("of_many_b", ORDERS)
    w.client.execute_all(f"CREATE TOPIC app.of_none; ALTER TOPIC {one}_told ADD SOURCE {two} ON ANY")
    frame = orders(spark, 0, 3)

    def save(topic: str) -> str:
        return refused(w.options(frame.write, topic=topic).mode("append").save)

    several = save(f"{one}_told")
    assert "has 2 source tables, app.of_many_a, app.of_many_b" in several
    assert 'with option "table"' in several
    assert "topic app.of_none has no source table" in save("app.of_none")
    assert "UnknownTopic" in save("app.nowhere")
    assert w.rows(one) == w.rows(two) == []
