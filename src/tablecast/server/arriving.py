"""A body of any size, as a file that a thread reads while it arrives.

The thread asks for the next piece, the event loop collects it, and what nobody asked for stays in the socket: whoever
writes slowly slows the sender down. About `PIECE_BYTES` are in memory, whatever the body's size. A sender that goes
away, or stays silent for too long, is an error in the thread, at the place where it reads.
"""

from __future__ import annotations

import asyncio
import io
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from tablecast.errors import Timeout, UnsupportedMediaType
from tablecast.server.bodies import Body, ClientGone

PIECE_BYTES = 1024 * 1024


class StreamedBody(Body):
    """`timeout_seconds` is how long it may stay silent, not how long it may take."""

    is_streamed = True

    def __init__(
        self, headers: Headers, receive: Receive, *, max_bytes: int, timeout_seconds: float, limit_name: str
    ) -> None:
        super().__init__(headers, receive, max_bytes=max_bytes, timeout_seconds=timeout_seconds, limit_name=limit_name)
        self._size = 0
        self._has_ended = False
        self._file = _Arriving(self, asyncio.get_running_loop())

    def file(self) -> io.RawIOBase:
        """For one thread, once. Raises what `piece` raises. Refuses at once what is too large by its own account."""
        self._check_length()
        encoding = self._headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            raise UnsupportedMediaType(
                f"Content-Encoding {encoding!r} is not taken here: send it plain", content_encoding=encoding
            )
        return self._file

    async def piece(self) -> bytes:
        """About PIECE_BYTES, fewer at the end, none after it. Raises TooLarge, Timeout or ClientGone."""
        parts: list[bytes] = []
        size = 0
        while size < PIECE_BYTES and not self._has_ended:
            body = await self._next()
            parts.append(body)
            size += len(body)
        self.unread = not self._has_ended
        return b"".join(parts)

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                message = await self._receive()
        except TimeoutError:
            raise Timeout(
                f"the sender was silent for {self._timeout_seconds:g} seconds, after {self._size} bytes",
                seconds=self._timeout_seconds,
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        self._size += len(body)
        self._has_ended = not message.get("more_body", False)
        if self._size > self._max_bytes:
            self._refuse(self._size)
        return body

    async def discard(self) -> None:
        if self.unread and not self._has_ended:
            await self._discard()


class _Arriving(io.RawIOBase):
    def __init__(self, body: StreamedBody, loop: asyncio.AbstractEventLoop) -> None:
        self._body = body
        self._loop = loop
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not len(self._rest):
            self._rest = memoryview(asyncio.run_coroutine_threadsafe(self._body.piece(), self._loop).result())
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
