"""A server, with the methods of an embedded database: `await tablecast.connect_async(url)`.

A statement is one request. Single writes of concurrent tasks share requests (`coalesce`), and every write has an
idempotency key, the caller's or one made here, so that a lost answer can be asked for again. A text of several
statements from BEGIN to COMMIT is a transaction in one request; `transaction()` is one that spans several.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tablecast.client import maintenance, wire
from tablecast.client.arriving import batches
from tablecast.client.bulk_server import Server
from tablecast.client.coalesce import Coalescer, Outcome, new_key
from tablecast.client.connection import ARROW_STREAM, LOG, Connection, Request
from tablecast.client.consumer_async import AsyncConsumer
from tablecast.client.live import AsyncLiveChanges, LiveSource
from tablecast.client.live_link import LiveLinks
from tablecast.client.live_table import AsyncLiveTable
from tablecast.client.message_tables import MessageTables
from tablecast.client.on_spark import run_on_spark
from tablecast.client.retry import REQUEST_RETRY, Retry
from tablecast.client.statements import Kind, check_word, kind_of
from tablecast.client.transaction import AsyncTransaction
from tablecast.client.transport import CONNECTIONS
from tablecast.client.wire import DEFAULT_NAMESPACE
from tablecast.codec.consumed import decode_consumed
from tablecast.codec.given import (
    check_arguments,
    check_optional,
    given_list,
    given_offsets,
    given_params,
    given_rows,
    given_text,
)
from tablecast.codec.message_rows import with_rows
from tablecast.codec.result import Result
from tablecast.errors import DatabaseClosed, InvalidRequest, RunsOnSpark
from tablecast.model.message import Consumed
from tablecast.model.position import StartLike, start_of
from tablecast.model.schema import ColumnType
from tablecast.model.verify import Progress, VerifyReport

TIMEOUT_SECONDS = 60.0  # for an answer; a statement may run 30 s by default
SERVER_WAIT_SECONDS = 3600.0  # of a consume: more no server's settings allow
WAITING_CONSUMES = CONNECTIONS - 64  # the other connections are for acks and writes


class AsyncClient:
    """For tasks of one event loop, as many as there are."""

    def __init__(self, connection: Connection, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.namespace = namespace
        self._connection = connection
        self._coalescer = Coalescer(self._send_writes, connection.attempts)
        self._waiting = asyncio.Semaphore(WAITING_CONSUMES)
        self._live = LiveLinks(connection)
        self._tables = MessageTables(self._columns_of)
        self._closed = False

    async def _call(self, path: str, fields: Mapping[str, Any], *, safe: bool) -> bytes:
        return await self._answer(Request(f"/v1/api{path}", wire.request(fields, self.namespace), safe=safe))

    async def _answer(self, request: Request) -> bytes:
        self._check_open()
        return (await self._connection.call(request)).body

    def _check_open(self) -> None:
        if self._closed:
            raise DatabaseClosed("the client is closed")

    # --- SQL ---

    async def execute(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> Result:
        """Runs one or several statements and returns the last one's result."""
        return (await self.execute_all(sql, params, idempotency_key=idempotency_key))[-1]

    async def execute_all(
        self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None
    ) -> list[Result]:
        """Every statement's result. With an idempotency key they are one transaction, committed once.

        COPY, AUDIT and backfill = 'spark', each in a text of its own, run on Spark in a thread of this process."""
        try:
            return await self._execute_there(sql, params, idempotency_key=idempotency_key)
        except RunsOnSpark as e:
            return [await asyncio.to_thread(run_on_spark, e, self._server)]

    @property
    def _server(self) -> Server:
        return self._connection.server

    async def _execute_there(
        self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None
    ) -> list[Result]:
        """At the server, whatever it says: RunsOnSpark for what runs elsewhere."""
        kind = kind_of(given_text(sql, "SQL"))
        fields = {"sql": sql, "params": params}
        if kind is Kind.WRITE:
            return [await self._write(fields | {"idempotency_key": idempotency_key or new_key()})]
        safe = kind is Kind.READ or idempotency_key is not None
        body = wire.request(fields, self.namespace)
        return wire.results(
            await self._answer(Request("/v1/api/sql", body, idempotency_key=idempotency_key, safe=safe))
        )

    async def backup(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> None:
        """A copy of the server's whole database, sent into the local directory `path`: whole, or not there. Takes dba."""
        self._check_open()
        await asyncio.to_thread(maintenance.back_up, self._server, path, progress)

    async def verify(self, progress: Progress | None = None) -> VerifyReport:
        """The server reads everything it has and compares what must agree. Takes dba."""
        self._check_open()
        return await asyncio.to_thread(maintenance.verify, self._server, progress)

    async def query(self, sql: str, params: Sequence[Any] = ()) -> Result:
        """Runs a SELECT, SHOW or DESCRIBE. The result has rows, `.arrow()`, `.pandas()` and `.polars()`."""
        if kind_of(given_text(sql, "SQL")) is not Kind.READ:
            check_word(sql)
            raise InvalidRequest("query() takes a SELECT; use execute() for anything else")
        return (await self.execute_all(sql, params))[-1]

    # --- transactions ---

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """A transaction of its own: committed at the end of the block, rolled back by an exception."""
        own = await self._begin()
        try:
            yield own
            if own.in_transaction:
                await own.commit()
        except BaseException:
            await own.abandon()
            raise

    async def _begin(self) -> AsyncTransaction:
        self._check_open()
        return await AsyncTransaction.begin(self._connection, self.namespace)

    # --- rows ---

    async def insert(
        self,
        table: str,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        mode: str = "insert",
        idempotency_key: str | None = None,
    ) -> Result:
        """Writes many rows as one statement. `mode`: insert, upsert, or delete (by primary key).

        Rows are mappings, sequences (of `columns`, or of all columns in order), or Arrow.
        """
        table, key = wire.full_name(table, self.namespace), idempotency_key or new_key()
        rows = given_rows(rows)
        if isinstance(rows, pa.Table | pa.RecordBatch):
            path, body = wire.rows_path(table, mode), wire.arrow_stream(rows)
            request = Request(path, body, content_type=ARROW_STREAM, idempotency_key=key, safe=True)
            return wire.written(await self._answer(request))
        named = None if columns is None else list(given_list(columns, "columns"))
        fields = {
            "table": table,
            **wire.packed_rows(rows),
            "columns": named,
            "mode": mode,
            "idempotency_key": key,
        }
        return await self._write(fields)

    async def _write(self, fields: Mapping[str, Any]) -> Result:
        return await self._coalescer.write(
            wire.request(fields, self.namespace if "sql" in fields else DEFAULT_NAMESPACE)
        )

    async def _send_writes(self, packed: Sequence[bytes]) -> list[Outcome]:
        answer = await self._connection.call(Request("/v1/api/writes", wire.writes(packed), safe=True))
        return wire.outcomes(answer.body, len(packed))

    # --- topics ---

    async def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        start: StartLike = None,
        partition: int | None = None,
        limit: int = 100,
        timeout_seconds: float | None = 0.0,
        consumer: str | None = None,
        visibility_seconds: float = 60.0,
        auto_offset_reset: bool = False,
        ack: Consumed | None = None,
    ) -> Consumed:
        """Reads messages; as a group it claims them until they are acknowledged.

        Waits up to `timeout_seconds` for the first one, and wakes on the commit that brings it: as long as the server's
        settings say if it is None, and never longer than they allow (`waited_seconds` tells). A claim whose answer is
        lost is not asked for again (Timeout): what it claimed comes back when it runs out, or with `release`. `ack` is what
        was consumed before and is done: it is acknowledged first, in the same commit, and may be handed over again.
        """
        check_arguments(topic=topic, limit=limit, visibility_seconds=visibility_seconds)
        check_optional(group=group, partition=partition, consumer=consumer, timeout_seconds=timeout_seconds)
        fields = {
            "topic": topic,
            "group_id": group,
            "start": wire.start_fields(start_of(start)),
            "partition_id": partition,
            "limit": limit,
            "timeout_seconds": timeout_seconds,
            "consumer": consumer,
            "visibility_seconds": visibility_seconds,
            "auto_offset_reset": auto_offset_reset,
            "ack": None if ack is None else {"ranges": ack.given, "consumer": ack.consumer},
        }
        body, waits_seconds = wire.request(fields, self.namespace), _patience(timeout_seconds)
        path = "/v1/api/topics/consume"
        await self._waiting.acquire()
        try:
            if group is None:
                found = wire.consumed(await self._answer(Request(path, body, safe=True, waits_seconds=waits_seconds)))
            else:
                stored = await self._answer(Request(path, body, accept=LOG, waits_seconds=waits_seconds))
                found = decode_consumed(stored)
        finally:
            self._waiting.release()
        await self._tables.learn(found.messages)
        return with_rows(found, self._tables.types_of)

    async def _columns_of(self, table: str) -> dict[str, ColumnType]:
        namespace, _, name = table.partition(".")
        found = await self.query(f'DESCRIBE "{namespace}"."{name}"')
        return {column["name"]: ColumnType.of(column["type"]) for column in found.dicts()}

    async def read_arrow(self, topic: str, *, start: StartLike = None, partition: int | None = None) -> pa.Table:
        """A whole topic, or a partition, from `start` (default: the earliest) to its end, as Arrow."""
        return wire.table(await self._answer(self._arrow_request(topic, start, partition)))

    async def stream_arrow(
        self, topic: str, *, start: StartLike = None, partition: int | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The same as record batches, one after the other, for topics larger than memory."""
        self._check_open()
        async with self._connection.stream(self._arrow_request(topic, start, partition)) as incoming:
            async for batch in batches(incoming):
                yield batch

    def _arrow_request(self, topic: str, start: StartLike, partition: int | None) -> Request:
        check_arguments(topic=topic)
        check_optional(partition=partition)
        path = wire.arrow_path(topic, start_of(start), partition, self.namespace)
        return Request(path, method="GET", accept=ARROW_STREAM, safe=True)

    async def ack(
        self,
        topic: str,
        group: str,
        upto_offset: int | None = None,
        *,
        partition: int = 0,
        offsets: Sequence[int] = (),
        consumer: str | None = None,
    ) -> int | None:
        """Acknowledges up to an offset, or single offsets. Returns the acknowledged offset, None if that is
        nothing yet."""
        if (upto_offset is None) == (not offsets):
            raise InvalidRequest("give either upto_offset or offsets")
        which = {"upto_offset": upto_offset} if upto_offset is not None else {"offsets": given_offsets(offsets)}
        return await self._settle(topic, group, partition, consumer, which)

    async def nack(
        self,
        topic: str,
        group: str,
        offsets: Sequence[int],
        *,
        partition: int = 0,
        reason: str = "nack",
        consumer: str | None = None,
    ) -> int | None:
        """Gives messages back: they are delivered again, or become dead letters."""
        which = {"offsets": given_offsets(offsets), "nack": True, "reason": reason}
        return await self._settle(topic, group, partition, consumer, which)

    async def _settle(
        self, topic: str, group: str, partition: int, consumer: str | None, which: Mapping[str, Any]
    ) -> int | None:
        fields = {"topic": topic, "group_id": group, "partition_id": partition, "consumer": consumer, **which}
        return wire.acknowledged(await self._call("/topics/ack", fields, safe=True))

    async def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
        """Renews a consumer's claims. Returns how many messages it still holds."""
        fields = {"topic": topic, "group_id": group, "consumer": consumer, "visibility_seconds": visibility_seconds}
        return wire.number(await self._call("/topics/extend", fields, safe=True), "held")

    async def release(self, topic: str, group: str, consumer: str) -> int:
        """Gives a consumer's unacknowledged messages back at once. Returns how many."""
        fields = {"topic": topic, "group_id": group, "consumer": consumer}
        return wire.number(await self._call("/topics/release", fields, safe=True), "released")

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        name: str | None = None,
        batch: int = 100,
        visibility_seconds: float = 60.0,
    ) -> AsyncConsumer:
        """A member of a consumer group; `await run(handler)` feeds it until it is stopped."""
        return AsyncConsumer(self, topic, group, name=name, batch=batch, visibility_seconds=visibility_seconds)

    # --- live queries ---

    def live(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> AsyncLiveChanges:
        """The rows of a SELECT, and from then on every change of them, as it is committed: `async for` over it."""
        return AsyncLiveChanges(self._live_source(sql, params, namespace))

    def live_table(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> AsyncLiveTable:
        """The rows of a SELECT, kept as they are now."""
        return AsyncLiveTable(self._live_source(sql, params, namespace))

    def _live_source(self, sql: str, params: Sequence[Any], namespace: str | None) -> LiveSource:
        self._check_open()
        return self._live.open(given_text(sql, "SQL"), given_params(params), namespace or self.namespace)

    # --- the end ---

    async def close(self) -> None:
        """Waits for the answers of writes under way and closes. Idempotent."""
        self._closed = True
        await self._live.close()
        await self._coalescer.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def connect_async(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    timeout_seconds: float = TIMEOUT_SECONDS,
    retry: Retry = REQUEST_RETRY,
) -> AsyncClient:
    """A client of the server at `url`, as `http://host:port`. It signs in with the first request.

    `timeout_seconds` is how long one attempt may take; `retry`, how often a request that can be repeated is.
    """
    connection = Connection(
        url, user=user, password=password, token=token, timeout_seconds=timeout_seconds, retry=retry
    )
    return AsyncClient(connection, namespace)


def _patience(timeout_seconds: float | None) -> float:
    """How long the server may let a consume wait: it knows best if it is to wait as its settings say."""
    return SERVER_WAIT_SECONDS if timeout_seconds is None else min(max(0.0, timeout_seconds), SERVER_WAIT_SECONDS)
