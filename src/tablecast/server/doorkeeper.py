"""Newcomers get a bounded share of the event loop, so that those who are in come first.

To take somebody in is work: a connection, its first request, a sign-in, a live query with its first rows. All of it is done
by the one event loop that also answers and tells everybody else. A storm of newcomers would fill it, and a change that takes
a millisecond to arrive would wait behind a dozen of them.

    work for newcomers   is metered: every slice that the event loop spends on it is paid from a budget
    the budget           grows by `share` of the time that passes. Little can be saved up, and little owed
    who finds it empty   waits its turn: connections with their first request (`arrives`), live queries on connections that
                         are open (`turn`). One of each is let in by turns, so that neither keeps the other out
    who waits too long   is refused with a word, and comes back later; who goes away meanwhile gives up its place

Nobody waits while there is nobody to be harmed: the budget counts only within LATELY_SECONDS of the last thing that was done
for somebody established (`serves`). A connection is established from its second request on; so are live queries and consumes
that wait, when there is a commit for them.

A connection that has not sent anything holds no place here; the limits of server/connection.py end it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, NamedTuple, Protocol, TypeVar

from tablecast.errors import Overloaded

LATELY_SECONDS = 5.0  # how long somebody established is counted on to come again
SAVED_SECONDS = 0.002  # of work for newcomers, done at once after a pause
OWED_SECONDS = 0.05  # at most: one that was expensive does not keep others out for long
SLICE_SECONDS = 0.005  # what a slice took longer, another process most likely had the processor; asking costs too much
SOONEST_SECONDS = 0.001  # the event loop's timers are no finer
NEW_SECONDS = 1.0  # what a task does for a newcomer after that is no longer put down to its coming

Clock = Callable[[], float]
T = TypeVar("T")


class Newcomer(Protocol):
    """A connection with its first request. One of the two is called, on the event loop, unless it `leaves` before."""

    def admitted(self) -> None: ...

    def turned_away(self, error: Overloaded) -> None: ...


class Timers(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object: ...


class DoorStats(NamedTuple):
    waiting: int  # now
    waited: int  # ever
    refused: int
    seconds: float  # of the event loop; of tasks, only while others were served


class Doorkeeper:
    """Of one event loop; `serves` may be called from any thread. As a context, it meters the work inside."""

    def __init__(self, share: float, wait_seconds: float, *, loop: Timers, clock: Clock = time.perf_counter) -> None:
        self._share = share
        self._wait_seconds = wait_seconds
        self._loop = loop
        self._clock = clock
        self._served_at = -LATELY_SECONDS + clock()
        self._budget = SAVED_SECONDS
        self._budget_at = clock()
        self._arrived: dict[Newcomer, float] = {}  # when each came, in that order
        self._opening: dict[asyncio.Future[None], None] = {}
        self._prefers_opening = False
        self._next: object = None
        self._context = Context()  # who is let in does not belong to the request of whoever made room
        self._depth = 0
        self._entered_at = 0.0
        self._waited = self._refused = 0
        self._seconds = 0.0

    def stats(self) -> DoorStats:
        """From any thread."""
        waiting = len(self._arrived) + len(self._opening)
        return DoorStats(waiting, self._waited, self._refused, self._seconds)

    # --- those who are in ---

    def serves(self) -> None:
        """Something is done for somebody established."""
        self._served_at = self._clock()

    # --- those who come ---

    def arrives(self, newcomer: Newcomer) -> bool:
        """Whether it may go in at once. Else it waits, and is told."""
        if self._is_free():
            return True
        self._waited += 1
        self._arrived[newcomer] = self._clock()
        self._look_again()
        return False

    def leaves(self, newcomer: Newcomer) -> None:
        """It gives up its place, if it has one."""
        self._arrived.pop(newcomer, None)

    async def turn(self) -> None:
        """Returns when one more live query may be opened. Nobody is refused here: what a connection may have is bounded."""
        if self._is_free():
            return
        self._waited += 1
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening[place] = None
        self._look_again()
        try:
            await place
        finally:
            self._opening.pop(place, None)

    def _is_free(self) -> bool:
        return not self._arrived and not self._opening and self._has_room()

    def _has_room(self) -> bool:
        now = self._clock()
        self._grow(now)
        return self._budget > 0 or self._is_alone(now)

    def _is_alone(self, now: float) -> bool:
        """Nobody is there but newcomers."""
        return now - self._served_at >= LATELY_SECONDS

    def _grow(self, now: float) -> None:
        self._budget = min(SAVED_SECONDS, self._budget + (now - self._budget_at) * self._share)
        self._budget_at = now

    def _look_again(self) -> None:
        if self._next is None:
            seconds = max(SOONEST_SECONDS, -self._budget / self._share)
            self._next = self._loop.call_later(min(seconds, self._wait_seconds), self._context.run, self._let_in)

    def _let_in(self) -> None:
        """One, and the event loop turns to others before the next."""
        self._next = None
        self._refuse_late()
        if not self._arrived and not self._opening:
            return
        if not self._has_room():
            self._look_again()
            return
        try:
            self._let_one_in()
        finally:  # after it, and so is what it begins with
            self._next = self._loop.call_soon(self._context.run, self._let_in)

    def _let_one_in(self) -> None:
        if self._opening and (self._prefers_opening or not self._arrived):
            self._prefers_opening = False
            place = next(iter(self._opening))
            del self._opening[place]
            if not place.done():
                place.set_result(None)
        else:
            self._prefers_opening = True
            newcomer = next(iter(self._arrived))
            del self._arrived[newcomer]
            newcomer.admitted()

    def _refuse_late(self) -> None:
        latest = self._clock() - self._wait_seconds
        while self._arrived:
            newcomer, came_at = next(iter(self._arrived.items()))
            if came_at > latest:
                return
            del self._arrived[newcomer]
            self._refused += 1
            newcomer.turned_away(
                Overloaded(
                    f"too many connect at a time: this one waited for {self._wait_seconds:g} s; try again",
                    retry_after_seconds=1.0,
                )
            )

    # --- what they cost ---

    def __enter__(self) -> None:
        if self._depth == 0:
            self._entered_at = self._clock()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            now = self._clock()
            self._pay(min(now - self._entered_at, SLICE_SECONDS), now)

    def _pay(self, seconds: float, now: float) -> None:
        self._grow(now)
        self._seconds += seconds
        self._budget = max(self._budget - seconds, -OWED_SECONDS)

    def metered(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """`work`, for a task. Its slices count for NEW_SECONDS, if there is anybody to be harmed."""
        now = self._clock()
        return work if self._is_alone(now) else _Metered(self, work, self._clock, now + NEW_SECONDS)


class _Metered(Coroutine[Any, Any, T]):
    __slots__ = ("_clock", "_door", "_until", "_work")

    def __init__(self, door: Doorkeeper, work: Coroutine[Any, Any, T], clock: Clock, until: float) -> None:
        self._door = door
        self._work = work
        self._clock = clock
        self._until = until

    def send(self, value: Any) -> Any:
        if self._clock() > self._until:
            return self._work.send(value)
        with self._door:
            return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        with self._door:
            return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)
