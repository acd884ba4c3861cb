"""Newcomers wait at the door of a busy server, and are let in, or refused with a word; those who are in notice nothing.

The server of these tests is busy because the tests say so: its doorkeeper has spent all that newcomers may have.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from unittest import mock

import pytest
from live_client import LiveClient, RawSocket
from server_fixture import PASSWORD, ServerThread, basic
from test_hostile_clients import received, request, wait_until

import tablecast
from tablecast.server import doorkeeper

SHARE = 0.01  # what is owed takes seconds to be paid
ASK = request("GET", "/v1/api/auth/me")


def on_loop(server: ServerThread, action: Callable[[], object]) -> None:
    async def act() -> None:
        action()

    asyncio.run_coroutine_threadsafe(act(), server.loop).result()


@contextmanager
def busy(server: ServerThread) -> Iterator[None]:
    """Somebody established is served, and newcomers had far more than their share."""
    door = server.door

    def owe() -> None:
        door.begins("somebody")
        door._pay(1e9, door._clock())

    def forget() -> None:
        door._budget = 0.0
        door.ends("somebody")

    endless = {"BUSY_SECONDS": 1e9, "OWED_SECONDS": 1e9}
    with mock.patch.multiple(doorkeeper, **endless):
        on_loop(server, owe)
        yield
    on_loop(server, forget)


@contextmanager
def connected(server: ServerThread, data: bytes) -> Iterator[socket.socket]:
    with closing(socket.create_connection((server.host, server.port), timeout=60)) as client:
        client.sendall(data)
        yield client


@contextmanager
def kept_alive(server: ServerThread) -> Iterator[http.client.HTTPConnection]:
    """Established: it has been answered before."""
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=60)) as connection:
        assert ask(connection) == 200
        yield connection


def ask(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/v1/api/auth/me", headers={"Authorization": basic("system", PASSWORD)})
    answer = connection.getresponse()
    answer.read()
    return answer.status


@pytest.fixture(scope="module")
def impatient() -> Iterator[ServerThread]:
    with ServerThread(newcomers_share=SHARE, newcomers_wait_seconds=0.05) as server:
        yield server


@pytest.fixture(scope="module")
def patient() -> Iterator[ServerThread]:
    with ServerThread(newcomers_share=SHARE, newcomers_wait_seconds=60.0) as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        yield server


def test_who_waits_too_long_is_refused_and_told_when_to_come_again(impatient: ServerThread) -> None:
    refused = impatient.door.stats().refused
    with kept_alive(impatient) as established, busy(impatient):
        answer = impatient.get("/v1/api/auth/me")
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")
        assert "too many connect" in answer.error["message"]
        with RawSocket(impatient) as upgrade:
            assert upgrade.status == 503 and b"Retry-After: 1" in upgrade.head
            assert b"too many connect" in upgrade.until_closed()
        assert ask(established) == 200
    assert impatient.door.stats().refused == refused + 2
    metrics = impatient.get("/metrics").body.decode()
    assert f"tablecast_newcomers_refused_total {refused + 2}.0" in metrics


def test_a_client_of_ours_that_is_refused_comes_again(impatient: ServerThread) -> None:
    waited = impatient.door.stats().refused
    with tablecast.connect(impatient.url, user="system", password=PASSWORD) as client:
        with busy(impatient):
            rows = client.live_table("SELECT name FROM system.tables")
            wait_until(lambda: impatient.door.stats().refused > waited)
        rows.ready(timeout_seconds=60)


def test_who_waits_is_let_in_when_there_is_room(patient: ServerThread) -> None:
    waited = patient.door.stats().waited
    with busy(patient), connected(patient, ASK[:20]) as client:
        wait_until(lambda: patient.door.stats().waiting == 1)
        client.sendall(ASK[20:-2] + b"X-Long: " + b"x" * 40_000 + b"\r\nConnection: close\r\n\r\n")
        still_there = client.dup()
    with closing(still_there):
        assert received(still_there).startswith(b"HTTP/1.1 200 ")
    assert patient.door.stats().waited == waited + 1 and patient.door.stats().refused == 0


def test_who_goes_away_while_it_waits_gives_up_its_place(patient: ServerThread) -> None:
    with busy(patient):
        with connected(patient, ASK) as client:
            wait_until(lambda: patient.door.stats().waiting == 1)
            client.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # the end alone may be half of one
        wait_until(lambda: patient.door.stats().waiting == 0)
    assert patient.door.stats().refused == 0


def test_a_busy_server_says_that_it_is_well(patient: ServerThread) -> None:
    with busy(patient):
        assert [patient.get(path).status for path in ("/health", "/ready")] == [200, 200]


def test_who_says_nothing_has_no_place(patient: ServerThread) -> None:
    with busy(patient), connected(patient, b""):
        wait_until(lambda: len(patient._server.server_state.connections) >= 1)
        assert patient.door.stats().waiting == 0


def test_a_connection_that_becomes_a_socket_is_not_being_served(patient: ServerThread) -> None:
    headers = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: c2l4dGVlbiBieXRlcyBvaw==\r\nSec-WebSocket-Version: 13"
    with kept_alive(patient) as connection:
        connection.sock.sendall(f"GET /v1/ws HTTP/1.1\r\nHost: {patient.host}\r\n{headers}\r\n\r\n".encode())
        assert connection.sock.recv(12) == b"HTTP/1.1 101"
        assert not patient.door._busy


def test_live_queries_of_a_connection_wait_and_are_not_refused(impatient: ServerThread) -> None:
    with LiveClient(impatient) as client:
        refused = impatient.door.stats().refused
        with busy(impatient):
            client.send("subscribe", id=1, sql="SELECT name FROM system.tables")
            wait_until(lambda: impatient.door.stats().waiting == 1)
            client.send("ping")
            client.expect("pong")
        client.expect("subscribed")
        assert impatient.door.stats().refused == refused


def test_a_live_query_that_waits_can_be_ended(patient: ServerThread) -> None:
    with LiveClient(patient) as client, busy(patient):
        client.send("subscribe", id=1, sql="SELECT id FROM t")
        wait_until(lambda: patient.door.stats().waiting == 1)
        client.send("unsubscribe", id=1)
        client.expect("unsubscribed")
        wait_until(lambda: patient.door.stats().waiting == 0)


def test_who_was_live_and_too_slow_resumes_at_once(patient: ServerThread) -> None:
    """It is no newcomer."""
    with LiveClient(patient) as client:
        mirror = client.subscribe(1, "SELECT id FROM t")
        client.send("unsubscribe", id=1)
        client.expect("unsubscribed")
        with busy(patient):
            client.resume(mirror)
            assert mirror.mode == "resumed"
