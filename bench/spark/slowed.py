"""Programs that run for a share of the time, as if each had a slow machine to itself.

The machine that measures has few cores, and executors that take them all leave nothing to grow into. So each program, with all
that it started, is stopped and let go on by signals, which every Unix has. They take turns: no two run at once, and beside the
one that runs there is room for what is not slowed.

    period   |-- first --|-- second --|-- third --|    rest    |-- first --| …
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

PERIOD_SECONDS = 0.1  # short beside a task and a request's timeout, long beside what a signal costs
PERIODS_OF_A_LOOK = 10  # what a program starts meanwhile runs unslowed for so long


@contextmanager
def slowed(programs: Sequence[int], share: float) -> Iterator[None]:
    """The processes of these ids, and those below them, run for `share` of the time each."""
    assert len(programs) * share <= 1, "they take turns"
    done = threading.Event()
    thread = threading.Thread(target=_take_turns, args=(programs, share, done))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _take_turns(programs: Sequence[int], share: float, done: threading.Event) -> None:
    trees = _trees(programs)
    try:
        while not done.is_set():
            for _ in range(PERIODS_OF_A_LOOK):
                for tree in trees:
                    _signal(tree, signal.SIGCONT)
                    done.wait(PERIOD_SECONDS * share)
                    _signal(tree, signal.SIGSTOP)
                done.wait(PERIOD_SECONDS * (1 - share * len(trees)))
            trees = _trees(programs)
    finally:
        for tree in _trees(programs):
            _signal(tree, signal.SIGCONT)


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it ended meanwhile
            continue


def _trees(programs: Sequence[int]) -> list[list[int]]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    return [list(_below(pid, children)) for pid in programs]


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, []):
        yield from _below(child, children)
