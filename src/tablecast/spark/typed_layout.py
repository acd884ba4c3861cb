"""Payloads of one table as columns, without parsing them: the quick way of `typed`.

The encoder's layout is fixed (docs/formats/payload.md): members in the order of the table, no spaces. So the bytes of
many payloads are walked column by column, all rows at once:

    {"_table":"app.orders","id":"42","customer":"ann","n":7}
    ^ start                ^ `,"id":` must stand here, in every row; then a quote, `n` of null, or a bare value

A quoted value ends at the next quote (all quotes are found once, by one pass; escaped ones do not count), a bare one at
the next member. What lies between two values must equal the literal in every row, and each row must end where its
walk ends: then the columns are what a parser would have found. A column is a pair of positions per row; Arrow copies
them out as strings and casts. Whatever does not fit raises `NotLaidOut`, and the caller parses.
"""

from __future__ import annotations

import binascii
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.model.schema import Column, ColumnType, TableSchema, TypeName

_QUOTE, _BACKSLASH, _NULL, _END, _TRUE = b'"\\n}t'
_BARE = {TypeName.BOOLEAN, TypeName.SMALLINT, TypeName.INT, TypeName.FLOAT, TypeName.DOUBLE}
MAX_BACKSLASHES = 64  # in a row before a quote; a longer run is text that is parsed, not walked
_OPENING_QUOTES = 4  # of `{"_table":"app.orders"`
_encode = msgspec.json.Encoder().encode


class NotLaidOut(Exception):
    """These payloads are not as the encoder lays them out: they have to be parsed."""


class Layout:
    """How payloads of one table lie. Made once per reader."""

    def __init__(self, schema: TableSchema, types: list[pa.DataType]) -> None:
        self._columns = list(zip(schema.columns, types, strict=True))
        self._names = [b"," + _encode(column.name) + b":" for column in schema.columns]
        # A name that JSON escapes would put quotes and backslashes where the walk expects none.
        self.is_plain = all(name.count(b'"') == 2 and b"\\" not in name for name in self._names)
        self._names[0] = b'{"_table":' + _encode(schema.full_name) + self._names[0]

    def columns(self, payloads: pa.Array) -> list[pa.Array | None]:
        """One array per column, or None for a column that none of the payloads has yet. Raises NotLaidOut."""
        walk = _Walk(payloads)
        walk.cursor += _OPENING_QUOTES
        found: list[pa.Array | None] = []
        for number, ((column, kind), name) in enumerate(zip(self._columns, self._names, strict=True)):
            if number and walk.is_over():
                return found + [None] * (len(self._columns) - number)
            walk.literal(name)
            found.append(_value(walk, column, kind, is_last=number == len(self._columns) - 1))
        if not walk.is_over():
            raise NotLaidOut
        return found


class _Walk:
    """Where every row's walk stands: `at` in the bytes, `cursor` among the quotes."""

    def __init__(self, payloads: pa.Array) -> None:
        _, starts, data = payloads.buffers()
        self.rows = len(payloads)
        self.data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        bounds = np.frombuffer(starts, np.int32)[payloads.offset : payloads.offset + self.rows + 1].astype(np.int64)
        self.buffer, self.at, self.ends = data, bounds[:-1], bounds[1:]
        self.quotes, self.has_escapes = _quotes(self.data, int(bounds[0]), int(bounds[-1]))
        self.cursor = self._first_quotes()

    def _first_quotes(self) -> np.ndarray:
        """Which quote each row begins with. Rows mostly have equally many."""
        each, rest = divmod(len(self.quotes), self.rows)
        if not rest:
            guess = np.arange(0, len(self.quotes), each) if each else np.zeros(0, np.int64)
            if each and bool((self.quotes[guess] == self.at + 1).all()):
                return guess
        return np.searchsorted(self.quotes, self.at)

    def literal(self, expected: bytes) -> None:
        """The bytes that must come next in every row; the walk stands behind them then."""
        size = len(expected)
        if int(self.at.max()) + size >= len(self.data):
            raise NotLaidOut
        # Every place of the bytes as the begin of a string of this size: nothing is copied but what is asked for.
        windows = np.ndarray((len(self.data) - size + 1,), f"S{size}", buffer=self.data, strides=(1,))
        found = windows[self.at].view(np.uint8).reshape(self.rows, size)
        if not bool((found == np.frombuffer(expected, np.uint8)).all()):
            raise NotLaidOut
        self.at = self.at + size

    def quote(self, ahead: int) -> np.ndarray:
        """Where the quote `ahead` of the cursor is; past the last one, the end of the bytes.

        Only the last row can look that far: every row has more quotes than any asks for ahead of its own.
        """
        if not len(self.quotes):
            raise NotLaidOut
        wanted = self.cursor + ahead
        found: np.ndarray = self.quotes[np.minimum(wanted, len(self.quotes) - 1)]
        if int(wanted[-1]) >= len(self.quotes):
            found[-1] = int(self.ends[-1])
        return found

    def is_over(self) -> bool:
        """Whether every row ends here. Raises NotLaidOut when only some do: then columns were added in between."""
        done = self.at == self.ends - 1
        if not done.any():
            return False
        if not (done.all() and (self.data[self.at] == _END).all()):
            raise NotLaidOut
        return True

    def strings(self, begins: np.ndarray, ends: np.ndarray, nulls: np.ndarray | None, kind: pa.DataType) -> pa.Array:
        """The bytes between, copied out. Seen as one Arrow array, values and what lies between them alternate."""
        if (ends < begins).any() or int(ends[-1]) > len(self.data):
            raise NotLaidOut
        bounds = np.empty(2 * self.rows + 1, np.int32)
        bounds[0:-1:2], bounds[1::2], bounds[-1] = begins, ends, ends[-1]
        if not bool((bounds[2:-1:2] >= bounds[1:-2:2]).all()):
            raise NotLaidOut
        pieces = pa.Array.from_buffers(kind, 2 * self.rows, [None, pa.py_buffer(bounds), self.buffer])
        return pieces.take(pa.array(np.arange(0, 2 * self.rows, 2), mask=nulls))


def _quotes(data: np.ndarray, first: int, last: int) -> tuple[np.ndarray, bool]:
    """Where the quotes are that begin or end a string, and whether there are escapes at all."""
    part = data[first:last]
    quotes = np.flatnonzero(part == _QUOTE)
    is_backslash = part == _BACKSLASH
    has_escapes = bool(is_backslash.any())
    if has_escapes and len(escaped := _escaped(part, np.flatnonzero(is_backslash))):
        quotes = np.delete(quotes, np.searchsorted(quotes, escaped))
    return quotes + first if first else quotes, has_escapes


def _escaped(data: np.ndarray, backslashes: np.ndarray) -> np.ndarray:
    """Where the quotes are that come after an odd number of backslashes."""
    last = backslashes[data[np.minimum(backslashes + 1, len(data) - 1)] == _QUOTE]
    runs, live = np.ones(len(last), np.int64), np.arange(len(last))
    for length in range(1, MAX_BACKSLASHES):
        live = live[data[np.maximum(last[live] - length, 0)] == _BACKSLASH]
        if not len(live):
            odd: np.ndarray = last[runs % 2 == 1] + 1
            return odd
        runs[live] += 1
    raise NotLaidOut


# --- values -----------------------------------------------------------------------------------------------------


def _value(walk: _Walk, column: Column, kind: pa.DataType, *, is_last: bool) -> pa.Array:
    if int(walk.at.max()) >= len(walk.data):
        raise NotLaidOut
    first = walk.data[walk.at]
    if column.type.name in _BARE:
        return _bare(walk, column.type, kind, first, is_last)
    return _quoted(walk, column.type, kind, first)


def _bare(walk: _Walk, column_type: ColumnType, kind: pa.DataType, first: np.ndarray, is_last: bool) -> pa.Array:
    begins = walk.at
    ends = walk.ends - 1 if is_last else np.minimum(walk.quote(2) - 1, walk.ends - 1)
    walk.at, walk.cursor = ends, walk.cursor + 2
    is_null = first == _NULL
    nulls = is_null if is_null.any() else None
    if column_type.name is TypeName.BOOLEAN:
        return _booleans(first, ends - begins, nulls)
    return _cast(walk.strings(begins, ends, nulls, pa.string()), kind)


def _booleans(first: np.ndarray, sizes: np.ndarray, nulls: np.ndarray | None) -> pa.Array:
    is_true = first == _TRUE
    if not bool(((sizes == 4) & (is_true | (first == _NULL)) | (sizes == 5) & (first == ord("f"))).all()):
        raise NotLaidOut
    return pa.array(is_true, mask=nulls)


def _quoted(walk: _Walk, column_type: ColumnType, kind: pa.DataType, first: np.ndarray) -> pa.Array:
    is_quoted = first == _QUOTE
    if is_quoted.all() and column_type.name is not TypeName.JSON:
        begins, ends, nulls = walk.at + 1, walk.quote(3), None
        walk.at, walk.cursor = ends + 1, walk.cursor + 4
    else:
        begins, ends, nulls = _some_null(walk, column_type, first, is_quoted)
    found = walk.strings(begins, ends, nulls, pa.string())
    if column_type.name is TypeName.BYTES:
        return _from_base64(found)
    if column_type.name is TypeName.TEXT:
        return _without_escapes(found) if walk.has_escapes else found
    return _cast(found, kind)


def _some_null(
    walk: _Walk, column_type: ColumnType, first: np.ndarray, is_quoted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a JSON column only NULL has a known length: any other value has to be parsed."""
    nulls = first == _NULL
    if not bool((nulls | is_quoted).all()) or (column_type.name is TypeName.JSON and not nulls.all()):
        raise NotLaidOut
    begins = np.where(nulls, walk.at, walk.at + 1)
    ends = np.where(nulls, walk.at, walk.quote(3))
    walk.at = np.where(nulls, walk.at + 4, ends + 1)
    walk.cursor = walk.cursor + np.where(nulls, 2, 4)
    return begins, ends, nulls


def _cast(found: pa.Array, kind: pa.DataType) -> pa.Array:
    if found.type == kind:
        return found
    try:
        return _times(found, kind) if pa.types.is_time(kind) else found.cast(kind)
    except pa.ArrowInvalid as e:
        raise NotLaidOut from e


def _times(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow reads moments, and no times: so each is read as one of the first day."""
    moments = pc.binary_join_element_wise("1970-01-01T", found, "")
    return moments.cast(pa.timestamp("ns")).cast(kind)


def _from_base64(found: pa.Array) -> pa.Array:
    values: list[Any] = found.cast(pa.binary()).to_pylist()
    try:
        return pa.array([None if v is None else binascii.a2b_base64(v, strict_mode=True) for v in values], pa.binary())
    except binascii.Error as e:
        raise NotLaidOut from e


def _without_escapes(found: pa.Array) -> pa.Array:
    """Only the values that have a backslash are decoded, one by one."""
    escaped = pc.fill_null(pc.match_substring(found, "\\"), False)
    if not pc.any(escaped).as_py():
        return found
    try:
        plain = [msgspec.json.decode(b'"%s"' % v.encode(), type=str) for v in found.filter(escaped).to_pylist()]
    except msgspec.MsgspecError as e:
        raise NotLaidOut from e
    return pc.replace_with_mask(found, escaped, pa.array(plain, pa.string()))
