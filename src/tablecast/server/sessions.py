"""Sessions that stay: one per actor and namespace, because prepared statements live in them."""

from __future__ import annotations

from collections import OrderedDict

from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.model.schema import Actor
from tablecast.sql.aio import AsyncDatabase, AsyncSession

SESSIONS_KEPT = 512  # each may hold a thousand plans; the longest unused goes first


class Sessions:
    """Of one event loop. The role is part of the key: a changed role gets a session of its own."""

    def __init__(self, db: AsyncDatabase) -> None:
        self._db = db
        self._kept: OrderedDict[tuple[Actor, str], AsyncSession] = OrderedDict()

    async def get(self, actor: Actor, namespace: str) -> AsyncSession:
        """Shared by all requests of the actor, so never for a transaction."""
        session = self._kept.get((actor, namespace))
        if session is None:
            session = self._kept[actor, namespace] = await self.own(actor, namespace)
            if len(self._kept) > SESSIONS_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end((actor, namespace))
        return session

    async def own(self, actor: Actor, namespace: str = DEFAULT_NAMESPACE) -> AsyncSession:
        """One that nobody else has, for a transaction."""
        return await self._db.session(actor.user_id, actor.role, namespace)
