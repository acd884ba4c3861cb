"""When the disk fails, hangs or lies, nobody is told that a write is safe when it is not.

A failed write or fsync stops writes for good: after a failed fsync the kernel may have dropped the pages, and
the next one would report success. Reads go on. What was acknowledged is there after reopening.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tablecast
from tablecast.core import failpoint
from tablecast.engine import writer
from tablecast.engine.idempotency import Recall
from tablecast.engine.jobs import Jobs
from tablecast.engine.retention import Removed
from tablecast.engine.ticket import Ticket
from tablecast.engine.verify import verify_engine
from tablecast.errors import (
    DatabaseError,
    DuplicateKey,
    IdempotencyMismatch,
    Overloaded,
    WritesStopped,
)
from tablecast.model.position import EARLIEST
from tablecast.sql.database import Database
from tablecast.storage.base import Batch, Family, Snapshot, StorageFailure, Store
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore
from tablecast.testing.failpoints import Gate, raising
from tablecast.testing.faulty import Call, Fault, FaultyStore

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.items (id BIGINT PRIMARY KEY, name TEXT);
CREATE TOPIC app.item_events;
ALTER TOPIC app.item_events ADD SOURCE app.items ON ANY WITH (payload = 'full');
"""
INSERT = "INSERT INTO app.items VALUES (?, ?)"
GROUP = "readers"
JOIN_SECONDS = 60.0  # no test waits that long: it is where a hang becomes a failure


class Caller:
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call, args), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self.result = call(*args)
        except BaseException as error:
            self.error = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS)
        assert not self.waits, "the caller was never answered"


def until(happened: Callable[[], bool]) -> None:
    """For what no event announces: that another thread has come to a certain point."""
    waiting = threading.Event()
    for _ in range(20_000):
        if happened():
            return
        waiting.wait(0.001)
    raise AssertionError("it did not happen")


@pytest.fixture(params=["memory", "rocks"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens a store; a second time, on disk, what was left there."""
    if request.param == "memory":
        return MemoryStore
    return lambda: RocksStore.open(str(tmp_path / "db"))


@pytest.fixture
def store(disk: Callable[[], Store]) -> FaultyStore:
    return FaultyStore(disk())


@pytest.fixture
def db(store: FaultyStore) -> Iterator[Database]:
    """A database with one row, acknowledged."""
    with Database(store, jobs_interval_seconds=3600) as database:
        database.execute(SCHEMA)
        database.execute(INSERT, (0, "before"))
        yield database


def ids(db: tablecast.Session) -> list[int]:
    return [row[0] for row in db.query("SELECT id FROM app.items ORDER BY id").rows]


def said(db: tablecast.Session) -> list[int]:
    messages = db.consume("app.item_events", start=EARLIEST, limit=100_000).messages
    return [int(message.value["id"]) for message in messages]


# --- a failure stops writes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC])
@pytest.mark.parametrize("fault", Fault)
def test_a_failure_is_told_and_stops_writes_but_not_reads(
    store: FaultyStore, db: Database, call: Call, fault: Fault
) -> None:
    store.fail(call, fault=fault)
    with pytest.raises(WritesStopped, match=f"a {call} failed: {os.strerror(fault.value)}"):
        db.execute(INSERT, (1, "during"))
    asked = dict(store.calls)
    for n in range(2, 5):
        with pytest.raises(WritesStopped, match="what was acknowledged is safe"):
            db.execute(INSERT, (n, "after"))
    assert store.calls == asked, "the disk was asked again after it had failed"
    assert ids(db) == said(db) == [0]
    assert db.query("SELECT end_offset FROM system.topic_partitions").scalar() == 1
    db.close()


def test_every_kind_of_write_is_refused_after_a_failure(store: FaultyStore, db: Database) -> None:
    db.consume("app.item_events", group=GROUP, consumer="c")
    store.fail(Call.SYNC)
    with pytest.raises(WritesStopped):
        db.execute(INSERT, (1, "during"))
    for write in (
        lambda: db.execute(INSERT, (2, "after")),
        lambda: db.insert("app.items", [{"id": 3, "name": "after"}]),
        lambda: db.execute("CREATE TOPIC app.late"),
        lambda: db.ack("app.item_events", GROUP, 0),
        lambda: db.nack("app.item_events", GROUP, [0]),
    ):
        with pytest.raises(WritesStopped):
            write()
    with pytest.raises(WritesStopped), db.transaction() as tx:
        tx.execute(INSERT, (4, "after"))


class Forgetful(FaultyStore):
    """Fails one sync and would do the next: a store that does not refuse by itself, as ours do."""

    fails_next = False

    def sync(self) -> None:
        fails, self.fails_next = self.fails_next, False
        super().sync()
        if fails:
            raise StorageFailure("a sync failed once")


def test_a_sync_that_would_work_the_second_time_is_not_tried_again(disk: Callable[[], Store]) -> None:
    store = Forgetful(disk())
    with Database(store, jobs_interval_seconds=3600) as db:
        db.execute(SCHEMA)
        store.fails_next = True
        with pytest.raises(WritesStopped, match="failed once"):
            db.execute(INSERT, (1, "unsafe"))
        synced = store.calls[Call.SYNC]
        for _ in range(3):
            with pytest.raises(WritesStopped, match="failed once"):
                db.execute(INSERT, (2, "later"))
        assert ids(db) == said(db) == []
        db.close()
        assert store.calls[Call.SYNC] == synced


def test_what_was_being_decided_when_the_sync_failed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deciding thread looked for a failure before it began; it must look again before it writes."""
    monkeypatch.setattr(writer, "WORTH_WAKING_ROWS", 1)
    store, gate = Forgetful(MemoryStore()), Gate()
    with Database(store, jobs_interval_seconds=3600) as db:
        db.execute(SCHEMA)
        store.fails_next = True
        with store.hold_sync() as hold, failpoint.armed("during_drop", gate):
            held = Caller(db.execute, INSERT, (1, "held"))
            hold.wait_until_held()
            dropping = Caller(db.execute, "DROP TOPIC app.item_events")
            gate.wait_reached()
            hold.release()
            held.join()
            gate.open()
            dropping.join()
        assert isinstance(held.error, WritesStopped)
        assert isinstance(dropping.error, WritesStopped)
        assert said(db) == []


def test_a_store_that_gives_up_elsewhere_stops_writes_and_hangs_nobody() -> None:
    class Strange(FaultyStore):
        gives_up = ""

        def batch(self) -> Batch:
            if self.gives_up == "batch":
                raise StorageFailure("no batch")
            return super().batch()

        def snapshot(self, *families: Family) -> Snapshot:
            if self.gives_up == "snapshot":
                raise StorageFailure("no snapshot")
            return super().snapshot(*families)

    for gives_up in ("batch", "snapshot"):
        store = Strange(MemoryStore())
        with Database(store, jobs_interval_seconds=3600) as db:
            db.execute(SCHEMA)
            store.gives_up = gives_up
            for n in range(2):
                caller = Caller(db.execute, INSERT, (n, "lost"))
                caller.join()
                assert isinstance(caller.error, WritesStopped)
            store.gives_up = ""
            assert ids(db) == []


def test_a_callback_that_raises_hurts_nobody_else(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Ticket) -> None:
        raise RuntimeError("the event loop is closed")

    db.engine.submit(Recall("ann", "no such key", b""), broken)
    db.execute(INSERT, (1, "after"))
    assert ids(db) == [0, 1]
    assert "the callback of a Recall failed" in caplog.text


@pytest.mark.parametrize("where", ["before_write", "after_write", "before_sync", "after_sync", "before_ack"])
def test_an_error_anywhere_in_a_commit_stops_writes(db: Database, where: str) -> None:
    with (
        failpoint.armed(where, raising(StorageFailure("struck by lightning"))) as point,
        pytest.raises(WritesStopped, match="struck by lightning"),
    ):
        db.execute(INSERT, (1, "during"))
    assert point.fired
    for _ in range(3):
        with pytest.raises(WritesStopped):
            db.execute(INSERT, (2, "after"))
    assert 2 not in ids(db)


@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC])
def test_everybody_in_the_queue_is_released(store: FaultyStore, db: Database, call: Call) -> None:
    with store.hold_sync() as hold:
        held = Caller(db.execute, INSERT, (1, "held"))
        hold.wait_until_held()
        store.fail(call)  # a write: that of those behind. A sync: the held one is past it, so theirs too
        callers = [Caller(db.execute, INSERT, (n, "behind")) for n in range(100, 140)]
        until(lambda: db.engine.queue_depth >= 40)
    for caller in (held, *callers):
        caller.join()
    assert held.error is None
    assert all(isinstance(caller.error, WritesStopped) for caller in callers)
    assert ids(db) == said(db) == [0, 1]


def test_those_who_wait_for_room_are_released_too(
    store: FaultyStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "QUEUE_COMMANDS", 4)
    monkeypatch.setattr(writer, "WORTH_WAKING_ROWS", 1_000_000)
    with store.hold_sync() as hold:
        held = Caller(db.execute, INSERT, (1, "held"))
        hold.wait_until_held()
        store.fail(Call.SYNC)
        callers = [Caller(db.execute, INSERT, (n, "behind")) for n in range(100, 120)]
        until(lambda: db.engine.queue_depth >= 4)
    for caller in (held, *callers):
        caller.join()
    answers = [type(caller.error) for caller in callers]
    assert set(answers) == {WritesStopped}
    assert ids(db) == said(db) == [0, 1]


def test_closing_after_a_failure_works(store: FaultyStore, db: Database) -> None:
    store.fail(Call.SYNC)
    with pytest.raises(WritesStopped):
        db.execute(INSERT, (1, "during"))
    db.close()
    db.close()
    with pytest.raises(DatabaseError):
        db.execute(INSERT, (2, "after"))


@pytest.mark.parametrize("durability", ["interval(5)", "none"])
def test_a_failed_sync_is_not_forgotten_in_the_weaker_modes(durability: str) -> None:
    store = FaultyStore(MemoryStore())
    db = Database(store, durability=durability)
    db.execute(SCHEMA)
    store.fail(Call.SYNC)
    if durability == "none":
        with pytest.raises(DatabaseError):
            db.close()
    else:
        until(lambda: db.engine.writes_stopped)
        with pytest.raises(WritesStopped):
            db.execute(INSERT, (1, "after"))
        db.close()


@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC])
@pytest.mark.parametrize("fault", Fault)
def test_what_was_acknowledged_is_there_after_reopening(tmp_path: Path, call: Call, fault: Fault) -> None:
    """Eight threads write until the disk fails; what came after the failure is there whole or not at all."""
    store = FaultyStore(RocksStore.open(str(tmp_path / "db")))
    acknowledged: list[int] = []
    with Database(store, jobs_interval_seconds=3600) as db:
        db.execute(SCHEMA)
        store.fail(call, nth=7, fault=fault)

        def write_on(first: int) -> None:
            for n in range(first, first + 10_000, 2):
                db.execute(INSERT + ", (?, ?)", (n, "pair", n + 1, "pair"))
                acknowledged.extend((n, n + 1))

        callers = [Caller(write_on, thread * 10_000) for thread in range(8)]
        for caller in callers:
            caller.join()
            assert isinstance(caller.error, WritesStopped)
    with tablecast.open(tmp_path / "db") as db:
        there = set(ids(db))
        assert set(acknowledged) <= there
        assert all(n ^ 1 in there for n in there)
        assert sorted(said(db)) == sorted(there)
        assert verify_engine(db.engine).problems == []
        db.execute(INSERT, (1_000_000, "goes on"))


# --- requests that are sent again ---------------------------------------------------------------------------


def test_a_request_sent_again_after_a_failure_commits_once(tmp_path: Path) -> None:
    """The disk takes the write and says that it did not: the caller cannot know, and asks again."""
    sql = f"{INSERT}; UPDATE app.items SET name = name || '!' WHERE id = 0"
    store = FaultyStore(RocksStore.open(str(tmp_path / "db")))
    with Database(store, jobs_interval_seconds=3600) as db:
        db.execute(SCHEMA)
        db.execute(INSERT, (0, "before"))
        store.fail(Call.SYNC, fault=Fault.SHORT)
        with pytest.raises(WritesStopped):
            db.execute(sql, (1, "once"), idempotency_key="key")
    with tablecast.open(tmp_path / "db") as db:
        first = db.execute(sql, (1, "once"), idempotency_key="key")
        again = db.execute(sql, (1, "once"), idempotency_key="key")
        assert first.seq == again.seq
        assert db.query("SELECT id, name FROM app.items ORDER BY id").rows == [(0, "before!"), (1, "once")]
        assert said(db) == [0, 1, 0]
        with pytest.raises(IdempotencyMismatch):
            db.execute(sql, (2, "other"), idempotency_key="key")


def test_a_repeat_is_not_answered_before_the_first_is_durable(store: FaultyStore, db: Database) -> None:
    sql = f"{INSERT}; UPDATE app.items SET name = 'changed' WHERE id = 0"
    with store.hold_sync() as hold:
        first = Caller(lambda: db.execute(sql, (1, "once"), idempotency_key="key"))
        hold.wait_until_held()
        again = Caller(lambda: db.execute(sql, (1, "once"), idempotency_key="key"))
        until(lambda: db.engine.queue_depth == 1)
        assert first.waits and again.waits
    first.join()
    again.join()
    assert first.error is None and again.error is None
    assert first.result.seq == again.result.seq
    assert said(db) == [0, 1, 0]


# --- a slow disk --------------------------------------------------------------------------------------------


def test_nobody_sees_a_commit_before_it_is_durable(store: FaultyStore, db: Database) -> None:
    group = "SELECT committed, claimed, end_offset, lag FROM system.topic_groups"
    db.consume("app.item_events", group=GROUP, consumer="c")

    def visible() -> list[Any]:
        return [
            ids(db),
            db.query("SELECT name FROM app.items WHERE id = 1").rows,
            said(db),
            db.read_arrow("app.item_events").num_rows,
            db.query("SELECT end_offset FROM system.topic_partitions").rows,
            db.query(group).rows,
            db.engine.seq,
        ]

    before = visible()
    with store.hold_sync() as hold:
        writing = Caller(db.execute, INSERT, (1, "held"))
        hold.wait_until_held()
        assert visible() == before
        with db.transaction() as tx:
            assert ids(tx) == [0]
        assert writing.waits
    writing.join()
    assert visible() == [[0, 1], [("held",)], [0, 1], 2, [(2,)], [(0, 1, 2, 2)], before[-1] + 1]


def test_an_ack_is_not_seen_before_it_is_durable(store: FaultyStore, db: Database) -> None:
    db.consume("app.item_events", group=GROUP, consumer="c")
    with store.hold_sync() as hold:
        acking = Caller(db.ack, "app.item_events", GROUP, 0)
        hold.wait_until_held()
        assert db.query("SELECT committed, lag FROM system.topic_groups").rows == [(0, 1)]
        assert acking.waits
    acking.join()
    assert acking.result == 0
    assert db.query("SELECT committed, lag FROM system.topic_groups").rows == [(1, 0)]


def test_a_new_table_is_not_seen_before_it_is_durable(store: FaultyStore, db: Database) -> None:
    with store.hold_sync() as hold:
        creating = Caller(db.execute, "CREATE TABLE app.late (id INT PRIMARY KEY)")
        hold.wait_until_held()
        assert db.query("SELECT count(*) FROM system.tables WHERE name = 'late'").scalar() == 0
        assert creating.waits
    creating.join()
    assert db.query("SELECT count(*) FROM system.tables WHERE name = 'late'").scalar() == 1


def test_the_next_commit_is_decided_while_the_disk_is_busy(
    store: FaultyStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue empties while the sync is held; answers, errors too, wait until what they rest on is durable."""
    monkeypatch.setattr(writer, "WORTH_WAKING_ROWS", 1)
    with store.hold_sync() as hold:
        held = Caller(db.execute, INSERT, (1, "held"))
        hold.wait_until_held()
        duplicate = Caller(db.execute, INSERT, (1, "again"))
        following = Caller(db.execute, INSERT, (2, "following"))
        until(lambda: db.engine.queue_depth == 0)
        assert held.waits and duplicate.waits and following.waits
        writes = store.calls[Call.WRITE]
    for caller in (held, duplicate, following):
        caller.join()
    assert held.error is None and following.error is None
    assert isinstance(duplicate.error, DuplicateKey)
    assert store.calls[Call.WRITE] == writes + 1
    assert ids(db) == said(db) == [0, 1, 2]


def test_a_full_queue_makes_callers_wait_and_then_tells_them(
    store: FaultyStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "QUEUE_COMMANDS", 4)
    monkeypatch.setattr(writer, "QUEUE_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(writer, "WORTH_WAKING_ROWS", 1_000_000)
    with store.hold_sync() as hold:
        held = Caller(db.execute, INSERT, (1, "held"))
        hold.wait_until_held()
        queued = [Caller(db.execute, INSERT, (n, "queued")) for n in range(2, 6)]
        until(lambda: db.engine.queue_depth == 4)
        with pytest.raises(Overloaded, match=r"4 commands.*retry later"):
            db.execute(INSERT, (6, "too many"))
        monkeypatch.setattr(writer, "QUEUE_WAIT_SECONDS", JOIN_SECONDS)
        waiting = Caller(db.execute, INSERT, (7, "patient"))
        assert waiting.waits
    for caller in (held, *queued, waiting):
        caller.join()
        assert caller.error is None
    assert ids(db) == sorted(said(db)) == [0, 1, 2, 3, 4, 5, 7]


def test_one_fsync_acknowledges_many_writers(store: FaultyStore, db: Database) -> None:
    before = store.calls[Call.SYNC]
    with store.hold_sync() as hold:
        first = Caller(db.execute, INSERT, (1, "first"))
        hold.wait_until_held()
        callers = [Caller(db.execute, INSERT, (n, "together")) for n in range(2, 52)]
        until(lambda: db.engine.queue_depth + sum(not caller.waits for caller in callers) >= 50)
    for caller in (first, *callers):
        caller.join()
        assert caller.error is None
    assert store.calls[Call.SYNC] == before + 2
    assert len({caller.result.seq for caller in callers}) == 1
    assert sorted(said(db)) == list(range(52))


# --- jobs ---------------------------------------------------------------------------------------------------


def test_jobs_find_nothing_to_do_where_nothing_was_written(db: Database) -> None:
    db.execute("CREATE TOPIC app.small PARTITIONS 2 WITH (retention_max_bytes = 1, retention_seconds = 1)")
    for job in db.engine.jobs.names:
        assert db.run_job(job).count == 0


def test_a_job_that_fails_keeps_no_other_from_running(
    disk: Callable[[], Store], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = threading.Event()

    def broken(_: Jobs) -> Iterator[Removed]:
        raise ValueError("nobody thought of this")

    def claims(_: Jobs) -> Iterator[Removed]:
        ran.set()
        return iter(())

    monkeypatch.setattr(Jobs, "_retention", broken)
    monkeypatch.setattr(Jobs, "_claims", claims)
    with Database(disk(), jobs_interval_seconds=0.001):
        assert ran.wait(JOIN_SECONDS)
    assert "job retention failed" in caplog.text


def test_a_ticket_that_nobody_waits_for_holds_nobody_up() -> None:
    store = FaultyStore(MemoryStore())
    with Database(store, jobs_interval_seconds=3600) as db, ThreadPoolExecutor(4) as pool:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        with store.hold_sync() as hold:
            first = pool.submit(db.execute, "INSERT INTO t VALUES (0)")
            hold.wait_until_held()
            left = db.engine.submit(Recall("ann", "no such key", b""))  # in the next commit, and ahead of the others
            others = [pool.submit(db.execute, "INSERT INTO t VALUES (?)", (i,)) for i in (1, 2, 3)]
            hold.release()
        for future in (first, *others):
            future.result(60)
        assert left.wait() is None
