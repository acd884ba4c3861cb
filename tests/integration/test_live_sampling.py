"""The sampling of system tables below the server: rights, pace, failures, and who comes and goes in the middle of it.

Every wait is for something that must come; `Steered.tick` is the only clock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steered import Steered

import tablecast
from tablecast.engine import live_sampling
from tablecast.engine.live import LiveHub, LiveSubscription, Told
from tablecast.engine.live_sampling import READING_SHARE, SAMPLE_SECONDS, SAMPLES_FROM, difference
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.errors import DatabaseClosed, DatabaseError, ExpressionError, PermissionDenied, TablecastError
from tablecast.model.change import Op
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.sql.database import Database
from tablecast.sql.plan_live import plan_live

TOPICS = "SELECT name FROM system.topics"
Values = tuple[Any, ...]


@dataclass(eq=False)
class Listener:
    """Folds what it is told."""

    rows: dict[Values, Values] = field(default_factory=dict)
    seqs: list[int] = field(default_factory=list)
    resumes: int = 0
    error: TablecastError | None = None

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        self.seqs.append(told.seq)
        self.fold(subscription, told.changes)

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        self.error = error

    def must_resume(self, subscription: LiveSubscription) -> None:
        self.resumes += 1

    def fold(self, subscription: LiveSubscription, changes: Sequence[Any]) -> None:
        for op, values in changes:
            if op is Op.DELETE:
                del self.rows[values]
            else:
                key = tuple(values[i] for i in subscription.query.key_indexes)
                assert (key in self.rows) is (op is Op.UPDATE)
                self.rows[key] = values

    @property
    def names(self) -> list[str]:
        return [key[1] for key in self.rows]


class Scene:
    def __init__(self, db: Database, hub: LiveHub) -> None:
        self.db, self.hub, self.steered = db, hub, Steered(hub)

    async def execute(self, sql: str) -> None:
        await asyncio.to_thread(self.db.execute, sql)

    async def open(
        self, sql: str = TOPICS, actor: Actor = SYSTEM_ACTOR, resume: int | None = None
    ) -> tuple[Listener, LiveSubscription]:
        listener = Listener()
        query = plan_live(self.db.engine.catalog, actor, sql)
        return listener, await self.hub.open(query, listener, resume, self.db.engine.history)

    async def read(self, listener: Listener, subscription: LiveSubscription) -> None:
        last = False
        while not last:
            rows, last = await subscription.rows(2)
            listener.fold(subscription, [(Op.INSERT, row) for row in rows])
        listener.fold(subscription, await subscription.go_live() or [])

    async def follow(self, sql: str = TOPICS, actor: Actor = SYSTEM_ACTOR) -> tuple[Listener, LiveSubscription]:
        listener, subscription = await self.open(sql, actor)
        await self.read(listener, subscription)
        return listener, subscription


def play(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        hub = LiveHub(db.engine)
        try:
            await test(Scene(db, hub))
        finally:
            await hub.stop()
            assert hub.is_empty

    with tablecast.open(":memory:") as db:
        db.execute("CREATE NAMESPACE app; CREATE TOPIC app.a; CREATE TOPIC app.b; CREATE TOPIC app.c")
        asyncio.run(run())


# --- differences ----------------------------------------------------------------------------------------------------

answers = st.dictionaries(st.integers(0, 9), st.integers(0, 2)).map(
    lambda found: {(key,): (key, value) for key, value in found.items()}
)


@given(answers, answers)
def test_a_difference_makes_the_one_of_the_other(before: dict[Values, Values], after: dict[Values, Values]) -> None:
    rows, told = dict(before), difference(before, after)
    for op, values in told:
        if op is Op.DELETE:
            del rows[values]
        else:
            assert (values[:1] in rows) is (op is Op.UPDATE)
            rows[values[:1]] = values
    assert rows == after
    assert len(told) == len({key for key in {**before, **after} if before.get(key) != after.get(key)})


# --- from the first row on --------------------------------------------------------------------------------------------


def test_it_is_told_what_is_different_since_the_rows_it_began_with() -> None:
    async def test(scene: Scene) -> None:
        early, _ = await scene.follow()
        late, subscription = await scene.open()
        rows, _ = await subscription.rows(1)
        late.fold(subscription, [(Op.INSERT, row) for row in rows])
        await scene.execute("CREATE TOPIC app.d; DROP TOPIC app.b")
        await scene.steered.tick()
        assert early.names == ["a", "c", "d"]
        await scene.read(late, subscription)
        assert sorted(late.names) == ["a", "c", "d"]
        await scene.execute("DROP TOPIC app.a")
        await scene.steered.tick()
        assert late.rows == early.rows
        assert late.seqs == early.seqs[1:], "what it had caught up with it was not told again"
        assert early.seqs == sorted(early.seqs)
        assert early.seqs[0] > SAMPLES_FROM

    play(test)


def test_who_comes_back_fetches_again() -> None:
    async def test(scene: Scene) -> None:
        _, subscription = await scene.follow()
        seq = scene.hub.detach(subscription)
        assert scene.hub.is_empty
        listener, again = await scene.open(resume=seq)
        assert again.mode == "refetch"
        await scene.read(listener, again)
        assert listener.names == ["a", "b", "c"]

    play(test)


def test_who_leaves_while_the_first_answer_is_being_read_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SYSTEM_TABLES["topics"]
    make, reading, go_on = table._make, threading.Event(), threading.Event()

    def slow(engine: Any) -> Any:
        reading.set()
        assert go_on.wait(30)
        return make(engine)

    async def test(scene: Scene) -> None:
        monkeypatch.setattr(table, "_make", slow)
        opening = [asyncio.create_task(scene.open()) for _ in range(3)]
        await asyncio.to_thread(reading.wait, 30)
        opening[0].cancel()
        await asyncio.wait([opening[0]])
        assert not scene.hub.is_empty, "the others wait for the same answer"
        go_on.set()
        for task in opening[1:]:
            scene.hub.close((await task)[1])
        assert scene.hub.is_empty
        reading.clear()
        go_on.clear()
        alone = asyncio.create_task(scene.open())
        await asyncio.to_thread(reading.wait, 30)
        alone.cancel()
        await asyncio.wait([alone])
        assert scene.hub.is_empty
        go_on.set()

    play(test)


# --- rights -----------------------------------------------------------------------------------------------------------


def test_rights_are_looked_at_with_every_sample() -> None:
    async def test(scene: Scene) -> None:
        await scene.execute("CREATE USER 'sue' WITH PASSWORD 'battery staple' ROLE 'service'")
        await scene.execute("CREATE USER 'dan' WITH PASSWORD 'battery staple' ROLE 'service'")
        sue, _ = await scene.follow(actor=Actor("sue", Role.SERVICE))
        dan, _ = await scene.follow(actor=Actor("dan", Role.SERVICE))
        ours, _ = await scene.follow()
        await scene.execute("ALTER USER 'sue' SET ROLE 'user'; DROP USER 'dan'; CREATE TOPIC app.secret")
        await scene.steered.tick()
        assert isinstance(sue.error, PermissionDenied) and isinstance(dan.error, PermissionDenied)
        assert "secret" not in sue.names + dan.names
        assert "secret" in ours.names
        [group] = scene.hub.stats().groups
        assert group.subscribers == 1

    play(test)


def test_rights_are_looked_at_before_the_rows_are_given() -> None:
    async def test(scene: Scene) -> None:
        await scene.execute("CREATE USER 'sue' WITH PASSWORD 'battery staple' ROLE 'service'")
        _, subscription = await scene.open(actor=Actor("sue", Role.SERVICE))
        await scene.execute("ALTER USER 'sue' SET ROLE 'user'")
        with pytest.raises(PermissionDenied, match=r"reading system\.topics takes service"):
            await subscription.rows(10)
        assert scene.hub.is_empty

    play(test)


# --- pace and failures ------------------------------------------------------------------------------------------------


def test_a_table_that_takes_long_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, table = [0.0], SYSTEM_TABLES["topics"]
    make = table._make

    def slow(engine: Any) -> Any:
        now[0] += 0.5
        return make(engine)

    async def test(scene: Scene) -> None:
        monkeypatch.setattr(live_sampling, "perf_counter", lambda: now[0])
        await scene.follow()
        await scene.steered.tick()
        monkeypatch.setattr(table, "_make", slow)
        await scene.steered.tick()
        assert scene.steered.asked == [SAMPLE_SECONDS, SAMPLE_SECONDS, 0.5 / READING_SHARE]

    play(test)


def test_a_table_that_cannot_be_read_ends_its_queries_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(engine: Any) -> Any:
        raise OSError("no such thing")

    async def test(scene: Scene) -> None:
        topics, _ = await scene.follow()
        tables, _ = await scene.follow("SELECT name FROM system.tables")
        monkeypatch.setattr(SYSTEM_TABLES["topics"], "_make", broken)
        await scene.execute("CREATE TABLE app.t (id INT PRIMARY KEY)")
        await scene.steered.tick()
        assert isinstance(topics.error, DatabaseError)
        assert (tables.error, tables.names) == (None, ["t"])
        with pytest.raises(DatabaseError, match="no such thing"):
            await scene.open()
        assert scene.hub.stats().subscriptions == 1

    play(test)


def test_a_filter_that_fails_for_a_row_ends_the_query_that_has_it() -> None:
    async def test(scene: Scene) -> None:
        failing, _ = await scene.follow(f"SELECT name FROM system.topics WHERE partitions * {2**62} > 0")
        other, _ = await scene.follow()
        assert failing.names == ["a", "b", "c"]
        await scene.execute("CREATE TOPIC app.large PARTITIONS 2")
        await scene.steered.tick()
        assert isinstance(failing.error, ExpressionError)
        assert (other.error, other.names) == (None, ["a", "b", "c", "large"])

    play(test)


def test_a_mistake_of_ours_makes_its_readers_resume(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(scene: Scene) -> None:
        listener, _ = await scene.follow()
        monkeypatch.setattr(live_sampling, "_judge", lambda *_: [None])
        await scene.steered.tick()
        assert listener.resumes == 1
        assert scene.hub.is_empty
        assert "sampling system.topics failed" in caplog.text

    play(test)


def test_a_hub_that_was_stopped_takes_nobody() -> None:
    async def test(scene: Scene) -> None:
        await scene.follow()
        await scene.hub.stop()
        assert scene.hub.is_empty
        with pytest.raises(DatabaseClosed):
            await scene.open()

    play(test)
