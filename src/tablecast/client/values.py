"""Values in MessagePack: what it has no type for travels as an extension, so that a parameter arrives as it was sent.

    code  data
    -1    MessagePack's own timestamp          an aware datetime in UTC
     1    its text, as `12.50`                 Decimal
     2    ISO 8601 text, as it was written     a datetime without zone or in another one
     3    ISO 8601 text                        date
     4    ISO 8601 text                        time
     5    16 bytes                             UUID
     6    decimal digits                       an int beyond 64 bits

The type of a parameter decides what an expression means (`? + amount` is not the same for text), so text alone would
not do. Containers are followed: a JSON value arrives with the same values inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext

from tablecast.codec.given import given_value
from tablecast.errors import InvalidRequest, TypeMismatch

DECIMAL, DATETIME, DATE, TIME, UUID_BYTES, BIG_INT = range(1, 7)

_PLAIN = frozenset({type(None), bool, float, str, bytes})
_AS_THEY_ARE = _PLAIN | {int}  # an int that is too large is noticed when it is packed
_DECIMALS = frozenset({type(None), Decimal})
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1  # what MessagePack holds

T = TypeVar("T")


def pack(value: Any) -> bytes:
    """MessagePack of a value, with everything inside of it as it is."""
    try:
        return msgspec.msgpack.encode(portable(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise TypeMismatch(f"a value cannot be sent to the server: {e}") from e


def unpack(data: bytes | memoryview, kind: type[T]) -> T:
    """The reverse; `kind` is what the bytes are expected to hold. Raises msgspec's errors for anything else."""
    return msgspec.msgpack.decode(data, type=kind, ext_hook=from_extension)


def portable(value: Any) -> Any:
    """The value with extensions in place of what MessagePack has no type for."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    extend = _EXTENSIONS.get(kind)
    if extend is not None:
        return extend(value)
    if isinstance(value, Mapping):
        return {key: portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    for base, extend in _EXTENSIONS.items():  # a datetime is a date, and stands before it
        if isinstance(value, base):
            return extend(value)
    return value


def portable_values(values: Sequence[Any]) -> list[Any]:
    """As `portable`, for the parameters of a statement, most of which need nothing."""
    return [value if type(value) in _PLAIN else portable(value) for value in values]


def pack_rows(rows: Sequence[Any]) -> tuple[bytes, list[int]]:
    """As `_pack_rows`; NumPy's values, which are rare, are looked for when they cannot be packed."""
    try:
        return _pack_rows(rows)
    except TypeMismatch:
        return _pack_rows([given_value(row) for row in rows])


def _pack_rows(rows: Sequence[Any]) -> tuple[bytes, list[int]]:
    """As `pack`, for many rows of few types: whole columns are looked at, and values only where a column needs it.

    Also where in each row decimal numbers stand as text, which the server is to be told: of columns that have no other values.
    """
    decimals = _decimal_columns(rows)
    try:
        if decimals is not None:
            return msgspec.msgpack.encode(rows), decimals
        return msgspec.msgpack.encode([_portable_row(row) for row in rows] if _need_care(rows) else rows), []
    except OverflowError:  # an int beyond 64 bits
        return pack(rows), []
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeMismatch(f"a value cannot be sent to the server: {e}") from e


def _decimal_columns(rows: Sequence[Any]) -> list[int] | None:
    """None if there is anything but sequences of plain values and columns of decimals."""
    if not {tuple, list}.issuperset(map(type, rows)):
        return None
    try:
        columns = list(zip(*rows, strict=True))
    except ValueError:
        return None
    decimals = []
    for at, column in enumerate(columns):
        kinds = set(map(type, column))
        if not kinds <= _AS_THEY_ARE:
            if not kinds <= _DECIMALS:
                return None
            decimals.append(at)
    return decimals


def _need_care(rows: Sequence[Any]) -> bool:
    kinds: set[type] = set()
    for row in rows:
        kinds.update(map(type, row.values() if isinstance(row, dict) else row))
    return not kinds <= _AS_THEY_ARE


def _portable_row(row: Any) -> Any:
    if type(row) is tuple or type(row) is list:
        return [value if type(value) in _AS_THEY_ARE else portable(value) for value in row]
    if type(row) is dict:
        return {name: value if type(value) in _AS_THEY_ARE else portable(value) for name, value in row.items()}
    return portable(row)


def _datetime(value: datetime) -> Any:
    return value if value.tzinfo is UTC else Ext(DATETIME, value.isoformat().encode())


def _int(value: int) -> Any:
    return value if _MIN_INT <= value <= _MAX_INT else Ext(BIG_INT, str(int(value)).encode())


_EXTENSIONS: dict[type, Callable[[Any], Any]] = {
    Decimal: lambda value: Ext(DECIMAL, str(value).encode()),
    datetime: _datetime,
    date: lambda value: Ext(DATE, value.isoformat().encode()),
    time: lambda value: Ext(TIME, value.isoformat().encode()),
    UUID: lambda value: Ext(UUID_BYTES, value.bytes),
    int: _int,
}


def from_extension(code: int, data: memoryview) -> Any:
    """msgspec's `ext_hook`: the value of an extension."""
    if code == DECIMAL:  # by far the most frequent, so without looking further
        try:
            return Decimal(str(data, "ascii"))
        except (ValueError, InvalidOperation):
            pass  # said below
    read = _READERS.get(code)
    if read is None:
        raise InvalidRequest(f"MessagePack extension {code} is unknown: 1 to {max(_READERS)} are used here")
    try:
        return read(data)
    except (ValueError, InvalidOperation) as e:
        raise InvalidRequest(f"MessagePack extension {code} holds {bytes(data)[:60]!r}: {e}") from e


_READERS: dict[int, Callable[[memoryview], Any]] = {
    DECIMAL: lambda data: Decimal(str(data, "ascii")),
    DATETIME: lambda data: datetime.fromisoformat(str(data, "ascii")),
    DATE: lambda data: date.fromisoformat(str(data, "ascii")),
    TIME: lambda data: time.fromisoformat(str(data, "ascii")),
    UUID_BYTES: lambda data: UUID(bytes=bytes(data)),
    BIG_INT: lambda data: int(str(data, "ascii")),
}
