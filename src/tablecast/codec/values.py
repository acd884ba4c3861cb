"""From what a caller gives to what a column holds.

`coercion(type, column)` returns a function for one column: it takes any Python value but None, and returns the value
in the column's one stored form (see `model.schema.Value`) or raises TypeMismatch naming the column. The rules are
those of a typed database, not of Python: no number from a boolean, no rounding that loses digits without being asked
(a DECIMAL is rounded to its scale, a FLOAT to 32 bits; an integer column takes 3.0 but not 3.5). Strings are read as
the type's text form, as SQL reads a literal.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from tablecast.errors import TypeMismatch
from tablecast.model.schema import ColumnType, TypeName

Coerce = Callable[[Any], Any]

INT_BITS = {TypeName.SMALLINT: 16, TypeName.INT: 32, TypeName.BIGINT: 64}
_DECIMAL_CONTEXT = Context(prec=80, rounding=ROUND_HALF_UP)
_FLOAT32 = struct.Struct("<f")
_SHOWN = 60  # characters of a wrong value that an error repeats
MAX_JSON_DEPTH = 100  # arrays and objects inside one another: every reader's parser must be able to follow
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def coercion(column_type: ColumnType, column: str) -> Coerce:
    return _COERCIONS[column_type.name](column_type, column)


def text_coercion(column_type: ColumnType, column: str) -> Coerce:
    """The same for a value as a message has it: BYTES are base64."""
    if column_type.name is not TypeName.BYTES:
        return coercion(column_type, column)

    def coerce(value: Any) -> bytes:
        try:
            return b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError):
            _refuse(column, column_type, value, "expected bytes, or base64 text")

    return coerce


def _refuse(column: str, column_type: ColumnType, value: Any, why: str = "") -> NoReturn:
    shown = _shown(value)
    reason = f": {why}" if why else ""
    raise TypeMismatch(
        f"column {column!r} is {column_type} and cannot hold {shown} ({type(value).__name__}){reason}",
        column=column,
        expected=str(column_type),
        got=type(value).__name__,
    )


def _shown(value: Any) -> str:
    """The value as an error repeats it. What a caller gives may be huge, endlessly nested or without a repr."""
    if isinstance(value, str | bytes):
        value = value[: _SHOWN + 1]
    try:
        shown = repr(value)
    except Exception:
        return "a value that cannot be shown"
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"


def _boolean(column_type: ColumnType, column: str) -> Coerce:
    words = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

    def coerce(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in words:
            return words[value.strip().lower()]
        _refuse(column, column_type, value, "expected true or false")

    return coerce


def _integer(column_type: ColumnType, column: str) -> Coerce:
    bound = 1 << (INT_BITS[column_type.name] - 1)

    def coerce(value: Any) -> int:
        given = value
        if isinstance(value, bool):
            _refuse(column, column_type, value, "a boolean is not a number")
        if isinstance(value, str):
            try:
                value = int(_ascii(value))
            except ValueError:
                _refuse(column, column_type, value, "not a whole number")
        if isinstance(value, float | Decimal):
            if not _is_finite(value) or not -bound <= value < bound:
                # Before int(): the integer of 1e1000000 would not fit in memory.
                _refuse(column, column_type, value, f"out of range {-bound}..{bound - 1}")
            if value != int(value):
                _refuse(column, column_type, value, "not a whole number")
            value = int(value)
        if not isinstance(value, int):
            _refuse(column, column_type, value)
        if not -bound <= value < bound:
            _refuse(column, column_type, given, f"out of range {-bound}..{bound - 1}")
        return int(value)

    return coerce


def _ascii(text: str) -> str:
    """Python reads any script's digits as a number; SQL does not."""
    if not text.isascii():
        raise ValueError("not ASCII")
    return text


def _is_finite(value: float | Decimal) -> bool:
    return value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)


def _floating(column_type: ColumnType, column: str) -> Coerce:
    def coerce(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            _refuse(column, column_type, value)
        try:
            number = float(_ascii(value) if isinstance(value, str) else value)
            if column_type.name is TypeName.FLOAT:
                (number,) = _FLOAT32.unpack(_FLOAT32.pack(number))
        except (ValueError, OverflowError):
            _refuse(column, column_type, value, "not a number in range")
        if not math.isfinite(number):
            # JSON has no NaN or infinity: stored, it would mean something else on every topic.
            _refuse(column, column_type, value, "NaN and infinity are not stored")
        return number

    return coerce


def decimal_bound(column_type: ColumnType) -> Decimal:
    """What the absolute value of a DECIMAL stays below."""
    return Decimal(10) ** (column_type.precision - column_type.scale)


def _decimal(column_type: ColumnType, column: str) -> Coerce:
    step = Decimal(1).scaleb(-column_type.scale)
    bound = decimal_bound(column_type)

    def coerce(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            _refuse(column, column_type, value)
        try:
            number = _decimal_number(value)
            if not number.is_finite():
                _refuse(column, column_type, value, "NaN and infinity are not stored")
            rounded = number.quantize(step, context=_DECIMAL_CONTEXT)
        except (InvalidOperation, ValueError):
            _refuse(column, column_type, value, "not a decimal number in range")
        if not rounded.copy_abs() < bound:  # abs() would round to the thread's own precision
            _refuse(column, column_type, value, f"needs more than {column_type.precision} digits")
        return rounded.copy_abs() if rounded.is_zero() else rounded  # there is no -0.00

    return coerce


def _decimal_number(value: int | float | Decimal | str) -> Decimal:
    if isinstance(value, float):
        return Decimal(float.__repr__(value))  # its shortest text is what its writer meant: 0.1 is 0.1
    return Decimal(_ascii(value) if isinstance(value, str) else value)


def _text(column_type: ColumnType, column: str) -> Coerce:
    def coerce(value: Any) -> str:
        if not isinstance(value, str):
            _refuse(column, column_type, value, "expected a string")
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(column, column_type, value, "holds a lone surrogate, which is not Unicode text")
        return str(value)

    return coerce


def _bytes(column_type: ColumnType, column: str) -> Coerce:
    def coerce(value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            _refuse(column, column_type, value, "expected bytes")
        return bytes(value)

    return coerce


def _json(column_type: ColumnType, column: str) -> Coerce:
    """Text must be JSON; anything else is encoded. Kept compact, key order and numbers as given.

    It is embedded in payloads as it is, so it must be what every reader of a message can parse: `format` checks the
    grammar, decoding that no number is out of a double's range.
    """

    def coerce(value: Any) -> str:
        try:
            given = value.encode() if isinstance(value, str) else _json_bytes(value)
            text = msgspec.json.format(given, indent=-1).decode()
            msgspec.json.decode(text)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as e:
            _refuse(column, column_type, value, f"not JSON: {e}")
        if _json_depth(text) > MAX_JSON_DEPTH:
            _refuse(column, column_type, value, f"nested more than {MAX_JSON_DEPTH} deep")
        return text

    return coerce


def _json_bytes(value: Any) -> bytes:
    encoded = msgspec.json.encode(value)
    if b"null" in encoded and not _all_finite(msgspec.to_builtins(value)):
        raise ValueError("it has no NaN and no infinity")  # msgspec writes them as null
    return encoded


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    return all(map(_all_finite, inner))


def _json_depth(text: str) -> int:
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return 0  # too few brackets to go too deep: no need to look closer
    depth = deepest = 0
    for token in _JSON_TOKEN.findall(text):
        if token in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token in ("]", "}"):
            depth -= 1
    return deepest


def _timestamp(column_type: ColumnType, column: str) -> Coerce:
    def coerce(value: Any) -> datetime:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value.strip())
            except ValueError:
                _refuse(column, column_type, value, "expected an ISO 8601 date and time")
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        if not isinstance(value, datetime):
            _refuse(column, column_type, value, "expected a datetime or ISO 8601 text")
        try:
            value = value.replace(tzinfo=UTC) if value.utcoffset() is None else value.astimezone(UTC)
        except OverflowError:
            _refuse(column, column_type, value, "out of range in UTC")
        # Through the plain constructor: subclasses and `fold` do not survive storage.
        return datetime(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, UTC
        )

    return coerce


def _date(column_type: ColumnType, column: str) -> Coerce:
    def coerce(value: Any) -> date:
        if isinstance(value, str):
            try:
                value = date.fromisoformat(value.strip())
            except ValueError:
                _refuse(column, column_type, value, "expected an ISO 8601 date")
        if isinstance(value, datetime) or not isinstance(value, date):
            _refuse(column, column_type, value, "expected a date")
        return date(value.year, value.month, value.day)  # subclasses do not survive storage

    return coerce


def _time(column_type: ColumnType, column: str) -> Coerce:
    def coerce(value: Any) -> time:
        given = value
        if isinstance(value, str):
            try:
                value = time.fromisoformat(value.strip())
            except ValueError:
                _refuse(column, column_type, value, "expected an ISO 8601 time")
        if not isinstance(value, time) or value.tzinfo is not None:
            _refuse(column, column_type, given, "expected a time without a zone")
        return time(value.hour, value.minute, value.second, value.microsecond)

    return coerce


def _uuid(column_type: ColumnType, column: str) -> Coerce:
    def coerce(value: Any) -> UUID:
        if isinstance(value, UUID):
            return UUID(int=value.int)
        try:
            if isinstance(value, str) and "_" not in value:  # int() would skip it
                return UUID(_ascii(value.strip()))
            if isinstance(value, bytes) and len(value) == 16:
                return UUID(bytes=value)
        except ValueError:
            pass
        _refuse(column, column_type, value, "expected a UUID")

    return coerce


_COERCIONS: dict[TypeName, Callable[[ColumnType, str], Coerce]] = {
    TypeName.BOOLEAN: _boolean,
    TypeName.SMALLINT: _integer,
    TypeName.INT: _integer,
    TypeName.BIGINT: _integer,
    TypeName.FLOAT: _floating,
    TypeName.DOUBLE: _floating,
    TypeName.DECIMAL: _decimal,
    TypeName.TEXT: _text,
    TypeName.BYTES: _bytes,
    TypeName.JSON: _json,
    TypeName.TIMESTAMP: _timestamp,
    TypeName.DATE: _date,
    TypeName.TIME: _time,
    TypeName.UUID: _uuid,
}
