"""tablecast as its users run it: `tablecast serve`, and the SDK."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.server.processes import free_port, running
from tablecast import AsyncClient, connect_async

PASSWORD = "bench-password"
SCHEMA = """
CREATE NAMESPACE IF NOT EXISTS bench;
CREATE TABLE bench.orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT, note TEXT);
CREATE TOPIC bench.events;
ALTER TOPIC bench.events ADD SOURCE bench.orders ON ANY;
CREATE TABLE bench.alarms (id BIGINT PRIMARY KEY);
CREATE TOPIC bench.rung;
ALTER TOPIC bench.rung ADD SOURCE bench.alarms ON INSERT
"""
INSERT = "INSERT INTO bench.orders VALUES (?, ?, ?, ?, ?)"


@contextmanager
def server(path: Path) -> Iterator[int]:
    with process(path) as (port, _):
        yield port


@contextmanager
def process(path: Path, *flags: str) -> Iterator[tuple[int, int]]:
    """Port and process id."""
    port = free_port()
    command = [
        sys.executable, "-m", "tablecast", "serve", "--data", str(path / "tablecast"), "--port", str(port),
        "--log-level", "warning", *flags,
    ]  # fmt: skip
    unlimited = {
        "TABLECAST_PASSWORD": PASSWORD,
        "TABLECAST_REQUESTS_PER_SECOND_PER_USER": "1000000",
        "TABLECAST_REQUESTS_PER_SECOND_PER_ADDRESS": "1000000",
    }
    with running(command, port, path / "tablecast.log", unlimited) as pid:
        yield port, pid


async def take(client: AsyncClient, group: str, member: str, limit: int) -> int:
    found = (await client.consume("bench.events", group=group, consumer=member, limit=limit)).messages
    if found:
        await client.ack("bench.events", group, found[-1].offset, consumer=member)
    return len(found)


async def connect(port: int) -> AsyncClient:
    return await connect_async(f"http://127.0.0.1:{port}", user="system", password=PASSWORD)
