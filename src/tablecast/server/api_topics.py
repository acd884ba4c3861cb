"""Topics over HTTP: consume with a long poll, ack, extend, release, and whole topics as Arrow.

A consume that finds nothing waits on the event loop and costs memory only. It ends with the commit that brings a
message, with its timeout, when the server drains, and when the client goes away: what was claimed for a client that is
not there any more is given back, undelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from tablecast.codec.consumed import encode_consumed
from tablecast.codec.log import MESSAGE_SCHEMA
from tablecast.errors import InvalidRequest, Overloaded
from tablecast.model.message import Consumed, ConsumedLog
from tablecast.model.names import DEFAULT_NAMESPACE, read_name, read_part
from tablecast.model.position import Start, StartKind
from tablecast.model.topic import Topic
from tablecast.server.answers import accepted, answer, arrow_answer, encoded, header_text
from tablecast.server.attendance import attended
from tablecast.server.bodies import ARROW, JSON, LOG, MSGPACK, ClientGone, Decoder
from tablecast.server.call import Call
from tablecast.server.connection import INPUT, Input
from tablecast.server.messages import consumed_arrow, consumed_headers, consumed_out, consumed_packed
from tablecast.server.own_messages import consume_own, is_limited_to_own
from tablecast.server.prompt_answer import HttpPrompt
from tablecast.sql import plan_topic
from tablecast.sql.aio import AsyncSession, Told
from tablecast.sql.context import topic_name
from tablecast.sql.plan_topic import DEFAULT_LIMIT, wait_seconds
from tablecast.sql.waiting import Ending

MIN_VISIBILITY_SECONDS, LONGEST_VISIBILITY_SECONDS = 0.001, 12 * 3600  # as a consume takes
LAST_OFFSET = 2**63 - 1
LAST_TIME_MS = 253_402_300_799_999  # the end of the year 9999, as far as a timestamp's text goes
LARGE_MESSAGES = 500  # rendering that many takes about a millisecond: from here on in a thread

F = TypeVar("F", Told, ConsumedLog)
Consume = Callable[[Call, AsyncSession, "ConsumeRequest", float, Ending], Coroutine[Any, Any, F]]
Offset = Annotated[int, Meta(ge=0, le=LAST_OFFSET)]
Partition = Annotated[int, Meta(ge=0, le=65_535)]
Namespace = Annotated[str, Meta(description="where a topic's name without a namespace is looked up")]


class StartIn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`offset` goes with Offset, `timestamp` (ISO 8601, or UTC milliseconds) with Timestamp."""

    type: StartKind
    offset: Offset | None = None
    timestamp: str | Annotated[int, Meta(ge=0, le=LAST_TIME_MS)] | None = None


class DoneIn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What an earlier consume gave, and is done: `ranges` are arrays of partition, first offset, and the offset after the
    last; `consumer` is what that answer named."""

    ranges: list[tuple[Partition, Offset, Offset]]
    consumer: str | None = None


class ConsumeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    topic: str
    group_id: str | None = None
    start: StartIn | None = None
    limit: int = DEFAULT_LIMIT
    partition_id: Partition | None = None
    timeout_seconds: Annotated[
        float | None,
        Meta(
            description="how long to wait for the first message; left out: topics.default_consume_timeout of the settings; "
            "at most topics.max_consume_timeout, and the answer says how long it was"
        ),
    ] = None
    consumer: str | None = None
    visibility_seconds: float = 60.0
    auto_offset_reset: bool = False
    ack: Annotated[DoneIn | None, Meta(description="acknowledged first, in the same commit as the claim")] = None
    namespace: Namespace = DEFAULT_NAMESPACE


class AckRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Either `upto_offset`, or `offsets`."""

    topic: str
    group_id: str
    partition_id: Partition = 0
    upto_offset: Offset | None = None
    offsets: list[Offset] = []
    nack: bool = False
    reason: str = "nack"
    consumer: str | None = None
    namespace: Namespace = DEFAULT_NAMESPACE


class ExtendRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    topic: str
    group_id: str
    consumer: str
    visibility_seconds: float
    namespace: Namespace = DEFAULT_NAMESPACE


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    topic: str
    group_id: str
    consumer: str
    namespace: Namespace = DEFAULT_NAMESPACE


class AckAnswer(msgspec.Struct, frozen=True):
    """`acknowledged_offset` is null as long as nothing is acknowledged."""

    success: bool
    acknowledged_offset: int | None


class ExtendAnswer(msgspec.Struct, frozen=True):
    held: int


class ReleaseAnswer(msgspec.Struct, frozen=True):
    released: int


_consume, _ack = Decoder(ConsumeRequest), Decoder(AckRequest)
_extend, _release = Decoder(ExtendRequest), Decoder(ReleaseRequest)


# --- consume ----------------------------------------------------------------------------------------------------


async def consume(call: Call) -> Response:
    call.refuse_idempotency_key("a claim that was lost on its way comes back when its visibility timeout is over")
    request, _ = await call.decoded(_consume)
    wanted = accepted(call.headers, (JSON, MSGPACK, ARROW, LOG))
    if wanted == LOG and request.group_id is not None:
        stored = await _found(call, request, _consumed_log)
        call.services.metrics.messages_out(_full_name(call, request), stored.count)
        return Response(encode_consumed(stored), media_type=LOG)
    told = await _found(call, request, _consumed)
    if told.is_given:
        call.was_given()  # first: whatever is answered from here on, nobody is to hear it
    found = told.consumed
    call.services.metrics.messages_out(_full_name(call, request), len(found.messages))
    if len(found.messages) > LARGE_MESSAGES:
        return await asyncio.get_running_loop().run_in_executor(None, _rendered, found, wanted)
    return _rendered(found, wanted)


async def _found(call: Call, request: ConsumeRequest, consume: Consume[F]) -> F:
    """Raises what the request would be refused with if its sender's account changed while it waited."""
    assert call.signed_in is not None
    with call.services.accounts.poll(call.signed_in) as ending:
        client: Input | None = call.scope.get(INPUT)
        if client is not None:
            client.at_end(ending.finish)
        return await _found_until(call, request, consume, ending)


async def _found_until(call: Call, request: ConsumeRequest, consume: Consume[F], ending: Ending) -> F:
    settings = call.services.settings
    asked_seconds = wait_seconds(
        request.timeout_seconds, settings.default_consume_timeout, settings.max_consume_timeout
    )
    is_full = call.services.db.parked >= settings.max_parked_polls
    # If too many wait already, or the server drains, only what is there is given.
    timeout_seconds = 0.0 if is_full or call.services.lifecycle.draining else asked_seconds
    session = await call.session(request.namespace)
    found, is_there = await attended(call.receive, consume(call, session, request, timeout_seconds, ending))
    is_refused = ending.error is not None and not (isinstance(found, Told) and found.is_given)
    if is_refused or not is_there or ending.was_waiting:
        given = found.consumed if isinstance(found, Told) else found
        if request.group_id is not None:
            await session.give_back(request.topic, request.group_id, given)
            found = _emptied(found)
        if not is_there:
            raise ClientGone
        ending.check()
    if is_full and asked_seconds and not _is_something(found):
        limit = settings.max_parked_polls
        raise Overloaded(f"{limit} consumes are waiting already (max_parked_polls): retry later", limit=limit)
    return found


def _emptied(found: F) -> F:
    """For a client that most likely went away while it waited: what was claimed for it meanwhile was given back."""
    if isinstance(found, ConsumedLog):
        return replace(found, slices=[], count=0, next_offset=None, has_more=False)
    return Told(replace(found.consumed, messages=[], given=(), next_offset=None, has_more=False), found.is_given)


def _is_something(found: Told | ConsumedLog) -> bool:
    if isinstance(found, ConsumedLog):
        return bool(found.slices or found.skipped)
    return bool(found.consumed.messages or found.consumed.skipped)


async def _consumed(
    call: Call, session: AsyncSession, request: ConsumeRequest, timeout_seconds: float, ending: Ending
) -> Told:
    start = start_of(request.start)
    if is_limited_to_own(call) and request.group_id is None:
        own = await consume_own(
            call, _topic(call, request), request.partition_id, start, request.limit, timeout_seconds, ending
        )
        return Told(own, False)
    prompt = None if request.group_id is not None else _prompt(call)
    return await session.consume_told(request.topic, _asked(request, timeout_seconds), prompt, ending)


def _prompt(call: Call) -> HttpPrompt | None:
    wanted = accepted(call.headers, (JSON, MSGPACK, ARROW, LOG))
    return call.prompt(_BODIES[wanted], wanted) if wanted in _BODIES else None


async def _consumed_log(
    call: Call, session: AsyncSession, request: ConsumeRequest, timeout_seconds: float, ending: Ending
) -> ConsumedLog:
    return await session.consume_log(request.topic, _asked(request, timeout_seconds), ending)


def _asked(request: ConsumeRequest, timeout_seconds: float) -> plan_topic.ConsumeRequest:
    return plan_topic.ConsumeRequest(
        request.group_id, start_of(request.start), request.partition_id, request.limit, timeout_seconds,
        request.consumer, request.visibility_seconds, request.auto_offset_reset,
        done=plan_topic.done_with(_before(request)),
    )  # fmt: skip


def _before(request: ConsumeRequest) -> Consumed | None:
    """What was consumed before and is done, as far as it has to be known."""
    if request.ack is None:
        return None
    return Consumed([], None, False, consumer=request.ack.consumer, given=tuple(request.ack.ranges))


def _topic(call: Call, request: ConsumeRequest) -> Topic:
    return call.services.db.engine.catalog.topic(_full_name(call, request))


def _full_name(call: Call, request: ConsumeRequest) -> str:
    catalog = call.services.db.engine.catalog
    return topic_name(catalog, read_name(request.topic), read_part(request.namespace))


def start_of(start: StartIn | None) -> Start | None:
    if start is None:
        return None
    if (start.offset is not None) != (start.type is StartKind.OFFSET):
        raise InvalidRequest("start.offset goes with start.type Offset, and only with it")
    if (start.timestamp is not None) != (start.type is StartKind.TIMESTAMP):
        raise InvalidRequest("start.timestamp goes with start.type Timestamp, and only with it")
    if start.timestamp is not None:
        return Start(start.type, milliseconds(start.timestamp))
    return Start(start.type, start.offset or 0)


def milliseconds(timestamp: str | int) -> int:
    if isinstance(timestamp, int):
        return timestamp
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        raise InvalidRequest(
            f"{timestamp[:60]!r} is no ISO 8601 time, as 2026-01-31T12:00:00Z", timestamp=timestamp[:60]
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _rendered(found: Consumed, wanted: str) -> Response:
    if wanted == ARROW:
        return arrow_answer(consumed_arrow(found), consumed_headers(found))
    form = wanted if wanted in _BODIES else MSGPACK
    return Response(_BODIES[form](found), media_type=form)


_BODIES = {
    JSON: lambda found: encoded(consumed_out(found), JSON),
    MSGPACK: lambda found: encoded(consumed_packed(found), MSGPACK),
}


# --- ack, extend, release ---------------------------------------------------------------------------------------


async def ack(call: Call) -> Response:
    call.refuse_idempotency_key("an acknowledgement may be repeated as it is")
    request, _ = await call.decoded(_ack)
    session = await call.session(request.namespace)
    if request.nack:
        if request.upto_offset is not None:
            raise InvalidRequest("nack goes with offsets, not with upto_offset")
        acknowledged = await session.nack(
            request.topic, request.group_id, request.offsets,
            partition=request.partition_id, reason=request.reason, consumer=request.consumer,
        )  # fmt: skip
    else:
        acknowledged = await session.ack(
            request.topic, request.group_id, request.upto_offset,
            partition=request.partition_id, offsets=request.offsets, consumer=request.consumer,
        )  # fmt: skip
    return answer(AckAnswer(True, acknowledged), accepted(call.headers))


async def extend(call: Call) -> Response:
    request, _ = await call.decoded(_extend)
    if not MIN_VISIBILITY_SECONDS <= request.visibility_seconds <= LONGEST_VISIBILITY_SECONDS:
        raise InvalidRequest(
            f"visibility_seconds is {request.visibility_seconds}: it is {MIN_VISIBILITY_SECONDS} to "
            f"{LONGEST_VISIBILITY_SECONDS}"
        )
    session = await call.session(request.namespace)
    held = await session.extend(request.topic, request.group_id, request.consumer, request.visibility_seconds)
    return answer(ExtendAnswer(held), accepted(call.headers))


async def release(call: Call) -> Response:
    request, _ = await call.decoded(_release)
    session = await call.session(request.namespace)
    released = await session.release(request.topic, request.group_id, request.consumer)
    return answer(ReleaseAnswer(released), accepted(call.headers))


# --- whole topics -----------------------------------------------------------------------------------------------


async def read_topic(call: Call) -> Response:
    query = call.query("start", "partition", "namespace")
    session = await call.session(query.get("namespace", DEFAULT_NAMESPACE))
    batches = session.stream_arrow(
        call.path["topic"], start=_start_of_text(query.get("start")), partition=_partition_of(query.get("partition"))
    )
    first = await anext(batches, None)  # before the answer begins: what is refused is refused with its status
    headers = {"X-Topic": header_text(call.path["topic"])}
    return StreamingResponse(_stream(first, batches), headers=headers, media_type=ARROW)


async def _stream(first: pa.RecordBatch | None, batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[bytes]:
    sink = ArrowPieces()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), MESSAGE_SCHEMA) as writer:
        if first is not None:
            writer.write_batch(first)
            yield sink.taken()
            async for batch in batches:
                writer.write_batch(batch)
                yield sink.taken()
    yield sink.taken()


class ArrowPieces:
    """A file to write to, and take from what was written."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> bytes:
        written, self._written = self._written, []
        return b"".join(written)


def _start_of_text(text: str | None) -> Start | None:
    """`earliest`, `latest`, `offset:17` or `timestamp:…`."""
    if text is None:
        return None
    kind, _, value = text.partition(":")
    known = {"earliest": StartKind.EARLIEST, "latest": StartKind.LATEST}
    if text in known:
        return Start(known[text])
    if kind == "offset" and value.isascii() and value.isdecimal() and len(value) < 19:
        return Start(StartKind.OFFSET, int(value))
    if kind == "timestamp":
        return Start(StartKind.TIMESTAMP, milliseconds(value))
    raise InvalidRequest(f"start {text[:60]!r}: it is earliest, latest, offset:17 or timestamp:2026-01-31T12:00:00Z")


def _partition_of(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequest(f"partition {text[:60]!r}: it is a number, from 0")
    return int(text)
