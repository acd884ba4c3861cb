"""SELECT, and what any query inside another statement may do.

    query = [WITH …] SELECT … | VALUES … | query UNION | INTERSECT | EXCEPT query | ( query )

The query engine behind it could read files, the network and its own settings; a query of ours reads tables.
So every name after FROM must be a plain identifier: no string, nothing with a dot or slash in quotes, both of
which the engine would take for a file, and no table function but UNNEST. Functions that reach outside the
query are refused by name, as is anything that writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from tablecast.errors import SqlSyntaxError, UnsupportedSql
from tablecast.sql.statements import Select, TableName
from tablecast.sql.syntax import parse_statement
from tablecast.sql.tokens import MAX_NAME_BYTES, Cursor, Source

_PLAIN = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_NAME_BYTES - 1}}}\Z")

# Statements that sqlglot can also read where a query stands.
_NOT_QUERIES = (
    *(exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter, exp.Copy, exp.Command),
    *(exp.Describe, exp.Show, exp.Summarize, exp.Pragma, exp.Set, exp.Use, exp.Attach, exp.Detach),
)

# Scalar functions of the query engine that show or change more than the query's own rows.
_REFUSED_FUNCTIONS = frozenset(
    (
        *("getenv", "current_setting", "getvariable", "nextval", "currval", "setval", "setseed", "sleep_ms"),
        *("current_query", "current_query_id", "current_connection_id", "current_transaction_id"),
        *(
            "write_log",
            "json_execute_serialized_sql",
            "stats",
            "vector_type",
            "txid_current",
            "in_search_path",
        ),
    )
)

_ONE_TABLE_ARGS = frozenset(("expressions", "from_", "where", "order", "limit", "offset"))


def parse_select(cursor: Cursor) -> Select:
    tree, parameters = parse_statement(cursor)
    if isinstance(tree, exp.Values):
        tree = exp.select("*").from_(tree)
    if isinstance(tree, exp.Query) and not isinstance(tree, exp.Table):
        return as_select(tree, cursor.source, parameters)
    raise UnsupportedSql(f"{tree.key.upper()} cannot follow WITH: a query is SELECT, VALUES or a union of them")


def as_select(tree: exp.Query, source: Source, parameters: int) -> Select:
    return Select(
        query=tree,
        tables=check_reads(tree, source),
        simple=_is_simple(tree),
        names_seq=any(column.name == "_seq" for column in tree.find_all(exp.Column)),
        parameters=parameters,
    )


def check_reads(tree: exp.Expr, source: Source, target: exp.Table | None = None) -> frozenset[TableName]:
    """The tables that `tree` reads, once it is sure to do nothing else. `target` is what it writes."""
    for node in tree.walk():
        if isinstance(node, exp.Table) and node is not target:
            _check_table(node, source)
        elif isinstance(node, exp.Func):
            _check_function(node)
        elif node is not tree or target is None:
            _check_node(node)
    return frozenset(_table_name(table) for table in table_references(tree) if table is not target)


def table_references(tree: exp.Expr) -> Iterator[exp.Table]:
    """The nodes of `tree` that name tables, as opposed to its CTEs."""
    return (table for table in tree.find_all(exp.Table) if not _names_cte(table))


def _table_name(table: exp.Table) -> TableName:
    return TableName(table.db or None, table.name)


# --- checks -------------------------------------------------------------------------------------------------


def _check_table(table: exp.Table, source: Source) -> None:
    if isinstance(table.this, exp.Func):
        name = _function_name(table.this)
        raise UnsupportedSql(f"the table function {name}() is not available: a query reads tables", name=name)
    if table.args.get("catalog") or not isinstance(table.this, exp.Identifier):
        raise UnsupportedSql(f"{table.sql('duckdb')}: a table is named as table or namespace.table")
    if table.args.get("when"):
        raise UnsupportedSql(f"{table.name} AT (…): a query reads the present state of a table")
    for part in (table.args.get("db"), table.this):
        if part is not None:
            _check_plain(part, source)


def _check_plain(identifier: exp.Identifier, source: Source) -> None:
    start = identifier.meta.get("start")
    if start is not None and source.text[start] == "'":
        raise source.error(f"{identifier.name!r} is a string, not the name of a table", start)
    if not _PLAIN.match(identifier.name):
        message = f"{identifier.name!r} is not the name of a table: letters, digits and underscores only"
        raise source.error(message, start) if start is not None else SqlSyntaxError(message)


def _function_name(function: exp.Func) -> str:
    return (function.name if isinstance(function, exp.Anonymous) else function.sql_names()[0]).lower()


def _check_function(function: exp.Func) -> None:
    if isinstance(function, exp.Anonymous) and function.name.lower() in _REFUSED_FUNCTIONS:
        name = function.name.lower()
        raise UnsupportedSql(f"the function {name}() is not available", name=name)


def _check_node(node: exp.Expr) -> None:
    if isinstance(node, _NOT_QUERIES):
        raise UnsupportedSql(f"{node.key.upper()} cannot stand inside another statement")
    if isinstance(node, exp.Into):
        raise UnsupportedSql("SELECT … INTO is not supported: use CREATE TABLE and INSERT … SELECT")
    if isinstance(node, exp.Lock):
        raise UnsupportedSql("FOR UPDATE and FOR SHARE are not supported: readers never block writers")
    if isinstance(node, exp.Lateral) and not isinstance(node.this, exp.Subquery | exp.Unnest):
        raise UnsupportedSql("LATERAL takes a subquery: table functions are not available")


# --- scopes -------------------------------------------------------------------------------------------------


def _names_cte(table: exp.Table) -> bool:
    """Whether an enclosing WITH defines this name where it is used: later CTEs and, unless RECURSIVE, the CTE
    itself are not visible inside a CTE.
    """
    if table.args.get("db"):
        return False
    inside: exp.Expr = table
    scope = table.parent
    while scope is not None:
        clause = scope if isinstance(scope, exp.With) else scope.args.get("with_")
        if clause is not None and clause is not inside and table.name in _visible(clause, inside):
            return True
        inside, scope = scope, scope.parent
    return False


def _visible(clause: exp.With, inside: exp.Expr) -> set[str]:
    ctes: list[exp.Expr] = clause.expressions
    if isinstance(inside, exp.CTE) and not clause.args.get("recursive"):
        ctes = ctes[: [id(cte) for cte in ctes].index(id(inside))]
    return {cte.alias for cte in ctes}


def _is_simple(tree: exp.Query) -> bool:
    if not isinstance(tree, exp.Select) or any(v for k, v in tree.args.items() if k not in _ONE_TABLE_ARGS):
        return False
    source = tree.args.get("from_")
    if source is None or not isinstance(source.this, exp.Table):
        return False
    if any(value for key, value in source.this.args.items() if key not in ("this", "db", "alias")):
        return False
    beyond = (exp.AggFunc, exp.Window, exp.Unnest, exp.Explode)
    return not any(node is not tree and isinstance(node, (exp.Query, *beyond)) for node in tree.walk())
