"""A live query: which rows of one table it has, and what it shows of each.

A query is compiled in two steps, because many subscribers send one text with different values. `LiveForm` is the text
under one version of its table and one set of parameter types; `LiveForm.bind` adds the values, which costs microseconds.

**Equality.** Of a filter `thread_id = 42 AND …` it is enough to look at rows whose `thread_id` is 42. `equals` holds such
conjuncts, for an index by value (core.fanout). The index compares by Python's `==` and `hash`, the filter by SQL's `=`, so
a conjunct counts only where both say the same of every value: the column stands there bare, or inside of a conversion
that keeps the number it is (a SMALLINT as a BIGINT, not a BIGINT as a DOUBLE).

**Key.** Every row carries its primary key: columns of it that were not asked for are appended, hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from sqlglot import exp

from tablecast.codec.rows import Row
from tablecast.codec.values import coercion
from tablecast.core.expression import Expression, compile_expression
from tablecast.core.expression.lattice import as_decimal, is_decimal, is_integer
from tablecast.core.expression.rowform import RowFunction, row_function
from tablecast.core.expression.tree import BOOLEAN, And, Call, Cast, ColumnRef, Node, walk
from tablecast.core.rights import row_owner
from tablecast.errors import ExpressionError, TypeMismatch
from tablecast.model.schema import Actor, ColumnType, TableSchema, TypeName

Types = tuple[ColumnType | None, ...]
Values = tuple[Any, ...]

_EXACT_IN_FLOAT = {  # integers that a floating type holds as they are
    TypeName.FLOAT: (TypeName.SMALLINT,),
    TypeName.DOUBLE: (TypeName.SMALLINT, TypeName.INT),
}


class ShownColumn(NamedTuple):
    name: str
    type: ColumnType
    hidden: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LiveQuery:
    """Whoever has the same `identity` is told the same. `limit` is not part of it: it bounds the initial rows only."""

    identity: Hashable
    text: str
    table: TableSchema
    actor: Actor
    owner: str | None  # whose rows, in tables that keep them apart
    every_column: bool  # SELECT *: another query once the table has another column
    columns: tuple[ShownColumn, ...]
    types: tuple[str, ...]  # of the columns, as SQL names them: every change of theirs is written by these
    key_indexes: tuple[int, ...]  # where the primary key stands among the shown columns
    key_types: tuple[str, ...]
    limit: int | None
    equals: tuple[tuple[int, Any], ...]  # (column, value), by column
    key_prefix: Values  # values of the first key columns that all its rows share
    matches: Callable[[Row], bool]
    shown: Callable[[Row], Values]
    key_of: Callable[[Row], Values]


class Output(NamedTuple):
    """One item of the SELECT list; a star stands for every column."""

    name: str
    tree: exp.Expr


class _Equality(NamedTuple):
    column: int
    value: RowFunction


class LiveForm:
    def __init__(self, schema: TableSchema, outputs: Sequence[Output], where: exp.Expr | None, types: Types) -> None:
        self._schema = schema
        self._types = types
        self._every_column = any(isinstance(output.tree, exp.Star) for output in outputs)
        compiled = [
            (output.name, compile_expression(output.tree, schema, param_types=types))
            for output in _expanded(outputs, schema)
        ]
        self._where = None if where is None else _condition(where, schema, types)
        self._equalities = [] if self._where is None else list(_equalities(self._where))
        self._show(compiled)
        self.text = self._written(compiled)

    def _show(self, compiled: list[tuple[str, Expression]]) -> None:
        trees = [expression.tree for _, expression in compiled]
        columns = [ShownColumn(name, found.type or ColumnType(TypeName.TEXT)) for name, found in compiled]
        at = {tree.index: i for i, tree in reversed(list(enumerate(trees))) if isinstance(tree, ColumnRef)}
        for index in self._schema.key_indexes:
            if index not in at:
                at[index] = len(columns)
                column = self._schema.columns[index]
                trees.append(ColumnRef(column.type, index, column.name))
                columns.append(ShownColumn(column.name, column.type, hidden=True))
        self._columns = tuple(columns)
        self._column_types = tuple(str(column.type) for column in columns)
        self._key_indexes = tuple(at[index] for index in self._schema.key_indexes)
        self._key_types = tuple(self._column_types[i] for i in self._key_indexes)
        self._key_of = _getter(self._schema.key_indexes)
        plain = [tree.index for tree in trees if isinstance(tree, ColumnRef)]
        self._plain = _getter(plain) if len(plain) == len(trees) else None
        self._cells = [row_function(tree, name) for tree, (name, *_) in zip(trees, columns, strict=True)]

    def _written(self, compiled: list[tuple[str, Expression]]) -> str:
        shown = ["*"] if self._every_column and len(compiled) == len(self._schema.columns) else []
        shown = shown or [e.sql if e.sql.strip('"') == name else f'{e.sql} AS "{name}"' for name, e in compiled]
        where = "" if self._where is None else f" WHERE {self._where.sql}"
        return f"SELECT {', '.join(shown)} FROM {self._schema.full_name}{where}"

    def bind(self, actor: Actor, params: Values, limit: int | None = None) -> LiveQuery:
        """`params` are of the form's types."""
        schema, owner = self._schema, row_owner(actor, self._schema)
        equals: dict[int, Any] = {}
        for equality in self._equalities:
            if equality.column not in equals and (value := _constant(equality.value, params)) is not None:
                equals[equality.column] = value
        version = schema.version if self._every_column else None
        return LiveQuery(
            (schema.table_id, version, self.text, self._types, params, owner),
            self.text, schema, actor, owner, self._every_column, self._columns, self._column_types,
            self._key_indexes, self._key_types, limit,
            tuple(sorted(equals.items(), key=lambda pair: pair[0])), _key_prefix(schema, equals),
            _matching(self._where, params), self._plain or _cells(self._cells, params), self._key_of,
        )  # fmt: skip


def _expanded(outputs: Sequence[Output], schema: TableSchema) -> Iterator[Output]:
    for output in outputs:
        if isinstance(output.tree, exp.Star):
            yield from (Output(name, exp.column(name, quoted=True)) for name in schema.column_names)
        else:
            yield output


def _condition(where: exp.Expr, schema: TableSchema, types: Types) -> Expression:
    compiled = compile_expression(where, schema, param_types=types)
    if compiled.type not in (BOOLEAN, None):
        raise TypeMismatch(f"WHERE takes a condition, but {compiled.sql} is {compiled.type}", expression=compiled.sql)
    return compiled


def _matching(where: Expression | None, params: Values) -> Callable[[Row], bool]:
    if where is None:
        return lambda row: True
    evaluate = where.row
    return lambda row: evaluate(row, params) is True


def _cells(cells: list[RowFunction], params: Values) -> Callable[[Row], Values]:
    return lambda row: tuple([cell(row, params) for cell in cells])


def _getter(indexes: Sequence[int]) -> Callable[[Row], Values]:
    get = attrgetter(*(f"c{i}" for i in indexes))
    return get if len(indexes) > 1 else lambda row: (get(row),)


# --- equality ---------------------------------------------------------------------------------------------------


def _equalities(where: Expression) -> Iterator[_Equality]:
    for node in _conjuncts(where.tree):
        if isinstance(node, Call) and node.name == "eq":
            left, right = node.args
            for side, other in ((left, right), (right, left)):
                column = _column_in(side)
                if column is not None and not any(isinstance(part, ColumnRef) for part in walk(other)):
                    yield _Equality(column.index, row_function(other, where.sql))


def _conjuncts(node: Node) -> Iterator[Node]:
    if isinstance(node, And):
        for part in node.args:
            yield from _conjuncts(part)
    else:
        yield node


def _column_in(node: Node) -> ColumnRef | None:
    if isinstance(node, Cast) and isinstance(node.arg, ColumnRef) and _keeps_value(node.arg.type, node.type):
        return node.arg
    return node if isinstance(node, ColumnRef) else None


def _keeps_value(source: ColumnType | None, target: ColumnType | None) -> bool:
    """Whether every value of `source` is, converted, the same number to Python."""
    assert source is not None and target is not None
    if target.name in _EXACT_IN_FLOAT and is_integer(source):
        return source.name in _EXACT_IN_FLOAT[target.name]
    if source.name is TypeName.FLOAT:
        return target.name is TypeName.DOUBLE
    exact = (is_integer(source) or is_decimal(source)) and (is_integer(target) or is_decimal(target))
    return exact and _holds(as_decimal(target), as_decimal(source))


def _holds(wide: ColumnType, narrow: ColumnType) -> bool:
    return wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale


def _constant(value: RowFunction, params: Values) -> Any:
    """What a column must equal; None where nothing is to be learned from it: NULL, NaN, or what fails."""
    try:
        found = value(None, params)
    except ExpressionError:
        return None
    return found if found == found else None


def _key_prefix(schema: TableSchema, equals: dict[int, Any]) -> Values:
    """As keys are stored. A value that the column cannot hold as it is ends the prefix."""
    prefix: list[Any] = []
    for index in schema.key_indexes:
        column, value = schema.columns[index], equals.get(index)
        if value is None:
            break
        try:
            stored = coercion(column.type, column.name)(value)
        except TypeMismatch:
            break
        if stored != value:
            break
        prefix.append(stored)
    return tuple(prefix)
