"""`/v1/api/auth`: passwords and refresh tokens in, tokens out."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from tablecast.server.answers import accepted, answer
from tablecast.server.bodies import Decoder
from tablecast.server.call import Call
from tablecast.server.logs import identify
from tablecast.server.tokens import Tokens


class LoginRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    user: str
    password: str


class RefreshRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    refresh_token: str


class MeAnswer(msgspec.Struct, frozen=True):
    user: str
    role: str


_login, _refresh = Decoder(LoginRequest), Decoder(RefreshRequest)
_NOT_KEPT = {"Cache-Control": "no-store"}


async def login(call: Call) -> Response:
    request, _ = await call.decoded(_login)
    return _granted(call, await call.services.auth.login(request.user, request.password, call.address))


async def refresh(call: Call) -> Response:
    request, _ = await call.decoded(_refresh)
    return _granted(call, await call.services.auth.refresh(request.refresh_token, call.address))


def _granted(call: Call, tokens: Tokens) -> Response:
    identify(tokens.user)
    return answer(tokens, accepted(call.headers), _NOT_KEPT)


async def me(call: Call) -> Response:
    return answer(MeAnswer(call.who.user_id, call.who.role.name.lower()), accepted(call.headers), _NOT_KEPT)
