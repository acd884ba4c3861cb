"""Topics for readers in bulk: what a topic is, and its log as it is stored.

A range of a partition is sent as its stored batches (codec.log_stream), about `CHUNK_BYTES` at a time: the server looks
at heads only, copies bytes, and waits for its reader. Each chunk is a scan of its own, so a slow reader pins nothing in
the store; if retention overtakes it, or the topic is dropped, the stream ends with an error instead of an end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import groupby

import msgspec
from starlette.responses import Response, StreamingResponse

from tablecast.codec.load_plan import encode_plan
from tablecast.codec.log import decode_head
from tablecast.codec.log_stream import LOG_STREAM, encode_end, encode_error, encode_frame
from tablecast.core.rights import require
from tablecast.engine.catalog import Catalog
from tablecast.engine.engine import Engine
from tablecast.engine.log import not_there, stored_batches
from tablecast.engine.positions import check_partition
from tablecast.errors import (
    DatabaseClosed,
    InvalidRequest,
    TablecastError,
    TopicRecreated,
    UnknownTopic,
)
from tablecast.model.names import DEFAULT_NAMESPACE, read_name, read_part, spelled
from tablecast.model.position import Start, StartKind
from tablecast.model.schema import Role, TableSchema
from tablecast.model.topic import Topic
from tablecast.server.answers import accepted, answer
from tablecast.server.api_topics import LAST_OFFSET, milliseconds
from tablecast.server.call import Call
from tablecast.sql.context import find_topic

CHUNK_BYTES = 1024 * 1024  # sent at a time: large enough to cost little per byte, small enough for many readers
JOINED_BYTES = 32 * 1024  # pieces below are sent together: copying them costs less than sending each
_log = logging.getLogger("tablecast.server")


# --- what a topic is --------------------------------------------------------------------------------------------


class PartitionOut(msgspec.Struct, frozen=True):
    """`offset_at_timestamp` is the first offset that is not older, if a timestamp was given."""

    partition_id: int
    start_offset: int
    end_offset: int
    offset_at_timestamp: int | None = None


class SourceOut(msgspec.Struct, frozen=True):
    table: str
    op: str
    payload: str
    filter: str | None
    partition_by: str | None


class TopicAnswer(msgspec.Struct, frozen=True):
    """Names are as text that reads the same. `plan` holds the schemas of the source tables, and the routes: see
    codec.load_plan. In JSON it is base64."""

    topic_id: int
    name: str
    alias: str | None
    partitions: list[PartitionOut]
    sources: list[SourceOut]
    plan: bytes


async def describe_topic(call: Call) -> Response:
    query = call.query("timestamp", "namespace")
    topic = _topic(call, query.get("namespace", DEFAULT_NAMESPACE))
    ts_ms = None if "timestamp" not in query else _timestamp(query["timestamp"])
    described = await call.in_thread(_described, call.services.db.engine, topic, ts_ms)
    return answer(described, accepted(call.headers))


def _described(engine: Engine, topic: Topic, ts_ms: int | None) -> TopicAnswer:
    catalog = engine.catalog
    partitions = [_partition(engine, topic, partition, ts_ms) for partition in range(topic.partitions)]
    plan = encode_plan(_source_tables(catalog, topic), [(topic, route) for route in topic.routes])
    name = spelled(topic.full_name)
    return TopicAnswer(topic.topic_id, name, topic.alias, partitions, _sources(catalog, topic), plan)


def _partition(engine: Engine, topic: Topic, partition: int, ts_ms: int | None) -> PartitionOut:
    start, end = engine.log_range(topic.topic_id, partition)
    found = None if ts_ms is None else engine.resolve(topic, partition, Start(StartKind.TIMESTAMP, ts_ms))
    return PartitionOut(partition, start, end, found)


def _source_tables(catalog: Catalog, topic: Topic) -> list[TableSchema]:
    ids = dict.fromkeys(route.table_id for route in topic.routes)
    return [catalog.tables[table_id].schema for table_id in ids if table_id in catalog.tables]


def _sources(catalog: Catalog, topic: Topic) -> list[SourceOut]:
    names = {schema.table_id: spelled(schema.full_name) for schema in _source_tables(catalog, topic)}
    return [
        SourceOut(names[route.table_id], op.label, route.payload.value, route.filter, route.partition_by)
        for route in topic.routes
        if route.table_id in names
        for op in route.ops
    ]


def _timestamp(text: str) -> int:
    """ISO 8601, or UTC milliseconds."""
    return _number("timestamp", text) if text.isdecimal() else milliseconds(text)


def _topic(call: Call, namespace: str) -> Topic:
    name: str = call.path["topic"]
    with call.denials("CONSUME", name):
        require(call.who, Role.SERVICE, f"reading topic {name}")
    catalog = call.services.db.engine.catalog
    return find_topic(catalog, read_name(name), read_part(namespace))


# --- its log ----------------------------------------------------------------------------------------------------


async def stream_log(call: Call) -> Response:
    query = call.query("partition", "start", "end", "topic_id", "namespace")
    topic = _topic(call, query.get("namespace", DEFAULT_NAMESPACE))
    if "topic_id" in query and _number("topic_id", query["topic_id"]) != topic.topic_id:
        raise _recreated(topic, query["topic_id"])
    partition = _number("partition", query.get("partition", "0"))
    check_partition(topic, partition)
    reading = _reading(call.services.db.engine, topic, partition, query)
    first = await call.in_thread(reading.chunk)  # before the answer begins: what is refused is refused with its status
    return StreamingResponse(_stream(call, reading, first), media_type=LOG_STREAM)


def _recreated(topic: Topic, expected: str) -> TopicRecreated:
    return TopicRecreated(
        f"topic {topic.full_name} has id {topic.topic_id} and not {expected}: it was dropped and created again, and "
        "offsets of the old one mean nothing in it",
        topic=topic.full_name,
        topic_id=topic.topic_id,
    )


def _reading(engine: Engine, topic: Topic, partition: int, query: dict[str, str]) -> _LogReading:
    log_start, log_end = engine.log_range(topic.topic_id, partition)
    start = _number("start", query["start"]) if "start" in query else log_start
    end = _number("end", query["end"]) if "end" in query else max(log_end, start)
    if start > end:
        raise InvalidRequest(f"start {start} is after end {end}", start=start, end=end)
    if end > log_end:
        raise not_there(topic, partition, end - 1, log_start, log_end)
    return _LogReading(engine, topic, partition, start, end, at=start)


@dataclass(slots=True)
class _LogReading:
    """How far a reader has come in its range."""

    engine: Engine
    topic: Topic
    partition: int
    start: int
    end: int
    at: int

    @property
    def is_done(self) -> bool:
        return self.at >= self.end

    def chunk(self) -> list[bytes]:
        """The next frames, and the end mark after the last, as pieces to send. In a thread."""
        frames: list[bytes] = []
        size = 0
        for batch in self._batches():
            frames += encode_frame(batch)
            self.at = decode_head(batch).end_offset
            size += len(batch)
            if size >= CHUNK_BYTES:
                break
        if self.is_done:
            frames.append(encode_end(self.at))
        return list(_joined(frames))

    def _batches(self) -> Iterator[bytes]:
        topic_id = self.topic.topic_id
        self.engine.check_open()
        if topic_id not in self.engine.catalog.topics:
            raise UnknownTopic(f"topic {self.topic.full_name} was dropped", topic=self.topic.full_name)
        log_start, log_end = self.engine.log_range(topic_id, self.partition)
        if self.at < log_start and not self.is_done:
            raise not_there(self.topic, self.partition, self.at, log_start, log_end)
        yield from stored_batches(self.engine.store, topic_id, self.partition, self.at, self.end)


def _joined(parts: list[bytes]) -> Iterator[bytes]:
    for is_large, some in groupby(parts, lambda part: len(part) >= JOINED_BYTES):
        run = list(some)
        yield from run if is_large else [b"".join(run)]


async def _stream(call: Call, reading: _LogReading, chunk: list[bytes]) -> AsyncIterator[bytes]:
    name, metrics = reading.topic.full_name, call.services.metrics
    counted = reading.start
    while True:
        metrics.messages_out(name, reading.at - counted)
        counted = reading.at
        for piece in chunk:
            yield piece
        if reading.is_done:
            return
        try:
            if call.services.lifecycle.draining:
                raise DatabaseClosed("the server stops; go on from here when it, or another one, is there")
            chunk = await call.in_thread(reading.chunk)
        except TablecastError as error:
            metrics.error(error.code)
            yield encode_error(error)
            return
        except Exception:
            _log.exception("reading the log of %s failed unexpectedly", name)
            metrics.error(TablecastError.code)
            yield encode_error(TablecastError("the server failed on this stream; its log says why"))
            return


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= LAST_OFFSET):
        raise InvalidRequest(f"{name} {text[:60]!r}: it is a whole number, from 0", parameter=name)
    return int(text)
