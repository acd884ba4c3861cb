"""Newcomers get the event loop when nobody else needs it, and a bounded share of it when somebody does.

To take somebody in is work: a connection, its first request, a sign-in, a live query with its first rows. All of it is done
by the one event loop that also answers and tells everybody else. A storm of newcomers would fill it, and a change that takes
a millisecond to arrive would wait behind a dozen of them.

    a slice              is what the event loop does of that work at a time, some 50 µs of it; one newcomer takes a dozen
    who goes in          connections with their first request (`arrives`), and every further slice of those that are in
                         (`metered`); one of each by turns, so that neither keeps the other out
    the budget           grows by `share` of the time that passes, and every slice is paid from it. Little can be saved up
    when                 while the budget lasts. And while nobody established is being served, from its request to the answer
                         (`begins`, `ends`) or until a commit is told to live queries (`telling`): then something may be
                         owed, too. So nearly all of the share is spent when it harms nobody but by the rest of a slice
    nobody else          was served lately: newcomers have the event loop to themselves
    who waits too long   at the door is refused with a word, and comes back later; who goes away gives up its place

An established connection that is not answered after BUSY_SECONDS waits for something else than the event loop: a message, a
long query. A connection is established from its second request on.

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
BUSY_SECONDS = 0.005  # how long somebody is taken to be served, if nobody says that it is over
SAVED_SECONDS = 0.0001  # of work for newcomers, done at once though somebody is served
NOTHING_SECONDS = 0.000_001  # owed is nothing: a timer set for when all is paid may come so much too early
AHEAD_SECONDS = 0.01  # of work that may be done before its time, while nobody is served
OWED_SECONDS = 0.05  # at most: one that was expensive does not keep others out for long
SLICE_SECONDS = 0.005  # what a slice took longer, another process most likely had the processor; asking costs too much
SOONEST_SECONDS = 0.001  # the event loop's timers are no finer
NEW_SECONDS = 1.0  # what a task does after that, waits for its turns not counted, is no longer put down to its coming

Clock = Callable[[], float]
T = TypeVar("T")


class Newcomer(Protocol):
    """A connection with its first request. One of the two is called, on the event loop, unless it `leaves` before."""

    def admitted(self) -> None: ...

    def turned_away(self, error: Overloaded) -> None: ...


class Timer(Protocol):
    def cancel(self) -> object: ...


class Timers(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer: ...


class DoorStats(NamedTuple):
    waiting: int  # now, at the door or for their next slice
    waited: int  # at the door, ever
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
        self._busy: dict[object, float] = {}  # who is being served, and since when, in that order
        self.telling: Callable[[], bool] = lambda: False  # whether live queries are just told of a commit
        self._budget = SAVED_SECONDS
        self._budget_at = clock()
        self._arrived: dict[Newcomer, float] = {}  # when each came, in that order
        self._inside: dict[asyncio.Future[None], None] = {}  # tasks of those that were let in
        self._prefers_inside = False
        self._next: Timer | None = None
        self._context = Context()  # who is let in does not belong to the request of whoever made room
        self._depth = 0
        self._entered_at = 0.0
        self._waited = self._refused = 0
        self._seconds = 0.0

    def stats(self) -> DoorStats:
        """From any thread."""
        waiting = len(self._arrived) + len(self._inside)
        return DoorStats(waiting, self._waited, self._refused, self._seconds)

    # --- those who are in ---

    def serves(self) -> None:
        """Something is done for somebody established."""
        self._served_at = self._clock()

    def begins(self, who: object) -> None:
        """Somebody established is to be served, from now on."""
        self._served_at = now = self._clock()
        self._busy.pop(who, None)
        self._busy[who] = now

    def ends(self, who: object) -> None:
        """It is, or has gone. Again and again, if need be."""
        if self._busy.pop(who, None) is not None and not self._busy and (self._arrived or self._inside):
            self._look_now()

    def _is_idle(self, now: float) -> bool:
        """Whether nobody established is being served right now."""
        while self._busy:
            who, since = next(iter(self._busy.items()))
            if now - since < BUSY_SECONDS:
                return False
            del self._busy[who]
        return not self.telling()

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
        """Returns when one more slice may be worked. Nobody is refused here: what a connection may have is bounded."""
        if self._is_free():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inside[place] = None
        self._look_again()
        try:
            await place
        finally:
            self._inside.pop(place, None)

    def _is_free(self) -> bool:
        return not self._arrived and not self._inside and self._has_room()

    def _has_room(self) -> bool:
        now = self._clock()
        self._grow(now)
        if self._budget > -NOTHING_SECONDS or self._is_alone(now):
            return True
        return self._budget > -AHEAD_SECONDS and self._is_idle(now)

    def _is_alone(self, now: float) -> bool:
        """Nobody is there but newcomers."""
        return now - self._served_at >= LATELY_SECONDS

    def _grow(self, now: float) -> None:
        self._budget = min(SAVED_SECONDS, self._budget + (now - self._budget_at) * self._share)
        self._budget_at = now

    def _look_again(self) -> None:
        if self._next is None:
            seconds = max(SOONEST_SECONDS, -self._budget / self._share)
            seconds = min(seconds, self._wait_seconds, BUSY_SECONDS)
            self._next = self._loop.call_later(seconds, self._context.run, self._let_in)

    def _look_now(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._loop.call_soon(self._context.run, self._let_in)

    def _let_in(self) -> None:
        """One, and the event loop turns to others before the next."""
        self._next = None
        self._refuse_late()
        if not self._arrived and not self._inside:
            return
        if not self._has_room():
            self._look_again()
            return
        try:
            self._let_one_in()
        finally:  # after it, and so is what it begins with
            self._look_now()

    def _let_one_in(self) -> None:
        if self._inside and (self._prefers_inside or not self._arrived):
            self._prefers_inside = False
            place = next(iter(self._inside))
            del self._inside[place]
            if not place.done():
                place.set_result(None)
        else:
            self._prefers_inside = True
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
        self._seconds += seconds
        self._budget = max(self._budget - seconds, -OWED_SECONDS)
        self._grow(now)  # after it: what grew during a slice is not lost because little is saved up

    def metered(self, work: Coroutine[Any, Any, T], *, waits: bool = True) -> Coroutine[Any, Any, T]:
        """`work`, for a task. Its slices count for NEW_SECONDS, and each waits its turn, if there is anybody to be harmed.
        Without `waits` they are only counted: for somebody who was in already."""
        now = self._clock()
        return work if self._is_alone(now) else _Metered(self, work, self._clock, now + NEW_SECONDS, waits)


class _Metered(Coroutine[Any, Any, T]):
    """A coroutine that asks for a turn before each slice of another."""

    __slots__ = ("_asked_at", "_clock", "_door", "_turn", "_until", "_waits", "_work")

    def __init__(self, door: Doorkeeper, work: Coroutine[Any, Any, T], clock: Clock, until: float, waits: bool) -> None:
        self._door = door
        self._work = work
        self._clock = clock
        self._until = until
        self._waits = waits
        self._turn: Coroutine[Any, Any, None] | None = None  # that it waits for
        self._asked_at = 0.0

    def send(self, value: Any) -> Any:
        now = self._clock()
        if self._turn is None:
            if now > self._until:
                return self._work.send(value)
            if self._waits:
                self._turn, self._asked_at = self._door.turn(), now
        if self._turn is not None:
            try:
                return self._turn.send(None)
            except StopIteration:
                self._turn = None
                self._until += now - self._asked_at
        with self._door:
            return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._give_up_turn()
        with self._door:
            return self._work.throw(*error)

    def close(self) -> None:
        self._give_up_turn()
        self._work.close()

    def _give_up_turn(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)
