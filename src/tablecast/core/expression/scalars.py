"""Python for every strict `Call`: what the row form runs, given values that are not NULL.

An implementation is either a template (`{0} > {1}`, written into the generated function) or a function to
call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tablecast.core.expression import numeric, temporal, textual
from tablecast.core.expression.casing import lower, upper
from tablecast.core.expression.lattice import is_decimal, is_float, is_integer
from tablecast.core.expression.like import ilike, like, matcher
from tablecast.core.expression.tree import DATE, DOUBLE, FLOAT, TIME, Call, Const, may_be_nan

Implementation = str | Callable[..., Any]

_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_NAN_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "eq": numeric.float_equal,
    "ne": lambda a, b: not numeric.float_equal(a, b),
    "lt": numeric.float_less,
    "le": lambda a, b: not numeric.float_less(b, a),
    "gt": lambda a, b: numeric.float_less(b, a),
    "ge": lambda a, b: not numeric.float_less(a, b),
}
_INT_SIGNS: dict[str, tuple[Callable[[int, int], int], str]] = {
    "add": (operator.add, "+"),
    "subtract": (operator.sub, "-"),
    "multiply": (operator.mul, "*"),
    "int_divide": (numeric.int_divide, "//"),
}
_FLOAT_OPERATIONS: dict[str, numeric.Binary] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": numeric.float_divide,
    "int_divide": numeric.float_int_divide,
    "modulo": numeric.float_modulo,
}
_FIXED: dict[str, Implementation] = {
    "not": "not {0}",
    "concatenate": "{0} + {1}",
    "lower": lower,
    "upper": upper,
    "length": "len({0})",
    "substring": textual.substring,
    "replace": textual.replace,
    "starts_with": "{0}.startswith({1})",
    "contains": "{1} in {0}",
}


def implementation(call: Call) -> Implementation:
    if call.name in _FIXED:
        return _FIXED[call.name]
    return _MAKERS[call.name](call)


def _comparison(call: Call) -> Implementation:
    if any(may_be_nan(arg) for arg in call.args):
        return _NAN_COMPARED[call.name]
    return f"{{0}} {_COMPARED[call.name]} {{1}}"


def _arithmetic(call: Call) -> Implementation:
    assert call.type is not None
    if call.type == DOUBLE:
        return _FLOAT_OPERATIONS[call.name]
    if call.type == FLOAT:
        return numeric.in_float32(_FLOAT_OPERATIONS[call.name])
    if is_decimal(call.type):
        return numeric.decimal_modulo if call.name == "modulo" else numeric.decimal_arithmetic(call.name, call.type)
    if call.name == "modulo":
        return numeric.int_modulo(call.type.name)
    operation, sign = _INT_SIGNS[call.name]
    return numeric.checked_int(operation, sign, call.type.name)


def _negate(call: Call) -> Implementation:
    assert call.type is not None
    if is_integer(call.type):
        return numeric.checked_int_unary(operator.neg, "minus", call.type.name)
    return numeric.decimal_negate if is_decimal(call.type) else "-{0}"


def _abs(call: Call) -> Implementation:
    assert call.type is not None
    if is_integer(call.type):
        return numeric.checked_int_unary(abs, "ABS of", call.type.name)
    return numeric.decimal_abs if is_decimal(call.type) else "abs({0})"


def _floor(call: Call) -> Implementation:
    return numeric.decimal_floor if is_decimal(call.type) else numeric.float_floor


def _ceil(call: Call) -> Implementation:
    return numeric.decimal_ceil if is_decimal(call.type) else numeric.float_ceil


def _round(call: Call) -> Implementation:
    assert call.type is not None
    if not is_float(call.type):
        return numeric.round_int(call.type.name)
    return numeric.round_float if call.type == DOUBLE else numeric.in_float32(numeric.round_float)


def _round_decimal(call: Call) -> Implementation:
    assert call.type is not None
    return numeric.round_decimal(call.option, call.type)


def _like(call: Call) -> Implementation:
    """A constant pattern is compiled once."""
    insensitive = call.name == "ilike"
    pattern = call.args[1]
    if not isinstance(pattern, Const):
        return ilike if insensitive else like
    if pattern.value is None:
        return like
    if insensitive:
        matches = matcher(lower(pattern.value), call.option.lower())
        return lambda text, _: matches(lower(text))
    compiled = matcher(pattern.value, call.option)
    return lambda text, _: compiled(text)


def _trim(call: Call) -> Implementation:
    method = {"trim": "strip", "ltrim": "lstrip", "rtrim": "rstrip"}[call.name]
    return f"{{0}}.{method}({{1}})" if len(call.args) == 2 else f"{{0}}.{method}({textual.SPACES!r})"


def _part(call: Call) -> Implementation:
    found = call.args[0].type
    if found == DATE:
        return temporal.part_of_date(call.option)
    return temporal.TIME_PARTS[call.option] if found == TIME else temporal.part_of_timestamp(call.option)


def _trunc(call: Call) -> Implementation:
    return temporal.STARTS[call.option]


_MAKERS: dict[str, Callable[[Call], Implementation]] = {
    **dict.fromkeys(_COMPARED, _comparison),
    **dict.fromkeys((*_INT_SIGNS, *_FLOAT_OPERATIONS), _arithmetic),
    "negate": _negate,
    "abs": _abs,
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
    "round_decimal": _round_decimal,
    **dict.fromkeys(("like", "ilike"), _like),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), _trim),
    "part": _part,
    "trunc": _trunc,
}
