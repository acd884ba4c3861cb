"""Whether consumer groups got what is on the topic, and only what they had not yet acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tablecast.testing.history.events import Acked, AnyEvent, Delivered, Seen, Started
from tablecast.testing.history.observed import TopicLog
from tablecast.testing.history.report import Findings, GroupFigures, Kind


def check_groups(events: Iterable[AnyEvent], topics: Mapping[str, TopicLog], findings: Findings) -> list[GroupFigures]:
    """Follows the consumers' events in their order."""
    groups: dict[tuple[str, str], GroupCheck] = {}
    for event in events:
        if isinstance(event, Started | Delivered | Acked):
            name = (event.group, event.topic)
            if name not in groups:
                groups[name] = GroupCheck(event.group, event.topic, topics.get(event.topic), findings)
            groups[name].follow(event)
    return [group.finish() for group in groups.values()]


class PartitionState:
    """What a group did in one partition. `acked` has the time of each ack, until the group is reset."""

    def __init__(self, start: int) -> None:
        self.acked: dict[int, int] = {}
        self.acked_below = start
        self.ever_acked: set[int] = set()
        self.delivered: set[int] = set()
        self.counts: set[tuple[int, int]] = set()  # offset, delivery count

    def reset(self, offset: int) -> None:
        self.acked_below = offset
        self.acked = {o: at for o, at in self.acked.items() if o < offset}
        self.counts.clear()

    def ack(self, event: Acked) -> None:
        upto = -1 if event.upto is None else event.upto
        for offset in (*range(self.acked_below, upto + 1), *event.offsets):
            self.acked.setdefault(offset, event.at)
            self.ever_acked.add(offset)
        self.acked_below = max(self.acked_below, upto + 1)


class GroupCheck:
    def __init__(self, group: str, topic: str, log: TopicLog | None, findings: Findings) -> None:
        self._group = group
        self._topic = topic
        self._where = f"group {group!r} on {topic}"
        self._log = log
        self._on_log = {(m.partition, m.offset): m for m in log.messages} if log else {}
        self._findings = findings
        self._partitions: dict[int, PartitionState] = {}
        self._deliveries = 0

    def follow(self, event: Started | Delivered | Acked) -> None:
        if isinstance(event, Started):
            for partition, offset in event.starts.items():
                self._state(partition).reset(offset)
        elif isinstance(event, Acked):
            self._state(event.partition).ack(event)
        else:
            for message in event.messages:
                self._deliver(message, event)

    def finish(self) -> GroupFigures:
        for partition, state in sorted(self._partitions.items()):
            for offset in sorted(state.ever_acked - state.delivered):
                if offset >= self._log_start(partition):  # what was retained away cannot be delivered
                    self._add(Kind.SKIPPED, f"partition {partition} offset {offset} was acked, but nobody got it")
        unique = sum(len(state.delivered) for state in self._partitions.values())
        acked = sum(len(state.ever_acked) for state in self._partitions.values())
        return GroupFigures(self._group, self._topic, self._deliveries, unique, acked)

    def _deliver(self, message: Seen, event: Delivered) -> None:
        state = self._state(message.partition)
        acked_at = state.acked.get(message.offset)
        if acked_at is not None and acked_at < event.asked:
            self._add(Kind.REDELIVERED, f"{message} to {event.consumer!r}, after it was acked")
        if (message.offset, message.delivery) in state.counts:
            whom = f"to {event.consumer!r}"
            self._add(Kind.CLAIMED_TWICE, f"{message} {whom}: delivery {message.delivery} was given before")
        state.counts.add((message.offset, message.delivery))
        state.delivered.add(message.offset)
        self._deliveries += 1
        self._compare(message, event.consumer)

    def _compare(self, message: Seen, consumer: str) -> None:
        """What a consumer gets is what stays on the log."""
        if self._log is None or message.offset < self._log_start(message.partition):
            return
        on_log = self._on_log.get((message.partition, message.offset))
        if on_log is None:
            self._add(Kind.PHANTOM, f"{message} to {consumer!r} is not on the log")
        elif _content(message) != _content(on_log):
            self._add(Kind.WRONG_CONTENT, f"{message} to {consumer!r} is not {on_log} of the log")

    def _state(self, partition: int) -> PartitionState:
        if partition not in self._partitions:
            self._partitions[partition] = PartitionState(self._log_start(partition))
        return self._partitions[partition]

    def _log_start(self, partition: int) -> int:
        return self._log.start(partition) if self._log else 0

    def _add(self, kind: Kind, culprit: str) -> None:
        self._findings.add(kind, self._where, culprit)


def _content(message: Seen) -> tuple[object, ...]:
    """All but the delivery count."""
    return (
        message.message_id,
        message.table,
        message.user_id,
        message.key,
        message.op,
        message.mode,
        message.payload,
        message.ts,
        message.seq,
    )
