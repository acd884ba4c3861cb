"""A member of a consumer group that runs a handler.

At least once: a message is acknowledged after its handler returned, in order. A handler that raises is retried as its
`Retry` says; then the message is nacked and the topic's `max_deliveries` decides between another delivery and the
dead-letter topic; those behind it go on. A message that was handled but whose ack did not arrive is not handled again
when it comes back to the same consumer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from tablecast.errors import Conflict, DatabaseClosed, InvalidRequest
from tablecast.model.message import Message

if TYPE_CHECKING:
    from tablecast.sql.session import Session

WAIT_SECONDS = 1.0  # a waiting consumer looks that often whether it was stopped; messages wake it at once
_log = logging.getLogger("tablecast.consumer")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a handler is tried for one delivery, and how long to wait in between (doubling)."""

    attempts: int = 1
    backoff_seconds: float = 0.1
    max_backoff_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequest(
                f"attempts is {self.attempts}: a handler is tried at least 1 time", attempts=self.attempts
            )


class Consumer:
    """One member of a group. Members of one group share its messages; each runs in a thread of its own."""

    def __init__(
        self,
        session: Session,
        topic: str,
        group: str,
        *,
        name: str | None = None,
        batch: int = 100,
        visibility_seconds: float = 60.0,
    ) -> None:
        self._session = session
        self.topic = topic
        self.group = group
        self.name = name or f"consumer-{uuid4().hex}"
        self._batch = batch
        self._visibility_seconds = visibility_seconds
        self._stopped = threading.Event()
        self._unconfirmed: set[tuple[int, int]] = set()  # (partition, offset) handled, but not acknowledged yet
        self.handled = 0

    def stop(self) -> None:
        """Ends `run` after the message at hand; what was claimed and not handled is given back."""
        self._stopped.set()

    def run(self, handler: Callable[[Message], None], *, retry: Retry | None = None, until_idle: bool = False) -> int:
        """Handles messages until `stop`, or, with `until_idle`, until there are none. Returns how many."""
        retry = retry or Retry()
        try:
            while not self._stopped.is_set():
                found = self._session.consume(
                    self.topic,
                    group=self.group,
                    limit=self._batch,
                    timeout_seconds=0 if until_idle else WAIT_SECONDS,
                    consumer=self.name,
                    visibility_seconds=self._visibility_seconds,
                ).messages
                if not found and until_idle:
                    break
                self._handle_all(found, handler, retry)
        except DatabaseClosed:
            return self.handled
        self._session.release(self.topic, self.group, self.name)
        return self.handled

    def _handle_all(self, messages: list[Message], handler: Callable[[Message], None], retry: Retry) -> None:
        """One partition after the other, each acknowledged as far as it got."""
        by_partition: dict[int, list[Message]] = {}
        for message in messages:
            by_partition.setdefault(message.partition_id, []).append(message)
        for partition, run in by_partition.items():
            done: list[int] = []
            failed: list[tuple[int, str]] = []
            for message in run:
                if self._stopped.is_set():
                    break
                error = self._handle(message, handler, retry)
                if error is None:
                    done.append(message.offset)
                else:
                    failed.append((message.offset, error))
            self._settle(partition, done, failed)

    def _handle(self, message: Message, handler: Callable[[Message], None], retry: Retry) -> str | None:
        """None, or why it failed."""
        place = message.partition_id, message.offset
        if place in self._unconfirmed and message.delivery > 1:
            return None
        wait = retry.backoff_seconds
        for attempt in range(1, retry.attempts + 1):
            try:
                handler(message)
                self._unconfirmed.add(place)
                self.handled += 1
                return None
            except Exception as e:
                _log.warning("handler failed on %s/%s, attempt %s: %r", self.topic, message.offset, attempt, e)
                error = f"{type(e).__name__}: {e}"
                if attempt < retry.attempts and self._stopped.wait(wait):
                    break
                wait = min(wait * 2, retry.max_backoff_seconds)
        return error

    def _settle(self, partition: int, done: list[int], failed: list[tuple[int, str]]) -> None:
        session = self._session
        for offset, reason in failed:
            try:
                session.nack(self.topic, self.group, [offset], partition=partition, reason=reason, consumer=self.name)
            except Conflict:
                _log.warning(
                    "%s/%s came back before its handler failed: the visibility timeout is short", self.topic, offset
                )
        if not done:
            return
        if failed:
            session.ack(self.topic, self.group, offsets=done, partition=partition, consumer=self.name)
        else:
            session.ack(self.topic, self.group, done[-1], partition=partition, consumer=self.name)
        self._unconfirmed.difference_update((partition, offset) for offset in done)
