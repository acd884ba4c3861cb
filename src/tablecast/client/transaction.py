"""Transactions of a client: a session at the server from BEGIN to COMMIT, reached by the transaction's id.

The face is that of a transaction of an embedded database. A commit may be asked for again if its answer is lost; a
statement may not, so a lost answer ends the transaction: nothing of it was committed, and all of it can be run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tablecast.client import wire
from tablecast.client.connection import ARROW_STREAM, MSGPACK, Connection, Request
from tablecast.client.loop_thread import LoopThread
from tablecast.client.statements import Kind, check_word, kind_of
from tablecast.client.values import pack
from tablecast.codec.given import given_rows, given_text, given_value
from tablecast.codec.result import Result
from tablecast.errors import InvalidRequest, Overloaded, TablecastError, Timeout, TransactionState

_PATH = "/v1/api/transactions"
_END = re.compile(r"\s*(COMMIT|ROLLBACK)(\s+(TRANSACTION|WORK))?\s*;?\s*", re.IGNORECASE)


class AsyncTransaction:
    """One at a time: its statements run in the order in which they are awaited."""

    def __init__(self, connection: Connection, namespace: str, transaction_id: str) -> None:
        self.namespace = namespace
        self._connection = connection
        self._id = transaction_id
        self._is_open = True
        self._is_lost = False

    @classmethod
    async def begin(cls, connection: Connection, namespace: str) -> AsyncTransaction:
        # One that is begun twice, as the first answer was lost, ends by itself.
        answer = await connection.call(Request(_PATH, safe=True))
        return cls(connection, namespace, wire.text(answer.body, "transaction_id"))

    @property
    def in_transaction(self) -> bool:
        return self._is_open

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> Result:
        """Runs one or several statements and returns the last one's result."""
        return (await self.execute_all(sql, params))[-1]

    async def execute_all(self, sql: str, params: Sequence[Any] = ()) -> list[Result]:
        if (end := _END.fullmatch(given_text(sql, "SQL"))) is not None:
            return [await self._end(end[1].upper())]
        body = wire.request({"sql": sql, "params": params}, self.namespace)
        safe = kind_of(sql) is Kind.READ
        return wire.results(await self._run(Request("/v1/api/sql", body, transaction_id=self._id, safe=safe)))

    async def query(self, sql: str, params: Sequence[Any] = ()) -> Result:
        """Runs a SELECT, SHOW or DESCRIBE, which sees what the transaction wrote."""
        if kind_of(given_text(sql, "SQL")) is not Kind.READ:
            check_word(sql)
            raise InvalidRequest("query() takes a SELECT; use execute() for anything else")
        return await self.execute(sql, params)

    async def insert(
        self, table: str, rows: Any, *, columns: Sequence[str] | None = None, mode: str = "insert"
    ) -> Result:
        """Writes many rows as one statement: see the client's `insert`."""
        path = wire.rows_path(wire.full_name(table, self.namespace), mode, columns)
        rows = given_rows(rows)
        if isinstance(rows, pa.Table | pa.RecordBatch):
            body, content_type = wire.arrow_stream(rows), ARROW_STREAM
        else:
            body, content_type = pack(given_value(rows)), MSGPACK
        request = Request(path, body, content_type=content_type, transaction_id=self._id)
        return wire.written(await self._run(request))

    async def _run(self, request: Request) -> bytes:
        self._check()
        try:
            return (await self._connection.call(request)).body
        except (Timeout, asyncio.CancelledError):
            self._is_lost = not request.safe
            raise

    def _check(self) -> None:
        if not self._is_open:
            raise TransactionState("the transaction has ended: begin another one")
        if self._is_lost:
            raise TransactionState(
                "the answer to a statement of this transaction was lost, so it cannot be committed: run it again"
            )

    # --- the end ---

    async def commit(self) -> Result:
        """On a conflict the transaction is over and nothing of it happened. After a Timeout it may be asked for again."""
        self._check()
        try:
            answer = await self._connection.call(Request(f"{_PATH}/{self._id}/commit", safe=True))
        except (Timeout, Overloaded):
            raise
        except TablecastError:
            self._is_open = False
            raise
        self._is_open = False
        return wire.written(answer.body)

    async def rollback(self) -> None:
        if not self._is_open:
            raise TransactionState("ROLLBACK without BEGIN: there is no transaction")
        self._is_open = False
        await self._connection.call(Request(f"{_PATH}/{self._id}", method="DELETE", safe=True))

    async def abandon(self) -> None:
        """Rolls back what is open; a server that cannot be reached does so by itself."""
        if self._is_open:
            with contextlib.suppress(TablecastError):
                await self.rollback()

    async def _end(self, verb: str) -> Result:
        if verb == "COMMIT":
            return await self.commit()
        await self.rollback()
        return Result.of_write(0, verb, None)


class Transaction:
    """The same for threads: one at a time."""

    def __init__(self, thread: LoopThread, transaction: AsyncTransaction) -> None:
        self._thread = thread
        self._transaction = transaction
        self.namespace = transaction.namespace

    @property
    def in_transaction(self) -> bool:
        return self._transaction.in_transaction

    def execute(self, sql: str, params: Sequence[Any] = ()) -> Result:
        """Runs one or several statements and returns the last one's result."""
        return self._thread.run(lambda: self._transaction.execute(sql, params))

    def execute_all(self, sql: str, params: Sequence[Any] = ()) -> list[Result]:
        return self._thread.run(lambda: self._transaction.execute_all(sql, params))

    def query(self, sql: str, params: Sequence[Any] = ()) -> Result:
        """Runs a SELECT, SHOW or DESCRIBE, which sees what the transaction wrote."""
        return self._thread.run(lambda: self._transaction.query(sql, params))

    def insert(self, table: str, rows: Any, *, columns: Sequence[str] | None = None, mode: str = "insert") -> Result:
        """Writes many rows as one statement: see the client's `insert`."""
        return self._thread.run(lambda: self._transaction.insert(table, rows, columns=columns, mode=mode))

    def commit(self) -> Result:
        """On a conflict the transaction is over and nothing of it happened. After a Timeout it may be asked for again."""
        return self._thread.run(self._transaction.commit)

    def rollback(self) -> None:
        self._thread.run(self._transaction.rollback)

    def abandon(self) -> None:
        self._thread.run(self._transaction.abandon)
