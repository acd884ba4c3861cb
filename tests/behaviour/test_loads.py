"""Loads of both kinds: one commit or none, once per batch, and like any other write to whoever reads."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from load_parts import arrow_part, sealed_part

from tablecast.codec.catalog import INTENT_KEY, LOAD_WRITERS, LOADS, load_key
from tablecast.codec.rows import loaded_row_header
from tablecast.core import failpoint
from tablecast.engine import guards, load_rows, load_sealed, loads
from tablecast.engine.load_batches import BatchName
from tablecast.engine.loads import LoadCommitted, LoadInfo, Loads
from tablecast.engine.observer import CommitReport, Nobody
from tablecast.errors import (
    CheckViolation,
    DuplicateKey,
    InvalidPart,
    InvalidRequest,
    MissingRow,
    NotNullViolation,
    NotSealable,
    PermissionDenied,
    StaleLoad,
    TablecastError,
    TooLarge,
    TransactionConflict,
    TypeMismatch,
    UnknownColumn,
    UnknownLoad,
    WritesStopped,
)
from tablecast.model.position import EARLIEST
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.sql.database import Database
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.home import FORMAT
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.testing.clock import FakeClock
from tablecast.testing.failpoints import Gate, raising
from tablecast.testing.faulty import Call, FaultyStore

HOUR_MS = 3600 * 1000
SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, n INT DEFAULT 7, CHECK (n >= 0));
CREATE TOPIC app.events PARTITIONS 3;
ALTER TOPIC app.events ADD SOURCE app.orders ON ANY;
CREATE TOPIC app.big;
ALTER TOPIC app.big ADD SOURCE app.orders ON INSERT WHERE n > 500 WITH (payload = 'key')
"""


class Home:
    """A database that can be opened again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._store: MemoryStore | RocksStore | None = None
        self.clock = FakeClock()

    def open(self) -> Database:
        if self.path is not None:
            self._store = RocksStore.open(str(self.path))
        else:
            old = self._store
            self._store = old.crash() if isinstance(old, MemoryStore) else MemoryStore(read_sorted)
        return Database(self._store, clock=self.clock, jobs_interval_seconds=3600)


@pytest.fixture(params=["memory", "rocks"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(tmp_path / "shop" if request.param == "rocks" else None)


@pytest.fixture
def db(home: Home) -> Iterator[Database]:
    database = home.open()
    for statement in SETUP.split(";"):
        database.execute(statement)
    yield database
    database.close()


@pytest.fixture
def shop(db: Database) -> Loads:
    return db.engine.loads


@pytest.fixture(params=["in the batch", "in a file"])
def messages_go(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the log batches of a sealed load go on their way into the store."""
    if request.param == "in a file":
        monkeypatch.setattr(load_sealed, "INLINE_LOG_BYTES", 0)
    return str(request.param)


def begin(shop: Loads, batch: int = 0, *, mode: str = "insert", kind: str = "rows", **more: Any) -> LoadInfo:
    actor = more.pop("actor", SYSTEM_ACTOR)
    return shop.begin(
        actor, more.pop("table", "app.orders"), more.pop("writer", "query"), batch, mode=mode, kind=kind, **more
    )


def arrow(**columns: list[Any]) -> io.BytesIO:
    return arrow_part(pa.table(columns))


def load(shop: Loads, *parts: io.BytesIO, batch: int = 0, **how: Any) -> LoadCommitted:
    info = begin(shop, batch, **how)
    for number, part in enumerate(parts):
        shop.stage(info.load_id, number, "a", part)
    return shop.commit(info.load_id, [(number, "a") for number in range(len(parts))])


def seal(shop: Loads, *parts: list[tuple[int, str, int]], batch: int = 0, **how: Any) -> LoadCommitted:
    info = begin(shop, batch, kind="sealed", **how)
    for number, rows in enumerate(parts):
        shop.stage(info.load_id, number, "a", sealed_part(info, rows, batch_messages=100))
    return shop.commit(info.load_id, [(number, "a") for number in range(len(parts))])


def rows_of(numbers: range) -> list[tuple[int, str, int]]:
    return [(i, f"c{i}", i) for i in numbers]


def rows(db: Database) -> list[tuple[Any, ...]]:
    return db.query("SELECT id, customer, n FROM app.orders ORDER BY id").rows


def told(db: Database, topic: str = "app.events") -> list[tuple[str, int]]:
    """(op, id) of every message, by the order of the commits and of the rows in a partition."""
    found = [
        m
        for p in range(db.topic(topic).partitions)
        for m in db.consume(topic, start=EARLIEST, partition=p, limit=10_000).messages
    ]
    return [(m.op.label, int(m.value["id"])) for m in sorted(found, key=lambda m: (m.seq, m.message_id))]


def sound(db: Database) -> None:
    assert db.verify().problems == []


# --- rows: every mode ----------------------------------------------------------------------------------------


def test_parts_become_one_commit_in_their_order(db: Database, shop: Loads) -> None:
    info = begin(shop)
    shop.stage(info.load_id, 1, "a", arrow(id=[3], customer=["cem"], n=[3]))
    assert shop.stage(info.load_id, 0, "a", arrow(id=[1, 2], customer=["ann", "bob"])).rows == 2
    assert rows(db) == []
    seq = db.engine.seq
    done = shop.commit(info.load_id, [(0, "a"), (1, "a")])
    assert done == LoadCommitted(seq + 1, 3, total_rows=3)
    assert rows(db) == [(1, "ann", 7), (2, "bob", 7), (3, "cem", 3)]
    assert {row[0] for row in db.query("SELECT _seq FROM app.orders").rows} == {done.seq}
    assert sorted(told(db)) == [("insert", 1), ("insert", 2), ("insert", 3)]
    sound(db)


def test_an_upsert_overwrites_the_columns_it_names(db: Database, shop: Loads) -> None:
    db.insert("app.orders", [(1, "ann", 1), (2, "bob", 2)])
    done = load(shop, arrow(id=[1, 3, 3], customer=["eva", "cem", "dan"]), mode="upsert")
    assert done.row_count == 3
    assert rows(db) == [(1, "eva", 1), (2, "bob", 2), (3, "dan", 7)]
    sound(db)


def test_a_delete_takes_keys(db: Database, shop: Loads) -> None:
    db.insert("app.orders", [(1, "ann", 1), (2, "bob", 2)])
    assert load(shop, arrow(id=[1, 9, 1]), mode="delete").row_count == 1
    assert rows(db) == [(2, "bob", 2)]
    sound(db)


def test_changes_are_applied_in_order_each_on_what_came_before(db: Database, shop: Loads) -> None:
    db.insert("app.orders", [(1, "ann", 1)])
    part = arrow(
        op=["insert", "UPDATE", "delete", "upsert", "insert", "update", "delete"],
        id=[2, 2, 2, 2, 3, 1, 8],
        customer=["bob", "bo", None, "bea", "cem", "anna", None],
    )
    done = load(shop, part, mode="changes", op_column="op")
    assert done.row_count == 6
    assert rows(db) == [(1, "anna", 1), (2, "bea", 7), (3, "cem", 7)]
    assert [op for op, key in told(db) if key == 2] == ["insert", "update", "delete", "insert"]
    sound(db)


def test_later_parts_see_earlier_ones(db: Database, shop: Loads) -> None:
    first = arrow(op=["insert"], id=[1], customer=["ann"])
    second = arrow(op=["delete"], id=[1], customer=[None])
    assert load(shop, first, second, mode="changes", op_column="op").row_count == 2
    assert rows(db) == []
    sound(db)


def test_a_user_table_takes_rows_of_whoever_began(db: Database, shop: Loads) -> None:
    db.execute("CREATE USER TABLE app.notes (id INT PRIMARY KEY, text TEXT)")
    ann = Actor("ann", Role.USER)
    load(shop, arrow(id=[1], text=["mine"]), table="app.notes", actor=ann)
    assert db.session("ann").query("SELECT text FROM app.notes").rows == [("mine",)]
    assert db.session("bob").query("SELECT text FROM app.notes").rows == []
    sound(db)


def test_a_column_that_was_added_meanwhile_holds_its_default(db: Database, shop: Loads) -> None:
    info = begin(shop)
    shop.stage(info.load_id, 0, "a", arrow(id=[1], customer=["ann"]))
    db.execute("ALTER TABLE app.orders ADD COLUMN city TEXT DEFAULT 'Bonn'")
    shop.commit(info.load_id, [(0, "a")])
    assert db.query("SELECT city FROM app.orders").scalar() == "Bonn"


# --- rows that cannot be -------------------------------------------------------------------------------------

GOOD = pa.table({"id": [1, 2], "customer": ["ann", "bob"], "n": [1, 2]})
BAD: dict[str, tuple[dict[str, list[Any]], type[TablecastError], str]] = {
    "null": ({"id": [3, 4], "customer": ["x", None]}, NotNullViolation, r"part 5, row 3: column 'customer'"),
    "text for a number": (
        {"id": [3, 4], "customer": ["x", "y"], "n": ["1", "many"]}, TypeMismatch, r"part 5, row 3: column 'n'",
    ),
    "check": ({"id": [3, 4], "customer": ["x", "y"], "n": [1, -1]}, CheckViolation, r"part 5, row 3: .*CHECK"),
    "duplicate": ({"id": [3, 2], "customer": ["x", "y"]}, DuplicateKey, r"part 5, row 3: .*id = 2"),
    "unknown column": ({"id": [3], "colour": ["red"]}, UnknownColumn, r"part 5.*'colour'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_fails_the_whole_load_and_is_named(what: str, db: Database, shop: Loads) -> None:
    columns, error, text = BAD[what]
    info = begin(shop)
    shop.stage(info.load_id, 0, "a", arrow(id=[100], customer=["first"]))
    if what in ("null", "check", "duplicate"):
        bad = pa.table(columns, schema=pa.schema([f for f in GOOD.schema if f.name in columns]))
        shop.stage(info.load_id, 5, "a", arrow_part(GOOD.select(bad.column_names), bad))
        expected = text
    else:
        shop.stage(info.load_id, 5, "a", arrow(**columns))
        expected = text.replace("row 3", "row 1")
    seq = db.engine.seq
    with pytest.raises(error, match=expected) as raised:
        shop.commit(info.load_id, [(0, "a"), (5, "a")])
    assert raised.value.details["part"] == 5
    assert (rows(db), told(db), db.engine.seq) == ([], [], seq)
    shop.stage(info.load_id, 5, "b", arrow(id=[3], customer=["mended"]))
    assert shop.commit(info.load_id, [(0, "a"), (5, "b")]).row_count == 2
    sound(db)


def test_a_row_that_is_in_the_table_is_named(db: Database, shop: Loads) -> None:
    db.insert("app.orders", [(5, "there", 1)])
    with pytest.raises(DuplicateKey, match=r"part 0, row 1: .*id = 5"):
        load(shop, arrow(id=[4, 5], customer=["x", "y"]))


def test_an_update_of_no_row_is_an_error(db: Database, shop: Loads) -> None:
    with pytest.raises(MissingRow, match=r"part 0, row 1: .*id = 2"):
        load(shop, arrow(op=["insert", "update"], id=[1, 2], customer=["a", "b"]), mode="changes", op_column="op")
    assert rows(db) == []


@pytest.mark.parametrize("word", [None, "", "merge", 5])
def test_an_unknown_operation_is_named(word: Any, shop: Loads) -> None:
    column = pa.array(["insert", word]) if not isinstance(word, int) else pa.array([5, word])
    part = arrow_part(pa.table({"op": column, "id": [1, 2], "customer": ["a", "b"]}))
    with pytest.raises(InvalidRequest, match=r"part 0, row [01]: column 'op'"):
        load(shop, part, mode="changes", op_column="op")


def test_the_op_column_must_be_there_and_not_be_the_tables(shop: Loads) -> None:
    with pytest.raises(InvalidRequest, match="no column 'op'"):
        load(shop, arrow(id=[1], customer=["a"]), mode="changes", op_column="op")
    for wrong in ({"mode": "changes"}, {"op_column": "op"}, {"mode": "changes", "op_column": "n"}):
        with pytest.raises(InvalidRequest, match="op column"):
            begin(shop, 9, **wrong)


def test_what_is_not_an_arrow_stream_is_refused_when_it_comes(shop: Loads) -> None:
    info = begin(shop)
    whole = arrow(id=[1], customer=["a"]).getvalue()
    for wrong in (b"", b"id,customer\n1,a\n", whole[: len(whole) // 2]):
        with pytest.raises(InvalidPart, match="Arrow"):
            shop.stage(info.load_id, 0, "a", io.BytesIO(wrong))
    with pytest.raises(InvalidPart, match="was not staged"):
        shop.commit(info.load_id, [(0, "a")])


@pytest.mark.parametrize("limit", ["MAX_LOAD_ROWS", "MAX_LOAD_BYTES"])
def test_a_load_that_is_too_large_is_refused(limit: str, shop: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_rows, limit, 3)
    with pytest.raises(TooLarge, match="3"):
        load(shop, arrow(id=[1, 2], customer=["a", "b"]), arrow(id=[3, 4], customer=["a", "b"]))


# --- once per batch ------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[..., LoadCommitted]] = {
    "rows": lambda shop, first, **how: load(shop, arrow(id=[first], customer=["x"]), **how),
    "sealed": lambda shop, first, **how: seal(shop, [(first, "x", 7)], **how),
}


@pytest.fixture(params=list(KINDS))
def load_one(request: pytest.FixtureRequest) -> Callable[..., LoadCommitted]:
    return KINDS[request.param]


def test_a_replay_is_answered_and_changes_nothing(
    home: Home, db: Database, load_one: Callable[..., LoadCommitted]
) -> None:
    info = begin(db.engine.loads, kind="sealed" if load_one is KINDS["sealed"] else "rows")
    done = load_one(db.engine.loads, 1)
    again = LoadCommitted(done.seq, 1, already=True, total_rows=1)
    assert db.engine.loads.commit(info.load_id, [(0, "a")]) == again
    assert begin(db.engine.loads).committed == again
    db.close()
    db = home.open()
    try:
        assert db.engine.loads.commit(info.load_id, [(0, "a")]) == again
        assert begin(db.engine.loads).committed == again
        assert (len(rows(db)), len(told(db))) == (1, 1)
        sound(db)
    finally:
        db.close()


def test_a_batch_before_the_last_is_done(shop: Loads, load_one: Callable[..., LoadCommitted]) -> None:
    load_one(shop, 1, batch=4)
    later = load_one(shop, 2, batch=7)
    for batch in (0, 4, 6):
        assert begin(shop, batch).committed == LoadCommitted(later.seq, 0, already=True, total_rows=2)
    assert begin(shop, 8).committed is None
    assert begin(shop, 7, writer="another").committed is None


def test_every_batch_of_a_writer_is_counted(home: Home, shop: Loads, db: Database) -> None:
    """Whoever repeats a job of several batches learns how many rows were there, although only the last is remembered."""
    done = [
        load(shop, arrow(id=[1, 2], customer=["x", "x"]), batch=0),
        seal(shop, rows_of(range(10, 15)), batch=1),
        load(shop, arrow(id=[20], customer=["x"]), batch=2),
        seal(shop, [], batch=3),
    ]
    assert [d.total_rows for d in done] == [2, 7, 8, 8]
    assert load(shop, arrow(id=[30], customer=["x"]), writer="another").total_rows == 1
    db.close()
    db = home.open()
    try:
        for batch in range(4):
            found = begin(db.engine.loads, batch).committed
            assert found is not None
            assert (found.already, found.total_rows) == (True, 8)
        sound(db)
    finally:
        db.close()


def test_a_record_older_than_the_total_counts_its_own_batch(db: Database, shop: Loads) -> None:
    load(shop, arrow(id=[1, 2], customer=["x", "x"]), batch=4)
    name = BatchName(db.engine.catalog.table("app.orders").table_id, "query", 4)
    record = db.engine.store.get(Family.META, name.key)
    assert record is not None
    older = msgspec.msgpack.decode(record[1:])
    del older["total_rows"]
    batch = db.engine.store.batch()
    batch.put(Family.META, name.key, record[:1] + msgspec.msgpack.encode(older))
    db.engine.store.write(batch)
    assert load(shop, arrow(id=[3], customer=["x"]), batch=5).total_rows == 3


def test_an_empty_load_is_remembered(db: Database, shop: Loads) -> None:
    for batch, kind in enumerate(("rows", "sealed")):
        info = begin(shop, batch, kind=kind)
        done = shop.commit(info.load_id, [])
        assert (done.row_count, done.already) == (0, False)
        assert begin(shop, batch, kind=kind).committed == LoadCommitted(done.seq, 0, already=True)
    assert seal(shop, [], batch=2).row_count == 0
    assert load(shop, arrow_part(GOOD.slice(0, 0)), batch=3).row_count == 0
    assert rows(db) == []
    sound(db)


def test_a_job_is_forgotten_after_a_week_and_a_stream_never(home: Home, db: Database, shop: Loads) -> None:
    load(shop, arrow(id=[1], customer=["x"]), writer="job:1")
    load(shop, arrow(id=[2], customer=["x"]), writer="query")
    home.clock.advance(6 * 24 * HOUR_MS)
    db.run_job("expiry")
    assert begin(shop, writer="job:1").committed is not None
    load(shop, arrow(id=[3], customer=["x"]), writer="job:1", batch=1)
    home.clock.advance(6 * 24 * HOUR_MS)
    db.run_job("expiry")
    assert begin(shop, writer="job:1").committed is not None, "its last batch is six days old"
    sound(db)
    home.clock.advance(24 * HOUR_MS)
    db.run_job("expiry")
    assert begin(shop, writer="job:1").committed is None
    assert begin(shop, writer="query").committed is not None
    sound(db)


def test_two_commits_of_one_load_at_once_are_one(db: Database, shop: Loads) -> None:
    info = begin(shop)
    shop.stage(info.load_id, 0, "a", arrow(id=[1], customer=["x"]))
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: shop.commit(info.load_id, [(0, "a")]), range(4)))
    assert sorted(d.already for d in done) == [False, True, True, True]
    assert len({d.seq for d in done}) == 1
    assert len(told(db)) == 1


# --- beginning and ending ------------------------------------------------------------------------------------


def test_begin_finds_the_open_load_also_after_a_restart(home: Home, db: Database) -> None:
    info = begin(db.engine.loads, kind="sealed")
    db.engine.loads.stage(info.load_id, 0, "a", sealed_part(info, rows_of(range(3))))
    assert begin(db.engine.loads, kind="sealed") == info
    db.close()
    db = home.open()
    try:
        assert begin(db.engine.loads, kind="sealed") == info
        assert db.engine.loads.commit(info.load_id, [(0, "a")]).row_count == 3
        sound(db)
    finally:
        db.close()


def test_begin_for_something_else_replaces_what_is_open(db: Database, shop: Loads) -> None:
    first = begin(shop)
    second = begin(shop, mode="upsert")
    third = begin(shop, kind="sealed")
    db.execute("ALTER TABLE app.orders ADD COLUMN city TEXT")
    fourth = begin(shop, kind="sealed")
    assert len({i.load_id for i in (first, second, third, fourth)}) == 4
    assert fourth.load_number > third.load_number
    for gone in (first, second, third):
        with pytest.raises(UnknownLoad):
            shop.stage(gone.load_id, 0, "a", arrow(id=[1], customer=["x"]))


def test_only_the_named_attempts_are_committed(db: Database, shop: Loads) -> None:
    info = begin(shop)
    for attempt, name in (("1", "lost"), ("2", "won")):
        shop.stage(info.load_id, 0, attempt, arrow(id=[1], customer=[name]))
    shop.stage(info.load_id, 1, "1", arrow(id=[2], customer=["left out"]))
    shop.stage(info.load_id, 0, "2", arrow(id=[1], customer=["again"]))
    with pytest.raises(InvalidRequest, match="twice"):
        shop.commit(info.load_id, [(0, "1"), (0, "2")])
    shop.commit(info.load_id, [(0, "2")])
    assert rows(db) == [(1, "again", 7)]


def test_a_committed_load_takes_no_more_parts(shop: Loads) -> None:
    info = begin(shop)
    shop.commit(info.load_id, [])
    with pytest.raises(InvalidRequest, match="was committed"):
        shop.stage(info.load_id, 0, "a", arrow(id=[1], customer=["x"]))


@pytest.mark.parametrize("kind", ["rows", "sealed"])
def test_a_part_that_comes_again_waits_for_the_commit_under_way(kind: str, db: Database, shop: Loads) -> None:
    """What is committed is what was checked, whoever sends what meanwhile."""
    info = begin(shop, kind=kind)

    def part(name: str) -> io.BytesIO:
        return arrow(id=[1], customer=[name]) if kind == "rows" else sealed_part(info, [(1, name, 7)])

    shop.stage(info.load_id, 0, "a", part("first"))
    gate = Gate()
    with failpoint.armed("before_write", gate), ThreadPoolExecutor(2) as pool:
        committing = pool.submit(shop.commit, info.load_id, [(0, "a")])
        gate.wait_reached()
        again = pool.submit(shop.stage, info.load_id, 0, "a", part("second"))
        gate.open()
        assert committing.result().row_count == 1
        with pytest.raises(InvalidRequest, match="was committed"):
            again.result()
    assert rows(db) == [(1, "first", 7)]
    sound(db)


def test_an_aborted_load_leaves_nothing(db: Database, shop: Loads, load_one: Callable[..., LoadCommitted]) -> None:
    info = begin(shop)
    shop.stage(info.load_id, 0, "a", arrow(id=[1], customer=["x"]))
    shop.abort(info.load_id)
    shop.abort(info.load_id)
    shop.abort("never was")
    with pytest.raises(UnknownLoad):
        shop.commit(info.load_id, [(0, "a")])
    assert list(Path(db.engine.store.staging()).iterdir()) == []
    assert load_one(shop, 1).row_count == 1


def test_aborting_what_is_committed_changes_nothing(db: Database, shop: Loads) -> None:
    info = begin(shop)
    shop.commit(info.load_id, [])
    shop.abort(info.load_id)
    assert shop.commit(info.load_id, []).already


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "merge"}, {"kind": "parquet"}, {"writer": ""}, {"writer": "x" * 201}, {"writer": "a\nb"}, {"batch": -1}],
)
def test_what_begin_refuses(wrong: dict[str, Any], shop: Loads) -> None:
    with pytest.raises(InvalidRequest):
        begin(shop, **wrong)


@pytest.mark.parametrize(
    ("part", "attempt"), [(-1, "a"), (2**31, "a"), (0, ""), (0, "../x"), (0, "a.b"), (0, "x" * 65)]
)
def test_what_stage_refuses(part: int, attempt: str, shop: Loads) -> None:
    with pytest.raises(InvalidRequest):
        shop.stage(begin(shop).load_id, part, attempt, arrow(id=[1], customer=["x"]))


def test_loading_takes_the_right_to_write(db: Database, shop: Loads) -> None:
    with pytest.raises(PermissionDenied):
        begin(shop, actor=Actor("ann", Role.USER))
    db.execute("CREATE TABLE app.secret (id INT PRIMARY KEY) WITH (ACCESS_LEVEL = 'RESTRICTED')")
    with pytest.raises(PermissionDenied):
        begin(shop, table="app.secret", actor=Actor("ann", Role.SERVICE))


def test_system_loads_shows_them(home: Home, db: Database, shop: Loads) -> None:
    info = begin(shop, 3, mode="upsert")
    shop.stage(info.load_id, 0, "a", arrow(id=[1], customer=["x"]))
    [row] = db.query("SELECT * FROM system.loads").dicts()
    assert (row["load_id"], row["table_name"], row["writer_id"], row["batch_id"]) == (
        info.load_id, "app.orders", "query", 3,
    )  # fmt: skip
    assert (row["kind"], row["mode"], row["state"], row["parts"], row["user_id"]) == (
        "rows", "upsert", "open", 1, "system",
    )  # fmt: skip
    assert row["bytes"] > 100
    shop.commit(info.load_id, [(0, "a")])
    assert db.query("SELECT state, parts FROM system.loads").rows == [("committed", 0)]


# --- cleaning up ---------------------------------------------------------------------------------------------


def test_abandoned_loads_are_removed_after_a_day_without_activity(home: Home, db: Database, shop: Loads) -> None:
    info = begin(shop)
    shop.stage(info.load_id, 0, "a", arrow(id=[1], customer=["x"]))
    home.clock.advance(23 * HOUR_MS)
    assert db.run_job("loads").count == 0
    shop.stage(info.load_id, 1, "a", arrow(id=[2], customer=["x"]))
    home.clock.advance(23 * HOUR_MS)
    assert db.run_job("loads").count == 0
    home.clock.advance(HOUR_MS)
    removed = db.run_job("loads")
    assert removed.count == 1
    assert removed.bytes > 0
    assert list(Path(db.engine.store.staging()).iterdir()) == []
    with pytest.raises(UnknownLoad, match="begin it again"):
        shop.commit(info.load_id, [(0, "a")])


def test_loads_of_a_dropped_table_go_with_it(db: Database, shop: Loads) -> None:
    seal(shop, rows_of(range(10)), writer="job:9")
    info = begin(shop, 1)
    shop.stage(info.load_id, 0, "a", arrow(id=[1], customer=["x"]))
    db.execute("DROP TABLE app.orders CASCADE")
    with pytest.raises(StaleLoad, match="dropped"):
        shop.commit(info.load_id, [(0, "a")])
    assert db.run_job("loads").count == 2
    assert list(Path(db.engine.store.staging()).iterdir()) == []
    for prefix in (LOADS, LOAD_WRITERS):
        assert [k for k, _ in db.engine.store.scan(Family.META, prefix) if k.startswith(prefix)] == []
    sound(db)


def test_a_committed_load_is_kept_for_an_hour_or_until_the_next_batch(home: Home, db: Database, shop: Loads) -> None:
    load(shop, arrow(id=[1], customer=["x"]), batch=0)
    load(shop, arrow(id=[2], customer=["x"]), batch=1)
    assert len(shop.open()) == 1
    home.clock.advance(HOUR_MS)
    assert db.run_job("loads").count == 1
    assert shop.open() == []
    assert begin(shop, 1).committed is not None, "what is remembered of the batch stays"


def test_leftovers_of_a_crash_are_removed_at_opening(home: Home, db: Database) -> None:
    info = begin(db.engine.loads, kind="sealed")
    part = sealed_part(info, rows_of(range(3)))
    db.engine.loads.stage(info.load_id, 0, "a", part)
    staging = Path(db.engine.store.staging())
    (staging / "unfinished").mkdir()
    (staging / "unfinished" / "0.a.part").write_bytes(b"x")
    (staging / info.load_id / "arriving-abc.part").write_bytes(b"x")
    (staging / info.load_id / "0.a.sst.x.scratch").mkdir()
    db.close()
    db = home.open()
    try:
        assert [path.name for path in staging.iterdir()] == [info.load_id]
        assert sorted(path.name for path in (staging / info.load_id).iterdir()) == ["0.a.part", "0.a.sst", "LOAD"]
        assert db.engine.loads.commit(info.load_id, [(0, "a")]).row_count == 3
    finally:
        db.close()


# --- sealed: like any other write ----------------------------------------------------------------------------


def test_a_sealed_load_is_one_commit(home: Home, db: Database, messages_go: str) -> None:
    db.insert("app.orders", [(5000, "before", 1)])
    seq = db.engine.seq
    done = seal(db.engine.loads, rows_of(range(600)), rows_of(range(1000, 1600)))
    assert (done.seq, done.row_count) == (seq + 2, 1200), "one commit took the load's number, one is the load"
    for _ in range(2):
        assert len(rows(db)) == 1201
        assert db.query("SELECT count(*) FROM app.orders WHERE _seq = ?", [done.seq]).scalar() == 1200
        assert len(told(db)) == 1201
        assert len(told(db, "app.big")) == 99 + 600
        [first] = db.consume("app.big", start=EARLIEST, limit=1).messages
        assert (first.seq, first.offset, int(first.value["id"])) == (done.seq, 0, 501)
        sound(db)
        db.close()
        db = home.open()
    db.close()


def test_what_follows_goes_on_where_the_load_ended(home: Home, db: Database, messages_go: str) -> None:
    seal(db.engine.loads, rows_of(range(900)))
    ends = db.query("SELECT partition_id, end_offset FROM system.topic_partitions WHERE topic = 'app.events'").rows
    db.insert("app.orders", [(i, "later", 1) for i in range(900, 1000)])
    db.execute("UPDATE app.orders SET n = n + 1 WHERE id < 50")
    db.execute("DELETE FROM app.orders WHERE id >= 880")
    seal(db.engine.loads, rows_of(range(2000, 2500)), batch=1)
    assert sum(end for _, end in ends) == 900
    assert len(rows(db)) == 880 + 500
    sound(db)
    db.close()
    db = home.open()
    db.insert("app.orders", [(3000, "after", 1)])
    sound(db)
    db.close()


def test_loaded_rows_are_rows(db: Database, shop: Loads) -> None:
    done = seal(shop, rows_of(range(100)))
    with pytest.raises(DuplicateKey):
        db.insert("app.orders", [(99, "again", 1)])
    with pytest.raises(DuplicateKey):
        load(shop, arrow(id=[5], customer=["again"]), batch=1)
    session = db.session("system", "system")
    session.begin()
    session.execute("UPDATE app.orders SET n = 1000 WHERE id = 7")
    updated = session.commit()
    assert db.query("SELECT n, _seq FROM app.orders WHERE id IN (6, 7) ORDER BY id").rows == [
        (6, done.seq), (1000, updated.seq),
    ]  # fmt: skip
    db.execute("ALTER TABLE app.orders ADD COLUMN city TEXT DEFAULT 'Bonn'")
    assert db.query("SELECT city FROM app.orders WHERE id = 50").scalar() == "Bonn"
    sound(db)


def test_a_transaction_that_met_a_loaded_row_first_conflicts_with_its_change(db: Database, shop: Loads) -> None:
    seal(shop, rows_of(range(10)))
    session = db.session("system", "system")
    session.begin()
    session.execute("UPDATE app.orders SET n = 1 WHERE id = 5")
    db.execute("UPDATE app.orders SET n = 2 WHERE id = 5")
    with pytest.raises(TransactionConflict, match=r"changed app\.orders"):
        session.commit()


def test_an_older_view_does_not_see_the_load(db: Database, shop: Loads, messages_go: str) -> None:
    db.insert("app.orders", [(i, "old", 1) for i in range(0, 2000, 100)])
    session = db.session("system", "system")
    session.begin()
    before = session.query("SELECT count(*) FROM app.orders").scalar()
    seal(shop, [row for row in rows_of(range(2000)) if row[0] % 100])
    assert session.query("SELECT count(*) FROM app.orders").scalar() == before == 20
    assert session.query("SELECT * FROM app.orders WHERE id = 55").rows == []
    session.rollback()
    assert len(rows(db)) == 2000
    sound(db)


def test_a_load_wakes_who_waits_and_is_reported(db: Database, shop: Loads, messages_go: str) -> None:
    woken: list[int] = []
    reports: list[CommitReport] = []

    class Watching(Nobody):
        def committed(self, report: CommitReport) -> None:
            reports.append(report)

    topic_id = db.topic("app.events").topic_id
    stop = db.engine.feed.subscribe(topic_id, lambda: woken.append(db.engine.seq))
    db.engine.observe(Watching())
    done = seal(shop, rows_of(range(600)))
    stop()
    assert woken == [done.seq]
    [report] = [r for r in reports if r.commit.seq == done.seq]
    assert report.rows == 600
    assert report.messages == {"app.events": 600, "app.big": 99}


def test_a_loaded_log_can_be_trimmed_and_cleared(home: Home, db: Database, shop: Loads, messages_go: str) -> None:
    seal(shop, rows_of(range(600)))
    home.clock.advance(HOUR_MS)
    seal(shop, rows_of(range(600, 1200)), batch=1)
    db.execute("ALTER TOPIC app.events SET (retention_seconds = 60)")
    assert db.run_job("retention").count == 600
    assert len(told(db)) == 600
    sound(db)
    db.execute("CLEAR TOPIC app.events")
    assert told(db) == []
    sound(db)


def test_parts_that_interleave_and_parts_without_rows(db: Database, shop: Loads, messages_go: str) -> None:
    parts = [[row for row in rows_of(range(3000)) if row[0] % 3 == i] for i in range(3)]
    assert seal(shop, *parts, [], rows_of(range(5000, 5001))).row_count == 3001
    assert len(rows(db)) == len(told(db)) == 3001
    sound(db)


def test_many_blocks_of_keys_are_merged(db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tablecast.codec.sealed.KEYS_PER_BLOCK", 7)
    even, odd = rows_of(range(0, 200, 2)), rows_of(range(1, 200, 2))
    with pytest.raises(DuplicateKey, match=r"parts 0, 1: the key id = 120 "):
        seal(shop, even, [*odd, (120, "again", 1)])
    assert seal(shop, *([row for row in rows_of(range(200)) if row[0] % 3 == i] for i in range(3))).row_count == 200
    sound(db)


# --- sealed: what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "how", "why"),
    [
        ("SELECT 1", {"mode": "upsert"}, "mode upsert"),
        ("CREATE USER TABLE app.t (id INT PRIMARY KEY)", {"table": "app.t"}, "USER table"),
        ("CREATE STREAM TABLE app.t (id INT PRIMARY KEY) WITH (TTL_SECONDS = 9)", {"table": "app.t"}, "STREAM"),
        ("CREATE TABLE app.t (id INT PRIMARY KEY) WITH (TTL_SECONDS = 9)", {"table": "app.t"}, "expire"),
        ("ALTER TOPIC app.big SET (dedup_window_seconds = 60)", {}, "topic app.big drops repeats"),
    ],
)
def test_what_cannot_be_sealed(sql: str, how: dict[str, Any], why: str, db: Database, shop: Loads) -> None:
    db.execute(sql)
    with pytest.raises(NotSealable, match=why):
        begin(shop, kind="sealed", **how)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE app.orders ADD COLUMN city TEXT",
        "ALTER TOPIC app.big DROP SOURCE app.orders",
        "ALTER TOPIC app.extra ADD SOURCE app.orders ON INSERT",
        "ALTER TOPIC app.big SET (dedup_window_seconds = 60)",
        "DROP TOPIC app.big",
        "DROP TABLE app.orders CASCADE",
    ],
)
def test_a_load_is_stale_when_its_plan_changed(sql: str, db: Database, shop: Loads) -> None:
    db.execute("CREATE TOPIC app.extra")
    info = begin(shop, kind="sealed")
    shop.stage(info.load_id, 0, "a", sealed_part(info, rows_of(range(1000))))
    db.execute(sql)
    with pytest.raises(StaleLoad):
        shop.commit(info.load_id, [(0, "a")])
    sound(db)
    if sql.startswith("ALTER TOPIC") and "dedup" not in sql:
        assert seal(shop, rows_of(range(10))).row_count == 10, "begun again it is for what is there now"
        sound(db)


def test_what_does_not_touch_inserts_leaves_a_plan_as_it_is(db: Database, shop: Loads) -> None:
    db.execute("CREATE TOPIC app.extra")
    info = begin(shop, kind="sealed")
    shop.stage(info.load_id, 0, "a", sealed_part(info, rows_of(range(10))))
    db.execute("ALTER TOPIC app.extra ADD SOURCE app.orders ON DELETE")
    db.execute("ALTER TOPIC app.events SET (retention_seconds = 1000)")
    assert shop.commit(info.load_id, [(0, "a")]).row_count == 10


def test_the_plan_is_judged_again_in_the_writer(
    db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch, messages_go: str
) -> None:
    info = begin(shop, kind="sealed")
    shop.stage(info.load_id, 0, "a", sealed_part(info, rows_of(range(10))))
    check = load_sealed.check_noted

    def altered_meanwhile(*args: Any) -> None:
        db.execute("ALTER TABLE app.orders ADD COLUMN city TEXT")
        check(*args)

    monkeypatch.setattr(loads, "check_noted", altered_meanwhile)
    with pytest.raises(StaleLoad):
        shop.commit(info.load_id, [(0, "a")])
    assert rows(db) == []
    sound(db)


def test_a_key_in_two_parts_is_refused(db: Database, shop: Loads) -> None:
    with pytest.raises(DuplicateKey, match=r"parts 0, 2: the key id = 30 .* comes twice"):
        seal(shop, rows_of(range(0, 100, 10)), rows_of(range(1, 100, 10)), rows_of(range(30, 31)))
    assert rows(db) == []
    sound(db)


@pytest.mark.parametrize("there", [1, 200])
def test_a_key_in_the_table_is_refused(there: int, db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few rows in the range of a part and with many: they are found in two ways."""
    monkeypatch.setattr(load_sealed, "_FEW_ROWS", 100)
    db.insert("app.orders", [(2 * i, "old", 1) for i in range(there)])
    with pytest.raises(DuplicateKey, match=r"part 1: the key id = 0 .* is in the table"):
        seal(shop, rows_of(range(1000, 1010)), [(-3, "new", 1), (0, "new", 1), (999, "new", 1)])
    assert seal(shop, [(2 * i + 1, "new", 1) for i in range(300)]).row_count == 300
    assert len(rows(db)) == 300 + there
    sound(db)


@pytest.mark.parametrize("moment", ["check_keys", "check_noted"])
def test_a_row_written_while_the_load_is_checked_is_noticed(
    moment: str, db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch, messages_go: str
) -> None:
    check = getattr(loads, moment)

    def written_meanwhile(*args: Any) -> None:
        check(*args)
        db.insert("app.orders", [(55, "first", 1), (5555, "elsewhere", 1)])

    monkeypatch.setattr(loads, moment, written_meanwhile)
    with pytest.raises(DuplicateKey, match=r"part 0: the key id = 55 .* is in the table"):
        seal(shop, rows_of(range(100)))
    monkeypatch.setattr(loads, moment, check)
    assert rows(db) == [(55, "first", 1), (5555, "elsewhere", 1)]
    assert seal(shop, rows_of(range(100, 200))).row_count == 100
    sound(db)


@pytest.mark.parametrize("moment", ["check_keys", "check_noted"])
def test_other_writes_meanwhile_are_no_harm(
    moment: str, db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch, messages_go: str
) -> None:
    """Also when they take the places that the load's messages were prepared for."""
    check = getattr(loads, moment)

    def written_meanwhile(*args: Any) -> None:
        check(*args)
        db.insert("app.orders", [(i, "meanwhile", 600) for i in range(1000, 1100)])

    monkeypatch.setattr(loads, moment, written_meanwhile)
    assert seal(shop, [(2 * i, "new", 600) for i in range(400)], [(5000 + i, "new", 600) for i in range(9)]).row_count
    assert len(rows(db)) == len(told(db)) == len(told(db, "app.big")) == 509
    sound(db)


@pytest.mark.parametrize(("first", "expected"), [(90, 100), (200, 200)])
def test_another_load_committed_while_this_one_is_checked_is_noticed(
    first: int, expected: int, db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = load_sealed.check_keys

    def loaded_meanwhile(*args: Any) -> None:
        check(*args)
        monkeypatch.setattr(loads, "check_keys", check)
        seal(shop, rows_of(range(first, first + 100)), writer="another")

    monkeypatch.setattr(loads, "check_keys", loaded_meanwhile)
    if expected == 100:
        with pytest.raises(DuplicateKey, match="is in the table"):
            seal(shop, rows_of(range(100)))
    else:
        assert seal(shop, rows_of(range(100))).row_count == 100
    assert len(rows(db)) == len(told(db)) == expected
    sound(db)


def test_a_guard_that_is_overrun_makes_the_check_be_made_again(
    db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "MAX_GUARDED_KEYS", 5)
    check = load_sealed.check_keys
    times: list[int] = []

    def written_meanwhile(*args: Any) -> None:
        check(*args)
        if not times:
            db.insert("app.orders", [(i, "meanwhile", 1) for i in range(1000, 1010)])
        times.append(1)

    monkeypatch.setattr(loads, "check_keys", written_meanwhile)
    assert seal(shop, rows_of(range(10))).row_count == 10
    assert len(times) == 2
    sound(db)


def test_a_part_is_only_good_for_its_load(db: Database, shop: Loads) -> None:
    info = begin(shop, kind="sealed")
    good = sealed_part(info, rows_of(range(10))).getvalue()
    with pytest.raises(InvalidPart, match="sealed for load 99"):
        shop.stage(info.load_id, 0, "a", sealed_part(info, rows_of(range(10)), load_number=99))
    for at in (0, 9, 60, len(good) // 2, len(good) - 20):
        damaged = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(InvalidPart):
            shop.stage(info.load_id, 0, "a", io.BytesIO(damaged))
    with pytest.raises(InvalidPart):
        shop.stage(info.load_id, 0, "a", io.BytesIO(good[:-1]))
    with pytest.raises(InvalidPart, match="was not staged"):
        shop.commit(info.load_id, [(0, "a")])
    assert [path.name for path in Path(db.engine.store.staging(), info.load_id).glob("*.part")] == []


# --- when something fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
def test_an_ingest_that_fails_stops_writes_and_the_load_is_there_after_opening(
    nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_sealed, "INLINE_LOG_BYTES", 0)
    path = str(tmp_path / "shop")
    store = FaultyStore(RocksStore.open(path))
    db = Database(store, jobs_interval_seconds=3600)
    for statement in SETUP.split(";"):
        db.execute(statement)
    store.fail(Call.INGEST, nth=nth)
    with pytest.raises(WritesStopped):
        seal(db.engine.loads, rows_of(range(600)))
    assert rows(db) == []
    with pytest.raises(WritesStopped):
        db.insert("app.orders", [(1, "x", 1)])
    db.close()
    with Database(RocksStore.open(path), jobs_interval_seconds=3600) as db:
        assert len(rows(db)) == len(told(db)) == 600
        assert begin(db.engine.loads, kind="sealed").committed is not None
        sound(db)


def test_a_backup_waits_for_a_load_and_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages_go: str
) -> None:
    """Taken while the load is in the store in part, and again while its intent is still there."""
    db = Home(tmp_path / "shop").open()
    for statement in SETUP.split(";"):
        db.execute(statement)
    gate, forgetting = Gate(), Gate()
    with failpoint.armed("before_ingest", gate), failpoint.armed("before_forgetting", forgetting):
        loading = threading.Thread(target=seal, args=(db.engine.loads, rows_of(range(600))))
        loading.start()
        gate.wait_reached()
        copying = threading.Thread(target=db.engine.backup, args=(str(tmp_path / "first"),))
        copying.start()
        assert not (tmp_path / "first").exists()
        gate.open()
        copying.join()
        forgetting.wait_reached()
        db.engine.backup(str(tmp_path / "second"))
        assert db.engine.store.get(Family.META, INTENT_KEY) is not None
        forgetting.open()
        loading.join()
    assert db.engine.store.get(Family.META, INTENT_KEY) is None
    db.close()
    for name in ("first", "second"):
        with Home(tmp_path / name).open() as copy:
            assert len(rows(copy)) == len(told(copy)) == 600
            sound(copy)


def test_a_database_of_the_older_format_is_marked_before_anything_new_is_in_it(tmp_path: Path) -> None:
    """Else an older tablecast would open it, and leave out what it does not know."""
    home = Home(tmp_path / "shop")
    home.open().close()
    marker = tmp_path / "shop" / "TABLECAST"
    marker.write_text('{"format":1,"created_by":"0.0.7"}')
    with home.open():
        assert msgspec.json.decode(marker.read_bytes()) == {"format": FORMAT, "created_by": "0.0.7"}


def test_a_full_disk_fails_the_load_and_nothing_else(
    db: Database, shop: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_sealed, "INLINE_LOG_BYTES", 0)
    monkeypatch.setattr(load_sealed, "write_sst", lambda *_: raising(StorageFailure("no space"))())
    with pytest.raises(StorageFailure, match="no space"):
        seal(shop, rows_of(range(10)))
    db.insert("app.orders", [(1, "x", 1)])
    sound(db)


def test_verify_notices_what_is_wrong_with_loads(db: Database, shop: Loads) -> None:
    seal(shop, rows_of(range(10)))
    [(key, _)] = [(k, v) for k, v in db.engine.store.scan(Family.META, LOADS) if k.startswith(LOADS)]
    store, table_id = db.engine.store, db.engine.catalog.table("app.orders").table_id
    assert key == load_key(table_id, 1)

    def with_row(number: int, row_id: int) -> list[str]:
        table = db.engine.catalog.table("app.orders")
        row = table.codec.struct(row_id, "x", 1)
        batch = store.batch()
        batch.put(
            Family.ROWS, table.codec.key_of_row(table.codec.prefix(None), row),
            loaded_row_header(number) + table.codec.encode(row),
        )  # fmt: skip
        store.write(batch)
        return db.verify().problems

    assert any("has 11 rows of load 1" in problem for problem in with_row(1, 500))
    assert any("load 77, which is not recorded" in problem for problem in with_row(77, 501))
