"""A member of a consumer group that runs a handler, in threads.

At least once: a message is acknowledged after its handler returned. A handler that raises is tried again as its `Retry`
says; then the message is given to `dead_letter`, or nacked, and the topic's `max_deliveries` decides between another
delivery and the dead-letter topic; those behind it go on. A message that was handled but whose ack did not arrive is not
handled again when it comes back to the same consumer. Claims are renewed while handlers run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue

from tablecast.client.delivery import (
    OUTAGE_SECONDS,
    PASSING,
    TOO_LATE,
    DeadLetter,
    Handled,
    Handler,
    Lane,
    Membership,
    Settlement,
    Surface,
    Unconfirmed,
    Work,
    check_concurrency,
    is_all_done,
    reason_of,
    rounds,
    settlements,
)
from tablecast.client.retry import Retry
from tablecast.errors import DatabaseClosed, TablecastError
from tablecast.model.message import Consumed, Message

WAIT_SECONDS = 1.0  # a waiting consumer looks that often whether it was stopped; messages wake it at once
_log = logging.getLogger("tablecast.consumer")


class StopSignal:
    """Set once. Unlike `threading.Event` it may be set by a signal handler while the same thread waits for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._is_set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Whether it is set, after up to `seconds`."""
        if not self._is_set:
            try:
                self._wake.get(timeout=seconds)
                self._wake.put(None)  # for whoever else waits
            except Empty:
                pass
        return self._is_set


class Consumer:
    """One member of a group. Members of one group share its messages; each runs in a thread of its own."""

    def __init__(
        self,
        surface: Surface,
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
        self._stopped = StopSignal()
        self._unconfirmed = Unconfirmed()
        self._done: Consumed | None = None  # handled, and acknowledged by the next claim
        self._counting = threading.Lock()
        self._busy = False
        self.handled = 0

    def stop(self) -> None:
        """Ends `run` after the messages at hand; what was claimed and not handled is given back. A signal handler or
        another thread may call it."""
        self._stopped.set()

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        retry: Retry | None = None,
        dead_letter: DeadLetter | None = None,
        until_idle: bool = False,
    ) -> int:
        """Handles messages until `stop`, or, with `until_idle`, until there are none. Returns how many.

        With `concurrency` above 1, that many handlers run at once, in threads; messages of one row keep their order.
        `dead_letter(message, error)` takes over a message whose handler failed for good: when it returns, the message
        counts as done.
        """
        work = Work(handler, retry or Retry(), dead_letter)
        try:
            with ExitStack() as stack:
                pool = None
                if check_concurrency(concurrency) > 1:
                    pool = stack.enter_context(ThreadPoolExecutor(concurrency, thread_name_prefix=self.name))
                stack.enter_context(self._renewing())
                self._run(work, pool, concurrency, until_idle)
            self._settle_last()
        except DatabaseClosed:
            return self.handled
        self._release()
        return self.handled

    def _run(self, work: Work, pool: ThreadPoolExecutor | None, concurrency: int, until_idle: bool) -> None:
        if self._member.has_past:
            self._release()
        while not self._stopped.is_set():
            try:
                found = self._claim(0.0 if until_idle else WAIT_SECONDS)
                if not found.messages and until_idle:
                    return
                for lanes in rounds(found.messages, concurrency):
                    handled = self._handle_all(lanes, work, pool)
                    if is_all_done(found, handled) and not self._stopped.is_set():
                        self._done = found
                    else:
                        self._settle_all(handled)
            except PASSING as e:
                if until_idle:
                    raise
                self._sit_out(e)

    # --- claims ---

    def _claim(self, timeout_seconds: float) -> Consumed:
        """The next messages; what is done is acknowledged with the same commit."""
        found = self._surface.consume(
            self.topic,
            group=self.group,
            limit=self._member.batch,
            timeout_seconds=timeout_seconds,
            consumer=self.name,
            visibility_seconds=self._member.visibility_seconds,
            ack=self._done,
        )
        self._confirm_done()
        return found

    def _release(self) -> None:
        self._surface.release(self.topic, self.group, self.name)

    def _sit_out(self, cause: TablecastError) -> None:
        """Waits until the server is back. Whatever it holds for this consumer may not have arrived here: back with it, but
        for what is handled."""
        _log.warning("%s of %s waits: %s", self.name, self.topic, cause)
        while not self._stopped.wait(OUTAGE_SECONDS):
            try:
                self._settle_done()  # or somebody else would handle it again
                self._release()
                break
            except PASSING as e:
                _log.warning("%s of %s still waits: %s", self.name, self.topic, e)

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._renew, args=[ended], name=f"{self.name}-claims", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(self._member.renewal_seconds):
            if self._busy:
                try:
                    self._surface.extend(self.topic, self.group, self.name, self._member.visibility_seconds)
                except TablecastError as e:
                    _log.warning("the claims of %s on %s were not renewed: %s", self.name, self.topic, e)

    # --- handlers ---

    def _handle_all(self, lanes: list[Lane], work: Work, pool: ThreadPoolExecutor | None) -> list[Handled]:
        self._busy = True
        try:
            done = [self._lane(lane, work) for lane in lanes] if pool is None else pool.map(
                self._lane, lanes, [work] * len(lanes)
            )  # fmt: skip
            return [handled for lane in done for handled in lane]
        finally:
            self._busy = False

    def _lane(self, lane: Lane, work: Work) -> list[Handled]:
        """As far as it got: `stop` ends it between two messages."""
        done: list[Handled] = []
        for message in lane:
            if self._stopped.is_set():
                break
            done.append(Handled(message, self._handle(message, work)))
        return done

    def _handle(self, message: Message, work: Work) -> str | None:
        """None, or why it failed."""
        if self._unconfirmed.is_repeat(message):
            return None
        error = self._try(message, work)
        if error is None:
            with self._counting:
                self.handled += 1
        elif not self._taken_over(message, error, work):
            return reason_of(error)
        self._unconfirmed.add(message)
        return None

    def _try(self, message: Message, work: Work) -> Exception | None:
        until = time.monotonic() + work.retry.total_seconds
        backoffs = work.retry.backoffs()
        while True:
            try:
                work.handler(message)
                return None
            except Exception as e:
                _log.warning("handler failed on %s/%s: %r", self.topic, message.offset, e)
                wait = next(backoffs, None)
                if wait is None or time.monotonic() + wait > until or self._stopped.wait(wait):
                    return e

    def _taken_over(self, message: Message, error: Exception, work: Work) -> bool:
        if work.dead_letter is None:
            return False
        try:
            work.dead_letter(message, error)
            return True
        except Exception as e:
            _log.warning("dead_letter failed on %s/%s: %r", self.topic, message.offset, e)
            return False

    # --- acknowledging ---

    def _settle_last(self) -> None:
        """There is no next claim. What cannot be acknowledged comes again, to whoever is next."""
        try:
            self._settle_done()
        except PASSING as e:
            _log.warning("what %s of %s handled last was not acknowledged: %s", self.name, self.topic, e)

    def _settle_done(self) -> None:
        if self._done is not None:
            self._settle_all([Handled(message, None) for message in self._done.messages])
            self._done = None

    def _confirm_done(self) -> None:
        if self._done is not None:
            self._unconfirmed.confirm_all(self._done.messages)
            self._done = None

    def _settle_all(self, handled: list[Handled]) -> None:
        for settlement in settlements(handled):
            self._settle(settlement)

    def _settle(self, settlement: Settlement) -> None:
        partition, done, failed = settlement
        for offset, reason in failed:
            try:
                self._surface.nack(
                    self.topic, self.group, [offset], partition=partition, reason=reason, consumer=self.name
                )
            except TOO_LATE:
                _log.warning(
                    "%s/%s came back before its handler failed: visibility_seconds is short", self.topic, offset
                )
        if done:
            self._surface.ack(self.topic, self.group, offsets=done, partition=partition, consumer=self.name)
            self._unconfirmed.confirm(settlement)
