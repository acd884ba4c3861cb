"""Offsets of a topic: where a read begins and ends, how a limit is shared, and how ranges become tasks.

A stream's offset, as Spark keeps it in its checkpoint:

    {"topic_id": 3, "partitions": {"0": 17, "1": 20}}      the next offset of each partition

The topic's id is part of it, so that a topic that was dropped and created again is noticed: its offsets begin anew, and
17 would be another message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tablecast.errors import InvalidRequest, OffsetOutOfRange, TopicRecreated

EARLIEST, LATEST = "earliest", "latest"
MIN_TASK_ROWS = 20_000  # a task costs milliseconds; fewer messages than this are not worth one of their own
Offsets = dict[int, int]
"""The next offset of each partition."""
_log = logging.getLogger("tablecast.spark")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition: by word, by offset, or by time. `option` is what the user wrote it in."""

    option: str
    word: str | None = None
    each: Mapping[int, int | str] = field(default_factory=dict)
    ts_ms: int | None = None


class PartitionRange(NamedTuple):
    """What one partition's log holds. `at_time` is the first offset not older than the time that was asked about."""

    partition: int
    start: int
    end: int
    at_time: int | None = None


class LogRange(NamedTuple):
    """Offsets start <= … < end of one partition."""

    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


# --- positions ------------------------------------------------------------------------------------------------------


def position(option: str, text: str) -> Position:
    """Of `earliest`, `latest` or {"0": 17, "1": "earliest"}."""
    if text.strip().lower() in (EARLIEST, LATEST):
        return Position(option, text.strip().lower())
    try:
        given = json.loads(text)
    except ValueError:
        raise _not_a_position(option, text) from None
    if not isinstance(given, dict) or not given:
        raise _not_a_position(option, text)
    return Position(option, each={_partition(option, k): _offset(option, k, v) for k, v in given.items()})


def _not_a_position(option: str, text: str) -> InvalidRequest:
    return InvalidRequest(
        f'option "{option}" is {EARLIEST}, {LATEST}, or JSON like {{"0": 17, "1": "{EARLIEST}"}}, not {text!r}',
        option=option,
    )


def _partition(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidRequest(
            f'option "{option}" names partition {text!r}: partitions are numbers, from 0', option=option
        )
    return int(text)


def _offset(option: str, partition: str, value: Any) -> int | str:
    if value in (EARLIEST, LATEST):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(
            f'option "{option}" has {value!r} for partition {partition}: it is an offset, {EARLIEST} or {LATEST}',
            option=option,
        )
    return value


def resolve(
    place: Position, topic: str, partitions: Sequence[PartitionRange], *, fail_on_data_loss: bool = True
) -> Offsets:
    """The offset of every partition. Raises InvalidRequest or OffsetOutOfRange, which name the partition."""
    numbers = {known.partition for known in partitions}
    if place.each and set(place.each) != numbers:
        raise _other_partitions(place, topic, numbers)
    return {known.partition: _resolved(place, topic, known, fail_on_data_loss) for known in partitions}


def _other_partitions(place: Position, topic: str, numbers: set[int]) -> InvalidRequest:
    missing, unknown = sorted(numbers - set(place.each)), sorted(set(place.each) - numbers)
    what = f"lacks partition {missing[0]}" if missing else f"names partition {unknown[0]}"
    return InvalidRequest(
        f'option "{place.option}" {what}; topic {topic} has partitions 0 to {len(numbers) - 1}, and all are needed',
        option=place.option,
    )


def _resolved(place: Position, topic: str, known: PartitionRange, fail_on_data_loss: bool) -> int:
    if place.ts_ms is not None:
        return known.end if known.at_time is None else known.at_time
    wanted = place.each[known.partition] if place.each else place.word
    if wanted == EARLIEST:
        return known.start
    if wanted == LATEST:
        return known.end
    return _checked(int(wanted or 0), place.option, topic, known, fail_on_data_loss)


def _checked(offset: int, option: str, topic: str, known: PartitionRange, fail_on_data_loss: bool) -> int:
    if offset > known.end:
        raise OffsetOutOfRange(
            f'option "{option}": offset {offset} of partition {known.partition} of {topic} does not exist yet; its log '
            f"ends at {known.end}",
            partition=known.partition, offset=offset, log_start=known.start, log_end=known.end,
        )  # fmt: skip
    if offset >= known.start:
        return offset
    if fail_on_data_loss:
        raise lost_error(topic, LogRange(known.partition, offset, known.start))
    tell_lost(topic, LogRange(known.partition, offset, known.start))
    return known.start


# --- what retention took ----------------------------------------------------------------------------------------------


def lost_error(topic: str, lost: LogRange) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"partition {lost.partition} of {topic}: offsets {lost.start} to {lost.end - 1} are no longer kept, its log "
        f'begins at {lost.end}; with option "failOnDataLoss" false a read goes on from there',
        partition=lost.partition, offset=lost.start, log_start=lost.end,
    )  # fmt: skip


def tell_lost(topic: str, lost: LogRange) -> None:
    _log.warning(
        "partition %d of %s: offsets %d to %d are no longer kept; %d messages were not read",
        lost.partition, topic, lost.start, lost.end - 1, lost.rows,
    )  # fmt: skip


def kept(topic: str, ranges: Sequence[LogRange], starts: Offsets, *, fail_on_data_loss: bool) -> list[LogRange]:
    """Ranges without what retention took. Raises OffsetOutOfRange if that is not to be borne."""
    left: list[LogRange] = []
    for wanted in ranges:
        begin = min(max(wanted.start, starts[wanted.partition]), wanted.end)
        if begin > wanted.start:
            lost = wanted._replace(end=begin)
            if fail_on_data_loss:
                raise lost_error(topic, lost._replace(end=starts[wanted.partition]))
            tell_lost(topic, lost)
        if begin < wanted.end:
            left.append(wanted._replace(start=begin))
    return left


# --- a stream's offset --------------------------------------------------------------------------------------------------


class StreamOffset(NamedTuple):
    topic_id: int
    offsets: Offsets

    def as_json(self) -> dict[str, Any]:
        """What Spark keeps. Equal offsets give equal text: Spark compares it."""
        return {"topic_id": self.topic_id, "partitions": {str(p): self.offsets[p] for p in sorted(self.offsets)}}


def stream_offset(kept: Mapping[str, Any]) -> StreamOffset:
    return StreamOffset(int(kept["topic_id"]), {int(p): int(offset) for p, offset in kept["partitions"].items()})


def check_same(kept: StreamOffset, topic: str, topic_id: int, partitions: Sequence[PartitionRange]) -> None:
    """That the topic is the one whose offsets these are, and that its log reaches as far."""
    if kept.topic_id != topic_id or set(kept.offsets) != {known.partition for known in partitions}:
        was = "has another id" if kept.topic_id != topic_id else f"has {len(partitions)} partitions"
        raise TopicRecreated(
            f"topic {topic} {was} than when this stream began (id {kept.topic_id}, {len(kept.offsets)} partitions): it "
            "was dropped and created again; begin with a new checkpoint",
            topic=topic, topic_id=topic_id,
        )  # fmt: skip
    for known in partitions:
        if kept.offsets[known.partition] > known.end:
            raise OffsetOutOfRange(
                f"partition {known.partition} of {topic}: the stream has read up to offset "
                f"{kept.offsets[known.partition]}, and the log ends at {known.end}: it is an older copy of the log",
                partition=known.partition, offset=kept.offsets[known.partition], log_end=known.end,
            )  # fmt: skip


def limited(starts: Offsets, ends: Offsets, most: int) -> Offsets:
    """Ends so that at most `most` messages lie between: what a partition does not need goes to the others.

    The fullest come last and get the rest, so none waits for ever, even where `most` is less than one for each.
    """
    left, fair = most, dict(starts)
    backlog = sorted((ends[p] - starts[p], p) for p in starts)
    for done, (size, partition) in enumerate(backlog):
        given = min(size, left // (len(backlog) - done))
        fair[partition] += given
        left -= given
    return fair


# --- tasks ----------------------------------------------------------------------------------------------------------


def tasks(ranges: Sequence[LogRange], wanted: int, *, at_least: bool = False) -> list[tuple[LogRange, ...]]:
    """Ranges in about `wanted` equal heaps, each in the order of the log. A heap may span partitions.

    Few messages make fewer heaps, unless `at_least` insists.
    """
    filled = [piece for piece in ranges if piece.rows > 0]
    total = sum(piece.rows for piece in filled)
    number = min(wanted, total, total if at_least else max(1, total // MIN_TASK_ROWS))
    return _cut(filled, [total * i // number for i in range(1, number + 1)])


def _cut(ranges: Sequence[LogRange], bounds: Sequence[int]) -> list[tuple[LogRange, ...]]:
    """Heaps that end after so many messages in all."""
    heaps: list[list[LogRange]] = [[] for _ in bounds]
    before, heap = 0, 0
    for piece in ranges:
        start = piece.start
        while start < piece.end:
            room = bounds[heap] - before
            taken = min(room, piece.end - start)
            heaps[heap].append(LogRange(piece.partition, start, start + taken))
            before, start = before + taken, start + taken
            heap += before == bounds[heap]
    return [tuple(heap) for heap in heaps]
