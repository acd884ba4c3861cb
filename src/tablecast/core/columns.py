"""Bytes of many rows at once: what the column-wise encoders are made of.

An encoder turns a column into pieces, and one join puts the pieces of all columns together, row by row:

    piece     a literal, the same for every row; or a binary array with one value per row
    joined    the pieces of each row one after the other, as a binary array

Where a column has NULLs its value is a single array with the same NULLs, and the join writes the format's word for NULL
there (`whole`). What is under a NULL never reaches a result.

Measured on batches of 10,000 and 65,536 rows, per row: joining 13 pieces by taking them out of one array 100 to 130 ns
(Arrow's own join: 170 to 210 ns), `from_matrix` 20 to 30 ns, a cast of an integer to text 20 ns, of a decimal 57 ns, of a
timestamp with a zone 1,600 ns (of plain seconds 39 ns). A payload as Python's bytes costs 110 ns. Memory that is
kept costs as much again as what is written to it, so results are handed on as soon as they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Piece = Any  # bytes, or a binary array
BINARY = pa.binary()


def joined(pieces: Sequence[Piece], rows: int, null: bytes) -> pa.Array:
    """One binary value per row; `null` stands where a piece is NULL.

    All pieces are taken in the order of the result out of one array that holds them: its bytes are the joined bytes.
    """
    merged = _merged(pieces)
    arrays = [piece for piece in merged if isinstance(piece, pa.Array)]
    if len(merged) == 1 and arrays and not arrays[0].null_count:
        return arrays[0]
    literals = pa.array([piece for piece in merged if isinstance(piece, bytes)] + [null], BINARY)
    order = _interleaved(rows, tuple(isinstance(piece, pa.Array) for piece in merged))
    if any(array.null_count for array in arrays):
        order = _around_nulls(order, merged, rows, len(arrays) * rows + len(literals) - 1)
    taken = pc.take(pa.concat_arrays([*arrays, literals]), pa.array(order.ravel()), boundscheck=False)
    _, starts_buffer, data = taken.buffers()
    starts = np.frombuffer(starts_buffer, np.int32)[: rows * len(merged) + 1 : len(merged)]
    return pa.Array.from_buffers(BINARY, rows, [None, pa.py_buffer(np.ascontiguousarray(starts)), data])


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbouring literals as one: each piece costs a step per row."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


@lru_cache(maxsize=16)  # most batches of a table have one size and no NULL
def _interleaved(rows: int, are_arrays: tuple[bool, ...]) -> np.ndarray:
    """Where each row's pieces stand when all arrays, then all literals, stand one after the other."""
    order = np.empty((rows, len(are_arrays)), np.uint32)
    arrays, literals = 0, sum(are_arrays) * rows
    for i, is_array in enumerate(are_arrays):
        if is_array:
            order[:, i] = np.arange(arrays, arrays + rows, dtype=np.uint32)
            arrays += rows
        else:
            order[:, i] = literals
            literals += 1
    return order


def _around_nulls(order: np.ndarray, pieces: Sequence[Piece], rows: int, null_at: int) -> np.ndarray:
    order = order.copy()
    for i, piece in enumerate(pieces):
        if isinstance(piece, pa.Array) and piece.null_count:
            order[~validity(piece), i] = null_at
    return order


def whole(pieces: Sequence[Piece], source: pa.Array) -> list[Piece]:
    """The pieces of a column; as one array that is NULL where `source` is, if it has NULLs."""
    if not source.null_count:
        return list(pieces)
    arguments = [pa.scalar(piece, BINARY) if isinstance(piece, bytes) else piece for piece in pieces]
    array = pc.binary_join_element_wise(*arguments, b"") if len(arguments) > 1 else arguments[0]
    return [pc.if_else(source.is_valid(), array, pa.scalar(None, BINARY))]


# --- in and out of numpy -----------------------------------------------------------------------------------------


def fixed_values(array: pa.Array, kind: str) -> np.ndarray:
    """The values of an array of fixed width as `kind`; 0 where it is NULL."""
    buffer = array.buffers()[1]
    values = np.frombuffer(buffer, kind)[array.offset : array.offset + len(array)]
    return np.where(validity(array), values, values.dtype.type(0)) if array.null_count else values


def fixed_bytes(array: pa.Array, width: int) -> np.ndarray:
    """The bytes of an array of fixed width, one row each; what is under a NULL is anything."""
    buffer = array.buffers()[1]
    if buffer is None:  # no row at all
        return np.empty((len(array), width), np.uint8)
    flat = np.frombuffer(buffer, np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    return flat.reshape(len(array), width)


def validity(array: pa.Array) -> np.ndarray:
    return np.asarray(array.is_valid())


def starts_and_bytes(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where each value of a text or binary array begins and the last one ends, counted from 0; and their bytes."""
    _, starts_buffer, data_buffer = array.buffers()
    starts = np.frombuffer(starts_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    first, end = int(starts[0]), int(starts[-1])
    data = np.frombuffer(data_buffer, np.uint8)[first:end] if data_buffer is not None else np.empty(0, np.uint8)
    return (starts - np.int32(first) if first else starts), data


def lengths(array: pa.Array) -> np.ndarray:
    starts = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return np.diff(starts)


def from_matrix(matrix: np.ndarray, sizes: np.ndarray | None = None) -> pa.Array:
    """Row i's first sizes[i] bytes; without sizes all of them."""
    rows, width = matrix.shape
    starts = np.zeros(rows + 1, np.int32)
    if sizes is None:
        starts[1:] = np.arange(width, width * rows + 1, width, dtype=np.int32) if width else 0
        data = np.ascontiguousarray(matrix)
    else:
        np.cumsum(sizes, out=starts[1:])
        data = matrix[np.arange(width) < sizes[:, None]]
    return from_starts(starts, data)


def from_starts(starts: np.ndarray, data: np.ndarray) -> pa.Array:
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(data)]
    return pa.Array.from_buffers(BINARY, len(starts) - 1, buffers)


def as_binary(array: pa.Array) -> pa.Array:
    """Text as its bytes, without a copy."""
    return array if array.type == BINARY else array.cast(BINARY)


def as_list(array: pa.Array) -> list[bytes]:
    """A binary array as Python's bytes, by the cheapest way there is."""
    values: list[bytes] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def big_endian(values: np.ndarray, kind: str) -> np.ndarray:
    """Each value's bytes, most significant first: `kind` is ">u2", ">u4", ">u8"."""
    turned = np.ascontiguousarray(values.astype(kind))
    return turned.view(np.uint8).reshape(len(values), turned.dtype.itemsize)
