"""One WebSocket, from uvicorn's hands to ours: frames in, frames out, and the bounds of both.

uvicorn reads the upgrade request and hands the connection over. The application is asked as for any request, so the
access log, the routes and the proxies' addresses are the same; it accepts, or answers like HTTP. From then on there is
no task and no queue between the transport and who serves it: a message is a call, and a frame to send is bytes that
are written as they are. That is what lets thousands of sockets share one frame.

    too large, no frame, no UTF-8    `failed`, then the close code that RFC 6455 has for it
    an answer that is not taken      `is_full` from `buffer_bytes` on; reading stops, so nothing more is asked;
                                     closed when nothing was taken for STALL_SECONDS
    a peer that says nothing         pinged every `ping_seconds`; gone if it did not answer until the next ping
    closing                          the peer may take CLOSE_SECONDS to agree

This module and the SDK's own are the only imports of websockets.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from tablecast.codec.live import MAX_MESSAGE_BYTES, SUBPROTOCOLS
from tablecast.server.doorkeeper import Doorkeeper

STALL_SECONDS = 300.0  # as for answers of HTTP: a reader may pause on purpose
CLOSE_SECONDS = 5.0  # for the peer's part of a close, and for what is still to be sent
LINGER_SECONDS = 1.0  # how long what a failed peer still sends is read, and thrown away
MAX_REASON_BYTES = 123  # of a close frame, which has 125 and begins with the code
SCOPE_KEY = "tablecast.socket"  # where the application finds the socket in its scope

_log = logging.getLogger("tablecast.live")
_frames_log = logging.getLogger("tablecast.live.frames")
_frames_log.setLevel(
    logging.ERROR
)  # what a peer does wrong is told to the peer: lines for it would let it fill the log


class Served(Protocol):
    """Who gets what a socket receives. Called on the event loop; must not block."""

    def received(self, data: bytes, is_text: bool) -> None: ...

    def failed(self, code: int, reason: str) -> None:
        """The peer sent what is no WebSocket message. A last message may be sent; the socket closes then."""

    def crowded(self, is_full: bool) -> None:
        """The peer does not keep up any more, or does again."""

    def lost(self) -> None:
        """Nothing can be sent or received any more. Called once."""


def text_frame(payload: bytes) -> bytes:
    return _head(0x81, len(payload)) + payload


def binary_frame(payload: bytes) -> bytes:
    return _head(0x82, len(payload)) + payload


def _head(first: int, length: int) -> bytes:
    """Of one whole unmasked frame (RFC 6455, 5.2). Every change is one: the library's way takes six times as long."""
    if length < 126:
        return bytes((first, length))
    return struct.pack("!BBH", first, 126, length) if length < 65_536 else struct.pack("!BBQ", first, 127, length)


class _Frames(ServerProtocol):
    def select_subprotocol(self, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        """None if the client wants none of ours: then its first message says what it speaks. A method, since what the
        library is given instead is bound to its object, and a socket's end would leave a cycle of the two."""
        return next((name for name in offered if name in SUBPROTOCOLS), None)


class LiveSocket(asyncio.Protocol):
    """Made by uvicorn for each upgrade. `is_full` says that the peer does not keep up."""

    buffer_bytes: ClassVar[int]
    ping_seconds: ClassVar[float]
    door: ClassVar[Doorkeeper]

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self._app = config.loaded_app
        self._root_path = config.root_path
        self._state = server_state
        self._app_state = app_state
        self._loop = asyncio.get_running_loop()
        self._frames = _Frames(max_size=MAX_MESSAGE_BYTES, logger=_frames_log)
        self._transport: asyncio.Transport
        self._handshake: Response | None = None
        self._served: Served | None = None
        self._parts: list[bytes] = []
        self._parts_are_text = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_heard = True
        self._has_failed = False
        self._is_closing = False  # we are: what the peer sends is not looked at any more
        self._ping_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self.is_full = False
        self.write: Callable[[bytes], None]  # the transport's own: the shortest way for what thousands are sent

    @property
    def subprotocol(self) -> str | None:
        return self._frames.subprotocol

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.write = transport.write
        transport.set_write_buffer_limits(high=self.buffer_bytes)
        self._state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        for timer in (self._ping_timer, self._stall_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._writable.set()
        self._frames.parser_exc = None  # its traceback holds the frames: without it they end with us
        with self.door:
            self._end()

    def eof_received(self) -> None:
        self._frames.receive_eof()

    def shutdown(self) -> None:
        """uvicorn stops, and whoever is served was told before: this is for those that nobody serves yet."""
        if self._served is None:
            self._transport.close()

    def _end(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.lost()

    # --- the upgrade ---

    def _upgrade(self, request: Request) -> None:
        response = self._frames.accept(request)
        if response.status_code != 101:
            self._answer(response)
            return
        self._handshake = response
        task = self._loop.create_task(self.door.metered(self._ask(self._scope(request))))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _scope(self, request: Request) -> MutableMapping[str, Any]:
        path, _, query = request.path.partition("?")
        return {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(self._transport) else "ws",
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "root_path": self._root_path,
            "path": self._root_path + unquote(path),
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": [
                (name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.raw_items()
            ],
            "subprotocols": [],
            "state": self._app_state.copy(),
            "extensions": {"websocket.http.response": {}},
            SCOPE_KEY: self,
        }

    async def _ask(self, scope: MutableMapping[str, Any]) -> None:
        try:
            await self._app(scope, _connect, self._asgi_send)
        except Exception:
            _log.exception("an upgrade failed unexpectedly")
        if self._served is None and not self._transport.is_closing():
            self._transport.close()

    async def _asgi_send(self, message: MutableMapping[str, Any]) -> None:
        if self._handshake is None or self._transport.is_closing():
            return
        if message["type"] == "websocket.accept":
            self._answer(self._with_headers(self._handshake, message))
        elif message["type"] == "websocket.http.response.start":
            self._handshake = self._with_headers(self._frames.reject(message["status"], ""), message)
        elif message["type"] == "websocket.http.response.body":
            self._handshake.body = message["body"]
            self._answer(self._handshake)

    def _with_headers(self, response: Response, message: MutableMapping[str, Any]) -> Response:
        for name, value in message.get("headers", ()):
            key = name.decode("latin-1")
            if key in response.headers:
                del response.headers[key]
            response.headers[key] = value.decode("latin-1")
        return response

    def _answer(self, response: Response) -> None:
        self._frames.send_response(response)
        self._flush()

    def serve(self, served: Served) -> None:
        """From here on `served` gets what comes. The upgrade was accepted."""
        self._served = served
        if self._transport.is_closing():
            self._end()
            return
        self._ping_timer = self._loop.call_later(self.ping_seconds, self._ping)

    # --- frames ---

    def data_received(self, data: bytes) -> None:
        """What peers say is nearly all of it about live queries to be opened and closed."""
        with self.door:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        self._is_heard = True
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Request):
                self._upgrade(event)
            elif isinstance(event, Frame) and not self._is_closing:
                self._take(event)
        if self._frames.parser_exc is not None:
            self._fail()
        self._flush()

    def _fail(self) -> None:
        """The reader of frames has given up, and its close frame waits to be sent: what is said now comes before it."""
        close = self._frames.close_sent
        if close is not None and self._served is not None and not self._has_failed:
            self._has_failed = True
            self._served.failed(close.code, close.reason)

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._parts, self._parts_are_text = [], frame.opcode is Opcode.TEXT
        elif frame.opcode is not Opcode.CONT:
            return
        self._parts.append(bytes(frame.data))
        if frame.fin and self._served is not None:
            parts, self._parts = self._parts, []
            self._served.received(b"".join(parts), self._parts_are_text)

    def _flush(self) -> None:
        """Sends what the WebSocket protocol itself has to say: the handshake, pongs, closes."""
        for data in self._frames.data_to_send():
            if data is SEND_EOF:
                self._hang_up()
            elif not self._transport.is_closing():
                self.write(data)

    # --- closing ---

    def close(self, code: int, reason: str) -> None:
        """What was written before is sent. The peer is asked to close, and made to."""
        self._is_closing = True
        if self._frames.state is State.OPEN:
            self._frames.send_close(code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
            self._flush()
        self._abort_after(CLOSE_SECONDS)

    def abort(self) -> None:
        self._transport.abort()

    def _hang_up(self) -> None:
        """To close while the peer still sends would take back what it was told: its system drops what a reset follows."""
        self._end()
        if self._frames.parser_exc is not None and self._transport.can_write_eof():
            self._transport.write_eof()
            self._abort_after(LINGER_SECONDS)
        else:
            self._transport.close()
            self._abort_after(CLOSE_SECONDS)

    def _abort_after(self, seconds: float) -> None:
        if self._close_timer is None:
            self._close_timer = self._loop.call_later(seconds, self._transport.abort)

    # --- peers that do not take, or are no longer there ---

    async def writable(self) -> None:
        """Waits until the peer has taken most of what it was sent."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        self.is_full = True
        if self._served is not None:
            self._served.crowded(True)
        self._writable.clear()
        if not self._transport.is_closing():
            self._transport.pause_reading()
        self._await_reader(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.is_full = False
        if self._served is not None:
            self._served.crowded(False)
        self._is_heard = True
        self._writable.set()
        if not self._transport.is_closing():
            self._transport.resume_reading()
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _await_reader(self, unsent_bytes: int) -> None:
        self._stall_timer = self._loop.call_later(STALL_SECONDS, self._close_if_stalled, unsent_bytes)

    def _close_if_stalled(self, unsent_bytes: int) -> None:
        """Little is added while it is full: fewer bytes than before means that the peer took some."""
        now_unsent = self._transport.get_write_buffer_size()
        if now_unsent >= unsent_bytes:
            self._transport.abort()
        else:
            self._await_reader(now_unsent)

    def _ping(self) -> None:
        """While it is full nothing is heard because nothing is read, and a ping would wait behind all the rest."""
        if not self.is_full:
            if not self._is_heard:
                self._transport.abort()
                return
            self._is_heard = False
            if self._frames.state is State.OPEN:
                self._frames.send_ping(b"")
                self._flush()
        self._ping_timer = self._loop.call_later(self.ping_seconds, self._ping)


async def _connect() -> MutableMapping[str, Any]:
    return {"type": "websocket.connect"}


def socket_class(buffer_bytes: int, ping_seconds: float, door: Doorkeeper) -> type[LiveSocket]:
    """uvicorn makes sockets itself and hands them nothing of ours: so the bounds are the class's."""
    bounds = {"buffer_bytes": buffer_bytes, "ping_seconds": ping_seconds, "door": door}
    return type("BoundedSocket", (LiveSocket,), bounds)
