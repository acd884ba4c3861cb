"""What RocksDB holds in memory has a limit, whatever was written and read."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from tablecast.storage import rocks, sst
from tablecast.storage.base import Family
from tablecast.storage.rocks import RocksStore

VALUE_BYTES = 10_000
FEW, MANY = 60_000, 1_200_000  # rows of one file
WRITE = 20_000
MISSES, ROUNDS = 200, 7
VALUES = 400
WRITTEN_BYTES = VALUE_BYTES * VALUES  # of each family
READ = (Family.ROWS, Family.LOG, Family.VERSIONS)


def fill(store: RocksStore, *families: Family) -> None:
    """Into files: what is in memtables is not in the cache."""
    values = random.Random(7)
    for family in families:
        batch = store.batch()
        batch.put_many(
            family, [b"%06d" % i for i in range(VALUES)], [values.randbytes(VALUE_BYTES) for _ in range(VALUES)]
        )
        store.write(batch)
        store.sync()
        store._families[family].flush()


def cached_bytes(store: RocksStore) -> int:
    return store._families[Family.META].property_int_value("rocksdb.block-cache-usage") or 0


def test_the_cache_keeps_its_limit_however_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all families together."""
    limit = WRITTEN_BYTES // 2
    monkeypatch.setattr(rocks, "_BLOCK_CACHE_BYTES", limit)
    with closing(RocksStore.open(str(tmp_path / "db"))) as store:
        fill(store, *READ)
        for family in READ:
            assert sum(len(value) for _, value in store.scan(family)) == WRITTEN_BYTES
            assert cached_bytes(store) <= limit
        assert cached_bytes(store) > limit / 2


def test_indexes_and_filters_are_inside_of_the_cache(tmp_path: Path) -> None:
    """Beside it they would grow with the data."""
    with closing(RocksStore.open(str(tmp_path / "db"))) as store:
        fill(store, *READ)
        assert cached_bytes(store) > sst.BLOOM_BITS_PER_KEY * VALUES * len(READ) / 8  # and nothing was read yet


def seconds_of_misses(path: Path, rows: int) -> float:
    """Of keys that are not there, among so many that are, anywhere: the best of some rounds."""
    keys = random.Random(11)
    with closing(RocksStore.open(str(path))) as store:
        for _ in range(0, rows, WRITE):
            batch = store.batch()
            batch.put_many(Family.VERSIONS, [keys.randbytes(16) for _ in range(WRITE)], [b"small"] * WRITE)
            store.write(batch)
        native = store._families[Family.VERSIONS]
        native.flush()
        native.compact_range(None, None)
        took = []
        for _ in range(ROUNDS):
            missing = [keys.randbytes(16) for _ in range(MISSES)]
            began = time.perf_counter()
            assert store.get_many(Family.VERSIONS, missing) == [None] * MISSES
            took.append(time.perf_counter() - began)
    return min(took)


@pytest.mark.speed
def test_a_key_that_is_not_there_is_found_missing_as_quickly_among_many(tmp_path: Path) -> None:
    """Every insert asks for one. A filter that no cache can hold would be read from its file each time."""
    few, many = (seconds_of_misses(tmp_path / str(rows), rows) for rows in (FEW, MANY))
    assert many < 12 * few
