"""What a consumer decides, without calling anybody: the order of handlers, what is a repeat, what to acknowledge.

With concurrency 1 a claim's messages are handled one partition after the other, each in order. With more, the unit is a
lane: the messages of one row, which keep their order, while up to that many lanes run at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import uuid4

from tablecast.client.retry import Retry
from tablecast.errors import Conflict, InvalidRequest, Overloaded, RateLimited, Timeout
from tablecast.model.message import Consumed, Message

PASSING = (Overloaded, RateLimited, Timeout)  # a server that is away or busy: a consumer goes on when it is back
OUTAGE_SECONDS = 1.0  # between two looks whether it is
UNCONFIRMED_PLACES = 100_000  # handled but not acknowledged; beyond that the oldest may be handled again
RENEWALS = 3  # of a claim within its visibility timeout: one may fail
TOO_LATE = Conflict  # a nack of what is not this consumer's any more

Place = tuple[int, int]
Lane = list[Message]


class Handled(NamedTuple):
    """What became of a message: done, or to be given back for `reason`."""

    message: Message
    reason: str | None


class Settlement(NamedTuple):
    """What to tell the group about one partition: offsets that are done, and offsets to give back with reasons.

    Single offsets, never "up to": a consumer may hold messages that it never received, when the answer that claimed
    them for it was lost. An ack up to an offset beyond would acknowledge those too.
    """

    partition: int
    done: list[int]
    failed: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Membership:
    """Who consumes what, and how much at a time."""

    topic: str
    group: str
    name: str
    batch: int
    visibility_seconds: float
    has_past: bool  # under a given name it may have lived before, and died with a claim

    @classmethod
    def of(cls, topic: str, group: str, name: str | None, batch: int, visibility_seconds: float) -> Membership:
        given = name or f"consumer-{uuid4().hex}"
        return cls(topic, group, given, batch, visibility_seconds, name is not None)

    @property
    def renewal_seconds(self) -> float:
        return self.visibility_seconds / RENEWALS


class Unconfirmed:
    """Places (partition, offset) that were handled, but whose acknowledgement is not known to have arrived."""

    def __init__(self) -> None:
        self._places: dict[Place, None] = {}

    def add(self, message: Message) -> None:
        self._places[message.partition_id, message.offset] = None
        while len(self._places) > UNCONFIRMED_PLACES:
            self._places.pop(next(iter(self._places)), None)

    def is_repeat(self, message: Message) -> bool:
        return message.delivery > 1 and (message.partition_id, message.offset) in self._places

    def confirm(self, settlement: Settlement) -> None:
        for offset in settlement.done:
            self._places.pop((settlement.partition, offset), None)

    def confirm_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._places.pop((message.partition_id, message.offset), None)


def is_all_done(found: Consumed, handled: Sequence[Handled]) -> bool:
    """Whether a claim was one round of handlers, and nothing of it is left or failed: the next claim can acknowledge it."""
    return len(handled) == len(found.messages) and all(reason is None for _, reason in handled)


def rounds(messages: Sequence[Message], concurrency: int) -> Iterator[list[Lane]]:
    """Lanes that may run at the same time; what a round did is settled before the next one."""
    if concurrency > 1:
        if messages:
            yield _apart(messages, lambda message: (message.partition_id, message.source_table, message.key))
        return
    for lane in _apart(messages, lambda message: message.partition_id):
        yield [lane]


def _apart(messages: Sequence[Message], by: Callable[[Message], object]) -> list[Lane]:
    lanes: dict[object, Lane] = {}
    for message in messages:
        lanes.setdefault(by(message), []).append(message)
    return list(lanes.values())


def settlements(handled: Iterable[Handled]) -> list[Settlement]:
    found: dict[int, Settlement] = {}
    for message, reason in handled:
        settlement = found.setdefault(message.partition_id, Settlement(message.partition_id, [], []))
        if reason is None:
            settlement.done.append(message.offset)
        else:
            settlement.failed.append((message.offset, reason))
    return list(found.values())


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def check_concurrency(concurrency: int) -> int:
    if concurrency < 1:
        raise InvalidRequest(f"concurrency is {concurrency}: at least 1 handler runs", concurrency=concurrency)
    return concurrency


# --- what a consumer needs of a database or client --------------------------------------------------------------


Handler = Callable[[Message], None]
DeadLetter = Callable[[Message, Exception], None]
AsyncHandler = Callable[[Message], Awaitable[None] | None]
AsyncDeadLetter = Callable[[Message, Exception], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Work:
    handler: Handler
    retry: Retry
    dead_letter: DeadLetter | None


@dataclass(frozen=True, slots=True)
class AsyncWork:
    handler: AsyncHandler
    retry: Retry
    dead_letter: AsyncDeadLetter | None


class Surface(Protocol):
    """`Database` and `Client`."""

    def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        limit: int = ...,
        timeout_seconds: float = ...,
        consumer: str | None = None,
        visibility_seconds: float = ...,
        ack: Consumed | None = None,
    ) -> Consumed: ...

    def ack(
        self,
        topic: str,
        group: str,
        upto_offset: int | None = None,
        *,
        partition: int = 0,
        offsets: Sequence[int] = (),
        consumer: str | None = None,
    ) -> int | None: ...

    def nack(
        self,
        topic: str,
        group: str,
        offsets: Sequence[int],
        *,
        partition: int = 0,
        reason: str = "nack",
        consumer: str | None = None,
    ) -> int | None: ...

    def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int: ...

    def release(self, topic: str, group: str, consumer: str) -> int: ...


class AsyncSurface(Protocol):
    """`AsyncDatabase` and `AsyncClient`."""

    async def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        limit: int = ...,
        timeout_seconds: float = ...,
        consumer: str | None = None,
        visibility_seconds: float = ...,
        ack: Consumed | None = None,
    ) -> Consumed: ...

    async def ack(
        self,
        topic: str,
        group: str,
        upto_offset: int | None = None,
        *,
        partition: int = 0,
        offsets: Sequence[int] = (),
        consumer: str | None = None,
    ) -> int | None: ...

    async def nack(
        self,
        topic: str,
        group: str,
        offsets: Sequence[int],
        *,
        partition: int = 0,
        reason: str = "nack",
        consumer: str | None = None,
    ) -> int | None: ...

    async def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int: ...

    async def release(self, topic: str, group: str, consumer: str) -> int: ...
