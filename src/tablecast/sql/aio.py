"""The same surface for asyncio: `await tablecast.open_async(path)`.

A write that is prepared already (an INSERT sent before, rows, an ack) is planned on the event loop, handed to the writer
and awaited: it takes no thread, and the writes of many tasks share commits. So do small reads of topics. Everything else
runs in a pool of threads, because it is computation and storage, not waiting. A consume that finds nothing sleeps on the
event loop until the commit that brings something wakes it.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import pyarrow as pa

from tablecast.client.consumer_async import AsyncConsumer
from tablecast.client.live import AsyncLiveChanges, LiveSource
from tablecast.client.live_table import AsyncLiveTable
from tablecast.codec.given import given_rows
from tablecast.codec.message_rows import with_rows
from tablecast.codec.packed_rows import PackedRows
from tablecast.codec.result import Result
from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.engine.commit import Commit
from tablecast.engine.decision import Command, StalePlan
from tablecast.engine.engine import DEFAULT_VISIBILITY_MS, Engine
from tablecast.engine.groups import GiveBack, Given, Settle
from tablecast.engine.replication import Carrier, Replication
from tablecast.engine.retention import Removed
from tablecast.engine.rows import Written
from tablecast.errors import Overloaded
from tablecast.model.message import Consumed, ConsumedLog
from tablecast.model.position import StartLike, start_of
from tablecast.model.schema import Role
from tablecast.model.topic import Topic
from tablecast.model.verify import Progress, VerifyReport
from tablecast.sql.completions import Completions
from tablecast.sql.database import Database
from tablecast.sql.database import open as open_sync
from tablecast.sql.live import LiveQueries
from tablecast.sql.plan_topic import (
    DEFAULT_LIMIT,
    Claimed,
    ConsumeRequest,
    claim_of,
    done_with,
    given_log,
    given_messages,
    given_ranges,
    read_now,
    seconds_to_deadline,
    wait_seconds,
    waited,
)
from tablecast.sql.prompt import Prompt, PromptReader
from tablecast.sql.session import Session
from tablecast.sql.waiting import Ending, Waiting

THREADS = 32  # statements under way at once; more wait in the pool's queue
FEW_ROWS = 100  # written from the event loop itself: about a millisecond at most
MANY_ROWS = 10_000  # beyond, planned in the pool: up to there, in the one thread that is there for it
FEW_MESSAGES = 100  # likewise read
FEW_STORED_MESSAGES = 2000  # likewise, if nobody looks into them

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
C = TypeVar("C", Consumed, ConsumedLog)
Look = Callable[[Topic, ConsumeRequest], Awaitable[F]]
Render = Callable[[Engine, Topic, ConsumeRequest, Claimed], F]


class Loop:
    """What the sessions of one database share on one event loop."""

    def __init__(self, engine: Engine, *, waits: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self.engine = engine
        self.time = loop.time
        self.waits = waits  # whether a full write queue makes a task wait; else it raises Overloaded
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tablecast-statement")
        # Building rows is computation under the interpreter lock: several threads of it fight for the lock with each other
        # and with the writer (measured: a twentieth more processor time for the same rows).
        self.planner = ThreadPoolExecutor(1, thread_name_prefix="tablecast-plan")
        self.completions = Completions(engine, loop)
        self.waiting = Waiting(engine, loop)
        self.live = LiveQueries(engine)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run_in(self.pool, functools.partial(function, *args, **kwargs))

    async def plan(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `call`, for what is all computation and not much of it."""
        return await self._run_in(self.planner, functools.partial(function, *args, **kwargs))

    async def _run_in(self, pool: ThreadPoolExecutor, call: Callable[[], R]) -> R:
        self.engine.check_open()
        context = copy_context()  # the audit log names the request that the thread works for
        return await asyncio.get_running_loop().run_in_executor(pool, context.run, call)

    def shutdown(self) -> None:
        self.pool.shutdown()
        self.planner.shutdown()

    async def commit(self, command: Command) -> Any:
        """The command's answer, once it is durable."""
        self.engine.check_open()
        try:
            answer = self.completions.submit(command)
        except Overloaded:
            if not self.waits:
                raise
            return await self.call(self.engine.execute, command)
        return await answer


class Started(NamedTuple):
    """A write on its way to the writer; `result` makes its answer from the writer's."""

    written: asyncio.Future[Written]
    result: Callable[[Written], Result]


class Told(NamedTuple):
    """What was consumed, and whether whom it is for has it already."""

    consumed: Consumed
    is_given: bool


class AsyncSession:
    """A `Session` for tasks of one event loop. One transaction at a time, as there."""

    def __init__(self, session: Session, engine: Engine, loop: Loop) -> None:
        self._session = session
        self._engine = engine
        self._loop = loop
        self._call = loop.call

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
        own = AsyncSession(self._session.twin(), self._engine, self._loop)
        await own.begin()
        yield own
        if own.in_transaction:
            await own.commit()

    async def execute(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> Result:
        self._engine.check_open()
        submitted = self._session._submitted(sql, params, idempotency_key)
        if submitted is not None:
            try:
                return submitted.result(await self._loop.commit(submitted.command))
            except StalePlan:
                pass  # planned again, in the pool
        return await self._call(self._session.execute, sql, params, idempotency_key=idempotency_key)

    def started(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> Started | None:
        """A single INSERT that was sent before, handed to the writer without a task of its own: for whoever has many.

        None if it takes `execute`, which is also the way on if waiting for it raises StalePlan.
        """
        self._engine.check_open()
        submitted = self._session._submitted(sql, params, idempotency_key)
        if submitted is None:
            return None
        return Started(self._loop.completions.submit(submitted.command), submitted.result)

    def started_each(
        self, sql: str, params_of_each: Sequence[Sequence[Any]], idempotency_keys: Sequence[str]
    ) -> asyncio.Future[Written] | None:
        """Many requests with the same INSERT of one row, handed over as one; each was written as the answer says.

        None, or StalePlan while it is waited for: nothing has happened, and each takes `execute`.
        """
        self._engine.check_open()
        command = self._session._submitted_each(sql, params_of_each, idempotency_keys)
        return None if command is None else self._loop.completions.submit(command)

    def started_rows(
        self, table: str, rows: Any, columns: Sequence[str] | None, mode: str, idempotency_key: str | None
    ) -> Started | None:
        """Likewise for a few rows; None if it takes `insert`."""
        self._engine.check_open()
        submitted = (
            self._session._submitted_rows(table, rows, columns, mode, idempotency_key) if _is_small(rows) else None
        )
        if submitted is None:
            return None
        return Started(self._loop.completions.submit(submitted.command), submitted.result)

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
        self._engine.check_open()
        rows = rows if isinstance(rows, PackedRows) else given_rows(rows)
        submit = self._session._submitted_rows
        if _is_small(rows):
            submitted = submit(table, rows, columns, mode, idempotency_key)
        else:
            run = self._call if _is_large(rows) else self._loop.plan
            submitted = await run(submit, table, rows, columns, mode, idempotency_key)
        if submitted is not None:
            try:
                return submitted.result(await self._loop.commit(submitted.command))
            except StalePlan:
                pass
        return await self._call(
            self._session.insert, table, rows, columns=columns, mode=mode, idempotency_key=idempotency_key
        )

    async def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        start: StartLike = None,
        partition: int | None = None,
        limit: int = DEFAULT_LIMIT,
        timeout_seconds: float | None = 0.0,
        consumer: str | None = None,
        visibility_seconds: float = DEFAULT_VISIBILITY_MS / 1000,
        auto_offset_reset: bool = False,
        ack: Consumed | None = None,
    ) -> Consumed:
        request = ConsumeRequest(
            group, start_of(start), partition, limit, wait_seconds(timeout_seconds), consumer, visibility_seconds, auto_offset_reset,
            done=done_with(ack),
        )  # fmt: skip
        return with_rows((await self.consume_told(topic, request)).consumed, self._session._types_of)

    async def consume_told(
        self, topic: str, request: ConsumeRequest, prompt: Prompt | None = None, ending: Ending | None = None
    ) -> Told:
        """As `consume`, for whoever passes the messages on; with a `prompt` they may have been, when it returns. `ending`
        may end it before."""
        self._engine.check_open()
        self._session._may_consume(topic)
        request.check()
        found = self._session.topic(topic)
        if request.group is None:
            return await self._told(found, request.pinned(self._engine, found), prompt, ending)
        began = self._loop.time()
        claimed = await self._until_there_is(found, request, self._claim, _has_given, ending)
        given = await self._rendered(found, request, claimed, given_messages, FEW_MESSAGES)
        return Told(self._waited(request, given, began), False)

    async def _told(self, topic: Topic, request: ConsumeRequest, prompt: Prompt | None, ending: Ending | None) -> Told:
        reader, began = None, self._loop.time()

        def read(coming: Commit | None = None) -> Consumed:
            return self._waited(request, read_now(self._engine, topic, request, coming), began)

        if prompt is not None:
            reader = PromptReader(asyncio.get_running_loop(), prompt, read)
        try:
            found = await self._until_there_is(topic, request, self._read, _has_messages, ending, reader)
        except Exception:
            if reader is None or reader.close():
                raise
        else:
            if reader is None or reader.close():
                return Told(self._waited(request, found, began), False)
        return Told(await reader.given(), True)

    async def consume_log(self, topic: str, request: ConsumeRequest, ending: Ending | None = None) -> ConsumedLog:
        """As a group, for whoever passes the messages on: they come as they are stored, and nobody looks into them."""
        self._engine.check_open()
        self._session._may_consume(topic)
        request.check()
        found = self._session.topic(topic)
        began = self._loop.time()
        claimed = await self._until_there_is(found, request, self._claim, _has_given, ending)
        given = await self._rendered(found, request, claimed, given_log, FEW_STORED_MESSAGES)
        return self._waited(request, given, began)

    def _waited(self, request: ConsumeRequest, found: C, began: float) -> C:
        return waited(found, self._loop.time() - began) if request.timeout_seconds else found

    async def _read(self, topic: Topic, request: ConsumeRequest) -> Consumed:
        if request.limit <= FEW_MESSAGES:
            return read_now(self._engine, topic, request)
        return await self._call(read_now, self._engine, topic, request)

    async def _claim(self, topic: Topic, request: ConsumeRequest) -> Claimed:
        """What is there for the group. If the task is cancelled meanwhile it is given back."""
        claim = claim_of(self._engine, topic, request)
        if claim is None:
            return Claimed("", [])
        commit = asyncio.ensure_future(self._loop.commit(claim))
        try:
            return Claimed(claim.consumer, await asyncio.shield(commit))
        except asyncio.CancelledError:
            commit.add_done_callback(functools.partial(self._give_back_claim, topic, request, claim.consumer))
            raise

    async def _rendered(
        self, topic: Topic, request: ConsumeRequest, claimed: Claimed, render: Render[F], few: int
    ) -> F:
        if request.limit <= few:
            return render(self._engine, topic, request, claimed)
        try:
            return await self._call(render, self._engine, topic, request, claimed)
        except asyncio.CancelledError:
            self._undo(topic, request, claimed)
            raise

    def _give_back_claim(
        self, topic: Topic, request: ConsumeRequest, consumer: str, commit: asyncio.Future[list[Given]]
    ) -> None:
        if not commit.cancelled() and commit.exception() is None:
            self._undo(topic, request, Claimed(consumer, commit.result()))

    def _undo(self, topic: Topic, request: ConsumeRequest, claimed: Claimed) -> None:
        if claimed.given and not self._engine.closed:
            assert request.group is not None
            undo = GiveBack(topic.topic_id, request.group, claimed.consumer, claimed.given)
            given_back = self._loop.completions.submit(undo)
            given_back.add_done_callback(lambda _: self._engine.feed.wake([topic.topic_id]))

    async def give_back(self, topic: str, group: str, consumed: Consumed | ConsumedLog) -> None:
        """Undoes a claim whose answer reached nobody: its delivery does not count."""
        ranges = given_ranges(consumed)
        if consumed.consumer is None or not ranges:
            return
        found = self._session.topic(topic)
        await self._loop.commit(GiveBack(found.topic_id, group, consumed.consumer, ranges))
        self._engine.feed.wake([found.topic_id])

    async def _until_there_is(
        self,
        topic: Topic,
        request: ConsumeRequest,
        look: Look[F],
        is_something: Callable[[F], bool],
        ending: Ending | None = None,
        prompt: PromptReader | None = None,
    ) -> F:
        """Looks, and if there is nothing waits in line until there is, or the time is over."""
        found = await look(topic, request)
        if is_something(found) or not request.timeout_seconds:
            return found
        request = request.settled()
        engine, waiting = self._engine, self._loop.waiting
        loop = asyncio.get_running_loop()
        until = loop.time() + request.timeout_seconds
        line = request.group, request.partition
        waiter = waiting.enter(topic.topic_id, line, prompt)
        ending = ending or Ending()
        ending.waiter = waiter
        try:
            while True:
                ending.check()  # before it looks: what is claimed now would be claimed for nobody
                if ending.is_over:
                    return found
                found = await look(topic, request)  # again: something may have come before it stood in line
                left = until - loop.time()
                if is_something(found) or left <= 0 or waiter.is_over:
                    return found
                engine.check_open()  # closing wakes whoever waits
                if waiting.is_first(topic.topic_id, line, waiter):
                    left = min(left, seconds_to_deadline(engine, topic, request))
                await waiter.sleep(left)
        finally:
            waiting.leave(topic.topic_id, line, waiter)

    def live(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> AsyncLiveChanges:
        """The rows of a SELECT, and from then on every change of them, as it is committed: `async for` over it."""
        return AsyncLiveChanges(self._live_source(sql, params, namespace))

    def live_table(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> AsyncLiveTable:
        """The rows of a SELECT, kept as they are now."""
        return AsyncLiveTable(self._live_source(sql, params, namespace))

    def _live_source(self, sql: str, params: Sequence[Any], namespace: str | None) -> LiveSource:
        return self._loop.live.open(self._session._live_plan(sql, params, namespace))

    async def read_arrow(self, topic: str, *, start: StartLike = None, partition: int | None = None) -> pa.Table:
        return await self._call(self._session.read_arrow, topic, start=start, partition=partition)

    async def stream_arrow(
        self, topic: str, *, start: StartLike = None, partition: int | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        batches = await self._call(self._session.stream_arrow, topic, start=start, partition=partition)
        while (batch := await self._call(next, batches, None)) is not None:
            yield batch

    async def ack(
        self,
        topic: str,
        group: str,
        upto_offset: int | None = None,
        *,
        partition: int = 0,
        offsets: Sequence[int] = (),
        consumer: str | None = None,
    ) -> int | None:
        command = self._session._settle_command(topic, group, partition, upto_offset, offsets, consumer)
        return await self._settle(command)

    async def nack(
        self,
        topic: str,
        group: str,
        offsets: Sequence[int],
        *,
        partition: int = 0,
        reason: str = "nack",
        consumer: str | None = None,
    ) -> int | None:
        command = self._session._settle_command(topic, group, partition, None, offsets, consumer, reason)
        return await self._settle(command)

    async def _settle(self, command: Settle) -> int | None:
        acknowledged: int | None = await self._loop.commit(command)
        if command.nack:
            self._engine.feed.wake([command.topic_id])
        return acknowledged

    async def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
        return await self._call(self._session.extend, topic, group, consumer, visibility_seconds)

    async def release(self, topic: str, group: str, consumer: str) -> int:
        return await self._call(self._session.release, topic, group, consumer)


class AsyncDatabase(AsyncSession):
    """A `Database` for tasks of one event loop, the one that it is made on."""

    def __init__(self, database: Database, *, waits: bool = True) -> None:
        self.database = database
        super().__init__(database, database.engine, Loop(database.engine, waits=waits))

    @property
    def engine(self) -> Engine:
        return self._engine

    async def session(
        self, user: str, role: Role | str = Role.USER, namespace: str = DEFAULT_NAMESPACE
    ) -> AsyncSession:
        return AsyncSession(self.database.session(user, role, namespace), self._engine, self._loop)

    @property
    def parked(self) -> int:
        """Tasks that wait for messages."""
        return self._loop.waiting.count

    @property
    def sleeping(self) -> int:
        """Those of them that have looked and found nothing."""
        return self._loop.waiting.sleeping

    def end_waits(self) -> None:
        """Every consume that waits answers now, with nothing."""
        self._loop.waiting.end()

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        name: str | None = None,
        batch: int = 100,
        visibility_seconds: float = 60.0,
    ) -> AsyncConsumer:
        """A member of a consumer group; `await run(handler)` feeds it until it is stopped."""
        return AsyncConsumer(self, topic, group, name=name, batch=batch, visibility_seconds=visibility_seconds)

    async def run_job(self, name: str) -> Removed:
        return await self._call(self.database.run_job, name)

    async def verify(self, progress: Progress | None = None) -> VerifyReport:
        return await self._call(self.database.verify, progress)

    async def interrupt(self) -> None:
        self.database.interrupt()

    @property
    def replication(self) -> Replication:
        """Status of the replicated tables, the outbox, and what was set aside. What waits for the disk blocks the loop."""
        return self.database.replication

    async def replicate(
        self,
        url: str,
        *,
        node_id: str | None = None,
        prefix: str = "tablecast",
        overflow: str = "coalesce",
        outbox_events: int = 10_000,
        compare_seconds: float = 60.0,
        ca_file: str = "",
    ) -> Carrier:
        """As `Database.replicate`."""
        return await self._call(
            self.database.replicate,
            url,
            node_id=node_id,
            prefix=prefix,
            overflow=overflow,
            outbox_events=outbox_events,
            compare_seconds=compare_seconds,
            ca_file=ca_file,
        )

    async def backup(self, path: str | os.PathLike[str]) -> None:
        await self._call(self.database.backup, path)

    async def close(self) -> None:
        """Finishes queued writes and closes. Idempotent."""
        await self._loop.live.close()
        if not self._engine.closed:
            await self._call(self.database.close)
        self._loop.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _has_messages(found: Consumed) -> bool:
    return bool(found.messages or found.skipped)


def _has_given(claimed: Claimed) -> bool:
    return bool(claimed.given)


def _is_small(rows: Any) -> bool:
    """Whether building them holds the event loop up for less than a hand-over to a thread would."""
    return isinstance(rows, Sequence) and len(rows) <= FEW_ROWS


def _is_large(rows: Any) -> bool:
    """Whether others should not have to wait until they are built. Arrow tables have a length, too."""
    return not hasattr(rows, "__len__") or len(rows) > MANY_ROWS


async def open_async(path: str | os.PathLike[str], *, waits: bool = True, **settings: Any) -> AsyncDatabase:
    """As `open`, with the same settings. With `waits=False` a full write queue raises Overloaded at once."""
    database = await asyncio.get_running_loop().run_in_executor(None, functools.partial(open_sync, path, **settings))
    return AsyncDatabase(database, waits=waits)
