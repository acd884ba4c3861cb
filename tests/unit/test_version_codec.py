"""Versions and buckets as they are stored: round trips, order, and bytes that must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec.versions import (
    Kept,
    bucket_key,
    decode_bucket,
    decode_bucket_key,
    decode_version,
    decode_version_key,
    encode_bucket,
    encode_version,
    version_key,
)
from tablecast.errors import CorruptData
from tablecast.model.replication import Epoch, Node, Version

numbers = st.integers(0, 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16)
kept = st.builds(Kept, st.builds(Version, numbers, names, numbers), st.booleans())
buckets = st.integers(0, 4095)


@given(kept)
def test_a_version_is_read_as_it_was_written(one: Kept) -> None:
    assert decode_version(encode_version(one)) == one


@given(st.integers(0, 2**32 - 1), buckets, st.binary(min_size=1, max_size=20))
def test_keys_are_read_as_they_were_written(table_id: int, bucket: int, rest: bytes) -> None:
    row_key = table_id.to_bytes(4, "big") + rest
    assert decode_version_key(version_key(table_id, bucket, row_key)) == (table_id, bucket, row_key)
    assert decode_bucket_key(bucket_key(table_id, bucket)) == (table_id, bucket)
    assert version_key(table_id, bucket, row_key).startswith(bucket_key(table_id, bucket))


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**64 - 1))
def test_a_bucket_is_read_as_it_was_written(digest: int, entries: int) -> None:
    assert decode_bucket(encode_bucket(digest, entries)) == (digest, entries)


WHOLE = encode_version(Kept(Version(1, "n", 2), True))


@pytest.mark.parametrize(
    "data", [b"", WHOLE[:-1], b"\x02" + WHOLE[1:], WHOLE[:1] + b"\x02" + WHOLE[2:], WHOLE[:-1] + b"\xff"]
)
def test_what_is_no_version_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_version(data)


@pytest.mark.parametrize("data", [b"", bytes(25), encode_bucket(1, 1)[:-1], encode_bucket(1, 1) + b"\x00"])
def test_what_is_no_bucket_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_bucket(data)


def test_what_is_no_key_is_corrupt() -> None:
    with pytest.raises(CorruptData):
        decode_version_key(bucket_key(1, 1))
    with pytest.raises(CorruptData):
        decode_bucket_key(bucket_key(1, 1) + b"x")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True), st.integers(0, 60))
def test_numbers_and_offsets_of_a_node_lead_to_each_other(begins: list[int], further: int) -> None:
    """Whatever epochs there were; and no two offsets share a number."""
    starts = sorted(begins)
    node = Node("n", tuple(Epoch(10 + i, start) for i, start in enumerate(starts)))
    offsets = range(starts[0], starts[-1] + further + 1)
    seqs = [node.seq_at(offset) for offset in offsets]
    assert [node.offset_of(seq) for seq in seqs] == list(offsets)
    assert seqs == sorted(set(seqs))
    assert node.offset_of(9 << 32 | 1) is None
    assert node.offset_of(10 << 32) is None
