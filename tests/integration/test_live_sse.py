"""Live queries as streams of events: the same as over sockets, for whoever has only HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import pytest
from server_fixture import PASSWORD, ServerThread, basic

from tablecast.server import api_live

TABLES = """
    CREATE NAMESPACE app;
    CREATE TABLE app.orders (id BIGINT PRIMARY KEY, name TEXT) WITH (ACCESS_LEVEL = 'PUBLIC');
    CREATE TABLE app.secrets (id BIGINT PRIMARY KEY);
    CREATE USER 'ann' WITH PASSWORD 'correct horse';
"""
ORDERS = "SELECT id, name FROM app.orders"
BUFFER_BYTES = 20_000


class Event(NamedTuple):
    name: str
    id: str | None
    data: Any


class Stream:
    """An open stream, read event by event. `last_id` is what a browser would resume from."""

    def __init__(self, server: ServerThread, sql: str = ORDERS, *, last_id: str | None = None, **options: Any) -> None:
        authorization = options.pop("authorization", basic("system", PASSWORD))
        headers = {"Authorization": authorization} | ({} if last_id is None else {"Last-Event-ID": last_id})
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        self._connection.request("GET", "/v1/api/live?" + urlencode({"sql": sql, **options}), headers=headers)
        self.answer = self._connection.getresponse()
        self.last_id = last_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()

    def lines(self) -> list[str]:
        """Up to the next empty one; none at the end of the stream."""
        found: list[str] = []
        while (line := self.answer.readline().decode()) not in ("\n", ""):
            found.append(line.rstrip("\n"))
        return found

    def next(self) -> Event:
        """What has no data is none, but its id counts."""
        fields: dict[str, str] = {}
        while "data" not in fields:
            fields = dict(line.split(": ", 1) for line in self.lines() if line != ":")
            self.last_id = fields.get("id", self.last_id)
        return Event(fields["event"], fields.get("id"), json.loads(fields["data"]))

    def expect(self, name: str) -> Event:
        event = self.next()
        assert event.name == name == event.data["type"], event
        return event


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerThread]:
    with ServerThread(live_buffer_bytes=BUFFER_BYTES) as running:
        running.sql(TABLES)
        yield running


@pytest.fixture
def server(shared: ServerThread) -> Iterator[ServerThread]:
    yield shared
    shared.sql("DELETE FROM app.orders")
    eventually(lambda: shared.hub.is_empty and not connections(shared))


def at(server: ServerThread, seq: int) -> str:
    """The id of an event of this commit."""
    return f"{server.db.engine.history}-{seq}"


def seq_of(event_id: str | None) -> int:
    assert event_id is not None
    return int(event_id.rpartition("-")[2])


def connections(server: ServerThread) -> float:
    [line] = [
        s for s in server.get("/metrics").body.decode().splitlines() if s.startswith("tablecast_live_connections ")
    ]
    return float(line.split()[1])


def eventually(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


def test_rows_then_changes(server: ServerThread) -> None:
    server.sql("INSERT INTO app.orders VALUES (1, 'a'), (2, 'b')")
    with Stream(server, "SELECT name FROM orders WHERE id < ?", params="[10]", namespace="app") as stream:
        assert stream.answer.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert stream.answer.getheader("cache-control") == "no-store"
        subscribed = stream.expect("subscribed")
        assert (subscribed.id, subscribed.data["mode"], subscribed.data["key"]) == (None, "snapshot", [1])
        rows = stream.expect("rows")
        assert (rows.data["rows"], rows.data["last"]) == ([["a", "1"], ["b", "2"]], True)
        assert rows.id == at(server, rows.data["seq"]) == f"{subscribed.data['history']}-{rows.data['seq']}"
        live = stream.expect("live")
        assert (live.data["changes"], live.id) == ([], at(server, live.data["seq"]))
        server.sql("INSERT INTO app.orders VALUES (3, 'line\nfeed'), (40, 'not this one')")
        change = stream.expect("change")
        assert change.data["changes"] == [{"op": "insert", "row": ["line\nfeed", "3"]}]
        assert change.id == at(server, change.data["seq"])
        assert change.data["seq"] > live.data["seq"]


def test_an_id_is_there_only_when_it_can_be_resumed_from(server: ServerThread) -> None:
    for at in range(0, 2500, 500):
        server.post("/tables/app.orders/rows", [{"id": i} for i in range(at, at + 500)])
    with Stream(server) as stream:
        stream.expect("subscribed")
        batches = []
        while not (batches and batches[-1].data["last"]):
            batches.append(stream.expect("rows"))
        assert len(batches) > 1
        assert [batch.id is None for batch in batches] == [True] * (len(batches) - 1) + [False]
        assert sum(len(batch.data["rows"]) for batch in batches) == 2500


def test_what_was_missed_comes_with_deletions(server: ServerThread) -> None:
    server.sql("INSERT INTO app.orders VALUES (1, 'a'), (2, 'b')")
    with Stream(server) as stream:
        while stream.next().name != "live":
            pass
    server.sql("DELETE FROM app.orders WHERE id = 1; INSERT INTO app.orders VALUES (3, 'c')")
    with Stream(server, last_id=stream.last_id) as again:
        subscribed = again.expect("subscribed")
        assert (subscribed.data["mode"], subscribed.id) == ("resumed", stream.last_id)
        live = again.expect("live")
        assert {change["op"] for change in live.data["changes"]} == {"delete", "insert"}
        assert seq_of(live.id) > seq_of(stream.last_id)
    for unknown in (at(server, 0), f"{'0' * 16}-{seq_of(again.last_id)}"):
        with Stream(server, last_id=unknown) as again:
            assert again.expect("subscribed").data["mode"] == "refetch"
            assert len(again.expect("rows").data["rows"]) == 2


def test_a_reader_that_does_not_read_is_told_to_come_again(server: ServerThread) -> None:
    with Stream(server) as stream:
        while stream.next().name != "live":
            pass
        for key in range(300):
            server.sql("INSERT INTO app.orders VALUES (?, ?)", [key, "x" * 50_000])
        seen = 0
        while (event := stream.next()).name == "change":
            seen += 1
        assert event.name == "lagging"
        assert event.id == at(server, event.data["seq"]) == stream.last_id
        assert stream.lines() == [], "the stream is over"
    assert seen < 300
    with Stream(server, last_id=stream.last_id) as again:
        assert again.expect("subscribed").data["mode"] == "resumed"
        assert len(again.expect("live").data["changes"]) == 300 - seen


def test_a_stream_with_nothing_to_say_says_so(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_live, "HEARTBEAT_SECONDS", 0.02)
    with Stream(server) as stream:
        while stream.next().name != "live":
            pass
        assert [stream.lines() for _ in range(3)] == [[":", f"id: {stream.last_id}"]] * 3
        server.sql("INSERT INTO app.secrets VALUES (1)")  # which does not concern it
        while stream.lines() != [":", f"id: {at(server, server.db.engine.seq)}"]:
            pass
    server.sql("DELETE FROM app.secrets")


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"sql": "SELEC"}, 400, "sql_syntax"),
        ({"sql": "SELECT count(*) FROM app.orders"}, 400, "unsupported_sql"),
        ({"sql": "SELECT * FROM app.nothing"}, 404, "unknown_table"),
        ({"sql": "SELECT * FROM app.orders WHERE id = ?", "params": "{}"}, 400, "invalid_request"),
        ({"sql": "SELECT * FROM app.orders WHERE id = ?", "params": "[" * 15_000}, 400, "invalid_request"),
        ({"sql": ORDERS, "limit": "1"}, 400, "invalid_request"),
        ({"sql": ORDERS, "last_id": "x"}, 400, "invalid_request"),
        ({"sql": ORDERS, "last_id": "118"}, 400, "invalid_request"),
        ({"sql": ORDERS, "last_id": "0123456789abcdef-" + "9" * 16}, 400, "invalid_request"),
        ({"sql": ORDERS, "authorization": basic("ann", "wrong")}, 401, "unauthenticated"),
        (
            {"sql": "SELECT * FROM app.secrets", "authorization": basic("ann", "correct horse")},
            403,
            "permission_denied",
        ),
    ],
)
def test_what_is_refused_is_refused_with_its_status(
    server: ServerThread, options: dict[str, Any], status: int, code: str
) -> None:
    with Stream(server, **options) as stream:
        assert stream.answer.status == status
        assert json.loads(stream.answer.read())["error"]["code"] == code


def test_head_and_a_missing_query(server: ServerThread) -> None:
    assert server.get("/v1/api/live").error["code"] == "invalid_request"
    assert server.get("/v1/api/live", user=None).status == 401
    head = server.request("HEAD", "/v1/api/live?" + urlencode({"sql": ORDERS}))
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


def test_what_ends_a_stream_is_its_last_event(server: ServerThread) -> None:
    server.sql("CREATE TABLE app.gone (id BIGINT PRIMARY KEY); CREATE USER 'dan' WITH PASSWORD 'correct horse'")
    with (
        Stream(server, "SELECT id FROM app.gone") as dropped,
        Stream(server, authorization=basic("dan", "correct horse")) as expelled,
    ):
        for stream in (dropped, expelled):
            while stream.next().name != "live":
                pass
        server.sql("DROP TABLE app.gone")
        assert dropped.expect("error").data["code"] == "unknown_table"
        assert dropped.lines() == []
        server.sql("ALTER USER 'dan' SET PASSWORD 'battery staple'")
        assert expelled.expect("error").data["code"] == "unauthenticated"
        assert expelled.lines() == []
    server.sql("DROP USER 'dan'")


def test_a_client_that_goes_away_leaves_nothing(server: ServerThread) -> None:
    for _ in range(30):
        with Stream(server) as stream:
            stream.expect("subscribed")
    eventually(lambda: server.hub.is_empty and not connections(server))


def test_drain_and_an_expired_token_end_streams() -> None:
    with ServerThread(access_token_seconds=3) as own:
        own.sql(TABLES)
        token = own.post("/auth/login", {"user": "ann", "password": "correct horse"}).json()["access_token"]
        with Stream(own) as lasting, Stream(own, authorization=f"Bearer {token}") as short:
            for stream in (lasting, short):
                while stream.next().name != "live":
                    pass
            expired = short.expect("error")
            assert (expired.id, expired.data["code"]) == (None, "unauthenticated")
            assert "expired" in expired.data["message"]
            assert short.lines() == []
            own.drain()
            assert lasting.lines() == []
        own.stop()
