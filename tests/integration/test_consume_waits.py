"""How long a consume waits: the default, the maximum, what the answer tells; embedded, async and over HTTP alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast import EARLIEST, connect, connect_async
from tablecast.codec.consumed import decode_consumed
from tablecast.errors import InvalidRequest
from tablecast.server.bodies import ARROW, JSON, LOG, MSGPACK
from tablecast.sql.plan_topic import wait_seconds

SETUP = """CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY);
CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.orders ON ANY; INSERT INTO app.orders VALUES (1)"""
SHORT = 0.01  # the longest wait of a server whose waits are to be over soon
Consume = Callable[..., tablecast.Consumed]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread(max_consume_timeout=SHORT) as running:
        running.sql(SETUP)
        yield running


@pytest.fixture(params=["embedded", "embedded async", "remote", "remote async"])
def consume(request: pytest.FixtureRequest, server: ServerThread) -> Iterator[Consume]:
    """The same call on every face. What it asks for is there: no face waits."""
    face = request.param
    if face == "embedded":
        with tablecast.open(":memory:") as db:
            db.execute_all(SETUP)
            yield lambda **asked: db.consume("app.events", start=EARLIEST, **asked)
    elif face == "remote":
        with connect(server.url, user="system", password=PASSWORD) as client:
            yield lambda **asked: client.consume("app.events", start=EARLIEST, **asked)
    else:
        yield lambda **asked: asyncio.run(_consume_async(face, server, asked))


async def _consume_async(face: str, server: ServerThread, asked: dict[str, Any]) -> tablecast.Consumed:
    if face == "remote async":
        async with await connect_async(server.url, user="system", password=PASSWORD) as client:
            return await client.consume("app.events", start=EARLIEST, **asked)
    async with await tablecast.open_async(":memory:") as db:
        await db.execute_all(SETUP)
        return await db.consume("app.events", start=EARLIEST, **asked)


@given(
    asked=st.none() | st.floats(0, 1e12),
    default=st.floats(0, 3_600),
    most=st.floats(0, 3_600),
)
def test_no_default_and_no_wait_is_refused_by_the_maximum(asked: float | None, default: float, most: float) -> None:
    seconds = wait_seconds(asked, default, most)
    assert seconds == min(most, default if asked is None else asked)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("asked", [{}, {"timeout_seconds": None}, {"timeout_seconds": 0}, {"timeout_seconds": 1e9}])
def test_any_wait_may_be_asked_for_on_every_face(consume: Consume, asked: dict[str, Any], group: str | None) -> None:
    found = consume(group=group, consumer="c", **asked)
    assert [message.value["id"] for message in found.messages] in (["1"], []), "a group gave it to the case before"
    assert found.waited_seconds >= 0


@pytest.mark.parametrize("asked", [-1, -0.001, float("nan"), float("-inf")])
def test_a_wait_that_is_none_is_refused_on_every_face(consume: Consume, asked: float) -> None:
    with pytest.raises(InvalidRequest, match="timeout_seconds"):
        consume(timeout_seconds=asked)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_consume_timeout": SHORT},
        {"max_consume_timeout": 0},
        {"default_consume_timeout": SHORT},
        {"default_consume_timeout": 0, "max_consume_timeout": SHORT},
        {"default_consume_timeout": 3_600, "max_consume_timeout": SHORT},
    ],
)
@pytest.mark.parametrize("left_out", [{}, {"timeout_seconds": None}])
def test_a_consume_that_does_not_say_how_long_is_never_refused(limits: dict[str, float], left_out: Any) -> None:
    default, most = limits.get("default_consume_timeout", 30), limits.get("max_consume_timeout", 300)
    with ServerThread(**limits) as server:
        server.sql(SETUP)
        answer = server.post("/topics/consume", {"topic": "app.events", **left_out})
    assert (answer.status, answer.json()["messages"]) == (200, [])
    assert answer.json()["waited_seconds"] >= min(default, most)


@pytest.mark.parametrize(
    ("form", "group"), [(JSON, None), (MSGPACK, None), (ARROW, None), *((f, "w") for f in (JSON, MSGPACK, ARROW, LOG))]
)
def test_a_longer_wait_is_cut_and_every_form_of_answer_tells(
    server: ServerThread, form: str, group: str | None
) -> None:
    request = {"topic": "app.events", "timeout_seconds": 3_000, "group_id": group, "start": {"type": "Latest"}}
    answer = server.post("/topics/consume", request, headers={"Accept": form})
    assert answer.status == 200, answer.body
    waited = {
        JSON: lambda: answer.json()["waited_seconds"],
        MSGPACK: lambda: msgspec.msgpack.decode(answer.body)["waited_seconds"],
        ARROW: lambda: float(answer.headers["x-waited-seconds"]),
        LOG: lambda: decode_consumed(answer.body).waited_seconds,
    }[form]()
    assert SHORT <= waited < 3_000


def test_the_settings_in_force_are_in_a_system_table(server: ServerThread) -> None:
    [result] = server.sql("SELECT value FROM system.settings WHERE name = 'topics.max_consume_timeout'")
    assert result["rows"] == [[str(SHORT)]]


def test_an_answer_of_an_earlier_server_is_still_read() -> None:
    assert decode_consumed(msgspec.msgpack.encode([1, [], None, False, [], "c"])).waited_seconds == 0
