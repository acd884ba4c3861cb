"""Sealed parts as files: what is written is what a store takes in, and what is damaged is refused."""

from __future__ import annotations

import io
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tablecast.codec import keys
from tablecast.codec.log import LogBatch, MessageClass, Place, encode_log_batch, encode_log_columns, stamp
from tablecast.codec.rows import row_codec
from tablecast.codec.sealed import (
    KEYS_PER_BLOCK,
    SealedPart,
    SealedWriter,
    copy_sst,
    read_batch,
    read_key_blocks,
    read_sealed,
    write_sealed,
)
from tablecast.core import seal, seal_log
from tablecast.core.seal import Sealer
from tablecast.core.seal_values import LoadValues
from tablecast.errors import CorruptData
from tablecast.model.change import Op
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode, Route, Topic
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.parts import PartFile, seal_parts
from tablecast.storage.rocks import RocksStore
from tablecast.storage.sst import write_sst

ORDERS = TableSchema(
    7, "app", "orders", TableKind.SHARED,
    (Column("id", ColumnType(TypeName.BIGINT)), Column("customer", ColumnType(TypeName.TEXT))), ("id",),
)  # fmt: skip
ROUTES = [
    (Topic(3, "app", "all", 1), Route(7, (Op.INSERT,))),
    (Topic(4, "app", "spread", 4), Route(7, (Op.INSERT,), partition_by="customer")),
]


def batch(ids: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([f"c{i % 5}" for i in ids])], ["id", "customer"]
    )


def sealer(**more: Any) -> Sealer:
    return Sealer(ORDERS, ROUTES, 9, LoadValues(0, "ann"), **more)


def opened(part: PartFile) -> tuple[io.BufferedReader, SealedPart]:
    file = part.path.open("rb")
    return file, read_sealed(file)


def messages(part: PartFile) -> dict[tuple[int, int], list[str]]:
    """The ids that each partition tells of, in order."""
    file, found = opened(part)
    with file:
        told: dict[tuple[int, int], list[str]] = {}
        for entry in found.batches:
            log = LogBatch(stamp(read_batch(file, entry), first_offset=0, seq=1, ts_ms=1, first_id=1, bytes_before=0))
            assert log.head.count == entry.count
            said = [message.value["id"] for message in log.messages(entry.topic_id, entry.partition)]
            told.setdefault((entry.topic_id, entry.partition), []).extend(said)
        return told


def test_a_part_says_what_is_in_it(tmp_path: Path) -> None:
    ids = random.Random(1).sample(range(10_000), 500)
    [part] = seal_parts(sealer(), [batch(ids[:200]), batch(ids[200:])], tmp_path, "t")
    file, found = opened(part)
    with file:
        assert (found.table_id, found.load_number, found.rows, found.size) == (7, 9, 500, part.bytes)
        assert part.rows == 500
        assert part.path.stat().st_size == part.bytes
        codec = row_codec(ORDERS)
        listed = [key for block in read_key_blocks(file, found) for key in block.to_pylist()]
        assert [codec.decode_key(key, 4)[0] for key in listed] == sorted(ids)
        assert (found.first_key, found.last_key) == (listed[0], listed[-1])
    told = messages(part)
    assert told[3, 0] == [str(i) for i in ids]
    assert sorted(i for where, said in told.items() if where[0] == 4 for i in said) == sorted(map(str, ids))
    assert [path.name for path in tmp_path.iterdir()] == ["t-0.part"]


def test_the_sst_is_what_a_store_takes_in(tmp_path: Path) -> None:
    [part] = seal_parts(sealer(), [batch([5, 1, 9])], tmp_path, "t")
    store = RocksStore.open(str(tmp_path / "db"))
    try:
        sst = Path(store.staging()) / "part.sst"
        file, found = opened(part)
        with file, sst.open("wb") as target:
            copy_sst(file, found, target)
        assert store.bounds(str(sst)) == (found.first_key, found.last_key)
        store.ingest(Family.ROWS, [str(sst)])
        codec = row_codec(ORDERS)
        stored = [
            (codec.decode_key(key, 4), codec.values(codec.decode(value))) for key, value in store.scan(Family.ROWS)
        ]
        assert stored == [((i,), (i, f"c{i % 5}")) for i in (1, 5, 9)]
    finally:
        store.close()


def test_long_inputs_become_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "GATHERED_ROWS", 100)
    made = [
        (part.rows, part.path.name)
        for part in seal_parts(sealer(part_rows=300), (batch([i]) for i in range(700)), tmp_path, "x")
    ]
    assert made == [(300, "x-0.part"), (300, "x-1.part"), (100, "x-2.part")]


def test_no_row_no_part(tmp_path: Path) -> None:
    assert list(seal_parts(sealer(), [], tmp_path, "t")) == []
    assert list(seal_parts(sealer(), [batch([])], tmp_path, "t")) == []
    only_bad = pa.RecordBatch.from_arrays([pa.nulls(3, pa.int64())], ["id"])
    assert list(seal_parts(sealer(), [only_bad], tmp_path, "t")) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_unfinished_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch([1, 2])
        raise RuntimeError("the input ended badly")

    with pytest.raises(RuntimeError, match="badly"):
        list(seal_parts(sealer(), broken(), tmp_path, "t"))
    assert list(tmp_path.iterdir()) == []


def test_repeated_keys_take_their_messages_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their log batches were written already: they are written again without them."""
    monkeypatch.setattr(seal_log, "LOG_BATCH_MESSAGES", 7)
    ids = [i % 40 for i in range(100)]
    sealing = sealer()
    [part] = seal_parts(sealing, [batch(ids[:33]), batch(ids[33:])], tmp_path, "t")
    assert part.rows == 40
    assert [reject.row for reject in sealing.rejects] == list(range(40, 100))
    told = messages(part)
    assert told[3, 0] == [str(i) for i in range(40)]
    for partition in range(4):
        said = told.get((4, partition), [])
        assert said == sorted(said, key=int)
    file, found = opened(part)
    with file:
        counts = [entry.count for entry in found.batches if entry.topic_id == 3]
    assert counts == [7, 7, 7, 7, 7, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["t-0.part"]


def test_memory_stays_flat(tmp_path: Path) -> None:
    """Twenty parts need no more than two."""
    filler = "x" * 1_000

    def rows(count: int) -> Iterator[pa.RecordBatch]:
        for at in range(0, count, 1_000):
            ids = pa.array(np.arange(at, at + 1_000))
            yield pa.RecordBatch.from_arrays([ids, pa.array([filler] * 1_000)], ["id", "customer"])

    def peak(count: int) -> int:
        sealing = Sealer(ORDERS, ROUTES[:1], 9, LoadValues(0, "ann"), part_bytes=8 * 2**20)
        for part in seal_parts(sealing, rows(count), tmp_path, "t"):
            part.path.unlink()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    two = peak(16_000)
    twenty = peak(160_000)  # 160 MB of rows, and as much of messages
    assert twenty - two < 80 * 2**20


# --- log batches by column ----------------------------------------------------------------------------------------


def test_log_batches_by_column_are_those_by_message() -> None:
    said = MessageClass("app.orders", Op.INSERT, PayloadMode.FULL, None)
    row_keys = [b"[%d]" % i for i in range(9)]
    payloads = [b"x" * (i % 4) for i in range(9)]
    hashes = [2**64 - 1 - i for i in range(9)]
    place = Place(5, 6, 7, 8, 9)
    pieces = [
        (pa.array(row_keys, pa.binary())[a:b], pa.array(payloads, pa.binary())[a:b], np.array(hashes, np.uint64)[a:b])
        for a, b in ((0, 2), (2, 2), (2, 9))
    ]
    expected = encode_log_batch([said], [0] * 9, row_keys, payloads, hashes, place)
    assert encode_log_columns(said, pieces, place) == expected


# --- the container ------------------------------------------------------------------------------------------------


def small_part() -> bytes:
    file = io.BytesIO()
    row_keys = pa.array([keys.table_prefix(7) + bytes([i]) for i in range(3)], pa.binary())
    write_sealed(
        file, table_id=7, load_number=5, row_keys=row_keys, sst=io.BytesIO(b"SSTSST"), sst_size=6,
        batches=[(3, 1, 2, b"first"), (3, 0, 1, b"second")],
    )  # fmt: skip
    return file.getvalue()


def test_a_damaged_part_is_refused_whatever_byte_it_is() -> None:
    data = small_part()
    assert read_sealed(io.BytesIO(data)).messages == 3
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptData):
            read_sealed(io.BytesIO(bytes(damaged)))


def test_a_part_that_is_cut_or_goes_on_is_refused() -> None:
    data = small_part()
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            read_sealed(io.BytesIO(data[:size]), verify=False)
    with pytest.raises(CorruptData):
        read_sealed(io.BytesIO(data + b"\x00"), verify=False)


def test_numbers_that_lie_are_refused_without_the_checksum_too() -> None:
    """A hostile sender computes the checksum of what it likes."""
    data = small_part()
    rng = random.Random(5)
    for _ in range(3_000):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(data))] = rng.randrange(256)
        file = io.BytesIO(bytes(damaged))
        try:
            found = read_sealed(file, verify=False)
            list(read_key_blocks(file, found))
            for entry in found.batches:
                assert len(read_batch(file, entry)) == entry.size
            copy_sst(file, found, io.BytesIO())
        except CorruptData:
            continue


def test_many_keys_come_in_blocks() -> None:
    count = KEYS_PER_BLOCK + 5
    row_keys = pa.array([keys.table_prefix(7) + i.to_bytes(3, "big") * (1 + i % 3) for i in range(count)], pa.binary())
    file = io.BytesIO()
    SealedWriter(file).finish(table_id=7, load_number=1, row_keys=row_keys, sst=io.BytesIO(b"S"), sst_size=1)
    blocks = list(read_key_blocks(file, read_sealed(file)))
    assert [len(block) for block in blocks] == [KEYS_PER_BLOCK, 5]
    assert pa.concat_arrays(blocks) == row_keys


def test_an_sst_that_is_shorter_than_said_is_not_written() -> None:
    row_keys = pa.array([keys.table_prefix(7)], pa.binary())
    with pytest.raises(CorruptData, match="2 bytes before"):
        write_sealed(
            io.BytesIO(), table_id=7, load_number=1, row_keys=row_keys, sst=io.BytesIO(b"SST"), sst_size=5, batches=[]
        )


# --- SST files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [[b"b", b"a"], [b"a", b"a"], []])
def test_an_sst_needs_ascending_keys(tmp_path: Path, wrong: list[bytes]) -> None:
    with pytest.raises(StorageFailure):
        write_sst(tmp_path / "x.sst", wrong, [b""] * len(wrong))


def test_an_sst_where_none_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match="nowhere"):
        write_sst(tmp_path / "nowhere" / "x.sst", [b"a"], [b""])
