"""`GET /v1/ws` with an upgrade: who may open a live connection, and from which pages.

A browser sends no credentials with an upgrade that a page's script could choose, but it does send the page's origin. A
page of another site must not talk to this server in its visitor's name, so its origin has to be ours or allowed.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from tablecast.codec.live import SUBPROTOCOLS
from tablecast.errors import Overloaded, PermissionDenied, TablecastError
from tablecast.server.auth import SignedIn
from tablecast.server.call import Services, failure
from tablecast.server.errors import error_response
from tablecast.server.live_connection import LiveConnection
from tablecast.server.live_socket import SCOPE_KEY, LiveSocket
from tablecast.server.logs import identify

PATH = "/v1/ws"


class LiveUpgrade:
    """An ASGI application for scopes of type websocket."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        client = scope.get("client")
        address = client[0] if client else "unknown"
        try:
            self._check(headers)
            signed_in = await self._signed_in(headers.get("authorization"), address)
        except TablecastError as error:
            self._services.metrics.error(error.code)
            await error_response(error)(scope, receive, send)
            return
        except Exception:
            await failure(self._services.metrics)(scope, receive, send)
            return
        await send({"type": "websocket.accept"})
        self._serve(scope[SCOPE_KEY], address, signed_in)

    def _check(self, headers: Headers) -> None:
        if self._services.lifecycle.draining:
            raise Overloaded("the server stops; connect to it again when it, or another one, is there")
        origin = headers.get("origin")
        if origin is not None and not is_allowed(origin, headers.get("host", ""), self._services.settings.origins):
            raise PermissionDenied(
                f"pages of {origin[:200]!r} may not open live connections here; the setting allowed_origins says which may"
            )

    async def _signed_in(self, authorization: str | None, address: str) -> SignedIn | None:
        """None if the first message will say who it is."""
        if authorization is None:
            return None
        signed_in = await self._services.auth.signed_in(authorization, address)
        identify(signed_in.actor.user_id)
        return signed_in

    def _serve(self, socket: LiveSocket, address: str, signed_in: SignedIn | None) -> None:
        form = None if socket.subprotocol is None else SUBPROTOCOLS[socket.subprotocol]
        connection = LiveConnection(self._services.live, socket, address, form)
        if signed_in is not None:
            connection.welcome(signed_in)
        socket.serve(connection)


def is_allowed(origin: str, host: str, allowed: list[str]) -> bool:
    """Our own pages come from the host that the request was sent to; the scheme may be a proxy's choice."""
    given = origin.lower()
    return "*" in allowed or given in allowed or urlsplit(given).netloc == host.lower() != ""
