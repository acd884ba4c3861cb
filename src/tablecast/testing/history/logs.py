"""The shape of a topic's log, without regard to who wrote what is in it.

In each partition: offsets from the log start without gap or repeat, commit numbers and times that never go
back. Across partitions: a message id once, a partition key in one partition only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable

from tablecast.testing.history.events import Seen
from tablecast.testing.history.observed import TopicLog
from tablecast.testing.history.report import Findings, Kind

PartitionKey = Callable[[Seen], Hashable]


def check_log(log: TopicLog, partition_by: PartitionKey | None, findings: Findings) -> int:
    """Adds what is wrong and returns the number of offsets that are missing."""
    gaps = 0
    for partition, messages in sorted(log.partitions.items()):
        gaps += _check_offsets(log, partition, findings)
        _check_monotonic(log.topic, messages, findings)
    _check_message_ids(log, findings)
    _check_partitions(log, partition_by, findings)
    return gaps


def _check_offsets(log: TopicLog, partition: int, findings: Findings) -> int:
    """Walks the partition with the offset that should come next; one passed over may still turn up late."""
    expected = log.start(partition)
    passed_over: set[int] = set()
    for message in log.partitions[partition]:
        offset = message.offset
        if offset >= expected:
            passed_over.update(range(expected, offset))
            expected = offset + 1
        elif offset in passed_over:
            passed_over.remove(offset)
            findings.add(Kind.REORDERED, log.topic, f"{message} comes after offset {expected - 1}")
        else:
            findings.add(Kind.DUPLICATED, log.topic, f"{message}: the offset is there twice")
    for offset in sorted(passed_over):
        findings.add(Kind.SKIPPED, log.topic, f"partition {partition} has no offset {offset}")
    return len(passed_over)


def _check_monotonic(topic: str, messages: list[Seen], findings: Findings) -> None:
    for before, message in itertools.pairwise(messages):
        if message.seq < before.seq:
            findings.add(Kind.REORDERED, topic, f"{message} follows seq {before.seq}")
        if message.ts < before.ts:
            findings.add(Kind.REORDERED, topic, f"{message} has ts {message.ts} and follows ts {before.ts}")


def _check_message_ids(log: TopicLog, findings: Findings) -> None:
    first: dict[int, Seen] = {}
    for message in log.messages:
        earlier = first.setdefault(message.message_id, message)
        if earlier is not message:
            findings.add(Kind.DUPLICATED, log.topic, f"{message} has message id {message.message_id}, as has {earlier}")


def _check_partitions(log: TopicLog, partition_by: PartitionKey | None, findings: Findings) -> None:
    home: dict[Hashable, Seen] = {}
    for message in log.messages:
        key = message.row_key if partition_by is None else partition_by(message)
        first = home.setdefault(key, message)
        if first.partition != message.partition:
            findings.add(Kind.WRONG_PARTITION, log.topic, f"{message} has the partition key of {first}: {key!s}")
