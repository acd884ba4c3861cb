"""Writes that travel together: when, how many, and that each of them has its own end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

import pytest
from client_double import Double, Reply, Seen, refusal, written

from tablecast import Retry
from tablecast.client import coalesce
from tablecast.client.coalesce import CONFLICTS, REQUEST_WRITES, REQUESTS, Coalescer, Outcome, new_key
from tablecast.client.connection import Attempts
from tablecast.codec.result import Result
from tablecast.errors import (
    DatabaseClosed,
    DuplicateKey,
    InvalidRequest,
    Overloaded,
    TablecastError,
    TooLarge,
    TransactionConflict,
)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def settled() -> None:
    """Everything that can go on without the outside has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


class Line:
    """Takes requests and answers them when told. The outcome of a write is what `judge` says."""

    def __init__(self, judge: Callable[[bytes], Outcome | None] = lambda packed: None) -> None:
        self.requests: list[list[bytes]] = []
        self.judge = judge
        self.open = asyncio.Event()

    async def send(self, packed: Sequence[bytes]) -> list[Outcome]:
        self.requests.append(list(packed))
        await self.open.wait()
        return [self.judge(write) or Result.of_write(1, write.decode(), 1) for write in packed]

    def coalescer(self, retry: Retry | None = None) -> Coalescer:
        async def no_wait(seconds: float) -> None:
            await asyncio.sleep(0)

        return Coalescer(self.send, lambda: Attempts(retry or Retry(attempts=3), lambda: 0.0, no_wait, lambda: 1.0))


def test_a_lone_write_is_sent_at_once() -> None:
    async def test() -> None:
        line = Line()
        line.open.set()
        assert (await line.coalescer().write(b"a")).message == "a"
        assert line.requests == [[b"a"]]

    run(test)


def test_what_comes_while_requests_are_under_way_travels_together() -> None:
    async def test() -> None:
        line = Line()
        coalescer = line.coalescer()
        early = []
        for n in range(REQUESTS):
            early.append(asyncio.create_task(coalescer.write(b"early %d" % n)))
            await settled()
        late = [asyncio.create_task(coalescer.write(b"late %d" % n)) for n in range(50)]
        await settled()
        assert [len(request) for request in line.requests] == [1] * REQUESTS
        line.open.set()
        results = await asyncio.gather(*early, *late)
        assert [len(request) for request in line.requests] == [1] * REQUESTS + [50]
        assert [r.message for r in results[REQUESTS:]] == [f"late {n}" for n in range(50)]

    run(test)


def test_writes_of_one_moment_are_one_request() -> None:
    async def test() -> None:
        line = Line()
        line.open.set()
        coalescer = line.coalescer()
        await asyncio.gather(*(coalescer.write(b"%d" % n) for n in range(100)))
        assert [len(request) for request in line.requests] == [100]

    run(test)


def test_a_request_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "REQUEST_BYTES", 100)

    async def test() -> None:
        line = Line()
        line.open.set()
        coalescer = line.coalescer()
        await asyncio.gather(*(coalescer.write(b"x" * 40) for _ in range(6)), coalescer.write(b"y" * 5000))
        assert [[len(write) for write in request] for request in line.requests] == [[40, 40]] * 3 + [[5000]]
        line.requests.clear()
        await asyncio.gather(*(coalescer.write(b"") for _ in range(REQUEST_WRITES + 1)))
        assert [len(request) for request in line.requests] == [REQUEST_WRITES, 1]

    run(test)


def test_what_does_not_fit_into_a_request_does_not_wait_for_its_answer() -> None:
    async def test() -> None:
        line = Line()
        coalescer = line.coalescer()
        tasks = [asyncio.create_task(coalescer.write(b"")) for _ in range(REQUEST_WRITES + 1)]
        await settled()
        assert [len(request) for request in line.requests] == [REQUEST_WRITES, 1]
        line.open.set()
        await asyncio.gather(*tasks)

    run(test)


def test_each_caller_gets_its_own_error() -> None:
    def judge(packed: bytes) -> TablecastError | None:
        return DuplicateKey(f"{packed.decode()} exists") if int(packed) % 2 else None

    async def test() -> None:
        line = Line(judge)
        line.open.set()
        coalescer = line.coalescer()
        ends = await asyncio.gather(*(coalescer.write(b"%d" % n) for n in range(10)), return_exceptions=True)
        assert len(line.requests) == 1
        for n, end in enumerate(ends):
            if n % 2:
                assert isinstance(end, DuplicateKey)
                assert str(end) == f"{n} exists"
            else:
                assert isinstance(end, Result)
                assert end.message == str(n)

    run(test)


def test_a_request_that_fails_for_one_write_is_sent_again_in_parts() -> None:
    """Nobody pays for another caller's mistake."""

    async def test() -> None:
        sent: list[int] = []

        async def send(packed: Sequence[bytes]) -> list[Outcome]:
            sent.append(len(packed))
            if b"bad" in packed:
                raise InvalidRequest("the request does not decode")
            if b"big" in packed:
                raise TooLarge("the request is too large")
            return [Result.of_write(1, "INSERT 1", 1) for _ in packed]

        coalescer = Coalescer(send, Line().coalescer()._attempts)
        writes = [b"good", b"bad", b"big", b"fine"]
        ends = await asyncio.gather(*map(coalescer.write, writes), return_exceptions=True)
        assert [type(end) for end in ends] == [Result, InvalidRequest, TooLarge, Result]
        assert sent == [4, 1, 1, 1, 1]

    run(test)


def test_an_error_of_the_whole_request_is_everybodys_but_not_one_exception() -> None:
    async def test() -> None:
        async def send(packed: Sequence[bytes]) -> list[Outcome]:
            raise Overloaded("away", url="u")

        coalescer = Coalescer(send, Line().coalescer()._attempts)
        ends = await asyncio.gather(*(coalescer.write(b"x") for _ in range(3)), return_exceptions=True)
        assert [(type(end), str(end)) for end in ends] == [(Overloaded, "away")] * 3
        assert len(set(map(id, ends))) == 3

    run(test)


def test_a_write_that_others_got_ahead_of_is_sent_again() -> None:
    conflicts = {b"a": 5, b"b": 10**9}

    def judge(packed: bytes) -> TablecastError | None:
        conflicts[packed] -= 1
        return TransactionConflict("another committed first") if conflicts[packed] >= 0 else None

    async def test() -> None:
        line = Line(judge)
        line.open.set()
        coalescer = line.coalescer()
        assert (await coalescer.write(b"a")).message == "a"
        assert len(line.requests) == 6
        line.requests.clear()
        with pytest.raises(TransactionConflict):
            await coalescer.write(b"b")
        assert len(line.requests) == CONFLICTS

    run(test)


def test_a_write_that_met_a_full_queue_is_sent_again_as_often_as_the_retry_says() -> None:
    async def test() -> None:
        line = Line(lambda packed: Overloaded("full"))
        line.open.set()
        with pytest.raises(Overloaded):
            await line.coalescer(Retry(attempts=3)).write(b"a")
        assert len(line.requests) == 3

    run(test)


def test_callers_wait_for_room_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "QUEUED_WRITES", 3)

    async def test() -> None:
        line = Line()
        coalescer = line.coalescer()
        tasks = []
        for n in range(REQUESTS + 5):
            tasks.append(asyncio.create_task(coalescer.write(b"%d" % n)))
            await settled()
        assert len(coalescer._queue) == 3
        assert len(coalescer._room) == 2
        line.open.set()
        await asyncio.gather(*tasks)
        assert [int(write) for request in line.requests for write in request] == list(range(REQUESTS + 5))

    run(test)


def test_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "QUEUED_BYTES", 10)

    async def test() -> None:
        line = Line()
        coalescer = line.coalescer()
        tasks = []
        for _ in range(REQUESTS + 3):
            tasks.append(asyncio.create_task(coalescer.write(b"x" * 10)))
            await settled()
        assert (len(coalescer._queue), len(coalescer._room)) == (1, 2)
        line.open.set()
        await asyncio.gather(*tasks)
        assert coalescer._queued_bytes == 0

    run(test)


def test_a_caller_that_gives_up_while_it_waits_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "QUEUED_WRITES", 2)

    async def test() -> None:
        line = Line()
        coalescer = line.coalescer()
        tasks = []
        for n in range(REQUESTS + 4):
            tasks.append(asyncio.create_task(coalescer.write(b"%d" % n)))
            await settled()
        under_way, queued, waiting = tasks[0], tasks[REQUESTS], tasks[REQUESTS + 2]
        for task in (under_way, queued, waiting):
            task.cancel()
        await settled()
        line.open.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [task in (under_way, queued, waiting) for task in tasks]
        sent = {int(write) for request in line.requests for write in request}
        assert sent == set(range(REQUESTS + 4)) - {REQUESTS, REQUESTS + 2}, "what was under way is not undone"

    run(test)


def test_a_request_whose_callers_are_all_gone_is_not_sent() -> None:
    async def test() -> None:
        line = Line()
        line.open.set()
        coalescer = line.coalescer()
        writing = asyncio.create_task(coalescer.write(b"a"))
        await asyncio.sleep(0)
        writing.cancel()
        await settled()
        assert line.requests == []
        assert (await coalescer.write(b"b")).message == "b"

    run(test)


def test_a_request_that_is_cancelled_before_it_begins_takes_no_write_along() -> None:
    async def test() -> None:
        line = Line()
        line.open.set()
        coalescer = line.coalescer()
        writing = asyncio.create_task(coalescer.write(b"a"))
        await asyncio.sleep(0)
        (request,) = coalescer._requests
        request.cancel()
        assert (await writing).message == "a"
        assert request.cancelled()

    run(test)


def test_closing_waits_for_what_is_queued_and_refuses_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "QUEUED_WRITES", 2)

    async def test() -> None:
        line = Line()
        coalescer = line.coalescer()
        tasks = []
        for n in range(REQUESTS + 3):
            tasks.append(asyncio.create_task(coalescer.write(b"%d" % n)))
            await settled()
        closing = asyncio.create_task(coalescer.close())
        await settled()
        assert not closing.done()
        with pytest.raises(DatabaseClosed):
            await coalescer.write(b"late")
        line.open.set()
        await closing
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [Result] * (REQUESTS + 2) + [DatabaseClosed]

    run(test)


def test_something_unforeseen_reaches_every_caller() -> None:
    async def test() -> None:
        async def send(packed: Sequence[bytes]) -> list[Outcome]:
            raise ZeroDivisionError

        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        coalescer = Coalescer(send, Line().coalescer()._attempts)
        ends = await asyncio.gather(*(coalescer.write(b"x") for _ in range(3)), return_exceptions=True)
        assert [type(end) for end in ends] == [ZeroDivisionError] * 3

    run(test)


# --- over HTTP ---------------------------------------------------------------------------------------------------


def test_a_client_coalesces_rows_and_sql_but_not_several_statements() -> None:
    async def test() -> None:
        async def answer(seen: Seen) -> Reply:
            return written(seen) if seen.path.endswith("/writes") else Reply({"results": [{"message": "OK"}]})

        async with Double(answer) as double, await double.client(namespace="app") as client:
            await asyncio.gather(
                client.insert("t", [{"id": 1}], mode="upsert", idempotency_key="mine"),
                client.execute("UPDATE t SET a = ?", [2]),
                client.execute("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)"),
            )
            writes, other = sorted(double.seen, key=lambda seen: seen.path, reverse=True)
            rows, sql = writes.body["writes"]
            assert rows == {"table": "app.t", "rows": [{"id": 1}], "mode": "upsert", "idempotency_key": "mine"}
            assert (sql["sql"], sql["params"], sql["namespace"]) == ("UPDATE t SET a = ?", [2], "app")
            assert re.fullmatch("[0-9a-f]{32}", sql["idempotency_key"])
            assert "Idempotency-Key" not in other.headers

    run(test)


def test_each_error_of_a_shared_request_is_its_callers() -> None:
    async def test() -> None:
        async def answer(seen: Seen) -> Reply:
            failure = {"error": {"code": "duplicate_key", "message": "key 1 exists", "details": {"key": 1}}}
            return Reply(
                {
                    "results": [
                        failure if write["params"] == [1] else {"row_count": 1, "seq": 3}
                        for write in seen.body["writes"]
                    ]
                }
            )

        async with Double(answer) as double, await double.client() as client:
            calls = (client.execute("INSERT INTO t VALUES (?)", [n]) for n in range(3))
            first, second, third = await asyncio.gather(*calls, return_exceptions=True)
            assert len(double.seen) == 1
            assert isinstance(second, DuplicateKey)
            assert second.details == {"key": 1}
            assert isinstance(first, Result)
            assert isinstance(third, Result)

    run(test)


def test_an_answer_with_too_few_results_is_an_error_for_all() -> None:
    async def test() -> None:
        async def answer(seen: Seen) -> Reply:
            return Reply({"results": []})

        async with Double(answer) as double, await double.client() as client:
            ends = await asyncio.gather(*(client.insert("a.t", [(n,)]) for n in range(2)), return_exceptions=True)
            assert [getattr(end, "code", None) for end in ends] == ["corrupt_data"] * 2

    run(test)


def test_keys_are_ordered_by_time_and_unique() -> None:
    keys = [new_key() for _ in range(10_000)]
    assert len(set(keys)) == len(keys)
    times = [int(key[:12], 16) for key in keys]
    assert times == sorted(times)
    assert len({key[12:] for key in keys}) == len(keys), "chance alone tells them apart"


def test_a_refusal_is_not_mistaken_for_an_answer() -> None:
    async def test() -> None:
        async def answer(seen: Seen) -> Reply:
            return refusal(403, "permission_denied", "not yours")

        async with Double(answer) as double, await double.client() as client:
            ends = await asyncio.gather(*(client.insert("a.t", [(n,)]) for n in range(2)), return_exceptions=True)
            assert [str(end) for end in ends] == ["not yours"] * 2

    run(test)
