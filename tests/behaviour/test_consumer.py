"""A consumer that runs a handler: what failed is tried again, what came back too soon does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import tablecast
from tablecast import EARLIEST, Consumed, Message
from tablecast.client.consumer import Consumer
from tablecast.client.consumer_async import AsyncConsumer
from tablecast.errors import InvalidRequest, OffsetOutOfRange, PermissionDenied, Timeout
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
        db.query("SELECT partition_id, messages FROM system.topic_partitions WHERE topic = 'app.dead'").rows
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


# --- a server that is away for a moment -------------------------------------------------------------------------


class Lossy:
    """A database whose claims that acknowledge something do not arrive once. `given` is what another member is given the
    moment that claims are given back."""

    def __init__(self, db: tablecast.Database) -> None:
        self._db = db
        self._is_lost = False
        self.given: list[int] = []
        self.ack, self.nack, self.extend = db.ack, db.nack, db.extend

    def consume(self, topic: str, **request: Any) -> Consumed:
        if request["ack"] is not None and not self._is_lost:
            self._is_lost = True
            raise Timeout("no answer")
        return self._db.consume(topic, **request)

    def release(self, topic: str, group: str, consumer: str) -> int:
        released = self._db.release(topic, group, consumer)
        self.given += [message.offset for message in self._db.consume(topic, group=group, consumer="other").messages]
        return released


class AsyncLossy:
    def __init__(self, lossy: Lossy) -> None:
        self._lossy = lossy

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        call = getattr(self._lossy, name)

        async def later(*args: Any, **named: Any) -> Any:
            return call(*args, **named)

        return later


@pytest.mark.parametrize("form", ["threads", "asyncio"])
def test_what_was_handled_before_an_outage_goes_to_nobody_else(
    db: tablecast.Database, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"tablecast.client.consumer{'_async' * (form == 'asyncio')}.OUTAGE_SECONDS", 0.01)
    db.insert("app.jobs", [(number,) for number in range(4)])
    lossy, handled = Lossy(db), list[int]()
    consumer: Consumer | AsyncConsumer

    def handle(message: Message) -> None:
        handled.append(message.offset)
        if message.offset == 4:
            consumer.stop()

    lossy.release = came_back(lossy.release, lambda: db.insert("app.jobs", [(4,)]))  # type: ignore[method-assign]
    if form == "threads":
        consumer = Consumer(lossy, "app.work", "g")  # type: ignore[arg-type]
        consumer.run(handle)
    else:
        consumer = AsyncConsumer(AsyncLossy(lossy), "app.work", "g")  # type: ignore[arg-type]
        asyncio.run(consumer.run(handle))
    assert handled == [0, 1, 2, 3, 4]
    assert lossy.given == []


def came_back(release: Callable[..., int], then: Callable[[], object]) -> Callable[..., int]:
    """`release`, and after its first call what wakes the consumer for the last time."""
    calls = iter([then])

    def released(*args: Any) -> int:
        count = release(*args)
        next(calls, lambda: None)()
        return count

    return released
