"""From a SELECT over tablecast's tables to a SELECT over DuckDB's views.

Every table reference becomes a generated view name under the alias the query knows it by, so `app.orders`
needs no schema in DuckDB and `orders.amount` keeps working; `app.orders.amount` loses its namespace.

`_seq` is hidden: SELECT shows it only when named. DuckDB has no hidden columns, so

- a query that does not contain the name `_seq` gets views without the column: `*`, COLUMNS, NATURAL JOIN and
  whatever else looks at all columns are right by construction;
- a query that does gets the column, and every `*` over such a table excludes it: `* EXCLUDE (t._seq)`,
table by
  table, because a subquery that selected `_seq` by name shows it like any other column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from sqlglot import exp

from tablecast.core.expression.parse import ExpressionSql
from tablecast.errors import UnsupportedSql
from tablecast.sql.query_casts import Kinds, settle_types
from tablecast.sql.query_check import TableKey, check_select, names_cte, table_key

SEQ = "_seq"

N = TypeVar("N")

_NO_KINDS: Kinds = {}
_NO_TEXTS: Mapping[int, str] = {}


class BoundSource(NamedTuple):
    view: str
    key: TableKey
    with_seq: bool
    uses: int


class BoundSelect(NamedTuple):
    sql: str
    sources: tuple[BoundSource, ...]


def bind_select(
    select: exp.Expr, has_seq: Mapping[TableKey, bool], kinds: Kinds = _NO_KINDS, zoned: Mapping[int, str] = _NO_TEXTS
) -> BoundSelect:
    """`has_seq` says for each table of the query whether its data has the column `_seq`; for `kinds` and `zoned` see
    `query_casts`."""
    check_select(select, has_seq)
    tree = select.copy()
    settle_types(tree, kinds, zoned)
    names_seq = any(identifier.name.lower() == SEQ for identifier in tree.find_all(exp.Identifier))
    tables = [table for table in tree.find_all(exp.Table) if _reads_table(table)]
    uses: dict[TableKey, int] = {}
    hidden: dict[int, str] = {}
    aliases = _aliases(tables)
    for table in tables:
        key = table_key(table)
        uses[key] = uses.get(key, 0) + 1
        alias = table.alias or aliases[key]
        if names_seq and has_seq[key]:
            hidden[id(table)] = alias
        _point_at_view(table, view_name(list(uses).index(key)), alias)
    _drop_namespaces(tree, aliases)
    if hidden:
        for scope in tree.find_all(exp.Select):
            _hide_seq(scope, hidden)
    sources = [BoundSource(view_name(i), key, names_seq, uses[key]) for i, key in enumerate(uses)]
    return BoundSelect(tree.sql(dialect=ExpressionSql), tuple(sources))


def view_name(index: int) -> str:
    """The space keeps it apart from every name that needs no quotes."""
    return f"table {index}"


def _reads_table(table: exp.Table) -> bool:
    return isinstance(table.this, exp.Identifier) and not names_cte(table)


def _aliases(tables: list[exp.Table]) -> dict[TableKey, str]:
    """What an unaliased table is called: its name, or with its namespace where a.t and b.t meet."""
    keys = {table_key(table) for table in tables}
    names = [name for _, name in keys]
    return {(ns, name): name if ns is None or names.count(name) == 1 else f"{ns}.{name}" for ns, name in keys}


def _point_at_view(table: exp.Table, view: str, alias: str) -> None:
    if not table.alias:
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    table.set("this", exp.to_identifier(view, quoted=True))
    table.set("db", None)


def _drop_namespaces(tree: exp.Expr, aliases: Mapping[TableKey, str]) -> None:
    for column in tree.find_all(exp.Column):
        alias = aliases.get((column.db, column.table)) if column.db else None
        if alias is not None:
            column.set("table", exp.to_identifier(alias, quoted=True))
            column.set("db", None)


# --- _seq ----------------------------------------------------------------------------------------------


def _hide_seq(select: exp.Select, hidden: Mapping[int, str]) -> None:
    aliases = [hidden[id(table)] for table in _shown_tables(select) if id(table) in hidden]
    if not aliases:
        return
    _refuse_implicit_columns(select)
    for projection in select.expressions:
        if isinstance(projection, exp.Star):
            _exclude(projection, [exp.column(SEQ, table=alias, quoted=True) for alias in aliases])
        elif isinstance(projection.this, exp.Star) and projection.text("table") in aliases:
            _exclude(projection.this, [exp.column(SEQ)])


def _exclude(star: exp.Star, columns: list[exp.Column]) -> None:
    already: list[exp.Expr] = star.args.get("except_") or []
    named = {column.text("table") for column in already if column.name.lower() == SEQ}
    if "" not in named:  # an unqualified EXCLUDE (_seq) of the user's covers all
        star.set("except_", [*already, *(column for column in columns if column.table not in named)])


def _refuse_implicit_columns(select: exp.Select) -> None:
    """What looks at all columns without a `*` to put EXCLUDE on."""
    joins = select.args.get("joins") or ()
    implicit = any(join.method.upper() == "NATURAL" for join in joins)
    implicit = implicit or any(_own_nodes(select, exp.Columns)) or any(_own_nodes(select, exp.Pivot))
    if implicit:
        raise UnsupportedSql(
            "NATURAL JOIN, COLUMNS() and PIVOT cannot stand in a query that names _seq: write the columns out"
        )


def _shown_tables(select: exp.Select) -> Iterator[exp.Table]:
    """The tables whose columns `*` shows: all of FROM, but not what SEMI and ANTI JOIN only look at."""
    joins = select.args.get("joins") or ()
    shown = [join for join in joins if join.kind.upper() not in ("SEMI", "ANTI")]
    for source in (select.args.get("from_"), *shown):
        if source is not None:
            yield from _own_nodes(source, exp.Table)


def _own_nodes(root: exp.Expr, kind: type[N]) -> Iterator[N]:
    """Nodes of one kind, not looking into inner queries."""
    inner = (exp.Select, exp.SetOperation, exp.With)
    for node in root.walk(prune=lambda node: node is not root and isinstance(node, inner)):
        if isinstance(node, kind):
            yield node
