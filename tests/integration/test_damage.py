"""A disk that is full, and files that are damaged: an error that says so, or everything that was acknowledged.

As `test_rocks_faults.py`, one floor up: what counts is what a user of the database reads.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tablecast
from tablecast.engine.verify import verify_engine
from tablecast.errors import CorruptData, FormatTooNew
from tablecast.model.position import EARLIEST
from tablecast.storage.base import StorageFailure

# --- a full disk --------------------------------------------------------------------------------------------

FILL = """
import random, resource, sys
import tablecast
from tablecast.errors import WritesStopped
db = tablecast.open(sys.argv[1])
db.execute("CREATE NAMESPACE app; CREATE TABLE app.blobs (id BIGINT PRIMARY KEY, body BYTES); CREATE TOPIC app.e;"
           "ALTER TOPIC app.e ADD SOURCE app.blobs ON ANY WITH (payload = 'key')")
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
acknowledged = 0
try:
    while acknowledged < 1000:
        body = random.Random(acknowledged).randbytes(100_000)
        db.execute("INSERT INTO app.blobs VALUES (?, ?)", (acknowledged, body))
        acknowledged += 1
except WritesStopped as error:
    assert "File too large" in str(error), error
try:
    db.execute("INSERT INTO app.blobs VALUES (5000, ?)", (b"x",))
    print("acknowledged after a failure")
except WritesStopped:
    assert db.query("SELECT count(*) FROM app.blobs").scalar() == acknowledged
    print(acknowledged)
db.close()
"""


def test_a_file_that_cannot_grow_stops_writes_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FILL, str(tmp_path / "db")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    acknowledged = int(done.stdout)
    assert 5 < acknowledged < 1000
    with tablecast.open(tmp_path / "db") as db:
        found = db.query("SELECT id FROM app.blobs ORDER BY id").rows
        assert [row[0] for row in found][:acknowledged] == list(range(acknowledged))
        assert db.query("SELECT end_offset FROM system.topic_partitions").scalar() == len(found)
        assert verify_engine(db.engine).problems == []


# What the write-ahead log's file turns into while the database is open, and what the system then says of it: a disk without
# room, to which nothing can be written, and a pipe, which takes everything and cannot be synced.
BECOMES = {
    "full": ("os.open('/dev/full', os.O_WRONLY)", "No space left on device"),
    "pipe": ("os.pipe()[1]", "Invalid argument"),
}
FAIL = """
import os, sys
import tablecast
from tablecast.errors import WritesStopped
db = tablecast.open(sys.argv[1], jobs_interval_seconds=3600)
db.execute("CREATE NAMESPACE app; CREATE TABLE app.t (id INT PRIMARY KEY); CREATE TOPIC app.e;"
           "ALTER TOPIC app.e ADD SOURCE app.t ON ANY")
for number in range(20):
    db.execute("INSERT INTO app.t VALUES (?)", (number,))
logs = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
        and os.readlink(f"/proc/self/fd/{fd}").endswith(".log")]
assert logs
for log in logs:
    os.dup2(BECOMES, log)
for attempt in range(2):
    try:
        db.execute("INSERT INTO app.t VALUES (?)", (100 + attempt,))
        print("acknowledged after a failure")
    except WritesStopped as error:
        print(error)
assert db.query("SELECT count(*) FROM app.t").scalar() == 20
assert db.read_arrow("app.e").num_rows == 20
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("kind", BECOMES)
def test_a_log_that_takes_no_more_stops_writes_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    becomes, reason = BECOMES[kind]
    script = FAIL.replace("BECOMES", becomes)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "db")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert reason in first
    assert second.startswith("writes stopped")
    with tablecast.open(tmp_path / "db") as db:
        found = [row[0] for row in db.query("SELECT id FROM app.t ORDER BY id").rows]
        assert found == list(range(20))
        assert db.query("SELECT end_offset FROM system.topic_partitions").scalar() == 20
        assert verify_engine(db.engine).problems == []


# --- damaged files ------------------------------------------------------------------------------------------

ROWS = 300

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.items (id BIGINT PRIMARY KEY, name TEXT);
CREATE TOPIC app.item_events;
ALTER TOPIC app.item_events ADD SOURCE app.items ON ANY WITH (payload = 'full');
"""

WRITE_AND_DIE = f"""
import os, signal, sys
import tablecast
db = tablecast.open(sys.argv[1])
db.execute({SCHEMA!r})
for n in range(0, {ROWS}, 10):
    db.insert("app.items", [{{"id": i, "name": "item %d" % i * 9}} for i in range(n, n + 10)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything acknowledged, all of it in the write-ahead log."""
    path = tmp_path_factory.mktemp("killed") / "db"
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return path


@pytest.fixture(scope="module")
def closed(killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, closed in good order: all of it in data files."""
    path = tmp_path_factory.mktemp("closed") / "db"
    shutil.copytree(killed, path)
    tablecast.open(path).close()
    return path


def everything(path: Path) -> tuple[list[int], list[int]]:
    """Reads all there is, and verifies it."""
    with tablecast.open(path, jobs_interval_seconds=3600) as db:
        verified = verify_engine(db.engine)
        if verified.problems:
            raise CorruptData(verified.problems[0])
        rows = db.query("SELECT id FROM app.items ORDER BY id").rows
        messages = db.consume("app.item_events", start=EARLIEST, limit=100_000).messages
        return [row[0] for row in rows], [int(message.value["id"]) for message in messages]


WHOLE = (list(range(ROWS)), list(range(ROWS)))


def spread(size: int, samples: int) -> list[int]:
    return sorted({round(i * (size - 1) / (samples - 1)) for i in range(samples)})


def filled(file: Path) -> int:
    """How many bytes of it are not zeros ahead, as a write-ahead log has them."""
    return len(file.read_bytes().rstrip(b"\0"))


def flipped(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 0x10
    file.write_bytes(content)


def test_a_manifest_that_lists_fewer_families_is_not_an_empty_database(killed: Path, tmp_path: Path) -> None:
    """RocksDB takes a cut MANIFEST, or a damaged length in it, for its end, and lists the families up to there."""
    [file] = [found.relative_to(killed) for found in killed.glob("store/MANIFEST-*")]
    size = (killed / file).stat().st_size
    for keep in spread(size, 20)[:-1]:
        path = tmp_path / f"cut-at-{keep}"
        shutil.copytree(killed, path)
        os.truncate(path / file, keep)
        with pytest.raises((CorruptData, StorageFailure)):
            everything(path)
        shutil.rmtree(path)


@pytest.mark.parametrize(
    ("image", "pattern"),
    [
        ("killed", "store/*.log"),
        ("killed", "store/MANIFEST-*"),
        ("killed", "store/CURRENT"),
        ("killed", "TABLECAST"),
        ("killed", "SYNCED"),
        ("closed", "store/*.sst"),
        ("closed", "store/MANIFEST-*"),
    ],
)
def test_a_flipped_bit_is_an_error_or_harmless(
    request: pytest.FixtureRequest, tmp_path: Path, image: str, pattern: str
) -> None:
    source: Path = request.getfixturevalue(image)
    file = max(source.glob(pattern), key=lambda found: found.stat().st_size).relative_to(source)
    refused = 0
    for position in spread(filled(source / file), 10):
        path = tmp_path / f"at-{position}"
        shutil.copytree(source, path)
        flipped(path / file, position)
        try:
            assert everything(path) == WHOLE, f"a bit flipped at {position} of {file} changed what is read"
        except (CorruptData, StorageFailure, FormatTooNew) as error:
            assert str(error)
            refused += 1
        shutil.rmtree(path)
    assert refused > 0


@pytest.mark.parametrize("pattern", ["store/OPTIONS-*", "store/IDENTITY", "store/rocksdict-config.json"])
def test_what_is_not_needed_to_read_may_be_damaged(closed: Path, tmp_path: Path, pattern: str) -> None:
    """Options are the program's own, not those of the file; nobody asks for the identity."""
    file = max(closed.glob(pattern), key=lambda found: found.stat().st_size).relative_to(closed)
    for position in spread((closed / file).stat().st_size, 4):
        path = tmp_path / f"at-{position}"
        shutil.copytree(closed, path)
        flipped(path / file, position)
        assert everything(path) == WHOLE, f"a bit flipped at {position} of {file} changed what is read"
        shutil.rmtree(path)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_a_truncated_log_is_refused(killed: Path, tmp_path: Path, keep: float) -> None:
    shutil.copytree(killed, tmp_path / "db")
    wal = max((tmp_path / "db" / "store").glob("*.log"), key=lambda file: file.stat().st_size)
    os.truncate(wal, int(filled(wal) * keep))
    with pytest.raises(CorruptData, match=r"acknowledged|[Cc]orrupt"):
        everything(tmp_path / "db")


def test_a_lost_data_file_is_refused(closed: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted((closed / "store").glob("*.sst"))):
        path = tmp_path / f"without-{number}"
        shutil.copytree(closed, path)
        (path / "store" / file.name).unlink()
        with pytest.raises((CorruptData, StorageFailure), match=str(path)):
            everything(path)
