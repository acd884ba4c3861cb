"""The consumer loop over an embedded database, sync and async: order, failures, renewal, stopping, outages."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import tablecast
from tablecast import AsyncDatabase, Database, Message, Retry, open_async
from tablecast.client import consumer as sync_loop
from tablecast.client import consumer_async as async_loop
from tablecast.errors import InvalidRequest, Overloaded, Timeout

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY, step INT);
CREATE TOPIC app.dead;
CREATE TOPIC app.work PARTITIONS 2 WITH (max_deliveries = 3, dead_letter = 'app.dead');
ALTER TOPIC app.work ADD SOURCE app.jobs ON ANY;
"""
ROWS, STEPS = 8, 5
VISIBILITY_SECONDS = 3.0  # renewed after a third of it; a busy machine has the rest


def fill(db: Database) -> None:
    """Five changes of each of eight rows."""
    db.insert("app.jobs", [(row, 0) for row in range(ROWS)])
    for step in range(1, STEPS):
        db.execute("UPDATE app.jobs SET step = ?", [step])


@pytest.fixture
def db() -> Iterator[Database]:
    with tablecast.open(":memory:") as database:
        database.execute(SETUP)
        yield database


def in_loop(test: Callable[[AsyncDatabase], Awaitable[None]]) -> None:
    async def life() -> None:
        async with await open_async(":memory:") as database:
            await database.execute(SETUP)
            await test(database)

    asyncio.run(asyncio.wait_for(life(), 120))


def lag(db: Database) -> int:
    return db.query("SELECT SUM(lag) FROM system.topic_groups WHERE topic = 'app.work'").scalar()


# --- concurrency -------------------------------------------------------------------------------------------------


def test_handlers_run_at_once_and_rows_keep_their_order(db: Database) -> None:
    fill(db)
    at_once = threading.Barrier(4)
    steps: dict[int, list[int]] = defaultdict(list)

    def handle(message: Message) -> None:
        if message.value["step"] == 0 and message.value["id"] < 4:
            at_once.wait(60)  # breaks unless four of them are here together
        steps[message.value["id"]].append(message.value["step"])

    assert db.consumer("app.work", "g").run(handle, concurrency=8, until_idle=True) == ROWS * STEPS
    assert steps == {row: list(range(STEPS)) for row in range(ROWS)}
    assert lag(db) == 0


def test_tasks_run_at_once_and_rows_keep_their_order() -> None:
    async def test(db: AsyncDatabase) -> None:
        fill(db.database)
        at_once, arrived = asyncio.Event(), set()
        steps: dict[int, list[int]] = defaultdict(list)

        async def handle(message: Message) -> None:
            if message.value["step"] == 0:
                arrived.add(message.value["id"])
                if len(arrived) == 4:
                    at_once.set()
                await at_once.wait()
            steps[message.value["id"]].append(message.value["step"])

        assert await db.consumer("app.work", "g").run(handle, concurrency=4, until_idle=True) == ROWS * STEPS
        assert steps == {row: list(range(STEPS)) for row in range(ROWS)}
        assert lag(db.database) == 0

    in_loop(test)


def test_one_task_handles_each_partition_in_order() -> None:
    async def test(db: AsyncDatabase) -> None:
        fill(db.database)
        places: dict[int, list[int]] = defaultdict(list)

        def handle(message: Message) -> None:  # a plain function does as well
            places[message.partition_id].append(message.offset)

        assert await db.consumer("app.work", "g", batch=7).run(handle, until_idle=True) == ROWS * STEPS
        assert [places[p] for p in sorted(places)] == [list(range(len(places[p]))) for p in sorted(places)]

    in_loop(test)


def test_no_handler_makes_no_sense(db: Database) -> None:
    with pytest.raises(InvalidRequest, match="concurrency"):
        db.consumer("app.work", "g").run(print, concurrency=0)


def test_with_many_handlers_a_stop_acknowledges_exactly_what_was_handled(db: Database) -> None:
    db.insert("app.jobs", [(row, 0) for row in range(20)])
    consumer = db.consumer("app.work", "g")
    handled: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        handled.append((message.partition_id, message.offset))
        if len(handled) >= 5:
            consumer.stop()

    count = consumer.run(handle, concurrency=3)
    assert count == len(handled) < 20
    rest = db.consume("app.work", group="g", limit=100).messages
    assert sorted(handled + [(m.partition_id, m.offset) for m in rest]) == sorted(
        (m.partition_id, m.offset) for m in db.consume("app.work", start=tablecast.EARLIEST, limit=100).messages
    )


# --- failures ----------------------------------------------------------------------------------------------------


def test_dead_letter_takes_over_what_failed_for_good(db: Database) -> None:
    db.insert("app.jobs", [(row, 0) for row in range(4)])
    tried: list[int] = []
    taken: list[tuple[int, str]] = []

    def handle(message: Message) -> None:
        tried.append(message.value["id"])
        if message.value["id"] == 2:
            raise ValueError("never")

    def take(message: Message, error: Exception) -> None:
        taken.append((message.value["id"], str(error)))

    retry = Retry(attempts=3, backoff_seconds=0)
    assert db.consumer("app.work", "g").run(handle, retry=retry, dead_letter=take, until_idle=True) == 3
    assert taken == [(2, "never")]
    assert tried.count(2) == 3
    assert lag(db) == 0
    assert db.consume("app.dead", start=tablecast.EARLIEST).messages == []


def test_a_dead_letter_that_fails_leaves_the_message_to_the_topic(db: Database) -> None:
    db.insert("app.jobs", [(0, 0)])
    deliveries: list[int] = []

    def handle(message: Message) -> None:
        deliveries.append(message.delivery)
        raise ValueError("never")

    def take(message: Message, error: Exception) -> None:
        raise OSError("nowhere to put it")

    assert db.consumer("app.work", "g").run(handle, dead_letter=take, until_idle=True) == 0
    assert deliveries == [1, 2, 3]
    (letter,) = db.consume("app.dead", start=tablecast.EARLIEST).messages
    assert letter.value["_dead_letter"]["reason"] == "ValueError: never"


def test_tasks_fail_the_same_way() -> None:
    async def test(db: AsyncDatabase) -> None:
        await db.insert("app.jobs", [(row, 0) for row in range(3)])
        taken: list[int] = []
        deliveries: dict[int, list[int]] = defaultdict(list)

        async def handle(message: Message) -> None:
            deliveries[message.value["id"]].append(message.delivery)
            if message.value["id"] > 0:
                raise ValueError("never")

        async def take(message: Message, error: Exception) -> None:
            if message.value["id"] == 2:
                raise error
            taken.append(message.value["id"])

        retry = Retry(attempts=2, backoff_seconds=0)
        consumer = db.consumer("app.work", "g")
        assert await consumer.run(handle, retry=retry, dead_letter=take, until_idle=True) == 1
        assert taken == [1]
        assert deliveries == {0: [1], 1: [1, 1], 2: [1, 1, 2, 2, 3, 3]}
        assert len((await db.consume("app.dead", start=tablecast.EARLIEST)).messages) == 1

    in_loop(test)


# --- claims ------------------------------------------------------------------------------------------------------


def test_a_claim_is_renewed_while_a_handler_runs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.insert("app.jobs", [(0, 0)])
    renewed = threading.Event()
    real = db.extend

    def extend(topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
        held = real(topic, group, consumer, visibility_seconds)
        renewed.set()
        return held

    monkeypatch.setattr(db, "extend", extend)
    held = []

    def handle(message: Message) -> None:
        renewed.wait(60)
        held.append(real("app.work", "g", "c", 60))

    consumer = db.consumer("app.work", "g", name="c", visibility_seconds=VISIBILITY_SECONDS)
    assert consumer.run(handle, until_idle=True) == 1
    assert held == [1], "still its own"


def test_a_claim_is_renewed_while_a_task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(db: AsyncDatabase) -> None:
        await db.insert("app.jobs", [(0, 0)])
        renewed, held, real = asyncio.Event(), [], db.extend

        async def extend(topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
            still = await real(topic, group, consumer, visibility_seconds)
            renewed.set()
            return still

        async def handle(message: Message) -> None:
            await renewed.wait()
            held.append(await real("app.work", "g", "c", 60))

        monkeypatch.setattr(db, "extend", extend)
        consumer = db.consumer("app.work", "g", name="c", visibility_seconds=VISIBILITY_SECONDS)
        assert await consumer.run(handle, until_idle=True) == 1
        assert held == [1]

    in_loop(test)


def test_under_its_name_a_consumer_goes_on_where_it_died(db: Database) -> None:
    db.insert("app.jobs", [(row, 0) for row in range(3)])
    assert len(db.consume("app.work", group="g", consumer="worker").messages) == 3, "claimed, and dead"
    deliveries: list[int] = []
    assert db.consumer("app.work", "g", name="stranger").run(print, until_idle=True) == 0
    consumer = db.consumer("app.work", "g", name="worker")
    assert consumer.run(lambda message: deliveries.append(message.delivery), until_idle=True) == 3
    assert deliveries == [2] * 3


# --- stopping ----------------------------------------------------------------------------------------------------


def test_a_stop_ends_a_waiting_task_at_once_and_gives_the_rest_back() -> None:
    async def test(db: AsyncDatabase) -> None:
        consumer = db.consumer("app.work", "g")
        handled: list[int] = []

        async def handle(message: Message) -> None:
            handled.append(message.value["id"])
            consumer.stop()

        running = asyncio.create_task(consumer.run(handle))
        while not db.parked:
            await asyncio.sleep(0)
        await db.insert("app.jobs", [(row, 0) for row in range(3)])
        assert await running == 1
        rest = await db.consume("app.work", group="g", consumer="next")
        assert len(rest.messages) == 2

        idle = db.consumer("app.work", "other")
        await db.consumer("app.work", "other").run(lambda message: None, until_idle=True)
        waiting = asyncio.create_task(idle.run(handle))
        while not db.parked:
            await asyncio.sleep(0)
        threading.Thread(target=idle.stop).start()
        assert await waiting == 0

    in_loop(test)


def test_run_ends_when_the_async_database_is_closed() -> None:
    async def test(db: AsyncDatabase) -> None:
        running = asyncio.create_task(db.consumer("app.work", "g").run(lambda message: None))
        while not db.parked:
            await asyncio.sleep(0)
        await db.close()
        assert await running == 0

    in_loop(test)


# --- outages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Overloaded("away"), Timeout("no answer")], ids=["refused", "lost"])
@pytest.mark.parametrize("call", ["consume", "ack", "nack"])
def test_a_consumer_outlasts_a_server_that_is_away(
    db: Database, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    monkeypatch.setattr(sync_loop, "OUTAGE_SECONDS", 0.0)
    monkeypatch.setattr(sync_loop, "WAIT_SECONDS", 0.01)
    db.insert("app.jobs", [(row, 0) for row in range(4)])
    failures = interrupted(monkeypatch, db, call, error)
    consumer = db.consumer("app.work", "g")
    done: dict[int, int] = defaultdict(int)

    def handle(message: Message) -> None:
        if call == "nack" and message.delivery == 1 and message.value["id"] == 1:
            raise ValueError("not yet")
        done[message.value["id"]] += 1
        if len(done) == 4 and not failures:
            consumer.stop()

    consumer.run(handle)
    assert failures == [], "it happened"
    assert done == dict.fromkeys(range(4), 1), "what was handled is not handled again, though its ack was lost"
    db.consumer("app.work", "g").run(lambda message: None, until_idle=True)
    assert lag(db) == 0


def interrupted(monkeypatch: pytest.MonkeyPatch, db: Any, call: str, error: Exception) -> list[Exception]:
    """The first such call happens, but its answer is lost."""
    failures, real = [error], getattr(db, call)

    def lost(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        if failures:
            raise failures.pop()
        return answer

    monkeypatch.setattr(db, call, lost)
    return failures


def test_a_task_outlasts_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_loop, "OUTAGE_SECONDS", 0.0)

    async def test(db: AsyncDatabase) -> None:
        await db.insert("app.jobs", [(row, 0) for row in range(4)])
        for call in ("consume", "ack", "release"):
            failures = [Timeout("no answer")] * 2
            real = getattr(AsyncDatabase, call)

            async def lost(
                self: AsyncDatabase, *args: Any, real: Any = real, failures: Any = failures, **kw: Any
            ) -> Any:
                answer = await real(self, *args, **kw)
                if failures:
                    raise failures.pop()
                return answer

            with monkeypatch.context() as patch:
                patch.setattr(AsyncDatabase, call, lost)
                consumer = db.consumer("app.work", f"group-{call}")
                done: list[int] = []

                async def handle(message: Message, done: Any = done, consumer: Any = consumer) -> None:
                    done.append(message.value["id"])
                    if len(done) == 4:
                        consumer.stop()

                running = consumer.run(handle)
                if call == "release":  # only asked for at the end: not an outage but the end of the run
                    with pytest.raises(Timeout):
                        await running
                else:
                    await running
                assert sorted(done) == list(range(4))

    in_loop(test)


def test_until_idle_does_not_wait_for_a_server_that_is_away(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch, db, "consume", Overloaded("away"))
    with pytest.raises(Overloaded):
        db.consumer("app.work", "g").run(print, until_idle=True)


def test_what_was_claimed_for_a_lost_answer_is_neither_acknowledged_nor_kept(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer that claimed the first messages is lost: an ack of later ones must not cover them."""
    monkeypatch.setattr(sync_loop, "OUTAGE_SECONDS", 0.0)
    db.insert("app.jobs", [(row, 0) for row in range(6)])
    interrupted(monkeypatch, db, "consume", Timeout("no answer"))
    consumer = db.consumer("app.work", "g", batch=2)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.value["id"])
        if len(seen) == 6:
            consumer.stop()

    assert consumer.run(handle) == 6
    assert sorted(seen) == list(range(6))
