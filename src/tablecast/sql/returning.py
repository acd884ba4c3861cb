"""RETURNING and other projections of rows that are at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tablecast.codec.rows import Row
from tablecast.core.expression import compile_expression
from tablecast.errors import UnsupportedSql
from tablecast.model.schema import ColumnType, TableSchema, TypeName
from tablecast.sql.query_bind import SEQ
from tablecast.sql.statements import Output


@dataclass(frozen=True, slots=True)
class Projection:
    """`seq_at` says where `_seq` is shown, which `values` leaves open: a row has it from its commit."""

    names: tuple[str, ...]
    types: tuple[ColumnType, ...]
    values: Callable[[Row], tuple[Any, ...]]
    seq_at: tuple[int, ...] = ()


def plan_projection(schema: TableSchema, outputs: Sequence[Output]) -> Projection:
    names: list[str] = []
    types: list[ColumnType] = []
    getters: list[Callable[[Row], Any]] = []
    seq_at: list[int] = []
    for output in outputs:
        if _is_seq(output.expression):
            seq_at.append(len(names))
            names.append(output.name)
            types.append(ColumnType(TypeName.BIGINT))
            getters.append(_open)
            continue
        wanted = schema.column_names if isinstance(output.expression, exp.Star) else (None,)
        for column in wanted:
            tree = output.expression if column is None else exp.column(column, quoted=True)
            compiled = compile_expression(tree, schema)
            names.append(output.name if column is None else column)
            types.append(compiled.type or ColumnType(TypeName.TEXT))
            getters.append(compiled.row)
    return Projection(tuple(names), tuple(types), lambda row: tuple([get(row) for get in getters]), tuple(seq_at))


def _open(row: Row) -> None:
    return None


def _is_seq(tree: exp.Expr) -> bool:
    """Refuses it inside of an expression: rows are computed before the commit has a number."""
    if isinstance(tree, exp.Column):
        return tree.name == SEQ
    if any(column.name == SEQ for column in tree.find_all(exp.Column)):
        raise UnsupportedSql(
            "RETURNING shows _seq by itself, not in an expression: it is known when the commit is decided"
        )
    return False
