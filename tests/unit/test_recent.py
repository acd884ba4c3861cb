"""Batches that a reader stopped inside of: found by any offset in them, and forgotten when others need the room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tablecast
from tablecast import EARLIEST, Database, Start, StartKind
from tablecast.codec.log import LogBatch, MessageClass, Place, encode_log_batch
from tablecast.engine.recent import ENTRY_BYTES, RecentBatches
from tablecast.model.change import Op
from tablecast.model.topic import PayloadMode
from tablecast.storage.base import Family

SAID = MessageClass("app.t", Op.INSERT, PayloadMode.FULL, None)


def batch(first: int, count: int) -> LogBatch:
    columns = [[0] * count, [b"k"] * count, [b"p"] * count, [0] * count]
    return LogBatch(encode_log_batch([SAID], *columns, Place(first, 1, 1, 1, 0)))


def test_a_batch_is_found_by_every_offset_in_it_and_by_no_other() -> None:
    recent = RecentBatches()
    for first in (20, 0, 10):
        recent.keep(1, 0, batch(first, 5))
    found = [None if (b := recent.find(1, 0, offset)) is None else b.head.first_offset for offset in range(26)]
    assert found == [*[0] * 5, *[None] * 5, *[10] * 5, *[None] * 5, *[20] * 5, None]
    assert recent.find(1, 1, 0) is recent.find(2, 0, 0) is None


def test_what_was_used_least_goes_first() -> None:
    size = batch(0, 5).size + ENTRY_BYTES
    recent = RecentBatches(limit_bytes=2 * size)
    recent.keep(1, 0, batch(0, 5))
    recent.keep(2, 0, batch(0, 5))
    recent.find(1, 0, 0)
    recent.keep(3, 0, batch(0, 5))
    assert [recent.find(topic, 0, 0) is not None for topic in (1, 2, 3)] == [True, False, True]


def test_one_that_is_larger_than_the_room_is_not_kept() -> None:
    recent = RecentBatches(limit_bytes=10)
    recent.keep(1, 0, batch(0, 5))
    assert recent.find(1, 0, 0) is None


@pytest.fixture
def db() -> Iterator[Database]:
    with tablecast.open(":memory:") as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY); CREATE TOPIC seen; ALTER TOPIC seen ADD SOURCE t ON ANY")
        yield database


def test_who_waits_for_a_commit_is_handed_what_it_brought(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []
    scan = db.engine.store.scan
    monkeypatch.setattr(db.engine.store, "scan", lambda family, *a, **k: scans.append(family) or scan(family, *a, **k))
    unsubscribe = db.engine.feed.subscribe(db.topic("seen").topic_id, lambda: None)  # somebody waits
    for row in range(3):
        db.execute("INSERT INTO t VALUES (?)", [row])
        [message] = db.consume("seen", start=Start(StartKind.OFFSET, row)).messages
        assert message.value["id"] == row
    assert Family.LOG not in scans
    unsubscribe()
    db.execute("INSERT INTO t VALUES (3)")
    assert len(db.consume("seen", start=EARLIEST).messages) == 4
    assert Family.LOG in scans, "nobody waited for the last one"


def test_readers_of_a_large_batch_read_it_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.insert("t", [(i,) for i in range(1000)])
    scans = []
    scan = db.engine.store.scan
    monkeypatch.setattr(db.engine.store, "scan", lambda family, *a, **k: scans.append(family) or scan(family, *a, **k))
    seen: list[int] = []
    while found := db.consume("seen", group="g", limit=10).messages:
        seen += [message.offset for message in found]
        db.ack("seen", "g", found[-1].offset)
    assert seen == list(range(1000))
    assert scans.count("log") <= 2


def test_what_is_cleared_is_not_given_from_memory(db: Database) -> None:
    db.insert("t", [(i,) for i in range(100)])
    assert len(db.consume("seen", start=EARLIEST, limit=10).messages) == 10
    db.execute("CLEAR TOPIC seen")
    assert db.consume("seen", start=EARLIEST, limit=10).messages == []
    db.insert("t", [(100,)])
    assert [m.offset for m in db.consume("seen", start=EARLIEST, limit=10).messages] == [100]
