"""What was seen at the end: whole topics and whole tables, put together from their parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tablecast.testing.history.events import AnyEvent, Logged, RowKey, Rows, Seen
from tablecast.testing.history.writes import Write


class TopicLog:
    """The messages of one topic, by partition, each in the order it was read."""

    def __init__(self, topic: str, messages: list[Seen], starts: dict[int, int]) -> None:
        self.topic = topic
        self.starts = starts
        self.partitions: defaultdict[int, list[Seen]] = defaultdict(list)
        for message in messages:
            self.partitions[message.partition].append(message)
        self.messages = [m for _, partition in sorted(self.partitions.items()) for m in partition]
        self._home = {message.row_key: message.partition for message in self.messages}

    @property
    def whole(self) -> bool:
        """Whether nothing was retained away."""
        return not any(self.starts.values())

    def start(self, partition: int) -> int:
        return self.starts.get(partition, 0)

    def may_have_dropped(self, write: Write) -> bool:
        """Whether retention may have removed the write's message: it is older than some log start."""
        home = self._home.get(write.row_key)
        partitions = [p for p, start in self.starts.items() if start > 0 and home in (None, p)]
        return any(self._older(write, self.partitions[p]) for p in partitions)

    @staticmethod
    def _older(write: Write, kept: list[Seen]) -> bool:
        return not kept or write.seq is None or write.seq <= kept[0].seq


class TableContent:
    """The rows of a table, or of one user's share of it."""

    def __init__(self, table: str, user_id: str | None) -> None:
        self.table = table
        self.user_id = user_id
        self.rows: dict[RowKey, dict[str, Any]] = {}
        self.repeated: list[RowKey] = []

    def add(self, rows: Iterable[tuple[str, dict[str, Any]]]) -> None:
        for key, row in rows:
            row_key = RowKey(self.table, self.user_id, key)
            if row_key in self.rows:
                self.repeated.append(row_key)
            self.rows[row_key] = row

    def holds(self, row_key: RowKey) -> bool:
        return row_key.table == self.table and row_key.user_id == self.user_id


def observed_topics(events: Iterable[AnyEvent]) -> dict[str, TopicLog]:
    """The last complete observation of each topic."""
    topics: dict[str, TopicLog] = {}
    messages: defaultdict[str, list[Seen]] = defaultdict(list)
    for event in events:
        if isinstance(event, Logged):
            if event.part == 0:
                messages[event.topic] = []
            messages[event.topic].extend(event.messages)
            if event.last:
                topics[event.topic] = TopicLog(event.topic, messages[event.topic], event.starts)
    return topics


def observed_tables(events: Iterable[AnyEvent]) -> list[TableContent]:
    """The last complete observation of each table, or of each user's share of it."""
    whole: dict[tuple[str, str | None], TableContent] = {}
    growing: dict[tuple[str, str | None], TableContent] = {}
    for event in events:
        if isinstance(event, Rows):
            name = (event.table, event.user_id)
            if event.part == 0:
                growing[name] = TableContent(event.table, event.user_id)
            growing[name].add(event.rows)
            if event.last:
                whole[name] = growing[name]
    return list(whole.values())
