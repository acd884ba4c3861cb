"""Which conversions exist, and the function for each.

Text is converted to other types only where it is a literal (`literals`): DuckDB's readers accept more
spellings than could be reproduced. A conversion that is not in this table is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tablecast.core.expression import numeric, temporal, textual
from tablecast.core.expression.failure import Failure
from tablecast.model.schema import ColumnType, TypeName

Convert = Callable[[Any], Any]
_Make = Callable[[ColumnType, ColumnType], Convert]

_INTEGERS = (TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT)
_FLOATS = (TypeName.FLOAT, TypeName.DOUBLE)


def castable(source: ColumnType, target: ColumnType) -> bool:
    return (source.name, target.name) in _CASTS


def converter(source: ColumnType, target: ColumnType) -> Convert:
    """For values that are not NULL. Raises Failure where the value does not fit."""
    return _CASTS[source.name, target.name](source, target)


def attempting(convert: Convert) -> Convert:
    """TRY_CAST: NULL instead of a failure."""

    def attempt(value: Any) -> Any:
        try:
            return convert(value)
        except Failure:
            return None

    return attempt


def _always(convert: Convert) -> _Make:
    return lambda source, target: convert


def _from_decimal(source: ColumnType, target: ColumnType) -> Convert:
    single = target.name is TypeName.FLOAT
    if source.scale == 0 and source.precision > numeric.INT64_DIGITS:
        return numeric.wide_integer_to_float32 if single else numeric.wide_integer_to_double
    return numeric.decimal_to_float32 if single else float


def _identity(value: Any) -> Any:
    return value


def _casts() -> dict[tuple[TypeName, TypeName], _Make]:
    name = TypeName
    casts: dict[tuple[TypeName, TypeName], _Make] = {
        (name.BOOLEAN, name.FLOAT): _always(float),
        (name.BOOLEAN, name.DOUBLE): _always(float),
        (name.BOOLEAN, name.DECIMAL): lambda source, target: numeric.int_to_decimal(target),
        (name.FLOAT, name.DOUBLE): _always(_identity),
        (name.DOUBLE, name.FLOAT): _always(numeric.double_to_float),
        (name.DECIMAL, name.FLOAT): _from_decimal,
        (name.DECIMAL, name.DOUBLE): _from_decimal,
        (name.DECIMAL, name.BOOLEAN): _always(bool),
        (name.DECIMAL, name.DECIMAL): lambda source, target: numeric.decimal_to_decimal(target),
        (name.TIMESTAMP, name.DATE): _always(temporal.timestamp_to_date),
        (name.TIMESTAMP, name.TIME): _always(temporal.timestamp_to_time),
        (name.DATE, name.TIMESTAMP): _always(temporal.date_to_timestamp),
        (name.BOOLEAN, name.TEXT): _always(textual.boolean_text),
        (name.FLOAT, name.TEXT): _always(textual.float_text),
        (name.DOUBLE, name.TEXT): _always(textual.double_text),
        (name.DECIMAL, name.TEXT): _always(textual.decimal_text),
        (name.BYTES, name.TEXT): _always(textual.bytes_text),
        (name.JSON, name.TEXT): _always(_identity),
        (name.TIMESTAMP, name.TEXT): _always(textual.timestamp_text),
        (name.DATE, name.TEXT): _always(textual.date_text),
        (name.TIME, name.TEXT): _always(textual.time_text),
        (name.UUID, name.TEXT): _always(str),
    }
    for integer in _INTEGERS:
        casts[name.BOOLEAN, integer] = _always(int)
        casts[integer, name.BOOLEAN] = _always(bool)
        casts[integer, name.FLOAT] = _always(numeric.int_to_float32)
        casts[integer, name.DOUBLE] = _always(float)
        casts[integer, name.DECIMAL] = lambda source, target: numeric.int_to_decimal(target)
        casts[integer, name.TEXT] = _always(str)
        casts[name.DECIMAL, integer] = lambda source, target: numeric.decimal_to_int(target.name)
        casts.update({(integer, other): lambda source, target: numeric.to_int(target.name) for other in _INTEGERS})
    for floating in _FLOATS:
        casts[floating, name.BOOLEAN] = _always(bool)
        casts[floating, name.DECIMAL] = lambda source, target: numeric.float_to_decimal(target)
        casts.update(
            {(floating, other): lambda source, target: numeric.float_to_int(target.name) for other in _INTEGERS}
        )
    return casts


_CASTS = _casts()
