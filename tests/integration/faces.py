"""The four faces of a database, called alike: embedded, asyncio, and a client of each kind.

A rule that holds for every face is one test over `FACES`. Those of asyncio run on a loop in a thread, behind the same
calls: `Blocking` waits for what they return.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from server_fixture import JOBS_SECONDS, PASSWORD, ServerThread

import tablecast
from tablecast import Database
from tablecast.client.loop_thread import LoopThread

FACES = ("embedded", "async", "remote", "remote_async")


class Blocking:
    """An object of asyncio, whose coroutines and transactions are waited for."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self._thread = thread
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._calling(found) if callable(found) else found

    def _calling(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            async def called() -> Any:
                made = function(*args, **kwargs)
                return await made if inspect.isawaitable(made) else made

            made = self._thread.run(called)
            return self._entered(made) if hasattr(made, "__aenter__") else made

        return call

    @contextmanager
    def _entered(self, manager: Any) -> Iterator[Blocking]:
        inner = self._thread.run(manager.__aenter__)
        try:
            yield Blocking(self._thread, inner)
        except BaseException as error:
            ended = partial(manager.__aexit__, type(error), error, error.__traceback__)
            if not self._thread.run(ended):
                raise
        else:
            self._thread.run(lambda: manager.__aexit__(None, None, None))


class Face:
    """One of `FACES`. `database` is behind it, for what a test may do to it from within."""

    def __init__(self, surface: Any, database: Database) -> None:
        self._surface = surface
        self.database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._surface, name)


@contextmanager
def face(kind: str, schema: str = "", *, jobs_interval_seconds: float = JOBS_SECONDS) -> Iterator[Face]:
    """A database in memory, seen through one of `FACES`, as the system account."""
    often: dict[str, Any] = {"jobs_interval_seconds": jobs_interval_seconds}
    if kind == "embedded":
        with tablecast.open(":memory:", **often) as database:
            _made(database, schema)
            yield Face(database, database)
    elif kind == "async":
        with _blocking(lambda: tablecast.open_async(":memory:", **often)) as opened:
            _made(opened, schema)
            yield Face(opened, opened.database)
    else:
        with ServerThread(**often) as server, face_of(kind, server) as client:
            _made(client, schema)
            yield Face(client, server.db.database)


def _made(surface: Any, schema: str) -> None:
    if schema:
        surface.execute_all(schema)


@contextmanager
def face_of(kind: str, server: ServerThread) -> Iterator[Any]:
    """A client of a server that runs."""
    if kind == "remote":
        with tablecast.connect(server.url, user="system", password=PASSWORD) as client:
            yield client
    else:
        with _blocking(lambda: tablecast.connect_async(server.url, user="system", password=PASSWORD)) as client:
            yield client


@contextmanager
def _blocking(opened: Any) -> Iterator[Blocking]:
    thread = LoopThread("test")
    try:
        inner = thread.run(opened)
        try:
            yield Blocking(thread, inner)
        finally:
            thread.run(inner.close)
    finally:
        thread.close()
