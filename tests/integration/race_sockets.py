"""Live queries that come, go and resume over real sockets, under writers: the SDK's own state, and connections that die.

Each client has one connection after the other, cut after a random while, wherever it is then: in the upgrade, among its
rows, or between two changes. Some say goodbye, the others are just gone. Rows are wide, and the system's buffers for them
small: whoever dawdles is lagging. In some runs little of the past is kept, or no large commit: then clients fetch again.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar
from unittest import mock

from race_workload import CLIENTS, LEAST_COMMITS, TABLES, USERS, Question, Raced, Row, Writing
from server_fixture import ServerThread

import tablecast
from tablecast.client.connection import Attempts
from tablecast.client.live_rows import LiveRows
from tablecast.client.live_socket import LiveSocket
from tablecast.client.live_state import LiveState, QueryState
from tablecast.client.retry import Retry
from tablecast.client.transport import CONNECT_SECONDS, NoAnswer
from tablecast.codec.live import Lagging, Ping, Pong, Subscribed
from tablecast.engine import undo
from tablecast.errors import TablecastError, Unreachable

WRITERS = 3  # of each user
WRITES = 30  # of each writer, at least
WIDE = 2_000  # characters of a body
LIFE_SECONDS = 0.2  # of a connection, at most, once it is there; of one that dawdles, DAWDLING times as much
DAWDLING = 3
UPGRADE_SECONDS = 0.02  # of one that is cut before
DAWDLE_SECONDS = 0.1  # at most, before the next message is taken
BUFFER_BYTES = 1_000  # of the server, for a connection
SYSTEM_BYTES = 4_096  # of the system, likewise, at both ends
CONNECTING = 20  # upgrades at a time: all at once would be all that there is
PATIENCE = Retry(attempts=20, backoff_seconds=0.1, max_backoff_seconds=5.0, total_seconds=300.0)  # with the upgrade
EMPTY_SECONDS = 30.0  # for the server to notice that everybody has gone
MUST_MEET = {"snapshot", "resumed", "refetch", "lagging", "cut in the upgrade", "cut when live"}  # in many runs

T = TypeVar("T")


class SocketClient:
    def __init__(
        self, server: ServerThread, token: str, question: Question, chance: random.Random, met: Counter[str],
        upgrading: asyncio.Semaphore,
    ) -> None:  # fmt: skip
        self.question = question
        self.lives = 0
        self._server = server
        self._authorization = f"Bearer {token}"
        self._chance = chance
        self._met = met
        self._upgrading = upgrading
        self._dawdles = chance.random() < 0.5
        self._life_seconds = LIFE_SECONDS * DAWDLING if self._dawdles else LIFE_SECONDS
        self._state = LiveState()
        self._query = self._state.open(question.sql, question.params, "default")
        self._rows = LiveRows()

    @property
    def kept(self) -> Sequence[Row]:
        return list(self._rows.kept().rows.values())

    async def come_and_go(self, over: asyncio.Event) -> None:
        while not over.is_set():
            link = await self._upgraded()
            if link is not None:
                self.lives += 1
                await self._live_through(link)
        self._dawdles, self._met = False, Counter()  # what happens to it from here on is not counted

    # --- the connection ---

    async def _upgraded(self) -> LiveSocket | None:
        """None if it was cut before."""
        async with self._upgrading:
            if self._chance.random() >= 0.1:
                return await self._patiently_opened()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._chance.uniform(0, UPGRADE_SECONDS)):
                    return await self._patiently_opened()
        self._met["cut in the upgrade"] += 1
        return None

    async def _patiently_opened(self) -> LiveSocket:
        """As the SDK does: a server that is busy, and lets it wait or says so, is asked again."""
        attempts = Attempts(PATIENCE, monotonic, asyncio.sleep, self._chance.random)
        while True:
            try:
                return await self._open()
            except NoAnswer as e:
                error: TablecastError = Unreachable(e.reason, url=self._server.url)
            except TablecastError as e:
                error = e
            self._met["asked again for the upgrade"] += 1
            if not (error.retryable and await attempts.again(error)):
                raise error

    async def _open(self) -> LiveSocket:
        """As the SDK does, but for the room that there is for what was not taken yet."""
        raw = socket.socket()
        try:
            raw.setblocking(False)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SYSTEM_BYTES)
            await asyncio.get_running_loop().sock_connect(raw, (self._server.host, self._server.port))
            own = {"sock": raw, "max_queue": 1, "close_timeout": 1, "open_timeout": CONNECT_SECONDS}
            return await LiveSocket.open(self._server.url, self._authorization, **own)
        except BaseException:
            raw.close()
            raise

    async def _live_through(self, link: LiveSocket) -> None:
        """One connection, until it is cut."""
        try:
            self._state.connected()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._chance.uniform(0, self._life_seconds)):
                    while True:
                        await self._step(link)
        finally:
            self._met[f"cut when {self._query.state.name.lower()}"] += 1
            self._state.disconnected()
            await self._hang_up(link)

    async def _hang_up(self, link: LiveSocket) -> None:
        if self._chance.random() < 0.5:
            await link.close()
        else:
            link._socket.transport.abort()
            with suppress(NoAnswer):
                while True:
                    await link.receive()  # what was received before, so that its task ends as well

    # --- messages ---

    async def _step(self, link: LiveSocket) -> bool:
        """One message; whether it was a pong."""
        for message in self._state.messages_to_send():
            await link.send(message)
        if self._dawdles and self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.uniform(0, DAWDLE_SECONDS))
        message = await link.receive()
        if isinstance(message, Subscribed):
            self._met[message.mode] += 1
        elif isinstance(message, Lagging):
            self._met["lagging"] += 1
        self._state.received(message)
        while self._query.steps:
            self._rows.fold(self._state.take(self._query))
        if self._query.error is not None:
            raise self._query.error
        return isinstance(message, Pong)

    async def catch_up(self) -> None:
        """Everything was written: it has all of it when it is live, and still is when a pong comes after the hub's last word."""
        async with self._upgrading:
            link = await self._patiently_opened()
        try:
            self._state.connected()
            is_last = False
            while not (is_last and self._query.state is QueryState.LIVE):
                while self._query.state is not QueryState.LIVE:
                    await self._step(link)
                await there(self._server, self._server.hub.settled())
                await link.send(Ping())
                is_last = False
                while not is_last:
                    is_last = await self._step(link)
        finally:
            self._state.disconnected()
            await link.close()


async def there(server: ServerThread, work: Coroutine[Any, Any, T]) -> T:
    """On the server's own loop."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, server.loop))


async def race(seed: int, clients: int = CLIENTS, writes: int = WRITES) -> Raced:
    chance, raced = random.Random(f"sockets {seed}"), Raced(seed, "sockets")
    listed = chance.choice([10, 100_000, 100_000])
    kept_seconds = chance.choice([0, 3600, 3600])
    share = random.Random(f"door {seed}").choice(
        [0.25, 1.0]
    )  # of newcomers: they wait for each other, or come as they like
    with (
        mock.patch.object(undo, "MAX_LISTED_CHANGES", listed),
        ServerThread(
            system_bytes=SYSTEM_BYTES,
            live_buffer_bytes=BUFFER_BYTES,
            changes_kept_seconds=kept_seconds,
            newcomers_share=share,
        ) as server,
    ):
        server.sql(TABLES)
        for user, password in USERS.items():
            server.sql(f"CREATE USER '{user}' WITH PASSWORD '{password}' ROLE 'service'")
        await _race(server, raced, chance, clients, writes)
        if listed < 100 or not kept_seconds:  # it is said to whom a commit could not be told, too
            raced.met["lagging, or not kept"] = raced.met.pop("lagging", 0)
        if not await _emptied(server):
            raced.violated("an index still holds something")
        if problems := (await there(server, server.db.verify())).problems:
            raced.violated(problems)
    return raced


async def _race(server: ServerThread, raced: Raced, chance: random.Random, count: int, writes: int) -> None:
    over, upgrading, began = asyncio.Event(), asyncio.Semaphore(CONNECTING), server.db.engine.seq
    tokens = {
        user: server.post("/auth/login", {"user": user, "password": password}).json()["access_token"]
        for user, password in USERS.items()
    }
    clients = []
    for _ in range(count):
        question, own = Question.any(chance), random.Random(chance.random())
        clients.append(SocketClient(server, tokens[question.user], question, own, raced.met, upgrading))
    going = [asyncio.create_task(client.come_and_go(over)) for client in clients]
    trimming = asyncio.create_task(_trim(server, over))
    writing = [
        write_as(server, user, Writing(raced, clients, random.Random(chance.random()), writes, WIDE))
        for user in USERS
        for _ in range(WRITERS)
    ]
    try:
        await asyncio.gather(*writing)
        raced.count(clients, server.db.engine.seq - began, LEAST_COMMITS if count == CLIENTS else 1)
    finally:
        over.set()
        await asyncio.gather(*going, trimming)
    await asyncio.gather(*(client.catch_up() for client in clients))
    answers: dict[Question, Sequence[Row]] = {}
    for user, password in USERS.items():
        async with await tablecast.connect_async(server.url, user=user, password=password) as sdk:
            for q in {client.question for client in clients if client.question.user == user}:
                answers[q] = (await sdk.query(q.sql, q.params)).rows
    raced.judge(clients, answers)


async def write_as(server: ServerThread, user: str, writing: Writing) -> None:
    async with await tablecast.connect_async(server.url, user=user, password=USERS[user]) as sdk:
        await writing.write(sdk.execute, sdk.execute_all)


async def _trim(server: ServerThread, over: asyncio.Event) -> None:
    """Changes are let go while they are needed, if they are not kept for long."""
    while not over.is_set():
        await there(server, server.db.run_job("changes"))
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 0.02)


async def _emptied(server: ServerThread) -> bool:
    """Whether the server has noticed in time that everybody has gone."""
    until = monotonic() + EMPTY_SECONDS
    while not server.hub.is_empty:
        if monotonic() > until:
            return False
        await asyncio.sleep(0.01)
    return True
