"""COPY … FROM: what is loaded, what is rejected and why, and what a second run does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from copying import ORDERS, Copying, orders, rejects_of
from pyspark.sql import SparkSession
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast.errors import InvalidRequest, NotNullViolation, TooManyRejects, UnknownColumn


@pytest.fixture(scope="module")
def c(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copying]:
    with (
        ServerThread(tmp_path_factory.mktemp("server") / "data") as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        client.execute("CREATE NAMESPACE app")
        yield Copying(server.url, client)


def test_parquet_is_loaded_once_however_often_it_is_run(c: Copying, spark: SparkSession, tmp_path: Path) -> None:
    table = c.table("parquet", ORDERS)
    orders(spark, 0, 1000).write.parquet(str(tmp_path / "in"))
    statement = f"COPY {table} FROM '{tmp_path}/in' (FORMAT parquet)"
    result = c.copy(statement)
    assert (result.row_count, result.message) == (1000, "COPY 1000")
    again = c.copy(statement)
    assert again.row_count == 0
    assert "1,000 rows were loaded by an earlier run" in again.message
    assert [row[:2] for row in c.rows(table)] == [(i, f"customer {i % 7}") for i in range(1000)]
    assert len(c.told(table)) == 1000
    assert c.open_loads() == []


def test_a_repeated_copy_counts_what_is_there_in_all_chunks(c: Copying, tmp_path: Path) -> None:
    table = c.table("repeated", ORDERS)
    for name, text in (("1.csv", "1,a,1\n2,b,1\n"), ("2.csv", "3,c,1\n4,d,1\n"), ("3.csv", "5,e,1\n")):
        (tmp_path / name).write_text(text)
    statement = f"COPY {table} FROM '{tmp_path}/*.csv' (FORMAT csv, JOB 'repeated', COMMIT_ROWS 2)"
    assert c.copied(statement)["rows"] == 5
    again = c.copied(statement)
    assert (again["rows"], again["already"]) == (0, 5)
    assert "5 rows were loaded by an earlier run" in c.copy(statement).message


def test_csv_values_are_cast_as_sql_casts_them_and_the_rest_is_explained(c: Copying, tmp_path: Path) -> None:
    table = c.table("csv", ORDERS + ", CHECK (amount < 1000)")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a b.csv").write_text(
        'amount;id;customer\n1.50;1;ann\n;2;"o\'neil ""x"""\nmuch;3;bob\n5;x;cat\n1;4;\n2000;5;dan\n1;2\n'
    )
    copied = c.copied(
        f"COPY {table} FROM '{tmp_path}/in' (FORMAT csv, HEADER true, DELIMITER ';', REJECTS '{tmp_path}/bad')"
    )
    assert (copied["rows"], copied["rejects"]) == (2, 5)
    assert c.rows(table) == [(1, "ann", Decimal("1.50")), (2, 'o\'neil "x"', None)]
    found = {(r["row"]["id"] if "row" in r else r["line"]): r for r in rejects_of(tmp_path / "bad")}
    assert {key: (r["column"], r["code"]) for key, r in found.items()} == {
        "3": ("amount", "type_mismatch"),
        "x": ("id", "type_mismatch"),
        "4": ("customer", "not_null_violation"),
        "5": (None, "check_violation"),
        "1;2": (None, "malformed"),
    }
    assert found["3"]["row"] == {"id": "3", "customer": "bob", "amount": "much"}
    assert "a%20b.csv" in found["3"]["file"]
    assert "much" in found["3"]["reason"]


def test_json_gives_its_own_texts(c: Copying, tmp_path: Path) -> None:
    table = c.table("json", "id BIGINT PRIMARY KEY, amount DECIMAL(30,10), note JSON, state TEXT DEFAULT 'new'")
    lines = [
        '{"id": 1, "amount": 12345678901234567.0123456789, "note": {"a": [1, 2.50]}}',
        '{"id": 2, "note": null}',
        '{"id": 3, "amount": ',
        '{"amount": 1}',
    ]
    (tmp_path / "in.json").write_text("\n".join(lines) + "\n")
    copied = c.copied(f"COPY {table} FROM '{tmp_path}/in.json' (FORMAT json, REJECTS '{tmp_path}/bad')")
    assert (copied["rows"], copied["rejects"]) == (2, 2)
    assert c.rows(table) == [
        (1, Decimal("12345678901234567.0123456789"), {"a": [1, 2.5]}, "new"),
        (2, None, None, "new"),
    ]
    assert sorted(r["code"] for r in rejects_of(tmp_path / "bad")) == ["malformed", "not_null_violation"]


def test_a_bad_row_fails_a_copy_that_keeps_no_rejects(c: Copying, tmp_path: Path) -> None:
    table = c.table("strict", ORDERS)
    (tmp_path / "in.csv").write_text("1,ann,5\n2,bob,much\n")
    with pytest.raises(TooManyRejects, match=r"1 rows do not fit app\.strict: .*much.*REJECTS 'directory'"):
        c.copy(f"COPY {table} FROM '{tmp_path}/in.csv' (FORMAT csv)")
    assert c.rows(table) == []
    assert c.open_loads() == []


def test_max_rejects_stops_it_and_the_next_run_goes_on(c: Copying, tmp_path: Path) -> None:
    table = c.table("stopped", ORDERS)
    for name, text in (("1.csv", "1,ann,5\n2,bob,x\n"), ("2.csv", "3,cat,y\n4,dan,z\n"), ("3.csv", "5,eve,1\n")):
        (tmp_path / name).write_text(text)
    how = f"FORMAT csv, REJECTS '{tmp_path}/bad', COMMIT_ROWS 2"
    with pytest.raises(TooManyRejects, match="3 rows do not fit") as caught:
        c.copy(f"COPY {table} FROM '{tmp_path}/*.csv' ({how}, MAX_REJECTS 2)")
    assert caught.value.details["rows"] == 1
    assert [row[0] for row in c.rows(table)] == [1]
    copied = c.copied(f"COPY {table} FROM '{tmp_path}/*.csv' ({how}, MAX_REJECTS 3)")
    assert (copied["rows"], copied["already"]) == (1, 1)
    assert [row[0] for row in c.rows(table)] == [1, 5]
    assert len(rejects_of(tmp_path / "bad")) == 3


def test_keys_that_are_there_or_come_twice_are_rejects(c: Copying, spark: SparkSession, tmp_path: Path) -> None:
    table = c.table("twice", ORDERS)
    c.client.execute(f"INSERT INTO {table} VALUES (7, 'old', 1)")
    rows = orders(spark, 0, 200).union(orders(spark, 50, 60)).union(orders(spark, 50, 51))
    rows.selectExpr("concat('0', id) AS id", "customer", "amount").write.csv(str(tmp_path / "in"))
    copied = c.copied(f"COPY {table} FROM '{tmp_path}/in' (FORMAT csv, REJECTS '{tmp_path}/bad')")
    assert (copied["rows"], copied["rejects"]) == (199, 12)
    assert len(c.rows(table)) == 200
    assert c.rows(table)[7][1] == "old"
    found = rejects_of(tmp_path / "bad")
    assert {r["code"] for r in found} == {"duplicate_key"}
    reasons = {r["row"]["id"]: r["reason"] for r in found}
    assert set(reasons) == {"07"} | {f"0{i}" for i in range(50, 60)}
    assert reasons["07"].endswith("the table has it already")
    assert reasons["055"].endswith("it comes twice in the files")
    assert len(c.told(table)) == 200


def test_upsert_and_tables_that_only_the_server_can_finish(c: Copying, tmp_path: Path) -> None:
    table = c.table("upserted", ORDERS + ", CHECK (amount < 1000)")
    c.client.execute(f"INSERT INTO {table} VALUES (1, 'old', 1), (9, 'other', 1)")
    (tmp_path / "in.csv").write_text("1,new,2\n2,bob,3\n3,bad,much\n4,bad,5000\n")
    copied = c.copied(
        f"COPY {table} FROM '{tmp_path}/in.csv' (FORMAT csv, MODE upsert, COMMIT_ROWS 2, REJECTS '{tmp_path}/bad')"
    )
    assert (copied["rows"], copied["rejects"]) == (2, 2)
    assert [row[:2] for row in c.rows(table)] == [(1, "new"), (2, "bob"), (9, "other")]
    assert {r["code"] for r in rejects_of(tmp_path / "bad")} == {"type_mismatch", "check_violation"}

    generated = c.table("generated", "id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), customer TEXT")
    (tmp_path / "names.csv").write_text("ann\nbob\nann\n")
    assert c.copied(f"COPY {generated} (customer) FROM '{tmp_path}/names.csv' (FORMAT csv)")["rows"] == 3
    assert sorted(row[0] for row in c.rows(generated, "customer")) == ["ann", "ann", "bob"]


def test_a_dry_run_tells_everything_and_does_nothing(c: Copying, tmp_path: Path) -> None:
    table = c.table("dry", ORDERS)
    c.client.execute(f"INSERT INTO {table} VALUES (1, 'old', 1)")
    (tmp_path / "in.csv").write_text("1,ann,5\n2,bob,6\n2,bob,6\n3,cat,x\n")
    statement = f"COPY {table} FROM '{tmp_path}/in.csv' (FORMAT csv, REJECTS '{tmp_path}/bad', DRY_RUN true)"
    copied = c.copied(statement)
    assert (copied["rows"], copied["rejects"]) == (1, 3)
    assert len(rejects_of(tmp_path / "bad")) == 3
    assert [row[:2] for row in c.rows(table)] == [(1, "old")]
    assert len(c.told(table)) == 1
    assert c.open_loads() == []
    assert c.copied(statement.replace(", DRY_RUN true", ""))["rows"] == 1


def test_what_cannot_be_read_or_does_not_fit_is_refused(c: Copying, spark: SparkSession, tmp_path: Path) -> None:
    table = c.table("unfit", ORDERS)
    with pytest.raises(InvalidRequest, match="there is no such file"):
        c.copy(f"COPY {table} FROM '{tmp_path}/nothing' (FORMAT csv)")
    (tmp_path / "in.csv").write_text("id,colour\n1,red\n")
    with pytest.raises(UnknownColumn, match="colour"):
        c.copy(f"COPY {table} FROM '{tmp_path}/in.csv' (FORMAT csv, HEADER)")
    orders(spark, 0, 3).drop("customer").write.parquet(str(tmp_path / "p"))
    with pytest.raises(NotNullViolation, match="customer"):
        c.copy(f"COPY {table} FROM '{tmp_path}/p' (FORMAT parquet)")
    with pytest.raises(UnknownColumn, match="has no column 'customer'"):
        c.copy(f"COPY {table} (id, customer) FROM '{tmp_path}/p' (FORMAT parquet)")
    with pytest.raises(InvalidRequest, match="cannot be read as parquet"):
        c.copy(f"COPY {table} FROM '{tmp_path}/in.csv' (FORMAT parquet)")
    assert c.rows(table) == []


def test_the_rejects_are_what_was_given(c: Copying, spark: SparkSession, tmp_path: Path) -> None:
    """Every type that a Parquet file has, as JSON that can be read again."""
    table = c.table("typed", "id SMALLINT PRIMARY KEY, b BYTES, t TIMESTAMP, d DOUBLE")
    spark.sql(
        "SELECT 70000 AS id, X'00ff' AS b, timestamp'2026-01-02 03:04:05' AS t, double('NaN') AS d"
    ).write.parquet(str(tmp_path / "p"))
    assert c.copied(f"COPY {table} FROM '{tmp_path}/p' (FORMAT parquet, REJECTS '{tmp_path}/bad')")["rejects"] == 1
    (found,) = rejects_of(tmp_path / "bad")
    assert found["row"] == {"id": 70000, "b": "AP8=", "t": "2026-01-02T03:04:05Z", "d": "nan"}
    assert found["column"] == "id"
    assert json.dumps(found)
