"""RETURNING and other projections of rows that are at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tablecast.codec.rows import Row
from tablecast.core.expression import compile_expression
from tablecast.model.schema import ColumnType, TableSchema, TypeName
from tablecast.sql.statements import Output


@dataclass(frozen=True, slots=True)
class Projection:
    names: tuple[str, ...]
    types: tuple[ColumnType, ...]
    values: Callable[[Row], tuple[Any, ...]]


def plan_projection(schema: TableSchema, outputs: Sequence[Output]) -> Projection:
    names: list[str] = []
    types: list[ColumnType] = []
    getters: list[Callable[[Row], Any]] = []
    for output in outputs:
        wanted = schema.column_names if isinstance(output.expression, exp.Star) else (None,)
        for column in wanted:
            tree = output.expression if column is None else exp.column(column, quoted=True)
            compiled = compile_expression(tree, schema)
            names.append(output.name if column is None else column)
            types.append(compiled.type or ColumnType(TypeName.TEXT))
            getters.append(compiled.row)
    return Projection(tuple(names), tuple(types), lambda row: tuple([get(row) for get in getters]))
