"""Zeros ahead of the write-ahead log: when they are written, that they follow RocksDB from file to file, and that nobody
notices when they cannot be."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tablecast.storage import zeros_ahead
from tablecast.storage.base import Family
from tablecast.storage.restore import restore
from tablecast.storage.rocks import RocksStore
from tablecast.storage.wal_tail import log_files
from tablecast.storage.zeros_ahead import PIECE_BYTES, SMALL_COMMIT_BYTES, SYNCS_IN_A_ROW

ROWS = Family.ROWS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def store(path: Path) -> RocksStore:
    return RocksStore.open(str(path))


def commit(store: RocksStore, number: int, size: int = 300, *, syncs: int = 1) -> None:
    batch = store.batch()
    batch.put(ROWS, b"%06d" % number, b"v" * size)
    store.write(batch)
    for _ in range(syncs):
        store.sync()


def ahead(path: Path) -> int:
    """Zeros at the end of the newest log."""
    log = log_files(path / "store")[-1].read_bytes()
    return len(log) - len(log.rstrip(b"\0"))


def numbers(path: Path) -> list[int]:
    store = RocksStore.open(str(path), create=False)
    try:
        return [int(key) for key, _ in store.scan(ROWS)]
    finally:
        store.close()


# --- when ---------------------------------------------------------------------------------------------------


def test_small_commits_that_are_synced_each_have_zeros_ahead_of_them(store: RocksStore, path: Path) -> None:
    for number in range(SYNCS_IN_A_ROW - 1):
        commit(store, number)
    assert ahead(path) == 0
    fewest = PIECE_BYTES
    for number in range(SYNCS_IN_A_ROW - 1, 3000):
        commit(store, number)
        fewest = min(fewest, ahead(path)) if number % 50 == 0 else fewest
    assert fewest > 0  # whoever comes next finds some
    assert ahead(path) <= PIECE_BYTES + SMALL_COMMIT_BYTES
    store.close()
    assert ahead(path) == 0
    assert numbers(path) == list(range(3000))


def test_large_commits_have_none(store: RocksStore, path: Path) -> None:
    for number in range(3 * SYNCS_IN_A_ROW):
        commit(store, number, SMALL_COMMIT_BYTES)
    assert ahead(path) == 0
    store.close()


def test_large_commits_among_small_ones_have_none(store: RocksStore, path: Path) -> None:
    for number in range(5 * SYNCS_IN_A_ROW):
        commit(store, number, SMALL_COMMIT_BYTES if number % (SYNCS_IN_A_ROW // 2) == 0 else 300)
        assert ahead(path) == 0
    store.close()


@pytest.mark.parametrize("syncs", [0, 2])
def test_commits_that_are_not_synced_each_have_none(store: RocksStore, path: Path, syncs: int) -> None:
    """Never, or by a clock, which also syncs when there is nothing new."""
    for number in range(3 * SYNCS_IN_A_ROW):
        commit(store, number, syncs=syncs)
    store.sync()
    assert ahead(path) == 0
    store.close()


def test_several_commits_to_a_sync_have_none(store: RocksStore, path: Path) -> None:
    for number in range(6 * SYNCS_IN_A_ROW):
        commit(store, number, syncs=number % 2)
    assert ahead(path) == 0
    store.close()


# --- one at a time ------------------------------------------------------------------------------------------


class Counted:
    """RocksDB, with the syncs counted."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.syncs = 0

    def flush_wal(self, sync: bool) -> None:
        self.syncs += 1
        self._native.flush_wal(sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


@pytest.fixture
def counted(store: RocksStore) -> Iterator[Counted]:
    native = store._root
    store._root = counted = Counted(native)
    yield counted
    store._root = native
    store.close()


def test_into_zeros_no_write_follows_another_that_is_not_durable(
    store: RocksStore, path: Path, counted: Counted
) -> None:
    for number in range(2 * SYNCS_IN_A_ROW):
        commit(store, number)
    assert ahead(path) > 10_000
    counted.syncs = 0
    for number in range(10):
        commit(store, 1000 + number, syncs=0)
        assert counted.syncs == number  # the one before, each time
    store.sync()
    while ahead(path):
        commit(store, 2000, 20_000, syncs=0)
    before = counted.syncs
    for number in range(10):
        commit(store, 3000 + number, syncs=0)
    assert counted.syncs == before  # the file grows again
    assert ahead(path) == 0


def test_who_no_longer_syncs_each_commit_uses_up_the_zeros_and_gets_no_more(
    store: RocksStore, path: Path, counted: Counted
) -> None:
    for number in range(2 * SYNCS_IN_A_ROW):
        commit(store, number)
    for number in range(2000):
        commit(store, number, syncs=int(number % (2 * SYNCS_IN_A_ROW) == 0))
    assert ahead(path) == 0
    counted.syncs = 0
    for number in range(2000):
        commit(store, number, syncs=0)
    assert counted.syncs == 0


def test_without_zeros_nothing_is_synced_that_nobody_asked_for(store: RocksStore, counted: Counted) -> None:
    for number in range(3 * SYNCS_IN_A_ROW):
        commit(store, number, syncs=0)
    assert counted.syncs == 0


def test_a_write_without_operations_uses_up_no_zeros(store: RocksStore, path: Path, counted: Counted) -> None:
    for number in range(2 * SYNCS_IN_A_ROW):
        commit(store, number)
    for _ in range(30_000):
        store.write(store.batch())
        store._ahead.synced(1)
    assert ahead(path) <= store._ahead._zeros


# --- from file to file --------------------------------------------------------------------------------------

SWITCH_AND_DIE = """
import os, signal, sys
from pathlib import Path
from tablecast.storage.base import Family
from tablecast.storage.rocks import RocksStore
from tablecast.storage.wal_tail import log_files
store = RocksStore.open(sys.argv[1])
seen, with_zeros = set(), set()
for number in range(3000):
    batch = store.batch()
    batch.put(Family.ROWS, b"%06d" % number, b"v" * (300_000 if number % 150 == 0 else 8_000))
    store.write(batch)
    store.sync()
    wal = log_files(Path(sys.argv[1], "store"))[-1]
    seen.add(wal.name)
    with wal.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\\0":
            with_zeros.add(wal.name)
held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
print(len(seen), len(with_zeros), sum("deleted" in name for name in held), sum(wal.name in name for name in held))
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_zeros_follow_from_file_to_file_and_keep_none_of_them(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SWITCH_AND_DIE, str(path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    files, with_zeros, deleted, open_files = map(int, done.stdout.split())
    assert files >= 3
    assert with_zeros >= files - 1  # the newest may just have been begun
    assert (deleted, open_files) == (0, 1)  # RocksDB's own
    killed = {log.name for log in log_files(path / "store")}
    assert len(killed) < files
    assert numbers(path) == list(range(3000))
    assert not killed & {log.name for log in log_files(path / "store")}
    assert numbers(path) == list(range(3000))


def test_of_two_logs_that_are_needed_the_newer_has_the_zeros(store: RocksStore, path: Path) -> None:
    commit(store, 0)
    batch = store.batch()
    batch.put(Family.LOG, b"k", b"v")
    store.write(batch)
    store._families[Family.LOG].flush()
    for number in range(1, 2 * SYNCS_IN_A_ROW):
        commit(store, number)
    older, newer = log_files(path / "store")
    assert older.stat().st_size < PIECE_BYTES < newer.stat().st_size
    store.close()
    assert numbers(path) == list(range(2 * SYNCS_IN_A_ROW))


def test_a_log_in_which_nothing_is_yet_has_none(store: RocksStore, path: Path) -> None:
    for number in range(SYNCS_IN_A_ROW):
        commit(store, number)
    store._families[ROWS].flush()
    store._ahead.extend()
    assert log_files(path / "store")[-1].stat().st_size == 0
    store.close()


def test_a_backup_has_everything_and_no_zeros(store: RocksStore, path: Path, tmp_path: Path) -> None:
    for number in range(2 * SYNCS_IN_A_ROW):
        commit(store, number)
    assert ahead(path) > 0
    store.checkpoint(str(tmp_path / "backup"))
    assert sum(log.stat().st_size for log in log_files(tmp_path / "backup" / "store")) == 0
    for number in range(2 * SYNCS_IN_A_ROW, 4 * SYNCS_IN_A_ROW):
        commit(store, number)
    shutil.copytree(path, tmp_path / "killed")
    store.close()
    assert numbers(tmp_path / "backup") == list(range(2 * SYNCS_IN_A_ROW))
    restore(tmp_path / "killed", tmp_path / "restored")
    assert numbers(tmp_path / "restored") == list(range(4 * SYNCS_IN_A_ROW))


# --- when it fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT])
def test_nobody_hears_of_a_failure_and_it_is_not_tried_each_time(
    store: RocksStore, path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    tried = []

    write = os.pwrite

    def fail(descriptor: int, data: bytes, at: int) -> int:
        if len(data) < PIECE_BYTES:
            return write(descriptor, data, at)  # the watermark
        tried.append(code)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(zeros_ahead.os, "pwrite", fail)
    for number in range(2000):
        commit(store, number)
    store.close()
    assert 1 <= len(tried) <= 1 + 2000 * 400 // PIECE_BYTES
    assert numbers(path) == list(range(2000))


def test_the_last_of_the_disk_is_left_alone(store: RocksStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeros_ahead, "_free_bytes", lambda _: zeros_ahead.SPARE_BYTES - 1)
    for number in range(2 * SYNCS_IN_A_ROW):
        commit(store, number)
    assert ahead(path) == 0
    store.close()


FILL = """
import resource, sys
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.rocks import RocksStore
store = RocksStore.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
acknowledged = 0
try:
    while acknowledged < 1000:
        batch = store.batch()
        batch.put(Family.ROWS, b"%06d" % acknowledged, b"v" * 1000)
        store.write(batch)
        for _ in range(int(sys.argv[2])):
            store.sync()
        acknowledged += 1
except StorageFailure as failure:
    assert "File too large" in str(failure), failure
print(acknowledged)
store.close()
"""


def test_a_file_size_limit_stops_writes_where_rocksdb_meets_it(tmp_path: Path) -> None:
    """As many commits as without zeros, which a second sync after each keeps away."""
    counts = []
    for syncs in ("1", "2"):
        command = [sys.executable, "-c", FILL, str(tmp_path / syncs), syncs]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        counts.append(int(done.stdout))
        assert numbers(tmp_path / syncs)[: counts[-1]] == list(range(counts[-1]))
    assert counts[0] == counts[1]
    assert 2 * SYNCS_IN_A_ROW < counts[0] < 1000


def test_sizes_in_any_order_are_all_there(store: RocksStore, path: Path) -> None:
    """Small runs, large commits through and beyond the zeros, none at all: a copy as of a kill has everything."""
    draw = random.Random(5)
    for number in range(400):
        commit(store, number, draw.choice([20] * 40 + [5_000, 40_000, 400_000]), syncs=draw.choice([1] * 60 + [0, 2]))
        assert number % 7 or ahead(path) <= max(0, store._ahead._zeros)  # never more than thought
    store.sync()
    shutil.copytree(path, path.with_name("killed"))
    store.close()
    assert numbers(path.with_name("killed")) == numbers(path) == list(range(400))
