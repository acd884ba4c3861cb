"""The same surface for asyncio: `await tablecast.open_async(path)`.

Statements run in a pool of threads, because they are computation and storage, not waiting; writes of many tasks still
share commits. Waiting for messages costs no thread: a consume that finds nothing sleeps on the event loop until the
commit that brings something wakes it.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import pyarrow as pa

from tablecast.codec.result import Result
from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.engine.engine import DEFAULT_VISIBILITY_MS, Engine
from tablecast.engine.retention import Removed
from tablecast.engine.verify import Progress, VerifyReport
from tablecast.model.message import Consumed
from tablecast.model.position import Start
from tablecast.model.schema import Role
from tablecast.model.topic import Topic
from tablecast.sql.database import Database
from tablecast.sql.database import open as open_sync
from tablecast.sql.plan_topic import DEFAULT_LIMIT, ConsumeRequest, consume_now, seconds_to_deadline
from tablecast.sql.rights import require
from tablecast.sql.session import Session

THREADS = 32  # statements under way at once; more wait in the pool's queue

P = ParamSpec("P")
R = TypeVar("R")


class AsyncSession:
    """A `Session` for tasks of one event loop. One transaction at a time, as there."""

    def __init__(self, session: Session, engine: Engine, pool: ThreadPoolExecutor) -> None:
        self._session = session
        self._engine = engine
        self._pool = pool

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._engine.check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(function, *args, **kwargs))

    @property
    def in_transaction(self) -> bool:
        return self._session.in_transaction

    async def begin(self) -> None:
        self._session.begin()

    async def commit(self) -> Result:
        return await self._call(self._session.commit)

    async def rollback(self) -> None:
        self._session.rollback()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """A transaction of its own session: committed at the end of the block, rolled back by an exception."""
        own = AsyncSession(self._session.twin(), self._engine, self._pool)
        await own.begin()
        yield own
        if own.in_transaction:
            await own.commit()

    async def execute(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> Result:
        return await self._call(self._session.execute, sql, params, idempotency_key=idempotency_key)

    async def execute_all(
        self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None
    ) -> list[Result]:
        return await self._call(self._session.execute_all, sql, params, idempotency_key=idempotency_key)

    async def query(self, sql: str, params: Sequence[Any] = ()) -> Result:
        return await self._call(self._session.query, sql, params)

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
            self._session.insert, table, rows, columns=columns, mode=mode, idempotency_key=idempotency_key
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
        self._engine.check_open()
        require(self._session.actor, Role.SERVICE, f"consuming {topic}")
        request = ConsumeRequest(
            group, start, partition, limit, timeout_seconds, consumer, visibility_seconds, auto_offset_reset
        )
        request.check()
        return await self._wait_for_messages(self._session.topic(topic), request)

    async def _wait_for_messages(self, topic: Topic, request: ConsumeRequest) -> Consumed:
        engine = self._engine
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
                if found.messages or found.skipped or left <= 0:
                    return found
                engine.check_open()  # closing wakes whoever waits
                wait = min(left, seconds_to_deadline(engine, topic, request))
                try:
                    await asyncio.wait_for(woken.wait(), wait)
                except TimeoutError:
                    continue
        finally:
            unsubscribe()

    async def read_arrow(self, topic: str, *, start: Start | None = None, partition: int | None = None) -> pa.Table:
        return await self._call(self._session.read_arrow, topic, start=start, partition=partition)

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
            self._session.ack, topic, group, upto_offset, partition=partition, offsets=offsets, consumer=consumer
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
            self._session.nack, topic, group, offsets, partition=partition, reason=reason, consumer=consumer
        )

    async def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
        return await self._call(self._session.extend, topic, group, consumer, visibility_seconds)

    async def release(self, topic: str, group: str, consumer: str) -> int:
        return await self._call(self._session.release, topic, group, consumer)


class AsyncDatabase(AsyncSession):
    """A `Database` for tasks of one event loop."""

    def __init__(self, database: Database) -> None:
        self.database = database
        super().__init__(
            database, database.engine, ThreadPoolExecutor(THREADS, thread_name_prefix="tablecast-statement")
        )

    @property
    def engine(self) -> Engine:
        return self._engine

    async def session(
        self, user: str, role: Role | str = Role.USER, namespace: str = DEFAULT_NAMESPACE
    ) -> AsyncSession:
        return AsyncSession(self.database.session(user, role, namespace), self._engine, self._pool)

    async def run_job(self, name: str) -> Removed:
        return await self._call(self.database.run_job, name)

    async def verify(self, progress: Progress | None = None) -> VerifyReport:
        return await self._call(self.database.verify, progress)

    async def interrupt(self) -> None:
        self.database.interrupt()

    async def backup(self, path: str | os.PathLike[str]) -> None:
        await self._call(self.database.backup, path)

    async def close(self) -> None:
        """Finishes queued writes and closes. Idempotent."""
        if not self._engine.closed:
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
