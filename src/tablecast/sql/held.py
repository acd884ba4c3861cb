"""A session that holds a transaction between the calls of somebody who comes back to it: see `server.transactions`."""

from __future__ import annotations

from tablecast.codec.result import Result
from tablecast.sql.aio import AsyncSession


class HeldSession(AsyncSession):
    @classmethod
    def of(cls, session: AsyncSession) -> HeldSession:
        return cls(session._session, session._engine, session._loop)

    @property
    def uncommitted_bytes(self) -> int:
        """How much of what the transaction wrote is held in memory until COMMIT."""
        transaction = self._session._transaction
        return 0 if transaction is None else transaction.nbytes

    def use_namespace(self, namespace: str) -> None:
        """Where names without a namespace are looked up from now on."""
        self._session._use_namespace(namespace)

    async def commit_once(self, name: str) -> Result:
        """As `commit`, remembered for a day under the transaction's name: see `committed`."""
        return await self._call(self._session._commit_once, name)

    async def committed(self, name: str) -> Result | None:
        """What `commit_once` answered, if it committed."""
        return await self._call(self._session._committed_once, name)
