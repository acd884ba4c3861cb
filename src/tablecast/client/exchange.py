"""HTTP/1.1 on one connection, as the SDK needs it: one request, one answer, again. The only import of httptools.

A general HTTP client was measured at 0.4 ms of computation per request, three times what the server takes to answer; a
durable write over loopback takes one in all. This one does what the SDK asks for and no more: no redirects, no cookies,
no proxies, no content encodings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import cast

import httptools

BUFFER_BYTES = 1024 * 1024  # of an answer that nobody reads; beyond, the server has to wait

Fields = list[tuple[bytes, bytes]]
"""The headers of an answer, as they came."""


def by_name(fields: Fields) -> dict[str, str]:
    """Headers by name in lower case. Made when somebody asks: of an answer that is no error, nobody does."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in fields}


class ConnectionLost(Exception):
    """The connection ended, or said something that is not HTTP, before the answer was complete."""


class Exchange(asyncio.Protocol):
    """One connection. `ask` sends a request and waits for all of the answer. For answers of any length, `begin` sends it;
    then `head`, and `read` until it gives nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._lost: ConnectionLost | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._is_paused = False
        self._has_head = self._is_complete = self._stays_open = False
        self._is_writable = True
        self.status = 0
        self.fields: Fields = []
        self.used_at = 0.0  # when its last answer was complete, on the loop's clock

    # --- what the caller does ---

    async def ask(
        self, method: str, path: str, host: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> bytes:
        """The whole body of the answer. One that takes longer is lost, and the connection with it."""
        timer = self._loop.call_later(timeout_seconds, self._expire)
        try:
            await self.begin(method, path, host, headers, body)
            return await self.read_all()
        finally:
            timer.cancel()

    async def begin(self, method: str, path: str, host: str, headers: Mapping[str, str], body: bytes) -> None:
        assert self._transport is not None
        lines = [f"{method} {path} HTTP/1.1\r\nHost: {host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        lines.append("\r\n")
        self._has_head = self._is_complete = False
        self.status, self.fields = 0, []
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write("\r\n".join(lines).encode("latin-1") + body)
        while not self._is_writable and self._lost is None:  # if it is lost, the answer may be here all the same
            await self._something()

    async def head(self) -> None:
        while not self._has_head:
            await self._something()

    async def read(self) -> bytes:
        """The next piece of the body; none at its end."""
        while not self._chunks:
            if self._is_complete:
                return b""
            await self._something()
        return self._next_chunk()

    async def read_all(self) -> bytes:
        """Piece by piece: a connection that was paused for the size of what had come goes on as it is read."""
        pieces = []
        while self._chunks or not self._is_complete:
            if self._chunks:
                pieces.append(self._next_chunk())
            else:
                await self._something()
        return b"".join(pieces)

    def _next_chunk(self) -> bytes:
        chunk = self._chunks.popleft()
        self._buffered -= len(chunk)
        if self._is_paused and self._buffered < BUFFER_BYTES and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    @property
    def is_reusable(self) -> bool:
        """Whether another request can follow."""
        return self._lost is None and self._is_complete and not self._chunks and self._stays_open

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _something(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what the connection does ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being derived from it

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            self._end(ConnectionLost(f"what it said is not HTTP: {e}"))
            self.close()
        else:
            if self._buffered > BUFFER_BYTES and not self._is_paused and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionLost(str(error) if error else "the server closed the connection"))
        self._wake()

    def _expire(self) -> None:
        self._end(ConnectionLost("it took too long"))
        self._wake()

    def _end(self, lost: ConnectionLost) -> None:
        self._lost = self._lost or lost

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake()

    # --- what the parser finds ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._stays_open = self._parser.should_keep_alive()  # it forgets when the message is complete
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self.used_at = self._loop.time()
