"""Statements that a server runs.

Each is a request of its own, so a transaction cannot stay open between two of them: its statements are collected from
BEGIN on and sent together with COMMIT. Nothing of it has happened before that, and no result is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

from tablecast.cli.console import say
from tablecast.cli.progress import spinner
from tablecast.client.statements import Kind, kind_of
from tablecast.client.sync import Client
from tablecast.codec.result import Result
from tablecast.errors import SqlSyntaxError, TablecastError, TransactionState, UnsupportedSql
from tablecast.sql.parse import parse
from tablecast.sql.statements import Begin, Commit, Rollback, Statement


class RemoteRunner:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._collected: list[str] = []
        self.took_ms = 0.0  # the way to the server and back included

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._collected:
            say("dropped: the transaction was not committed")

    @property
    def in_transaction(self) -> bool:
        return bool(self._collected)

    def execute(self, sql: str, *, quiet: bool = False) -> list[Result]:
        control = _control(sql)
        if control is Begin:
            return self._begin(sql)
        if not self._collected:
            return self._send(sql, (), quiet)
        if control is Rollback:
            self._collected = []
            return [Result.of_write(0, "ROLLBACK", None)]
        self._collected.append(sql)
        return self._commit(quiet) if control is Commit else []

    def execute_text(self, sql: str, params: Sequence[Any]) -> Iterator[Result]:
        """One request: the results come together, or the error of the first statement that failed."""
        try:
            return iter(self._send(sql, params, quiet=False))
        except TablecastError as error:
            raise _located(error, "those before it have happened") from None

    def peek(self, sql: str) -> list[Result]:
        return self._client.execute_all(sql)

    def _begin(self, sql: str) -> list[Result]:
        if self._collected:
            raise TransactionState("there is a transaction already: COMMIT or ROLLBACK it first")
        self._collected = [sql]
        return [Result.of_write(0, "BEGIN", None)]

    def _commit(self, quiet: bool) -> list[Result]:
        text, self._collected = ";\n".join(self._collected), []
        try:
            return self._send(text, (), quiet)[1:]  # BEGIN was answered when it was typed
        except TablecastError as error:
            raise _located(error, "BEGIN is 1; nothing of the transaction has happened") from None

    def _send(self, sql: str, params: Sequence[Any], quiet: bool) -> list[Result]:
        """In the main thread, unlike a local query: waiting for an answer does not keep Ctrl-C away."""
        began = time.perf_counter()
        try:
            with nullcontext() if quiet else spinner("running …"):
                return self._client.execute_all(sql, params)
        except KeyboardInterrupt:
            if kind_of(sql) is not Kind.READ:
                say("the request was dropped; the server may have run it all the same")
            raise
        finally:
            self.took_ms = (time.perf_counter() - began) * 1000


def _located(error: TablecastError, remark: str) -> TablecastError:
    """The same error, with the number of its statement; one that did not parse tells that itself."""
    number = error.details.get("statement")
    if number is not None and not isinstance(error, SqlSyntaxError | UnsupportedSql):
        error.message = f"statement {number} ({remark}): {error.message}"
    return error


def _control(sql: str) -> type[Statement] | None:
    """BEGIN, COMMIT or ROLLBACK, if it is one. What does not parse here, the server may know."""
    try:
        [statement] = parse(sql)
    except (TablecastError, ValueError):
        return None
    return type(statement) if isinstance(statement, Begin | Commit | Rollback) else None
