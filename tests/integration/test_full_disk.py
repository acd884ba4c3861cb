"""On a full disk a database opens, is read, and loses what is deleted; then it has room again, and takes writes as before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast.errors import DiskFull
from tablecast.storage import rocks
from tablecast.storage.home import Home
from tablecast.storage.reserve import RESERVE, Reserve

SETUP = """
CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT);
CREATE TABLE u (id BIGINT PRIMARY KEY);
CREATE TOPIC e;
ALTER TOPIC e ADD SOURCE t ON ANY;
INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c');
INSERT INTO u VALUES (1);
"""
ADDING = [
    "INSERT INTO t VALUES (9, 'x')",
    "UPDATE t SET v = 'x' WHERE id = 2",
    "INSERT INTO t VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = 'x'",
    "BEGIN; DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (9, 'x'); COMMIT",
]
REMOVING = [
    "DELETE FROM t WHERE id = 1",
    "CLEAR TOPIC e",
    "DROP TABLE u",
    "ALTER TOPIC e DROP SOURCE t",
    "DROP TOPIC e",
]


class Disk:
    """Has no room for RocksDB while the reserve is there, and none to make it again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        opened = rocks._open_native

        def open_native(path: Path, *args: Any, **kwargs: Any) -> Any:
            if self.is_full and (path.parent / RESERVE).exists():
                raise OSError("IO error: No space left on device: While appending to file")
            return opened(path, *args, **kwargs)

        monkeypatch.setattr(rocks, "_open_native", open_native)
        monkeypatch.setattr(Reserve, "free_bytes", lambda reserve: 1 << 20 if self.is_full else 1 << 40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with tablecast.open(tmp_path / "db") as db:
        db.execute(SETUP)
    return tmp_path / "db"


@pytest.fixture
def disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    yield Disk(monkeypatch)
    assert tablecast.open(path).verify().problems == []


def test_it_opens_is_read_and_deleted_from_and_takes_rows_when_there_is_room(path: Path, disk: Disk) -> None:
    with tablecast.open(path) as db:
        assert db.query("SELECT COUNT(*) FROM t").scalar() == 3
        assert len(db.consume("e", group="g", start=tablecast.EARLIEST).messages) == 3
        for statement in ADDING:
            with pytest.raises(DiskFull, match="only what removes data is taken") as caught:
                db.execute(statement)
            assert (caught.value.code, caught.value.status) == ("disk_full", 507)
            if db.in_transaction:
                db.execute("ROLLBACK")
        with pytest.raises(DiskFull):
            db.insert("t", [{"id": i} for i in range(100, 200)])
        assert db.query("SELECT id, v FROM t ORDER BY id").rows == [(1, "a"), (2, "b"), (3, "c")]
        for statement in REMOVING:
            db.execute(statement)
        db.engine.store.reclaim()
        with pytest.raises(DiskFull):
            db.execute(ADDING[0])
        disk.is_full = False
        db.engine.store.reclaim()
        db.execute(ADDING[0])
        assert (path / RESERVE).exists()


def test_a_server_serves_what_it_can(path: Path, disk: Disk) -> None:
    with (
        ServerThread(path) as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        with pytest.raises(DiskFull) as caught:
            client.execute(ADDING[0])
        assert caught.value.status == 507
        with pytest.raises(DiskFull):
            client.insert("t", [{"id": 10, "v": "x"}])
        assert client.query("SELECT COUNT(*) FROM t").scalar() == 3
        for statement in REMOVING:
            client.execute(statement)
        disk.is_full = False


def test_a_database_without_a_reserve_says_what_it_needs(path: Path, disk: Disk) -> None:
    (path / RESERVE).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocks, "_open", _full)
        with pytest.raises(DiskFull, match=r"cannot be opened: its disk is full, 1,024 KiB are free; make room"):
            tablecast.open(path)


def _full(home: Home) -> None:
    raise rocks.StorageFailure("IO error: No space left on device")


def test_the_reserve_grows_with_the_database_and_is_in_no_backup(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "db", durability="none") as db:
        assert (tmp_path / "db" / RESERVE).stat().st_size < 2 << 20
        db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
        for start in range(0, 8_000, 1_000):
            db.insert("t", [{"id": i, "v": "x" * 1_000} for i in range(start, start + 1_000)])
        assert (tmp_path / "db" / RESERVE).stat().st_size >= 8 << 20
        db.backup(tmp_path / "backup")
        assert not (tmp_path / "backup" / RESERVE).exists()


# --- a disk that is full indeed -----------------------------------------------------------------------------------

FILL = """
import os, sys
from pathlib import Path
import tablecast
from tablecast.errors import DiskFull, TablecastError

disk = Path(sys.argv[1])
db = tablecast.open(disk / "db", jobs_interval_seconds=3600)
db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT); CREATE TABLE u (id BIGINT PRIMARY KEY, v TEXT)")
db.execute("CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY; INSERT INTO u VALUES (1, 'x')")
rows = 0
try:
    while True:
        db.insert("t", [{"id": rows + i, "v": os.urandom(400).hex()} for i in range(500)])
        rows += 500
except TablecastError:
    pass
try:
    db.close()
except TablecastError:
    pass
with (disk / "filler").open("wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
assert os.statvfs(disk).f_bavail == 0

db = tablecast.open(disk / "db", jobs_interval_seconds=3600)
assert db.query("SELECT COUNT(*) FROM t").scalar() >= rows
try:
    db.execute("INSERT INTO u VALUES (2, 'y')")
except DiskFull:
    pass
else:
    raise AssertionError("an INSERT was taken")
for statement in ("DELETE FROM t WHERE id < 1000", "ALTER TOPIC e DROP SOURCE t", "DROP TOPIC e", "DROP TABLE t"):
    db.execute(statement)
    db.engine.store.reclaim()
db.execute("INSERT INTO u VALUES (2, 'y')")
db.close()
with tablecast.open(disk / "db") as db:
    assert db.query("SELECT COUNT(*) FROM u").scalar() == 2
    assert db.verify().problems == []
print("well")
"""


@pytest.mark.parametrize("size", ["30m", "160m"])
def test_on_a_small_file_system(tmp_path: Path, size: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "fill.py").write_text(FILL)
    inside = f'mount -t tmpfs -o size={size} none "$1" && exec "$2" "$3" "$1"'
    unshare = [shutil.which("unshare") or "", "--user", "--map-root-user", "--mount"]
    if not unshare[0] or subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", tmp_path / "disk"]).returncode:
        pytest.skip("this machine lets nobody mount a file system of his own")
    command = [*unshare, "sh", "-c", inside, "sh", tmp_path / "disk", sys.executable, tmp_path / "fill.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
