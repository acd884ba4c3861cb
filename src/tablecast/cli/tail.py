"""`tablecast tail`: a topic's messages in the order of their commits, and those that follow.

Without a group, every partition has a cursor of its own and message ids, which grow with the commits, merge them.
With a group, messages are claimed, shown and acknowledged; those that a filter hides too.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import uuid4

import msgspec
import typer
from rich.text import Text

from tablecast.cli.app import MessageFormat
from tablecast.cli.console import output, visible
from tablecast.cli.opening import opened
from tablecast.codec.keys import timestamp_from_us
from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.position import EARLIEST, LATEST, Start, StartKind
from tablecast.sql.database import Database

SHOWN_FIRST = 10  # messages of each partition, if not told where to begin
PAGE = 500
WAIT_SECONDS = 1.0  # messages wake a reader at once; a Ctrl-C that came just before it slept, only then

_COLOURS = {Op.INSERT: "green", Op.UPDATE: "yellow", Op.DELETE: "red"}
_FIELDS: dict[str, Callable[[Message], str | None]] = {
    "op": lambda message: message.op.label,
    "table": lambda message: message.source_table,
    "user": lambda message: message.user_id,
}

Filters = Mapping[str, frozenset[str]]


def parse_start(text: str | None) -> Start | None:
    if text is None:
        return None
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if named is None and not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is not earliest, latest or an offset", param_hint="--from")
    return named or Start(StartKind.OFFSET, int(text))


def parse_filters(texts: Sequence[str]) -> Filters:
    filters: dict[str, frozenset[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name not in _FIELDS or not values:
            raise typer.BadParameter(f"{text!r} is not {'|'.join(_FIELDS)}=value,value", param_hint="--filter")
        filters[name] = filters.get(name, frozenset()) | frozenset(values.split(","))
    unknown = filters.get("op", frozenset()) - {op.label for op in Op}
    if unknown:
        raise typer.BadParameter(f"there is no op {min(unknown)!r}: insert, update, delete", param_hint="--filter")
    return filters


@dataclass(slots=True)
class Tail:
    topic: str
    group: str | None
    start: Start | None
    limit: int | None
    follow: bool
    filters: Filters
    format: MessageFormat
    shown: int = field(default=0, init=False)

    def run(self, path: str) -> None:
        with opened(path) as database:
            self.show(database)

    def show(self, database: Database) -> None:
        if self.group is None:
            self._read(database)
        else:
            self._consume(database, self.group)

    @property
    def _left(self) -> int:
        """How many more may be shown, at most a page."""
        return PAGE if self.limit is None else min(PAGE, self.limit - self.shown)

    def _read(self, database: Database) -> None:
        cursors = _Cursors(database, self.topic, self.start)
        more = threading.Event()
        unsubscribe = database.engine.feed.subscribe(cursors.topic.topic_id, more.set)
        try:
            self._show_all(cursors.rest())
            while self.follow and self._left:
                more.wait(WAIT_SECONDS)
                more.clear()
                self._show_all(cursors.rest())
        finally:
            unsubscribe()

    def _consume(self, database: Database, group: str) -> None:
        """Claims no more than it may show: what is given back counts as a delivery."""
        me, wait_seconds = f"tail-{uuid4().hex}", WAIT_SECONDS if self.follow else 0.0
        try:
            while self._left:
                found = database.consume(
                    self.topic,
                    group=group,
                    start=self.start,
                    limit=self._left,
                    timeout_seconds=wait_seconds,
                    consumer=me,
                ).messages
                if not found and not self.follow:
                    break
                for partition, run in groupby(found, key=attrgetter("partition_id")):
                    claimed = list(run)
                    self._show_all(claimed)
                    database.ack(self.topic, group, claimed[-1].offset, partition=partition, consumer=me)
        finally:
            database.release(self.topic, group, me)

    # --- showing ---

    def _show_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self._wanted(message):
                if self.format is MessageFormat.NDJSON:
                    sys.stdout.write(as_json(message) + "\n")
                else:
                    output().print(as_text(message))
                self.shown += 1
            if not self._left:
                break
        sys.stdout.flush()

    def _wanted(self, message: Message) -> bool:
        return all(_FIELDS[name](message) in values for name, values in self.filters.items())


class _Cursors:
    """Where each partition is read next."""

    def __init__(self, database: Database, topic: str, start: Start | None) -> None:
        self._database = database
        self.topic = database.topic(topic)
        self._next = [self._first(partition, start) for partition in range(self.topic.partitions)]

    def _first(self, partition: int, start: Start | None) -> int:
        engine = self._database.engine
        first, end = engine.log_range(self.topic.topic_id, partition)
        if start is None:
            return max(first, end - SHOWN_FIRST)
        if start.kind is StartKind.OFFSET:
            return min(start.value, end)  # partitions differ in length; one that is shorter has nothing to show yet
        return engine.resolve(self.topic, partition, start)

    def rest(self) -> Iterator[Message]:
        """Up to the end of the log as it is now."""
        return heapq.merge(*map(self._partition, range(self.topic.partitions)), key=attrgetter("message_id"))

    def _partition(self, partition: int) -> Iterator[Message]:
        while True:
            start = Start(StartKind.OFFSET, self._next[partition])
            page = self._database.consume(self.topic.full_name, start=start, partition=partition, limit=PAGE).messages
            for message in page:
                yield message
                self._next[partition] = message.offset + 1
            if not page:
                return


def as_text(message: Message) -> Text:
    at = timestamp_from_us(message.ts * 1000).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = Text(f"{at} {message.partition_id}/{message.offset} ", style="dim")
    line.append(f"{message.op.label:<6} ", style=f"not dim bold {_COLOURS[message.op]}")
    line.append(f"{message.source_table} ", style="not dim")
    if message.user_id is not None:
        line.append(f"{visible(message.user_id)} ", style="not dim cyan")
    line.append(visible(message.payload.decode()), style="not dim")
    if message.delivery > 1:
        line.append(f" (delivery {message.delivery})", style="not dim red")
    return line


def as_json(message: Message) -> str:
    said: dict[str, Any] = {
        "partition_id": message.partition_id,
        "offset": str(message.offset),
        "message_id": str(message.message_id),
        "source_table": message.source_table,
        "op": message.op.label,
        "ts": timestamp_from_us(message.ts * 1000),
        "payload_mode": message.payload_mode,
        "key": msgspec.Raw(message.key),
        "payload": msgspec.Raw(message.payload),
        "user_id": message.user_id,
        "seq": str(message.seq),
        "delivery": message.delivery,
    }
    return msgspec.json.encode(said).decode()
