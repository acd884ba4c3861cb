"""What loads take of the server: threads of their own, and one commit per load however often it is asked for.

Staging a part takes as long as its sender takes to send it, and a commit as long as the data is large. Neither may hold up
statements, which share a pool; and neither is worth a limit of time: a client that lost its connection asks again, and
hears what became of the commit that went on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, BinaryIO, TypeVar

from tablecast.engine.engine import Engine
from tablecast.engine.loads import LoadCommitted, StagedPart
from tablecast.model.pipeline import DuplicateLetters

STAGING_THREADS = 64  # parts that arrive at a time; each waits for its sender most of the time
DECIDING_THREADS = 4  # loads that begin, are committed or given up at a time; they meet in one writer anyway

R = TypeVar("R")


class LoadWork:
    """Of one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._staging = ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="tablecast-staging")
        self._deciding = ThreadPoolExecutor(DECIDING_THREADS, thread_name_prefix="tablecast-loads")
        self._commits: dict[str, asyncio.Future[LoadCommitted]] = {}

    async def decide(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        return await self._in(self._deciding, function, *args, **kwargs)

    async def stage(self, load_id: str, part: int, attempt: str, source: BinaryIO) -> StagedPart:
        return await self._in(self._staging, self._engine.loads.stage, load_id, part, attempt, source)

    async def commit(
        self,
        load_id: str,
        parts: Sequence[tuple[int, str]],
        duplicates: DuplicateLetters | None = None,
    ) -> LoadCommitted:
        """Whoever asks while it is under way waits for the same commit; it goes on if they all go away."""
        commit = self._commits.get(load_id)
        if commit is None:
            work = self._engine.loads.commit
            commit = asyncio.ensure_future(self._in(self._deciding, work, load_id, parts, duplicates))
            self._commits[load_id] = commit
            commit.add_done_callback(partial(self._committed, load_id))
        return await asyncio.shield(commit)

    def _committed(self, load_id: str, commit: asyncio.Future[LoadCommitted]) -> None:
        del self._commits[load_id]
        if not commit.cancelled():
            commit.exception()  # taken note of, for all who waited may have gone away

    async def _in(self, pool: ThreadPoolExecutor, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        self._engine.check_open()
        context = copy_context()  # so that the thread knows the request it works for
        run = partial(context.run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(pool, run)
