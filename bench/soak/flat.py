"""Whether something stays as it is: the last third of a run beside its first, and the line through all of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SETTLING = 0.1  # of the run: caches and write buffers fill, Spark compiles
MEMORY = 1.10  # times; the store's write buffers alone move it by some percent
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

    @property
    def ratio(self) -> float:
        return self.last / self.first if self.first else 1.0

    @property
    def flat(self) -> bool:
        return self.ratio <= self.most or self.last - self.first <= self.slack


def flatness(
    what: str, unit: str, minutes: Sequence[float], values: Sequence[float], most: float, slack: float = 0.0
) -> Flatness:
    settled = int(len(values) * SETTLING)
    minutes, values = minutes[settled:], values[settled:]
    third = max(1, len(values) // 3)
    slope = statistics.linear_regression(minutes, values).slope * 60 if len(values) > 1 else 0.0
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    return Flatness(what, unit, first, last, most, slope, slack)
