"""What a group consumed, on its way to a consumer: the stored log batches themselves, and what the claim adds to them.

A MessagePack array:

    0   topic id
    1   slices, each an array: partition, a log batch (codec.log), deliveries of each of its messages (empty: all 1)
    2   next offset, or nil
    3   whether there is more
    4   ranges that retention took: arrays of partition, from, to
    5   consumer
    6   next offsets: a map by partition
    7   how long the consume waited, in seconds; 0 if it is missing, as in answers of earlier servers

So a server copies bytes, and only the consumer, who wants the messages, makes them.
"""

from __future__ import annotations

import msgspec

from tablecast.codec.log import LogBatch
from tablecast.errors import CorruptData
from tablecast.model.message import Consumed, ConsumedLog, Message


class _Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic_id: int
    slices: list[tuple[int, bytes, list[int]]]
    next_offset: int | None
    has_more: bool
    skipped: list[tuple[int, int, int]]
    consumer: str
    next_offsets: dict[int, int] = {}
    waited_seconds: float = 0.0


_decoder = msgspec.msgpack.Decoder(_Packed)


def encode_consumed(consumed: ConsumedLog) -> bytes:
    slices = [(part.partition_id, part.data, list(part.deliveries)) for part in consumed.slices]
    packed = _Packed(
        consumed.topic_id, slices, consumed.next_offset, consumed.has_more, list(consumed.skipped), consumed.consumer,
        dict(consumed.next_offsets), consumed.waited_seconds,
    )  # fmt: skip
    return msgspec.msgpack.encode(packed)


def decode_consumed(data: bytes) -> Consumed:
    try:
        packed = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(f"what was consumed does not decode: {e}") from e
    messages: list[Message] = []
    given: list[tuple[int, int, int]] = []
    for partition, data, deliveries in packed.slices:
        batch = LogBatch(data)
        messages += _messages(batch, packed.topic_id, partition, deliveries)
        given.append((partition, batch.head.first_offset, batch.head.end_offset))
    return Consumed(
        messages, packed.next_offset, packed.has_more, tuple(packed.skipped), packed.consumer, tuple(given),
        packed.next_offsets, packed.waited_seconds,
    )  # fmt: skip


def _messages(batch: LogBatch, topic_id: int, partition: int, deliveries: list[int]) -> list[Message]:
    messages = batch.messages(topic_id, partition)
    if not deliveries:
        return messages
    if len(deliveries) != len(messages):
        raise CorruptData(f"a slice has {len(messages)} messages and {len(deliveries)} delivery counts")
    return [msgspec.structs.replace(m, delivery=n) for m, n in zip(messages, deliveries, strict=True)]
