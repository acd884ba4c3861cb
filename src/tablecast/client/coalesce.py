"""Many callers' writes in one request.

A write is sent at once if fewer than `REQUESTS` such requests are under way. Else it waits, together with all that come
meanwhile, and the next request carries them all: the more callers write at a time, the more of them share a round trip,
a commit and an fsync; nobody waits for a timer. It is the server's group commit, continued into the client.

Each write succeeds or fails alone. If a request fails as a whole because of what is in it, its writes are sent again one
by one, so that nobody pays for another caller's mistake. When `QUEUED_WRITES` or `QUEUED_BYTES` wait, further callers
wait for room before theirs is queued: that is the backpressure a producer feels.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from tablecast.client.connection import Attempts
from tablecast.client.failures import own
from tablecast.codec.result import Result
from tablecast.errors import DatabaseClosed, InvalidRequest, Overloaded, TablecastError, TooLarge, TransactionConflict

REQUESTS = 2  # one on its way to the server while another is being answered
REQUEST_WRITES = 1_000
REQUEST_BYTES = 1_000_000  # a larger write has a request of its own; a server takes 10 MB by default
QUEUED_WRITES = 10_000
QUEUED_BYTES = 32_000_000
CONFLICTS = 50  # attempts at a write that others got ahead of: each time, one of those others got through

Outcome = Result | TablecastError
Send = Callable[[Sequence[bytes]], Awaitable[list[Outcome]]]


class _Write(NamedTuple):
    packed: bytes
    outcome: asyncio.Future[Outcome]


class Coalescer:
    """`send` carries packed writes and answers each of them, or raises what befell them all."""

    def __init__(self, send: Send, attempts: Callable[[], Attempts]) -> None:
        self._send = send
        self._attempts = attempts
        self._queue: deque[_Write] = deque()
        self._queued_bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()  # callers that wait for it, first come first served
        self._requests: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None  # the request that has not taken its writes yet
        self._closed = False

    async def write(self, packed: bytes) -> Result:
        attempts, conflicts = self._attempts(), 0
        while True:
            outcome = await self._carried(packed)
            if isinstance(outcome, Result):
                return outcome
            conflicts += isinstance(outcome, TransactionConflict)
            if isinstance(outcome, TransactionConflict) and conflicts < CONFLICTS:
                continue
            if not (isinstance(outcome, Overloaded) and await attempts.again(outcome)):
                raise outcome

    async def close(self) -> None:
        """What is queued or under way gets its answer; further writes are refused."""
        self._closed = True
        self._give_room()
        self._start_request()
        while self._requests:
            await asyncio.wait(self._requests)  # when one ends, the next begins

    # --- the queue ---

    async def _carried(self, packed: bytes) -> Outcome:
        await self._wait_for_room()
        write = _Write(packed, asyncio.get_running_loop().create_future())
        self._queue.append(write)
        self._queued_bytes += len(packed)
        self._start_request()
        return await write.outcome

    async def _wait_for_room(self) -> None:
        while not self._closed and self._is_full():
            waiter = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._give_room()  # it was this one's turn: the next one's now
                raise
        if self._closed:
            raise DatabaseClosed("the client is closed")

    def _is_full(self) -> bool:
        return len(self._queue) >= QUEUED_WRITES or self._queued_bytes >= QUEUED_BYTES

    def _give_room(self) -> None:
        free = len(self._room) if self._closed else REQUEST_WRITES
        while free > 0 and self._room and (self._closed or not self._is_full()):
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    # --- requests ---

    def _start_request(self) -> None:
        """It takes its writes when it begins, in the loop's next round: what other tasks write in this one goes along."""
        if self._queue and self._starting is None and len(self._requests) < REQUESTS:
            self._starting = asyncio.get_running_loop().create_task(self._carry())
            self._requests.add(self._starting)
            self._starting.add_done_callback(self._ended)

    def _ended(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        if self._starting is request:  # cancelled before it began
            self._starting = None
        self._start_request()

    def _take(self) -> list[_Write]:
        """What the next request carries; writes whose caller is gone are left out."""
        taken: list[_Write] = []
        size = 0
        while self._queue and len(taken) < REQUEST_WRITES:
            size += len(self._queue[0].packed)
            if taken and size > REQUEST_BYTES:
                break
            write = self._queue.popleft()
            self._queued_bytes -= len(write.packed)
            if not write.outcome.done():
                taken.append(write)
        self._give_room()
        return taken

    async def _carry(self) -> None:
        writes, self._starting = self._take(), None
        self._start_request()  # for what is left
        try:
            outcomes = await self._outcomes(writes)
        except BaseException as e:  # cancelled, or something nobody foresaw: no caller may wait for ever
            for write in writes:
                if not write.outcome.done():
                    write.outcome.set_exception(
                        e if isinstance(e, Exception) else DatabaseClosed("the client was closed")
                    )
            raise
        for write, outcome in zip(writes, outcomes, strict=True):
            if not write.outcome.done():
                write.outcome.set_result(outcome)

    async def _outcomes(self, writes: list[_Write]) -> list[Outcome]:
        if not writes:  # every caller is gone
            return []
        try:
            return await self._send([write.packed for write in writes])
        except (InvalidRequest, TooLarge) as e:
            if len(writes) > 1:
                return [(await self._outcomes([write]))[0] for write in writes]
            return [e]
        except TablecastError as e:
            return [own(e) for _ in writes]


def new_key() -> str:
    """An idempotency key: the time in milliseconds, then 80 bits of chance, in hexadecimal. Keys of one time are
    neighbours, also where the server stores them."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
