"""Live queries against the history of their tables.

Writers, jobs and definitions go on while followers subscribe, read, go live, fall out and resume, in any order and with the
hub stopped anywhere in between: it tells one at a time here, and its backlog is tiny, so it often falls behind. The model is
every state of every table, by commit. After each step a follower's rows must be exactly its question asked of the state at
its `seq`: a commit that came in parts, twice, out of order or not at all would be seen there. And in the end they must be
what SELECT says.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from live_followers import QUESTIONS, Follower, Question, State

from tablecast.engine import undo
from tablecast.engine.engine import Engine
from tablecast.engine.live import LiveHub
from tablecast.errors import SchemaChanged, TablecastError, UnknownTable
from tablecast.model.schema import Actor, Role
from tablecast.sql.plan_live import plan_live
from tablecast.sql.query import QueryEngine
from tablecast.sql.session import Session
from tablecast.storage.memory import MemoryStore
from tablecast.testing.clock import FakeClock

TTL_SECONDS = 60
KEPT_SECONDS = 600
LISTED = 8  # changed rows in a commit; one with more is not listed
BACKLOG_ROWS = 8
MOST_FOLLOWERS = 8
COLUMNS = "id INT PRIMARY KEY, grp INT, v INT NOT NULL"
TABLES = {
    "app.shared": f"CREATE TABLE app.shared ({COLUMNS})",
    "app.own": f"CREATE USER TABLE app.own ({COLUMNS})",
    "app.stream": f"CREATE STREAM TABLE app.stream ({COLUMNS}) WITH (TTL_SECONDS = {TTL_SECONDS})",
}
USERS = ("ann", "ben")

T = TypeVar("T")
ids = st.integers(1, 6)
groups = st.sampled_from([1, 1, 2, None])
values = st.integers(0, 5)
users = st.sampled_from(USERS)
tables = st.sampled_from(list(TABLES))
pick = st.integers(0, 1000)
rarely = st.integers(0, 4).map(lambda number: number == 0)


class LiveMachine(RuleBasedStateMachine):
    @initialize(first=st.lists(st.tuples(users, tables, st.sampled_from(QUESTIONS)), min_size=1, max_size=5))
    def begin(self, first: list[tuple[str, str, Question]]) -> None:
        self.clock = FakeClock()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(undo, "MAX_LISTED_CHANGES", LISTED)
        self.engine = Engine(
            MemoryStore(), clock=self.clock, jobs_interval_seconds=3600, changes_kept_seconds=KEPT_SECONDS
        )
        self.queries = QueryEngine()
        self.system = Session(self.engine, self.queries)
        self.sessions = {u: Session(self.engine, self.queries, Actor(u, Role.SERVICE)) for u in USERS}
        self.system.execute("CREATE NAMESPACE app")
        for create in TABLES.values():
            self.system.execute(create)
        self.history: list[tuple[int, dict[tuple[str, str], State]]] = []
        for name, user in ((name, user) for name in TABLES for user in USERS):
            rows = ", ".join(f"({key}, {key % 3}, {key})" for key in range(1, 5))
            self.sessions[user].execute(f"INSERT INTO {name} (id, grp, v) VALUES {rows} ON CONFLICT (id) DO NOTHING")
        self.note()
        self.loop = asyncio.new_event_loop()
        self.hub = self.run(self._hub())
        self.followers: list[Follower] = []
        self.everybody: list[Follower] = []  # also those that went away
        for user, name, question in first:
            self.subscribe(user, name, question, steps=2)

    async def _hub(self) -> LiveHub:
        return LiveHub(self.engine, chunk=1, backlog_rows=BACKLOG_ROWS)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    # --- the model: every state there was ---

    def note(self) -> None:
        states = {(name, user): self.state(name, user) for name in TABLES for user in USERS}
        self.history.append((self.engine.seq, states))

    def state(self, name: str, user: str) -> State:
        """As stored: an expired row is there until the job removes it."""
        if name not in self.engine.catalog.table_ids:  # dropped, and about to be made again
            return {}
        table = self.engine.catalog.table(name)
        prefix = table.codec.prefix(user if table.schema.per_user else None)
        stored = self.engine.snapshot.scan("rows", prefix, prefix + b"\xff" * 9)  # type: ignore[arg-type]
        records = [
            dict(zip(table.schema.column_names, table.codec.values(table.codec.decode(v)), strict=True))
            for _, v in stored
        ]
        return {record["id"]: record for record in records}

    def at(self, seq: int, name: str, user: str) -> State:
        index = bisect_right([noted for noted, _ in self.history], seq)
        return self.history[index - 1][1][name, user]

    def is_right(self, follower: Follower) -> None:
        if follower.table == "app.stream":
            return  # rows whose time is over are there or not, until the job comes: compared when all is quiet
        expected = follower.question.answer(self.at(follower.seq, follower.table, follower.user))
        if follower.question.select == "*":
            width = len(next(iter(follower.rows.values()), ()))
            expected = {key: row[:width] for key, row in expected.items()}
        assert follower.rows == expected, f"as of commit {follower.seq}"

    # --- writing ---

    def write(self, user: str, *statements: str) -> None:
        session = self.sessions[user]
        try:
            if len(statements) == 1:
                session.execute(statements[0])
            else:
                session.execute_all(f"BEGIN; {'; '.join(statements)}; COMMIT")
        except TablecastError:
            if session.in_transaction:
                session.rollback()
        self.note()

    def statement(self, name: str, kind: str, key: int, other: int, grp: int | None, v: int) -> str:
        shown = "NULL" if grp is None else grp
        return {
            "insert": f"INSERT INTO {name} (id, grp, v) VALUES ({key}, {shown}, {v})",
            "upsert": f"INSERT INTO {name} (id, grp, v) VALUES ({key}, {shown}, {v}) "
            "ON CONFLICT (id) DO UPDATE SET grp = excluded.grp, v = excluded.v",
            "update": f"UPDATE {name} SET v = {v} WHERE id <= {key}",
            "regroup": f"UPDATE {name} SET grp = {shown} WHERE id = {key}",
            "same": f"UPDATE {name} SET v = v WHERE id = {key}",
            "rekey": f"UPDATE {name} SET id = {other} WHERE id = {key}",
            "swap": f"UPDATE {name} SET id = 7 - id",
            "delete": f"DELETE FROM {name} WHERE id = {key}",
            "clear": f"DELETE FROM {name} WHERE v <= {v}",
        }[kind]

    kinds = st.sampled_from(
        ["insert", "insert", "upsert", "upsert", "update", "regroup", "same", "rekey", "swap", "delete", "clear"]
    )

    steps = st.lists(st.tuples(kinds, ids, ids, groups, values), min_size=1, max_size=7)

    @rule(user=users, name=tables, steps=steps)
    def write_one_after_the_other(self, user: str, name: str, steps: list[Any]) -> None:
        """Often more than the hub's backlog takes."""
        for step in steps:
            self.write(user, self.statement(name, *step))

    @rule(user=users, names=st.lists(tables, min_size=1, max_size=2), steps=steps)
    def write_a_transaction(self, user: str, names: list[str], steps: list[Any]) -> None:
        self.write(user, *(self.statement(names[i % len(names)], *step) for i, step in enumerate(steps)))

    @rule(user=users, name=tables, v=values)
    def write_more_than_is_listed(self, user: str, name: str, v: int) -> None:
        rows = ", ".join(f"({key}, 1, {v})" for key in range(1, LISTED + 2))
        conflict = "ON CONFLICT (id) DO UPDATE SET v = excluded.v"
        self.write(user, f"INSERT INTO {name} (id, grp, v) VALUES {rows} {conflict}")

    @rule(seconds=st.sampled_from([1, 30, 61]), removes=st.booleans())
    def time_passes(self, seconds: int, removes: bool) -> None:
        self.clock.advance(seconds * 1000)
        if removes:
            self.engine.jobs.run("expiry")
            self.note()

    @rule(is_time=rarely)
    def changes_are_let_go(self, is_time: bool) -> None:
        if is_time:
            self.clock.advance((KEPT_SECONDS + 1) * 1000)
            self.engine.jobs.run("changes")
            self.note()

    @rule(name=tables, is_time=rarely)
    def alter(self, name: str, is_time: bool) -> None:
        if is_time:
            column = f"more{self.engine.catalog.table(name).schema.version}"
            self.system.execute(f"ALTER TABLE {name} ADD COLUMN {column} INT DEFAULT 7")
            self.note()

    @rule(name=tables, is_time=rarely)
    def drop_and_create(self, name: str, is_time: bool) -> None:
        if is_time:
            self.system.execute(f"DROP TABLE {name}")
            self.note()
            self.system.execute(TABLES[name])
            self.note()

    # --- following ---

    def attempt(self, follower: Follower, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.run(work)
        except (SchemaChanged, UnknownTable) as error:
            follower.error = error
        self.bury(follower)

    def bury(self, follower: Follower) -> None:
        """One whose table is another now begins anew: it may, and must, not go on with its rows."""
        if follower.error is not None:
            assert isinstance(follower.error, SchemaChanged | UnknownTable), follower.error
            assert follower.sub.closed
            self.followers.remove(follower)
            event(f"ended: {follower.error.code}")

    @rule(user=users, name=tables, question=st.sampled_from(QUESTIONS), steps=st.integers(0, 2))
    def subscribe(self, user: str, name: str, question: Question, steps: int) -> None:
        if len(self.followers) < MOST_FOLLOWERS:
            follower = Follower(user, name, question, self.is_right)
            self.followers.append(follower)
            self.everybody.append(follower)
            self.open(follower)
            for _ in range(steps):
                self.move(follower, 100)

    def open(self, follower: Follower) -> None:
        actor = Actor(follower.user, Role.SERVICE)
        sql, params = follower.question.sql(follower.table), follower.question.params
        query = plan_live(self.engine.catalog, actor, sql, params)
        self.attempt(follower, follower.subscribe(self.hub, query))
        event(f"opened: {follower.sub.mode}")

    @rule(number=pick, count=st.sampled_from([1, 2, 100]))
    def go_on(self, number: int, count: int) -> None:
        waiting = [follower for follower in self.followers if not follower.live]
        if waiting:
            self.move(waiting[number % len(waiting)], count)

    @rule()
    def go_on_all(self) -> None:
        for follower in list(self.followers):
            self.move(follower, 100)

    def move(self, follower: Follower, count: int) -> None:
        """The next step of one that is not live."""
        if follower.error is not None:
            self.bury(follower)
        elif follower.sub.closed:
            self.open(follower)
        elif not follower.whole:
            self.attempt(follower, follower.read(count))
        elif not follower.live:
            self.attempt(follower, follower.go_live())

    def live(self, number: int) -> Follower | None:
        live = [follower for follower in self.followers if follower.live]
        return live[number % len(live)] if live else None

    @rule(number=pick)
    def detach(self, number: int) -> None:
        """Goes away and keeps what it has."""
        follower = self.live(number)
        if follower is not None:
            seq = self.hub.detach(follower.sub)
            assert seq >= follower.seq
            follower.seq = seq
            self.is_right(follower)

    @rule(number=pick, steps=steps, more=steps)
    def miss_something(self, number: int, steps: list[Any], more: list[Any]) -> None:
        """Away while its table is written, and back while it is written again."""
        follower = self.live(number)
        if follower is not None:
            self.detach(number)
            self.write_one_after_the_other(follower.user, follower.table, steps)
            for _ in range(3):
                if follower in self.followers:
                    self.move(follower, 2)
                    self.write_a_transaction(follower.user, [follower.table], more)

    @rule(user=users, name=tables, question=st.sampled_from(QUESTIONS), steps=steps)
    def subscribe_while_it_is_written(self, user: str, name: str, question: Question, steps: list[Any]) -> None:
        self.subscribe(user, name, question, 0)
        for step in steps:
            self.write_one_after_the_other(user, name, [step])
            if self.followers:
                self.move(self.followers[-1], 2)

    @rule(number=pick)
    def leave(self, number: int) -> None:
        if self.followers:
            follower = self.followers.pop(number % len(self.followers))
            self.hub.close(follower.sub)

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        """A few turns of the event loop: the hub gets somewhere, or not."""
        for _ in range(turns):
            self.run(asyncio.sleep(0))

    @rule()
    def be_quiet(self) -> None:
        self.engine.jobs.run("expiry")
        self.note()
        self.run(self.hub.settled())
        for follower in list(self.followers):
            self.bury(follower)
        for follower in self.followers:
            if follower.live:
                assert self.engine.catalog.table(follower.table).table_id == follower.sub.query.table.table_id
                answer = self.sessions[follower.user].query(
                    follower.question.sql(follower.table), follower.question.params
                )
                assert sorted(follower.rows.values(), key=repr) == sorted(answer.stored_rows(), key=repr)
        event(f"fell behind: {self.hub.counts.caught_up > 0}")

    @invariant()
    def nobody_failed(self) -> None:
        """In what the hub calls; it goes on without them, and only its log says so."""
        for follower in self.everybody:
            if follower.failure is not None:
                raise follower.failure

    def teardown(self) -> None:
        if not hasattr(self, "hub"):
            return
        try:
            self.be_quiet()
            self.nobody_failed()
            live = sum(follower.live for follower in self.followers)
            assert self.hub.stats().subscriptions == live
            for follower in self.followers:
                self.hub.close(follower.sub)
            assert self.hub.is_empty
        finally:
            self.run(self.hub.stop())
            self.loop.close()
            self.engine.close()
            self.queries.close()
            self.patch.undo()


LiveMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestLiveModel = LiveMachine.TestCase
