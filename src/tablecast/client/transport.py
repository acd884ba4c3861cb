"""Requests to one server over connections that are kept and used again.

Nothing here knows what is sent. Every way in which an answer may fail to come is one exception, `NoAnswer`, which tells
what a caller has to know: may the server have seen the request?
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from tablecast.client.exchange import ConnectionLost, Exchange, Fields, by_name
from tablecast.errors import DatabaseClosed

CONNECTIONS = 1024  # of one client at a time; a waiting consume has one of its own
CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 4.0  # below the 5 s after which servers commonly hang up: no request meets a closing connection


class NoAnswer(Exception):
    """`sent` is False if the request certainly did not reach the server."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Answer(NamedTuple):
    status: int
    fields: Fields
    body: bytes

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case."""
        return by_name(self.fields)


class Incoming:
    """An answer whose body is still arriving."""

    def __init__(self, exchange: Exchange, timeout_seconds: float) -> None:
        self.status = exchange.status
        self.headers: Mapping[str, str] = by_name(exchange.fields)
        self._exchange = exchange
        self._timeout_seconds = timeout_seconds
        self._rest = b""

    async def read(self, size: int) -> bytes:
        """Up to `size` bytes, at least one; none at the end."""
        if not self._rest:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    self._rest = await self._exchange.read()
            except (ConnectionLost, TimeoutError) as e:
                raise _no_answer(e) from e
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    async def read_all(self) -> bytes:
        parts = []
        while part := await self.read(2**20):
            parts.append(part)
        return b"".join(parts)


class Transport:
    """One server's address and the connections to it. Belongs to one event loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._prefix = parts.hostname or "", parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._idle: list[Exchange] = []
        self._busy: set[Exchange] = set()
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._is_closed = False

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> Answer:
        """The whole of it within the time, and every failure of the connection as `NoAnswer`."""
        self._check_open()
        exchange = await self._taken()
        try:
            found = await exchange.ask(method, self._prefix + path, self._authority, headers, body, timeout_seconds)
            return Answer(exchange.status, exchange.fields, found)
        except ConnectionLost as e:
            raise self._failure(e) from e
        finally:
            self._put_back(exchange)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], timeout_seconds: float
    ) -> AsyncIterator[Incoming]:
        """For answers of any length: `timeout_seconds` is how long it may stay silent."""
        self._check_open()
        exchange = await self._taken()
        try:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await exchange.begin(method, self._prefix + path, self._authority, headers, b"")
                    await exchange.head()
            except (ConnectionLost, TimeoutError) as e:
                raise _no_answer(e) from e
            yield Incoming(exchange, timeout_seconds)
        finally:
            self._put_back(exchange)

    async def _taken(self) -> Exchange:
        """A connection for one request. It is put back, whatever comes of it."""
        await self._slots.acquire()
        try:
            exchange = self._kept() or await self._connected()
        except BaseException:
            self._slots.release()
            raise
        self._busy.add(exchange)
        return exchange

    def _put_back(self, exchange: Exchange) -> None:
        """It is kept for the next request if its answer was read to the end."""
        self._slots.release()
        self._busy.discard(exchange)
        if exchange.is_reusable and not self._is_closed:
            self._idle.append(exchange)
        else:
            exchange.close()

    def _kept(self) -> Exchange | None:
        """The one used last, so that those not needed grow old and are closed."""
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_SECONDS
        while self._idle:
            exchange = self._idle.pop()
            if exchange.is_reusable and exchange.used_at > oldest:
                return exchange
            exchange.close()
        return None

    async def _connected(self) -> Exchange:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, exchange = await loop.create_connection(Exchange, self._host, self._port, ssl=self._tls)
        except (OSError, TimeoutError) as e:  # a failed TLS handshake is an OSError too
            raise NoAnswer(str(e) or type(e).__name__, sent=False) from e
        if self._is_closed:
            exchange.close()
        self._check_open()
        return exchange

    def _failure(self, error: Exception) -> Exception:
        return DatabaseClosed("the client was closed meanwhile") if self._is_closed else _no_answer(error)

    def _check_open(self) -> None:
        if self._is_closed:
            raise DatabaseClosed("the client is closed")

    async def close(self) -> None:
        self._is_closed = True
        for exchange in [*self._idle, *self._busy]:
            exchange.close()
        self._idle.clear()
        await asyncio.sleep(0)  # closing sockets takes the loop a turn


def _no_answer(error: Exception) -> NoAnswer:
    reason = "it took too long" if isinstance(error, TimeoutError) else str(error)
    return NoAnswer(reason, sent=True)
