"""The same surface for asyncio: `await tablecast.open_async(path)`.

Statements run in a pool of threads, because they are computation and storage, not waiting; writes of many tasks still
share commits. Waiting for messages costs no thread: a consume that finds nothing sleeps on the event loop until the
commit that brings something wakes it.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import pyarrow as pa

from tablecast.engine.engine import DEFAULT_VISIBILITY_MS
from tablecast.model.position import Start
from tablecast.model.schema import Role
from tablecast.model.topic import Topic
from tablecast.sql.database import Database
from tablecast.sql.database import open as open_sync
from tablecast.sql.plan_topic import DEFAULT_LIMIT, Consumed, ConsumeRequest, consume_now, seconds_to_deadline
from tablecast.sql.result import Result
from tablecast.sql.rights import require

THREADS = 32  # statements under way at once; more wait in the pool's queue

P = ParamSpec("P")
R = TypeVar("R")


class AsyncDatabase:
    """A `Database` for tasks of one event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tablecast-statement")

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(function, *args, **kwargs))

    async def execute(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> Result:
        return await self._call(self.database.execute, sql, params, idempotency_key=idempotency_key)

    async def execute_all(
        self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None
    ) -> list[Result]:
        return await self._call(self.database.execute_all, sql, params, idempotency_key=idempotency_key)

    async def query(self, sql: str, params: Sequence[Any] = ()) -> Result:
        return await self._call(self.database.query, sql, params)

    async def insert(
        self,
        table: str,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        mode: str = "insert",
        idempotency_key: str | None = None,
    ) -> Result:
        return await self._call(
            self.database.insert, table, rows, columns=columns, mode=mode, idempotency_key=idempotency_key
        )

    async def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        start: Start | None = None,
        partition: int | None = None,
        limit: int = DEFAULT_LIMIT,
        timeout_seconds: float = 0.0,
        consumer: str | None = None,
        visibility_seconds: float = DEFAULT_VISIBILITY_MS / 1000,
        auto_offset_reset: bool = False,
    ) -> Consumed:
        self.database.engine.check_open()
        require(self.database.actor, Role.SERVICE, f"consuming {topic}")
        request = ConsumeRequest(
            group, start, partition, limit, timeout_seconds, consumer, visibility_seconds, auto_offset_reset
        )
        request.check()
        return await self._wait_for_messages(self.database.topic(topic), request)

    async def _wait_for_messages(self, topic: Topic, request: ConsumeRequest) -> Consumed:
        engine = self.database.engine
        loop = asyncio.get_running_loop()
        until = loop.time() + request.timeout_seconds
        request = request.pinned(engine, topic)
        woken = asyncio.Event()
        unsubscribe = engine.feed.subscribe(topic.topic_id, lambda: _wake(loop, woken))
        try:
            while True:
                woken.clear()
                found = await self._call(consume_now, engine, topic, request)
                left = until - loop.time()
                if found.messages or found.skipped or left <= 0 or engine.closed:
                    return found
                wait = min(left, seconds_to_deadline(engine, topic, request))
                try:
                    await asyncio.wait_for(woken.wait(), wait)
                except TimeoutError:
                    continue
        finally:
            unsubscribe()

    async def read_arrow(self, topic: str, *, start: Start | None = None, partition: int | None = None) -> pa.Table:
        return await self._call(self.database.read_arrow, topic, start=start, partition=partition)

    async def ack(
        self,
        topic: str,
        group: str,
        upto_offset: int | None = None,
        *,
        partition: int = 0,
        offsets: Sequence[int] = (),
        consumer: str | None = None,
    ) -> int:
        return await self._call(
            self.database.ack, topic, group, upto_offset, partition=partition, offsets=offsets, consumer=consumer
        )

    async def nack(
        self,
        topic: str,
        group: str,
        offsets: Sequence[int],
        *,
        partition: int = 0,
        reason: str = "nack",
        consumer: str | None = None,
    ) -> int:
        return await self._call(
            self.database.nack, topic, group, offsets, partition=partition, reason=reason, consumer=consumer
        )

    async def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
        return await self._call(self.database.extend, topic, group, consumer, visibility_seconds)

    async def release(self, topic: str, group: str, consumer: str) -> int:
        return await self._call(self.database.release, topic, group, consumer)

    async def backup(self, path: str | os.PathLike[str]) -> None:
        await self._call(self.database.backup, path)

    async def close(self) -> None:
        await self._call(self.database.close)
        self._pool.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(woken.set)


async def open_async(path: str | os.PathLike[str], **settings: Any) -> AsyncDatabase:
    """As `open`, with the same settings."""
    database = await asyncio.get_running_loop().run_in_executor(None, functools.partial(open_sync, path, **settings))
    return AsyncDatabase(database)
