"""PostgreSQL with a transactional outbox: a trigger writes each row's event in the row's own transaction."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from bench.peers import Row
from bench.server.processes import free_port, program, running

FOLDERS = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
SCHEMA = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT, note TEXT);
CREATE TABLE outbox (id BIGSERIAL PRIMARY KEY, key TEXT, payload JSONB);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO outbox (key, payload) VALUES (NEW.id::text, to_jsonb(NEW));
  RETURN NULL;
END $$;
CREATE TRIGGER told AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TABLE copied (LIKE orders INCLUDING ALL);
CREATE FUNCTION tell_all() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO outbox (key, payload) SELECT id::text, to_jsonb(given) FROM given;
  RETURN NULL;
END $$;
CREATE TRIGGER told AFTER INSERT ON copied REFERENCING NEW TABLE AS given FOR EACH STATEMENT EXECUTE FUNCTION tell_all();
CREATE TABLE alarms (id BIGINT PRIMARY KEY);
CREATE FUNCTION ring() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('alarms', NEW.id::text);
  RETURN NULL;
END $$;
CREATE TRIGGER rung AFTER INSERT ON alarms FOR EACH ROW EXECUTE FUNCTION ring();
"""
INSERT = "INSERT INTO orders VALUES ($1, $2, $3, $4, $5)"
TAKE = "SELECT id, key, payload FROM outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
DONE = "DELETE FROM outbox WHERE id = ANY($1)"
INSTALL = "apt-get install postgresql"
# A quarter of the memory and a long way between checkpoints, as its documentation advises for a server of its own.
SETTINGS = {
    "synchronous_commit": "on", "fsync": "on", "full_page_writes": "on",
    "shared_buffers": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 4 // 2**20}MB",
    "max_wal_size": "4GB",
}  # fmt: skip


def executable(name: str = "postgres") -> str:
    return program(name, INSTALL, *FOLDERS)


@contextmanager
def server(path: Path, **more: str) -> Iterator[int]:
    """A cluster of its own below `path`, with `more` settings. PostgreSQL refuses to run as root: root runs it as `postgres`."""
    initdb, postgres = executable("initdb"), executable()
    port, data = free_port(), path / "postgres"
    as_user: list[str] = []
    data.mkdir()
    if os.geteuid() == 0:
        as_user = ["runuser", "-u", "postgres", "--"]
        path.chmod(0o755)
        shutil.chown(data, "postgres")
    subprocess.run([*as_user, initdb, "-D", str(data), "-A", "trust", "-U", "bench"], check=True, capture_output=True)
    settings = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", **SETTINGS, **more}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with running([*as_user, postgres, "-D", str(data), *options], port, path / "postgres.log"):
        yield port


@asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[Any]]:
    made = [await _connect(port) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            await connection.close()


async def _connect(port: int) -> Any:
    while True:
        try:
            return await asyncpg.connect(host="127.0.0.1", port=port, user="bench", database="postgres")
        except asyncpg.CannotConnectNowError:
            await asyncio.sleep(0.05)


async def create(port: int) -> None:
    connection = await _connect(port)
    await connection.execute(SCHEMA)
    await connection.close()


async def fill_outbox(port: int, count: int) -> None:
    connection = await _connect(port)
    await connection.execute("DELETE FROM outbox")
    await connection.execute(
        "INSERT INTO outbox (key, payload) SELECT i::text, jsonb_build_object('id', i, 'customer', 'customer' || i % 1000,"
        " 'amount', 12.5, 'status', 'new', 'note', repeat('x', 120)) FROM generate_series(1, $1) AS i",
        count,
    )
    await connection.execute("VACUUM ANALYZE outbox")
    await connection.close()


async def write(connection: Any, row: Row) -> None:
    await connection.execute(INSERT, *row)


async def write_many(connection: Any, rows: list[Row]) -> None:
    await connection.executemany(INSERT, rows)  # one implicit transaction


async def copy_many(connection: Any, rows: list[Row]) -> None:
    await connection.copy_records_to_table("copied", records=rows)


async def take(connection: Any, limit: int) -> int:
    """At least once, as a relay does it: rows are locked, handled, and deleted in the same transaction."""
    async with connection.transaction():
        found = await connection.fetch(TAKE, limit)
        await connection.execute(DONE, [row["id"] for row in found])
    return len(found)
