"""A table that keeps itself in step: the current rows of a live query, by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Self

from tablecast.client.failures import own
from tablecast.client.live import LiveSource
from tablecast.client.live_rows import LiveRows
from tablecast.errors import DatabaseClosed, TablecastError, Timeout
from tablecast.model.live import Values


class AsyncLiveTable:
    """The rows of a live query as of the last commit that changed them, and a way to wait for the next one.

    A task of its own folds the changes in, commit by commit. Rows that were read stay as they are; read again for newer
    ones. If the live query ends with an error, the rows remain, and waiting for others raises it.
    """

    def __init__(self, source: LiveSource) -> None:
        self._source = source
        self._kept = LiveRows()
        self._waited_for = 0  # the version that a call which waited last returned with
        self._error: TablecastError | None = None
        self._is_over = False
        self._moved = asyncio.Event()  # replaced with every move
        self._folding = asyncio.get_running_loop().create_task(self._fold())

    # --- what is there ---

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a row's values; known when it is ready."""
        return self._source.columns

    @property
    def rows(self) -> Mapping[Values, Values]:
        """The rows by key; none before it is ready."""
        return self._kept.kept().rows

    @property
    def seq(self) -> int:
        """The commit that last changed the rows."""
        return self._kept.seq

    # --- waiting ---

    async def ready(self, *, timeout_seconds: float | None = None) -> Self:
        """Waits until the rows are there."""
        await self._until(lambda: self._kept.version > 0, timeout_seconds)
        self._waited_for = self._kept.version
        return self

    async def changed(self, since: int | None = None, *, timeout_seconds: float | None = None) -> int:
        """Waits until the rows are others than at commit `since`, and returns the commit that they are of now.

        Without `since`: than when `ready` or `changed` last returned. So whoever is alone in waiting misses nothing.
        """
        seen = self._waited_for
        # By version: after a restore other rows may be of a commit with the same number.
        await self._until(lambda: self._kept.version > seen if since is None else self.seq != since, timeout_seconds)
        self._waited_for = self._kept.version
        return self.seq

    async def __aiter__(self) -> AsyncIterator[Mapping[Values, Values]]:
        """The rows when they are ready, and again whenever they have changed. Who is slow gets the latest only."""
        version = await self._later_than(0)
        while version is not None:
            yield self.rows
            version = await self._later_than(version)

    async def _later_than(self, version: int) -> int | None:
        """Waits for a state after that version, and returns its version; None when there will be none."""
        try:
            await self._until(lambda: self._kept.version > version)
        except DatabaseClosed:
            if self._error is not None:
                raise
            return None
        return self._kept.version

    async def _until(self, is_met: Callable[[], bool], timeout_seconds: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                while not is_met():
                    if self._error is not None:
                        raise own(self._error)
                    if self._is_over:
                        raise DatabaseClosed("the live table is closed")
                    await self._moved.wait()
        except TimeoutError:
            raise Timeout(f"the rows of the live table did not change within {timeout_seconds} s") from None

    # --- folding ---

    async def _fold(self) -> None:
        try:
            while (step := await self._source.next()) is not None:
                self._kept.fold(step)
                self._move()
        except TablecastError as e:
            self._error = e
        finally:
            self._is_over = True
            self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # --- the end ---

    async def close(self) -> None:
        """Ends the subscription. The rows stay as they are. Idempotent."""
        await self._source.close()
        await asyncio.wait([self._folding])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
