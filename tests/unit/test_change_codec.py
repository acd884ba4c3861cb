"""The bytes of change records: golden vectors, round trips, cuts, and bytes that must be refused."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tablecast.codec import changes, keys
from tablecast.codec.catalog import change_start_key, decode_change_start_key
from tablecast.codec.changes import (
    ChangeHead,
    decode_change_head,
    decode_changes,
    encode_changes,
    image_bytes,
    pieces,
)
from tablecast.errors import CorruptData

GOLDEN: dict[str, tuple[tuple[int, int], dict[bytes, bytes | None], str]] = {
    "nothing": ((0, 0), {}, "01" "0000000000000000" "0000000000000000" "92" "90" "90"),
    "an insert": ((1, 2), {b"k": None}, "01" "0000000000000001" "0000000000000002" "92" "91c4016b" "91c0"),
    "a row before": ((1, 2), {b"k": b"row"}, "01" "0000000000000001" "0000000000000002" "92" "91c4016b" "91c403726f77"),
    "the order stays": (
        (2**63, 2**40),
        {b"\xff": b"", b"": None, b"a": b"\x00"},
        "01" "8000000000000000" "0000010000000000" "92" "93c401ffc400c40161" "93c400c0c40100",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    head, befores, text = GOLDEN[name]
    assert encode_changes(*head, befores).hex() == text
    data = bytes.fromhex(text)
    assert decode_change_head(data) == ChangeHead(*head)
    assert list(decode_changes(data).items()) == list(befores.items())


numbers = st.integers(0, 2**64 - 1)
images = st.dictionaries(st.binary(max_size=20), st.none() | st.binary(max_size=300), max_size=40)


@given(numbers, numbers, images)
def test_round_trip(ts_ms: int, bytes_before: int, befores: dict[bytes, bytes | None]) -> None:
    data = encode_changes(ts_ms, bytes_before, befores)
    assert decode_change_head(data) == (ts_ms, bytes_before)
    assert list(decode_changes(data).items()) == list(befores.items())


@given(images, st.integers(1, 10), st.integers(1, 500))
@example({bytes([i]): None for i in range(10)}, 10, 1)
@example({bytes([i]): None for i in range(11)}, 10, 1)
@example({b"a": b"12345", b"b": b"12345"}, 10, 10)
@example({b"a": b"12345", b"b": b"123456"}, 10, 10)
@example({b"a": b"large" * 100}, 10, 1)
def test_pieces_are_the_whole_within_the_limits(
    befores: dict[bytes, bytes | None], most_keys: int, most_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "PIECE_KEYS", most_keys)
        patch.setattr(changes, "PIECE_BYTES", most_bytes)
        cut = [dict(piece) for piece in pieces(befores, image_bytes(befores))]
    assert [entry for piece in cut for entry in piece.items()] == list(befores.items())
    for piece in cut:
        assert len(piece) <= most_keys
        assert image_bytes(piece) <= most_bytes or len(piece) == 1
    for piece, following in pairwise(cut):  # each is as large as it may be
        first = dict([next(iter(following.items()))])
        assert len(piece) == most_keys or image_bytes(piece) + image_bytes(first) > most_bytes
    assert all(cut) or not befores


@given(images, st.binary(max_size=60), st.data())
def test_damaged_bytes_decode_or_are_corrupt_data_and_nothing_else(
    befores: dict[bytes, bytes | None], noise: bytes, data: st.DataObject
) -> None:
    encoded = encode_changes(1, 2, befores)
    at = data.draw(st.integers(0, len(encoded)))
    for damaged in (encoded[:at], encoded[:at] + noise, encoded + noise, noise):
        with suppress(CorruptData):
            assert isinstance(decode_changes(damaged), dict)


@pytest.mark.parametrize("cut", range(len(GOLDEN["a row before"][2]) // 2))
def test_a_record_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(CorruptData):
        decode_changes(bytes.fromhex(GOLDEN["a row before"][2])[:cut])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "shorter than its head"),
        ("02" + "00" * 16 + "929090", "format 2"),
        ("01" + "00" * 16 + "92" "91c4016b" "90", "1 keys, 0 of them"),
        ("01" + "00" * 16 + "92" "90" "91c0", "0 keys"),
        ("01" + "00" * 16 + "92" "92c4016bc4016b" "92c0c0", "2 keys, 1 of them different"),
        ("01" + "00" * 16 + "92" "91a16b" "91c0", "does not decode"),
        ("01" + "00" * 16 + "91" "90", "does not decode"),
        ("01" + "00" * 16 + "929090" "00", "does not decode"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(text: str, why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        decode_changes(bytes.fromhex(text))


@given(st.integers(0, 2**32 - 2), numbers, st.integers(0, 2**16 - 1))
def test_keys_order_as_table_commit_and_piece(table_id: int, seq: int, piece: int) -> None:
    key = keys.change_key(table_id, seq, piece)
    assert keys.decode_change_key(key) == (table_id, seq, piece)
    assert key.startswith(keys.table_prefix(table_id))
    assert key >= keys.change_key(table_id, seq) >= keys.change_key(table_id, 0)
    assert key < keys.change_key(table_id + 1, 0)
    assert decode_change_start_key(change_start_key(table_id)) == table_id
    for damaged in (key[:-1], key + b"\x00"):
        with pytest.raises(CorruptData):
            keys.decode_change_key(damaged)
