"""COPY, AUDIT and backfills on Spark as text: what they become, and what is refused."""

from __future__ import annotations

import pytest

import tablecast
from tablecast.errors import InvalidRequest, RunsOnSpark, SqlSyntaxError, TablecastError, UnknownTable, UnsupportedSql
from tablecast.model.spark_job import (
    AuditTopic,
    Backfill,
    CopyFrom,
    CopyMode,
    CopyTopic,
    FileFormat,
    SparkJob,
    job_fields,
    job_of,
)
from tablecast.sql.parse import parse
from tablecast.sql.statements import RunOnSpark


def parsed(sql: str) -> SparkJob:
    (statement,) = parse(sql)
    assert isinstance(statement, RunOnSpark)
    return statement.job


JOBS: dict[str, SparkJob] = {
    "COPY app.orders FROM '/in/*.parquet' (FORMAT parquet)": CopyFrom("app.orders", "/in/*.parquet", FileFormat.PARQUET),
    "copy orders (id, Name) from 'a.csv' with (format csv, header, delimiter ';', null 'NA', quote '''')": CopyFrom(
        "orders", "a.csv", FileFormat.CSV, ("id", "name"), header=True, delimiter=";", null="NA", quote="'"
    ),
    "COPY t FROM 'x' (FORMAT = 'JSON', MODE = upsert, REJECTS 'r', MAX_REJECTS 5, COMMIT_ROWS 9, DRY_RUN true, JOB 'j')": (
        CopyFrom(
            "t", "x", FileFormat.JSON, mode=CopyMode.UPSERT, rejects="r", max_rejects=5, commit_rows=9, dry_run=True, job="j"
        )
    ),
    "ALTER TOPIC app.ev ADD SOURCE t ON DELETE, INSERT WHERE n > 3 PARTITION BY n WITH (backfill = 'Spark')": Backfill(
        "app.ev", "t", ("insert", "delete"), "n > 3", "n"
    ),
    "alter topic ev add source t on any with (payload = 'key', backfill = 'spark')": Backfill(
        "ev", "t", ("insert", "update", "delete"), payload="key"
    ),
    "alter topic ev add source t on insert with (backfill = 'spark', dry_run = TRUE)": Backfill(
        "ev", "t", ("insert",), dry_run=True
    ),
    "COPY TOPIC ev TO 'out' (FORMAT json, DRY_RUN)": CopyTopic("ev", "out", FileFormat.JSON, dry_run=True),
    "COPY topic FROM 'x' (FORMAT json, MULTILINE)": CopyFrom("topic", "x", FileFormat.JSON, multiline=True),
    "COPY TOPIC app.ev TO '/out' (FORMAT delta, DECODE, SOURCE_TABLE app.t, STARTING '{\"0\": 5}', ENDING '2026-01-01')": (
        CopyTopic("app.ev", "/out", FileFormat.DELTA, True, "app.t", '{"0": 5}', "2026-01-01")
    ),
    "AUDIT TOPIC app.ev": AuditTopic("app.ev"),
}  # fmt: skip


@pytest.mark.parametrize("sql", JOBS)
def test_a_statement_becomes_a_job_that_travels(sql: str) -> None:
    assert parsed(sql) == JOBS[sql]
    assert job_of(job_fields(JOBS[sql])) == JOBS[sql]


@pytest.mark.parametrize(
    ("sql", "error", "said"),
    [
        ("COPY t FROM 'x'", SqlSyntaxError, r"expected \("),
        ("COPY t FROM 'x' (HEADER)", InvalidRequest, "FORMAT"),
        ("COPY t FROM 'x' (FORMAT orc)", InvalidRequest, "parquet, csv, json"),
        ("COPY TOPIC t TO 'x' (FORMAT csv)", InvalidRequest, "parquet, json, delta"),
        ("COPY t FROM 'x' (FORMAT json, HEADER)", InvalidRequest, "HEADER does not go with FORMAT json"),
        ("COPY t FROM 'x' (FORMAT csv, COLOUR 'red')", InvalidRequest, "unknown option COLOUR"),
        ("COPY t FROM 'x' (FORMAT csv, FORMAT csv)", InvalidRequest, "twice"),
        ("COPY t FROM 'x' (FORMAT csv, DELIMITER '||')", InvalidRequest, "one character"),
        ("COPY t FROM 'x' (FORMAT csv, COMMIT_ROWS 0)", SqlSyntaxError, "COMMIT_ROWS is from 1"),
        ("COPY t FROM 'x' (FORMAT csv, MODE replace)", InvalidRequest, "insert or upsert"),
        ("COPY t FROM 'x' (FORMAT csv, JOB '')", InvalidRequest, "JOB"),
        ("COPY t (a, a) FROM 'x' (FORMAT csv)", InvalidRequest, "named twice"),
        ("COPY t FROM '' (FORMAT csv)", InvalidRequest, "no path"),
        ("COPY t TO 'x' (FORMAT csv)", SqlSyntaxError, "expected FROM"),
        ("AUDIT t", SqlSyntaxError, "expected TOPIC"),
        ("SELECT 1; AUDIT TOPIC t", UnsupportedSql, "text of its own"),
        ("EXECUTE AS USER 'ann' (COPY t FROM 'x' (FORMAT csv))", UnsupportedSql, "inside EXECUTE AS"),
    ],
)
def test_what_makes_no_sense_is_refused(sql: str, error: type[TablecastError], said: str) -> None:
    with pytest.raises(error, match=said):
        parse(sql)


def test_a_database_says_where_it_runs_and_knows_the_names() -> None:
    with tablecast.open(":memory:") as db:
        db.execute_all(
            "CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY); CREATE TOPIC app.ev ALIAS 'ev'"
        )
        session = db.session("system", "system", "app")
        with pytest.raises(RunsOnSpark, match="tablecast copy") as caught:
            session.execute("COPY t FROM 'x' (FORMAT csv)")
        assert job_of(caught.value.details["job"]) == CopyFrom("app.t", "x", FileFormat.CSV)
        with pytest.raises(RunsOnSpark) as caught:
            db.execute("AUDIT TOPIC ev")
        assert job_of(caught.value.details["job"]) == AuditTopic("app.ev")
        with pytest.raises(UnknownTable):
            db.execute("COPY app.nothing FROM 'x' (FORMAT csv)")
        with pytest.raises(TablecastError, match="transaction"):
            session.execute("BEGIN")
            session.execute("COPY t FROM 'x' (FORMAT csv)")
        session.rollback()
        with pytest.raises(TablecastError, match="COPY … FROM"):
            db.session("ann", "user", "app").execute("COPY t FROM 'x' (FORMAT csv)")


def test_a_job_of_another_version_is_said_to_be_one() -> None:
    with pytest.raises(InvalidRequest, match="does not know"):
        job_of({"type": "copy_moon"})
