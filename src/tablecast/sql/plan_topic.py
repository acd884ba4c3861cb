"""CONSUME, ACK and what else reads or moves along a topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import pyarrow as pa

from tablecast.codec.given import check_arguments, check_optional
from tablecast.codec.log import MESSAGE_SCHEMA, decode_head
from tablecast.engine.commit import Commit
from tablecast.engine.engine import DEFAULT_VISIBILITY_MS, MAX_CONSUME, Engine
from tablecast.engine.groups import Claim, Done, Given, Settle
from tablecast.engine.positions import check_partition
from tablecast.errors import InvalidRequest
from tablecast.model.message import Consumed, ConsumedLog, Message
from tablecast.model.position import EARLIEST, LATEST, Start, StartKind
from tablecast.model.topic import Topic

DEFAULT_LIMIT = 100
DEFAULT_WAIT_SECONDS = 30.0  # of a consume that is to wait and is not told how long; a server has settings for both
MAX_WAIT_SECONDS = 300.0  # of one that asks for more
LOOK_SECONDS = 300.0  # a consume that waits looks that often even if nothing wakes it

C = TypeVar("C", Consumed, ConsumedLog)


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What one call of consume asks for. Without `start` a group begins at the earliest message, and a read without
    group at the latest."""

    group: str | None = None
    start: Start | None = None
    partition: int | None = None
    limit: int = DEFAULT_LIMIT
    timeout_seconds: float = 0.0
    consumer: str | None = None
    visibility_seconds: float = DEFAULT_VISIBILITY_MS / 1000
    auto_offset_reset: bool = False
    pinned_at: tuple[int, ...] | None = None  # an offset per partition, instead of `start`
    done: tuple[Done, ...] = ()  # acknowledged with the claim

    def __post_init__(self) -> None:
        check_arguments(
            limit=self.limit, timeout_seconds=self.timeout_seconds, visibility_seconds=self.visibility_seconds
        )
        check_optional(group=self.group, partition=self.partition, consumer=self.consumer)

    def check(self) -> None:
        if not 1 <= self.limit <= MAX_CONSUME:
            raise InvalidRequest(f"limit {self.limit}: consume gives 1 to {MAX_CONSUME} messages", limit=self.limit)
        if not 0.001 <= self.visibility_seconds <= 12 * 3600:
            raise InvalidRequest(f"visibility_seconds {self.visibility_seconds}: it is 0.001 to 43,200")
        if self.done and self.group is None:
            raise InvalidRequest("ack goes with a group: a read without one claims nothing that could be acknowledged")

    def settled(self) -> ConsumeRequest:
        """The same request, once what it was done with is acknowledged."""
        return replace(self, done=()) if self.done else self

    def pinned(self, engine: Engine, topic: Topic) -> ConsumeRequest:
        """The same request with "latest" fixed to this moment: else what ends a wait would be over before it is read."""
        if self.group is not None or (self.start is not None and self.start.kind is not StartKind.LATEST):
            return self
        return replace(self, pinned_at=tuple(engine.log_range(topic.topic_id, p)[1] for p in range(topic.partitions)))


def wait_seconds(asked: float | None, default: float = DEFAULT_WAIT_SECONDS, most: float = MAX_WAIT_SECONDS) -> float:
    """How long a consume waits at most, if this is asked for. None: the default. More than `most` is not refused: the
    reader is told how long it waited, and asks again."""
    if asked is not None and not asked >= 0:
        raise InvalidRequest(f"timeout_seconds {asked}: it is 0 or more, or left out", timeout_seconds=str(asked))
    return min(default if asked is None else asked, most)


def waited(found: C, seconds: float) -> C:
    return replace(found, waited_seconds=round(seconds, 3))


def consume_now(engine: Engine, topic: Topic, request: ConsumeRequest) -> Consumed:
    """What is there, without waiting."""
    if request.group is None:
        return read_now(engine, topic, request)
    claim = claim_of(engine, topic, request)
    if claim is None:
        return Consumed([], None, False)
    return given_messages(engine, topic, request, Claimed(claim.consumer, engine.execute(claim)))


def claim_of(engine: Engine, topic: Topic, request: ConsumeRequest) -> Claim | None:
    """The command that claims for the request's group; None when there is nothing to claim."""
    assert request.group is not None
    return engine.claim(
        topic,
        request.group,
        limit=request.limit,
        start=request.start or EARLIEST,
        partition=request.partition,
        consumer=request.consumer,
        visibility_ms=round(request.visibility_seconds * 1000),
        auto_offset_reset=request.auto_offset_reset,
        done=request.done,
    )


def done_with(consumed: Consumed | None) -> tuple[Done, ...]:
    """What handing this to the next consume acknowledges."""
    if consumed is None:
        return ()
    return tuple(Done(*given, consumed.consumer) for given in consumed.given)


class Claimed(NamedTuple):
    consumer: str
    given: list[Given]


def given_messages(engine: Engine, topic: Topic, request: ConsumeRequest, claimed: Claimed) -> Consumed:
    messages = engine.claimed_messages(topic, claimed.given)
    given = tuple((part.partition, part.start, part.end) for part in claimed.given if part.start < part.end)
    return Consumed(messages, *_position(topic, request, claimed, len(messages)), given, _next_offsets(claimed))


def given_log(engine: Engine, topic: Topic, request: ConsumeRequest, claimed: Claimed) -> ConsumedLog:
    count = sum(part.end - part.start for part in claimed.given)
    slices = engine.claimed_log(topic, claimed.given)
    position = _position(topic, request, claimed, count)
    return ConsumedLog(topic.topic_id, slices, count, *position, _next_offsets(claimed))


def _position(
    topic: Topic, request: ConsumeRequest, claimed: Claimed, count: int
) -> tuple[int | None, bool, tuple[tuple[int, int, int], ...], str]:
    """Where to go on, whether there is more, what was skipped, and whose it is."""
    next_offset = claimed.given[-1].end if count and topic.partitions == 1 else None
    skipped = tuple((part.partition, *part.skipped) for part in claimed.given if part.skipped)
    return next_offset, count >= request.limit, skipped, claimed.consumer


def _next_offsets(claimed: Claimed) -> dict[int, int]:
    return {part.partition: part.end for part in claimed.given}


def given_ranges(consumed: Consumed | ConsumedLog) -> list[Given]:
    """Where what a claim gave stands: runs of offsets in one partition."""
    if isinstance(consumed, ConsumedLog):
        heads = [(part.partition_id, decode_head(part.data)) for part in consumed.slices]
        return [Given(partition, head.first_offset, head.end_offset, ()) for partition, head in heads]
    runs: list[Given] = []
    for message in consumed.messages:
        last = runs[-1] if runs else None
        if last is not None and (last.partition, last.end) == (message.partition_id, message.offset):
            last.end += 1
        else:
            runs.append(Given(message.partition_id, message.offset, message.offset + 1, ()))
    return runs


def read_now(engine: Engine, topic: Topic, request: ConsumeRequest, coming: Commit | None = None) -> Consumed:
    """What is there for a reader without a group, and what a commit brings that is not durable, if one is given."""
    start = request.start or LATEST
    partitions = _asked(topic, request.partition)
    messages: list[Message] = []
    next_offsets: dict[int, int] = {}
    has_more = False
    for partition in partitions:
        offset = engine.resolve(topic, partition, start) if request.pinned_at is None else request.pinned_at[partition]
        left = request.limit - len(messages)
        found = engine.read(topic, partition, offset, left, coming) if left else []
        messages += found
        after = next_offsets[partition] = found[-1].offset + 1 if found else offset
        has_more = has_more or after < engine.log_range(topic.topic_id, partition, coming)[1]
    next_offset = next_offsets[partitions[0]] if len(partitions) == 1 else None
    return Consumed(messages, next_offset, has_more, next_offsets=next_offsets)


def _asked(topic: Topic, partition: int | None) -> Sequence[int]:
    if partition is None:
        return range(topic.partitions)
    check_partition(topic, partition)
    return [partition]


def consume(
    engine: Engine, topic: Topic, request: ConsumeRequest, monotonic: Callable[[], float] = time.monotonic
) -> Consumed:
    """Waits, without polling, until there is something or the timeout is over."""
    request.check()
    if not request.timeout_seconds:
        return consume_now(engine, topic, request)
    request = request.pinned(engine, topic)
    began = monotonic()
    until = began + request.timeout_seconds
    woken = threading.Event()
    unsubscribe = engine.feed.subscribe(topic.topic_id, woken.set)
    try:
        while True:
            woken.clear()
            found = consume_now(engine, topic, request)
            request = request.settled()
            now = monotonic()
            if found.messages or found.skipped or now >= until:
                return waited(found, now - began)
            engine.check_open()  # closing wakes whoever waits
            woken.wait(min(until - now, seconds_to_deadline(engine, topic, request)))
    finally:
        unsubscribe()


def seconds_to_deadline(engine: Engine, topic: Topic, request: ConsumeRequest) -> float:
    """When an open claim of the group runs out, a waiting reader may get its messages."""
    if request.group is None:
        return LOOK_SECONDS
    deadline = engine.next_deadline_ms(topic, request.group)
    if deadline is None:
        return LOOK_SECONDS
    return max(0.001, (deadline - engine.now_ms()) / 1000)


def settle(engine: Engine, command: Settle) -> int | None:
    acknowledged: int | None = engine.execute(command)
    if command.nack:
        engine.feed.wake([command.topic_id])
    return acknowledged


def stream_arrow(engine: Engine, topic: Topic, request: ConsumeRequest) -> Iterator[pa.RecordBatch]:
    """A stateless read of any size, as Arrow record batches."""
    start = request.start or EARLIEST
    for partition in _asked(topic, request.partition):
        offset = engine.resolve(topic, partition, start)
        yield from engine.read_arrow(topic, partition, offset, engine.log_range(topic.topic_id, partition)[1])


def read_arrow(engine: Engine, topic: Topic, request: ConsumeRequest) -> pa.Table:
    return pa.Table.from_batches(stream_arrow(engine, topic, request), schema=MESSAGE_SCHEMA)
