"""The engine's observer: told of what was done, by the time it is acknowledged, and unable to do harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tablecast
from tablecast.codec.catalog import JobRecord
from tablecast.core import failpoint
from tablecast.engine import writer
from tablecast.engine.jobs import SaveJob
from tablecast.engine.observer import NOBODY, CommitReport, Nobody, Observer
from tablecast.errors import DuplicateKey, Overloaded, WritesStopped
from tablecast.model.topic import Topic
from tablecast.sql.database import Database
from tablecast.storage.base import StorageFailure
from tablecast.testing.clock import FakeClock
from tablecast.testing.failpoints import Gate, raising


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.commits: list[CommitReport] = []
        self.syncs: list[float] = []
        self.refusals = 0
        self.again: list[tuple[str, int]] = []
        self.jobs: list[tuple[str, str]] = []

    def committed(self, report: CommitReport) -> None:
        self.commits.append(report)

    def synced(self, seconds: float) -> None:
        self.syncs.append(seconds)

    def refused(self) -> None:
        self.refusals += 1

    def redelivered(self, topic: Topic, count: int) -> None:
        self.again.append((topic.full_name, count))

    def job_ended(self, name: str, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.jobs.append((name, result))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as db:
        db.execute("CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY, amount BIGINT)")
        db.execute("CREATE TOPIC app.events PARTITIONS 2 WITH (max_deliveries = 2, dead_letter = 'app.dead')")
        db.execute("ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
        db.execute("CREATE TOPIC app.large")
        db.execute("ALTER TOPIC app.large ADD SOURCE app.orders ON INSERT WHERE amount > 10")
        yield db


@pytest.fixture
def seen(db: Database) -> Recorder:
    recorder = Recorder()
    db.engine.observe(recorder)
    return recorder


def test_an_acknowledged_commit_has_been_told(db: Database, seen: Recorder) -> None:
    db.insert("app.orders", [{"id": i, "amount": i} for i in range(20)])
    [report] = seen.commits
    assert report.commit.seq == db.engine.seq
    assert (report.commands, report.rows) == (1, 20)
    assert report.messages == {"app.events": 20, "app.large": 9}


def test_the_parts_of_a_commit_took_no_longer_than_its_oldest_command_waited(db: Database, seen: Recorder) -> None:
    db.insert("app.orders", [{"id": i, "amount": 1} for i in range(500)])
    [report], [sync] = seen.commits, seen.syncs
    assert report.decide_seconds > 0
    assert report.write_seconds > 0
    assert report.waited_seconds >= report.decide_seconds + report.write_seconds + sync


def test_commands_that_share_a_commit_are_one_report(db: Database, seen: Recorder) -> None:
    """While the fsync of the first is held up, the others gather."""
    gate, command = Gate(), SaveJob(JobRecord("retention", "done", 0))
    with failpoint.armed("before_sync", gate):
        tickets = [db.engine.submit(command)]
        gate.wait_reached()
        tickets += [db.engine.submit(command) for _ in range(5)]
        gate.open()
        for ticket in tickets:
            ticket.wait()
    assert [report.commands for report in seen.commits] == [1, 5]
    first, second = seen.commits
    assert second.waited_seconds > seen.syncs[1], "it waited for the fsync before its own too"
    assert first.commit.seq + 1 == second.commit.seq


def test_what_commits_nothing_is_not_told(db: Database, seen: Recorder) -> None:
    db.insert("app.orders", [{"id": 1, "amount": 1}])
    with pytest.raises(DuplicateKey):
        db.insert("app.orders", [{"id": 1, "amount": 1}])
    db.execute("DELETE FROM app.orders WHERE id = 77")
    assert [report.rows for report in seen.commits] == [1]
    assert len(seen.syncs) == 1


def test_a_commit_that_failed_is_not_told(db: Database, seen: Recorder) -> None:
    with (
        failpoint.armed("before_sync", raising(StorageFailure("the disk is gone"))),
        pytest.raises(WritesStopped),
    ):
        db.insert("app.orders", [{"id": 1, "amount": 1}])
    assert seen.commits == []
    assert seen.syncs == []


def test_a_full_queue_is_told(db: Database, seen: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "QUEUE_COMMANDS", 2)
    monkeypatch.setattr(writer, "QUEUE_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(writer, "WORTH_WAKING_ROWS", 1_000_000)
    gate, command = Gate(), SaveJob(JobRecord("retention", "done", 0))
    with failpoint.armed("before_sync", gate):
        tickets = [db.engine.submit(command)]
        gate.wait_reached()
        tickets += [db.engine.submit(command) for _ in range(2)]
        with pytest.raises(Overloaded):
            db.engine.submit(command)
        with pytest.raises(Overloaded):
            db.engine.submit(command, wait=False)
        gate.open()
        for ticket in tickets:
            ticket.wait()
    assert seen.refusals == 2


def test_an_fsync_by_interval_is_told() -> None:
    with tablecast.open(":memory:", durability="interval(999999)") as db:
        seen = Recorder()
        db.engine.observe(seen)
        db.execute("CREATE NAMESPACE app")
        assert (len(seen.commits), len(seen.syncs)) == (1, 0)
        db.engine.sync_now()
        assert (len(seen.commits), len(seen.syncs)) == (1, 1)


def test_redelivered_and_dead_messages_are_told(db: Database, seen: Recorder, clock: FakeClock) -> None:
    db.insert("app.orders", [{"id": i, "amount": 1} for i in range(3)])

    def claim() -> int:
        found = db.consume("app.events", group="g", start=tablecast.EARLIEST, visibility_seconds=10)
        clock.advance(11_000)
        return len(found.messages)

    assert (claim(), seen.again) == (3, [])
    assert (claim(), seen.again) == (3, [("app.events", 3)])
    assert (claim(), seen.again) == (0, [("app.events", 3)])
    assert sum(report.commit.letters for report in seen.commits) == 3
    assert sum(report.messages.get("app.dead", 0) for report in seen.commits) == 3


def test_jobs_are_told_with_their_result(db: Database, seen: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    db.run_job("claims")

    def broken() -> Any:
        raise RuntimeError("a mistake in a job")
        yield

    monkeypatch.setitem(db.engine.jobs._jobs, "expiry", broken)
    with pytest.raises(RuntimeError):
        db.run_job("expiry")
    assert seen.jobs == [("claims", "done"), ("expiry", "failed")]
    shown = db.query("SELECT status, error FROM system.jobs WHERE name = 'expiry'").rows
    assert shown == [("failed", "internal: a mistake in a job")]


class Broken(Nobody):
    def committed(self, report: CommitReport) -> None:
        raise RuntimeError("a mistake in an observer")

    def synced(self, seconds: float) -> None:
        raise RuntimeError("a mistake in an observer")


def test_an_observer_that_fails_harms_nobody(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    db.engine.observe(Broken())
    db.insert("app.orders", [{"id": 1, "amount": 1}])
    assert db.query("SELECT count(*) FROM app.orders").scalar() == 1
    assert [record.name for record in caplog.records] == ["tablecast.observer"] * 2


def test_one_observer_at_a_time_and_none_to_begin_with(db: Database) -> None:
    assert db.engine.observer is NOBODY
    first, second = Recorder(), Recorder()
    observers: list[Observer] = [first, second]
    for i, observer in enumerate(observers):
        db.engine.observe(observer)
        db.insert("app.orders", [{"id": i, "amount": 1}])
    db.engine.observe()
    db.insert("app.orders", [{"id": 9, "amount": 1}])
    assert (len(first.commits), len(second.commits)) == (1, 1)


def test_asking_for_a_logs_size_leaves_the_writers_counters_alone(db: Database) -> None:
    """They belong to the writer's thread: a counter put there by a reader could replace the one it counts with."""
    before = dict(db.engine._logs.partitions)
    assert db.query("SELECT sum(bytes) FROM system.topics").scalar() == 0
    assert db.engine._logs.partitions == before
