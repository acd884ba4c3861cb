"""Time that passes only when everything that was due is done: a day of a simulation takes as long as its work.

`VirtualTime` has the part of an asyncio event loop that `tablecast.edge` uses. Callbacks run in the order of their times,
and of their registration where times are equal, so a run is decided by its inputs alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Scheduled:
    """A callback on its way; `cancel` takes it back."""

    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualTime:
    """Seconds since the start. One thread; `call_soon_threadsafe` may come from another only while this one waits for it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._count = 0
        self._queue: list[tuple[float, int, Scheduled]] = []

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Scheduled:
        return self.call_later(0.0, callback, *args)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> Scheduled:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Scheduled:
        scheduled = Scheduled(callback, args)
        self._count += 1
        heapq.heappush(self._queue, (self._now + delay, self._count, scheduled))
        return scheduled

    def run_for(self, seconds: float) -> None:
        """Runs everything that is due within the next seconds, also what that brings about."""
        end = self._now + seconds
        while self._queue and self._queue[0][0] <= end:
            self._now, _, scheduled = heapq.heappop(self._queue)
            if not scheduled.cancelled:
                scheduled.callback(*scheduled.args)
        self._now = end
