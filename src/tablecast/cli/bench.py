"""`tablecast bench`: how fast a database writes and is read on this machine, in a few seconds.

It measures what a program would see: single rows from many threads, each waiting until its row and its message are durable;
batches; and the topic that all of them went to, read from its beginning. It works in a namespace of its own, gone at the end.
Numbers of a few seconds say how large they are, not more: `make bench-all` compares with others.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from time import perf_counter

from tablecast.cli.opening import Opened, connected, local
from tablecast.cli.options import Format
from tablecast.cli.progress import counting
from tablecast.cli.render import render
from tablecast.cli.target import Target
from tablecast.codec.result import Result
from tablecast.model.schema import ColumnType, TypeName

BATCH_ROWS = 1_000
SHOWN_EVERY_SECONDS = 0.1
NOTE = "x" * 150  # about 200 bytes a row
SINGLE, BATCHES, READING, SYNCS = "single rows", f"batches of {BATCH_ROWS:,}", "reading the topic", "fsync"

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Request:
    """`target` is None for a new database that is gone at the end. `seconds` is for each of three measurements."""

    target: Target | None
    seconds: float
    threads: int
    durability: str
    form: Format


@dataclass(slots=True)
class Measured:
    """`took` are the seconds of each call, of `each` rows or messages."""

    name: str
    each: int = 1
    seconds: float = 0.0
    took: list[float] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, int, float, float | None, float | None]:
        count = len(self.took) * self.each
        rate = count / self.seconds if self.seconds else 0.0
        return self.name, count, round(rate, 1), self._share_ms(0.5), self._share_ms(0.99)

    def _share_ms(self, share: float) -> float | None:
        ordered = sorted(self.took)
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3) if ordered else None


def run(request: Request) -> None:
    with _database(request) as database, counting(dict.fromkeys((SINGLE, BATCHES, READING), 1000)) as progress:
        found = measured(database, request, progress)
    names = ("what", "count", "per_second", "p50_ms", "p99_ms")
    double = ColumnType(TypeName.DOUBLE)
    types = (ColumnType(TypeName.TEXT), ColumnType(TypeName.BIGINT), double, double, double)
    render(Result.of_rows(names, types, [each.row for each in found]), request.form)


@contextmanager
def _database(request: Request) -> Iterator[Opened]:
    if request.target is None:
        from tablecast.sql.database import open as open_database

        with (
            TemporaryDirectory(prefix="tablecast-bench-") as path,
            open_database(f"{path}/db", durability=request.durability) as database,
        ):
            yield database
    elif request.target.is_server:
        with connected(request.target) as client:
            yield client
    else:
        with local(request.target.place, create=True) as database:
            yield database


def measured(database: Opened, request: Request, progress: Progress) -> list[Measured]:
    with _namespace(database) as namespace, _syncs(database) as syncs:
        insert = f"INSERT INTO {namespace}.rows (customer, amount, note) VALUES (?, ?, ?)"
        cells = ("ann", 125, NOTE)
        batch = [{"customer": "ann", "amount": number, "note": NOTE} for number in range(BATCH_ROWS)]
        work = _Work(request, progress)
        single = work.repeat(Measured(SINGLE), request.threads, lambda: database.execute(insert, cells))
        batches = work.repeat(Measured(BATCHES, BATCH_ROWS), 2, lambda: database.insert(f"{namespace}.rows", batch))
        written = single.row[1] + batches.row[1]
        reading = work.repeat(Measured(READING, written), 1, lambda: _read(database, f"{namespace}.events"))
        syncs.seconds = single.seconds + batches.seconds
        return [single, batches, reading, *([syncs] if syncs.took else [])]


def _read(database: Opened, topic: str) -> None:
    for _ in database.stream_arrow(topic):
        pass


class _Work:
    """Calls a function from several threads until the time is over, and at least once."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._seconds = request.seconds
        self._progress = progress

    def repeat(self, measured: Measured, threads: int, call: Callable[[], object]) -> Measured:
        over = threading.Event()
        began = perf_counter()

        def one() -> list[float]:
            took: list[float] = []
            while not took or not over.is_set():
                start = perf_counter()
                call()
                took.append(perf_counter() - start)
            return took

        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(one) for _ in range(threads)]
            try:
                self._wait(measured.name, began, lambda: any(each.done() for each in running))
            finally:
                over.set()
            for each in running:
                measured.took += each.result()
        measured.seconds = perf_counter() - began
        self._progress(measured.name, 1000)
        return measured

    def _wait(self, name: str, began: float, failed: Callable[[], bool]) -> None:
        pause = threading.Event()
        while (elapsed := perf_counter() - began) < self._seconds and not failed():
            self._progress(name, int(1000 * elapsed / self._seconds))
            pause.wait(min(SHOWN_EVERY_SECONDS, self._seconds - elapsed))


@contextmanager
def _namespace(database: Opened) -> Iterator[str]:
    name = f"bench_{secrets.token_hex(4)}"
    database.execute(
        f"CREATE NAMESPACE {name}; CREATE TABLE {name}.rows (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), "
        f"customer TEXT NOT NULL, amount INT, note TEXT, at TIMESTAMP DEFAULT NOW()); "
        f"CREATE TOPIC {name}.events; ALTER TOPIC {name}.events ADD SOURCE {name}.rows ON INSERT"
    )
    try:
        yield name
    finally:
        database.execute(f"DROP TOPIC {name}.events; DROP TABLE {name}.rows; DROP NAMESPACE {name}")


@contextmanager
def _syncs(database: Opened) -> Iterator[Measured]:
    """What each fsync took, where that can be seen: a server tells it in its metrics."""
    found = Measured(SYNCS)
    engine = getattr(database, "engine", None)
    if engine is None:
        yield found
        return
    from tablecast.engine.observer import Nobody

    class Watching(Nobody):
        def synced(self, seconds: float) -> None:
            found.took.append(seconds)

    engine.observe(Watching())
    try:
        yield found
    finally:
        engine.observe()
