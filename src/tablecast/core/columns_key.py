"""Columns as key elements (codec.keys), and the order of the keys of many rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.codec import keys
from tablecast.core.columns import (
    BINARY,
    Piece,
    as_binary,
    big_endian,
    fixed_bytes,
    fixed_values,
    from_matrix,
    joined,
    starts_and_bytes,
)
from tablecast.model.schema import ColumnType, TableSchema, TypeName

_WIDE_DECIMAL = 18  # the largest precision whose unscaled value fits 8 bytes
_TOP = np.uint8(0x80)
_WORD = 8


def row_keys(schema: TableSchema, batch: pa.RecordBatch) -> pa.Array:
    """The storage key of every row of a shared table."""
    prefix = keys.table_prefix(schema.table_id)
    elements = [key_element(schema.columns[i].type, batch.column(i)) for i in schema.key_indexes]
    fixed = [element for element in elements if isinstance(element, np.ndarray)]
    if len(fixed) == len(elements):
        return _fixed_keys(prefix, fixed, batch.num_rows)
    pieces: list[Piece] = [prefix]
    for element in elements:
        pieces += [from_matrix(element)] if isinstance(element, np.ndarray) else element
    return joined(pieces, batch.num_rows, b"")


def _fixed_keys(prefix: bytes, elements: list[np.ndarray], rows: int) -> pa.Array:
    matrix = np.empty((rows, len(prefix) + sum(element.shape[1] for element in elements)), np.uint8)
    matrix[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    at = len(prefix)
    for element in elements:
        matrix[:, at : at + element.shape[1]] = element
        at += element.shape[1]
    return from_matrix(matrix)


def element_array(column_type: ColumnType, array: pa.Array) -> pa.Array:
    """Each value as a key element; no bytes where it is NULL. What PARTITION BY hashes."""
    if not len(array):
        return pa.array([], BINARY)
    element = key_element(column_type, array)
    pieces: list[Piece] = [from_matrix(element)] if isinstance(element, np.ndarray) else element
    made = joined(pieces, len(array), b"")
    return pc.if_else(array.is_valid(), made, pa.scalar(b"", BINARY)) if array.null_count else made


def key_element(column_type: ColumnType, array: pa.Array) -> np.ndarray | list[Piece]:
    """A matrix of one row of bytes per value, or pieces where their lengths differ."""
    if column_type.name is TypeName.DECIMAL:
        return _decimals(array, 8 if column_type.precision <= _WIDE_DECIMAL else 16)
    return _ELEMENTS[column_type.name](array)


def _integers(kind: str, turned: str) -> Callable[[pa.Array], np.ndarray]:
    def element(array: pa.Array) -> np.ndarray:
        return _flipped(big_endian(fixed_values(array, kind), turned))

    return element


def _flipped(matrix: np.ndarray) -> np.ndarray:
    """With the sign bit flipped: two's complement orders as bytes then."""
    matrix[:, 0] ^= _TOP
    return matrix


def _decimals(array: pa.Array, size: int) -> np.ndarray:
    """Arrow holds the unscaled integer, 16 bytes, least significant first."""
    return _flipped(np.ascontiguousarray(fixed_bytes(array, 16)[:, size - 1 :: -1]))


def _floats(kind: str, bits: str, turned: str) -> Callable[[pa.Array], np.ndarray]:
    def element(array: pa.Array) -> np.ndarray:
        raw = (fixed_values(array, kind) + np.dtype(kind).type(0)).view(bits)  # -0.0 + 0.0 is 0.0
        sign = raw.dtype.type(1 << (8 * raw.dtype.itemsize - 1))
        return big_endian(np.where(raw & sign, ~raw, raw | sign), turned)

    return element


def _booleans(array: pa.Array) -> np.ndarray:
    return np.asarray(array.fill_null(False).cast(pa.uint8())).reshape(-1, 1)


def _texts(array: pa.Array) -> list[Piece]:
    plain = as_binary(array)
    if not starts_and_bytes(plain)[1].all():
        plain = pc.replace_substring(plain, b"\x00", b"\x00\xff")
    return [plain, b"\x00\x01"]


_BIGINTS = _integers("<i8", ">i8")
_INTS = _integers("<i4", ">i4")
_ELEMENTS: dict[TypeName, Callable[[pa.Array], np.ndarray | list[Piece]]] = {
    TypeName.BOOLEAN: _booleans,
    TypeName.SMALLINT: _integers("<i2", ">i2"),
    TypeName.INT: _INTS,
    TypeName.BIGINT: _BIGINTS,
    TypeName.FLOAT: _floats("<f4", "<u4", ">u4"),
    TypeName.DOUBLE: _floats("<f8", "<u8", ">u8"),
    TypeName.TEXT: _texts,
    TypeName.BYTES: _texts,
    TypeName.TIMESTAMP: _BIGINTS,
    TypeName.DATE: _INTS,
    TypeName.TIME: _BIGINTS,
    TypeName.UUID: lambda array: fixed_bytes(array.storage, 16),
}


# --- order ---------------------------------------------------------------------------------------------------


def key_order(row_keys: pa.Array) -> np.ndarray | None:
    """Where the keys are taken from to be in order, equal ones in the order they came; None: they are in order."""
    if bool(pc.all(pc.less_equal(row_keys[:-1], row_keys[1:])).as_py()) or len(row_keys) < 2:
        return None
    starts, data = starts_and_bytes(row_keys)
    width = int(starts[1])
    if not bool((np.diff(starts) == width).all()):
        return np.asarray(pc.sort_indices(row_keys))
    return _fixed_order(data.reshape(len(row_keys), width))


def _fixed_order(matrix: np.ndarray) -> np.ndarray:
    """Keys of one width, as numbers: 64 bits at a time."""
    rows, width = matrix.shape
    words = -(-width // _WORD)
    padded = np.zeros((rows, words * _WORD), np.uint8)
    padded[:, :width] = matrix
    numbers = padded.view(">u8").astype(np.uint64)
    differing = [i for i in range(words) if (numbers[:, i] != numbers[0, i]).any()]
    if len(differing) == 1:
        return np.argsort(numbers[:, differing[0]], kind="stable")
    return np.lexsort([numbers[:, i] for i in reversed(differing)])


def repeated(sorted_keys: pa.Array) -> np.ndarray:
    """Which of the keys, from the second on, equal the one before."""
    return np.asarray(pc.equal(sorted_keys[1:], sorted_keys[:-1]))
