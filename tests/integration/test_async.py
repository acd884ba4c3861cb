"""The database for asyncio: what takes no thread, who is woken, and what a task that goes away leaves behind.

Nothing here sleeps: `asyncio.sleep(0)` only lets other tasks run.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tablecast
from tablecast import EARLIEST, AsyncDatabase, Result
from tablecast.engine.decision import Decision
from tablecast.engine.writer import QUEUE_COMMANDS
from tablecast.errors import DatabaseClosed, DuplicateKey, InvalidRequest
from tablecast.sql import aio
from tablecast.sql.aio import THREADS
from tablecast.testing.clock import FakeClock

LONG_SECONDS = 60.0  # no test waits for it: a commit ends the wait, or the test has failed
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY, what TEXT);
CREATE TOPIC app.queue;
ALTER TOPIC app.queue ADD SOURCE app.jobs ON INSERT
"""


def run_async(test: Callable[[AsyncDatabase], Any], clock: Callable[[], int] | None = None) -> None:
    async def main() -> None:
        settings = {} if clock is None else {"clock": clock}
        async with await tablecast.open_async(":memory:", jobs_interval_seconds=3600, **settings) as db:
            await db.execute_all(SCHEMA)
            await test(db)

    asyncio.run(main())


async def parked(db: AsyncDatabase, readers: int) -> None:
    """Lets the loop run until so many readers sleep on it."""
    while db.sleeping < readers:
        await asyncio.sleep(0)


class Looks:
    """Counts how often readers look for messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("read_now", "claim_of"):
            monkeypatch.setattr(aio, name, functools.partial(self._look, getattr(aio, name)))

    def _look(self, look: Callable[..., Any], *args: Any) -> Any:
        self.count += 1
        return look(*args)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def statement_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("tablecast-statement")]


def test_500_parked_consumers_cost_no_thread_and_no_polling(looks: Looks) -> None:
    readers = 500

    async def test(db: AsyncDatabase) -> None:
        waiting = [asyncio.create_task(db.consume("app.queue", timeout_seconds=LONG_SECONDS)) for _ in range(readers)]
        await parked(db, readers)
        assert db.parked == readers
        assert db.database.engine.feed.waiting == 1, "the loop has one subscription for all of them"
        assert len(statement_threads()) <= THREADS
        before = looks.count
        assert (await db.execute("SELECT 1 + 1")).scalar() == 2, "no thread is taken"
        await db.insert("app.jobs", [{"id": 1}])
        found = await asyncio.gather(*waiting)
        assert [[m.value["id"] for m in each.messages] for each in found] == [[1]] * readers
        assert looks.count == before + readers, "each looked once more: nothing is polled"
        assert (db.parked, db.database.engine.feed.waiting) == (0, 0)

    run_async(test)


def test_a_commit_wakes_one_member_of_a_group(looks: Looks) -> None:
    readers = 100

    async def test(db: AsyncDatabase) -> None:
        await db.consume("app.queue", group="g")
        waiting = [
            asyncio.create_task(db.consume("app.queue", group="g", timeout_seconds=LONG_SECONDS))
            for _ in range(readers)
        ]
        await parked(db, readers)
        before = looks.count
        await db.insert("app.jobs", [{"id": 1}])
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [m.offset for task in done for m in task.result().messages] == [0]
        await parked(db, readers - 1)
        assert looks.count <= before + 2, "the first of the line, and the one that became the first"
        db.end_waits()
        assert [task.result().messages for task in (await asyncio.wait(pending))[0]] == [[]] * (readers - 1)

    run_async(test)


def test_parked_members_of_a_group_share_what_comes() -> None:
    async def test(db: AsyncDatabase) -> None:
        waiting = [
            asyncio.create_task(
                db.consume("app.queue", group="g", consumer=f"c{i}", limit=5, timeout_seconds=LONG_SECONDS)
            )
            for i in range(20)
        ]
        await parked(db, 20)
        await db.insert("app.jobs", [{"id": i} for i in range(100)])
        found = await asyncio.gather(*waiting)
        assert sorted(m.offset for each in found for m in each.messages) == list(range(100))

    run_async(test)


def test_the_first_of_the_line_leaves_and_the_next_watches_for_claims_that_run_out() -> None:
    clock = FakeClock()

    async def test(db: AsyncDatabase) -> None:
        await db.insert("app.jobs", [{"id": 1}])
        assert (await db.consume("app.queue", group="g", visibility_seconds=0.001)).messages
        first, second = (
            asyncio.create_task(db.consume("app.queue", group="g", timeout_seconds=LONG_SECONDS)) for _ in range(2)
        )
        while db.parked < 2:
            await asyncio.sleep(0)
        first.cancel()
        clock.advance(10)
        assert [(m.offset, m.delivery) for m in (await second).messages] == [(0, 2)]

    run_async(test, clock)


def test_a_claim_of_a_task_that_was_cancelled_is_given_back_uncounted() -> None:
    async def test(db: AsyncDatabase) -> None:
        await db.insert("app.jobs", [{"id": 1}, {"id": 2}])
        held = await db.consume("app.queue", group="g", consumer="c", limit=1)
        cancelled = asyncio.create_task(db.consume("app.queue", group="g", consumer="c"))
        await asyncio.sleep(0)  # it has asked for a claim
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        found = await db.consume("app.queue", group="g", consumer="other", timeout_seconds=LONG_SECONDS)
        assert [(m.offset, m.delivery) for m in found.messages] == [(1, 1)]
        assert [m.offset for m in held.messages] == [0], "what it held before is still its own"
        assert await db.ack("app.queue", "g", 0, consumer="c") == 0

    run_async(test)


def test_an_answer_that_reached_nobody_is_given_back_uncounted() -> None:
    async def test(db: AsyncDatabase) -> None:
        await db.insert("app.jobs", [{"id": 1}])
        lost = await db.consume("app.queue", group="g")
        await db.give_back("app.queue", "g", lost)
        assert [(m.offset, m.delivery) for m in (await db.consume("app.queue", group="g")).messages] == [(0, 1)]

    run_async(test)


def test_a_reader_that_goes_away_leaves_nothing_behind() -> None:
    async def test(db: AsyncDatabase) -> None:
        waiting = [asyncio.create_task(db.consume("app.queue", timeout_seconds=LONG_SECONDS)) for _ in range(10)]
        await parked(db, 10)
        for task in waiting:
            task.cancel()
        assert all(
            isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*waiting, return_exceptions=True)
        )
        assert (db.parked, db.database.engine.feed.waiting) == (0, 0)
        await db.insert("app.jobs", [{"id": 1}])
        assert len((await db.consume("app.queue", start=EARLIEST)).messages) == 1

    run_async(test)


def test_an_async_wait_that_is_over() -> None:
    async def test(db: AsyncDatabase) -> None:
        found = await db.consume("app.queue", group="g", timeout_seconds=0.001)
        assert found.messages == []
        assert (db.parked, db.database.engine.feed.waiting) == (0, 0)

    run_async(test)


def test_closing_ends_async_waits() -> None:
    async def test(db: AsyncDatabase) -> None:
        waiting = [
            asyncio.create_task(db.consume("app.queue", group=group, timeout_seconds=LONG_SECONDS))
            for group in (None, "g")
            for _ in range(5)
        ]
        await parked(db, 10)
        await db.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in ended] == [DatabaseClosed] * 10

    run_async(test)


def test_prepared_writes_and_small_reads_take_no_thread() -> None:
    async def test(db: AsyncDatabase) -> None:
        insert = "INSERT INTO app.jobs (id) VALUES (?)"
        await db.execute(insert, (0,))  # planned in the pool, once

        def refused(*_: Any) -> Any:
            raise AssertionError("a thread was asked for")

        db._loop.pool.submit = refused  # type: ignore[method-assign]
        done = await asyncio.gather(*(db.execute(insert, (i,), idempotency_key=f"k{i}") for i in range(1, 50)))
        assert [r.row_count for r in done] == [1] * 49
        await db.insert("app.jobs", [{"id": 50}])
        found = await db.consume("app.queue", group="g", consumer="c")
        assert [m.offset for m in found.messages] == list(range(51))
        assert await db.ack("app.queue", "g", 50, consumer="c") == 50
        with pytest.raises(DuplicateKey):
            await db.execute(insert, (1,))
        del db._loop.pool.submit

    run_async(test)


def test_a_full_queue_refuses_or_waits() -> None:
    """The writer is held up by a command of ours until the queue is full."""

    def held_up(waits: bool) -> list[type]:
        hold, holding = threading.Event(), threading.Event()

        class Hold:
            weight = 1
            alone = True

            def decide(self, view: Any) -> Decision:
                holding.set()
                assert hold.wait(LONG_SECONDS)
                return Decision()

        async def main() -> list[type]:
            async with await tablecast.open_async(":memory:", jobs_interval_seconds=3600, waits=waits) as db:
                await db.execute_all(SCHEMA)
                engine = db.database.engine
                engine.submit(Hold())
                while not holding.is_set():
                    await asyncio.sleep(0)
                writes = [asyncio.create_task(db.insert("app.jobs", [{"id": i}])) for i in range(QUEUE_COMMANDS + 3)]
                while engine.queue_depth < QUEUE_COMMANDS:
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                hold.set()
                return [type(done) for done in await asyncio.gather(*writes, return_exceptions=True)]

        return asyncio.run(main())

    assert sorted(kind.__name__ for kind in held_up(waits=False))[:4] == ["Overloaded"] * 3 + ["Result"]
    assert set(held_up(waits=True)) == {Result}


def test_the_async_twin_does_what_the_sync_one_does() -> None:
    clock = FakeClock()

    async def test(db: AsyncDatabase) -> None:
        done = await db.insert("app.jobs", [(1, "a"), (2, "b")], idempotency_key="k")
        again = await db.insert("app.jobs", [(1, "a"), (2, "b")], idempotency_key="k")
        assert (done.row_count, done.seq) == (again.row_count, again.seq)
        assert (await db.query("SELECT sum(id) FROM app.jobs")).scalar() == 3
        assert [m.offset for m in (await db.consume("app.queue", group="g", consumer="c")).messages] == [0, 1]
        assert await db.extend("app.queue", "g", "c", 30) == 2
        assert await db.ack("app.queue", "g", 0, consumer="c") == 0
        assert await db.nack("app.queue", "g", [1], consumer="c") == 0
        assert [(m.offset, m.delivery) for m in (await db.consume("app.queue", group="g", consumer="c")).messages] == [
            (1, 2)
        ]
        assert await db.release("app.queue", "g", "c") == 1
        assert (await db.read_arrow("app.queue")).num_rows == 2
        assert [batch.num_rows async for batch in db.stream_arrow("app.queue")] == [2]
        with pytest.raises(InvalidRequest, match="limit"):
            await db.consume("app.queue", limit=0)

    run_async(test, clock)


def test_the_async_twin_after_close() -> None:
    async def test(db: AsyncDatabase) -> None:
        await db.close()
        await db.close()
        with pytest.raises(DatabaseClosed):
            await db.execute("SELECT 1")
        with pytest.raises(DatabaseClosed):
            await db.consume("app.queue", timeout_seconds=LONG_SECONDS)

    run_async(test)


def test_writes_of_many_tasks() -> None:
    async def test(db: AsyncDatabase) -> None:
        await asyncio.gather(*(db.insert("app.jobs", [{"id": i}]) for i in range(200)))
        found = (await db.consume("app.queue", start=EARLIEST, limit=1000)).messages
        assert sorted(m.value["id"] for m in found) == list(range(200))
        assert [m.offset for m in found] == list(range(200))
        assert db.database.verify().problems == []

    run_async(test)
