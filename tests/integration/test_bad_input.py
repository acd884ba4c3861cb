"""Requests that are wrong. Each is refused with its own error: a class, a stable code, and a message that names the
culprit and says what would be right. And nothing changes: the stored bytes before and after are the same.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tablecast
from tablecast import Database, Start, StartKind
from tablecast import errors as e
from tablecast.codec.catalog import AUDIT, COMMIT_KEY
from tablecast.storage.base import Family
from tablecast.storage.home import MARKER
from tablecast.testing.clock import FakeClock

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.things (
  id INT PRIMARY KEY, flag BOOLEAN, small SMALLINT, whole INT, big BIGINT, single FLOAT, twice DOUBLE,
  price DECIMAL(6,2), label TEXT NOT NULL DEFAULT 'x', raw BYTES, doc JSON, at TIMESTAMP, day DATE, clock TIME, ref UUID,
  CHECK (whole < 100)
);
CREATE TABLE app.open (id INT PRIMARY KEY, v TEXT) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE TABLE app.closed (id INT PRIMARY KEY, v TEXT) WITH (ACCESS_LEVEL = 'RESTRICTED');
CREATE USER TABLE app.prefs (name TEXT PRIMARY KEY, value TEXT);
CREATE STREAM TABLE app.visits (id INT PRIMARY KEY, page TEXT) WITH (TTL_SECONDS = 60);
CREATE TOPIC app.events ALIAS 'happened';
CREATE TOPIC app.jobs PARTITIONS 2 WITH (max_deliveries = 2, dead_letter = 'app.dead');
CREATE TOPIC app.brief WITH (retention_seconds = 10);
ALTER TOPIC app.events ADD SOURCE app.things ON ANY;
ALTER TOPIC app.brief ADD SOURCE app.things ON INSERT;
INSERT INTO app.things (id, whole) VALUES (1, 10), (2, 20), (3, 30);
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as database:
        database.execute_all(SCHEMA)
        yield database


def stored(db: Database) -> dict[tuple[str, bytes], bytes]:
    """Everything: rows, logs, groups, catalog, keys. But not the audit log: an attempt that is denied is in it."""
    snapshot = db.engine.whole_snapshot()
    everything = {(family, key): value for family in Family for key, value in snapshot.scan(family)}
    return {
        (family, key): value
        for (family, key), value in everything.items()
        if AUDIT not in key and (family, key) != (Family.META, COMMIT_KEY)
    }


@contextmanager
def refused(db: Database, error: type[e.TablecastError], *words: str) -> Iterator[None]:
    """The block raises exactly `error`, its message holds all `words`, and not a byte has changed."""
    before = stored(db)
    with pytest.raises(e.TablecastError) as raised:
        yield
    assert type(raised.value) is error, raised.value
    assert [word for word in words if word not in raised.value.message] == [], raised.value.message
    assert stored(db) == before
    assert db.verify().sound


# --- the errors themselves -----------------------------------------------------------------------------------

CODES = {
    "InvalidRequest": ("invalid_request", 400),
    "SqlSyntaxError": ("sql_syntax", 400),
    "UnsupportedSql": ("unsupported_sql", 400),
    "TypeMismatch": ("type_mismatch", 400),
    "ExpressionError": ("expression_error", 400),
    "InvalidSchema": ("invalid_schema", 400),
    "MethodNotAllowed": ("method_not_allowed", 405),
    "UnsupportedMediaType": ("unsupported_media_type", 415),
    "Unauthenticated": ("unauthenticated", 401),
    "TooManyRequests": ("too_many_requests", 429),
    "RateLimited": ("rate_limited", 429),
    "LockedOut": ("locked_out", 429),
    "Unreachable": ("unreachable", 503),
    "InvalidTopic": ("invalid_topic", 400),
    "PermissionDenied": ("permission_denied", 403),
    "NotFound": ("not_found", 404),
    "UnknownNamespace": ("unknown_namespace", 404),
    "UnknownTable": ("unknown_table", 404),
    "UnknownColumn": ("unknown_column", 404),
    "UnknownTopic": ("unknown_topic", 404),
    "UnknownSource": ("unknown_source", 404),
    "UnknownGroup": ("unknown_group", 404),
    "UnknownUser": ("unknown_user", 404),
    "Conflict": ("conflict", 409),
    "AlreadyExists": ("already_exists", 409),
    "DuplicateSource": ("duplicate_source", 409),
    "InUse": ("in_use", 409),
    "TransactionConflict": ("transaction_conflict", 409),
    "TransactionState": ("transaction_state", 409),
    "IdempotencyMismatch": ("idempotency_mismatch", 409),
    "TooLarge": ("too_large", 413),
    "OffsetOutOfRange": ("offset_out_of_range", 416),
    "ConstraintViolation": ("constraint_violation", 422),
    "NotNullViolation": ("not_null_violation", 422),
    "DuplicateKey": ("duplicate_key", 422),
    "CheckViolation": ("check_violation", 422),
    "Timeout": ("timeout", 504),
    "Overloaded": ("overloaded", 503),
    "DatabaseError": ("database_error", 500),
    "DatabaseClosed": ("database_closed", 500),
    "DatabaseLocked": ("database_locked", 500),
    "NotADatabase": ("not_a_database", 500),
    "FormatTooNew": ("format_too_new", 500),
    "CorruptData": ("corrupt_data", 500),
    "WritesStopped": ("writes_stopped", 500),
    "ClockOutOfRange": ("clock_out_of_range", 500),
    "DiskFull": ("disk_full", 507),
    "BackupError": ("backup_error", 500),
    "InvalidPipeline": ("invalid_pipeline", 400),
    "InvalidPart": ("invalid_part", 400),
    "NotSealable": ("not_sealable", 400),
    "RunsOnSpark": ("runs_on_spark", 400),
    "SecretInOption": ("secret_in_option", 400),
    "UnknownPipeline": ("unknown_pipeline", 404),
    "UnknownLoad": ("unknown_load", 404),
    "TopicRecreated": ("topic_recreated", 409),
    "StaleLoad": ("stale_load", 409),
    "SchemaChanged": ("schema_changed", 409),
    "NodeMismatch": ("node_mismatch", 409),
    "InvalidEvent": ("invalid_event", 400),
    "SnapshotGone": ("snapshot_gone", 410),
    "MissingRow": ("missing_row", 422),
    "PayloadMismatch": ("payload_mismatch", 422),
    "TooManyRejects": ("too_many_rejects", 422),
    "JavaMissing": ("java_missing", 500),
    "SparkMissing": ("spark_missing", 500),
    "SparkFailed": ("spark_failed", 500),
}


def test_codes_are_stable() -> None:
    """Programs match on them: a code may be added, never changed."""
    found = {n: c for n, c in vars(e).items() if isinstance(c, type) and issubclass(c, e.TablecastError)}
    found.pop("TablecastError")
    assert {name: (cls.code, cls.status) for name, cls in found.items()} == CODES


def test_every_error_stands_in_the_tree() -> None:
    assert e.__doc__ is not None
    assert [name for name in CODES if name not in e.__doc__] == []


def test_only_what_may_work_the_second_time_is_retryable() -> None:
    retryable = {name for name in CODES if getattr(e, name).retryable}
    assert retryable == {"TransactionConflict", "Overloaded", "Unreachable", "TooManyRequests", "RateLimited"}


# --- values --------------------------------------------------------------------------------------------------

WRONG_VALUES: dict[str, list[tuple[Any, str]]] = {
    "flag": [(2, "true or false"), ("maybe", "true or false")],
    "small": [(40_000, "-32768..32767"), ("ten", "not a whole number"), (1.5, "SMALLINT")],
    "whole": [(2**31, "-2147483648..2147483647"), ("x", "not a whole number"), (True, "INT")],
    "big": [(2**63, "9223372036854775807"), (b"1", "BIGINT")],
    "single": [("one", "not a number"), (1e39, "FLOAT")],
    "twice": [("one", "not a number"), (math.nan, "DOUBLE"), ([], "DOUBLE")],
    "price": [("12345.678", "6 digits"), (math.inf, "DECIMAL(6,2)"), ("dear", "DECIMAL(6,2)")],
    "label": [(5, "expected a string"), ("\ud800", "Unicode")],
    "raw": [("a text", "expected bytes"), (5, "expected bytes")],
    "doc": [("{bad", "not JSON"), ({1: object()}, "JSON")],
    "at": [("yesterday", "ISO 8601"), (5, "TIMESTAMP")],
    "day": [("2024-13-01", "ISO 8601"), (5, "DATE")],
    "clock": [("25:00", "ISO 8601"), (5, "TIME")],
    "ref": [("not-a-uuid", "expected a UUID"), (b"short", "UUID")],
}


@pytest.mark.parametrize(
    ("column", "value", "right"),
    [(column, value, right) for column, cases in WRONG_VALUES.items() for value, right in cases],
)
def test_wrong_type(db: Database, column: str, value: Any, right: str) -> None:
    with refused(db, e.TypeMismatch, column, right):
        db.execute(f"INSERT INTO app.things (id, {column}) VALUES (9, ?)", [value])
    with refused(db, e.TypeMismatch, column, right):
        db.insert("app.things", [{"id": 8}, {"id": 9, column: value}])
    with refused(db, e.TypeMismatch, column, right):
        db.insert("app.things", [{"id": 1, column: value}], mode="upsert")


def test_every_type_has_a_wrong_value() -> None:
    named = SCHEMA.split("app.things (")[1].split("CHECK")[0]
    columns = [part.split()[0] for part in named.replace("(6,2)", "").split(",") if part.strip()]
    assert set(columns) - {"id"} == set(WRONG_VALUES)


@pytest.mark.parametrize(
    ("column", "literal"),
    [
        ("flag", "'maybe'"), ("small", "40000"), ("whole", "'x'"), ("single", "'one'"), ("price", "12345.678"),
        ("label", "5"), ("raw", "5"), ("doc", "'{bad'"), ("at", "'yesterday'"), ("day", "'2024-13-01'"),
        ("clock", "'25:00'"), ("ref", "'x'"),
    ],
)  # fmt: skip
def test_wrong_type_in_an_update(db: Database, column: str, literal: str) -> None:
    with refused(db, e.TypeMismatch, column):
        db.execute(f"UPDATE app.things SET {column} = {literal} WHERE id = 2")


def test_wrong_type_in_arrow(db: Database) -> None:
    table = pa.table({"id": [7, 8], "whole": ["1", "two"]})
    with refused(db, e.TypeMismatch, "whole", "int32"):
        db.insert("app.things", table)


def test_null_in_not_null(db: Database) -> None:
    for call in (
        lambda: db.execute("INSERT INTO app.things (id, label) VALUES (9, NULL)"),
        lambda: db.execute("UPDATE app.things SET label = NULL WHERE id > 1"),
        lambda: db.insert("app.things", [{"id": 9, "label": None}]),
    ):
        with refused(db, e.NotNullViolation, "label", "app.things", "give it a value"):
            call()


def test_a_primary_key_is_never_null(db: Database) -> None:
    with refused(db, e.NotNullViolation, "id"):
        db.execute("INSERT INTO app.things (id) VALUES (NULL)")
    with refused(db, e.NotNullViolation, "id"):
        db.execute("UPDATE app.things SET id = NULL WHERE id = 1")


def test_duplicate_key(db: Database) -> None:
    with refused(db, e.DuplicateKey, "app.things", "id = 2"):
        db.execute("INSERT INTO app.things (id) VALUES (2)")
    with refused(db, e.DuplicateKey, "id = 9"):
        db.execute("INSERT INTO app.things (id) VALUES (9), (9)")
    with refused(db, e.DuplicateKey, "id = 3"):
        db.execute("UPDATE app.things SET id = 3 WHERE id = 1")


@pytest.mark.parametrize("at", [0, 500, 999])
def test_a_duplicate_among_a_thousand_rows(db: Database, at: int) -> None:
    rows: list[dict[str, Any]] = [{"id": 1000 + i} for i in range(1000)]
    rows[at] = {"id": 3}
    with refused(db, e.DuplicateKey, "id = 3"):
        db.insert("app.things", rows)
    values = ", ".join(f"({row['id']})" for row in rows)
    with refused(db, e.DuplicateKey, "id = 3"):
        db.execute(f"INSERT INTO app.things (id) VALUES {values}")


def test_a_thousand_rows_with_one_wrong_value(db: Database) -> None:
    rows = [{"id": 1000 + i, "whole": 1 if i != 777 else "x"} for i in range(1000)]
    with refused(db, e.TypeMismatch, "whole"):
        db.insert("app.things", rows)


def test_rows_that_do_not_fit_their_columns(db: Database) -> None:
    for call, words in (
        (lambda: db.insert("app.open", [(8, "a"), (9,)]), ["2 values", "id, v"]),
        (lambda: db.insert("app.open", [(9, "a", "b")]), ["2 values", "not 3"]),
        (lambda: db.insert("app.open", [{"id": 8}, (9, "a")]), ["mappings", "tuple"]),
        (lambda: db.insert("app.open", [(9, 9)], columns=["id", "id"]), ["'id'", "twice"]),
        (lambda: db.insert("app.open", [(1, 2)], mode="delete"), ["1 values", "not 2"]),
        (lambda: db.insert("app.open", [{"v": "a"}], mode="delete"), ["'id'", "app.open"]),
    ):
        with refused(db, e.InvalidRequest, *words):
            call()
    for mode in ("insert", "upsert", "delete"):
        with refused(db, e.UnknownColumn, "nope", "app.open", "id, v"):
            db.insert("app.open", [{"id": 9, "nope": 1}], mode=mode)


def test_check_violation(db: Database) -> None:
    for call in (
        lambda: db.execute("INSERT INTO app.things (id, whole) VALUES (8, 1), (9, 100)"),
        lambda: db.execute("UPDATE app.things SET whole = whole + 75"),
        lambda: db.insert("app.things", [{"id": 1, "whole": 500}], mode="upsert"),
        lambda: db.execute("INSERT INTO app.things (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET whole = 500"),
    ):
        with refused(db, e.CheckViolation, "whole < 100", "app.things"):
            call()


def test_a_row_that_is_too_large(db: Database) -> None:
    huge = "x" * 1_100_000
    for call in (
        lambda: db.execute("INSERT INTO app.things (id, label) VALUES (9, ?)", [huge]),
        lambda: db.execute("UPDATE app.things SET label = ?", [huge]),
        lambda: db.insert("app.things", [{"id": 8}, {"id": 9, "label": huge}]),
        lambda: db.insert("app.things", [{"id": 1, "label": huge}], mode="upsert"),
        lambda: db.execute("INSERT INTO app.things (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET label = ?", [huge]),
    ):
        with refused(db, e.TooLarge, "app.things", "1048576"):
            call()


def test_an_upsert_that_makes_a_row_too_large(db: Database) -> None:
    """Neither the row that is there nor the one that comes is over the limit: what they make together is."""
    db.execute("CREATE TABLE app.notes (id INT PRIMARY KEY, a TEXT, b TEXT)")
    db.insert("app.notes", [{"id": 1, "a": "x" * 700_000}])
    with refused(db, e.TooLarge, "app.notes", "1048576"):
        db.insert("app.notes", [{"id": 1, "b": "y" * 700_000}], mode="upsert")


def test_a_filter_that_fails_for_a_row_refuses_the_write(db: Database) -> None:
    """Skipping the row would lose an event, publishing it would break the filter: the write is refused, by name."""
    db.execute("ALTER TOPIC app.jobs ADD SOURCE app.things ON ANY WHERE big + 1 > 0")
    with refused(db, e.ExpressionError, "app.jobs", "big + 1", "overflows"):
        db.execute("INSERT INTO app.things (id, big) VALUES (8, 1), (9, ?)", [2**63 - 1])
    db.execute("INSERT INTO app.things (id, big) VALUES (8, 1)")
    with refused(db, e.ExpressionError, "app.jobs"):
        db.execute("UPDATE app.things SET big = ? WHERE id = 8", [2**63 - 1])


def test_a_partition_key_that_fails_for_a_row_refuses_the_write(db: Database) -> None:
    db.execute("ALTER TOPIC app.jobs ADD SOURCE app.things ON ANY PARTITION BY big * 2")
    with refused(db, e.ExpressionError, "app.jobs", "PARTITION BY", "overflows"):
        db.execute("INSERT INTO app.things (id, big) VALUES (9, ?)", [2**62])


def test_a_value_that_overflows_in_an_update(db: Database) -> None:
    db.execute("UPDATE app.things SET big = ? WHERE id = 3", [2**63 - 1])
    with refused(db, e.ExpressionError, "big + 1", "BIGINT"):
        db.execute("UPDATE app.things SET big = big + 1, label = 'changed'")


# --- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error", "words"),
    [
        ("SELECT nope FROM app.things", e.UnknownColumn, ["nope"]),
        ("SELECT * FROM app.things WHERE nope = 1", e.UnknownColumn, ["nope"]),
        ("INSERT INTO app.things (nope) VALUES (1)", e.UnknownColumn, ["nope", "app.things", "it has: id, flag"]),
        ("UPDATE app.things SET nope = 1", e.UnknownColumn, ["nope", "app.things"]),
        ("DELETE FROM app.things WHERE nope = 1", e.UnknownColumn, ["nope", "app.things"]),
        ("INSERT INTO app.things (id) VALUES (9) RETURNING nope", e.UnknownColumn, ["nope"]),
        ("SELECT * FROM app.thing", e.UnknownTable, ["app.thing", "did you mean app.things?"]),
        ("INSERT INTO app.thing VALUES (1)", e.UnknownTable, ["app.thing", "did you mean app.things?"]),
        ("DROP TABLE app.nope", e.UnknownTable, ["app.nope"]),
        ("DESCRIBE app.nope", e.UnknownTable, ["app.nope"]),
        ("ALTER TABLE app.nope ADD COLUMN a INT", e.UnknownTable, ["app.nope"]),
        ("SELECT * FROM system.nope", e.UnknownTable, ["system.nope", "topic_groups"]),
        ("CONSUME FROM app.event", e.UnknownTopic, ["app.event", "did you mean app.events?"]),
        ("DROP TOPIC app.nope", e.UnknownTopic, ["app.nope"]),
        ("CLEAR TOPIC app.nope", e.UnknownTopic, ["app.nope"]),
        ("DESCRIBE TOPIC app.nope", e.UnknownTopic, ["app.nope"]),
        ("ALTER TOPIC app.nope ADD SOURCE app.things ON ANY", e.UnknownTopic, ["app.nope"]),
        ("ALTER TOPIC app.nope SET (retention_seconds = 1)", e.UnknownTopic, ["app.nope"]),
        ("REDRIVE TOPIC app.nope ALL", e.UnknownTopic, ["app.nope"]),
        ("SELECT * FROM nope.things", e.UnknownNamespace, ["nope", "app, default", "CREATE NAMESPACE nope"]),
        ("CREATE TABLE nope.t (id INT PRIMARY KEY)", e.UnknownNamespace, ["nope", "CREATE NAMESPACE nope"]),
        ("CREATE TOPIC nope.t", e.UnknownNamespace, ["nope", "CREATE NAMESPACE nope"]),
        ("DROP NAMESPACE nope", e.UnknownNamespace, ["nope"]),
        ("NACK app.events GROUP 'nope' OFFSET 0", e.UnknownGroup, ["nope", "app.events", "first CONSUME, ACK or RESET"]),
        ("ALTER TOPIC app.events DROP SOURCE app.open", e.UnknownSource, ["app.open", "app.events"]),
        ("ALTER TOPIC app.brief DROP SOURCE app.things ON DELETE", e.UnknownSource, ["app.things", "DELETE"]),
    ],
)  # fmt: skip
def test_unknown_names(db: Database, sql: str, error: type[e.TablecastError], words: list[str]) -> None:
    with refused(db, error, *words):
        db.execute(sql)


def test_an_unknown_job(db: Database) -> None:
    with refused(db, e.InvalidRequest, "sweep", "retention, expiry, claims"):
        db.run_job("sweep")


def test_an_unknown_mode(db: Database) -> None:
    with refused(db, e.InvalidRequest, "replace", "insert, upsert, delete"):
        db.insert("app.things", [{"id": 9}], mode="replace")


# --- definitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error", "words"),
    [
        ("CREATE TABLE app.t (id INT)", e.InvalidSchema, ["app.t", "PRIMARY KEY"]),
        ("CREATE STREAM TABLE app.t (id INT PRIMARY KEY)", e.InvalidSchema, ["app.t", "TTL_SECONDS"]),
        ("CREATE TABLE app.t (id INT PRIMARY KEY, id INT)", e.InvalidSchema, ["app.t", "id"]),
        ("CREATE TABLE app.t (id NUMBER9 PRIMARY KEY)", e.InvalidSchema, ["NUMBER9", "BOOLEAN", "UUID"]),
        ("CREATE TABLE app.t (id DECIMAL(50,2) PRIMARY KEY)", e.InvalidSchema, ["DECIMAL(50,2)", "38"]),
        ("CREATE TABLE app.t (id JSON PRIMARY KEY)", e.InvalidSchema, ["id", "JSON"]),
        ("CREATE TABLE app.t (id INT, PRIMARY KEY (nope))", e.InvalidSchema, ["nope"]),
        ("CREATE TABLE app.t (id INT PRIMARY KEY, a INT DEFAULT 'x')", e.InvalidSchema, ["'a'", "INT", "'x'"]),
        ("CREATE TABLE app.t (id INT PRIMARY KEY, a INT DEFAULT NOW())", e.InvalidSchema, ["a", "TIMESTAMP"]),
        ("CREATE TABLE app.t (id INT PRIMARY KEY, CHECK (nope > 1))", e.UnknownColumn, ["nope"]),
        ("CREATE TABLE app.t (id INT PRIMARY KEY, CHECK (id))", e.TypeMismatch, ["BOOLEAN", "id"]),
        ("CREATE TABLE app.t (id INT PRIMARY KEY) WITH (COLOR = 'red')", e.InvalidSchema, ["COLOR", "TTL_SECONDS"]),
        ("CREATE TABLE app.things (id INT PRIMARY KEY)", e.AlreadyExists, ["app.things"]),
        ("CREATE TABLE system.t (id INT PRIMARY KEY)", e.InvalidSchema, ["system"]),
        ("ALTER TABLE app.things ADD COLUMN whole INT", e.AlreadyExists, ["whole", "app.things"]),
        ("ALTER TABLE app.things ADD COLUMN a INT NOT NULL", e.InvalidSchema, ["'a'", "DEFAULT"]),
        ("ALTER TABLE app.things ADD COLUMN a TIMESTAMP DEFAULT NOW()", e.InvalidSchema, ["'a'", "literal"]),
        ("CREATE NAMESPACE app", e.AlreadyExists, ["app"]),
        ("DROP NAMESPACE app", e.InUse, ["app", "drop them first"]),
        ("CREATE TOPIC app.t PARTITIONS 0", e.InvalidTopic, ["app.t", "1 to 1024", "0"]),
        ("CREATE TOPIC app.t PARTITIONS 10000", e.InvalidTopic, ["app.t", "1 to 1024", "10000"]),
        ("CREATE TOPIC app.events", e.AlreadyExists, ["app.events"]),
        ("CREATE TOPIC app.t ALIAS 'happened'", e.AlreadyExists, ["happened", "app.events", "one space"]),
        ("CREATE TOPIC app.t ALIAS 'app.events'", e.InvalidTopic, ["app.events", "letters"]),
        ("CREATE TOPIC app.t WITH (max_deliveries = 3)", e.InvalidTopic, ["app.t", "dead_letter"]),
        ("CREATE TOPIC app.t WITH (dead_letter = 'app.t')", e.InvalidTopic, ["app.t", "own"]),
        ("CREATE TOPIC app.t WITH (dead_letter = 'nope.t')", e.UnknownNamespace, ["nope"]),
        ("CREATE TOPIC app.t WITH (retention_seconds = -1)", e.InvalidTopic, ["retention_seconds", "NULL"]),
        ("CREATE TOPIC app.t WITH (colour = 1)", e.InvalidTopic, ["colour", "retention_seconds"]),
        ("ALTER TOPIC app.jobs SET (dead_letter = NULL)", e.InvalidTopic, ["app.jobs", "dead_letter"]),
        ("ALTER TOPIC app.events ADD SOURCE app.things ON INSERT", e.DuplicateSource, ["app.things", "INSERT"]),
        ("ALTER TOPIC app.events ADD SOURCE app.nope ON INSERT", e.UnknownTable, ["app.nope"]),
        ("ALTER TOPIC app.brief ADD SOURCE app.things ON ANY", e.DuplicateSource, ["app.things", "INSERT"]),
        ("DROP TABLE app.things", e.InUse, ["app.things", "app.events", "app.brief", "CASCADE"]),
        ("DROP TOPIC app.dead", e.InUse, ["app.dead", "app.jobs"]),
        ("REDRIVE TOPIC app.events ALL", e.InvalidRequest, ["offset 0", "not a dead letter"]),
        ("REDRIVE TOPIC app.dead OFFSET 5", e.OffsetOutOfRange, ["app.dead", "5"]),
    ],
)  # fmt: skip
def test_definitions_that_make_no_sense(
    db: Database, sql: str, error: type[e.TablecastError], words: list[str]
) -> None:
    with refused(db, error, *words):
        db.execute(sql)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("WHERE nope = 1", e.UnknownColumn, ["nope", "app.things"]),
        ("WHERE whole + 1", e.TypeMismatch, ["BOOLEAN", "whole + 1", "INT"]),
        ("WHERE label", e.TypeMismatch, ["BOOLEAN", "label"]),
        ("WHERE whole = 'x'", e.TypeMismatch, ["'x'", "INT"]),
        ("WHERE whole >", e.SqlSyntaxError, ["line 1", ">"]),
        ("WHERE whole = 1 AND", e.SqlSyntaxError, ["AND"]),
        ("WHERE (whole = 1", e.SqlSyntaxError, ["line 1"]),
        ("WHERE (SELECT 1) = 1", e.UnsupportedSql, ["subquery"]),
        ("WHERE sum(whole) > 1", e.UnsupportedSql, ["sum"]),
        ("WHERE random() > 0.5", e.UnsupportedSql, ["RANDOM", "COALESCE"]),
        ("WHERE whole = ?", e.UnsupportedSql, ["parameters"]),
        ("PARTITION BY nope", e.UnknownColumn, ["nope", "app.things"]),
        ("PARTITION BY doc", e.TypeMismatch, ["doc", "JSON"]),
        ("PARTITION BY NULL", e.InvalidTopic, ["NULL"]),
        ("WITH (payload = 'half')", e.InvalidTopic, ["half", "key, full, diff"]),
        ("WITH (colour = 1)", e.InvalidTopic, ["colour", "payload, backfill"]),
    ],
)  # fmt: skip
def test_sources_that_make_no_sense(db: Database, source: str, error: type[e.TablecastError], words: list[str]) -> None:
    with refused(db, error, *words):
        db.execute(f"ALTER TOPIC app.jobs ADD SOURCE app.things ON INSERT {source}")


def test_an_op_that_does_not_exist(db: Database) -> None:
    with refused(db, e.SqlSyntaxError, "TRUNCATE", "INSERT, UPDATE, DELETE or ANY"):
        db.execute("ALTER TOPIC app.jobs ADD SOURCE app.things ON TRUNCATE")
    with refused(db, e.InvalidTopic, "backfill", "ON INSERT"):
        db.execute("ALTER TOPIC app.jobs ADD SOURCE app.things ON UPDATE WITH (backfill = TRUE)")


def test_dropping_what_feeds_a_topic_cascades_when_asked(db: Database) -> None:
    before = len(db.consume("app.events", start=tablecast.EARLIEST).messages)
    db.execute("DROP TABLE app.things CASCADE")
    assert db.execute("SELECT * FROM system.topic_sources").rows == []
    with pytest.raises(e.UnknownTable):
        db.execute("SELECT * FROM app.things")
    assert len(db.consume("app.events", start=tablecast.EARLIEST).messages) == before
    assert db.verify().sound


# --- positions -----------------------------------------------------------------------------------------------


def test_positions_that_do_not_exist(db: Database) -> None:
    db.consume("app.events", group="g", limit=1)
    far = Start(StartKind.OFFSET, 99)
    for call, words in (
        (lambda: db.ack("app.events", "g", 50), ["offset 50", "below 1"]),
        (lambda: db.ack("app.events", "g", offsets=[0, 50]), ["offset 50"]),
        (lambda: db.nack("app.events", "g", [2]), ["offset 2"]),
        (lambda: db.execute("RESET GROUP 'g' ON app.events TO OFFSET 99"), ["99", "app.events", "holds 0 to 2"]),
        (lambda: db.consume("app.events", start=far), ["99", "app.events", "holds 0 to 2"]),
        (lambda: db.consume("app.events", group="new", start=far), ["99", "holds 0 to 2"]),
        (lambda: db.read_arrow("app.events", start=far), ["99"]),
    ):
        with refused(db, e.OffsetOutOfRange, *words):
            call()


def test_a_nack_of_what_is_not_claimed(db: Database) -> None:
    db.consume("app.events", group="g", limit=2, consumer="one")
    db.ack("app.events", "g", 0, consumer="one")
    with refused(db, e.Conflict, "offset 0", "claim"):
        db.nack("app.events", "g", [0])
    with refused(db, e.Conflict, "offset 1", "'two'"):
        db.nack("app.events", "g", [1], consumer="two")
    with refused(db, e.Conflict, "offset 0"):
        db.nack("app.events", "g", [0, 1])


def test_a_partition_that_does_not_exist(db: Database) -> None:
    db.consume("app.jobs", group="g")
    for call in (
        lambda: db.consume("app.jobs", partition=2),
        lambda: db.consume("app.jobs", group="g", partition=-1),
        lambda: db.ack("app.jobs", "g", 0, partition=2),
        lambda: db.read_arrow("app.jobs", partition=2),
        lambda: db.execute("RESET GROUP 'g' ON app.jobs PARTITION 2 TO EARLIEST"),
    ):
        with refused(db, e.InvalidRequest, "app.jobs", "0 to 1"):
            call()


def test_an_ack_that_does_not_say_what(db: Database) -> None:
    db.consume("app.events", group="g")
    with refused(db, e.InvalidRequest, "upto_offset", "offsets"):
        db.ack("app.events", "g")
    with refused(db, e.InvalidRequest, "upto_offset", "offsets"):
        db.ack("app.events", "g", 1, offsets=[1])
    with refused(db, e.InvalidRequest, "app.jobs", "PARTITION"):
        db.execute("ACK app.jobs GROUP 'g' UPTO OFFSET 0")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"limit": 0}, ["limit 0", "1 to 100000"]),
        ({"limit": 10**6}, ["1 to 100000"]),
        ({"timeout_seconds": -1}, ["timeout_seconds"]),
        ({"group": "g", "visibility_seconds": 0}, ["visibility_seconds"]),
        ({"group": ""}, ["group", "1 to 255"]),
        ({"group": "$redrive"}, ["$"]),
        ({"group": "g" * 300}, ["1 to 255"]),
        ({"group": "g", "consumer": "c" * 300}, ["consumer", "256"]),
    ],
)
def test_consuming_with_settings_out_of_range(db: Database, settings: dict[str, Any], words: list[str]) -> None:
    with refused(db, e.InvalidRequest, *words):
        db.consume("app.events", **settings)


def test_what_retention_took_is_told(db: Database, clock: FakeClock) -> None:
    """A reader without a group, a group that is behind, and one that asked to go on regardless."""
    for group in ("behind", "easy", "moved"):
        db.consume("app.brief", group=group, limit=1, consumer="c")
        db.nack("app.brief", group, [0])
    clock.advance(11_000)
    assert db.run_job("retention").count == 3
    db.execute("INSERT INTO app.things (id) VALUES (4)")
    with refused(db, e.OffsetOutOfRange, "offset 1 is no longer kept", "partition 0 of app.brief holds 3 to 3"):
        db.consume("app.brief", start=Start(StartKind.OFFSET, 1))
    with refused(db, e.OffsetOutOfRange, "[0, 3)", "RESET GROUP", "auto_offset_reset"):
        db.consume("app.brief", group="behind")
    easy = db.consume("app.brief", group="easy", auto_offset_reset=True)
    assert [m.offset for m in easy.messages] == [3]
    assert easy.skipped == ((0, 0, 3),)
    db.execute("RESET GROUP 'moved' ON app.brief TO EARLIEST")
    assert [m.offset for m in db.consume("app.brief", group="moved").messages] == [3]
    with refused(db, e.OffsetOutOfRange, "offset 2 is no longer kept", "holds 3 to 3"):
        db.execute("RESET GROUP 'moved' ON app.brief TO OFFSET 2")


# --- SQL -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error", "words"),
    [
        ("", e.SqlSyntaxError, ["no statement"]),
        ("  -- nothing but a remark", e.SqlSyntaxError, ["no statement"]),
        (";;;", e.SqlSyntaxError, ["no statement"]),
        ("hello world", e.SqlSyntaxError, ["line 1, column 1", "hello", "SELECT"]),
        ("\x00", e.SqlSyntaxError, ["NUL"]),
        ("SELECT 'open", e.SqlSyntaxError, ["not closed"]),
        ("SELECT \ud800", e.SqlSyntaxError, ["Unicode"]),
        ("SELECT '" + "x" * 1_000_000 + "'", e.TooLarge, ["1000009", "1000000"]),
        ("SELECT " + "1+" * 125_000 + "1", e.TooLarge, ["250000"]),
        ("SELECT " + "(" * 10_000 + "1" + ")" * 10_000, e.SqlSyntaxError, ["nested too deeply", "32"]),
        ("SELECT 1" + " UNION SELECT 1" * 3_000, e.SqlSyntaxError, ["nested too deeply"]),
        ("SELECT " + "CASE WHEN TRUE THEN " * 2_000 + "1" + " END" * 2_000, e.SqlSyntaxError, []),
        ("SELECT " + "NOT " * 20_000 + "TRUE", e.SqlSyntaxError, []),
        ("INSERT INTO app.things (id, whole) VALUES (9)", e.SqlSyntaxError, ["1 values", "2 columns"]),
        ("INSERT INTO app.things (id, id) VALUES (9, 9)", e.SqlSyntaxError, ["id"]),
        ("INSERT INTO app.things (id) VALUES (9); SELEC 2", e.SqlSyntaxError, ["statement 2 of 2", "SELEC"]),
        ("INSERT INTO app.things (id) VALUES (9); DELETE app.things", e.UnsupportedSql, ["DELETE FROM", "statement 2 of 2"]),
        ("COPY app.things FROM 'x' (FORMAT csv)", e.RunsOnSpark, ["Spark"]),
        ("ATTACH 'other.db'", e.UnsupportedSql, ["ATTACH"]),
        ("COMMIT", e.TransactionState, ["COMMIT without BEGIN"]),
        ("ROLLBACK", e.TransactionState, ["ROLLBACK without BEGIN"]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)  # fmt: skip
def test_sql_that_is_not(db: Database, sql: str, error: type[e.TablecastError], words: list[str]) -> None:
    with refused(db, error, *words):
        db.execute(sql)


@pytest.mark.parametrize(
    ("sql", "given", "words"),
    [
        ("INSERT INTO app.things (id, whole) VALUES (?, ?)", [9], ["takes 2", "1 given"]),
        ("INSERT INTO app.things (id) VALUES (9)", [9], ["takes 0", "1 given"]),
        ("UPDATE app.things SET whole = ? WHERE id = ?", [1, 2, 3], ["takes 2", "3 given"]),
        ("SELECT * FROM app.things WHERE id = ?", [], ["takes 1", "0 given"]),
        ("INSERT INTO app.things (id) VALUES (?); DELETE FROM app.things WHERE id = ?", [9], ["takes 2", "1 given"]),
    ],
)
def test_the_wrong_number_of_parameters(db: Database, sql: str, given: list[Any], words: list[str]) -> None:
    with refused(db, e.InvalidRequest, *words):
        db.execute(sql, given)


def test_the_right_number_of_parameters_after_a_wrong_one(db: Database) -> None:
    """A prepared statement checks each time."""
    sql = "INSERT INTO app.things (id) VALUES (?)"
    db.execute(sql, [7])
    with refused(db, e.InvalidRequest, "takes 1", "2 given"):
        db.execute(sql, [8, 9])
    db.execute(sql, [8])


def test_several_statements_with_one_that_fails(db: Database) -> None:
    """Each statement is a transaction of its own, unless BEGIN says otherwise: what came before the failure stays."""
    with pytest.raises(e.UnknownTable):
        db.execute("INSERT INTO app.things (id) VALUES (9); INSERT INTO app.nope VALUES (1)")
    assert db.execute("SELECT id FROM app.things WHERE id = 9").rows == [(9,)]
    session = db.session("root", "system")
    with refused(db, e.UnknownTable, "app.nope"):
        session.execute("BEGIN; INSERT INTO app.things (id) VALUES (10); INSERT INTO app.nope VALUES (1); COMMIT")
    assert session.in_transaction
    session.rollback()


# --- transactions and retries --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE app.t (id INT PRIMARY KEY)",
        "DROP TABLE app.open",
        "ALTER TABLE app.open ADD COLUMN a INT",
        "CREATE TOPIC app.t",
        "CLEAR TOPIC app.events",
        "ALTER TOPIC app.jobs ADD SOURCE app.open ON ANY",
        "CONSUME FROM app.events GROUP 'g'",
        "ACK app.events GROUP 'g' UPTO OFFSET 0",
        "RESET GROUP 'g' ON app.events TO LATEST",
        "BEGIN",
    ],
)
def test_what_is_not_possible_inside_a_transaction(db: Database, sql: str) -> None:
    session = db.session("root", "system")
    session.begin()
    with refused(db, e.TransactionState, "COMMIT or ROLLBACK"):
        session.execute(sql)
    session.rollback()


def test_an_idempotency_key_for_something_else(db: Database) -> None:
    db.execute("INSERT INTO app.things (id) VALUES (9)", idempotency_key="k")
    for call in (
        lambda: db.execute("INSERT INTO app.things (id) VALUES (10)", idempotency_key="k"),
        lambda: db.execute("DELETE FROM app.things", idempotency_key="k"),
        lambda: db.insert("app.things", [{"id": 9}], idempotency_key="k"),
    ):
        with refused(db, e.IdempotencyMismatch, "'k'", "new key"):
            call()


@pytest.mark.parametrize("key", ["", "k" * 300, "\ud800"])
def test_an_idempotency_key_that_is_none(db: Database, key: str) -> None:
    with refused(db, e.InvalidRequest, "idempotency key"):
        db.execute("INSERT INTO app.things (id) VALUES (9)", idempotency_key=key)


def test_an_idempotency_key_for_a_definition(db: Database) -> None:
    with refused(db, e.InvalidRequest, "INSERT, UPDATE, DELETE"):
        db.execute("CREATE TABLE app.t (id INT PRIMARY KEY)", idempotency_key="k")


# --- files ---------------------------------------------------------------------------------------------------


def test_a_path_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(e.NotADatabase, match=str(tmp_path)):
        tablecast.open(tmp_path)
    with pytest.raises(e.NotADatabase, match=r"notes\.txt"):
        tablecast.open(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_path_that_holds_nothing_when_nothing_may_be_made(tmp_path: Path) -> None:
    with pytest.raises(e.NotADatabase, match="nothing"):
        tablecast.open(tmp_path / "nothing", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_newer_format(tmp_path: Path) -> None:
    tablecast.open(tmp_path / "db").close()
    marker = tmp_path / "db" / MARKER
    written = marker.read_bytes()
    marker.write_bytes(msgspec.json.encode(msgspec.json.decode(written) | {"format": 99}))
    with pytest.raises(e.FormatTooNew, match="format 99"):
        tablecast.open(tmp_path / "db")
    marker.write_bytes(written)
    tablecast.open(tmp_path / "db", create=False).close()


def test_two_processes(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "db") as db:
        db.execute("CREATE NAMESPACE app")
        program = (
            "import sys, tablecast\n"
            "from tablecast.errors import DatabaseLocked\n"
            "try:\n    tablecast.open(sys.argv[1])\n"
            "except DatabaseLocked as error:\n    print(error.code, error.message)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "db")], capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("database_locked"), done.stderr
        assert str(tmp_path / "db") in done.stdout
        with pytest.raises(e.DatabaseLocked):
            tablecast.open(tmp_path / "db")
        db.execute("CREATE NAMESPACE still_mine")


@pytest.mark.parametrize("durability", ["sometimes", "interval(0)", "interval()", ""])
def test_a_durability_that_is_none(durability: str) -> None:
    with pytest.raises(e.InvalidRequest, match="fsync"):
        tablecast.open(":memory:", durability=durability)


AFTER_CLOSE: list[Callable[[Database], Any]] = [
    lambda db: db.execute("SELECT 1"),
    lambda db: db.execute("SELECT * FROM app.things WHERE id = 1"),
    lambda db: db.execute("INSERT INTO app.things (id) VALUES (9)"),
    lambda db: db.execute_all("SELECT 1; SELECT 2"),
    lambda db: db.query("SELECT 1"),
    lambda db: db.insert("app.things", [{"id": 9}]),
    lambda db: db.consume("app.events"),
    lambda db: db.consume("app.events", group="g", timeout_seconds=1),
    lambda db: db.read_arrow("app.events"),
    lambda db: db.ack("app.events", "g", 0),
    lambda db: db.nack("app.events", "g", [0]),
    lambda db: db.release("app.events", "g", "c"),
    lambda db: db.extend("app.events", "g", "c", 1),
    lambda db: db.run_job("retention"),
    lambda db: db.backup("nowhere"),
    lambda db: db.verify(),
    lambda db: db.session("ann").execute("SELECT 1"),
]


@pytest.mark.parametrize("call", AFTER_CLOSE)
def test_use_after_close(db: Database, call: Callable[[Database], Any]) -> None:
    db.execute("SELECT * FROM app.things WHERE id = 1")  # also what was prepared before
    db.close()
    db.close()
    with pytest.raises(e.DatabaseClosed):
        call(db)


# --- what a user may not -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "needed"),
    [
        ("SELECT * FROM app.things", "service"),
        ("SELECT * FROM app.closed", "dba"),
        ("SELECT * FROM app.open JOIN app.things USING (id)", "service"),
        ("SELECT * FROM app.open WHERE id IN (SELECT id FROM app.things)", "service"),
        ("WITH x AS (SELECT * FROM app.things) SELECT * FROM x", "service"),
        ("SELECT v FROM app.open UNION SELECT label FROM app.things", "service"),
        ("INSERT INTO app.prefs SELECT label, label FROM app.things", "service"),
        ("UPDATE app.prefs SET value = (SELECT max(label) FROM app.things)", "service"),
        ("DELETE FROM app.prefs WHERE name IN (SELECT label FROM app.things)", "service"),
        ("INSERT INTO app.open VALUES (1, 'x')", "service"),
        ("UPDATE app.open SET v = 'x'", "service"),
        ("DELETE FROM app.open", "service"),
        ("INSERT INTO app.closed VALUES (1, 'x')", "dba"),
        ("DESCRIBE app.things", "service"),
        ("SELECT * FROM system.tables", "service"),
        ("SELECT * FROM system.topic_groups", "service"),
        ("CONSUME FROM app.events", "service"),
        ("CONSUME FROM happened GROUP 'g'", "service"),
        ("ACK app.events GROUP 'g' UPTO OFFSET 0", "service"),
        ("NACK app.events GROUP 'g' OFFSET 0", "service"),
        ("EXECUTE AS USER 'ann' (SELECT * FROM app.prefs)", "service"),
        ("CREATE NAMESPACE mine", "dba"),
        ("CREATE TABLE app.mine (id INT PRIMARY KEY)", "dba"),
        ("ALTER TABLE app.prefs ADD COLUMN a INT", "dba"),
        ("DROP TABLE app.prefs", "dba"),
        ("CREATE TOPIC app.mine", "dba"),
        ("ALTER TOPIC app.jobs ADD SOURCE app.prefs ON ANY", "dba"),
        ("DROP TOPIC app.brief", "dba"),
        ("CLEAR TOPIC app.events", "dba"),
        ("RESET GROUP 'g' ON app.events TO EARLIEST", "dba"),
        ("REDRIVE TOPIC app.dead ALL", "dba"),
    ],
)  # fmt: skip
def test_what_the_role_user_may_not(db: Database, sql: str, needed: str) -> None:
    with refused(db, e.PermissionDenied, "'eve'", "role user", f"takes {needed}"):
        db.session("eve").execute(sql)


def test_what_the_role_user_may_not_without_sql(db: Database) -> None:
    eve = db.session("eve")
    db.consume("app.events", group="g", consumer="c", limit=1)
    for call in (
        lambda: eve.insert("app.open", [{"id": 1}]),
        lambda: eve.consume("app.events"),
        lambda: eve.read_arrow("app.events"),
        lambda: eve.ack("app.events", "g", 0),
        lambda: eve.nack("app.events", "g", [0]),
        lambda: eve.release("app.events", "g", "c"),
        lambda: eve.extend("app.events", "g", "c", 5),
    ):
        with refused(db, e.PermissionDenied, "'eve'", "service"):
            call()


@pytest.mark.parametrize("sql", ["CREATE TABLE app.mine (id INT PRIMARY KEY)", "CLEAR TOPIC app.events"])
def test_what_the_role_service_may_not(db: Database, sql: str) -> None:
    with refused(db, e.PermissionDenied, "'bot'", "role service", "takes dba"):
        db.session("bot", "service").execute(sql)


def test_an_unknown_role(db: Database) -> None:
    with refused(db, e.InvalidRequest, "emperor", "user, service, dba, system"):
        db.session("eve", "emperor")


# --- somebody else's rows ------------------------------------------------------------------------------------

SECRET = "s3cr3t"

TRICKS = [
    "SELECT * FROM app.prefs",
    "SELECT * FROM app.prefs WHERE name = 'secret'",
    "SELECT * FROM app.prefs WHERE name IN ('secret', 'shared')",
    "SELECT * FROM app.prefs WHERE name >= '' ORDER BY name DESC LIMIT 100",
    "SELECT * FROM app.prefs WHERE name BETWEEN 'a' AND 'z'",
    "SELECT * FROM app.prefs WHERE TRUE OR name = 'secret'",
    "SELECT *, _seq FROM app.prefs",
    "SELECT a.value, b.value FROM app.prefs a JOIN app.prefs b ON TRUE",
    "SELECT * FROM app.open LEFT JOIN app.prefs ON TRUE",
    "SELECT * FROM app.prefs UNION SELECT * FROM app.prefs",
    "SELECT * FROM app.prefs UNION ALL SELECT id::TEXT, page FROM app.visits",
    "WITH x AS (SELECT * FROM app.prefs) SELECT * FROM x",
    "WITH RECURSIVE x AS (SELECT name, value FROM app.prefs UNION SELECT name, value FROM app.prefs) SELECT * FROM x",
    "WITH prefs AS (SELECT 'mine' AS name) SELECT p.* FROM app.prefs p, prefs",
    "SELECT (SELECT max(value) FROM app.prefs WHERE name = 'secret')",
    "SELECT * FROM app.open WHERE EXISTS (SELECT 1 FROM app.prefs WHERE name = 'secret')",
    "SELECT * FROM app.open, LATERAL (SELECT value FROM app.prefs) l",
    "SELECT string_agg(value, ',') FROM app.prefs",
    "SELECT list(value) FROM app.prefs GROUP BY ALL",
    "SELECT value FROM app.prefs QUALIFY row_number() OVER () > 0",
    'SELECT * FROM "app"."prefs"',
    "SELECT * FROM APP.PREFS",
    'SELECT * FROM app."PREFS"',
    'SELECT * FROM "app.prefs"',
    "SELECT * FROM prefs",
    "SELECT * FROM main.prefs",
    "SELECT * FROM memory.main.prefs",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT * FROM duckdb_tables()",
    "SELECT * FROM query('SELECT * FROM app.prefs')",
    "SELECT * FROM query_table('prefs')",
    "SELECT user_id, value FROM app.prefs",
    "SELECT * FROM system.columns",
    "SELECT * FROM app.visits",
    "SELECT * FROM app.visits WHERE id = 1",
    "EXECUTE AS USER 'ann' (SELECT * FROM app.prefs)",
    "execute as user 'ann' (SELECT * FROM app.prefs); SELECT 1",
    "INSERT INTO app.prefs SELECT name || '!', value FROM app.prefs RETURNING *",
    "INSERT INTO app.prefs VALUES ('got', (SELECT max(value) FROM app.prefs)) RETURNING *",
    "INSERT INTO app.prefs VALUES ('secret', '') ON CONFLICT (name) DO UPDATE SET value = value || '?' RETURNING *",
    "INSERT INTO app.prefs VALUES ('secret', '') ON CONFLICT (name) DO NOTHING RETURNING *",
    "UPDATE app.prefs SET value = value || '!' WHERE name = 'secret' RETURNING *",
    "UPDATE app.prefs SET value = value || '!' RETURNING *",
    "UPDATE app.prefs SET value = (SELECT string_agg(value, ',') FROM app.prefs) RETURNING *",
    "UPDATE app.prefs SET name = 'secret' WHERE name = 'mine' RETURNING *",
    "UPDATE app.visits SET page = page || '!' RETURNING *",
    "DELETE FROM app.prefs WHERE name = 'secret' RETURNING *",
    "DELETE FROM app.prefs RETURNING *",
    "DELETE FROM app.visits RETURNING *",
    "BEGIN; UPDATE app.prefs SET value = value || '!' RETURNING *; SELECT * FROM app.prefs; COMMIT",
    "SELECT * FROM app.prefs FOR UPDATE",
    "SELECT * FROM app.prefs; --' OR name = 'secret'",
    "SELECT * FROM app.prefs -- WHERE user_id = 'eve'",
    "EXPLAIN SELECT * FROM app.prefs",
    "DESCRIBE app.prefs",
    "SHOW TABLES",
    "SET user = 'ann'",
]


@pytest.mark.parametrize("user", ["eve", "an", "anna", "ann ", "Ann", "ann\x00", "\x00", "", "ann\x00\x01secret"])
def test_somebody_elses_rows_are_out_of_reach(db: Database, user: str) -> None:
    """Whatever a user sends: no answer and no error holds the other's values, and the other's rows stay as they are."""
    ann, eve = db.session("ann"), db.session(user)
    ann.execute("INSERT INTO app.prefs VALUES ('secret', ?), ('shared', ?)", [SECRET, SECRET])
    ann.execute("INSERT INTO app.visits VALUES (1, ?)", [SECRET])
    db.execute("INSERT INTO app.open VALUES (1, 'open')")
    hers = ann.execute("SELECT *, _seq FROM app.prefs").rows, ann.execute("SELECT *, _seq FROM app.visits").rows
    for trick in TRICKS:
        eve.execute("INSERT INTO app.prefs VALUES ('mine', 'm'), ('shared', 'mine') ON CONFLICT DO NOTHING")
        assert SECRET not in attempt(eve, trick), trick
    assert (
        ann.execute("SELECT *, _seq FROM app.prefs").rows,
        ann.execute("SELECT *, _seq FROM app.visits").rows,
    ) == hers


def attempt(session: tablecast.Session, sql: str) -> str:
    """Everything a user gets to see of it."""
    try:
        return repr([result.rows for result in session.execute_all(sql)])
    except e.TablecastError as error:
        return repr((error.message, error.details))
    finally:
        if session.in_transaction:
            session.rollback()


def test_a_cached_plan_is_not_another_users(db: Database) -> None:
    """The same text from several users, again and again: parsed once, run for each."""
    users = {name: db.session(name) for name in ("ann", "bob", "eve")}
    for name, session in users.items():
        session.execute("INSERT INTO app.prefs VALUES ('who', ?)", [name])
    for sql in (
        "SELECT value FROM app.prefs",
        "SELECT max(value) FROM app.prefs",
        "UPDATE app.prefs SET name = name RETURNING value",
    ):
        for _ in range(3):
            assert [session.execute(sql).scalar() for session in users.values()] == list(users)


def test_execute_as_user_acts_as_that_user_and_no_more(db: Database) -> None:
    bot = db.session("bot", "service")
    assert bot.execute("EXECUTE AS USER 'ann' (INSERT INTO app.prefs VALUES ('k', 'v'))").row_count == 1
    assert bot.execute("EXECUTE AS USER 'ann' (SELECT * FROM app.prefs)").rows == [("k", "v")]
    assert bot.execute("SELECT * FROM app.prefs").rows == []
    with refused(db, e.PermissionDenied, "'ann'", "role user"):
        bot.execute("EXECUTE AS USER 'ann' (SELECT * FROM app.things)")
    with refused(db, e.UnsupportedSql, "EXECUTE AS"):
        bot.execute("EXECUTE AS USER 'ann' (EXECUTE AS USER 'eve' (SELECT 1))")


def test_a_message_of_a_user_table_names_its_user(db: Database) -> None:
    db.execute("ALTER TOPIC app.jobs ADD SOURCE app.prefs ON ANY")
    for user in ("ann", "bob"):
        db.session(user).execute("INSERT INTO app.prefs VALUES ('k', 'v')")
    found = db.consume("app.jobs", start=tablecast.EARLIEST).messages
    assert sorted((m.user_id, m.value["value"]) for m in found) == [("ann", "v"), ("bob", "v")]


def test_times_in_the_far_past_and_future(db: Database) -> None:
    for at in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        db.execute("INSERT INTO app.things (id, at) VALUES (9, ?)", [at])
        assert db.execute("SELECT at FROM app.things WHERE id = 9").scalar() == at
        db.execute("DELETE FROM app.things WHERE id = 9")
