"""Arrow kernels that compute exactly what the row form does; None where there is none.

Overflow and division by zero are left to the checked kernels, which refuse; the caller then falls back to
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablecast.codec.arrow_types import arrow_type
from tablecast.core.expression.lattice import is_float, is_integer
from tablecast.core.expression.like import re2
from tablecast.core.expression.tree import (
    BIGINT,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    TIMESTAMP,
    Call,
    Cast,
    Const,
    may_be_nan,
)

Kernel = Callable[..., Any]

_COMPARED: dict[str, Kernel] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
_INTEGER: dict[str, Kernel] = {
    "add": pc.add_checked,
    "subtract": pc.subtract_checked,
    "multiply": pc.multiply_checked,
    "int_divide": pc.divide_checked,
    "negate": pc.negate_checked,
    "abs": pc.abs_checked,
}
_FLOATING: dict[str, Kernel] = {
    "add": pc.add,
    "subtract": pc.subtract,
    "multiply": pc.multiply,
    "divide": pc.divide,
    "int_divide": pc.divide_checked,
    "negate": pc.negate,
    "abs": pc.abs,
    "floor": pc.floor,
    "ceil": pc.ceil,
}


def kernel(node: Call | Cast) -> Kernel | None:
    if isinstance(node, Cast):
        return _cast(node)
    if node.name in _COMPARED:
        return _nan_comparison(node.name) if any(may_be_nan(arg) for arg in node.args) else _COMPARED[node.name]
    if is_integer(node.type) and all(is_integer(arg.type) for arg in node.args):
        return _modulo if node.name == "modulo" else _INTEGER.get(node.name)
    if is_float(node.type):
        return _FLOATING.get(node.name)
    return _KERNELS[node.name](node) if node.name in _KERNELS else None


def _modulo(a: Any, b: Any) -> Any:
    return pc.subtract_checked(a, pc.multiply_checked(pc.divide_checked(a, b), b))


def _nan_comparison(name: str) -> Kernel:
    """NaN equals itself and is above all else; the plain kernels find it different from everything."""

    def equal(a: Any, b: Any) -> Any:
        return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))

    def less(a: Any, b: Any) -> Any:
        return pc.or_(pc.less(a, b), pc.and_(pc.is_nan(b), pc.invert(pc.is_nan(a))))

    return {
        "eq": equal,
        "ne": lambda a, b: pc.invert(equal(a, b)),
        "lt": less,
        "le": lambda a, b: pc.invert(less(b, a)),
        "gt": lambda a, b: less(b, a),
        "ge": lambda a, b: pc.invert(less(a, b)),
    }[name]


def _cast(node: Cast) -> Kernel | None:
    assert node.type is not None and node.arg.type is not None
    source, target = node.arg.type, node.type
    exact = (
        (is_integer(source) and is_integer(target))
        or (is_integer(source) and source != BIGINT and target == DOUBLE)
        or (source, target) in ((FLOAT, DOUBLE), (DATE, TIMESTAMP))
    )
    if node.attempt or not exact:
        return None
    wanted = arrow_type(target)
    return lambda value: pc.cast(value, wanted)


def _like(call: Call) -> Kernel | None:
    pattern = call.args[1]
    if call.name == "ilike" or not isinstance(pattern, Const) or pattern.value is None:
        return None
    expression = re2(pattern.value, call.option)
    return lambda text, _: pc.match_substring_regex(text, expression)


def _literal_part(compute: Kernel) -> Callable[[Call], Kernel | None]:
    """A kernel that takes its second argument as an option."""

    def made(call: Call) -> Kernel | None:
        part = call.args[1]
        if not isinstance(part, Const) or part.value is None:
            return None
        return lambda text, _: compute(text, part.value)

    return made


def _length(call: Call) -> Kernel:
    return lambda text: pc.cast(pc.utf8_length(text), pa.int64())


def _concatenate(call: Call) -> Kernel:
    between = pa.scalar(b"" if call.type == BYTES else "", arrow_type(call.type or BYTES))
    return lambda left, right: pc.binary_join_element_wise(left, right, between)


_KERNELS: dict[str, Callable[[Call], Kernel | None]] = {
    "not": lambda call: pc.invert,
    "like": _like,
    "ilike": _like,
    "length": _length,
    "concatenate": _concatenate,
    "starts_with": _literal_part(lambda text, part: pc.starts_with(text, pattern=part)),
    "contains": _literal_part(lambda text, part: pc.match_substring(text, pattern=part)),
}
