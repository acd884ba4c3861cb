"""Live queries from Python, over a server and embedded: the same changes for the same writes, and always what SELECT says.

Tests that take `place` run in both. Nothing waits for a time: a change that is awaited comes, or the test has failed.
"""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast import AsyncClient, AsyncDatabase, AsyncLiveTable, Client, Database, LiveChange, Op, Retry
from tablecast.client import live_link, live_queue
from tablecast.client.live_rows import LiveRows
from tablecast.engine import undo
from tablecast.errors import (
    DatabaseClosed,
    InvalidRequest,
    PermissionDenied,
    SchemaChanged,
    SqlSyntaxError,
    TablecastError,
    Timeout,
    TooLarge,
    TooManyRequests,
    TypeMismatch,
    Unauthenticated,
    UnknownTable,
    Unreachable,
    UnsupportedSql,
)
from tablecast.model.live import LiveStep

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY, name TEXT, amount INT) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE USER TABLE app.notes (id INT PRIMARY KEY, note TEXT);
CREATE TABLE app.every (
  id INT PRIMARY KEY, b BOOLEAN, s SMALLINT, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(38,4), t TEXT, y BYTES, j JSON,
  ts TIMESTAMP, da DATE, ti TIME, u UUID
);
CREATE TABLE app.pairs (a INT, v TEXT, b TEXT, PRIMARY KEY (b, a))
"""
ORDERS = "SELECT id, name, amount FROM app.orders"
Place = AsyncDatabase | AsyncClient
SyncPlace = Database | Client


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(SETUP)
        running.sql("CREATE USER 'ann' WITH PASSWORD 'correct horse'; CREATE USER 'bob' WITH PASSWORD 'battery staple'")
        yield running


@pytest.fixture(params=["embedded", "remote"])
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Any], Awaitable[None]]], None]]:
    """Runs a test on an `AsyncDatabase`, and on an `AsyncClient`. Afterwards nothing of it is left."""
    if request.param == "embedded":
        yield lambda test: run(embedded(), test)
    else:
        server: ServerThread = request.getfixturevalue("server")
        yield lambda test: run(remote(server), test)
        server.sql("DELETE FROM app.orders; DELETE FROM app.every; DELETE FROM app.pairs")
        left_alone(server)


def run(opened: Any, test: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened as place:
            await test(place)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "whatever was begun has ended"

    with asyncio.Runner() as runner:
        runner.run(main())


def no_thread_left(before: set[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("tablecast"):
            thread.join(60)  # one that reads for a live query ends soon after it
            assert not thread.is_alive(), f"{thread.name} is left"


@asynccontextmanager
async def embedded() -> AsyncIterator[AsyncDatabase]:
    before = set(threading.enumerate())
    async with await tablecast.open_async(":memory:") as db:
        await db.execute_all(SETUP)
        yield db
    no_thread_left(before)


@asynccontextmanager
async def remote(server: ServerThread, **options: Any) -> AsyncIterator[AsyncClient]:
    async with await tablecast.connect_async(
        server.url, **{"user": "system", "password": PASSWORD} | options
    ) as client:
        yield client


def left_alone(server: ServerThread) -> None:
    """Waits until the server has noticed that everybody has gone."""
    emptied = threading.Event()

    def look() -> None:
        if server.hub.is_empty and not metric(server, "tablecast_live_connections"):
            emptied.set()

    while not emptied.wait(0.01):
        look()


def metric(server: ServerThread, name: str) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


async def told(changes: Any, upto: Callable[[LiveChange], bool]) -> list[LiveChange]:
    """What comes, up to and with the one that is waited for."""
    found = []
    async for change in changes:
        found.append(change)
        if upto(change):
            return found
    raise AssertionError("it ended before")


async def selected(place: Any, sql: str = ORDERS) -> dict[Any, Any]:
    return {(row[0],): row for row in (await place.query(sql)).rows}


async def in_step(place: Any, table: AsyncLiveTable, sql: str = ORDERS) -> None:
    """Returns when the live table has what SELECT says now; nobody writes meanwhile."""
    wanted = await selected(place, sql)
    while dict(table.rows) != wanted:
        await table.changed()


def folded(changes: list[LiveChange]) -> dict[Any, Any]:
    rows: dict[Any, Any] = {}
    for change in changes:
        if change.reset:
            rows.clear()
        elif change.op is Op.DELETE:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.row
    return rows


# --- changes ----------------------------------------------------------------------------------------------------


def test_rows_that_are_there_then_what_changes(place: Any) -> None:
    async def test(db: Place) -> None:
        await db.execute("INSERT INTO app.orders VALUES (1, 'a', 10), (2, 'b', 200)")
        async with db.live("SELECT name FROM app.orders WHERE amount < ?", [100]) as changes:
            first = await anext(changes)
            assert (first.op, first.key, first.row, first.initial) == (Op.INSERT, (1,), ("a",), True)
            assert changes.columns == ("name",)
            writes = [
                "INSERT INTO app.orders VALUES (3, 'c', 30)",
                "UPDATE app.orders SET amount = 20 WHERE id = 2",
                "UPDATE app.orders SET name = 'aa' WHERE id = 1",
                "UPDATE app.orders SET amount = 11 WHERE id = 1",
                "UPDATE app.orders SET amount = 300 WHERE id = 3",
                "DELETE FROM app.orders WHERE id = 2",
            ]
            seqs = [(await db.execute(write)).seq for write in writes]
            found = await told(changes, lambda change: change.key == (2,) and change.op is Op.DELETE)
            assert found == [
                LiveChange(Op.INSERT, (3,), ("c",), seqs[0]),
                LiveChange(Op.INSERT, (2,), ("b",), seqs[1]),
                LiveChange(Op.UPDATE, (1,), ("aa",), seqs[2]),
                LiveChange(Op.DELETE, (3,), None, seqs[4]),
                LiveChange(Op.DELETE, (2,), None, seqs[5]),
            ]

    place(test)


def test_values_have_the_types_of_a_select(place: Any) -> None:
    values = {
        "id": 1, "b": True, "s": -3, "l": 2**62, "f": 0.5, "d": 0.1, "n": Decimal("12345678901234567890.1234"),
        "t": "tür \U0001f600", "y": b"\x00\xff", "j": {"a": [1, None, "x"]}, "ts": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "da": date(2024, 2, 29), "ti": time(23, 59, 59, 999999), "u": UUID(int=2**100),
    }  # fmt: skip

    async def test(db: Place) -> None:
        await db.insert("app.every", [values, {"id": 2}])
        table = await db.live_table("SELECT * FROM app.every").ready()
        assert table.columns == tuple(values)
        await in_step(db, table, "SELECT * FROM app.every")
        await db.insert("app.every", [{**values, "id": 3}, {"id": 2, "t": "not null"}], mode="upsert")
        await in_step(db, table, "SELECT * FROM app.every")
        assert table.rows[(3,)] == tuple({**values, "id": 3}.values())
        assert [type(value) for value in table.rows[(3,)]] == [type(value) for value in values.values()]
        await table.close()

    place(test)


def test_parameters_keep_their_types(place: Any) -> None:
    async def test(db: Place) -> None:
        await db.insert("app.every", [{"id": n, "n": n, "u": UUID(int=n), "da": date(2024, 1, n)} for n in (1, 2, 3)])
        for where, value in [("n", Decimal("2.0")), ("u", UUID(int=2)), ("da", date(2024, 1, 2))]:
            async with db.live_table(f"SELECT id FROM app.every WHERE {where} = ?", [value]) as table:
                assert dict((await table.ready()).rows) == {(2,): (2,)}

    place(test)


def test_a_key_of_several_columns(place: Any) -> None:
    async def test(db: Place) -> None:
        async with db.live("SELECT v FROM app.pairs") as changes:
            await db.execute("INSERT INTO app.pairs VALUES (1, 'x', 'left')")
            assert (await anext(changes)).key == ("left", 1)
            await db.execute("DELETE FROM app.pairs")
            assert (await anext(changes)).key == ("left", 1)

    place(test)


def test_names_are_looked_up_in_the_namespace(place: Any) -> None:
    async def test(db: Place) -> None:
        async with db.live_table("SELECT id FROM orders", namespace="app") as table:
            assert dict((await table.ready()).rows) == {}

    place(test)


def test_a_commit_comes_whole(place: Any) -> None:
    """A live table is never in the middle of a transaction."""

    async def test(db: Place) -> None:
        await db.execute("INSERT INTO app.orders VALUES (1, 'a', 50), (2, 'b', 50)")
        table = await db.live_table(ORDERS).ready()

        async def move() -> None:
            for n in range(100):
                step = 1 if n % 3 else -2
                await db.execute_all(
                    f"BEGIN; UPDATE app.orders SET amount = amount + {step} WHERE id = 1;"
                    f"UPDATE app.orders SET amount = amount - {step} WHERE id = 2; COMMIT"
                )
            await db.execute("INSERT INTO app.orders VALUES (3, 'the end', 0)")

        moving = asyncio.create_task(move())
        async for rows in table:
            assert sum(amount for _, _, amount in rows.values()) == 100
            if (3,) in rows:
                break
        await moving
        await table.close()

    place(test)


def test_limit_is_of_the_first_rows_only(place: Any) -> None:
    async def test(db: Place) -> None:
        await db.insert("app.orders", [(n, "x", n) for n in range(10)])
        async with db.live_table("SELECT id FROM app.orders LIMIT 2") as table:
            assert set((await table.ready()).rows) == {(8,), (9,)}
            await db.execute("DELETE FROM app.orders WHERE id IN (1, 9)")
            await db.execute("INSERT INTO app.orders VALUES (20, 'y', 1)")
            while set(table.rows) != {(8,), (20,)}:
                await table.changed()

    place(test)


# --- live tables ------------------------------------------------------------------------------------------------


def test_a_live_table_misses_nothing_between_two_waits(place: Any) -> None:
    async def test(db: Place) -> None:
        table = await db.live_table(ORDERS).ready()
        for n in range(50):
            seq = (await db.execute("INSERT INTO app.orders VALUES (?, 'x', 0)", [n])).seq
            if n % 2:
                await in_step(db, table)  # so that the change is in before it is waited for
            assert await table.changed(table.seq - 1) >= 1
            while await table.changed(0) < (seq or 0):
                await asyncio.sleep(0)
            assert len(table.rows) == n + 1
        before, seq = table.rows, table.seq
        await db.execute("DELETE FROM app.orders")
        assert await table.changed(seq) > (seq or 0)
        assert (len(before), len(table.rows)) == (50, 0), "rows that were read stay as they are"
        with pytest.raises(Timeout):
            await table.changed(timeout_seconds=0.01)
        await table.close()
        await table.close()
        assert dict(table.rows) == {}
        with pytest.raises(DatabaseClosed):
            await table.changed()
        assert [rows async for rows in table] == [{}], "what it has, and then no more"

    place(test)


def test_what_a_reader_waits_for_may_be_given_up(place: Any) -> None:
    """A wait that is cancelled loses nothing of what comes after it."""

    async def test(db: Place) -> None:
        async with db.live(ORDERS) as changes:
            for n in range(30):
                waiting = asyncio.ensure_future(anext(changes))
                for _ in range(n % 5):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await db.execute("INSERT INTO app.orders VALUES (?, 'x', 0)", [n])
                assert (await anext(changes)).key == (n,)

    place(test)


# --- what may happen on the way ---------------------------------------------------------------------------------


def test_a_reader_that_is_slow_gets_the_difference(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more than is queued for it is written before it reads on: each row comes as it is, and none is missing."""
    monkeypatch.setattr(live_queue, "MAX_QUEUED_CHANGES", 5)

    async def test(db: Place) -> None:
        await db.insert("app.orders", [(n, "old", n) for n in range(50)])
        async with db.live(ORDERS) as changes:
            found = [await anext(changes)]
            for n in range(200):
                await db.execute("UPDATE app.orders SET name = ? WHERE id = ?", [f"new {n}", n % 40])
            await db.execute("DELETE FROM app.orders WHERE id > 45")
            await db.execute("INSERT INTO app.orders VALUES (99, 'last', 0)")
            found += await told(changes, lambda change: change.key == (99,))
            assert folded(found) == await selected(db)
            assert not any(change.reset for change in found)
            assert len(found) < 200, "what was queued, and then what is different"
            await db.execute("INSERT INTO app.orders VALUES (100, 'more', 0)")
            assert (await anext(changes)).key == (100,)

    place(test)


def test_what_cannot_be_told_comes_anew_after_a_reset(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(db: Place) -> None:
        await db.insert("app.orders", [(n, "x", n) for n in range(3)])
        table = await db.live_table(ORDERS).ready()
        async with db.live(ORDERS) as changes:
            found = [await anext(changes) for _ in range(3)]
            await db.execute("INSERT INTO app.orders VALUES (10, 'listed', 0)")
            found.append(await anext(changes))
            monkeypatch.setattr(undo, "MAX_LISTED_CHANGES", 5)  # a commit so large that its changes are not kept
            seq = (await db.execute("UPDATE app.orders SET name = 'y'; DELETE FROM app.orders WHERE id = 0")).seq
            seq = (await db.insert("app.orders", [(n, "many", n) for n in range(20, 30)])).seq
            found += await told(changes, lambda change: change.key == (29,))
            assert [change.seq for change in found if change.reset] == [seq]
            at = [change.reset for change in found].index(True)
            assert all(change.initial for change in found[at + 1 :])
            assert found[at].op is None
            assert folded(found) == await selected(db)
        await in_step(db, table)
        await table.close()

    place(test)


def test_a_table_that_is_dropped_ends_it(place: Any) -> None:
    async def test(db: Place) -> None:
        await db.execute("CREATE TABLE app.gone (id INT PRIMARY KEY)")
        await db.execute("INSERT INTO app.gone VALUES (1)")
        table = await db.live_table("SELECT id FROM app.gone").ready()
        async with db.live("SELECT id FROM app.gone") as changes:
            await anext(changes)
            await db.execute("DROP TABLE app.gone")
            for _ in range(2):
                with pytest.raises(UnknownTable):
                    await anext(changes)
        with pytest.raises(UnknownTable):
            await table.changed()
        assert dict(table.rows) == {(1,): (1,)}, "the rows remain"
        with pytest.raises(UnknownTable):
            [rows async for rows in table]
        await table.close()

    place(test)


def test_a_star_ends_with_its_columns_and_names_go_on(place: Any) -> None:
    async def test(db: Place) -> None:
        await db.execute("CREATE TABLE app.wide (id INT PRIMARY KEY)")
        async with db.live("SELECT * FROM app.wide") as star, db.live("SELECT id FROM app.wide") as named:
            await db.execute("INSERT INTO app.wide VALUES (1)")
            assert (await anext(star)).row == (await anext(named)).row == (1,)
            await db.execute("ALTER TABLE app.wide ADD COLUMN more TEXT")
            with pytest.raises(SchemaChanged):
                await anext(star)
            await db.execute("INSERT INTO app.wide VALUES (2, 'x')")
            assert (await anext(named)).row == (2,)
        await db.execute("DROP TABLE app.wide")

    place(test)


@pytest.mark.parametrize(
    ("sql", "params", "error"),
    [
        ("SELECT nonsense FROM", [], SqlSyntaxError),
        ("SELECT count(*) FROM app.orders", [], UnsupportedSql),
        ("SELECT * FROM app.nothing", [], UnknownTable),
        ("SELECT * FROM app.orders WHERE id = ?", [], InvalidRequest),
        ("SELECT * FROM app.orders WHERE id = 'x'", [], TablecastError),
    ],
)
def test_a_query_that_cannot_be_live(place: Any, sql: str, params: list[Any], error: type[TablecastError]) -> None:
    async def test(db: Place) -> None:
        changes, table = db.live(sql, params), db.live_table(sql, params)
        with pytest.raises(error):
            await anext(changes)
        with pytest.raises(error):
            await table.ready()
        await db.execute("INSERT INTO app.orders VALUES (1, 'others go on', 0)")
        async with db.live(ORDERS) as fine:
            assert (await anext(fine)).key == (1,)

    place(test)


# --- the end ----------------------------------------------------------------------------------------------------


def test_closing_ends_whoever_waits(place: Any) -> None:
    async def test(db: Place) -> None:
        changes, kept = db.live(ORDERS), db.live(ORDERS)
        table = await db.live_table(ORDERS).ready()
        reading = asyncio.create_task(collected(changes))
        waiting, reading_on = asyncio.create_task(table.changed()), asyncio.create_task(collected(kept))
        await asyncio.sleep(0)
        await changes.close()
        assert await reading == [], "closed by its own: it just ends"
        await db.close()
        for waiter in (waiting, reading_on):
            with pytest.raises(DatabaseClosed):
                await waiter
        with pytest.raises(DatabaseClosed):
            db.live(ORDERS)

    place(test)


async def collected(changes: Any) -> list[LiveChange]:
    return [change async for change in changes]


def test_what_is_forgotten_is_unsubscribed(place: Any) -> None:
    """`break` closes nothing by itself; the iterator that nobody has any more does."""

    async def test(db: Place) -> None:
        await db.execute("INSERT INTO app.orders VALUES (1, 'a', 0)")
        usual = len(asyncio.all_tasks())
        async for change in db.live(ORDERS):
            assert change.key == (1,)
            break
        gc.collect()
        while len(asyncio.all_tasks()) > usual:
            await asyncio.sleep(0)

    place(test)


def test_no_connection_outlives_the_last_query(server: ServerThread) -> None:
    """Also if it was the server that ended it, and nobody closed anything."""

    async def test(db: AsyncClient) -> None:
        with pytest.raises(UnknownTable):
            await anext(db.live("SELECT * FROM app.nothing"))
        usual = {asyncio.current_task()}
        while asyncio.all_tasks() != usual:
            await asyncio.sleep(0)
        async with db.live_table(ORDERS) as table:
            await table.ready()

    run(remote(server), test)
    left_alone(server)


# --- both places agree ------------------------------------------------------------------------------------------


def script(seed: int) -> Iterator[str]:
    """Statements that change rows, keys, several rows at once, and sometimes nothing."""
    chance = random.Random(seed)
    for _ in range(40):
        key, other, amount = chance.randrange(8), chance.randrange(8), chance.randrange(6)
        yield chance.choice(
            [
                f"INSERT INTO app.orders VALUES ({key}, 'n{amount}', {amount}) ON CONFLICT (id) DO UPDATE SET amount = {amount}",
                f"UPDATE app.orders SET amount = {amount} WHERE id % 2 = {key % 2}",
                f"UPDATE app.orders SET name = 'n{amount}' WHERE id = {key}",
                f"DELETE FROM app.orders WHERE id = {key}",
                f"DELETE FROM app.orders WHERE amount = {amount}",
                f"BEGIN; DELETE FROM app.orders WHERE id IN ({key}, {other}); "
                f"INSERT INTO app.orders VALUES ({key}, 'again', {amount}); COMMIT",
            ]
        )


async def story(db: Place, seed: int) -> list[Any]:
    """What three live queries tell of a script, commit by commit."""
    await db.execute("INSERT INTO app.orders VALUES (0, 'first', 3), (1, 'second', 4), (100, 'begin', 0)")
    queries = {
        ORDERS: 3,
        "SELECT amount * 2 AS d FROM app.orders WHERE amount > 2": 2,
        "SELECT name FROM app.orders LIMIT 2": 2,
    }
    lives = [db.live(sql) for sql in queries]
    begun = [[await anext(live) for _ in range(rows)] for live, rows in zip(lives, queries.values(), strict=True)]
    await db.execute("UPDATE app.orders SET name = 'go', amount = 5 WHERE id = 100")
    for live in lives:  # told of this one, it is live: from here on every commit is told by itself
        assert (await anext(live)).key == (100,)
    for sql in script(seed):
        await db.execute_all(sql)
    await db.execute("DELETE FROM app.orders WHERE id = 100")
    stories = []
    for live in lives:
        changes = await told(live, lambda c: c.key == (100,) and c.op is Op.DELETE)
        commits: dict[int, list[Any]] = {}
        for change in changes:
            commits.setdefault(change.seq, []).append((change.op, change.key, change.row, change.initial, change.reset))
        assert list(commits) == sorted(commits)
        stories.append(list(commits.values()))
        await live.close()
    return [[[(c.op, c.key, c.row, c.initial) for c in rows] for rows in begun], stories]


@pytest.mark.parametrize("seed", range(5))
def test_embedded_and_remote_tell_the_same(server: ServerThread, seed: int) -> None:
    found: list[Any] = []

    async def test(db: Place) -> None:
        found.append(await story(db, seed))

    run(embedded(), test)
    run(remote(server), test)
    server.sql("DELETE FROM app.orders")
    assert found[0] == found[1]
    assert any(len(commit) > 1 for story in found[0][1] for commit in story), (
        "the script has commits of several changes"
    )


@pytest.mark.parametrize("seed", range(4))
def test_whoever_comes_and_goes_has_the_rows_in_the_end(place: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers run while live tables are opened and closed at random, with queues so small that they overflow."""
    monkeypatch.setattr(live_queue, "MAX_QUEUED_CHANGES", 3)
    chance = random.Random(seed)
    filters = ["", " WHERE amount < 3", " WHERE id % 2 = 0", " WHERE amount = 2 AND id > 3"]

    async def write(db: Place) -> None:
        for sql in script(seed):
            await db.execute_all(sql)

    async def test(db: Place) -> None:
        tables: list[tuple[str, AsyncLiveTable]] = []
        writing = asyncio.create_task(write(db))
        while not writing.done():
            if len(tables) < 6 or chance.random() < 0.5:
                sql = ORDERS + chance.choice(filters)
                tables.append((sql, db.live_table(sql)))
            else:
                await tables.pop(chance.randrange(len(tables)))[1].close()
            await db.query("SELECT 1 AS turn")
        await writing
        for sql, table in tables:
            await table.ready()
            await in_step(db, table, sql)
        await asyncio.gather(*(table.close() for _, table in tables))

    place(test)


# --- USER tables, rights ----------------------------------------------------------------------------------------


def test_a_session_follows_its_own_rows_only() -> None:
    async def test(db: AsyncDatabase) -> None:
        ann, bob = await db.session("ann"), await db.session("bob")
        async with ann.live("SELECT note FROM app.notes") as hers, bob.live_table("SELECT note FROM app.notes") as his:
            await his.ready()
            await bob.execute("INSERT INTO app.notes VALUES (1, 'of bob')")
            await ann.execute("INSERT INTO app.notes VALUES (1, 'of ann')")
            assert (await anext(hers)).row == ("of ann",)
            assert dict(his.rows) == {(1,): ("of bob",)} or await his.changed()
            assert dict(his.rows) == {(1,): ("of bob",)}
        changes = ann.live("SELECT * FROM app.every")
        with pytest.raises(PermissionDenied):
            await anext(changes)
        await ann.execute("DELETE FROM app.notes")  # commits behind the entry, which nobody waited for
        noted = await db.query("SELECT user_id, action, outcome FROM system.audit_log WHERE action = 'SUBSCRIBE'")
        assert noted.rows == [("ann", "SUBSCRIBE", "denied")]

    run(embedded(), test)


def test_a_user_of_a_server_likewise(server: ServerThread) -> None:
    async def test(ann: AsyncClient) -> None:
        async with (
            await tablecast.connect_async(server.url, user="bob", password="battery staple") as bob,
            ann.live("SELECT note FROM app.notes") as hers,
        ):
            await bob.execute("INSERT INTO app.notes VALUES (1, 'of bob')")
            await ann.execute("INSERT INTO app.notes VALUES (1, 'of ann')")
            assert (await anext(hers)).row == ("of ann",)
            await ann.execute("DELETE FROM app.notes")
            await bob.execute("DELETE FROM app.notes")
            denied = ann.live("SELECT * FROM app.every")
            with pytest.raises(PermissionDenied):
                await anext(denied)

    run(remote(server, user="ann", password="correct horse"), test)


# --- over a server ----------------------------------------------------------------------------------------------


def test_many_live_queries_share_one_connection(server: ServerThread) -> None:
    count = 300

    async def test(db: AsyncClient) -> None:
        tables = [db.live_table("SELECT name FROM app.orders WHERE amount = ?", [n]) for n in range(count)]
        await asyncio.gather(*(table.ready() for table in tables))
        assert await asyncio.to_thread(metric, server, "tablecast_live_connections") == 1
        assert await asyncio.to_thread(metric, server, "tablecast_live_subscriptions") == count
        await db.insert("app.orders", [(n, f"of {n}", n) for n in range(count)])
        await asyncio.gather(*(table.changed() for table in tables))
        assert [dict(table.rows) for table in tables] == [{(n,): (f"of {n}",)} for n in range(count)]
        await asyncio.gather(*(table.close() for table in tables))

    run(remote(server), test)
    server.sql("DELETE FROM app.orders")
    left_alone(server)


def test_more_than_a_connection_may_have_harms_only_the_one_too_many() -> None:
    async def test(db: AsyncClient) -> None:
        first, second = await db.live_table(ORDERS).ready(), await db.live_table(ORDERS).ready()
        with pytest.raises(TooManyRequests):
            await db.live_table(ORDERS).ready()
        await second.close()
        third = await db.live_table(ORDERS).ready()
        await db.execute("INSERT INTO app.orders VALUES (1, 'a', 0)")
        assert await first.changed() == await third.changed()

    with ServerThread(live_max_subscriptions=2) as small:
        small.sql(SETUP)
        run(remote(small), test)


def test_subscriptions_that_come_too_fast_wait_their_turn() -> None:
    """A rate limit refuses some of them for a while, each for itself."""

    async def test(db: AsyncClient) -> None:
        tables = [db.live_table(ORDERS) for _ in range(12)]
        await asyncio.gather(*(table.ready() for table in tables))
        await asyncio.gather(*(table.close() for table in tables))

    with ServerThread(requests_per_second_per_user=10) as slow:
        slow.sql(SETUP)
        patient = Retry(attempts=1000, backoff_seconds=0.02, max_backoff_seconds=0.2, total_seconds=60)
        run(remote(slow, retry=patient), test)


def test_values_and_texts_that_cannot_be_sent_are_refused_here(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        table = await db.live_table(ORDERS).ready()
        with pytest.raises(TooLarge):
            db.live("SELECT * FROM app.orders WHERE name = ?", ["x" * 100_000])
        with pytest.raises(TypeMismatch):
            db.live("SELECT * FROM app.orders WHERE name = ?", [object()])
        await db.execute("INSERT INTO app.orders VALUES (1, 'the others go on', 0)")
        await table.changed()
        await table.close()

    run(remote(server), test)
    server.sql("DELETE FROM app.orders")


def test_a_wrong_password(server: ServerThread) -> None:
    async def test(db: AsyncClient) -> None:
        with pytest.raises(Unauthenticated):
            await anext(db.live(ORDERS))
        with pytest.raises(Unauthenticated):
            await db.live_table(ORDERS).ready()

    run(remote(server, password="not it"), test)
    run(remote(server, user=None, password=None, token="not one"), test)
    run(remote(server, user=None, password=None), test)


def test_a_token_that_ends_is_renewed_and_nothing_is_missed() -> None:
    async def test(db: AsyncClient) -> None:
        found: list[LiveChange] = []
        async with db.live(ORDERS) as changes:
            n = 0
            while len(connections) < 3:
                n += 1
                await db.execute("INSERT INTO app.orders VALUES (?, 'x', 0)", [n])
                found.append(await anext(changes))
        assert not any(change.reset for change in found)
        assert [change.key for change in found] == [(k,) for k in range(1, n + 1)], "each once"

    with ServerThread(access_token_seconds=1) as short, counted_connections() as connections:
        short.sql(SETUP)
        run(remote(short), test)


def test_an_account_that_is_dropped_ends_its_live_queries(server: ServerThread) -> None:
    server.sql("CREATE USER 'cid' WITH PASSWORD 'correct horse'")

    async def test(db: AsyncClient) -> None:
        table = await db.live_table(ORDERS).ready()
        await asyncio.to_thread(server.sql, "DROP USER 'cid'")
        with pytest.raises(Unauthenticated):
            await table.changed()

    run(remote(server, user="cid", password="correct horse"), test)


@contextmanager
def counted_connections() -> Iterator[list[str]]:
    """The sockets that live queries open."""
    from tablecast.client.live_socket import LiveSocket

    opened: list[str] = []
    usual = LiveSocket.open

    async def counting(url: str, authorization: str | None) -> LiveSocket:
        socket = await usual(url, authorization)
        opened.append(url)
        return socket

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveSocket, "open", counting)
        yield opened


def test_a_client_that_does_not_read_is_resumed_by_itself() -> None:
    """The server calls it lagging, since its socket is full; what it missed comes when it reads again."""

    async def test(db: AsyncClient) -> None:
        await db.insert("app.orders", [(n, "x", n) for n in range(20)])
        table = await db.live_table(ORDERS).ready()
        for n in range(60):  # this holds up the event loop, and so the client
            small.sql("UPDATE app.orders SET name = ? WHERE id < 15", [f"{n}" * 5_000])
        small.sql("DELETE FROM app.orders WHERE id = 3; UPDATE app.orders SET name = 'short'")
        await in_step(db, table)
        assert await asyncio.to_thread(metric, small, "tablecast_live_lagging_total") > 0
        await table.close()

    with ServerThread(live_buffer_bytes=1_000) as small:
        small.sql(SETUP)
        run(remote(small), test)


def test_a_query_that_is_told_nothing_learns_how_far_it_is(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would resume from where it began, which may be forgotten by then."""

    async def test(db: AsyncClient) -> None:
        table = await db.live_table(ORDERS).ready()
        for n in range(5):
            await db.insert("app.pairs", [(n, "not of orders", "x")])
        link = db._live._newest
        assert link is not None
        [query] = link._state.queries
        async with asyncio.timeout(60):
            while (query.steps.resume or 0) < server.db.engine.seq:
                await asyncio.sleep(0)
        assert table.seq < server.db.engine.seq
        await table.close()

    monkeypatch.setattr(live_link, "PROGRESS_SECONDS", 0.001)
    run(remote(server), test)
    server.sql("DELETE FROM app.pairs")
    left_alone(server)


def test_a_server_that_is_away_for_too_long() -> None:
    impatient = Retry(attempts=3, backoff_seconds=0.01, max_backoff_seconds=0.01, total_seconds=5)

    async def test(db: AsyncClient) -> None:
        table = await db.live_table(ORDERS).ready()
        async with db.live(ORDERS) as changes:
            await asyncio.to_thread(away.stop)
            with pytest.raises(Unreachable):
                await anext(changes)
        with pytest.raises(Unreachable):
            await table.changed()
        with pytest.raises(Unreachable):
            await db.live_table(ORDERS).ready()

    with ServerThread() as away:
        away.sql(SETUP)
        run(remote(away, retry=impatient), test)


# --- threads ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", "remote"])
def sync_place(request: pytest.FixtureRequest) -> Iterator[SyncPlace]:
    before = set(threading.enumerate())
    if request.param == "embedded":
        with tablecast.open(":memory:") as db:
            db.execute_all(SETUP)
            yield db
    else:
        server: ServerThread = request.getfixturevalue("server")
        with tablecast.connect(server.url, user="system", password=PASSWORD) as client:
            yield client
        server.sql("DELETE FROM app.orders")
        left_alone(server)
        before |= {thread for thread in threading.enumerate() if not thread.name.startswith("tablecast-client")}
    no_thread_left(before)


def test_threads_with_live_queries_of_their_own(sync_place: SyncPlace) -> None:
    db, count = sync_place, 6

    def follow(mine: int) -> list[Any]:
        found = []
        with db.live("SELECT name FROM app.orders WHERE amount = ?", [mine]) as changes:
            begun.wait()
            for change in changes:
                found.append(change.row)
                if change.row == ("last",):
                    return found
        raise AssertionError("it ended before")

    begun = threading.Barrier(count + 1)
    with ThreadPoolExecutor(count) as pool:
        followers = [pool.submit(follow, n) for n in range(count)]
        begun.wait()
        for n in range(count):
            db.execute("INSERT INTO app.orders VALUES (?, 'first', ?)", [n, n])
            db.execute("INSERT INTO app.orders VALUES (?, 'last', ?)", [n + 100, n])
        assert [follower.result() for follower in followers] == [[("first",), ("last",)]] * count


def test_threads_that_share_a_live_query_share_its_changes(sync_place: SyncPlace) -> None:
    db, count = sync_place, 200
    changes = db.live(ORDERS)
    found: list[LiveChange] = []

    def take() -> None:
        for change in changes:
            found.append(change)
            if len(found) == count:
                changes.close()  # from one of several that wait

    with ThreadPoolExecutor(4) as pool:
        takers = [pool.submit(take) for _ in range(4)]
        db.insert("app.orders", [(n, "x", n) for n in range(count // 2)])
        for n in range(count // 2, count):
            db.execute("INSERT INTO app.orders VALUES (?, 'x', 0)", [n])
        for taker in takers:
            taker.result()
    assert sorted(change.key[0] for change in found) == list(range(count)), "each to one of them"


def test_a_live_table_for_threads(sync_place: SyncPlace) -> None:
    db = sync_place
    with db.live_table(ORDERS) as table:
        assert dict(table.ready(timeout_seconds=60).rows) == {}
        assert table.columns == ("id", "name", "amount")
        writer = threading.Thread(target=lambda: db.insert("app.orders", [(1, "a", 1), (2, "b", 2)]))
        writer.start()
        assert table.changed(timeout_seconds=60) == table.seq
        writer.join()
        assert dict(table.rows) == {(1,): (1, "a", 1), (2,): (2, "b", 2)}
        with pytest.raises(Timeout):
            table.changed(timeout_seconds=0.01)
        db.execute("DELETE FROM app.orders WHERE id = 1")
        for rows in table:
            if (1,) not in rows:
                break
    assert dict(table.rows) == {(2,): (2, "b", 2)}
    with pytest.raises(DatabaseClosed):
        table.changed(table.seq)


def test_a_thread_that_waits_learns_of_the_end(sync_place: SyncPlace) -> None:
    db = sync_place
    changes, table = db.live(ORDERS), db.live_table(ORDERS).ready()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(next, changes), pool.submit(table.changed)]
        db.close()
        for waiter in waiting:
            with pytest.raises(DatabaseClosed):
                waiter.result()
    changes.close()
    table.close()
    assert dict(table.rows) == {}


def test_a_program_that_ends_without_closing_ends() -> None:
    program = """
import threading, tablecast
db = tablecast.open(":memory:")
db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
table, changes = db.live_table("SELECT * FROM t").ready(), db.live("SELECT * FROM t")
begun = threading.Event()
def follow():
    try:
        for change in changes:
            begun.set()
    except tablecast.TablecastError as error:
        print(error.code, flush=True)
threading.Thread(target=follow).start()
db.execute("INSERT INTO t VALUES (1)")
begun.wait()
threading.Thread(target=lambda: (threading.main_thread().join(), db.close())).start()
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "database_closed\n", "")


def test_the_rows_of_a_step_are_folded_as_one() -> None:
    """A reader in another thread never sees half of a commit, nor rows that change under it."""
    rows, stop = LiveRows(), threading.Event()
    rows.fold(LiveStep([LiveChange(Op.INSERT, (n,), (0,), 1) for n in range(100)], 1, True))
    torn: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            kept = rows.kept()
            if len(set(kept.rows.values())) > 1:
                torn.append(kept)

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for value in range(1, 300):
            rows.fold(LiveStep([LiveChange(Op.UPDATE, (n,), (value,), value) for n in range(100)], value, True))
        stop.set()
        for reader in readers:
            reader.result()
    assert torn == []
