"""The fan-out index: whoever matches is found, whatever the types; and hardly anybody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from live_filters import COLUMNS, CREATE, Filter, filters, rows

import tablecast
from tablecast.core.fanout import Fanout
from tablecast.core.live_query import LiveQuery
from tablecast.errors import TypeMismatch, UnsupportedSql
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.sql.database import Database
from tablecast.sql.plan_live import plan_live


class Changed(NamedTuple):
    owner: str | None
    before: Any
    after: Any


@dataclass(eq=False)
class One:
    query: LiveQuery


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with tablecast.open(":memory:") as database:
        database.execute("CREATE NAMESPACE app")
        database.execute(CREATE)
        database.execute("CREATE TABLE app.posts (id BIGINT PRIMARY KEY, thread INT, tenant INT, body TEXT)")
        database.execute("CREATE USER TABLE app.notes (id BIGINT PRIMARY KEY, tag TEXT)")
        yield database


def plan(db: Database, sql: str, params: Sequence[Any] = (), user: str = "system") -> LiveQuery:
    actor = SYSTEM_ACTOR if user == "system" else Actor(user, Role.USER)
    return plan_live(db.engine.catalog, actor, sql, params)


def row_of(db: Database, table: str, values: Sequence[Any] | None) -> Any:
    if values is None:
        return None
    schema = db.engine.catalog.table(table).schema
    return db.engine.catalog.table(table).codec.builder(schema.column_names)(values, None)  # type: ignore[arg-type]


def found(fanout: Fanout[One], query: LiveQuery, changes: Sequence[Changed]) -> dict[One, list[Changed]]:
    pairs = fanout.candidates(query.table.table_id, changes, lambda change: change.owner)
    as_dict = {group: list(mine) for group, mine in pairs}
    assert len(as_dict) == len(pairs), "a group came twice"
    return as_dict


def planned(db: Database, condition: Filter) -> LiveQuery | None:
    try:
        return plan(db, f"SELECT id FROM app.every WHERE {condition.sql}", condition.params)
    except (UnsupportedSql, TypeMismatch):
        return None


images = st.one_of(rows(1), rows(1), st.none())


@settings(max_examples=300)
@given(
    conditions=st.lists(filters, min_size=1, max_size=8),
    pairs=st.lists(st.tuples(images, images), min_size=1, max_size=4),
)
def test_whoever_matches_is_a_candidate(db: Database, conditions: list[Filter], pairs: list[tuple[Any, Any]]) -> None:
    groups = [One(query) for condition in conditions if (query := planned(db, condition)) is not None]
    assume(groups)
    fanout: Fanout[One] = Fanout()
    for group in groups:
        fanout.add(group)
    changes = [Changed(None, row_of(db, "app.every", b), row_of(db, "app.every", a)) for b, a in pairs]
    candidates = found(fanout, groups[0].query, changes)
    event(f"{min(sum(len(g.query.equals) > 0 for g in groups), 3)} groups looked up")
    for group in groups:
        matches = group.query.matches
        mine = [c for c in changes if any(image is not None and matches(image) for image in (c.before, c.after))]
        given_to = candidates.get(group, [])
        event(f"matched: {bool(mine)}, looked up: {bool(group.query.equals)}")
        assert [change for change in given_to if any(change is m for m in mine)] == mine
        assert given_to == [change for change in changes if any(change is g for g in given_to)], "out of order"
    for group in groups:
        fanout.remove(group)
    assert not fanout


def test_of_many_values_only_those_of_the_change_are_looked_at(db: Database) -> None:
    fanout: Fanout[One] = Fanout()
    threads = [One(plan(db, "SELECT * FROM app.posts WHERE thread = ?", (i,))) for i in range(1000)]
    tenants = [One(plan(db, "SELECT * FROM app.posts WHERE tenant = 7 AND thread = ?", (i,))) for i in range(1000)]
    everything = One(plan(db, "SELECT * FROM app.posts WHERE body <> ''"))
    for group in [*threads, *tenants, everything]:
        fanout.add(group)
    moved = Changed(None, row_of(db, "app.posts", (1, 3, 7, "x")), row_of(db, "app.posts", (1, 4, 7, "x")))
    lost = Changed(None, row_of(db, "app.posts", (2, 3, 8, "x")), None)
    odd = Changed(None, None, row_of(db, "app.posts", (3, None, None, "x")))
    assert found(fanout, everything.query, [moved, lost, odd]) == {
        everything: [moved, lost, odd],
        threads[3]: [moved, lost],
        threads[4]: [moved],
        tenants[3]: [moved],
        tenants[4]: [moved],
    }


def test_a_users_change_is_for_its_own_groups(db: Database) -> None:
    fanout: Fanout[One] = Fanout()
    groups = {
        (user, tag): One(plan(db, f"SELECT * FROM app.notes{tag and ' WHERE tag = ?'}", (tag,) if tag else (), user))
        for user in ("ann", "ben")
        for tag in ("", "x", "y")
    }
    for group in groups.values():
        fanout.add(group)
    note = row_of(db, "app.notes", (1, "x"))
    changes = [Changed("ann", None, note), Changed("eve", None, note), Changed("ben", note, None)]
    candidates = found(fanout, groups["ann", ""].query, changes)
    assert candidates == {
        groups["ann", ""]: changes[:1], groups["ann", "x"]: changes[:1],
        groups["ben", ""]: changes[2:], groups["ben", "x"]: changes[2:],
    }  # fmt: skip
    for group in groups.values():
        fanout.remove(group)
    assert not fanout
    assert fanout.candidates(groups["ann", ""].query.table.table_id, changes, lambda c: c.owner) == []


@given(order=st.permutations(range(12)))
def test_what_was_removed_leaves_nothing_behind(db: Database, order: list[int]) -> None:
    sqls = ["SELECT id FROM app.every", "SELECT id FROM app.every WHERE i = 1", "SELECT id FROM app.every WHERE i = 2"]
    sqls += ["SELECT id FROM app.every WHERE i = 1 AND t = 'a'", "SELECT t FROM app.every WHERE i = 1"]
    groups = [One(plan(db, sqls[i % len(sqls)])) for i in range(12)]
    fanout: Fanout[One] = Fanout()
    for group in groups:
        fanout.add(group)
    values = dict.fromkeys(COLUMNS) | {"id": 1, "i": 1, "t": "a"}
    change = Changed(None, None, row_of(db, "app.every", list(values.values())))
    left = list(groups)
    for index in order:
        fanout.remove(groups[index])
        left.remove(groups[index])
        assert set(found(fanout, groups[0].query, [change])) == {g for g in left if g.query.matches(change.after)}
    assert not fanout
