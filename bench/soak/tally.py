"""What a reader got: every row by its number, so that one that is missing or came twice is known, and how long each took."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass

WIDTH = math.log(1.05)  # of a bucket: times are known to 5 %
Buckets = dict[int, int]  # bucket → how many took as long


def now_us() -> int:
    """Microseconds of the clock that all processes of a machine share."""
    return time.monotonic_ns() // 1000


def bucket(ms: float) -> int:
    return math.floor(math.log(max(ms, 0.001)) / WIDTH)


def quantile_ms(buckets: Buckets, share: float) -> float:
    """0 when there is nothing."""
    left = share * sum(buckets.values())
    for number, count in sorted(buckets.items()):
        left -= count
        if left <= 0:
            return math.exp((number + 0.5) * WIDTH)
    return 0.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """`expected` rows were written for this reader; it got `received`, and of them `distinct` different ones."""

    expected: int
    distinct: int
    received: int

    @property
    def percent(self) -> float:
        return 100 * self.distinct / self.expected if self.expected else 0.0

    @property
    def duplication(self) -> float:
        return self.received / self.distinct if self.distinct else 0.0

    @property
    def whole(self) -> bool:
        return self.distinct == self.expected == self.received > 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(self.expected + other.expected, self.distinct + other.distinct, self.received + other.received)


class Tally:
    """Rows are numbered from 0 without gap."""

    def __init__(self) -> None:
        self._seen = bytearray()
        self._buckets: Counter[int] = Counter()
        self.received = 0
        self.distinct = 0

    def take(self, number: int, sent_us: int, now: int) -> None:
        self.received += 1
        if number >= len(self._seen):
            self._seen.extend(bytes(max(number + 1, 2 * len(self._seen)) - len(self._seen)))
        if not self._seen[number]:
            self._seen[number] = 1
            self.distinct += 1
        self._buckets[bucket((now - sent_us) / 1000)] += 1

    def latencies(self) -> Buckets:
        """Since they were last asked for."""
        found, self._buckets = dict(self._buckets), Counter()
        return found

    def coverage(self, expected: int) -> Coverage:
        return Coverage(expected, sum(self._seen[:expected]), self.received)
