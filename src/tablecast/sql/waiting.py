"""Tasks of one event loop that wait for messages: thousands cost memory only.

Who waits stands in a line per (topic, group, partition asked for). A commit that gave the topic messages wakes every
reader without a group, since each of them gets the messages, but only the first of each group's line: the messages go to
one of them, and waking all would make each look for nothing. The first also watches for claims that run out. Whoever
becomes the first is woken to look for itself, so what the one before it left is not missed.

The first few readers of a topic that have no group, and a way past the loop, need not be woken to be answered (sql.prompt).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tablecast.engine.ahead import Held
from tablecast.engine.commit import Commit
from tablecast.engine.engine import Engine
from tablecast.errors import TablecastError
from tablecast.sql.prompt import PromptReader

PROMPT_READERS = 4  # of one topic; the thread that commits takes some fifty microseconds for each
PROMPT_READERS_IN_ALL = 64  # each has a file descriptor more than others
LineKey = tuple[str | None, int | None]  # group and partition; no group: readers that all want everything


class Ending:
    """Ends a wait from outside: with an error, or as if its time were over. On the loop."""

    __slots__ = ("error", "is_over", "waiter", "was_waiting")

    def __init__(self) -> None:
        self.error: TablecastError | None = None
        self.is_over = False
        self.was_waiting = False  # when it was over
        self.waiter: Waiter | None = None

    def end(self, error: TablecastError) -> None:
        self.error = error
        if self.waiter is not None:
            self.waiter.wake()

    def finish(self) -> None:
        self.is_over = True
        self.was_waiting = self.waiter is not None
        if self.waiter is not None:
            self.waiter.wake()

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Waiter:
    """One task's place in a line."""

    __slots__ = ("_future", "_is_woken", "_loop", "is_over", "prompt")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.prompt: PromptReader | None = None
        self.is_over = False  # nobody is to wait any more
        self._is_woken = False
        self._future: asyncio.Future[None] | None = None

    @property
    def is_asleep(self) -> bool:
        return self._future is not None and not self._future.done()

    def wake(self) -> None:
        self._is_woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def end(self) -> None:
        self.is_over = True
        self.wake()

    async def sleep(self, seconds: float) -> None:
        """Until it is woken, or the time is over. A wake-up since the last sleep ends it at once."""
        if not self._is_woken:
            self._future = self._loop.create_future()
            timer = self._loop.call_later(seconds, self.wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        self._is_woken = False


@dataclass(slots=True)
class _Topic:
    unsubscribe: Callable[[], None]
    lines: dict[LineKey, deque[Waiter]] = field(default_factory=dict)
    count: int = 0  # of waiters in all of them
    prompt: tuple[PromptReader, ...] = ()  # replaced, never changed: another thread reads it


class Waiting:
    """Every line of one event loop. One subscription to the feed per topic, not per task."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._topics: dict[int, _Topic] = {}
        self._stirred: set[int] = set()  # topics with a wake-up on its way to the loop
        self._prompts = 0
        self.count = 0

    @property
    def sleeping(self) -> int:
        lines = (line for topic in self._topics.values() for line in topic.lines.values())
        return sum(waiter.is_asleep for line in lines for waiter in line)

    def enter(self, topic_id: int, key: LineKey, prompt: PromptReader | None = None) -> Waiter:
        """With a `prompt` it is answered by the thread that commits, if that has the time and not too many others wait."""
        topic = self._topics.get(topic_id)
        if topic is None:
            topic = self._topics[topic_id] = _Topic(
                self._engine.feed.subscribe(
                    topic_id, lambda: self._stir(topic_id), lambda commit: self._prepare(topic_id, commit)
                )
            )
        waiter = Waiter(self._loop)
        topic.lines.setdefault(key, deque()).append(waiter)
        topic.count += 1
        if prompt is not None and self._has_room_for_prompt(topic) and prompt.open(waiter.wake):
            waiter.prompt = prompt
            topic.prompt += (prompt,)
            self._prompts += 1
        self.count += 1
        return waiter

    def _has_room_for_prompt(self, topic: _Topic) -> bool:
        return len(topic.prompt) < PROMPT_READERS and self._prompts < PROMPT_READERS_IN_ALL

    def is_first(self, topic_id: int, key: LineKey, waiter: Waiter) -> bool:
        return self._topics[topic_id].lines[key][0] is waiter

    def leave(self, topic_id: int, key: LineKey, waiter: Waiter) -> None:
        topic = self._topics[topic_id]
        line = topic.lines[key]
        was_first = line[0] is waiter
        line.remove(waiter)
        topic.count -= 1
        if waiter.prompt is not None:
            waiter.prompt.close()
            topic.prompt = tuple(reader for reader in topic.prompt if reader is not waiter.prompt)
            self._prompts -= 1
        self.count -= 1
        if line:
            if was_first:
                line[0].wake()
            return
        del topic.lines[key]
        if not topic.lines:
            topic.unsubscribe()
            del self._topics[topic_id]

    def end(self) -> None:
        """On the loop: every wait is over, as if its time were."""
        for topic in self._topics.values():
            for line in topic.lines.values():
                for waiter in line:
                    waiter.end()

    def _prepare(self, topic_id: int, commit: Commit) -> list[Held]:
        """On the writer's thread, before the commit is written."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return []
        taken = [reader.take(commit) for reader in topic.prompt]
        return [answer for answer in taken if answer is not None]

    def _stir(self, topic_id: int) -> None:
        """On the writer's thread, after a commit."""
        topic = self._topics.get(topic_id)
        if topic is not None and topic.count == sum(reader.is_taken for reader in topic.prompt):
            return  # it has answered all of them; who came since then sees the commit
        if topic_id not in self._stirred and not self._loop.is_closed():
            self._stirred.add(topic_id)
            self._loop.call_soon_threadsafe(self._wake, topic_id)

    def _wake(self, topic_id: int) -> None:
        self._stirred.discard(topic_id)
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        for (group, _), line in topic.lines.items():
            for waiter in line if group is None else (line[0],):
                waiter.wake()
