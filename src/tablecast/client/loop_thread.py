"""An event loop in a thread of its own: what a class for threads runs its coroutines on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from tablecast.errors import DatabaseClosed, InvalidRequest

T = TypeVar("T")


class LoopThread:
    """`what` it belongs to, for errors. Threads do not survive a fork: it is of use in the process that made it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop = asyncio.new_event_loop()
        self._entering = threading.Lock()  # so that nobody's call comes after all of them were ended
        self._is_closed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"tablecast-{what}", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the coroutine returns. If the caller is interrupted while it waits, the coroutine is cancelled."""
        self._check_process()
        with self._entering:
            if self._is_closed:
                raise DatabaseClosed(f"the {self._what} is closed")
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise DatabaseClosed(f"the {self._what} was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Ends the calls that are under way: they learn of it. Idempotent."""
        self._check_process()
        with self._entering:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if is_first:
            self._loop.close()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise InvalidRequest(f"this {self._what} was made before a fork: make another in the child process")

    async def _end_tasks(self) -> None:
        """Calls of other threads that are still under way: they learn that it is over."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()
