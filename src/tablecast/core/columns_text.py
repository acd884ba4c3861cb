"""Columns as text: the forms that payloads and bodies share (docs/formats/payload.md, rows.md).

    DECIMAL     as Python's str writes it; `plain_decimals`: with all digits and never an exponent
    TIMESTAMP   2022-01-01T00:00:00, with six decimals of a second or none
    TIME        03:04:05, likewise
    DATE        2022-01-02
    UUID        lower case with hyphens

Each function takes the column's Arrow array and gives a binary array; where the column is NULL there is anything.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tablecast.core.columns import BINARY, as_binary, fixed_bytes, fixed_values, from_matrix
from tablecast.model.schema import TableSchema, TypeName

Texts = dict[int, pa.Array]  # by the column's index
PLAIN_SCALE = 6  # up to this scale a decimal's text never has an exponent
_THREE_DIGITS = np.array([list(f"{n:03d}".encode()) for n in range(1000)], np.uint8)
_HEX = np.array([list(f"{n:02x}".encode()) for n in range(256)], np.uint8)
_HYPHENS = (8, 13, 18, 23)
_HEX_PLACES = [i for i in range(36) if i not in _HYPHENS]
_SECOND_US = 1_000_000
_DOT, _T = ord("."), ord("T")


def shared_texts(schema: TableSchema, batch: pa.RecordBatch) -> Texts:
    """The texts that stand in a body as in a payload: made once for both."""
    makers = {TypeName.DECIMAL: decimals, TypeName.DATE: dates, TypeName.TIME: times}
    return {
        i: makers[column.type.name](batch.column(i))
        for i, column in enumerate(schema.columns)
        if column.type.name in makers
    }


def integers(array: pa.Array) -> pa.Array:
    return as_binary(array.cast(pa.string()))


def decimals(array: pa.Array) -> pa.Array:
    """Arrow's text of a decimal follows the rule of Python's: an exponent only below 1E-6."""
    return as_binary(array.cast(pa.string()))


def plain_decimals(array: pa.Array, scale: int, text: pa.Array) -> pa.Array:
    if scale <= PLAIN_SCALE:
        return text
    return pa.array([None if value is None else format(value, "f").encode() for value in array.to_pylist()], BINARY)


def dates(array: pa.Array) -> pa.Array:
    return as_binary(array.cast(pa.string()))


def seconds_and_micros(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """A TIMESTAMP's whole seconds since 1970 and the microseconds after them."""
    us = fixed_values(array, "<i8")
    seconds = us // _SECOND_US
    return seconds, us - seconds * _SECOND_US


def timestamps(array: pa.Array) -> pa.Array:
    seconds, micros = seconds_and_micros(array)
    text = pa.array(seconds).cast(pa.timestamp("s")).cast(pa.string())
    matrix = np.empty((len(array), 26), np.uint8)
    matrix[:, :19] = _fixed_text(text, 19)
    matrix[:, 10] = _T
    return _with_micros(matrix, 19, micros)


def times(array: pa.Array) -> pa.Array:
    us = fixed_values(array, "<i8")
    text = pa.array((us // _SECOND_US).astype(np.int32)).cast(pa.time32("s")).cast(pa.string())
    matrix = np.empty((len(array), 15), np.uint8)
    matrix[:, :8] = _fixed_text(text, 8)
    return _with_micros(matrix, 8, us % _SECOND_US)


def _fixed_text(text: pa.Array, width: int) -> np.ndarray:
    data = text.buffers()[2]
    flat = np.frombuffer(data, np.uint8)[: len(text) * width] if len(text) else np.empty(0, np.uint8)
    return flat.reshape(len(text), width)


def _with_micros(matrix: np.ndarray, at: int, micros: np.ndarray) -> pa.Array:
    """Six decimals from column `at` on, or none where they would be zeros."""
    some = micros != 0
    if not some.any():
        return from_matrix(matrix[:, :at])
    matrix[:, at] = _DOT
    matrix[:, at + 1 : at + 4] = _THREE_DIGITS[micros // 1000]
    matrix[:, at + 4 : at + 7] = _THREE_DIGITS[micros % 1000]
    if some.all():
        return from_matrix(matrix)
    return from_matrix(matrix, np.where(some, at + 7, at))


def uuids(array: pa.Array) -> pa.Array:
    raw = fixed_bytes(array.storage, 16)
    matrix = np.full((len(array), 36), ord("-"), np.uint8)
    matrix[:, _HEX_PLACES] = _HEX[raw].reshape(len(array), 32)
    return from_matrix(matrix)
