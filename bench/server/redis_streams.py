"""Redis Streams, appendfsync always."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import redis.asyncio as redis

from bench.server.processes import free_port, program, running

INSTALL = "apt-get install redis-server"
SETTINGS = {"appendonly": "yes", "appendfsync": "always", "save": ""}
PIPELINE = 1000  # entries sent together while the stream is filled


def executable() -> str:
    return program("redis-server", INSTALL)


@contextmanager
def server(path: Path) -> Iterator[int]:
    port, data = free_port(), path / "redis"
    command = [executable(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data)]
    command += [part for name, value in SETTINGS.items() for part in (f"--{name}", value)]
    data.mkdir()
    with running(command, port, path / "redis.log"):
        yield port


@asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[Any]]:
    made = [redis.Redis(host="127.0.0.1", port=port, single_connection_client=True) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            await connection.aclose()


async def write(connection: Any, payload: bytes) -> None:
    await connection.xadd("orders", {"payload": payload})


async def fill(connection: Any, payload: bytes, count: int) -> None:
    for at in range(0, count, PIPELINE):
        async with connection.pipeline(transaction=False) as together:
            for _ in range(min(PIPELINE, count - at)):
                together.xadd("orders", {"payload": payload})
            await together.execute()


async def create_group(connection: Any, group: str) -> None:
    await connection.xgroup_create("orders", group, id="0")


async def take(connection: Any, group: str, member: str, limit: int) -> int:
    found = await connection.xreadgroup(group, member, {"orders": ">"}, count=limit)
    ids = [number for _, entries in found for number, _ in entries]
    if ids:
        await connection.xack("orders", group, *ids)
    return len(ids)


async def next_one(connection: Any) -> Any:
    return await connection.xread({"orders": "$"}, block=30_000)
