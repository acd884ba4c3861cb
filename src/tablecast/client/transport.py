"""HTTP requests over pooled connections: the only import of aiohttp.

Nothing here knows what is sent. Every way in which an answer may fail to come is one exception, `NoAnswer`, which tells
what a caller has to know: may the server have seen the request?
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp

from tablecast.errors import DatabaseClosed

CONNECTIONS = 1024  # of one client at a time; a waiting consume has one of its own
CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 4.0  # below the 5 s after which servers commonly hang up: no request meets a closing connection
CHUNK_BYTES = 256 * 1024


class NoAnswer(Exception):
    """`sent` is False if the request certainly did not reach the server."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Incoming:
    """An answer whose body is still arriving."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._content = response.content

    async def read(self, size: int) -> bytes:
        """Up to `size` bytes, at least one; none at the end."""
        try:
            return await self._content.read(min(size, CHUNK_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise _no_answer(e) from e

    async def read_all(self) -> bytes:
        parts = []
        while part := await self.read(CHUNK_BYTES):
            parts.append(part)
        return b"".join(parts)


class Transport:
    """One server's address and the connections to it. Belongs to one event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> Answer:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        async with self._open(method, path, headers, body, timeout) as response:
            return Answer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], timeout_seconds: float
    ) -> AsyncIterator[Incoming]:
        """For answers of any length: `timeout_seconds` is how long it may stay silent."""
        timeout = aiohttp.ClientTimeout(sock_read=timeout_seconds, sock_connect=CONNECT_SECONDS)
        async with self._open(method, path, headers, b"", timeout) as response:
            yield Incoming(response)

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session.closed:
            raise DatabaseClosed("the client is closed")
        try:
            async with self._session.request(
                method, self._url + path, headers=headers, data=body or None, timeout=timeout, allow_redirects=False
            ) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            if self._session.closed:
                raise DatabaseClosed("the client was closed meanwhile") from e
            raise _no_answer(e) from e

    async def close(self) -> None:
        await self._session.close()


def _no_answer(error: Exception) -> NoAnswer:
    unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return NoAnswer(str(error) or type(error).__name__, sent=not unsent)
