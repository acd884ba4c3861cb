"""Where a group is: one record per partition, as a command reads and changes them.

A group exists when any partition has a record. Whatever creates it writes the record of every partition in that commit, so
its start is one moment's. A partition without a record (of a group that an older version made, or a partition that the
topic did not have then) begins where its log begins: nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

from tablecast.codec import group as codec
from tablecast.codec import keys
from tablecast.codec.group import GroupState
from tablecast.core import group as groups
from tablecast.engine.decision import Record, View
from tablecast.errors import CorruptData, InvalidRequest, UnknownGroup
from tablecast.model.topic import Topic
from tablecast.storage.base import Family, Reader

MAX_GROUP_BYTES = 255


def load(view: Reader, topic_id: int, group: str, partition: int) -> GroupState | None:
    stored = view.get(Family.GROUPS, keys.group_key(topic_id, group, partition))
    return None if stored is None else codec.decode(stored)


def record(view: View, topic_id: int, group: str, partition: int, state: GroupState) -> Record:
    return Family.GROUPS, keys.group_key(topic_id, group, partition), codec.encode(state, view.ts_ms)


def check_partition(topic: Topic, partition: int) -> None:
    if not 0 <= partition < topic.partitions:
        raise InvalidRequest(
            f"{topic.full_name} has partitions 0 to {topic.partitions - 1}, not {partition}", partition=partition
        )


def check_group_name(group: str) -> None:
    try:
        size = len(group.encode())
    except UnicodeEncodeError:
        size = 0  # a lone surrogate is not text
    if not 1 <= size <= MAX_GROUP_BYTES or group.startswith("$"):
        raise InvalidRequest(
            f"group {group!r}: a group's name is text of 1 to {MAX_GROUP_BYTES} bytes and does not begin with $",
            group=ascii(group),
        )


class Positions:
    """One group's states as a command leaves them, partition by partition."""

    def __init__(self, view: View, topic: Topic, group: str) -> None:
        check_group_name(group)
        self._view = view
        self._topic = topic
        self._group = group
        self._states: dict[int, GroupState] = {}
        self._stored: dict[int, GroupState] = {}

    def exists(self) -> bool:
        return bool(self._states) or any(self._load(p) is not None for p in range(self._topic.partitions))

    def at(self, partition: int) -> GroupState | None:
        """None if the group does not exist."""
        check_partition(self._topic, partition)
        if partition not in self._states:
            state = self._load(partition)
            if state is not None:
                self._states[partition] = self._stored[partition] = state
            elif self.exists():
                self._states[partition] = groups.first(self._view.log_start(self._topic.topic_id, partition))
        return self._states.get(partition)

    def known(self, partition: int) -> GroupState:
        state = self.at(partition)
        if state is None:
            raise UnknownGroup(
                f"group {self._group!r} has never read {self._topic.full_name}; "
                "a group begins with its first CONSUME, ACK or RESET GROUP",
                group=self._group, topic=self._topic.full_name,
            )  # fmt: skip
        return state

    def create(self, state_of: Callable[[int], GroupState]) -> None:
        """A group that does not exist yet gets its place in every partition."""
        self._states = {partition: state_of(partition) for partition in range(self._topic.partitions)}

    def put(self, partition: int, state: GroupState) -> None:
        self._states[partition] = state

    def records(self) -> list[Record]:
        """Of what is not stored like this."""
        return [
            record(self._view, self._topic.topic_id, self._group, partition, state)
            for partition, state in self._states.items()
            if state != self._stored.get(partition)
        ]

    def _load(self, partition: int) -> GroupState | None:
        return load(self._view, self._topic.topic_id, self._group, partition)


# --- all groups of a topic ----------------------------------------------------------------------------------------


class GroupPlace(NamedTuple):
    """A group in one partition. `updated_ms` is None if nothing is stored for it there, or an older version did."""

    group: str
    partition: int
    state: GroupState
    updated_ms: int | None = None


def group_places(reader: Reader, topic_id: int) -> Iterator[GroupPlace]:
    """Every record, hidden groups included, in the order of group and partition."""
    prefix = keys.topic_prefix(topic_id)
    for key, value in reader.scan(Family.GROUPS, prefix, keys.after(prefix)):
        _, group, partition = keys.decode_group_key(key)
        try:
            yield GroupPlace(group, partition, *codec.decode_record(value))
        except CorruptData as e:
            raise CorruptData(f"group {group!r}, partition {partition}: {e.message}") from e


def whole_groups(reader: Reader, topic: Topic, log_start: Callable[[int, int], int]) -> Iterator[GroupPlace]:
    """Every group of users in every partition: a name with a dollar sign is one of ours."""
    for group, places in groupby(group_places(reader, topic.topic_id), key=lambda place: place.group):
        if group.startswith("$"):
            continue
        stored = {place.partition: place for place in places}
        for partition in range(topic.partitions):
            first = groups.first(log_start(topic.topic_id, partition))
            yield stored.get(partition) or GroupPlace(group, partition, first)
