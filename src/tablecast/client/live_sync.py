"""Live queries for threads: the classes of `live` and `live_table`, run on an event loop in another thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from tablecast.client.live import LiveSource
from tablecast.client.live_table import AsyncLiveTable
from tablecast.client.loop_thread import LoopThread
from tablecast.errors import DatabaseClosed
from tablecast.model.live import LiveChange, Values


class LiveChanges:
    """The changes of a live query, one by one: first the rows that are there, then what changes, as it is committed.

    Threads may share it: each change goes to one of them. It ends with `close`, from any thread, with a `with` block, or
    when it is no longer referenced.
    """

    def __init__(self, thread: LoopThread, source: LiveSource) -> None:
        self._thread = thread
        self._source = source
        self._turn = threading.Lock()
        self._changes: deque[LiveChange] = deque()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a row's values; known with the first change."""
        return self._source.columns

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LiveChange:
        with self._turn:
            while not self._changes:
                step = self._thread.run(self._source.next)
                if step is None:
                    raise StopIteration
                self._changes.extend(step.changes)
            return self._changes.popleft()

    def close(self) -> None:
        """Ends the subscription, and an iteration that waits. Idempotent."""
        with suppress(DatabaseClosed):  # and so is this
            self._thread.run(self._source.close)
        with self._turn:
            self._changes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._source.abandon()


class LiveTable:
    """The rows of a live query as of the last commit that changed them, and a way to wait for the next one.

    The changes are folded in by another thread, commit by commit. Rows that were read stay as they are; read again for
    newer ones. If the live query ends with an error, the rows remain, and waiting for others raises it.
    """

    def __init__(self, thread: LoopThread, table: AsyncLiveTable) -> None:
        self._thread = thread
        self._table = table

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a row's values; known when it is ready."""
        return self._table.columns

    @property
    def rows(self) -> Mapping[Values, Values]:
        """The rows by key; none before it is ready."""
        return self._table.rows

    @property
    def seq(self) -> int:
        """The commit that last changed the rows."""
        return self._table.seq

    def ready(self, *, timeout_seconds: float | None = None) -> Self:
        """Waits until the rows are there."""
        self._thread.run(lambda: self._table.ready(timeout_seconds=timeout_seconds))
        return self

    def changed(self, since: int | None = None, *, timeout_seconds: float | None = None) -> int:
        """Waits until the rows are others than at commit `since`, and returns the commit that they are of now.

        Without `since`: than when `ready` or `changed` last returned. So whoever is alone in waiting misses nothing.
        """
        return self._thread.run(lambda: self._table.changed(since, timeout_seconds=timeout_seconds))

    def __iter__(self) -> Iterator[Mapping[Values, Values]]:
        """The rows when they are ready, and again whenever they have changed. Who is slow gets the latest only."""
        version = self._later_than(0)
        while version is not None:
            yield self.rows
            version = self._later_than(version)

    def _later_than(self, version: int) -> int | None:
        return self._thread.run(lambda: self._table._later_than(version))

    def close(self) -> None:
        """Ends the subscription. The rows stay as they are. Idempotent."""
        with suppress(DatabaseClosed):  # and so is this
            self._thread.run(self._table.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
