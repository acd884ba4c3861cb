"""`tablecast tail`: a topic's messages, and those that follow.

Without a group, every partition has a cursor of its own. What the log holds already is shown in the order of the commits:
message ids grow with them. Then each partition waits in a long poll of its own, from its cursor on, so that nothing falls
between two looks. With a group, messages are claimed, shown and acknowledged; those that a filter hides too. A server
that goes away is waited for, and read on from the cursors.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from uuid import uuid4

from tablecast.cli.console import output, say
from tablecast.cli.opening import OpenedAsync, opened_async
from tablecast.cli.options import MessageFormat
from tablecast.cli.outage import LOOK_SECONDS, Outage
from tablecast.cli.tail_options import Filters, is_wanted
from tablecast.cli.tail_text import as_json, as_text
from tablecast.cli.target import Target
from tablecast.client.delivery import PASSING
from tablecast.engine.catalog import Catalog
from tablecast.errors import OffsetOutOfRange
from tablecast.model.message import Consumed, Message
from tablecast.model.names import DEFAULT_NAMESPACE, read_name
from tablecast.model.position import Start, StartKind
from tablecast.model.topic import Topic
from tablecast.sql.context import topic_name

SHOWN_FIRST = 10  # messages of each partition, if not told where to begin
PAGE = 500
POLL_SECONDS = 20.0  # of one long poll; messages end it at once

_TOPICS = "SELECT topic_id, namespace, name, alias FROM system.topics"
_RANGES = """
SELECT partition_id, start_offset, end_offset FROM system.topic_partitions WHERE topic = ? ORDER BY partition_id
"""


def follow_topic(target: Target, tail: Tail) -> None:
    async def run() -> None:
        async with opened_async(target) as database:
            await tail.show(database)

    asyncio.run(run())


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
    _outage: Outage = field(default_factory=Outage, init=False)

    async def show(self, database: OpenedAsync) -> None:
        if self.group is None:
            await self._read(database)
        else:
            await self._consume(database, self.group)

    @property
    def _left(self) -> int:
        """How many more may be shown, at most a page."""
        return PAGE if self.limit is None else min(PAGE, self.limit - self.shown)

    # --- without a group ---

    async def _read(self, database: OpenedAsync) -> None:
        cursors = [
            _Cursor(database, self.topic, partition, self._outage, start)
            for partition, start in await self._starts(database)
        ]
        await self._show_what_is_there(cursors)
        if self.follow and self._left:
            await self._follow(cursors)

    async def _starts(self, database: OpenedAsync) -> list[tuple[int, Start]]:
        ranges = (await database.query(_RANGES, [await self._full_name(database)])).rows
        if not ranges:
            await database.consume(self.topic, limit=1)  # says what is wrong with the name
        return [(partition, self._first(start, end)) for partition, start, end in ranges]

    async def _full_name(self, database: OpenedAsync) -> str:
        rows = (await database.query(_TOPICS)).rows
        topics = [Topic(topic_id, namespace, name, alias=alias) for topic_id, namespace, name, alias in rows]
        return topic_name(Catalog.of((), (), topics), read_name(self.topic), DEFAULT_NAMESPACE)

    def _first(self, start: int, end: int) -> Start:
        if self.start is None:
            return Start(StartKind.OFFSET, max(start, end - SHOWN_FIRST))
        if self.start.kind is StartKind.OFFSET:  # partitions differ in length; a shorter one has nothing to show yet
            return Start(StartKind.OFFSET, min(self.start.value, end))
        return self.start

    async def _show_what_is_there(self, cursors: list[_Cursor]) -> None:
        """Up to the end of each log, the oldest message first."""
        for cursor in cursors:
            await cursor.fill()
        while self._left and (waiting := [cursor for cursor in cursors if cursor.page]):
            oldest = min(waiting, key=lambda cursor: cursor.page[0].message_id)
            self._show(oldest.page.popleft())
            if not oldest.page:
                sys.stdout.flush()
                await oldest.fill()
        sys.stdout.flush()

    async def _follow(self, cursors: list[_Cursor]) -> None:
        """Until enough was shown; the first task that sees that ends the others."""
        tasks = [asyncio.ensure_future(self._follow_one(cursor)) for cursor in cursors]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_one(self, cursor: _Cursor) -> None:
        while self._left:
            await cursor.fill(POLL_SECONDS)
            self._show_all(cursor.page)
            cursor.page.clear()

    # --- with a group ---

    async def _consume(self, database: OpenedAsync, group: str) -> None:
        """Claims no more than it may show: what is given back counts as a delivery."""
        me, wait_seconds = f"tail-{uuid4().hex}", POLL_SECONDS if self.follow else 0.0

        async def claim() -> Consumed:
            if self._outage.is_away:  # an answer that was lost may have claimed something
                await database.release(self.topic, group, me)
            return await database.consume(
                self.topic,
                group=group,
                start=self.start,
                limit=self._left,
                timeout_seconds=wait_seconds,
                consumer=me,
            )

        try:
            found = await claim()  # the first one is not waited for: what is wrong is told
            while found.messages or self.follow:
                for partition, run in groupby(found.messages, key=attrgetter("partition_id")):
                    await self._show_claimed(database, group, me, partition, list(run))
                if not self._left:
                    break
                found = await polled(self._outage, claim, wait_seconds)
        finally:
            with suppress(*PASSING):  # without a server the claims run out by themselves
                await database.release(self.topic, group, me)

    async def _show_claimed(
        self, database: OpenedAsync, group: str, me: str, partition: int, claimed: list[Message]
    ) -> None:
        self._show_all(claimed)
        last = claimed[-1].offset
        await self._outage.endure(lambda: database.ack(self.topic, group, last, partition=partition, consumer=me))

    # --- showing ---

    def _show_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self._left:
                self._show(message)
        sys.stdout.flush()

    def _show(self, message: Message) -> None:
        if not is_wanted(message, self.filters):
            return
        if self.format is MessageFormat.NDJSON:
            sys.stdout.write(as_json(message) + "\n")
        else:
            output().print(as_text(message))
        self.shown += 1


class _Cursor:
    """Where a partition is read next, and what was read and not shown yet."""

    def __init__(self, database: OpenedAsync, topic: str, partition: int, outage: Outage, start: Start) -> None:
        self.page: deque[Message] = deque()
        self._database = database
        self._topic, self._partition = topic, partition
        self._outage = outage
        self._next = start

    async def fill(self, wait_seconds: float = 0.0) -> None:
        """Reads a page; at the end of the log it waits for something, or the time is over."""
        try:
            found = await polled(self._outage, lambda: self._ask(wait_seconds), wait_seconds)
        except OffsetOutOfRange as error:
            await self._skip(error)
        else:
            self.page.extend(found.messages)
            assert found.next_offset is not None, "one partition was read"
            self._next = Start(StartKind.OFFSET, found.next_offset)

    async def _ask(self, wait_seconds: float) -> Consumed:
        return await self._database.consume(
            self._topic, start=self._next, partition=self._partition, limit=PAGE, timeout_seconds=wait_seconds
        )

    async def _skip(self, error: OffsetOutOfRange) -> None:
        """Past what retention took before it was read: said, and read on from there."""
        log_start = error.details.get("log_start")
        if log_start is None:
            raise error
        say(error.message)
        self._next = Start(StartKind.OFFSET, log_start)
        await self.fill()


async def polled(outage: Outage, ask: Callable[[], Awaitable[Consumed]], wait_seconds: float) -> Consumed:
    """A server that stops ends waits at once: then it is not asked again at once."""
    began = time.monotonic()
    found = await outage.endure(ask)
    if not found.messages and time.monotonic() - began < min(LOOK_SECONDS, wait_seconds):
        await asyncio.sleep(LOOK_SECONDS)
    return found
