"""Topics over HTTP: consume, long poll, ack, extend, release, whole topics; what happens when clients and servers go."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from server_fixture import PASSWORD, Answer, ServerThread, basic

from tablecast.core import failpoint
from tablecast.server.logs import CLIENT_GONE
from tablecast.testing.failpoints import Gate

ARROW = "application/vnd.apache.arrow.stream"
MSGPACK = "application/msgpack"
SETUP = """CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY, amount INT);
CREATE TOPIC app.events ALIAS 'events'; ALTER TOPIC app.events ADD SOURCE app.orders ON ANY"""


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread(max_consume_timeout=120) as running:
        running.sql(SETUP)
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def write(server: ServerThread, *ids: int) -> None:
    assert server.post("/tables/app.orders/rows", [{"id": i} for i in ids]).status == 200


def consume(server: ServerThread, timeout_seconds: float = 0, **request: Any) -> Answer:
    return server.post("/topics/consume", {"topic": "app.events", "timeout_seconds": timeout_seconds, **request})


def ids(answer: Answer) -> list[str]:
    return [msgspec.json.decode(b64decode(m["payload"]))["id"] for m in answer.json()["messages"]]


def wait_until(condition: Callable[[], bool]) -> None:
    """Looks again and again: the thing waited for is another process's or thread's doing, which tells nobody."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not become true in 30 seconds")


def parked_poll(server: ServerThread, **request: Any) -> socket.socket:
    before = server.db.parked
    client = sent_poll(server, **request)
    wait_until(lambda: server.db.parked > before)
    return client


def sent_poll(server: ServerThread, **request: Any) -> socket.socket:
    """A consume on a socket of its own, which the test may close."""
    body = msgspec.json.encode({"topic": "app.events", "timeout_seconds": 100, **request})
    client = socket.create_connection((server.host, server.port))
    head = f"POST /v1/api/topics/consume HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('system', PASSWORD)}\r\n"
    client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


# --- reading ----------------------------------------------------------------------------------------------------


def test_a_message_in_json_is_as_documented(server: ServerThread) -> None:
    write(server, 7)
    answer = consume(server, start={"type": "Earliest"})
    body = answer.json()
    [message] = body.pop("messages")
    assert body == {
        "next_offset": 1,
        "next_offsets": {"0": 1},
        "has_more": False,
        "skipped": [],
        "consumer": None,
        "waited_seconds": 0.0,
    }
    assert msgspec.json.decode(b64decode(message.pop("payload"))) == {"_table": "app.orders", "id": "7", "amount": None}
    assert {name: type(message.pop(name)) for name in ("message_id", "content_hash", "ts", "seq", "topic_id")} == {
        "message_id": str, "content_hash": str, "ts": int, "seq": int, "topic_id": int,
    }  # fmt: skip
    assert message == {
        "partition_id": 0, "offset": 0, "source_table": "app.orders", "op": "insert", "payload_mode": "full",
        "key": '["7"]', "user_id": None, "delivery": 1,
    }  # fmt: skip


def test_msgpack_and_arrow_carry_the_same_messages(server: ServerThread) -> None:
    write(server, 1, 2)
    request = {"topic": "events", "start": {"type": "Earliest"}, "timeout_seconds": 0}
    shown = server.post("/topics/consume", request).json()
    packed = msgspec.msgpack.decode(server.post("/topics/consume", request, headers={"Accept": MSGPACK}).body)
    as_arrow = server.post("/topics/consume", request, headers={"Accept": ARROW})
    assert (as_arrow.headers["x-next-offset"], as_arrow.headers["x-has-more"], as_arrow.headers["x-skipped"]) == (
        "2", "false", "[]",
    )  # fmt: skip
    schema = pa.ipc.open_stream(as_arrow.body).schema
    assert schema.metadata[b"next_offsets"] == b'{"0":2}'
    assert (shown["next_offsets"], packed["next_offsets"]) == ({"0": 2}, {0: 2})
    table = pa.ipc.open_stream(as_arrow.body).read_all().to_pylist()
    for json, pack, arrow in zip(shown["messages"], packed["messages"], table, strict=True):
        assert pack["payload"] == b64decode(json["payload"]) == arrow["payload"]
        assert pack["message_id"] == int(json["message_id"]) == arrow["message_id"]
        assert pack["key"] == json["key"].encode() == arrow["key"]
        assert pack["delivery"] == json["delivery"] == arrow["delivery"] == 1
        assert pack["ts"] == json["ts"] == round(arrow["ts"].timestamp() * 1000)


def test_a_reader_starts_where_it_says(server: ServerThread) -> None:
    write(server, 1)
    write(server, 2)
    second = consume(server, start={"type": "Earliest"}).json()["messages"][1]["ts"]
    assert ids(consume(server, start={"type": "Offset", "offset": 1})) == ["2"]
    assert ids(consume(server, start={"type": "Latest"})) == []
    assert ids(consume(server)) == []
    assert "2" in ids(consume(server, start={"type": "Timestamp", "timestamp": second}))
    assert ids(consume(server, start={"type": "Timestamp", "timestamp": "2999-01-01T00:00:00Z"})) == []
    limited = consume(server, start={"type": "Earliest"}, limit=1).json()
    assert (limited["next_offset"], limited["has_more"]) == (1, True)


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"topic": "app.nothing"}, 404, "unknown_topic"),
        ({"start": {"type": "Offset", "offset": 99}}, 416, "offset_out_of_range"),
        ({"start": {"type": "Offset"}}, 400, "invalid_request"),
        ({"start": {"type": "Earliest", "offset": 1}}, 400, "invalid_request"),
        ({"start": {"type": "Timestamp", "timestamp": "soon"}}, 400, "invalid_request"),
        ({"start": {"type": "Yesterday"}}, 400, "invalid_request"),
        ({"limit": 0}, 400, "invalid_request"),
        ({"limit": 10**100}, 400, "invalid_request"),
        ({"partition_id": 5}, 400, "invalid_request"),
        ({"timeout_seconds": -1}, 400, "invalid_request"),
        ({"group_id": ""}, 400, "invalid_request"),
        ({"visibility_seconds": 0}, 400, "invalid_request"),
        ({"grup_id": "g"}, 400, "invalid_request"),
    ],
)
def test_what_makes_no_sense_is_refused(server: ServerThread, request_: Any, status: int, code: str) -> None:
    answer = server.post("/topics/consume", {"topic": "app.events", "timeout_seconds": 0, **request_})
    assert (answer.status, answer.error["code"]) == (status, code), answer.body


# --- groups -----------------------------------------------------------------------------------------------------


def test_a_group_claims_acknowledges_and_gives_back(server: ServerThread) -> None:
    write(server, 1, 2, 3)
    claim = {"group_id": "g", "consumer": "c"}
    assert ids(consume(server, **claim)) == ["1", "2", "3"]
    group = {"topic": "app.events", "group_id": "g", "partition_id": 0}
    assert server.post("/topics/ack", {**group, "upto_offset": 0}).json() == {"success": True, "acknowledged_offset": 0}
    nacked = server.post("/topics/ack", {**group, "offsets": [1], "nack": True, "reason": "broken", "consumer": "c"})
    assert nacked.json() == {"success": True, "acknowledged_offset": 0}
    again = consume(server, **claim).json()["messages"]
    assert [(message["offset"], message["delivery"]) for message in again] == [(1, 2)]
    assert server.post("/topics/ack", {**group, "offsets": [1]}).json()["acknowledged_offset"] == 1
    held = {"topic": "app.events", "group_id": "g", "consumer": "c"}
    assert server.post("/topics/extend", {**held, "visibility_seconds": 90}).json() == {"held": 1}
    assert server.post("/topics/release", held).json() == {"released": 1}
    assert ids(consume(server, **claim)) == ["3"]


@pytest.mark.parametrize(
    ("path", "extra", "status"),
    [
        ("ack", {}, 400),
        ("ack", {"upto_offset": 1, "offsets": [1]}, 400),
        ("ack", {"upto_offset": 1, "nack": True}, 400),
        ("ack", {"upto_offset": -1}, 400),
        ("ack", {"offsets": [0], "nack": True, "group_id": "nobody"}, 404),
        ("ack", {"upto_offset": 9, "group_id": "nobody"}, 416),
        ("extend", {"consumer": "c", "visibility_seconds": 0}, 400),
        ("extend", {"consumer": "c", "visibility_seconds": 1e300}, 400),
        ("release", {}, 400),
    ],
)
def test_acks_that_make_no_sense_are_refused(server: ServerThread, path: str, extra: Any, status: int) -> None:
    write(server, 1)
    consume(server, group_id="g", consumer="c")
    answer = server.post(f"/topics/{path}", {"topic": "app.events", "group_id": "g", **extra})
    assert answer.status == status, answer.body


def test_an_offset_is_null_while_nothing_is_acknowledged(server: ServerThread) -> None:
    write(server, 1, 2)
    consume(server, group_id="g")
    group = {"topic": "app.events", "group_id": "g"}
    for extra in ({"offsets": [0], "nack": True}, {"offsets": [1]}):
        answer = server.post("/topics/ack", {**group, **extra})
        assert (answer.status, answer.json()) == (200, {"success": True, "acknowledged_offset": None})


def test_an_offset_beyond_the_log_is_told_which_there_are(server: ServerThread) -> None:
    write(server, 1, 2)
    answer = consume(server, start={"type": "Offset", "offset": 3})
    assert (answer.status, "holds 0 to 1" in answer.error["message"]) == (416, True)
    answer = server.post("/topics/ack", {"topic": "app.events", "group_id": "g", "upto_offset": 2})
    assert (answer.status, "holds 0 to 1" in answer.error["message"]) == (416, True)
    assert answer.error["details"] | {"log_start": 0, "log_end": 2} == answer.error["details"]


# --- long poll --------------------------------------------------------------------------------------------------


def test_a_poll_ends_with_the_commit_that_brings_a_message(server: ServerThread, pool: ThreadPoolExecutor) -> None:
    waiting: list[Future[Answer]] = [
        pool.submit(consume, server, 100, group_id="g"),
        pool.submit(consume, server, 100),
        pool.submit(consume, server, 100, start={"type": "Earliest"}),
    ]
    wait_until(lambda: server.db.parked == 3)
    write(server, 1)
    assert [ids(each.result(60)) for each in waiting] == [["1"]] * 3
    assert server.db.parked == 0


def test_a_poll_that_finds_nothing_answers_an_empty_list(server: ServerThread) -> None:
    answer = consume(server, 0.01, group_id="g")
    assert (answer.status, answer.json()["messages"]) == (200, [])


def test_draining_answers_parked_polls_at_once(server: ServerThread, pool: ThreadPoolExecutor) -> None:
    waiting = [pool.submit(consume, server, 100, group_id="g") for _ in range(5)]
    wait_until(lambda: server.db.parked == 5)
    server.stop()
    assert [(each.result(60).status, ids(each.result())) for each in waiting] == [(200, [])] * 5


def test_nobody_waits_while_the_server_drains(server: ServerThread) -> None:
    write(server, 1)
    server.drain()
    assert ids(consume(server, 100)) == []
    assert ids(consume(server, 100, group_id="g")) == ["1"]


def test_a_poll_whose_client_went_away_ends(server: ServerThread) -> None:
    parked_poll(server, group_id="g").close()
    wait_until(lambda: server.db.parked == 0)
    write(server, 1)
    answer = consume(server, group_id="g")
    assert (ids(answer), answer.json()["messages"][0]["delivery"]) == (["1"], 1)


def test_what_was_claimed_for_a_client_that_went_away_is_given_back(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """The client goes, with a reset, while its claim is on its way to the disk: the claim happens, and is undone."""
    caplog.set_level(logging.INFO, "tablecast.access")
    write(server, 1)
    gate = Gate()
    with failpoint.armed("before_sync", gate):
        client = sent_poll(server, group_id="g", consumer="gone")
        gate.wait_reached()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        wait_until(lambda: CLIENT_GONE in [record.fields["status"] for record in caplog.records])
        gate.open()
        answer = consume(server, 100, group_id="g", consumer="here")
    assert [(m["offset"], m["delivery"]) for m in answer.json()["messages"]] == [(0, 1)]


def test_too_many_parked_polls_are_told_to_come_back(pool: ThreadPoolExecutor) -> None:
    with ServerThread(max_parked_polls=1) as server:
        server.sql(SETUP)
        first = pool.submit(consume, server, 100, group_id="g")
        wait_until(lambda: server.db.parked == 1)
        refused = consume(server, 100)
        assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "overloaded", "1")
        write(server, 1)
        assert ids(first.result(60)) == ["1"]
        assert ids(consume(server, 100, start={"type": "Earliest"})) == ["1"]


# --- whole topics -----------------------------------------------------------------------------------------------


def test_a_whole_topic_is_one_arrow_stream(server: ServerThread) -> None:
    server.sql("CREATE TOPIC app.wide PARTITIONS 4; ALTER TOPIC app.wide ADD SOURCE app.orders ON ANY")
    for first in range(0, 3000, 1000):
        write(server, *range(first, first + 1000))
    answer = server.get("/v1/api/topics/app.wide/arrow")
    assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.num_rows == 3000
    assert {m["id"] for m in map(msgspec.json.decode, table.column("payload").to_pylist())} == set(
        map(str, range(3000))
    )
    one = pa.ipc.open_stream(server.get("/v1/api/topics/app.wide/arrow?partition=2&start=offset:3").body).read_all()
    assert (one.column("offset")[0].as_py(), set(one.column("partition_id").to_pylist())) == (3, {2})
    latest = pa.ipc.open_stream(server.get("/v1/api/topics/events/arrow?start=latest").body).read_all()
    assert latest.num_rows == 0
    dated = server.get("/v1/api/topics/events/arrow?start=timestamp:2020-01-01T00:00:00Z")
    assert pa.ipc.open_stream(dated.body).read_all().num_rows == 3000


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("app.nothing/arrow", 404),
        ("events/arrow?start=soon", 400),
        ("events/arrow?start=offset:9", 416),
        ("events/arrow?partition=x", 400),
        ("events/arrow?partition=9", 400),
        ("events/arrow?from=1", 400),
    ],
)
def test_a_stream_that_cannot_begin_is_refused_with_its_status(server: ServerThread, path: str, status: int) -> None:
    assert server.get(f"/v1/api/topics/{path}").status == status


# --- the role user ----------------------------------------------------------------------------------------------


def two_users(server: ServerThread) -> None:
    server.sql("CREATE NAMESPACE app; CREATE USER TABLE app.notes (id INT PRIMARY KEY)")
    server.sql("CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.notes ON ANY")
    for name in ("ann", "bob"):
        server.sql(f"CREATE USER '{name}' WITH PASSWORD 'password of {name}' ROLE 'user'")


def note(server: ServerThread, user: str, number: int) -> None:
    server.sql("INSERT INTO app.notes VALUES (?)", [number], user=user, password=f"password of {user}")


def consume_as_ann(server: ServerThread, **request: Any) -> Answer:
    body = {"topic": "app.events", "timeout_seconds": 0, **request}
    return server.post("/topics/consume", body, user="ann", password="password of ann")


def test_the_role_user_may_not_consume() -> None:
    with ServerThread() as server:
        two_users(server)
        refused = consume_as_ann(server)
        assert (refused.status, refused.error["code"]) == (403, "permission_denied")


def test_the_role_user_may_be_allowed_its_own_messages_only(pool: ThreadPoolExecutor) -> None:
    with ServerThread(allow_user_role_consume=True) as server:
        two_users(server)
        waiting = pool.submit(consume_as_ann, server, timeout_seconds=100)
        wait_until(lambda: server.db.parked == 1)
        note(server, "bob", 1)
        note(server, "ann", 2)
        answer = waiting.result(60)
        assert [m["user_id"] for m in answer.json()["messages"]] == ["ann"]
        assert answer.json()["next_offset"] == 2
        past_bob = consume_as_ann(server, start={"type": "Earliest"}, limit=1).json()
        assert (past_bob["messages"], past_bob["next_offset"], past_bob["has_more"]) == ([], 1, True)
        assert consume_as_ann(server, group_id="g").status == 403
        server.sql("CREATE TOPIC app.wide PARTITIONS 2; ALTER TOPIC app.wide ADD SOURCE app.notes ON ANY")
        assert consume_as_ann(server, topic="app.wide").status == 400
        assert consume_as_ann(server, topic="app.wide", partition_id=1).status == 200
        acked = {"topic": "app.events", "group_id": "g", "upto_offset": 0}
        assert server.post("/topics/ack", acked, user="ann", password="password of ann").status == 403


def test_a_key_that_would_do_nothing_is_refused(server: ServerThread) -> None:
    keyed = {"Idempotency-Key": "k"}
    server.sql("INSERT INTO app.orders VALUES (1, 1)")
    body = {"topic": "app.events", "group_id": "g", "start": {"type": "Earliest"}}
    refused = server.post("/topics/consume", body, headers=keyed)
    assert (refused.status, refused.error["code"]) == (400, "invalid_request")
    assert "Idempotency-Key is not taken here" in refused.error["message"]
    assert len(server.post("/topics/consume", body).json()["messages"]) == 1, "nothing was claimed by the refused one"
    done = {"topic": "app.events", "group_id": "g", "partition_id": 0, "upto_offset": 0}
    assert server.post("/topics/ack", done, headers=keyed).status == 400
    for _ in range(2):
        assert server.post("/topics/ack", done).json() == {"success": True, "acknowledged_offset": 0}
