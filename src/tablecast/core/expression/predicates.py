"""Comparisons, IN, BETWEEN, LIKE and IS: what compares values and gives a BOOLEAN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from tablecast.core.expression.failure import Failure
from tablecast.core.expression.like import pieces
from tablecast.core.expression.parse import canonical
from tablecast.core.expression.tree import BOOLEAN, JSON, TEXT, And, Call, Const, IsNull, Member, Node, Or, Same
from tablecast.errors import SqlSyntaxError, UnsupportedSql

if TYPE_CHECKING:
    from tablecast.core.expression.bind import Binder, Operand

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
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
    exp.Not,
)


def require_parentheses(source: exp.Expr, parts: Sequence[exp.Expr]) -> None:
    if any(isinstance(part, _UNORDERED) for part in parts):
        raise SqlSyntaxError(f"put parentheses around the parts of {canonical(source)}")


def negation(node: Node) -> Node:
    return Call(BOOLEAN, "not", (node,))


def equal(binder: Binder, source: exp.Expr, left: Operand, right: Operand) -> Node:
    return Call(BOOLEAN, "eq", tuple(_compared(binder, source, [left, right])))


def _compared(binder: Binder, source: exp.Expr, operands: Sequence[Operand]) -> list[Node]:
    nodes = binder.met(operands, operands)
    if nodes[0].type == JSON:
        raise UnsupportedSql(f"JSON values have no order and no equality; CAST to TEXT in {canonical(source)}")
    return nodes


def _comparable(binder: Binder, source: exp.Expr, *parts: exp.Expr) -> list[Node]:
    require_parentheses(source, parts)
    return _compared(binder, source, [binder.operand(part) for part in parts])


def _comparison(binder: Binder, source: exp.Expr) -> Node:
    left, right = _comparable(binder, source, source.this, source.expression)
    return Call(BOOLEAN, _COMPARISONS[type(source)], (left, right))


def _is(binder: Binder, source: exp.Expr) -> Node:
    tested = source.expression
    if isinstance(tested, exp.Null):
        return IsNull(BOOLEAN, binder.settle(source.this))
    if isinstance(tested, exp.Boolean):
        return Same(BOOLEAN, binder.condition(source.this), Const(BOOLEAN, bool(tested.this)))
    raise UnsupportedSql(f"IS takes NULL, TRUE or FALSE, not {canonical(tested)}")


def _distinct(binder: Binder, source: exp.Expr) -> Node:
    left, right = _comparable(binder, source, source.this, source.expression)
    same = Same(BOOLEAN, left, right)
    return same if isinstance(source, exp.NullSafeEQ) else negation(same)


def _between(binder: Binder, source: exp.Expr) -> Node:
    if source.args.get("symmetric"):
        raise UnsupportedSql(f"BETWEEN SYMMETRIC is not supported: {canonical(source)}")
    value, low, high = _comparable(binder, source, source.this, source.args["low"], source.args["high"])
    return And(BOOLEAN, (Call(BOOLEAN, "ge", (value, low)), Call(BOOLEAN, "le", (value, high))))


def _in(binder: Binder, source: exp.Expr) -> Node:
    """Constants are looked up together, other items are compared one by one."""
    if not source.expressions or source.args.get("query"):
        raise UnsupportedSql(f"IN takes a list of one value or more: {canonical(source)}")
    value, *items = _comparable(binder, source, source.this, *source.expressions)
    constants = [item.value for item in items if isinstance(item, Const)]
    tests: list[Node] = []
    if constants:
        present = frozenset(constant for constant in constants if constant is not None)
        tests.append(Member(BOOLEAN, value, present, None in constants))
    tests += [Call(BOOLEAN, "eq", (value, item)) for item in items if not isinstance(item, Const)]
    return tests[0] if len(tests) == 1 else Or(BOOLEAN, tuple(tests))


# --- LIKE ----------------------------------------------------------------------------------------------------


def _like(binder: Binder, source: exp.Expr) -> Node:
    matching, escape = (source.this, _escape(source)) if isinstance(source, exp.Escape) else (source, "")
    if not isinstance(matching, exp.Like | exp.ILike):
        raise UnsupportedSql(f"ESCAPE belongs to LIKE and ILIKE: {canonical(source)}")
    require_parentheses(source, (matching.this, matching.expression))
    name = "ilike" if isinstance(matching, exp.ILike) else "like"
    text = binder.typed(matching.this, TEXT, name.upper())
    pattern = binder.typed(matching.expression, TEXT, name.upper())
    _check_pattern(pattern, escape, source)
    node = Call(BOOLEAN, name, (text, pattern), escape)
    return negation(node) if matching.args.get("negate") else node


def _escape(source: exp.Expr) -> str:
    literal = source.expression
    if isinstance(literal, exp.Literal) and literal.is_string:
        character = str(literal.this)
        if len(character) <= 1 and character.isascii() and character != "\0":
            return character
    raise UnsupportedSql(f"ESCAPE takes one ASCII character, not {canonical(literal)}")


def _check_pattern(pattern: Node, escape: str, source: exp.Expr) -> None:
    if isinstance(pattern, Const):
        try:
            pieces(pattern.value or "", escape)
        except Failure as error:
            raise SqlSyntaxError(f"{canonical(source)}: {error}") from None
    elif escape:
        raise UnsupportedSql(f"ESCAPE needs a pattern that is a literal: {canonical(source)}")


PREDICATES: dict[type[exp.Expr], Callable[[Binder, exp.Expr], Node]] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    exp.Is: _is,
    exp.NullSafeEQ: _distinct,
    exp.NullSafeNEQ: _distinct,
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _like,
}
