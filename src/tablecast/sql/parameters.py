"""Parameters: the types their values have for the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from tablecast.errors import InvalidRequest, TypeMismatch
from tablecast.model.schema import ColumnType, TypeName

_INT_MAX, _BIGINT_MAX = 2**31, 2**63
_MAX_PRECISION = 38

_SIMPLE: dict[type, TypeName] = {
    bool: TypeName.BOOLEAN,
    float: TypeName.DOUBLE,
    str: TypeName.TEXT,
    bytes: TypeName.BYTES,
    datetime: TypeName.TIMESTAMP,
    date: TypeName.DATE,
    time: TypeName.TIME,
    UUID: TypeName.UUID,
}


def parameter_type(value: Any) -> ColumnType | None:
    """The type of a Python value; None for None."""
    if value is None:
        return None
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return ColumnType(simple)
    if type(value) is int:
        if -_INT_MAX <= value < _INT_MAX:
            return ColumnType(TypeName.INT)
        if -_BIGINT_MAX <= value < _BIGINT_MAX:
            return ColumnType(TypeName.BIGINT)
        raise TypeMismatch(f"parameter {value} is out of the range of BIGINT")
    if type(value) is Decimal and value.is_finite():
        _, digits, exponent = value.as_tuple()
        scale = max(0, -int(exponent))
        precision = max(len(digits) + max(0, int(exponent)), scale, 1)
        if precision <= _MAX_PRECISION:
            return ColumnType(TypeName.DECIMAL, precision, scale)
    raise TypeMismatch(f"a parameter of type {type(value).__name__} ({value!r}) has no SQL type here")


def check_count(given: Sequence[Any], taken: int) -> None:
    if len(given) != taken:
        raise InvalidRequest(f"the statement takes {taken} parameter(s), {len(given)} given", taken=taken)
