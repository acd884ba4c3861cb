"""Signing in: when, how often, and what happens when a token is not taken any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from client_double import Double, Drop, Reply, Seen, refusal, written

from tablecast.client.tokens import Tokens
from tablecast.errors import Unauthenticated


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


class Gate:
    """A server that knows which tokens are good, and takes its time to give one."""

    def __init__(self) -> None:
        self.given = 0
        self.good: set[str] = set()
        self.password = "right"
        self.refreshes = True
        self.hold: asyncio.Event | None = None

    async def __call__(self, seen: Seen) -> Reply:
        if seen.path == "/v1/api/auth/login":
            if self.hold is not None:
                await self.hold.wait()
            return self._grant() if seen.body["password"] == self.password else refusal(401, "unauthenticated", "wrong")
        if seen.path == "/v1/api/auth/refresh":
            return self._grant() if self.refreshes else refusal(401, "unauthenticated", "used")
        if seen.headers.get("Authorization", "").removeprefix("Bearer ") not in self.good:
            return refusal(401, "unauthenticated", "who are you?")
        return written(seen) if seen.path.endswith("/writes") else Reply({"released": 0})

    def _grant(self) -> Reply:
        self.given += 1
        token = f"token-{self.given}"
        self.good = {token}
        return Reply(
            {"access_token": token, "refresh_token": f"refresh-{self.given}", "expires_in": 900, "role": "dba"}
        )


def test_the_first_request_signs_in_once_for_all() -> None:
    async def test() -> None:
        gate = Gate()
        gate.hold = asyncio.Event()
        async with Double(gate) as double, await double.client(user="ann", password="right") as client:
            assert double.seen == [], "nobody asked for anything yet"
            tasks = [asyncio.ensure_future(client.insert("app.t", [(n,)])) for n in range(20)]
            others = [asyncio.ensure_future(client.release("t", "g", "c")) for _ in range(20)]
            while not double.seen:
                await asyncio.sleep(0)
            gate.hold.set()
            await asyncio.gather(*tasks, *others)
            assert double.paths().count("/auth/login") == 1

    run(test)


def test_a_token_that_is_refused_is_renewed_once_for_all() -> None:
    async def test() -> None:
        gate = Gate()
        async with Double(gate) as double, await double.client(user="ann", password="right") as client:
            await client.insert("app.t", [(0,)])
            gate.good = set()  # the server's secret changed, say
            await asyncio.gather(*(client.insert("app.t", [(n,)]) for n in range(50)))
            assert double.paths().count("/auth/refresh") == 1
            assert double.paths().count("/auth/login") == 1

    run(test)


def test_a_refresh_token_that_is_refused_leads_back_to_the_password() -> None:
    async def test() -> None:
        gate = Gate()
        async with Double(gate) as double, await double.client(user="ann", password="right") as client:
            await client.insert("app.t", [(0,)])
            gate.good, gate.refreshes = set(), False
            await client.insert("app.t", [(1,)])
            assert double.paths() == ["/auth/login", "/writes", "/writes", "/auth/refresh", "/auth/login", "/writes"]

    run(test)


def test_a_wrong_password_is_told_and_not_tried_again() -> None:
    async def test() -> None:
        async with Double(Gate()) as double, await double.client(user="ann", password="wrong") as client:
            with pytest.raises(Unauthenticated, match="wrong"):
                await client.insert("app.t", [(0,)])
            assert double.paths() == ["/auth/login"]

    run(test)


def test_a_refused_request_is_repeated_once_only() -> None:
    async def test() -> None:
        async def answer(seen: Seen) -> Reply:
            if seen.path.endswith("/login") or seen.path.endswith("/refresh"):
                return Reply({"access_token": "t", "refresh_token": "r", "expires_in": 900})
            return refusal(401, "unauthenticated")

        async with Double(answer) as double, await double.client(user="ann", password="right") as client:
            with pytest.raises(Unauthenticated):
                await client.insert("app.t", [(0,)])
            assert double.paths().count("/writes") == 2

    run(test)


def test_a_given_token_is_used_as_it_is() -> None:
    async def test() -> None:
        gate = Gate()
        gate.good = {"mine"}
        async with Double(gate) as double, await double.client(token="mine") as client:
            await client.insert("app.t", [(0,)])
            gate.good = set()
            with pytest.raises(Unauthenticated):
                await client.insert("app.t", [(1,)])
            assert double.paths() == ["/writes", "/writes"]

    run(test)


def test_credentials_may_stand_in_the_address() -> None:
    async def test() -> None:
        gate = Gate()
        gate.password = "p@ss/word"
        async with Double(gate) as double:
            double.url = double.url.replace("http://", "http://ann:p%40ss%2Fword@")
            async with await double.client() as client:
                await client.insert("app.t", [(0,)])
                assert double.seen[0].body == {"user": "ann", "password": "p@ss/word"}
                assert "ann" not in client._connection.url

    run(test)


def test_a_lost_answer_to_signing_in_is_asked_for_again() -> None:
    """Also for a statement that itself may not be repeated: it was not sent yet."""

    async def test() -> None:
        gate, lost = Gate(), [True]

        async def answer(seen: Seen) -> Reply:
            if seen.path.endswith("/login") and lost:
                lost.pop()
                raise Drop
            return await gate(seen) if "writes" in seen.path or "auth" in seen.path else Reply({"results": [{}]})

        async with Double(answer) as double, await double.client(user="ann", password="right") as client:
            await client.execute("CREATE NAMESPACE app")
            assert double.paths() == ["/auth/login", "/auth/login", "/sql"]

    run(test)


def test_a_token_is_renewed_before_it_ends() -> None:
    asked: list[str] = []
    now = 0.0

    async def ask(path: str, body: dict[str, str]) -> bytes:
        asked.append(path.rpartition("/")[2])
        return b"\x83\xacaccess_token\xa1" + bytes([0x61 + len(asked)]) + b"\xadrefresh_token\xa1r\xaaexpires_in\x64"

    async def test() -> None:
        nonlocal now
        tokens = Tokens(ask, user="ann", password="right", monotonic=lambda: now)
        first = await tokens.header()
        now = 89.0
        assert await tokens.header() == first
        now = 90.0
        assert await tokens.header() != first
        assert asked == ["login", "refresh"]

    run(test)
