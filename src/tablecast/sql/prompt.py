"""Readers that the thread that commits answers itself.

To wake a reader's task, which then reads, renders and sends, takes longer than the commit itself. A reader that brings a
`Prompt`, a way to its client past the event loop, has its answer made by the thread that commits, before the commit is
written, and sent by it as soon as the commit is durable and published (`engine.ahead`). Its task hears of that afterwards.

Only one of the two may answer: either the thread *takes* the reader, or the task *closes* it, when it has found something
itself, its time is over or its client is gone. Readers of a group are not answered so: to claim takes a commit of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from tablecast.engine.ahead import Held
from tablecast.engine.commit import Commit
from tablecast.model.message import Consumed


class Prompt(Protocol):
    """The way past the event loop to a client that waits."""

    def open(self) -> bool:
        """On the loop, when it begins to wait. False if there is no such way."""
        ...

    def render(self, found: Consumed) -> bytes: ...

    def send(self, answer: bytes) -> None:
        """Does not wait: what cannot be sent at once is left to the loop."""
        ...

    def close(self) -> None:
        """Once, if it was opened."""
        ...

    def abort(self) -> None:
        """On the loop: there will be no answer."""
        ...


class PromptReader:
    """One reader, while it waits."""

    __slots__ = ("_given", "_is_closed", "_lock", "_loop", "_prompt", "_read", "_wake", "is_taken")

    def __init__(self, loop: asyncio.AbstractEventLoop, prompt: Prompt, read: Callable[[Commit], Consumed]) -> None:
        self._loop = loop
        self._prompt = prompt
        self._read = read
        self._lock = threading.Lock()
        self._is_closed = True  # until it waits
        self._given: asyncio.Future[Consumed] | None = None
        self._wake: Callable[[], None] | None = None
        self.is_taken = False

    # --- on the thread that commits ---

    def take(self, commit: Commit) -> Held | None:
        """The answer that the commit gives it, if it is still to have one."""
        try:
            found = self._read(commit)
            answer = self._prompt.render(found) if found.messages else None
        except Exception:
            return None  # it is woken, and finds out for itself
        if answer is None:
            return None
        with self._lock:
            if self.is_taken or self._is_closed:
                return None
            self.is_taken = True
        return _Answer(self, found, answer)

    def send(self, answer: bytes) -> None:
        self._prompt.send(answer)

    def give(self, found: Consumed) -> None:
        self._prompt.close()
        self._on_loop(lambda: self._tell(found))

    def drop(self) -> None:
        self._prompt.close()
        self._on_loop(self._prompt.abort)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    # --- on the loop ---

    def open(self, wake: Callable[[], None]) -> bool:
        """Its task begins to wait, until `wake` is called."""
        self._given, self._wake = self._loop.create_future(), wake
        self._is_closed = not self._prompt.open()
        return not self._is_closed

    def close(self) -> bool:
        """Whether its task answers; else it was taken, and `given` tells what it was answered."""
        with self._lock:
            if self.is_taken:
                return False
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._prompt.close()
        return True

    async def given(self) -> Consumed:
        assert self._given is not None
        return await self._given

    def _tell(self, found: Consumed) -> None:
        assert self._given is not None
        assert self._wake is not None
        if not self._given.done():
            self._given.set_result(found)
        self._wake()


class _Answer:
    """A reader's, that waits for the commit to be durable. See `Held`."""

    __slots__ = ("_answer", "_found", "_reader")

    def __init__(self, reader: PromptReader, found: Consumed, answer: bytes) -> None:
        self._reader = reader
        self._found = found
        self._answer = answer

    def let_go(self) -> None:
        self._reader.send(self._answer)

    def finish(self) -> None:
        self._reader.give(self._found)

    def drop(self) -> None:
        self._reader.drop()
