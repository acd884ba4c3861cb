"""Four consumers of one group, each taking and acknowledging 1,000 messages at a time until all are done."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers import make_row
from bench.run import Found
from bench.server import jetstream, ours, postgres, redis_streams
from bench.server.turns import OURS, Against, Round, Server, compared, in_turns, started
from bench.server.writing import event

CONSUMERS = 4
FETCH = 1000
FEWER = (
    10  # JetStream and Redis get a tenth of the messages: it takes long enough, and their rate does not depend on it
)
FILL = 5000  # rows per request

PEERS = {
    "postgres": Against("PostgreSQL, outbox polled with SKIP LOCKED", 5.0),
    "nats": Against("NATS JetStream, pull consumer", 1.0, "its acks are not fsynced; ours are"),
    "redis": Against("Redis Streams, XREADGROUP and XACK, appendfsync always", 0.0),
}
Take = Callable[[Any], Awaitable[int]]
Drains = Callable[[int, int], AbstractAsyncContextManager[Round]]  # at a port, so many messages


async def drain(members: Sequence[Any], take: Take, count: int) -> float:
    """Messages per second until the last of `count` was taken and acknowledged.

    The clock stops there: that a member still waits for more, as long as its client does, is nobody's fault. Before it starts,
    what was written to fill this side and the others is on disk: else the next fsync, whoever's it is, waits for it.
    """
    os.sync()
    began = ended = time.perf_counter()
    taken = 0

    async def run(member: Any) -> None:
        nonlocal taken, ended
        while taken < count:
            got = await take(member)
            taken += got
            if got:
                ended = time.perf_counter()

    await asyncio.gather(*(run(member) for member in members))
    return taken / (ended - began)


@asynccontextmanager
async def _ours(port: int, count: int) -> AsyncIterator[Round]:
    async with await ours.connect(port) as client:
        await client.execute_all(ours.SCHEMA)
        for at in range(0, count, FILL):
            await client.insert("bench.orders", [make_row(i) for i in range(at, min(count, at + FILL))])
        groups = iter(range(10**6))

        async def one_round() -> float:
            group = f"group{next(groups)}"
            members = [ours.Member(client, group, f"member{i}") for i in range(CONSUMERS)]
            return await drain(members, lambda member: member.take(FETCH), count)

        yield one_round


@asynccontextmanager
async def _postgres(port: int, count: int) -> AsyncIterator[Round]:
    await postgres.create(port)
    async with postgres.connections(port, CONSUMERS) as rows:

        async def one_round() -> float:
            await postgres.fill_outbox(port, count)
            return await drain(rows, lambda connection: postgres.take(connection, FETCH), count)

        yield one_round


@asynccontextmanager
async def _jetstream(port: int, count: int) -> AsyncIterator[Round]:
    async with jetstream.connections(port, CONSUMERS) as streams:
        await jetstream.create(streams[0])
        await jetstream.fill(streams[0], event(make_row(1)), count // FEWER)
        groups = iter(range(10**6))

        async def one_round() -> float:
            group = f"group{next(groups)}"
            members = [await jetstream.consumer(stream, group, FETCH * CONSUMERS) for stream in streams]
            return await drain(members, lambda member: jetstream.take(member, FETCH), count // FEWER)

        yield one_round


@asynccontextmanager
async def _redis(port: int, count: int) -> AsyncIterator[Round]:
    async with redis_streams.connections(port, CONSUMERS) as connections:
        await redis_streams.fill(connections[0], event(make_row(1)), count // FEWER)
        groups = iter(range(10**6))

        async def one_round() -> float:
            group = f"group{next(groups)}"
            await redis_streams.create_group(connections[0], group)
            members = list(enumerate(connections))
            return await drain(
                members, lambda m: redis_streams.take(m[1], group, f"member{m[0]}", FETCH), count // FEWER
            )

        yield one_round


def consuming(path: Path, rounds: int, count: int) -> Iterator[Found]:
    # JetStream is filled and consumed without fsync: consuming is measured, and it fsyncs no acknowledgement anyway.
    servers: dict[str, Server] = {
        OURS: ours.server, "postgres": postgres.server, "nats": jetstream.lazy_server, "redis": redis_streams.server
    }  # fmt: skip
    drains: dict[str, Drains] = {OURS: _ours, "postgres": _postgres, "nats": _jetstream, "redis": _redis}

    async def measure(ports: dict[str, int]) -> dict[str, float]:
        async with AsyncExitStack() as stack:
            sides = {n: await stack.enter_async_context(drains[n](port, count)) for n, port in ports.items()}
            return await in_turns(rounds, sides)

    with started(path, servers) as them:
        rate = asyncio.run(measure(them.ports))
    name = f"consuming {count:,} messages as a group of {CONSUMERS}, with acks"
    yield from compared(name, PEERS, rate, them.missing, "messages/s")
