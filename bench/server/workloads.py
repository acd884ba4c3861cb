"""What is compared: single writes, batches, consuming as a group, and how soon a waiting consumer has a commit."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from bench.measure import Comparison
from bench.peers import Numbers, Row, make_row
from bench.server import jetstream, ours, postgres, redis_streams

CALLERS = 24
BATCH = 500
FETCH = 1000
TOOK = "row + outbox trigger, synchronous_commit on, asyncpg"
Round = Callable[[], Awaitable[float]]


def event(row: Row) -> bytes:
    return json.dumps(
        {"id": str(row[0]), "customer": row[1], "amount": "12.50", "status": row[3], "note": row[4]}
    ).encode()


async def in_turns(rounds: int, **sides: Round) -> dict[str, float]:
    """The median of each side, measured alternately."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(await side())
    return {name: statistics.median(results) for name, results in found.items()}


async def callers_rate(seconds: float, work: Callable[[int], Awaitable[int]]) -> float:
    """`work(caller)` from 24 tasks for a while: what it counts, per second."""
    until, done = time.perf_counter() + seconds, 0

    async def call(number: int) -> None:
        nonlocal done
        while time.perf_counter() < until:
            count = await work(number)  # not `done += await …`, which would add to what it was before the wait
            done += count

    began = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    return done / (time.perf_counter() - began)


async def _each(count: int, call: Awaitable[Any]) -> int:
    await call
    return count


def single_writes(path: Path, rounds: int, seconds: float) -> Iterator[Comparison]:
    numbers = Numbers()

    async def measure(ports: dict[str, int]) -> dict[str, float]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(await ours.connect(ports["ours"]))
            await client.execute_all(ours.SCHEMA)
            await postgres.create(ports["postgres"])
            rows = await stack.enter_async_context(postgres.connections(ports["postgres"], CALLERS))
            streams = await stack.enter_async_context(jetstream.connections(ports["nats"], CALLERS))
            await jetstream.create(streams[0])
            redis = await stack.enter_async_context(redis_streams.connections(ports["redis"], CALLERS))

            def row() -> Row:
                return make_row(numbers.next())

            return await in_turns(
                rounds,
                ours=lambda: callers_rate(seconds, lambda n: _each(1, client.execute(ours.INSERT, row()))),
                postgres=lambda: callers_rate(seconds, lambda n: _each(1, postgres.write(rows[n], row()))),
                nats=lambda: callers_rate(seconds, lambda n: _each(1, jetstream.write(streams[n], event(row())))),
                redis=lambda: callers_rate(seconds, lambda n: _each(1, redis_streams.write(redis[n], event(row())))),
            )

    with ExitStack() as stack:
        ports = {
            "ours": stack.enter_context(ours.server(path)),
            "postgres": stack.enter_context(postgres.server(path)),
            "nats": stack.enter_context(jetstream.server(path)),
            "redis": stack.enter_context(redis_streams.server(path)),
        }
        rate = asyncio.run(measure(ports))
    name = f"{CALLERS} callers, single-row durable writes with an event"
    yield Comparison(name, f"PostgreSQL 15, {TOOK}", rate["ours"], rate["postgres"], "writes/s", 1.0)
    yield Comparison(name, "NATS JetStream, sync_interval always", rate["ours"], rate["nats"], "writes/s", 1.5)
    yield Comparison(name, "Redis Streams, appendfsync always", rate["ours"], rate["redis"], "writes/s", 1.0)


def batches(path: Path, rounds: int, seconds: float) -> Iterator[Comparison]:
    numbers = Numbers()

    async def measure(our_port: int, their_port: int) -> dict[str, float]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(await ours.connect(our_port))
            await client.execute_all(ours.SCHEMA)
            await postgres.create(their_port)
            rows = await stack.enter_async_context(postgres.connections(their_port, CALLERS))
            return await in_turns(
                rounds,
                ours=lambda: callers_rate(
                    seconds, lambda n: _each(BATCH, client.insert("bench.orders", numbers.block(BATCH)))
                ),
                postgres=lambda: callers_rate(
                    seconds, lambda n: _each(BATCH, postgres.write_many(rows[n], numbers.block(BATCH)))
                ),
            )

    with ours.server(path) as our_port, postgres.server(path) as their_port:
        rate = asyncio.run(measure(our_port, their_port))
    name = f"{CALLERS} callers, batches of {BATCH} rows"
    yield Comparison(name, "the same PostgreSQL, executemany", rate["ours"], rate["postgres"], "rows/s", 2.0)


async def drain(members: list[Any], take: Callable[[Any], Awaitable[int]], count: int) -> float:
    """Messages per second until `count` were taken and acknowledged."""
    taken = 0

    async def run(member: Any) -> None:
        nonlocal taken
        while taken < count:
            got = await take(member)
            taken += got

    began = time.perf_counter()
    await asyncio.gather(*(run(member) for member in members))
    return taken / (time.perf_counter() - began)


def consuming(path: Path, rounds: int, count: int) -> Iterator[Comparison]:
    """Four consumers of one group, each taking and acknowledging 1,000 at a time."""
    consumers = 4

    async def measure(ports: dict[str, int]) -> dict[str, float]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(await ours.connect(ports["ours"]))
            await client.execute_all(ours.SCHEMA)
            for at in range(0, count, 5000):
                await client.insert("bench.orders", [make_row(i) for i in range(at, at + 5000)])
            await postgres.create(ports["postgres"])
            rows = await stack.enter_async_context(postgres.connections(ports["postgres"], consumers))
            with jetstream.server(path, sync="1m") as filling:  # filled without fsync: only consuming is measured
                async with jetstream.connections(filling, consumers) as streams:
                    await jetstream.create(streams[0])
                    await jetstream.fill(streams[0], event(make_row(1)), count // 10)  # its rate does not depend on it
                    subscriptions = [
                        [await jetstream.consumer(stream, f"group{r}", FETCH * consumers) for stream in streams]
                        for r in range(rounds)
                    ]
                    groups = iter(range(rounds))
                    durable = iter(subscriptions)

                    async def ours_round() -> float:
                        group = f"group{next(groups)}"
                        return await drain(
                            [f"member{i}" for i in range(consumers)], lambda m: _take_ours(client, group, m), count
                        )

                    async def postgres_round() -> float:
                        await postgres.fill_outbox(ports["postgres"], count)
                        return await drain(rows, lambda connection: postgres.take(connection, FETCH), count)

                    async def nats_round() -> float:
                        return await drain(next(durable), lambda member: jetstream.take(member, FETCH), count // 10)

                    return await in_turns(rounds, ours=ours_round, postgres=postgres_round, nats=nats_round)

    with ours.server(path) as our_port, postgres.server(path) as their_port:
        rate = asyncio.run(measure({"ours": our_port, "postgres": their_port}))
    name = f"consuming {count:,} messages as a group of {consumers}, with acks"
    yield Comparison(
        name, "PostgreSQL, outbox polled with SKIP LOCKED", rate["ours"], rate["postgres"], "messages/s", 5.0
    )
    yield Comparison(
        name, "NATS JetStream, pull consumer", rate["ours"], rate["nats"], "messages/s", 1.0,
        note="its acks are not fsynced; ours are",
    )  # fmt: skip


async def _take_ours(client: Any, group: str, member: str) -> int:
    found = (await client.consume("bench.events", group=group, consumer=member, limit=FETCH)).messages
    if found:
        await client.ack("bench.events", group, found[-1].offset, consumer=member)
    return len(found)


def wake_up(path: Path, rounds: int, count: int) -> Iterator[Comparison]:
    """From the answer of the commit to the moment a consumer that waits has the message, in the same process."""

    async def ours_times(port: int, numbers: Iterator[int]) -> list[float]:
        async with await ours.connect(port) as writer, await ours.connect(port) as reader:
            await reader.query("SELECT 1")  # signed in
            return [await _woken_after(writer, reader, number) for number in numbers]

    async def theirs_times(port: int, numbers: Iterator[int]) -> list[float]:
        async with postgres.connections(port, 2) as (writer, reader):
            got: asyncio.Queue[float] = asyncio.Queue()
            await reader.add_listener("alarms", lambda *_: got.put_nowait(time.perf_counter()))
            found = []
            for number in numbers:
                began = time.perf_counter()
                await writer.execute("INSERT INTO alarms VALUES ($1)", number)
                found.append(await got.get() - began)
            return found

    async def measure(our_port: int, their_port: int) -> dict[str, float]:
        async with await ours.connect(our_port) as client:
            await client.execute_all(ours.SCHEMA)
        await postgres.create(their_port)
        rows = iter(range(1, 10**9))

        async def median_of(times: Callable[[int, Iterator[int]], Awaitable[list[float]]], port: int) -> float:
            found = await times(port, iter([next(rows) for _ in range(count)]))
            return statistics.median(found) * 1000

        return await in_turns(
            rounds,
            ours=lambda: median_of(ours_times, our_port),
            postgres=lambda: median_of(theirs_times, their_port),
        )

    with ours.server(path) as our_port, postgres.server(path) as their_port:
        took = asyncio.run(measure(our_port, their_port))
    yield Comparison(
        "write sent → waiting consumer has its event, p50", "PostgreSQL LISTEN/NOTIFY", took["ours"], took["postgres"],
        "ms", 1.5, at_most=True,
    )  # fmt: skip


async def _woken_after(writer: Any, reader: Any, number: int) -> float:
    waiting = asyncio.create_task(reader.consume("bench.rung", timeout_seconds=30))
    await _parked(writer)
    began = time.perf_counter()
    written = asyncio.create_task(writer.insert("bench.alarms", [(number,)]))
    found = await waiting
    ended = time.perf_counter()
    await written
    assert len(found.messages) == 1
    return ended - began


async def _parked(client: Any) -> None:
    """The consume was sent on another connection before this request: when it is answered, the other one waits."""
    for _ in range(2):
        await client.query("SELECT 1")
