"""Log batches: the messages of one commit in one partition, as columns.

Stored value (family LOG, key: topic id, partition, first offset). Little-endian and laid out as Arrow lays out its
columns, so that hashes, keys and payloads become Arrow arrays without a copy:

    0   u8   format version, 1
    1   u8   flags: 1 = there is a class column, 2 = the payloads are packed
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
    64  u64 x n        content hashes
        u32 x (n + 1)  where each key begins in the key bytes, and where the last one ends
        u32 x (n + 1)  likewise for payloads
        u16 x n        each message's class, if flagged; else all are class 0
        class table: MessagePack array of [source table, op, payload mode, user id or nil]
        keys, payloads; packed ones are one LZ4 block of all payload bytes

Large batches are packed when they are made. The store, whoever passes them on, and the network then move a quarter of the bytes,
and they are unpacked once, by whoever reads messages.

A class is what messages share: most commits have one. Everything a commit assigns (offset, commit number, time, ids,
position) is in the fixed head, so a batch encoded elsewhere is finished by patching 40 bytes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tablecast.errors import CorruptData
from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.topic import PayloadMode

LOG_FORMAT = 1
LOG_BATCH_MESSAGES = 16_384  # one log batch at most: a reader decodes a whole batch to serve one message of it
LOG_BATCH_BYTES = 4 * 2**20  # and at most about this many payload bytes, for the same reason
ID_STEP = 1024  # the distance between two ids of one generator: see core.snowflake
HEAD = struct.Struct("<BBHIQQQQQIIQ")
_STAMP = struct.Struct("<QQQQQ")
_STAMP_AT = 8
_HAS_CLASSES = 1
_PACKED = 2
PACK_BYTES = 32 * 2**10  # payload bytes of a batch from which on packing pays
_MOST_UNPACKED = 256  # bytes that LZ4 makes of one, at most
_MAX_U64 = 2**64 - 1
_MAX_TIME_MS = 253_402_300_799_999  # the last millisecond of the year 9999: what a TIMESTAMP can hold
_FEW = 64  # up to here a plain list is made or checked faster than numpy is called
_lz4 = pa.Codec("lz4_raw")
_LABEL = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("ms", "UTC")
_U64 = pa.uint64()
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
        ("ts", _TIME),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("seq", pa.uint64()),
        ("content_hash", pa.uint64()),
    ]
)


class MessageClass(NamedTuple):
    source_table: str
    op: Op
    payload_mode: PayloadMode
    user_id: str | None


_classes_decoder = msgspec.msgpack.Decoder(list[MessageClass])


class Head(NamedTuple):
    version: int
    flags: int
    classes: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
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


class Place(NamedTuple):
    """What a commit assigns to a batch."""

    first_offset: int
    seq: int
    ts_ms: int
    first_id: int
    bytes_before: int


NOWHERE = Place(0, 0, 0, 0, 0)


def encode_log_batch(
    classes: Sequence[MessageClass],
    class_of: Sequence[int],
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    hashes: Sequence[int],
    place: Place = NOWHERE,
) -> bytes:
    """The batch at its place in the log; without one it still lacks what its commit assigns: see `stamp`."""
    table = msgspec.msgpack.encode([(c.source_table, int(c.op), c.payload_mode.value, c.user_id) for c in classes])
    has_classes = len(classes) > 1
    key_starts, key_bytes = _starts(keys)
    payload_starts, payload_bytes = _starts(payloads)
    packed, bodies = _packed(payloads, payload_bytes)
    head = HEAD.pack(
        LOG_FORMAT, _HAS_CLASSES * has_classes | packed, len(classes), len(keys), *place, len(table), key_bytes,
        payload_bytes,
    )  # fmt: skip
    columns = [head, array("Q", hashes).tobytes(), key_starts, payload_starts]
    if has_classes:
        columns.append(array("H", class_of).tobytes())
    # One join: a copy of all payloads on the way would cost as much as the rest.
    return b"".join((*columns, table, *keys, *bodies))


def _starts(values: Sequence[bytes]) -> tuple[bytes, int]:
    """Where each value begins and the last one ends, as a column; and all their bytes."""
    if len(values) <= _FEW:
        few = array("I", accumulate(map(len, values), initial=0))
        return few.tobytes(), few[-1]
    many = np.zeros(len(values) + 1, np.uint32)
    np.cumsum(np.fromiter(map(len, values), np.uint32, len(values)), out=many[1:])
    return many.tobytes(), int(many[-1])


def _packed(payloads: Sequence[bytes | memoryview], size: int) -> tuple[int, Sequence[bytes | memoryview]]:
    """The flag, and what to store. What does not become smaller by a quarter at least stays as it is."""
    if size < PACK_BYTES:
        return 0, payloads
    packed = _lz4.compress(payloads[0] if len(payloads) == 1 else b"".join(payloads), asbytes=True)
    return (_PACKED, [packed]) if len(packed) * 4 <= size * 3 else (0, payloads)


def encode_log_columns(
    message_class: MessageClass,
    pieces: Sequence[tuple[pa.Array, pa.Array, np.ndarray]],
    place: Place = NOWHERE,
) -> bytes:
    """The same batch of messages of one class, which are given as pieces: binary arrays of keys and payloads, and their
    hashes. No message is looked at, and none is copied but into the batch."""
    source, op, mode, user_id = message_class
    table = msgspec.msgpack.encode([(source, int(op), mode.value, user_id)])
    key_starts, keys = _starts_and_data([piece[0] for piece in pieces])
    payload_starts, payloads = _starts_and_data([piece[1] for piece in pieces])
    count, sizes = len(key_starts) - 1, (len(table), int(key_starts[-1]), int(payload_starts[-1]))
    packed, bodies = _packed(payloads, sizes[-1])
    head = HEAD.pack(LOG_FORMAT, packed, 1, count, *place, *sizes)
    hashes = np.concatenate([piece[2] for piece in pieces]).astype("<u8", copy=False)
    columns = (hashes.tobytes(), key_starts.tobytes(), payload_starts.tobytes())
    return b"".join((head, *columns, table, *keys, *bodies))


def _starts_and_data(arrays: Sequence[pa.Array]) -> tuple[np.ndarray, list[memoryview]]:
    """Where each value begins and the last one ends, over all arrays, and their bytes."""
    lengths, views = [np.zeros(1, np.int32)], []
    for values in arrays:
        _, starts_buffer, data = values.buffers()
        starts = np.frombuffer(starts_buffer, np.int32)[values.offset : values.offset + len(values) + 1]
        lengths.append(np.diff(starts))
        views.append(memoryview(b"" if data is None else data)[int(starts[0]) : int(starts[-1])])
    return np.concatenate(lengths).cumsum(dtype="<u4"), views


def stamp(batch: bytes, *, first_offset: int, seq: int, ts_ms: int, first_id: int, bytes_before: int) -> bytes:
    """A batch that was encoded elsewhere, finished: its place in the log written into its head."""
    head = _STAMP.pack(first_offset, seq, ts_ms, first_id, bytes_before)
    return b"".join((batch[:_STAMP_AT], head, batch[_STAMP_AT + _STAMP.size :]))


def decode_head(data: bytes) -> Head:
    if len(data) < HEAD.size:
        raise CorruptData(f"a log batch of {len(data)} bytes is shorter than its head")
    head = Head._make(HEAD.unpack_from(data))
    if head.version != LOG_FORMAT:
        raise CorruptData(f"a log batch has format {head.version}; this tablecast reads {LOG_FORMAT}")
    if head.flags & ~(_HAS_CLASSES | _PACKED) or head.count < 1 or head.classes < 1:
        raise CorruptData(
            f"the head of the log batch at offset {head.first_offset} is not one: "
            f"flags {head.flags:#x}, {head.count} messages, {head.classes} classes"
        )
    last_id = head.first_id + (head.count - 1) * ID_STEP
    if head.end_offset > _MAX_U64 or last_id > _MAX_U64 or head.ts_ms > _MAX_TIME_MS:
        raise CorruptData(
            f"the log batch at offset {head.first_offset} has an offset, id or time that cannot be: "
            f"{head.count} messages, last id {last_id}, time {head.ts_ms} ms"
        )
    return head


def _decode_classes(table: bytes | memoryview, count: int) -> list[MessageClass]:
    try:
        classes = _classes_decoder.decode(table)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(f"the class table of a log batch does not decode: {e}") from e
    if len(classes) != count:
        raise CorruptData(f"the class table of a log batch has {len(classes)} classes, the head says {count}")
    return classes


def _unpacked(data: bytes, at: int, head: Head) -> memoryview:
    """In Arrow's memory, which it keeps for the next: a megabyte from the system, and back, costs ten times what unpacking
    does (measured where the server bounds its free memory: 433 µs for 5,000 messages, 45 here)."""
    if head.payload_bytes > _MOST_UNPACKED * (len(data) - at):
        raise CorruptData(f"the log batch at offset {head.first_offset} cannot hold as much as its head says")
    try:
        found = memoryview(_lz4.decompress(memoryview(data)[at:], head.payload_bytes))
    except (OSError, ValueError) as e:
        raise CorruptData(f"the payloads of the log batch at offset {head.first_offset} do not unpack: {e}") from e
    if len(found) != head.payload_bytes:
        raise CorruptData(f"the log batch at offset {head.first_offset} does not hold what its head says")
    return found


def _ascend(starts: memoryview, total: int) -> bool:
    """Whether a column of positions goes from 0 to `total` and never back: Arrow would follow it anywhere."""
    if starts[0] != 0 or starts[-1] != total:
        return False
    if len(starts) <= _FEW:
        values = starts.tolist()
        return values == sorted(values)
    column = np.frombuffer(starts, np.uint32)
    return bool((column[1:] >= column[:-1]).all())


class LogBatch:
    """A decoded batch. Its columns are views of the stored bytes, but for payloads that were packed."""

    __slots__ = (
        "_class_of",
        "_data",
        "_hashes",
        "_key_starts",
        "_keys_at",
        "_payload_data",
        "_payload_starts",
        "_payloads_at",
        "_table",
        "head",
    )

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.head = head = decode_head(data)
        n = head.count
        keys_at = HEAD.size + 8 * n
        payloads_at = keys_at + 4 * (n + 1)
        classes_at = payloads_at + 4 * (n + 1)
        table_at = classes_at + (2 * n if head.flags & _HAS_CLASSES else 0)
        self._keys_at = table_at + head.class_bytes
        self._payloads_at = self._keys_at + head.key_bytes
        self._payload_data: bytes | memoryview = data
        if head.flags & _PACKED:
            self._payload_data, self._payloads_at = _unpacked(data, self._payloads_at, head), 0
        elif len(data) != self._payloads_at + head.payload_bytes:
            raise CorruptData(
                f"the log batch at offset {head.first_offset} has {len(data)} bytes, not what its head says"
            )
        view = memoryview(data)
        self._hashes = view[HEAD.size : keys_at].cast("Q")
        self._key_starts = view[keys_at:payloads_at].cast("I")
        self._payload_starts = view[payloads_at:classes_at].cast("I")
        self._class_of = view[classes_at:table_at].cast("H") if head.flags & _HAS_CLASSES else None
        self._table = view[table_at : self._keys_at]
        if not (
            _ascend(self._key_starts, head.key_bytes)
            and _ascend(self._payload_starts, head.payload_bytes)
            and (self._class_of is None or int(np.frombuffer(self._class_of, np.uint16).max()) < head.classes)
        ):
            raise CorruptData(f"the columns of the log batch at offset {head.first_offset} do not add up")

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self._data) + (0 if self._payload_data is self._data else len(self._payload_data))

    def classes(self) -> list[MessageClass]:
        return _decode_classes(self._table, self.head.classes)

    def messages(self, topic_id: int, partition: int, start: int = 0, stop: int | None = None) -> list[Message]:
        """Messages number start to stop of this batch (0 is the first)."""
        head, data, classes = self.head, self._data, self.classes()
        stop = head.count if stop is None else min(stop, head.count)
        if start >= stop:
            return []
        if stop - start == 1:
            return [self._message(topic_id, partition, start, classes)]
        payload_data, payloads_at = self._sliceable_payloads(start, stop)
        # Plain lists: what is read once for every message is read faster from them than from a view of the bytes.
        keys = [self._keys_at + at for at in self._key_starts[start : stop + 1].tolist()]
        payloads = [payloads_at + at for at in self._payload_starts[start : stop + 1].tolist()]
        # No tuples inside of the tuples of `zip`: taking them apart was a third of the work (0.49 µs a message, 0.34 without).
        columns = (
            range(head.first_offset + start, head.first_offset + stop),
            range(head.first_id + start * ID_STEP, head.first_id + stop * ID_STEP, ID_STEP),
            keys, keys[1:], payloads, payloads[1:], self._hashes[start:stop].tolist(),
        )  # fmt: skip
        ts_ms, seq = head.ts_ms, head.seq
        if self._class_of is None:
            source, op, mode, user_id = classes[0]
            return [
                Message(
                    topic_id, partition, offset, message_id, source, op, ts_ms, mode, data[key:key_end],
                    payload_data[payload:payload_end], user_id, seq, content_hash,
                )
                for offset, message_id, key, key_end, payload, payload_end, content_hash
                in zip(*columns, strict=False)  # where the last one ends is no beginning
            ]  # fmt: skip
        said = [classes[number] for number in self._class_of[start:stop].tolist()]
        return [
            Message(
                topic_id, partition, offset, message_id, source, op, ts_ms, mode, data[key:key_end],
                payload_data[payload:payload_end], user_id, seq, content_hash,
            )
            for offset, message_id, key, key_end, payload, payload_end, content_hash, (source, op, mode, user_id)
            in zip(*columns, said, strict=False)
        ]  # fmt: skip

    def _message(self, topic_id: int, partition: int, number: int, classes: list[MessageClass]) -> Message:
        """One alone, which is all that a commit of one row has: by columns it would take twice as long (2.1 µs, 0.9 here)."""
        head, (key, key_end) = self.head, self._key_starts[number : number + 2]
        payload, payload_end = self._payload_starts[number : number + 2]
        payload_data, payloads_at = self._sliceable_payloads(number, number + 1)
        source, op, mode, user_id = classes[0 if self._class_of is None else self._class_of[number]]
        return Message(
            topic_id, partition, head.first_offset + number, head.first_id + number * ID_STEP, source, op, head.ts_ms, mode,
            self._data[self._keys_at + key : self._keys_at + key_end],
            payload_data[payloads_at + payload : payloads_at + payload_end], user_id, head.seq, self._hashes[number],
        )  # fmt: skip

    def _sliceable_payloads(self, start: int, stop: int) -> tuple[bytes, int]:
        """Payloads of these messages as bytes, which are the quickest to slice, and where in them the batch's first would be."""
        if isinstance(self._payload_data, bytes):
            return self._payload_data, self._payloads_at
        first, end = self._payload_starts[start], self._payload_starts[stop]
        return bytes(self._payload_data[first:end]), -first

    def cut(self, start: int, stop: int) -> bytes:
        """Messages number start to stop as a batch of their own, made column by column, and packed again if they were:
        who asks for them is mostly elsewhere, and fewer bytes are sent and received in less time than packing takes."""
        head, start, stop = self.head, max(start, 0), min(stop, self.head.count)
        if start == 0 and stop == head.count:
            return self._data
        keys, payloads = (
            np.frombuffer(starts, np.uint32)[start : stop + 1] for starts in (self._key_starts, self._payload_starts)
        )
        size = int(payloads[-1] - payloads[0])
        payloads_at = self._payloads_at + int(payloads[0])
        plain = [memoryview(self._payload_data)[payloads_at : payloads_at + size]]
        packed, bodies = _packed(plain, size) if head.flags & _PACKED else (0, plain)
        new_head = HEAD.pack(
            head.version, head.flags & ~_PACKED | packed, head.classes, stop - start, head.first_offset + start, head.seq, head.ts_ms,
            head.first_id + start * ID_STEP, head.bytes_before, head.class_bytes, int(keys[-1] - keys[0]), size,
        )  # fmt: skip
        columns: list[bytes | memoryview] = [
            new_head, self._hashes[start:stop].tobytes(), (keys - keys[0]).tobytes(), (payloads - payloads[0]).tobytes()
        ]  # fmt: skip
        if self._class_of is not None:
            columns.append(self._class_of[start:stop].tobytes())
        columns += (
            self._table,
            memoryview(self._data)[self._keys_at + int(keys[0]) : self._keys_at + int(keys[-1])],
            *bodies,
        )
        return b"".join(columns)

    # --- as Arrow ---

    def hash_array(self) -> pa.Array:
        return pa.Array.from_buffers(_U64, self.head.count, [None, pa.py_buffer(self._hashes)])

    def key_array(self) -> pa.Array:
        return self._binary(self._key_starts, self._data, self._keys_at, self.head.key_bytes)

    def payload_array(self) -> pa.Array:
        return self._binary(self._payload_starts, self._payload_data, self._payloads_at, self.head.payload_bytes)

    def _binary(self, starts: memoryview, data: bytes | memoryview, at: int, size: int) -> pa.Array:
        values = pa.py_buffer(memoryview(data)[at : at + size])
        return pa.Array.from_buffers(pa.binary(), self.head.count, [None, pa.py_buffer(starts), values])

    def class_numbers(self) -> np.ndarray | None:
        """Each message's class, or None: all are class 0."""
        return None if self._class_of is None else np.frombuffer(self._class_of, dtype=np.uint16)


def messages_arrow(
    batches: Iterable[LogBatch], topic_id: int, partition: int, start: int = 0, stop: int | None = None
) -> pa.RecordBatch:
    """Consecutive batches of one partition as one record batch, cut to offsets start <= … < stop.

    Of a batch alone, keys, payloads and hashes point into the stored bytes. Of several they are joined, and what each
    says once in its head is repeated for its messages by one vectorised step over all of them.
    """
    found = list(batches)
    if not found:
        return pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
    whole = _one_arrow(found[0], topic_id, partition) if len(found) == 1 else _many_arrow(found, topic_id, partition)
    first = found[0].head.first_offset
    skipped = max(0, start - first)
    if not skipped and (stop is None or stop >= first + whole.num_rows):
        return whole
    return whole.slice(skipped, None if stop is None else max(0, stop - first - skipped))


def _one_arrow(batch: LogBatch, topic_id: int, partition: int) -> pa.RecordBatch:
    """A large batch alone: what does not change from batch to batch is made once and shared."""
    head, n = batch.head, batch.head.count
    ordinal, id_steps = _ordinals(n)
    if batch.class_numbers() is None:
        labels = _shared_labels(bytes(batch._table), head.classes, n)
    else:
        labels = tuple(_class_columns([batch], np.array([n])))
    return pa.RecordBatch.from_arrays(
        [
            *_shared_place(topic_id, partition, n),
            pa.array(ordinal + np.uint64(head.first_offset)),
            pa.array(id_steps + np.uint64(head.first_id)),
            *labels,
            _buffer_array(_TIME, np.full(n, head.ts_ms, dtype=np.int64)),
            batch.key_array(),
            batch.payload_array(),
            _buffer_array(_U64, np.full(n, head.seq, dtype=np.uint64)),
            batch.hash_array(),
        ],
        schema=MESSAGE_SCHEMA,
    )


def _buffer_array(kind: pa.DataType, values: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


@lru_cache(maxsize=64)
def _ordinals(n: int) -> tuple[np.ndarray, np.ndarray]:
    ordinal = np.arange(n, dtype=np.uint64)
    return ordinal, ordinal * np.uint64(ID_STEP)


@lru_cache(maxsize=64)
def _shared_place(topic_id: int, partition: int, n: int) -> tuple[pa.Array, pa.Array]:
    return pa.array(np.full(n, topic_id, dtype=np.uint32)), pa.array(np.full(n, partition, dtype=np.uint16))


@lru_cache(maxsize=64)
def _shared_labels(table: bytes, classes: int, n: int) -> tuple[pa.Array, ...]:
    """The label columns of a batch that has one class."""
    return _labels(_decode_classes(table, classes)[:1], np.zeros(n, dtype=np.int32))


def _many_arrow(found: list[LogBatch], topic_id: int, partition: int) -> pa.RecordBatch:
    heads = np.array([batch.head[3:8] for batch in found], dtype=np.uint64)
    counts, (firsts, seqs, times, ids) = heads[:, 0].astype(np.int64), heads[:, 1:].T
    total = int(counts.sum())
    begins = (np.cumsum(counts) - counts).astype(np.uint64)
    ordinal = np.arange(total, dtype=np.uint64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(total, topic_id, dtype=np.uint32)),
            pa.array(np.full(total, partition, dtype=np.uint16)),
            pa.array(np.repeat(firsts - begins, counts) + ordinal),
            pa.array(np.repeat(ids - begins * np.uint64(ID_STEP), counts) + ordinal * np.uint64(ID_STEP)),
            *_class_columns(found, counts),
            _buffer_array(_TIME, np.repeat(times, counts).view(np.int64)),
            pa.concat_arrays([batch.key_array() for batch in found]),
            pa.concat_arrays([batch.payload_array() for batch in found]),
            pa.array(np.repeat(seqs, counts)),
            pa.concat_arrays([batch.hash_array() for batch in found]),
        ],
        schema=MESSAGE_SCHEMA,
    )


def _class_columns(found: list[LogBatch], counts: np.ndarray) -> list[pa.Array]:
    """Source table, op, payload mode and user id: dictionaries over all classes of all batches."""
    numbers: dict[MessageClass, int] = {}
    tables: dict[tuple[bytes, int], list[int]] = {}  # a class table -> the numbers of its classes; most share one
    first_class: list[int] = []
    for batch in found:
        said = bytes(batch._table), batch.head.classes
        if said not in tables:
            tables[said] = [numbers.setdefault(c, len(numbers)) for c in batch.classes()]
        first_class.append(tables[said][0])
    codes = np.repeat(np.array(first_class, dtype=np.int32), counts)
    at = 0
    for batch in found:
        own = batch.class_numbers()
        if own is not None:
            codes[at : at + len(own)] = np.array(tables[bytes(batch._table), batch.head.classes], dtype=np.int32)[own]
        at += batch.head.count
    return list(_labels(list(numbers), codes))


def _labels(classes: list[MessageClass], codes: np.ndarray) -> tuple[pa.Array, ...]:
    index = pa.array(codes)
    columns = zip(*((c.source_table, c.op.label, c.payload_mode.value, c.user_id) for c in classes), strict=True)
    return tuple(pa.DictionaryArray.from_arrays(index, pa.array(values, pa.string())) for values in columns)
