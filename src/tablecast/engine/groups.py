"""Commands of consumer groups: core.group made durable.

A group's state on a partition is one record (engine.positions); a claim, ack or nack rewrites it in a commit like any
other. A group's first read, ack or reset fixes where it begins in every partition, in that one commit. Messages that used
up their deliveries go to the dead-letter topic in the commit of the next claim, or of a job if that is sooner.

A dead letter's payload wraps the message it stands for:

    {"_table": …, "_dead_letter": {topic, topic_id, group, partition, offset, deliveries, reason}, "message": original}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tablecast.codec.group import GroupState
from tablecast.codec.log import MessageClass
from tablecast.core import group as groups
from tablecast.core import simple_group
from tablecast.core.redelivery import is_done, mark_done, restore
from tablecast.core.routing import Append, content_hash, partition_of
from tablecast.engine.decision import Decision, View
from tablecast.engine.log import not_there, offset_at_time, read_messages
from tablecast.engine.positions import Positions, check_partition, load, record
from tablecast.errors import InvalidRequest, UnknownTopic
from tablecast.model.message import Message
from tablecast.model.position import Start, StartKind
from tablecast.model.topic import Topic

REDRIVE_GROUP = "$redrive"  # remembers which dead letters were sent back
LETTERS_PER_STEP = 100  # dead letters in one commit of a job: each is read by itself, a few milliseconds in all


class DeadLetterOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The topic's id too: one made anew under the same name has other messages at the same offsets. The first databases
    did not write it down."""

    topic: str
    topic_id: int | None = None
    group: str
    partition: int
    offset: int
    deliveries: int
    reason: str


class DeadLetterPayload(msgspec.Struct, frozen=True):
    table: str = msgspec.field(name="_table")
    origin: DeadLetterOrigin = msgspec.field(name="_dead_letter")
    message: msgspec.Raw = msgspec.field(name="message")


@dataclass(slots=True)
class Given:
    """What a claim gave in one partition."""

    partition: int
    start: int
    end: int
    deliveries: tuple[int, ...]
    skipped: tuple[int, int] | None = None


class Done(NamedTuple):
    """A range of offsets that a consumer was given before, and is done with."""

    partition: int
    start: int
    end: int
    consumer: str | None


def resolve_start(view: View, topic: Topic, partition: int, start: Start) -> int:
    """The offset a reader begins at. Raises OffsetOutOfRange for one that is not in the log."""
    first, end = view.log_start(topic.topic_id, partition), view.log_end(topic.topic_id, partition)
    if start.kind is StartKind.EARLIEST:
        return first
    if start.kind is StartKind.LATEST:
        return end
    if start.kind is StartKind.TIMESTAMP:
        written = min(end, view.written_end(topic.topic_id, partition))
        return offset_at_time(view, topic.topic_id, partition, start.value, first, written)
    if not first <= start.value <= end:
        raise not_there(topic, partition, start.value, first, end)
    return start.value


def topic_of(view: View, topic_id: int) -> Topic:
    topic = view.catalog.topics.get(topic_id)
    if topic is None:
        raise UnknownTopic("the topic was dropped while the request waited")
    return topic


@dataclass(slots=True)
class Claim:
    """Gives a consumer up to `limit` messages, from one partition or from any, beginning with `partitions[0]`. What it is
    done with is acknowledged first: one commit for both."""

    topic_id: int
    group: str
    consumer: str
    partitions: list[int]
    limit: int
    start: Start
    visibility_ms: int
    auto_offset_reset: bool = False
    done: Sequence[Done] = ()
    weight: int = 1

    def decide(self, view: View) -> Decision:
        topic = topic_of(view, self.topic_id)
        positions, decision = Positions(view, topic, self.group), Decision(response=[])
        for done in self.done:
            state = existing(view, topic, positions, done.partition)
            positions.put(done.partition, _acked_range(view, topic, state, done))
        if positions.at(self.partitions[0]) is None:
            positions.create(lambda partition: self._first(view, topic, partition))
        left = self.limit
        for partition in self.partitions:
            while left > 0:
                given, dead = self._claim(view, topic, positions, partition, left, decision)
                left -= given
                if given or not dead:
                    break
        decision.records = positions.records()
        return decision

    def _first(self, view: View, topic: Topic, partition: int) -> GroupState:
        """An offset of one partition says nothing about the others: those begin where their logs begin."""
        if self.start.kind is StartKind.OFFSET and len(self.partitions) == 1 and partition != self.partitions[0]:
            return groups.first(view.log_start(self.topic_id, partition))
        return groups.first(resolve_start(view, topic, partition, self.start))

    def _claim(
        self, view: View, topic: Topic, positions: Positions, partition: int, limit: int, decision: Decision
    ) -> tuple[int, int]:
        after, claimed = groups.claim(
            positions.known(partition),
            consumer=self.consumer,
            limit=limit,
            log_start=view.log_start(self.topic_id, partition),
            log_end=view.log_end(self.topic_id, partition),
            now_ms=view.ts_ms,
            visibility_ms=self.visibility_ms,
            max_deliveries=topic.max_deliveries,
            auto_offset_reset=self.auto_offset_reset,
        )
        positions.put(partition, after)
        decision.letters += _dead_letters(view, topic, self.group, partition, claimed.dead)
        if claimed.end > claimed.start or claimed.skipped:
            decision.response.append(Given(partition, claimed.start, claimed.end, claimed.deliveries, claimed.skipped))
        return claimed.end - claimed.start, len(claimed.dead)


def existing(view: View, topic: Topic, positions: Positions, partition: int) -> GroupState:
    """The group's state. One that has never read is created, as one that commits only, and begins where the logs begin."""
    if positions.at(partition) is None:
        positions.create(lambda p: simple_group.first(view.log_start(topic.topic_id, p)))
    return positions.known(partition)


def _acked_range(view: View, topic: Topic, state: GroupState, done: Done) -> GroupState:
    if not state.simple:
        return groups.ack_range(state, done.start, done.end, consumer=done.consumer)
    _check_written(view, topic, done.partition, done.end - 1)
    return simple_group.commit_range(state, done.start, done.end)


def _check_written(view: View, topic: Topic, partition: int, offset: int) -> None:
    """A position that is committed must have been there to read; that it is not kept any more does not matter."""
    end = view.written_end(topic.topic_id, partition)
    if offset >= end:
        raise not_there(topic, partition, offset, view.log_start(topic.topic_id, partition), end)


def _dead_letters(
    view: View, topic: Topic, group: str, partition: int, dead: Iterable[groups.DeadLetter]
) -> Iterator[Append]:
    return (_dead_letter(view, topic, group, partition, letter) for letter in dead)


def _dead_letter(view: View, topic: Topic, group: str, partition: int, letter: groups.DeadLetter) -> Append:
    assert topic.dead_letter is not None
    target = view.catalog.topic(topic.dead_letter)
    end = view.written_end(topic.topic_id, partition)
    message = read_messages(view, topic.topic_id, partition, letter.offset, end, 1)[0]
    origin = DeadLetterOrigin(
        topic=topic.full_name, topic_id=topic.topic_id, group=group, partition=partition, offset=letter.offset,
        deliveries=letter.deliveries, reason=letter.reason,
    )  # fmt: skip
    payload = msgspec.json.encode(DeadLetterPayload(message.source_table, origin, msgspec.Raw(message.payload)))
    return _append(target, partition_of(message.key, target.partitions), message, payload)


def _append(target: Topic, partition: int, message: Message, payload: bytes) -> Append:
    said = MessageClass(message.source_table, message.op, message.payload_mode, message.user_id)
    hashed = content_hash(message.op, payload)
    return Append(target.topic_id, partition, said, [message.key], [payload], [hashed])


@dataclass(slots=True)
class Settle:
    """Acks (cumulative or single) and nacks. Answers the acknowledged offset, None before the first."""

    topic_id: int
    group: str
    partition: int
    upto: int | None = None
    offsets: list[int] = field(default_factory=list)
    nack: bool = False
    reason: str = "nack"
    consumer: str | None = None
    weight: int = 1

    def decide(self, view: View) -> Decision:
        topic = topic_of(view, self.topic_id)
        positions = Positions(view, topic, self.group)
        if self.nack:
            state = positions.known(self.partition)
            after, _ = groups.nack(state, self.offsets, reason=self.reason, consumer=self.consumer)
        else:
            after = self._acked(view, topic, existing(view, topic, positions, self.partition))
        positions.put(self.partition, after)
        return Decision(after.acknowledged_offset, records=positions.records())

    def _acked(self, view: View, topic: Topic, state: GroupState) -> GroupState:
        if state.simple:
            return self._committed(view, topic, state)
        if self.upto is not None:
            return groups.ack_upto(state, self.upto, consumer=self.consumer)[0]
        return groups.ack(state, self.offsets, consumer=self.consumer)[0]

    def _committed(self, view: View, topic: Topic, state: GroupState) -> GroupState:
        offsets = self.offsets if self.upto is None else [self.upto]
        _check_written(view, topic, self.partition, max(offsets))
        return simple_group.commit(state, offsets) if self.upto is None else simple_group.commit_upto(state, self.upto)


@dataclass(slots=True)
class LetGo:
    """A consumer went away: its claims come back at once. Or it renews them, with `visibility_ms`."""

    topic_id: int
    group: str
    consumer: str
    delivered: bool = True
    visibility_ms: int | None = None
    weight: int = 1

    def decide(self, view: View) -> Decision:
        topic = topic_of(view, self.topic_id)
        decision = Decision(response=0)
        for partition in range(topic.partitions):
            state = load(view, self.topic_id, self.group, partition)
            if state is None or not groups.held(state, self.consumer):
                continue
            if self.visibility_ms is None:
                after, count = groups.release(state, self.consumer, delivered=self.delivered)
            else:
                after, _ = groups.extend(
                    state, consumer=self.consumer, now_ms=view.ts_ms, visibility_ms=self.visibility_ms
                )
                count = groups.held(after, self.consumer)
            decision.response += count
            decision.records.append(record(view, self.topic_id, self.group, partition, after))
        return decision


@dataclass(slots=True)
class GiveBack:
    """A claim whose answer could not be given: nobody saw its messages, so their delivery does not count."""

    topic_id: int
    group: str
    consumer: str
    given: Sequence[Given]
    weight: int = 1

    def decide(self, view: View) -> Decision:
        decision = Decision()
        for part in self.given:
            state = load(view, self.topic_id, self.group, part.partition)
            if state is not None:
                after = groups.give_back(state, self.consumer, part.start, part.end)
                decision.records.append(record(view, self.topic_id, self.group, part.partition, after))
        return decision


class Moved(NamedTuple):
    """Where a reset left a group in one partition, and how many messages it has to read from there."""

    partition: int
    offset: int
    lag: int


@dataclass(slots=True)
class ResetGroup:
    topic_id: int
    group: str
    partition: int | None
    to: Start
    weight: int = 1

    def decide(self, view: View) -> Decision:
        topic = topic_of(view, self.topic_id)
        partitions = range(topic.partitions) if self.partition is None else [self.partition]
        positions, decision = Positions(view, topic, self.group), Decision(response=[])
        for partition in partitions:
            state = existing(view, topic, positions, partition)
            after, _ = groups.reset(state, resolve_start(view, topic, partition, self.to))
            positions.put(partition, after)
            lag = groups.lag(after, view.written_end(self.topic_id, partition))
            decision.response.append(Moved(partition, after.committed, lag))
        decision.records = positions.records()
        return decision


@dataclass(slots=True)
class ExpireClaims:
    """Takes back overdue claims, and moves what used up its deliveries to the dead-letter topic, even when nobody reads.
    Answers how many came back and how many were moved, together: 0 when there is nothing left to do."""

    topic_id: int
    group: str
    partition: int
    weight: int = 1

    def decide(self, view: View) -> Decision:
        topic = view.catalog.topics.get(self.topic_id)
        state = load(view, self.topic_id, self.group, self.partition)
        if topic is None or state is None:
            return Decision(0)
        after, count = groups.expire(state, view.ts_ms)
        log_start = view.log_start(self.topic_id, self.partition)
        after, dead = groups.bury(after, LETTERS_PER_STEP, log_start=log_start, max_deliveries=topic.max_deliveries)
        if not count and not dead:
            return Decision(0)
        return Decision(
            count + len(dead),
            letters=list(_dead_letters(view, topic, self.group, self.partition, dead)),
            records=[record(view, self.topic_id, self.group, self.partition, after)],
        )


class SentBack(NamedTuple):
    topic: str
    group: str | None
    partition: int


@dataclass(slots=True)
class Redrive:
    """Sends dead letters back to the group they came from: that group alone gets the message again.

    Should its topic no longer keep the message, the dead letter's copy is appended to the topic as a new message. Answers
    how many went to each topic, group (None: appended, for all groups) and partition.
    """

    topic_id: int
    offset: int | None  # None: all that were not sent back yet
    partition: int | None = None  # None: all of the dead-letter topic's
    weight: int = 64

    def decide(self, view: View) -> Decision:
        topic = topic_of(view, self.topic_id)
        decision = Decision(response=Counter())
        states: dict[tuple[int, str, int], GroupState] = {}
        for partition in self._partitions(topic):
            done = load(view, self.topic_id, REDRIVE_GROUP, partition) or groups.first(0)
            for message in list(self._letters(view, topic, partition, done)):
                decision.response[self._send_back(view, message, states, decision)] += 1
                done = mark_done(done, message.offset)
            decision.records.append(record(view, self.topic_id, REDRIVE_GROUP, partition, done))
        decision.records += [record(view, *place, state) for place, state in states.items()]
        return decision

    def _partitions(self, topic: Topic) -> Sequence[int]:
        if self.partition is None:
            if self.offset is not None and topic.partitions > 1:
                raise InvalidRequest(f"{topic.full_name} has {topic.partitions} partitions: say which with PARTITION p")
            return range(topic.partitions)
        check_partition(topic, self.partition)
        return [self.partition]

    def _letters(self, view: View, topic: Topic, partition: int, done: GroupState) -> Iterator[Message]:
        first, end = view.log_start(topic.topic_id, partition), view.written_end(topic.topic_id, partition)
        if self.offset is not None:
            wanted = [self.offset] if first <= self.offset < end else []
            if not wanted:
                raise not_there(topic, partition, self.offset, first, end)
        else:
            wanted = list(range(first, end))
        for offset in wanted:
            if not is_done(done, offset):
                yield from read_messages(view, topic.topic_id, partition, offset, end, 1)

    def _send_back(
        self, view: View, message: Message, states: dict[tuple[int, str, int], GroupState], decision: Decision
    ) -> SentBack:
        letter = decode_dead_letter(message)
        origin = _origin_of(view, message, letter)
        partition, offset = letter.origin.partition, letter.origin.offset
        first, end = view.log_start(origin.topic_id, partition), view.written_end(origin.topic_id, partition)
        if not first <= offset < end:
            again = _append(origin, partition, message, bytes(letter.message))
            decision.letters.append(again)
            return SentBack(origin.full_name, None, partition)
        place = (origin.topic_id, letter.origin.group, partition)
        state = states.get(place) or load(view, *place) or groups.first(view.log_start(origin.topic_id, partition))
        states[place] = restore(state, offset)
        return SentBack(origin.full_name, letter.origin.group, partition)


def _origin_of(view: View, message: Message, letter: DeadLetterPayload) -> Topic:
    name, topic_id = letter.origin.topic, letter.origin.topic_id
    topic = view.catalog.topics.get(topic_id) if topic_id is not None else view.catalog.topic(name)
    if topic is None:
        view.catalog.topic(name)  # says that there is none
        raise InvalidRequest(
            f"the dead letter at offset {message.offset} of partition {message.partition_id} came from a topic {name} "
            "that was dropped; the one of that name is another: read the letter and write its row again instead",
            topic=name, partition=message.partition_id, offset=message.offset,
        )  # fmt: skip
    return topic


def decode_dead_letter(message: Message) -> DeadLetterPayload:
    try:
        return msgspec.json.decode(message.payload, type=DeadLetterPayload)
    except msgspec.MsgspecError as e:
        raise InvalidRequest(f"the message at offset {message.offset} is not a dead letter: {e}") from e
