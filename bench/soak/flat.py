"""Whether something stays as it is: the last third of a run beside its first, and the line through its second half.

Two thirds may be alike while something grows all the time, slowly: what is kept for ever must also have stopped growing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SETTLING = 0.1  # of the run: caches and write buffers fill, Spark compiles
MEMORY = 1.10  # times; the store's write buffers alone move it by some percent
MEMORY_PER_HOUR = 0.05  # of itself, in the second half: at more it would have doubled within a day
P50, P99 = 1.25, 1.5  # times; the tail of a shared machine moves more than its middle
SLACK_MS = 1.0  # a latency that rises by less is flat, whatever the ratio


@dataclass(frozen=True, slots=True)
class Flatness:
    what: str
    unit: str
    first: float  # median of the first third, once settled
    last: float
    most: float  # times that `last` may be of `first`
    per_hour: float  # slope of the line through all samples
    slack: float = 0.0
    late_per_hour: float = 0.0  # slope of the line through the second half
    most_per_hour: float = math.inf  # of `last`, that it may be

    @property
    def ratio(self) -> float:
        return self.last / self.first if self.first else 1.0

    @property
    def flat(self) -> bool:
        return self.has_stayed and not self.still_rises

    @property
    def has_stayed(self) -> bool:
        return self.ratio <= self.most or self.last - self.first <= self.slack

    @property
    def still_rises(self) -> bool:
        return self.late_per_hour > self.most_per_hour * self.last


def flatness(
    what: str,
    unit: str,
    minutes: Sequence[float],
    values: Sequence[float],
    most: float,
    slack: float = 0.0,
    most_per_hour: float = math.inf,
) -> Flatness:
    settled = int(len(values) * SETTLING)
    minutes, values = minutes[settled:], values[settled:]
    third = max(1, len(values) // 3)
    half = len(values) // 2
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    whole, late = _per_hour(minutes, values), _per_hour(minutes[half:], values[half:])
    return Flatness(what, unit, first, last, most, whole, slack, late, most_per_hour)


def _per_hour(minutes: Sequence[float], values: Sequence[float]) -> float:
    return statistics.linear_regression(minutes, values).slope * 60 if len(values) > 1 else 0.0
