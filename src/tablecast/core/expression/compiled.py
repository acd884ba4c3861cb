"""A compiled expression and how to get one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from tablecast.core.expression.arrowform import BatchFunction, batch_function
from tablecast.core.expression.bind import Binder
from tablecast.core.expression.parse import canonical, check_depth, parse_expression
from tablecast.core.expression.rowform import RowFunction, row_function
from tablecast.core.expression.tree import BOOLEAN, ColumnRef, Node, walk
from tablecast.errors import TooLarge, TypeMismatch, UnsupportedSql
from tablecast.model.schema import ColumnType, TableSchema


@dataclass(frozen=True, slots=True)
class Expression:
    """`row(row, params=())` gives the value for one row struct, `batch(batch, params=())` an Arrow array for many.

    Both raise ExpressionError where the value cannot be computed. `sql` compiles to an equal expression again; its
    parameters are numbered ($1, $2, …). `type` is None if the value is always NULL. `tree` is what further forms are
    compiled from.
    """

    sql: str
    type: ColumnType | None
    columns: frozenset[str]
    tree: Node
    row: RowFunction
    batch: BatchFunction


def compile_expression(
    source: str | exp.Expr, schema: TableSchema, *, param_types: Sequence[ColumnType | None] = ()
) -> Expression:
    """Parses, checks the types against the table's columns and compiles both forms.

    A parameter behaves like a column of its type; the i-th `?` is `params[i]`, `$n` is `params[n - 1]`.
    """
    parsed = parse_expression(source) if isinstance(source, str) else source.copy()
    check_depth(parsed)
    try:
        return _compiled(_numbered(parsed), schema, param_types)
    except RecursionError:  # the limits leave room for a caller that is itself deep, but not for any caller
        raise TooLarge("the expression is nested too deeply") from None


def _compiled(parsed: exp.Expr, schema: TableSchema, param_types: Sequence[ColumnType | None]) -> Expression:
    tree = Binder(schema, param_types).settle(parsed)
    sql = canonical(parsed)
    columns = frozenset(node.name for node in walk(tree) if isinstance(node, ColumnRef))
    return Expression(sql, tree.type, columns, tree, row_function(tree, sql), batch_function(tree, sql))


def compile_filter(source: str | exp.Expr, schema: TableSchema) -> Expression:
    """An expression that is a condition: BOOLEAN, or NULL, which matches no row."""
    compiled = compile_expression(source, schema)
    if compiled.type not in (BOOLEAN, None):
        raise TypeMismatch(
            f"a filter must be BOOLEAN, but {compiled.sql} is {compiled.type}",
            expression=compiled.sql,
            type=str(compiled.type),
        )
    return compiled


def _numbered(tree: exp.Expr) -> exp.Expr:
    """Every `?` as `$n`, counted in the order of the text."""
    anonymous = [node for node in tree.find_all(exp.Placeholder, bfs=False) if not node.this]
    for node in anonymous:
        trim = node.find_ancestor(exp.Trim)
        if trim is not None and trim.args.get("expression"):
            raise UnsupportedSql(f"number the parameters of {canonical(trim)} ($1, $2): SQL has two orders for them")
    for number, node in enumerate(anonymous, 1):
        node.set("this", str(number))
    return tree
