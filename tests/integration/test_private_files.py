"""Whatever the umask is: each directory of a database is 0700, each file in it 0600, also while RocksDB works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tablecast
from tablecast.storage import private
from tablecast.storage.base import StorageFailure
from tablecast.storage.restore import restore

LIFE = """
import io, os, sys
from pathlib import Path
import pyarrow as pa
import tablecast
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.server.tokens import load_secret
from tablecast.storage.restore import restore

home, umask = Path(sys.argv[1]), int(sys.argv[2], 8)
os.umask(umask)

def look(when):
    for folder, _, names in os.walk(home):
        if folder != str(home):
            print(when, folder, oct(os.stat(folder).st_mode & 0o7777), "0o700")
        for name in names:
            path = os.path.join(folder, name)
            try:
                print(when, path, oct(os.stat(path).st_mode & 0o7777), "0o600")
            except FileNotFoundError:
                pass  # a compaction has just replaced it

db = tablecast.open(home / "db")
look("created")
db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT); CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY")
for start in range(0, 20_000, 1_000):
    db.insert("t", [{"id": i, "v": os.urandom(500).hex()} for i in range(start, start + 1_000)])
look("written and flushed")
loads = db.engine.loads
begun = loads.begin(SYSTEM_ACTOR, "default.t", "job:1", 0, mode="insert", kind="rows")
part = io.BytesIO()
with pa.ipc.new_stream(part, pa.schema([("id", pa.int64())])) as writer:
    writer.write_table(pa.table({"id": [30_000, 30_001]}))
part.seek(0)
loads.stage(begun.load_id, 0, "a", part)
look("staged")
loads.commit(begun.load_id, [(0, "a")])
db.backup(home / "backup")
look("backed up")
load_secret(home / "db")
db.close()
look("closed")
restore(home / "backup", home / "restored")
tablecast.open(home / "restored").close()
look("restored")
"""


@pytest.mark.parametrize("umask", ["000", "022", "277"])
def test_everything_is_private_all_the_time(tmp_path: Path, umask: str) -> None:
    (tmp_path / "life.py").write_text(LIFE)
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, tmp_path / "life.py", home, umask], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    assert len({where.split(" /")[0] for where, _, _ in seen}) == 6
    if _has_acls(tmp_path):
        assert [f"{where}: {mode}" for where, mode, wanted in seen if mode != wanted] == []
    else:  # then the directory alone guards what is open
        assert [where for where, mode, wanted in seen if wanted == "0o700" and mode != wanted] == []
        assert [w for w, mode, wanted in seen if w.startswith(("closed", "restored")) and mode != wanted] == []


@pytest.mark.parametrize("acls", [True, False], ids=["acls", "no acls"])
def test_a_database_that_others_could_read_is_narrowed_when_it_is_opened(
    tmp_path: Path, acls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not acls:
        monkeypatch.setattr(private, "_ACL", "system.of-no-filesystem")
    path = tmp_path / "db"
    path.mkdir()
    tablecast.open(path).close()
    for folder, _, names in os.walk(path):
        Path(folder).chmod(0o2775)
        for name in names:
            Path(folder, name).chmod(0o664)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not of the database")
    elsewhere.chmod(0o644)
    (path / "link").symlink_to(elsewhere)
    tablecast.open(path, create=False).close()
    assert _wide(path) == []
    assert elsewhere.stat().st_mode & 0o777 == 0o644


def test_a_backup_and_what_is_made_of_it_are_private_without_acls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_ACL", "system.of-no-filesystem")
    with tablecast.open(tmp_path / "db") as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
        db.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    assert [wide for name in ("db", "backup", "restored") for wide in _wide(tmp_path / name)] == []


def test_a_directory_of_somebody_else_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: os.PathLike[str], mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    path = tmp_path / "db"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(StorageFailure, match=r"db has mode 0755 and belongs to user \d+, not to user \d+") as caught:
        tablecast.open(path)
    assert caught.value.code == "storage_failure"
    assert list(path.iterdir()) == []


def _wide(path: Path) -> list[str]:
    found = [path, *path.rglob("*")]
    return [
        f"{each}: {each.stat().st_mode & 0o7777:04o}"
        for each in found
        if not each.is_symlink() and each.stat().st_mode & 0o7777 != (0o700 if each.is_dir() else 0o600)
    ]


def _has_acls(directory: Path) -> bool:
    private.make_private(directory / "probe")
    return private._has_acl(directory / "probe")
