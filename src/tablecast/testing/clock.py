"""A clock that a test moves by hand.

The engine takes its clock as an argument, `Callable[[], int]`: UTC milliseconds since the epoch. A
`FakeClock` stands still until told otherwise, so a visibility timeout of a minute or a retention of a week is
one call, and no test sleeps.

Whoever waits for a time to come waits on a real condition. `subscribe` lets such a waiter be woken when the
time was moved; it then reads the clock again and decides for itself:

    clock.subscribe(wake)       # def wake(): with condition: condition.notify_all()

A real clock is sometimes stepped back. So that this never happens in a test by mistake, it must be allowed:
`FakeClock(may_go_back=True)`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tablecast.errors import InvalidRequest

START_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z: any fixed day does

Callback = Callable[[], object]


class FakeClock:
    """Milliseconds since the epoch, moved by `advance` and `set`. Safe to use from any thread."""

    def __init__(self, now_ms: int = START_MS, *, may_go_back: bool = False) -> None:
        self._now_ms = now_ms
        self._may_go_back = may_go_back
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callback] = {}
        self._next_id = 0

    def __call__(self) -> int:
        with self._lock:
            return self._now_ms

    def advance(self, ms: int) -> int:
        """Moves the time by `ms` and returns what it is then. Subscribers were called when this returns."""
        with self._lock:
            now_ms, callbacks = self._move_to(self._now_ms + ms)
        _call(callbacks)
        return now_ms

    def set(self, now_ms: int) -> int:
        """Moves the time to `now_ms`, as `advance` does."""
        with self._lock:
            now_ms, callbacks = self._move_to(now_ms)
        _call(callbacks)
        return now_ms

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Calls `callback` after every move, in the thread that moved. Returns what ends the subscription."""
        with self._lock:
            number = self._next_id
            self._next_id += 1
            self._callbacks[number] = callback

        def unsubscribe() -> None:
            with self._lock:
                self._callbacks.pop(number, None)

        return unsubscribe

    def _move_to(self, now_ms: int) -> tuple[int, list[Callback]]:
        if now_ms < self._now_ms and not self._may_go_back:
            raise InvalidRequest(
                f"a FakeClock at {self._now_ms} ms cannot go back to {now_ms} ms; "
                "FakeClock(may_go_back=True) allows it",
                now_ms=self._now_ms,
                asked_ms=now_ms,
            )
        self._now_ms = now_ms
        return now_ms, list(self._callbacks.values())


def _call(callbacks: list[Callback]) -> None:
    # Without the clock's lock: a callback reads the clock, and takes locks whose holders read it too.
    for callback in callbacks:
        callback()
