"""The way of an answer from the thread that commits straight to the client (sql.prompt).

The bytes go to the socket through a descriptor of our own: the connection's may be closed meanwhile, and its number given to
another client's. While a request waits, nobody else writes to its connection, so they cannot get between others. The request
is then answered as any other, with all that belongs to it, but for the bytes that are sent already.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from tablecast.model.message import Consumed
from tablecast.server.logs import REQUEST_ID_HEADER


class HttpPrompt:
    """See `Prompt`. `body` renders what was found, as `media_type`."""

    __slots__ = ("_body", "_cycle", "_descriptor", "_media_type", "_request_id", "_transport", "unsent")

    def __init__(
        self,
        cycle: RequestResponseCycle,
        transport: asyncio.Transport,
        body: Callable[[Consumed], bytes],
        media_type: str,
        request_id: str,
    ) -> None:
        self._cycle = cycle
        self._transport = transport
        self._body = body
        self._media_type = media_type.encode()
        self._request_id = request_id.encode()
        self._descriptor: int | None = None
        self.unsent = b""  # of what was to be sent

    def open(self) -> bool:
        transport = self._transport
        is_plain = transport.get_extra_info("sslcontext") is None
        if not is_plain or transport.is_closing() or transport.get_write_buffer_size():
            return False
        found: socket.socket | None = transport.get_extra_info("socket")
        if found is None:
            return False
        try:
            self._descriptor = os.dup(found.fileno())
        except OSError:  # no more of them: then it is answered by the loop
            return False
        return True

    def render(self, found: Consumed) -> bytes:
        """As `Response` and uvicorn would."""
        body = self._body(found)
        lines = [name + b": " + value for name, value in self._cycle.default_headers]
        lines.append(
            b"content-length: %d\r\ncontent-type: %s\r\n%s: %s"
            % (len(body), self._media_type, REQUEST_ID_HEADER, self._request_id)
        )
        if not self._cycle.keep_alive:
            lines.append(b"connection: close")
        return STATUS_LINE[200] + b"\r\n".join(lines) + b"\r\n\r\n" + body

    def send(self, answer: bytes) -> None:
        self.unsent = answer
        if self._descriptor is not None:
            try:
                self.unsent = answer[os.write(self._descriptor, answer) :]
            except OSError:
                pass  # it is full, or gone: the loop finds out which

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def abort(self) -> None:
        self._transport.abort()
