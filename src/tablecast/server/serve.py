"""The process's life: bind, open, serve, drain, close.

The first SIGTERM or SIGINT drains: `/ready` says 503, parked consumes are answered at once, nobody new is let in, requests
under way finish within `drain_seconds`, then the database closes, and the exit code is 0. The second signal is the
kernel's: it ends the process on the spot. That is safe, as any kill is, because nothing was acknowledged that is not
durable.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import secrets
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from tablecast.server.allocator import bound_free_memory, giving_back
from tablecast.server.app import create_app
from tablecast.server.auth import Authenticator
from tablecast.server.connection import KEEP_ALIVE_SECONDS, connection_class
from tablecast.server.doorkeeper import Doorkeeper
from tablecast.server.lifecycle import Lifecycle
from tablecast.server.listening import bind, tls_context, url
from tablecast.server.live_socket import socket_class
from tablecast.server.logs import configure_logging
from tablecast.server.metrics import Metrics
from tablecast.server.replicating import replicating
from tablecast.server.settings import Settings
from tablecast.server.tokens import SECRET_BYTES, load_secret
from tablecast.server.tracing import traced
from tablecast.sql.aio import AsyncDatabase, open_async
from tablecast.sql.database import MEMORY

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OTHER_FILES = 1_024  # open files beside connections: the store's, and some to spare
BACKLOG = 2_048  # connections that wait to be accepted
COLLECT_AFTER = (10_000, 20, 50)  # objects, and collections of the younger generations

Say = Callable[[str], None]
_log = logging.getLogger("tablecast.serve")


def serve(settings: Settings, *, password: str | None, say: Say, warnings: Sequence[str] = ()) -> None:
    """Serves until a signal ends it. `say` is told what a person must know: the password made, the address.

    `password` is that of the account `system`, if this start makes it. `warnings` are logged first.
    """
    bound_free_memory()
    configure_logging(settings)
    for warning in warnings:
        _log.warning("%s", warning)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_live(settings, password, say))


async def _live(settings: Settings, password: str | None, say: Say) -> None:
    lifecycle = Lifecycle()
    _drain_on_signal(lifecycle)
    tls = tls_context(settings)
    with closing(bind(settings)) as listener:
        _allow_files(settings.max_connections + OTHER_FILES)
        async with opened_database(settings) as db:
            db.engine.process.address = url(listener, settings)
            generated = await asyncio.to_thread(db.database.ensure_system_account, password)
            if generated is not None:
                say(f'The account "system" was made. Its password, shown only now:\n\n    {generated}\n')
            door = doorkeeper(settings)
            with _application(db, settings, lifecycle, door) as app:
                server = ServedByLifecycle(
                    uvicorn_config(app, settings, tls, door), lifecycle, lambda: _started(listener, settings, say)
                )
                with _seldom_collecting():
                    async with giving_back():
                        await server.serve([listener])
    _log.info("stopped")


def _started(listener: socket.socket, settings: Settings, say: Say) -> None:
    say(f"tablecast is listening on {url(listener, settings)}")


# --- signals ----------------------------------------------------------------------------------------------------


def _drain_on_signal(lifecycle: Lifecycle) -> None:
    loop = asyncio.get_running_loop()

    def drain() -> None:
        _log.info("draining")
        for each in STOPPING_SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)  # the next one ends the process
        lifecycle.drain()

    for each in STOPPING_SIGNALS:
        loop.add_signal_handler(each, drain)


class ServedByLifecycle(uvicorn.Server):
    """uvicorn, told to stop by our lifecycle instead of by signals of its own."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._lifecycle.started()
        self._announce()

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self._lifecycle.draining
        return await super().on_tick(counter)


def doorkeeper(settings: Settings) -> Doorkeeper:
    """Of the event loop that runs."""
    return Doorkeeper(settings.newcomers_share, settings.newcomers_wait_seconds, loop=asyncio.get_running_loop())


def uvicorn_config(app: ASGIApp, settings: Settings, tls: ssl.SSLContext | None, door: Doorkeeper) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connection_class(settings.max_connections, settings.body_timeout_seconds, door),
        ws=socket_class(settings.live_buffer_bytes, settings.live_ping_seconds, door),
        log_config=None,  # configured already
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.drain_seconds,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )


# --- what is opened and closed ----------------------------------------------------------------------------------


@asynccontextmanager
async def opened_database(settings: Settings) -> AsyncIterator[AsyncDatabase]:
    db = await open_async(
        settings.data,
        waits=False,
        durability=settings.durability,
        jobs_interval_seconds=settings.jobs_interval_seconds,
        query_memory_mb=settings.query_memory_mb,
        query_timeout_seconds=settings.statement_timeout_seconds,
        changes_kept_seconds=settings.changes_kept_seconds,
        changes_max_bytes=settings.changes_max_bytes,
    )
    try:
        yield db
    finally:
        await db.interrupt()  # queries that outlived the drain: nobody waits for their answer
        await db.close()


@contextmanager
def _application(db: AsyncDatabase, settings: Settings, lifecycle: Lifecycle, door: Doorkeeper) -> Iterator[ASGIApp]:
    secret = secrets.token_bytes(SECRET_BYTES) if settings.data == MEMORY else load_secret(Path(settings.data))
    metrics = Metrics(db.engine)
    with (
        closing(Authenticator(db.database, settings, secret)) as auth,
        replicating(db.engine, settings, metrics),
        traced(create_app(db, settings, auth, metrics, lifecycle, door), settings) as app,
    ):
        yield app


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """What is there now stays to the end and need not be looked at again. A request's rows are thousands of objects without
    a cycle among them, which end with their last reference: looking for cycles after every 700, as Python does, took a
    seventh of the processor time of large inserts."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _allow_files(needed: int) -> None:
    """Raises the process's own limit of open files as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        _log.warning(
            "the system allows %d open files, and max_connections may need %d: raise the limit (ulimit -n) or lower "
            "max_connections",
            most,
            needed,
        )
