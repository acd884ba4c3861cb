"""A sealed part: rows and messages of one part of a load, finished by whoever had the rows.

The commit that takes it in assigns places and stamps; it looks at no row. One file, little-endian, written from front to
back while rows come in; what it holds is told at its end:

    0   8 bytes  "tcsealed"
    8   u8       format version, 1
    9   7 bytes  zero
    16           log batches (see codec.log), not yet at their place: of one partition in the order of its rows
                 the SST: row keys in order; each value is a row header of format 2 (see codec.rows) and the row's body
                 key blocks: the same keys again, so that they can be compared without the store's help
                 first key, last key
                 index: 32 bytes per log batch: u32 topic id, u16 partition, u16 zero, u32 messages, u32 zero,
                 u64 where it begins in this file, u64 bytes
    footer of 88 bytes:
        u32      table id
        u32      log batches
        u64      load number
        u64      rows
        u64      messages
        u64      where the SST begins
        u64      bytes of the SST; 0 when there are no rows
        u64      bytes of the key blocks
        u32      bytes of the first key
        u32      bytes of the last key
        u64      bytes of the whole file
        u64      XXH3-64 of all bytes before this one
        8 bytes  "tcsealed"

A key block holds up to 65,536 keys: u32 keys n, u32 bytes of keys, u32 x (n + 1) where each begins and the last one
ends, the keys. It becomes an Arrow array as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64

from tablecast.codec import keys
from tablecast.errors import CorruptData

SEALED_FORMAT = 1
KEYS_PER_BLOCK = 65_536  # what a merge of many parts holds in memory of each
_MAGIC = b"tcsealed"
_HEAD = struct.Struct("<8sB7x")
_BLOCK = struct.Struct("<II")
_ENTRY = struct.Struct("<IHHIIQQ")
_FOOTER = struct.Struct("<IIQQQQQQIIQ")
_TAIL = struct.Struct("<Q8s")
_COPY_BYTES = 2**20
_TABLE_ID_BYTES = 4


class SealedBatch(NamedTuple):
    """A log batch in the file."""

    topic_id: int
    partition: int
    offset: int  # where it begins in the file
    size: int
    count: int  # type: ignore[assignment]  # messages; hides tuple.count, which nobody needs here


@dataclass(frozen=True, slots=True)
class SealedPart:
    """What a sealed part says of itself. `batches` of one partition stand in the order of their messages."""

    table_id: int
    load_number: int
    rows: int
    first_key: bytes
    last_key: bytes
    sst_offset: int
    sst_size: int
    keys_offset: int
    keys_size: int
    messages: int
    batches: tuple[SealedBatch, ...]
    size: int


# --- writing -------------------------------------------------------------------------------------------------


class SealedWriter:
    """Writes a part: its log batches as they are made, then `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = xxh3_64()
        self._written = 0
        self._index: list[SealedBatch] = []
        self._write(_HEAD.pack(_MAGIC, SEALED_FORMAT))

    @property
    def batches(self) -> tuple[SealedBatch, ...]:
        """Those that were added."""
        return tuple(self._index)

    def add_batch(self, topic_id: int, partition: int, count: int, batch: bytes) -> None:
        """A log batch of `count` messages."""
        self._index.append(SealedBatch(topic_id, partition, self._written, len(batch), count))
        self._write(batch)

    def finish(
        self, *, table_id: int, load_number: int, row_keys: pa.Array, sst: BinaryIO | None, sst_size: int
    ) -> SealedPart:
        """`row_keys` are the keys of the SST."""
        rows, sst_at = len(row_keys), self._written
        first, last = (row_keys[0].as_py(), row_keys[rows - 1].as_py()) if rows else (b"", b"")
        self._copy(sst, sst_size)
        keys_at = self._written
        for at in range(0, rows, KEYS_PER_BLOCK):
            self._write(_key_block(row_keys[at : at + KEYS_PER_BLOCK]))
        keys_size = self._written - keys_at
        self._write(first + last)
        for entry in self._index:
            self._write(_ENTRY.pack(entry.topic_id, entry.partition, 0, entry.count, 0, entry.offset, entry.size))
        size = self._written + _FOOTER.size + _TAIL.size
        messages = sum(entry.count for entry in self._index)
        self._write(
            _FOOTER.pack(
                table_id, len(self._index), load_number, rows, messages, sst_at, sst_size, keys_size, len(first),
                len(last), size,
            )
        )  # fmt: skip
        self._file.write(_TAIL.pack(self._digest.intdigest(), _MAGIC))
        return SealedPart(
            table_id, load_number, rows, first, last, sst_at, sst_size, keys_at, keys_size, messages,
            tuple(self._index), size,
        )  # fmt: skip

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._written += len(data)

    def _copy(self, source: BinaryIO | None, size: int) -> None:
        while size:
            data = source.read(min(size, _COPY_BYTES)) if source is not None else b""
            if not data:
                raise CorruptData(f"the SST of a sealed part ends {size} bytes before its size")
            self._write(data)
            size -= len(data)


def write_sealed(
    file: BinaryIO,
    *,
    table_id: int,
    load_number: int,
    row_keys: pa.Array,
    sst: BinaryIO | None,
    sst_size: int,
    batches: Iterable[tuple[int, int, int, bytes]],
) -> int:
    """The whole part at once: `batches` are (topic id, partition, messages, log batch). Returns its bytes."""
    writer = SealedWriter(file)
    for batch in batches:
        writer.add_batch(*batch)
    return writer.finish(table_id=table_id, load_number=load_number, row_keys=row_keys, sst=sst, sst_size=sst_size).size


def _key_block(block: pa.Array) -> bytes:
    n = len(block)
    _, starts_buffer, data = block.buffers()
    starts = np.frombuffer(starts_buffer, np.int32)[block.offset : block.offset + n + 1]
    first, end = int(starts[0]), int(starts[-1])
    positions = (starts - first).astype("<u4")
    return b"".join((_BLOCK.pack(n, end - first), positions.tobytes(), memoryview(data)[first:end]))


# --- reading -------------------------------------------------------------------------------------------------


def read_sealed(file: BinaryIO, *, verify: bool = True) -> SealedPart:
    """What the file says of itself; CorruptData if it is not a whole sealed part. `verify` compares its checksum."""
    size = file.seek(0, 2)
    if size < _HEAD.size + _FOOTER.size + _TAIL.size:
        _corrupt(f"it has {size} bytes, too few to be one")
    magic, version = _HEAD.unpack(_read_exactly(file, 0, _HEAD.size))
    if magic != _MAGIC:
        _corrupt("it does not begin as one")
    if version != SEALED_FORMAT:
        raise CorruptData(f"a sealed part has format {version}; this tablecast reads {SEALED_FORMAT}")
    if verify:
        _verify(file, size)
    footer_at = size - _FOOTER.size - _TAIL.size
    footer = _FOOTER.unpack(_read_exactly(file, footer_at, _FOOTER.size))
    table_id, count, load_number, rows, messages, sst_at, sst_size, keys_size, first, last, said = footer
    first_at = sst_at + sst_size + keys_size
    index_at = first_at + first + last
    if said != size or sst_at < _HEAD.size or index_at + count * _ENTRY.size != footer_at:
        _corrupt("its sizes do not add up")
    keys_read = _read_exactly(file, first_at, first + last)
    first_key, last_key = keys_read[:first], keys_read[first:]
    _check_keys(table_id, rows, sst_size, first_key, last_key)
    batches = _read_index(_read_exactly(file, index_at, count * _ENTRY.size), sst_at, messages)
    return SealedPart(
        table_id, load_number, rows, first_key, last_key, sst_at, sst_size, sst_at + sst_size, keys_size, messages,
        batches, size,
    )  # fmt: skip


def _check_keys(table_id: int, rows: int, sst_size: int, first_key: bytes, last_key: bytes) -> None:
    if not rows:
        sound = not sst_size and not first_key and not last_key
    else:
        prefix = keys.table_prefix(table_id)
        sound = sst_size > 0 and first_key[:_TABLE_ID_BYTES] == last_key[:_TABLE_ID_BYTES] == prefix
        sound = sound and (first_key < last_key if rows > 1 else first_key == last_key)
    if not sound:
        _corrupt(f"its first and last key do not fit {rows} rows of table {table_id}")


def _verify(file: BinaryIO, size: int) -> None:
    digest, left = xxh3_64(), size - _TAIL.size
    file.seek(0)
    while left:
        data = file.read(min(left, _COPY_BYTES))
        if not data:
            _corrupt("it ends early")
        digest.update(data)
        left -= len(data)
    if _TAIL.unpack(file.read(_TAIL.size)) != (digest.intdigest(), _MAGIC):
        _corrupt("its checksum is not that of its bytes")


def _read_index(data: bytes, sst_at: int, messages: int) -> tuple[SealedBatch, ...]:
    entries = _ENTRY.iter_unpack(data)
    batches = tuple(SealedBatch(topic, part, at, length, n) for topic, part, _, n, _, at, length in entries)
    at = _HEAD.size
    for batch in batches:
        if batch.offset != at or batch.count < 1:
            _corrupt("its log batches do not follow one another")
        at += batch.size
    if at != sst_at or sum(batch.count for batch in batches) != messages:
        _corrupt("its log batches do not add up")
    return batches


def read_batch(file: BinaryIO, batch: SealedBatch) -> bytes:
    """The log batch, not yet at its place: see `codec.log.stamp`."""
    return _read_exactly(file, batch.offset, batch.size)


def read_key_blocks(file: BinaryIO, part: SealedPart) -> Iterator[pa.Array]:
    """All row keys in order, as binary arrays of up to `KEYS_PER_BLOCK`; one block is in memory at a time."""
    at, end, rows = part.keys_offset, part.keys_offset + part.keys_size, 0
    while at < end:
        n, size = _BLOCK.unpack(_read_exactly(file, at, _BLOCK.size))
        length = 4 * (n + 1) + size
        at += _BLOCK.size
        if not 0 < n <= KEYS_PER_BLOCK or at + length > end:
            _corrupt("a block of its keys does not fit")
        yield _block_array(_read_exactly(file, at, length), n, size)
        at += length
        rows += n
    if rows != part.rows:
        _corrupt(f"it has {rows} keys for {part.rows} rows")


def _block_array(data: bytes, n: int, size: int) -> pa.Array:
    starts = np.frombuffer(data, np.int32, n + 1)
    if starts[0] != 0 or starts[-1] != size or bool((starts[1:] < starts[:-1]).any()):
        _corrupt("the positions in a block of its keys do not ascend")
    view = memoryview(data)
    buffers = [None, pa.py_buffer(view[: 4 * (n + 1)]), pa.py_buffer(view[4 * (n + 1) :])]
    return pa.Array.from_buffers(pa.binary(), n, buffers)


def copy_sst(file: BinaryIO, part: SealedPart, target: BinaryIO) -> None:
    """The SST as a file of its own, ready to be ingested."""
    file.seek(part.sst_offset)
    left = part.sst_size
    while left:
        data = file.read(min(left, _COPY_BYTES))
        if not data:
            _corrupt("its SST ends early")
        target.write(data)
        left -= len(data)


def _read_exactly(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if len(data) != size:
        _corrupt(f"it ends at byte {at + len(data)}, before byte {at + size}")
    return data


def _corrupt(why: str) -> NoReturn:
    raise CorruptData(f"the file is not a sealed part: {why}")
