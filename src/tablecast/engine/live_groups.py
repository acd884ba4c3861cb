"""Subscriptions of equal queries, as one: judged once, told together.

`Groups` holds every live subscription, by the identity of its query and in the fan-out index. A group begins with its
first member and ends with its last; its number, the channel, is never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tablecast.core.fanout import Fanout
from tablecast.core.live_query import LiveQuery
from tablecast.engine.live_subscription import LiveSubscription


class GroupStats(NamedTuple):
    channel: int
    table: str
    text: str
    owner: str | None
    subscribers: int
    told: int
    evaluation_seconds: float
    sampled_seconds: float | None = None  # None: it follows commits


class Group:
    __slots__ = ("born", "channel", "evaluation_seconds", "members", "query", "told")

    def __init__(self, channel: int, query: LiveQuery) -> None:
        self.channel = channel
        self.query = query
        self.members: dict[LiveSubscription, None] = {}
        self.born: int | None = (
            None  # the commit at which its first member joined: earlier ones are none of its business
        )
        self.told = 0
        self.evaluation_seconds = 0.0

    def concerns(self, seq: int) -> bool:
        return bool(self.members) and self.born is not None and self.born < seq

    def stats(self) -> GroupStats:
        query = self.query
        return GroupStats(
            self.channel, query.table.full_name, query.text, query.owner, len(self.members), self.told,
            self.evaluation_seconds,
        )  # fmt: skip


class Groups:
    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._by_identity: dict[object, Group] = {}
        self._by_table: dict[int, dict[Group, None]] = {}
        self.fanout: Fanout[Group] = Fanout()

    def add(self, subscription: LiveSubscription) -> None:
        query = subscription.query
        group = self._by_identity.get(query.identity)
        if group is None:
            group = self._by_identity[query.identity] = Group(next(self._numbers), query)
            self._by_table.setdefault(query.table.table_id, {})[group] = None
            self.fanout.add(group)
        group.members[subscription] = None
        subscription.group, subscription.channel = group, group.channel

    def remove(self, subscription: LiveSubscription) -> None:
        group, subscription.group = subscription.group, None
        if group is None:
            return
        del group.members[subscription]
        if not group.members:
            table_id = group.query.table.table_id
            del self._by_identity[group.query.identity]
            del self._by_table[table_id][group]
            if not self._by_table[table_id]:
                del self._by_table[table_id]
            self.fanout.remove(group)

    @property
    def tables(self) -> frozenset[int]:
        return frozenset(self._by_table)

    def members(self, table_id: int) -> Iterator[LiveSubscription]:
        """As they are now: they may come and go while one goes through them."""
        for group in list(self._by_table.get(table_id, ())):
            yield from list(group.members)

    def stats(self) -> list[GroupStats]:
        return [group.stats() for group in list(self._by_identity.values())]

    def __bool__(self) -> bool:
        return bool(self._by_identity or self._by_table or self.fanout)
