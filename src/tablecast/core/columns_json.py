"""Columns as JSON: the pieces of payloads and message keys, as core.payload writes them value by value.

Text goes in as it is unless JSON escapes a character of it: the rows that hold one are encoded by msgspec. FLOAT and
DOUBLE are written by msgspec too, all at once; base64 and a DECIMAL of more than six decimals value by value.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.core import columns_text as text
from tablecast.core.columns import (
    BINARY,
    Piece,
    as_binary,
    fixed_values,
    from_starts,
    joined,
    starts_and_bytes,
    validity,
    whole,
)
from tablecast.model.schema import ColumnType, TableSchema, TypeName

NULL = b"null"
_encode = msgspec.json.Encoder().encode
_COMMA = ord(",")


def json_pieces(column_type: ColumnType, array: pa.Array, texts: pa.Array | None) -> list[Piece]:
    """A column's values as they stand in a payload; `texts` of those types that share theirs with the body."""
    if array.null_count == len(array):
        return [NULL]
    return _PIECES[column_type.name](column_type, array, texts)


def object_pieces(schema: TableSchema, indexes: Sequence[int], values: dict[int, list[Piece]]) -> list[Piece]:
    """A payload: the table's name, then these columns. `values` are the pieces of each."""
    pieces: list[Piece] = [b'{"_table":' + _encode(schema.full_name)]
    for i in indexes:
        pieces += [b"," + _encode(schema.columns[i].name) + b":", *values[i]]
    return [*pieces, b"}"]


def array_pieces(indexes: Sequence[int], values: dict[int, list[Piece]]) -> list[Piece]:
    """A message's key."""
    pieces: list[Piece] = [b"["]
    for at, i in enumerate(indexes):
        pieces += [b"," if at else b"", *values[i]]
    return [*pieces, b"]"]


def json_array(pieces: Sequence[Piece], rows: int) -> pa.Array:
    return joined(pieces, rows, NULL)


def column_values(
    schema: TableSchema, indexes: Sequence[int], batch: pa.RecordBatch, texts: text.Texts
) -> dict[int, list[Piece]]:
    return {i: json_pieces(schema.columns[i].type, batch.column(i), texts.get(i)) for i in indexes}


def _quoted(array: pa.Array, source: pa.Array, after: bytes = b'"') -> list[Piece]:
    return whole([b'"', array, after], source)


def _floats(array: pa.Array) -> pa.Array:
    """msgspec writes a list of them at once; without its commas it is the data of the array."""
    doubles = fixed_values(array.cast(pa.float64()), "<f8").tolist()
    written = np.frombuffer(_encode(doubles), np.uint8)[1:-1]
    commas = np.flatnonzero(written == _COMMA)
    starts = np.zeros(len(doubles) + 1, np.int32)
    starts[1:-1] = commas - np.arange(len(commas))
    starts[-1] = len(written) - len(commas)
    return from_starts(starts, np.delete(written, commas))


def _escaped(array: pa.Array) -> pa.Array:
    """Text without its quotes, as JSON has it."""
    plain = as_binary(array)
    starts, data = starts_and_bytes(plain)
    special = (data < 32) | (data == ord('"')) | (data == ord("\\"))
    if not special.any():
        return plain
    rows = np.unique(np.searchsorted(starts, np.flatnonzero(special), side="right") - 1)
    if plain.null_count:
        rows = rows[validity(plain)[rows]]
    written = [_encode(value)[1:-1] for value in array.take(pa.array(rows)).to_pylist()]
    chosen = np.zeros(len(plain), np.bool_)
    chosen[rows] = True
    return pc.replace_with_mask(plain, pa.array(chosen), pa.array(written, BINARY))


def _base64(array: pa.Array) -> pa.Array:
    return pa.array([None if v is None else b2a_base64(v, newline=False) for v in array.to_pylist()], BINARY)


_Pieces = Callable[[ColumnType, pa.Array, Any], list[Piece]]
_PIECES: dict[TypeName, _Pieces] = {
    TypeName.BOOLEAN: lambda _, a, x: whole([as_binary(a.cast(pa.string()))], a),
    TypeName.SMALLINT: lambda _, a, x: whole([text.integers(a)], a),
    TypeName.INT: lambda _, a, x: whole([text.integers(a)], a),
    TypeName.BIGINT: lambda _, a, x: _quoted(text.integers(a), a),
    TypeName.FLOAT: lambda _, a, x: whole([_floats(a)], a),
    TypeName.DOUBLE: lambda _, a, x: whole([_floats(a)], a),
    TypeName.DECIMAL: lambda t, a, x: _quoted(text.plain_decimals(a, t.scale, x), a),
    TypeName.TEXT: lambda _, a, x: _quoted(_escaped(a), a),
    TypeName.BYTES: lambda _, a, x: _quoted(_base64(a), a),
    TypeName.JSON: lambda _, a, x: whole([as_binary(a)], a),
    TypeName.TIMESTAMP: lambda _, a, x: _quoted(text.timestamps(a), a, b'Z"'),
    TypeName.DATE: lambda _, a, x: _quoted(x, a),
    TypeName.TIME: lambda _, a, x: _quoted(x, a),
    TypeName.UUID: lambda _, a, x: _quoted(text.uuids(a), a),
}
