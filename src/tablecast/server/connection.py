"""One client's connection, as uvicorn serves it, with the bounds it leaves open.

    too many connections      503, and this one is closed; those that are open go on
    too many new ones         the first request waits at the door (server/doorkeeper.py), and 503 when it takes too long
    a head that does not end  431 beyond MAX_HEAD_BYTES, and 408 when it takes too long
    requests sent ahead       before their turn: closed when PIPELINED_REQUESTS wait, or their head does not end
    an answer nobody takes    closed when nothing of it was taken for STALL_SECONDS
    a client's end of file    what it asked for is answered, without waiting for more, and the connection closed

A head is a request line and its headers. Until it is complete no application knows of the request, so nobody else can
judge it; from then on the body is the application's, with limits of its own. A head that comes in one piece, as nearly
all do, costs no timer. An answer that was given to the system to send is out of the application's hands, too: it
would stay in memory for as long as the client likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tablecast.errors import Overloaded, TablecastError, Timeout, TooLarge
from tablecast.server.doorkeeper import Doorkeeper
from tablecast.server.logs import PROBES
from tablecast.server.prompt_answer import HttpPrompt

MAX_HEAD_BYTES = 65_536
SMALL_BYTES = 4_096  # nearly every request; of what comes in larger pieces a head is measured, too
PIPELINED_REQUESTS = 32  # each costs some kilobytes out of a few bytes, and may bring 64 KiB of a body
STALL_SECONDS = 300.0  # long, because a reader of a stream may pause on purpose
LINGER_SECONDS = 1.0  # how long what a refused client still sends is read, and thrown away
WAITING_BYTES = 4_096  # read of a first request that waits to be let in, and one more piece; reading stops then
_PROBES = tuple(f"GET {path} ".encode() for path in sorted(PROBES))  # a server that is busy must not be taken for dead
INPUT = "tablecast.input"  # in a request's scope: whether its client may still send
ANSWER = "tablecast.answer"  # in a request's scope: what its answer is written to
PROMPT = "tablecast.prompt"  # likewise: makes the way past it
KEEP_ALIVE_SECONDS = 75  # an unused connection is closed after that; clients that pool give up theirs sooner


class Connection(HttpToolsProtocol):
    max_connections: ClassVar[int]
    head_timeout_seconds: ClassVar[float]
    door: ClassVar[Doorkeeper]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with self.door:
            super().__init__(*args, **kwargs)
        self._is_admitted = False
        self._early = b""  # what came of its first request before it was let in
        self._served: RequestResponseCycle | None = None
        self._is_in_head = True
        self._turns = 0  # how often a head or a request came to its end
        self._head_bytes = 0
        self._fed_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._is_handed_over = False
        self._input = Input()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        with self.door:
            super().connection_made(transport)
            if len(self.connections) > self.max_connections:
                self._refuse(503, Overloaded(f"all {self.max_connections} connections are taken; try again"))
            else:
                self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_admitted:
            if self._is_between_requests() and self.cycle is not None:
                self.door.begins(self)
            self._take(data)
        elif self._early:
            self._early += data
            if len(self._early) > WAITING_BYTES:
                self.flow.pause_reading()
        elif data.startswith(_PROBES) or self.door.arrives(self):
            self._enter(data)
        else:
            self._early = data
            self._stop_timer()  # it is late because of us

    # --- at the door ---

    def admitted(self) -> None:
        if self.transport.is_closing():
            return
        self._await_head()
        self.flow.resume_reading()
        early, self._early = self._early, b""
        self._enter(early)
        if self._input.has_ended and not self._awaits_answer() and not self.transport.is_closing():
            self.transport.close()

    def turned_away(self, error: Overloaded) -> None:
        if not self.transport.is_closing():
            self._refuse(503, error)

    def _enter(self, data: bytes) -> None:
        self._is_admitted = True
        with self.door:
            self._take(data)

    # --- requests ---

    def eof_received(self) -> bool | None:  # type: ignore[override]  # as asyncio has it
        """A client that has gone says the same as one that only has no more to ask, so requests that came whole are
        answered, and the connection stays until then. Nothing waits for its sake any more (`Input`): if it has gone, what
        was found for it is lost with the write that fails. TLS has no half of a connection."""
        if self._is_refused or not self.transport.can_write_eof():
            return None
        self._input.has_ended = True
        if self._early:
            return True  # at the door; it is looked at when it is let in
        return self._awaits_answer()

    def _awaits_answer(self) -> bool:
        """After the end of the input: whether a whole request is still to be answered. One that is not whole never will be."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        if self.cycle.more_body:
            if not self.pipeline:
                return False
            self.pipeline.popleft()  # the last one is the only one that may lack a part
        self._input.tell()
        return True

    def _take(self, data: bytes) -> None:
        """As much of it at a time as a head may still have: one that is not complete then is too long."""
        while len(data) > (room := MAX_HEAD_BYTES - self._head_bytes):
            if not room:
                self._refuse_head()
                return
            self._feed(data[:room])
            if self._is_refused or self._is_handed_over or self.transport.is_closing():
                return
            data = data[room:]
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        turns, self._fed_bytes = self._turns, len(data)
        super().data_received(data)
        if self._is_handed_over:
            return
        is_between = self._is_between_requests()
        if self._is_refused or self.transport.is_closing() or not (self._is_in_head or is_between):
            return
        if turns == self._turns:  # all of the data is of one head, or of a body that nobody waits for any more
            self._head_bytes += len(data)
        if is_between:
            self._await_head()

    def on_headers_complete(self) -> None:
        if self._fed_bytes > SMALL_BYTES and self._told_bytes() > MAX_HEAD_BYTES:  # it began behind another request
            self._refuse_head()
            raise _HeadRefused
        self._turn(is_in_head=False)
        self._stop_timer()
        if self.transport.is_closing():
            return  # what else came with the request that was one too many
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED_REQUESTS:
            self.transport.abort()
        elif self.pipeline:
            self.flow.resume_reading()  # else nobody would notice that the client goes away

    def _told_bytes(self) -> int:
        """Of the head that is complete, without what is between its parts."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        if not (self._is_refused or self.transport.is_closing()):
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        self._turn(is_in_head=True)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is another's: server/live_socket.py."""
        self._is_handed_over = True
        self.door.ends(self)
        if self._is_between_requests():
            super().handle_websocket_upgrade()
            self.parser = None  # type: ignore[assignment]  # each holds the other, and nobody will tell us of the end
        else:
            self.transport.abort()  # the answers to requests before it would go between the frames

    def _turn(self, *, is_in_head: bool) -> None:
        self._is_in_head = is_in_head
        self._head_bytes = 0
        self._turns += 1

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._served is None:
            app = self._metered(app)
        self._served = cycle
        if cycle.scope["method"] != "HEAD":  # whose answer is a head and nothing else
            answer = HeadWithBody(self.transport, self.loop)
            cycle.transport = answer  # type: ignore[assignment]
            scope: Scope = cycle.scope  # type: ignore[assignment]
            scope[ANSWER] = answer
            scope[INPUT] = self._input
            scope[PROMPT] = partial(HttpPrompt, cycle, self.transport)
        super()._start_asgi_task(cycle, app)

    def _metered(self, app: ASGIApp) -> ASGIApp:
        async def for_newcomer(scope: Scope, receive: Receive, send: Send) -> None:
            work: Any = app(scope, receive, send)
            await self.door.metered(work, waits=scope["path"] not in PROBES)

        return for_newcomer

    def on_response_complete(self) -> None:
        self.door.ends(self)
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and self._input.has_ended and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.leaves(self)
        self.door.ends(self)
        self._stop_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True  # uvicorn tells only the last request that came
            self._served.message_event.set()

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(408, Timeout(f"no complete request came within {self.head_timeout_seconds:g} s"))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_head(self) -> None:
        if self._is_between_requests():
            self._refuse(431, TooLarge(f"the head of a request may have {MAX_HEAD_BYTES} bytes"))
        else:
            self.transport.abort()  # the answer to the request before it would come after this one

    def _refuse(self, status: int, error: TablecastError) -> None:
        self._stop_timer()
        self._is_refused = True
        body = msgspec.json.encode({"error": {"code": error.code, "message": error.message, "details": {}}})
        self.transport.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\n"
            b"Connection: close\r\n\r\n%s" % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self._close_gently()

    def _close_gently(self) -> None:
        """To close while the client still sends would take back the answer: its system drops what a reset follows."""
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    # --- answers that are not taken ---

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def _await_reader(self, unsent_bytes: int) -> None:
        self._stop_stall_timer()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self._close_if_stalled, unsent_bytes)

    def _close_if_stalled(self, unsent_bytes: int) -> None:
        """While writing is paused nothing is added: fewer bytes than before means that the client took some."""
        now_unsent = self.transport.get_write_buffer_size()
        if now_unsent == unsent_bytes:
            self.transport.abort()
        else:
            self._await_reader(now_unsent)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class Input:
    """What comes of a client. When that ends, nobody is told twice."""

    __slots__ = ("_call", "has_ended")

    def __init__(self) -> None:
        self.has_ended = False
        self._call: Callable[[], None] | None = None

    def at_end(self, call: Callable[[], None]) -> None:
        """Calls it when the input ends, or now."""
        self._call = call
        if self.has_ended:
            self.tell()

    def tell(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class _HeadRefused(Exception):
    """Ends the parser's work on what has come."""


class HeadWithBody:
    """What uvicorn writes one answer to: its head waits for the beginning of its body, and they go in one system call.

    A head that goes ahead wakes the client for nothing, which then waits again for what it asked for. Where the body does
    not follow at once, as with a stream, the head goes as soon as the loop turns to something else.
    """

    __slots__ = ("_has_begun", "_head", "_loop", "_transport", "_unsent", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._has_begun = False
        self._unsent: bytes | None = None
        self.is_closing = transport.is_closing

    def was_given(self, unsent: bytes) -> None:
        """The client has the answer already (server/prompt_answer.py), but for these bytes."""
        self._unsent = unsent
        if unsent:
            self._transport.write(unsent)

    def write(self, data: bytes) -> None:
        if self._unsent is not None:
            return
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        elif self._has_begun:
            self._transport.write(data)
        else:
            self._has_begun = True
            self._head = data
            self._loop.call_soon(self._send_head)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)


def connection_class(max_connections: int, head_timeout_seconds: float, door: Doorkeeper) -> type[Connection]:
    """uvicorn makes connections itself and hands them nothing of ours: so the bounds are the class's."""
    bounds = {"max_connections": max_connections, "head_timeout_seconds": head_timeout_seconds, "door": door}
    return type("BoundedConnection", (Connection,), bounds)
