"""A backup is the database as it was at one moment, taken while it is written; or it is not there at all.

And the border of a database: what is not one, is somebody else's, or comes from the future is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tablecast
from tablecast.engine.verify import verify_engine
from tablecast.errors import (
    BackupError,
    CorruptData,
    DatabaseClosed,
    DatabaseError,
    DatabaseLocked,
    FormatTooNew,
    NotADatabase,
)
from tablecast.model.position import EARLIEST
from tablecast.storage.base import StorageFailure
from tablecast.testing.history import fold

WRITERS = 4
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.counters (id BIGINT PRIMARY KEY, value BIGINT NOT NULL);
CREATE TABLE app.totals (id BIGINT PRIMARY KEY, value BIGINT NOT NULL);
CREATE TOPIC app.changes PARTITIONS 3;
ALTER TOPIC app.changes ADD SOURCE app.counters ON ANY WITH (payload = 'full');
ALTER TOPIC app.changes ADD SOURCE app.totals ON ANY WITH (payload = 'full');
"""


class Counting:
    """Writers that count: each transaction sets a counter and its total to the next number, together."""

    def __init__(self, db: tablecast.Database) -> None:
        self.acknowledged = [0] * WRITERS
        self._db = db
        self._stopped = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._count, args=(n,)) for n in range(WRITERS)]

    def _count(self, writer: int) -> None:
        try:
            while not self._stopped.is_set():
                value = self.acknowledged[writer] + 1
                with self._db.transaction() as tx:
                    for table in ("app.counters", "app.totals"):
                        tx.insert(table, [{"id": writer, "value": value}], mode="upsert")
                self.acknowledged[writer] = value
        except BaseException as error:
            self._errors.append(error)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join()
        assert not self._errors

    def past(self, count: int) -> None:
        """Returns when every writer has come so far."""
        waiting = threading.Event()
        while min(self.acknowledged) < count and not self._errors:
            waiting.wait(0.001)


def values(db: tablecast.Database, table: str) -> dict[int, int]:
    return dict(db.query(f"SELECT id, value FROM {table}").rows)


def folded(db: tablecast.Database, table: str) -> dict[int, int]:
    messages = [
        message
        for partition in range(3)
        for message in db.consume("app.changes", start=EARLIEST, partition=partition, limit=100_000).messages
    ]
    rows = fold(message for message in messages if message.source_table == table)
    return {int(row["id"]): int(row["value"]) for row in rows.values()}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tablecast.Database]:
    with tablecast.open(tmp_path / "db") as database:
        database.execute(SCHEMA)
        yield database


@pytest.fixture
def backup(db: tablecast.Database, tmp_path: Path) -> Path:
    """A small one of a quiet database."""
    for writer in range(WRITERS):
        db.insert("app.counters", [{"id": writer, "value": 1}])
    db.backup(tmp_path / "backup")
    return tmp_path / "backup"


# --- taken while it is written ------------------------------------------------------------------------------


def test_a_backup_while_writers_write_is_one_moment(db: tablecast.Database, tmp_path: Path) -> None:
    counting = Counting(db)
    told: list[tuple[list[int], list[int]]] = []
    with counting.running():
        for number in range(3):
            counting.past(10 * (number + 1))
            before = list(counting.acknowledged)
            db.backup(tmp_path / f"backup-{number}")
            told.append((before, list(counting.acknowledged)))
        counting.past(50)
    for number, (before, after) in enumerate(told):
        with tablecast.open(tmp_path / f"backup-{number}", create=False) as copy:
            assert verify_engine(copy.engine).problems == []
            found = values(copy, "app.counters")
            assert found == values(copy, "app.totals") == folded(copy, "app.counters")
            for writer in range(WRITERS):
                assert before[writer] <= found[writer] <= after[writer] + 1  # one may be on its way
    assert values(db, "app.counters") == dict(enumerate(counting.acknowledged))
    assert verify_engine(db.engine).problems == []


def test_a_copy_lives_on_by_itself(db: tablecast.Database, backup: Path) -> None:
    db.insert("app.counters", [{"id": 100, "value": 1}])
    with tablecast.open(backup) as copy:
        copy.insert("app.counters", [{"id": 200, "value": 1}])
        assert set(values(copy, "app.counters")) == {0, 1, 2, 3, 200}
        assert verify_engine(copy.engine).problems == []
    assert set(values(db, "app.counters")) == {0, 1, 2, 3, 100}


def test_groups_and_idempotency_keys_are_part_of_a_backup(db: tablecast.Database, tmp_path: Path) -> None:
    rows = [{"id": 1, "value": 1}]
    seq = db.insert("app.counters", rows, idempotency_key="first").seq
    message = db.consume("app.changes", group="g", consumer="c").messages[0]
    db.ack("app.changes", "g", message.offset, partition=message.partition_id)
    db.backup(tmp_path / "backup")
    with tablecast.open(tmp_path / "backup") as copy:
        assert copy.insert("app.counters", rows, idempotency_key="first").seq == seq
        assert copy.consume("app.changes", group="g").messages == []


# --- a place that is not free -------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", ["directory", "file", "database", "unfinished"])
def test_a_backup_needs_a_free_place(db: tablecast.Database, tmp_path: Path, taken: str) -> None:
    target = tmp_path / "target"
    if taken == "directory":
        target.mkdir()
    elif taken == "file":
        target.write_text("notes")
    elif taken == "database":
        tablecast.open(target).close()
    else:
        (tmp_path / "target.partial").mkdir()
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    with pytest.raises(BackupError, match=r"target.* exists already"):
        db.backup(target)
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    db.insert("app.counters", [{"id": 1, "value": 1}])


def test_a_closed_database_gives_no_backup(tmp_path: Path) -> None:
    db = tablecast.open(tmp_path / "db")
    db.close()
    with pytest.raises(DatabaseClosed):
        db.backup(tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


# --- half of one --------------------------------------------------------------------------------------------

BACK_UP_AND_DIE = """
import sys
import tablecast
from tablecast.storage import home, rocks
from tablecast.testing.failpoints import arm_from_environment, kill
arm_from_environment()
db = tablecast.open(sys.argv[1])
if sys.argv[3] != "":
    setattr(rocks if sys.argv[3] == "sync_tree" else home, sys.argv[3], lambda *_: kill())
db.backup(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("failpoint", "step"),
    [("during_checkpoint:kill", ""), ("", "sync_tree"), ("", "replace_durably")],
    ids=["before the copy", "after the copy", "before the marker"],
)
def test_a_killed_backup_is_never_taken_for_one(tmp_path: Path, failpoint: str, step: str) -> None:
    with tablecast.open(tmp_path / "db") as db:
        db.execute(SCHEMA)
        db.insert("app.counters", [{"id": 1, "value": 1}])
    done = subprocess.run(
        [sys.executable, "-c", BACK_UP_AND_DIE, str(tmp_path / "db"), str(tmp_path / "backup"), step],
        env=os.environ | {"TABLECAST_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "backup").exists()
    for unfinished in tmp_path.glob("backup*"):
        with pytest.raises(NotADatabase, match="unfinished backup"):
            tablecast.open(unfinished)
        shutil.rmtree(unfinished)
    with tablecast.open(tmp_path / "db") as db:
        assert values(db, "app.counters") == {1: 1}
        db.backup(tmp_path / "backup")
    with tablecast.open(tmp_path / "backup", create=False) as copy:
        assert values(copy, "app.counters") == {1: 1}


def without(pattern: str) -> Callable[[Path], None]:
    def damage(copy: Path) -> None:
        for file in list(copy.glob(pattern)):
            file.unlink()

    return damage


def cut(pattern: str) -> Callable[[Path], None]:
    def damage(copy: Path) -> None:
        for file in copy.glob(pattern):
            os.truncate(file, file.stat().st_size // 2)

    return damage


def without_store(copy: Path) -> None:
    shutil.rmtree(copy / "store")


@pytest.mark.parametrize(
    "damage",
    [
        without("TABLECAST"), without("SYNCED"), without("store/CURRENT"), without("store/MANIFEST-*"),
        without("store/*.sst"), without_store, cut("TABLECAST"), cut("SYNCED"), cut("store/MANIFEST-*"),
        cut("store/*.sst"),
    ],
    ids=[
        "no marker", "no watermark", "no CURRENT", "no MANIFEST", "no data files", "no store", "half a marker",
        "half a watermark", "half a MANIFEST", "half of each data file",
    ],
)  # fmt: skip
def test_a_copy_of_half_a_backup_is_refused(backup: Path, damage: Callable[[Path], None]) -> None:
    damage(backup)
    with pytest.raises((CorruptData, NotADatabase, StorageFailure), match=str(backup)):
        tablecast.open(backup)


# --- what is not a database of ours -------------------------------------------------------------------------

OPEN = """
import sys
import tablecast
from tablecast.errors import TablecastError
try:
    tablecast.open(sys.argv[1])
except TablecastError as error:
    print(type(error).__name__, error)
"""


def test_two_processes_cannot_have_one_database(db: tablecast.Database, tmp_path: Path) -> None:
    path = tmp_path / "db"
    other = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True)
    assert f"DatabaseLocked {path} is open in another process" in other.stdout
    with pytest.raises(DatabaseLocked, match="already open in this process"):
        tablecast.open(path)
    db.insert("app.counters", [{"id": 1, "value": 1}])
    db.close()
    with tablecast.open(path) as again:
        assert values(again, "app.counters") == {1: 1}


def test_a_path_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotADatabase, match=r"notes\.txt"):
        tablecast.open(tmp_path)
    with pytest.raises(NotADatabase, match="is a file"):
        tablecast.open(tmp_path / "notes.txt")
    with pytest.raises(NotADatabase, match="no database"):
        tablecast.open(tmp_path / "nowhere", create=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_database_of_a_newer_format_is_refused(backup: Path) -> None:
    marker = backup / "TABLECAST"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 7, "created_by": "7.0"}))
    before = {path: path.stat().st_mtime_ns for path in backup.rglob("*")}
    with pytest.raises(FormatTooNew, match=r"format 7, written by tablecast 7\.0"):
        tablecast.open(backup)
    assert {path: path.stat().st_mtime_ns for path in backup.rglob("*")} == before


def test_an_empty_marker_is_not_a_fresh_database(backup: Path) -> None:
    (backup / "TABLECAST").write_bytes(b"")
    with pytest.raises(DatabaseError, match="TABLECAST"):
        tablecast.open(backup)
