"""The life of a server that is killed again and again under its clients, and the examination afterwards."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from server_workload import (
    CONSUMERS,
    EVENTS,
    GROUP,
    NOTES,
    ORDERS,
    PRIMARY_KEYS,
    PUBLISHERS,
    RULES,
    SCHEMA,
    STOCK,
    CountedRetry,
    Member,
    Progress,
    Publisher,
    account,
)

import tablecast
from tablecast import EARLIEST, AsyncClient, Message, Start, StartKind, connect_async
from tablecast.engine.verify import verify_engine
from tablecast.testing.history import History, Recorder, Report, check

PASSWORD = "a password for the crash test"
FEWEST_STEPS, MOST_STEPS = 40, 250  # acknowledged requests between two kills
LONGEST_DELAY_SECONDS = 0.05  # from then to the kill: so that it falls between answers, too
STILLBORN = 0.2  # how often a server is killed while it starts
START_SECONDS = 1.0  # about what a start takes
PORTS = range(20_000, 30_000)  # below those that the system gives to clients: a retry must not take the server's
LAST_STEPS = 100  # after the last kill


@dataclass(frozen=True, slots=True)
class Lived:
    report: Report
    kills: int
    requests: int
    repeated: int  # attempts that had to be made again
    handled_twice: int


class Server:
    """`tablecast serve` over one directory and on one port, in as many processes as it takes."""

    def __init__(self, data: Path, log: IO[bytes], port: int) -> None:
        self._command = [sys.executable, "-m", "tablecast", "serve", "--data", str(data), "--port", str(port)]
        self._log = log
        self._process: Process | None = None
        self.url = f"http://127.0.0.1:{port}"

    async def spawn(self) -> Process:
        environment = {**os.environ, "TABLECAST_PASSWORD": PASSWORD}
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=DEVNULL, stdout=PIPE, stderr=self._log, env=environment
        )
        return self._process

    async def start(self) -> None:
        process = await self.spawn()
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if b"listening on" in line:
                return
        raise AssertionError(f"the server ended with {await process.wait()} instead of listening")

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def end(self) -> int:
        assert self._process is not None
        self._process.terminate()
        await self._process.communicate()
        return self._process.returncode or 0


def free_port(rng: random.Random) -> int:
    while True:
        port = rng.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


async def live(home: Path, seed: int, kills: int) -> Lived:
    """Raises AssertionError, with all that is wrong, if a promise was broken."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.log").open("wb") as log:
        server = Server(home / "db", log, free_port(random.Random()))
        try:
            lived = await _live(server, seed, kills)
            assert await server.end() == 0
        finally:
            await server.kill()
    _examine_log(home / "server.log")
    _examine_closed(home / "db")
    return lived


async def _live(server: Server, seed: int, kills: int) -> Lived:
    rng, progress, over, retry = random.Random(f"server {seed}"), Progress(), asyncio.Event(), CountedRetry()
    await server.start()
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(_client(server, "system", retry))
        await _set_up(system)
        clients = [await stack.enter_async_context(_client(server, account(n), retry)) for n in range(PUBLISHERS)]
        readers = [await stack.enter_async_context(_client(server, "system", retry)) for _ in range(CONSUMERS)]
        publishers = [Publisher(client, number, seed, progress) for number, client in enumerate(clients)]
        members = [Member(client, number) for number, client in enumerate(readers)]
        async with asyncio.TaskGroup() as group:
            for member in members:
                group.create_task(member.run())
            publishing = [group.create_task(publisher.run(over)) for publisher in publishers]
            for _ in range(kills):
                await _die(server, rng, progress)
            await progress.further(LAST_STEPS)
            over.set()
            await asyncio.gather(*publishing)
            await _drained(system)
            for member in members:
                member.stop()
        observed = await _observe(system, clients)
    report = _judge([*(publisher.recorder for publisher in publishers), *(m.recorder for m in members), observed])
    handled = sum((member.handled for member in members), Counter[tuple[int, int]]())
    assert len(handled) == report.topics[EVENTS].messages, "every message was handled at least once"
    return Lived(report, kills, progress.count, len(retry.waits), sum(count > 1 for count in handled.values()))


@asynccontextmanager
async def _client(server: Server, user: str, retry: CountedRetry) -> AsyncIterator[AsyncClient]:
    async with await connect_async(server.url, user=user, password=PASSWORD, retry=retry) as client:
        yield client


async def _set_up(system: AsyncClient) -> None:
    await system.execute(SCHEMA)
    for number in range(PUBLISHERS):
        await system.execute(f"CREATE USER '{account(number)}' WITH PASSWORD '{PASSWORD}' ROLE 'service'")


async def _die(server: Server, rng: random.Random, progress: Progress) -> None:
    """Killed in the middle of work, and now and then again before it has come back."""
    await progress.further(rng.randint(FEWEST_STEPS, MOST_STEPS))
    await asyncio.sleep(rng.uniform(0, LONGEST_DELAY_SECONDS))  # not waiting for anything: the moment is to be random
    await server.kill()
    if rng.random() < STILLBORN:
        await server.spawn()
        await asyncio.sleep(rng.uniform(0, START_SECONDS))
        await server.kill()
    await server.start()


async def _drained(system: AsyncClient) -> None:
    """Until the group has acknowledged everything."""
    lag = "SELECT sum(end_offset - coalesce(committed, 0)) FROM system.topic_partitions LEFT JOIN system.topic_groups "
    lag += f"USING (topic, partition_id, end_offset) WHERE topic = '{EVENTS}'"
    while (await system.query(lag)).scalar():
        await asyncio.sleep(0.05)


# --- what is there ----------------------------------------------------------------------------------------------


async def _observe(system: AsyncClient, clients: list[AsyncClient]) -> Recorder:
    recorder = Recorder()
    for table in (ORDERS, STOCK):
        rows = (await system.query(f"SELECT *, _seq FROM {table}")).dicts()
        recorder.saw_table(table, rows, PRIMARY_KEYS[table])
    for number, client in enumerate(clients):
        rows = (await client.query(f"SELECT *, _seq FROM {NOTES}")).dicts()
        recorder.saw_table(NOTES, rows, PRIMARY_KEYS[NOTES], user_id=account(number))
    offsets = await system.query("SELECT topic, partition_id FROM system.topic_partitions ORDER BY topic, partition_id")
    for topic, partitions in itertools.groupby(offsets.rows, key=lambda row: str(row[0])):
        messages = [message for _, partition in partitions async for message in _whole(system, topic, partition)]
        recorder.saw_topic(topic, messages)
    return recorder


async def _whole(client: AsyncClient, topic: str, partition: int) -> AsyncIterator[Message]:
    start, has_more = EARLIEST, True
    while has_more:
        found = await client.consume(topic, start=start, partition=partition, limit=10_000)
        for message in found.messages:
            yield message
        start, has_more = Start(StartKind.OFFSET, found.next_offset or 0), found.has_more


def _judge(recorders: list[Recorder]) -> Report:
    events = itertools.chain.from_iterable(recorder.history().events for recorder in recorders)
    report = check(History(events), routes=RULES)
    report.raise_if_bad()
    assert report.writes.refused == report.writes.unknown == 0, "each write was acknowledged in the end"
    for figures in report.topics.values():
        assert figures.expected > 0
        assert figures.coverage_percent == 100.0
        assert figures.duplication == 1
        assert figures.messages == figures.expected
        assert figures.gaps == 0
    (group,) = report.groups
    assert group.unique == group.acked == report.topics[EVENTS].messages
    return report


def _examine_log(path: Path) -> None:
    wrong = re.findall(r"^\S+ (?:ERROR|CRITICAL).*|^Traceback.*", path.read_text(), re.MULTILINE)
    assert not wrong, wrong[0]


def _examine_closed(data: Path) -> None:
    """What the directory says, opened without the server: whole, and the group stands where it was told."""
    with tablecast.open(data) as db:
        assert verify_engine(db.engine).problems == []
        behind = db.query(f"SELECT sum(lag), sum(claimed) FROM system.topic_groups WHERE group_id = '{GROUP}'").rows
        assert behind == [(0, 0)]
