"""What a comparison with a key column means to storage.

DuckDB compares values of different types by its own rules: '5' with a BIGINT as numbers, 5.5 with a BIGINT
as decimals, a TEXT with 5 by reading the text as a number. Storage compares keys of one type. A reader
turns a value into the key that selects the same rows, or says UNUSABLE, and then DuckDB decides: never a
guess.

    SMALLINT, INT, BIGINT   an int in range, or its shortest decimal text FLOAT, DOUBLE           a finite
    float or int that the type holds exactly DECIMAL(p,s)            an int or Decimal with no more than s
    decimals and p - s digits before the point TEXT, BYTES, BOOLEAN    str, bytes, bool TIMESTAMP
    a datetime (naive means UTC), or text as 2024-05-01 or 2024-05-01 12:30:00[.123456] DATE
    a date, or text as 2024-05-01 TIME                    a time without zone UUID                    a
    UUID, or its lower-case text with hyphens

Only exact Python types count: True is not 1, and a numpy number is DuckDB's business. The first and last
years of the calendar are left to DuckDB too, which reads some of their dates as infinity. JSON has no order
of its own.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sqlglot import exp

from tablecast.model.schema import ColumnType, TypeName


class Unusable(enum.Enum):
    UNUSABLE = enum.auto()


UNUSABLE: Final = Unusable.UNUSABLE

Reader = Callable[[Any], Any]

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,18})\Z", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?\Z", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}\Z")
_FLOAT32 = struct.Struct("<f")
_EXACT_INTEGERS = {TypeName.FLOAT: 1 << 24, TypeName.DOUBLE: 1 << 53}
_CALENDAR = range(2, 9999)


def reader(column_type: ColumnType) -> Reader | None:
    """For values other than None; None if no comparison with such a column can be left to storage."""
    make = _READERS.get(column_type.name)
    return make(column_type) if make else None


# --- one per type ------------------------------------------------------------------------------------------


def _integers(column_type: ColumnType) -> Reader:
    bound = 1 << ({TypeName.SMALLINT: 16, TypeName.INT: 32, TypeName.BIGINT: 64}[column_type.name] - 1)

    def read(value: Any) -> Any:
        if type(value) is str and _INTEGER.match(value):
            value = int(value)
        return value if type(value) is int and -bound <= value < bound else UNUSABLE

    return read


def _floats(column_type: ColumnType) -> Reader:
    exact = _EXACT_INTEGERS[column_type.name]
    narrow = column_type.name is TypeName.FLOAT

    def read(value: Any) -> Any:
        if type(value) is int:
            return float(value) if -exact <= value <= exact else UNUSABLE
        if type(value) is not float or value - value != 0.0:  # NaN and the infinities
            return UNUSABLE
        return value if not narrow or _fits_float32(value) else UNUSABLE

    return read


def _fits_float32(value: float) -> bool:
    try:
        return bool(_FLOAT32.unpack(_FLOAT32.pack(value))[0] == value)
    except OverflowError:
        return False


def _decimals(column_type: ColumnType) -> Reader:
    scale, bound = column_type.scale, 10 ** (column_type.precision - column_type.scale)
    # An integer is compared as DECIMAL(19,0); beyond 38 digits in all DuckDB compares as DOUBLE.
    takes_int = max(column_type.precision - scale, 19) + scale <= 38

    def read(value: Any) -> Any:
        if type(value) is int:
            return Decimal(value) if takes_int and -bound < value < bound else UNUSABLE
        if type(value) is not Decimal or not value.is_finite():
            return UNUSABLE
        return value if -int(value.as_tuple().exponent) <= scale and abs(value) < bound else UNUSABLE

    return read


def _exactly(kind: type) -> Callable[[ColumnType], Reader]:
    def make(_: ColumnType) -> Reader:
        return lambda value: value if type(value) is kind else UNUSABLE

    return make


def _text(value: Any) -> Any:
    if type(value) is not str:
        return UNUSABLE
    return value if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value) else UNUSABLE


def _instant(value: Any) -> Any:
    if type(value) is str and _TIMESTAMP.match(value):
        value = _parsed(datetime, value)
    if type(value) is not datetime or value.year not in _CALENDAR:
        return UNUSABLE
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _day(value: Any) -> Any:
    if type(value) is str and _DATE.match(value):
        value = _parsed(date, value)
    return value if type(value) is date and value.year in _CALENDAR else UNUSABLE


def _parsed(kind: type[date], text: str) -> date | Unusable:
    try:
        return kind.fromisoformat(text)
    except ValueError:
        return UNUSABLE


def _time(value: Any) -> Any:
    return value if type(value) is time and value.tzinfo is None else UNUSABLE


def _uuid(value: Any) -> Any:
    if type(value) is str and _UUID.match(value):
        return UUID(value)
    return value if type(value) is UUID else UNUSABLE


_READERS: dict[TypeName, Callable[[ColumnType], Reader]] = {
    TypeName.SMALLINT: _integers,
    TypeName.INT: _integers,
    TypeName.BIGINT: _integers,
    TypeName.FLOAT: _floats,
    TypeName.DOUBLE: _floats,
    TypeName.DECIMAL: _decimals,
    TypeName.BOOLEAN: _exactly(bool),
    TypeName.BYTES: _exactly(bytes),
    TypeName.TEXT: lambda _: _text,
    TypeName.TIMESTAMP: lambda _: _instant,
    TypeName.DATE: lambda _: _day,
    TypeName.TIME: lambda _: _time,
    TypeName.UUID: lambda _: _uuid,
}


# --- literals ----------------------------------------------------------------------------------------------

_TYPED_LITERALS = {
    exp.DType.TIMESTAMP: TypeName.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TypeName.TIMESTAMP,
    exp.DType.DATE: TypeName.DATE,
    exp.DType.UUID: TypeName.UUID,
}


def literal(node: exp.Expr, column_type: ColumnType) -> Any:
    """The Python value of a literal as DuckDB types it (1.5 is a Decimal, 1e3 a float), or UNUSABLE."""
    match node:
        case exp.Null():
            return None
        case exp.Boolean():
            return bool(node.this)
        case exp.Literal(is_string=True):
            return node.this
        case exp.Literal():
            return _number(node.this)
        case exp.Neg(this=exp.Literal(is_string=False) as number):
            value = _number(number.this)
            return UNUSABLE if value is UNUSABLE else -value
        case exp.Cast(this=exp.Literal(is_string=True) as text):
            wanted = _TYPED_LITERALS.get(node.to.this)
            return text.this if wanted is column_type.name else UNUSABLE
    return UNUSABLE


def _number(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    if re.fullmatch(r"\d*\.\d+|\d+\.", text, re.ASCII):
        return Decimal(text)
    return float(text) if re.fullmatch(r"[\d.]+[eE][-+]?\d+", text, re.ASCII) else UNUSABLE
