"""The same member of a group for asyncio: handlers are coroutines (or plain functions, which run on the loop).

What it promises is what `consumer` promises. Waiting for messages ends at once when it is stopped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from tablecast.client.delivery import (
    OUTAGE_SECONDS,
    PASSING,
    TOO_LATE,
    AsyncDeadLetter,
    AsyncHandler,
    AsyncSurface,
    AsyncWork,
    Handled,
    Lane,
    Membership,
    Settlement,
    Unconfirmed,
    check_concurrency,
    is_all_done,
    reason_of,
    rounds,
    settlements,
)
from tablecast.client.retry import Retry
from tablecast.errors import DatabaseClosed, TablecastError
from tablecast.model.message import Consumed, Message

WAIT_SECONDS = 30.0  # of one consume; the commit that brings a message and `stop` end it at once
_log = logging.getLogger("tablecast.consumer")


class AsyncConsumer:
    """One member of a group, for one event loop. Members of one group share its messages."""

    def __init__(
        self,
        surface: AsyncSurface,
        topic: str,
        group: str,
        *,
        name: str | None = None,
        batch: int = 100,
        visibility_seconds: float = 60.0,
    ) -> None:
        self._surface = surface
        self._member = Membership.of(topic, group, name, batch, visibility_seconds)
        self.topic, self.group, self.name = topic, group, self._member.name
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unconfirmed = Unconfirmed()
        self._done: Consumed | None = None  # handled, and acknowledged by the next claim
        self._busy = False
        self.handled = 0

    def stop(self) -> None:
        """Ends `run` after the messages at hand; what was claimed and not handled is given back. A signal handler or
        another thread may call it."""
        if self._loop is None or self._loop.is_closed():
            self._stopped.set()
        else:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def run(
        self,
        handler: AsyncHandler,
        *,
        concurrency: int = 1,
        retry: Retry | None = None,
        dead_letter: AsyncDeadLetter | None = None,
        until_idle: bool = False,
    ) -> int:
        """As `Consumer.run`; with `concurrency` above 1, that many handlers run at once, as tasks."""
        self._loop = asyncio.get_running_loop()
        running = asyncio.Semaphore(check_concurrency(concurrency))
        try:
            async with self._renewing():
                await self._run(AsyncWork(handler, retry or Retry(), dead_letter), running, concurrency, until_idle)
            await self._settle_last()
            await self._release()
        except DatabaseClosed:
            pass
        return self.handled

    async def _run(self, work: AsyncWork, running: asyncio.Semaphore, concurrency: int, until_idle: bool) -> None:
        if self._member.has_past:
            await self._release()
        while not self._stopped.is_set():
            try:
                found = await self._claim(until_idle)
                if not found.messages and until_idle:
                    return
                for lanes in rounds(found.messages, concurrency):
                    handled = await self._handle_all(lanes, work, running)
                    if is_all_done(found, handled) and not self._stopped.is_set():
                        self._done = found
                    else:
                        await self._settle_all(handled)
            except PASSING as e:
                if until_idle:
                    raise
                await self._sit_out(e)

    # --- claims ---

    async def _claim(self, until_idle: bool) -> Consumed:
        """The next messages; what is done is acknowledged with the same commit."""
        consuming = asyncio.ensure_future(
            self._surface.consume(
                self.topic,
                group=self.group,
                limit=self._member.batch,
                timeout_seconds=0.0 if until_idle else WAIT_SECONDS,
                consumer=self.name,
                visibility_seconds=self._member.visibility_seconds,
                ack=self._done,
            )
        )
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([consuming, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            consuming.cancel()
            stopped.cancel()
            await asyncio.gather(consuming, stopped, return_exceptions=True)
        if consuming.cancelled():
            return Consumed([], None, False)
        found = consuming.result()
        self._confirm_done()
        return found

    async def _release(self) -> None:
        await self._surface.release(self.topic, self.group, self.name)

    async def _sit_out(self, cause: TablecastError) -> None:
        """Waits until the server is back. Whatever it holds for this consumer may not have arrived here: back with it, but
        for what is handled."""
        _log.warning("%s of %s waits: %s", self.name, self.topic, cause)
        while not await self._stopped_within(OUTAGE_SECONDS):
            try:
                await self._settle_done()  # or somebody else would handle it again
                await self._release()
                break
            except PASSING as e:
                _log.warning("%s of %s still waits: %s", self.name, self.topic, e)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return False

    @asynccontextmanager
    async def _renewing(self) -> AsyncIterator[None]:
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._member.renewal_seconds)
            if self._busy:
                try:
                    await self._surface.extend(self.topic, self.group, self.name, self._member.visibility_seconds)
                except TablecastError as e:
                    _log.warning("the claims of %s on %s were not renewed: %s", self.name, self.topic, e)

    # --- handlers ---

    async def _handle_all(self, lanes: list[Lane], work: AsyncWork, running: asyncio.Semaphore) -> list[Handled]:
        self._busy = True
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._lane(lane, work, running)) for lane in lanes]
            return [handled for task in tasks for handled in task.result()]
        finally:
            self._busy = False

    async def _lane(self, lane: Lane, work: AsyncWork, running: asyncio.Semaphore) -> list[Handled]:
        """As far as it got: `stop` ends it between two messages."""
        done: list[Handled] = []
        async with running:
            for message in lane:
                if self._stopped.is_set():
                    break
                done.append(Handled(message, await self._handle(message, work)))
        return done

    async def _handle(self, message: Message, work: AsyncWork) -> str | None:
        """None, or why it failed."""
        if self._unconfirmed.is_repeat(message):
            return None
        error = await self._try(message, work)
        if error is None:
            self.handled += 1
        elif not await self._taken_over(message, error, work):
            return reason_of(error)
        self._unconfirmed.add(message)
        return None

    async def _try(self, message: Message, work: AsyncWork) -> Exception | None:
        clock = asyncio.get_running_loop().time
        until = clock() + work.retry.total_seconds
        backoffs = work.retry.backoffs()
        while True:
            try:
                await _finished(work.handler(message))
                return None
            except Exception as e:
                _log.warning("handler failed on %s/%s: %r", self.topic, message.offset, e)
                wait = next(backoffs, None)
                if wait is None or clock() + wait > until or await self._stopped_within(wait):
                    return e

    async def _taken_over(self, message: Message, error: Exception, work: AsyncWork) -> bool:
        if work.dead_letter is None:
            return False
        try:
            await _finished(work.dead_letter(message, error))
            return True
        except Exception as e:
            _log.warning("dead_letter failed on %s/%s: %r", self.topic, message.offset, e)
            return False

    # --- acknowledging ---

    async def _settle_last(self) -> None:
        """There is no next claim. What cannot be acknowledged comes again, to whoever is next."""
        try:
            await self._settle_done()
        except PASSING as e:
            _log.warning("what %s of %s handled last was not acknowledged: %s", self.name, self.topic, e)

    async def _settle_done(self) -> None:
        if self._done is not None:
            await self._settle_all([Handled(message, None) for message in self._done.messages])
            self._done = None

    def _confirm_done(self) -> None:
        if self._done is not None:
            self._unconfirmed.confirm_all(self._done.messages)
            self._done = None

    async def _settle_all(self, handled: list[Handled]) -> None:
        for settlement in settlements(handled):
            await self._settle(settlement)

    async def _settle(self, settlement: Settlement) -> None:
        partition, done, failed = settlement
        for offset, reason in failed:
            try:
                await self._surface.nack(
                    self.topic, self.group, [offset], partition=partition, reason=reason, consumer=self.name
                )
            except TOO_LATE:
                _log.warning(
                    "%s/%s came back before its handler failed: visibility_seconds is short", self.topic, offset
                )
        if done:
            await self._surface.ack(self.topic, self.group, offsets=done, partition=partition, consumer=self.name)
            self._unconfirmed.confirm(settlement)


async def _finished(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result
