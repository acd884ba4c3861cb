"""Reading the log: by offset, by time, as messages or as Arrow. One seek finds any offset."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tablecast.codec import keys
from tablecast.codec.log import Head, LogBatch, decode_head, messages_arrow
from tablecast.engine.recent import RecentBatches
from tablecast.errors import OffsetOutOfRange
from tablecast.model.message import Message
from tablecast.model.topic import Topic
from tablecast.storage.base import Family, Reader

ARROW_PIECE_BYTES = 128 * 1024  # payload bytes from which on a piece of a long read is handed on


def batches_from(
    reader: Reader, topic_id: int, partition: int, offset: int, end: int, recent: RecentBatches | None = None
) -> Iterator[LogBatch]:
    """The log batches that hold offsets offset <= … < end. The one it stops inside of is kept in `recent`."""
    while recent is not None and offset < end and (kept := recent.find(topic_id, partition, offset)) is not None:
        yield kept
        offset = kept.head.end_offset
    if offset >= end:
        return
    start = keys.log_key(topic_id, partition, offset)
    prefix = keys.log_prefix(topic_id, partition)
    for key, value in reader.scan(Family.LOG, start, keys.log_key(topic_id, partition, end), floor=True):
        if not key.startswith(prefix):
            continue  # the floor of a partition that begins later is its neighbour's last batch
        batch = LogBatch(value)
        if recent is not None and batch.head.end_offset > end:
            recent.keep(topic_id, partition, batch)
        if batch.head.end_offset > offset:
            yield batch


def stored_batches(reader: Reader, topic_id: int, partition: int, offset: int, end: int) -> Iterator[bytes]:
    """The log batches that hold offsets offset <= … < end, as they are stored, cut to these offsets at both ends.

    For whoever passes them on: nothing is looked at but their heads. Raises OffsetOutOfRange where the log has a gap:
    what stood there is not kept any more.
    """
    prefix = keys.log_prefix(topic_id, partition)
    start = keys.log_key(topic_id, partition, offset)
    for key, value in reader.scan(Family.LOG, start, keys.log_key(topic_id, partition, end), floor=True):
        head = decode_head(value)
        if not key.startswith(prefix) or head.end_offset <= offset:
            continue  # the floor of a partition that begins later
        if head.first_offset > offset:
            raise gone(topic_id, partition, offset, head.first_offset)
        is_whole = head.first_offset == offset and head.end_offset <= end
        yield value if is_whole else LogBatch(value).cut(offset - head.first_offset, end - head.first_offset)
        offset = min(head.end_offset, end)
    if offset < end:
        raise gone(topic_id, partition, offset, end)


def read_messages(
    reader: Reader,
    topic_id: int,
    partition: int,
    offset: int,
    end: int,
    limit: int,
    recent: RecentBatches | None = None,
) -> list[Message]:
    """At most `limit` messages from `offset` on, below `end`."""
    found: list[Message] = []
    for batch in batches_from(reader, topic_id, partition, offset, min(end, offset + limit), recent):
        first = batch.head.first_offset
        found += batch.messages(topic_id, partition, max(0, offset - first), min(end, offset + limit) - first)
    if found and found[0].offset != offset:
        raise gone(topic_id, partition, offset, found[0].offset)
    return found


def read_arrow(reader: Reader, topic_id: int, partition: int, offset: int, end: int) -> Iterator[pa.RecordBatch]:
    """Messages offset <= … < end as Arrow record batches, so that a reader need not hold them all.

    Small batches are put together, a large one is one of its own: holding several large ones before handing them on
    costs more (fresh memory, page by page) than decoding them.
    """
    piece: list[LogBatch] = []
    size = 0
    for batch in batches_from(reader, topic_id, partition, offset, end):
        piece.append(batch)
        size += batch.head.payload_bytes
        if size >= ARROW_PIECE_BYTES:
            yield messages_arrow(piece, topic_id, partition, offset, end)
            piece, size = [], 0
    if piece:
        yield messages_arrow(piece, topic_id, partition, offset, end)


def not_there(topic: Topic, partition: int, offset: int, first: int, end: int) -> OffsetOutOfRange:
    """`end` is the offset that the next message will have."""
    what = "is no longer kept" if offset < first else "is not in the log yet"
    kept = f"holds {first} to {end - 1}" if first < end else f"holds nothing, its next offset is {end}"
    return OffsetOutOfRange(
        f"offset {offset} {what}: partition {partition} of {topic.full_name} {kept}",
        topic=topic.full_name, partition=partition, offset=offset, log_start=first, log_end=end,
    )  # fmt: skip


def gone(topic_id: int, partition: int, offset: int, log_start: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"offset {offset} of partition {partition} is no longer kept: the log begins at {log_start}",
        topic_id=topic_id,
        partition=partition,
        offset=offset,
        log_start=log_start,
    )


def head_at(reader: Reader, topic_id: int, partition: int, offset: int) -> Head | None:
    """The head of the batch that holds `offset`."""
    start = keys.log_key(topic_id, partition, offset)
    prefix = keys.log_prefix(topic_id, partition)
    for key, value in reader.scan(Family.LOG, start, keys.after(prefix), floor=True):
        if key.startswith(prefix):
            head = decode_head(value)
            return head if head.first_offset <= offset < head.end_offset else None
    return None


def last_head(reader: Reader, topic_id: int, partition: int) -> tuple[Head, int] | None:
    """The head of a partition's last batch, and that batch's bytes."""
    prefix = keys.log_prefix(topic_id, partition)
    for _, value in reader.scan(Family.LOG, prefix, keys.after(prefix), reverse=True):
        return decode_head(value), len(value)
    return None


def offset_at_time(reader: Reader, topic_id: int, partition: int, ts_ms: int, start: int, end: int) -> int:
    """The first offset in [start, end] whose message is not older than `ts_ms`: a bisection over batches."""
    low, high = start, end
    while low < high:
        head = head_at(reader, topic_id, partition, (low + high) // 2)
        if head is None:
            raise gone(topic_id, partition, (low + high) // 2, start)
        if head.ts_ms >= ts_ms:
            high = max(head.first_offset, low)
        else:
            low = head.end_offset
    return min(low, end)


def offset_within_bytes(
    reader: Reader, topic_id: int, partition: int, keep_bytes: int, bytes_end: int, start: int, end: int
) -> int:
    """The first offset of the oldest batch from which the log, to its end, takes at most `keep_bytes`."""
    low, high = start, end
    while low < high:
        head = head_at(reader, topic_id, partition, (low + high) // 2)
        if head is None:
            raise gone(topic_id, partition, (low + high) // 2, start)
        if bytes_end - head.bytes_before <= keep_bytes:
            high = max(head.first_offset, low)
        else:
            low = head.end_offset
    return min(low, end)
