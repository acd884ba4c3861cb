"""Text to a value: string literals next to a typed column, and casts of literals.

DuckDB reads many spellings ('1e3' as an INT, '2020/1/1' as a DATE, offsets it then drops). A spelling is
accepted here only if it has one obvious meaning, so a filter is refused rather than read in a way its
author did not expect.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from tablecast.core.expression.failure import Failure
from tablecast.core.expression.numeric import decimal_to_decimal, decimal_to_float32, to_int
from tablecast.errors import TypeMismatch
from tablecast.model.schema import ColumnType, TypeName

_BOOLEAN = re.compile("true|false", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,60}(\.[0-9]{1,60})?")
_DOUBLE = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")
_TIMESTAMP = re.compile(r"([0-9-]{10})(?:[ T]([0-9]{2}:[0-9]{2})(:[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|\+00(?::00)?)?)?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BYTES = re.compile(r"(?:\\x[0-9a-fA-F]{2}|[ -\[\]-~])*")

_EXPECTED = {
    TypeName.BOOLEAN: "'true' or 'false'",
    TypeName.SMALLINT: "digits, from -32768 to 32767",
    TypeName.INT: "digits, from -2147483648 to 2147483647",
    TypeName.BIGINT: "digits, from -9223372036854775808 to 9223372036854775807",
    TypeName.FLOAT: "a number like '1.5' or '1e3' in the range of a 32-bit float",
    TypeName.DOUBLE: "a number like '1.5' or '1e3'",
    TypeName.DECIMAL: "a number like '1.50' with no more digits than the type has",
    TypeName.BYTES: r"ASCII text, any other byte written as \xHH",
    TypeName.TIMESTAMP: "'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM[:SS[.ffffff]]', in UTC",
    TypeName.DATE: "'YYYY-MM-DD'",
    TypeName.TIME: "'HH:MM:SS[.ffffff]'",
    TypeName.UUID: "'xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx'",
}


def read(text: str, to: ColumnType) -> Any:
    """The value of type `to` that `text` spells, or TypeMismatch."""
    if to.name is TypeName.TEXT:
        return text
    try:
        return _READERS[to.name](text, to)
    except (Failure, ValueError):
        raise TypeMismatch(
            f"{text!r} is not a {to}: expected {_EXPECTED[to.name]}", value=text, expected=str(to)
        ) from None


def readable(to: ColumnType) -> bool:
    return to.name is TypeName.TEXT or to.name in _READERS


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return found


def _boolean(text: str, to: ColumnType) -> bool:
    return _match(_BOOLEAN, text)[0].lower() == "true"


def _integer(text: str, to: ColumnType) -> Any:
    return to_int(to.name)(int(_match(_INTEGER, text)[0]))


def _decimal(text: str, to: ColumnType) -> Any:
    return decimal_to_decimal(to)(Decimal(_match(_DECIMAL, text)[0]))


def _double(text: str, to: ColumnType) -> float:
    return _finite(float(_match(_DOUBLE, text)[0]), text)


def _finite(value: float, text: str) -> float:
    if math.isinf(value):
        raise ValueError(text)
    return value


def _float(text: str, to: ColumnType) -> float:
    return _finite(decimal_to_float32(Decimal(_match(_DOUBLE, text)[0])), text)


def _bytes(text: str, to: ColumnType) -> bytes:
    written = _match(_BYTES, text)[0]
    return re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), written.encode())


def _date(text: str, to: ColumnType) -> date:
    return date.fromisoformat(_match(_DATE, text)[0])


def _time(text: str, to: ColumnType) -> time:
    return time.fromisoformat(_match(_TIME, text)[0])


def _timestamp(text: str, to: ColumnType) -> datetime:
    day, minutes, seconds = _match(_TIMESTAMP, text).groups()
    written = f"{_match(_DATE, day)[0]} {minutes or '00:00'}{seconds or ''}"
    return datetime.fromisoformat(written).replace(tzinfo=UTC)


def _uuid(text: str, to: ColumnType) -> UUID:
    return UUID(_match(_UUID, text)[0])


_READERS: dict[TypeName, Callable[[str, ColumnType], Any]] = {
    TypeName.BOOLEAN: _boolean,
    TypeName.SMALLINT: _integer,
    TypeName.INT: _integer,
    TypeName.BIGINT: _integer,
    TypeName.FLOAT: _float,
    TypeName.DOUBLE: _double,
    TypeName.DECIMAL: _decimal,
    TypeName.BYTES: _bytes,
    TypeName.TIMESTAMP: _timestamp,
    TypeName.DATE: _date,
    TypeName.TIME: _time,
    TypeName.UUID: _uuid,
}
