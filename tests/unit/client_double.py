"""A foreign process at the other end of the wire: it answers as it is told, badly if need be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from aiohttp import web

from tablecast import AsyncClient, Retry, connect_async
from tablecast.client.values import from_extension

MSGPACK = "application/msgpack"
FAST = Retry(attempts=4, backoff_seconds=0.0, max_backoff_seconds=0.0)


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: Mapping[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        return msgspec.msgpack.decode(self.data, ext_hook=from_extension)


@dataclass(frozen=True)
class Reply:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = MSGPACK


def refusal(status: int, code: str, message: str = "no", **headers: str) -> Reply:
    return Reply({"error": {"code": code, "message": message, "details": {}}}, status, headers)


class Drop(Exception):
    """The connection ends without an answer."""


class Half(Exception):
    """The connection ends in the middle of an answer."""


Answerer = Callable[[Seen], Awaitable[Reply]]


class Double:
    """`answer` is called for every request; `seen` are all of them."""

    def __init__(self, answer: Answerer) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{tail:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def client(self, **settings: Any) -> AsyncClient:
        return await connect_async(self.url, **{"retry": FAST, "timeout_seconds": 30.0, **settings})

    def paths(self) -> list[str]:
        return [seen.path.removeprefix("/v1/api") for seen in self.seen]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request.method, request.path_qs, request.headers, await request.read())
        self.seen.append(seen)
        try:
            reply = await self.answer(seen)
        except Drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        except Half:
            response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": MSGPACK})
            await response.prepare(request)
            await response.write(b"\x81")
            assert request.transport is not None
            request.transport.abort()
            return response
        data = reply.body if isinstance(reply.body, bytes) else msgspec.msgpack.encode(reply.body)
        return web.Response(
            body=data, status=reply.status, headers={"Content-Type": reply.content_type, **reply.headers}
        )


def written(seen: Seen) -> Reply:
    """Every write of a `/writes` request succeeds."""
    return Reply({"results": [{"row_count": 1, "seq": 7, "message": "INSERT 1"} for _ in seen.body["writes"]]})


def rows_reply(table: bytes) -> Reply:
    return Reply({"results": [{"row_count": 1, "seq": None, "message": "", "rows": table}]})
