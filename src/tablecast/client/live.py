"""Live queries as a program meets them: `async for change in client.live("SELECT …")`.

Where the changes come from is a `LiveSource`: a server (`live_link`), or an embedded database (`sql.live`). The same
reader goes over both.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Protocol, Self

from tablecast.model.live import LiveChange, LiveStep


class LiveSource(Protocol):
    """One live query. All methods but `abandon` belong to its event loop."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the selected columns; none before the first step."""

    async def next(self) -> LiveStep | None:
        """The next step; None when it was closed. Raises what ended it: after the steps before it, and again each time.

        Cancelling it loses nothing."""

    async def close(self) -> None:
        """Ends it, and a `next` that waits. Idempotent."""

    def abandon(self) -> None:
        """As `close` without waiting, from any thread: its reader was forgotten."""


class AsyncLiveChanges:
    """The changes of a live query, one by one: first the rows that are there, then what changes, as it is committed.

    For one task at a time. It ends with `close`, with an `async with` block, or when it is no longer referenced.
    """

    def __init__(self, source: LiveSource) -> None:
        self._source = source
        self._changes: deque[LiveChange] = deque()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a row's values; known with the first change."""
        return self._source.columns

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LiveChange:
        while not self._changes:
            step = await self._source.next()
            if step is None:
                raise StopAsyncIteration
            self._changes.extend(step.changes)
        return self._changes.popleft()

    async def close(self) -> None:
        """Ends the subscription, and an iteration that waits. Idempotent."""
        self._changes.clear()
        await self._source.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        self._source.abandon()
