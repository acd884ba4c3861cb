"""Moving much data in and out of a server: `BulkClient`, for one thread of a job.

    describe_topic, stream_log                        a topic's log, as stored batches
    open_snapshot, read_snapshot, close_snapshot      a table at one commit, as Arrow
    begin_load, put_part, commit_load, abort_load     one commit made of many parts
    sql                                               everything else

All of these may be repeated safely, and are, when a connection breaks or the server is busy or away: a log is read on
from where it broke off, a snapshot's range is read again up to there, a commit answers what it answered. What is raised
is the error that the server raised. Memory stays flat: files are sent as they are, batches handed on as they arrive.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import pyarrow as pa

from tablecast.client import wire
from tablecast.client.bulk_answers import LoadBegun, LoadDone, PartStaged, SnapshotOpened, TopicInfo
from tablecast.client.bulk_server import Server
from tablecast.client.bulk_transport import Arriving, BulkTransport, Pieces, Silence, Source
from tablecast.client.connection import ARROW_STREAM, MSGPACK
from tablecast.client.failures import Failure, rebuilt, refusal
from tablecast.client.retry import chance
from tablecast.client.statements import Kind, kind_of
from tablecast.client.transport import NoAnswer
from tablecast.client.wire import DEFAULT_NAMESPACE
from tablecast.codec.log import decode_head
from tablecast.codec.log_stream import LOG_STREAM, LogStreamFailed, read_frames
from tablecast.codec.result import Result
from tablecast.errors import (
    CorruptData,
    DatabaseClosed,
    Overloaded,
    TablecastError,
    Timeout,
    TooManyRequests,
    Unreachable,
)
from tablecast.model.pipeline import DuplicateLetters
from tablecast.model.spark_job import Backfill

__all__ = ["BulkClient", "LoadBegun", "LoadDone", "PartStaged", "Server", "SnapshotOpened", "TopicInfo"]

SEALED = "application/vnd.tablecast.sealed"
LETTERS = "application/x-ndjson"  # a part of dead letters: lines of JSON, one LoadLetter each
COMMIT_SECONDS = 6 * 3600.0  # a commit may take long; it is asked after for as long as this
_API = "/v1/api"
_GATEWAY = (502, 504)  # a proxy lost the server: as good as no answer

T = TypeVar("T")


class BulkClient:
    """Of one thread; it connects with its first call."""

    def __init__(
        self,
        server: Server,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.server = server
        self.namespace = namespace
        self._transport = BulkTransport(server)
        self._monotonic, self._sleep = monotonic, sleep

    # --- SQL ---

    def sql(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> list[Result]:
        """Every statement's result. Repeated only if that is safe: if all of them read, or with an idempotency key."""
        body = wire.request({"sql": sql, "params": list(params)}, self.namespace)
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        safe = kind_of(sql) is Kind.READ or idempotency_key is not None
        return wire.results(self._call("POST", f"{_API}/sql", body, headers=headers, safe=safe))

    # --- topics ---

    def describe_topic(self, topic: str, *, timestamp_ms: int | None = None) -> TopicInfo:
        """With `timestamp_ms`, also each partition's first offset that is not older."""
        query = self._in_namespace({} if timestamp_ms is None else {"timestamp": str(timestamp_ms)})
        return _decoded(self._call("GET", f"{_API}/topics/{quote(topic, safe='')}{query}"), TopicInfo)

    def stream_log(
        self, topic: str, partition: int, start: int, end: int, *, topic_id: int | None = None
    ) -> Iterator[bytes]:
        """The messages start <= offset < end as log batches (see codec.log), in order and without a gap.

        Raises OffsetOutOfRange if they are not, or no longer, there, and TopicRecreated if the topic is another one."""
        at, attempts = start, self._attempts()
        while at < end:
            try:
                for batch in self._log_frames(topic, partition, at, end, topic_id):
                    at = decode_head(batch).end_offset
                    attempts = self._attempts()  # it moves on: whatever breaks next is new trouble
                    yield batch
            except (NoAnswer, TooManyRequests, Overloaded) as e:
                attempts.again(e)

    def _log_frames(self, topic: str, partition: int, start: int, end: int, topic_id: int | None) -> Iterator[bytes]:
        query = {"partition": str(partition), "start": str(start), "end": str(end)}
        if topic_id is not None:
            query["topic_id"] = str(topic_id)
        path = f"{_API}/topics/{quote(topic, safe='')}/log{self._in_namespace(query)}"
        arriving = self._sent("GET", path, accept=LOG_STREAM)
        try:
            with _no_answer_if_cut():
                yield from read_frames(arriving.body.read, start)
                arriving.body.read(1)  # the end of the answer: then the connection is good for another
        except LogStreamFailed as e:
            raise _failed(e) from e

    # --- snapshots of tables ---

    def open_snapshot(self, table: str, *, splits: int = 1) -> SnapshotOpened:
        """The table as of the last commit, and at most so many ranges of it with about as many rows each."""
        body = wire.request({"table": table, "splits": splits}, self.namespace)
        return _decoded(self._call("POST", f"{_API}/snapshots", body), SnapshotOpened)

    def read_snapshot(
        self, snapshot_id: str, start: str | None = None, end: str | None = None, *, seq: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range, as opening answered it, in key order; with `seq` also the commit that wrote each.

        Raises SnapshotGone if nobody read it for ten minutes, or the server was started anew."""
        done, attempts = 0, self._attempts()
        while True:
            try:
                for batch in _without_first(done, self._snapshot_batches(snapshot_id, start, end, seq=seq)):
                    done += batch.num_rows
                    attempts = self._attempts()
                    yield batch
                return
            except (NoAnswer, TooManyRequests, Overloaded) as e:
                attempts.again(e)

    def _snapshot_batches(
        self, snapshot_id: str, start: str | None, end: str | None, *, seq: bool
    ) -> Iterator[pa.RecordBatch]:
        query = {"start": start, "end": end, "seq": "true" if seq else None}
        given = urlencode({name: value for name, value in query.items() if value is not None})
        arriving = self._sent(
            "GET", f"{_API}/snapshots/{quote(snapshot_id, safe='')}/rows?{given}", accept=ARROW_STREAM
        )
        with _no_answer_if_cut():
            with pa.ipc.open_stream(arriving.body) as reader:
                yield from reader
            arriving.body.read(1)

    def close_snapshot(self, snapshot_id: str) -> None:
        """Idempotent."""
        self._call("DELETE", f"{_API}/snapshots/{quote(snapshot_id, safe='')}")

    # --- loads ---

    def begin_load(
        self,
        table: str,
        writer_id: str,
        batch_id: int,
        *,
        mode: str = "insert",
        kind: str = "rows",
        op_column: str | None = None,
    ) -> LoadBegun:
        """Opens a load, or finds the one that is open for this batch of the writer; if it is committed already,
        `committed` says so and there is nothing to send. `kind`: rows (parts are Arrow streams) or sealed."""
        fields = {
            "table": table, "writer_id": writer_id, "batch_id": batch_id, "mode": mode, "kind": kind,
            "op_column": op_column,
        }  # fmt: skip
        return _decoded(self._call("POST", f"{_API}/loads", wire.request(fields, self.namespace)), LoadBegun)

    def begin_backfill(self, source: Backfill, writer_id: str, batch_id: int = 0) -> LoadBegun:
        """Opens a load whose commit adds the source. Its parts are sealed, and tell the rows of a snapshot that is opened
        after this returned; rows that are written meanwhile are the server's to tell."""
        fields = {
            "table": source.table, "writer_id": writer_id, "batch_id": batch_id, "mode": "backfill", "kind": "sealed",
            "source": {
                "topic": source.topic, "ops": list(source.ops), "filter": source.filter,
                "partition_by": source.partition_by, "payload": source.payload,
            },
        }  # fmt: skip
        return _decoded(self._call("POST", f"{_API}/loads", wire.request(fields, self.namespace)), LoadBegun)

    def put_part(
        self,
        load_id: str,
        part: int,
        source: bytes | str | Path | Pieces,
        *,
        attempt: str = "0",
        content_type: str = ARROW_STREAM,
    ) -> PartStaged:
        """Sends one part: bytes, a file, or pieces from a function that gives them anew each time it is called. Durable,
        and invisible, when it returns."""
        given: Source = Path(source) if isinstance(source, str) else source
        path = f"{_API}/loads/{quote(load_id, safe='')}/parts/{part}?{urlencode({'attempt': attempt})}"
        return _decoded(self._call("PUT", path, given, content_type=content_type), PartStaged)

    def commit_load(
        self,
        load_id: str,
        parts: Sequence[tuple[int, str]],
        *,
        duplicates: DuplicateLetters | None = None,
        patience_seconds: float = COMMIT_SECONDS,
    ) -> LoadDone:
        """Commits these (part, attempt) as one commit; with `duplicates`, rows to be inserted whose key is there already
        become messages of a dead-letter topic. Waits for as long as the server works on it, at most `patience_seconds`,
        over as many connections as it takes."""
        aside = {} if duplicates is None else {"duplicates": duplicates}
        body = wire.request({"parts": [list(part) for part in parts], **aside})
        path = f"{_API}/loads/{quote(load_id, safe='')}/commit"
        return _decoded(self._call("POST", path, body, patience_seconds=patience_seconds), LoadDone)

    def abort_load(self, load_id: str) -> None:
        """Forgets what was staged. Idempotent."""
        self._call("DELETE", f"{_API}/loads/{quote(load_id, safe='')}")

    # --- pipelines ---

    def report_pipeline(self, name: str, report: Mapping[str, Any]) -> str:
        """Says how a pipeline fares (see engine.pipelines.PipelineReport). Answers what is wished of it."""
        path = f"{_API}/pipelines/{quote(name, safe='')}/report"
        answered: str = _decoded(self._call("POST", path, wire.request(dict(report))), dict[str, str])["desired_state"]
        return answered

    # --- asking ---

    def _call(
        self,
        method: str,
        path: str,
        source: Source = b"",
        *,
        content_type: str = MSGPACK,
        headers: dict[str, str] | None = None,
        safe: bool = True,
        patience_seconds: float = 0.0,
    ) -> bytes:
        """The body of an answer with a status of 2xx; anything else is raised."""
        attempts = self._attempts(patience_seconds)
        while True:
            try:
                return self._sent(method, path, source, content_type=content_type, headers=headers).read()
            except NoAnswer as e:
                if e.sent and not safe:
                    raise attempts.lost(e) from e
                attempts.again(e)
            except (TooManyRequests, Overloaded) as e:
                if not (safe or isinstance(e, TooManyRequests)):
                    raise
                attempts.again(e)

    def _sent(
        self,
        method: str,
        path: str,
        source: Source = b"",
        *,
        content_type: str = MSGPACK,
        accept: str = MSGPACK,
        headers: dict[str, str] | None = None,
    ) -> Arriving:
        """One attempt: the answer, whose status is 2xx, with its body still to be read."""
        sent = {"Accept": accept, **(headers or {})}
        if source != b"":
            sent["Content-Type"] = content_type
        if self.server.authorization is not None:
            sent["Authorization"] = self.server.authorization
        arriving = self._transport.send(method, path, sent, source)
        if arriving.status < 300:
            return arriving
        body = arriving.read()
        if arriving.status in _GATEWAY and b'"error"' not in body:
            raise NoAnswer(f"a gateway answered {arriving.status}", sent=True)
        raise refusal(arriving.status, arriving.headers, body)

    def _post(self, path: str, *, accept: str) -> Arriving:
        """Sent once, without a body; the answer is to be read by the caller."""
        return self._sent("POST", _API + path, accept=accept)

    def _in_namespace(self, query: dict[str, str]) -> str:
        if self.namespace != DEFAULT_NAMESPACE:
            query = query | {"namespace": self.namespace}
        return f"?{urlencode(query)}" if query else ""

    def _attempts(self, patience_seconds: float = 0.0) -> _Attempts:
        return _Attempts(self.server, self._monotonic, self._sleep, patience_seconds)

    # --- the end ---

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Attempts:
    """The attempts at one thing: `again` waits before the next one, or raises what went wrong."""

    def __init__(
        self,
        server: Server,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        patience_seconds: float,
    ) -> None:
        self._server = server
        self._backoffs = server.retry.backoffs()
        self._monotonic, self._sleep = monotonic, sleep
        now = monotonic()
        self._until = now + server.retry.total_seconds
        self._patient_until = now + patience_seconds

    def again(self, cause: NoAnswer | TablecastError) -> None:
        if isinstance(cause, Silence) and self._monotonic() < self._patient_until:
            return  # the server is at work on it: ask how it goes
        if isinstance(cause, TablecastError) and not cause.retryable:
            raise cause
        backoff = next(self._backoffs, None)
        asked = float(cause.details.get("retry_after_seconds", 0.0)) if isinstance(cause, TablecastError) else 0.0
        wait = max((backoff or 0.0) * chance.uniform(0.5, 1.0), asked)
        if backoff is None or self._monotonic() + wait > self._until:
            raise (self.lost(cause) if isinstance(cause, NoAnswer) else cause) from cause
        self._sleep(wait)

    def lost(self, cause: NoAnswer) -> TablecastError:
        url = self._server.url
        if not cause.sent:
            return Unreachable(f"{url} cannot be reached: {cause.reason}", url=url)
        return Timeout(f"{url} gave no answer: {cause.reason}", url=url)


@contextmanager
def _no_answer_if_cut() -> Iterator[None]:
    """What breaks off while it is read is an answer that did not come."""
    try:
        yield
    except (OSError, http.client.HTTPException, pa.ArrowInvalid) as e:
        raise NoAnswer(str(e) or type(e).__name__, sent=True) from e


def _failed(failure: LogStreamFailed) -> Exception:
    said = failure.error
    error = rebuilt(Failure(said.code, said.message, said.details))
    if isinstance(error, DatabaseClosed):  # the server is about to stop: another one, or the same, will go on
        return NoAnswer(error.message, sent=True)
    return error


def _without_first(count: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Without the first `count` rows: they were handed on before the connection broke."""
    for batch in batches:
        skipped = min(count, batch.num_rows)
        count -= skipped
        if skipped < batch.num_rows or not batch.num_rows:
            yield batch.slice(skipped)


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(f"the server's answer does not decode: {e}") from e
