"""Clients that are slow, broken or hostile: the server's memory stays bounded, and others are served meanwhile.

Real processes and raw sockets. Memory is what the system says of the server's process.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from server_fixture import PASSWORD, Address, ServerProcess, ServerThread, basic

from tablecast.server import connection
from tablecast.server.connection import MAX_HEAD_BYTES, PIPELINED_REQUESTS

MIB = 1024 * 1024
MAX_CONNECTIONS = 200
CROWD = 3_000  # connections beyond them
PATIENT_SECONDS = 300.0  # nobody of a crowd is told to be late, which would make room for another
SMALL_BUFFER_BYTES = 16_384  # so that a client that does not read is soon full
SETUP = """CREATE NAMESPACE app; CREATE TABLE app.t (id INT PRIMARY KEY, body TEXT);
CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.t ON INSERT"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = [f"max_connections={MAX_CONNECTIONS}", "max_parked_polls=100", "body_timeout_seconds=2", "log_level=error"]
    data = tmp_path_factory.mktemp("hostile") / "data"
    with ServerProcess(data, *(word for flag in flags for word in ("--set", flag))) as running:
        running.sql(SETUP)
        for n in range(100):
            rows = [{"id": n * 10 + i, "body": chr(97 + i) * 30_000} for i in range(10)]
            assert running.post("/tables/app.t/rows", rows).status == 200
        assert running.get("/metrics").status == 200
        yield running


@pytest.fixture(autouse=True, scope="module")
def many_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], CROWD + 1_000), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def resident_mib(server: ServerProcess) -> float:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


@contextmanager
def bounded(server: ServerProcess, growth_mib: float) -> Iterator[None]:
    """The server may grow by so much, and serves others at the end."""
    before = resident_mib(server)
    yield
    assert resident_mib(server) - before < growth_mib
    assert server.sql("SELECT 1 AS one")[0]["rows"] == [[1]]


def connect(server: Address) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    client.settimeout(60)
    client.connect((server.host, server.port))
    return client


def request(method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('system', PASSWORD)}\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


PARKING = request("POST", "/v1/api/topics/consume", {"topic": "app.events", "timeout_seconds": 60})


def received(client: socket.socket) -> bytes:
    """All that comes until the server closes."""
    everything = b""
    try:
        while chunk := client.recv(65_536):
            everything += chunk
    except ConnectionResetError:
        pass
    return everything


def parked(server: Address) -> int:
    lines = server.get("/metrics").body.decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("tablecast_long_polls_parked ")).split()[1]))


def wait_until(condition: Callable[[], bool]) -> None:
    """Looks again and again: what is waited for is another process's doing, which tells nobody."""
    pause = threading.Event()
    for _ in range(12_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not become true in 120 seconds")


# --- who does not read ------------------------------------------------------------------------------------------


def test_readers_of_a_whole_topic_that_stop_reading(server: ServerProcess) -> None:
    """The topic has some 30 MB, and nearly all of that waits in the log, not in memory, for each of 30 readers."""
    with ExitStack() as stack, bounded(server, growth_mib=120):
        for _ in range(30):
            client = stack.enter_context(closing(connect(server)))
            client.sendall(request("GET", "/v1/api/topics/app.events/arrow"))
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        for _ in range(20):
            assert server.sql("SELECT id FROM app.t WHERE id = 7")[0]["rows"] == [[7]]


def test_an_answer_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.2)
    with ServerThread() as server:
        server.sql(SETUP)
        for n in range(10):
            server.post("/tables/app.t/rows", [{"id": n, "body": "x" * 1_000_000}])
        with closing(connect(server)) as client:
            client.sendall(request("POST", "/v1/api/sql", {"sql": "SELECT * FROM app.t"}))
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
            wait_until(lambda: not server._server.server_state.connections)
            assert len(received(client)) < 10_000_000, "what the system had taken over already, and no more"


def test_a_reader_that_is_slow_but_reads_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look finds that something was taken: the limit passes several times, and the answer is whole."""
    monkeypatch.setattr(connection, "STALL_SECONDS", 1.0)
    pause = threading.Event()
    with ServerThread() as server:
        server.sql(SETUP)
        for n in range(10):
            server.post("/tables/app.t/rows", [{"id": n, "body": "x" * 1_000_000}])
        with closing(connect(server)) as client:
            client.sendall(request("POST", "/v1/api/sql", {"sql": "SELECT * FROM app.t"}))
            head, _, body = client.recv(65_536).partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            taken = len(body)
            while piece := client.recv(length - taken):
                taken += len(piece)
                pause.wait(0.005)
            assert taken == length


# --- who does not send ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"POST /v1/api/sql HTTP/1.1\r\nHost: x\r\nA:"])
def test_connections_that_begin_and_do_not_go_on(server: ServerProcess, sent: bytes) -> None:
    with ExitStack() as stack, bounded(server, growth_mib=50):
        clients = [stack.enter_context(closing(connect(server))) for _ in range(MAX_CONNECTIONS - 20)]
        for client in clients:
            client.sendall(sent)
        assert server.sql("SELECT 1 AS one")[0]["rows"] == [[1]]
        assert {received(client).split(b"\r\n")[0] for client in clients} == {b"HTTP/1.1 408 Request Timeout"}


def test_heads_and_bodies_that_trickle_in(server: ServerProcess) -> None:
    """A byte now and then keeps a connection busy, not alive: the time is for the whole head, and for the whole body."""
    head = b"POST /v1/api/sql HTTP/1.1\r\nHost: x\r\nA: "
    body = (
        f"POST /v1/api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('system', PASSWORD)}\r\n"
        'Content-Type: application/json\r\nContent-Length: 5000000\r\n\r\n{"sql": "'
    ).encode()
    with ExitStack() as stack, bounded(server, growth_mib=50):
        clients = [stack.enter_context(closing(connect(server))) for _ in range(MAX_CONNECTIONS - 20)]
        for number, client in enumerate(clients):
            client.sendall(head if number % 2 else body)
        waiting = set(clients)
        while waiting:
            answered, _, _ = select.select(list(waiting), [], [], 0.05)
            waiting -= set(answered)
            for client in waiting:
                with suppress(ConnectionError):  # refused since the last look
                    client.sendall(b"x")
        assert server.sql("SELECT 1 AS one")[0]["rows"] == [[1]]
        ends = {received(client).split(b"\r\n")[0] for client in clients}
        assert ends - {b""} == {b"HTTP/1.1 408 Request Timeout"}, "some were reset, for they went on sending"


@pytest.mark.parametrize("ahead", [b"", b"GET /health HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\r\nA:"])
def test_pollers_that_vanish_are_not_waited_for(server: ServerProcess, ahead: bytes) -> None:
    """By a reset, as when a process is killed, or by a close; also if they have sent something ahead."""
    with bounded(server, growth_mib=50):
        clients = [connect(server) for _ in range(80)]
        for client in clients:
            client.sendall(PARKING + ahead)
        wait_until(lambda: parked(server) == len(clients))
        for number, client in enumerate(clients):
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        wait_until(lambda: parked(server) == 0)


# --- who sends too much -----------------------------------------------------------------------------------------


def test_thousands_of_connections_beyond_the_limit(tmp_path: Path) -> None:
    flags = [f"max_connections={MAX_CONNECTIONS}", f"body_timeout_seconds={PATIENT_SECONDS}", "max_parked_polls=100"]
    with ServerProcess(tmp_path / "data", *(word for flag in flags for word in ("--set", flag))) as server:
        assert server.get("/metrics").status == 200
        with ExitStack() as stack, bounded(server, growth_mib=150):
            early = stack.enter_context(closing(HTTPConnection(server.host, server.port, timeout=60)))
            assert status(early) == 200
            crowd = [stack.enter_context(closing(connect(server))) for _ in range(CROWD)]
            wait_until(lambda: told(crowd) >= CROWD - MAX_CONNECTIONS)
            assert status(early) == 200, "who was there before the crowd is served"
            for client in crowd:
                client.close()
            wait_until(lambda: is_served(server))


def status(keeping: HTTPConnection) -> int:
    keeping.request("GET", "/health")
    answer = keeping.getresponse()
    answer.read()
    return answer.status


def told(clients: list[socket.socket]) -> int:
    """How many have an answer, though they have asked nothing: only those that are refused."""
    answered = select.poll()
    for client in clients:
        answered.register(client, select.POLLIN)
    return len(answered.poll(0))


def is_served(server: ServerProcess) -> bool:
    try:
        return server.get("/health", user=None).status == 200
    except OSError:
        return False


def test_a_huge_head(server: ServerProcess) -> None:
    with bounded(server, growth_mib=50), closing(connect(server)) as client:
        sent = b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * (10 * MAX_HEAD_BYTES // 6)
        client.sendall(sent[: MAX_HEAD_BYTES + 1_000])
        assert received(client).startswith(b"HTTP/1.1 431 ")


def test_an_endless_head_behind_a_request_that_waits(server: ServerProcess) -> None:
    """It is not its turn yet: no application looks at it, and it must not fill the memory meanwhile."""
    with bounded(server, growth_mib=50), closing(connect(server)) as client:
        client.sendall(PARKING)
        wait_until(lambda: parked(server) == 1)
        client.sendall(b"GET /health HTTP/1.1\r\n")
        with pytest.raises(OSError):
            for _ in range(1_000):
                client.sendall(b"a: b\r\n" * 10_000)
        wait_until(lambda: parked(server) == 0)


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    with closing(connect(server)) as client:
        asked = [request("POST", "/v1/api/sql", {"sql": f"SELECT {n} AS n"}) for n in range(PIPELINED_REQUESTS)]
        client.sendall(b"".join(asked) + b"GET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n")
        answers = received(client).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200"] * PIPELINED_REQUESTS + [b"404"]
        for number, answer in enumerate(answers[:-1]):
            assert f'"rows":[[{number}]]'.encode() in answer


def test_pipelined_requests_without_end(server: ServerProcess) -> None:
    with ExitStack() as stack, bounded(server, growth_mib=50):
        for _ in range(20):
            client = stack.enter_context(closing(connect(server)))
            client.sendall(PARKING)
            with pytest.raises(OSError):
                for _ in range(1_000):
                    client.sendall(b"GET /health HTTP/1.1\r\n\r\n" * 10_000)
        wait_until(lambda: parked(server) == 0)
