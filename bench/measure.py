"""How things are measured here: both sides in turns, medians of several rounds, ratios.

The machine is shared and noisy. Rounds of the two sides alternate, so that a slow minute hits both.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

Rate = Callable[[], float]  # runs one round and returns operations per second


# What the other side is: another system, what the machine or a library can do at best, or tablecast itself without something.
Kind = Literal["peer", "limit", "itself"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is ours / theirs of something where more is better, unless `at_most`: then less is better."""

    workload: str
    against: str
    ours: float
    theirs: float
    unit: str
    target: float
    at_most: bool = False
    note: str = ""
    kind: Kind = "peer"

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("inf")

    @property
    def met(self) -> bool:
        """A target of 0 is none: the row is there to compare with."""
        if not self.target:
            return True
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A row that this machine cannot have; `reason` says what is missing and how to get it."""

    workload: str
    against: str
    reason: str


class NotInstalled(Exception):
    """A peer that is not on this machine; the text says how to get it."""


def in_turns(rounds: int, *sides: Rate) -> list[float]:
    """The median of each side, measured alternately."""
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, results in zip(sides, found, strict=True):
            results.append(side())
    return [statistics.median(results) for results in found]


def threads_rate(count: int, seconds: float, work: Callable[[int, int], None]) -> float:
    """`work(thread, i)` from many threads for a while: calls per second."""
    done = [0] * count
    until = time.perf_counter() + seconds

    def run(number: int) -> None:
        i = 0
        while time.perf_counter() < until:
            work(number, i)
            i += 1
        done[number] = i

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def repeat_rate(seconds: float, work: Callable[[], int]) -> float:
    """`work()` again and again for a while; it returns how many operations it did."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        count += work()
    return count / (time.perf_counter() - began)


Given = TypeVar("Given")


def prepared_rate(seconds: float, prepare: Callable[[], Given], work: Callable[[Given], int]) -> float:
    """Likewise, with the clock stopped while the input of the next call is made."""
    count, spent = 0, 0.0
    while spent < seconds:
        given = prepare()
        began = time.perf_counter()
        count += work(given)
        spent += time.perf_counter() - began
    return count / spent


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
