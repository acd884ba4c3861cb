"""Live queries that come, go and resume over real sockets, under writers: the SDK's own state, and connections that die.

Each client has a connection of its own, cut after a random while, wherever it is then: in the upgrade, among its rows, or
between two changes. Some say goodbye, the others are just gone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from race_workload import CLIENTS, TABLES, USERS, WRITERS, Question, Raced, Row, write
from server_fixture import ServerThread

import tablecast
from tablecast.client.live_rows import LiveRows
from tablecast.client.live_socket import LiveSocket
from tablecast.client.live_state import LiveState, QueryState
from tablecast.client.transport import NoAnswer
from tablecast.codec.live import Lagging, Ping, Pong, Subscribed

WRITES = 30  # of each writer
LIFE_SECONDS = 1.0  # of a connection, at most
BUFFER_BYTES = 1_000  # a reader that is a moment late lags
CONNECTING = 20  # upgrades at a time: all at once would be all that there is


class SocketClient:
    def __init__(
        self, url: str, token: str, question: Question, chance: random.Random, met: Counter[str],
        upgrading: asyncio.Semaphore,
    ) -> None:  # fmt: skip
        self.question = question
        self._url, self._authorization = url, f"Bearer {token}"
        self._chance = chance
        self._met = met
        self._upgrading = upgrading
        self._state = LiveState()
        self._query = self._state.open(question.sql, question.params, "default")
        self._rows = LiveRows()

    @property
    def kept(self) -> Sequence[Row]:
        return list(self._rows.kept().rows.values())

    async def come_and_go(self, over: asyncio.Event) -> None:
        while not over.is_set():
            life = asyncio.create_task(self._live_through())
            await asyncio.wait([life], timeout=self._chance.uniform(0, LIFE_SECONDS))
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life

    async def _live_through(self) -> None:
        """One connection, until it is cut."""
        async with self._upgrading:
            socket = await LiveSocket.open(self._url, self._authorization)
        try:
            self._state.connected()
            while True:
                await self._step(socket)
        finally:
            self._met[f"cut when {self._query.state.name.lower()}"] += 1
            self._state.disconnected()
            await self._hang_up(socket)

    async def _hang_up(self, socket: LiveSocket) -> None:
        if self._chance.random() < 0.5:
            await socket.close()
        else:
            socket._socket.transport.abort()
            with suppress(NoAnswer):
                await socket.receive()  # so that its task ends as well

    async def _step(self, socket: LiveSocket) -> bool:
        """One message; whether it was a pong."""
        for message in self._state.messages_to_send():
            await socket.send(message)
        message = await socket.receive()
        if isinstance(message, Subscribed):
            self._met[message.mode] += 1
        elif isinstance(message, Lagging):
            self._met["too slow"] += 1
        self._state.received(message)
        while self._query.steps:
            self._rows.fold(self._state.take(self._query))
        if self._query.error is not None:
            raise self._query.error
        return isinstance(message, Pong)

    async def catch_up(self, server: ServerThread) -> None:
        """Everything was written: it has all of it when it is live, and still is when a pong comes after the hub's last word."""
        async with self._upgrading:
            socket = await LiveSocket.open(self._url, self._authorization)
        try:
            self._state.connected()
            is_last = False
            while not (is_last and self._query.state is QueryState.LIVE):
                while self._query.state is not QueryState.LIVE:
                    await self._step(socket)
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(server.hub.settled(), server.loop))
                await socket.send(Ping())
                is_last = False
                while not is_last:
                    is_last = await self._step(socket)
        finally:
            self._state.disconnected()
            await socket.close()


async def race(seed: int, clients: int = CLIENTS, writes: int = WRITES) -> Raced:
    chance, raced = random.Random(f"sockets {seed}"), Raced(seed, "sockets")
    with ServerThread(live_buffer_bytes=BUFFER_BYTES) as server:
        server.sql(TABLES)
        for user, password in USERS.items():
            server.sql(f"CREATE USER '{user}' WITH PASSWORD '{password}' ROLE 'service'")
        await _race(server, raced, chance, clients, writes)
        raced.commits = server.db.engine.seq
        while not (server.hub.is_empty or raced.violation):
            await asyncio.sleep(0.01)  # until the server has noticed that everybody has gone
    return raced


async def _race(server: ServerThread, raced: Raced, chance: random.Random, count: int, writes: int) -> None:
    over, upgrading = asyncio.Event(), asyncio.Semaphore(CONNECTING)
    tokens = {
        user: server.post("/auth/login", {"user": user, "password": password}).json()["access_token"]
        for user, password in USERS.items()
    }
    clients = []
    for _ in range(count):
        question, own = Question.any(chance), random.Random(chance.random())
        clients.append(SocketClient(server.url, tokens[question.user], question, own, raced.met, upgrading))
    going = [asyncio.create_task(client.come_and_go(over)) for client in clients]
    try:
        await asyncio.gather(*(
            write_as(server, user, random.Random(chance.random()), writes) for user in USERS for _ in range(WRITERS)
        ))  # fmt: skip
    finally:
        over.set()
        await asyncio.gather(*going)
    await asyncio.gather(*(client.catch_up(server) for client in clients))
    answers: dict[Question, Sequence[Row]] = {}
    for user, password in USERS.items():
        async with await tablecast.connect_async(server.url, user=user, password=password) as sdk:
            for q in {client.question for client in clients if client.question.user == user}:
                answers[q] = (await sdk.query(q.sql, q.params)).rows
    raced.judge(clients, answers)


async def write_as(server: ServerThread, user: str, chance: random.Random, count: int) -> None:
    async with await tablecast.connect_async(server.url, user=user, password=USERS[user]) as sdk:
        await write(chance, count, sdk.execute, sdk.execute_all)
