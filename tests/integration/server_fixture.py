"""Real servers for tests, on free ports.

`ServerThread` is the application on uvicorn in a thread of this process: quick to start, and a test may look at the
database behind it. `ServerProcess` is `tablecast serve`, to be signalled and killed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import uvicorn
import uvloop

from tablecast.engine.live import LiveHub
from tablecast.server.app import create_app
from tablecast.server.auth import Authenticator
from tablecast.server.connection import connection_class
from tablecast.server.doorkeeper import Doorkeeper
from tablecast.server.lifecycle import Lifecycle
from tablecast.server.listening import bind, url
from tablecast.server.live_socket import socket_class
from tablecast.server.metrics import Metrics
from tablecast.server.serve import doorkeeper
from tablecast.server.settings import Settings
from tablecast.sql.aio import AsyncDatabase, open_async

PASSWORD = "a password for tests"
START_SECONDS = 60.0  # a machine under load; a start takes a fraction of a second
JOBS_SECONDS = 3600.0  # jobs run when a test says so: what they commit would be among what it counts
SECRET = b"a secret for tests, of 32 bytes.."


# --- asking -----------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json()["error"]
        return error


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


class Address:
    """How to reach a server. One connection per request, so that each test sees its own."""

    host = "127.0.0.1"

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://{self.host}:{port}"

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        user: str | None = "system",
        password: str = PASSWORD,
    ) -> Answer:
        """`body` is sent as it is if it is bytes, else as JSON. `user=None` sends no credentials."""
        sent = dict(headers or {})
        if user is not None:
            sent.setdefault("Authorization", basic(user, password))
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()  # msgspec stops at 64 bits
            sent.setdefault("Content-Type", "application/json")
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=60)) as connection:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            received = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, received, answer.read())

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request("POST", f"/v1/api{path}", body, **options)

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def sql(self, sql: str, params: list[Any] | None = None, **options: Any) -> list[dict[str, Any]]:
        """The results of statements that must succeed."""
        answer = self.post("/sql", {"sql": sql, "params": params or []}, **options)
        assert answer.status == 200, answer.body
        results: list[dict[str, Any]] = answer.json()["results"]
        return results


# --- in a thread ------------------------------------------------------------------------------------------------


class _Uvicorn(uvicorn.Server):
    """Without signals, which a thread cannot have; `should_exit` ends it."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._lifecycle.started()
        self._announce()


class ServerThread(Address):
    """A server over the directory `data`, or in memory. `stop` drains, closes, and re-raises what went wrong.

    `system_bytes` is how much the system takes of what a peer does not read; without it, megabytes.
    """

    def __init__(self, data: Path | str = ":memory:", *, system_bytes: int | None = None, **settings: Any) -> None:
        self._system_bytes = system_bytes
        self._settings = Settings(data=str(data), port=0, **{"jobs_interval_seconds": JOBS_SECONDS} | settings)
        self._started: queue.Queue[int | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="test-server")
        self.db: AsyncDatabase
        self.lifecycle: Lifecycle
        self.door: Doorkeeper
        self.loop: asyncio.AbstractEventLoop
        self._server: _Uvicorn

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._started.get(timeout=START_SECONDS)
        if isinstance(port, BaseException):
            self._thread.join()
            raise port
        super().__init__(port)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def hub(self) -> LiveHub:
        """That of live queries."""
        [stats] = self.db.engine.live_stats
        return stats.__self__  # type: ignore[attr-defined]

    def drain(self) -> None:
        """What a signal to stop begins with; the server goes on to answer until `stop`."""
        self.loop.call_soon_threadsafe(self.lifecycle.drain)

    def stop(self) -> None:
        """Idempotent."""
        if self._thread.is_alive():
            self.drain()
            self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._live())
        except BaseException as error:  # told to whoever waits for the start
            self._started.put(error)

    async def _live(self) -> None:
        settings, self.lifecycle, self.loop = self._settings, Lifecycle(), asyncio.get_running_loop()
        with closing(bind(settings)) as listener:
            if self._system_bytes is not None:  # connections have what their listener has
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._system_bytes)
            self.db = await open_async(
                settings.data,
                waits=False,
                query_timeout_seconds=settings.statement_timeout_seconds,
                jobs_interval_seconds=settings.jobs_interval_seconds,
                changes_kept_seconds=settings.changes_kept_seconds,
                changes_max_bytes=settings.changes_max_bytes,
            )
            try:
                await asyncio.to_thread(self.db.database.ensure_system_account, PASSWORD)
                with closing(Authenticator(self.db.database, settings, SECRET)) as auth:
                    self.door = doorkeeper(settings)
                    app = create_app(self.db, settings, auth, Metrics(self.db.engine), self.lifecycle, self.door)
                    self.db.engine.process.address = url(listener, settings)
                    port = int(url(listener, settings).rpartition(":")[2])
                    self._server = _Uvicorn(self._config(app), self.lifecycle, lambda: self._started.put(port))
                    await self._server.serve([listener])
            finally:
                await self.db.close()

    def _config(self, app: Any) -> uvicorn.Config:
        settings = self._settings
        return uvicorn.Config(
            app,
            http=connection_class(settings.max_connections, settings.body_timeout_seconds, self.door),
            ws=socket_class(settings.live_buffer_bytes, settings.live_ping_seconds, self.door),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=settings.drain_seconds,
        )


@contextmanager
def kept_port() -> Iterator[int]:
    """A port for a server that goes away and comes back: bound here too, and not listened on, nobody else is given it."""
    with socket.socket() as keeping:
        keeping.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: then it may have it as well
        keeping.bind((Address.host, 0))
        yield keeping.getsockname()[1]


# --- in a process -----------------------------------------------------------------------------------------------


class ServerProcess(Address):
    """`tablecast serve` over the directory `data`. `flags` are further words of its command line."""

    COMMAND = (sys.executable, "-c", "from tablecast.cli import main; main()", "serve", "--port", "0")

    def __init__(self, data: Path | str, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [*self.COMMAND, "--data", str(data), *flags],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TABLECAST_PASSWORD": PASSWORD, **(environment or {})},
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "listening on" in line:
                super().__init__(int(line.strip().rpartition(":")[2]))
                return
        self._close()
        raise AssertionError(f"the server ended with {self._process.returncode} before it listened")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def terminate(self) -> int:
        """Drains, and returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._close()

    def _close(self) -> int:
        code = self._process.wait(timeout=START_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._close()
