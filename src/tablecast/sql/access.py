"""Which part of a table a SELECT needs.

Storage keeps rows in the order of the primary key, so it can answer

    POINT    one key                       id = 5
    POINTS   several keys, in key order    id IN (1, 2); also none: id = NULL
    RANGE    a prefix of the key, bounds on the next column     tenant = 7 AND at >= $1
    FULL     all rows

each forwards or in reverse, and stop after `limit` rows. A path never leaves out a row the SELECT needs. If
it is `exact` it also applies the whole WHERE, ORDER BY, LIMIT and OFFSET, and the plan's `projection` says
which columns to show: then no query engine is needed. If not, DuckDB runs the whole SELECT over the rows of
the path.

Why narrowing is safe: WHERE is a conjunction, and each conjunct used for the path is true of no row whose
key column is NULL. A row outside the path fails its conjunct, so it fails WHERE; in a join of any side, so
does the row that the join would extend with NULLs in its place. It is only done for a table that the
statement names once, because all its references see the same rows.

Planning looks at the tree, once per statement. Binding looks at the values, once per execution: a value
that storage cannot compare as DuckDB would (see `access_values`) makes its conjunct unusable for the path,
never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from tablecast.model.schema import Column, TableSchema, TypeName
from tablecast.sql.access_bind import AccessKind, AccessPath, AccessPlan, Operand, Shape, Term
from tablecast.sql.access_values import UNUSABLE, literal, reader

__all__ = ["AccessKind", "AccessPath", "AccessPlan", "access_path", "plan_access"]

_SIMPLE_ARGS = frozenset(("expressions", "from_", "where", "order", "limit", "offset"))
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# Expressions that turn one row into one value, without looking at other rows.
_ROW_WISE = (
    *(exp.Column, exp.Identifier, exp.Star, exp.Alias, exp.Paren, exp.Placeholder, exp.Literal, exp.Null),
    *(exp.Boolean, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe, exp.Cast, exp.DataType),
    *(exp.DataTypeParam, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.Is),
)


def plan_access(select: exp.Expr, schema: TableSchema) -> AccessPlan:
    table = _only_reference(select, schema)
    if table is None or not isinstance(select, exp.Select):
        return AccessPlan(len(schema.primary_key), (), Shape(False, True, None, None, None), None)
    return _Planning(select, table, schema).plan()


def access_path(select: exp.Expr, schema: TableSchema, params: Sequence[Any] = ()) -> AccessPath:
    return plan_access(select, schema).bind(params)


class _Planning:
    def __init__(self, select: exp.Select, table: exp.Table, schema: TableSchema) -> None:
        self.select = select
        self.schema = schema
        self.alias = (table.alias or table.name).lower()
        self.namespace = "" if table.alias else schema.namespace.lower()
        self.alone = not select.args.get("joins")
        self.columns = {column.name.lower(): column for column in schema.columns}
        self.keys = [name.lower() for name in schema.primary_key]

    def plan(self) -> AccessPlan:
        terms: list[Term] = []
        residual = False
        where = self.select.args.get("where")
        for conjunct in _conjuncts(where.this) if where else ():
            found = self._terms(conjunct)
            terms.extend(found)
            residual |= not found
        row_wise = self._is_row_wise()
        limit, offset = self._count("limit"), self._count("offset")
        shape = Shape(row_wise, residual, self._order() if row_wise else None, limit, offset)
        projection = self._projection() if row_wise else None
        return AccessPlan(len(self.keys), tuple(terms), shape, projection)

    def _column(self, node: exp.Expr | None) -> Column | None:
        """The column of the table that `node` names, if it surely does."""
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier) or node.catalog:
            return None
        if node.db and node.db.lower() != self.namespace:
            return None
        if node.table.lower() != self.alias and (node.table or not self.alone):
            return None
        return self.columns.get(node.name.lower())

    # --- WHERE -----------------------------------------------------------------------------------------

    def _terms(self, conjunct: exp.Expr) -> list[Term]:
        match conjunct:
            case exp.In() if not conjunct.args.get("query") and not conjunct.args.get("unnest"):
                return self._term(conjunct.this, "=", conjunct.expressions)
            case exp.Between() if not conjunct.args.get("symmetric"):
                return self._term(conjunct.this, "between", [conjunct.args["low"], conjunct.args["high"]])
        op = _COMPARISONS.get(type(conjunct))
        if op is None:
            return []
        left, right = conjunct.this, conjunct.expression
        return self._term(left, op, [right]) or self._term(right, _MIRRORED[op], [left])

    def _term(self, node: exp.Expr, op: str, values: list[exp.Expr]) -> list[Term]:
        column = self._column(node)
        if column is None or column.name.lower() not in self.keys or not values:
            return []
        read = reader(column.type)
        operands = [_operand(value, column) for value in values]
        if read is None or any(operand.value is UNUSABLE for operand in operands):
            return []
        return [Term(self.keys.index(column.name.lower()), op, tuple(operands), read)]

    # --- the rest --------------------------------------------------------------------------------------

    def _is_row_wise(self) -> bool:
        if any(value for key, value in self.select.args.items() if key not in _SIMPLE_ARGS):
            return False
        return all(isinstance(node, _ROW_WISE) for shown in self.select.expressions for node in shown.walk())

    def _order(self) -> tuple[tuple[int, bool], ...] | None:
        order = self.select.args.get("order")
        if order is None:
            return ()
        positions = [self._order_position(ordered) for ordered in order.expressions]
        if any(position is None for position in positions):
            return None
        return tuple(position for position in positions if position is not None)

    def _order_position(self, ordered: exp.Expr) -> tuple[int, bool] | None:
        column = self._column(ordered.this)
        if column is None or column.name.lower() not in self.keys or ordered.args.get("with_fill"):
            return None
        if column.type.name is TypeName.JSON or (not ordered.this.table and self._hidden_by_alias(column)):
            return None
        return self.keys.index(column.name.lower()), bool(ordered.args.get("desc"))

    def _hidden_by_alias(self, column: Column) -> bool:
        """In ORDER BY an alias comes before a column of the same name."""
        for shown in self.select.expressions:
            same_name = isinstance(shown, exp.Alias) and shown.alias.lower() == column.name.lower()
            if same_name and self._column(shown.this) is not column:
                return True
        return False

    def _count(self, clause: str) -> Operand | None:
        node = self.select.args.get(clause)
        if node is None:
            return None
        if not isinstance(node, exp.Limit | exp.Offset) or node.args.get("limit_options") or node.expressions:
            return Operand(-1, UNUSABLE)
        return _operand(node.expression, None)

    def _projection(self) -> tuple[tuple[str, str], ...] | None:
        shown: list[tuple[str, str]] = []
        for node in self.select.expressions:
            if (columns := self._shown(node)) is None:
                return None
            shown.extend(columns)
        return tuple(shown)

    def _shown(self, node: exp.Expr) -> list[tuple[str, str]] | None:
        if self._is_star(node):
            return [(column.name, column.name) for column in self.schema.columns]
        source = node.this if isinstance(node, exp.Alias) else node
        column = self._column(source)
        if column is None:
            return None
        return [(node.alias if isinstance(node, exp.Alias) else column.name, column.name)]

    def _is_star(self, node: exp.Expr) -> bool:
        if isinstance(node, exp.Column):
            return isinstance(node.this, exp.Star) and node.text("table").lower() == self.alias and not node.db
        return isinstance(node, exp.Star) and not any(node.args.values())


def _only_reference(select: exp.Expr, schema: TableSchema) -> exp.Table | None:
    """The one place where the statement names the table, if it is in the FROM of the outermost SELECT."""
    name, namespace = schema.name.lower(), schema.namespace.lower()
    named = [table for table in select.find_all(exp.Table) if table.name.lower() == name]
    named = [table for table in named if table.db.lower() in ("", namespace)]
    shadowed = any(cte.alias.lower() == name for cte in select.find_all(exp.CTE))
    if len(named) != 1 or shadowed or select.args.get("sample") or select.args.get("laterals"):
        return None
    table = named[0]
    joins = select.args.get("joins") or ()
    source = select.args.get("from_")
    direct = [source.this if source else None, *(join.this for join in joins)]
    if not any(table is node for node in direct) or not all(map(_keeps_rows, joins)):
        return None
    plain = not any(value for key, value in table.args.items() if key not in ("this", "db", "alias"))
    alias = table.args.get("alias")
    return table if plain and not (alias and alias.args.get("columns")) else None


def _keeps_rows(join: exp.Join) -> bool:
    """ASOF and POSITIONAL pair a row by its neighbours, ANTI by what is absent: no row may be left out."""
    return not join.method and join.kind.upper() in ("", "INNER", "CROSS", "OUTER")


def _conjuncts(node: exp.Expr) -> list[exp.Expr]:
    stack, found = [node], []
    while stack:
        node = stack.pop()
        if isinstance(node, exp.And):
            stack += (node.expression, node.this)
        elif isinstance(node, exp.Paren):
            stack.append(node.this)
        else:
            found.append(node)
    return found


def _operand(node: exp.Expr, column: Column | None) -> Operand:
    if isinstance(node, exp.Placeholder):
        number = node.name
        return Operand(int(number) - 1, None) if number.isdecimal() else Operand(-1, UNUSABLE)
    if column is None:
        count = isinstance(node, exp.Literal) and node.is_int
        return Operand(-1, int(node.this) if count else UNUSABLE)
    return Operand(-1, literal(node, column.type))
