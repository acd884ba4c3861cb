"""Messages as answers.

JSON: `payload` is base64 of the JSON text, `key` is its text, ids and hashes are strings, because 64 bits are more than a
browser counts. MessagePack: the same fields, `payload` and `key` as bytes, all numbers as numbers. Arrow: the columns of
a whole-topic read and `delivery`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from tablecast.codec.log import MESSAGE_SCHEMA
from tablecast.model.message import Consumed, Message
from tablecast.server.answers import header_text

ARROW_SCHEMA = MESSAGE_SCHEMA.append(pa.field("delivery", pa.uint32()))


class MessageOut(msgspec.Struct, frozen=True):
    topic_id: int
    partition_id: int
    offset: int
    message_id: str
    source_table: str
    op: str
    ts: int
    payload_mode: str
    key: str
    payload: bytes
    user_id: str | None
    seq: int
    content_hash: str
    delivery: int


class MessagePacked(msgspec.Struct, frozen=True):
    topic_id: int
    partition_id: int
    offset: int
    message_id: int
    source_table: str
    op: str
    ts: int
    payload_mode: str
    key: bytes
    payload: bytes
    user_id: str | None
    seq: int
    content_hash: int
    delivery: int


class ConsumeAnswer(msgspec.Struct, frozen=True):
    messages: list[MessageOut]
    next_offset: int | None
    next_offsets: Mapping[int, int]
    has_more: bool
    skipped: list[tuple[int, int, int]]
    consumer: str | None
    waited_seconds: float


class ConsumePacked(msgspec.Struct, frozen=True):
    messages: list[MessagePacked]
    next_offset: int | None
    next_offsets: Mapping[int, int]
    has_more: bool
    skipped: list[tuple[int, int, int]]
    consumer: str | None
    waited_seconds: float


def consumed_out(found: Consumed) -> ConsumeAnswer:
    messages = [_out(message) for message in found.messages]
    return ConsumeAnswer(messages, *_rest(found))


def consumed_packed(found: Consumed) -> ConsumePacked:
    messages = [_packed(message) for message in found.messages]
    return ConsumePacked(messages, *_rest(found))


_Rest = tuple[int | None, Mapping[int, int], bool, list[tuple[int, int, int]], str | None, float]


def _rest(found: Consumed) -> _Rest:
    return (
        found.next_offset, found.next_offsets, found.has_more, list(found.skipped), found.consumer, found.waited_seconds,
    )  # fmt: skip


def _out(m: Message) -> MessageOut:
    return MessageOut(
        m.topic_id, m.partition_id, m.offset, str(m.message_id), m.source_table, m.op.label, m.ts, m.payload_mode.value,
        m.key.decode(), m.payload, m.user_id, m.seq, str(m.content_hash), m.delivery,
    )  # fmt: skip


def _packed(m: Message) -> MessagePacked:
    return MessagePacked(
        m.topic_id, m.partition_id, m.offset, m.message_id, m.source_table, m.op.label, m.ts, m.payload_mode.value,
        m.key, m.payload, m.user_id, m.seq, m.content_hash, m.delivery,
    )  # fmt: skip


def consumed_arrow(found: Consumed) -> pa.RecordBatch:
    rows = [msgspec.structs.asdict(packed) for packed in map(_packed, found.messages)]
    metadata = {"next_offsets": msgspec.json.encode(found.next_offsets)}  # no header: of many partitions it is long
    return pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA.with_metadata(metadata))


def consumed_headers(found: Consumed) -> dict[str, str]:
    """What an Arrow stream has no place for."""
    headers = {
        "X-Has-More": "true" if found.has_more else "false",
        "X-Skipped": msgspec.json.encode(found.skipped).decode(),
        "X-Waited-Seconds": f"{found.waited_seconds:g}",
    }
    if found.next_offset is not None:
        headers["X-Next-Offset"] = str(found.next_offset)
    if found.consumer is not None:
        headers["X-Consumer"] = header_text(found.consumer)
    return headers
