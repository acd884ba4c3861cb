"""Replication inside one engine, case by case, over both stores.

Random histories of three databases against a model: tests/stateful/test_replication_model.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tablecast
from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import encode_record
from tablecast.codec.events import decode_event, encode_event
from tablecast.codec.versions import Kept, bucket_key, encode_bucket, encode_version, version_key
from tablecast.core.conflict import CLOCK_AHEAD_MS, MAX_TIMESTAMP_MS
from tablecast.core.merkle import bucket_of
from tablecast.core.snowflake import CLOCK_END_MS
from tablecast.engine import identity, outbox
from tablecast.engine.apply_events import LIVE, SYNC, Status
from tablecast.engine.commit import Commit
from tablecast.engine.local_writes import outbox_mark
from tablecast.engine.logs import OUTBOX
from tablecast.engine.outbox import DropOldest, Quarantine
from tablecast.engine.quarantine import MAX_QUARANTINED
from tablecast.engine.replication import Replication
from tablecast.engine.versions import TOMBSTONE_KEPT_MS
from tablecast.errors import (
    Conflict,
    DatabaseClosed,
    InvalidRequest,
    InvalidSchema,
    NodeMismatch,
    NotSealable,
    Overloaded,
    UnknownTable,
)
from tablecast.model.change import Op
from tablecast.model.replication import Epoch, Event, Node, OutboxMark, SeenEvents, Version
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.sql.database import Database
from tablecast.storage.base import Family
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.testing.clock import START_MS, FakeClock

NEVER_SECONDS = 3600.0  # jobs run when a test says so
NOW_MS = START_MS + 100_000
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.t (id BIGINT PRIMARY KEY, v TEXT, CHECK (v <> 'bad')) WITH (REPLICATE = TRUE);
CREATE TABLE app.kv (key TEXT PRIMARY KEY, value TEXT) WITH (REPLICATE = TRUE);
CREATE TABLE app.plain (id BIGINT PRIMARY KEY, v TEXT);
CREATE TOPIC app.told;
ALTER TOPIC app.told ADD SOURCE app.t ON ANY;
"""


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore(read_sorted) if request.param == "memory" else RocksStore.open(str(tmp_path / "db"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_MS)


@pytest.fixture
def db(store: Any, clock: FakeClock) -> Iterator[Database]:
    made = Database(store, clock=clock, jobs_interval_seconds=NEVER_SECONDS)
    made.execute(SCHEMA)
    made.engine.replication.claim_identity("me")
    yield made
    if not made.engine.closed:
        assert made.verify().problems == []
        made.close()


@pytest.fixture
def here(db: Database) -> Replication:
    return db.engine.replication


def reopened(db: Database, tmp_path: Path, clock: FakeClock) -> Database:
    """In memory after a power cut: what was not synced is gone."""
    store = db.engine.store
    survivor = store.crash() if isinstance(store, MemoryStore) else None
    with suppress(DatabaseClosed):
        db.close()
    left: Any = RocksStore.open(str(tmp_path / "db"), create=False) if survivor is None else survivor
    return Database(left, clock=clock, jobs_interval_seconds=NEVER_SECONDS)


def event(key: str, value: str | None, *, ts: int = NOW_MS, node: str = "peer", seq: int = 1) -> bytes:
    return encode_event(Event(key, Version(ts, node, seq), value))


def row(number: int, v: str = "x", **more: Any) -> bytes:
    return event(f"app.t:{number}", f'{{"_table":"app.t","id":"{number}","v":"{v}"}}', **more)


def rows(db: Database, table: str = "app.t") -> list[tuple[Any, ...]]:
    return sorted(db.query(f"SELECT * FROM {table}").rows)


def said(db: Database) -> list[Op]:
    topic = db.engine.catalog.topic("app.told")
    return [message.op for message in db.engine.read(topic, 0, 0, 10_000)]


def kept(here: Replication, key: str) -> Any:
    table = "app.t" if key.startswith("app.t:") else "app.kv"
    return next((e for e in here.entries(table, bucket_of(key)) if e.key == key), None)


# --- who we are ----------------------------------------------------------------------------------------------------


def test_a_name_is_given_once_and_kept(db: Database, clock: FakeClock, tmp_path: Path) -> None:
    assert db.engine.replication.identity() == ("me", 100)
    db.execute("INSERT INTO app.t VALUES (1, 'x')")
    again = reopened(db, tmp_path, clock)
    assert again.engine.replication.identity() == ("me", 100)
    assert again.engine.replication.claim_identity() == ("me", 100)
    assert again.engine.replication.claim_identity("me") == ("me", 100)
    with pytest.raises(NodeMismatch, match=r"is the node 'me'.*'other' needs a database of its own"):
        again.engine.replication.claim_identity("other")
    again.close()


def test_a_name_without_events_may_still_be_changed(db: Database, here: Replication) -> None:
    assert here.claim_identity("better").node_id == "better"
    db.execute("INSERT INTO app.t VALUES (1, 'x')")
    assert decode_event(here.outbox(1)[0].data).version.node_id == "better"


def test_a_name_that_nobody_gave_is_made_up_with_the_first_event() -> None:
    with Database(MemoryStore(read_sorted), jobs_interval_seconds=NEVER_SECONDS) as db:
        db.execute(SCHEMA)
        db.execute("INSERT INTO app.plain VALUES (1, 'x')")
        assert db.engine.replication.identity() is None
        assert db.engine.replication.outbox(10) == []
        db.execute("INSERT INTO app.t VALUES (1, 'x')")
        made = db.engine.replication.identity()
        assert made is not None
        assert len(made.node_id) == 8
        assert db.verify().problems == []


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "a/b", "a+", "#"])
def test_names_that_are_none(here: Replication, name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a node id"):
        here.claim_identity(name)


def test_a_new_epoch_never_gives_a_number_again(db: Database, here: Replication, clock: FakeClock) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')")
    begun = here.begin_epoch()
    assert begun == ("me", 101), "the clock stands, so the epoch is one more than the last"
    clock.advance(500_000)
    assert here.begin_epoch() == ("me", 600)
    db.execute("INSERT INTO app.t VALUES (3, 'c')")
    seqs = [entry.seq for entry in here.outbox(10)]
    assert seqs == [100 << 32 | 1, 100 << 32 | 2, 600 << 32 | 1]
    assert [decode_event(entry.data).version.seq for entry in here.outbox(10)] == seqs
    assert here.published(100 << 32 | 1) == 1
    assert [entry.seq for entry in here.outbox(10)] == seqs[1:]
    assert [entry.seq for entry in here.outbox(10, after=seqs[1])] == seqs[2:]
    assert here.sequence() == seqs[-1]


def test_own_events_of_before_a_restore_are_taken_in(db: Database, here: Replication) -> None:
    """A backup is older than what was published since: peers have it."""
    db.execute("INSERT INTO app.t VALUES (1, 'a')")
    lost = row(1, "newer", ts=NOW_MS + 5, node="me", seq=100 << 32 | 2)
    here.begin_epoch()
    db.execute("INSERT INTO app.t VALUES (9, 'other')")
    assert here.apply([lost])[0].status == Status.APPLIED
    assert here.apply([lost])[0].status == Status.SEEN
    assert rows(db) == [(1, "newer"), (9, "other")]
    [present] = [entry for entry in here.outbox(10) if entry.seq == 101 << 32 | 1]
    assert here.apply([present.data])[0].status == Status.SEEN


@pytest.mark.parametrize("started_ms", [0, START_MS - 1, START_MS + 999, CLOCK_END_MS - 86_400_000])
def test_a_device_without_a_clock_that_lost_its_disk_does_not_give_its_numbers_again(started_ms: int) -> None:
    with Database(MemoryStore(read_sorted), jobs_interval_seconds=NEVER_SECONDS) as peer:
        peer.execute(SCHEMA)
        for life in ("first", "second", "third"):
            with Database(
                MemoryStore(read_sorted), clock=FakeClock(started_ms), jobs_interval_seconds=NEVER_SECONDS
            ) as db:
                db.execute(SCHEMA)
                db.engine.replication.claim_identity("device")
                db.execute("INSERT INTO app.kv VALUES (?, 'x')", [life])
                told = [entry.data for entry in db.engine.replication.outbox(10)]
                assert decode_event(told[0]).version.seq < 2**63
            assert [outcome.status for outcome in peer.engine.replication.apply(told)] == [Status.APPLIED], life
        assert len(rows(peer, "app.kv")) == 3


def test_a_backup_that_is_restored_twice_without_a_clock_begins_two_epochs() -> None:
    def restored() -> list[int]:
        with Database(MemoryStore(read_sorted), clock=FakeClock(0), jobs_interval_seconds=NEVER_SECONDS) as db:
            put_node(db, Node("device", (Epoch(100, 0),)))
            begun = [db.engine.replication.begin_epoch() for _ in range(5)]
            return [identity.epoch for identity in begun if identity is not None]

    one, other = restored(), restored()
    assert one == sorted(set(one))
    assert not set(one) & set(other)
    assert 100 < min(one + other) <= max(one + other) < 2**31


def put_node(db: Database, node: Node) -> None:
    batch = db.engine.store.batch()
    batch.put(Family.META, records.NODE_KEY, encode_record(node))
    db.engine.store.write(batch)


def test_epochs_without_events_do_not_pile_up(db: Database, here: Replication) -> None:
    for _ in range(5):
        here.begin_epoch()
    node = identity.stored_node(db.engine.store)
    assert node is not None
    assert [epoch.number for epoch in node.epochs] == [105]


@pytest.mark.parametrize("source", [LIVE, SYNC])
@pytest.mark.parametrize("value", ["lost", "bad"], ids=["taken", "set aside"])
def test_an_own_event_that_is_not_in_the_log_begins_a_new_epoch(
    db: Database, here: Replication, clock: FakeClock, tmp_path: Path, source: str, value: str
) -> None:
    """The files went back to an older state, and peers have what was written since."""
    db.execute("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')")
    kept_event = here.outbox(10)[1].data
    assert here.apply([kept_event], source=source)[0].status != Status.APPLIED
    assert here.identity() == ("me", 100), "what is in the log proves nothing"
    seq_before = db.engine.seq
    here.apply([row(3, value, node="me", seq=100 << 32 | 3), row(4, node="me", seq=100 << 32 | 4)], source=source)
    assert here.identity() == ("me", 101)
    assert db.engine.seq == seq_before + 1, "in the commit that takes them in"
    with reopened(db, tmp_path, clock) as again:
        again.execute("INSERT INTO app.t VALUES (9, 'next')")
        assert [entry.seq for entry in again.engine.replication.outbox(10)] == [
            100 << 32 | 1, 100 << 32 | 2, 101 << 32 | 1,
        ]  # fmt: skip
        assert [r[0] for r in rows(again)] == ([1, 2, 3, 4, 9] if value == "lost" else [1, 2, 4, 9])
        assert again.verify().problems == []


def test_events_of_a_node_that_went_back_and_heard_of_it_are_new_to_its_peers(tmp_path: Path) -> None:
    def told(db: Database) -> list[bytes]:
        return [entry.data for entry in db.engine.replication.outbox(10)]

    path, older = tmp_path / "node", tmp_path / "older"
    with tablecast.open(path) as db:
        db.execute(SCHEMA)
        db.engine.replication.claim_identity("me")
        db.execute("INSERT INTO app.t VALUES (1, 'a')")
    shutil.copytree(path, older)
    with tablecast.open(path) as db, tablecast.open(":memory:") as peer:
        peer.execute(SCHEMA)
        db.execute("INSERT INTO app.t VALUES (2, 'published and lost')")
        peer.engine.replication.apply(told(db))
        with tablecast.open(older) as back:
            back.engine.replication.apply(peer.engine.replication.events_for("app.t", ["app.t:2"]), source=SYNC)
            back.execute("INSERT INTO app.t VALUES (3, 'new')")
            assert [o.status for o in peer.engine.replication.apply(told(back))] == [Status.SEEN, Status.APPLIED]
            assert rows(back) == rows(peer) == [(1, "a"), (2, "published and lost"), (3, "new")]


def test_an_epoch_that_is_used_up_ends(db: Database, here: Replication, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MAX_EPOCH_EVENTS", 3)
    for number in range(5):
        db.execute("INSERT INTO app.t VALUES (?, 'x')", [number])
    assert [entry.seq for entry in here.outbox(10)] == [
        100 << 32 | 1, 100 << 32 | 2, 100 << 32 | 3, 101 << 32 | 1, 101 << 32 | 2,
    ]  # fmt: skip


# --- the outbox ----------------------------------------------------------------------------------------------------


def test_the_outbox_in_order_and_what_is_superseded(db: Database, here: Replication) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')")
    db.execute("UPDATE app.t SET v = 'c' WHERE id = 1")
    db.execute("DELETE FROM app.t WHERE id = 2")
    found = [(decode_event(e.data).key, decode_event(e.data).tombstone, e.superseded) for e in here.outbox(10)]
    assert found == [
        ("app.t:1", False, True), ("app.t:2", False, True), ("app.t:1", False, False), ("app.t:2", True, False),
    ]  # fmt: skip
    assert here.pending() == 4
    here.apply([row(1, "theirs", ts=NOW_MS + 99)])
    assert [e.superseded for e in here.outbox(10)] == [True, True, True, False]
    assert here.pending() == 4, "what came from others is not told on"


def test_the_mark_only_moves_on(db: Database, here: Replication, clock: FakeClock, tmp_path: Path) -> None:
    for number in range(5):
        db.execute("INSERT INTO app.t VALUES (?, 'x')", [number])
    seqs = [entry.seq for entry in here.outbox(10)]
    assert here.published(seqs[2]) == 3
    assert here.published(seqs[0]) == 0
    assert here.published(7) == 0
    assert here.published(seqs[4] + 100) == 2, "as far as there is anything"
    assert here.outbox(10) == []
    assert here.pending() == 0
    again = reopened(db, tmp_path, clock)
    assert again.engine.replication.pending() == 0
    again.execute("INSERT INTO app.t VALUES (9, 'x')")
    assert [entry.seq for entry in again.engine.replication.outbox(10)] == [seqs[4] + 1]
    again.close()


def test_what_is_published_is_removed_now_and_then(
    db: Database, here: Replication, monkeypatch: pytest.MonkeyPatch, clock: FakeClock, tmp_path: Path
) -> None:
    monkeypatch.setattr(outbox, "TRIM_EVENTS", 10)
    for number in range(25):
        db.execute("INSERT INTO app.t VALUES (?, 'x')", [number])
    first = here.outbox(1)[0].seq
    for done in range(25):
        here.published(first + done)
    start, end = db.engine.log_range(*OUTBOX)
    assert (start, end) == (20, 25)
    assert db.verify().problems == []
    again = reopened(db, tmp_path, clock)
    again.execute("INSERT INTO app.t VALUES (99, 'x')")
    assert [entry.seq for entry in again.engine.replication.outbox(10)] == [first + 25]
    assert again.verify().problems == []
    again.close()


@pytest.mark.parametrize("published", [12, 25])
def test_reading_while_what_is_read_is_published_and_removed(
    db: Database, here: Replication, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    """The reader looked at the mark right before it moved, and the log was cut."""
    monkeypatch.setattr(outbox, "TRIM_EVENTS", 10)
    for number in range(25):
        db.execute("INSERT INTO app.t VALUES (?, 'x')", [number])
    first = here.outbox(1)[0].seq
    here.published(first + published - 1)
    stale = [OutboxMark(0)]
    monkeypatch.setattr(outbox, "outbox_mark", lambda reader: stale.pop() if stale else outbox_mark(reader))
    assert [entry.seq for entry in here.outbox(100)] == list(range(first + published, first + 25))


def test_dropping_and_setting_aside(db: Database, here: Replication) -> None:
    for number in range(6):
        db.execute("INSERT INTO app.t VALUES (?, 'x')", [number])
    seqs = [entry.seq for entry in here.outbox(10)]
    assert db.engine.execute(DropOldest(2)) == 2
    assert here.dropped() == 2
    assert db.engine.execute(Quarantine(seqs[3], "too large for the broker"))
    assert not db.engine.execute(Quarantine(seqs[3], "too large for the broker"))
    assert not db.engine.execute(Quarantine(seqs[0], "gone already"))
    assert [entry.seq for entry in here.outbox(10)] == [seqs[2], seqs[4], seqs[5]]
    [aside] = here.quarantine()
    assert (aside.key, aside.reason, aside.outgoing) == ("app.t:3", "too large for the broker", True)
    assert here.published(seqs[2]) == 1
    assert here.pending() == 2, "the one that was set aside is behind the mark with the one before it"
    assert db.engine.execute(Quarantine(seqs[4], "again"))
    assert here.pending() == 1
    assert db.engine.execute(DropOldest(99)) == 1
    assert outbox_mark(db.engine.store) == OutboxMark(6, 3, ())


@pytest.mark.parametrize(
    ("statement", "given", "reason"),
    [
        ("INSERT INTO app.t VALUES (1, ?)", ["v" * 300_000], "value takes"),
        ("INSERT INTO app.kv VALUES (?, 'x')", ["k" * 257], "key takes 257 bytes; the limit is 256"),
        ("INSERT INTO app.kv VALUES ('k', ?)", [None], "NULL"),
        ("INSERT INTO app.kv VALUES (?, 'x')", ["app.t:5"], "reads as a row of the table app.t"),
    ],
)
def test_a_row_that_no_event_can_tell_is_committed_and_set_aside(
    db: Database, here: Replication, statement: str, given: list[Any], reason: str
) -> None:
    db.execute("INSERT INTO app.t VALUES (10, 'before')")
    db.execute(statement, given)
    db.execute("INSERT INTO app.t VALUES (11, 'after')")
    assert len(rows(db)) + len(rows(db, "app.kv")) == 3
    assert [decode_event(e.data).key for e in here.outbox(10)] == ["app.t:10", "app.t:11"]
    [aside] = here.quarantine()
    assert reason in aside.reason
    assert aside.outgoing
    assert here.events_for("app.t", ["app.t:1"]) + here.events_for("app.kv", ["k" * 257, "k", "app.t:5"]) == []
    seqs = [e.seq for e in here.outbox(10)]
    assert seqs[1] == seqs[0] + 2, "its number is used"


def test_an_outbox_with_nothing_but_what_was_set_aside_empties(db: Database, here: Replication) -> None:
    db.execute("INSERT INTO app.t VALUES (1, ?)", ["v" * 300_000])
    assert here.pending() == 1
    assert here.outbox(10) == []
    here.roots()  # waits for the writer
    assert here.pending() == 0


def test_a_full_outbox_can_hold_writers_back(db: Database, here: Replication) -> None:
    here.block_above = 2
    db.execute("INSERT INTO app.t VALUES (1, 'x')")
    db.execute("INSERT INTO app.t VALUES (2, 'x')")
    with pytest.raises(Overloaded, match="holds 2 events"):
        db.execute("INSERT INTO app.t VALUES (3, 'x')")
    db.execute("INSERT INTO app.plain VALUES (3, 'x')")
    assert here.apply([row(7)])[0].status == Status.APPLIED
    assert rows(db) == [(1, "x"), (2, "x"), (7, "x")]
    here.published(here.outbox(1)[0].seq)
    db.execute("INSERT INTO app.t VALUES (3, 'x')")
    here.block_above = None
    db.execute("INSERT INTO app.t VALUES (4, 'x')")


def test_whoever_waits_for_events_is_woken(db: Database, here: Replication) -> None:
    woken: list[int] = []
    stop = db.engine.feed.subscribe(here.outbox_topic_id, lambda: woken.append(here.pending()))
    db.execute("INSERT INTO app.plain VALUES (1, 'x')")
    here.apply([row(1)])
    assert woken == []
    db.execute("INSERT INTO app.t VALUES (2, 'x'), (3, 'x')")
    assert woken == [2]
    stop()


def test_the_outbox_is_no_topic_of_users(db: Database) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'x')")
    assert [r[0] for r in db.query("SELECT name FROM system.topics").rows] == ["told"]


ASK: dict[str, Callable[[Replication], list[bytes]]] = {
    "outbox": lambda here: [entry.data for entry in here.outbox(10)],
    "events": lambda here: here.events_for("app.t", ["app.t:1"]),
}


@pytest.mark.parametrize("durability", ["none", "interval(60000)"])
@pytest.mark.parametrize("ask", ASK)
def test_only_what_is_durable_is_handed_out(durability: str, ask: str, clock: FakeClock, tmp_path: Path) -> None:
    """With a durability that acknowledges earlier, asking makes it so."""
    db = Database(MemoryStore(read_sorted), clock=clock, jobs_interval_seconds=NEVER_SECONDS, durability=durability)
    db.execute(SCHEMA)
    db.execute("INSERT INTO app.t VALUES (1, 'x')")
    handed = ASK[ask](db.engine.replication)
    assert len(handed) == 1
    with reopened(db, tmp_path, clock) as again:
        assert ASK[ask](again.engine.replication) == handed


# --- taking in -----------------------------------------------------------------------------------------------------


def test_an_event_is_an_ordinary_commit(db: Database, here: Replication) -> None:
    commits: list[Commit] = []
    stop = db.engine.feed.listen(commits.append)
    outcomes = here.apply(
        [row(1, "a"), row(1, "b", ts=NOW_MS + 1, seq=2), row(2, seq=3), event("app.t:2", None, ts=NOW_MS + 1, seq=4)]
    )
    stop()
    assert [outcome.status for outcome in outcomes] == [Status.APPLIED] * 4
    assert rows(db) == [(1, "b")]
    assert said(db) == [Op.INSERT, Op.UPDATE, Op.INSERT, Op.DELETE]
    [commit] = commits
    assert [(run.op, len(run.keys)) for run in commit.runs] == [
        (Op.INSERT, 1), (Op.UPDATE, 1), (Op.INSERT, 1), (Op.DELETE, 1),
    ]  # fmt: skip
    assert here.outbox(10) == []


def test_bare_keys_and_values(db: Database, here: Replication) -> None:
    here.apply([event("golden-key", "golden-value"), event("other", "", seq=2)])
    assert rows(db, "app.kv") == [("golden-key", "golden-value"), ("other", "")]
    assert here.events_for("app.kv", ["golden-key", "nothing"]) == [event("golden-key", "golden-value")]


def test_the_same_millisecond_has_one_winner(db: Database, here: Replication) -> None:
    one, other = row(1, "one", node="n1", seq=9), row(1, "other", node="n2", seq=1)
    again = row(1, "again", node="n2", seq=2)
    here.apply([other, one])
    assert rows(db) == [(1, "other")]
    here.apply([again])
    assert [o.status for o in here.apply([other, again], source=SYNC)] == [Status.BEATEN] * 2
    assert rows(db) == [(1, "again")]
    assert said(db) == [Op.INSERT, Op.UPDATE]


def test_a_local_write_wins_over_a_clock_that_is_ahead(db: Database, here: Replication) -> None:
    hour = 3_600_000
    [outcome] = here.apply([row(1, "theirs", ts=NOW_MS + hour)])
    assert outcome == (Status.APPLIED, "", True)
    db.execute("UPDATE app.t SET v = 'mine' WHERE id = 1")
    assert kept(here, "app.t:1").version == (NOW_MS + hour + 1, "me", 100 << 32 | 1)
    [outcome] = here.apply([row(1, "theirs", ts=NOW_MS + CLOCK_AHEAD_MS, seq=2)])
    assert outcome == (Status.BEATEN, "", False)


def test_no_write_is_later_than_what_peers_take(db: Database, here: Replication) -> None:
    """Else everybody would refuse it, and the row would differ for ever."""
    here.apply([row(1, ts=MAX_TIMESTAMP_MS - 1, seq=1), row(2, ts=MAX_TIMESTAMP_MS, seq=2)])
    db.execute("UPDATE app.t SET v = 'last' WHERE id = 1")
    for statement in (
        "UPDATE app.t SET v = 'later' WHERE id = 1",
        "UPDATE app.t SET v = 'later' WHERE id = 2",
        "DELETE FROM app.t WHERE id = 2",
    ):
        with pytest.raises(Conflict, match="end of all time"):
            db.execute(statement)
    db.execute("INSERT INTO app.t VALUES (3, 'others')")
    assert rows(db) == [(1, "last"), (2, "x"), (3, "others")]
    assert here.quarantine() == []
    with Database(MemoryStore(read_sorted), jobs_interval_seconds=NEVER_SECONDS) as other:
        other.execute(SCHEMA)
        there = other.engine.replication
        there.apply([row(1, ts=MAX_TIMESTAMP_MS - 1, seq=1), row(2, ts=MAX_TIMESTAMP_MS, seq=2)])
        there.apply([entry.data for entry in here.outbox(10)])
        assert there.roots() == here.roots()


def test_two_writes_in_one_millisecond_here_are_two_versions(db: Database, here: Replication) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'a')")
    db.execute("UPDATE app.t SET v = 'b' WHERE id = 1")
    db.execute("DELETE FROM app.t WHERE id = 1")
    db.execute("INSERT INTO app.t VALUES (1, 'c')")
    assert [decode_event(e.data).version.timestamp_ms - NOW_MS for e in here.outbox(10)] == [0, 1, 2, 3]


def poisoned(db: Database) -> dict[str, bytes]:
    db.execute("ALTER TOPIC app.told DROP SOURCE app.t")
    db.execute("ALTER TOPIC app.told ADD SOURCE app.t ON ANY WHERE id + 9223372036854775000 > 0")
    return {
        "not CBOR": b"\xff",
        "no replicated table app.nothing": event("app.nothing:1", "{}", seq=1),
        "no replicated table app.plain": event("app.plain:1", '{"_table":"app.plain","id":"1","v":"x"}', seq=2),
        "not a row of app.t": event("app.t:1", "no json", seq=3),
        "not that of the row": event("app.t:2", '{"_table":"app.t","id":"1","v":"x"}', seq=4),
        "is not a key": event("app.t:one", None, seq=5),
        "violates CHECK": row(1, "bad", seq=6),
        "overflow": row(1000, "x", seq=7),
        "beyond all time": row(1, ts=MAX_TIMESTAMP_MS + 1, seq=8),
    }


def test_what_cannot_be_taken_in_is_set_aside_and_the_rest_flows(db: Database, here: Replication) -> None:
    bad = poisoned(db)
    good = [row(10 + i, seq=100 + i) for i in range(len(bad))]
    mixed = [one for pair in zip(bad.values(), good, strict=True) for one in pair]
    outcomes = here.apply(mixed)
    assert [outcome.status for outcome in outcomes] == [Status.QUARANTINED, Status.APPLIED] * len(bad)
    for outcome, reason in zip(outcomes[::2], bad, strict=True):
        assert reason in outcome.reason
    assert len(rows(db)) == len(good)
    assert {q.reason for q in here.quarantine()} == {o.reason for o in outcomes[::2]}
    assert not any(q.outgoing for q in here.quarantine())


def test_what_was_set_aside_may_come_again_when_its_table_is_there(db: Database, here: Replication) -> None:
    late = event("app.later:1", '{"_table":"app.later","id":"1"}')
    assert here.apply([late])[0].status == Status.QUARANTINED
    db.execute("CREATE TABLE app.later (id BIGINT PRIMARY KEY) WITH (REPLICATE = TRUE)")
    assert here.apply([late])[0].status == Status.APPLIED
    assert rows(db, "app.later") == [(1,)]


def test_columns_that_only_one_of_two_nodes_has(db: Database, here: Replication) -> None:
    newer = event("app.t:1", '{"_table":"app.t","id":"1","v":"x","n":5}')
    assert "n" in here.apply([newer])[0].reason
    db.execute("ALTER TABLE app.t ADD COLUMN n INT DEFAULT 7")
    here.apply([newer, row(2, seq=2)])
    assert rows(db) == [(1, "x", 5), (2, "x", 7)]
    assert here.events_for("app.t", ["app.t:1"]) == [newer]


def test_the_quarantine_is_bounded_and_holds_each_once(db: Database, here: Replication) -> None:
    for _ in range(3):
        here.apply([event("app.no:1", "x"), b"\xff"])
    assert len(here.quarantine()) == 2
    here.apply([event(f"app.no:{i}", "x", seq=i) for i in range(MAX_QUARANTINED + 50)])
    assert len(here.quarantine()) == MAX_QUARANTINED
    here.apply([event("app.no:last", "x", seq=9_999)])
    assert len(here.quarantine()) == MAX_QUARANTINED
    assert "app.no:last" in {q.key for q in here.quarantine()}
    assert here.clear_quarantine() == MAX_QUARANTINED
    assert here.quarantine() == []


def test_seen_numbers_survive(db: Database, here: Replication, clock: FakeClock, tmp_path: Path) -> None:
    here.apply([row(1, seq=1), row(2, seq=2), row(3, seq=5)])
    again = reopened(db, tmp_path, clock)
    stored = again.engine.store.get(Family.META, records.seen_key("peer"))
    assert stored is not None
    assert records.decode_record(SeenEvents, stored).spans == ((1, 2), (5, 5))
    assert [o.status for o in again.engine.replication.apply([row(3, seq=5), row(3, "y", seq=4, ts=NOW_MS + 1)])] == [
        Status.SEEN, Status.APPLIED,
    ]  # fmt: skip
    again.close()


# --- tombstones ----------------------------------------------------------------------------------------------------


def expire(db: Database) -> None:
    db.engine.jobs.run("expiry")


def test_a_tombstone_keeps_late_writes_out_for_a_day(db: Database, here: Replication, clock: FakeClock) -> None:
    here.apply([row(1, ts=NOW_MS), event("app.t:1", None, ts=NOW_MS + 10, seq=2)])
    late = row(1, "late", ts=NOW_MS + 5, seq=3)
    clock.advance(TOMBSTONE_KEPT_MS + 9)
    expire(db)
    assert here.apply([late], source=SYNC)[0].status == Status.BEATEN
    assert kept(here, "app.t:1").tombstone
    clock.advance(1)
    expire(db)
    assert kept(here, "app.t:1") is None
    assert here.roots()["app.t"] == bytes(16)
    assert db.engine.store.get(Family.BUCKETS, bucket_key(1, bucket_of("app.t:1"))) is None


def test_an_old_tombstone_deletes_but_is_not_kept(db: Database, here: Replication, clock: FakeClock) -> None:
    here.apply([row(1, ts=NOW_MS)])
    clock.advance(TOMBSTONE_KEPT_MS + 100)
    over, unknown = event("app.t:1", None, ts=NOW_MS + 50, seq=2), event("app.t:2", None, ts=NOW_MS, seq=3)
    assert [o.status for o in here.apply([over, unknown])] == [Status.APPLIED, Status.BEATEN]
    assert rows(db) == []
    assert said(db) == [Op.INSERT, Op.DELETE]
    assert here.roots()["app.t"] == bytes(16)


def test_nodes_that_forget_a_tombstone_at_different_times_end_equal(
    db: Database, here: Replication, clock: FakeClock
) -> None:
    """The other clock is an hour behind: between the two ends, what it offers is not taken, and then nothing differs."""
    behind = FakeClock(NOW_MS - 3_600_000)
    with Database(MemoryStore(read_sorted), clock=behind, jobs_interval_seconds=NEVER_SECONDS) as other:
        other.execute(SCHEMA)
        there = other.engine.replication
        there.claim_identity("there")
        for replication in (here, there):
            replication.apply([row(1), event("app.t:1", None, ts=NOW_MS + 1, seq=2)])
        assert here.roots() == there.roots()
        for moved in (clock, behind):
            moved.advance(TOMBSTONE_KEPT_MS + 10)
        expire(db)
        expire(other)
        offered = there.events_for("app.t", ["app.t:1"])
        assert len(offered) == 1
        assert here.apply(offered, source=SYNC)[0].status == Status.BEATEN
        assert kept(here, "app.t:1") is None
        behind.advance(3_600_000)
        expire(other)
        assert here.roots() == there.roots() == {"app.t": bytes(16), "app.kv": bytes(16)}
        assert other.verify().problems == []


def test_a_row_that_came_back_stays(db: Database, here: Replication, clock: FakeClock) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'a')")
    db.execute("DELETE FROM app.t WHERE id = 1")
    db.execute("INSERT INTO app.t VALUES (1, 'b')")
    clock.advance(2 * TOMBSTONE_KEPT_MS)
    expire(db)
    assert rows(db) == [(1, "b")]
    assert not kept(here, "app.t:1").tombstone


def test_a_delete_that_waited_longer_than_its_tombstone_is_still_told(
    db: Database, here: Replication, clock: FakeClock
) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'a')")
    db.execute("DELETE FROM app.t WHERE id = 1")
    clock.advance(2 * TOMBSTONE_KEPT_MS)
    expire(db)
    assert [entry.superseded for entry in here.outbox(10)] == [False, False]


# --- tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE USER TABLE app.u (id INT PRIMARY KEY) WITH (REPLICATE = TRUE)", "USER table"),
        ("CREATE STREAM TABLE app.u (id INT PRIMARY KEY) WITH (TTL_SECONDS = 5, REPLICATE = TRUE)", "STREAM table"),
        ("CREATE TABLE app.u (key TEXT PRIMARY KEY, value TEXT) WITH (REPLICATE = TRUE)", "app.kv does so already"),
    ],
)
def test_tables_that_cannot_be_replicated(db: Database, statement: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        db.execute(statement)


def test_a_table_cannot_change_how_its_keys_are_told(db: Database) -> None:
    with pytest.raises(InvalidSchema, match="bare keys"):
        db.execute("ALTER TABLE app.kv ADD COLUMN n INT")
    db.execute("CREATE TABLE app.half (key TEXT PRIMARY KEY) WITH (REPLICATE = TRUE)")
    with pytest.raises(InvalidSchema, match="bare keys"):
        db.execute("ALTER TABLE app.half ADD COLUMN value TEXT")
    db.execute("ALTER TABLE app.half ADD COLUMN n INT")


def test_a_replicated_table_takes_no_sealed_load(db: Database) -> None:
    with pytest.raises(NotSealable, match="version"):
        db.engine.loads.begin(SYSTEM_ACTOR, "app.t", "w", 1, mode="insert", kind="sealed")


def test_dropping_a_table_leaves_nothing_of_it(db: Database, here: Replication) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'a'), (2, 'b'); INSERT INTO app.kv VALUES ('k', 'v')")
    db.execute("DROP TABLE app.t CASCADE")
    for family in (Family.VERSIONS, Family.BUCKETS):
        assert [key[:4] for key, _ in db.engine.store.scan(family)] == [keys.table_prefix(2)]
    assert len(here.outbox(10)) == 3
    with pytest.raises(UnknownTable):
        here.entries("app.t", 0)


def test_tables_that_are_not_replicated_have_nothing_of_it(db: Database, here: Replication) -> None:
    db.execute("INSERT INTO app.plain VALUES (1, 'a'); UPDATE app.plain SET v = 'b'; DELETE FROM app.plain")
    assert list(db.engine.store.scan(Family.VERSIONS)) == []
    assert list(db.engine.store.scan(Family.BUCKETS)) == []
    assert here.pending() == 0
    with pytest.raises(UnknownTable, match="not replicated"):
        here.children("app.plain", 0, 0)


@pytest.mark.parametrize(("level", "index"), [(3, 0), (-1, 0), (0, 1), (2, 256)])
def test_the_tree_has_no_such_node(here: Replication, level: int, index: int) -> None:
    with pytest.raises(InvalidRequest, match="no inner node"):
        here.children("app.t", level, index)


def test_keys_that_moved_are_two_rows(db: Database, here: Replication) -> None:
    db.execute("INSERT INTO app.t VALUES (1, 'a')")
    db.execute("UPDATE app.t SET id = 2 WHERE id = 1")
    found = [decode_event(e.data) for e in here.outbox(10)]
    assert [(e.key, e.tombstone) for e in found] == [("app.t:1", False), ("app.t:1", True), ("app.t:2", False)]


def test_many_rows_at_once(db: Database, here: Replication, clock: FakeClock) -> None:
    db.insert("app.t", [(i, f"v{i}") for i in range(3000)])
    db.execute("DELETE FROM app.t WHERE id < 1500")
    entries = here.outbox(5000)
    assert [e.seq for e in entries] == list(range(entries[0].seq, entries[0].seq + 4500))
    with Database(MemoryStore(read_sorted), clock=clock, jobs_interval_seconds=NEVER_SECONDS) as other:
        other.execute(SCHEMA)
        other.engine.replication.apply([e.data for e in entries])
        assert rows(other) == rows(db)
        assert other.engine.replication.roots() == here.roots()
        assert other.verify().problems == []


# --- verify --------------------------------------------------------------------------------------------------------


def place_of(key: str, number: int) -> bytes:
    row_key = keys.table_prefix(1) + (number + (1 << 63)).to_bytes(8, "big")
    return version_key(1, bucket_of(key), row_key)


GONE = Version(NOW_MS, "me", 100 << 32 | 1)
DAMAGE: dict[str, tuple[Family, Callable[[], bytes], bytes | None]] = {
    "has 2 rows, and versions of 1": (Family.VERSIONS, lambda: place_of("app.t:1", 1), None),
    "a version, but no row": (Family.ROWS, lambda: keys.table_prefix(1) + (1 + (1 << 63)).to_bytes(8, "big"), None),
    "a tombstone and a row": (Family.VERSIONS, lambda: place_of("app.t:1", 1), encode_version(Kept(GONE, True))),
    "not the sum of its versions": (Family.BUCKETS, lambda: bucket_key(1, bucket_of("app.t:1")), encode_bucket(5, 1)),
    "has no expiry entry": (
        Family.EXPIRY,
        lambda: keys.expiry_key(NOW_MS + 1 + TOMBSTONE_KEPT_MS, Family.VERSIONS, place_of("app.t:3", 3)),
        None,
    ),
    "not its own": (Family.VERSIONS, lambda: bucket_key(1, 5) + place_of("app.t:1", 1)[6:], encode_version(Kept(GONE, False))),
    "that is not replicated": (Family.VERSIONS, lambda: bucket_key(3, 5) + b"x", encode_version(Kept(GONE, False))),
    "is published up to 99": (Family.META, lambda: records.OUTBOX_KEY, encode_record(OutboxMark(99))),
    "is not spans in order": (Family.META, lambda: records.seen_key("p"), encode_record(SeenEvents(((5, 9), (3, 4))))),
    "has no node id": (Family.META, lambda: records.NODE_KEY, None),
    "the last event of it is": (
        Family.VERSIONS, lambda: place_of("app.t:1", 1), encode_version(Kept(Version(NOW_MS, "me", 100 << 32 | 2), False)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem", DAMAGE)
def test_verify_finds(store: Any, clock: FakeClock, problem: str) -> None:
    db = Database(store, clock=clock, jobs_interval_seconds=NEVER_SECONDS)
    db.execute(SCHEMA)
    db.engine.replication.claim_identity("me")
    db.execute("INSERT INTO app.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    db.execute("DELETE FROM app.t WHERE id = 3")
    assert db.verify().problems == []
    assert db.verify().versions == 3
    family, key, value = DAMAGE[problem]
    batch = store.batch()
    if value is None:
        assert store.get(family, key()) is not None
        batch.delete(family, key())
    else:
        batch.put(family, key(), value)
    store.write(batch)
    assert any(problem in found for found in db.verify().problems), db.verify().problems
    db.close()
