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

from server_fixture import PASSWORD, ServerThread

import tablecast
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


@contextmanager
def face(kind: str) -> Iterator[Any]:
    """An empty database in memory, seen through one of `FACES`, as the system account."""
    if kind == "embedded":
        with tablecast.open(":memory:") as database:
            yield database
    elif kind == "async":
        with _blocking(lambda: tablecast.open_async(":memory:")) as database:
            yield database
    else:
        with ServerThread() as server, face_of(kind, server) as client:
            yield client


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
