"""What a live query may be.

    query = SELECT item, … FROM table [[AS] alias] [WHERE condition] [LIMIT n]
    item = * | expression [[AS] name]

One table, and of it what can be told row by row: a change of one row is then a change of at most one row of the result.
Everything else is refused, and the error says what there is instead; a filter that cannot be read is an error, never no
filter. LIMIT bounds the rows that come first: the last n in the order of the primary key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from tablecast.core.expression.parse import ExpressionSql
from tablecast.core.live_query import Output
from tablecast.errors import InvalidRequest, UnknownColumn, UnsupportedSql
from tablecast.sql.generated import generator_name
from tablecast.sql.parse import parse
from tablecast.sql.statements import Select, TableName
from tablecast.sql.syntax import check_row_expression

SUPPORTED = "a live query is SELECT columns FROM table [WHERE condition] [LIMIT n]"

_TAKEN = frozenset(("expressions", "from_", "where", "limit"))
_CLAUSES = {
    "joins": "a join",
    "group": "GROUP BY",
    "having": "HAVING",
    "order": "ORDER BY",
    "distinct": "DISTINCT",
    "offset": "OFFSET",
    "with_": "WITH",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "sample": "a sample",
    "laterals": "LATERAL",
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.In, exp.Between)


@dataclass(frozen=True, slots=True)
class LiveSelect:
    """Columns stand bare in the trees. Parameters are counted from 0."""

    table: TableName
    outputs: tuple[Output, ...]
    where: exp.Expr | None
    limit: int | None
    limit_parameter: int | None  # that holds the limit
    parameters: int
    used: frozenset[int]  # parameters that decide about rows: not those of the limit alone
    beside: dict[int, str]  # parameter that occurs once, beside a column -> that column
    names_user: bool  # whether CURRENT_USER() occurs


def parse_live(sql: str) -> LiveSelect:
    statements = parse(sql)
    if len(statements) != 1 or not isinstance(statements[0], Select):
        raise UnsupportedSql(f"{SUPPORTED}, and nothing beside it")
    statement = statements[0]
    tree = statement.query.copy()
    if not isinstance(tree, exp.Select):
        raise UnsupportedSql(f"{tree.key.upper()} has no live form: {SUPPORTED}")
    for clause, value in tree.args.items():
        if value and clause not in _TAKEN:
            shown = _CLAUSES.get(clause, clause.strip("_").upper())
            raise UnsupportedSql(f"{shown} has no live form: {SUPPORTED}", clause=shown)
    names = _qualifiers(tree)
    where = tree.args.get("where")
    condition = None if where is None else _bare(where.this, names, "the WHERE of a live query")
    outputs = tuple(_output(item, names) for item in tree.expressions)
    parts = [*(output.tree for output in outputs), *([] if condition is None else [condition])]
    used = [_number(node) for part in parts for node in part.find_all(exp.Placeholder)]
    limit, limit_parameter = _limit(tree.args.get("limit"))
    (table,) = statement.tables
    return LiveSelect(
        table=table,
        outputs=outputs,
        where=condition,
        limit=limit,
        limit_parameter=limit_parameter,
        parameters=statement.parameters,
        used=frozenset(used),
        beside={number: column for number, column in _comparisons(condition) if used.count(number) == 1},
        names_user=any(generator_name(node) for part in parts for node in part.walk()),
    )


def _qualifiers(tree: exp.Select) -> frozenset[str]:
    """What may stand before a column."""
    source = tree.args.get("from_")
    table = None if source is None else source.this
    if not isinstance(table, exp.Table):
        raise UnsupportedSql(f"a live query reads one table: {SUPPORTED}")
    extra = [key for key, value in table.args.items() if value and key not in ("this", "db", "alias")]
    alias = table.args.get("alias")
    if extra or (alias is not None and alias.args.get("columns")):
        raise UnsupportedSql(f"FROM {table.sql('duckdb')} has no live form: {SUPPORTED}")
    if table.alias:
        return frozenset((table.alias,))
    return frozenset((table.name, f"{table.db}.{table.name}"))


def _output(item: exp.Expr, names: frozenset[str]) -> Output:
    if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
        _drop_qualifier(item, names)
        item = item.this
    if isinstance(item, exp.Star):
        if any(item.args.values()):
            raise UnsupportedSql(f"{item.sql('duckdb')}: name the columns that a live query is to show")
        return Output("*", item)
    plain = item.this if isinstance(item, exp.Alias) else item
    bare = _bare(plain, names, "a column of a live query")
    return Output(item.alias or bare.name or bare.sql(dialect=ExpressionSql), bare)


def _bare(root: exp.Expr, names: frozenset[str], place: str) -> exp.Expr:
    """The expression with its columns unqualified, once it is sure to be decided by the row alone."""
    check_row_expression(root, place, subqueries=False)
    for node in root.walk():
        made = generator_name(node)
        if made is not None and made != "current_user":
            raise UnsupportedSql(f"{place} cannot contain {made}(): it is decided by the row alone", function=made)
        if isinstance(node, exp.Column):
            if node.name == "_seq":
                raise UnsupportedSql(f"{place} cannot be _seq: every change tells its commit number beside the row")
            if node.table:
                _drop_qualifier(node, names)
    return root


def _drop_qualifier(column: exp.Column, names: frozenset[str]) -> None:
    qualifier = ".".join(part.name for part in column.parts[:-1])
    if qualifier not in names:
        known = " or ".join(sorted(names))
        raise UnknownColumn(f"{column.sql('duckdb')}: the table is called {known} here", column=column.name)
    for part in ("table", "db", "catalog"):
        column.set(part, None)


def _limit(node: exp.Expr | None) -> tuple[int | None, int | None]:
    """The number, or the parameter that holds it."""
    if node is None:
        return None, None
    count = node.expression
    if not node.args.get("limit_options") and not node.expressions:
        if isinstance(count, exp.Placeholder):
            return None, _number(count)
        if isinstance(count, exp.Literal) and count.is_int:
            return checked_limit(int(count.this)), None
    raise UnsupportedSql(f"{node.sql('duckdb').strip()}: LIMIT takes a whole number")


def _number(parameter: exp.Placeholder) -> int:
    return int(parameter.name) - 1


def checked_limit(count: object) -> int:
    if type(count) is not int or count < 1:
        raise InvalidRequest(f"the LIMIT of a live query is 1 or more, not {count!r}")
    return count


def _comparisons(condition: exp.Expr | None) -> Iterator[tuple[int, str]]:
    """Parameters that stand beside a column."""
    for node in () if condition is None else condition.find_all(*_COMPARISONS):
        parts = [part.unnest() for part in node.iter_expressions()]
        for column in parts:
            if isinstance(column, exp.Column):
                yield from ((_number(part), column.name) for part in parts if isinstance(part, exp.Placeholder))
