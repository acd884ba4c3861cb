"""A consumer that runs a handler: what failed is tried again, what came back too soon does not end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tablecast
from tablecast import EARLIEST, Message
from tablecast.errors import InvalidRequest, OffsetOutOfRange, PermissionDenied
from tablecast.testing.clock import FakeClock

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TOPIC app.dead PARTITIONS 2;
CREATE TOPIC app.work WITH (max_deliveries = 3, dead_letter = 'app.dead');
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[tablecast.Database]:
    with tablecast.open(":memory:", clock=clock) as database:
        database.execute(SETUP)
        yield database


def dead_letters(db: tablecast.Database) -> list[int]:
    found = db.consume("app.dead", start=EARLIEST).messages
    return sorted(message.value["_dead_letter"]["offset"] for message in found)


def test_a_failed_message_is_delivered_again_though_those_behind_it_were_handled(db: tablecast.Database) -> None:
    db.insert("app.jobs", [(number,) for number in range(4)])
    tried: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        tried.append((message.offset, message.delivery))
        if message.offset == 1 and message.delivery == 1:
            raise ValueError("not now")

    assert db.consumer("app.work", "g").run(handle, until_idle=True) == 4
    assert tried == [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2)]
    assert dead_letters(db) == []


def test_a_message_that_always_fails_becomes_a_dead_letter(db: tablecast.Database) -> None:
    db.insert("app.jobs", [(number,) for number in range(4)])
    tried: list[int] = []

    def handle(message: Message) -> None:
        tried.append(message.offset)
        if message.offset == 1:
            raise ValueError("never")

    assert db.consumer("app.work", "g").run(handle, until_idle=True) == 3
    assert tried.count(1) == 3
    assert dead_letters(db) == [1]


def test_a_handler_that_fails_after_its_claim_ran_out_does_not_end_the_consumer(
    db: tablecast.Database, clock: FakeClock
) -> None:
    db.insert("app.jobs", [(1,)])
    deliveries: list[int] = []

    def handle(message: Message) -> None:
        deliveries.append(message.delivery)
        if message.delivery == 1:
            clock.advance(61_000)
            db.run_job("claims")
            raise ValueError("too late")

    assert db.consumer("app.work", "g").run(handle, until_idle=True) == 1
    assert deliveries == [1, 2]


def test_what_was_handled_is_not_handled_again_when_its_claim_ran_out(db: tablecast.Database, clock: FakeClock) -> None:
    db.insert("app.jobs", [(1,), (2,)])
    handled: list[int] = []

    def handle(message: Message) -> None:
        handled.append(message.offset)
        clock.advance(40_000)
        db.run_job("claims")

    db.consumer("app.work", "g").run(handle, until_idle=True)
    assert handled == [0, 1]
    assert db.query("SELECT lag FROM system.topic_groups").scalar() == 0


def test_redrive_takes_one_partition_of_the_dead_letter_topic(db: tablecast.Database) -> None:
    db.insert("app.jobs", [(number,) for number in range(8)])

    def handle(message: Message) -> None:
        raise ValueError("never")

    db.consumer("app.work", "g").run(handle, until_idle=True)
    per_partition = dict(
        db.query("SELECT partition_id, messages FROM system.topic_offsets WHERE topic = 'app.dead'").rows
    )
    assert sum(per_partition.values()) == 8
    assert min(per_partition.values()) > 0
    with pytest.raises(InvalidRequest, match="PARTITION"):
        db.execute("REDRIVE TOPIC app.dead OFFSET 0")
    with pytest.raises(InvalidRequest, match="partitions 0 to 1"):
        db.execute("REDRIVE TOPIC app.dead PARTITION 2")
    with pytest.raises(OffsetOutOfRange):
        db.execute("REDRIVE TOPIC app.dead PARTITION 1 OFFSET 99")
    assert db.execute("REDRIVE TOPIC app.dead PARTITION 1 OFFSET 0").row_count == 1
    assert db.execute("REDRIVE TOPIC app.dead PARTITION 1").row_count == per_partition[1] - 1
    assert db.execute("REDRIVE TOPIC app.dead").row_count == per_partition[0]


@pytest.mark.parametrize("call", ["extend", "release"])
def test_claims_are_kept_and_given_back_by_those_who_may_consume(db: tablecast.Database, call: str) -> None:
    arguments = ("app.work", "g", "ann") + ((60.0,) if call == "extend" else ())
    assert getattr(db.session("s", "service"), call)(*arguments) == 0
    with pytest.raises(PermissionDenied):
        getattr(db.session("u", "user"), call)(*arguments)
