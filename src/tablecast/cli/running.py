"""Statements that Ctrl-C can stop.

While DuckDB runs in the main thread, Python does not hear of Ctrl-C before the query is over. So statements run in a
thread of their own, and the main thread only waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from tablecast.cli.console import say
from tablecast.cli.progress import spinner
from tablecast.codec.result import Result
from tablecast.sql.database import Database
from tablecast.sql.session import Session

LOOK_SECONDS = 1.0  # a signal that comes just before the thread falls asleep is noticed when it wakes
REPEAT_SECONDS = 0.05  # a stop that comes before the query has reached DuckDB is lost


class Runner:
    def __init__(self, database: Database, session: Session) -> None:
        self._database = database
        self.session = session
        self.took_ms = 0.0  # the last statement
        self._thread = ThreadPoolExecutor(1, "tablecast-statements")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was not committed is rolled back."""
        self._thread.shutdown()
        if self.session.in_transaction:
            self.session.rollback()
            say("rolled back: the transaction was not committed")

    def execute(self, sql: str, params: Sequence[Any] = (), *, quiet: bool = False) -> Result:
        """As the session does. Ctrl-C stops a query; a write is not stopped halfway, but ends first."""
        with nullcontext() if quiet else spinner("running …"):
            running = self._thread.submit(self._run, sql, params)
            try:
                while wait([running], LOOK_SECONDS).not_done:
                    continue
            except KeyboardInterrupt:
                self._stop(running)
                raise
            return running.result()

    def _run(self, sql: str, params: Sequence[Any]) -> Result:
        began = time.perf_counter()
        result = self.session.execute(sql, params)
        self.took_ms = (time.perf_counter() - began) * 1000
        return result

    def _stop(self, running: Future[Result]) -> None:
        while wait([running], REPEAT_SECONDS).not_done:
            self._database.interrupt()
        if running.exception() is None:
            say(f"done before it could be stopped: {running.result().message or 'the query'}")
