"""How the sampling of system tables waits in tests: until it is told to go on. Nothing sleeps."""

from __future__ import annotations

import asyncio

from tablecast.engine.live import LiveHub


class Steered:
    """In the place of `Sampling.pause`. `asked` are the pauses that were asked for, in seconds."""

    def __init__(self, hub: LiveHub) -> None:
        self._sampling = hub.sampling
        self._waiting: list[asyncio.Future[None]] = []
        self.asked: list[float] = []
        hub.sampling.pause = self._pause

    async def _pause(self, seconds: float) -> None:
        self.asked.append(seconds)
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def tick(self) -> None:
        """One sample of every table that is followed. Returns when everything that it showed was told."""
        await self._all_wait()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        await self._all_wait()

    async def _all_wait(self) -> None:
        while sum(not future.done() for future in self._waiting) < len(self._sampling._following):
            await asyncio.sleep(0)

    def tick_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """The same, for another thread."""
        asyncio.run_coroutine_threadsafe(self.tick(), loop).result(timeout=30)
