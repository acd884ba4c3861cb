"""What a client takes a text for, and that it agrees with the parser where it matters."""

from __future__ import annotations

import pytest

from tablecast.client.statements import Kind, kind_of
from tablecast.sql import statements as s
from tablecast.sql.parse import parse

READS = [
    "SELECT 1",
    "select * from app.t where a = 'x; DELETE FROM app.t'",
    "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
    "(SELECT 1) UNION ALL (SELECT 2)",
    "VALUES (1)",
    "-- first\nSELECT 1; SELECT 2;",
    "/* ; */ SHOW TABLES",
    "DESCRIBE app.t",
    'SELECT 1 AS "a;b"',
    "SELECT $$ ; $$",
]
WRITES = [
    "INSERT INTO app.t VALUES (1)",
    "  insert into app.t values ('a;b') ; ",
    "UPDATE app.t SET a = 'it''s; fine'",
    "DELETE FROM app.t -- ; and more",
    "INSERT INTO app.t VALUES (1) RETURNING a;",
]
OTHERS = [
    "CREATE TABLE app.t (id INT PRIMARY KEY)",
    "INSERT INTO app.t VALUES (1); INSERT INTO app.t VALUES (2)",
    "BEGIN; INSERT INTO app.t VALUES (1); COMMIT",
    "SELECT 1; DELETE FROM app.t",
    "EXECUTE AS USER 'ann' (INSERT INTO app.t VALUES (1))",
    "CONSUME FROM app.events GROUP 'g'",
    "ACK app.events GROUP 'g' UPTO OFFSET 1",
]


@pytest.mark.parametrize("sql", READS)
def test_reads(sql: str) -> None:
    assert kind_of(sql) is Kind.READ
    assert all(isinstance(x, s.Select | s.ShowTables | s.Describe) for x in parse(sql))


@pytest.mark.parametrize("sql", WRITES)
def test_single_writes(sql: str) -> None:
    assert kind_of(sql) is Kind.WRITE
    (statement,) = parse(sql)
    assert isinstance(statement, s.Insert | s.Update | s.Delete)


@pytest.mark.parametrize("sql", OTHERS)
def test_everything_else(sql: str) -> None:
    assert kind_of(sql) is Kind.OTHER
    assert parse(sql)


@pytest.mark.parametrize("sql", ["", ";", "-- nothing", "'"])
def test_no_statement_is_for_the_server_to_refuse(sql: str) -> None:
    assert kind_of(sql) is Kind.OTHER
