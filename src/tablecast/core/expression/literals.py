"""Text to a value: string literals next to a typed column, and casts of literals.

DuckDB reads many spellings. What is accepted here it reads as the same value, but for one: it leaves the offset of a
TIMESTAMP out, here it counts. What is not accepted here ('2020/1/1' as a DATE, '1_000' as an INT) is refused in a SELECT
too, whose literals are read by these readers (`sql.query_casts`): one text, one meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from uuid import UUID

from tablecast.core.expression.failure import Failure
from tablecast.core.expression.numeric import decimal_to_decimal, decimal_to_float32, to_int
from tablecast.errors import TypeMismatch
from tablecast.model.schema import ColumnType, TypeName

_TRUE, _FALSE = frozenset(("true", "t", "yes", "y", "1")), frozenset(("false", "f", "no", "n", "0"))
_EXACT = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})")  # DuckDB's reading of exponents is not
_NUMBER = re.compile(rf"{_EXACT.pattern}(?:[eE][+-]?[0-9]{{1,4}})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?")
_TIMESTAMP = re.compile(
    rf"(?P<day>{_DATE.pattern})(?:[ T](?P<time>{_TIME.pattern})(?P<zone>Z| ?UTC|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?)?"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")
_BYTES = re.compile(r"(?:\\x[0-9a-fA-F]{2}|[ -\[\]-~])*")

_EXPECTED = {
    TypeName.BOOLEAN: "'true' or 'false', or their short forms",
    TypeName.SMALLINT: "a number from -32768 to 32767",
    TypeName.INT: "a number from -2147483648 to 2147483647",
    TypeName.BIGINT: "a number from -9223372036854775808 to 9223372036854775807",
    TypeName.FLOAT: "a number like '1.5' or '1e3' in the range of a 32-bit float",
    TypeName.DOUBLE: "a number like '1.5' or '1e3'",
    TypeName.DECIMAL: "a number like '1.50' with no more digits than the type has",
    TypeName.BYTES: r"ASCII text, any other byte written as \xHH",
    TypeName.TIMESTAMP: "'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM[:SS[.ffffff]]', in UTC or with an offset like +02:00",
    TypeName.DATE: "'YYYY-MM-DD'",
    TypeName.TIME: "'HH:MM[:SS[.ffffff]]'",
    TypeName.UUID: "'xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx'",
}


def read(text: str, to: ColumnType) -> Any:
    """The value of type `to` that `text` spells, or TypeMismatch."""
    if to.name is TypeName.TEXT:
        return text
    try:
        return _READERS[to.name](text, to)
    except (Failure, ValueError, OverflowError):
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
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def _integer(text: str, to: ColumnType) -> Any:
    """Rounded, half away from zero."""
    return to_int(to.name)(int(Decimal(_match(_EXACT, text)[0]).to_integral_value(ROUND_HALF_UP)))


def _decimal(text: str, to: ColumnType) -> Any:
    return decimal_to_decimal(to)(Decimal(_match(_EXACT, text)[0]))


def _double(text: str, to: ColumnType) -> float:
    return _finite(float(_match(_NUMBER, text)[0]), text)


def _finite(value: float, text: str) -> float:
    if math.isinf(value):
        raise ValueError(text)
    return value


def _float(text: str, to: ColumnType) -> float:
    return _finite(decimal_to_float32(Decimal(_match(_NUMBER, text)[0])), text)


def _bytes(text: str, to: ColumnType) -> bytes:
    written = _match(_BYTES, text)[0]
    return re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), written.encode())


def _date(text: str, to: ColumnType) -> date:
    year, month, day = _match(_DATE, text).groups()
    return date(int(year), int(month), int(day))


def _time(text: str, to: ColumnType) -> time:
    hour, minute, second, fraction = _match(_TIME, text).groups()
    return time(int(hour), int(minute), int(second or 0), int((fraction or "").ljust(6, "0")))


def _timestamp(text: str, to: ColumnType) -> datetime:
    found = _match(_TIMESTAMP, text)
    clock = time() if found["time"] is None else _time(found["time"], to)
    local = datetime.combine(_date(found["day"], to), clock, UTC)
    return local - _offset(found["zone"])


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone[0] not in "+-":
        return timedelta()
    ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:].lstrip(":") or 0))
    return -ahead if zone[0] == "-" else ahead


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
