"""The course of a soak: everything is started, the maximum is looked for, half of it is held, and everybody may finish.

Maximum load is the highest rate that was written *and* that every reader kept up with, all of them attached: on this machine,
with writers and readers on the same cores.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tablecast
from bench.edge.broker import broker
from bench.server.ours import PASSWORD, process
from bench.server.processes import processor_seconds
from bench.soak import readers
from bench.soak.role import SCHEMA, SPAWN, TOPICS, Board, Final, Sample, start
from bench.soak.tally import Buckets, Coverage, quantile_ms
from bench.soak.writer import writer

START_RATE = 200.0  # writes per second of the ramp's first step
YARDSTICK = 2_000_000
GROWTH = 1.4
MAX_RATE = 20_000.0  # beyond what one writing process does
STEP_SECONDS = 10.0
SETTLE_SHARE = 0.3  # of a step: a new rate needs a moment
WRITTEN_SHARE = 0.95  # of the rate, to count as written
BEHIND_SECONDS = {
    "spark": 15.0
}  # what a reader may be behind at the end of a step; a stream in batches is by their length
USUAL_BEHIND_SECONDS = 2.0
READY_SECONDS = 120.0  # for Spark and 200 sign-ins
LAST_WRITES_SECONDS = 3.0  # for those that were due when writing stopped
STUCK_SECONDS = 90.0  # a reader that got nothing for so long, with more to come, gets nothing more
LOOK_SECONDS = 1.0  # from one look at the server's memory to the next
OUTBOX_EVENTS = 10_000_000  # the ramp goes beyond what MQTT can carry, on purpose: nothing is coalesced for it


@dataclass(slots=True)
class Interval:
    """What happened since the last one."""

    latencies: dict[str, Buckets] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        mine = self.latencies.setdefault(sample.role, {})
        for bucket, count in sample.latencies.items():
            mine[bucket] = mine.get(bucket, 0) + count

    def quantiles(self, role: str) -> dict[str, float]:
        found = self.latencies.get(role, {})
        return {"p50": quantile_ms(found, 0.5), "p99": quantile_ms(found, 0.99)}


class Course:
    def __init__(self, board: Board, pid: int, processes: list[Any]) -> None:
        self.board, self._pid, self._processes = board, pid, processes
        self.rows: dict[str, int] = dict.fromkeys(readers.READERS, 0)
        self.finals: dict[str, Coverage] = {}
        self._interval = Interval()
        self._most_mb = 0.0  # of an interval: memory moves up and down within one, as buffers fill and are given back
        self._looked_at = 0.0

    def listen(self, seconds: float) -> None:
        """Takes what the roles say for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check_alive()
            self._look()
            try:
                said = self.board.said.get(timeout=min(left, 1.0))
            except queue.Empty:
                continue
            if isinstance(said, Final):
                self.finals[said.role] = said.coverage
            else:
                self.rows[said.role] = said.rows
                self._interval.add(said)

    def _look(self) -> None:
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._most_mb = max(self._most_mb, resident_mb(self._pid))

    def _check_alive(self) -> None:
        for each in self._processes:
            if each.exitcode not in (None, 0):
                raise RuntimeError(f"{each.name} ended with {each.exitcode}; its error is above")

    def behind(self) -> dict[str, int]:
        return {name: self.board.written.value - self.rows[name] for name in readers.READERS}

    def hold(self, rate: float, seconds: float) -> float:
        """Writes per second that were acknowledged, once the rate had settled."""
        self.board.rate.value = rate
        self.listen(seconds * SETTLE_SHARE)
        before, began = self.board.written.value, time.monotonic()
        self.listen(seconds * (1 - SETTLE_SHARE))
        return float((self.board.written.value - before) / (time.monotonic() - began))

    def maximum(self, say: Callable[[str], None]) -> float:
        rate, held = START_RATE, 0.0
        while rate < MAX_RATE:
            written = self.hold(rate, STEP_SECONDS)
            late = self._late(rate)
            say(f"{rate:,.0f} writes/s: {written:,.0f} written" + (f"; behind: {', '.join(late)}" if late else ""))
            if late or written < WRITTEN_SHARE * rate:
                break
            rate, held = rate * GROWTH, rate
        if not held:
            raise RuntimeError(f"not even {START_RATE:,.0f} writes/s can be held here")
        return held

    def _late(self, rate: float) -> list[str]:
        return [
            name for name, rows in self.behind().items() if rows > rate * BEHIND_SECONDS.get(name, USUAL_BEHIND_SECONDS)
        ]

    def catch_up(self) -> None:
        """Nothing more is written until every reader has every row, or one gets nothing more."""
        self.board.rate.value = 0.0
        self.listen(LAST_WRITES_SECONDS)
        left, since = self.behind(), time.monotonic()
        while any(left.values()) and time.monotonic() - since < STUCK_SECONDS:
            self.listen(1.0)
            if (now := self.behind()) != left:
                left, since = now, time.monotonic()

    def sample(self, seconds: float, minute: float) -> dict[str, Any]:
        """One interval of the held load, as it goes into the report."""
        before, cpu, began = self.board.written.value, processor_seconds(self._pid), time.monotonic()
        self._interval, self._most_mb = Interval(), 0.0
        self.listen(seconds)
        written = self.board.written.value - before
        commit = self._interval.quantiles("commit")
        return {
            "minute": round(minute, 2),
            "rate": written / (time.monotonic() - began),
            "rss_mb": self._most_mb,
            "cpu_us": (processor_seconds(self._pid) - cpu) / max(written, 1) * 1e6,
            "yardstick_ms": yardstick_ms(),
            "commit_p50": commit["p50"],
            "commit_p99": commit["p99"],
            "delivery": {name: self._interval.quantiles(name) for name in readers.READERS},
        }

    def finish(self) -> dict[str, Coverage]:
        """What each reader got of all that was written."""
        self.catch_up()
        self.listen(2.0)  # whatever would come twice, came
        self.board.total.value = self.board.written.value
        self.board.over.set()
        until = time.monotonic() + READY_SECONDS
        while len(self.finals) < len(readers.READERS) + 1 and time.monotonic() < until:
            self.listen(0.5)
        return self.finals


def yardstick_ms() -> float:
    """Processor time of a fixed sum. If that rises, the machine has become slower, and not the server."""
    began = time.thread_time()
    sum(range(YARDSTICK))
    return (time.thread_time() - began) * 1e3


def resident_mb(pid: int) -> float:
    """Of the process and those that it started."""
    found, left = 0.0, [pid]
    while left:
        place = Path("/proc") / str(left.pop())
        try:
            pages = int((place / "statm").read_text().split()[1])
            left += [int(child) for child in (place / "task" / place.name / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return found


@contextmanager
def started(path: Path) -> Iterator[Course]:
    """Broker, server, writer and all readers."""
    board, processes = Board(), list[Any]()
    with ExitStack() as stack:
        mqtt = stack.enter_context(broker(path))
        flags = ("--mqtt", f"mqtt://127.0.0.1:{mqtt}", "--node-id", "main", "--mqtt-prefix", "soak")
        outbox = ("--set", f"mqtt_outbox_events={OUTBOX_EVENTS}")
        port, pid = stack.enter_context(process(path, *flags, *outbox))
        with tablecast.connect(f"http://127.0.0.1:{port}", user="system", password=PASSWORD) as client:
            client.execute_all(SCHEMA)
            client.execute_all(TOPICS)
        stack.callback(_end, processes, board)
        ready = [SPAWN.Event() for _ in range(3)]
        processes += [
            start(readers.peer, str(path / "peer"), mqtt, board, ready[0]),
            start(readers.live, port, board, ready[1]),
            start(readers.spark, port, str(path / "checkpoint"), board, ready[2]),
            start(readers.groups, port, board),
        ]
        course = Course(board, pid, processes)
        _wait(ready, course)
        processes.append(start(writer, port, board))
        yield course


def _wait(ready: list[Any], course: Course) -> None:
    until = time.monotonic() + READY_SECONDS
    while not all(each.is_set() for each in ready):
        if time.monotonic() > until:
            raise RuntimeError("the readers did not get ready")
        course.listen(0.2)


def _end(processes: list[Any], board: Board) -> None:
    board.over.set()
    for each in processes:
        each.join(30)
        if each.is_alive():
            each.kill()
            each.join()
