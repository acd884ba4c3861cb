"""A client that sent a whole request, and then the end of its data, gets its answer; nothing waits for its sake.

A client that has gone looks the same until something is sent to it. So a poll that is parked when the end comes is answered
at once, with nothing, and what it was about to claim is given back.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
from server_fixture import PASSWORD, ServerThread, basic
from test_http_topics import SETUP, consume, ids, parked_poll, wait_until, write

SECONDS = 100.0  # of a poll and of a socket: what takes that long hangs


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(SETUP)
        yield running


def request(method: str, path: str, body: Any = None, *extra: str) -> bytes:
    content = b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: {basic('system', PASSWORD)}", *extra]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content


def poll(**asked: Any) -> bytes:
    asked = {"topic": "app.events", "timeout_seconds": SECONDS, **asked}
    return request("POST", "/v1/api/topics/consume", asked)


def answers(server: ServerThread, *sent: bytes) -> list[tuple[int, bytes]]:
    """To what is sent in these pieces and then ended. The server closes the connection."""
    with closing(socket.create_connection((server.host, server.port), timeout=SECONDS)) as client:
        for piece in sent:
            client.sendall(piece)
        client.shutdown(socket.SHUT_WR)
        return read(client)


def read(client: socket.socket) -> list[tuple[int, bytes]]:
    received = b""
    while piece := client.recv(65_536):
        received += piece
    found = []
    for answer in received.split(b"HTTP/1.1 ")[1:]:
        head, _, body = answer.partition(b"\r\n\r\n")
        found.append((int(head[:3]), body))
    return found


def messages(body: bytes) -> list[Any]:
    found: list[Any] = msgspec.json.decode(body)["messages"]
    return found


@pytest.mark.parametrize(
    "sent",
    [
        request("GET", "/health"),
        request("GET", "/v1/api/auth/me"),
        request("POST", "/v1/api/sql", {"sql": "SELECT count(*) FROM app.orders"}),
        request("POST", "/v1/api/tables/app.orders/rows", [{"id": 1}]),
        request("GET", "/v1/api/topics/app.events/arrow"),
        poll(start={"type": "Earliest"}),
        poll(group_id="g"),
        poll(),
    ],
    ids=["health", "me", "sql", "rows", "arrow", "messages", "claim", "nothing"],
)
def test_a_whole_request_gets_its_answer(server: ServerThread, sent: bytes) -> None:
    write(server, 7)
    [(status, body)] = answers(server, sent)
    assert status == 200
    assert body
    wait_until(lambda: server.db.parked == 0)


def test_what_is_there_is_given(server: ServerThread) -> None:
    write(server, 7)
    for sent in (poll(start={"type": "Earliest"}), poll(group_id="g")):
        [(status, body)] = answers(server, sent)
        assert (status, len(messages(body))) == (200, 1)


@pytest.mark.parametrize("group", [None, "g"])
def test_a_parked_poll_is_answered_at_once_and_claims_nothing(server: ServerThread, group: str | None) -> None:
    with closing(parked_poll(server, group_id=group)) as client:
        client.settimeout(SECONDS)
        client.shutdown(socket.SHUT_WR)
        [(status, body)] = read(client)
    assert (status, messages(body)) == (200, [])
    assert server.db.parked == 0
    write(server, 1)
    answer = consume(server, group_id="g")
    assert [message["delivery"] for message in answer.json()["messages"]] == [1]


def test_requests_in_a_row_are_all_answered_and_half_a_request_is_not(server: ServerThread) -> None:
    write(server, 7)
    asked = [request("GET", "/health"), poll(), poll(start={"type": "Earliest"}), request("GET", "/nothing")]
    statuses = [200, 200, 200, 404]
    whole = b"".join(asked)
    assert [status for status, _ in answers(server, whole)] == statuses
    assert [status for status, _ in answers(server, whole + b"GET /health HTTP/1.1\r\nHos")] == statuses
    part = request("POST", "/v1/api/sql", {"sql": "SELECT 1"})[:-3]
    assert [status for status, _ in answers(server, whole + part)] == statuses


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_a_request_that_is_not_whole_gets_none(server: ServerThread, cut: int) -> None:
    assert answers(server, request("POST", "/v1/api/sql", {"sql": "SELECT 1"})[:cut]) == []


def test_a_live_query_ends_with_what_its_client_sends(server: ServerThread) -> None:
    path = "/v1/api/live?sql=SELECT%20id%20FROM%20app.orders"
    [(status, body)] = answers(server, request("GET", path))
    assert status == 200
    assert b"event: subscribed" in body
    wait_until(lambda: server.hub.stats().subscriptions == 0)


def test_clients_that_have_gone_leave_nothing_behind(server: ServerThread) -> None:
    """With nothing but the end of their data."""
    for _ in range(20):
        parked_poll(server, group_id="g").close()
        wait_until(lambda: server.db.parked == 0)
    write(server, 1)
    assert ids(consume(server, group_id="g")) == ["1"]
