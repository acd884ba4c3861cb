"""Live queries of an embedded database: subscribers of the hub in the same process.

What a reader gets is what the SDK gets of a server, by the same rules (`client.live_state`): a bounded queue, resumed by
itself when its reader was too slow, and a reset when what was missed is no longer known.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tablecast.client.failures import own
from tablecast.client.live import LiveSource
from tablecast.client.live_queue import StepQueue
from tablecast.client.live_shape import UNKNOWN, Shape, check_same
from tablecast.client.live_sync import LiveChanges, LiveTable
from tablecast.client.live_table import AsyncLiveTable
from tablecast.client.loop_thread import LoopThread
from tablecast.codec.live import DEFAULT_BATCH_ROWS, LiveColumn
from tablecast.core.live_query import LiveQuery
from tablecast.engine.engine import Engine
from tablecast.engine.live import LiveHub, LiveSubscription, Shown, Told
from tablecast.errors import DatabaseClosed, DatabaseError, TablecastError
from tablecast.model.live import LiveStep

Plan = Callable[[], LiveQuery]
"""Plans the query under the definitions of now, and raises what is wrong with it."""

T = TypeVar("T")
_log = logging.getLogger("tablecast.live")


class EmbeddedQuery:
    """The `LiveSource` of a reader, and the `Subscriber` of the hub. A task of its own opens, reads and resumes."""

    def __init__(self, hub: LiveHub, plan: Plan) -> None:
        self._hub = hub
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._shape = UNKNOWN
        self._steps = StepQueue()
        self._arrived = asyncio.Event()  # a step, or the end
        self._read = asyncio.Event()  # the reader took one
        self._left = asyncio.Event()  # the fan-out
        self._error: TablecastError | None = None
        self.task = self._loop.create_task(self._run())
        self.task.add_done_callback(lambda _: self._arrived.set())

    # --- the reader's side ---

    @property
    def columns(self) -> tuple[str, ...]:
        return self._shape.columns

    async def next(self) -> LiveStep | None:
        while not self._steps:
            if self._error is not None:
                raise own(self._error)
            if self.task.done():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        self._read.set()
        return self._steps.take()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        self._steps.clear()

    def abandon(self) -> None:
        if not self.task.done():
            with suppress(RuntimeError):  # the loop is closed, and all of it gone
                self._loop.call_soon_threadsafe(self.task.cancel)

    async def fail(self, error: TablecastError) -> None:
        """For its reader it ends with an error."""
        if not self.task.done():
            self._error = error
            self.task.cancel()
            await asyncio.wait([self.task])

    # --- the task ---

    async def _run(self) -> None:
        try:
            while True:
                await self._live_through()
        except TablecastError as e:
            self._error = e
        except Exception as e:  # a mistake of ours: no reader may wait for ever
            _log.exception("a live query ended")
            self._error = DatabaseError(f"the live query ended: {e!r}")

    async def _live_through(self) -> None:
        """One subscription, until it has left the fan-out."""
        if not self._steps.has_room():
            await self._until(lambda: not self._steps)
        self._left.clear()
        history = self._hub.engine.history
        subscription = await self._hub.open(self._plan(), self, self._steps.resume, history)
        try:
            self._shape = check_same(self._shape, _shape(subscription.query))
            if subscription.mode != "resumed":
                await self._read_rows(subscription)
            changes = await subscription.go_live()
            if changes is not None:
                self._put(changes, subscription.seq)
                await self._left.wait()
                self._steps.reach(subscription.seq)
        finally:
            self._hub.close(subscription)

    async def _read_rows(self, subscription: LiveSubscription) -> None:
        seq, last = subscription.seq, False
        self._steps.start_over(seq)
        while not last:
            await self._until(self._steps.has_room)
            rows, last = await subscription.rows(DEFAULT_BATCH_ROWS)
            self._steps.put(LiveStep(self._shape.initial(rows, seq), seq, last))
            self._arrived.set()

    async def _until(self, is_met: Callable[[], bool]) -> None:
        """Waits for the reader."""
        while not is_met():
            self._read.clear()
            await self._read.wait()

    def _put(self, changes: list[Shown], seq: int) -> None:
        self._steps.put(LiveStep([self._shape.change(op, values, seq) for op, values in changes], seq, True))
        self._arrived.set()

    # --- the hub's side ---

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        if self._steps.has_room(len(told.changes)):
            self._put(told.changes, told.seq)
        else:
            self._hub.detach(subscription)
            self._left.set()

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        self._error = error
        self.task.cancel()

    def must_resume(self, subscription: LiveSubscription) -> None:
        self._left.set()


def _shape(query: LiveQuery) -> Shape:
    return Shape([LiveColumn(name, str(kind), hidden) for name, kind, hidden in query.columns], query.key_indexes)


class LiveQueries:
    """Those of one event loop. The hub is made with the first of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hub: LiveHub | None = None
        self._open: set[EmbeddedQuery] = set()

    def open(self, plan: Plan) -> LiveSource:
        self._engine.check_open()
        if self._hub is None:
            self._hub = LiveHub(self._engine)
        query = EmbeddedQuery(self._hub, plan)
        self._open.add(query)
        query.task.add_done_callback(lambda _: self._open.discard(query))
        return query

    async def close(self) -> None:
        """Every reader is told that the database is closed. Idempotent."""
        for query in list(self._open):
            await query.fail(DatabaseClosed("the database is closed"))
        if self._hub is not None:
            await self._hub.stop()
            self._hub = None


class ThreadedLiveQueries:
    """The same for threads: on an event loop in a thread of its own, made with the first of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queries = LiveQueries(engine)
        self._thread: LoopThread | None = None
        self._changing = threading.Lock()

    def changes(self, plan: Plan) -> LiveChanges:
        thread = self._begun()
        return self._opened(thread, lambda: LiveChanges(thread, self._queries.open(plan)))

    def table(self, plan: Plan) -> LiveTable:
        thread = self._begun()
        return self._opened(thread, lambda: LiveTable(thread, AsyncLiveTable(self._queries.open(plan))))

    def _opened(self, thread: LoopThread, make: Callable[[], T]) -> T:
        async def made() -> T:
            return make()

        return thread.run(made)

    def _begun(self) -> LoopThread:
        with self._changing:
            self._engine.check_open()
            if self._thread is None:
                self._thread = LoopThread("database")
            return self._thread

    def close(self) -> None:
        """Idempotent. Must come before the engine is closed."""
        with self._changing:
            if self._thread is not None:
                thread, self._thread = self._thread, None
                thread.run(self._queries.close)
                thread.close()
