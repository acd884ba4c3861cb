"""The socket of live queries: messages out and in. The SDK's only import of websockets.

Whatever may happen to a connection is `NoAnswer`, as for requests, or the error with which the server refused it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from tablecast.client.failures import refusal
from tablecast.client.transport import CONNECT_SECONDS, NoAnswer
from tablecast.client.values import from_extension
from tablecast.codec.live import JSON_FORM, MSGPACK_FORM, ClientMessage, ServerMessage, encode, server_decoder
from tablecast.errors import CorruptData

PING_SECONDS = 20.0  # between two, and for the answer: a server that is gone without a word is noticed in twice that
CLOSE_SECONDS = 2.0  # for the server's goodbye
_GATEWAY = (502, 504)  # a proxy lost the server

_decode = server_decoder(from_extension)


class LiveSocket:
    """One connection. Signed in with the upgrade, if there is an Authorization header for it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str, authorization: str | None, **options: Any) -> Self:
        """`options` are those of the library that are to be others than ours."""
        ours: dict[str, Any] = {
            "additional_headers": {} if authorization is None else {"Authorization": authorization},
            "subprotocols": [Subprotocol("tablecast.msgpack")],
            "compression": None,
            "proxy": None,  # as for requests
            "open_timeout": CONNECT_SECONDS,
            "ping_interval": PING_SECONDS,
            "ping_timeout": PING_SECONDS,
            "close_timeout": CLOSE_SECONDS,
            "max_size": None,  # a commit comes whole, however large; the server has limits for that
        }
        try:
            socket = await connect(live_url(url), **ours | options)
        except InvalidStatus as e:
            response = e.response
            if response.status_code in _GATEWAY:
                raise NoAnswer(f"a gateway answered {response.status_code}", sent=False) from e
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            raise refusal(response.status_code, headers, bytes(response.body or b"")) from e
        except (OSError, WebSocketException) as e:  # a timeout is an OSError
            raise NoAnswer(str(e) or type(e).__name__, sent=False) from e
        return cls(socket)

    async def send(self, message: ClientMessage) -> None:
        try:
            await self._socket.send(encode(message, MSGPACK_FORM))
        except ConnectionClosed as e:
            raise _lost(e) from e

    async def receive(self) -> ServerMessage:
        try:
            data = await self._socket.recv()
        except ConnectionClosed as e:
            raise _lost(e) from e
        try:
            return _decode(data.encode(), JSON_FORM) if isinstance(data, str) else _decode(data, MSGPACK_FORM)
        except (msgspec.MsgspecError, ValueError, RecursionError) as e:
            raise CorruptData(f"a message of the server does not decode: {e}") from e

    async def close(self) -> None:
        """With a goodbye; at once, if it is cancelled meanwhile."""
        try:
            await self._socket.close()
        except asyncio.CancelledError:
            self._socket.transport.abort()
            raise


def live_url(url: str) -> str:
    """Where the server at `http://…` or `https://…` has its socket."""
    parts = urlsplit(url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/v1/ws", "", ""))


def _lost(error: ConnectionClosed) -> NoAnswer:
    said = error.rcvd
    reason = "the connection was lost" if said is None else f"the server closed it with {said.code} {said.reason}"
    return NoAnswer(reason.rstrip(), sent=True)
