"""A server in a thread of this process, for a program that needs one for a while: it serves a directory to Spark, say.

Nobody signs in to a local database, so there is no account to use: one token, made for this server and gone with it,
stands for the account system. Everybody else needs their password, as ever.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path

import msgspec
import uvloop

from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.server.app import create_app
from tablecast.server.auth import Authenticator, SignedIn
from tablecast.server.lifecycle import Lifecycle
from tablecast.server.listening import bind, url
from tablecast.server.metrics import Metrics
from tablecast.server.serve import ServedByLifecycle, doorkeeper, opened_database, uvicorn_config
from tablecast.server.settings import Settings
from tablecast.server.tokens import SECRET_BYTES, load_secret
from tablecast.sql.database import MEMORY


@dataclass(frozen=True, slots=True)
class Background:
    url: str
    token: str = field(repr=False)


@contextmanager
def in_background(settings: Settings) -> Iterator[Background]:
    """Serves `settings.data` on a free port of this machine until the block ends. Raises what kept it from starting."""
    thread = _ServerThread(msgspec.structs.replace(settings, host="127.0.0.1", port=0))
    thread.start()
    address = thread.started.get()
    if isinstance(address, BaseException):
        thread.join()
        raise address
    try:
        yield Background(address, thread.token)
    finally:
        thread.end()
        thread.join()


class _OneMoreToken(Authenticator):
    token: str

    async def signed_in(self, authorization: str | None, address: str) -> SignedIn:
        if authorization is not None and compare_digest(authorization.encode(), f"Bearer {self.token}".encode()):
            return SignedIn(SYSTEM_ACTOR)
        return await super().signed_in(authorization, address)


class _ServerThread(threading.Thread):
    def __init__(self, settings: Settings) -> None:
        super().__init__(name="tablecast-server", daemon=True)
        self._settings = settings
        self._lifecycle = Lifecycle()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.token = secrets.token_urlsafe(32)
        self.started: queue.Queue[str | BaseException] = queue.Queue()

    def end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._lifecycle.drain)

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._live())
        except BaseException as error:  # told to whoever waits for the start
            self.started.put(error)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        settings = self._settings
        in_memory = settings.data == MEMORY
        with closing(bind(settings)) as listener:
            async with opened_database(settings) as db:
                secret = secrets.token_bytes(SECRET_BYTES) if in_memory else load_secret(Path(settings.data))
                with closing(_OneMoreToken(db.database, settings, secret)) as auth:
                    auth.token = self.token
                    door = doorkeeper(settings)
                    app = create_app(db, settings, auth, Metrics(db.engine), self._lifecycle, door)
                    db.engine.process.address = address = url(listener, settings)
                    config = uvicorn_config(app, settings, None, door)
                    await ServedByLifecycle(config, self._lifecycle, lambda: self.started.put(address)).serve(
                        [listener]
                    )
