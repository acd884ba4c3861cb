"""HTTP itself: who asks, what is too large, too slow or too strange, and what every answer has."""

from __future__ import annotations

import gzip
import http.client
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
from server_fixture import PASSWORD, ServerThread, basic

from tablecast.core import failpoint
from tablecast.engine.decision import Decision
from tablecast.engine.writer import QUEUE_COMMANDS
from tablecast.errors import Overloaded
from tablecast.storage.base import StorageFailure
from tablecast.testing.failpoints import Gate, raising

LIMIT = 20_000


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread(max_body_bytes=LIMIT, body_timeout_seconds=0.5) as running:
        running.sql("CREATE USER 'ann' WITH PASSWORD 'ann has one' ROLE 'user'")
        yield running


def exchange(server: ServerThread, *pieces: bytes) -> bytes:
    """Sends raw bytes and reads until the server closes."""
    with closing(socket.create_connection((server.host, server.port), timeout=60)) as client:
        for piece in pieces:
            client.sendall(piece)
        received = b""
        while chunk := client.recv(65_536):
            received += chunk
        return received


def head(path: str = "/v1/api/sql", **headers: Any) -> bytes:
    given = {"Host": "x", "Authorization": basic("system", PASSWORD), "Content-Type": "application/json"} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()


def code_of(received: bytes) -> tuple[int, str]:
    status, _, rest = received.partition(b"\r\n")
    return int(status.split()[1]), msgspec.json.decode(rest.partition(b"\r\n\r\n")[2])["error"]["code"]


# --- who asks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [None, basic("system", "wrong password"), "Basic ?", "Bearer nonsense", "Digest x", basic("nobody", "x")],
)
def test_without_right_credentials_everything_is_401(server: ServerThread, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = server.post("/sql", {"sql": "SELECT 1"}, user=None, headers=headers)
    assert (answer.status, answer.error["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Basic ")


def test_tokens_are_given_used_refreshed_and_used_up(server: ServerThread) -> None:
    tokens = server.post("/auth/login", {"user": "ann", "password": "ann has one"}, user=None)
    assert tokens.headers["cache-control"] == "no-store"
    first = tokens.json()
    assert (first["token_type"], first["user"], first["role"]) == ("Bearer", "ann", "user")
    bearer = {"Authorization": f"Bearer {first['access_token']}"}
    assert server.get("/v1/api/auth/me", user=None, headers=bearer).json() == {"user": "ann", "role": "user"}
    refreshed = server.post("/auth/refresh", {"refresh_token": first["refresh_token"]}, user=None)
    assert refreshed.json()["user"] == "ann"
    again = server.post("/auth/refresh", {"refresh_token": first["refresh_token"]}, user=None)
    assert (again.status, again.error["code"]) == (401, "unauthenticated")


def test_wrong_passwords_lock_the_account_for_a_while() -> None:
    with ServerThread(login_attempts=2) as server:
        for _ in range(2):
            assert server.post("/auth/login", {"user": "system", "password": "wrong"}, user=None).status == 401
        locked = server.post("/auth/login", {"user": "system", "password": PASSWORD}, user=None)
        assert (locked.status, locked.error["code"], int(locked.headers["retry-after"]) > 1) == (
            429,
            "locked_out",
            True,
        )


def test_too_many_requests_are_told_to_slow_down() -> None:
    with ServerThread(requests_per_second_per_user=1) as server:
        statuses = [server.get("/v1/api/auth/me").status for _ in range(5)]
        assert (statuses[0], 429 in statuses) == (200, True)


# --- what watches -----------------------------------------------------------------------------------------------


def test_health_ready_and_metrics(server: ServerThread) -> None:
    assert server.get("/health", user=None).json() == {"status": "ok"}
    assert server.get("/ready", user=None).json() == {"status": "ready"}
    assert server.get("/metrics", user=None).status == 401
    assert server.get("/metrics", user="ann", password="ann has one").status == 403
    metrics = server.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert b"tablecast_http_requests_total" in metrics.body


def test_metrics_may_be_public() -> None:
    with ServerThread(metrics_public=True) as server:
        assert server.get("/metrics", user=None).status == 200


def test_not_ready_while_draining_and_after_a_storage_failure() -> None:
    with ServerThread() as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        with failpoint.armed("before_sync", raising(StorageFailure("injected"))):
            failed = server.post("/sql", {"sql": "INSERT INTO t VALUES (1)"})
        assert (failed.status, failed.error["code"]) == (500, "writes_stopped")
        stopped = server.get("/ready", user=None)
        assert (stopped.status, stopped.json()) == (503, {"status": "writes_stopped"})
    with ServerThread() as server:
        server.drain()
        draining = server.get("/ready", user=None)
        assert (draining.status, draining.json()) == (503, {"status": "draining"})
        assert server.sql("SELECT 1 AS one")[0]["rows"] == [[1]]


def test_what_runs_while_the_server_stops_is_finished() -> None:
    with ServerThread() as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        gate = Gate()
        with closing(http.client.HTTPConnection(server.host, server.port, timeout=60)) as writing:
            with failpoint.armed("before_sync", gate):
                headers = {"Authorization": basic("system", PASSWORD)}
                writing.request("POST", "/v1/api/sql", b'{"sql": "INSERT INTO t VALUES (1)"}', headers)
                gate.wait_reached()
                stopping = threading.Thread(target=server.stop)
                stopping.start()
                gate.open()
                assert writing.getresponse().status == 200
            stopping.join()


# --- paths, methods, types --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1", "/v1/api/nothing", "/v1/api/sql/", "/v1/api/tables//rows", "/v1/api/%00"])
def test_an_unknown_path_is_404(server: ServerThread, path: str) -> None:
    answer = server.get(path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/api/sql", "POST"), ("DELETE", "/health", "GET, HEAD"), ("PUT", "/docs", "GET, HEAD")],
)
def test_another_method_is_405(server: ServerThread, method: str, path: str, allow: str) -> None:
    answer = server.request(method, path)
    assert (answer.status, answer.headers["allow"], answer.error["code"]) == (405, allow, "method_not_allowed")


def test_head_answers_without_a_body(server: ServerThread) -> None:
    answer = server.request("HEAD", "/health", user=None)
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "15")


def test_the_body_is_json_unless_it_says_otherwise(server: ServerThread) -> None:
    body = b'{"sql": "SELECT 1 AS one"}'
    assert server.post("/sql", body).status == 200
    other = server.post("/sql", body, headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert (other.status, other.error["code"]) == (415, "unsupported_media_type")
    assert "application/json or application/msgpack" in other.error["message"]


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("*/*", "application/json"),
        ("text/html, application/msgpack;q=0.2, application/json;q=0.1", "application/msgpack"),
        ("application/msgpack;q=0", "application/json"),
        ("application/msgpack;q=x, ,;;", "application/json"),
        ("image/png", "application/json"),
    ],
)
def test_the_answer_is_what_accept_likes_best(server: ServerThread, accept: str, answered: str) -> None:
    answer = server.post("/sql", {"sql": "SELECT 1 AS one"}, headers={"Accept": accept})
    assert answer.headers["content-type"] == answered


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b'{"sql": "SELECT 1"', "cut off after 18 bytes"),
        (b'{"sql": 1}', "$.sql"),
        (b"{}", "sql"),
        (b"null", "wrong"),
        (b'{"sql": "SELECT 1", "parms": []}', "parms"),
        (b'{"sql": "SELECT 1", "params": {}}', "$.params"),
        (b"\xff\xfe", "wrong"),
        (b'{"sql": "\\ud800"}', "cut off"),
        (b'{"sql": "SELECT ?", "params": [{"$bytes": "%"}]}', "base64"),
    ],
)
def test_a_wrong_body_is_told_where_it_is_wrong(server: ServerThread, body: bytes, said: str) -> None:
    answer = server.post("/sql", body)
    assert (answer.status, said in answer.error["message"]) == (400, True), answer.body


def test_an_unknown_msgpack_extension_is_refused(server: ServerThread) -> None:
    body = msgspec.msgpack.encode({"sql": "SELECT ?", "params": [msgspec.msgpack.Ext(99, b"x")]})
    answer = server.post("/sql", body, headers={"Content-Type": "application/msgpack"})
    assert (answer.status, "extension 99" in answer.error["message"]) == (400, True)


# --- size and time ----------------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused_by_its_length_and_while_it_arrives(server: ServerThread) -> None:
    declared = exchange(server, head(Content_Length=LIMIT + 1), b"x" * (LIMIT + 1))
    assert code_of(declared) == (413, "too_large")
    assert b"connection: close" in declared.lower()
    piece = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    chunked = exchange(server, head(Transfer_Encoding="chunked"), piece * 6, b"0\r\n\r\n")
    assert code_of(chunked) == (413, "too_large")


def test_a_client_that_asks_before_it_sends_is_refused_at_once(server: ServerThread) -> None:
    received = exchange(server, head(Content_Length=10**12, Expect="100-continue"))
    assert code_of(received) == (413, "too_large")
    assert b"100 Continue" not in received


def test_a_body_that_unpacks_beyond_the_limit_is_refused(server: ServerThread) -> None:
    bomb = gzip.compress(b"x" * 1_000_000)
    assert len(bomb) < LIMIT
    answer = server.post("/sql", bomb, headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.error["code"]) == (413, "too_large")


def test_a_body_that_does_not_come_is_not_waited_for(server: ServerThread) -> None:
    received = exchange(server, head(Content_Length=100), b'{"sql"')
    assert code_of(received) == (408, "timeout")
    assert b"connection: close" in received.lower()


def test_a_client_that_goes_while_it_sends_leaves_nothing_behind(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(socket.create_connection((server.host, server.port))) as client:
        client.sendall(head(Content_Length=100) + b'{"sql"')
    assert server.get("/health").status == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- answers ----------------------------------------------------------------------------------------------------


def test_every_answer_has_a_request_id(server: ServerThread) -> None:
    mine = server.get("/health", headers={"X-Request-Id": "my-own-1"})
    assert mine.headers["x-request-id"] == "my-own-1"
    assert server.get("/nothing").headers["x-request-id"]


def test_what_nobody_foresaw_is_logged_and_not_told(server: ServerThread, caplog: pytest.LogCaptureFixture) -> None:
    server.sql("CREATE TABLE unlucky (id INT PRIMARY KEY)")
    with failpoint.armed("during_drop", raising(RuntimeError("a secret detail"))):
        answer = server.post("/sql", {"sql": "DROP TABLE unlucky"}, headers={"X-Request-Id": "lost-1"})
    assert (answer.status, answer.error["code"], answer.error["details"]) == (500, "internal", {"request_id": "lost-1"})
    assert b"secret" not in answer.body
    assert "a secret detail" in caplog.text


# --- a full queue -----------------------------------------------------------------------------------------------


class Hold:
    """Keeps the writer busy until the test lets it go on."""

    weight = 1
    alone = True

    def __init__(self) -> None:
        self.holding, self.go_on = threading.Event(), threading.Event()

    def decide(self, view: Any) -> Decision:
        self.holding.set()
        assert self.go_on.wait(60)
        return Decision()


class Nothing:
    weight = 1

    def decide(self, view: Any) -> Decision:
        return Decision()


def test_a_full_queue_is_503_with_a_time_to_come_back() -> None:
    with ServerThread() as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        server.sql("INSERT INTO t VALUES (?)", [0])  # which is prepared from now on
        hold, engine = Hold(), server.db.engine
        engine.submit(hold)
        try:
            assert hold.holding.wait(60)
            with pytest.raises(Overloaded):
                for _ in range(2 * QUEUE_COMMANDS):
                    engine.submit(Nothing(), wait=False)
            answers = [
                server.post("/sql", {"sql": "INSERT INTO t VALUES (?)", "params": [1]}),
                server.post("/sql", {"sql": "INSERT INTO t VALUES (7)"}),
                server.post("/sql", {"sql": "UPDATE t SET id = 1"}),
                server.post("/sql", {"sql": "BEGIN; INSERT INTO t VALUES (1); COMMIT"}),
                server.post("/sql", {"sql": "SELECT 1; CREATE TABLE u (id INT PRIMARY KEY)"}),
                server.post("/tables/default.t/rows", [{"id": 2}]),
            ]
            for answer in answers:
                assert (answer.status, answer.error["code"]) == (503, "overloaded")
                assert int(answer.headers["retry-after"]) >= 1
            # Many callers' writes in one request: the request is answered, each write for itself.
            writes = server.post("/writes", {"writes": [{"table": "t", "rows": [{"id": 3}], "idempotency_key": "k"}]})
            assert [result["error"]["code"] for result in writes.json()["results"]] == ["overloaded"]
            assert server.sql("SELECT id FROM t")[0]["rows"] == [[0]], "reads go on"
        finally:
            hold.go_on.set()
        engine.execute(Nothing())  # which waits for its turn: then there is room again
        server.sql("INSERT INTO t VALUES (1)")
