"""Payloads of one table as columns, without parsing them: the quick way of `typed`.

The encoder's layout is fixed (docs/formats/payload.md): members in the order of the table, no spaces. So the bytes of
many payloads are walked column by column, all rows at once:

    {"_table":"app.orders","id":"42","customer":"ann","n":7}
    ^ start                ^ `,"id":` must stand here, in every row; then a quote, `n` of null, or a bare value

What lies between two values must equal the literal in every row, and each row must end where its walk ends: then the
columns are what a parser would have found. A quoted value ends at the next quote that is not escaped, a bare one at the
next comma or brace. Fetching bytes from a place of its own for each row is what costs most, and fetching sixty costs as
little as fetching one: so a `_Window` fetches a column's literal and the beginning of its value at once, and both are
looked at there, eight bytes at a time. Short numbers and moments are read there too (`typed_numbers`, `typed_moments`);
other values are pairs of positions that Arrow copies out as strings and casts. Whatever does not fit raises `NotLaidOut`, and
the caller parses.
"""

from __future__ import annotations

import binascii
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.model.schema import Column, TableSchema, TypeName
from tablecast.spark.typed_moments import BYTES, moments
from tablecast.spark.typed_numbers import DIGITS, WORD, fixed, whole

_QUOTE, _BACKSLASH, _NULL, _END, _TRUE = b'"\\n}t'
# How long a text of the type is at least. One that is shorter runs on to another quote, and then does not cast.
_SHORTEST = {TypeName.TIMESTAMP: 19, TypeName.DATE: 10, TypeName.UUID: 36, TypeName.TIME: 8}
_BARE = {TypeName.BOOLEAN, TypeName.SMALLINT, TypeName.INT, TypeName.FLOAT, TypeName.DOUBLE}
_FEW_ROWS = 32  # whose values are still not at their end: from here on each is searched by itself
_PIECE = 4096  # bytes of one of them at a time
_NUMBERS = {TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT, TypeName.DECIMAL}
_LITTLE = np.dtype("<u8")
_encode = msgspec.json.Encoder().encode


class NotLaidOut(Exception):
    """These payloads are not as the encoder lays them out: they have to be parsed."""


class Layout:
    """How payloads of one table lie. Made once per reader; not for several threads."""

    def __init__(self, schema: TableSchema, types: list[pa.DataType]) -> None:
        self._columns = [_Laid(column, kind) for column, kind in zip(schema.columns, types, strict=True)]
        self._table = b'{"_table":' + _encode(schema.full_name)  # every message of the table begins with it
        self._least = max(column.window for column in self._columns)

    def columns(self, payloads: pa.Array) -> list[pa.Array | None]:
        """One array per column, or None for a column that none of the payloads has yet. Raises NotLaidOut."""
        walk = self._walk(payloads)
        walk.at = walk.begins + len(self._table)
        found: list[pa.Array | None] = []
        for number, column in enumerate(self._columns):
            if number and walk.is_over():
                return found + [None] * (len(self._columns) - number)
            found.append(_value(walk, column, is_last=number == len(self._columns) - 1))
        if not walk.is_over():
            raise NotLaidOut
        return found

    def _walk(self, payloads: pa.Array) -> _Walk:
        _, starts, data = payloads.buffers()
        bounds = np.frombuffer(starts, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1].astype(np.int64)
        found = np.frombuffer(data or b"", np.uint8)
        if len(found) < self._least:  # a window must have its place
            found = np.concatenate((found, np.zeros(self._least, np.uint8)))
        return _Walk(bounds, data, found)


class _Laid:
    """A column, the literal before its values, and how many bytes of both are fetched at once."""

    def __init__(self, column: Column, kind: pa.DataType) -> None:
        self.type, self.kind = column.type, kind
        self.is_bare = column.type.name in _BARE
        literal = b"," + _encode(column.name) + b":"
        self.place = len(literal)  # of the value, from where its column begins
        # A window begins some bytes before, so that what comes after the opening quote begins a word.
        self.lead = -(self.place + (not self.is_bare)) % WORD
        self.literal, self.opened = _expected(literal, self.lead), _expected(literal + b'"', self.lead)
        # An opening quote, and two words from where a value of the type may end.
        needed = self.lead + self.place + 1 + _SHORTEST.get(column.type.name, 0) + 2 * WORD
        self.window = -(-needed // WORD) * WORD


Expected = list[tuple[np.uint64, np.uint64]]


def _expected(literal: bytes, lead: int) -> Expected:
    """Of each word of a window that has the literal, which bits count, and what they must be."""
    counting, wanted = bytes(lead) + b"\xff" * len(literal), bytes(lead) + literal
    return [(_word(counting[at : at + WORD]), _word(wanted[at : at + WORD])) for at in range(0, len(wanted), WORD)]


def _word(piece: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(piece, "little"))


# --- words ------------------------------------------------------------------------------------------------------

_ALL = np.uint64(2**64 - 1)
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)


def _everywhere(byte: int) -> np.uint64:
    return np.uint64(byte) * _ONES


_QUOTES, _BACKSLASHES, _COMMAS, _ENDS = map(_everywhere, b'"\\,}')
Wanted = tuple[np.uint64, ...]


def _marked(words: np.ndarray, wanted: Wanted) -> np.ndarray:
    """The high bit of each byte that is a wanted one, and perhaps of bytes after the first that is."""
    marks = _marked_of_one(words, wanted[0])
    for each in wanted[1:]:
        marks |= _marked_of_one(words, each)
    return marks


def _marked_of_one(words: np.ndarray, wanted: np.uint64) -> np.ndarray:
    differing = words ^ wanted
    marks = differing - _ONES
    np.invert(differing, out=differing)
    marks &= differing
    marks &= _HIGHS
    return marks


def _first_marked(marks: np.ndarray) -> np.ndarray:
    """The number of the first byte that is marked; of a word without marks, the last."""
    bits = marks - np.uint64(1)
    bits ^= marks  # the bits up to the first that is set
    first: np.ndarray = (np.bitwise_count(bits) >> 3).astype(np.int64)
    first -= 1
    return first


class _Window:
    """As many bytes of every row, from `lead` bytes before where its walk stands."""

    def __init__(self, fetched: np.ndarray, lead: int) -> None:
        self._bytes = fetched.view(np.uint8)
        self._rows, self._size, self._lead = len(fetched), fetched.itemsize, lead

    def byte(self, place: int) -> np.ndarray:
        return np.ndarray((self._rows,), np.uint8, self._bytes, self._lead + place, (self._size,))

    def word(self, place: int) -> np.ndarray:
        at = self._lead + place
        found = np.ndarray((self._rows,), _LITTLE, self._bytes, at, (self._size,))
        return found.copy() if at % WORD else found

    def begins_with(self, literal: Expected) -> bool:
        """In every row."""
        for number, (counting, wanted) in enumerate(literal):
            word = self.word(number * WORD - self._lead)
            if not bool(((word if counting == _ALL else word & counting) == wanted).all()):
                return False
        return True


class _Walk:
    """Where every row's walk stands: `at` in the bytes, of which the rows' end at `size`."""

    def __init__(self, bounds: np.ndarray, buffer: pa.Buffer, data: np.ndarray) -> None:
        self.rows = len(bounds) - 1
        self.buffer = buffer
        self.begins, self.lasts = bounds[:-1], bounds[1:] - 1
        self.at = self.begins
        self.data, self.size = data, int(bounds[-1])
        self.has_escapes = self._has(_BACKSLASH, int(bounds[0]))
        self.quotes: Wanted = (_QUOTES, _BACKSLASHES) if self.has_escapes else (_QUOTES,)

    def _has(self, byte: int, begin: int) -> bool:
        """As one string: numpy then looks with `memchr`, and makes no array of as many answers."""
        if begin >= self.size:
            return False
        text = np.ndarray((1,), f"S{self.size - begin}", self.data, begin)
        return bool(np.strings.find(text, bytes([byte]))[0] >= 0)

    def window(self, column: _Laid) -> _Window:
        return _Window(self._fetched(self.at - column.lead, column.window), column.lead)

    def _fetched(self, at: np.ndarray, size: int) -> np.ndarray:
        """Void items: numpy copies them as they are, and would look at numbers that are not aligned one by one."""
        last = len(self.data) - size  # from here on there is less than a window
        furthest = int(at.max())
        if furthest > self.size:
            raise NotLaidOut
        windows = np.ndarray((last + 1,), f"V{size}", self.data, 0, (1,))
        found: np.ndarray = windows[at if furthest <= last else np.minimum(at, last)]
        for row in np.flatnonzero(at > last) if furthest > last else ():
            found[row] = np.void(self.data[at[row] :].tobytes().ljust(size, b"\0"))
        return found

    def end_of(self, window: _Window, place: int, wanted: Wanted) -> np.ndarray:
        """Where the first wanted byte is, from that place of the window on."""
        if self.has_escapes:
            return self.next_of(self.at + place, wanted)
        marks = _marked(window.word(place), wanted)
        first = _first_marked(marks)
        if not marks.all():
            later = _marked(window.word(place + WORD), wanted)
            first = np.where(marks, first, _first_marked(later) + WORD)
            marks |= later
        first += place
        first += self.at
        if not marks.all():
            going = np.flatnonzero(marks == 0)
            first[going] = self.next_of(first[going] + 1, wanted)
        return first

    def next_of(self, begins: np.ndarray, wanted: Wanted) -> np.ndarray:
        """Where the first wanted byte is from each place on. A backslash among them hides the byte that comes after it."""
        marks, at = self._look(begins, wanted)
        going = np.flatnonzero((marks == 0) | self._is_escape(at))
        while len(going) > _FEW_ROWS:
            seen = marks[going] != 0
            further, found = self._look(at[going] + 1 + seen, wanted)  # an escaped byte is left out
            at[going], marks[going] = found, further
            going = going[(further == 0) | self._is_escape(found)]
        for row in going:
            at[row] = self._search(int(at[row]) + 1 + bool(marks[row]), wanted)
        return at

    def _is_escape(self, at: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.data.take(at, mode="clip") == _BACKSLASH  # what is not found is beyond the bytes
        return found

    def _look(self, begins: np.ndarray, wanted: Wanted) -> tuple[np.ndarray, np.ndarray]:
        marks = _marked(self._fetched(begins, WORD).view(_LITTLE), wanted)
        return marks, np.minimum(begins + _first_marked(marks), self.size)

    def _search(self, at: int, wanted: Wanted) -> int:
        """One row by itself: its value may be as long as it likes."""
        stops = [int(each) & 0xFF for each in wanted]
        while at < self.size:
            piece = self.data[at : min(at + _PIECE, self.size)].tobytes()
            found = min((i for stop in stops if (i := piece.find(stop)) >= 0), default=-1)
            if found < 0:
                at += len(piece)
            elif piece[found] == _BACKSLASH:
                at += found + 2
            else:
                return at + found
        raise NotLaidOut

    def is_over(self) -> bool:
        """Whether every row ends here. Raises NotLaidOut if the first does and others do not: then columns were added in
        between. If others do and the first does not, they lack what is looked for next."""
        if self.at[0] != self.lasts[0]:
            return False
        if not ((self.at == self.lasts).all() and (self.data[self.at] == _END).all()):
            raise NotLaidOut
        return True

    def strings(self, begins: np.ndarray, ends: np.ndarray, nulls: np.ndarray | None, kind: pa.DataType) -> pa.Array:
        """The bytes between, copied out. Seen as one Arrow array, values and what lies between them alternate."""
        bounds = np.empty(2 * self.rows + 1, np.int32)
        bounds[0:-1:2], bounds[1::2], bounds[-1] = begins, ends, ends[-1]
        if not bool((bounds[1:] >= bounds[:-1]).all()) or int(ends[-1]) > self.size:
            raise NotLaidOut
        pieces = pa.Array.from_buffers(kind, 2 * self.rows, [None, pa.py_buffer(bounds), self.buffer])
        return pieces.take(_even(self.rows) if nulls is None else pa.array(np.arange(0, 2 * self.rows, 2), mask=nulls))


@lru_cache(maxsize=16)
def _even(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2))


# --- values -----------------------------------------------------------------------------------------------------


def _value(walk: _Walk, column: _Laid, *, is_last: bool) -> pa.Array:
    window = walk.window(column)
    is_opened = not column.is_bare and window.begins_with(column.opened)
    if not is_opened and not window.begins_with(column.literal):
        raise NotLaidOut
    if int(walk.at.max()) + column.place >= walk.size:
        raise NotLaidOut
    if column.is_bare:
        return _bare(walk, window, column, is_last)
    return _quoted(walk, window, column, is_opened)


def _bare(walk: _Walk, window: _Window, column: _Laid, is_last: bool) -> pa.Array:
    first = window.byte(column.place)
    begins = walk.at + column.place
    ends = walk.lasts if is_last else walk.end_of(window, column.place, (_COMMAS, _ENDS))
    walk.at = ends
    is_null = first == _NULL
    nulls = is_null if is_null.any() else None
    if column.type.name is TypeName.BOOLEAN:
        return _booleans(first, ends - begins, nulls)
    if nulls is None and (read := _read_there(window, column, column.place, ends - begins)) is not None:
        return read
    return _cast(walk.strings(begins, ends, nulls, pa.string()), column.kind)


def _booleans(first: np.ndarray, sizes: np.ndarray, nulls: np.ndarray | None) -> pa.Array:
    is_true = first == _TRUE
    if not bool(((sizes == 4) & (is_true | (first == _NULL)) | (sizes == 5) & (first == ord("f"))).all()):
        raise NotLaidOut
    return pa.array(is_true, mask=nulls)


def _quoted(walk: _Walk, window: _Window, column: _Laid, is_opened: bool) -> pa.Array:
    name, nulls, place = column.type.name, None, column.place + 1
    if is_opened and name is not TypeName.JSON:
        if name is TypeName.TIMESTAMP and (moment := _moments(walk, window, column, place)) is not None:
            return moment
        begins = walk.at + place
        ends = walk.end_of(window, place + _SHORTEST.get(name, 0), walk.quotes)
        walk.at = ends + 1
        if (read := _read_there(window, column, place, ends - begins)) is not None:
            return read
    else:
        begins, ends, nulls = _some_null(walk, column, window.byte(column.place))
    found = walk.strings(begins, ends, nulls, pa.string())
    if name is TypeName.BYTES:
        return _from_base64(found)
    if name is TypeName.TEXT:
        return _without_escapes(found) if walk.has_escapes else found
    return _cast(found, column.kind)


def _moments(walk: _Walk, window: _Window, column: _Laid, place: int) -> pa.Array | None:
    found = moments([window.word(place + at) for at in range(0, BYTES, WORD)])
    if found is None:
        return None
    walk.at = walk.at + (found.sizes + place + 1)
    return pa.Array.from_buffers(column.kind, walk.rows, [None, pa.py_buffer(found.micros)])


def _read_there(window: _Window, column: _Laid, place: int, sizes: np.ndarray) -> pa.Array | None:
    """A number that is short enough to be read in the window. None if it must be read another way."""
    name, kind = column.type.name, column.kind
    if name not in _NUMBERS or (longest := int(sizes.max())) > DIGITS:
        return None
    words = [window.word(place + at) for at in range(0, longest, WORD)]
    if name is not TypeName.DECIMAL:
        numbers = whole(words, sizes)
        return None if numbers is None else _narrowed(numbers, kind)
    numbers = fixed(words, sizes, kind.scale)
    if numbers is None or int(numbers.max()) >= 10**kind.precision:
        return None
    wide = np.zeros((len(numbers), 2), np.int64)  # the upper half of a number that is not negative is 0
    wide[:, 0] = numbers
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(wide)])


def _narrowed(numbers: np.ndarray, kind: pa.DataType) -> pa.Array:
    """None of them is negative."""
    narrow = np.dtype(kind.to_pandas_dtype())
    if int(numbers.max()) > np.iinfo(narrow).max:
        raise NotLaidOut
    return pa.array(numbers.astype(narrow, copy=False))


def _some_null(walk: _Walk, column: _Laid, first: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a JSON column only NULL has a known length: any other value has to be parsed."""
    nulls = first == _NULL
    if not bool((nulls | (first == _QUOTE)).all()) or (column.type.name is TypeName.JSON and not nulls.all()):
        raise NotLaidOut
    at = walk.at + column.place
    begins = np.where(nulls, at, at + 1)
    # A NULL has no quote: in its place the first of the row is found, which is near, and not used.
    shortest = _SHORTEST.get(column.type.name, 0)
    quotes = walk.next_of(np.where(nulls, walk.begins, begins + shortest), walk.quotes)
    ends = np.where(nulls, at, quotes)
    walk.at = np.where(nulls, at + 4, ends + 1)
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
