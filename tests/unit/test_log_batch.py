"""Log batches: what goes in comes out, as messages and as Arrow; damaged bytes are refused, never believed halfway."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablecast.codec.consumed import decode_consumed, encode_consumed
from tablecast.codec.log import (
    HEAD,
    ID_STEP,
    MESSAGE_SCHEMA,
    PACK_BYTES,
    LogBatch,
    MessageClass,
    decode_head,
    encode_log_batch,
    messages_arrow,
    stamp,
)
from tablecast.core.snowflake import STEP
from tablecast.errors import CorruptData
from tablecast.model.change import Op
from tablecast.model.message import Consumed, ConsumedLog, LogSlice, Message
from tablecast.model.topic import PayloadMode

ORDERS = MessageClass("app.orders", Op.INSERT, PayloadMode.FULL, None)
ANNS = MessageClass("app.notes", Op.DELETE, PayloadMode.KEY, "ann")
PLACE = {"first_offset": 258, "seq": 5, "ts_ms": 1_640_995_200_000, "first_id": 4096, "bytes_before": 77}

# One message, and two of two classes: written down once, so that the format can only change on purpose.
GOLDEN_HEAD = (
    "01" "{flags}" "{classes}" "{count}"
    "0201000000000000" "0500000000000000" "009cef127e010000" "0010000000000000" "4d00000000000000"
)  # fmt: skip
GOLDEN_ONE = (
    GOLDEN_HEAD.format(flags="00", classes="0100", count="01000000")
    + "14000000" "03000000" "0700000000000000"
    + "0807060504030201" "00000000" "03000000" "00000000" "07000000"
    + "9194aa6170702e6f726465727300a466756c6cc0"
    + "5b315d" "7b2261223a317d"
)  # fmt: skip
GOLDEN_PACKED = (
    GOLDEN_HEAD.format(flags="02", classes="0100", count="01000000")
    + "14000000" "03000000" "0700000000000000"
    + "0807060504030201" "00000000" "03000000" "00000000" "07000000"
    + "9194aa6170702e6f726465727300a466756c6cc0"
    + "5b315d" "70" "7b2261223a317d"
)  # fmt: skip  # an LZ4 block of seven literals
GOLDEN_TWO = (
    GOLDEN_HEAD.format(flags="01", classes="0200", count="02000000")
    + "28000000" "03000000" "0700000000000000"
    + "0807060504030201" "ffffffffffffffff"
    + "00000000" "03000000" "03000000" "00000000" "07000000" "07000000" "0000" "0100"
    + "9294aa6170702e6f726465727300a466756c6cc094a96170702e6e6f74657302a36b6579a3616e6e"
    + "5b315d" "7b2261223a317d"
)  # fmt: skip


def one() -> bytes:
    return stamp(encode_log_batch([ORDERS], [0], [b"[1]"], [b'{"a":1}'], [0x0102030405060708]), **PLACE)


def two() -> bytes:
    unstamped = encode_log_batch(
        [ORDERS, ANNS], [0, 1], [b"[1]", b""], [b'{"a":1}', b""], [0x0102030405060708, 2**64 - 1]
    )
    return stamp(unstamped, **PLACE)


@pytest.mark.parametrize(("made", "text"), [(one(), GOLDEN_ONE), (two(), GOLDEN_TWO)], ids=["one", "two classes"])
def test_golden_vectors(made: bytes, text: str) -> None:
    assert made.hex() == text
    assert LogBatch(bytes.fromhex(text)).messages(3, 1)[0] == Message(
        3, 1, 258, 4096, "app.orders", Op.INSERT, 1_640_995_200_000, PayloadMode.FULL,
        b"[1]", b'{"a":1}', None, 5, 0x0102030405060708,
    )  # fmt: skip


def test_a_packed_batch_is_the_same_messages() -> None:
    assert LogBatch(bytes.fromhex(GOLDEN_PACKED)).messages(3, 1) == LogBatch(one()).messages(3, 1)


def large() -> bytes:
    """Large enough to be packed."""
    payloads = [b'{"id":%d,"status":"paid"}' % number for number in range(PACK_BYTES // 20)]
    batch = encode_log_batch(
        [ORDERS], [0] * len(payloads), [b"[1]"] * len(payloads), payloads, list(range(len(payloads)))
    )
    assert len(batch) < sum(map(len, payloads)) + 20 * len(payloads)
    return stamp(batch, **PLACE)


def test_only_what_becomes_smaller_is_packed() -> None:
    noise = Random(1).randbytes(2 * PACK_BYTES)
    for payload, is_packed in ((bytes(2 * PACK_BYTES), True), (noise, False), (b"x" * (PACK_BYTES - 1), False)):
        batch = encode_log_batch([ORDERS], [0], [b"[1]"], [payload], [7])
        assert (len(batch) < len(payload)) == is_packed
        assert [message.payload for message in LogBatch(batch).messages(3, 1)] == [payload]


def test_what_is_cut_out_of_a_packed_batch_is_packed_if_it_is_large() -> None:
    payloads = [b'{"id":%d,"note":"%s"}' % (number, b"x" * 200) for number in range(1000)]
    whole = LogBatch(encode_log_batch([ORDERS], [0] * 1000, [b"[1]"] * 1000, payloads, list(range(1000))))
    for start, stop, is_small in ((100, 900, True), (0, 3, False)):
        cut = whole.cut(start, stop)
        assert (len(cut) < sum(map(len, payloads[start:stop])) // 2) == is_small
        assert LogBatch(cut).messages(3, 1) == whole.messages(3, 1, start, stop)
        assert LogBatch(LogBatch(cut).cut(1, 2)).messages(3, 1) == whole.messages(3, 1, start + 1, start + 2)


def test_the_second_class_and_an_empty_key_and_payload() -> None:
    assert LogBatch(two()).messages(3, 1)[1] == Message(
        3, 1, 259, 4096 + 1024, "app.notes", Op.DELETE, 1_640_995_200_000, PayloadMode.KEY,
        b"", b"", "ann", 5, 2**64 - 1,
    )  # fmt: skip


def test_the_head_says_where_the_batch_stands() -> None:
    head = decode_head(two())
    assert (head.first_offset, head.end_offset, head.count, head.classes) == (258, 260, 2, 2)
    assert (head.seq, head.ts_ms, head.first_id, head.bytes_before) == (
        5, 1_640_995_200_000, 4096, 77,
    )  # fmt: skip


def test_stamping_changes_forty_bytes_and_nothing_else() -> None:
    again = stamp(two(), first_offset=0, seq=0, ts_ms=0, first_id=0, bytes_before=0)
    assert again[:8] == two()[:8] and again[48:] == two()[48:]
    assert again[8:48] == bytes(40)


def test_ids_in_a_batch_are_a_generators_run() -> None:
    assert ID_STEP == STEP


# --- round trips ---------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
classes = st.builds(MessageClass, names, st.sampled_from(Op), st.sampled_from(PayloadMode), st.none() | names)


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, list[Message]]:
    table = draw(st.lists(classes, min_size=1, max_size=4))
    count = draw(st.integers(1, 12))
    column = st.lists(st.binary(max_size=9), min_size=count, max_size=count)
    keys, payloads = draw(column), draw(column)
    times = draw(st.sampled_from([1, 1, 8_000]))  # many bytes are packed
    payloads = [payload * times for payload in payloads]
    class_of = draw(st.lists(st.integers(0, len(table) - 1), min_size=count, max_size=count))
    hashes = draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count))
    first_offset = draw(st.integers(0, 2**64 - 1 - count))
    first_id = draw(st.integers(0, 2**63))
    ts_ms = draw(st.integers(0, 253_402_300_799_999))
    seq = draw(st.integers(0, 2**64 - 1))
    data = stamp(
        encode_log_batch(table, class_of, keys, payloads, hashes),
        first_offset=first_offset, seq=seq, ts_ms=ts_ms, first_id=first_id, bytes_before=draw(st.integers(0, 2**64 - 1)),
    )  # fmt: skip
    messages = [
        Message(
            9, 2, first_offset + i, first_id + i * 1024, table[c].source_table, table[c].op, ts_ms,
            table[c].payload_mode, keys[i], payloads[i], table[c].user_id, seq, hashes[i],
        )
        for i, c in enumerate(class_of)
    ]  # fmt: skip
    return data, messages


def as_record(message: Message) -> dict[str, Any]:
    record = msgspec.structs.asdict(message)
    del record["reader"]  # no part of what is stored
    del record["delivery"]
    return record | {"op": message.op.label, "payload_mode": message.payload_mode.value}


@given(batches())
def test_messages_come_back(case: tuple[bytes, list[Message]]) -> None:
    data, messages = case
    assert LogBatch(data).messages(9, 2) == messages


def records(arrow: pa.RecordBatch) -> list[dict[str, Any]]:
    arrow.validate(full=True)
    assert arrow.schema.equals(MESSAGE_SCHEMA)
    times = arrow.column("ts").cast("int64").to_pylist()
    rows = arrow.drop_columns(["ts"]).to_pylist()
    return [row | {"ts": ms} for row, ms in zip(rows, times, strict=True)]


@given(batches(), st.data())
def test_any_slice_is_that_slice_as_messages_and_as_arrow(
    case: tuple[bytes, list[Message]], data: st.DataObject
) -> None:
    stored, messages = case
    batch, first = LogBatch(stored), messages[0].offset
    start = data.draw(st.integers(0, len(messages)))
    stop = data.draw(st.none() | st.integers(start, len(messages) + 3))
    assert batch.messages(9, 2, start, stop) == messages[start:stop]
    arrow = messages_arrow([batch], 9, 2, first + start, None if stop is None else first + stop)
    assert records(arrow) == [as_record(message) for message in messages[start:stop]]


@given(st.lists(batches(), min_size=2, max_size=5), st.data())
def test_consecutive_batches_are_one_arrow_batch(cases: list[tuple[bytes, list[Message]]], data: st.DataObject) -> None:
    found: list[LogBatch] = []
    messages: list[Message] = []
    offset = data.draw(st.integers(0, 5))
    for stored, _ in cases:
        head = decode_head(stored)
        found.append(
            LogBatch(
                stamp(
                    stored, first_offset=offset, seq=head.seq, ts_ms=head.ts_ms, first_id=head.first_id, bytes_before=0
                )
            )
        )
        messages += found[-1].messages(9, 2)
        offset = found[-1].head.end_offset
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, offset + 1)] * 2)))
    expected = [as_record(message) for message in messages if start <= message.offset < stop]
    assert records(messages_arrow(found, 9, 2, start, stop)) == expected
    assert records(messages_arrow(found, 9, 2)) == [as_record(message) for message in messages]


@given(batches(), st.data())
def test_a_cut_is_a_batch_of_those_messages(case: tuple[bytes, list[Message]], data: st.DataObject) -> None:
    whole, messages = case
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    assert LogBatch(LogBatch(whole).cut(start, stop)).messages(9, 2) == messages[start:stop]


@given(batches(), st.data())
def test_what_a_group_consumed_travels_as_it_is_stored(case: tuple[bytes, list[Message]], data: st.DataObject) -> None:
    whole, messages = case
    counts = tuple(data.draw(st.lists(st.integers(1, 9), min_size=len(messages), max_size=len(messages))))
    slices = [LogSlice(2, whole), LogSlice(2, whole, counts)]
    sent = ConsumedLog(9, slices, 2 * len(messages), 9, True, ((3, 0, 2),), "ann", {0: 9, 3: 2})
    got = decode_consumed(encode_consumed(sent))
    again = [msgspec.structs.replace(m, delivery=n) for m, n in zip(messages, counts, strict=True)]
    given = (2, messages[0].offset, messages[-1].offset + 1)
    assert got == Consumed(messages + again, 9, True, ((3, 0, 2),), "ann", (given, given), {0: 9, 3: 2})


@given(st.binary(max_size=60))
def test_any_bytes_are_not_what_was_consumed(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_consumed(data)


def test_delivery_counts_that_do_not_fit() -> None:
    sent = ConsumedLog(7, [LogSlice(3, one(), (1, 2))], 1, None, False, (), "ann", {})
    with pytest.raises(CorruptData, match="1 messages and 2"):
        decode_consumed(encode_consumed(sent))


def test_no_batches_are_an_empty_arrow_batch() -> None:
    assert records(messages_arrow([], 9, 2)) == []


@pytest.mark.parametrize("count", [64, 65, 500])
def test_long_batches(count: int) -> None:
    """Long columns are checked by other means than short ones."""
    payloads = [b"x" * (i % 7) for i in range(count)]
    whole = encode_log_batch([ORDERS, ANNS], [i % 2 for i in range(count)], payloads, payloads, list(range(count)))
    batch = LogBatch(whole)
    assert [message.payload for message in batch.messages(3, 1)] == payloads
    assert messages_arrow([batch], 3, 1).column("key").to_pylist() == payloads
    for at in (HEAD.size + 8 * count + 4 * (count // 2), HEAD.size + 8 * count + 4 * (count + 1) + 4 * (count // 2)):
        with pytest.raises(CorruptData):
            LogBatch(patched(whole, at, "<I", 2**31))


def test_arrow_keeps_the_stored_bytes_alive() -> None:
    arrow = messages_arrow([LogBatch(bytes(bytearray(two())))], 3, 1)
    assert arrow.column("payload").to_pylist() == [b'{"a":1}', b""]


# --- damage --------------------------------------------------------------------------------------------------


def read_all(data: bytes) -> list[Message]:
    """Everything a reader may do with a batch."""
    batch = LogBatch(data)
    messages = batch.messages(3, 1)
    for arrow in (messages_arrow([batch], 3, 1), messages_arrow([batch, batch], 3, 1).slice(0, len(messages))):
        assert records(arrow) == [as_record(message) for message in messages]
        arrow.to_pylist()
    return messages


PACKED = bytes.fromhex(GOLDEN_PACKED)


@pytest.mark.parametrize("whole", [one(), two(), PACKED], ids=["one", "two classes", "packed"])
def test_every_truncation_is_corrupt_data(whole: bytes) -> None:
    for cut in range(len(whole)):
        with pytest.raises(CorruptData):
            read_all(whole[:cut])
    with pytest.raises(CorruptData):
        read_all(whole + b"\x00")


@pytest.mark.parametrize("at", range(HEAD.size))
def test_every_damaged_byte_of_the_head_is_corrupt_or_harmless(at: int) -> None:
    """Harmless: another place or time for the same messages, never other messages."""
    for whole in (one(), two(), PACKED):
        said = [(m.key, m.payload, m.source_table, m.op, m.user_id, m.content_hash) for m in read_all(whole)]
        for byte in {*(whole[at] ^ 1 << bit for bit in range(8)), 0x00, 0x7F, 0x80, 0xFF} - {whole[at]}:
            try:
                found = read_all(whole[:at] + bytes([byte]) + whole[at + 1 :])
            except CorruptData:
                continue
            assert 8 <= at < 48, f"byte {at} = {byte} was believed"
            assert [(m.key, m.payload, m.source_table, m.op, m.user_id, m.content_hash) for m in found] == said


@settings(max_examples=300)
@given(st.data())
def test_every_damaged_byte_behind_the_head_is_corrupt_or_another_message(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([two(), PACKED]))
    at = data.draw(st.integers(HEAD.size, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    try:
        found = read_all(whole[:at] + bytes([byte]) + whole[at + 1 :])
    except CorruptData:
        return
    assert len(found) == decode_head(whole).count


@settings(max_examples=300)
@given(st.data())
def test_damage_to_packed_payloads_is_corrupt_or_another_message(data: st.DataObject) -> None:
    whole = large()
    at = data.draw(st.integers(len(whole) - 2_000, len(whole) - 1))
    changed = data.draw(st.sampled_from([whole[:at], whole[:at] + b"\xff" + whole[at + 1 :], whole + b"\x00"]))
    try:
        found = LogBatch(changed).messages(3, 1)
    except CorruptData:
        return
    assert len(found) == decode_head(whole).count


def test_a_head_cannot_ask_for_more_memory_than_its_bytes_can_fill() -> None:
    with pytest.raises(CorruptData, match="cannot hold"):
        LogBatch(patched(PACKED, 56, "<Q", 2**40))


@given(st.binary(max_size=200))
def test_any_bytes_are_corrupt_data(data: bytes) -> None:
    with pytest.raises(CorruptData):
        LogBatch(b"\x02" + data)
    try:
        read_all(b"\x01" + data)
    except CorruptData:
        pass


def patched(whole: bytes, at: int, layout: str, value: int) -> bytes:
    made = bytearray(whole)
    struct.pack_into(layout, made, at, value)
    return bytes(made)


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (0, "B", 2),
        (1, "B", 5),  # a flag of the future
        (2, "<H", 0),
        (2, "<H", 1),  # fewer classes than the table has
        (4, "<I", 0),
        (8, "<Q", 2**64 - 2),  # offsets would pass the last one
        (24, "<Q", 2**63),  # a time that no clock shows
        (32, "<Q", 2**64 - 1),
        (80, "<I", 1),  # the first key does not begin at 0
        (84, "<I", 9),  # the second begins behind the end of all
        (92, "<I", 1),
        (96, "<I", 9),
        (104, "<H", 2),  # a class that is not there
    ],
)
def test_heads_and_columns_that_contradict_themselves(at: int, layout: str, value: int) -> None:
    with pytest.raises(CorruptData):
        read_all(patched(two(), at, layout, value))


@pytest.mark.parametrize(
    "table",
    [[("app.orders", 9, "full", None)], [("app.orders", 0, "all", None)], [], [("app.orders", 0, "full")], "x"],
    ids=["op", "mode", "empty", "short", "text"],
)
def test_a_class_table_that_is_not_one(table: Any) -> None:
    encoded = msgspec.msgpack.encode(table)
    whole = one()
    made = bytearray(whole[:88] + encoded + whole[108:])
    struct.pack_into("<I", made, 48, len(encoded))
    with pytest.raises(CorruptData, match="class table"):
        read_all(bytes(made))
