"""Columns as MessagePack: the pieces of row bodies, as codec.rows encodes them row by row.

MessagePack writes a number or a length in as few bytes as hold it. Most batches need one width for all rows of a
column, and that is seen from the least and the greatest value; else each row's bytes are cut out of the widest form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tablecast.core import columns_text as text
from tablecast.core.columns import (
    Piece,
    as_binary,
    big_endian,
    fixed_bytes,
    fixed_values,
    from_matrix,
    joined,
    lengths,
    whole,
)
from tablecast.model.schema import TableSchema, TypeName

NIL = b"\xc0"
_KINDS = {1: ">u1", 2: ">u2", 4: ">u4", 8: ">u8"}

# Integers: the greatest (least) value of each form, its first byte and the bytes after it. Width 0: the value itself.
_UP_TO = np.array([127, 2**8 - 1, 2**16 - 1, 2**32 - 1], np.int64)
_DOWN_TO = np.array([-32, -(2**7), -(2**15), -(2**31)], np.int64)
_TAGS = np.array([0, 0xCC, 0xCD, 0xCE, 0xCF, 0, 0xD0, 0xD1, 0xD2, 0xD3], np.uint8)
_WIDTHS = np.array([0, 1, 2, 4, 8, 0, 1, 2, 4, 8], np.int64)
_NEGATIVE = 5  # where the forms of negative numbers begin

# Texts and bytes: the greatest length of each form, its first byte and the bytes of the length after it.
_TEXT_UP_TO, _TEXT_TAGS, _TEXT_WIDTHS = (31, 255, 65_535), (0xA0, 0xD9, 0xDA, 0xDB), (0, 1, 2, 4)
_BYTES_UP_TO, _BYTES_TAGS, _BYTES_WIDTHS = (255, 65_535), (0xC4, 0xC5, 0xC6), (1, 2, 4)


def body_array(schema: TableSchema, batch: pa.RecordBatch, texts: text.Texts, header: bytes) -> pa.Array:
    """Each row's body, after `header`."""
    pieces: list[Piece] = [header + _array_head(len(schema.columns))]
    for i, column in enumerate(schema.columns):
        pieces += _column_pieces(column.type.name, batch.column(i), texts.get(i))
    return joined(pieces, batch.num_rows, NIL)


def _column_pieces(name: TypeName, array: pa.Array, texts: pa.Array | None) -> list[Piece]:
    if array.null_count == len(array):
        return [NIL]
    return whole(_texts(texts) if texts is not None else _PIECES[name](array), array)


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big")


# --- numbers -----------------------------------------------------------------------------------------------------


def _form(values: np.ndarray) -> np.ndarray:
    """Which form each value takes: an index of _TAGS."""
    form = np.searchsorted(_UP_TO, values, side="left")
    negative = values < 0
    if negative.any():
        form = np.where(negative, _NEGATIVE + np.searchsorted(-_DOWN_TO, -(values + 1), side="right"), form)
    return form


def _integers(values: np.ndarray) -> pa.Array:
    least, greatest = _form(np.array([values.min(), values.max()]))
    if least == greatest:
        return from_matrix(_same_form(values, int(least)))
    form = _form(values)
    sizes = _WIDTHS[form]
    matrix = np.empty((len(values), 1 + int(sizes.max())), np.uint8)
    matrix[:, 0] = np.where(sizes == 0, values.astype(np.uint8), _TAGS[form])
    shift = np.where(sizes == 0, 0, 64 - 8 * sizes).astype(np.uint64)
    matrix[:, 1:] = big_endian(values.astype(np.uint64) << shift, ">u8")[:, : matrix.shape[1] - 1]
    return from_matrix(matrix, 1 + sizes)


def _same_form(values: np.ndarray, form: int) -> np.ndarray:
    width = int(_WIDTHS[form])
    if width == 0:
        return values.astype(np.uint8).reshape(-1, 1)
    matrix = np.empty((len(values), 1 + width), np.uint8)
    matrix[:, 0] = _TAGS[form]
    matrix[:, 1:] = big_endian(values, _KINDS[width])
    return matrix


def _floats(array: pa.Array) -> list[Piece]:
    return [b"\xcb", from_matrix(big_endian(fixed_values(array.cast(pa.float64()), "<f8"), ">f8"))]


def _booleans(array: pa.Array) -> list[Piece]:
    values = np.asarray(array.fill_null(False).cast(pa.uint8()))
    return [from_matrix((values + np.uint8(0xC2)).reshape(-1, 1))]


# --- texts and bytes ---------------------------------------------------------------------------------------------


def _sized(array: pa.Array, up_to: tuple[int, ...], tags: tuple[int, ...], widths: tuple[int, ...]) -> list[Piece]:
    """Values after their lengths."""
    plain = as_binary(array)
    length = lengths(plain)
    forms = np.searchsorted(up_to, [length.min(), length.max()], side="left")
    if forms[0] == forms[1]:
        tag, width = tags[forms[0]], widths[forms[0]]
        if width == 0:
            return [from_matrix((length + tag).astype(np.uint8).reshape(-1, 1)), plain]
        return [bytes([tag]), from_matrix(big_endian(length, _KINDS[width])), plain]
    form = np.searchsorted(up_to, length, side="left")
    width_of, tag_of = np.array(widths)[form], np.array(tags)[form]
    matrix = np.empty((len(length), 5), np.uint8)
    matrix[:, 0] = np.where(width_of == 0, tag_of + length, tag_of)
    shift = np.where(width_of == 0, 0, 32 - 8 * width_of).astype(np.uint32)
    matrix[:, 1:] = big_endian(length.astype(np.uint32) << shift, ">u4")
    return [from_matrix(matrix, 1 + width_of), plain]


def _texts(array: pa.Array) -> list[Piece]:
    return _sized(array, _TEXT_UP_TO, _TEXT_TAGS, _TEXT_WIDTHS)


def _bytes(array: pa.Array) -> list[Piece]:
    return _sized(array, _BYTES_UP_TO, _BYTES_TAGS, _BYTES_WIDTHS)


def _uuids(array: pa.Array) -> list[Piece]:
    return [b"\xc4\x10", from_matrix(fixed_bytes(array.storage, 16))]


# --- times -------------------------------------------------------------------------------------------------------


def _timestamps(array: pa.Array) -> list[Piece]:
    """MessagePack's timestamp: 4, 8 or 12 bytes after the head of an extension of type -1."""
    seconds, micros = text.seconds_and_micros(array)
    fits = (seconds >= 0) & (seconds < 2**34)
    short = (micros == 0) & (seconds >= 0) & (seconds < 2**32)
    if (fits & ~short).all():
        return [b"\xd7\xff", from_matrix(_packed(seconds, micros))]
    matrix = np.empty((len(array), 15), np.uint8)
    matrix[:] = np.frombuffer(b"\xc7\x0c\xff" + bytes(12), np.uint8)
    matrix[:, 3:7] = big_endian(micros * 1000, ">u4")
    matrix[:, 7:] = big_endian(seconds, ">i8")
    matrix[fits, :2] = np.frombuffer(b"\xd7\xff", np.uint8)
    matrix[fits, 2:10] = _packed(seconds[fits], micros[fits])
    matrix[short, :2] = np.frombuffer(b"\xd6\xff", np.uint8)
    matrix[short, 2:6] = big_endian(seconds[short], ">u4")
    return [from_matrix(matrix, np.where(short, 6, np.where(fits, 10, 15)))]


def _packed(seconds: np.ndarray, micros: np.ndarray) -> np.ndarray:
    nanos = (micros * 1000).astype(np.uint64)
    return big_endian(nanos << np.uint64(34) | seconds.astype(np.uint64), ">u8")


_PIECES: dict[TypeName, Callable[[pa.Array], list[Piece]]] = {
    TypeName.BOOLEAN: _booleans,
    TypeName.SMALLINT: lambda a: [_integers(fixed_values(a, "<i2").astype(np.int64))],
    TypeName.INT: lambda a: [_integers(fixed_values(a, "<i4").astype(np.int64))],
    TypeName.BIGINT: lambda a: [_integers(fixed_values(a, "<i8"))],
    TypeName.FLOAT: _floats,
    TypeName.DOUBLE: _floats,
    TypeName.TEXT: _texts,
    TypeName.BYTES: _bytes,
    TypeName.JSON: _texts,
    TypeName.TIMESTAMP: _timestamps,
    TypeName.UUID: _uuids,
}
