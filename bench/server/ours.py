"""tablecast as its users run it: `tablecast serve`, and the SDK."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.server.processes import free_port, running
from tablecast import AsyncClient, Consumed, connect_async

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


class Member:
    """A consumer that acknowledges what it took with the request for more, as the SDK's own loop does."""

    def __init__(self, client: AsyncClient, group: str, name: str) -> None:
        self._client, self._group, self._name = client, group, name
        self._taken: Consumed | None = None

    async def take(self, limit: int) -> int:
        """How many became acknowledged: what was taken the time before."""
        before = self._taken
        self._taken = await self._client.consume(
            "bench.events", group=self._group, consumer=self._name, limit=limit, ack=before
        )
        return 0 if before is None else len(before.messages)


async def connect(port: int) -> AsyncClient:
    return await connect_async(f"http://127.0.0.1:{port}", user="system", password=PASSWORD)
