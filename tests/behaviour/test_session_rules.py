"""What a session refuses, it refuses before anything happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tablecast
from tablecast.errors import InvalidRequest, PermissionDenied, TransactionState


@pytest.fixture
def db() -> Iterator[tablecast.Database]:
    with tablecast.open(":memory:") as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
        yield database


@pytest.mark.parametrize("sql", ["DELETE FROM t", "DELETE FROM t RETURNING id", "SELECT 1; DELETE FROM t"])
def test_query_does_not_write(db: tablecast.Database, sql: str) -> None:
    with pytest.raises(InvalidRequest, match="execute"):
        db.query(sql)
    assert db.query("SELECT count(*) FROM t").scalar() == 1


@pytest.mark.parametrize("sql", ["SELECT id FROM t", "SHOW TABLES", "DESCRIBE t", "VALUES (1)"])
def test_query_reads(db: tablecast.Database, sql: str) -> None:
    assert len(db.query(sql)) == 1


def test_an_idempotency_key_inside_a_transaction_is_refused(db: tablecast.Database) -> None:
    with db.transaction() as tx:
        with pytest.raises(TransactionState):
            tx.insert("t", [(2,)], idempotency_key="k")
        with pytest.raises(TransactionState):
            tx.execute("INSERT INTO t VALUES (2)", idempotency_key="k")
    assert db.query("SELECT count(*) FROM t").scalar() == 1


def test_an_unknown_role_is_refused_with_the_known_ones(db: tablecast.Database) -> None:
    with pytest.raises(InvalidRequest, match="user, service, dba, system"):
        db.session("ann", "boss")


def test_topics_are_shown_to_those_who_may_consume_them() -> None:
    with tablecast.open(":memory:") as db:
        db.execute(
            "CREATE TABLE t (id INT PRIMARY KEY); CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY WHERE id > 5"
        )
        ann = db.session("ann", "user")
        for sql in ("SHOW TOPICS", "DESCRIBE TOPIC e"):
            with pytest.raises(PermissionDenied, match="takes service"):
                ann.execute(sql)
            assert len(db.session("billing", "service").execute(sql)) == 1
