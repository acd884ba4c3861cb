"""What the machine may say: the tables and topics it begins with, and statements drawn for them."""

from __future__ import annotations

from typing import Any

from database_model import SourceModel, TopicModel
from hypothesis import strategies as st
from model_groups import GroupModel
from model_statements import ColumnModel, Delete, Insert, Set, TableModel, Update, Where, Write

from tablecast.errors import ExpressionError
from tablecast.model.change import Op

USERS = ("ann", "bob")
GROUPS = ("billing", "mail")
CONSUMERS = ("one", "two", None)
ADDED_COLUMNS = (ColumnModel("level", "INT", 7), ColumnModel("hint", "TEXT"))
TTL_MS = 60_000
MAX_SMALLINT = 2**15 - 1


def new_tables() -> list[TableModel]:
    return [
        TableModel(
            "app.orders",
            "SHARED",
            ("id",),
            [
                ColumnModel("id", "INT"),
                ColumnModel("customer", "TEXT", not_null=True),
                ColumnModel("amount", "SMALLINT"),
                ColumnModel("note", "TEXT", "none"),
            ],
            check="amount < 1000",
        ),
        TableModel(
            "app.prefs",
            "USER",
            ("name", "slot"),
            [ColumnModel("name", "TEXT"), ColumnModel("slot", "SMALLINT"), ColumnModel("value", "TEXT", "unset")],
        ),
        TableModel(
            "app.clicks", "STREAM", ("id",), [ColumnModel("id", "BIGINT"), ColumnModel("page", "TEXT")], ttl_ms=TTL_MS
        ),
    ]


def new_topics() -> list[TopicModel]:
    return [
        TopicModel("app.plain", 1),
        TopicModel("app.work", 3, max_deliveries=2, dead_letter="app.dead"),
        TopicModel("app.dedup", 2, dedup_ms=30_000),
        TopicModel("app.brief", 1, retention_ms=120_000),
        TopicModel("app.dead", 1),
    ]


INITIAL_SOURCES = [
    ("app.plain", "app.orders", "full"),
    ("app.work", "app.orders", "diff"),
    ("app.dedup", "app.orders", "key"),
    ("app.dedup", "app.prefs", "full"),
    ("app.brief", "app.clicks", "full"),
    ("app.brief", "app.prefs", "diff"),
]

VALUES: dict[str, dict[str, list[Any]]] = {
    "app.orders": {
        "id": [-1, 0, 1, 2, 3, 4],
        "customer": [*["ann", "bob", "zoë"] * 6, None],
        "amount": [*[None, 0, 1, 60, 100, 999] * 3, 1000],
        "note": [None, "x", "none"],
    },
    "app.prefs": {"name": ["a", "b"], "slot": [0, 1, 2], "value": [None, "apple", "berry"]},
    "app.clicks": {"id": [0, 1, 2**40], "page": [None, "home", "cart"]},
}
ADDED_VALUES: dict[str, list[Any]] = {"level": [7, 8, None], "hint": [None, "h"]}

CONDITIONS: dict[str, list[Where]] = {
    "app.orders": [
        Where("amount > 50", lambda r: None if r["amount"] is None else r["amount"] > 50),
        Where("customer = 'ann' OR amount IS NULL", lambda r: r["customer"] == "ann" or r["amount"] is None),
        Where("NOT (note = 'x')", lambda r: None if r["note"] is None else r["note"] != "x"),
        Where("id % 2 = 0 AND customer <> 'bob'", lambda r: r["id"] % 2 == 0 and r["customer"] != "bob"),
        Where("id >= 1 AND id < 3", lambda r: 1 <= r["id"] < 3),
    ],
    "app.prefs": [
        Where("value LIKE 'a%'", lambda r: None if r["value"] is None else r["value"].startswith("a")),
        Where("name = 'a'", lambda r: r["name"] == "a"),
        Where("name = 'a' AND slot > 0", lambda r: r["name"] == "a" and r["slot"] > 0),
        Where("slot <> 1", lambda r: r["slot"] != 1),
    ],
    "app.clicks": [
        Where("page <> 'home'", lambda r: None if r["page"] is None else r["page"] != "home"),
        Where("id > 0", lambda r: r["id"] > 0),
    ],
}


def _plus(column: str, number: int) -> Set:
    def value(row: dict[str, Any]) -> Any:
        if row[column] is not None and row[column] + number > MAX_SMALLINT:
            raise ExpressionError(column)
        return None if row[column] is None else row[column] + number

    return Set(column, f"{column} + {number}", value)


ASSIGNMENTS: dict[str, list[Set]] = {
    "app.orders": [
        _plus("amount", 1),
        _plus("amount", 32_760),  # beyond SMALLINT for most rows
        Set("amount", "500", lambda r: 500),
        Set("amount", "amount", lambda r: r["amount"]),
        Set("note", "NULL", lambda r: None),
        Set("note", "customer", lambda r: r["customer"]),
        Set("customer", "note", lambda r: r["note"]),  # NULL in NOT NULL for some
        Set("id", "3 - id", lambda r: 3 - r["id"]),
        _plus("id", 1),
    ],
    "app.prefs": [
        Set("value", "'apple'", lambda r: "apple"),
        Set("value", "name", lambda r: r["name"]),
        Set("slot", "2 - slot", lambda r: 2 - r["slot"]),
        _plus("slot", 1),
    ],
    "app.clicks": [Set("page", "'cart'", lambda r: "cart"), Set("page", "page", lambda r: r["page"])],
}


SEED = [
    Write(
        "app.orders", "ann", Insert(("id", "customer", "amount"), ((1, "ann", 60), (2, "bob", None), (4, "zoë", 999)))
    ),
    Write("app.prefs", "ann", Insert(("name", "slot", "value"), (("a", 0, "apple"), ("a", 1, "berry")))),
    Write("app.prefs", "bob", Insert(("name", "slot", "value"), (("a", 0, "apple"), ("b", 1, None)))),
    Write("app.clicks", "ann", Insert(("id", "page"), ((0, "home"), (1, "cart")))),
]


def by_key(table: TableModel, values: tuple[Any, ...]) -> Where:
    text = " AND ".join(f"{name} = ?" for name in table.key)
    return Where(text, lambda row: tuple(row[name] for name in table.key) == values, values)


def _candidates(table: TableModel, column: str) -> list[Any]:
    return VALUES[table.name].get(column) or ADDED_VALUES[column]


def keys(table: TableModel) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(st.sampled_from(_candidates(table, name)) for name in table.key))


def conditions(table: TableModel) -> st.SearchStrategy[Where]:
    return st.one_of(keys(table).map(lambda values: by_key(table, values)), st.sampled_from(CONDITIONS[table.name]))


@st.composite
def inserts(draw: st.DrawFn, table: TableModel) -> Insert:
    others = [column.name for column in table.columns if column.name not in table.key]
    required = [column.name for column in table.columns if column.not_null]
    chosen = draw(st.lists(st.sampled_from(others), min_size=1, unique=True))
    columns = (*table.key, *dict.fromkeys(required + chosen))
    rows = st.tuples(*(st.sampled_from(_candidates(table, name)) for name in columns))
    conflict = draw(st.sampled_from([None, "nothing", "update", "update"]))
    bulk = conflict != "nothing" and draw(st.booleans())
    return Insert(columns, tuple(draw(st.lists(rows, min_size=1, max_size=4))), conflict, bulk)


@st.composite
def updates(draw: st.DrawFn, table: TableModel) -> Update:
    sets = draw(
        st.lists(st.sampled_from(ASSIGNMENTS[table.name]), min_size=1, max_size=2, unique_by=lambda s: s.column)
    )
    return Update(draw(conditions(table)), tuple(sets))


@st.composite
def writes(draw: st.DrawFn, tables: list[TableModel]) -> Write:
    table = draw(st.sampled_from(tables))
    made = st.one_of(inserts(table), inserts(table), updates(table), conditions(table).map(Delete))
    return Write(table.name, draw(st.sampled_from(USERS)), draw(made))


def claimed_or_any(state: GroupModel, log_end: int) -> st.SearchStrategy[int]:
    """An offset to settle: mostly one that somebody holds."""
    anything, held = st.integers(0, log_end), state.where("claimed")
    return st.one_of(*[st.sampled_from(held)] * 3, anything) if held else anything


@st.composite
def sources(draw: st.DrawFn, tables: list[TableModel]) -> SourceModel:
    table = draw(st.sampled_from(tables))
    ops = draw(st.one_of(st.just(set(Op)), st.sets(st.sampled_from(Op), min_size=1)))
    where = draw(st.one_of(st.none(), st.sampled_from(CONDITIONS[table.name])))
    by = draw(st.one_of(st.none(), st.sampled_from([column.name for column in table.columns])))
    return SourceModel(table.name, frozenset(ops), where, by, draw(st.sampled_from(["full", "key", "diff"])))
