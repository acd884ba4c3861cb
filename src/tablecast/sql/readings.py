"""Text given for a parameter that a column is compared with, or set to: it is read as the column's type.

So the values of a message (a BIGINT or DECIMAL as text, BYTES in base64) work as parameters wherever the column is meant, and
mean what they mean in an INSERT. The tree stays as it is: a parameter's value is read before the statement runs. Only one
that stands beside columns of several types, or also elsewhere, is a further parameter there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlglot import exp

from tablecast.codec.values import text_coercion
from tablecast.model.schema import Column, ColumnType, TableSchema, TypeName
from tablecast.sql.query_check import TableKey, names_cte

Read = Callable[[str], Any]
ColumnOf = Callable[[exp.Column], Column | None]

_MEETING = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Between, exp.In),
)
_VALUES = (exp.Column, exp.Placeholder, exp.Literal, exp.Null, exp.Boolean, exp.Neg)
_AS_THEY_ARE = (TypeName.TEXT, TypeName.JSON)


class Readings(NamedTuple):
    """`in_place` and `further` pair the index of a parameter and how its text is read; `parameters` is how many there are then."""

    parameters: int
    in_place: tuple[tuple[int, Read], ...] = ()
    further: tuple[tuple[int, Read], ...] = ()

    def apply(self, params: Sequence[Any]) -> Sequence[Any]:
        if not self.in_place and not self.further:
            return params
        read = [*params, *(_read(params[index], reader) for index, reader in self.further)]
        for index, reader in self.in_place:
            read[index] = _read(params[index], reader)
        return read


def _read(value: Any, reader: Read) -> Any:
    return reader(value) if isinstance(value, str) else value


def read_text(value: Any, column: Column | None) -> Any:
    """The value, or what a text means that is given for the column."""
    reader = None if column is None else reader_of(column)
    return value if reader is None else _read(value, reader)


def reader_of(column: Column) -> Read | None:
    """How text given for a column is read; None if text is what the column holds."""
    return None if column.type.name in _AS_THEY_ARE else _reader(column.type, column.name)


_reader = lru_cache(maxsize=4096)(text_coercion)


# --- which parameter stands beside which column ------------------------------------------------------------------


class Placed(NamedTuple):
    """An expression of a statement; `column` is what its value is set to."""

    tree: exp.Expr
    column: Column | None = None


def lift_readings(placed: Sequence[Placed], column_of: ColumnOf, parameters: int) -> tuple[list[exp.Expr], Readings]:
    """The expressions, in which further parameters may have come, and how the values of all are read."""
    if not parameters:
        return [part.tree for part in placed], Readings(0)
    wanted = [
        [(int(node.name), _column_beside(node, part, column_of)) for node in _parameters(part.tree)] for part in placed
    ]
    meanings: dict[int, dict[ColumnType | None, Column | None]] = {}
    for number, column in (each for found in wanted for each in found):
        meanings.setdefault(number, {}).setdefault(None if column is None else column.type, column)
    in_place: list[tuple[int, Read]] = []
    further: list[tuple[int, Read]] = []
    numbers: dict[tuple[int, ColumnType | None], int] = {}
    for number, columns in meanings.items():
        first = None if None in columns else next(iter(columns))  # what the parameter itself is read as
        for kind, column in columns.items():
            reader = None if column is None else reader_of(column)
            if kind == first:
                in_place += [] if reader is None else [(number - 1, reader)]
            elif reader is not None:
                further.append((number - 1, reader))
                numbers[number, kind] = parameters + len(further)
    readings = Readings(parameters + len(further), tuple(in_place), tuple(further))
    return [_renumbered(part.tree, found, numbers) for part, found in zip(placed, wanted, strict=True)], readings


def _parameters(tree: exp.Expr) -> list[exp.Placeholder]:
    return [node for node in tree.find_all(exp.Placeholder) if node.name.isdecimal()]


def _renumbered(
    tree: exp.Expr, found: Sequence[tuple[int, Column | None]], numbers: Mapping[tuple[int, ColumnType | None], int]
) -> exp.Expr:
    changes = [numbers.get((number, None if column is None else column.type)) for number, column in found]
    if not any(changes):
        return tree
    tree = tree.copy()
    for node, number in zip(_parameters(tree), changes, strict=True):
        if number is not None:
            node.set("this", str(number))
    return tree


def _column_beside(node: exp.Expr, part: Placed, column_of: ColumnOf) -> Column | None:
    """The column whose text form the parameter may have: none for a column that holds text itself."""
    while node is not part.tree and isinstance(node.parent, exp.Paren):
        node = node.parent
    if node is part.tree:
        columns = [part.column]
    elif isinstance(node.parent, _MEETING):
        others = [other.unnest() for other in node.parent.iter_expressions() if other is not node]
        if not all(isinstance(other, _VALUES) for other in others):
            return None
        columns = [column_of(other) for other in others if isinstance(other, exp.Column)]
    else:
        return None
    found = {column.type: column for column in columns if column is not None}
    if len(found) != 1 or None in columns:
        return None
    [column] = found.values()
    return None if reader_of(column) is None else column


# --- columns of queries ------------------------------------------------------------------------------------------


def columns_of_query(schemas: Mapping[TableKey, TableSchema]) -> ColumnOf:
    """The columns of a query's tables, where it is certain which one is meant."""
    folded = {key: {column.name.lower(): column for column in schema.columns} for key, schema in schemas.items()}

    def column_of(node: exp.Column) -> Column | None:
        scope = node.find_ancestor(exp.Select)
        if scope is None or node.catalog:
            return None
        name = node.name.lower()
        sources = list(_sources(scope, folded))
        if node.table:
            named = [columns for aliases, columns in sources if _qualifier(node) in aliases]
        elif any(shown.alias.lower() == name for shown in scope.expressions if isinstance(shown, exp.Alias)):
            return None
        else:
            named = [columns for _, columns in sources]
            if any(columns is None for columns in named):
                return None
        found = [columns[name] for columns in named if columns is not None and name in columns]
        return found[0] if len(found) == 1 else None

    return column_of


def _qualifier(node: exp.Column) -> str:
    return f"{node.db}.{node.table}".lower() if node.db else node.table.lower()


def _sources(
    scope: exp.Select, folded: Mapping[TableKey, Mapping[str, Column]]
) -> Iterator[tuple[frozenset[str], Mapping[str, Column] | None]]:
    """What may stand before a column of each source, and its columns; None if it is no table of ours."""
    source = scope.args.get("from_")
    others = (*(scope.args.get("joins") or ()), *(scope.args.get("laterals") or ()))
    for part in (source, *others):
        table = None if part is None else part.this
        if not isinstance(table, exp.Table) or names_cte(table) or table.args.get("pivots"):
            yield frozenset(() if table is None else (table.alias.lower(),)), None
            continue
        alias = table.args.get("alias")
        columns = folded.get((table.db or None, table.name))
        if alias is not None and alias.args.get("columns"):
            columns = None
        names = (table.alias,) if table.alias else (table.name, f"{table.db}.{table.name}")
        yield frozenset(name.lower() for name in names), columns
