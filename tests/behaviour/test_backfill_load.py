"""Backfills that are made elsewhere: whatever is written meanwhile, the topic holds what a backfill in the database says."""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_parts import sealed_part

from tablecast.core.seal_messages import MessageSealer
from tablecast.engine import guards, load_backfill, load_sealed
from tablecast.engine.load_sealed import LogPlacer
from tablecast.engine.loads import LoadCommitted, LoadInfo
from tablecast.engine.snapshots import Snapshots
from tablecast.errors import (
    DuplicateKey,
    DuplicateSource,
    ExpressionError,
    InvalidPart,
    InvalidTopic,
    NotSealable,
    PermissionDenied,
    RunsOnSpark,
    StaleLoad,
    TablecastError,
    TransactionConflict,
    UnknownLoad,
    UnknownTopic,
    WritesStopped,
)
from tablecast.model.change import Op
from tablecast.model.position import EARLIEST
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.model.topic import PayloadMode, Route
from tablecast.sql.database import Database
from tablecast.storage.memory import MemoryStore
from tablecast.storage.parts import seal_parts
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.testing.faulty import Call, FaultyStore

EVERY_OP = tuple(Op)
SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (f DOUBLE, t TEXT, n INT, note JSON, PRIMARY KEY (f, t));
CREATE TOPIC app.told PARTITIONS 3;
CREATE TOPIC app.reference PARTITIONS 3
"""


@pytest.fixture(params=["memory", "rocks"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened(tmp_path / "shop" if request.param == "rocks" else None) as database:
        database.execute_all(SETUP)
        yield database


def opened(path: Path | None = None) -> Database:
    store = MemoryStore(read_sorted) if path is None else RocksStore.open(str(path))
    return Database(store, jobs_interval_seconds=3600)


@pytest.fixture(params=["in the batch", "in a file"])
def messages_go(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in a file":
        monkeypatch.setattr(load_sealed, "INLINE_LOG_BYTES", 0)


# --- what an executor does ------------------------------------------------------------------------------------


def begun(db: Database, route: Route, writer: str = "job:backfill", actor: Actor = SYSTEM_ACTOR) -> LoadInfo:
    return db.engine.loads.begin_backfill(actor, "app.told", "app.orders", route, writer, 0)


def sealed(db: Database, info: LoadInfo, ranges: int = 3) -> list[bytes]:
    """The parts of a snapshot that is taken now."""
    engine = db.engine
    published, table = engine.published, engine.catalog.table("app.orders")
    snapshot = Snapshots(engine.now_ms).open(
        published.snapshot, table, published.seq, engine.now_ms(), actor=SYSTEM_ACTOR, owner=None
    )
    made = []
    with tempfile.TemporaryDirectory() as directory:
        for start, end in snapshot.ranges(ranges):
            sealer = MessageSealer(info.table, info.routes, info.load_number, part_bytes=400)
            batches = snapshot.batches(start, end, with_seq=False)
            for file in seal_parts(sealer, batches, Path(directory), "part"):
                made.append(file.path.read_bytes())
    return made


def staged(db: Database, info: LoadInfo, parts: list[bytes]) -> list[tuple[int, str]]:
    for number, part in enumerate(parts):
        db.engine.loads.stage(info.load_id, number, "a", io.BytesIO(part))
    return [(number, "a") for number in range(len(parts))]


def backfilled(db: Database, route: Route, between: Callable[[int], None] = lambda _: None) -> LoadCommitted:
    """`between` is called at each of the moments at which others may write."""
    between(0)
    info = begun(db, route)
    between(1)
    parts = sealed(db, info)
    between(2)
    names = staged(db, info, parts)
    between(3)
    return db.engine.loads.commit(info.load_id, names)


def told(db: Database, topic: str) -> list[list[tuple[Any, ...]]]:
    """What each partition tells, in no order, without what the commit assigned."""
    found = []
    for partition in range(db.topic(topic).partitions):
        messages = db.consume(topic, start=EARLIEST, partition=partition, limit=10_000).messages
        assert [message.offset for message in messages] == list(range(len(messages)))
        said = [(m.source_table, m.op, m.payload_mode, m.user_id, m.key, m.payload, m.content_hash) for m in messages]
        found.append(sorted(said))
    return found


def as_in_the_database(db: Database, route: Route) -> list[list[tuple[Any, ...]]]:
    where = f" WHERE {route.filter}" if route.filter else ""
    by = f" PARTITION BY {route.partition_by}" if route.partition_by else ""
    ops = ", ".join(op.name for op in route.ops)
    options = f"payload = '{route.payload}', backfill = TRUE"
    db.execute(f"ALTER TOPIC app.reference ADD SOURCE app.orders ON {ops}{where}{by} WITH ({options})")
    return told(db, "app.reference")


def fill(db: Database, count: int = 60) -> None:
    db.insert("app.orders", [(float(i), f"t{i}", i, None) for i in range(count)])


# --- the same as in the database ------------------------------------------------------------------------------

KEYS = [(f, t) for f in (0.0, 1.5, -2.0) for t in ("a", "é", "")]
ROUTES = [
    Route(0, EVERY_OP),
    Route(0, (Op.INSERT,), "n > 3", None, PayloadMode.KEY),
    Route(0, (Op.INSERT, Op.DELETE), "t <> 'a'", "n % 5", PayloadMode.DIFF),
]
writes = st.tuples(
    st.sampled_from(["upsert", "delete", "update", "move", "transaction"]),
    st.sampled_from([*KEYS, (-0.0, "a"), (-0.0, "")]),
    st.one_of(st.none(), st.integers(0, 9)),
)
moments = st.lists(st.lists(writes, max_size=6), min_size=6, max_size=6)


def write(db: Database, kind: str, key: tuple[float, str], n: int | None) -> None:
    try:
        if kind == "upsert":
            db.insert("app.orders", [(*key, n, '{"x": 1}')], mode="upsert")
        elif kind == "delete":
            db.execute("DELETE FROM app.orders WHERE f = ? AND t = ?", key)
        elif kind == "update":
            db.execute("UPDATE app.orders SET n = ? WHERE f = ? AND t = ?", [n, *key])
        elif kind == "move":
            db.execute("UPDATE app.orders SET f = f + 1.5 WHERE f = ? AND t = ?", key)
        else:
            with db.transaction() as transaction:
                transaction.execute("DELETE FROM app.orders WHERE f = ? AND t = ?", key)
                transaction.execute("INSERT INTO app.orders VALUES (?, ?, ?, NULL)", [*key, n])
    except DuplicateKey:
        pass  # moved to where a row is


@settings(max_examples=60)
@given(route=st.sampled_from(ROUTES), rows=st.sets(st.sampled_from(KEYS)), script=moments, data=st.data())
def test_whatever_is_written_meanwhile_the_messages_are_those_of_the_commit(
    route: Route, rows: set[tuple[float, str]], script: list[list[Any]], data: st.DataObject
) -> None:
    with opened() as db, pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_backfill, "FEW_KEYS", data.draw(st.sampled_from([0, 256])))
        patch.setattr(load_sealed, "INLINE_LOG_BYTES", data.draw(st.sampled_from([0, 2**20])))
        db.execute_all(SETUP)
        db.insert("app.orders", [(f, t, 5, None) for f, t in sorted(rows)])

        def write_all(moment: int) -> None:
            for each in script[moment]:
                write(db, *each)

        while_telling(patch, lambda: write_all(4))
        when_prepared(patch, lambda: write_all(5))
        done = backfilled(db, route, write_all)
        assert told(db, "app.told") == as_in_the_database(db, route)
        assert done.row_count == sum(map(len, told(db, "app.told")))
        assert db.verify().problems == []


def while_telling(patch: pytest.MonkeyPatch, write_once: Callable[[], None]) -> None:
    """Between what was noted and what is read of it, outside of the writer."""
    again, waiting = load_backfill.Teller.again, [write_once]

    def told_again(self: Any, *args: Any) -> Any:
        while waiting and threading.current_thread().name != "tablecast-decide":
            waiting.pop()()
        return again(self, *args)

    patch.setattr(load_backfill.Teller, "again", told_again)


def when_prepared(patch: pytest.MonkeyPatch, write_once: Callable[[], None]) -> None:
    """When only the writer is left to be asked."""
    place, waiting = LogPlacer.place, [write_once]

    def placed(self: LogPlacer, *args: Any) -> Any:
        made = place(self, *args)
        while waiting:
            waiting.pop()()
        return made

    patch.setattr(LogPlacer, "place", placed)


def test_writers_that_never_stop(db: Database, messages_go: None) -> None:
    """Threads insert, update and delete from before the beginning until after the commit."""
    fill(db, 400)
    over, route = threading.Event(), Route(0, EVERY_OP, "n % 3 <> 0", "n")

    def write_on(seed: int) -> None:
        choose = random.Random(seed)
        while not over.is_set():
            i = choose.randrange(500)
            kind = choose.choice(["upsert", "delete", "update", "transaction"])
            with contextlib.suppress(TransactionConflict):
                write(db, kind, (float(i), f"t{i}"), choose.randrange(100))

    writers = [threading.Thread(target=write_on, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        done = backfilled(db, route)
    finally:
        over.set()
        for writer in writers:
            writer.join()
    assert done.row_count
    assert db.verify().problems == [], "every row's last change is on the topic, told with the source or after it"


def test_the_source_is_there_and_goes_on(db: Database, messages_go: None) -> None:
    fill(db, 10)
    done = backfilled(db, Route(0, EVERY_OP))
    assert db.topic("app.told").routes[0].from_seq == done.seq
    db.execute("DELETE FROM app.orders WHERE n = 3")
    last = [
        m for p in range(3) for m in db.consume("app.told", start=EARLIEST, partition=p).messages if m.op is Op.DELETE
    ]
    assert [m.value["n"] for m in last] == [3]
    entries = db.query("SELECT action, target, detail FROM system.audit_log WHERE action = 'ADD SOURCE'").rows
    assert entries == [("ADD SOURCE", "app.told", "source app.orders")]
    assert db.verify().problems == []


def test_an_empty_table_and_a_filter_that_takes_nothing(db: Database) -> None:
    assert backfilled(db, Route(0, EVERY_OP)).row_count == 0
    assert len(db.topic("app.told").routes) == 1


# --- once, or not at all --------------------------------------------------------------------------------------


def test_a_commit_that_is_sent_again_is_answered(db: Database, messages_go: None) -> None:
    fill(db)
    info = begun(db, ROUTES[0])
    names = staged(db, info, sealed(db, info))
    done = db.engine.loads.commit(info.load_id, names)
    again = db.engine.loads.commit(info.load_id, names)
    assert (again.seq, again.row_count, again.already) == (done.seq, done.row_count, True)
    found = begun(db, ROUTES[0]).committed
    assert found is not None and found.seq == done.seq
    assert sum(map(len, told(db, "app.told"))) == 60


def full_disk(*args: Any) -> None:
    raise InvalidPart("the disk is full")


def test_a_commit_that_failed_can_be_sent_again_and_has_forgotten_nothing(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db)
    info = begun(db, ROUTES[0])
    names = staged(db, info, sealed(db, info))
    db.execute("UPDATE app.orders SET n = 1000 WHERE n < 30")
    with monkeypatch.context() as patch:
        patch.setattr(LogPlacer, "place", full_disk)
        with pytest.raises(InvalidPart, match="full"):
            db.engine.loads.commit(info.load_id, names)
    db.execute("DELETE FROM app.orders WHERE n = 40")
    assert db.engine.loads.commit(info.load_id, names).row_count == 59
    assert told(db, "app.told") == as_in_the_database(db, ROUTES[0])


def test_parts_of_another_attempt_are_left_out(db: Database) -> None:
    fill(db)
    info = begun(db, ROUTES[0])
    staged(db, info, sealed(db, info))  # by a driver that was killed
    fresh = begun(db, ROUTES[0])
    assert fresh.load_id == info.load_id
    parts = sealed(db, fresh, ranges=1)
    for number, part in enumerate(parts):
        db.engine.loads.stage(fresh.load_id, number, "b", io.BytesIO(part))
    db.engine.loads.commit(fresh.load_id, [(number, "b") for number in range(len(parts))])
    assert told(db, "app.told") == as_in_the_database(db, ROUTES[0])


def test_a_load_that_is_aborted_or_abandoned_leaves_no_guard(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    info = begun(db, ROUTES[0])
    assert db.engine.guards._open
    db.engine.loads.abort(info.load_id)
    assert not db.engine.guards._open
    begun(db, ROUTES[0], writer="job:killed")
    monkeypatch.setattr("tablecast.engine.loads.ABANDONED_MS", 0)
    assert sum(removed.count for removed in db.engine.loads.sweep()) == 1
    assert not db.engine.guards._open
    assert db.engine.loads.open() == []


def test_a_process_that_ends_takes_its_backfills_with_it(tmp_path: Path) -> None:
    with opened(tmp_path / "shop") as db:
        db.execute_all(SETUP)
        fill(db)
        info = begun(db, ROUTES[0])
        names = staged(db, info, sealed(db, info))
    with opened(tmp_path / "shop") as db:
        assert db.engine.loads.open() == []
        with pytest.raises(UnknownLoad):
            db.engine.loads.commit(info.load_id, names)
        assert db.topic("app.told").routes == ()
        backfilled(db, ROUTES[0])
        assert told(db, "app.told") == as_in_the_database(db, ROUTES[0])


@pytest.mark.parametrize("call", [Call.WRITE, Call.INGEST])
def test_a_commit_that_breaks_off_is_whole_or_not_there(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_sealed, "INLINE_LOG_BYTES", 0)
    store = FaultyStore(RocksStore.open(str(tmp_path / "shop")))
    with Database(store, jobs_interval_seconds=3600) as db:
        db.execute_all(SETUP)
        fill(db)
        info = begun(db, ROUTES[0])
        names = staged(db, info, sealed(db, info))
        store.fail(call)
        with pytest.raises(WritesStopped):
            db.engine.loads.commit(info.load_id, names)
    with opened(tmp_path / "shop") as db:
        is_there = call is Call.INGEST  # the batch, which names the files, was durable
        assert len(db.topic("app.told").routes) == is_there
        assert sum(map(len, told(db, "app.told"))) == 60 * is_there
        if not is_there:
            backfilled(db, ROUTES[0])
        assert told(db, "app.told") == as_in_the_database(db, ROUTES[0])
        assert db.verify().problems == []


# --- what makes it stale --------------------------------------------------------------------------------------


def add_column(db: Database) -> None:
    db.execute("ALTER TABLE app.orders ADD COLUMN extra INT")


def load_rows(db: Database) -> None:
    info = db.engine.loads.begin(SYSTEM_ACTOR, "app.orders", "job:load", 0, mode="insert", kind="sealed")
    db.engine.loads.stage(info.load_id, 0, "a", sealed_part(info, [(5000.0, "new", 1, None)]))
    db.engine.loads.commit(info.load_id, [(0, "a")])


def write_much(db: Database) -> None:
    db.execute("UPDATE app.orders SET n = n + 1")


@pytest.mark.parametrize("change", [add_column, load_rows, write_much])
def test_what_a_backfill_cannot_follow_makes_it_begin_again(
    change: Callable[[Database], None], db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "MAX_GUARDED_KEYS", 50)
    fill(db)
    info = begun(db, ROUTES[0])
    names = staged(db, info, sealed(db, info))
    change(db)
    with pytest.raises(StaleLoad, match="begin it again"):
        db.engine.loads.commit(info.load_id, names)
    assert db.topic("app.told").routes == ()
    again = begun(db, ROUTES[0])
    assert again.load_id != info.load_id
    db.engine.loads.commit(again.load_id, staged(db, again, sealed(db, again)))
    assert told(db, "app.told") == as_in_the_database(db, ROUTES[0])


def test_a_source_that_was_added_meanwhile_is_there_once(db: Database) -> None:
    fill(db)
    info = begun(db, ROUTES[0])
    names = staged(db, info, sealed(db, info))
    db.execute("ALTER TOPIC app.told ADD SOURCE app.orders ON INSERT")
    with pytest.raises(DuplicateSource):
        db.engine.loads.commit(info.load_id, names)
    assert told(db, "app.told") == [[], [], []]


def test_a_topic_that_was_dropped_meanwhile(db: Database) -> None:
    fill(db)
    info = begun(db, ROUTES[0])
    names = staged(db, info, sealed(db, info))
    db.execute("DROP TOPIC app.told")
    with pytest.raises(UnknownTopic):
        db.engine.loads.commit(info.load_id, names)
    db.execute("CREATE TOPIC app.told PARTITIONS 3")
    with pytest.raises(StaleLoad, match="changed since"):
        db.engine.loads.commit(info.load_id, names)


def test_a_row_that_the_filter_fails_on_is_the_error_it_is_in_the_database(db: Database) -> None:
    fill(db)
    route = Route(0, EVERY_OP, "CAST(n * 1000 AS SMALLINT) > 0")
    info = begun(db, route)
    with pytest.raises(ExpressionError) as there:
        as_in_the_database(db, route)
    with pytest.raises(ExpressionError) as here:
        sealed(db, info)
    assert here.value.message == there.value.message.replace("app.reference", "app.told")
    db.execute("DELETE FROM app.orders")
    other = begun(db, route, writer="job:other")
    names = staged(db, other, sealed(db, other))
    db.insert("app.orders", [(1.0, "t", 50, None)])
    with pytest.raises(ExpressionError, match=r"the filter of topic app\.told"):
        db.engine.loads.commit(other.load_id, names)


# --- what is refused ------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, Route, type[TablecastError], str]] = {
    "no inserts": ("", Route(0, (Op.UPDATE,)), InvalidTopic, "ON INSERT"),
    "dedup": (
        "ALTER TOPIC app.told SET (dedup_window_seconds = 5)",
        Route(0, EVERY_OP),
        NotSealable,
        "backfill = TRUE",
    ),
    "fed already": (
        "ALTER TOPIC app.told ADD SOURCE app.orders ON INSERT",
        Route(0, EVERY_OP),
        DuplicateSource,
        "DROP",
    ),
    "no filter": ("", Route(0, EVERY_OP, "n + 1"), TablecastError, "BOOLEAN"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_at_the_beginning(what: str, db: Database) -> None:
    sql, route, kind, why = REFUSED[what]
    if sql:
        db.execute(sql)
    with pytest.raises(kind, match=why):
        begun(db, route)
    ops = ", ".join(op.name for op in route.ops)
    where = f" WHERE {route.filter}" if route.filter else ""
    with pytest.raises(kind, match=why):
        db.execute(f"ALTER TOPIC app.told ADD SOURCE app.orders ON {ops}{where} WITH (backfill = 'spark')")
    assert db.engine.loads.open() == []


def test_tables_whose_rows_only_the_writer_can_tell(db: Database) -> None:
    db.execute_all(
        "CREATE USER TABLE app.own (id BIGINT PRIMARY KEY);"
        "CREATE TABLE app.passing (id BIGINT PRIMARY KEY) WITH (ttl_seconds = 60)"
    )
    for table in ("app.own", "app.passing"):
        with pytest.raises(NotSealable, match="cannot be backfilled on Spark"):
            db.engine.loads.begin_backfill(SYSTEM_ACTOR, "app.told", table, Route(0, EVERY_OP), "job:x", 0)


def test_it_takes_the_right_to_manage_topics(db: Database) -> None:
    with pytest.raises(PermissionDenied, match="dba"):
        begun(db, ROUTES[0], actor=Actor("etl", Role.SERVICE))


def test_parts_with_rows_and_parts_for_other_topics_are_refused(db: Database) -> None:
    info = begun(db, ROUTES[0])
    with pytest.raises(InvalidPart, match="messages only"):
        db.engine.loads.stage(info.load_id, 0, "a", sealed_part(info, [(1.0, "x", 1, None)]))


def test_sql_says_where_it_runs(db: Database) -> None:
    sql = "ALTER TOPIC app.told ADD SOURCE app.orders ON INSERT, DELETE WHERE n > 3 PARTITION BY n"
    with pytest.raises(RunsOnSpark, match="runs on Spark, not in the database") as told_so:
        db.execute(f"{sql} WITH (payload = 'key', backfill = 'spark')")
    assert told_so.value.details["job"] == {
        "type": "backfill", "topic": "app.told", "table": "app.orders", "ops": ("insert", "delete"), "filter": "n > 3",
        "partition_by": "n", "payload": "key",
    }  # fmt: skip
    assert db.topic("app.told").routes == ()
