"""Where each partition's log ends, and the messages that one commit appends to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tablecast.codec.catalog import LogStart
from tablecast.codec.log import LOG_BATCH_BYTES, LOG_BATCH_MESSAGES, MessageClass, Place, encode_log_batch
from tablecast.core.routing import Append

# Topic and partition of the outbox, the log of this database's own events (engine.local_writes). Topics of users begin
# with 1.
OUTBOX = 0, 0


@dataclass(slots=True)
class PartitionLog:
    """Where a partition's log ends, in messages and in bytes since its first; and where it begins."""

    next_offset: int = 0
    bytes_end: int = 0
    start: LogStart = field(default_factory=lambda: LogStart(0))


class LogState:
    """Every partition's counters. Owned by the writer."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[int, int], PartitionLog] = {}
        self.outbox_limit: int | None = None  # events not yet published from which on local writes must wait

    def at(self, topic_id: int, partition: int) -> PartitionLog:
        found = self.partitions.get((topic_id, partition))
        if found is None:
            found = self.partitions[topic_id, partition] = PartitionLog()
        return found


class Appended:
    """The messages of this commit for one partition."""

    __slots__ = ("class_index", "class_of", "classes", "hashes", "keys", "payloads")

    def __init__(self) -> None:
        self.classes: list[MessageClass] = []
        self.class_index: dict[MessageClass, int] = {}
        self.class_of: list[int] = []
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.hashes: list[int] = []

    def add(self, append: Append) -> None:
        index = self.class_index.get(append.message_class)
        if index is None:
            index = self.class_index[append.message_class] = len(self.classes)
            self.classes.append(append.message_class)
        self.class_of += [index] * len(append.keys)
        self.keys += append.keys
        self.payloads += append.payloads
        self.hashes += append.hashes

    def cuts(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of each log batch, cut to the limits of one."""
        count = len(self.keys)
        if 0 < count <= LOG_BATCH_MESSAGES and sum(map(len, self.payloads)) <= LOG_BATCH_BYTES:
            yield 0, count
            return
        start = 0
        while start < count:
            stop = self._cut(start)
            yield start, stop
            start = stop

    def _cut(self, start: int) -> int:
        stop = min(start + LOG_BATCH_MESSAGES, len(self.keys))
        size = 0
        for i in range(start, stop):
            size += len(self.payloads[i])
            if size > LOG_BATCH_BYTES:
                return max(i, start + 1)
        return stop

    def encode(self, start: int, stop: int, place: Place) -> bytes:
        if start == 0 and stop == len(self.keys):
            return encode_log_batch(self.classes, self.class_of, self.keys, self.payloads, self.hashes, place)
        part = slice(start, stop)
        used = sorted(set(self.class_of[part]))
        renumbered = {old: new for new, old in enumerate(used)}
        return encode_log_batch(
            [self.classes[i] for i in used],
            [renumbered[i] for i in self.class_of[part]],
            self.keys[part],
            self.payloads[part],
            self.hashes[part],
            place,
        )
