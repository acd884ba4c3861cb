"""Idempotency keys belong to their user, and are looked up before anything is planned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import tablecast
from tablecast import Database
from tablecast.errors import DuplicateKey, IdempotencyMismatch, InvalidRequest, PermissionDenied

INSERT = "INSERT INTO t VALUES (?, 'x')"
RETURNING = "INSERT INTO t VALUES (?, 'x') RETURNING id, v"


@pytest.fixture
def db() -> Iterator[Database]:
    with tablecast.open(":memory:") as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT); CREATE USER TABLE mine (id INT PRIMARY KEY)")
        yield database
        assert database.verify().problems == []


def test_two_users_may_choose_the_same_key(db: Database) -> None:
    ann, bob = db.session("ann"), db.session("bob")
    for session in (ann, bob):
        for _ in range(2):
            assert session.execute("INSERT INTO mine VALUES (1)", idempotency_key="k").row_count == 1
            assert session.insert("mine", [(2,)], idempotency_key="rows").row_count == 1
            assert session.execute("UPDATE mine SET id = 3 WHERE id = 2", idempotency_key="update").row_count == 1
        assert session.query("SELECT id FROM mine ORDER BY id").rows == [(1,), (3,)]


def test_a_key_of_the_same_user_is_refused_for_another_request(db: Database) -> None:
    ann = db.session("ann")
    ann.execute("INSERT INTO mine VALUES (1)", idempotency_key="k")
    with pytest.raises(IdempotencyMismatch, match="'k' was used for another request"):
        ann.execute("INSERT INTO mine VALUES (2)", idempotency_key="k")
    assert db.session("bob").execute("INSERT INTO mine VALUES (2)", idempotency_key="k").row_count == 1


GONE = ["DROP TABLE t", "DROP TABLE t; CREATE TABLE t (id INT PRIMARY KEY)"]


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("sql", [INSERT, RETURNING])
def test_a_repeat_is_answered_though_its_table_is_gone_or_another(db: Database, gone: str, sql: str) -> None:
    first = db.execute(sql, [1], idempotency_key="k")
    db.execute(gone)
    again = db.execute(sql, [1], idempotency_key="k")
    assert (again.row_count, again.seq, again.message) == (first.row_count, first.seq, first.message)
    assert again.rows == [], "the rows went with their table"
    if "CREATE" in gone:
        assert db.query("SELECT * FROM t").rows == []


def test_rows_that_can_be_shown_again_are(db: Database) -> None:
    first = db.execute(RETURNING, [1], idempotency_key="k")
    db.execute("UPDATE t SET v = 'y'")
    again = db.execute(RETURNING, [1], idempotency_key="k")
    assert again.rows == first.rows == [(1, "x")]
    assert again.seq == first.seq


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("mode", ["insert", "upsert", "delete"])
def test_so_is_a_repeat_of_rows(db: Database, gone: str, mode: str) -> None:
    db.insert("t", [(5, "x")])
    row = {"id": 5} if mode == "delete" else {"id": 6, "v": "x"}
    first = db.insert("t", [row], mode=mode, idempotency_key="k")
    db.execute(gone)
    again = db.insert("t", [row], mode=mode, idempotency_key="k")
    assert (again.row_count, again.seq, again.message) == (first.row_count, first.seq, first.message)


@pytest.mark.parametrize("gone", GONE)
def test_so_is_a_repeat_of_tasks(gone: str) -> None:
    async def repeat() -> None:
        async with await tablecast.open_async(":memory:") as db:
            await db.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
            await db.execute(INSERT, [1])
            first = [
                await db.execute(INSERT, [2], idempotency_key="sql"),
                await db.insert("t", [(3, "x")], idempotency_key="rows"),
            ]
            await db.execute(gone)
            again = [
                await db.execute(INSERT, [2], idempotency_key="sql"),
                await db.insert("t", [(3, "x")], idempotency_key="rows"),
            ]
            assert [(r.row_count, r.seq, r.message) for r in again] == [(r.row_count, r.seq, r.message) for r in first]

    asyncio.run(repeat())


def test_repeats_that_meet_in_one_commit() -> None:
    async def meet() -> None:
        async with await tablecast.open_async(":memory:") as db:
            await db.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
            await db.execute("CREATE TOPIC seen; ALTER TOPIC seen ADD SOURCE t ON ANY")
            keyed = [db.insert("t", [(i % 25, "x")], idempotency_key=f"key {i % 25}") for i in range(100)]
            done = await asyncio.gather(*keyed)
            assert {r.row_count for r in done} == {1}
            for i, result in enumerate(done):
                assert result.seq == done[i % 25].seq
            other = [db.insert("t", [(i, "x")], idempotency_key="one key") for i in (100, 101)]
            ends = await asyncio.gather(*other, return_exceptions=True)
            assert [type(end) for end in ends] == [tablecast.Result, IdempotencyMismatch]
            assert (await db.query("SELECT count(*) FROM t")).scalar() == 26
            assert (await db.read_arrow("seen")).num_rows == 26
            assert db.database.verify().problems == []

    asyncio.run(meet())


TRANSACTION = "BEGIN; INSERT INTO t VALUES (?, 'x'); UPDATE t SET v = v || '!' RETURNING v; COMMIT"
AS_ANN = "EXECUTE AS USER 'ann' (INSERT INTO mine VALUES (?); SELECT id FROM mine)"


def told(results: list[tablecast.Result]) -> list[tuple[str, int, int | None, list[tuple[object, ...]]]]:
    return [(result.message, result.row_count, result.seq, list(result.rows)) for result in results]


@pytest.mark.parametrize("sql", [TRANSACTION, AS_ANN])
def test_a_whole_transaction_and_another_users_happen_once(tmp_path: Path, sql: str) -> None:
    with tablecast.open(tmp_path / "db") as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT); CREATE USER TABLE mine (id INT PRIMARY KEY)")
        db.execute("CREATE TOPIC seen; ALTER TOPIC seen ADD SOURCE t ON ANY; ALTER TOPIC seen ADD SOURCE mine ON ANY")
        first = told(db.execute_all(sql, [1], idempotency_key="k"))
        seq = db.engine.seq
        assert told(db.execute_all(sql, [1], idempotency_key="k")) == first
        messages = db.read_arrow("seen").num_rows
    with tablecast.open(tmp_path / "db") as db:
        assert told(db.execute_all(sql, [1], idempotency_key="k")) == first, "also after a restart"
        assert db.read_arrow("seen").num_rows == messages
        with pytest.raises(IdempotencyMismatch):
            db.execute_all(sql, [2], idempotency_key="k")
        inside = first[:-1] if sql == TRANSACTION else []  # of a transaction that says so, COMMIT tells the number
        assert [told_seq for _, _, told_seq, _ in first] == [None] * len(inside) + [seq] * (len(first) - len(inside))
        assert db.verify().problems == []


def test_what_a_transaction_with_a_key_answers_is_what_it_answers_without(db: Database) -> None:
    plain = told(db.execute_all(TRANSACTION, [1]))
    db.execute("DELETE FROM t")
    keyed = told(db.execute_all(TRANSACTION, [1], idempotency_key="k"))
    assert [(message, count, rows) for message, count, _, rows in keyed] == [
        (message, count, rows) for message, count, _, rows in plain
    ]
    assert [message for message, _, _, _ in keyed] == ["BEGIN", "INSERT 1", "UPDATE 1", "COMMIT"]


def test_one_that_fails_leaves_nothing_and_may_be_sent_again(db: Database) -> None:
    db.execute("INSERT INTO t VALUES (2, 'there')")
    failing = "BEGIN; INSERT INTO t VALUES (1, 'x'); INSERT INTO t VALUES (2, 'x'); COMMIT"
    with pytest.raises(DuplicateKey) as caught:
        db.execute_all(failing, idempotency_key="k")
    assert caught.value.details["statement"] == 3
    assert db.query("SELECT id FROM t").rows == [(2,)]
    db.execute("DELETE FROM t")
    assert db.execute_all(failing, idempotency_key="k")[-1].row_count == 2


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN; INSERT INTO t VALUES (1, 'x')",
        "INSERT INTO t VALUES (1, 'x'); COMMIT",
        "BEGIN; INSERT INTO t VALUES (1, 'x'); ROLLBACK",
        "BEGIN; COMMIT; BEGIN; COMMIT",
        "EXECUTE AS USER 'ann' (CREATE TABLE x (id INT PRIMARY KEY))",
    ],
)
def test_half_a_transaction_takes_no_key(db: Database, sql: str) -> None:
    with pytest.raises(InvalidRequest, match="an idempotency key goes with"):
        db.execute_all(sql, idempotency_key="k")
    assert db.query("SELECT count(*) FROM t").scalar() == 0


def test_only_who_may_act_for_others_may_do_so_with_a_key(db: Database) -> None:
    with pytest.raises(PermissionDenied):
        db.session("bob").execute_all(AS_ANN, [1], idempotency_key="k")
