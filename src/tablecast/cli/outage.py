"""Going on when a server is away for a while: what watches, waits for it, and says so once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tablecast.cli.console import say, visible
from tablecast.client.delivery import PASSING

LOOK_SECONDS = 0.5  # between two attempts to reach it

T = TypeVar("T")


class Outage:
    """Shared by tasks that ask the same server."""

    def __init__(self) -> None:
        self.is_away = False

    async def endure(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, however long it takes until there is one. What is asked must be safe to ask again."""
        while True:
            try:
                answer = await ask()
            except PASSING as error:
                if not self.is_away:
                    self.is_away = True
                    say(f"waiting: {visible(error.message)}")
                await asyncio.sleep(LOOK_SECONDS)
            else:
                if self.is_away:
                    self.is_away = False
                    say("it is back: going on")
                return answer
