"""`wal_tail` against logs that RocksDB itself wrote: records of any size, of which the last is torn, or any is damaged.

Where each record ends is known from the file's size after its write, not from reading it.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict, WriteBatch

from tablecast.storage.wal_tail import BLOCK, SECTOR, log_files, passes_over_something, torn_at

# None that is written is zero; a record of its own size around each block's end, and some of several blocks.
SIZES = st.one_of(st.integers(1, 3000), st.integers(BLOCK - 60, BLOCK + 20), st.integers(1, 90_000))
AHEAD = bytes(3 * BLOCK)


def written(sizes: list[int], value: bytes = bytes(range(1, 256))) -> tuple[bytes, list[int]]:
    """The log, and where each record begins, and the last one ends."""
    directory = Path(tempfile.mkdtemp())
    try:
        native = Rdict(str(directory), Options(raw_mode=True))
        [wal] = log_files(directory)
        edges = [wal.stat().st_size]
        for number, size in enumerate(sizes):
            batch = WriteBatch(raw_mode=True)
            batch.put(b"k%d" % number, (value * (1 + size // len(value)))[:size])
            native.write(batch)
            edges.append(wal.stat().st_size)
        log = wal.read_bytes()
        native.close()
        return log, edges
    finally:
        shutil.rmtree(directory)


def after_filler(at: int) -> int:
    return at + BLOCK - at % BLOCK if BLOCK - at % BLOCK < 7 else at


def parts(start: int, end: int) -> list[tuple[int, int]]:
    return list(pairwise([start, *range(start - start % SECTOR + SECTOR, end, SECTOR), end]))


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=6), data=st.data())
def test_what_misses_sectors_begins_where_rocksdb_began_it(sizes: list[int], data: st.DataObject) -> None:
    log, edges = written(sizes)
    assert torn_at(log) is torn_at(log + AHEAD) is None
    assert not passes_over_something(log) and not passes_over_something(log + AHEAD)
    *_, start, end = edges
    sectors = parts(after_filler(start), end)
    lost = data.draw(st.sets(st.sampled_from(sectors), min_size=1))
    torn = bytearray(log + AHEAD)
    for a, b in lost:
        torn[a:b] = bytes(b - a)
    is_gone = not torn[start:].strip(b"\0")
    assert torn_at(bytes(torn)) == (None if is_gone else start)


@pytest.mark.parametrize("before", range(8))
def test_a_header_of_which_a_part_is_missing(before: int) -> None:
    """So many bytes of it are in front of a sector's end."""
    _, [_, end] = written([1000])
    first = 1000 + SECTOR - before - end % SECTOR
    log, [_, start, end] = written([first, 900])
    assert start % SECTOR == (SECTOR - before) % SECTOR
    for a, b in parts(start, end):
        assert torn_at(log[:a] + bytes(b - a) + log[b:] + AHEAD) == start


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=5), data=st.data())
def test_a_cut_anywhere_is_where_the_record_began_or_nothing_of_ours(sizes: list[int], data: st.DataObject) -> None:
    """From some byte on zeros: torn if that byte is in front of a sector's end; and never is more taken than the record."""
    log, edges = written(sizes)
    cut = data.draw(st.integers(edges[-2], edges[-1]))
    found = torn_at(log[:cut] + bytes(len(log) - cut) + AHEAD)
    assert found in (None, edges[-2])
    if cut % SECTOR == 0 and edges[-2] < cut < edges[-1]:
        assert found == edges[-2]
    assert torn_at(log[:cut]) is None  # a file that ends there: RocksDB tells that by itself


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=5))
def test_a_process_killed_between_two_parts_of_a_record_leaves_it_torn(sizes: list[int]) -> None:
    """RocksDB hands headers and contents over one by one, or some of them together."""
    log, edges = written(sizes)
    start, end = after_filler(edges[-2]), edges[-1]
    for header in [start, *range(start - start % BLOCK + BLOCK, end, BLOCK)]:
        for cut in (header, header + 7):
            if start < cut < end:
                assert torn_at(log[:cut] + bytes(end - cut) + AHEAD) == edges[-2]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=5), data=st.data(), ahead=st.sampled_from([b"", AHEAD]))
def test_a_flipped_bit_is_never_torn(sizes: list[int], data: st.DataObject, ahead: bytes) -> None:
    log, edges = written(sizes)
    beginning = data.draw(st.sampled_from(edges[:-1]))
    at = data.draw(st.integers(0, len(log) - 1) | st.integers(beginning, min(beginning + 30, len(log) - 1)))
    damaged = bytearray(log + ahead)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    assert torn_at(bytes(damaged)) is None


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(SIZES, min_size=2, max_size=6), data=st.data())
def test_a_record_that_others_follow_is_never_torn(sizes: list[int], data: st.DataObject) -> None:
    """Unless its header is gone, which tells where the next one begins."""
    log, edges = written(sizes)
    number = data.draw(st.integers(0, len(sizes) - 2))
    sectors = [
        part
        for part in parts(after_filler(edges[number]), edges[number + 1])
        if part[0] % BLOCK and part[0] > edges[number] + 7
    ]
    if sectors:
        a, b = data.draw(st.sampled_from(sectors))
        assert torn_at(log[:a] + bytes(b - a) + log[b:] + AHEAD) is None


def test_a_record_that_has_zeros_of_its_own_is_not_torn_by_its_kind() -> None:
    """With a kind that claims to fill the block, in front of a record that is whole."""
    log, edges = written([3000, 3000], value=b"\0")
    for kind in (0, 2, 3, 9):
        damaged = bytearray(log + AHEAD)
        damaged[6] = kind
        assert torn_at(bytes(damaged)) is None
    assert torn_at(log[: edges[1]] + AHEAD) is None
