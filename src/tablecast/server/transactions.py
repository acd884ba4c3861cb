"""Transactions that span requests: begun by one, continued by others, ended by COMMIT or ROLLBACK.

    begin ──▶ sql, rows, sql, … (one at a time) ──▶ commit or roll back, or gone after IDLE_SECONDS without a request

What a transaction wrote, and the snapshot that it reads, are in memory: so there are few, each of bounded size. One ends
by itself when nobody uses it, and when its account is changed or dropped; none survives the process. A commit is
remembered under the transaction's id, so a repeat whose answer was lost is answered, and commits nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tablecast.codec.result import Result
from tablecast.engine.commit import Commit
from tablecast.errors import Overloaded, TooLarge, TooManyRequests, TransactionState
from tablecast.model.schema import Actor, Role
from tablecast.server.limits import Clock, monotonic_clock
from tablecast.server.sessions import Sessions
from tablecast.sql.aio import AsyncDatabase
from tablecast.sql.held import HeldSession

IDLE_SECONDS = 60.0  # a program that works on it comes back in far less
MAX_TRANSACTIONS = 256  # open at a time: each pins a snapshot
MAX_OF_USERS = 192  # of them, those of role `user`: the rest is for service and above
MAX_OF_ONE_USER = 16
MAX_UNCOMMITTED_BYTES = 64 * 1024 * 1024  # what one account's open transactions wrote, together
_EXPIRE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """`epoch` says which version of the account began it."""

    transaction_id: str
    actor: Actor
    epoch: int
    session: HeldSession
    used_ms: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Transactions:
    """Those that are open. Bound to one event loop."""

    def __init__(self, db: AsyncDatabase, sessions: Sessions, clock: Clock = monotonic_clock) -> None:
        self._db = db
        self._sessions = sessions
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, OpenTransaction] = {}
        self._users = db.engine.catalog.users
        self._timer: asyncio.TimerHandle | None = None
        self._stop_listening = db.engine.feed.listen(self._hear)

    def __len__(self) -> int:
        return len(self._open)

    async def begin(self, actor: Actor) -> OpenTransaction:
        self.expire()
        self._check_room(actor)
        session = await self._session(actor)
        await session.begin()
        opened = OpenTransaction(secrets.token_hex(16), actor, self._epoch(actor), session, self._clock())
        self._open[opened.transaction_id] = opened
        self._watch()
        return opened

    async def _session(self, actor: Actor) -> HeldSession:
        return HeldSession.of(await self._sessions.own(actor))

    def _check_room(self, actor: Actor) -> None:
        mine = sum(each.actor.user_id == actor.user_id for each in self._open.values())
        users = sum(each.actor.role is Role.USER for each in self._open.values())
        if mine >= MAX_OF_ONE_USER:
            raise TooManyRequests(
                f"{actor.user_id} has {mine} open transactions, the most for one account: end some of them",
                limit=MAX_OF_ONE_USER,
            )
        if len(self._open) >= MAX_TRANSACTIONS or (actor.role is Role.USER and users >= MAX_OF_USERS):
            raise Overloaded("too many transactions are open: wait until some have ended", limit=MAX_TRANSACTIONS)

    @asynccontextmanager
    async def use(self, transaction_id: str, actor: Actor, namespace: str) -> AsyncIterator[HeldSession]:
        """The session of an open transaction, for one request at a time. Raises TransactionState."""
        self.expire()
        opened = self._find(transaction_id, actor)
        if opened is None:
            raise _gone(transaction_id)
        async with opened.lock:
            if self._open.get(transaction_id) is not opened:
                raise _gone(transaction_id)
            opened.session.use_namespace(namespace)
            try:
                yield opened.session
            finally:
                self._used(opened)
            self._check_bytes(opened)

    def _used(self, opened: OpenTransaction) -> None:
        opened.used_ms = self._clock()
        if not opened.session.in_transaction:
            self._drop(opened)

    def _check_bytes(self, opened: OpenTransaction) -> None:
        user = opened.actor.user_id
        size = sum(each.session.uncommitted_bytes for each in self._open.values() if each.actor.user_id == user)
        if size > MAX_UNCOMMITTED_BYTES:
            self._drop(opened)
            raise TooLarge(
                f"the open transactions of {user} wrote {size} bytes, more than {MAX_UNCOMMITTED_BYTES}: this one was "
                "rolled back; commit in smaller parts",
                limit=MAX_UNCOMMITTED_BYTES,
            )

    async def commit(self, transaction_id: str, actor: Actor) -> Result:
        """May be repeated: see above. It goes on if whoever asked for it is gone."""
        self.expire()
        opened = self._find(transaction_id, actor)
        result = None if opened is None else await asyncio.shield(asyncio.ensure_future(self._commit(opened)))
        if result is None:
            result = await (await self._session(actor)).committed(_name(transaction_id))
        if result is None:
            raise _gone(transaction_id)
        return result

    async def _commit(self, opened: OpenTransaction) -> Result | None:
        """None if it has ended meanwhile. Overloaded leaves it open: nothing has happened yet."""
        async with opened.lock:
            if self._open.get(opened.transaction_id) is not opened:
                return None
            try:
                return await opened.session.commit_once(_name(opened.transaction_id))
            finally:
                self._used(opened)

    def roll_back(self, transaction_id: str, actor: Actor) -> bool:
        """Whether it was open. Idempotent."""
        opened = self._find(transaction_id, actor)
        if opened is None or opened.lock.locked():  # a request of it runs: if it is the commit, that decides
            return False
        self._drop(opened)
        return True

    def _find(self, transaction_id: str, actor: Actor) -> OpenTransaction | None:
        opened = self._open.get(transaction_id)
        return opened if opened is not None and opened.actor == actor else None

    def _drop(self, opened: OpenTransaction) -> None:
        self._open.pop(opened.transaction_id, None)

    # --- those that end by themselves ---

    def expire(self) -> None:
        """Ends those that nobody used for too long, or whose account is another one now."""
        oldest = self._clock() - int(IDLE_SECONDS * 1000)
        for opened in list(self._open.values()):
            is_idle = opened.used_ms <= oldest and not opened.lock.locked()
            if is_idle or self._epoch(opened.actor) != opened.epoch:
                self._drop(opened)

    def close(self) -> None:
        """Nothing that is open will be committed."""
        self._stop_listening()
        self._open.clear()

    def _epoch(self, actor: Actor) -> int:
        user = self._db.engine.catalog.users.get(actor.user_id)
        return -1 if user is None else user.token_epoch

    def _hear(self, commit: Commit) -> None:
        """On the syncing thread."""
        if commit.catalog.users is not self._users:
            self._users = commit.catalog.users
            self._loop.call_soon_threadsafe(self.expire)

    def _watch(self) -> None:
        """Also if nobody asks for any other."""
        if self._timer is None:
            self._timer = self._loop.call_later(_EXPIRE_SECONDS, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.expire()
        if self._open:
            self._watch()


def _name(transaction_id: str) -> str:
    return f"transaction {transaction_id[:64]}"


def _gone(transaction_id: str) -> TransactionState:
    return TransactionState(
        f"transaction {transaction_id[:40]} is not open: it was ended by COMMIT or ROLLBACK; or nothing of it was committed, "
        f"because it was not used for {IDLE_SECONDS:g} seconds, its account was changed, or the server was started anew",
        transaction=transaction_id[:40],
    )
