"""Storms of live connections against a server in a process of its own.

    python tests/integration/live_storm.py --cycles 5000 [--seed 1]

The server is calm at first; then comes a storm of well-behaved guests, then one of all kinds (storm_guests.py), and all three
again: each storm of as many cycles, many at a time. Meanwhile one subscriber, in a process of its own, writes a row and waits
for the change, again and again. Then:

    nothing is left        no subscription, no connection, no group, and as many open files as before, but for the store's own,
                           which follow what the subscriber wrote
    memory is back         the storms leave no more than LEFT_BYTES, and the second pair no more than the first but for
                           GROWTH_BYTES
    others are unharmed    the subscriber's wait, in the median and the longest of a hundred, is at most SLOWER times that of a
                           calm server, among well-behaved guests and among guests of all kinds

The guests come as fast as they are let in: the server gives newcomers a share of its event loop (`newcomers_share`), so a storm
takes longer than it would alone; its speed is told. They are a process of their own that computes when nobody else does, because
they stand for other machines: what their own computing takes from the server's processors is not what is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from server_fixture import PASSWORD, Address, ServerProcess
from storm_guests import MIXED, PLAIN, Guests

import tablecast

AT_A_TIME = 16
STORE = "/data/store"  # in the names of the store's files
SLOWER = 2.0
JUDGED = {"in the median": 0.5, "at p99": 0.99}
CALM_SECONDS = 5.0
LEFT_BYTES = 64 * 2**20  # of a process that began with none of its caches and pools
GROWTH_BYTES = 16 * 2**20  # of what the allocator keeps, whichever storm it came from
LARGE_ROWS, LARGE_CHARS = 40, 20_000
TABLES = """
CREATE NAMESPACE app;
CREATE TABLE app.small (id INT PRIMARY KEY, grp INT);
CREATE TABLE app.large (id INT PRIMARY KEY, body TEXT);
CREATE TABLE app.watched (id INT PRIMARY KEY, n BIGINT);
CREATE TABLE app.filler (id INT PRIMARY KEY, body TEXT)
"""
# More than the store's write buffers hold: else what the subscriber writes would fill them.
FILLERS, FILLER_CHARS = 64, 1_000_000


# --- the subscriber that must not be harmed ---------------------------------------------------------------------


async def watch(url: str) -> None:
    """Until a line comes; then it says how long each wait took."""
    waits: list[float] = []
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    async with await tablecast.connect_async(url, user="system", password=PASSWORD) as db:
        table = await db.live_table("SELECT id, n FROM app.watched").ready()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        n = 0
        while not over.done():
            n += 1
            began = time.perf_counter()
            await db.execute("INSERT INTO app.watched VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET n = excluded.n", [n])
            while dict(table.rows) != {(1,): (1, n)}:
                await table.changed()
            waits.append(time.perf_counter() - began)
    sys.stdout.write(json.dumps(waits) + "\n")


class Watcher:
    """`watch` in a process of its own, for as long as the block lasts; `waits` are there afterwards."""

    def __init__(self, server: Address) -> None:
        self._url = server.url
        self.waits: list[float] = []

    async def __aenter__(self) -> Watcher:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--watch", self._url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"ready\n"
        return self

    async def __aexit__(self, *_: object) -> None:
        said, _ = await self._process.communicate(b"enough\n")
        self.waits = json.loads(said)


# --- storms -----------------------------------------------------------------------------------------------------


@dataclass
class Left:
    """What a server still has after a storm."""

    subscriptions: float
    connections: float
    queries: int
    files: int
    memory_bytes: int


@dataclass
class Storm:
    kinds: list[str]
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)


async def calm(server: Address, seconds: float) -> Storm:
    """Nobody comes."""
    found = Storm([], seconds)
    async with Watcher(server) as watcher:
        await asyncio.sleep(seconds)
    found.waits = watcher.waits
    return found


async def storm(server: Address, kinds: list[str], cycles: int, seed: int, *, is_judged: bool) -> Storm:
    """`cycles` connections, AT_A_TIME at a time, while the watcher watches."""
    found = Storm(kinds)
    what = [server.port, await asyncio.to_thread(token, server), kinds, cycles, seed, is_judged]
    guests = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--guests", json.dumps(what), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )  # fmt: skip
    assert guests.stdin is not None and guests.stdout is not None
    async with Watcher(server) as watcher:
        guests.stdin.write(b"come\n")
        found.seconds = float(await guests.stdout.readline())
    await guests.communicate(b"leave\n")
    assert guests.returncode == 0
    found.waits = watcher.waits
    return found


async def visit(port: int, token: str, kinds: list[str], cycles: int, seed: int, is_judged: bool) -> None:
    """What the guests' process does: when it is told to, they come; it says how long that took, and they leave when told.

    Where waits are judged, it runs only when nobody else does: its guests stand for other machines. On a busy machine it
    would hardly run at all, and the server would take its guests for gone.
    """
    if is_judged:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    plan = iter([kinds[number % len(kinds)] for number in range(cycles)])
    guests = Guests(Address(port), token, random.Random(seed).randrange(2**32))

    async def go_on() -> None:
        for kind in plan:
            await guests.come(kind)

    await asyncio.to_thread(sys.stdin.readline)
    began = time.perf_counter()
    await asyncio.gather(*(go_on() for _ in range(AT_A_TIME)))
    sys.stdout.write(f"{time.perf_counter() - began}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    await guests.leave()


def token(server: Address) -> str:
    answer = server.post("/auth/login", {"user": "system", "password": PASSWORD})
    found: str = answer.json()["access_token"]
    return found


def prepare(server: Address) -> None:
    server.sql(TABLES)
    server.post("/tables/app.small/rows", [{"id": n, "grp": n % 10} for n in range(100)])
    for n in range(LARGE_ROWS):
        server.post("/tables/app.large/rows", [{"id": n, "body": "x" * LARGE_CHARS}])
    for n in range(FILLERS):
        server.post("/tables/app.filler/rows", [{"id": n, "body": "x" * FILLER_CHARS}])


def look(server: ServerProcess) -> Left:
    metrics = dict(
        line.rsplit(" ", 1) for line in server.get("/metrics").body.decode().splitlines() if not line.startswith("#")
    )
    process = Path(f"/proc/{server.pid}")
    memory = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
    return Left(
        float(metrics["tablecast_live_subscriptions"]),
        float(metrics["tablecast_live_connections"]),
        len(server.sql("SELECT * FROM system.live_queries")[0]["rows"]),
        _files(process / "fd"),
        int(memory.split()[1]) * 1024,
    )


def _files(open_files: Path) -> int:
    found = 0
    for each in open_files.iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found += STORE not in str(each.readlink())
    return found


async def emptied(server: ServerProcess, files: int, seconds: float = 30.0) -> Left:
    """When the server has noticed that everybody has gone; else what it still has when time is over."""
    deadline = time.monotonic() + seconds
    while True:
        left = await asyncio.to_thread(look, server)
        is_empty = left.subscriptions == left.connections == left.queries == 0 and left.files <= files
        if is_empty or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.05)


def serve(directory: Path) -> ServerProcess:
    """One that asks silent connections often whether they are there, and is soon full."""
    settings = {"live_ping_seconds": "1", "live_buffer_bytes": "20000", "log_level": "warning", "durability": "none"}
    return ServerProcess(
        directory, environment={f"TABLECAST_{name.upper()}": value for name, value in settings.items()}
    )


@dataclass
class Weathered:
    calm: list[Storm]
    plain: list[Storm]
    mixed: list[Storm]
    before: Left
    left: list[Left]

    def slower(self, storms: list[Storm], share: float = 0.5) -> float:
        """How many times as long as on a calm server waits take, in the median or beyond another share of them."""
        return _wait(storms, share) / _wait(self.calm, share)

    @property
    def left_bytes(self) -> int:
        """By all of it."""
        return self.left[-1].memory_bytes - self.before.memory_bytes

    @property
    def grown_bytes(self) -> int:
        """By the second pair of storms."""
        return self.left[1].memory_bytes - self.left[0].memory_bytes

    def problems(self) -> list[str]:
        found = [
            f"left behind: {left}"
            for left in self.left
            if left.subscriptions or left.connections or left.queries or left.files > self.before.files
        ]
        if self.left_bytes > LEFT_BYTES:
            found.append(f"the storms left {self.left_bytes:,} bytes")
        if self.grown_bytes > GROWTH_BYTES:
            found.append(f"the second pair of storms left {self.grown_bytes:,} bytes more than the first")
        return found

    def delays(self) -> list[str]:
        """What the guests did to the subscriber."""
        storms = {"well-behaved guests": self.plain, "guests of all kinds": self.mixed}
        return [
            f"among {name} waits are {slower:.2f} times as long {judged} as on a calm server; at most {SLOWER:g}"
            for name, found in storms.items()
            for judged, share in JUDGED.items()
            if (slower := self.slower(found, share)) > SLOWER
        ]


async def weather(
    server: ServerProcess, cycles: int, seed: int, calm_seconds: float = CALM_SECONDS, *, is_judged: bool = True
) -> Weathered:
    prepare(server)
    await storm(
        server, PLAIN, AT_A_TIME, seed, is_judged=is_judged
    )  # so that connections which the server keeps for itself are there
    found = Weathered([], [], [], await asyncio.to_thread(look, server), [])
    for number in range(2):
        found.calm.append(await calm(server, calm_seconds))
        found.plain.append(await storm(server, PLAIN, cycles, seed + number, is_judged=is_judged))
        found.mixed.append(await storm(server, MIXED, cycles, seed + number, is_judged=is_judged))
        found.left.append(await emptied(server, found.before.files))
    return found


def _wait(storms: list[Storm], share: float = 0.5) -> float:
    waits = sorted(wait for storm in storms for wait in storm.waits)
    return waits[min(len(waits) - 1, int(len(waits) * share))]


def report(console: Console, weathered: Weathered, cycles: int) -> list[str]:
    weathers = [("a calm server", weathered.calm), ("well-behaved guests", weathered.plain)]
    for name, storms in (*weathers, ("guests of all kinds", weathered.mixed)):
        speed = f", {cycles / found.seconds:,.0f} a second" if (found := storms[-1]).kinds else ""
        times = (
            f"; {weathered.slower(storms):.2f} and {weathered.slower(storms, 0.99):.2f} times as long" if speed else ""
        )
        console.print(
            f"{name}{speed}: a wait for a change takes {_wait(storms) * 1000:.2f} ms in the median, "
            f"p99 {_wait(storms, 0.99) * 1000:.2f} ms ({sum(len(each.waits) for each in storms):,} waits){times}"
        )
    sizes = ", ".join(f"{left.memory_bytes / 2**20:.0f}" for left in (weathered.before, *weathered.left))
    console.print(f"memory before, and after each pair of storms: {sizes} MiB")
    return [*weathered.problems(), *weathered.delays()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--guests", type=json.loads, help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.watch is not None:
        asyncio.run(watch(given.watch))
        return 0
    if given.guests is not None:
        asyncio.run(visit(*given.guests))
        return 0
    console = Console()
    console.print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="tablecast-storm-") as directory, serve(Path(directory) / "data") as server:
        weathered = asyncio.run(weather(server, given.cycles, given.seed))
        problems = report(console, weathered, given.cycles)
    for problem in problems:
        console.print(problem, style="red", markup=False, highlight=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
