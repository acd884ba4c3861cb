"""Writing: single rows from many threads, batches, and what a route costs."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.measure import Comparison, in_turns, percentile, prepared_rate, threads_rate
from bench.peers import Numbers, RawRocks, Row, Sqlite, Tablecast, make_row
from tablecast.codec.log import MessageClass, encode_log_batch
from tablecast.core.payload import payload_encoder
from tablecast.model.change import Op
from tablecast.model.topic import PayloadMode

THREADS = 24
BATCH = 1000


def single_rows(path: Path, rounds: int, seconds: float) -> Iterator[Comparison]:
    ours, theirs, numbers = Tablecast(path / "tablecast"), Sqlite(path / "sqlite"), Numbers()
    rate, peer, bare = in_turns(
        rounds,
        lambda: threads_rate(THREADS, seconds, lambda n, i: ours.insert_one(make_row(numbers.next()))),
        lambda: threads_rate(THREADS, seconds, lambda n, i: theirs.insert([make_row(numbers.next())])),
        lambda: _bare_group_commit(path / "bare", seconds),
    )
    ours.db.close()
    name = f"{THREADS} threads, single-row INSERT, one full route, fsync"
    yield Comparison(name, "SQLite (WAL, FULL), row + outbox row", rate, peer, "rows/s", 8.0)
    yield Comparison(
        name, "the bare loop: queue, fsync, wake 24 Python threads, no data", rate, bare, "rows/s", 0.0,
        note="what waking threads costs under the interpreter lock; about ten of them share a commit in it, "
        "so it is no strict limit", kind="limit",
    )  # fmt: skip


class _Waiter:
    """One thread's place in the bare loop."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.following: _Waiter | None = None


def _bare_group_commit(path: Path, seconds: float) -> float:
    """Threads hand a token to one writer, which fsyncs and wakes them in a chain: nothing else."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    queue: list[_Waiter] = []
    bell = threading.Semaphore(0)
    waiters = [_Waiter() for _ in range(THREADS)]
    stopped = threading.Event()

    def write() -> None:
        nonlocal queue
        while bell.acquire() and not stopped.is_set():
            group, queue = queue, []
            if group:
                os.write(file, b"x" * 400 * len(group))
                os.fsync(file)
                for waiter, following in zip(group, [*group[1:], None], strict=True):
                    waiter.following = following
                group[0].gate.release()

    def work(number: int, i: int) -> None:
        mine = waiters[number]
        queue.append(mine)
        bell.release()
        mine.gate.acquire()
        if mine.following is not None:
            mine.following.gate.release()

    writer = threading.Thread(target=write)
    writer.start()
    rate = threads_rate(THREADS, seconds, work)
    stopped.set()
    bell.release()
    writer.join()
    os.close(file)
    return rate


def batches(path: Path, rounds: int, seconds: float) -> Iterator[Comparison]:
    ours, theirs, numbers = Tablecast(path / "tablecast"), Sqlite(path / "sqlite"), Numbers()
    raw, ready = RawRocks(path / "raw"), _ReadyBytes(ours)

    def count(write: Callable[[list[Row]], None], rows: list[Row]) -> int:
        write(rows)
        return len(rows)

    rate, peer, limit = in_turns(
        rounds,
        lambda: prepared_rate(seconds, lambda: numbers.block(BATCH), lambda rows: count(ours.insert, rows)),
        lambda: prepared_rate(seconds, lambda: numbers.block(BATCH), lambda rows: count(theirs.insert, rows)),
        lambda: prepared_rate(seconds, ready.next, lambda ready: raw.write(*ready)),
    )
    ours.db.close()
    name = f"batches of {BATCH:,} rows, same route, fsync"
    yield Comparison(name, "SQLite, executemany + outbox rows", rate, peer, "rows/s", 0.8)
    yield Comparison(name, "the same bytes as raw RocksDB batches", rate, limit, "rows/s", 0.5, kind="limit")


class _ReadyBytes:
    """A thousand rows and their log batch as bytes; only the keys change."""

    def __init__(self, ours: Tablecast) -> None:
        table = ours.db.engine.catalog.table("bench.orders")
        build = table.codec.builder(table.schema.column_names)
        rows = [build(make_row(i), None) for i in range(BATCH)]  # type: ignore[arg-type]
        self._values = [b"\x01" + bytes(16) + table.codec.encode(row) for row in rows]
        encoder = payload_encoder(table.schema)
        said = MessageClass("bench.orders", Op.INSERT, PayloadMode.FULL, None)
        keys, payloads = [encoder.message_key(row) for row in rows], [encoder.full(row) for row in rows]
        self._log = encode_log_batch([said], [0] * BATCH, keys, payloads, [0] * BATCH)
        self._at = 0

    def next(self) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, bytes]]:
        first = self._at
        self._at += BATCH
        pack = struct.Struct(">IQ").pack
        rows = [(pack(1, first + i), value) for i, value in enumerate(self._values)]
        return rows, (pack(1, first), self._log)


def route_cost(path: Path, rounds: int, seconds: float) -> Iterator[Comparison]:
    routed, plain, numbers = Tablecast(path / "routed"), Tablecast(path / "plain", route=False), Numbers()

    def p99(side: Tablecast) -> float:
        latencies, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            row = make_row(numbers.next())
            began = time.perf_counter()
            side.insert_one(row)
            latencies.append(time.perf_counter() - began)
        return percentile(latencies, 0.99) * 1000

    ours, theirs = in_turns(rounds, lambda: p99(routed), lambda: p99(plain))
    routed.db.close()
    plain.db.close()
    yield Comparison(
        "p99 of a durable single-row write with a route",
        "the same without any route",
        ours,
        theirs,
        "ms",
        1.3,
        at_most=True,
        kind="itself",
    )
