"""Writes that are durable when they are answered, each with its event: one row at a time, and in batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers import Numbers, Row, make_row
from bench.run import Found
from bench.server import jetstream, ours, postgres, redis_streams
from bench.server.turns import CALLERS, OURS, Against, Round, Server, callers_rate, compared, in_turns, started

BATCH = 500
Write = Callable[[int, Any], Awaitable[object]]  # caller, what it writes
Writes = Callable[[int], AbstractAsyncContextManager[Write]]  # at a port

SINGLE = {
    "postgres": Against("PostgreSQL 15, row + outbox trigger, synchronous_commit on, asyncpg", 1.0),
    "nats": Against("NATS JetStream, sync_interval always", 1.5, "a message, no row"),
    "nats_lazy": Against(
        "NATS JetStream as it comes: no fsync before the answer", 0.0, "a power cut may lose two minutes of it"
    ),
    "redis": Against("Redis Streams, appendfsync always", 1.0, "a message, no row; all data in memory"),
}
BATCHES = {
    "postgres": Against("the same PostgreSQL, executemany", 2.0),
    "copy": Against("the same server, COPY, one trigger per statement", 0.0, "as its documentation advises for bulk"),
}


def event(row: Row) -> bytes:
    return json.dumps(
        {"id": str(row[0]), "customer": row[1], "amount": "12.50", "status": row[3], "note": row[4]}
    ).encode()


@asynccontextmanager
async def _ours(port: int) -> AsyncIterator[Write]:
    """One client for all callers, as its users would have it: it sends writes together that come together."""
    async with await ours.connect(port) as client:
        await client.execute_all(ours.SCHEMA)
        yield lambda n, row: client.execute(ours.INSERT, row)


@asynccontextmanager
async def _postgres(port: int) -> AsyncIterator[Write]:
    await postgres.create(port)
    async with postgres.connections(port, CALLERS) as connections:
        yield lambda n, row: postgres.write(connections[n], row)


@asynccontextmanager
async def _jetstream(port: int) -> AsyncIterator[Write]:
    async with jetstream.connections(port, CALLERS) as streams:
        await jetstream.create(streams[0])
        yield lambda n, row: jetstream.write(streams[n], event(row))


@asynccontextmanager
async def _redis(port: int) -> AsyncIterator[Write]:
    async with redis_streams.connections(port, CALLERS) as connections:
        yield lambda n, row: redis_streams.write(connections[n], event(row))


def single_writes(path: Path, rounds: int, seconds: float) -> Iterator[Found]:
    servers: dict[str, Server] = {
        OURS: ours.server, "postgres": postgres.server, "nats": jetstream.server, "nats_lazy": jetstream.lazy_server,
        "redis": redis_streams.server,
    }  # fmt: skip
    writes: dict[str, Writes] = {
        OURS: _ours, "postgres": _postgres, "nats": _jetstream, "nats_lazy": _jetstream, "redis": _redis
    }  # fmt: skip
    numbers = Numbers()
    with started(path, servers) as them:
        measured = _rates(writes, them.ports, rounds, seconds, lambda: make_row(numbers.next()), 1)
        rate = asyncio.run(measured)
    name = f"{CALLERS} callers, single-row durable writes with an event"
    yield from compared(name, SINGLE, rate, them.missing, "writes/s")


async def _rates(
    writes: Mapping[str, Writes],
    ports: Mapping[str, int],
    rounds: int,
    seconds: float,
    make: Callable[[], Any],
    count: int,
) -> dict[str, float]:
    """Rows per second of each side that has a port; a call writes `count` of them."""

    def side(write: Write) -> Round:
        async def call(caller: int) -> int:
            await write(caller, make())
            return count

        return lambda: callers_rate(seconds, call)

    async with AsyncExitStack() as stack:
        sides = {name: side(await stack.enter_async_context(writes[name](port))) for name, port in ports.items()}
        return await in_turns(rounds, sides)


# --- batches ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _our_batches(port: int) -> AsyncIterator[Write]:
    async with await ours.connect(port) as client:
        await client.execute_all(ours.SCHEMA)
        yield lambda n, rows: client.insert("bench.orders", rows)


@asynccontextmanager
async def _postgres_batches(port: int) -> AsyncIterator[Write]:
    await postgres.create(port)
    async with postgres.connections(port, CALLERS) as connections:
        yield lambda n, rows: postgres.write_many(connections[n], rows)


@asynccontextmanager
async def _postgres_copies(port: int) -> AsyncIterator[Write]:
    """In the same server, after `_postgres_batches` has made its tables."""
    async with postgres.connections(port, CALLERS) as connections:
        yield lambda n, rows: postgres.copy_many(connections[n], rows)


def batches(path: Path, rounds: int, seconds: float) -> Iterator[Found]:
    writes: dict[str, Writes] = {OURS: _our_batches, "postgres": _postgres_batches, "copy": _postgres_copies}
    numbers = Numbers()
    with started(path, {OURS: ours.server, "postgres": postgres.server}) as them:
        if "postgres" in them.ports:
            them.ports["copy"] = them.ports["postgres"]
        missing = dict.fromkeys(BATCHES, them.missing.get("postgres", ""))
        rate = asyncio.run(_rates(writes, them.ports, rounds, seconds, lambda: numbers.block(BATCH), BATCH))
    yield from compared(f"{CALLERS} callers, batches of {BATCH} rows", BATCHES, rate, missing, "rows/s")
