"""Which type an operator computes in, by DuckDB's rules.

A literal has no fixed type at first: `1` next to a SMALLINT is a SMALLINT if it fits, `'2026-01-01'` next
to a DATE is a DATE, NULL is anything. Two literals next to each other settle for INT (or BIGINT) and TEXT.
`common` finds the type in which two sides meet; it is used for comparisons, IN, BETWEEN, CASE, COALESCE,
GREATEST and LEAST. Numbers:

    SMALLINT < INT < BIGINT < DECIMAL < FLOAT < DOUBLE      (an INT is a DECIMAL(10,0), a BIGINT a DECIMAL(19,0), …)

Arithmetic on DECIMAL grows the precision instead: a sum has one digit more, a product as many as both
together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablecast.core.expression.numeric import INT64_DIGITS, MAX_DIGITS, fits
from tablecast.core.expression.tree import BIGINT, DOUBLE, FLOAT, INT, TEXT, TIMESTAMP
from tablecast.errors import TypeMismatch
from tablecast.model.schema import ColumnType, TypeName


@dataclass(frozen=True, slots=True)
class IntegerLiteral:
    value: int

    @property
    def settled(self) -> ColumnType:
        return INT if fits(self.value, TypeName.INT) else BIGINT


@dataclass(frozen=True, slots=True)
class StringLiteral:
    @property
    def settled(self) -> ColumnType:
        return TEXT


# What one side brings along; None is NULL.
Side = ColumnType | IntegerLiteral | StringLiteral | None

_INTEGERS = {TypeName.SMALLINT: 5, TypeName.INT: 10, TypeName.BIGINT: 19}  # and their digits
_WIDTH = {TypeName.SMALLINT: 0, TypeName.INT: 1, TypeName.BIGINT: 2}


def settled(side: Side) -> ColumnType | None:
    return side.settled if isinstance(side, IntegerLiteral | StringLiteral) else side


def is_integer(column_type: ColumnType | None) -> bool:
    return column_type is not None and column_type.name in _INTEGERS


def is_float(column_type: ColumnType | None) -> bool:
    return column_type is not None and column_type.name in (TypeName.FLOAT, TypeName.DOUBLE)


def is_decimal(column_type: ColumnType | None) -> bool:
    return column_type is not None and column_type.name is TypeName.DECIMAL


def is_numeric(side: Side) -> bool:
    if isinstance(side, IntegerLiteral):
        return True
    return isinstance(side, ColumnType) and (is_integer(side) or is_float(side) or is_decimal(side))


def as_decimal(column_type: ColumnType) -> ColumnType:
    """An integer type as the DECIMAL that holds all its values."""
    if is_decimal(column_type):
        return column_type
    return ColumnType(TypeName.DECIMAL, _INTEGERS[column_type.name], 0)


def common(left: Side, right: Side) -> Side:
    """The type in which both sides meet, still open where both leave it open."""
    if left is None or right is None:
        return settled(right if left is None else left)
    if isinstance(left, StringLiteral) or isinstance(right, StringLiteral):
        return settled(right if isinstance(left, StringLiteral) else left)
    if isinstance(left, IntegerLiteral) and isinstance(right, IntegerLiteral):
        return _wider(left.settled, right.settled)
    if isinstance(left, IntegerLiteral):
        left, right = right, left
    assert isinstance(left, ColumnType)
    if isinstance(right, IntegerLiteral):
        return _with_integer_literal(left, right)
    return _common_types(left, right)


def _with_integer_literal(column_type: ColumnType, literal: IntegerLiteral) -> ColumnType:
    if is_integer(column_type):
        return column_type if fits(literal.value, column_type.name) else _wider(column_type, literal.settled)
    return _common_types(column_type, literal.settled)


def _wider(left: ColumnType, right: ColumnType) -> ColumnType:
    return left if _WIDTH[left.name] >= _WIDTH[right.name] else right


def _common_types(left: ColumnType, right: ColumnType) -> ColumnType:
    if left == right:
        return left
    if is_numeric(left) and is_numeric(right):
        return _common_numbers(left, right)
    names = {left.name, right.name}
    if names == {TypeName.DATE, TypeName.TIMESTAMP}:
        return TIMESTAMP
    if TypeName.BOOLEAN in names and (is_integer(left) or is_integer(right)):
        return left if is_integer(left) else right
    raise TypeMismatch(f"{left} and {right} do not go together: CAST one side to the other's type")


def _common_numbers(left: ColumnType, right: ColumnType) -> ColumnType:
    if is_float(left) or is_float(right):
        return DOUBLE if DOUBLE in (left, right) else FLOAT
    if is_integer(left) and is_integer(right):
        return _wider(left, right)
    return _common_decimal(as_decimal(left), as_decimal(right))


def _common_decimal(left: ColumnType, right: ColumnType) -> ColumnType:
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale
    if digits > MAX_DIGITS:
        raise TypeMismatch(
            f"{left} and {right} have no DECIMAL in common: it would need {digits} digits, the most is {MAX_DIGITS}; "
            "CAST one side"
        )
    return ColumnType(TypeName.DECIMAL, digits, scale)


# --- arithmetic ---------------------------------------------------------------------------------------------


def arithmetic(name: str, left: Side, right: Side) -> tuple[ColumnType, ColumnType, ColumnType]:
    """The types of both operands and of the result of `+ - * / // %`, given that both sides are numeric."""
    one, other = settled(left), settled(right)
    assert one is not None and other is not None
    if is_float(one) or is_float(other):
        meeting = _common_numbers(one, other)
        return meeting, meeting, meeting
    exact = is_decimal(one) or is_decimal(other)
    if name == "divide" or (name == "int_divide" and exact):
        return DOUBLE, DOUBLE, DOUBLE
    if exact and name != "modulo":
        return (_product if name == "multiply" else _sum)(as_decimal(one), as_decimal(other))
    meeting = _concrete(common(left, right))
    return meeting, meeting, meeting


def _concrete(side: Side) -> ColumnType:
    found = settled(side)
    assert found is not None
    return found


def _sum(left: ColumnType, right: ColumnType) -> tuple[ColumnType, ColumnType, ColumnType]:
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
    result = ColumnType(TypeName.DECIMAL, min(digits, MAX_DIGITS), scale)
    return result, result, result


def _product(left: ColumnType, right: ColumnType) -> tuple[ColumnType, ColumnType, ColumnType]:
    scale, digits = left.scale + right.scale, left.precision + right.precision
    if scale > MAX_DIGITS:
        raise TypeMismatch(
            f"the product of {left} and {right} would need {scale} digits after the point, the most is {MAX_DIGITS}; "
            "CAST one side"
        )
    # A product of two that fit 64 bits stays there.
    narrow = max(left.precision, right.precision) <= INT64_DIGITS and scale < INT64_DIGITS
    result = ColumnType(TypeName.DECIMAL, min(digits, INT64_DIGITS if narrow else MAX_DIGITS), scale)
    return left, right, result
