"""Redis Streams, appendfsync always."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import redis.asyncio as redis

from bench.server.processes import free_port, program, running


@contextmanager
def server(path: Path) -> Iterator[int]:
    port, data = free_port(), path / "redis"
    data.mkdir()
    command = [
        program("redis-server", "Debian's redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data),
        "--appendonly", "yes", "--appendfsync", "always", "--save", "",
    ]  # fmt: skip
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
