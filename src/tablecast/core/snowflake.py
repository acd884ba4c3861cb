"""Ids that grow with time and are never given twice.

    bit 62 … 22   milliseconds since 2020-01-01 UTC
    bit 21 … 10   counter within the millisecond
    bit 9 … 0     node

The node stands lowest, so ids of one generator are 1,024 apart and a counter that overflows simply borrows from the
next millisecond: a run of n ids is first, first + 1024, …, whatever n is. Positive as a signed 64-bit integer until
September 2089, so a clock that says 2089 or later is refused, before anything has its time.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from tablecast.errors import ClockOutOfRange

EPOCH_MS = 1_577_836_800_000
NODE_LIMIT = 1024
STEP = 1024
CLOCK_END_MS = 3_755_289_600_000  # 2089-01-01 UTC
_TIME_SHIFT = 22


class SnowflakeIds:
    """Thread-safe. `last` is the greatest id given so far: kept durably, it survives a clock that went backwards."""

    def __init__(self, node: int = 0, last: int = -1) -> None:
        if not 0 <= node < NODE_LIMIT:
            raise ValueError(f"node must be 0..{NODE_LIMIT - 1}, not {node}")
        self._node = node
        self._lock = threading.Lock()
        self.last = last

    def take(self, now_ms: int, count: int = 1) -> int:
        """The first of `count` ids."""
        with self._lock:
            floor = ((now_ms - EPOCH_MS) << _TIME_SHIFT) | self._node
            following = (self.last // STEP + 1) * STEP + self._node
            first = max(floor, following)
            self.last = first + (count - 1) * STEP
            return first


def require_clock(now_ms: int) -> int:
    """What a clock says, if ids, log batches and timestamps can hold it. A device without a clock may say 1970."""
    if 0 <= now_ms < CLOCK_END_MS:
        return now_ms
    raise ClockOutOfRange(
        f"the clock says {_shown(now_ms)}; times from 1970 to the end of 2088 are taken: set the clock, and open again",
        clock_ms=now_ms,
        before_ms=CLOCK_END_MS,
    )


def _shown(now_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{now_ms} ms since 1970"


def id_time_ms(snowflake: int) -> int:
    return (snowflake >> _TIME_SHIFT) + EPOCH_MS
