"""Change records (family CHANGES): what the rows that one commit changed in one table were before it.

Going back through them from the rows that are there now gives the table at any earlier commit: an undo log. What a row
was *after* a commit is not stored: it is what the next record has of the row, or the row itself. An insert therefore
costs its key and one byte.

Key: table id (u32), commit number (u64), piece (u16), big-endian. A commit that changed much is cut into pieces, numbered
from 0.

    byte 0       format version, 1
    bytes 1-8    time of the commit, UTC milliseconds, u64 big-endian
    bytes 9-16   bytes of all change records that the table was ever given before this one, u64 big-endian
    rest         MessagePack: [[key, …], [before, …]]

`key` is the row's whole storage key, in the order in which the commit first touched them. `before` is the stored value
(codec.rows) as it was, header included, or nil if there was no row. A key is in one commit once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from tablecast.errors import CorruptData

CHANGES_FORMAT = 1
PIECE_KEYS = 4096  # in one record: a reader holds one at a time
PIECE_BYTES = 256 * 1024  # of before images, likewise; a larger row is a piece of its own

_HEAD = struct.Struct(">BQQ")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]]).decode

Befores = Mapping[bytes, bytes | None]  # storage key -> stored value before the commit; None: there was no row


class ChangeHead(NamedTuple):
    ts_ms: int
    bytes_before: int


def encode_changes(ts_ms: int, bytes_before: int, befores: Befores) -> bytes:
    return _HEAD.pack(CHANGES_FORMAT, ts_ms, bytes_before) + _encode((list(befores), list(befores.values())))


def decode_change_head(data: bytes) -> ChangeHead:
    if len(data) < _HEAD.size:
        raise CorruptData(f"a change record of {len(data)} bytes is shorter than its head of {_HEAD.size}")
    version, ts_ms, bytes_before = _HEAD.unpack_from(data)
    if version != CHANGES_FORMAT:
        raise CorruptData(f"a change record has format {version}; this tablecast reads {CHANGES_FORMAT}")
    return ChangeHead(ts_ms, bytes_before)


def decode_changes(data: bytes) -> dict[bytes, bytes | None]:
    """What a record tells, in its order."""
    decode_change_head(data)
    try:
        keys, befores = _decode(data[_HEAD.size :])
    except (msgspec.MsgspecError, RecursionError) as e:
        raise CorruptData(f"a change record does not decode: {e}") from e
    found = dict(zip(keys, befores, strict=False))
    if not len(found) == len(keys) == len(befores):
        raise CorruptData(
            f"a change record has {len(keys)} keys, {len(found)} of them different, and {len(befores)} rows"
        )
    return found


def image_bytes(befores: Befores) -> int:
    return sum(map(len, filter(None, befores.values())))


def pieces(befores: Befores, size: int) -> Iterable[Befores]:
    """The same, cut to the limits of one record. `size` is that of the images."""
    return (befores,) if len(befores) <= PIECE_KEYS and size <= PIECE_BYTES else _pieces(befores)


def _pieces(befores: Befores) -> Iterator[Befores]:
    entries = iter(befores.items())
    sizes = [0 if before is None else len(before) for before in befores.values()]
    start = 0
    while start < len(sizes):
        stop = _cut(sizes, start)
        yield dict(islice(entries, stop - start))
        start = stop


def _cut(sizes: list[int], start: int) -> int:
    stop = min(start + PIECE_KEYS, len(sizes))
    total = 0
    for i in range(start, stop):
        total += sizes[i]
        if total > PIECE_BYTES:
            return max(i, start + 1)
    return stop
