"""What is measured of live queries. Changes are made through HTTP; subscribers live in a process of their own."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import tablecast
from bench.live.generator import Load, load
from bench.live.stamped import stamped_server
from bench.measure import Comparison, in_turns, percentile
from bench.server.ours import PASSWORD, connect, process
from bench.server.processes import free_port, processor_seconds, running

TABLE = "CREATE TABLE bench.posts (id BIGINT PRIMARY KEY, thread_id BIGINT, score BIGINT, author TEXT, body TEXT)"
EVERYTHING = "SELECT id, thread_id, score, author, body FROM bench.posts"
OPEN_FILES = 65_536
WRITERS = 24
Query = tuple[str, list[Any]]
T = TypeVar("T")


def allow_files() -> None:
    """For this process and those that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))


class Bench:
    def __init__(self, port: int, pid: int = 0) -> None:
        self.port = port
        self.pid = pid
        self.client = tablecast.connect(f"http://127.0.0.1:{port}", user="system", password=PASSWORD)
        self.client.execute("CREATE NAMESPACE bench")
        self.client.execute(TABLE)
        self._id = 0

    def insert(self, thread_id: int = 0) -> int:
        """One row, one commit; returns its number."""
        return self.insert_all([thread_id])

    def insert_all(self, thread_ids: Sequence[int]) -> int:
        """A row for each, likewise."""
        rows = []
        for thread_id in thread_ids:
            self._id += 1
            rows.append({"id": self._id, "thread_id": thread_id, "score": 1, "author": "ann", "body": "a line of text"})
        seq = self.client.insert("bench.posts", rows).seq
        assert seq is not None
        return seq


@contextmanager
def bench(path: Path) -> Iterator[Bench]:
    allow_files()
    path.mkdir(exist_ok=True)
    with process(path) as (port, pid):
        yield Bench(port, pid)


@contextmanager
def bare(path: Path) -> Iterator[int]:
    allow_files()
    port = free_port()
    with running([sys.executable, "-m", "bench.live.bare", str(port)], port, path / "bare.log"):
        yield port


# --- one query, very many sockets ---------------------------------------------------------------------------------


def fan_out(path: Path, rounds: int, sockets: int, changes: int) -> Iterator[Comparison]:
    with bench(path) as ours, bare(path) as bare_port, load() as ours_load, load() as bare_load:
        ours_load.open(ours.port, sockets, [(EVERYTHING, [])])
        bare_load.open(bare_port, sockets, [(EVERYTHING, [])])
        size = len(_change_message())
        told, broadcast = in_turns(
            rounds,
            lambda: _told_rate(ours, ours_load, sockets, changes),
            lambda: _broadcast_rate(bare_port, bare_load, sockets, changes, size),
        )
        yield Comparison(
            f"{sockets:,} subscribers of one query, a change at a time", "the same bytes broadcast, no database",
            told, broadcast, "deliveries/s", 0.7, kind="limit",
        )  # fmt: skip


def _change_message() -> bytes:
    """About what one change of these rows takes."""
    row = ["123", "0", "1", "ann", "a line of text"]
    message = {"type": "change", "channel": 1, "seq": 1234, "changes": [{"op": "insert", "row": row}]}
    return json.dumps(message, separators=(",", ":")).encode()


def _told_rate(ours: Bench, told: Load, subscribers: int, changes: int) -> float:
    """Deliveries a second, from the first insert to the last arrival."""
    told.ask(reset=False)
    told.send(expect=changes * subscribers)
    began = time.monotonic()
    for _ in range(changes):
        ours.insert()
    return changes * subscribers / (float(told.answer()["at"]) - began)


def _broadcast_rate(port: int, told: Load, sockets: int, times: int, size: int) -> float:
    told.ask(reset=False)
    told.send(expect=times * sockets)
    with load() as asking:
        asking.open(port, 1, [])
        began = time.monotonic()
        asking.ask(say={"times": times, "bytes": size})
        return times * sockets / (float(told.answer()["at"]) - began)


# --- many different queries ---------------------------------------------------------------------------------------


def different_queries(path: Path, rounds: int, queries: int, changes: int) -> Iterator[Comparison]:
    with bench(path / "different") as different, bench(path / "shared") as shared, load() as one, load() as other:
        one.open(different.port, queries, [_different(i) for i in range(queries)])
        other.open(shared.port, queries, [(EVERYTHING, [])])
        ours, theirs = in_turns(
            rounds,
            lambda: _told_rate(different, one, queries, changes),
            lambda: _told_rate(shared, other, queries, changes),
        )
        yield Comparison(
            f"{queries:,} subscribers, each with a query of its own", "as many that share one query",
            ours, theirs, "deliveries/s", 0.2, kind="itself",
        )  # fmt: skip


def _different(number: int) -> Query:
    """No two of them have the same text, and all of them show every row that is written here."""
    where, params = _WHERES[number % len(_WHERES)]
    columns = _SELECTIONS[number % len(_SELECTIONS)]
    return f"SELECT {', '.join(columns)} FROM bench.posts WHERE {where}", [param(number) for param in params]


# Every choice of columns in every order: 325. With 8 conditions, which has no divisor in common with it, 2,600 texts.
_SELECTIONS = [
    columns
    for count in range(1, 6)
    for columns in itertools.permutations(("id", "thread_id", "score", "author", "body"), count)
]
_WHERES: list[tuple[str, list[Callable[[int], Any]]]] = [
    ("score > ? AND author <> ?", [lambda n: -n, lambda n: f"user {n}"]),
    ("score >= ? OR thread_id > ?", [lambda n: -n, lambda n: n]),
    ("author LIKE ? AND score < ?", [lambda n: "a%", lambda n: n + 2]),
    ("body IS NOT NULL AND thread_id <> ?", [lambda n: n + 1]),
    ("score BETWEEN ? AND ?", [lambda n: -n, lambda n: n + 1]),
    ("author IN (?, ?)", [lambda n: "ann", lambda n: f"user {n}"]),
    ("NOT (score < ?) AND body LIKE ?", [lambda n: -n, lambda n: "a line%"]),
    ("length(body) > ? AND thread_id + score < ?", [lambda n: n % 10, lambda n: n + 2]),
]


# --- found by value -----------------------------------------------------------------------------------------------


SPREAD = 7_919  # prime: changes that follow each other are of other threads, and of other sockets
IN_A_COMMIT = 100  # changes, where the server's work for each is measured and not that for a request


class Threads:
    """A server with `count` subscriptions `thread_id = ?`, all different, on 1,000 sockets."""

    def __init__(self, ours: Bench, told: Load, count: int) -> None:
        self._ours, self._told, self._count, self._next = ours, told, count, 0
        sockets = min(1_000, count)
        queries = [("SELECT id, body FROM bench.posts WHERE thread_id = ?", [i]) for i in range(count)]
        told.open(ours.port, sockets, queries, count // sockets)

    def _some(self, count: int) -> list[int]:
        self._next += count
        return [number * SPREAD % self._count for number in range(self._next - count, self._next)]

    def wait_ms(self, changes: int) -> float:
        """The median time from the request of a change to its arrival."""
        return percentile([self._one_change(thread_id) for thread_id in self._some(changes)], 0.5) * 1e3

    def _one_change(self, thread_id: int) -> float:
        self._told.ask(reset=False)
        self._told.send(expect=1)
        began = time.monotonic()
        self._ours.insert(thread_id)
        return float(self._told.answer()["at"]) - began

    def work_us(self, changes: int) -> float:
        """The server's processor time for a change, until all have arrived."""
        self._told.ask(reset=False)
        self._told.send(expect=changes)
        began = processor_seconds(self._ours.pid)
        for _ in range(changes // IN_A_COMMIT):
            self._ours.insert_all(self._some(IN_A_COMMIT))
        self._told.answer()
        return (processor_seconds(self._ours.pid) - began) / changes * 1e6


def indexed(path: Path, rounds: int, subscriptions: tuple[int, int], waits: int, works: int) -> Iterator[Comparison]:
    few, many = subscriptions
    with bench(path / "few") as some, bench(path / "many") as all_, load() as one, load() as other:
        small, large = Threads(some, one, few), Threads(all_, other, many)
        against = f"{few:,} such subscriptions"
        ours, theirs = in_turns(rounds, lambda: large.wait_ms(waits), lambda: small.wait_ms(waits))
        yield Comparison(
            f"one change, {many:,} subscriptions `thread_id = ?`: from request to arrival", against,
            ours, theirs, "ms", 2, at_most=True, kind="itself",
        )  # fmt: skip
        ours, theirs = in_turns(rounds, lambda: large.work_us(works), lambda: small.work_us(works))
        yield Comparison(
            f"one change of {IN_A_COMMIT} in a commit, {many:,} subscriptions `thread_id = ?`: the server's processor time",
            against, ours, theirs, "µs", 2, at_most=True, kind="itself",
        )  # fmt: skip


# --- latency ------------------------------------------------------------------------------------------------------


def latency(path: Path, changes: int) -> Iterator[Comparison]:
    """From the moment when a commit is durable, as the engine knows it, to its arrival at each of 100 subscribers; and from
    the sending of a message to the arrival of its echo at as many sockets."""
    allow_files()
    with stamped_server(path) as stamped, bare(path) as port, load() as told, load() as echoed, load() as asking:
        ours = Bench(stamped.port)
        told.open(stamped.port, 100, [(EVERYTHING, [])])
        echoed.open(port, 100, [(EVERYTHING, [])])
        asking.open(port, 1, [])
        seconds: list[float] = []
        echoes: list[float] = []
        for _ in range(changes):
            seq, arrivals = _arrivals(told, ours.insert)
            seconds += [at - stamped.committed(seq) for arrived, at in arrivals if arrived == seq]
            sent, arrivals = _arrivals(echoed, lambda: asking.ask(say={"times": 1, "bytes": len(_change_message())}))
            echoes += [at - sent["at"] for _, at in arrivals]
        for share in (0.5, 0.99):
            yield Comparison(
                f"commit → subscriber, 100 subscribers, p{share * 100:.0f}", "an echo to 100 bare WebSockets",
                percentile(seconds, share) * 1e3, percentile(echoes, share) * 1e3, "ms", 3, at_most=True,
                kind="limit",
            )  # fmt: skip


def _arrivals(told: Load, cause: Callable[[], T]) -> tuple[T, list[tuple[int, float]]]:
    """What `cause` gave, and the commit and the time of each of the 100 arrivals."""
    told.ask(reset=True)
    caused = cause()
    arrivals: list[tuple[int, float]] = told.ask(arrivals=100)["arrivals"]
    return caused, arrivals


# --- idle subscriptions -------------------------------------------------------------------------------------------


def idle_subscriptions(path: Path, rounds: int, seconds: float, subscriptions: int) -> Iterator[Comparison]:
    with bench(path / "idle") as idle, bench(path / "none") as none, load() as told:
        sockets = min(1_000, subscriptions)
        queries = [(f"{EVERYTHING} WHERE thread_id = ?", [-1 - i]) for i in range(subscriptions)]
        told.open(idle.port, sockets, queries, subscriptions // sockets)
        with_them, without = in_turns(rounds, _write_rate(idle, seconds), _write_rate(none, seconds))
        yield Comparison(
            f"single-row writes, {WRITERS} at a time, {subscriptions:,} idle subscriptions on the table", "none",
            with_them, without, "writes/s", 0.9, kind="itself",
        )  # fmt: skip


def _write_rate(ours: Bench, seconds: float) -> Callable[[], float]:
    numbers = iter(range(10**9, 2 * 10**9))

    async def writer(client: Any, until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            await client.execute("INSERT INTO bench.posts VALUES (?, 1, 1, 'ann', 'a line')", [next(numbers)])
            count += 1
        return count

    async def measured() -> float:
        async with await connect(ours.port) as client:
            began = time.perf_counter()
            counts = await asyncio.gather(*(writer(client, began + seconds) for _ in range(WRITERS)))
            return sum(counts) / (time.perf_counter() - began)

    return lambda: asyncio.run(measured())
