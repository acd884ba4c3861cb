"""Live queries of one server: the hub, who is connected to it, and what ends a connection from our side.

Connections are sockets (server/live_connection.py) and streams of events (server/api_live.py). Both plan and read
through here, and both end when the server drains, or when the account that they were opened with is another one now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from tablecast.core.live_query import LiveQuery
from tablecast.engine.audit import Outcome
from tablecast.engine.commit import Commit
from tablecast.engine.live import LiveHub, LiveSubscription
from tablecast.errors import PermissionDenied, TablecastError, Unauthenticated
from tablecast.model.schema import Actor
from tablecast.server.auth import Authenticator, SignedIn
from tablecast.server.doorkeeper import Doorkeeper
from tablecast.server.lifecycle import Lifecycle
from tablecast.server.metrics import Metrics
from tablecast.server.settings import Settings
from tablecast.sql.aio import AsyncDatabase
from tablecast.sql.plan_live import plan_live

LARGE_ROWS = 500  # shaping that many takes about a millisecond: from here on in a thread
FIRST_ROWS = 2  # of a batch, to learn how large they are
TRUSTED_TIMES = 8  # rows read next are at most so many times those that their size is guessed from
BATCH_BYTES = 2**17  # about what a batch of rows may have, however many were asked for: a tenth of a millisecond's work
SMALL_TEXT_CHARS = 2_000  # parsed on the event loop: a millisecond or two the first time, a lookup from then on

P = ParamSpec("P")
R = TypeVar("R")
Row = tuple[Any, ...]


class Connected(Protocol):
    """A connection, as the service sees it. Both calls end it."""

    signed_in: SignedIn | None

    def expel(self, error: TablecastError) -> None: ...

    def drain(self) -> None: ...


class LiveService:
    """One per server, of its event loop."""

    def __init__(
        self,
        db: AsyncDatabase,
        settings: Settings,
        auth: Authenticator,
        metrics: Metrics,
        lifecycle: Lifecycle,
        door: Doorkeeper,
    ) -> None:
        self.door = door
        self.db = db
        self.settings = settings
        self.auth = auth
        self.metrics = metrics
        self.hub = LiveHub(db.engine, sample_seconds=settings.live_system_sample_seconds)
        self._lifecycle = lifecycle
        self._loop = asyncio.get_running_loop()
        self._connected: set[Connected] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._stop_listening = db.engine.feed.listen(self._hear)
        door.telling = lambda: self.hub.is_telling
        lifecycle.at_drain(self._drain)
        metrics.live(self.hub.stats, lambda: len(self._connected))

    # --- connections ---

    def join(self, connected: Connected) -> None:
        self._connected.add(connected)
        if self._lifecycle.draining:
            connected.drain()

    def leave(self, connected: Connected) -> None:
        self._connected.discard(connected)

    def check(self, connected: Connected) -> None:
        """Ends it if its account is not what it was."""
        signed_in = connected.signed_in
        if signed_in is not None and not self.auth.is_current(signed_in):
            user = signed_in.actor.user_id
            connected.expel(Unauthenticated(f"the account {user} was changed or dropped; sign in again", user=user))

    def _hear(self, commit: Commit) -> None:
        """On the syncing thread."""
        if self.hub.concerns(commit) or self.db.parked:
            self.door.serves()

    def check_all(self) -> None:
        for connected in list(self._connected):
            self.check(connected)

    def _drain(self) -> None:
        self._stop_listening()
        for connected in list(self._connected):
            connected.drain()
        self._stopping = self._loop.create_task(self.hub.stop())

    # --- queries ---

    async def plan(self, actor: Actor, sql: str, params: list[Any], namespace: str) -> LiveQuery:
        """Raises what is wrong with it: not SQL, more than a live query can be, no right to read."""
        self.auth.count(actor)
        planned = partial(plan_live, self.db.engine.catalog, actor, sql, params, namespace)
        try:
            return planned() if len(sql) <= SMALL_TEXT_CHARS else await self.in_thread(planned)
        except PermissionDenied as error:
            self.db.database.audit(actor, "SUBSCRIBE", detail=error.message, outcome=Outcome.DENIED)
            raise

    async def shaped(self, count: int, shape: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `shape` makes of so many rows."""
        return shape(*args, **kwargs) if count <= LARGE_ROWS else await self.in_thread(shape, *args, **kwargs)

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        run = partial(copy_context().run, function, *args, **kwargs)
        return await self._loop.run_in_executor(None, run)


async def read_batch(live: LiveSubscription, most: int) -> tuple[list[Row], bool]:
    """The next initial rows, and whether they were the last: as many as asked for, unless they are large."""
    rows, last = await live.rows(min(most, FIRST_ROWS))
    size = sum(map(_size, rows))
    while not last and len(rows) < most and size < BATCH_BYTES:
        affordable = len(rows) * (BATCH_BYTES - size) // max(size, 1)
        more, last = await live.rows(min(most - len(rows), max(1, affordable), TRUSTED_TIMES * len(rows)))
        size += sum(map(_size, more))
        rows += more
    return rows, last


def _size(row: Row) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


def internal() -> TablecastError:
    return TablecastError("the server failed on this subscription; its log says why")
