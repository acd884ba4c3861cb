"""Payloads of one table as columns, without parsing them: the quick way of `typed`.

The encoder's layout is fixed (docs/formats/payload.md): members in the order of the table, no spaces. So the bytes of
many payloads are walked column by column, all rows at once:

    {"_table":"app.orders","id":"42","customer":"ann","n":7}
    ^ start                ^ `,"id":` must stand here, in every row; then a quote, `n` of null, or a bare value

A quoted value ends at the next quote that is not escaped, a bare one at the next comma or brace; both are looked for
eight bytes at a time (`_Walk.next_of`). What lies between two values must equal the literal in every row, and each row
must end where its walk ends: then the columns are what a parser would have found. A column is a pair of positions per
row; Arrow copies them out as strings and casts. Whatever does not fit raises `NotLaidOut`, and the caller parses.
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
# How long a text of the type is at least. One that is shorter runs on to another quote, and then does not cast.
_SHORTEST = {TypeName.TIMESTAMP: 19, TypeName.DATE: 10, TypeName.UUID: 36, TypeName.TIME: 8}
_BARE = {TypeName.BOOLEAN, TypeName.SMALLINT, TypeName.INT, TypeName.FLOAT, TypeName.DOUBLE}
_WORD = 8  # bytes looked at together
_FEW_ROWS = 32  # whose values are still not at their end: from here on each is searched by itself
_PIECE = 4096  # bytes of one of them at a time
_encode = msgspec.json.Encoder().encode

Literal = list[tuple[int, np.uint64, np.uint64]]  # words: where, which bits count, what they must be


class NotLaidOut(Exception):
    """These payloads are not as the encoder lays them out: they have to be parsed."""


class Layout:
    """How payloads of one table lie. Made once per reader."""

    def __init__(self, schema: TableSchema, types: list[pa.DataType]) -> None:
        self._columns = list(zip(schema.columns, types, strict=True))
        self._names = [b"," + _encode(column.name) + b":" for column in schema.columns]
        self._literals = [_words(name) for name in self._names]
        self._table = b'{"_table":' + _encode(schema.full_name)  # every message of the table begins with it

    def columns(self, payloads: pa.Array) -> list[pa.Array | None]:
        """One array per column, or None for a column that none of the payloads has yet. Raises NotLaidOut."""
        walk = _Walk(payloads)
        walk.at = walk.begins + len(self._table)
        found: list[pa.Array | None] = []
        for number, (column, kind) in enumerate(self._columns):
            if number and walk.is_over():
                return found + [None] * (len(self._columns) - number)
            walk.literal(len(self._names[number]), self._literals[number])
            found.append(_value(walk, column, kind, is_last=number == len(self._columns) - 1))
        if not walk.is_over():
            raise NotLaidOut
        return found


def _words(expected: bytes) -> Literal:
    """The bytes as words; the last one may overlap the one before, and of a short literal only some bits count."""
    places = [*range(0, len(expected) - _WORD, _WORD), max(len(expected) - _WORD, 0)]
    found = []
    for at in places:
        piece = expected[at : at + _WORD]
        mask = int.from_bytes(b"\xff" * len(piece), "little")
        found.append((at, np.uint64(mask), np.uint64(int.from_bytes(piece, "little"))))
    return found


# --- words ------------------------------------------------------------------------------------------------------

_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


def _everywhere(byte: int) -> np.uint64:
    return np.uint64(byte) * _ONES


_QUOTES, _BACKSLASHES, _COMMAS, _ENDS = map(_everywhere, b'"\\,}')


def _marked(words: np.ndarray, wanted: np.uint64) -> np.ndarray:
    """The high bit of each byte that is the wanted one, and perhaps of bytes after the first that is."""
    differing = words ^ wanted
    marked: np.ndarray = (differing - _ONES) & ~differing & _HIGHS
    return marked


def _first_marked(marks: np.ndarray) -> np.ndarray:
    """The number of the first byte that is marked; of a word without marks, the last."""
    below = np.bitwise_count(marks ^ (marks - np.uint64(1)))  # the bits up to the first that is set
    first: np.ndarray = (below >> 3).astype(np.int64) - 1
    return first


class _Walk:
    """Where every row's walk stands: `at` in the bytes."""

    def __init__(self, payloads: pa.Array) -> None:
        _, starts, data = payloads.buffers()
        self.rows = len(payloads)
        self.buffer = data
        bounds = np.frombuffer(starts, np.int32)[payloads.offset : payloads.offset + self.rows + 1].astype(np.int64)
        self.begins, self.ends = bounds[:-1], bounds[1:]
        self.at = self.begins
        self.size = int(bounds[-1])
        # A word that begins at the last byte must end within the bytes.
        self.data = np.zeros(self.size + _WORD, np.uint8)
        if data is not None:
            self.data[: self.size] = np.frombuffer(data, np.uint8)[: self.size]
        self._words = np.ndarray((self.size + 1,), np.dtype("<u8"), buffer=self.data, strides=(1,))
        self.has_escapes = bool((self.data[int(bounds[0]) :] == _BACKSLASH).any())

    def words(self, at: np.ndarray) -> np.ndarray:
        if int(at.max()) > self.size:
            raise NotLaidOut
        found: np.ndarray = self._words[at]
        return found

    def literal(self, size: int, expected: Literal) -> None:
        """The bytes that must come next in every row; the walk stands behind them then."""
        for place, mask, wanted in expected:
            if not bool((self.words(self.at + place) & mask == wanted).all()):
                raise NotLaidOut
        self.at = self.at + size

    def closing_quote(self, begins: np.ndarray) -> np.ndarray:
        return self.next_of(begins, (_QUOTES, _BACKSLASHES) if self.has_escapes else (_QUOTES,))

    def next_of(self, begins: np.ndarray, wanted: tuple[np.uint64, ...]) -> np.ndarray:
        """Where the first wanted byte is from each place on. A backslash among them hides the byte that comes after it."""
        marks, at = self._look(begins, wanted)
        going = np.flatnonzero((marks == 0) | (self.data[at] == _BACKSLASH))
        while len(going) > _FEW_ROWS:
            seen = marks[going] != 0
            further, found = self._look(at[going] + 1 + seen, wanted)  # an escaped byte is left out
            at[going], marks[going] = found, further
            going = going[(further == 0) | (self.data[found] == _BACKSLASH)]
        for row in going:
            at[row] = self._search(int(at[row]) + 1 + bool(marks[row]), wanted)
        return at

    def _look(self, begins: np.ndarray, wanted: tuple[np.uint64, ...]) -> tuple[np.ndarray, np.ndarray]:
        words = self.words(begins)
        marks = _marked(words, wanted[0])
        for other in wanted[1:]:
            marks |= _marked(words, other)
        return marks, np.minimum(begins + _first_marked(marks), self.size)

    def _search(self, at: int, wanted: tuple[np.uint64, ...]) -> int:
        """One row by itself: its value may be as long as it likes."""
        stops = [int(each) & 0xFF for each in wanted]
        while at < self.size:
            piece = self.data[at : at + _PIECE].tobytes()
            found = min((i for stop in stops if (i := piece.find(stop)) >= 0), default=-1)
            if found < 0:
                at += len(piece)
            elif piece[found] == _BACKSLASH:
                at += found + 2
            else:
                return at + found
        raise NotLaidOut

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
        bounds = np.empty(2 * self.rows + 1, np.int32)
        bounds[0:-1:2], bounds[1::2], bounds[-1] = begins, ends, ends[-1]
        if not bool((bounds[1:] >= bounds[:-1]).all()) or int(ends[-1]) > self.size:
            raise NotLaidOut
        pieces = pa.Array.from_buffers(kind, 2 * self.rows, [None, pa.py_buffer(bounds), self.buffer])
        return pieces.take(pa.array(np.arange(0, 2 * self.rows, 2), mask=nulls))


# --- values -----------------------------------------------------------------------------------------------------


def _value(walk: _Walk, column: Column, kind: pa.DataType, *, is_last: bool) -> pa.Array:
    if int(walk.at.max()) >= walk.size:
        raise NotLaidOut
    first = walk.data[walk.at]
    if column.type.name in _BARE:
        return _bare(walk, column.type, kind, first, is_last)
    return _quoted(walk, column.type, kind, first)


def _bare(walk: _Walk, column_type: ColumnType, kind: pa.DataType, first: np.ndarray, is_last: bool) -> pa.Array:
    begins = walk.at
    ends = walk.ends - 1 if is_last else walk.next_of(begins, (_COMMAS, _ENDS))
    walk.at = ends
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
        begins, nulls = walk.at + 1, None
        ends = walk.closing_quote(begins + _SHORTEST.get(column_type.name, 0))
        walk.at = ends + 1
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
    # A NULL has no quote: in its place the first of the row is found, which is near, and not used.
    shortest = _SHORTEST.get(column_type.name, 0)
    quotes = walk.closing_quote(np.where(nulls, walk.begins, begins + shortest))
    ends = np.where(nulls, walk.at, quotes)
    walk.at = np.where(nulls, walk.at + 4, ends + 1)
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
