"""What each kind of write means to a live query over a socket, as the SDK tells it.

Every test follows one query with its changes and another with its rows: the first says what was told, the second that it
adds up to SELECT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast import AsyncClient, LiveChange, Op
from tablecast.errors import PermissionDenied, SchemaChanged, Unauthenticated, UnknownTable

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY, status TEXT, amount INT);
CREATE TABLE app.pairs (a INT, b TEXT, v INT, PRIMARY KEY (a, b));
CREATE TABLE app.brief (id INT PRIMARY KEY, v INT) WITH (TTL_SECONDS = 1);
CREATE TABLE app.news (id INT PRIMARY KEY) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE USER TABLE app.notes (id INT PRIMARY KEY)
"""
OPEN = "SELECT id, amount FROM app.orders WHERE status = 'open'"
Told = list[tuple[str, tuple[Any, ...], tuple[Any, ...] | None]]


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(SETUP)
        yield running


@pytest.fixture
def server(shared: ServerThread) -> Iterator[ServerThread]:
    yield shared
    shared.sql("DELETE FROM app.orders; DELETE FROM app.pairs; DELETE FROM app.brief; DELETE FROM app.news")


def run(server: ServerThread, test: Callable[[AsyncClient], Awaitable[None]], **options: str) -> None:
    async def main() -> None:
        given = {"user": "system", "password": PASSWORD} | options
        async with await tablecast.connect_async(server.url, **given) as db:
            await test(db)

    asyncio.run(main())


async def told(db: AsyncClient, sql: str, *writes: str) -> list[Told]:
    """What each of the writes, a commit of its own, told `sql`: whatever came with its commit number."""
    async with db.live(sql) as changes, db.live_table(sql) as table:
        await table.ready()
        initial = [await anext(changes) for _ in table.rows]
        assert all(change.initial for change in initial)
        seqs = []
        for write in writes:
            results = await db.execute_all(write)
            seqs.append(max(result.seq or 0 for result in results))
        found: dict[int, Told] = {seq: [] for seq in seqs}
        expected = {tuple(row) for row in (await db.query(sql)).rows}
        rows = {change.key: change.row for change in initial}
        while set(rows.values()) != expected or set(table.rows.values()) != expected or not found[seqs[-1]]:
            change = await anext(changes)
            assert change.op is not None and not change.initial
            found[change.seq].append((change.op.label, change.key, change.row))
            fold(rows, change)
            while table.seq < change.seq:
                await table.changed(table.seq)
        return [found[seq] for seq in seqs]


def fold(rows: dict[Any, Any], change: LiveChange) -> None:
    if change.op is Op.DELETE:
        assert rows.pop(change.key, None) is not None, "a row that was there"
    else:
        assert (change.op is Op.INSERT) == (change.key not in rows), "insert is for a row that was not"
        rows[change.key] = change.row


# --- rows -------------------------------------------------------------------------------------------------------


def test_a_row_comes_into_the_filter_and_goes_out_of_it(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        await db.execute("INSERT INTO app.orders VALUES (1, 'new', 10), (2, 'open', 20)")
        assert await told(
            db,
            OPEN,
            "UPDATE app.orders SET status = 'open' WHERE id = 1",
            "UPDATE app.orders SET amount = 11 WHERE id = 1",
            "UPDATE app.orders SET status = 'done', amount = 12 WHERE id = 1",
            "UPDATE app.orders SET amount = 13 WHERE id = 1",
            "UPDATE app.orders SET status = NULL WHERE id = 2",
            "UPDATE app.orders SET status = 'open' WHERE id = 2",
        ) == [
            [("insert", (1,), (1, 10))],
            [("update", (1,), (1, 11))],
            [("delete", (1,), None)],
            [],
            [("delete", (2,), None)],
            [("insert", (2,), (2, 20))],
        ]

    run(server, test)


def test_a_key_that_changes_is_a_row_that_goes_and_one_that_comes(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        await db.execute("INSERT INTO app.orders VALUES (1, 'open', 10), (2, 'open', 20), (3, 'done', 30)")
        moved, swapped, out = await told(
            db,
            OPEN,
            "UPDATE app.orders SET id = 9 WHERE id = 1",
            "UPDATE app.orders SET id = 11 - id WHERE id IN (2, 9)",
            "UPDATE app.orders SET id = 4, status = 'done' WHERE id = 2",
        )
        assert sorted(moved) == [("delete", (1,), None), ("insert", (9,), (9, 10))]
        assert sorted(swapped) == [("update", (2,), (2, 10)), ("update", (9,), (9, 20))]
        assert out == [("delete", (2,), None)]

    run(server, test)


def test_half_of_a_key_changes(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        await db.execute("INSERT INTO app.pairs VALUES (1, 'x', 1), (1, 'y', 2)")
        [changes] = await told(db, "SELECT a, b, v FROM app.pairs", "UPDATE app.pairs SET a = 2 WHERE b = 'y'")
        assert sorted(changes) == [("delete", (1, "y"), None), ("insert", (2, "y"), (2, "y", 2))]

    run(server, test)


def test_deletes(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        await db.execute("INSERT INTO app.orders VALUES (1, 'open', 1), (2, 'done', 2), (3, 'open', 3), (4, 'open', 4)")
        unseen, one, again, rest = await told(
            db,
            OPEN,
            "DELETE FROM app.orders WHERE id = 2",
            "DELETE FROM app.orders WHERE id = 1",
            "INSERT INTO app.orders VALUES (1, 'open', 100)",
            "DELETE FROM app.orders",
        )
        assert (unseen, one, again) == ([], [("delete", (1,), None)], [("insert", (1,), (1, 100))])
        assert sorted(rest) == [("delete", (1,), None), ("delete", (3,), None), ("delete", (4,), None)]

    run(server, test)


def test_a_transaction_is_one_step_and_each_row_has_one_change(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        await db.execute("INSERT INTO app.orders VALUES (1, 'open', 1), (2, 'open', 2), (3, 'new', 3)")
        [changes] = await told(
            db,
            OPEN,
            "BEGIN; UPDATE app.orders SET amount = 5 WHERE id = 1; UPDATE app.orders SET amount = 6 WHERE id = 1;"
            "DELETE FROM app.orders WHERE id = 2; INSERT INTO app.orders VALUES (2, 'open', 22);"
            "UPDATE app.orders SET status = 'open' WHERE id = 3; DELETE FROM app.orders WHERE id = 3;"
            "INSERT INTO app.orders VALUES (4, 'open', 4); DELETE FROM app.orders WHERE id = 4;"
            "INSERT INTO app.orders VALUES (5, 'new', 5); UPDATE app.orders SET status = 'open' WHERE id = 5; COMMIT",
        )
        assert sorted(changes) == [("insert", (5,), (5, 5)), ("update", (1,), (1, 6)), ("update", (2,), (2, 22))]

    run(server, test)


def test_a_transaction_that_is_rolled_back_is_nothing(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        async with db.live(OPEN) as changes:
            await db.execute("INSERT INTO app.orders VALUES (1, 'open', 1)")
            await anext(changes)
            await db.execute_all("BEGIN; UPDATE app.orders SET amount = 7; ROLLBACK")
            await db.execute("UPDATE app.orders SET amount = 8")
            assert (await anext(changes)).row == (1, 8)

    run(server, test)


def test_a_row_whose_time_is_over_goes(server: ServerThread) -> None:
    async def expire() -> None:
        """The job, again and again: the row's second passes meanwhile."""
        while True:
            await asyncio.to_thread(server.db.database.run_job, "expiry")

    async def test(db: AsyncClient) -> None:
        async with db.live("SELECT v FROM app.brief") as changes:
            await db.execute("INSERT INTO app.brief VALUES (1, 10), (2, 20)")
            assert {(await anext(changes)).key for _ in range(2)} == {(1,), (2,)}
            expiring = asyncio.create_task(expire())
            gone = [await anext(changes) for _ in range(2)]
            expiring.cancel()
            assert {(change.op, change.key) for change in gone} == {(Op.DELETE, (1,)), (Op.DELETE, (2,))}
            await db.execute("INSERT INTO app.brief VALUES (1, 11)")
            again = await anext(changes)
            assert (again.op, again.row) == (Op.INSERT, (11,))

    run(server, test)


# --- tables and rights ------------------------------------------------------------------------------------------


def test_a_table_that_is_dropped_and_made_again_is_another_one(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        await db.execute("CREATE TABLE app.gone (id INT PRIMARY KEY)")
        await db.execute("INSERT INTO app.gone VALUES (1)")
        table = await db.live_table("SELECT id FROM app.gone").ready()
        await db.execute("DROP TABLE app.gone")
        await db.execute("CREATE TABLE app.gone (id INT PRIMARY KEY)")
        await db.execute("INSERT INTO app.gone VALUES (2)")
        with pytest.raises(UnknownTable):
            await table.changed()
        assert dict(table.rows) == {(1,): (1,)}, "nothing of the other one"
        async with db.live_table("SELECT id FROM app.gone") as new:
            assert dict((await new.ready()).rows) == {(2,): (2,)}
        await db.execute("DROP TABLE app.gone")

    run(server, test)


def test_columns_that_are_added_end_a_star_and_no_other(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        await db.execute("CREATE TABLE app.wide (id INT PRIMARY KEY, v INT)")
        await db.execute("INSERT INTO app.wide VALUES (1, 1)")
        star, named = db.live_table("SELECT * FROM app.wide"), db.live_table("SELECT id, v FROM app.wide WHERE v > 0")
        await asyncio.gather(star.ready(), named.ready())
        await db.execute("ALTER TABLE app.wide ADD COLUMN more INT DEFAULT 7")
        with pytest.raises(SchemaChanged):
            await star.changed()
        await db.execute("UPDATE app.wide SET v = 2, more = 8")
        await named.changed()
        assert dict(named.rows) == {(1,): (1, 2)}
        async with db.live_table("SELECT * FROM app.wide") as again:
            assert dict((await again.ready()).rows) == {(1,): (1, 2, 8)}
        await db.execute("DROP TABLE app.wide")

    run(server, test)


def test_a_role_that_is_taken_ends_what_it_allowed_and_nothing_else(server: ServerThread) -> None:
    """The connection is closed with the account as it was; what the account may still read is resumed on the next one."""
    server.sql("CREATE USER 'dan' WITH PASSWORD 'correct horse' ROLE 'service'")

    async def test(db: AsyncClient) -> None:
        private = await db.live_table(OPEN).ready()
        public = await db.live_table("SELECT id FROM app.news").ready()
        own = await db.live_table("SELECT id FROM app.notes").ready()
        await asyncio.to_thread(server.sql, "ALTER USER 'dan' SET ROLE 'user'")
        await asyncio.to_thread(
            server.sql, "INSERT INTO app.orders VALUES (1, 'open', 1); INSERT INTO app.news VALUES (1)"
        )
        with pytest.raises(PermissionDenied):
            await private.changed()
        assert dict(private.rows) == {}, "not even what was written right after"
        await public.changed()
        assert dict(public.rows) == {(1,): (1,)}
        await db.execute("INSERT INTO app.notes VALUES (5)")
        await own.changed()
        assert dict(own.rows) == {(5,): (5,)}
        await db.execute("DELETE FROM app.notes")
        await asyncio.to_thread(server.sql, "DROP USER 'dan'")
        with pytest.raises(
            (Unauthenticated, PermissionDenied)
        ):  # of the connection or of the query: whatever is quicker
            await public.changed()

    run(server, test, user="dan", password="correct horse")
