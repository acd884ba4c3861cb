"""Who asks: a token that is given, or one that is fetched with a password and kept fresh.

The password is sent when the first request is made, and again only if the refresh token is refused. A token is renewed
when a tenth of its life is left, or when the server refuses it: once, however many requests met that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from tablecast.errors import Unauthenticated

LIFE_USED = 0.9  # of a token's life, before it is renewed

Ask = Callable[[str, dict[str, str]], Awaitable[bytes]]
"""Posts a JSON-like body to a path without authentication, and returns the MessagePack of the answer."""


class _Granted(msgspec.Struct, frozen=True):
    access_token: str
    refresh_token: str
    expires_in: float


class Tokens:
    """`header()` before a request; `refused(header)` when the server did not take it."""

    def __init__(
        self,
        ask: Ask,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._user, self._password = user, password
        self._access, self._refresh = token, ""
        self._renew_at = float("inf")
        self._monotonic = monotonic
        self._renewing = asyncio.Lock()

    @property
    def _signs_in(self) -> bool:
        return self._user is not None

    async def header(self) -> str | None:
        if self._signs_in and not self._is_fresh():
            async with self._renewing:
                if not self._is_fresh():  # else another request has just renewed it
                    await self._renew()
        return self._current()

    async def refused(self, header: str | None) -> bool:
        """Whether another attempt makes sense: there is, or now was fetched, another token than the refused one."""
        if not self._signs_in:
            return False
        async with self._renewing:
            if self._current() == header:
                self._access = None
                await self._renew()
        return True

    def _is_fresh(self) -> bool:
        return self._access is not None and self._monotonic() < self._renew_at

    def _current(self) -> str | None:
        return None if self._access is None else f"Bearer {self._access}"

    async def _renew(self) -> None:
        if self._refresh:
            refresh, self._refresh = self._refresh, ""  # it is used up, whatever comes of it
            try:
                return self._take(await self._ask("/v1/api/auth/refresh", {"refresh_token": refresh}))
            except Unauthenticated:
                pass  # ended or used: the password is asked again
        credentials = {"user": self._user or "", "password": self._password or ""}
        return self._take(await self._ask("/v1/api/auth/login", credentials))

    def _take(self, answer: bytes) -> None:
        granted = msgspec.msgpack.decode(answer, type=_Granted)
        self._access, self._refresh = granted.access_token, granted.refresh_token
        self._renew_at = self._monotonic() + granted.expires_in * LIFE_USED
