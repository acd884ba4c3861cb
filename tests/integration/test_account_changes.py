"""A consume that waits ends when a new request of its sender would be refused, with the same answer, and claims nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from live_client import LiveClient
from server_fixture import Answer, ServerThread, basic
from test_http_topics import SETUP, ids, wait_until, write

from tablecast.server.bodies import ARROW, JSON, LOG, MSGPACK

PASSWORD = "password of ann"
CHANGES = {
    "dropped": "DROP USER 'ann'",
    "demoted": "ALTER USER 'ann' SET ROLE 'user'",
    "another password": "ALTER USER 'ann' SET PASSWORD 'another password'",
}
HOURS = 250.0  # longer than any test takes; nothing waits for its end


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(f"{SETUP}; CREATE USER 'ann' WITH PASSWORD '{PASSWORD}' ROLE 'service'")
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def signed_in(server: ServerThread) -> dict[str, str]:
    tokens: dict[str, str] = server.post("/auth/login", {"user": "ann", "password": PASSWORD}, user=None).json()
    return tokens


def credentials(server: ServerThread, scheme: str) -> str:
    return basic("ann", PASSWORD) if scheme == "Basic" else f"Bearer {signed_in(server)['access_token']}"


def consume(
    server: ServerThread, authorization: str, seconds: float = HOURS, form: str = JSON, **request: Any
) -> Answer:
    body = {"topic": "app.events", "timeout_seconds": seconds, **request}
    return server.post("/topics/consume", body, user=None, headers={"Authorization": authorization, "Accept": form})


def parked(server: ServerThread, pool: ThreadPoolExecutor, authorization: str, **request: Any) -> Future[Answer]:
    before = server.db.parked
    waiting = pool.submit(consume, server, authorization, **request)
    wait_until(lambda: server.db.parked > before)
    return waiting


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_parked_poll_gets_what_a_new_request_would_get(
    server: ServerThread, pool: ThreadPoolExecutor, change: str, scheme: str
) -> None:
    authorization = credentials(server, scheme)
    polls = [
        parked(server, pool, authorization, form=form, group_id=group)
        for form, group in ((JSON, None), (JSON, "g"), (MSGPACK, "g"), (ARROW, None), (LOG, "g"))
    ]
    server.sql(CHANGES[change])
    answers = [poll.result(60) for poll in polls]
    assert server.db.parked == 0
    fresh = consume(server, authorization, 0)
    assert fresh.status in (401, 403)
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(fresh.status, fresh.error["code"])}
    write(server, 1)
    [message] = consume(server, basic("system", "a password for tests"), 0, group_id="g").json()["messages"]
    assert message["delivery"] == 1, "nothing was claimed for those who were sent away"


def test_a_change_and_a_message_at_once_give_the_message_to_nobody(
    server: ServerThread, pool: ThreadPoolExecutor
) -> None:
    """They come in one request, the change first, so that the poll is woken for both."""
    poll = parked(server, pool, credentials(server, "Basic"), group_id="g", consumer="ann")
    server.sql("DROP USER 'ann'; INSERT INTO app.orders (id) VALUES (1)")
    assert poll.result(60).status == 401
    answer = consume(server, basic("system", "a password for tests"), 0, group_id="g")
    assert [(m["offset"], m["delivery"]) for m in answer.json()["messages"]] == [(0, 1)]


def test_who_may_still_consume_goes_on_waiting(server: ServerThread, pool: ThreadPoolExecutor) -> None:
    promoted = parked(server, pool, credentials(server, "Basic"), group_id="g")
    other = parked(server, pool, basic("system", "a password for tests"))
    server.sql("ALTER USER 'ann' SET ROLE 'dba'; CREATE USER 'bob' WITH PASSWORD 'password of bob' ROLE 'user'")
    server.sql("DROP USER 'bob'")
    write(server, 1)
    assert [ids(poll.result(60)) for poll in (promoted, other)] == [["1"], ["1"]]


def test_the_role_user_that_may_consume_its_own_is_sent_away_too(pool: ThreadPoolExecutor) -> None:
    with ServerThread(allow_user_role_consume=True) as server:
        server.sql(f"{SETUP}; CREATE USER 'ann' WITH PASSWORD '{PASSWORD}' ROLE 'user'")
        poll = parked(server, pool, credentials(server, "Basic"))
        server.sql("DROP USER 'ann'")
        assert poll.result(60).status == 401


# --- a refresh token that is used twice -------------------------------------------------------------------------


def refreshed(server: ServerThread, tokens: dict[str, str]) -> Answer:
    return server.post("/auth/refresh", {"refresh_token": tokens["refresh_token"]}, user=None)


def me(server: ServerThread, tokens: dict[str, str]) -> int:
    return server.get(
        "/v1/api/auth/me", user=None, headers={"Authorization": f"Bearer {tokens['access_token']}"}
    ).status


def test_a_refresh_token_used_twice_ends_all_that_its_sign_in_gave(
    server: ServerThread, pool: ThreadPoolExecutor
) -> None:
    first, other = signed_in(server), signed_in(server)
    second = refreshed(server, first).json()
    assert [me(server, tokens) for tokens in (first, second, other)] == [200] * 3
    polls = [parked(server, pool, f"Bearer {tokens['access_token']}", group_id="g") for tokens in (first, second)]
    kept = parked(server, pool, f"Bearer {other['access_token']}")
    with LiveClient(server, None, headers={"Authorization": f"Bearer {second['access_token']}"}) as live:
        live.send("ping")
        live.expect("pong")
        again = refreshed(server, first)
        assert (again.status, again.error["code"]) == (401, "unauthenticated")
        live.refused("unauthenticated", 4401)
    for poll in polls:
        assert (poll.result(60).status, poll.result().error["code"]) == (401, "unauthenticated")
    assert [me(server, tokens) for tokens in (first, second, other)] == [401, 401, 200]
    assert refreshed(server, second).status == 401
    assert consume(server, basic("ann", PASSWORD), 0).status == 200, "the account itself is as it was"
    write(server, 1)
    assert ids(kept.result(60)) == ["1"]
