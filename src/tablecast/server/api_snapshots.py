"""Snapshots of tables over HTTP: opened with the ranges to read, read as Arrow, closed.

Whoever may SELECT a table may open a snapshot of it, and sees in it what a SELECT would have shown at that commit. The
ends of ranges are opaque: they go back as they came. Rows are read and encoded in a thread, a record batch at a time,
and the next one when the client has taken the one before: memory stays flat.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from tablecast.codec.load_plan import encode_plan
from tablecast.core.rights import require_read, row_owner
from tablecast.engine.snapshots import IDLE_MS, MAX_SPLITS, TableSnapshot
from tablecast.errors import InvalidRequest, SnapshotGone
from tablecast.model.names import DEFAULT_NAMESPACE, full_name_of
from tablecast.server.answers import accepted, answer
from tablecast.server.api_topics import ArrowPieces
from tablecast.server.bodies import ARROW, Decoder
from tablecast.server.call import Call, Services


class SnapshotRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    table: str
    splits: Annotated[int, Meta(ge=1, le=MAX_SPLITS)] = 1
    namespace: str = DEFAULT_NAMESPACE


class SnapshotAnswer(msgspec.Struct, frozen=True):
    """`ranges` are [start, end], the last end null; `plan` holds the table's schema: see codec.load_plan."""

    snapshot_id: str
    seq: int
    ranges: list[list[str | None]]
    plan: bytes


class ClosedAnswer(msgspec.Struct, frozen=True):
    """Whether it was open."""

    closed: bool


_decode = Decoder(SnapshotRequest)


async def open_snapshot(call: Call) -> Response:
    request, _ = await call.decoded(_decode)
    opened = _opened(call, full_name_of(request.table, request.namespace))
    ranges = await call.in_thread(opened.ranges, request.splits)
    _expire_later(call.services)
    shown = [[_text(start), None if end == opened.bounds[1] else _text(end)] for start, end in ranges]
    said = SnapshotAnswer(opened.snapshot_id, opened.seq, shown, encode_plan([opened.table.schema]))
    return answer(said, accepted(call.headers))


def _opened(call: Call, name: str) -> TableSnapshot:
    engine = call.services.db.engine
    engine.check_open()
    published = engine.published
    table = published.catalog.table(name)
    with call.denials("SELECT", name):
        require_read(call.who, table.schema)
    return call.services.snapshots.open(
        published.snapshot,
        table,
        published.seq,
        engine.now_ms(),
        actor=call.who,
        owner=row_owner(call.who, table.schema),
    )


def _expire_later(services: Services) -> None:
    """Unread snapshots end also if nobody asks for any other."""
    if not services.snapshots.is_watched:
        services.snapshots.is_watched = True
        asyncio.get_running_loop().call_later(IDLE_MS / 1000, _expire, services)


def _expire(services: Services) -> None:
    services.snapshots.is_watched = False
    services.snapshots.expire()
    if len(services.snapshots):
        _expire_later(services)


async def close_snapshot(call: Call) -> Response:
    call.query()
    closed = call.services.snapshots.close(call.path["snapshot"], call.who.user_id)
    return answer(ClosedAnswer(closed), accepted(call.headers))


# --- rows -------------------------------------------------------------------------------------------------------


async def read_snapshot(call: Call) -> Response:
    query = call.query("start", "end", "seq")
    snapshot = _used(call)
    start = _key("start", query["start"]) if query.get("start") else snapshot.bounds[0]
    end = _key("end", query["end"]) if query.get("end") else snapshot.bounds[1]
    pieces = _pieces(snapshot, start, end, with_seq=_flag("seq", query.get("seq", "false")))
    first = await call.in_thread(next, pieces)  # before the answer begins: what is refused is refused with its status
    return StreamingResponse(_stream(call, first, pieces), media_type=ARROW)


def _used(call: Call) -> TableSnapshot:
    snapshot = call.services.snapshots.use(call.path["snapshot"], call.who.user_id)
    with call.denials("SELECT", snapshot.table.schema.full_name):
        require_read(call.who, snapshot.table.schema)  # the account's role may have changed meanwhile
    return snapshot


def _pieces(snapshot: TableSnapshot, start: bytes, end: bytes | None, *, with_seq: bool) -> Iterator[bytes]:
    """An Arrow stream, piece by piece."""
    batches = snapshot.batches(start, end, with_seq=with_seq)
    sink = ArrowPieces()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), snapshot.schema(with_seq=with_seq)) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


async def _stream(call: Call, piece: bytes, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A read that fails on the way breaks the stream off, without its end mark: no reader takes it for the whole."""
    yield piece
    while (following := await call.in_thread(next, pieces, None)) is not None:
        with contextlib.suppress(SnapshotGone):  # closed meanwhile: what is being read is read to its end
            call.services.snapshots.use(call.path["snapshot"], call.who.user_id)
        yield following


def _key(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(
            f"{name} {text[:60]!r} is not one that opening a snapshot answered", parameter=name
        ) from None


def _text(key: bytes | None) -> str | None:
    return None if key is None else base64.urlsafe_b64encode(key).decode()


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name} {text[:60]!r}: it is true or false", parameter=name)
    return text == "true"
