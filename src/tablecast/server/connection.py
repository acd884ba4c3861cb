"""One client's connection, as uvicorn serves it, with the bounds it leaves open.

    too many connections     503, and this one is closed; those that are open go on
    a head that does not end 431 beyond MAX_HEAD_BYTES, and 408 when it takes too long

A head is a request line and its headers. Until it is complete no application knows of the request, so nobody else can
judge it; from then on the body is the application's, with limits of its own. A head that comes in one piece, as nearly
all do, costs no timer.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tablecast.errors import Overloaded, TablecastError, Timeout, TooLarge

MAX_HEAD_BYTES = 65_536
LINGER_SECONDS = 1.0  # how long what a refused client still sends is read, and thrown away
KEEP_ALIVE_SECONDS = 75  # an unused connection is closed after that; clients that pool give up theirs sooner


class Connection(HttpToolsProtocol):
    max_connections: ClassVar[int]
    head_timeout_seconds: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(503, Overloaded(f"all {self.max_connections} connections are taken; try again"))
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self._is_between_requests() and not self.transport.is_closing():
            self._head_bytes += len(data)
            self._await_head()
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, TooLarge(f"the head of a request may have {MAX_HEAD_BYTES} bytes"))

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

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


def connection_class(max_connections: int, head_timeout_seconds: float) -> type[Connection]:
    """uvicorn makes connections itself and hands them nothing of ours: so the bounds are the class's."""
    bounds = {"max_connections": max_connections, "head_timeout_seconds": head_timeout_seconds}
    return type("BoundedConnection", (Connection,), bounds)
