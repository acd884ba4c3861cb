"""Log batches: the messages of one commit in one partition, as columns.

Stored value (family LOG, key: topic id, partition, first offset). Little-endian, so that the columns can be handed to
Arrow as they are:

    0   u8   format version, 1
    1   u8   flags: 1 = there is a class column
    2   u16  number of classes
    4   u32  number of messages, n >= 1
    8   u64  first offset (as in the key)
    16  u64  commit number
    24  u64  commit time, UTC milliseconds
    32  u64  first message id; the i-th message's is this + i * 1024
    40  u64  bytes of this partition's log before this batch, so that a size is two reads, not a scan
    48  u32  bytes of the class table
    52  u32  bytes of all keys
    56  u64  bytes of all payloads
    64  u64 x n  content hashes
        u32 x n  where each key ends in the key bytes
        u32 x n  where each payload ends in the payload bytes
        u16 x n  each message's class, if flagged; else all are class 0
        class table: MessagePack array of [source table, op, payload mode, user id or nil]
        keys, payloads

A class is what messages share: most commits have one. Everything a commit assigns (offset, commit number, time, ids,
position) is in the fixed head, so a batch encoded elsewhere is finished by patching 40 bytes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tablecast.errors import CorruptData
from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.topic import PayloadMode

LOG_FORMAT = 1
ID_STEP = 1024  # the distance between two ids of one generator: see core.snowflake
HEAD = struct.Struct("<BBHIQQQQQIIQ")
_STAMP = struct.Struct("<QQQQQ")
_STAMP_AT = 8
_HAS_CLASSES = 1
_MAX_U64 = 2**64 - 1
_MAX_TIME_MS = 253_402_300_799_999  # the last millisecond of the year 9999: what a TIMESTAMP can hold
_classes_decoder = msgspec.msgpack.Decoder(list[tuple[str, int, str, str | None]])


class MessageClass(NamedTuple):
    source_table: str
    op: Op
    payload_mode: PayloadMode
    user_id: str | None


class Head(NamedTuple):
    version: int
    flags: int
    classes: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    first_offset: int
    seq: int
    ts_ms: int
    first_id: int
    bytes_before: int
    class_bytes: int
    key_bytes: int
    payload_bytes: int

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.count

    @property
    def last_id(self) -> int:
        return self.first_id + (self.count - 1) * ID_STEP


def encode_log_batch(
    classes: Sequence[MessageClass],
    class_of: Sequence[int],
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    hashes: Sequence[int],
) -> bytes:
    """A batch that still lacks what its commit assigns: see `stamp`."""
    key_data, payload_data = b"".join(keys), b"".join(payloads)
    table = msgspec.msgpack.encode(
        [(c.source_table, int(c.op), c.payload_mode.value, c.user_id) for c in classes]
    )
    flags = _HAS_CLASSES if len(classes) > 1 else 0
    return b"".join(
        (
            HEAD.pack(
                LOG_FORMAT,
                flags,
                len(classes),
                len(keys),
                0,
                0,
                0,
                0,
                0,
                len(table),
                len(key_data),
                len(payload_data),
            ),
            array("Q", hashes).tobytes(),
            array("I", accumulate(map(len, keys))).tobytes(),
            array("I", accumulate(map(len, payloads))).tobytes(),
            array("H", class_of).tobytes() if flags else b"",
            table,
            key_data,
            payload_data,
        )
    )


def stamp(
    batch: bytes, *, first_offset: int, seq: int, ts_ms: int, first_id: int, bytes_before: int
) -> bytes:
    """The finished batch: its place in the log written into its head."""
    head = _STAMP.pack(first_offset, seq, ts_ms, first_id, bytes_before)
    return b"".join((batch[:_STAMP_AT], head, batch[_STAMP_AT + _STAMP.size :]))


def decode_head(data: bytes) -> Head:
    if len(data) < HEAD.size:
        raise CorruptData(f"a log batch of {len(data)} bytes is shorter than its head")
    head = Head(*HEAD.unpack_from(data))
    if head.version != LOG_FORMAT:
        raise CorruptData(f"a log batch has format {head.version}; this tablecast reads {LOG_FORMAT}")
    if head.flags & ~_HAS_CLASSES or head.count < 1 or head.classes < 1:
        raise CorruptData(
            f"the head of the log batch at offset {head.first_offset} is not one: "
            f"flags {head.flags:#x}, {head.count} messages, {head.classes} classes"
        )
    if head.end_offset > _MAX_U64 or head.last_id > _MAX_U64 or head.ts_ms > _MAX_TIME_MS:
        raise CorruptData(
            f"the log batch at offset {head.first_offset} has an offset, id or time that cannot be: "
            f"{head.count} messages, first id {head.first_id}, time {head.ts_ms}"
        )
    return head


class LogBatch:
    """A decoded batch. Columns are views of the stored bytes."""

    __slots__ = (
        "_class_of",
        "_data",
        "_hashes",
        "_key_ends",
        "_keys_at",
        "_payload_ends",
        "_payloads_at",
        "classes",
        "head",
    )

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.head = head = decode_head(data)
        n = head.count
        hashes_at = HEAD.size
        keys_at = hashes_at + 8 * n
        payloads_at = keys_at + 4 * n
        classes_at = payloads_at + 4 * n
        table_at = classes_at + (2 * n if head.flags & _HAS_CLASSES else 0)
        self._keys_at = table_at + head.class_bytes
        self._payloads_at = self._keys_at + head.key_bytes
        if len(data) != self._payloads_at + head.payload_bytes:
            raise CorruptData(
                f"the log batch at offset {head.first_offset} has {len(data)} bytes, not what its head says"
            )
        view = memoryview(data)
        self._hashes = view[hashes_at:keys_at].cast("Q")
        self._key_ends = view[keys_at:payloads_at].cast("I")
        self._payload_ends = view[payloads_at:classes_at].cast("I")
        self._class_of = view[classes_at:table_at].cast("H") if head.flags & _HAS_CLASSES else None
        try:
            rows = _classes_decoder.decode(view[table_at : self._keys_at])
            self.classes = [MessageClass(s, Op(o), PayloadMode(m), u) for s, o, m, u in rows]
        except (msgspec.MsgspecError, ValueError) as e:
            raise CorruptData(
                f"the class table of the log batch at offset {head.first_offset} does not decode: {e}"
            ) from e
        if not self._adds_up():
            raise CorruptData(f"the columns of the log batch at offset {head.first_offset} do not add up")

    def _adds_up(self) -> bool:
        """Whether the columns stay within the bytes and the classes there are: Arrow would not check."""
        head, class_of = self.head, self._class_of
        return (
            len(self.classes) == head.classes
            and _ascends_to(self._key_ends, head.key_bytes)
            and _ascends_to(self._payload_ends, head.payload_bytes)
            and (class_of is None or int(np.frombuffer(class_of, np.uint16).max()) < head.classes)
        )

    def messages(
        self, topic_id: int, partition: int, start: int = 0, stop: int | None = None
    ) -> list[Message]:
        """Messages number start to stop of this batch (0 is the first)."""
        head, data, classes = self.head, self._data, self.classes
        key_ends, payload_ends, class_of = self._key_ends, self._payload_ends, self._class_of
        stop = head.count if stop is None else min(stop, head.count)
        found = []
        key_from = self._keys_at + (key_ends[start - 1] if start else 0)
        payload_from = self._payloads_at + (payload_ends[start - 1] if start else 0)
        for i in range(start, stop):
            key_to, payload_to = self._keys_at + key_ends[i], self._payloads_at + payload_ends[i]
            source, op, mode, user_id = classes[class_of[i] if class_of is not None else 0]
            found.append(
                Message(
                    topic_id, partition, head.first_offset + i, head.first_id + i * ID_STEP, source, op, head.ts_ms,
                    mode, data[key_from:key_to], data[payload_from:payload_to], user_id, head.seq, self._hashes[i],
                )
            )  # fmt: skip
            key_from, payload_from = key_to, payload_to
        return found

    def arrow(self, topic_id: int, partition: int, start: int = 0, stop: int | None = None) -> pa.RecordBatch:
        """The same messages as Arrow columns; keys and payloads are not copied."""
        head, n = self.head, self.head.count
        stop = n if stop is None else min(stop, n)
        count = stop - start
        ordinal = np.arange(start, stop, dtype=np.uint64)
        columns = [
            _constant(topic_id, count, np.uint32),
            _constant(partition, count, np.uint16),
            pa.array(ordinal + np.uint64(head.first_offset)),
            pa.array(ordinal * np.uint64(ID_STEP) + np.uint64(head.first_id)),
            *self._class_columns(start, stop),
            _constant(head.ts_ms, count, np.int64).view(pa.timestamp("ms", "UTC")),
            self._binary(self._key_ends, self._keys_at, head.key_bytes, start, stop),
            self._binary(self._payload_ends, self._payloads_at, head.payload_bytes, start, stop),
            _constant(head.seq, count, np.uint64),
            pa.array(np.frombuffer(self._hashes, dtype=np.uint64)[start:stop]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)

    def _class_columns(self, start: int, stop: int) -> list[pa.Array[Any]]:
        """Source table, op, payload mode, user id: dictionaries over the class table."""
        if self._class_of is None:
            index = np.zeros(stop - start, dtype=np.int32)
        else:
            index = np.frombuffer(self._class_of, dtype=np.uint16)[start:stop].astype(np.int32)
        codes = pa.array(index)
        columns = zip(
            *((c.source_table, c.op.label, c.payload_mode.value, c.user_id) for c in self.classes),
            strict=True,
        )
        return [pa.DictionaryArray.from_arrays(codes, pa.array(values, pa.string())) for values in columns]

    def _binary(self, ends: memoryview, at: int, size: int, start: int, stop: int) -> pa.Array[Any]:
        offsets = np.zeros(stop - start + 1, dtype=np.int32)
        offsets[1:] = np.frombuffer(ends, dtype=np.uint32)[start:stop]
        offsets[0] = ends[start - 1] if start else 0
        data = pa.py_buffer(memoryview(self._data)[at : at + size])
        return pa.Array.from_buffers(pa.binary(), stop - start, [None, pa.py_buffer(offsets), data])


def _ascends_to(ends: memoryview, total: int) -> bool:
    if len(ends) > 1:
        column = np.frombuffer(ends, np.uint32)
        if (column[1:] < column[:-1]).any():
            return False
    return bool(ends[-1] == total)


def _constant(value: int, count: int, dtype: type) -> pa.Array[Any]:
    return pa.array(np.full(count, value, dtype=dtype))


_LABEL = pa.dictionary(pa.int32(), pa.string())
MESSAGE_SCHEMA = pa.schema(
    [
        ("topic_id", pa.uint32()),
        ("partition_id", pa.uint16()),
        ("offset", pa.uint64()),
        ("message_id", pa.uint64()),
        ("source_table", _LABEL),
        ("op", _LABEL),
        ("payload_mode", _LABEL),
        ("user_id", _LABEL),
        ("ts", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("seq", pa.uint64()),
        ("content_hash", pa.uint64()),
    ]
)
