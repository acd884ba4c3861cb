"""The embedded database: `tablecast.open(path)`."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import secrets
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tablecast.client.consumer import Consumer
from tablecast.codec.catalog import User
from tablecast.core.snowflake import require_clock
from tablecast.engine.audit import Audited, Outcome, append, audit_entry
from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.engine.change_index import CHANGES_KEPT_SECONDS, CHANGES_MAX_BYTES
from tablecast.engine.durability import Durability
from tablecast.engine.engine import Engine, system_clock
from tablecast.engine.jobs import INTERVAL_SECONDS
from tablecast.engine.passwords import hash_password, needs_rehash, verify_password
from tablecast.engine.replication import Carrier, Replication
from tablecast.engine.retention import Removed
from tablecast.engine.users import CreateUser, RehashPassword
from tablecast.engine.verify import verify_engine
from tablecast.errors import BackupError, InvalidRequest, TablecastError, Unauthenticated
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.model.verify import Progress, VerifyReport
from tablecast.sql.query import QueryEngine
from tablecast.sql.session import Session
from tablecast.storage.base import Store
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted

MEMORY = ":memory:"
_open: weakref.WeakSet[Database] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends without `close`: its threads would otherwise be cut off wherever they are."""
    for database in list(_open):
        database.close()


GENERATED_PASSWORD_BYTES = 18  # 144 bits: 24 characters to copy


class Database(Session):
    """A session of the system account, and the owner of everything behind it. Safe for many threads.

    Threads share one transaction if they BEGIN on the database itself: use `transaction()` or `session()` for that.
    """

    def __init__(
        self,
        store: Store,
        *,
        durability: str = "fsync",
        clock: Callable[[], int] = system_clock,
        jobs_interval_seconds: float = INTERVAL_SECONDS,
        query_memory_mb: int = 512,
        query_timeout_seconds: float = 30.0,
        changes_kept_seconds: int = CHANGES_KEPT_SECONDS,
        changes_max_bytes: int = CHANGES_MAX_BYTES,
    ) -> None:
        engine = Engine(
            store,
            durability=Durability.parse(durability),
            clock=clock,
            jobs_interval_seconds=jobs_interval_seconds,
            changes_kept_seconds=changes_kept_seconds,
            changes_max_bytes=changes_max_bytes,
        )
        super().__init__(engine, QueryEngine(memory_limit_mb=query_memory_mb, timeout_s=query_timeout_seconds))
        _open.add(self)

    @property
    def engine(self) -> Engine:
        return self._engine

    def session(self, user: str, role: Role | str = Role.USER, namespace: str = DEFAULT_NAMESPACE) -> Session:
        """A session of another account: it sees and may do what that account's role allows."""
        if isinstance(role, str):
            if role.upper() not in Role.__members__:
                roles = ", ".join(known.name.lower() for known in Role)
                raise InvalidRequest(f"unknown role {role!r}: the roles are {roles}", role=role)
            role = Role[role.upper()]
        return Session(self._engine, self._queries, Actor(user, role), namespace, self._live)

    # --- accounts ---

    def authenticate(self, name: str, password: str, *, request_id: str | None = None) -> Actor:
        """Who signs in with this name and password. Raises Unauthenticated, which does not say what was wrong."""
        user = self.sign_in(name, password, request_id=request_id)
        return Actor(user.name, user.role)

    def sign_in(self, name: str, password: str, *, request_id: str | None = None) -> User:
        """As `authenticate`, with the account as it was when the password was compared: a token made of it ends with the
        next change of the account, also one that happens meanwhile."""
        self._engine.check_open()
        user = self._engine.catalog.users.get(name)
        stored = None if user is None else user.password
        if not verify_password(stored, password) or user is None or stored is None:
            self.audit(name, "SIGN IN", outcome=Outcome.FAILED, request_id=request_id)
            raise Unauthenticated("the user name or the password is wrong")
        if needs_rehash(stored):
            with contextlib.suppress(TablecastError):  # there will be another sign-in
                self._engine.submit(RehashPassword(name, stored, hash_password(password)), wait=False)
        return user

    def ensure_system_account(self, password: str | None = None) -> str | None:
        """Creates the account `system` if there is none, with this password or a generated one, which is returned: it
        can be told once, and is stored nowhere."""
        if SYSTEM_ACTOR.user_id in self._engine.catalog.users:
            return None
        chosen = secrets.token_urlsafe(GENERATED_PASSWORD_BYTES) if password is None else password
        name, role = SYSTEM_ACTOR.user_id, SYSTEM_ACTOR.role
        command = CreateUser(SYSTEM_ACTOR, name, role, hash_password(chosen), if_not_exists=True)
        entry = audit_entry(SYSTEM_ACTOR, "CREATE USER", name, detail=f"role {role.name.lower()}, at the first start")
        made: bool = self._engine.execute(Audited(command, entry))
        return chosen if made and password is None else None

    def audit(
        self,
        actor: Actor | str,
        action: str,
        target: str = "",
        outcome: str = Outcome.OK,
        detail: str = "",
        request_id: str | None = None,
    ) -> None:
        """Adds an entry to system.audit_log without waiting for it. An `actor` who did not sign in is a bare name."""
        append(self._engine, audit_entry(actor, action, target, outcome, detail, request_id))

    # --- replication ---

    @property
    def replication(self) -> Replication:
        """Status of the replicated tables, the outbox, and what was set aside."""
        return self._engine.replication

    def replicate(
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
        """Mirrors the tables made WITH (REPLICATE = TRUE) through the MQTT broker at `url`, until it is stopped or the
        database is closed. `node_id` is given once and kept."""
        self._engine.check_open()
        try:
            edge = importlib.import_module("tablecast.edge.service")
        except ModuleNotFoundError as error:
            message = f"replication needs a package that is not installed ({error.name}): pip install 'tablecast[mqtt]'"
            raise InvalidRequest(message, package=error.name) from error
        settings = edge.EdgeSettings(
            prefix=prefix, overflow=overflow, outbox_events=outbox_events, compare_seconds=compare_seconds
        )
        started: Carrier = edge.replicate(self._engine, url, node_id=node_id, settings=settings, ca_file=ca_file)
        return started

    # --- work on the whole ---

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        name: str | None = None,
        batch: int = 100,
        visibility_seconds: float = 60.0,
    ) -> Consumer:
        """A member of a consumer group; `run(handler)` feeds it until it is stopped."""
        return Consumer(self, topic, group, name=name, batch=batch, visibility_seconds=visibility_seconds)

    def run_job(self, name: str) -> Removed:
        """Runs a job now: retention, expiry or claims."""
        return self._engine.jobs.run(name)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy of everything acknowledged so far, at `path`. Reads go on; writes wait for it to be made,
        which takes moments: files are linked, not copied."""
        self._engine.check_open()
        if isinstance(self._engine.store, MemoryStore):
            raise BackupError("a database in memory has no files to back up")
        target = os.fspath(path)
        try:
            self._engine.backup(target)
        except TablecastError as error:
            self.audit(self.actor, "BACKUP", target, Outcome.FAILED, error.code)
            raise
        self.audit(self.actor, "BACKUP", target)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Reads everything and compares what must agree: see `engine.verify`."""
        return verify_engine(self._engine, progress)

    def interrupt(self) -> None:
        """Stops the SELECTs that run now, in whatever thread: each raises Timeout."""
        self._queries.interrupt()

    def close(self) -> None:
        """Finishes queued writes and closes. Idempotent."""
        if self._engine.replication.carrier is not None:
            self._engine.replication.carrier.stop()
        self._live.close()
        self._engine.close()
        self._queries.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open(  # noqa: A001 - tablecast.open(path), as gzip.open
    path: str | os.PathLike[str],
    *,
    durability: str = "fsync",
    create: bool = True,
    clock: Callable[[], int] = system_clock,
    jobs_interval_seconds: float = INTERVAL_SECONDS,
    query_memory_mb: int = 512,
    query_timeout_seconds: float = 30.0,
    changes_kept_seconds: int = CHANGES_KEPT_SECONDS,
    changes_max_bytes: int = CHANGES_MAX_BYTES,
) -> Database:
    """Opens the database at `path`, a directory, and makes it if there is none. ":memory:" keeps nothing.

    `durability` says what a crash of the machine may lose: "fsync" (nothing), "interval(ms)", "none". `changes_…` bound
    what is kept of each table that live queries read: how long somebody may be away and still resume.
    """
    Durability.parse(durability)  # before anything is created
    require_clock(clock())
    store: Store = MemoryStore(read_sorted) if path == MEMORY else RocksStore.open(os.fspath(path), create=create)
    try:
        return Database(
            store,
            durability=durability,
            clock=clock,
            jobs_interval_seconds=jobs_interval_seconds,
            query_memory_mb=query_memory_mb,
            query_timeout_seconds=query_timeout_seconds,
            changes_kept_seconds=changes_kept_seconds,
            changes_max_bytes=changes_max_bytes,
        )
    except BaseException:
        store.close()
        raise
