"""A server, as requests see it: signed in, retried where that is safe, errors as the classes they are.

A request is repeated if it failed in a way that passes (no connection, 429, 503, a lost answer) and repeating cannot do
anything twice. What the server certainly has not run may always be repeated; anything else only if the request says so:
reads, acks, and writes with an idempotency key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

import msgspec

from tablecast.client.bulk_server import Server
from tablecast.client.failures import refusal
from tablecast.client.retry import Retry
from tablecast.client.retry import chance as pauses
from tablecast.client.tokens import Tokens
from tablecast.client.transport import Answer, Incoming, NoAnswer, Transport
from tablecast.codec.given import given_text
from tablecast.errors import (
    InvalidRequest,
    Overloaded,
    TablecastError,
    Timeout,
    TooManyRequests,
    Unauthenticated,
    Unreachable,
)

MSGPACK = "application/msgpack"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
LOG = "application/vnd.tablecast.log"  # stored log batches: see codec.consumed
_GATEWAY = (502, 504)  # a proxy lost the server: as good as no answer


class Request(msgspec.Struct, frozen=True):
    """`safe`: repeating it does nothing twice. `waits_seconds`: how long the server may let it wait on purpose."""

    path: str
    body: bytes = b""
    method: str = "POST"
    content_type: str = MSGPACK
    accept: str = MSGPACK
    idempotency_key: str | None = None
    transaction_id: str | None = None
    safe: bool = False
    waits_seconds: float = 0.0

    def headers(self, authorization: str | None) -> dict[str, str]:
        found = {"Accept": self.accept}
        if self.body:
            found["Content-Type"] = self.content_type
        if authorization is not None:
            found["Authorization"] = authorization
        if self.idempotency_key is not None:
            found["Idempotency-Key"] = _header_text(self.idempotency_key)
        if self.transaction_id is not None:
            found["Transaction-Id"] = self.transaction_id
        return found


class Connection:
    """Everything a client sends goes through `call` or `stream`. Belongs to one event loop."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout_seconds: float,
        retry: Retry,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = pauses.random,
    ) -> None:
        self.url, user, password = _address(url, user, password, token)
        self._transport = Transport(self.url)
        self.tokens = Tokens(self._ask, user=user, password=password, token=token, monotonic=monotonic)
        self._who = (user, password, token)
        self._timeout_seconds = timeout_seconds
        self._retry = retry
        self._monotonic, self._sleep, self._chance = monotonic, sleep, chance

    @property
    def server(self) -> Server:
        """The same server and user, for work that has connections of its own."""
        return Server(self.url, *self._who, timeout_seconds=self._timeout_seconds)

    async def call(self, request: Request) -> Answer:
        """The answer, which has a status of 2xx; anything else is raised."""
        attempts = self.attempts()
        while True:
            try:
                return await self._attempt(request)
            except NoAnswer as e:
                if e.sent and not request.safe:
                    raise self._lost(request, e) from e
                if not await attempts.again():
                    raise (self._lost(request, e) if e.sent else self._unreachable(e)) from e
            except (TooManyRequests, Overloaded) as e:
                nothing_ran = request.safe or isinstance(e, TooManyRequests)
                if not (e.retryable and nothing_ran and await attempts.again(e)):
                    raise

    def attempts(self) -> Attempts:
        return Attempts(self._retry, self._monotonic, self._sleep, self._chance)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Incoming]:
        """An answer of any length, as it arrives. Not repeated once it has begun to arrive."""
        await self.call(Request("/v1/api/auth/me", method="GET", safe=True))  # the server is there, the token good
        headers = request.headers(await self.tokens.header())
        try:
            async with self._transport.stream(request.method, request.path, headers, self._timeout_seconds) as incoming:
                if incoming.status >= 300:
                    raise refusal(incoming.status, incoming.headers, await incoming.read_all())
                yield incoming
        except NoAnswer as e:
            raise self._lost(request, e) from e

    async def close(self) -> None:
        await self._transport.close()

    async def _attempt(self, request: Request) -> Answer:
        authorization = await self.tokens.header()
        try:
            return await self._exchange(request, authorization)
        except Unauthenticated:
            if not await self.tokens.refused(authorization):
                raise
            return await self._exchange(request, await self.tokens.header())

    async def _exchange(self, request: Request, authorization: str | None) -> Answer:
        seconds = self._timeout_seconds + request.waits_seconds
        headers = request.headers(authorization)
        answer = await self._transport.send(request.method, request.path, headers, request.body, seconds)
        if answer.status < 300:
            return answer
        if answer.status in _GATEWAY and not answer.headers.get("content-type", "").startswith(MSGPACK):
            raise NoAnswer(f"a gateway answered {answer.status}", sent=True)
        raise refusal(answer.status, answer.headers, answer.body)

    async def _ask(self, path: str, body: dict[str, str]) -> bytes:
        try:
            return (await self._exchange(Request(path, msgspec.msgpack.encode(body)), None)).body
        except NoAnswer as e:
            raise NoAnswer(e.reason, sent=False) from e  # signing in: the request itself was not sent yet

    def _unreachable(self, cause: NoAnswer) -> TablecastError:
        return Unreachable(f"{self.url} cannot be reached: {cause.reason}", url=self.url)

    def _lost(self, request: Request, cause: NoAnswer) -> TablecastError:
        unknown = "" if request.safe else "; whether the server has run it is not known"
        return Timeout(f"{self.url}{request.path} gave no answer: {cause.reason}{unknown}", url=self.url)


class Attempts:
    """The attempts at one thing: `again()` waits before the next one, or says that there is none."""

    def __init__(
        self,
        retry: Retry,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: Callable[[], float],
    ) -> None:
        self._backoffs = retry.backoffs()
        self._until = monotonic() + retry.total_seconds
        self._monotonic, self._sleep, self._chance = monotonic, sleep, chance

    async def again(self, error: TablecastError | None = None) -> bool:
        """Waits at least as long as the server asked for in `error`."""
        backoff = next(self._backoffs, None)
        if backoff is None:
            return False
        asked = float(error.details.get("retry_after_seconds", 0.0)) if error is not None else 0.0
        wait = max(backoff * (0.5 + 0.5 * self._chance()), asked)
        if self._monotonic() + wait > self._until:
            return False
        await self._sleep(wait)
        return True


def _address(url: str, user: str | None, password: str | None, token: str | None) -> tuple[str, str | None, str | None]:
    """The bare address, and who signs in: credentials may stand in the URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"the address of a server is http://host:port or https://…, not {parts.scheme or url!r}")
    user, password = user or _unquoted(parts.username), password or _unquoted(parts.password)
    if user is not None and token is not None:
        raise InvalidRequest("give a user with a password, or a token, not both")
    if (user is None) != (password is None):
        raise InvalidRequest("a user signs in with a password: give both, or a token")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}", user, password


def _unquoted(part: str | None) -> str | None:
    return None if part is None else unquote(part)


def _header_text(key: str) -> str:
    if not (given_text(key, "an idempotency key").isascii() and key.isprintable()):
        raise InvalidRequest(f"idempotency key {key!r}: over HTTP it is printable ASCII", key=key)
    return key
