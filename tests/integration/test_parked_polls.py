"""Two thousand parked long polls: waking the right ones is about as quick as with ten, and costs little memory.

Two servers with the same tables and topics run side by side: on one ten polls are parked, on the other 2,000. The polls
come over real sockets from a third process, which also writes, now here, now there, and takes the time from sending the
row to the answer of each poll that it wakes. So both servers meet the same noise.

A topic has ten polls: four groups of two consumers, and two readers without a group. A message belongs to one consumer
of each group and to every reader: six answers, and the other polls of this and of all other topics stay where they are.
So the work that a message causes is the same on both servers, and what differs is how many others are parked: on the
second server 1,990, of the same topic, of other topics, and, in the second layout, of the same group.

    python tests/integration/test_parked_polls.py LAYOUT MESSAGES PORT …      is that third process
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from server_fixture import PASSWORD, ServerProcess, basic

FEW, MANY = 10, 2_000
RATIO = 3.0
MESSAGES = 20  # to each server
TIMED_MESSAGES = 700  # seven are beyond the p99, and the answers to one share its luck
TOPICS = MANY // FEW
KIB = 1024
MEMORY_LIMIT_KIB = 64  # per parked poll; about 40 is what it takes
PATIENCE_SECONDS = 60.0
FILES = MANY + 1_000
VISIBILITY_SECONDS = 3_600  # no claim runs out meanwhile

Latency = float  # milliseconds


# --- layouts ----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where one poll waits."""

    topic: int
    group: str | None
    consumer: str | None


class Layout(NamedTuple):
    places: tuple[Place, ...]
    woken: int  # answers to one message of a topic
    topics: int


def spread(polls: int) -> Layout:
    """Ten to a topic: four groups of two, and two without a group."""
    topics = polls // FEW
    of_topic = [(f"g{i % 4}", f"c{i}") for i in range(8)] + [(None, None)] * 2
    places = tuple(Place(topic, group, consumer) for topic in range(topics) for group, consumer in of_topic)
    return Layout(places, 6, topics)


def crowd(polls: int) -> Layout:
    """All in one group of one topic: a message is one consumer's."""
    return Layout(tuple(Place(0, "g", f"c{i}") for i in range(polls)), 1, 1)


LAYOUTS = {"spread": spread, "crowd": crowd}


# --- the third process ------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One request at a time; the answer with the moment when it was whole."""

    def __init__(self) -> None:
        self._received = b""
        self._answered: asyncio.Future[tuple[float, bytes]] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) >= length:
            assert self._answered is not None, "an answer that nobody asked for"
            if not head.startswith(b"HTTP/1.1 200 "):
                raise SystemExit(
                    f"an answer that is no success: {self._received!r}"
                )  # asyncio lets nothing else through
            self._received = b""
            self._answered.set_result((time.perf_counter(), body))

    def send(self, method: str, path: str, body: Any = None) -> asyncio.Future[tuple[float, bytes]]:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('system', PASSWORD)}\r\n"
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return self._answered


class Poll:
    """A consumer that waits, acknowledges and waits again."""

    def __init__(self, connection: Connection, place: Place) -> None:
        self._connection = connection
        self.place = place
        self.answer: asyncio.Future[tuple[float, bytes]]

    def park(self) -> asyncio.Future[tuple[float, bytes]]:
        request = {
            "topic": f"app.e{self.place.topic}",
            "group_id": self.place.group,
            "consumer": self.place.consumer,
            "timeout_seconds": 300,
            "visibility_seconds": VISIBILITY_SECONDS,
        }
        self.answer = self._connection.send("POST", "/v1/api/topics/consume", request)
        return self.answer

    async def acknowledge(self) -> None:
        (message,) = json.loads(self.answer.result()[1])["messages"]
        if self.place.group is not None:
            request = {
                "topic": f"app.e{self.place.topic}",
                "group_id": self.place.group,
                "consumer": self.place.consumer,
                "offsets": [message["offset"]],
            }
            await self._connection.send("POST", "/v1/api/topics/ack", request)


class Waiting:
    """The polls of one server, and the connection that writes to it."""

    def __init__(self, port: int, layout: Layout) -> None:
        self._port = port
        self._layout = layout
        self._writer: Connection
        self._woken: list[Poll] = []
        self._are_woken = asyncio.Event()
        self.latencies: list[Latency] = []

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
        return connection

    async def park_all(self) -> None:
        self._writer = await self._connect()
        for place in self._layout.places:
            self._park(Poll(await self._connect(), place))
        await self._until_parked(len(self._layout.places))

    async def _until_parked(self, count: int) -> None:
        while await self._parked() != count:
            await asyncio.sleep(0)  # the next look; there is nobody who would tell

    async def _parked(self) -> int:
        _, metrics = await self._writer.send("GET", "/metrics")
        (line,) = [line for line in metrics.decode().splitlines() if line.startswith("tablecast_long_polls_parked ")]
        return int(float(line.split()[1]))

    async def round(self, number: int) -> None:
        """One message: who is woken, how quickly, and that nobody else is."""
        topic = number * 37 % self._layout.topics  # all over the place, the same every time
        self._woken.clear()
        self._are_woken.clear()
        sent = time.perf_counter()
        await self._writer.send("POST", f"/v1/api/tables/app.t{topic}/rows", [{"id": number}])
        await self._are_woken.wait()
        assert await self._parked() == len(self._layout.places) - self._layout.woken
        woken, self._woken = self._woken, []
        assert [poll.place.topic for poll in woken] == [topic] * self._layout.woken
        self.latencies += [(poll.answer.result()[0] - sent) * 1000 for poll in woken]
        for poll in woken:
            await poll.acknowledge()
            self._park(poll)
        await self._until_parked(len(self._layout.places))

    def _park(self, poll: Poll) -> None:
        poll.park().add_done_callback(lambda _: self._note(poll))

    def _note(self, poll: Poll) -> None:
        self._woken.append(poll)
        if len(self._woken) == self._layout.woken:
            self._are_woken.set()


async def drive(name: str, messages: int, ports: list[int]) -> None:
    few, many = (Waiting(port, LAYOUTS[name](count)) for port, count in zip(ports, (FEW, MANY), strict=True))
    await few.park_all()
    await told("few are connected")  # whoever started this looks at the memory in between
    await many.park_all()
    await told("all are parked")
    for number in range(messages):
        await few.round(number)
        await many.round(number)
    sys.stdout.write(json.dumps([few.latencies, many.latencies]) + "\n")
    sys.stdout.flush()


async def told(what: str) -> None:
    """Says it and waits for a line in return."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


# --- the test ---------------------------------------------------------------------------------------------------


def p99(latencies: list[Latency]) -> Latency:
    return sorted(latencies)[int(len(latencies) * 0.99)]


def resident_kib(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() // KIB


@contextmanager
def servers(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Without fsync, which would be most of the time and is the same for both. On a busy machine thousands of connections
    wait longer than by default until they are let in."""
    settings = ("durability=none", "log_level=warning", "newcomers_wait_seconds=60")
    flags = [word for setting in settings for word in ("--set", setting)]
    with ServerProcess(tmp_path / "few", *flags) as few, ServerProcess(tmp_path / "many", *flags) as many:
        for server in (few, many):
            server.sql("CREATE NAMESPACE app")
            for n in range(TOPICS):
                server.sql(
                    f"CREATE TABLE app.t{n} (id INT PRIMARY KEY); CREATE TOPIC app.e{n};"
                    f"ALTER TOPIC app.e{n} ADD SOURCE app.t{n} ON INSERT"
                )
        yield few, many


@contextmanager
def driver(layout: str, messages: int, *ports: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, layout, *map(str, (messages, *ports))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the polling process ended with {process.wait()}"
    return line


class Measured(NamedTuple):
    few: list[Latency]
    many: list[Latency]
    per_poll_kib: float


def measured(layout: str, messages: int, tmp_path: Path) -> Measured:
    with servers(tmp_path) as (few, many), driver(layout, messages, few.port, many.port) as process:
        heard(process)
        before = resident_kib(many.pid)
        go_on(process)
        heard(process)
        per_poll_kib = (resident_kib(many.pid) - before) / MANY
        go_on(process)
        found = Measured(*json.loads(heard(process)), per_poll_kib)
    assert len(found.few) == len(found.many) == messages * LAYOUTS[layout](FEW).woken
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_thousand_parked_polls(layout: str, tmp_path: Path) -> None:
    """A message wakes those that it is for and nobody else: the process that polls asserts it after each."""
    assert measured(layout, MESSAGES, tmp_path).per_poll_kib <= MEMORY_LIMIT_KIB


@pytest.mark.speed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_they_are_woken_as_quickly_as_ten(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(layout, TIMED_MESSAGES, tmp_path)
    ratio = p99(found.many) / p99(found.few)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{layout}: p99 wake-up {p99(found.few):.2f} ms with {FEW} parked, {p99(found.many):.2f} ms with {MANY:,}: "
            f"{ratio:.2f} × ({len(found.many):,} samples each); {found.per_poll_kib:.1f} KiB per parked poll\n"
        )
    assert ratio <= RATIO


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    layout, messages, *ports = sys.argv[1:]
    asyncio.run(drive(layout, int(messages), [int(port) for port in ports]))
