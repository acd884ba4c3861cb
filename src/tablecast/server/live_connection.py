"""One live connection: does what the protocol says, with the hub on one side and a socket on the other.

    socket ──message──▶ LiveProtocol ──action──▶ a task: sign in, open, read rows, join ──event──▶ LiveProtocol
       ▲                                                       │
       └───────────────── frames ◀──────────── Seat ◀── hub ───┘

What is told to a subscription that is live goes from the hub through its seat to the socket, without a task. Rows and
catch-up are read one subscription after the other, and only while the socket takes what it is sent: what a connection
holds in memory does not grow with what it asks for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context

import msgspec

from tablecast.client.values import from_extension
from tablecast.codec.live import (
    JSON_FORM,
    MAX_MESSAGE_BYTES,
    MSGPACK_FORM,
    Authenticate,
    Error,
    Form,
    Pong,
    ServerMessage,
    client_decoder,
)
from tablecast.core import live_protocol as p
from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.engine.live import LiveSubscription, Told
from tablecast.errors import InvalidRequest, SnapshotGone, TablecastError, TooLarge, Unauthenticated
from tablecast.server.auth import SignedIn, encode_basic
from tablecast.server.live import LiveService, internal, read_batch
from tablecast.server.live_channels import Channels
from tablecast.server.live_forms import FRAMES, changes_out, columns_out, frame, rows_out
from tablecast.server.live_socket import LiveSocket
from tablecast.server.logs import identify
from tablecast.server.values import json_params

WAIT_SECONDS = 300.0  # for a next_batch: a snapshot that waits keeps the store from freeing what was replaced

_decode = client_decoder(from_extension)
_log = logging.getLogger("tablecast.live")


class Seat:
    """One subscription's place between hub and socket: the hub's `Subscriber`."""

    __slots__ = ("_connection", "_early", "_is_detached", "_socket", "live", "subscription", "task", "timer")

    def __init__(self, connection: LiveConnection, socket: LiveSocket, subscription: p.Subscription) -> None:
        self._connection = connection
        self._socket = socket
        self._early: list[Told] | None = []  # told before `live` was sent; None from then on
        self._is_detached = False
        self.subscription = subscription
        self.live: LiveSubscription | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    # --- called by the hub ---

    def told(self, live: LiveSubscription, told: Told) -> None:
        """Where all deliveries go through. Subscriptions of one connection that share a channel get one frame."""
        connection = self._connection
        if self._early is not None:
            self._early.append(told)
        elif self._socket.is_full:
            connection.lag(self, connection.hub.detach(live))
        elif connection.last_seq != told.seq or connection.last_channel != told.channel:
            connection.write(told)

    def ended(self, live: LiveSubscription, error: TablecastError) -> None:
        self._connection.end(self, error)

    def must_resume(self, live: LiveSubscription) -> None:
        self._is_detached = True
        if self._early is None:
            self._connection.lag(self, live.seq)

    # --- called by the connection ---

    def went_live(self, live: LiveSubscription, seq: int) -> None:
        """`live` was sent, up to `seq`: what was told meanwhile follows it."""
        early, self._early = self._early or [], None
        for told in early:
            if self._socket.is_full:
                self._connection.lag(self, seq)
                return
            self._connection.write(told)  # though others of the channel may have had it: then it came before `live`
            seq = told.seq
        if self._is_detached:
            self._connection.lag(self, live.seq)
        else:
            self._connection.hears(live)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        self.task = None  # what it ends with holds its frame, and that holds us


Step = Callable[[Seat], Awaitable[None]]


class LiveConnection:
    """What a `LiveSocket` serves. Of one event loop."""

    def __init__(self, service: LiveService, socket: LiveSocket, address: str, form: Form | None) -> None:
        self.hub = service.hub
        self._service = service
        self._socket = socket
        self._address = address
        self._form = form
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # so that tasks and threads know the request that they work for
        self._protocol = p.LiveProtocol(service.settings.live_max_subscriptions)
        self._seats: dict[p.Subscription, Seat] = {}
        self._turn = asyncio.Lock()  # reads of rows and catch-ups, one after the other
        self._channels = Channels()
        self.last_channel = self.last_seq = 0  # of the last change that was sent
        self._signing_in: asyncio.Task[None] | None = None
        seconds = service.settings.live_auth_seconds
        self._timer = self._loop.call_later(seconds, lambda: self._perform(self._protocol.is_late(seconds)))
        self._has_been_live = False
        self.signed_in: SignedIn | None = None
        service.join(self)

    # --- called by the socket ---

    def received(self, data: bytes, is_text: bool) -> None:
        form = JSON_FORM if is_text else MSGPACK_FORM
        if self._form is None:
            self._form = form
        if form != self._form:
            self._fail(p.UNSUPPORTED_DATA, InvalidRequest(f"this connection speaks {self._form}, and got {form}"))
            return
        try:
            message = _decode(data, form)
        except (TablecastError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._fail(p.INVALID_DATA, InvalidRequest(f"this is not a message: {error}"))
            return
        self._perform(self._protocol.received(message))

    def failed(self, code: int, reason: str) -> None:
        if code == p.MESSAGE_TOO_BIG:
            self._fail(code, TooLarge(f"a message may have {MAX_MESSAGE_BYTES} bytes", limit=MAX_MESSAGE_BYTES))
        else:
            self._fail(code, InvalidRequest(f"this is not a WebSocket message: {reason}"))

    def lost(self) -> None:
        self._service.leave(self)
        self._timer.cancel()
        if self._signing_in is not None:
            self._signing_in.cancel()
        self._perform(self._protocol.closed())

    # --- called by the service ---

    def welcome(self, signed_in: SignedIn) -> None:
        """The upgrade had credentials, or the first message has, and they were right."""
        self._timer.cancel()
        self.signed_in = signed_in
        identify(signed_in.actor.user_id)
        seconds = self._service.auth.seconds_left(signed_in)
        if seconds is not None:
            expired = Unauthenticated("the access token has expired; connect with another one and resume")
            self._timer = self._loop.call_later(seconds, self.expel, expired)
        self._perform(self._protocol.signed_in(signed_in.actor.user_id, signed_in.actor.role.name.lower()))
        self._service.check(self)  # the account may have changed while its password was compared

    def expel(self, error: TablecastError) -> None:
        self._fail(p.UNAUTHENTICATED, error)

    def drain(self) -> None:
        self._perform(self._protocol.drained())

    def crowded(self, is_full: bool) -> None:
        self._channels.take(None if is_full else self._socket.write)

    # --- called by seats ---

    def hears(self, live: LiveSubscription) -> None:
        """What is told from here on may go to the socket at once."""
        send = None if self._socket.is_full else self._socket.write
        self._channels.join(live, send, FRAMES[self._form or JSON_FORM])

    def write(self, told: Told) -> None:
        self.last_channel, self.last_seq = told.channel, told.seq
        self._socket.write(told.form(*FRAMES[self._form or JSON_FORM]))

    def lag(self, seat: Seat, seq: int) -> None:
        self._service.metrics.live_lagging()
        self._perform(self._protocol.lagging(seat.subscription, seq))

    def end(self, seat: Seat, error: TablecastError) -> None:
        self._perform(self._protocol.failed(seat.subscription, error))

    # --- actions ---

    def _fail(self, code: int, error: TablecastError) -> None:
        self._perform(self._protocol.failed_for_all(code, error))

    def _perform(self, actions: p.Actions) -> None:
        for action in actions:
            match action:
                case p.Send(message):
                    self._send(message)
                case p.Answer(nonce):
                    self._send(Pong(self.hub.progress(), nonce))
                case p.Open(subscription):
                    seat = self._seats[subscription] = Seat(self, self._socket, subscription)
                    self._start(seat, self._open)
                case p.ReadRows(subscription):
                    seat = self._seats[subscription]
                    self._start(seat, self._read)
                case p.Join(subscription):
                    seat = self._seats[subscription]
                    self._start(seat, self._join)
                case p.Leave(subscription):
                    self._leave(self._seats.pop(subscription))
                case p.CheckCredentials(credentials):
                    self._signing_in = self._loop.create_task(self._sign_in(credentials), context=self._context)
                case p.Close(code, reason):
                    self._socket.close(code, reason)

    def _send(self, message: ServerMessage) -> None:
        if isinstance(message, Error):
            self._service.metrics.error(message.code)
        self._socket.write(frame(message, self._form or JSON_FORM))

    def _leave(self, seat: Seat) -> None:
        seat.stop()
        if seat.live is not None:
            self._channels.leave(seat.live)
            self.hub.close(seat.live)
            seat.live = None  # each holds the other: what thousands leave behind is not left to the garbage collector

    def _start(self, seat: Seat, step: Step) -> None:
        if seat.timer is not None:
            seat.timer.cancel()
        was_in = self._has_been_live and seat.subscription.request.resume is not None  # and was too slow
        has_rows = step == self._join  # and its reader takes it to be live
        work = self._service.door.metered(self._reported(seat, step), waits=not (was_in or has_rows))
        seat.task = self._loop.create_task(work, context=self._context)

    async def _reported(self, seat: Seat, step: Step) -> None:
        try:
            await step(seat)
        except TablecastError as error:
            self.end(seat, error)
        except Exception:
            _log.exception("a live query failed unexpectedly")
            self.end(seat, internal())

    # --- steps: each ends with the event that the protocol waits for ---

    async def _sign_in(self, credentials: Authenticate) -> None:
        try:
            signed_in = await self._service.auth.signed_in(_authorization(credentials), self._address)
        except TablecastError as error:
            self._perform(self._protocol.refused(error))
        except Exception:
            _log.exception("a sign-in failed unexpectedly")
            self._perform(self._protocol.refused(internal()))
        else:
            self.welcome(signed_in)

    async def _open(self, seat: Seat) -> None:
        assert self.signed_in is not None, "nobody subscribes before"
        request, form = seat.subscription.request, self._form or JSON_FORM
        params = json_params(request.params) if form == JSON_FORM else request.params
        namespace = request.namespace or DEFAULT_NAMESPACE
        query = await self._service.plan(self.signed_in.actor, request.sql, params, namespace)
        seat.live = live = await self.hub.open(query, seat, request.resume, request.history)
        told = live.seq, self.hub.engine.history, live.mode, columns_out(query), list(query.key_indexes)
        self._perform(self._protocol.opened(seat.subscription, *told, live.sampled_seconds))

    async def _read(self, seat: Seat) -> None:
        live = seat.live
        assert live is not None, "it was opened"
        async with self._turn:
            await self._socket.writable()
            rows, last = await read_batch(live, seat.subscription.request.batch_rows)
            shown = await self._service.shaped(len(rows), rows_out, live.query, rows, self._form or JSON_FORM)
            self._perform(self._protocol.rows_read(seat.subscription, live.seq, shown, last))
        if seat.subscription.stage is p.Stage.WAITING:
            seat.timer = self._loop.call_later(WAIT_SECONDS, self.end, seat, _not_asked_for())

    async def _join(self, seat: Seat) -> None:
        live = seat.live
        assert live is not None, "it was opened"
        async with self._turn:
            await self._socket.writable()
            changes = await live.go_live()
            if changes is None:  # what it missed is no longer known, as it will be told when it subscribes again
                self.lag(seat, live.seq)
                return
            seq = live.seq  # what is told from here on is kept by the seat until `live` was sent
            shown = await self._service.shaped(len(changes), changes_out, live.query, changes, self._form or JSON_FORM)
            self._perform(self._protocol.joined(seat.subscription, live.channel, seq, shown))
        self._has_been_live = True
        seat.went_live(live, seq)


def _authorization(credentials: Authenticate) -> str:
    if credentials.token is not None:
        return f"Bearer {credentials.token}"
    return encode_basic(credentials.user or "", credentials.password or "")


def _not_asked_for() -> TablecastError:
    return SnapshotGone(f"no next_batch came within {WAIT_SECONDS:g} seconds, and the rows are let go; subscribe again")
