"""Syntax tree to typed tree: names become columns, types are checked, silent conversions become casts.

`Binder.bind` dispatches on the class of the syntax node; what is not in the tables here and in `functions` is refused
by name. Every rule that DuckDB has and that cannot be reproduced exactly is refused as well: an expression that is
accepted means the same in DuckDB, for one row and for a batch.
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
from tablecast.core.expression.like import pieces
from tablecast.core.expression.literals import read, readable
from tablecast.core.expression.numeric import MAX_DIGITS, decimal_negate, fits
from tablecast.core.expression.parse import canonical
from tablecast.core.expression.tree import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    JSON,
    TEXT,
    And,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Const,
    IsNull,
    Member,
    Node,
    Or,
    Param,
    Same,
)
from tablecast.errors import SqlSyntaxError, TypeMismatch, UnknownColumn, UnsupportedSql
from tablecast.model.schema import ColumnType, TableSchema, TypeName

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.IntDiv: "int_divide",
    exp.Mod: "modulo",
}
# SQL's grammar gives these no order among each other: `a = b = c` and `a < b LIKE c` need parentheses.
_UNORDERED = (
    *_COMPARISONS,
    exp.Like,
    exp.ILike,
    exp.Escape,
    exp.In,
    exp.Between,
    exp.NullSafeEQ,
    exp.NullSafeNEQ,
)


class Operand(NamedTuple):
    """A bound part and what it brings along where types meet: the node's type, unless it is a literal."""

    source: exp.Expr
    node: Node
    side: Side


class Binder:
    def __init__(self, schema: TableSchema, param_types: Sequence[ColumnType | None]) -> None:
        self._schema = schema
        self._param_types = param_types
        self._unnumbered = 0  # `?` seen so far
        self._folded = {column.name.lower(): i for i, column in enumerate(schema.columns)}

    def bind(self, source: exp.Expr) -> Node:
        node_type = type(source)
        if node_type in _COMPARISONS:
            return self._comparison(source)
        if node_type in _ARITHMETIC:
            return self._arithmetic(source)
        if node_type in _SYNTAX:
            return _SYNTAX[node_type](self, source)
        return functions.bind(self, source)

    def settle(self, source: exp.Expr) -> Node:
        """Bound on its own, with nothing beside it that would give a literal another type."""
        operand = self._operand(source)
        return self._to(operand, settled(operand.side))

    def typed(self, source: exp.Expr, wanted: ColumnType, what: str) -> Node:
        """Bound as an argument that must be of the type `wanted`; NULL is."""
        node = self.settle(source)
        if node.type is None:
            return Const(wanted, None)
        if node.type != wanted:
            raise TypeMismatch(f"{what} needs {wanted}, but {canonical(source)} is {node.type}")
        return node

    def as_text(self, source: exp.Expr) -> Node:
        operand = self._operand(source)
        return operand.node if operand.node.type is None else self._to(operand, TEXT)

    def meet(self, sources: Sequence[exp.Expr]) -> list[Node]:
        """All bound to the one type they have in common."""
        operands = [self._operand(source) for source in sources]
        return self._met(operands, operands)

    def _met(self, operands: Sequence[Operand], order: Sequence[Operand]) -> list[Node]:
        """Types meet one after the other, in `order`: it matters where literals are involved."""
        try:
            wanted = settled(reduce(common, (operand.side for operand in order)))
        except TypeMismatch as error:
            shown = ", ".join(canonical(operand.source) for operand in operands)
            raise TypeMismatch(f"{shown}: {error.message}") from None
        return [self._to(operand, wanted) for operand in operands]

    # --- leaves ----------------------------------------------------------------------------------------------

    def _operand(self, source: exp.Expr) -> Operand:
        bare = source.unnest()
        if isinstance(bare, exp.Literal) and bare.is_string:
            return Operand(source, Const(TEXT, bare.this), StringLiteral())
        value = _integer_literal(bare)
        if value is not None:
            literal = IntegerLiteral(value)
            return Operand(source, Const(literal.settled, value), literal)
        node = self.bind(bare)
        return Operand(source, node, node.type)

    def _to(self, operand: Operand, wanted: ColumnType | None) -> Node:
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
                raise UnsupportedSql(f"a literal of type {wanted} is not supported: {canonical(source)}")
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
            raise UnsupportedSql(
                f"the literal {text} has more than {MAX_DIGITS} digits; write it with an exponent"
            )
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
        if source.this and not source.name.isdigit():
            raise UnsupportedSql(f"named parameters are not supported: {canonical(source)}; write ? or $1")
        if source.this:
            index = int(source.name) - 1
        else:
            index = self._unnumbered
            self._unnumbered += 1
        if not 0 <= index < len(self._param_types):
            raise TypeMismatch(f"there is no parameter {index + 1}: {len(self._param_types)} were given")
        return Param(self._param_types[index], index)

    def _hex(self, source: exp.Expr) -> Node:
        try:
            return Const(BYTES, bytes.fromhex(source.name))
        except ValueError:
            raise SqlSyntaxError(f"{canonical(source)} is not an even number of hexadecimal digits") from None

    # --- operators -------------------------------------------------------------------------------------------

    def _comparison(self, source: exp.Expr) -> Node:
        left, right = self._comparable(source, source.this, source.expression)
        return Call(BOOLEAN, _COMPARISONS[type(source)], (left, right))

    def _comparable(self, source: exp.Expr, *parts: exp.Expr) -> list[Node]:
        if any(isinstance(part, (*_UNORDERED, exp.Not)) for part in parts):
            raise SqlSyntaxError(f"put parentheses around the parts of {canonical(source)}")
        return self._compared(source, [self._operand(part) for part in parts])

    def _compared(self, source: exp.Expr, operands: Sequence[Operand]) -> list[Node]:
        nodes = self._met(operands, operands)
        if nodes[0].type == JSON:
            raise UnsupportedSql(
                f"JSON values have no order and no equality; CAST to TEXT in {canonical(source)}"
            )
        return nodes

    def _arithmetic(self, source: exp.Expr) -> Node:
        name = _ARITHMETIC[type(source)]
        left, right = self._operand(source.this), self._operand(source.expression)
        for operand in (left, right):
            if operand.side is not None and not is_numeric(operand.side):
                shown = canonical(operand.source)
                raise TypeMismatch(
                    f"{canonical(source)} needs numbers, but {shown} is {settled(operand.side)}"
                )
        if left.side is None and right.side is None:
            return Const(None, None)
        try:
            types = arithmetic(name, left.side or settled(right.side), right.side or settled(left.side))
        except TypeMismatch as error:
            raise TypeMismatch(f"{canonical(source)}: {error.message}") from None
        return Call(types[2], name, (self._to(left, types[0]), self._to(right, types[1])))

    def _negate(self, source: exp.Expr) -> Node:
        value = _integer_literal(source)
        if value is not None:
            return Const(IntegerLiteral(value).settled, _within_bigint(value))
        node = self.settle(source.this)
        if node.type is None:
            return Const(None, None)
        if not is_numeric(node.type):
            raise TypeMismatch(
                f"{canonical(source)} needs a number, but {canonical(source.this)} is {node.type}"
            )
        if isinstance(node, Const) and node.value is not None and not is_integer(node.type):
            return Const(node.type, decimal_negate(node.value) if is_decimal(node.type) else -node.value)
        return Call(node.type, "negate", (node,))

    def _concatenation(self, source: exp.Expr) -> Node:
        left, right = self._operand(source.this), self._operand(source.expression)
        types = {left.node.type, right.node.type}
        if None in types:
            return Const(None, None)
        if BYTES not in types:
            return Call(TEXT, "concatenate", (self._to(left, TEXT), self._to(right, TEXT)))
        if len(types) > 1:
            raise TypeMismatch(
                f"{canonical(source)} mixes {left.node.type} and {right.node.type}: CAST one side"
            )
        return Call(BYTES, "concatenate", (left.node, right.node))

    # --- logic -----------------------------------------------------------------------------------------------

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
        return _negation(self.condition(source.this))

    def _is(self, source: exp.Expr) -> Node:
        tested = source.expression
        if isinstance(tested, exp.Null):
            return IsNull(BOOLEAN, self.settle(source.this))
        if isinstance(tested, exp.Boolean):
            return Same(BOOLEAN, self.condition(source.this), Const(BOOLEAN, bool(tested.this)))
        raise UnsupportedSql(f"IS takes NULL, TRUE or FALSE, not {canonical(tested)}")

    def _distinct(self, source: exp.Expr) -> Node:
        left, right = self._comparable(source, source.this, source.expression)
        same = Same(BOOLEAN, left, right)
        return same if isinstance(source, exp.NullSafeEQ) else _negation(same)

    def _between(self, source: exp.Expr) -> Node:
        if source.args.get("symmetric"):
            raise UnsupportedSql(f"BETWEEN SYMMETRIC is not supported: {canonical(source)}")
        value, low, high = self._comparable(source, source.this, source.args["low"], source.args["high"])
        return And(BOOLEAN, (Call(BOOLEAN, "ge", (value, low)), Call(BOOLEAN, "le", (value, high))))

    def _in(self, source: exp.Expr) -> Node:
        if source.args.get("query") or source.args.get("unnest") or source.args.get("field"):
            raise UnsupportedSql(f"IN takes a list of values, not a query: {canonical(source)}")
        if not source.expressions:
            raise UnsupportedSql(f"IN needs at least one value: {canonical(source)}")
        value, *items = self._comparable(source, source.this, *source.expressions)
        constants = [item.value for item in items if isinstance(item, Const)]
        tests: list[Node] = []
        if constants:
            present = frozenset(constant for constant in constants if constant is not None)
            tests.append(Member(BOOLEAN, value, present, None in constants))
        tests += [Call(BOOLEAN, "eq", (value, item)) for item in items if not isinstance(item, Const)]
        return tests[0] if len(tests) == 1 else Or(BOOLEAN, tuple(tests))

    def _like(self, source: exp.Expr) -> Node:
        escape = ""
        matching = source
        if isinstance(source, exp.Escape):
            matching, escape = source.this, self._escape(source)
        if not isinstance(matching, exp.Like | exp.ILike):
            raise UnsupportedSql(f"ESCAPE belongs to LIKE and ILIKE: {canonical(source)}")
        if isinstance(matching.this, (*_UNORDERED, exp.Not)) or isinstance(matching.expression, exp.Not):
            raise SqlSyntaxError(f"put parentheses around the parts of {canonical(source)}")
        name = "ilike" if isinstance(matching, exp.ILike) else "like"
        text, pattern = (
            self.typed(part, TEXT, name.upper()) for part in (matching.this, matching.expression)
        )
        self._check_pattern(pattern, escape, source)
        node = Call(BOOLEAN, name, (text, pattern), escape)
        return _negation(node) if matching.args.get("negate") else node

    def _escape(self, source: exp.Expr) -> str:
        literal = source.expression
        if isinstance(literal, exp.Literal) and literal.is_string:
            character = str(literal.this)
            if len(character) <= 1 and character.isascii() and character != "\0":
                return character
        raise UnsupportedSql(f"ESCAPE takes one ASCII character, not {canonical(literal)}")

    def _check_pattern(self, pattern: Node, escape: str, source: exp.Expr) -> None:
        if isinstance(pattern, Const):
            try:
                pieces(pattern.value or "", escape)
            except Failure as error:
                raise SqlSyntaxError(f"{canonical(source)}: {error}") from None
        elif escape:
            raise UnsupportedSql(f"ESCAPE needs a pattern that is a literal: {canonical(source)}")

    # --- conditionals ----------------------------------------------------------------------------------------

    def _case(self, source: exp.Expr) -> Node:
        branches = source.args["ifs"]
        if source.this is None:
            tests = [self.condition(branch.this) for branch in branches]
        else:
            subject = self._operand(source.this)
            tests = [self._equal(source, subject, self._operand(branch.this)) for branch in branches]
        results = [self._operand(branch.args["true"]) for branch in branches]
        default = self._operand(source.args.get("default") or exp.Null())
        *bound, otherwise = self._met(
            [*results, default], [default, *results]
        )  # DuckDB starts with the type of ELSE
        return Case(otherwise.type, tuple(zip(tests, bound, strict=True)), otherwise)

    def _equal(self, source: exp.Expr, left: Operand, right: Operand) -> Node:
        return Call(BOOLEAN, "eq", tuple(self._compared(source, [left, right])))

    def _coalesce(self, source: exp.Expr) -> Node:
        args = self.meet([source.this, *source.expressions])
        return Coalesce(args[0].type, tuple(args))

    def _nullif(self, source: exp.Expr) -> Node:
        kept, other = self._operand(source.this), self._operand(source.expression)
        result = self._to(kept, settled(kept.side))
        return Case(result.type, ((self._equal(source, kept, other), Const(result.type, None)),), result)

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
        return Cast(wanted, node, True) if attempt else self._to(Operand(source, node, node.type), wanted)

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


def _negation(node: Node) -> Node:
    return Call(BOOLEAN, "not", (node,))


_SYNTAX: dict[type[exp.Expr], Callable[[Binder, exp.Expr], Node]] = {
    exp.Paren: lambda binder, source: binder.bind(source.this),
    exp.Literal: Binder._literal,
    exp.HexString: Binder._hex,
    exp.Boolean: lambda binder, source: Const(BOOLEAN, bool(source.this)),
    exp.Null: lambda binder, source: Const(None, None),
    exp.Column: Binder._column,
    exp.Placeholder: Binder._placeholder,
    exp.Neg: Binder._negate,
    exp.DPipe: Binder._concatenation,
    exp.And: Binder._connector,
    exp.Or: Binder._connector,
    exp.Not: Binder._not,
    exp.Is: Binder._is,
    exp.NullSafeEQ: Binder._distinct,
    exp.NullSafeNEQ: Binder._distinct,
    exp.Between: Binder._between,
    exp.In: Binder._in,
    exp.Like: Binder._like,
    exp.ILike: Binder._like,
    exp.Escape: Binder._like,
    exp.Case: Binder._case,
    exp.Coalesce: Binder._coalesce,
    exp.Nullif: Binder._nullif,
    exp.Cast: Binder._cast,
    exp.TryCast: Binder._cast,
}
