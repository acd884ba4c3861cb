"""What a group consumed, on its way to a consumer: the stored log batches themselves, and what the claim adds to them.

A MessagePack array:

    0   topic id
    1   slices, each an array: partition, a log batch (codec.log), deliveries of each of its messages (empty: all 1)
    2   next offset, or nil
    3   whether there is more
    4   ranges that retention took: arrays of partition, from, to
    5   consumer

So a server copies bytes, and only the consumer, who wants the messages, makes them.
"""

from __future__ import annotations

import msgspec

from tablecast.codec.log import LogBatch
from tablecast.errors import CorruptData
from tablecast.model.message import Consumed, ConsumedLog, LogSlice, Message


class _Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic_id: int
    slices: list[tuple[int, bytes, list[int]]]
    next_offset: int | None
    has_more: bool
    skipped: list[tuple[int, int, int]]
    consumer: str


_decoder = msgspec.msgpack.Decoder(_Packed)


def encode_consumed(consumed: ConsumedLog) -> bytes:
    slices = [(part.partition_id, part.data, list(part.deliveries)) for part in consumed.slices]
    packed = _Packed(
        consumed.topic_id, slices, consumed.next_offset, consumed.has_more, list(consumed.skipped), consumed.consumer
    )
    return msgspec.msgpack.encode(packed)


def decode_consumed(data: bytes) -> Consumed:
    try:
        packed = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(f"what was consumed does not decode: {e}") from e
    messages: list[Message] = []
    for partition, batch, deliveries in packed.slices:
        messages += _messages(packed.topic_id, LogSlice(partition, batch, tuple(deliveries)))
    return Consumed(messages, packed.next_offset, packed.has_more, tuple(packed.skipped), packed.consumer)


def _messages(topic_id: int, part: LogSlice) -> list[Message]:
    messages = LogBatch(part.data).messages(topic_id, part.partition_id)
    if not part.deliveries:
        return messages
    if len(part.deliveries) != len(messages):
        raise CorruptData(f"a slice has {len(messages)} messages and {len(part.deliveries)} delivery counts")
    return [msgspec.structs.replace(m, delivery=n) for m, n in zip(messages, part.deliveries, strict=True)]
