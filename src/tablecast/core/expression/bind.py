"""Syntax tree to typed tree: names become columns, types are checked, silent conversions become casts.

`Binder.bind` dispatches on the class of the syntax node; what is not in the tables here and in `functions`
is refused by name. Every rule that DuckDB has and that cannot be reproduced exactly is refused as well: an
expression that is accepted means the same in DuckDB, for one row and for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import NamedTuple

from sqlglot import exp

from tablecast.core.expression import functions
from tablecast.core.expression.casts import castable, converter
from tablecast.core.expression.datatypes import column_type
from tablecast.core.expression.failure import Failure
from tablecast.core.expression.lattice import (
    IntegerLiteral,
    Side,
    StringLiteral,
    arithmetic,
    common,
    is_decimal,
    is_integer,
    is_numeric,
    settled,
)
from tablecast.core.expression.literals import read, readable
from tablecast.core.expression.numeric import MAX_DIGITS, decimal_negate, fits
from tablecast.core.expression.parse import canonical
from tablecast.core.expression.predicates import PREDICATES, equal, negation, require_parentheses
from tablecast.core.expression.tree import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    TEXT,
    And,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Const,
    Node,
    Or,
    Param,
)
from tablecast.errors import SqlSyntaxError, TypeMismatch, UnknownColumn, UnsupportedSql
from tablecast.model.schema import ColumnType, TableSchema, TypeName

_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.IntDiv: "int_divide",
    exp.Mod: "modulo",
}


class Operand(NamedTuple):
    """A bound part and what it brings along where types meet: the node's type, unless it is a literal."""

    source: exp.Expr
    node: Node
    side: Side


class Binder:
    def __init__(self, schema: TableSchema, param_types: Sequence[ColumnType | None]) -> None:
        self._schema = schema
        self._param_types = param_types
        self._folded = {column.name.lower(): i for i, column in enumerate(schema.columns)}

    def bind(self, source: exp.Expr) -> Node:
        bound = _SYNTAX.get(type(source)) or PREDICATES.get(type(source)) or functions.bind
        return bound(self, source)

    def settle(self, source: exp.Expr) -> Node:
        """Bound on its own, with nothing beside it that would give a literal another type."""
        operand = self.operand(source)
        return self.to(operand, settled(operand.side))

    def typed(self, source: exp.Expr, wanted: ColumnType, what: str) -> Node:
        """Bound as an argument that must be of the type `wanted`; NULL is."""
        node = self.settle(source)
        if node.type is None:
            return Const(wanted, None)
        if node.type != wanted:
            raise TypeMismatch(f"{what} needs {wanted}, but {canonical(source)} is {node.type}")
        return node

    def as_text(self, source: exp.Expr) -> Node:
        operand = self.operand(source)
        return operand.node if operand.node.type is None else self.to(operand, TEXT)

    def meet(self, sources: Sequence[exp.Expr]) -> list[Node]:
        """All bound to the one type they have in common."""
        operands = [self.operand(source) for source in sources]
        return self.met(operands, operands)

    def met(self, operands: Sequence[Operand], order: Sequence[Operand]) -> list[Node]:
        """Types meet one after the other, in `order`: it matters where literals are involved."""
        try:
            wanted = settled(reduce(common, (operand.side for operand in order)))
        except TypeMismatch as error:
            shown = ", ".join(canonical(operand.source) for operand in operands)
            raise TypeMismatch(f"{shown}: {error.message}") from None
        return [self.to(operand, wanted) for operand in operands]

    # --- leaves ---------------------------------------------------------------------------------------------

    def operand(self, source: exp.Expr) -> Operand:
        bare = source.unnest()
        if isinstance(bare, exp.Literal) and bare.is_string:
            return Operand(source, Const(TEXT, bare.this), StringLiteral())
        value = _integer_literal(bare)
        if value is not None:
            literal = IntegerLiteral(value)
            return Operand(source, Const(literal.settled, value), literal)
        node = self.bind(bare)
        return Operand(source, node, node.type)

    def to(self, operand: Operand, wanted: ColumnType | None) -> Node:
        source, node = operand.source, operand.node
        if wanted is None or node.type == wanted:
            return node
        if isinstance(node, Const):
            return self._constant(node, wanted, source)
        if node.type is None:
            return Const(wanted, None)
        if not castable(node.type, wanted):
            raise TypeMismatch(f"{canonical(source)} is {node.type} and not {wanted}: CAST it")
        return Cast(wanted, node)

    def _constant(self, node: Const, wanted: ColumnType, source: exp.Expr) -> Node:
        """A constant, converted now if it can be; what fails is left to fail when it is evaluated."""
        if node.value is None:
            return Const(wanted, None)
        assert node.type is not None
        if node.type == TEXT and wanted != TEXT:
            if not readable(wanted):
                raise UnsupportedSql(
                    f"there are no {wanted} literals: CAST to TEXT what {canonical(source)} stands beside"
                )
            return Const(wanted, read(node.value, wanted))
        if not castable(node.type, wanted):
            raise TypeMismatch(f"{canonical(source)} is {node.type} and not {wanted}: CAST it")
        try:
            return Const(wanted, converter(node.type, wanted)(node.value))
        except Failure:
            return Cast(wanted, node)

    def _literal(self, source: exp.Expr) -> Node:
        if source.is_string:
            return Const(TEXT, source.this)
        text = str(source.this)
        if "e" in text.lower():
            return Const(DOUBLE, float(text))
        whole, point, fraction = text.partition(".")
        if not point:
            return Const(IntegerLiteral(int(text)).settled, _within_bigint(int(text)))
        digits = len(whole) + len(fraction)
        if digits > MAX_DIGITS:
            raise UnsupportedSql(f"the literal {text} has more than {MAX_DIGITS} digits; write it with an exponent")
        return Const(ColumnType(TypeName.DECIMAL, digits, len(fraction)), Decimal(text))

    def _column(self, source: exp.Expr) -> Node:
        assert isinstance(source, exp.Column)
        name = source.name
        index = self._schema.index_of(name)
        if index is None:
            index = self._folded.get(name.lower())
        qualifier = ".".join(part.name for part in source.parts[:-1]).lower()
        known = ("", self._schema.name.lower(), self._schema.full_name.lower())
        if index is None or qualifier not in known:
            columns = ", ".join(self._schema.column_names)
            raise UnknownColumn(
                f"table {self._schema.full_name} has no column {canonical(source)}; it has {columns}",
                table=self._schema.full_name,
                column=name,
            )
        column = self._schema.columns[index]
        return ColumnRef(column.type, index, column.name)

    def _placeholder(self, source: exp.Expr) -> Node:
        if not source.name.isdigit():
            raise UnsupportedSql(f"named parameters are not supported: {canonical(source)}; write ? or $1")
        index = int(source.name) - 1
        if not 0 <= index < len(self._param_types):
            raise TypeMismatch(f"there is no parameter {index + 1}: {len(self._param_types)} were given")
        return Param(self._param_types[index], index)

    def _hex(self, source: exp.Expr) -> Node:
        try:
            return Const(BYTES, bytes.fromhex(source.name))
        except ValueError:
            raise SqlSyntaxError(f"{canonical(source)} is not an even number of hexadecimal digits") from None

    # --- operators ------------------------------------------------------------------------------------------

    def _arithmetic(self, source: exp.Expr) -> Node:
        name = _ARITHMETIC[type(source)]
        left, right = self.operand(source.this), self.operand(source.expression)
        for operand in (left, right):
            if operand.side is not None and not is_numeric(operand.side):
                found = f"{canonical(operand.source)} is {settled(operand.side)}"
                raise TypeMismatch(f"{canonical(source)} needs numbers, but {found}")
        if left.side is None and right.side is None:
            return Const(None, None)
        try:
            types = arithmetic(name, left.side or settled(right.side), right.side or settled(left.side))
        except TypeMismatch as error:
            raise TypeMismatch(f"{canonical(source)}: {error.message}") from None
        return Call(types[2], name, (self.to(left, types[0]), self.to(right, types[1])))

    def _negate(self, source: exp.Expr) -> Node:
        value = _integer_literal(source)
        if value is not None:
            return Const(IntegerLiteral(value).settled, _within_bigint(value))
        node = self.settle(source.this)
        if node.type is None:
            return Const(None, None)
        if not is_numeric(node.type):
            raise TypeMismatch(f"{canonical(source)} needs a number, but {canonical(source.this)} is {node.type}")
        if isinstance(node, Const) and node.value is not None and not is_integer(node.type):
            return Const(node.type, decimal_negate(node.value) if is_decimal(node.type) else -node.value)
        return Call(node.type, "negate", (node,))

    def _concatenation(self, source: exp.Expr) -> Node:
        require_parentheses(source, (source.this, source.expression))
        left, right = self.operand(source.this), self.operand(source.expression)
        types = {left.node.type, right.node.type}
        if None in types:
            return Const(None, None)
        if BYTES not in types:
            return Call(TEXT, "concatenate", (self.to(left, TEXT), self.to(right, TEXT)))
        if len(types) > 1:
            raise TypeMismatch(f"{canonical(source)} mixes {left.node.type} and {right.node.type}: CAST one side")
        return Call(BYTES, "concatenate", (left.node, right.node))

    # --- logic ----------------------------------------------------------------------------------------------

    def condition(self, source: exp.Expr) -> Node:
        return self.typed(source, BOOLEAN, "a condition")

    def _connector(self, source: exp.Expr) -> Node:
        kind = type(source)
        operands: list[exp.Expr] = []
        todo = [source]
        while todo:
            current = todo.pop()
            if type(current) is kind:
                todo += [current.expression, current.this]
            else:
                operands.append(current)
        args = tuple(self.condition(operand) for operand in operands)
        return And(BOOLEAN, args) if kind is exp.And else Or(BOOLEAN, args)

    def _not(self, source: exp.Expr) -> Node:
        return negation(self.condition(source.this))

    # --- conditionals ---------------------------------------------------------------------------------------

    def _case(self, source: exp.Expr) -> Node:
        branches = source.args["ifs"]
        if source.this is None:
            tests = [self.condition(branch.this) for branch in branches]
        else:
            subject = self.operand(source.this)
            tests = [equal(self, source, subject, self.operand(branch.this)) for branch in branches]
        results = [self.operand(branch.args["true"]) for branch in branches]
        default = self.operand(source.args.get("default") or exp.Null())
        *bound, otherwise = self.met([*results, default], [default, *results])  # DuckDB starts with the type of ELSE
        return Case(otherwise.type, tuple(zip(tests, bound, strict=True)), otherwise)

    def _coalesce(self, source: exp.Expr) -> Node:
        args = self.meet([source.this, *source.expressions])
        return Coalesce(args[0].type, tuple(args))

    def _nullif(self, source: exp.Expr) -> Node:
        kept, other = self.operand(source.this), self.operand(source.expression)
        result = self.to(kept, settled(kept.side))
        return Case(result.type, ((equal(self, source, kept, other), Const(result.type, None)),), result)

    def _cast(self, source: exp.Expr) -> Node:
        wanted = column_type(source.args["to"])
        attempt = isinstance(source, exp.TryCast)
        node = self.settle(source.this)
        if node.type is None or (isinstance(node, Const) and node.value is None):
            return Const(wanted, None)
        if node.type == wanted:
            return node
        if isinstance(node, Const) and node.type == TEXT:
            return self._cast_text(node, wanted, source)
        if not castable(node.type, wanted):
            raise UnsupportedSql(f"a cast from {node.type} to {wanted} is not supported: {canonical(source)}")
        return Cast(wanted, node, True) if attempt else self.to(Operand(source, node, node.type), wanted)

    def _cast_text(self, node: Const, wanted: ColumnType, source: exp.Expr) -> Node:
        try:
            return self._constant(node, wanted, source)
        except TypeMismatch as error:
            if isinstance(source, exp.TryCast):
                raise UnsupportedSql(f"{canonical(source)}: {error.message}") from None
            raise


def _integer_literal(source: exp.Expr) -> int | None:
    """`5`, `-5`, `-(5)`: DuckDB takes all of them as literals."""
    sign = 1
    while isinstance(source, exp.Neg | exp.Paren):
        sign = -sign if isinstance(source, exp.Neg) else sign
        source = source.this
    if not isinstance(source, exp.Literal) or source.is_string or not source.this.isdigit():
        return None
    return _within_bigint(sign * int(source.this))


def _within_bigint(value: int) -> int:
    if not fits(value, TypeName.BIGINT):
        raise UnsupportedSql(f"the integer {value} is beyond BIGINT; write it as a DECIMAL ({value}.0)")
    return value


_SYNTAX: dict[type[exp.Expr], Callable[[Binder, exp.Expr], Node]] = {
    exp.Paren: lambda binder, source: binder.bind(source.this),
    exp.Literal: Binder._literal,
    exp.HexString: Binder._hex,
    exp.Boolean: lambda binder, source: Const(BOOLEAN, bool(source.this)),
    exp.Null: lambda binder, source: Const(None, None),
    exp.Column: Binder._column,
    exp.Placeholder: Binder._placeholder,
    **dict.fromkeys(_ARITHMETIC, Binder._arithmetic),
    exp.Neg: Binder._negate,
    exp.DPipe: Binder._concatenation,
    exp.And: Binder._connector,
    exp.Or: Binder._connector,
    exp.Not: Binder._not,
    exp.Case: Binder._case,
    exp.Coalesce: Binder._coalesce,
    exp.Nullif: Binder._nullif,
    exp.Cast: Binder._cast,
    exp.TryCast: Binder._cast,
}
