"""What a power cut leaves of the last commit when its place in the log was zeros before, and what RocksStore makes of it.

A power cut is played by sectors: of those of the last commit any may be there, and any may still be the zeros. If nobody
was told of the commit, the store opens without it. If somebody was, or if it may be something else than a power cut, the
store is refused, and not a byte of its log is changed.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from integration.raw_store import contents, write
from tablecast.errors import CorruptData, DatabaseLocked
from tablecast.storage import rocks
from tablecast.storage.base import Family
from tablecast.storage.home import Watermark
from tablecast.storage.rocks import RocksStore
from tablecast.storage.wal_tail import BLOCK, SECTOR, log_files, torn_at
from tablecast.storage.zeros_ahead import PIECE_BYTES, SYNCS_IN_A_ROW

ROWS = Family.ROWS
COUNT = SYNCS_IN_A_ROW + 20
ACKNOWLEDGED = {b"%04d" % number: random.Random(number).randbytes(1000) for number in range(COUNT)}  # more than a block


class Image:
    """A store as a process leaves it that dies after the last of its commits, with zeros ahead."""

    def __init__(self, path: Path, last: dict[bytes, bytes]) -> None:
        store = RocksStore.open(str(path / "live"))
        for key, value in ACKNOWLEDGED.items():
            write(store, {key: value})
            store.sync()
        self.acknowledged = Watermark.read(path / "live")
        self.wal = log_files(path / "live" / "store")[-1].name
        before = (path / "live" / "store" / self.wal).read_bytes()
        assert before.endswith(bytes(PIECE_BYTES // 2))
        write(store, last)
        self.path = path / "image"
        shutil.copytree(path / "live", self.path)
        store.close()
        self.log = (self.path / "store" / self.wal).read_bytes()
        self.start = len(before.rstrip(b"\0"))  # no record here ends in a zero
        self.end = len(self.log.rstrip(b"\0"))

    def sectors(self) -> list[tuple[int, int]]:
        """The last commit's parts of them."""
        edges = [self.start, *range(self.start - self.start % SECTOR + SECTOR, self.end, SECTOR), self.end]
        return list(pairwise(edges))

    def without(self, lost: list[tuple[int, int]]) -> bytes:
        log = bytearray(self.log)
        for start, end in lost:
            log[start:end] = bytes(end - start)
        return bytes(log)

    def copy(self, path: Path, log: bytes, acknowledged: int | None = None) -> None:
        """With this log in place of its own, and perhaps another watermark."""
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path, path)
        (path / "store" / self.wal).write_bytes(log)
        if acknowledged is not None:
            Watermark.write(path, acknowledged)


SIZES = {"a_few_sectors": 1500, "several_pages": 12_000, "several_blocks": 100_000}


@pytest.fixture(scope="module", params=SIZES)
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    last = {b"last": random.Random(7).randbytes(SIZES[request.param]) + b"."}
    return Image(tmp_path_factory.mktemp(request.param), last)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


Part = tuple[int, int]


def losses(image: Image) -> Iterator[list[Part]]:
    sectors = image.sectors()
    for keep in sorted({0, 1, 2, len(sectors) // 3, len(sectors) - 1}):
        yield sectors[keep:]  # only the beginning is there
    for lost in sorted({0, 1, len(sectors) // 2, len(sectors) - 1}):
        yield [sectors[lost]]  # a hole
        yield [part for number, part in enumerate(sectors) if number != lost]  # an island
    yield [part for part in sectors if part[0] % BLOCK == 0] or sectors  # where blocks begin
    for seed in range(4):
        yield [part for part in sectors if random.Random(seed + part[0]).random() < 0.5] or sectors[:1]


def test_killed_with_zeros_ahead_everything_is_there(image: Image, path: Path) -> None:
    image.copy(path, image.log)
    assert contents(path).keys() == {*ACKNOWLEDGED, b"last"}


def test_what_is_torn_and_was_never_acknowledged_is_left_out(image: Image, path: Path) -> None:
    for lost in losses(image):
        image.copy(path, image.without(lost))
        assert contents(path) == ACKNOWLEDGED, lost
        assert contents(path) == ACKNOWLEDGED  # and is settled
        assert sorted(file.name for file in path.iterdir()) == ["RESERVE", "SYNCED", "TABLECAST", "store"]


def test_every_sector_that_is_missing_is_noticed(image: Image) -> None:
    sectors = image.sectors()
    assert torn_at(image.log) is None
    assert torn_at(image.without(sectors)) is None  # nothing is left of it: the log ends before
    for number in range(0, len(sectors), 1 + len(sectors) // 40):
        assert torn_at(image.without([sectors[number]])) == image.start
        assert number == 0 or torn_at(image.without(sectors[number:])) == image.start


def test_what_is_torn_and_was_acknowledged_is_refused_and_left_as_it_is(image: Image, path: Path) -> None:
    for lost in losses(image):
        torn = image.without(lost)
        if not torn[image.start :].strip(b"\0"):
            continue  # nothing is left of it: only the watermark tells, once RocksDB has opened it
        image.copy(path, torn, acknowledged=image.acknowledged + 1)
        for _ in range(2):
            with pytest.raises(CorruptData, match=str(path)):
                RocksStore.open(str(path))
            assert (path / "store" / image.wal).read_bytes() == torn
        image.copy(path, image.log, acknowledged=image.acknowledged + 1)
        assert len(contents(path)) == COUNT + 1


def test_a_file_that_ends_inside_the_last_commit_opens_too(image: Image, path: Path) -> None:
    """Zeros ended before it did: the file grew, and what it grew by is lost. With and without a sector missing."""
    sectors = image.sectors()
    middle = sectors[len(sectors) // 2][1]
    for log in (image.log[:middle], image.log[: middle - 3], image.without(sectors[1:2])[:middle]):
        image.copy(path, log)
        assert contents(path) == ACKNOWLEDGED


# --- what is not a power cut --------------------------------------------------------------------------------


def flipped_in_the_last(image: Image) -> Iterator[bytes]:
    size = image.end - image.start
    for at in [0, 3, 4, 5, 6, 7, 20, size // 2, size - 1]:
        log = bytearray(image.log)
        log[image.start + at] ^= 0x10
        yield bytes(log)


def test_a_flipped_bit_in_the_last_record_is_not_taken_for_torn(image: Image, path: Path) -> None:
    """Somebody may have been told of it: after a power cut the watermark may be old."""
    for log in flipped_in_the_last(image):
        image.copy(path, log, acknowledged=1)
        with pytest.raises(CorruptData, match=str(path)):
            RocksStore.open(str(path))
        assert (path / "store" / image.wal).read_bytes() == log


def record_starts(log: bytes) -> list[int]:
    """Of a log that is whole."""
    starts, at = [], 0
    while log[at:].strip(b"\0"):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
        length, kind = struct.unpack_from("<HB", log, at + 4)
        if kind in (1, 2):
            starts.append(at)
        at += 7 + length
    return starts


def test_a_torn_record_that_others_follow_is_refused(image: Image, path: Path) -> None:
    """Each commit is synced before the next is written: this one was, and has lost something since."""
    starts = record_starts(image.log)
    assert starts[-1] == image.start and len(starts) > COUNT
    for start in (starts[5], starts[-4], starts[-2]):
        log = bytearray(image.log)
        sector = start - start % SECTOR + SECTOR
        log[sector : sector + SECTOR] = bytes(SECTOR)
        image.copy(path, bytes(log), acknowledged=1)  # as old as a watermark can be
        with pytest.raises(CorruptData, match=str(path)):
            RocksStore.open(str(path))
        assert (path / "store" / image.wal).read_bytes() == log


def test_what_rocksdb_would_pass_over_in_silence_is_refused(tmp_path: Path, path: Path) -> None:
    """A block's last record is zeros, as if never written, and another begins the next block."""
    store = RocksStore.open(str(tmp_path / "live"))
    wal = log_files(tmp_path / "live" / "store")[-1]
    write(store, {b"k": value_that_fits(store, 20_000)})
    start = wal.stat().st_size
    write(store, {b"k": value_that_fits(store, BLOCK - start)})
    assert wal.stat().st_size == BLOCK
    write(store, {b"l": b"2"})
    store.sync()
    shutil.copytree(tmp_path / "live", path)
    store.close()
    copy = path / "store" / wal.name
    log = copy.read_bytes()
    broken = log[:start] + bytes(BLOCK - start) + log[BLOCK:]
    copy.write_bytes(broken)
    for _ in range(2):
        with pytest.raises(CorruptData, match="goes on behind a gap"):
            RocksStore.open(str(path))
        assert copy.read_bytes() == broken


def value_that_fits(store: RocksStore, size: int) -> bytes:
    """For the key k, and a record of this many bytes in the log."""
    batch = store.batch()
    batch.put(ROWS, b"k", bytes(size))
    assert batch.native is not None
    return b"v" * (size - (batch.native.size_in_bytes() + 7 - size))


def test_damage_beside_the_torn_record_is_refused_and_nothing_is_cut(image: Image, path: Path) -> None:
    torn = bytearray(image.without(image.sectors()[1:]))
    torn[200] ^= 0x10
    image.copy(path, bytes(torn))
    with pytest.raises(CorruptData, match=str(path)):
        RocksStore.open(str(path))
    assert (path / "store" / image.wal).read_bytes() == torn
    image.copy(path, image.without(image.sectors()[1:]))
    manifest = next((path / "store").glob("MANIFEST-*"))
    manifest.write_bytes(manifest.read_bytes()[:-40])
    with pytest.raises(CorruptData, match=str(path)):
        RocksStore.open(str(path))
    assert (path / "store" / image.wal).read_bytes() == image.without(image.sectors()[1:])


# --- several logs -------------------------------------------------------------------------------------------


def test_zeros_behind_an_older_log_are_nothing(tmp_path: Path, path: Path) -> None:
    """RocksDB cuts them off when it is done with a file; a kill may come before."""
    store = RocksStore.open(str(tmp_path / "live"))
    write(store, {b"a": b"1"})
    batch = store.batch()
    batch.put(Family.LOG, b"a", b"1")
    store.write(batch)
    store._families[Family.LOG].flush()  # the next write goes to another log; the first is still needed
    older = log_files(tmp_path / "live" / "store")[0]
    write(store, {b"b": b"2"})
    store.sync()
    shutil.copytree(tmp_path / "live", path)
    store.close()
    assert len(log_files(path / "store")) == 2
    with (path / "store" / older.name).open("ab") as file:
        file.write(bytes(PIECE_BYTES))
    assert contents(path) == {b"a": b"1", b"b": b"2"}


def test_a_torn_log_behind_which_an_empty_one_was_begun(image: Image, path: Path) -> None:
    image.copy(path, image.without(image.sectors()[1:]))
    number = int(Path(image.wal).stem) + 50
    (path / "store" / f"{number:06}.log").touch()
    assert contents(path) == ACKNOWLEDGED


def test_a_torn_log_that_another_follows_is_refused(image: Image, path: Path) -> None:
    torn = image.without(image.sectors()[1:])
    image.copy(path, torn)
    number = int(Path(image.wal).stem) + 50
    (path / "store" / f"{number:06}.log").write_bytes(image.log[: record_starts(image.log)[1]])
    with pytest.raises(CorruptData, match=str(path)):
        RocksStore.open(str(path))
    assert (path / "store" / image.wal).read_bytes() == torn


def test_a_torn_log_behind_one_with_a_gap_is_refused(image: Image, path: Path) -> None:
    torn = image.without(image.sectors()[1:])
    image.copy(path, torn)
    some = image.log[: record_starts(image.log)[3]]
    (path / "store" / "000002.log").write_bytes(some + bytes(BLOCK - len(some)) + some)
    with pytest.raises(CorruptData, match="goes on behind a gap"):
        RocksStore.open(str(path))
    assert (path / "store" / image.wal).read_bytes() == torn


# --- who has it open ----------------------------------------------------------------------------------------


def test_a_log_that_looks_odd_because_somebody_writes_it_is_locked_not_corrupt(path: Path) -> None:
    store = RocksStore.open(str(path))
    write(store, {b"a": b"1"})
    with log_files(path / "store")[-1].open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.write(bytes(PIECE_BYTES) + b"x")  # as if read in two parts, the later one later
    with pytest.raises(DatabaseLocked, match="already open"):
        RocksStore.open(str(path))
    assert log_files(path / "store")[-1].stat().st_size == size + PIECE_BYTES + 1  # and is left alone
    os.truncate(log_files(path / "store")[-1], size)
    write(store, {b"b": b"2"})
    store.close()
    assert contents(path) == {b"a": b"1", b"b": b"2"}


# --- evidence -----------------------------------------------------------------------------------------------


def test_what_a_process_leaves_that_dies_while_it_looks_is_removed(
    image: Image, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(image.path, path)
    (path / "store" / image.wal).write_bytes(image.without(image.sectors()[:1]))
    left: list[Path] = []

    def dies(*_: object, **__: object) -> None:
        left.extend(file for file in path.iterdir() if file.name.startswith("look-"))
        shutil.copytree(left[0], path / "look-dead.partial")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rocks, "_require_acknowledged", dies)
        with pytest.raises(KeyboardInterrupt):
            contents(path)
    assert (path / "look-dead.partial").exists()
    assert contents(path) == ACKNOWLEDGED
    assert [file for file in path.iterdir() if file.name.startswith("look-")] == []


def test_nothing_is_cut_before_it_is_certain_that_the_store_opens(
    image: Image, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tablecast.storage import rocks

    torn = image.without(image.sectors()[1:])
    image.copy(path, torn)
    opened: list[bool] = []
    native: Callable[..., object] = rocks._open_native

    def watched(*args: object, **how: object) -> object:
        opened.append(bool(how.get("read_only")))
        if how.get("read_only"):
            assert (path / "store" / image.wal).read_bytes() == torn
        return native(*args, **how)

    monkeypatch.setattr(rocks, "_open_native", watched)
    assert contents(path) == ACKNOWLEDGED
    assert opened == [False, True, False] or opened == [True, False]  # the second when headers alone told
