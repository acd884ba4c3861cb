"""Live queries through the hub: what a subscriber is told, when it must resume, and what ends it.

Every wait here is for the hub to have told everything that was committed; `asyncio.sleep(0)` only lets it run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import tablecast
from tablecast.engine import live, live_subscription, undo
from tablecast.engine.live import LiveHub, LiveSubscription, Told
from tablecast.errors import (
    DatabaseClosed,
    ExpressionError,
    InvalidRequest,
    PermissionDenied,
    SchemaChanged,
    TablecastError,
    UnknownTable,
)
from tablecast.model.change import Op
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.sql.database import Database
from tablecast.sql.plan_live import plan_live
from tablecast.testing.clock import FakeClock

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY, customer TEXT, amount INT) WITH (ACCESS_LEVEL = 'PRIVATE');
CREATE TABLE app.news (id INT PRIMARY KEY, title TEXT) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE USER TABLE app.notes (id INT PRIMARY KEY, body TEXT);
CREATE STREAM TABLE app.events (id INT PRIMARY KEY, what TEXT) WITH (TTL_SECONDS = 60);
INSERT INTO app.orders VALUES (1, 'ann', 10), (2, 'ben', 20), (3, 'ann', 30)
"""
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


@dataclass(eq=False)
class Listener:
    """Folds what it is told; `on_told` may do something in the middle of it."""

    rows: Rows = field(default_factory=dict)
    tolds: list[Told] = field(default_factory=list)
    resumes: int = 0
    error: TablecastError | None = None
    on_told: Callable[[LiveSubscription, Told], None] | None = None

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        if self.on_told is not None:
            self.on_told(subscription, told)
        self.tolds.append(told)
        self.fold(subscription, told.changes)

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        self.error = error

    def must_resume(self, subscription: LiveSubscription) -> None:
        self.resumes += 1

    def fold(self, subscription: LiveSubscription, changes: Sequence[Any]) -> None:
        for op, values in changes:
            if op is Op.DELETE:
                self.rows.pop(values, None)
            else:
                self.rows[tuple(values[i] for i in subscription.query.key_indexes)] = values


class Setting:
    """A database and a hub on the running loop."""

    def __init__(self, db: Database, hub: LiveHub) -> None:
        self.db, self.hub = db, hub

    async def open(
        self, sql: str, params: Sequence[Any] = (), *, resume: int | None = None, actor: Actor = SYSTEM_ACTOR
    ) -> tuple[Listener, LiveSubscription]:
        listener = Listener()
        query = plan_live(self.db.engine.catalog, actor, sql, params)
        return listener, await self.hub.open(query, listener, resume, self.db.engine.history)

    async def follow(
        self, sql: str, params: Sequence[Any] = (), *, rows: Rows | None = None, resume: int | None = None,
        actor: Actor = SYSTEM_ACTOR,
    ) -> tuple[Listener, LiveSubscription]:  # fmt: skip
        listener, subscription = await self.open(sql, params, resume=resume, actor=actor)
        listener.rows = dict(rows or {}) if subscription.mode == "resumed" else {}
        last = False
        while not last:
            found, last = await subscription.rows(1000)
            listener.fold(subscription, [(Op.INSERT, row) for row in found])
        changes = await subscription.go_live()
        assert changes is not None
        listener.fold(subscription, changes)
        return listener, subscription

    def execute(self, sql: str, params: Sequence[Any] = ()) -> None:
        self.db.execute_all(sql, params)


def run(
    test: Callable[[Setting], Coroutine[Any, Any, None]], *, backlog_rows: int = 1000, chunk: int = 256, **opened: Any
) -> None:
    async def main() -> None:
        with tablecast.open(":memory:", jobs_interval_seconds=3600, **opened) as db:
            db.execute_all(SCHEMA)
            hub = LiveHub(db.engine, chunk=chunk, backlog_rows=backlog_rows)
            await test(Setting(db, hub))
            await hub.stop()
            assert hub.is_empty
            assert db.verify().problems == []

    asyncio.run(main())


# --- what is told -----------------------------------------------------------------------------------------------


def test_a_row_is_judged_before_and_after() -> None:
    async def test(s: Setting) -> None:
        listener, _ = await s.follow("SELECT id, amount FROM app.orders WHERE customer = 'ann'")
        assert listener.rows == {(1,): (1, 10), (3,): (3, 30)}
        for sql in (
            "UPDATE app.orders SET customer = 'ann' WHERE id = 2",  # starts to match
            "UPDATE app.orders SET amount = 11 WHERE id = 1",  # stays
            "UPDATE app.orders SET customer = 'ben' WHERE id = 1",  # stops to match
            "UPDATE app.orders SET id = 7 WHERE id = 3",  # another key: one goes, one comes
            "DELETE FROM app.orders WHERE id = 2",
            "UPDATE app.orders SET amount = amount WHERE id = 7",  # shows the same
            "INSERT INTO app.orders VALUES (8, 'ben', 1)",  # concerns nobody
        ):
            s.execute(sql)
        await s.hub.settled()
        assert [[(op.label, *values) for op, values in told.changes] for told in listener.tolds] == [
            [("insert", 2, 20)],
            [("update", 1, 11)],
            [("delete", 1)],
            [("delete", 3), ("insert", 7, 30)],
            [("delete", 2)],
        ]

    run(test)


def test_a_commit_comes_whole_and_each_row_once() -> None:
    async def test(s: Setting) -> None:
        listener, subscription = await s.follow("SELECT * FROM app.orders")
        s.execute(
            "BEGIN; INSERT INTO app.orders VALUES (4, 'eve', 1); UPDATE app.orders SET amount = 2 WHERE id = 4;"
            "DELETE FROM app.orders WHERE id = 1; UPDATE app.orders SET amount = 0;"
            "INSERT INTO app.orders VALUES (5, 'x', 1); DELETE FROM app.orders WHERE id = 5; COMMIT"
        )
        await s.hub.settled()
        (told,) = listener.tolds
        assert told.seq == s.db.engine.seq == subscription.seq
        assert sorted((op.label, *values) for op, values in told.changes) == [
            ("delete", 1), ("insert", 4, "eve", 0), ("update", 2, "ben", 0), ("update", 3, "ann", 0)
        ]  # fmt: skip

    run(test)


def test_equal_queries_are_judged_and_encoded_once_and_share_the_bytes() -> None:
    async def test(s: Setting) -> None:
        followers = [await s.follow("SELECT id FROM app.orders WHERE amount > ?", (5,)) for _ in range(40)]
        other, _ = await s.follow("SELECT id FROM app.orders WHERE amount > ?", (6,))
        s.execute("INSERT INTO app.orders VALUES (9, 'eve', 100)")
        await s.hub.settled()
        tolds = {listener.tolds[-1] for listener, _ in followers}
        assert len(tolds) == 1
        assert len({subscription.channel for _, subscription in followers}) == 1
        (told,) = tolds
        made: list[Told] = []
        forms = {id(told.form("json", lambda t: made.append(t) or bytes(t.seq))) for _ in followers}  # type: ignore[func-returns-value]
        assert len(forms) == 1 and made == [told]
        assert other.tolds[-1].channel != told.channel
        stats = s.hub.stats()
        assert stats.subscriptions == 41
        assert sorted((group.subscribers, group.told) for group in stats.groups) == [(1, 1), (40, 1)]
        assert (stats.counts.deliveries, stats.counts.evaluations, stats.counts.encodings) == (41, 2, 1)

    run(test)


def test_expiry_is_a_delete() -> None:
    clock = FakeClock()

    async def test(s: Setting) -> None:
        ann = Actor("ann", Role.USER)
        session = s.db.session("ann")
        session.execute("INSERT INTO app.events VALUES (1, 'x')")
        clock.advance(30_000)
        session.execute("INSERT INTO app.events VALUES (2, 'x')")
        listener, _ = await s.follow("SELECT * FROM app.events", actor=ann)
        clock.advance(31_000)
        s.db.run_job("expiry")
        await s.hub.settled()
        assert [(op.label, *values) for told in listener.tolds for op, values in told.changes] == [("delete", 1)]

    run(test, clock=clock)


def test_a_row_that_comes_again_after_its_time_is_told_to_whoever_was_not_shown_it() -> None:
    clock = FakeClock()

    async def test(s: Setting) -> None:
        ann, session = Actor("ann", Role.USER), s.db.session("ann")
        session.execute("INSERT INTO app.events VALUES (1, 'x')")
        clock.advance(61_000)  # its time is over, and no job has come by
        listener, _ = await s.follow("SELECT * FROM app.events", actor=ann)
        away, gone = await s.follow("SELECT * FROM app.events", actor=ann)
        seq = s.hub.detach(gone)
        assert listener.rows == away.rows == {}
        session.execute("INSERT INTO app.events VALUES (1, 'x')")
        await s.hub.settled()
        assert listener.rows == {(1,): (1, "x")}
        again, resumed = await s.follow("SELECT * FROM app.events", actor=ann, resume=seq, rows=away.rows)
        assert resumed.mode == "resumed"
        assert again.rows == {(1,): (1, "x")}

    run(test, clock=clock)


def test_limit_bounds_what_comes_first_and_nothing_else() -> None:
    async def test(s: Setting) -> None:
        listener, subscription = await s.open("SELECT id FROM app.orders LIMIT 2")
        assert await subscription.rows(1) == ([(3,)], False)
        assert await subscription.rows(1) == ([(2,)], True)
        assert await subscription.go_live() == []
        s.execute("UPDATE app.orders SET id = 9 WHERE id = 1")
        await s.hub.settled()
        assert [tuple(change) for change in listener.tolds[0].changes] == [(Op.DELETE, (1,)), (Op.INSERT, (9,))]

    run(test)


# --- no gap -----------------------------------------------------------------------------------------------------


def test_what_is_committed_between_the_rows_and_going_live_is_in_what_going_live_returns() -> None:
    async def test(s: Setting) -> None:
        listener, subscription = await s.open("SELECT id, amount FROM app.orders")
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 1)")
        assert await subscription.rows(2) == ([(1, 10), (2, 20)], False)
        s.execute("UPDATE app.orders SET amount = 2 WHERE id = 4; DELETE FROM app.orders WHERE id = 1")
        assert await subscription.rows(2) == ([(3, 30)], True)
        s.execute("UPDATE app.orders SET amount = 31 WHERE id = 3")
        changes = await subscription.go_live()
        assert changes is not None
        assert sorted((op.label, *values) for op, values in changes) == [
            ("delete", 1), ("insert", 4, 2), ("update", 3, 31)
        ]  # fmt: skip
        assert subscription.seq == s.db.engine.seq
        await s.hub.settled()
        assert listener.tolds == []

    run(test)


def test_catching_up_over_many_commits_goes_through_a_thread_and_is_one_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_subscription, "NEAR_COMMITS", 1)
    monkeypatch.setattr(live, "NEAR_COMMITS", 1)

    async def test(s: Setting) -> None:
        listener, subscription = await s.open("SELECT id, amount FROM app.orders WHERE amount < 100")
        await subscription.rows(10)
        for i in range(4, 9):
            s.execute("INSERT INTO app.orders VALUES (?, 'x', 1)", (i,))
        going = asyncio.ensure_future(subscription.go_live())
        await asyncio.sleep(0)  # the first round is on its way; what follows is for the second
        s.execute("UPDATE app.orders SET amount = 5 WHERE id = 4; DELETE FROM app.orders WHERE id = 5")
        s.execute("UPDATE app.orders SET amount = 500 WHERE id = 1; INSERT INTO app.orders VALUES (9, 'x', 1)")
        changes = await going
        assert changes is not None
        listener.rows = {(1,): (1, 10), (2,): (2, 20), (3,): (3, 30)}
        listener.fold(subscription, changes)
        assert len(changes) == len({values[:1] for _, values in changes})
        assert set(listener.rows.values()) == set(
            s.db.query("SELECT id, amount FROM app.orders WHERE amount < 100").rows
        )
        assert (Op.INSERT, (4, 5)) in changes  # it came and was changed: to the subscriber it came
        _, again = await s.open("SELECT id FROM app.orders", resume=0)
        assert again.mode == "refetch"

    run(test)


def test_subscribers_that_come_while_writers_write_miss_nothing() -> None:
    """Four threads write; subscriptions come, are dropped and resumed all the while."""

    async def test(s: Setting) -> None:
        def write(thread: int) -> None:
            session = s.db.session(f"writer{thread}", Role.SERVICE)
            for i in range(150):
                key = 1000 * thread + i % 20
                session.execute(
                    "INSERT INTO app.orders VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, "
                    "customer = excluded.customer",
                    (key, "ann" if i % 3 else "ben", i),
                )
                if i % 7 == 0:
                    session.execute("DELETE FROM app.orders WHERE id = ?", (key,))

        threads = [threading.Thread(target=write, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        questions = ["SELECT * FROM app.orders", "SELECT id, amount FROM app.orders WHERE customer = 'ann'"]
        followed = [(sql, *await s.follow(sql)) for sql in questions * 3]
        while any(thread.is_alive() for thread in threads):
            sql, listener, subscription = followed.pop(0)
            seq = s.hub.detach(subscription)
            await asyncio.sleep(0)
            followed.append((sql, *await s.follow(sql, resume=seq, rows=listener.rows)))
            assert followed[-1][2].mode == "resumed"
        await s.hub.settled()
        for sql, listener, _ in followed:
            assert sorted(listener.rows.values()) == sorted(s.db.query(sql).rows)
            assert listener.resumes == 0

    run(test, backlog_rows=100_000)


# --- resuming ---------------------------------------------------------------------------------------------------


def test_resuming_tells_what_was_missed_deletions_included() -> None:
    async def test(s: Setting) -> None:
        _, subscription = await s.follow("SELECT id, amount FROM app.orders WHERE amount < 25")
        seq = s.hub.detach(subscription)
        s.execute("DELETE FROM app.orders WHERE id = 1; UPDATE app.orders SET amount = 5 WHERE id = 3")
        s.execute("UPDATE app.orders SET amount = 99 WHERE id = 2; INSERT INTO app.orders VALUES (4, 'x', 1)")
        _, again = await s.open("SELECT id, amount FROM app.orders WHERE amount < 25", resume=seq)
        assert (again.mode, again.seq) == ("resumed", seq)
        assert await again.rows(10) == ([], True)
        changes = await again.go_live()
        assert changes is not None
        assert sorted((op.label, *values) for op, values in changes) == [
            ("delete", 1), ("delete", 2), ("insert", 3, 5), ("insert", 4, 1)
        ]  # fmt: skip
        assert again.seq == s.db.engine.seq

    run(test)


@pytest.mark.parametrize("resume", [0, 10**6], ids=["before the changes kept", "a commit that did not happen"])
def test_what_is_not_known_is_fetched_again(resume: int) -> None:
    async def test(s: Setting) -> None:
        await s.follow("SELECT * FROM app.orders")
        listener, subscription = await s.follow("SELECT id FROM app.orders", resume=resume, rows={(99,): (99,)})
        assert subscription.mode == "refetch"
        assert sorted(listener.rows) == [(1,), (2,), (3,)]

    run(test)


def test_a_number_of_another_history_is_not_resumed_from() -> None:
    async def test(s: Setting) -> None:
        _, subscription = await s.follow("SELECT id FROM app.orders")
        seq, query = s.hub.detach(subscription), subscription.query
        assert (await s.hub.open(query, Listener(), seq, "another")).mode == "refetch"
        assert (await s.hub.open(query, Listener(), seq, s.db.engine.history)).mode == "resumed"
        with pytest.raises(InvalidRequest, match="history"):
            await s.hub.open(query, Listener(), seq)

    run(test)


def test_a_commit_that_could_not_be_listed_makes_everybody_fetch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MAX_LISTED_CHANGES", 10)

    async def test(s: Setting) -> None:
        first, live_one = await s.follow("SELECT id FROM app.orders")
        same, live_two = await s.follow("SELECT id FROM app.orders WHERE customer = 'nobody'")
        _, reading = await s.open("SELECT id FROM app.orders")
        await reading.rows(100)
        s.db.insert("app.orders", [{"id": i} for i in range(100, 120)])
        await s.hub.settled()
        assert (first.resumes, same.resumes) == (1, 1)
        assert live_one.closed and live_two.closed
        assert await reading.go_live() is None
        assert reading.closed and s.hub.is_empty
        listener, again = await s.follow("SELECT id FROM app.orders", resume=live_one.seq, rows=first.rows)
        assert again.mode == "refetch"
        assert len(listener.rows) == 23

    run(test)


# --- falling behind ---------------------------------------------------------------------------------------------


def test_a_hub_that_falls_behind_goes_on_from_the_kept_changes() -> None:
    async def test(s: Setting) -> None:
        listener, _ = await s.follow("SELECT id, amount FROM app.orders WHERE amount > 0")
        other, _ = await s.follow("SELECT id FROM app.orders WHERE customer = ?", ("eve",))
        for i in range(4, 40):  # the loop does not run meanwhile
            s.execute("INSERT INTO app.orders VALUES (?, 'eve', ?)", (i, i % 2))
        s.execute("DELETE FROM app.orders WHERE id IN (1, 20); UPDATE app.orders SET amount = amount + 1 WHERE id < 4")
        await s.hub.settled()
        assert s.hub.counts.caught_up == 1
        assert set(listener.rows.values()) == set(s.db.query("SELECT id, amount FROM app.orders WHERE amount > 0").rows)
        assert set(other.rows.values()) == set(s.db.query("SELECT id FROM app.orders WHERE customer = 'eve'").rows)
        assert len(listener.tolds) == len(other.tolds) == 1
        assert listener.resumes == 0

    run(test, backlog_rows=8)


def test_what_a_hub_lost_and_nobody_kept_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "MAX_LISTED_CHANGES", 10)

    async def test(s: Setting) -> None:
        listener, subscription = await s.follow("SELECT id FROM app.orders")
        other, _ = await s.follow("SELECT id FROM app.news")
        for i in range(4, 20):
            s.execute("INSERT INTO app.orders VALUES (?, 'x', 0); INSERT INTO app.news VALUES (?, 'x')", (i, i))
        s.db.insert("app.orders", [{"id": i} for i in range(100, 120)])
        await s.hub.settled()
        assert s.hub.counts.caught_up == 1
        assert (listener.resumes, listener.tolds) == (1, [])
        assert other.resumes == 0 and len(other.rows) == 16
        _, again = await s.open("SELECT id FROM app.orders", resume=subscription.seq)
        assert again.mode == "refetch"

    run(test, backlog_rows=8)


def test_who_joined_after_the_commits_that_a_hub_lost_resumes() -> None:
    """It holds a row that the hub's difference begins and ends without."""

    async def test(s: Setting) -> None:
        first, _ = await s.follow("SELECT id FROM app.orders WHERE amount > 50")
        s.execute("UPDATE app.orders SET amount = 99 WHERE id = 1")
        late, subscription = await s.follow("SELECT id FROM app.orders WHERE amount > 50")
        assert late.rows == {(1,): (1,)}
        assert first.tolds == []  # the hub has not run
        s.execute("UPDATE app.orders SET amount = 10 WHERE id = 1")
        for i in range(10, 30):
            s.execute("INSERT INTO app.orders VALUES (?, 'x', 0)", (i,))
        await s.hub.settled()
        assert s.hub.counts.caught_up == 1
        assert (first.rows, first.resumes) == ({}, 0)
        assert late.resumes == 1 and subscription.closed
        again, resumed = await s.follow(
            "SELECT id FROM app.orders WHERE amount > 50", resume=subscription.seq, rows=late.rows
        )
        assert resumed.mode == "resumed"
        assert again.rows == {}

    run(test, backlog_rows=8)


def test_one_that_joins_before_earlier_commits_were_told_is_not_told_them() -> None:
    async def test(s: Setting) -> None:
        first, _ = await s.follow("SELECT id FROM app.orders")
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 1); ALTER TABLE app.orders ADD COLUMN note TEXT DEFAULT 'n'")
        named, _ = await s.follow("SELECT id, note FROM app.orders WHERE note = 'n'")
        late, _ = await s.follow("SELECT id FROM app.orders")
        assert first.tolds == []  # the hub has not run, and the rows it has to judge have no note
        await s.hub.settled()
        assert [len(listener.tolds) for listener in (first, named, late)] == [1, 0, 0]
        assert [listener.error for listener in (first, named, late)] == [None, None, None]

    run(test)


def test_rows_that_were_gone_before_it_joined_are_not_judged() -> None:
    """Its filter would fail on one of them."""

    async def test(s: Setting) -> None:
        first, _ = await s.follow("SELECT id FROM app.orders")
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 2000000000); DELETE FROM app.orders WHERE id = 4")
        late, _ = await s.follow("SELECT id FROM app.orders WHERE amount * 1000 > 5")
        await s.hub.settled()
        assert len(first.tolds) == 2
        assert late.error is None

    run(test)


def test_a_hub_that_fails_makes_its_subscribers_resume_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(s: Setting) -> None:
        followed = [await s.follow("SELECT id FROM app.orders") for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(live, "commit_changes", lambda commit, table_id: 1 / 0)
            s.execute("INSERT INTO app.orders VALUES (4, 'x', 1)")
            await s.hub.settled()
        assert [listener.resumes for listener, _ in followed] == [1, 1, 1]
        assert s.hub.is_empty and "ZeroDivisionError" in caplog.text
        listener, before = followed[0]
        again, resumed = await s.follow("SELECT id FROM app.orders", resume=before.seq, rows=listener.rows)
        s.execute("INSERT INTO app.orders VALUES (5, 'x', 1)")
        await s.hub.settled()
        assert resumed.mode == "resumed" and sorted(again.rows) == [(i,) for i in range(1, 6)]

    with caplog.at_level(logging.ERROR, logger="tablecast.live"):
        run(test)


# --- coming and going while it is told --------------------------------------------------------------------------


def test_whoever_closes_another_one_in_the_middle_of_a_commit_stops_it() -> None:
    async def test(s: Setting) -> None:
        followers = [await s.follow("SELECT id FROM app.orders") for _ in range(5)]
        came: list[tuple[Listener, LiveSubscription]] = []

        def close_others(subscription: LiveSubscription, told: Told) -> None:
            for listener, other in followers[1:4]:
                listener.on_told = None
                s.hub.close(other)

        followers[0][0].on_told = close_others
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 1)")
        await asyncio.sleep(0)
        came.append(await s.follow("SELECT id FROM app.orders"))
        await s.hub.settled()
        assert [len(listener.tolds) for listener, _ in followers] == [1, 0, 0, 0, 1]
        assert came[0][0].tolds == [] and (4,) in came[0][0].rows
        assert s.hub.stats().subscriptions == 3

    run(test, chunk=1)


def test_one_that_cannot_take_it_detaches_and_resumes_from_the_commit_before() -> None:
    async def test(s: Setting) -> None:
        listener, subscription = await s.follow("SELECT id FROM app.orders")
        before = dict(listener.rows)
        kept: list[int] = []
        listener.on_told = lambda own, told: kept.append(s.hub.detach(own))
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 1)")
        await s.hub.settled()
        assert kept == [s.db.engine.seq - 1] and subscription.seq == kept[0]
        again, resumed = await s.follow("SELECT id FROM app.orders", resume=kept[0], rows=before)
        assert resumed.mode == "resumed" and (4,) in again.rows

    run(test)


def test_an_idle_subscription_resumes_from_the_last_commit_heard_of() -> None:
    """Not from the last that concerned it: the changes since then may be gone."""

    async def test(s: Setting) -> None:
        _, subscription = await s.follow("SELECT id FROM app.orders WHERE customer = 'nobody'")
        for i in range(10, 20):
            s.execute("INSERT INTO app.orders VALUES (?, 'x', 1)", (i,))
        await s.hub.settled()
        assert s.hub.detach(subscription) == s.db.engine.seq

    run(test)


def test_a_subscriber_that_raises_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async def test(s: Setting) -> None:
        broken, subscription = await s.follow("SELECT id FROM app.orders")
        fine, _ = await s.follow("SELECT id FROM app.orders")

        def fail(own: LiveSubscription, told: Told) -> None:
            raise RuntimeError("boom")

        broken.on_told = fail
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 1)")
        await s.hub.settled()
        assert len(fine.tolds) == 1
        assert broken.resumes == 1 and subscription.closed
        assert "boom" in caplog.text

    with caplog.at_level(logging.ERROR, logger="tablecast.live"):
        run(test)


def test_big_fan_outs_leave_the_loop_its_turns() -> None:
    async def test(s: Setting) -> None:
        for _ in range(20):
            await s.follow("SELECT id FROM app.orders")
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 1)")
        await s.hub.settled()
        counting.cancel()
        assert turns >= 10

    run(test, chunk=2)


# --- ending -----------------------------------------------------------------------------------------------------


def test_a_dropped_table_ends_its_queries() -> None:
    async def test(s: Setting) -> None:
        listener, subscription = await s.follow("SELECT id FROM app.orders")
        other, _ = await s.follow("SELECT id FROM app.news")
        _, reading = await s.open("SELECT id FROM app.orders")
        s.execute("DROP TABLE app.orders; CREATE TABLE app.orders (id INT PRIMARY KEY)")
        await s.hub.settled()
        assert isinstance(listener.error, UnknownTable) and subscription.closed
        assert other.error is None
        with pytest.raises(UnknownTable, match=r"app\.orders was dropped"):
            await reading.rows(10)
        assert reading.closed

    run(test)


def test_an_altered_table_ends_select_star_and_nothing_else() -> None:
    async def test(s: Setting) -> None:
        star, _ = await s.follow("SELECT * FROM app.orders")
        named, one = await s.follow("SELECT id, customer FROM app.orders")
        _, reading = await s.open("SELECT * FROM app.orders")
        s.execute("ALTER TABLE app.orders ADD COLUMN note TEXT DEFAULT 'none'")
        s.execute("INSERT INTO app.orders VALUES (4, 'eve', 1, 'new')")
        await s.hub.settled()
        assert isinstance(star.error, SchemaChanged)
        assert named.error is None and named.rows[4,] == (4, "eve")
        with pytest.raises(SchemaChanged, match="subscribe again"):
            await reading.go_live()
        again, _ = await s.follow("SELECT * FROM app.orders")
        assert again.rows[1,] == (1, "ann", 10, "none")
        _, two = await s.follow("SELECT id, customer FROM app.orders")
        assert one.channel == two.channel  # the same question, though asked of another version
        s.execute("UPDATE app.orders SET note = 'x' WHERE id = 1")
        await s.hub.settled()
        assert again.tolds[-1].changes == [(Op.UPDATE, (1, "ann", 10, "x"))]
        assert len(named.tolds) == 1

    run(test)


def test_a_query_planned_before_the_table_was_altered_is_not_opened() -> None:
    async def test(s: Setting) -> None:
        query = plan_live(s.db.engine.catalog, SYSTEM_ACTOR, "SELECT * FROM app.orders", ())
        s.execute("ALTER TABLE app.orders ADD COLUMN note TEXT")
        with pytest.raises(SchemaChanged):
            await s.hub.open(query, Listener())
        s.execute("DROP TABLE app.orders")
        with pytest.raises(UnknownTable):
            await s.hub.open(query, Listener())

    run(test)


def test_rights_that_are_taken_end_the_query() -> None:
    async def test(s: Setting) -> None:
        s.execute("CREATE USER 'ann' WITH PASSWORD 'secret-secret' ROLE 'service'")
        s.execute("CREATE USER 'ben' WITH PASSWORD 'secret-secret' ROLE 'service'")
        ann, ben, guest = Actor("ann", Role.SERVICE), Actor("ben", Role.SERVICE), Actor("guest", Role.SERVICE)
        private, _ = await s.follow("SELECT id FROM app.orders", actor=ann)
        public, _ = await s.follow("SELECT id FROM app.news", actor=ann)
        own, _ = await s.follow("SELECT id FROM app.notes", actor=ann)
        bens, _ = await s.follow("SELECT id FROM app.orders", actor=ben)
        guests, _ = await s.follow("SELECT id FROM app.orders", actor=guest)
        _, reading = await s.open("SELECT id FROM app.orders", actor=ann)
        s.execute("ALTER USER 'ben' SET PASSWORD 'another-secret'")
        s.execute("ALTER USER 'ann' SET ROLE 'user'")
        await s.hub.settled()
        assert isinstance(private.error, PermissionDenied)
        assert [listener.error for listener in (public, own, bens, guests)] == [None] * 4
        with pytest.raises(PermissionDenied):
            await reading.rows(10)
        s.execute("DROP USER 'ann'; DROP USER 'ben'")
        await s.hub.settled()
        assert [type(listener.error) for listener in (public, own, bens)] == [PermissionDenied] * 3
        assert guests.error is None  # who never had an account cannot lose it
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 1)")
        await s.hub.settled()
        assert private.tolds == bens.tolds == []

    run(test)


def test_a_filter_that_fails_on_a_row_ends_its_query_with_the_error() -> None:
    async def test(s: Setting) -> None:
        listener, subscription = await s.follow("SELECT id FROM app.orders WHERE amount * 1000 > 5")
        other, _ = await s.follow("SELECT id FROM app.orders WHERE amount > 5")
        s.execute("INSERT INTO app.orders VALUES (4, 'x', 2000000000)")
        await s.hub.settled()
        assert isinstance(listener.error, ExpressionError) and subscription.closed
        assert len(other.tolds) == 1
        _, reading = await s.open("SELECT id FROM app.orders WHERE amount * 1000 > 5")
        with pytest.raises(ExpressionError):
            await reading.rows(10)
        assert reading.closed

    run(test)


def test_users_are_told_of_their_own_rows_only() -> None:
    async def test(s: Setting) -> None:
        users = ("ann", "ben", "eve")
        followed = {u: await s.follow("SELECT id, body FROM app.notes", actor=Actor(u, Role.USER)) for u in users}
        for i in range(30):
            user = users[i % 2]
            s.db.session(user).execute("INSERT INTO app.notes VALUES (?, ?)", (i % 5, f"{user} {i}")) if i < 5 else (
                s.db.session(user).execute("UPDATE app.notes SET body = ? WHERE id = ?", (f"{user} {i}", i % 5))
            )
        await s.hub.settled()
        for user, (listener, _) in followed.items():
            told = [values for told in listener.tolds for _, values in told.changes]
            assert all(body.startswith(user) for _, body in told)
            assert sorted(listener.rows.values()) == sorted(
                s.db.session(user).query("SELECT id, body FROM app.notes").rows
            )
        assert followed["eve"][0].tolds == []
        assert len({subscription.channel for _, subscription in followed.values()}) == 3

    run(test)


# --- the rules of use -------------------------------------------------------------------------------------------


def test_it_goes_live_after_its_rows_and_is_over_when_closed() -> None:
    async def test(s: Setting) -> None:
        _, subscription = await s.open("SELECT id FROM app.orders")
        with pytest.raises(InvalidRequest, match="after the last"):
            await subscription.go_live()
        s.hub.close(subscription)
        s.hub.close(subscription)
        with pytest.raises(InvalidRequest, match="closed"):
            await subscription.rows(10)

    run(test)


def test_closing_stops_a_long_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_subscription, "ROWS_ON_LOOP", 1)

    async def test(s: Setting) -> None:
        _, subscription = await s.open("SELECT id FROM app.orders WHERE customer = 'nobody'")
        reading = asyncio.ensure_future(subscription.rows(10))
        await asyncio.sleep(0)
        s.hub.close(subscription)
        with pytest.raises(InvalidRequest, match="closed"):
            await reading

    run(test)


def test_nothing_listens_once_everybody_has_gone_and_a_stopped_hub_takes_nobody() -> None:
    async def test(s: Setting) -> None:
        for _ in range(3):
            _, subscription = await s.follow("SELECT id FROM app.orders")
            assert not s.hub.is_empty
            s.execute("UPDATE app.orders SET amount = amount + 1")
            s.hub.close(subscription)
            assert s.hub.is_empty
            s.execute("UPDATE app.orders SET amount = amount + 1")
        listener, _ = await s.follow("SELECT id, amount FROM app.orders")
        s.execute("UPDATE app.orders SET amount = amount + 1")
        await s.hub.settled()
        assert len(listener.tolds) == 1
        await s.hub.stop()
        with pytest.raises(DatabaseClosed):
            await s.open("SELECT id FROM app.orders")

    run(test)


def test_progress_is_what_was_told_and_what_concerned_nobody() -> None:
    async def test(s: Setting) -> None:
        listener, subscription = await s.follow("SELECT id FROM app.orders")
        s.execute("CREATE TABLE app.elsewhere (id INT PRIMARY KEY)")
        await s.hub.settled()
        s.execute("INSERT INTO app.elsewhere VALUES (1)")
        before = s.hub.progress()
        assert before == s.db.engine.seq, "there was nothing to tell"
        s.execute("INSERT INTO app.orders (id) VALUES (77)")
        s.execute("INSERT INTO app.elsewhere VALUES (2)")
        assert ((77,) in listener.rows, s.hub.progress()) == (False, before), "the loop had no turn to tell it"
        await s.hub.settled()
        assert ((77,) in listener.rows, s.hub.progress()) == (True, s.db.engine.seq)
        s.hub.close(subscription)

    run(test)
