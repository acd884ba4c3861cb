"""Live queries that come, go and resume at the hub itself, under writers: one event loop, a real engine in memory.

The seed decides what is written, what is asked, what each client does and how small the hub's bounds are. How commits fall
between the clients' steps is up to the engine's threads.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

from race_workload import CLIENTS, LEAST_COMMITS, TABLES, USERS, Question, Raced, Row, Writing, turns

import tablecast
from tablecast.core.live_query import LiveQuery
from tablecast.engine import undo
from tablecast.engine.live import LiveHub, LiveSubscription, Shown, Told
from tablecast.errors import TablecastError
from tablecast.model.change import Op
from tablecast.model.schema import Actor, Role
from tablecast.sql.aio import AsyncDatabase
from tablecast.sql.plan_live import plan_live

WRITERS = 6  # of each user
WRITES = 40  # of each writer, at least
WIDE = 8
AWAY_TURNS = 30  # of the event loop, at most, between two subscriptions of a client, and in each of them
MUST_MEET = {
    "snapshot", "resumed", "refetch", "left before its rows were whole", "left before it was live", "too slow",
    "made to resume", "fell behind",
}  # in many runs  # fmt: skip


class HubClient:
    """A subscriber that leaves in the middle of anything, and goes on from the last commit that it has whole rows of.

    The hub survives whatever a subscriber raises, so what goes wrong in `told` is kept: the run is judged by it.
    """

    def __init__(self, hub: LiveHub, question: Question, chance: random.Random, met: Counter[str]) -> None:
        self.question = question
        self._hub = hub
        self._chance = chance
        self._met = met
        self._rows: dict[Any, Row] = {}
        self._resume: int | None = None
        self._subscription: LiveSubscription | None = None
        self._slow = chance.random() < 0.3
        self.lives = 0
        self.error: TablecastError | None = None
        self.failure: AssertionError | None = None  # the first of what it was told wrongly

    @property
    def kept(self) -> Sequence[Row]:
        return list(self._rows.values())

    @property
    def is_live(self) -> bool:
        return self._subscription is not None and self._subscription.live

    # --- what it does ---

    async def come_and_go(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.subscribe(hasty=self._chance.random() < 0.3)
            self.lives += 1
            await turns(self._chance.randrange(AWAY_TURNS))
            self._leave()
            await turns(self._chance.randrange(AWAY_TURNS))
        self._slow, self._met = False, Counter()  # what happens to it from here on is not counted

    async def subscribe(self, *, hasty: bool = False) -> None:
        """Until it is live, or, if it is hasty, until it has had enough."""
        actor = Actor(self.question.user, Role.USER)
        query = plan_live(self._hub.engine.catalog, actor, self.question.sql, self.question.params)
        self._subscription = subscription = await self._open(query)
        self._met[subscription.mode] += 1
        if subscription.mode != "resumed":
            self._rows, self._resume = {}, None
        while self._resume is None:
            if hasty and self._chance.random() < 0.2:
                self._met["left before its rows were whole"] += 1
                return
            rows, last = await subscription.rows(self._chance.choice([1, 7, 1000]))
            self._fold([Shown(Op.INSERT, row) for row in rows])
            if last:
                self._resume = subscription.seq
        if hasty and self._chance.random() < 0.2:
            self._met["left before it was live"] += 1
            return
        changes = await subscription.go_live()
        if changes is None:
            self._met["could not go live"] += 1
        else:
            self._fold(changes)
            self._resume = subscription.seq

    async def _open(self, query: LiveQuery) -> LiveSubscription:
        history = None if self._resume is None else self._hub.engine.history
        return await self._hub.open(query, self, self._resume, history)

    def _leave(self) -> None:
        """With what it has, or, rarely, without."""
        subscription, self._subscription = self._subscription, None
        assert subscription is not None
        if subscription.live:
            self._resume = self._hub.detach(subscription)
        self._hub.close(subscription)
        if self._chance.random() < 0.1:
            self._rows, self._resume = {}, None

    def _fold(self, changes: Sequence[Shown]) -> None:
        assert self._subscription is not None
        for op, values in changes:
            if op is Op.DELETE:
                self._rows.pop(values, None)
            else:
                self._rows[tuple(values[i] for i in self._subscription.query.key_indexes)] = values

    # --- what the hub calls ---

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        if self._slow and self._chance.random() < 0.05:
            self._met["too slow"] += 1
            self._resume = self._hub.detach(subscription)
            return
        try:
            self._heed(subscription, told)
        except AssertionError as failure:
            self.failure = self.failure or failure
            raise

    def _heed(self, subscription: LiveSubscription, told: Told) -> None:
        assert subscription is self._subscription, "told after it went away"
        assert self._resume is not None and self._resume < told.seq, "told again, or out of order"
        self._fold(told.changes)
        self._resume = told.seq

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        self.error = error

    def must_resume(self, subscription: LiveSubscription) -> None:
        self._met["made to resume"] += 1
        self._resume = subscription.seq


async def race(seed: int, clients: int = CLIENTS, writes: int = WRITES) -> Raced:
    chance, raced = random.Random(f"hub {seed}"), Raced(seed, "hub")
    listed = chance.choice([10, 100_000, 100_000])
    kept_seconds = chance.choice([0, 3600, 3600])
    with mock.patch.object(undo, "MAX_LISTED_CHANGES", listed):
        async with await tablecast.open_async(
            ":memory:", jobs_interval_seconds=3600, changes_kept_seconds=kept_seconds
        ) as db:
            await db.execute_all(TABLES)
            hub = LiveHub(db.engine, chunk=chance.choice([1, 16, 256]), backlog_rows=chance.choice([8, 100, 100_000]))
            await _race(db, hub, raced, chance, clients, writes)
            await hub.stop()
            if problems := (await db.verify()).problems:
                raced.violated(problems)
    return raced


async def _race(db: AsyncDatabase, hub: LiveHub, raced: Raced, chance: random.Random, count: int, writes: int) -> None:
    over, began = asyncio.Event(), db.engine.seq
    clients = [HubClient(hub, Question.any(chance), random.Random(chance.random()), raced.met) for _ in range(count)]
    going = [asyncio.create_task(client.come_and_go(over)) for client in clients]
    sessions = {user: await db.session(user, Role.SERVICE) for user in USERS}
    writing = [
        write_as(db, user, Writing(raced, clients, random.Random(chance.random()), writes, WIDE))
        for user in USERS
        for _ in range(WRITERS)
    ]
    trimming = asyncio.create_task(_trim(db, over))
    try:
        await asyncio.gather(*writing)
        raced.count(clients, db.engine.seq - began, LEAST_COMMITS if count == CLIENTS else 1)
    finally:
        over.set()
        await asyncio.gather(*going, trimming)
    while away := [client for client in clients if not client.is_live and client.error is None]:
        await asyncio.gather(*(client.subscribe() for client in away))
        await hub.settled()
    raced.met["fell behind"] = hub.counts.caught_up
    answers = {
        q: (await sessions[q.user].query(q.sql, q.params)).stored_rows()
        for q in {client.question for client in clients}
    }
    for client in clients:
        if wrong := client.failure or client.error:
            raced.violated(f"{client.question}: {wrong}")
    raced.judge(clients, answers)
    for client in clients:
        client._leave()
    if not hub.is_empty:
        raced.violated("an index still holds something")


async def write_as(db: AsyncDatabase, user: str, writing: Writing) -> None:
    session = await db.session(user, Role.SERVICE)

    async def execute_all(sql: str) -> None:
        try:
            await session.execute_all(sql)
        except TablecastError:
            if session.in_transaction:  # a COMMIT that is refused has ended it
                await session.rollback()
            raise

    await writing.write(session.execute, execute_all)


async def _trim(db: AsyncDatabase, over: asyncio.Event) -> None:
    """Changes are let go while they are needed, if they are not kept for long."""
    while not over.is_set():
        await db.run_job("changes")
