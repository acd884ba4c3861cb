"""A given Arrow column as the table's column: codec.values for many rows at once.

Where Arrow's cast and the coercion of single values agree whenever the cast succeeds (wider integers, finer times,
decimals that need no rounding, text of another layout), the column is cast. Everything else, and every cast that fails,
goes through the coercion value by value: it alone decides what a column takes. A column that came in the right type is
still checked for what Arrow can hold and a column cannot: NaN, years beyond 9999, bytes that are not UTF-8.

The result says which rows the column refuses; why is asked of the row path, which has the words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.codec.arrow_types import arrow_type
from tablecast.codec.values import coercion
from tablecast.core.columns import fixed_values, starts_and_bytes
from tablecast.errors import TypeMismatch
from tablecast.model.schema import Column, ColumnType, TypeName

Refused = Any  # a boolean array with True for each row that is refused, or None: none is

_TIMESTAMPS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999
_DATES = (-719_162, 2_932_896)
_UNREADABLE = (ValueError, OverflowError, TypeError, pa.ArrowException)
_UUID_HYPHENS = [8, 13, 18, 23]
_UUID_DIGITS = [i for i in range(36) if i not in _UUID_HYPHENS]
_NOT_HEX = 0xFF
_NIBBLES = np.full(256, _NOT_HEX, np.uint8)
for _digit in "0123456789abcdefABCDEF":
    _NIBBLES[ord(_digit)] = int(_digit, 16)


def cast_column(column: Column, given: pa.Array) -> tuple[pa.Array, Refused]:
    """The column's array, and which rows it refuses (whatever stands there then); NULL is not judged here."""
    if pa.types.is_dictionary(given.type):
        given = given.dictionary_decode()
    if given.null_count == len(given):
        return nulls(column.type, len(given)), None
    if column.type.name is TypeName.JSON:
        return _by_value(column, given)
    array = given if given.type == arrow_type(column.type) else _cast(column.type, given)
    if array is None or not _is_sound(array):
        return _by_value(column, given)
    return array, _refused(column.type.name, array)


def nulls(column_type: ColumnType, rows: int) -> pa.Array:
    return _finished(column_type, pa.nulls(rows, storage_type(column_type)))


def typed_array(column_type: ColumnType, values: list[Any]) -> pa.Array:
    """Values in the column's stored form (`model.schema.Value`) as its Arrow array."""
    if column_type.name is TypeName.UUID:
        values = [None if value is None else value.bytes for value in values]
    return _finished(column_type, pa.array(values, storage_type(column_type)))


def storage_type(column_type: ColumnType) -> pa.DataType:
    return pa.binary(16) if column_type.name is TypeName.UUID else arrow_type(column_type)


def _finished(column_type: ColumnType, stored: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), stored) if column_type.name is TypeName.UUID else stored


# --- casts that mean the same ------------------------------------------------------------------------------------


def _cast(column_type: ColumnType, given: pa.Array) -> pa.Array | None:
    """None where Arrow's cast would mean something else, or fails."""
    try:
        return _agreeing_cast(column_type, given)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _agreeing_cast(column_type: ColumnType, given: pa.Array) -> pa.Array | None:
    kind, wanted, types = given.type, arrow_type(column_type), pa.types
    match column_type.name:
        case TypeName.SMALLINT | TypeName.INT | TypeName.BIGINT if types.is_integer(kind):
            return given.cast(wanted)
        case TypeName.DOUBLE if types.is_floating(kind):
            return given.cast(wanted)
        case TypeName.DECIMAL if types.is_decimal(kind):
            return given.cast(wanted)
        case TypeName.DECIMAL if types.is_integer(kind):
            return given.cast(pa.decimal128(38, column_type.scale)).cast(wanted)
        case TypeName.TEXT if types.is_large_string(kind) or types.is_string_view(kind):
            return given.cast(wanted)
        case TypeName.BYTES if _is_binary(kind):
            return given.cast(wanted)
        case TypeName.TIMESTAMP if types.is_timestamp(kind):
            return given.cast(wanted)
        case TypeName.TIMESTAMP if types.is_date32(kind):
            return given.cast(pa.timestamp("us")).cast(wanted)
        case TypeName.TIME if types.is_time(kind):
            return given.cast(wanted)
        case TypeName.UUID if types.is_string(kind):
            return _uuids(given)
        case TypeName.UUID if kind == pa.binary(16):
            return _finished(column_type, given)
    return None


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return any(is_kind(kind) for is_kind in (types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary))


def _uuids(given: pa.Array) -> pa.Array | None:
    """Spark has no type for them but text; None unless all have the usual form."""
    starts, data = starts_and_bytes(given)
    if given.null_count or len(data) != 36 * len(given) or bool((np.diff(starts) != 36).any()):
        return None
    matrix = data.reshape(len(given), 36)
    nibbles = _NIBBLES[matrix[:, _UUID_DIGITS]]
    if bool((matrix[:, _UUID_HYPHENS] != ord("-")).any()) or bool((nibbles == _NOT_HEX).any()):
        return None
    raw = np.ascontiguousarray(nibbles[:, ::2] << 4 | nibbles[:, 1::2])
    stored = pa.Array.from_buffers(pa.binary(16), len(given), [None, pa.py_buffer(raw)])
    return pa.ExtensionArray.from_storage(pa.uuid(), stored)


# --- what Arrow can hold and a column cannot ---------------------------------------------------------------------


def _is_sound(array: pa.Array) -> bool:
    """UTF-8, decimals within their precision, times within a day: what Arrow promises and rarely checks."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _refused(name: TypeName, array: pa.Array) -> Refused:
    match name:
        case TypeName.FLOAT | TypeName.DOUBLE:
            return _or_none(~np.isfinite(fixed_values(array, "<f4" if name is TypeName.FLOAT else "<f8")))
        case TypeName.TIMESTAMP:
            return _beyond(fixed_values(array, "<i8"), *_TIMESTAMPS_US)
        case TypeName.DATE:
            return _beyond(fixed_values(array, "<i4"), *_DATES)
    return None


def _beyond(values: np.ndarray, low: int, high: int) -> Refused:
    if values.min() >= low and values.max() <= high:
        return None
    return (values < low) | (values > high)


def _or_none(refused: np.ndarray) -> Refused:
    return refused if refused.any() else None


# --- value by value ----------------------------------------------------------------------------------------------


def given_value(column: Column, given: pa.Array, row: int) -> Any:
    """What a caller of the row path would have given; TypeMismatch where Python has no such value."""
    try:
        return given[row].as_py()
    except _UNREADABLE as e:
        raise TypeMismatch(
            f"column {column.name!r} is {column.type} and cannot hold this value of Arrow's {given.type}: {e}",
            column=column.name,
            expected=str(column.type),
            got=str(given.type),
        ) from e


def _by_value(column: Column, given: pa.Array) -> tuple[pa.Array, Refused]:
    coerce = coercion(column.type, column.name)
    refused = np.zeros(len(given), np.bool_)
    values: list[Any] = []
    for row in range(len(given)):
        try:
            value = given_value(column, given, row)
            values.append(None if value is None else coerce(value))
        except TypeMismatch:
            values.append(None)
            refused[row] = True
    return typed_array(column.type, values), _or_none(refused)


def required(array: pa.Array) -> Refused:
    """The rows where a column that must not be NULL is."""
    return np.asarray(pc.is_null(array)) if array.null_count else None
