"""Requests that meet trouble: what is repeated, what is not, and which error comes of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from client_double import FAST, Double, Drop, Half, Reply, Seen, refusal, rows_reply, written

import tablecast
from tablecast import Retry, connect_async
from tablecast.client.connection import Attempts, Connection, Request
from tablecast.client.failures import ERRORS
from tablecast.client.wire import arrow_stream
from tablecast.errors import (
    CorruptData,
    DatabaseClosed,
    DatabaseError,
    DuplicateKey,
    InvalidRequest,
    LockedOut,
    Overloaded,
    RateLimited,
    TablecastError,
    Timeout,
    Unauthenticated,
    Unreachable,
)

ONE = arrow_stream(pa.table({"one": [1]}))
Trouble = Callable[[], Reply]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def raising(error: Exception) -> Trouble:
    def trouble() -> Reply:
        raise error

    return trouble


def first(trouble: Trouble, times: int, then: Callable[[Seen], Reply]) -> Callable[[Seen], Awaitable[Reply]]:
    """Trouble so many times, then an answer."""
    left = times

    async def answer(seen: Seen) -> Reply:
        nonlocal left
        if left:
            left -= 1
            return trouble()
        return then(seen)

    return answer


TROUBLES = {
    "dropped": raising(Drop()),
    "half an answer": raising(Half()),
    "overloaded": lambda: refusal(503, "overloaded", **{"Retry-After": "0"}),
    "rate limited": lambda: refusal(429, "rate_limited", **{"Retry-After": "0"}),
    "a gateway": lambda: Reply(b"<html>bad gateway</html>", 502, content_type="text/html"),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_read_is_repeated(trouble: Trouble) -> None:
    async def test() -> None:
        async with Double(first(trouble, 2, lambda seen: rows_reply(ONE))) as double, await double.client() as client:
            assert (await client.query("SELECT 1 AS one")).rows == [(1,)]
            assert double.paths() == ["/sql"] * 3

    run(test)


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_write_is_repeated_under_the_same_key(trouble: Trouble) -> None:
    async def test() -> None:
        async with Double(first(trouble, 2, written)) as double, await double.client() as client:
            assert (await client.execute("INSERT INTO app.t VALUES (?)", [1])).seq == 7
            keys = [write["idempotency_key"] for seen in double.seen for write in seen.body["writes"]]
            assert len(keys) == 3
            assert len(set(keys)) == 1

    run(test)


@pytest.mark.parametrize("name", ["dropped", "half an answer", "a gateway"])
def test_what_may_have_run_is_not_repeated_without_a_key(name: str) -> None:
    async def test() -> None:
        async with (
            Double(first(TROUBLES[name], 1, lambda seen: rows_reply(ONE))) as double,
            await double.client() as client,
        ):
            with pytest.raises(Timeout, match="not known"):
                await client.execute("CREATE NAMESPACE app")
            with_key = await client.execute("INSERT INTO t VALUES (1); DELETE FROM t", idempotency_key="k")
            assert with_key.rows == [(1,)]
            assert double.paths() == ["/sql"] * 2
            assert double.seen[1].headers["Idempotency-Key"] == "k"

    run(test)


def test_a_claim_whose_answer_is_lost_is_not_repeated_but_a_plain_read_is() -> None:
    async def test() -> None:
        nothing = Reply({"messages": [], "next_offset": None, "has_more": False, "skipped": []})
        async with Double(first(raising(Drop()), 1, lambda seen: nothing)) as double, await double.client() as client:
            with pytest.raises(Timeout):
                await client.consume("app.events", group="g")
            double.answer = first(raising(Drop()), 1, lambda seen: nothing)
            assert (await client.consume("app.events")).messages == []
            assert len(double.seen) == 3

    run(test)


def test_the_attempts_end() -> None:
    async def test() -> None:
        async with Double(first(raising(Drop()), 99, written)) as double, await double.client() as client:
            with pytest.raises(Timeout, match="no answer"):
                await client.query("SELECT 1")
            assert len(double.seen) == FAST.attempts
            double.answer = first(TROUBLES["overloaded"], 99, written)
            with pytest.raises(Overloaded):
                await client.query("SELECT 1")

    run(test)


def test_a_server_that_is_not_there() -> None:
    async def test() -> None:
        async with await connect_async(url, retry=FAST) as client:
            with pytest.raises(Unreachable, match="cannot be reached") as caught:
                await client.execute("CREATE NAMESPACE app")
            assert caught.value.details["url"] == url

    with socket.socket() as taken:  # bound, but nobody listens; nobody else is given it
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        run(test)


def test_locked_out_is_not_tried_again() -> None:
    async def test() -> None:
        async with (
            Double(first(lambda: refusal(429, "locked_out"), 1, written)) as double,
            await double.client() as client,
        ):
            with pytest.raises(LockedOut):
                await client.execute("INSERT INTO t VALUES (1)")
            assert len(double.seen) == 1

    run(test)


# --- waiting -----------------------------------------------------------------------------------------------------


class Time:
    """A clock that moves by waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def waits(retry: Retry, chance: float, error: TablecastError | None = None) -> list[float]:
    clock = Time()

    async def use_all() -> None:
        attempts = Attempts(retry, clock.monotonic, clock.sleep, lambda: chance)
        while await attempts.again(error):
            pass

    asyncio.run(use_all())
    return clock.waits


def test_waits_double_up_to_a_bound_and_are_spread() -> None:
    retry = Retry(attempts=6, backoff_seconds=1, max_backoff_seconds=5)
    assert waits(retry, chance=1.0) == [1, 2, 4, 5, 5]
    assert waits(retry, chance=0.0) == [0.5, 1, 2, 2.5, 2.5]


def test_all_of_it_takes_no_longer_than_the_total() -> None:
    retry = Retry(attempts=100, backoff_seconds=1, max_backoff_seconds=4, total_seconds=10)
    assert waits(retry, chance=1.0) == [1, 2, 4]


def test_it_waits_as_long_as_the_server_asks() -> None:
    busy = RateLimited("slow down", retry_after_seconds=3.0)
    assert waits(Retry(attempts=3, backoff_seconds=1), 1.0, busy) == [3, 3]
    assert waits(Retry(attempts=3, backoff_seconds=1, total_seconds=2), 1.0, busy) == []


def test_retry_after_reaches_the_wait() -> None:
    async def test() -> None:
        clock = Time()
        busy = first(lambda: refusal(503, "overloaded", **{"Retry-After": "17"}), 1, lambda seen: Reply({}))
        async with Double(busy) as double:
            connection = Connection(
                double.url, timeout_seconds=30, retry=Retry(attempts=2), monotonic=clock.monotonic, sleep=clock.sleep
            )
            await connection.call(Request("/x", safe=True))
            await connection.close()
        assert clock.waits == [17.0]

    run(test)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"backoff_seconds": -1}, {"total_seconds": -1}])
def test_a_retry_that_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Retry(**wrong)


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.code)
def test_an_error_arrives_as_the_class_it_was_raised_as(cls: type[TablecastError]) -> None:
    told = {"error": {"code": cls.code, "message": "why", "details": {"message": "inner", "column": "a"}}}

    async def test() -> None:
        async def answer(seen: Seen) -> Reply:
            return Reply(told, cls.status)

        async with Double(answer) as double, await double.client(retry=Retry()) as client:
            with pytest.raises(TablecastError) as caught:
                await client.execute("CREATE NAMESPACE app")
            assert type(caught.value) is cls
            assert str(caught.value) == "why"
            assert caught.value.details["column"] == "a"

    run(test)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (refusal(500, "from_the_future"), DatabaseError),
        (refusal(409, "from_the_future"), tablecast.errors.Conflict),
        (Reply(b"nginx says no", 403, content_type="text/html"), tablecast.errors.PermissionDenied),
        (
            Reply(b'{"error": {"code": "duplicate_key", "message": "m"}}', 422, content_type="application/json"),
            DuplicateKey,
        ),
        (Reply(b"not MessagePack"), CorruptData),
        (Reply({"results": "none"}), CorruptData),
    ],
)
def test_answers_that_are_not_as_agreed(reply: Reply, expected: type[TablecastError]) -> None:
    async def test() -> None:
        async with Double(first(lambda: reply, 99, written)) as double, await double.client() as client:
            with pytest.raises(TablecastError) as caught:
                await client.execute("CREATE NAMESPACE app")
            assert type(caught.value) is expected

    run(test)


@pytest.mark.parametrize(
    ("url", "settings", "said"),
    [
        ("ftp://host", {}, "http"),
        ("localhost:8080", {}, "http"),
        ("http://", {}, "http"),
        ("http://host", {"user": "ann"}, "password"),
        ("http://host", {"user": "ann", "password": "x", "token": "y"}, "not both"),
    ],
)
def test_an_address_or_credentials_that_make_no_sense(url: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        tablecast.connect(url, **settings)


def test_no_credentials_is_for_the_server_to_refuse() -> None:
    async def test() -> None:
        async with Double(first(lambda: refusal(401, "unauthenticated"), 1, written)) as double:
            async with await double.client() as client:
                with pytest.raises(Unauthenticated):
                    await client.query("SELECT 1")
            assert "Authorization" not in double.seen[0].headers
            assert len(double.seen) == 1

    run(test)


# --- closing -----------------------------------------------------------------------------------------------------


def test_a_closed_client_says_so() -> None:
    async def test() -> None:
        async with Double(first(raising(Drop()), 0, written)) as double:
            client = await double.client()
            await client.close()
            await client.close()
            for call in (client.query("SELECT 1"), client.execute("INSERT INTO t VALUES (1)"), client.ack("t", "g", 1)):
                with pytest.raises(DatabaseClosed):
                    await call
            assert double.seen == []

    run(test)


def test_closing_ends_a_waiting_consume() -> None:
    async def test() -> None:
        arrived = asyncio.Event()

        async def answer(seen: Seen) -> Reply:
            arrived.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with Double(answer) as double:
            client = await double.client()
            waiting = asyncio.create_task(client.consume("app.events", timeout_seconds=300))
            await arrived.wait()
            await client.close()
            with pytest.raises(DatabaseClosed):
                await waiting

    run(test)


def test_query_refuses_what_is_not_a_read_before_it_is_sent() -> None:
    async def test() -> None:
        async with Double(first(raising(Drop()), 0, written)) as double, await double.client() as client:
            with pytest.raises(InvalidRequest, match=r"execute\(\)"):
                await client.query("DELETE FROM t")
            assert double.seen == []

    run(test)
