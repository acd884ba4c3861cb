"""Many stored rows of one table as Arrow columns, at once.

A row alone becomes a struct of Python values (codec.rows). Thousands that only pass through to Arrow need not: their
bodies, one after the other behind the head of a MessagePack array, decode with one call, and what Arrow reads faster from
its stored form stays in it: a DECIMAL its text, a UUID its 16 bytes, a TIMESTAMP the bytes of MessagePack's extension. The
result is the same as by way of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from tablecast.codec.arrow_types import arrow_schema
from tablecast.codec.rows import _PYTHON_TYPES, HEADER_SIZE, ROW_FORMAT, row_codec
from tablecast.errors import CorruptData
from tablecast.model.schema import Column, TableSchema, TypeName

Stamp = Callable[[bytes], tuple[int, int]]
"""The commit number and time of a stored row, as its table knows them; CorruptData for a format that nobody knows."""

_STORED_TYPES: dict[TypeName, Any] = _PYTHON_TYPES | {
    TypeName.DECIMAL: str,
    TypeName.UUID: bytes,
    TypeName.TIMESTAMP: msgspec.msgpack.Ext,
}
_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_ARRAY_OF = struct.Struct(">BI")  # MessagePack's head of an array with a count of 32 bits
_ARRAY_32 = 0xDD
_SECONDS_34 = np.uint64(2**34 - 1)
_HEADERS = np.dtype([("format", "u1"), ("number", ">u8"), ("ts_ms", ">u8")])


@lru_cache(maxsize=512)
def row_columns(schema: TableSchema) -> RowColumns:
    return RowColumns(schema)


class RowColumns:
    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._arrow = arrow_schema(schema)
        self._decode = msgspec.msgpack.Decoder(list[_stored_class(schema)]).decode  # type: ignore[misc]
        self._getters = [attrgetter(f"c{i}") for i in range(len(schema.columns))]

    def columns(self, values: Sequence[bytes]) -> list[pa.Array]:
        """One array per column, in the table's order. Headers are not looked at: see `stamps`."""
        bodies = b"".join([value[HEADER_SIZE:] for value in values])
        try:
            rows = self._decode(_ARRAY_OF.pack(_ARRAY_32, len(values)) + bodies)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise CorruptData(f"rows of {self._schema.full_name} do not decode: {e}") from e
        return [
            _array(column, field.type, list(map(get, rows)))
            for column, field, get in zip(self._schema.columns, self._arrow, self._getters, strict=True)
        ]


def stamps(values: Sequence[bytes], stamp: Stamp) -> np.ndarray:
    """The commit number of each row. Also the check that every row has a format that can be read."""
    if any(len(value) < HEADER_SIZE for value in values):
        raise CorruptData(f"a stored row is shorter than its header of {HEADER_SIZE} bytes")
    headers = np.frombuffer(b"".join([value[:HEADER_SIZE] for value in values]), _HEADERS)
    numbers: np.ndarray = headers["number"].astype(np.int64)
    others = np.flatnonzero(headers["format"] != ROW_FORMAT)
    if len(others):  # rows of loads: those of one load share all of their header
        _, first, which = np.unique(headers[others], return_index=True, return_inverse=True)
        known = np.array([stamp(values[others[at]])[0] for at in first], dtype=np.int64)
        numbers[others] = known[which]
    return numbers


def _stored_class(schema: TableSchema) -> type[Any]:
    """As a row's class, with values as they are stored. Its defaults, too, are those of a row's class."""
    blank = row_codec(schema).struct()
    fields: list[tuple[str, Any, Any]] = []
    for i, column in enumerate(schema.columns):
        fallback = getattr(blank, f"c{i}")
        stored = _STORED_TYPES[column.type.name] | None
        fields.append((f"c{i}", stored, msgspec.msgpack.decode(_encode(fallback), type=stored)))
    return msgspec.defstruct(f"Stored_{schema.name}", fields, array_like=True, gc=False)


def _array(column: Column, kind: pa.DataType, values: list[Any]) -> pa.Array:
    if column.type.name is TypeName.DECIMAL:
        return pa.array(values, pa.string()).cast(kind)
    if column.type.name is TypeName.UUID:
        return pa.ExtensionArray.from_storage(kind, pa.array(values, pa.binary(16)))
    if column.type.name is TypeName.TIMESTAMP:
        return _timestamps(values, kind)
    return pa.array(values, kind)


def _timestamps(values: list[msgspec.msgpack.Ext | None], kind: pa.DataType) -> pa.Array:
    """MessagePack's timestamps: 4 bytes of seconds, 8 of nanoseconds (30 bits) and seconds (34), or 4 of nanoseconds and
    8 of signed seconds; all big-endian."""
    data = cast(list[bytes], [b"" if value is None else value.data for value in values])
    sizes = np.fromiter(map(len, data), np.uint8, len(data))
    micros = np.zeros(len(data), np.int64)
    for size in np.unique(sizes).tolist():
        which = sizes == size
        together = b"".join(data if which.all() else [each for each in data if len(each) == size])
        if size == 4:
            micros[which] = np.frombuffer(together, ">u4").astype(np.int64) * 1_000_000
        elif size == 8:
            packed = np.frombuffer(together, ">u8").astype(np.uint64)
            micros[which] = (packed & _SECONDS_34).astype(np.int64) * 1_000_000 + (packed >> 34).astype(
                np.int64
            ) // 1000
        elif size == 12:
            parts = np.frombuffer(together, np.dtype([("nanos", ">u4"), ("seconds", ">i8")]))
            micros[which] = parts["seconds"].astype(np.int64) * 1_000_000 + parts["nanos"].astype(np.int64) // 1000
        elif size:
            raise CorruptData(f"a stored TIMESTAMP of {size} bytes")
    return pa.array(micros, mask=sizes == 0).cast(kind)
