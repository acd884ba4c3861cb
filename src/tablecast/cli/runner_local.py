"""Statements of a local database, which Ctrl-C can stop.

While DuckDB runs in the main thread, Python does not hear of Ctrl-C before the query is over. So statements run in a
thread of their own, and the main thread only waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from tablecast.cli.console import say
from tablecast.cli.progress import spinner
from tablecast.cli.script import read_statements
from tablecast.codec.result import Result
from tablecast.sql.database import Database
from tablecast.sql.keyed import check_ended
from tablecast.sql.parameters import check_count
from tablecast.sql.parse import parse
from tablecast.sql.session import Session

LOOK_SECONDS = 1.0  # a signal that comes just before the thread falls asleep is noticed when it wakes
REPEAT_SECONDS = 0.05  # a stop that comes before the query has reached DuckDB is lost


class LocalRunner:
    def __init__(self, database: Database, session: Session) -> None:
        self._database = database
        self._session = session
        self._onlooker = session.twin()
        self.took_ms = 0.0
        self._thread = ThreadPoolExecutor(1, "tablecast-statements")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was not committed is rolled back."""
        self._thread.shutdown()
        if self._session.in_transaction:
            self._session.rollback()
            say("rolled back: the transaction was not committed")

    @property
    def in_transaction(self) -> bool:
        return self._session.in_transaction

    def execute(self, sql: str, *, quiet: bool = False) -> list[Result]:
        return [self._execute(sql, (), quiet)]

    def execute_text(self, sql: str, params: Sequence[Any]) -> Iterator[Result]:
        """Each result as soon as it is there."""
        parsed = parse(sql)
        check_ended(parsed)
        counts = [statement.parameters for statement in parsed]
        check_count(params, sum(counts))
        at = 0
        for statement, count in zip(read_statements([sql]), counts, strict=True):
            yield self._execute(statement.text, params[at : at + count], quiet=False)
            at += count

    def peek(self, sql: str) -> list[Result]:
        return self._onlooker.execute_all(sql)

    def _execute(self, sql: str, params: Sequence[Any], quiet: bool) -> Result:
        """Ctrl-C stops a query; a write is not stopped halfway, but ends first."""
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
        result = self._session.execute(sql, params)
        self.took_ms = (time.perf_counter() - began) * 1000
        return result

    def _stop(self, running: Future[Result]) -> None:
        while wait([running], REPEAT_SECONDS).not_done:
            self._database.interrupt()
        if running.exception() is None:
            say(f"done before it could be stopped: {running.result().message or 'the query'}")
