"""Jobs end when they are told to, say so, and go on at their next turn; what retention removes is gone from the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tablecast
from tablecast import Database
from tablecast.codec import keys
from tablecast.engine.jobs import EXPIRED_PER_STEP
from tablecast.engine.retention import Removed
from tablecast.errors import InvalidRequest, PermissionDenied, TransactionState
from tablecast.model.schema import Role
from tablecast.storage.base import Family
from tablecast.testing.clock import FakeClock

ROWS = 3 * EXPIRED_PER_STEP  # three steps of the job


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as database:
        database.execute("CREATE STREAM TABLE clicks (id INT PRIMARY KEY) WITH (TTL_SECONDS = 60)")
        yield database


def told(db: Database, name: str) -> tuple[str, int]:
    [row] = db.query("SELECT status, removed FROM system.jobs WHERE name = ?", [name]).rows
    return row[0], row[1]


def test_a_job_cancelled_inside_a_step_ends_there_and_the_next_run_finishes(
    db: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.insert("clicks", [(number,) for number in range(ROWS)])
    clock.advance(61_000)
    expiry = db.engine.jobs._jobs["expiry"]

    def cancelling() -> Iterator[Removed]:
        for removed in expiry():
            assert db.execute("CANCEL JOB 'expiry'").row_count == 1
            yield removed

    with monkeypatch.context() as patched:
        patched.setitem(db.engine.jobs._jobs, "expiry", cancelling)
        assert db.run_job("expiry").count == EXPIRED_PER_STEP
    assert told(db, "expiry") == ("cancelled", EXPIRED_PER_STEP)
    assert db.run_job("expiry").count == ROWS - EXPIRED_PER_STEP
    assert told(db, "expiry") == ("done", ROWS)
    assert db.verify().problems == []


def test_one_that_is_not_running_is_left_alone(db: Database, clock: FakeClock) -> None:
    result = db.execute("CANCEL JOB 'expiry'")
    assert (result.row_count, result.message) == (0, "CANCEL JOB: it is not running")
    db.insert("clicks", [(1,)])
    clock.advance(61_000)
    assert db.run_job("expiry").count == 1, "what was said before it began does not count"


def test_cancelling_is_for_a_dba_and_is_in_the_audit_log(db: Database) -> None:
    with pytest.raises(PermissionDenied):
        db.session("bob", Role.SERVICE).execute("CANCEL JOB 'expiry'")
    db.session("ann", Role.DBA).execute("CANCEL JOB 'expiry'")
    entries = db.query("SELECT user_id, target, outcome FROM system.audit_log WHERE action = 'CANCEL JOB' ORDER BY seq")
    assert entries.rows == [("bob", "expiry", "denied"), ("ann", "expiry", "ok")]


def test_an_unknown_one_is_named_and_a_transaction_has_none(db: Database) -> None:
    with pytest.raises(InvalidRequest, match="there is no job 'tidy'; the jobs are retention, expiry"):
        db.execute("CANCEL JOB 'tidy'")
    with db.transaction() as own, pytest.raises(TransactionState):
        own.execute("CANCEL JOB 'expiry'")


@pytest.mark.parametrize("limit", ["retention_seconds = 60", "retention_max_bytes = 2000"])
def test_below_the_start_of_a_log_there_is_nothing_in_the_store(tmp_path: Path, clock: FakeClock, limit: str) -> None:
    with tablecast.open(tmp_path / "db", clock=clock, jobs_interval_seconds=3600) as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
        db.execute(f"CREATE TOPIC seen PARTITIONS 2 WITH ({limit}); ALTER TOPIC seen ADD SOURCE t ON ANY")
        for number in range(100):
            db.execute("INSERT INTO t VALUES (?, ?)", [number, "x" * 50])
            clock.advance(1000)
        freed = db.run_job("retention")
        assert freed.count > 0
        assert freed.bytes > 0
        topic = db.topic("seen")
        starts = {partition: db.engine.log_range(topic.topic_id, partition)[0] for partition in range(2)}
        assert sum(starts.values()) == freed.count
        for partition, start in starts.items():
            prefix = keys.log_prefix(topic.topic_id, partition)
            end = keys.log_prefix(topic.topic_id, partition + 1)
            left = [keys.log_offset(key) for key, _ in db.engine.store.scan(Family.LOG, prefix, end)]
            assert left == list(range(start, start + len(left))), "one batch for each message: those from the start on"
            assert left
            assert start > 0
