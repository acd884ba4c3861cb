"""A server that dies under live queries, without notice, and comes back: everybody has the rows in the end.

Real processes on the same data and port. Writes are repeated until they are answered; live queries resume by themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from server_fixture import PASSWORD, ServerProcess, kept_port

import tablecast
from tablecast import AsyncClient, AsyncLiveTable, LiveChange, Op, Retry, connect_async
from tablecast.cli.backup import restore_from

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY, name TEXT, amount INT);
"""
PATIENT = Retry(attempts=1000, backoff_seconds=0.05, max_backoff_seconds=0.2, total_seconds=120)
KILLS, WRITERS, EACH = 3, 8, 60
QUERIES = [
    "SELECT id, name, amount FROM app.orders",
    "SELECT id, name, amount FROM app.orders WHERE amount < 3",
    "SELECT id, name, amount FROM app.orders WHERE id % 2 = 0",
]


async def write(client: AsyncClient, number: int, progress: asyncio.Semaphore) -> None:
    """Each writer has keys of its own."""
    chance = random.Random(number)
    for _ in range(EACH):
        key, amount = number * 10 + chance.randrange(10), chance.randrange(6)
        if chance.random() < 0.3:
            await client.execute("DELETE FROM app.orders WHERE id = ?", [key])
        else:
            await client.insert("app.orders", [(key, f"of {number}", amount)], mode="upsert")
        progress.release()


async def follow(client: AsyncClient, sql: str, found: list[LiveChange]) -> None:
    async with client.live(sql) as changes:
        await collect(changes, found, -2)


async def collect(changes: AsyncIterator[LiveChange], found: list[LiveChange], last: int) -> None:
    async for change in changes:
        found.append(change)
        if change.key == (last,):
            return


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


async def until_told(table: AsyncLiveTable, key: int) -> None:
    while (key,) not in table.rows:
        await table.changed()


def test_live_queries_outlive_a_server_that_is_killed(tmp_path: Path) -> None:
    async def life(port: int) -> None:
        server = ServerProcess(tmp_path / "data", "--port", str(port))
        await asyncio.to_thread(server.sql, SETUP)
        progress = asyncio.Semaphore(0)
        async with await connect_async(server.url, user="system", password=PASSWORD, retry=PATIENT) as client:
            found: list[list[LiveChange]] = [[] for _ in QUERIES]
            tables = [client.live_table(sql) for sql in QUERIES]
            followers = [asyncio.create_task(follow(client, *pair)) for pair in zip(QUERIES, found, strict=True)]
            writers = [asyncio.create_task(write(client, n, progress)) for n in range(WRITERS)]
            for _ in range(KILLS):
                for _ in range(WRITERS * EACH // (KILLS + 2)):
                    await progress.acquire()
                await asyncio.to_thread(server.kill)
                server = await asyncio.to_thread(ServerProcess, tmp_path / "data", "--port", str(port))
            with server:
                await asyncio.gather(*writers)
                await client.execute("INSERT INTO app.orders VALUES (-2, 'the end', 0)")  # in all three
                await asyncio.gather(*followers, *(until_told(table, -2) for table in tables))
                for sql, changes, table in zip(QUERIES, found, tables, strict=True):
                    rows = {(row[0],): row for row in (await client.query(sql)).rows}
                    assert dict(table.rows) == rows
                    assert folded(changes) == rows
                    assert not any(change.reset for change in changes[1:]), "what was missed is kept for an hour"
                    seqs = [change.seq for change in changes]
                    assert seqs == sorted(seqs), "no commit again, and none late"

    with kept_port() as port:
        asyncio.run(asyncio.wait_for(life(port), 240))


def test_a_backup_that_is_restored_under_a_client_is_read_again(tmp_path: Path) -> None:
    """Commits that the client saw are gone, and others have their numbers: the difference would be a wrong one."""

    async def life(port: int) -> None:
        with tablecast.open(str(tmp_path / "data")) as db:
            db.execute_all(SETUP)
            db.execute("INSERT INTO app.orders VALUES (1, 'of old', 0)")
            db.engine.keep_changes(db.engine.catalog.table("app.orders").table_id)
            db.backup(tmp_path / "backup")
        server = ServerProcess(tmp_path / "data", "--port", str(port))
        async with (
            await connect_async(server.url, user="system", password=PASSWORD, retry=PATIENT) as client,
            client.live(QUERIES[0]) as changes,
        ):
            found: list[LiveChange] = []
            table = client.live_table(QUERIES[0])
            await client.execute("UPDATE app.orders SET name = 'changed' WHERE id = 1")
            await client.execute("INSERT INTO app.orders VALUES (2, 'gone soon', 0)")
            await asyncio.gather(collect(changes, found, 2), until_told(table, 2))  # both know what will be gone
            seen = table.seq
            await asyncio.to_thread(server.kill)
            restore_from(tmp_path / "backup", tmp_path / "restored", check=False)
            with tablecast.open(str(tmp_path / "restored")) as db:
                for key in range(3, 20):
                    db.execute("INSERT INTO app.orders VALUES (?, 'anew', 0)", [key])
                assert db.engine.seq > seen, "numbers that were used before"
            server = await asyncio.to_thread(ServerProcess, tmp_path / "restored", "--port", str(port))
            with server:
                await client.execute("INSERT INTO app.orders VALUES (99, 'the last in order', 0)")
                await asyncio.gather(collect(changes, found, 99), until_told(table, 99))
                rows = {(row[0],): row for row in (await client.query(QUERIES[0])).rows}
                assert dict(table.rows) == folded(found) == rows
                assert sum(change.reset for change in found) == 1

    with kept_port() as port:
        asyncio.run(asyncio.wait_for(life(port), 240))


def test_a_restart_is_a_restart(tmp_path: Path) -> None:
    """A server that is asked to stop says goodbye; for its live queries that is the same as any other end."""

    async def life(port: int) -> None:
        server = ServerProcess(tmp_path / "data", "--port", str(port))
        await asyncio.to_thread(server.sql, SETUP)
        async with (
            await connect_async(server.url, user="system", password=PASSWORD, retry=PATIENT) as client,
            client.live(QUERIES[0]) as changes,
        ):
            await client.execute("INSERT INTO app.orders VALUES (1, 'before', 0)")
            assert (await anext(changes)).key == (1,)
            assert await asyncio.to_thread(server.terminate) == 0
            server = await asyncio.to_thread(ServerProcess, tmp_path / "data", "--port", str(port))
            with server:
                await client.execute("DELETE FROM app.orders")
                change = await anext(changes)
                assert (change.op, change.key, change.reset) == (Op.DELETE, (1,), False)

    with kept_port() as port:
        asyncio.run(asyncio.wait_for(life(port), 240))
