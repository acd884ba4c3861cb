"""A range of one partition's log on its way to a reader: stored log batches, one frame after the other.

    u32 n           little-endian; then n bytes, a log batch (codec.log), cut to the range where it begins or ends
    u32 0           the end; then u64: the offset after the last message
    u32 0xFFFFFFFF  it cannot go on; then u32 size and an error as MessagePack: {code, message, details}

A stream without an end or an error was cut off on the way, however whole its last frame looks. Frames follow each other
without a gap in their offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tablecast.codec.log import decode_head
from tablecast.errors import CorruptData, TablecastError

LOG_STREAM = "application/vnd.tablecast.log-stream"
MAX_FRAME_BYTES = 2**31  # a log batch holds one commit's messages of one partition; a length beyond this is no length
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_END, _ERROR = 0, 0xFFFF_FFFF

Read = Callable[[int], bytes]
"""Exactly so many bytes, or fewer at the end of what arrives."""


class StreamedError(msgspec.Struct, frozen=True):
    code: str
    message: str
    details: dict[str, Any] = {}


class LogStreamFailed(Exception):
    """The sender said why it stopped; whoever reads knows the classes of errors."""

    def __init__(self, error: StreamedError) -> None:
        super().__init__(error.message)
        self.error = error


def encode_frame(batch: bytes) -> tuple[bytes, bytes]:
    """Two pieces, so that nobody copies the batch for four bytes in front of it."""
    return _U32.pack(len(batch)), batch


def encode_end(next_offset: int) -> bytes:
    return _U32.pack(_END) + _U64.pack(next_offset)


def encode_error(error: TablecastError) -> bytes:
    body = msgspec.msgpack.encode(StreamedError(error.code, error.message, error.details), enc_hook=str)
    return _U32.pack(_ERROR) + _U32.pack(len(body)) + body


def read_frames(read: Read, start: int) -> Iterator[bytes]:
    """The log batches from offset `start` on, to the end mark. Raises LogStreamFailed or CorruptData."""
    at = start
    while (size := _u32(read)) != _END:
        if size == _ERROR:
            raise LogStreamFailed(_error(_exactly(read, _u32(read))))
        if size > MAX_FRAME_BYTES:
            raise CorruptData(f"a frame of {size} bytes after offset {at}: a log stream has none so long")
        batch = _exactly(read, size)
        head = decode_head(batch)
        if head.first_offset != at:
            raise CorruptData(f"a log stream goes on at offset {head.first_offset} instead of {at}")
        at = head.end_offset
        yield batch
    (end,) = _U64.unpack(_exactly(read, _U64.size))
    if end != at:
        raise CorruptData(f"a log stream says that it ends at offset {end}, and does at {at}")


def _u32(read: Read) -> int:
    size: int = _U32.unpack(_exactly(read, _U32.size))[0]
    return size


def _exactly(read: Read, size: int) -> bytes:
    data = read(size)
    if len(data) != size:
        raise CorruptData(f"a log stream breaks off: {len(data)} bytes of {size}")
    return data


def _error(body: bytes) -> StreamedError:
    try:
        return msgspec.msgpack.decode(body, type=StreamedError)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(f"the error in a log stream does not decode: {e}") from e
