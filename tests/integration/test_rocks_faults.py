"""What RocksStore does when the disk, the machine or the user does something wrong.

The images under test are made by a process that writes, syncs and is killed; one kind has zeros ahead of its log, as
every store that syncs small commits, the other has a log that ends with its last record. The rule for every kind of
damage: an error that says so, or every acknowledged byte; never a store that opens with less.

What a power cut leaves of a record in the midst of zeros: `test_torn_log.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tablecast
from integration.raw_store import contents, write
from tablecast.errors import (
    BackupError,
    CorruptData,
    DatabaseError,
    DatabaseLocked,
    FormatTooNew,
    NotADatabase,
    TablecastError,
)
from tablecast.storage import rocks
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.home import FORMAT
from tablecast.storage.rocks import RocksStore

ROWS, LOG = Family.ROWS, Family.LOG
COUNT = 60

WRITE_AND_DIE = f"""
import os, signal, sys
from tablecast.storage.base import Family
from tablecast.storage.rocks import RocksStore
store = RocksStore.open(sys.argv[1])
for number in range({COUNT}):
    batch = store.batch()
    batch.put(Family.ROWS, b"%04d" % number, b"row %d " % number * 20)
    batch.put(Family.LOG, b"%04d" % number, bytes([number]) * 100)
    store.write(batch)
    store.sync()
    if sys.argv[2] == "growing":
        store.sync()  # syncs that do not follow a commit each: no zeros
if int(sys.argv[3]):
    batch = store.batch()
    batch.put(Family.ROWS, b"last", b"never acknowledged" * int(sys.argv[3]))
    store.write(batch)
os.kill(os.getpid(), signal.SIGKILL)
"""

ACKNOWLEDGED = {b"%04d" % number: b"row %d " % number * 20 for number in range(COUNT)}


KINDS = ["growing", "zeros"]


def killed(path: Path, kind: str, unsynced: int = 0) -> Path:
    command = [sys.executable, "-c", WRITE_AND_DIE, str(path), kind, str(unsynced)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return path


@pytest.fixture(scope="module", params=KINDS)
def synced_image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("synced") / "db", request.param)


@pytest.fixture(scope="module", params=KINDS)
def unsynced_image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("unsynced") / "db", request.param, unsynced=10)


@pytest.fixture(scope="module")
def flushed_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Closed in good order: everything is in SST files."""
    path = tmp_path_factory.mktemp("flushed") / "db"
    store = RocksStore.open(str(path))
    write(store, ACKNOWLEDGED)
    store.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def newest(path: Path, pattern: str) -> Path:
    return max((path / "store").glob(pattern), key=lambda file: (file.stat().st_size > 0, file.name))


def end_of_records(wal: Path) -> int:
    """None of them ends in a zero."""
    return len(wal.read_bytes().rstrip(b"\0"))


def flip(file: Path, position: int, bit: int = 4) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << bit
    file.write_bytes(content)


# --- the write-ahead log ------------------------------------------------------------------------------------


def test_killed_after_sync_everything_is_there(synced_image: Path, path: Path) -> None:
    shutil.copytree(synced_image, path)
    assert contents(path) == ACKNOWLEDGED


def test_a_torn_tail_that_was_never_acknowledged_opens(unsynced_image: Path, path: Path) -> None:
    for cut in (1, 50, 150):
        shutil.copytree(unsynced_image, path)
        wal = newest(path, "*.log")
        os.truncate(wal, end_of_records(wal) - cut)
        assert contents(path) == ACKNOWLEDGED
        assert contents(path) == ACKNOWLEDGED  # and is settled: opening once more finds nothing odd
        shutil.rmtree(path)


def cut_inside_the_last_record(wal: Path) -> None:
    os.truncate(wal, end_of_records(wal) - 5)


def cut_to_nothing(wal: Path) -> None:
    os.truncate(wal, 0)


def remove(wal: Path) -> None:
    wal.unlink()


def flip_in_the_middle(wal: Path) -> None:
    flip(wal, end_of_records(wal) // 2)


def flip_in_the_last_record(wal: Path) -> None:
    flip(wal, end_of_records(wal) - 10)


def flip_a_length(wal: Path) -> None:
    flip(wal, 5, bit=7)  # high byte of the first record's length: it now seems to end after the file does


@pytest.mark.parametrize(
    "damage", [cut_inside_the_last_record, flip_in_the_middle, flip_in_the_last_record, flip_a_length]
)
def test_a_damaged_log_is_refused_and_left_as_it_is(
    synced_image: Path, path: Path, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(synced_image, path)
    wal = newest(path, "*.log")
    intact = wal.read_bytes()
    damage(wal)
    for _ in range(2):
        with pytest.raises(CorruptData, match=str(path)):
            RocksStore.open(str(path))
    wal.write_bytes(intact)
    assert contents(path) == ACKNOWLEDGED


@pytest.mark.parametrize("damage", [cut_to_nothing, remove])
def test_a_lost_log_is_refused(synced_image: Path, path: Path, damage: Callable[[Path], None]) -> None:
    """RocksDB takes a log that is gone for one that never was; only the watermark knows better."""
    shutil.copytree(synced_image, path)
    damage(newest(path, "*.log"))
    for _ in range(2):
        with pytest.raises(CorruptData, match="was acknowledged as durable"):
            RocksStore.open(str(path))


def spread(size: int, samples: int) -> list[int]:
    return sorted({round(i * (size - 1) / (samples - 1)) for i in range(samples)})


@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*", "CURRENT"])
def test_a_flipped_bit_anywhere_is_an_error_or_harmless(synced_image: Path, path: Path, pattern: str) -> None:
    refused = 0
    file = newest(synced_image, pattern)
    size, end = file.stat().st_size, end_of_records(file)
    for position in spread(end, 16) + [end + at for at in spread(size - end, 8) if end < size]:
        shutil.copytree(synced_image, path)
        flip(newest(path, pattern), position)
        try:
            assert contents(path) == ACKNOWLEDGED, f"bit flipped at {position}: opened with less"
        except DatabaseError as error:
            assert isinstance(error, CorruptData | StorageFailure)
            refused += 1
        shutil.rmtree(path)
    assert refused > 0


# --- data files ---------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_data_file_is_an_error_or_harmless(flushed_image: Path, path: Path) -> None:
    data_file = max((flushed_image / "store").glob("*.sst"), key=lambda file: file.stat().st_size)
    refused = 0
    for position in spread(data_file.stat().st_size, 24):
        shutil.copytree(flushed_image, path)
        flip(path / "store" / data_file.name, position)
        try:
            store = RocksStore.open(str(path))
        except CorruptData:
            refused += 1
        else:
            refused += all_or_corrupt(store)
            store.close()
        shutil.rmtree(path)
    assert refused > 0


def all_or_corrupt(store: RocksStore) -> bool:
    """Every way of reading gives all that was written, or says that it cannot."""
    snapshot = store.snapshot()
    ways: list[Callable[[], object]] = [
        lambda: dict(store.scan(ROWS)),
        lambda: dict(snapshot.scan(ROWS)),
        lambda: dict(store.scan(ROWS, reverse=True)),
        lambda: {key: store.get(ROWS, key) for key in ACKNOWLEDGED},
        lambda: {key: snapshot.get(ROWS, key) for key in ACKNOWLEDGED},
    ]
    corrupt = False
    for read in ways:
        try:
            assert read() == ACKNOWLEDGED
        except CorruptData:
            corrupt = True
    return corrupt


def test_a_corrupt_block_ends_a_scan_with_an_error_not_early(path: Path) -> None:
    store = RocksStore.open(str(path))
    rows = {b"%06d" % i: os.urandom(200) for i in range(2000)}
    write(store, rows)
    store.close()
    data_file = max((path / "store").glob("*.sst"), key=lambda file: file.stat().st_size)
    flip(data_file, data_file.stat().st_size // 2)
    store = RocksStore.open(str(path))
    read = []
    with pytest.raises(CorruptData, match="checksum"):
        read.extend(key for key, _ in store.scan(ROWS))
    assert 0 < len(read) < 2000
    store.close()


def test_a_missing_data_file_is_refused(flushed_image: Path, path: Path) -> None:
    shutil.copytree(flushed_image, path)
    next((path / "store").glob("*.sst")).unlink()
    with pytest.raises(DatabaseError) as caught:
        contents(path)
    assert isinstance(caught.value, CorruptData | StorageFailure)


# --- the marker, the watermark and the directory ------------------------------------------------------------


def test_the_marker_says_format_and_version(flushed_image: Path) -> None:
    assert json.loads((flushed_image / "TABLECAST").read_text()) == {
        "format": FORMAT,
        "created_by": tablecast.__version__,
    }


def test_a_flipped_bit_in_marker_or_watermark_is_an_error_or_harmless(synced_image: Path, path: Path) -> None:
    shutil.copytree(synced_image, path)
    for name in ("TABLECAST", "SYNCED"):
        intact = (path / name).read_bytes()
        for position in range(len(intact)):
            flip(path / name, position)
            try:
                found = contents(path)
            except (CorruptData, FormatTooNew):
                found = ACKNOWLEDGED
            assert found == ACKNOWLEDGED
            (path / name).write_bytes(intact)


@pytest.mark.parametrize("marker", [b"", b"{", b"[]", b'{"format": "one"}', b'{"format": 0, "created_by": "0"}'])
def test_an_unreadable_marker_is_corrupt(flushed_image: Path, path: Path, marker: bytes) -> None:
    shutil.copytree(flushed_image, path)
    (path / "TABLECAST").write_bytes(marker)
    with pytest.raises(CorruptData, match="TABLECAST"):
        RocksStore.open(str(path))


def test_a_newer_format_names_both_versions(flushed_image: Path, path: Path) -> None:
    shutil.copytree(flushed_image, path)
    (path / "TABLECAST").write_text('{"format": 7, "created_by": "9.9.9", "unknown": true}')
    with pytest.raises(FormatTooNew, match=rf"format 7, written by tablecast 9\.9\.9.*up to format {FORMAT}"):
        RocksStore.open(str(path))


@pytest.mark.parametrize("content", [b"", b"\x00" * 12, b"\x00" * 13])
def test_a_watermark_without_its_checksum_is_corrupt(flushed_image: Path, path: Path, content: bytes) -> None:
    shutil.copytree(flushed_image, path)
    (path / "SYNCED").write_bytes(content)
    with pytest.raises(CorruptData, match="SYNCED"):
        RocksStore.open(str(path))


def test_a_missing_watermark_is_corrupt(flushed_image: Path, path: Path) -> None:
    shutil.copytree(flushed_image, path)
    (path / "SYNCED").unlink()
    with pytest.raises(CorruptData, match="SYNCED is missing"):
        RocksStore.open(str(path))


def test_a_lost_store_directory_is_not_a_fresh_database(flushed_image: Path, path: Path) -> None:
    shutil.copytree(flushed_image, path)
    shutil.rmtree(path / "store")
    for _ in range(2):
        with pytest.raises(CorruptData, match=str(path)):
            RocksStore.open(str(path))


def test_an_interrupted_creation_is_finished(path: Path) -> None:
    path.mkdir()
    (path / "TABLECAST.partial").write_text('{"form')
    RocksStore.open(str(path)).close()
    marker = (path / "TABLECAST").read_text()
    for remains in ("MANIFEST-000001", "LOCK"):
        shutil.rmtree(path)
        (path / "store").mkdir(parents=True)
        (path / "store" / remains).touch()
        (path / "TABLECAST").write_text('{"format": 1, "created_by": "0.1.0", "creating": true}')
        with pytest.raises(NotADatabase):
            RocksStore.open(str(path), create=False)
        assert contents_after_creation(path) == {}
        assert (path / "TABLECAST").read_text() == marker


def contents_after_creation(path: Path) -> dict[bytes, bytes]:
    RocksStore.open(str(path)).close()
    return contents(path)


def test_a_file_is_not_a_database(path: Path) -> None:
    path.write_text("notes")
    with pytest.raises(NotADatabase, match="is a file"):
        RocksStore.open(str(path))
    assert path.read_text() == "notes"


def test_a_directory_with_other_things_is_not_a_database(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").touch()
    with pytest.raises(NotADatabase, match=r"thesis\.tex"):
        RocksStore.open(str(path))
    assert [file.name for file in path.iterdir()] == ["thesis.tex"]


def test_an_empty_directory_becomes_a_database(path: Path) -> None:
    path.mkdir()
    RocksStore.open(str(path)).close()
    assert sorted(file.name for file in path.iterdir()) == ["RESERVE", "SYNCED", "TABLECAST", "store"]


def test_without_create_nothing_is_made(path: Path) -> None:
    with pytest.raises(NotADatabase, match="no database"):
        RocksStore.open(str(path), create=False)
    assert not path.exists()


def test_a_failed_creation_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(store: Path, *_: object, **__: object) -> None:
        store.mkdir()
        (store / "MANIFEST-000001").touch()
        raise Exception("IO error: No space left on device: While appending to file")

    monkeypatch.setattr(rocks, "_open_native", full)
    with pytest.raises(StorageFailure, match="No space left"):
        RocksStore.open(str(path))
    assert not path.exists()
    path.mkdir()
    with pytest.raises(StorageFailure):
        RocksStore.open(str(path))
    assert list(path.iterdir()) == []


# --- locks --------------------------------------------------------------------------------------------------

OPEN = """
import sys
from tablecast.errors import DatabaseLocked
from tablecast.storage.rocks import RocksStore
try:
    RocksStore.open(sys.argv[1]).close()
except DatabaseLocked as error:
    print(error)
"""


def test_a_second_open_is_refused_here_and_elsewhere(path: Path) -> None:
    store = RocksStore.open(str(path))
    write(store, {b"a": b"1"})
    with pytest.raises(DatabaseLocked, match=f"{path} is already open in this process"):
        RocksStore.open(str(path))
    other = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True)
    assert f"{path} is open in another process" in other.stdout
    assert store.get(ROWS, b"a") == b"1"
    store.close()
    assert contents(path) == {b"a": b"1"}


# --- backups ------------------------------------------------------------------------------------------------


def test_an_unfinished_backup_is_not_opened(path: Path, tmp_path: Path) -> None:
    store = RocksStore.open(str(path))
    write(store, {b"a": b"1"})
    store.checkpoint(str(tmp_path / "backup"))
    unfinished = tmp_path / "backup.partial"
    shutil.copytree(tmp_path / "backup", unfinished)
    (unfinished / "TABLECAST").unlink()
    with pytest.raises(NotADatabase, match="unfinished backup"):
        RocksStore.open(str(unfinished))
    with pytest.raises(BackupError, match=r"other\.partial"):
        (tmp_path / "other.partial").mkdir()
        store.checkpoint(str(tmp_path / "other"))
    store.close()
    assert contents(tmp_path / "backup") == {b"a": b"1"}


def test_a_failed_backup_leaves_nothing_and_the_store_goes_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksStore.open(str(path))
    write(store, {b"a": b"1"})

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rocks, "sync_tree", full)
        with pytest.raises(BackupError, match="No space left"):
            store.checkpoint(str(tmp_path / "backup"))
    assert [file.name for file in tmp_path.iterdir()] == ["db"]
    write(store, {b"b": b"2"})
    store.checkpoint(str(tmp_path / "backup"))
    store.close()
    assert contents(tmp_path / "backup") == {b"a": b"1", b"b": b"2"}


# --- no space -----------------------------------------------------------------------------------------------

FILL = """
import random, resource, sys
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.rocks import RocksStore
store = RocksStore.open(sys.argv[1])
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
acknowledged = 0
try:
    while acknowledged < 1000:
        batch = store.batch()
        batch.put(Family.ROWS, b"%04d" % acknowledged, random.Random(acknowledged).randbytes(300_000))
        store.write(batch)
        store.sync()
        acknowledged += 1
    print("never failed")
except StorageFailure as failure:
    print(acknowledged, failure)
for again in (store.sync, lambda: store.write(store.batch())):
    try:
        again()
        print("written after a failure")
    except StorageFailure as failure:
        assert "until it is opened again" in str(failure), failure
assert store.get(Family.ROWS, b"0000") == random.Random(0).randbytes(300_000)
store.close()
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A directory that fills up, and the largest file to be allowed there (0: the disk itself is small)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    mounted = shutil.which("mount") is not None and subprocess.run(mount, capture_output=True).returncode == 0
    yield disk, 0 if mounted else 4_000_000
    if mounted:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_stops_writes_and_loses_nothing_acknowledged(small_disk: tuple[Path, int], tmp_path: Path) -> None:
    disk, limit = small_disk
    command = [sys.executable, "-c", FILL, str(disk / "db"), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    acknowledged, _, reason = done.stdout.partition(" ")
    assert ("No space left" if limit == 0 else "File too large") in reason
    assert "written after" not in done.stdout
    shutil.copytree(disk / "db", tmp_path / "rescued")
    found = contents(tmp_path / "rescued")
    assert len(found) >= int(acknowledged) > 0
    assert all(found[b"%04d" % n] == random.Random(n).randbytes(300_000) for n in range(int(acknowledged)))


def test_a_file_size_limit_stops_writes_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL, str(tmp_path / "db"), "4000000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    acknowledged = int(done.stdout.split()[0])
    assert "File too large" in done.stdout
    assert len(contents(tmp_path / "db")) >= acknowledged > 0


# --- every error is ours ------------------------------------------------------------------------------------


def test_a_key_that_is_not_bytes_is_a_type_error(path: Path) -> None:
    store = RocksStore.open(str(path))
    for reader in (store, store.snapshot()):
        with pytest.raises(TypeError, match="bytes"):
            reader.get(ROWS, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="bytes"):
            reader.get_many(ROWS, ["text"])  # type: ignore[list-item]
    store.close()


def test_a_directory_that_cannot_be_made_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TablecastError, match="file/db"):
        RocksStore.open(str(tmp_path / "file" / "db"))
