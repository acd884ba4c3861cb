"""Numbers as DuckDB computes them.

Python and DuckDB differ in every corner that matters here, so each corner has a function:

- integers have a width, and leaving it is an error;
- `//` and `%` on integers truncate towards zero, and dividing by zero is an error;
- floats follow IEEE 754 (1e0/0 is infinite, 0e0/0 is NaN), NaN equals itself and is above all other values;
- FLOAT arithmetic rounds to 32 bits after every step (computing in 64 bits first gives the same bits: 53 ≥
  2·24 + 2);
- a DECIMAL has at most 38 digits and leaving its precision is an error; rounding is half away from zero;
- DECIMAL to floating point rounds once, except that integers of more than 64 bits are converted in halves;
- floating point to an integer rounds half to even, to a DECIMAL half away from zero after scaling.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Any

from tablecast.core.expression.failure import Failure
from tablecast.model.schema import ColumnType, TypeName

INT_BITS = {TypeName.SMALLINT: 16, TypeName.INT: 32, TypeName.BIGINT: 64}
MAX_DIGITS = 38
INT64_DIGITS = 18  # a DECIMAL of no more digits is a 64-bit integer inside

# Wide enough for the exact product of two 38-digit numbers and for any float's integer part.
_EXACT = Context(prec=400, rounding=ROUND_HALF_UP)
_UNIT = [Decimal(1).scaleb(-scale) for scale in range(MAX_DIGITS + 1)]
_LIMIT = [10**digits for digits in range(MAX_DIGITS + 1)]
_FLOAT32 = struct.Struct("<f")
_DOUBLE, _DOUBLE_BITS = struct.Struct("<d"), struct.Struct("<Q")

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


# --- integers -----------------------------------------------------------------------------------------------


def fits(value: int, name: TypeName) -> bool:
    bound: int = 1 << (INT_BITS[name] - 1)
    return -bound <= value < bound


def checked_int(operation: Binary, sign: str, name: TypeName) -> Binary:
    high = (1 << (INT_BITS[name] - 1)) - 1
    low = -high - 1

    def compute(a: int, b: int) -> int:
        result: int = operation(a, b)
        if low <= result <= high:
            return result
        raise Failure(f"{a} {sign} {b} overflows {name}")

    return compute


def int_divide(a: int, b: int) -> int:
    if b == 0:
        raise Failure(f"division by zero: {a} // 0")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def int_modulo(name: TypeName) -> Binary:
    low = -(1 << (INT_BITS[name] - 1))

    def compute(a: int, b: int) -> int:
        if b == 0:
            raise Failure(f"division by zero: {a} % 0")
        if b == -1 and a == low:
            raise Failure(f"{a} % -1 overflows {name}")
        return a - int_divide(a, b) * b

    return compute


def checked_int_unary(operation: Unary, what: str, name: TypeName) -> Unary:
    def compute(a: int) -> int:
        result: int = operation(a)
        if fits(result, name):
            return result
        raise Failure(f"{what} {a} overflows {name}")

    return compute


def round_int(name: TypeName) -> Binary:
    def compute(a: int, digits: int) -> int:
        if digits >= 0:
            return a
        if digits < -MAX_DIGITS:
            return 0
        unit: int = 10**-digits
        rounded = (abs(a) + unit // 2) // unit * unit
        result = rounded if a >= 0 else -rounded
        if fits(result, name):
            return result
        raise Failure(f"ROUND({a}, {digits}) overflows {name}")

    return compute


# --- floating point -----------------------------------------------------------------------------------------


def float32(value: float) -> float:
    try:
        rounded: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def float_divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def float_int_divide(a: float, b: float) -> float:
    """`//` does not truncate floats; unlike `/` it refuses to divide by zero."""
    if b == 0:
        raise Failure(f"division by zero: {a} // 0")
    return float_divide(a, b)


def float_modulo(a: float, b: float) -> float:
    if b == 0 or math.isinf(a):
        return math.nan
    return math.fmod(a, b)


def in_float32(operation: Binary) -> Binary:
    def compute(a: float, b: float) -> float:
        return float32(operation(a, b))

    return compute


def round_half_away(value: float) -> float:
    """C's round(): exact, where adding 0.5 would not be."""
    if math.isnan(value) or abs(value) >= 2**52:
        return value
    whole = math.trunc(value)
    if abs(value - whole) >= 0.5:
        whole += 1 if value > 0 else -1
    return math.copysign(float(whole), value)


def float_floor(value: float) -> float:
    return math.copysign(float(math.floor(value)), value) if math.isfinite(value) else value


def float_ceil(value: float) -> float:
    return math.copysign(float(math.ceil(value)), value) if math.isfinite(value) else value


def _power_of_ten(digits: int) -> float:
    try:
        return math.pow(10.0, digits)
    except OverflowError:
        return math.inf


def round_float(value: float, digits: int) -> float:
    unit = _power_of_ten(abs(digits))
    if digits >= 0:
        rounded = float_divide(round_half_away(value * unit), unit)
        return rounded if math.isfinite(rounded) else value
    rounded = round_half_away(value / unit) * unit
    if math.isnan(rounded):
        return 0.0
    return rounded if math.isfinite(rounded) else value


def float_equal(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def float_less(a: float, b: float) -> bool:
    return a < b or (b != b and a == a)


def float_order(value: float) -> tuple[bool, float]:
    """A sort key with NaN above everything and equal to itself."""
    return (True, 0.0) if value != value else (False, value)


# --- DECIMAL ------------------------------------------------------------------------------------------------


def unscaled(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale, _EXACT))


def rescaled(value: Decimal, scale: int) -> Decimal:
    """Rounded to `scale`, and without the negative zero that DECIMAL does not have."""
    return _EXACT.plus(_EXACT.quantize(value, _UNIT[scale]))


def checked_decimal(value: Decimal, to: ColumnType) -> Decimal:
    if abs(unscaled(value, to.scale)) < _LIMIT[to.precision]:
        return value
    raise Failure(f"{value} has more digits than {to}")


def decimal_arithmetic(name: str, to: ColumnType) -> Binary:
    operation: Binary = {"add": _EXACT.add, "subtract": _EXACT.subtract, "multiply": _EXACT.multiply}[name]

    def compute(a: Decimal, b: Decimal) -> Decimal:
        return checked_decimal(_EXACT.plus(operation(a, b)), to)

    return compute


def decimal_modulo(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise Failure(f"division by zero: {a} % {b}")
    return _EXACT.plus(_EXACT.remainder(a, b))


decimal_negate: Unary = _EXACT.minus
decimal_abs: Unary = _EXACT.abs


def decimal_floor(value: Decimal) -> Decimal:
    return _EXACT.plus(value.quantize(_UNIT[0], ROUND_FLOOR, _EXACT))


def decimal_ceil(value: Decimal) -> Decimal:
    return _EXACT.plus(value.quantize(_UNIT[0], ROUND_CEILING, _EXACT))


def round_decimal(digits: int, to: ColumnType) -> Unary:
    """`to` is the type the binder gave the result: scale `digits`, or 0 for digits left of the point."""
    if digits >= 0:
        return lambda value: rescaled(value, to.scale)
    unit = Decimal(1).scaleb(-digits)

    def compute(value: Decimal) -> Decimal:
        return checked_decimal(rescaled(_EXACT.quantize(value, unit), 0), to)

    return compute


# --- conversions --------------------------------------------------------------------------------------------


def to_int(name: TypeName) -> Unary:
    def convert(value: int) -> int:
        if fits(value, name):
            return int(value)
        raise Failure(f"{value} does not fit {name}")

    return convert


def float_to_int(name: TypeName) -> Unary:
    def convert(value: float) -> int:
        if math.isfinite(value) and fits(rounded := round(value), name):
            return rounded
        raise Failure(f"{value} does not fit {name}")

    return convert


def decimal_to_int(name: TypeName) -> Unary:
    def convert(value: Decimal) -> int:
        rounded = int(_EXACT.quantize(value, _UNIT[0]))
        if fits(rounded, name):
            return rounded
        raise Failure(f"{value} does not fit {name}")

    return convert


def int_to_float32(value: int) -> float:
    """Rounded once: going through a 64-bit float would round large integers twice."""
    excess = max(value.bit_length() - 24, 0)
    if excess:
        # Keep 25 significant bits and a sticky bit: enough for the one rounding that follows.
        sticky = bool(value & ((1 << max(excess - 2, 0)) - 1))
        value = ((value >> max(excess - 2, 0)) | sticky) << max(excess - 2, 0)
    return float32(float(value))


def double_to_float(value: float) -> float:
    narrowed = float32(value)
    if math.isinf(narrowed) and not math.isinf(value):
        raise Failure(f"{value} does not fit FLOAT")
    return narrowed


def decimal_to_float32(value: Decimal) -> float:
    """Rounded once: the 64-bit float in between is rounded to odd, which the second rounding cannot mistake."""
    between = float(value)
    exact = Decimal(between)
    if exact != value and not _DOUBLE_BITS.unpack(_DOUBLE.pack(between))[0] & 1:
        between = math.nextafter(between, math.inf if value > exact else -math.inf)
    return float32(between)


def wide_integer_to_double(value: Decimal) -> float:
    """A DECIMAL(p,0) of more than 64 bits is converted in halves, each rounded."""
    high, low = divmod(int(value), 1 << 64)
    if high == -1:
        return -float((1 << 64) - 1 - low) - 1.0
    return float(low) + float(high) * 2.0**64


def wide_integer_to_float32(value: Decimal) -> float:
    return float32(wide_integer_to_double(value))


def int_to_decimal(to: ColumnType) -> Unary:
    def convert(value: int) -> Decimal:
        if abs(value) < _LIMIT[to.precision - to.scale]:
            return rescaled(Decimal(value), to.scale)
        raise Failure(f"{value} does not fit {to}")

    return convert


def float_to_decimal(to: ColumnType) -> Unary:
    factor = float(10**to.scale)

    def convert(value: float) -> Decimal:
        scaled = round_half_away(value * factor)
        if abs(scaled) < float(_LIMIT[to.precision]):
            return Decimal(int(scaled)).scaleb(-to.scale, _EXACT)
        raise Failure(f"{value} does not fit {to}")

    return convert


def decimal_to_decimal(to: ColumnType) -> Unary:
    def convert(value: Decimal) -> Decimal:
        result = rescaled(value, to.scale)
        if abs(unscaled(result, to.scale)) < _LIMIT[to.precision]:
            return result
        raise Failure(f"{value} does not fit {to}")

    return convert
