"""Answers of the writer, brought to tasks of one event loop: one wake-up per commit, however many tasks wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from tablecast.engine.decision import Command
from tablecast.engine.engine import Engine
from tablecast.engine.ticket import Ticket


class Completions:
    """Owned by one event loop. The writer's threads only append and, for the first of a commit, wake the loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._answered: deque[tuple[asyncio.Future[Any], Ticket]] = deque()
        self._is_scheduled = False

    def submit(self, command: Command) -> asyncio.Future[Any]:
        """Raises Overloaded when the queue is full. A cancelled future does not take the command back."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def answered(ticket: Ticket) -> None:
            self._answered.append((future, ticket))
            if not self._is_scheduled and not self._loop.is_closed():
                self._is_scheduled = True
                self._loop.call_soon_threadsafe(self._deliver)

        self._engine.submit(command, answered, wait=False)
        return future

    def _deliver(self) -> None:
        self._is_scheduled = False  # first: what is appended from here on schedules again
        while self._answered:
            future, ticket = self._answered.popleft()
            if future.done():
                continue
            if ticket.error is not None:
                future.set_exception(ticket.error)
            else:
                future.set_result(ticket.result)
