"""What a SELECT may do: read the tables it was given, and compute.

DuckDB could also read files, the network, its own settings and its catalogs. Three walls stand before that:

1. `check_select` walks sqlglot's tree: only known tables, only queries, no refused function.
2. `check_serialized` walks DuckDB's own tree of the final text, so a difference between the two parsers
   cannot be used: what is checked here is what runs.
3. The session is locked (see `query`): a statement that passed both would still find no file, no network, no
   extension and no setting to change.

Functions are refused by name and by family, because the list of harmless ones is long and grows with every
release; table functions, which are the dangerous kind, are allowed by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from sqlglot import exp

from tablecast.errors import UnknownTable, UnsupportedSql

TableKey = tuple[str | None, str]

MAX_REPEAT = 10_000  # what REPEAT and LPAD may be asked for: DuckDB cannot be interrupted while it builds one value

_TABLE_FUNCTIONS = frozenset(("generate_series", "range", "unnest"))

_REFUSED = frozenset(
    (
        # the process and its environment
        *("getenv", "current_setting", "set_config", "getvariable", "glob", "version", "get_block_size"),
        # the session, its transactions and sequences
        *("nextval", "currval", "setval", "setseed", "txid_current", "write_log", "parse_duckdb_log_message"),
        *("query", "query_table", "in_search_path", "user", "session_user"),
        # time without work, which an interrupt does not end
        "sleep_ms",
        # the catalog
        *("obj_description", "shobj_description", "col_description", "format_pg_type", "map_to_pg_oid"),
        # internals that trust the bytes they are given
        *("stats", "vector_type", "combine", "combine_aggr", "finalize", "to_aggregate_state"),
        *("variant_bytes_to_variant", "variant_to_parquet_variant", "seq_scan", "arrow_scan", "pandas_scan"),
    )
)
_REFUSED_FAMILIES = (
    *("__", "pg_", "has_", "inet_", "current_", "duckdb_", "pragma_", "read_", "parquet_", "python_"),
    *("json_serialize_", "json_deserialize_", "json_execute_"),
)
_ALLOWED = frozenset(
    (
        *("pg_typeof", "current_date", "current_time", "current_timestamp"),
        *("current_localtime", "current_localtimestamp"),
    )
)

_NOT_QUERIES = (
    *(exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter, exp.Copy, exp.Command),
    *(exp.Describe, exp.Show, exp.Summarize, exp.Pragma, exp.Set, exp.Use, exp.Attach, exp.Detach),
    *(exp.Into, exp.Lock, exp.SessionParameter),
)
_TABLE_ARGS = frozenset(("this", "db", "alias", "joins", "pivots", "sample", "ordinality"))


# --- the first wall: sqlglot's tree --------------------------------------------------------------------


def check_select(select: exp.Expr, known: Collection[TableKey]) -> None:
    if not isinstance(select, exp.Select | exp.SetOperation | exp.Subquery):
        raise UnsupportedSql(f"{select.key.upper()} is not a query: only SELECT is", statement=select.key)
    for node in select.walk():
        if isinstance(node, _NOT_QUERIES):
            raise UnsupportedSql(f"{node.key.upper()} cannot stand inside a SELECT", statement=node.key)
        if isinstance(node, exp.Table):
            _check_table(node, known)
        elif isinstance(node, exp.Func):
            _check_functions(function_names(node))
            _check_length(node)
        elif isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            raise UnsupportedSql(f"{node.sql('duckdb')}: call the function by its name alone, as f(x)")


def _check_table(table: exp.Table, known: Collection[TableKey]) -> None:
    if isinstance(table.this, exp.Func):
        if _TABLE_FUNCTIONS.isdisjoint(names := function_names(table.this)):
            raise UnsupportedSql(
                f"the table function {names[0]}() is not available: a query reads tables", name=names[0]
            )
        return
    if not isinstance(table.this, exp.Identifier) or any(v for k, v in table.args.items() if k not in _TABLE_ARGS):
        raise UnsupportedSql(f"{table.sql('duckdb')}: a table is named as table or namespace.table")
    if table_key(table) not in known and not names_cte(table):
        name = ".".join(part for part in table_key(table) if part)
        raise UnknownTable(f"there is no table {name!r}", table=name)


def _check_functions(names: Collection[str]) -> None:
    for name in names:
        if is_refused(name):
            raise UnsupportedSql(f"the function {name}() is not available in queries", name=name)


def _check_length(function: exp.Func) -> None:
    if isinstance(function, exp.Repeat | exp.Pad):
        count = function.args.get("times") or function.expression
        if not (isinstance(count, exp.Literal) and count.is_int and int(count.this) <= MAX_REPEAT):
            raise UnsupportedSql(f"{function.sql('duckdb')}: write the length as a number of at most {MAX_REPEAT:,}")


def is_refused(function: str) -> bool:
    """Whether a function of this lower-case name shows or changes more than the query's own rows."""
    if function in _ALLOWED:
        return False
    return function in _REFUSED or function.startswith(_REFUSED_FAMILIES)


def function_names(function: exp.Expr) -> list[str]:
    """Every name the node may be printed under."""
    if isinstance(function, exp.Anonymous | exp.AnonymousAggFunc):
        return [function.name.lower()]
    names = function.sql_names() if isinstance(function, exp.Func) else [function.key]
    return [name.lower() for name in names]


def table_key(table: exp.Table) -> TableKey:
    return (table.db or None, table.name)


def names_cte(table: exp.Table) -> bool:
    """Whether an enclosing WITH defines this name where it is used.

    Inside a CTE only the earlier ones are visible, and itself if the WITH is RECURSIVE.
    """
    inside: exp.Expr = table
    while not table.db and (scope := inside.parent) is not None:
        clause = scope if isinstance(scope, exp.With) else scope.args.get("with_")
        if clause is not None and clause is not inside and _fold(table.name) in _visible(clause, inside):
            return True
        inside = scope
    return False


def _visible(clause: exp.With, inside: exp.Expr) -> set[str]:
    names: set[str] = set()
    for cte in clause.expressions:
        if cte is inside and not clause.recursive:
            break
        names.add(_fold(cte.alias))
        if cte is inside:
            break
    return names


def _fold(name: str) -> str:
    """DuckDB compares names without regard to case, quoted or not."""
    return name.lower()


# --- the second wall: DuckDB's tree --------------------------------------------------------------------


def check_serialized(answer: dict[str, Any], views: Collection[str]) -> None:
    """`answer` is what json_serialize_sql says of the text; `views` are names that stand for known tables."""
    statements = answer.get("statements", ())
    if answer.get("error") or len(statements) != 1:
        raise UnsupportedSql(f"only a single SELECT can be run: {answer.get('error_message', 'more than one given')}")
    for node, names in _scoped_objects(statements[0], frozenset(views)):
        _check_object(node, names)


def _check_object(node: dict[str, Any], names: Collection[str]) -> None:
    match node.get("type"):
        case "BASE_TABLE":
            path = [part.lower() for part in node["qualified_name"]["path"]]
            if len(path) != 1 or path[0] not in names or node["at_clause"]:
                raise UnsupportedSql(f"the table {'.'.join(path)} is not available to queries")
        case "TABLE_FUNCTION":
            if (name := node["function"]["function_name"].lower()) not in _TABLE_FUNCTIONS:
                raise UnsupportedSql(f"the table function {name}() is not available: a query reads tables", name=name)
        case "SHOW_REF":
            raise UnsupportedSql("DESCRIBE, SHOW and SUMMARIZE cannot stand inside a SELECT")
    if "function_name" in node:
        _check_functions([node["function_name"].lower()])
        if node.get("schema") or node.get("catalog"):
            raise UnsupportedSql(f"call {node['function_name']}() by its name alone, as f(x)")


def _scoped_objects(root: Any, names: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Every object of the tree, with the tables and CTEs visible in it."""
    stack = [(root, names)]
    while stack:
        node, names = stack.pop()
        if isinstance(node, list):
            stack.extend((child, names) for child in node)
        elif isinstance(node, dict):
            for cte in node.get("cte_map", {}).get("map", ()):
                name = cte["key"].lower()
                itself = cte["value"]["query_node"]["type"] == "RECURSIVE_CTE_NODE"
                stack.append((cte["value"], names | {name} if itself else names))
                names |= {name}
            yield node, names
            stack.extend((child, names) for key, child in node.items() if key != "cte_map")
