"""Expressions of a prepared statement: compiled once per combination of parameter types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlglot import exp

from tablecast.core.expression import Expression, compile_expression
from tablecast.engine.generated import StatementValues
from tablecast.model.schema import ColumnType, TableSchema
from tablecast.sql.generated import generate, lift_generated
from tablecast.sql.parameters import parameter_type

FORMS_KEPT = 64  # combinations of parameter types; a statement rarely sees more than two


@dataclass(slots=True)
class Lifted:
    """A tree whose generated values (NOW() and the like) became further parameters."""

    tree: exp.Expr
    names: list[str]
    _forms: dict[tuple[ColumnType | None, ...], Expression] = field(default_factory=dict)

    @staticmethod
    def of(tree: exp.Expr, parameters: int) -> Lifted:
        return Lifted(*lift_generated(tree, parameters + 1))

    def parameters(self, params: Sequence[Any], values: StatementValues) -> tuple[Any, ...]:
        return (*(_plain(value) for value in params), *generate(values, self.names))

    def compiled(self, schema: TableSchema, bound: tuple[Any, ...]) -> Expression:
        types = tuple([parameter_type(value) for value in bound])
        found = self._forms.get(types)
        if found is None:
            if len(self._forms) >= FORMS_KEPT:
                self._forms.clear()
            found = self._forms[types] = compile_expression(self.tree, schema, param_types=types)
        return found


def _plain(value: Any) -> Any:
    """A dict or list given for a JSON column, as the column holds it."""
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
