"""Consuming: waiting for commits, sharing a topic among consumers, handlers that fail, and the same for asyncio.

Nothing here sleeps. Time is a FakeClock; what happens at once in several threads is arranged with events and barriers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import tablecast
from tablecast import EARLIEST, LATEST, Database, Message, Retry
from tablecast.client.consumer import Consumer
from tablecast.errors import Conflict, DatabaseClosed, InvalidRequest, OffsetOutOfRange
from tablecast.sql import plan_topic
from tablecast.storage.memory import MemoryStore
from tablecast.testing.clock import FakeClock

LONG_SECONDS = 60.0  # no test waits for it: a commit ends the wait, or the test has failed
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY, what TEXT);
CREATE TOPIC app.queue WITH (max_deliveries = 3, dead_letter = 'app.dead');
CREATE TOPIC app.wide PARTITIONS 4;
ALTER TOPIC app.queue ADD SOURCE app.jobs ON INSERT;
ALTER TOPIC app.wide ADD SOURCE app.jobs ON INSERT
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


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def add(db: Database, *ids: int) -> None:
    db.insert("app.jobs", [{"id": i, "what": f"job {i}"} for i in ids])


def take(db: Database, consumer: str, limit: int = 100, **settings: Any) -> list[tuple[int, int]]:
    """(offset, delivery) of what a member of the group gets."""
    found = db.consume("app.queue", group="g", consumer=consumer, limit=limit, **settings).messages
    return [(m.offset, m.delivery) for m in found]


def test_what_is_done_is_acknowledged_in_the_commit_of_the_next_claim(db: Database) -> None:
    add(db, *range(5))
    first = db.consume("app.queue", group="g", limit=2)
    before = db.engine.seq
    second = db.consume("app.queue", group="g", limit=2, ack=first)
    assert ([m.offset for m in second.messages], db.engine.seq) == ([2, 3], before + 1)
    assert db.query("SELECT committed, claimed FROM system.topic_groups WHERE topic = 'app.queue'").rows == [(2, 2)]


def test_what_is_done_is_acknowledged_also_where_there_is_nothing_more(db: Database, pool: ThreadPoolExecutor) -> None:
    add(db, 1)
    found = db.consume("app.queue", group="g", consumer="ann")
    waiting = pool.submit(db.consume, "app.queue", group="g", consumer="ann", ack=found, timeout_seconds=LONG_SECONDS)
    while db.query("SELECT lag FROM system.topic_groups WHERE topic = 'app.queue'").scalar():
        pass  # at once, though the call goes on waiting
    assert not waiting.done()
    add(db, 2)
    assert [m.offset for m in waiting.result(LONG_SECONDS).messages] == [1]


def test_only_what_was_given_is_acknowledged_with_a_claim(db: Database) -> None:
    add(db, *range(4))
    anns = db.consume("app.queue", group="g", consumer="ann", limit=1)
    bobs = db.consume("app.queue", group="g", consumer="bob", limit=1)
    lost = db.consume("app.queue", group="g", consumer="ann", limit=1)  # say its answer never arrived
    db.consume("app.queue", group="g", consumer="ann", limit=1, ack=anns)
    assert db.release("app.queue", "g", "ann") == 2, "the lost one and the last one"
    assert db.release("app.queue", "g", "bob") == len(bobs.messages)
    assert [m.offset for m in db.consume("app.queue", group="g").messages] == [1, lost.messages[0].offset, 3]


def test_acknowledging_with_a_claim_is_all_or_nothing(db: Database) -> None:
    add(db, 1, 2)
    found = db.consume("app.queue", group="g", consumer="ann", limit=1)
    beyond = replace(found, given=((0, 0, 2),))
    with pytest.raises(OffsetOutOfRange):
        db.consume("app.queue", group="g", consumer="ann", ack=beyond)
    assert db.release("app.queue", "g", "ann") == 1, "neither acknowledged nor more claimed"
    with pytest.raises(InvalidRequest, match="group"):
        db.consume("app.queue", ack=found)
    with pytest.raises(InvalidRequest, match="partitions 0 to 0"):
        db.consume("app.queue", group="g", ack=replace(found, given=((7, 0, 1),)))


def test_the_loop_costs_one_commit_a_turn_and_leaves_nothing_open(db: Database) -> None:
    add(db, *range(6))
    before = db.engine.seq
    assert db.consumer("app.queue", "g", batch=2).run(lambda _: None, until_idle=True) == 6
    assert db.engine.seq == before + 4, "three claims, and one that only acknowledged"
    assert db.query("SELECT committed, claimed FROM system.topic_groups WHERE topic = 'app.queue'").rows == [(6, 0)]


def test_a_loop_that_is_stopped_acknowledges_what_it_handled(db: Database) -> None:
    add(db, *range(4))
    consumer = db.consumer("app.queue", "g", batch=2)

    def handle(message: Message) -> None:
        if message.offset == 3:
            consumer.stop()

    assert consumer.run(handle) == 4
    assert db.query("SELECT committed, claimed FROM system.topic_groups WHERE topic = 'app.queue'").rows == [(4, 0)]


class Watched:
    """Counts how often waiting readers look, and tells when one is about to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.looks = 0
        self.waits: list[float] = []
        self.parked = threading.Semaphore(0)
        self._look, self._deadline = module.consume_now, module.seconds_to_deadline
        monkeypatch.setattr(module, "consume_now", self.consume_now)
        monkeypatch.setattr(module, "seconds_to_deadline", self.seconds_to_deadline)

    def consume_now(self, *args: Any) -> Any:
        self.looks += 1
        return self._look(*args)

    def seconds_to_deadline(self, *args: Any) -> float:
        """What a reader asks last before it waits."""
        seconds: float = self._deadline(*args)
        self.waits.append(seconds)
        self.parked.release()
        return seconds

    def wait_parked(self, readers: int = 1) -> None:
        for _ in range(readers):
            assert self.parked.acquire(timeout=LONG_SECONDS), "a reader should have waited"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch, plan_topic)


# --- waiting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"group": "g"}, {}, {"start": EARLIEST}, {"start": LATEST, "partition": 0}])
def test_a_waiting_reader_wakes_on_the_commit(
    db: Database, pool: ThreadPoolExecutor, watched: Watched, settings: dict[str, Any]
) -> None:
    """It looks once, waits, and looks once more: nothing is polled."""
    waiting = pool.submit(db.consume, "app.queue", timeout_seconds=LONG_SECONDS, **settings)
    watched.wait_parked()
    assert not waiting.done()
    assert watched.looks == 1
    assert db.engine.feed.waiting == 1
    add(db, 1)
    assert [m.value["id"] for m in waiting.result(LONG_SECONDS).messages] == [1]
    assert watched.looks == 2
    assert watched.waits == [plan_topic.LOOK_SECONDS], "nothing but the commit would have ended the wait"
    assert db.engine.feed.waiting == 0


def test_a_commit_that_brings_nothing_wakes_nobody(db: Database, pool: ThreadPoolExecutor, watched: Watched) -> None:
    db.execute("CREATE TABLE app.other (id INT PRIMARY KEY)")
    waiting = pool.submit(db.consume, "app.queue", group="g", timeout_seconds=LONG_SECONDS)
    watched.wait_parked()
    db.execute("INSERT INTO app.other VALUES (1)")
    db.execute("CREATE TOPIC app.another")
    assert watched.looks == 1
    add(db, 1)
    assert len(waiting.result(LONG_SECONDS).messages) == 1
    assert watched.looks == 2


def test_a_reader_does_not_miss_what_is_committed_before_it_waits(db: Database, watched: Watched) -> None:
    """The commit falls between its look and its wait: the worst moment there is."""
    waited = watched.seconds_to_deadline

    def commit_now(*args: Any) -> float:
        if not watched.waits:
            add(db, 1)
        return waited(*args)

    plan_topic.seconds_to_deadline = commit_now  # type: ignore[assignment]
    found = db.consume("app.queue", group="g", timeout_seconds=LONG_SECONDS)
    assert [m.offset for m in found.messages] == [0]
    assert watched.looks == 2


@pytest.mark.parametrize("partitions", ["app.queue", "app.wide"])
def test_latest_is_the_moment_of_the_call(
    db: Database, pool: ThreadPoolExecutor, watched: Watched, partitions: str
) -> None:
    """What was there is not given, even if it has the same time; what comes while it waits is."""
    add(db, *range(10))
    waiting = pool.submit(db.consume, partitions, timeout_seconds=LONG_SECONDS)
    watched.wait_parked()
    add(db, 77)
    assert [m.value["id"] for m in waiting.result(LONG_SECONDS).messages] == [77]


@pytest.mark.parametrize(
    "give_back",
    [
        lambda db: db.nack("app.queue", "g", [0]),
        lambda db: db.release("app.queue", "g", "holder"),
        lambda db: db.execute("RESET GROUP 'g' ON app.queue TO EARLIEST"),
    ],
)
def test_what_comes_back_wakes_a_waiting_reader(
    db: Database, pool: ThreadPoolExecutor, watched: Watched, give_back: Callable[[Database], Any]
) -> None:
    add(db, 1)
    assert take(db, "holder") == [(0, 1)]
    waiting = pool.submit(take, db, "waiter", timeout_seconds=LONG_SECONDS)
    watched.wait_parked()
    give_back(db)
    assert [offset for offset, _ in waiting.result(LONG_SECONDS)] == [0]


def test_a_reader_waits_no_longer_than_the_next_claim_runs_out(db: Database, watched: Watched) -> None:
    """Then it may get those messages. Its wait is bounded by that deadline, and by its own timeout."""
    add(db, 1)
    assert take(db, "holder", visibility_seconds=0.001) == [(0, 1)]
    topic = db.topic("app.queue")
    request = plan_topic.ConsumeRequest(group="g", timeout_seconds=5)
    assert plan_topic.seconds_to_deadline(db.engine, topic, request) == 0.001


def test_a_timeout_that_is_over_gives_what_there_is(db: Database) -> None:
    topic, request = db.topic("app.queue"), plan_topic.ConsumeRequest(group="g", timeout_seconds=10)
    times = iter([0.0, 10.0])
    found = plan_topic.consume(db.engine, topic, request, monotonic=lambda: next(times))
    assert found.messages == []
    assert not found.has_more
    assert db.engine.feed.waiting == 0


def test_without_a_timeout_nobody_waits(db: Database, watched: Watched) -> None:
    assert db.consume("app.queue", group="g").messages == []
    assert (watched.looks, watched.waits) == (1, [])


def test_closing_ends_every_wait(clock: FakeClock, pool: ThreadPoolExecutor, watched: Watched) -> None:
    db = tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600)
    db.execute_all(SCHEMA)
    waiting = [pool.submit(db.consume, "app.queue", group=g, timeout_seconds=LONG_SECONDS) for g in ("a", "b", "c")]
    watched.wait_parked(3)
    db.close()
    for future in waiting:
        with pytest.raises(DatabaseClosed):
            future.result(LONG_SECONDS)


# --- sharing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["app.queue", "app.wide"])
def test_four_competing_consumers_get_disjoint_claims(db: Database, pool: ThreadPoolExecutor, topic: str) -> None:
    add(db, *range(400))
    together = threading.Barrier(4)

    def work(name: str) -> list[list[tuple[int, int]]]:
        claims = []
        together.wait(LONG_SECONDS)
        while found := db.consume(topic, group="g", consumer=name, limit=7).messages:
            claims.append([(m.partition_id, m.offset) for m in found])
            for partition in {m.partition_id for m in found}:
                last = max(m.offset for m in found if m.partition_id == partition)
                db.ack(topic, "g", last, partition=partition, consumer=name)
        return claims

    claims = [claim for future in [pool.submit(work, f"c{i}") for i in range(4)] for claim in future.result()]
    given = Counter(place for claim in claims for place in claim)
    ends = {p: db.engine.log_range(db.topic(topic).topic_id, p)[1] for p in range(db.topic(topic).partitions)}
    assert given == Counter({(p, offset): 1 for p, end in ends.items() for offset in range(end)})
    for claim in claims:
        for partition in ends:
            offsets = [offset for p, offset in claim if p == partition]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
    rows = db.execute("SELECT committed, claimed, lag FROM system.topic_groups ORDER BY partition_id").rows
    assert rows == [(end, 0, 0) for _, end in sorted(ends.items())]


def test_waiting_consumers_share_what_one_commit_brings(
    db: Database, pool: ThreadPoolExecutor, watched: Watched
) -> None:
    """Four wake, each gets its own part, none is given to two."""
    waiting = [pool.submit(take, db, f"c{i}", 2, timeout_seconds=LONG_SECONDS) for i in range(4)]
    watched.wait_parked(4)
    add(db, *range(8))
    given = [place for future in waiting for place in future.result(LONG_SECONDS)]
    assert sorted(given) == [(offset, 1) for offset in range(8)]


def test_groups_do_not_share(db: Database) -> None:
    add(db, 1, 2)
    for group in ("a", "b"):
        assert [m.offset for m in db.consume("app.queue", group=group).messages] == [0, 1]
    db.ack("app.queue", "a", 1)
    assert db.execute("SELECT group_id, lag FROM system.topic_groups ORDER BY 1").rows == [("a", 0), ("b", 2)]


def test_an_ack_never_covers_anothers_claim(db: Database) -> None:
    add(db, *range(6))
    assert take(db, "one", 2) == [(0, 1), (1, 1)]
    assert take(db, "two", 2) == [(2, 1), (3, 1)]
    assert take(db, "one", 2) == [(4, 1), (5, 1)]
    assert db.ack("app.queue", "g", 5, consumer="one") == 1, "two still holds 2 and 3"
    assert db.ack("app.queue", "g", 0, consumer="one") == 1, "never backwards"
    assert db.ack("app.queue", "g", 3, consumer="two") == 5


def test_single_acks_and_nacks(db: Database) -> None:
    add(db, *range(4))
    take(db, "one")
    assert db.ack("app.queue", "g", offsets=[1, 3], consumer="one") is None
    db.nack("app.queue", "g", [2], consumer="one")
    assert take(db, "two") == [(2, 2)]
    assert db.ack("app.queue", "g", offsets=[0, 2]) == 3


# --- visibility ----------------------------------------------------------------------------------------------


def test_a_claim_runs_out(db: Database, clock: FakeClock) -> None:
    add(db, *range(3))
    assert take(db, "one", 2, visibility_seconds=30) == [(0, 1), (1, 1)]
    assert take(db, "two") == [(2, 1)]
    clock.advance(29_999)
    assert take(db, "two") == []
    clock.advance(1)
    assert take(db, "two") == [(0, 2), (1, 2)]
    assert db.ack("app.queue", "g", 1, consumer="one") is None, "too late: they are another's"
    with pytest.raises(Conflict, match="'one'"):
        db.nack("app.queue", "g", [0], consumer="one")
    assert db.ack("app.queue", "g", 2, consumer="two") == 2


def test_a_late_ack_counts_while_nobody_else_was_given_the_messages(db: Database, clock: FakeClock) -> None:
    add(db, 1, 2)
    take(db, "one")
    clock.advance(61_000)
    db.run_job("claims")
    assert db.ack("app.queue", "g", 1, consumer="one") == 1
    assert take(db, "two") == []


def test_the_claims_job_shows_what_ran_out(db: Database, clock: FakeClock) -> None:
    add(db, 1, 2)
    take(db, "one")
    claimed = "SELECT claimed, lag FROM system.topic_groups"
    assert db.execute(claimed).rows == [(2, 2)]
    clock.advance(60_000)
    assert db.run_job("claims").count == 2
    assert db.execute(claimed).rows == [(0, 2)]
    assert db.run_job("claims").count == 0


def test_extend_and_release(db: Database, clock: FakeClock) -> None:
    add(db, *range(3))
    take(db, "one", 2, visibility_seconds=10)
    clock.advance(9_000)
    assert db.extend("app.queue", "g", "one", 10) == 2
    clock.advance(9_000)
    assert take(db, "two") == [(2, 1)]
    assert db.release("app.queue", "g", "one") == 2
    assert take(db, "two") == [(0, 2), (1, 2)]
    assert db.release("app.queue", "g", "nobody") == 0
    assert db.extend("app.queue", "g", "one", 10) == 0, "it holds nothing any more"


def test_readers_without_a_name_are_each_somebody_else(db: Database) -> None:
    add(db, *range(4))
    first = db.consume("app.queue", group="g", limit=2).messages
    second = db.consume("app.queue", group="g", limit=2).messages
    assert [m.offset for m in first + second] == [0, 1, 2, 3]
    assert db.ack("app.queue", "g", 3) is None, "the claim that holds 3, and no other"
    assert db.ack("app.queue", "g", 1) == 3


# --- crashes -------------------------------------------------------------------------------------------------


def test_a_restart_neither_loses_nor_repeats_more_than_the_unacknowledged(clock: FakeClock) -> None:
    store = MemoryStore()
    db = Database(store, clock=clock, jobs_interval_seconds=3600)
    db.execute_all(SCHEMA)
    add(db, *range(6))
    assert take(db, "one", 4) == [(i, 1) for i in range(4)]
    db.ack("app.queue", "g", 1, consumer="one")
    db.nack("app.queue", "g", [3], consumer="one")
    survivor = store.crash()
    with suppress(DatabaseClosed):
        db.close()
    with Database(survivor, clock=clock, jobs_interval_seconds=3600) as again:
        assert take(again, "two") == [(3, 2)], "what was given back"
        assert take(again, "two") == [(4, 1), (5, 1)], "then what is new"
        assert take(again, "two") == [], "one's claim on 2 is still open"
        clock.advance(60_000)
        assert take(again, "three") == [(2, 2), (3, 3), (4, 2), (5, 2)]
        assert again.ack("app.queue", "g", 5, consumer="three") == 5


def test_a_consumer_that_dies_in_its_handler(db: Database, clock: FakeClock) -> None:
    """Not an Exception but the end of the process: nothing is settled, the claim runs out, the next one gets it all."""
    add(db, *range(3))

    class Killed(BaseException):
        pass

    def die(message: Message) -> None:
        if message.offset == 1:
            raise Killed

    with pytest.raises(Killed):
        db.consumer("app.queue", "g", name="one").run(die, until_idle=True)
    handled: list[tuple[int, int]] = []
    survivor = db.consumer("app.queue", "g", name="two")
    assert survivor.run(lambda m: handled.append((m.offset, m.delivery)), until_idle=True) == 0
    clock.advance(60_000)
    assert survivor.run(lambda m: handled.append((m.offset, m.delivery)), until_idle=True) == 3
    assert handled == [(0, 2), (1, 2), (2, 2)]


# --- Consumer.run --------------------------------------------------------------------------------------------


class Flaky:
    """A handler that fails for some offsets, as often as told."""

    def __init__(self, failures: dict[int, int]) -> None:
        self.failures = failures
        self.tried: list[tuple[int, int]] = []

    def __call__(self, message: Message) -> None:
        self.tried.append((message.offset, message.delivery))
        if self.failures.get(message.offset, 0):
            self.failures[message.offset] -= 1
            raise ValueError(f"not {message.value['what']}")


def test_run_handles_everything_once_and_acknowledges(db: Database) -> None:
    add(db, *range(250))
    handler = Flaky({})
    assert db.consumer("app.queue", "g").run(handler, until_idle=True) == 250
    assert handler.tried == [(i, 1) for i in range(250)]
    assert db.execute("SELECT committed, claimed, lag FROM system.topic_groups").rows == [(250, 0, 0)]
    assert db.consumer("app.queue", "g").run(handler, until_idle=True) == 0


def test_a_handler_is_retried_within_one_delivery(db: Database) -> None:
    add(db, *range(3))
    handler = Flaky({1: 2})
    assert db.consumer("app.queue", "g").run(handler, retry=Retry(attempts=3, backoff_seconds=0), until_idle=True) == 3
    assert handler.tried == [(0, 1), (1, 1), (1, 1), (1, 1), (2, 1)]
    assert db.consume("app.dead", start=EARLIEST).messages == []


def test_between_two_attempts_it_waits_longer_each_time(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    add(db, 0)
    consumer = db.consumer("app.queue", "g")
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(consumer._stopped, "wait", wait)
    retry = Retry(attempts=6, backoff_seconds=1, max_backoff_seconds=5)
    assert consumer.run(Flaky({0: 5}), retry=retry, until_idle=True) == 1
    assert waits == [1, 2, 4, 5, 5]


def test_what_keeps_failing_is_delivered_again_and_then_dead(db: Database) -> None:
    """Two attempts per delivery, three deliveries: then it is a dead letter, and the others went through."""
    add(db, *range(3))
    handler = Flaky({1: 100})
    consumer = db.consumer("app.queue", "g", name="c")
    assert consumer.run(handler, retry=Retry(attempts=2, backoff_seconds=0), until_idle=True) == 2
    assert handler.tried == [(0, 1), (1, 1), (1, 1), (2, 1), (1, 2), (1, 2), (1, 3), (1, 3)]
    (letter,) = db.consume("app.dead", start=EARLIEST).messages
    assert letter.value["_dead_letter"]["deliveries"] == 3
    assert letter.value["_dead_letter"]["reason"] == "ValueError: not job 1"
    assert letter.value["message"]["id"] == 1
    assert db.execute("SELECT lag FROM system.topic_groups WHERE topic = 'app.queue'").rows == [(0,)]
    db.execute("REDRIVE TOPIC app.dead ALL")
    handler.failures = {}
    assert db.consumer("app.queue", "g").run(handler, until_idle=True) == 1
    assert handler.tried[-1] == (1, 1), "its deliveries are forgotten"


def test_one_that_fails_does_not_hold_up_the_others(db: Database) -> None:
    add(db, *range(4))
    handler = Flaky({0: 1, 2: 1})
    assert db.consumer("app.queue", "g", batch=2).run(handler, until_idle=True) == 4
    assert sorted(handler.tried) == [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (3, 1)]
    assert db.execute("SELECT lag FROM system.topic_groups").rows == [(0,)]


def test_run_until_it_is_stopped(db: Database, pool: ThreadPoolExecutor, watched: Watched) -> None:
    """It waits for messages, handles them as they come, and gives back what it did not handle."""
    handled: list[int] = []
    consumer = db.consumer("app.queue", "g", batch=10)

    def handle(message: Message) -> None:
        handled.append(message.offset)
        if message.offset == 3:
            consumer.stop()

    running = pool.submit(consumer.run, handle)
    watched.wait_parked()
    add(db, 0)
    watched.wait_parked()
    add(db, *range(1, 8))
    assert running.result(LONG_SECONDS) == 4
    assert handled == [0, 1, 2, 3]
    assert take(db, "next") == [(offset, 2) for offset in range(4, 8)], "given back at once"


def test_run_ends_when_the_database_is_closed(clock: FakeClock, pool: ThreadPoolExecutor, watched: Watched) -> None:
    db = tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600)
    db.execute_all(SCHEMA)
    running = pool.submit(db.consumer("app.queue", "g").run, lambda message: None)
    watched.wait_parked()
    db.close()
    assert running.result(LONG_SECONDS) == 0


def test_members_of_a_group_share_the_work(db: Database, pool: ThreadPoolExecutor) -> None:
    add(db, *range(300))
    handled: list[int] = []
    members = [db.consumer("app.wide", "g", batch=5) for _ in range(4)]
    done = [pool.submit(m.run, lambda message: handled.append(message.value["id"]), until_idle=True) for m in members]
    assert sum(future.result(LONG_SECONDS) for future in done) == 300
    assert sorted(handled) == list(range(300))


def test_a_repeat_of_what_was_handled_but_not_acknowledged_is_dropped(
    db: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ack is lost, the claim runs out: the same consumer does not handle the message twice."""
    add(db, *range(8))
    consumer = Consumer(db, "app.wide", "g", name="c")
    handled: list[int] = []
    real = db.ack

    def lost(*args: Any, **kwargs: Any) -> int:
        monkeypatch.setattr(db, "ack", real)
        raise ConnectionError

    monkeypatch.setattr(db, "ack", lost)
    with pytest.raises(ConnectionError):
        consumer.run(lambda message: handled.append(message.value["id"]), until_idle=True)
    before = len(handled)
    clock.advance(60_000)
    assert consumer.run(lambda message: handled.append(message.value["id"]), until_idle=True) == 8
    assert (0 < before < 8, sorted(handled)) == (True, list(range(8)))
    assert db.execute("SELECT sum(lag) FROM system.topic_groups").rows == [(0,)]


def test_an_ack_that_was_lost_with_its_claim_is_handed_over_again(
    db: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(db, 0, 1)
    consumer = Consumer(db, "app.queue", "g", name="c")
    handler = Flaky({})
    real = db.consume

    def lost(*args: Any, **kwargs: Any) -> Any:
        if kwargs["ack"] is None:
            return real(*args, **kwargs)
        monkeypatch.setattr(db, "consume", real)
        raise ConnectionError

    monkeypatch.setattr(db, "consume", lost)
    with pytest.raises(ConnectionError):
        consumer.run(handler, until_idle=True)
    clock.advance(60_000)
    assert consumer.run(handler, until_idle=True) == 2
    assert handler.tried == [(0, 1), (1, 1)]
    assert db.execute("SELECT lag FROM system.topic_groups").rows == [(0,)]


def test_a_consumer_is_told_what_retention_took(db: Database, clock: FakeClock) -> None:
    db.execute("ALTER TOPIC app.queue SET (retention_seconds = 10)")
    add(db, 0)
    take(db, "one")
    db.nack("app.queue", "g", [0])
    clock.advance(11_000)
    db.run_job("retention")
    with pytest.raises(OffsetOutOfRange, match="auto_offset_reset"):
        db.consumer("app.queue", "g").run(lambda message: None, until_idle=True)


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_handler_is_tried_at_least_once(attempts: int) -> None:
    with pytest.raises(InvalidRequest, match="at least 1"):
        Retry(attempts=attempts)
