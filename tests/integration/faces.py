"""One surface, three ways to it: a database in this process, the same for asyncio, and a client of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from server_fixture import JOBS_SECONDS, PASSWORD, ServerThread

import tablecast
from tablecast import AsyncDatabase, Database, connect

FACES = ("embedded", "async", "remote")


class Face:
    """Calls what it is asked for. `database` is behind it, for what a test may do to it from within."""

    def __init__(self, surface: Any, database: Database, finish: Callable[[Any], Any]) -> None:
        self._surface = surface
        self._finish = finish
        self.database = database

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._surface, name)
        return lambda *args, **named: self._finish(method(*args, **named))


@contextmanager
def face(kind: str, schema: str, jobs_interval_seconds: float = JOBS_SECONDS) -> Iterator[Face]:
    if kind == "embedded":
        with tablecast.open(":memory:", jobs_interval_seconds=jobs_interval_seconds) as db:
            db.execute_all(schema)
            yield Face(db, db, lambda answer: answer)
    elif kind == "async":
        with asyncio.Runner() as runner:
            opened: AsyncDatabase = runner.run(
                tablecast.open_async(":memory:", jobs_interval_seconds=jobs_interval_seconds)
            )
            runner.run(opened.execute_all(schema))
            yield Face(opened, opened.database, runner.run)
            runner.run(opened.close())
    else:
        with (
            ServerThread(jobs_interval_seconds=jobs_interval_seconds) as server,
            connect(server.url, user="system", password=PASSWORD) as client,
        ):
            server.sql(schema)
            yield Face(client, server.db.database, lambda answer: answer)
