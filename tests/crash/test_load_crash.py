"""SIGKILL while a load is staged, committed or completed at opening: it is there whole, once, or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import load_child
import pytest
from life import OF_LOADS
from load_child import BATCH_IDS, EVENTS, ORDERS, PARTS, ROWS

import tablecast
from tablecast.model.position import EARLIEST
from tablecast.testing.failpoints import VARIABLE

CHILD = Path(__file__).with_name("load_child.py")
WHOLE = PARTS * ROWS

# (kind, where it is killed, whether the load is there then; None: written and not synced, so either will do).
# A number counts hits: the first acknowledgement of a sealed commit is that of its guard.
CASES: list[tuple[str, str, bool | None]] = [
    ("rows", "during_staging", False),
    ("rows", "during_staging:2", False),
    ("rows", "before_write", False),
    ("rows", "after_write", None),
    ("rows", "before_sync", None),
    ("rows", "after_sync", True),
    ("rows", "before_ack", True),
    ("rows", "before_forgetting", True),
    ("sealed", "during_staging", False),
    ("sealed", "during_staging:2", False),
    ("sealed", "before_ack", False),
    ("sealed", "before_write", False),
    ("sealed", "after_write", None),
    ("sealed", "before_ingest", True),
    ("sealed", "during_ingest", True),
    ("sealed", "during_ingest:1", True),
    ("sealed", "before_sync", True),
    ("sealed", "after_sync", True),
    ("sealed", "before_ack:1", True),
    ("sealed", "before_forgetting", True),
]


def spec(moment: str) -> str:
    name, _, after = moment.partition(":")
    return f"{name}:kill:after={after or 0}"


def run(*args: str, moment: str | None = None, inline: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "INLINE_LOG_BYTES": str(inline), VARIABLE: "" if moment is None else spec(moment)}
    return subprocess.run(
        [sys.executable, str(CHILD), *args], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def killed(*args: str, moment: str, inline: int = 0) -> str:
    ended = run(*args, moment=moment, inline=inline)
    assert ended.returncode == -signal.SIGKILL, f"{moment} was not met: {ended.stdout}{ended.stderr}"
    return ended.stdout


def loaded(db: tablecast.Database) -> int:
    """How many rows of the load there are, after all of the database was proved sound."""
    assert db.verify().problems == []
    rows = db.query(f"SELECT count(*) FROM {ORDERS} WHERE customer = 'batch 0'").scalar()
    topic = db.topic(EVENTS)
    partitions = [db.consume(EVENTS, start=EARLIEST, partition=p, limit=9999) for p in range(topic.partitions)]
    found = [message for partition in partitions for message in partition.messages]
    assert sum(m.value["customer"] == "batch 0" for m in found) == rows
    assert len({m.seq for m in found if m.value["customer"] == "batch 0"}) <= 1
    assert isinstance(rows, int)
    return rows


def finish(path: str, kind: str, there: bool | None) -> None:
    """Opens what a kill left: the load is there or not, as it must be; sent again it is there once."""
    with tablecast.open(path, jobs_interval_seconds=3600) as db:
        found = loaded(db)
        assert found in ((0, WHOLE) if there is None else (WHOLE,) if there else (0,))
        again = load_child.load(db, kind, 0)
        assert (again.row_count, again.already) == (WHOLE, found == WHOLE)
        assert loaded(db) == WHOLE
        db.insert(ORDERS, [(-2, "goes on")])
    with tablecast.open(path, jobs_interval_seconds=3600) as db:
        assert loaded(db) == WHOLE


@pytest.mark.parametrize(("kind", "moment", "there"), CASES, ids=lambda value: str(value))
def test_a_load_that_is_killed_is_there_whole_or_not_at_all(
    kind: str, moment: str, there: bool | None, tmp_path: Path
) -> None:
    path = str(tmp_path / "shop")
    assert killed("one", path, kind, moment=moment) == "", "nobody was told"
    finish(path, kind, there)


@pytest.mark.parametrize("moment", ["before_ingest", "during_ingest"])
def test_messages_in_the_batch_itself(moment: str, tmp_path: Path) -> None:
    path = str(tmp_path / "shop")
    killed("one", path, "sealed", moment=moment, inline=1 << 20)
    finish(path, "sealed", True)


@pytest.mark.parametrize("moments", [["during_resolve"], ["during_open", "during_resolve", "during_resolve"]])
def test_opening_that_is_killed_is_gone_on_with(moments: list[str], tmp_path: Path) -> None:
    """The first kill leaves none of the files taken in; each later one strikes right after another family was."""
    path = str(tmp_path / "shop")
    killed("one", path, "sealed", moment="before_ingest")
    for moment in moments:
        killed("open", path, moment=moment)
    finish(path, "sealed", True)


def test_killed_at_any_moment_again_and_again(tmp_path: Path) -> None:
    """Batches of both kinds, beside other writes and jobs; each life goes on where the last one ended."""
    path, rng = str(tmp_path / "shop"), random.Random(4)
    acknowledged = -1
    for _ in range(4):
        acknowledged = max(acknowledged, _life(path, acknowledged + 1, rng))
        with tablecast.open(path, jobs_interval_seconds=3600) as db:
            assert db.verify().problems == []
            sql = f"SELECT id // {BATCH_IDS}, count(*) FROM {ORDERS} WHERE customer LIKE 'batch %' GROUP BY 1"
            counts = dict(db.query(sql).rows)
            assert set(counts.values()) <= {WHOLE}
            assert set(range(acknowledged + 1)) <= set(counts) <= set(range(acknowledged + 2))
            for batch in range(acknowledged + 1):
                assert load_child.load(db, load_child.kind_of(batch), batch).already
            acknowledged = max(counts, default=-1)  # the last one may be there without anybody having heard of it
    assert acknowledged > 5


def _life(path: str, first: int, rng: random.Random) -> int:
    """The last batch that was acknowledged before the process was killed; the one before `first` if none was."""
    arguments = [sys.executable, str(CHILD), "many", path, str(first)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        lines = [child.stdout.readline() for _ in range(rng.randint(2, 5))]
        assert all(lines), child.stderr.read()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(rng.random() * 0.05)  # some moment of what it does next
        child.kill()
        lines += child.stdout.readlines()
    return max((int(line) for line in lines if line.endswith("\n")), default=first - 1)


def test_every_moment_of_a_load_is_met() -> None:
    """The last one in the test of opening."""
    assert {moment.partition(":")[0] for _, moment, _ in CASES} >= OF_LOADS - {"during_resolve"}
