"""One subscription of a live query, from its first row to its end.

    open ─▶ rows, rows, … ─▶ go_live ─▶ told, told, … ─▶ closed
       ╰────── resumed ─────────╯

Until it goes live it belongs to its owner alone: it holds a snapshot (or what was missed since the commit it resumes from)
and no index knows it. `go_live` catches up with what was committed meanwhile and joins its group in one step of the event
loop, so between what it returns and what is told from then on there is neither gap nor overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tablecast.codec.catalog import User
from tablecast.core.live_query import LiveQuery
from tablecast.engine.live_access import check_access
from tablecast.engine.live_told import Shown, Told, net
from tablecast.errors import InvalidRequest, TablecastError

if TYPE_CHECKING:
    from tablecast.engine.live import LiveHub
    from tablecast.engine.live_groups import Group

Mode = Literal["snapshot", "resumed", "refetch"]
Send = Callable[[bytes], object]
Encoding = tuple[str, Callable[[Told], bytes]]  # what `Told.form` takes

ROWS_ON_LOOP = 256  # stored rows looked at on the event loop itself: less than a millisecond; more go to a thread
ROWS_IN_THREAD = 20_000  # likewise there, at a time: few threads serve everybody
NEAR_COMMITS = 64  # differences of so few commits are found on the event loop itself
MAX_ROUNDS = 8  # of catching up in a thread; then the rest, which each round made smaller, is found on the loop


class Subscriber(Protocol):
    """Whom a hub tells. Called on its event loop; must neither block nor raise."""

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        """`subscription.seq` is still the commit before: whoever cannot take this detaches and resumes from there."""
        ...

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        """It is out of the hub, for good: the table was dropped or altered, rights were taken, the filter failed."""
        ...

    def must_resume(self, subscription: LiveSubscription) -> None:
        """It is out of the hub: what comes next could not be told one by one. Open again, from `subscription.seq`."""
        ...


class FirstRows(Protocol):
    """What a subscription begins with: `InitialRows`, or those of a sample."""

    def take(self, count: int, looked_at: int | None = None) -> tuple[list[tuple[Any, ...]], bool]: ...

    def close(self) -> None: ...


class LiveSubscription:
    __slots__ = (
        "__weakref__", "_hub", "_initial", "_missed", "_reached", "account", "channel", "closed", "group", "live", "mode",
        "query", "sampled_seconds", "send", "send_as", "seq", "subscriber", "tell",
    )  # fmt: skip

    def __init__(
        self,
        hub: LiveHub,
        query: LiveQuery,
        subscriber: Subscriber,
        mode: Mode,
        seq: int,
        account: User | None,
        *,
        reached: int,
        initial: FirstRows | None = None,
        missed: list[Shown] | None = None,
        sampled_seconds: float | None = None,
    ) -> None:
        self.query = query
        self.sampled_seconds = sampled_seconds  # how often its table is read; None: it follows commits
        self.subscriber = subscriber
        self.tell = subscriber.told
        self.send: Send | None = None  # of a subscriber that takes bytes as they are: a shorter way than `tell`
        self.send_as: Encoding  # set with `send`
        self.mode = mode
        self.seq = seq  # everything up to this commit was told: where to resume
        self.account = account  # as it was when rights were first looked at; None for who has none
        self.channel = 0  # the number of its group, once it is live
        self.live = False
        self.closed = False
        self.group: Group | None = None
        self._hub = hub
        self._initial = initial
        self._missed = missed or []
        self._reached = reached  # how far `_missed` goes

    async def rows(self, count: int) -> tuple[list[tuple[Any, ...]], bool]:
        """The next initial rows, and whether they were the last. None when resumed."""
        self.check()
        if self._initial is None:
            return [], True
        try:
            rows, last = await self._take(self._initial, count)
        except TablecastError:
            self._hub.close(self)
            raise
        if last:
            self._initial = None
        return rows, last

    async def _take(self, initial: FirstRows, count: int) -> tuple[list[tuple[Any, ...]], bool]:
        rows, last = initial.take(count, ROWS_ON_LOOP)
        while not last and len(rows) < count:
            more, last = await self._hub.in_thread(initial.take, count - len(rows), ROWS_IN_THREAD)
            self.check()
            rows += more
        return rows, last

    async def go_live(self) -> list[Shown] | None:
        """What changed since the rows (or the commit resumed from), each row once. From then on the subscriber is told.

        None if that is no longer known: the subscription is over, and whoever has it opens again from `seq`.
        """
        self.check()
        if self._initial is not None:
            raise InvalidRequest("a live query goes live after the last of its initial rows was read")
        try:
            found = await self._catch_up()
        except BaseException:
            self._hub.close(self)
            raise
        if found is None:
            self._hub.close(self)
        return found

    async def _catch_up(self) -> list[Shown] | None:
        hub, parts = self._hub, [self._missed]
        for _ in range(MAX_ROUNDS):
            published = hub.engine.published
            if published.seq - self._reached <= NEAR_COMMITS:
                break
            part = await hub.in_thread(hub.difference, self.query, self._reached, published)
            self.check()
            if part is None:
                return None
            parts.append(part)
            self._reached = published.seq
        hub.enter(self)  # before the last look: whatever is committed after it will be told
        published = hub.engine.published
        check_access(self.query, self.account, published.catalog)
        part = hub.difference(self.query, self._reached, published)
        if part is None:
            return None
        hub.begin(self, published.seq)
        self._missed = []
        return net(self.query, [*parts, part])

    def check(self) -> None:
        """That it may still be read. Raises what it ended with."""
        if self.closed:
            raise InvalidRequest("the live query is closed")
        try:
            check_access(self.query, self.account, self._hub.engine.published.catalog)
        except TablecastError:
            self._hub.close(self)
            raise

    def release(self) -> None:
        """Lets go of the snapshot; a thread that reads it stops soon."""
        self.closed = True
        self.live = False
        self._missed = []
        if self._initial is not None:
            self._initial.close()
            self._initial = None
