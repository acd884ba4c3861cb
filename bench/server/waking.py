"""From the moment a write is sent to the moment a consumer that waits has its message, both in the same process."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.run import Found
from bench.server import bare, jetstream, ours, postgres, redis_streams
from bench.server.turns import OURS, Against, Round, Server, compared, in_turns, started

PEERS = {
    "postgres": Against(
        "PostgreSQL LISTEN/NOTIFY", 1.5, "a NOTIFY is lost to who does not listen; a message here is kept"
    ),
    "nats": Against("NATS JetStream, sync_interval always, a pull consumer that waits", 0.0),
    "redis": Against("Redis Streams, appendfsync always, XREAD BLOCK", 0.0),
    "bare": Against(
        "the same HTTP, client and one fsync with no database between", 0.0, "what this stack can do at best", "limit"
    ),
}
Rung = tuple[float, float]  # the seconds until the waiting side had it, and when that was, since 1970
Ring = Callable[[int], Awaitable[Rung]]  # writes row `number`
Rings = Callable[[int], AbstractAsyncContextManager[Ring]]  # at a port


@asynccontextmanager
async def our_ring(port: int) -> AsyncIterator[Ring]:
    async with await ours.connect(port) as writer, await ours.connect(port) as reader:
        await writer.execute_all(ours.SCHEMA)
        await reader.query("SELECT 1")  # signed in

        async def ring(number: int) -> Rung:
            waiting = asyncio.create_task(reader.consume("bench.rung", timeout_seconds=30))
            await _parked(lambda: writer.consume("bench.events"))
            found, rung = await _rung(waiting, lambda: writer.insert("bench.alarms", [(number,)]))
            assert len(found.messages) == 1
            return rung

        yield ring


@asynccontextmanager
async def postgres_ring(port: int) -> AsyncIterator[Ring]:
    await postgres.create(port)
    async with postgres.connections(port, 2) as (writer, reader):
        got: asyncio.Queue[int] = asyncio.Queue()
        await reader.add_listener("alarms", lambda *_: got.put_nowait(1))

        async def ring(number: int) -> Rung:
            waiting = asyncio.create_task(got.get())
            _, rung = await _rung(waiting, lambda: writer.execute("INSERT INTO alarms VALUES ($1)", number))
            return rung

        yield ring


@asynccontextmanager
async def _jetstream(port: int) -> AsyncIterator[Ring]:
    async with jetstream.connections(port, 2) as (writer, reader):
        await jetstream.create(writer)
        pulling = await jetstream.consumer(reader, "waiting", 1)

        async def ring(number: int) -> Rung:
            waiting = asyncio.create_task(jetstream.next_one(pulling))
            await _parked(lambda: jetstream.ask(writer))
            found, rung = await _rung(waiting, lambda: jetstream.write(writer, str(number).encode()))
            await found.ack()
            return rung

        yield ring


@asynccontextmanager
async def _redis(port: int) -> AsyncIterator[Ring]:
    async with redis_streams.connections(port, 2) as (writer, reader):

        async def ring(number: int) -> Rung:
            waiting = asyncio.create_task(redis_streams.next_one(reader))
            await _parked(writer.ping)
            found, rung = await _rung(waiting, lambda: redis_streams.write(writer, str(number).encode()))
            assert found
            return rung

        yield ring


@asynccontextmanager
async def _bare(port: int) -> AsyncIterator[Ring]:
    async with bare.connections(port) as (writer, reader):

        async def ring(number: int) -> Rung:
            waiting = asyncio.create_task(reader.ask("/wait"))
            await _parked(lambda: writer.ask("/"))
            found, rung = await _rung(waiting, lambda: writer.ask("/ring", str(number).encode()))
            assert found == str(number).encode()
            return rung

        yield ring


async def _parked(ask: Callable[[], Awaitable[Any]]) -> None:
    """The waiting side's request was sent on another connection before these: when they are answered, it waits."""
    for _ in range(2):
        await ask()


async def _rung(waiting: asyncio.Task[Any], write: Callable[[], Awaitable[Any]]) -> tuple[Any, Rung]:
    began = time.perf_counter()
    written = asyncio.ensure_future(write())
    found = await waiting
    rung = time.perf_counter() - began, time.time()
    await written
    return found, rung


def wake_up(path: Path, rounds: int, count: int) -> Iterator[Found]:
    servers: dict[str, Server] = {
        OURS: ours.server, "postgres": postgres.server, "nats": jetstream.server, "redis": redis_streams.server,
        "bare": bare.server,
    }  # fmt: skip
    rings: dict[str, Rings] = {
        OURS: our_ring,
        "postgres": postgres_ring,
        "nats": _jetstream,
        "redis": _redis,
        "bare": _bare,
    }
    numbers = iter(range(1, 10**9))

    def side(ring: Ring) -> Round:
        async def median_ms() -> float:
            return statistics.median([(await ring(next(numbers)))[0] for _ in range(count)]) * 1000

        return median_ms

    async def measure(ports: dict[str, int]) -> dict[str, float]:
        async with AsyncExitStack() as stack:
            sides = {n: side(await stack.enter_async_context(rings[n](port))) for n, port in ports.items()}
            return await in_turns(rounds, sides)

    with started(path, servers) as them:
        took = asyncio.run(measure(them.ports))
    name = "write sent → waiting consumer has its event, p50"
    yield from compared(name, PEERS, took, them.missing, "ms", at_most=True)
