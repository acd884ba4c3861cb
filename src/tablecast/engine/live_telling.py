"""Telling subscribers: judging changes for groups, handing out what they mean, and the end of subscriptions.

All of it runs on the event loop, beside the sockets that it feeds. So work is counted, and after about a millisecond of it
others have their turn. Between two turns subscribers come and go; whoever is told is looked at again right then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import ParamSpec

from tablecast.core.live_query import LiveQuery
from tablecast.engine.catalog import Table
from tablecast.engine.changes import NetChange
from tablecast.engine.live_groups import Group, Groups
from tablecast.engine.live_subscription import Encoding, LiveSubscription
from tablecast.engine.live_told import Counts, Shown, Told, judge
from tablecast.errors import DatabaseError, TablecastError

WORK_PER_TURN = 2048  # rows judged between two turns of the event loop; a chunk of subscribers told counts as much

P = ParamSpec("P")
_log = logging.getLogger("tablecast.live")


class Telling:
    """`close` takes a subscription out of the hub."""

    def __init__(self, groups: Groups, counts: Counts, chunk: int, close: Callable[[LiveSubscription], None]) -> None:
        self._groups = groups
        self._counts = counts
        self._chunk = chunk
        self._each = -(-WORK_PER_TURN // chunk)  # what one subscriber counts
        self._close = close
        self._work = 0  # since the loop had its last turn

    # --- changes ---

    async def fan_out(self, table: Table, changes: Sequence[NetChange], seq: int) -> None:
        owner = table.codec.owner
        for group, mine in self._groups.fanout.candidates(table.table_id, changes, lambda change: owner(change.key)):
            if not group.concerns(seq):
                continue
            try:
                shown = self._judge(group, mine) if len(mine) <= WORK_PER_TURN else await self._judge_long(group, mine)
            except Exception as error:
                await self.end(list(group.members), as_ours(error, group.query))
                continue
            if shown:
                told = Told(group.channel, seq, shown, group.query, self._counts)
                if len(group.members) <= self._chunk:  # as `tell`, without a coroutine for each of very many groups
                    group.told += 1
                    self._tell_chunk(list(group.members), told)
                else:
                    await self.tell(group, told)
            if self._work >= WORK_PER_TURN:
                await self._turn()

    def _judge(self, group: Group, changes: Sequence[NetChange]) -> list[Shown]:
        began = perf_counter()
        shown = judge(group.query, changes)
        took = perf_counter() - began
        group.evaluation_seconds += took
        self._counts.evaluation_seconds += took
        self._counts.evaluations += len(changes)
        self._work += len(changes)
        return shown

    async def _judge_long(self, group: Group, changes: Sequence[NetChange]) -> list[Shown]:
        shown: list[Shown] = []
        for at in range(0, len(changes), WORK_PER_TURN):
            shown += self._judge(group, changes[at : at + WORK_PER_TURN])
            await self._turn()
        return shown

    async def tell(self, group: Group, told: Told) -> None:
        group.told += 1
        members = list(group.members)
        for at in range(0, len(members), self._chunk):
            self._tell_chunk(members[at : at + self._chunk], told)
            if self._work >= WORK_PER_TURN:
                await self._turn()

    def _tell_chunk(self, members: list[LiveSubscription], told: Told) -> None:
        self._counts.deliveries += self._tell_all(members, told)
        self._work += len(members) * self._each

    def _tell_all(self, members: Iterable[LiveSubscription], told: Told) -> int:
        """Those that have not heard of it; how many. All deliveries go through this loop: nothing more is in it."""
        seq, count = told.seq, 0
        form: Encoding | None = None
        frame = b""
        for subscription in members:
            if subscription.live and subscription.seq < seq:
                try:
                    if (send := subscription.send) is None:
                        subscription.tell(subscription, told)
                    else:
                        if (wanted := subscription.send_as) is not form:
                            form, frame = wanted, told.form(*wanted)
                        send(frame)
                except Exception:
                    _log.exception("a subscriber of %s failed", told.query.text)
                    self._drop(subscription)
                if subscription.live:
                    subscription.seq = seq
                    count += 1
        return count

    # --- ends ---

    async def end(self, subscriptions: Iterable[LiveSubscription], error: TablecastError) -> None:
        for subscription in subscriptions:
            if subscription.live:
                self._close(subscription)
                _guarded(subscription.subscriber.ended, subscription, error)
                await self.worked(self._each)

    async def lose(self, subscriptions: Iterable[LiveSubscription]) -> None:
        """Those that cannot be told what comes next."""
        for subscription in subscriptions:
            if subscription.live:
                self._drop(subscription)
                await self.worked(self._each)

    def _drop(self, subscription: LiveSubscription) -> None:
        self._close(subscription)
        _guarded(subscription.subscriber.must_resume, subscription)

    # --- turns ---

    async def worked(self, amount: int) -> None:
        self._work += amount
        if self._work >= WORK_PER_TURN:
            await self._turn()

    async def _turn(self) -> None:
        self._work = 0
        await asyncio.sleep(0)


def as_ours(error: Exception, query: LiveQuery) -> TablecastError:
    if isinstance(error, TablecastError):
        return error
    _log.error("judging changes for %s failed", query.text, exc_info=error)
    return DatabaseError(f"judging changes for {query.text} failed: {error}")


def _guarded(call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """A subscriber's mistake must not harm the others."""
    try:
        call(*args, **kwargs)
    except Exception:
        _log.exception("a subscriber's callback failed")
