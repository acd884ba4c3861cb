"""What a live query is, held against SELECT: the same rows, the same values; and what is refused, and how."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st
from live_filters import COLUMNS, COMPARED, CREATE, STORED, Filter, filters, rows

import tablecast
from tablecast.core.live_query import LiveQuery
from tablecast.engine.live_rows import InitialRows
from tablecast.errors import (
    InvalidRequest,
    PermissionDenied,
    SqlSyntaxError,
    TablecastError,
    TypeMismatch,
    UnknownColumn,
    UnknownTable,
    UnsupportedSql,
)
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.sql.database import Database
from tablecast.sql.plan_live import plan_live

KEYED = [name for name in STORED if name not in ("b",)]  # columns whose types may be a primary key's


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with tablecast.open(":memory:") as database:
        database.execute("CREATE NAMESPACE app")
        database.execute(CREATE)
        database.execute("CREATE TABLE app.pairs (a INT, b TEXT, v INT, PRIMARY KEY (a, b))")
        database.execute("CREATE TABLE app.people (id BIGINT PRIMARY KEY, name TEXT) WITH (TYPE = 'USER')")
        for name in KEYED:
            database.execute(f"CREATE TABLE app.by_{name} (k {COLUMNS[name]}, id INT, PRIMARY KEY (k, id))")
            database.insert(f"app.by_{name}", [{"k": value, "id": i} for i, value in enumerate(STORED[name])])
        yield database


def plan(db: Database, sql: str, params: Sequence[Any] = (), actor: Actor = SYSTEM_ACTOR) -> LiveQuery:
    return plan_live(db.engine.catalog, actor, sql, params)


def initial(db: Database, query: LiveQuery) -> list[tuple[Any, ...]]:
    rows, last = InitialRows(db.engine.published, query, db.engine.now_ms()).take(1_000_000)
    assert last
    return rows


# --- against SELECT ---------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(data=st.data())
def test_a_live_query_has_the_rows_of_its_select(db: Database, data: st.DataObject) -> None:
    condition: Filter = data.draw(filters)
    stored = [data.draw(rows(i)) for i in range(data.draw(st.integers(1, 6)))]
    db.execute("DELETE FROM app.every")
    db.insert("app.every", [dict(zip(COLUMNS, row, strict=True)) for row in stored])
    sql = f"SELECT * FROM app.every WHERE {condition.sql}"
    try:
        query = plan(db, sql, condition.params)
    except (UnsupportedSql, TypeMismatch):
        event("refused by the evaluator")
        reject()
    try:
        selected = db.query(sql, condition.params).stored_rows()
    except TablecastError:
        event("refused by the query engine")
        reject()
    event(f"{min(len(selected), 1)} matched, {min(len(query.equals), 2)} equalities")
    assert sorted(initial(db, query)) == sorted(selected)


@pytest.mark.parametrize("name", KEYED)
def test_a_key_that_is_compared_is_looked_up_as_select_compares(db: Database, name: str) -> None:
    """Values of every type that may stand there; a prefix of the key must leave no row out."""
    narrowed = 0
    for value in [*STORED[name], *COMPARED.get(name, ())]:
        sql = f"SELECT id FROM app.by_{name} WHERE k = ?"
        try:
            query = plan(db, sql, (value,))
            selected = db.query(sql, (value,)).rows
        except TablecastError:
            continue
        narrowed += bool(query.key_prefix)
        assert sorted(row[0] for row in initial(db, query)) == sorted(row[0] for row in selected), value
    assert narrowed >= len(STORED[name])


def test_text_given_for_a_column_of_another_type_is_read_as_the_column_s(db: Database) -> None:
    for column, text, value in [
        ("u", "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        ("ts", "2024-02-29T12:30:00", dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)),
        ("m", "1.5", Decimal("1.50")),
        ("l", "9007199254740993", 2**53 + 1),
    ]:
        query = plan(db, f"SELECT id FROM app.every WHERE {column} = ?", (text,))
        assert query.equals == ((list(COLUMNS).index(column), value),)
    with pytest.raises(TypeMismatch, match="column 'ts' is TIMESTAMP and cannot hold 'soon'"):
        plan(db, "SELECT id FROM app.every WHERE ts > ?", ("soon",))


# --- columns and key --------------------------------------------------------------------------------------------


def test_the_primary_key_is_appended_hidden_where_it_is_missing(db: Database) -> None:
    query = plan(db, "SELECT v, b AS name, v + 1 AS more FROM app.pairs AS p WHERE p.v > 0")
    assert [(c.name, str(c.type), c.hidden) for c in query.columns] == [
        ("v", "INT", False), ("name", "TEXT", False), ("more", "INT", False), ("a", "INT", True)
    ]  # fmt: skip
    assert query.key_indexes == (3, 1)
    row = db.engine.catalog.table("app.pairs").codec.struct(1, "x", 7)
    assert query.shown(row) == (7, "x", 8, 1)
    assert query.key_of(row) == (1, "x")


def test_a_column_under_another_name_is_still_the_key(db: Database) -> None:
    query = plan(db, "SELECT b, a AS b2, a FROM app.pairs")
    assert query.key_indexes == (1, 0)
    assert not any(column.hidden for column in query.columns)


def test_a_star_beside_other_columns(db: Database) -> None:
    query = plan(db, "SELECT v * 2 AS twice, p.* FROM app.pairs p")
    assert [column.name for column in query.columns] == ["twice", "a", "b", "v"]
    assert query.every_column


# --- who is told together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        "select  B , v from app.pairs WHERE a=? -- why not",
        "SELECT p.b, p.v FROM app.pairs AS p WHERE p.a = $1",
        "SELECT b, v FROM app.pairs WHERE a = $1 LIMIT 5",
    ],
)
def test_the_same_question_has_the_same_identity(db: Database, other: str) -> None:
    assert plan(db, other, (1,)).identity == plan(db, "SELECT b, v FROM app.pairs WHERE a = ?", (1,)).identity


def test_a_parameter_that_is_only_the_limit_does_not_tell_questions_apart(db: Database) -> None:
    sql = "SELECT b FROM app.pairs WHERE a = ? LIMIT ?"
    one, other = plan(db, sql, (1, 5)), plan(db, sql, (1, 7))
    assert one.identity == other.identity
    assert (one.limit, other.limit) == (5, 7)


def test_other_values_types_and_owners_are_other_questions(db: Database) -> None:
    sql = "SELECT b FROM app.pairs WHERE a = ?"
    identities = {plan(db, sql, (value,)).identity for value in (1, 2, 1.0, Decimal("1"), None)}
    identities |= {plan(db, "SELECT v FROM app.pairs WHERE a = ?", (1,)).identity}
    assert len(identities) == 6
    owners = [Actor(name, Role.USER) for name in ("ann", "ben")]
    assert len({plan(db, "SELECT * FROM app.people", (), actor).identity for actor in owners}) == 2


def test_users_share_a_question_about_a_shared_table_unless_it_names_them(db: Database) -> None:
    actors = [Actor(name, Role.SERVICE) for name in ("ann", "ben")]
    assert len({plan(db, "SELECT * FROM app.pairs", (), actor).identity for actor in actors}) == 1
    named = [plan(db, "SELECT * FROM app.pairs WHERE b = CURRENT_USER()", (), actor) for actor in actors]
    assert [query.equals for query in named] == [((1, "ann"),), ((1, "ben"),)]


# --- what the index is given ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "params", "expected"),
    [
        ("i = 5", (), {"i": 5}),
        ("? = i", (5,), {"i": 5}),
        ("i = 2 + 3 AND t = 'x' AND d > 0", (), {"i": 5, "t": "x"}),
        ("i = 5 OR t = 'x'", (), {}),
        ("NOT (i = 5)", (), {}),
        ("i = NULL AND t = 'x'", (), {"t": "x"}),
        ("d = ?", (float("nan"),), {}),
        ("s = 70000", (), {"s": 70000}),  # compared as INT: never equal, and never found
        ("i = 5.0", (), {"i": Decimal("5.0")}),
        ("i = ?", (5.0,), {"i": 5.0}),
        ("l = ?", (5.0,), {}),  # a BIGINT as a DOUBLE is rounded: 2^53 + 1 equals 2^53 there, and not in Python
        ("f = ?", (0.5,), {"f": 0.5}),
        ("da = TIMESTAMP '2024-02-29 00:00:00'", (), {}),
        ("b = 1", (), {}),
        ("i = i", (), {}),
        ("LOWER(t) = 'x'", (), {}),
        ("i = 5 AND i = 6", (), {"i": 5}),
    ],
)
def test_which_conjuncts_are_looked_up(db: Database, where: str, params: tuple[Any, ...], expected: Any) -> None:
    query = plan(db, f"SELECT id FROM app.every WHERE {where}", params)
    names = list(COLUMNS)
    assert {names[column]: value for column, value in query.equals} == expected


def test_a_prefix_of_the_key_ends_at_the_first_column_that_is_open(db: Database) -> None:
    assert plan(db, "SELECT v FROM app.pairs WHERE a = 1 AND b = 'x'").key_prefix == (1, "x")
    assert plan(db, "SELECT v FROM app.pairs WHERE b = 'x'").key_prefix == ()
    assert plan(db, "SELECT v FROM app.pairs WHERE a = 1.0").key_prefix == (1,)
    assert plan(db, "SELECT v FROM app.pairs WHERE a = 1.5").key_prefix == ()
    assert plan(db, "SELECT k FROM app.by_d WHERE k = ?", (float("inf"),)).key_prefix == ()


def test_limit_takes_the_last_rows_greatest_key_first(db: Database) -> None:
    db.execute("DELETE FROM app.pairs")
    db.insert("app.pairs", [{"a": a, "b": b, "v": a} for a in range(5) for b in "xy"])
    query = plan(db, "SELECT a, b FROM app.pairs WHERE a <> 4 LIMIT 3")
    assert initial(db, query) == [(3, "y"), (3, "x"), (2, "y")]


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error", "named"),
    [
        ("SELECT p.a FROM app.pairs p JOIN app.every e ON e.id = p.a", UnsupportedSql, "a join"),
        ("SELECT p.a FROM app.pairs p, app.every e", UnsupportedSql, "a join"),
        ("SELECT a FROM app.pairs GROUP BY a", UnsupportedSql, "GROUP BY"),
        ("SELECT a FROM app.pairs ORDER BY a", UnsupportedSql, "ORDER BY"),
        ("SELECT DISTINCT a FROM app.pairs", UnsupportedSql, "DISTINCT"),
        ("SELECT a FROM app.pairs LIMIT 5 OFFSET 2", UnsupportedSql, "OFFSET"),
        ("WITH x AS (SELECT 1) SELECT a FROM app.pairs", UnsupportedSql, "WITH"),
        ("SELECT a FROM app.pairs UNION SELECT 1", UnsupportedSql, "UNION"),
        ("SELECT count(*) FROM app.pairs", UnsupportedSql, "aggregate"),
        ("SELECT row_number() OVER () FROM app.pairs", UnsupportedSql, "window"),
        ("SELECT a FROM app.pairs WHERE a IN (SELECT id FROM app.every)", UnsupportedSql, "subquery"),
        ("SELECT a FROM (SELECT a FROM app.pairs)", UnsupportedSql, "one table"),
        ("SELECT a FROM app.pairs WHERE b < NOW()", UnsupportedSql, r"now\(\)"),
        ("SELECT uuid_v7() FROM app.pairs", UnsupportedSql, r"uuid_v7\(\)"),
        ("SELECT a FROM app.pairs WHERE a > random()", UnsupportedSql, "RAND"),
        ("SELECT a FROM app.pairs WHERE _seq > 5", UnsupportedSql, "_seq"),
        ("SELECT * EXCLUDE (v) FROM app.pairs", UnsupportedSql, "name the columns"),
        ("SELECT * FROM system.tablets", UnknownTable, "no system table system.tablets"),
        ("SELECT 1", UnsupportedSql, "one table"),
        ("DELETE FROM app.pairs", UnsupportedSql, "SELECT columns FROM table"),
        ("SELECT a FROM app.pairs; SELECT a FROM app.pairs", UnsupportedSql, "nothing beside it"),
        ("SELECT a FROM app.pairs WHERE", SqlSyntaxError, "line 1"),
        ("SELECT a FROM app.pairs WHERE a >", SqlSyntaxError, "missing"),
        ("SELECT a FROM app.pairs WHERE b", TypeMismatch, "condition"),
        ("SELECT a FROM app.pairs WHERE a = 'x'", TypeMismatch, "'x' is not a INT"),
        ("SELECT a FROM app.pairs WHERE c = 1", UnknownColumn, "c"),
        ("SELECT q.a FROM app.pairs p", UnknownColumn, "called p here"),
        ("SELECT a FROM app.pears", UnknownTable, "did you mean app.pairs"),
        ("SELECT a FROM app.pairs LIMIT 0", InvalidRequest, "1 or more"),
        ("SELECT a FROM app.pairs LIMIT 1 + 1", UnsupportedSql, "whole number"),
    ],
)
def test_what_has_no_live_form_is_refused(db: Database, sql: str, error: type[TablecastError], named: str) -> None:
    with pytest.raises(error, match=named):
        plan(db, sql)


@pytest.mark.parametrize("limit", [0, -1, "5", None, True, 2.0])
def test_a_limit_that_is_given_as_a_parameter_is_checked(db: Database, limit: Any) -> None:
    with pytest.raises(InvalidRequest, match="1 or more"):
        plan(db, "SELECT a FROM app.pairs LIMIT ?", (limit,))


def test_parameters_are_counted(db: Database) -> None:
    with pytest.raises(InvalidRequest, match="takes 1"):
        plan(db, "SELECT a FROM app.pairs WHERE a = ?")


def test_a_table_that_may_not_be_read_may_not_be_subscribed_to(db: Database) -> None:
    with pytest.raises(PermissionDenied):
        plan(db, "SELECT a FROM app.pairs", (), Actor("ann", Role.USER))
    assert plan(db, "SELECT id FROM app.people", (), Actor("ann", Role.USER)).owner == "ann"
