"""A message that used up its deliveries goes to the dead-letter topic by itself: nobody has to read for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faces import FACES, face

import tablecast
from tablecast import EARLIEST, Database
from tablecast.engine.groups import LETTERS_PER_STEP, ExpireClaims
from tablecast.errors import OffsetOutOfRange
from tablecast.testing.clock import FakeClock

LONG_SECONDS = 60.0  # no test waits for it: a commit ends the wait, or the test has failed
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TOPIC app.work WITH (max_deliveries = 1, dead_letter = 'app.dead');
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as database:
        database.execute_all(SCHEMA)
        yield database
        assert database.verify().problems == []


def add(db: Database, *ids: int) -> None:
    db.insert("app.jobs", [{"id": i} for i in ids])


def given_back(db: Database, group: str = "g", limit: int = 1000) -> None:
    found = db.consume("app.work", group=group, limit=limit).messages
    db.nack("app.work", group, [m.offset for m in found], reason="bad row")


def letters(db: Database, topic: str = "app.dead") -> list[tuple[str, int]]:
    found = db.consume(topic, start=EARLIEST, limit=1000).messages
    return [(m.value["_dead_letter"]["group"], m.value["_dead_letter"]["offset"]) for m in found]


@pytest.mark.parametrize("kind", FACES)
@pytest.mark.parametrize("way", ["nacked", "expired", "released"])
def test_it_goes_within_the_interval_of_jobs_and_wakes_who_waits_for_it(kind: str, way: str) -> None:
    with face(kind, SCHEMA, jobs_interval_seconds=0.05) as db:
        db.insert("app.jobs", [{"id": 1}])
        db.consume("app.work", group="g", consumer="ann", visibility_seconds=0.05 if way == "expired" else 60)
        if way == "nacked":
            db.nack("app.work", "g", [0], reason="bad row")
        if way == "released":
            db.release("app.work", "g", "ann")
        [letter] = db.consume("app.dead", group="undertaker", timeout_seconds=LONG_SECONDS).messages
        reasons = {"nacked": "bad row", "expired": "visibility timeout", "released": "released by its consumer"}
        origin = letter.value["_dead_letter"]
        assert (origin["group"], origin["offset"], origin["reason"]) == ("g", 0, reasons[way])
        sql = "SELECT committed, claimed, lag FROM system.topic_groups WHERE topic = 'app.work'"
        assert db.query(sql).rows == [(1, 0, 0)]


def test_a_group_and_its_letters_are_one_commit(db: Database, clock: FakeClock) -> None:
    add(db, 1, 2, 3)
    db.consume("app.work", group="g", limit=1)
    given_back(db)
    clock.advance(61_000)
    seq = db.engine.seq
    assert db.run_job("claims").count == 4, "one came back, three are dead"
    found = db.consume("app.dead", start=EARLIEST).messages
    assert [m.value["_dead_letter"]["offset"] for m in found] == [0, 1, 2]
    assert {m.seq for m in found} == {seq + 1}
    seq = db.engine.seq
    assert db.run_job("claims").count == 0
    assert len(letters(db)) == 3


def test_many_go_in_commits_of_a_bounded_size_each_once(db: Database) -> None:
    add(db, *range(2 * LETTERS_PER_STEP + 1))
    for group in ("g", "h"):
        given_back(db, group)
    db.run_job("claims")
    assert sorted(letters(db)) == [(g, offset) for g in ("g", "h") for offset in range(2 * LETTERS_PER_STEP + 1)]
    sizes: dict[int, int] = {}
    for message in db.consume("app.dead", start=EARLIEST, limit=1000).messages:
        sizes[message.seq] = sizes.get(message.seq, 0) + 1
    assert max(sizes.values()) == LETTERS_PER_STEP


def test_one_that_may_be_delivered_again_stays(db: Database) -> None:
    db.execute("ALTER TOPIC app.work SET (max_deliveries = 2)")
    add(db, 1)
    given_back(db)
    assert db.run_job("claims").count == 0
    given_back(db)
    assert db.run_job("claims").count == 1
    assert letters(db) == [("g", 0)]


def test_what_counts_is_what_the_topic_says_when_the_job_runs(db: Database) -> None:
    db.execute("ALTER TOPIC app.work SET (max_deliveries = 0)")
    add(db, 1, 2)
    given_back(db, limit=1)
    assert db.run_job("claims").count == 0, "there is no limit"
    db.execute("ALTER TOPIC app.work SET (max_deliveries = 1, dead_letter = 'app.other')")
    assert db.run_job("claims").count == 1
    assert (letters(db), letters(db, "app.other")) == ([], [("g", 0)])


def test_one_that_was_sent_back_has_its_deliveries_again(db: Database) -> None:
    add(db, 1)
    given_back(db)
    db.run_job("claims")
    db.execute("REDRIVE TOPIC app.dead")
    assert db.run_job("claims").count == 0
    given_back(db)
    assert db.run_job("claims").count == 1
    assert letters(db) == [("g", 0), ("g", 0)]


def test_what_retention_took_is_no_letter_and_is_told_to_the_group(db: Database) -> None:
    add(db, 1, 2)
    given_back(db)
    db.execute("CLEAR TOPIC app.work")
    add(db, 3)
    assert db.run_job("claims").count == 0
    assert letters(db) == []
    with pytest.raises(OffsetOutOfRange, match=r"removed messages in \[0, 2\)"):
        db.consume("app.work", group="g")


def test_a_group_of_a_topic_that_was_dropped_meanwhile_is_nothing_to_do(db: Database) -> None:
    add(db, 1)
    given_back(db)
    command = ExpireClaims(db.topic("app.work").topic_id, "g", 0)
    db.execute("DROP TOPIC app.work")
    assert db.engine.execute(command) == 0
    assert letters(db) == []
