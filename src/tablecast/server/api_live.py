"""`GET /v1/api/live`: a live query as a stream of events, for curl and whoever has no WebSocket.

    event: subscribed     no id: the rows are still to come (resumed: the id that it was resumed from)
    event: rows           the id with the last of them
    event: live           id
    event: change         id, one event per commit
    event: lagging        id; the stream ends, because its reader is too slow
    event: error          the stream ends
    (no event)            id, after HEARTBEAT_SECONDS without one: there was nothing to tell up to it

The data are the messages of codec.live as JSON, all with `"id": 0`. An id is a history and a commit number, as
`7f3a90c1d2e4b586-118`: a browser that lost the stream sends the last one as `Last-Event-ID` and gets what it missed. Those
without an event also keep proxies from closing a stream that has nothing to say.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tablecast.codec.live import (
    DEFAULT_BATCH_ROWS,
    JSON_FORM,
    MAX_EXACT_INT,
    Error,
    Lagging,
    Live,
    Rows,
    Subscribed,
)
from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.engine.live import LiveSubscription, Told
from tablecast.errors import InvalidRequest, TablecastError, Unauthenticated
from tablecast.server.auth import SignedIn
from tablecast.server.bodies import EVENTS
from tablecast.server.call import Call
from tablecast.server.connection import INPUT, Input
from tablecast.server.live import LiveService, internal, read_batch
from tablecast.server.live_forms import change_event, changes_out, columns_out, event, event_id, heartbeat, rows_out
from tablecast.server.logs import identify
from tablecast.server.values import json_params

HEARTBEAT_SECONDS = 15.0  # proxies give up on silence after half a minute or more
STREAM: Final = 0  # the id of the only subscription that a stream has
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second tells nginx to pass events on at once

_log = logging.getLogger("tablecast.live")
_EVENT_ID = re.compile(r"([0-9a-f]{1,64})-([0-9]{1,16})", re.ASCII)
_decode_params = msgspec.json.Decoder(list[Any]).decode


async def stream_live(call: Call) -> Response:
    service = call.services.live
    signed_in = await service.auth.signed_in(call.headers.get("authorization"), call.address)
    call.actor = signed_in.actor
    identify(signed_in.actor.user_id)
    query = call.query("sql", "params", "namespace")
    if "sql" not in query:
        raise InvalidRequest("the parameter sql is missing: a SELECT over one table", parameter="sql")
    if call.scope["method"] == "HEAD":
        return Response(media_type=EVENTS, headers=HEADERS)
    planned = await service.plan(
        call.who, query["sql"], _params(query.get("params", "[]")), query.get("namespace", DEFAULT_NAMESPACE)
    )
    stream = EventStream(service, signed_in)
    client: Input | None = call.scope.get(INPUT)
    if client is not None:
        client.at_end(stream.drain)  # it has no end of its own: a client that says no more has most likely gone
    stream.begin(await service.hub.open(planned, stream, *_resumed(call.headers.get("last-event-id"))))
    return _EventResponse(stream)


def _params(text: str) -> list[Any]:
    try:
        return json_params(_decode_params(text))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"params is a JSON array, as [42]: {error}", parameter="params") from None


def _resumed(text: str | None) -> tuple[int | None, str | None]:
    """The commit to resume from, and its history."""
    if not text:
        return None, None
    found = _EVENT_ID.fullmatch(text)
    if found is None or int(found[2]) > MAX_EXACT_INT:
        raise InvalidRequest(f"Last-Event-ID {text[:60]!r} is not one of ours, as 7f3a90c1d2e4b586-118")
    return int(found[2]), found[1]


class _EventResponse(StreamingResponse):
    """Leaves the hub however it ends, also if nobody read a byte."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._events = stream.events()
        super().__init__(self._events, media_type=EVENTS, headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()
            await self._events.aclose()


class EventStream:
    """One subscription and its reader: the hub's `Subscriber`. What the reader has not taken waits here, bounded."""

    def __init__(self, service: LiveService, signed_in: SignedIn) -> None:
        self.signed_in: SignedIn | None = signed_in
        self._service = service
        self._history = service.hub.engine.history
        self._change_event = partial(change_event, self._history)
        self._live: LiveSubscription | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_over = False
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, live: LiveSubscription) -> None:
        self._live = live
        assert self.signed_in is not None
        seconds = self._service.auth.seconds_left(self.signed_in)
        if seconds is not None:  # the reader comes again, with another token
            expired = Unauthenticated("the access token has expired; ask again with another one, and resume")
            self._timer = asyncio.get_running_loop().call_later(seconds, self.expel, expired)
        self._service.join(self)
        self._service.check(self)

    def close(self) -> None:
        """The reader is gone, or has all that it will get."""
        self._end()
        self._live = None  # each holds the other
        self._service.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    # --- called by the hub and the service ---

    def told(self, live: LiveSubscription, told: Told) -> None:
        data = told.form("event", self._change_event)
        if self._waiting_bytes + len(data) > self._service.settings.live_buffer_bytes:
            self._service.hub.detach(live)
            self.must_resume(live)
        else:
            self._put(data)

    def must_resume(self, live: LiveSubscription) -> None:
        self._service.metrics.live_lagging()
        self._put(event(Lagging(STREAM, live.seq), self._at(live.seq)))
        self._end()

    def ended(self, live: LiveSubscription, error: TablecastError) -> None:
        self.expel(error)

    def expel(self, error: TablecastError) -> None:
        self._service.metrics.error(error.code)
        self._put(event(Error(id=STREAM, code=error.code, message=error.message, details=error.details)))
        self._end()

    def drain(self) -> None:
        self._end()

    def _at(self, seq: int) -> str:
        return event_id(self._history, seq)

    def _put(self, data: bytes) -> None:
        if not self._is_over:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._news.set()

    def _end(self) -> None:
        """Nothing more is told; what waits is still sent."""
        self._is_over = True
        self._news.set()
        if self._live is not None:
            self._service.hub.close(self._live)

    # --- the stream ---

    async def events(self) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._beginning()) as parts:
                async for data in parts:
                    yield data
                    if self._is_over:
                        break
        except TablecastError as error:
            self.expel(error)
        except Exception:
            _log.exception("a live query failed unexpectedly")
            self.expel(internal())
        while self._waiting or not self._is_over:
            yield await self._next()

    async def _beginning(self) -> AsyncGenerator[bytes]:
        live = self._live
        assert live is not None, "it has begun"
        is_resumed = live.mode == "resumed"
        told = live.seq, self._history, live.mode, columns_out(live.query), list(live.query.key_indexes)
        subscribed = Subscribed(STREAM, *told, live.sampled_seconds)
        yield event(subscribed, self._at(live.seq) if is_resumed else None)
        last = is_resumed
        while not last:
            rows, last = await read_batch(live, DEFAULT_BATCH_ROWS)
            shown = await self._service.shaped(len(rows), rows_out, live.query, rows, JSON_FORM)
            yield event(Rows(STREAM, live.seq, shown, last), self._at(live.seq) if last else None)
        changes = await live.go_live()
        if changes is None:
            self.must_resume(live)
            return
        seq = live.seq  # what is told from here on waits until `live` was sent
        caught_up = await self._service.shaped(len(changes), changes_out, live.query, changes, JSON_FORM)
        yield event(Live(STREAM, live.channel, seq, caught_up), self._at(seq))

    async def _next(self) -> bytes:
        if not self._waiting and not self._is_over:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._news.wait()
            if not self._news.is_set() and self._live is not None:  # all that was told has been sent
                return heartbeat(self._at(max(self._live.seq, self._service.hub.progress())))
        data = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        return data
