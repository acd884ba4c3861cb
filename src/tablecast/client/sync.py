"""The same client for threads: `tablecast.connect(url)`.

Each client has one thread with an event loop, and an `AsyncClient` in it; a method runs the coroutine there and waits.
So the writes of many threads share requests as those of many tasks do. Threads do not survive a fork: connect in the
child process, not before.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tablecast.client import maintenance
from tablecast.client.asynchronous import TIMEOUT_SECONDS, AsyncClient, connect_async
from tablecast.client.consumer import Consumer
from tablecast.client.live_sync import LiveChanges, LiveTable
from tablecast.client.loop_thread import LoopThread
from tablecast.client.on_spark import run_on_spark
from tablecast.client.retry import REQUEST_RETRY, Retry
from tablecast.client.transaction import Transaction
from tablecast.client.wire import DEFAULT_NAMESPACE
from tablecast.codec.result import Result
from tablecast.errors import DatabaseClosed, RunsOnSpark, TablecastError
from tablecast.model.message import Consumed
from tablecast.model.position import StartLike
from tablecast.model.verify import Progress, VerifyReport

_open: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends without `close`: writes under way still get their answers."""
    for client in list(_open):
        with contextlib.suppress(TablecastError):
            client.close()


class Client:
    """For as many threads as there are."""

    def __init__(self, thread: LoopThread, client: AsyncClient) -> None:
        self._thread = thread
        self._client = client
        self.namespace = client.namespace
        self._closing = threading.Lock()
        _open.add(self)

    # --- SQL and rows ---

    def execute(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> Result:
        """Runs one or several statements and returns the last one's result."""
        return self.execute_all(sql, params, idempotency_key=idempotency_key)[-1]

    def execute_all(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> list[Result]:
        """Every statement's result. With an idempotency key they are one transaction, committed once.

        COPY, AUDIT and backfill = 'spark', each in a text of its own, run on Spark in this thread."""
        try:
            return self._thread.run(lambda: self._client._execute_there(sql, params, idempotency_key=idempotency_key))
        except RunsOnSpark as e:
            return [run_on_spark(e, self._client._server)]

    def backup(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> None:
        """A copy of the server's whole database, sent into the local directory `path`: whole, or not there. Takes dba."""
        self._client._check_open()
        maintenance.back_up(self._client._server, path, progress)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """The server reads everything it has and compares what must agree. Takes dba."""
        self._client._check_open()
        return maintenance.verify(self._client._server, progress)

    def query(self, sql: str, params: Sequence[Any] = ()) -> Result:
        """Runs a SELECT, SHOW or DESCRIBE. The result has rows, `.arrow()`, `.pandas()` and `.polars()`."""
        return self._thread.run(lambda: self._client.query(sql, params))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction of its own: committed at the end of the block, rolled back by an exception."""
        own = Transaction(self._thread, self._thread.run(self._client._begin))
        try:
            yield own
            if own.in_transaction:
                own.commit()
        except BaseException:
            own.abandon()
            raise

    def insert(
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
        return self._thread.run(
            lambda: self._client.insert(table, rows, columns=columns, mode=mode, idempotency_key=idempotency_key)
        )

    # --- topics ---

    def consume(
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
        settings say if it is None, and never longer than they allow (`waited_seconds` tells). `ack` is what was
        consumed before and is done: it is acknowledged first, in the same commit.
        """
        return self._thread.run(
            lambda: self._client.consume(
                topic,
                group=group,
                start=start,
                partition=partition,
                limit=limit,
                timeout_seconds=timeout_seconds,
                consumer=consumer,
                visibility_seconds=visibility_seconds,
                auto_offset_reset=auto_offset_reset,
                ack=ack,
            )
        )

    def read_arrow(self, topic: str, *, start: StartLike = None, partition: int | None = None) -> pa.Table:
        """A whole topic, or a partition, from `start` (default: the earliest) to its end, as Arrow."""
        return self._thread.run(lambda: self._client.read_arrow(topic, start=start, partition=partition))

    def stream_arrow(
        self, topic: str, *, start: StartLike = None, partition: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same as record batches, one after the other, for topics larger than memory."""
        arriving = self._client.stream_arrow(topic, start=start, partition=partition)

        async def following() -> pa.RecordBatch | None:
            return await anext(arriving, None)

        async def ended() -> None:
            await arriving.aclose()

        try:
            while (batch := self._thread.run(following)) is not None:
                yield batch
        finally:
            self._thread.run(ended)

    def ack(
        self,
        topic: str,
        group: str,
        upto_offset: int | None = None,
        *,
        partition: int = 0,
        offsets: Sequence[int] = (),
        consumer: str | None = None,
    ) -> int | None:
        """Acknowledges up to an offset, or single offsets. Returns the acknowledged offset."""
        return self._thread.run(
            lambda: self._client.ack(topic, group, upto_offset, partition=partition, offsets=offsets, consumer=consumer)
        )

    def nack(
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
        return self._thread.run(
            lambda: self._client.nack(topic, group, offsets, partition=partition, reason=reason, consumer=consumer)
        )

    def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
        """Renews a consumer's claims. Returns how many messages it still holds."""
        return self._thread.run(lambda: self._client.extend(topic, group, consumer, visibility_seconds))

    def release(self, topic: str, group: str, consumer: str) -> int:
        """Gives a consumer's unacknowledged messages back at once. Returns how many."""
        return self._thread.run(lambda: self._client.release(topic, group, consumer))

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        name: str | None = None,
        batch: int = 100,
        visibility_seconds: float = 60.0,
    ) -> Consumer:
        """A member of a consumer group; `run(handler)` feeds it until it is stopped."""
        return Consumer(self, topic, group, name=name, batch=batch, visibility_seconds=visibility_seconds)

    # --- live queries ---

    def live(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> LiveChanges:
        """The rows of a SELECT, and from then on every change of them, as it is committed: iterate over it."""

        async def opened() -> LiveChanges:
            return LiveChanges(self._thread, self._client._live_source(sql, params, namespace))

        return self._thread.run(opened)

    def live_table(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> LiveTable:
        """The rows of a SELECT, kept as they are now."""

        async def opened() -> LiveTable:
            return LiveTable(self._thread, self._client.live_table(sql, params, namespace=namespace))

        return self._thread.run(opened)

    # --- the end ---

    def close(self) -> None:
        """Waits for the answers of writes under way and closes. Idempotent."""
        with self._closing:
            try:
                self._thread.run(self._client.close)
            except DatabaseClosed:
                return
            self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    timeout_seconds: float = TIMEOUT_SECONDS,
    retry: Retry = REQUEST_RETRY,
) -> Client:
    """A client of the server at `url`, as `http://host:port`. It signs in with the first request.

    `timeout_seconds` is how long one attempt may take; `retry`, how often a request that can be repeated is.
    """
    thread = LoopThread("client")
    try:
        client = thread.run(
            lambda: connect_async(
                url,
                user=user,
                password=password,
                token=token,
                namespace=namespace,
                timeout_seconds=timeout_seconds,
                retry=retry,
            )
        )
    except BaseException:
        thread.close()
        raise
    return Client(thread, client)
