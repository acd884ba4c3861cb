"""`tablecast serve` as a process: how it starts, how it refuses to, and how it ends.

Every server here is the real program with its own port and signals; requests go over real sockets. A request whose body
is still on its way stands for one that is running: `Expect: 100-continue` tells when the server waits for it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tablecast
from tablecast.server.configuration import PREFIX, SECTIONS, SETTINGS
from tablecast.server.connection import MAX_HEAD_BYTES
from tablecast.server.tokens import SECRET_FILE

PASSWORD = "correct horse battery"
PATIENCE_SECONDS = 60  # for what must happen; a test that waits so long has failed
LISTENING = re.compile(r"tablecast is listening on (https?://\S+)\n")
ORDERS = "CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY)"
EVENTS = "CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.orders ON ANY"


def program(*args: object) -> list[str]:
    return [sys.executable, "-c", "from tablecast.cli import main; main()", "serve", *map(str, args)]


def environment(**variables: str) -> dict[str, str]:
    """Without settings of whoever runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)} | variables


class Server:
    """A server process that listens. What it printed up to that line is in `said`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.said += line
            if found := LISTENING.match(line):
                self.url = found[1]
                return
        raise AssertionError(f"it ended: {self.said}{process.stderr.read() if process.stderr else ''}")

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def connect(self) -> HTTPConnection:
        return HTTPConnection(*self.address, timeout=PATIENCE_SECONDS)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return call(self.connect(), "GET", path, headers=headers)

    def sql(self, text: str, password: str = PASSWORD) -> tuple[int, Any]:
        headers = {"Authorization": basic("system", password)}
        return call(self.connect(), "POST", "/v1/api/sql", {"sql": text}, headers)

    def rows(self, text: str) -> list[list[Any]]:
        status, body = self.sql(text)
        assert status == 200, body
        found: list[list[Any]] = body["results"][-1]["rows"]
        return found

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and what it wrote to standard error."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, errors

    def stops_accepting(self) -> None:
        def refused() -> bool:
            try:
                socket.create_connection(self.address, timeout=PATIENCE_SECONDS).close()
            except (ConnectionRefusedError, ConnectionResetError):  # reset: it was in the queue when the socket closed
                return True
            return False

        wait_until(refused)


@contextmanager
def serving(data: Path, *args: object, password: str | None = PASSWORD) -> Iterator[Server]:
    variables = {} if password is None else {"TABLECAST_PASSWORD": password}
    process = subprocess.Popen(
        program("--data", data, "--port", 0, *args),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def refused(*args: object, **variables: str) -> str:
    """What it said to a start that must fail: one line, and exit code 1."""
    done = subprocess.run(
        program(*args), env=environment(**variables), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def wait_until(condition: Callable[[], bool]) -> None:
    """Until it holds. Between two looks the processor is given to others."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        os.sched_yield()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def call(
    connection: HTTPConnection, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection.request(method, path, None if body is None else json.dumps(body), headers or {})
    response = connection.getresponse()
    answer = read(response)
    connection.close()
    return response.status, answer


def read(response: HTTPResponse) -> Any:
    text = response.read()
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return json.loads(text) if is_json else text.decode()


class Running:
    """A write that the server has begun to serve: its body comes when `finish` is called."""

    def __init__(self, server: Server, sql: str) -> None:
        self._body = json.dumps({"sql": sql}).encode()
        self._socket = socket.create_connection(server.address, timeout=PATIENCE_SECONDS)
        head = (
            f"POST /v1/api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('system', PASSWORD)}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(self._body)}\r\nExpect: 100-continue\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        assert self._socket.recv(1_000).startswith(b"HTTP/1.1 100 ")

    def finish(self) -> int:
        """Its status."""
        self._socket.sendall(self._body)
        response = HTTPResponse(self._socket)
        response.begin()
        response.read()
        self.close()
        return response.status

    def close(self) -> None:
        self._socket.close()


# --- starting ---------------------------------------------------------------------------------------------------


def test_the_first_start_makes_the_account_and_says_its_password_once(tmp_path: Path) -> None:
    with serving(tmp_path / "db", password=None) as server:
        found = re.fullmatch(
            'The account "system" was made. Its password, shown only now:\n\n    (\\S{20,})\n\n'
            f"tablecast is listening on {re.escape(server.url)}\n",
            server.said,
        )
        assert found, server.said
        password = found[1]
        assert server.get("/health")[0] == 200
        assert server.get("/ready")[0] == 200
        assert server.sql("SELECT 1 AS one", password)[0] == 200
        assert server.sql("SELECT 1 AS one", "wrong password")[0] == 401
        code, log = server.stop()
        assert code == 0
        assert password not in log
    with serving(tmp_path / "db", password=None) as server:
        assert server.said == f"tablecast is listening on {server.url}\n"
        assert server.sql("SELECT 1 AS one", password)[0] == 200


def test_a_password_that_is_given_is_not_said_and_later_ones_change_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "db") as server:
        assert server.said == f"tablecast is listening on {server.url}\n"
        assert server.sql("SELECT 1 AS one")[0] == 200
        assert server.stop(signal.SIGINT)[0] == 0
    with serving(tmp_path / "db", password="another password") as server:
        assert server.sql("SELECT 1 AS one", "another password")[0] == 401
        assert server.sql("SELECT 1 AS one")[0] == 200


def test_tokens_outlive_a_restart_and_the_secret_is_kept_from_others(tmp_path: Path) -> None:
    with serving(tmp_path / "db") as server:
        login = {"user": "system", "password": PASSWORD}
        status, tokens = call(server.connect(), "POST", "/v1/api/auth/login", login)
        assert status == 200
        assert server.stop()[0] == 0
    assert stat.S_IMODE((tmp_path / "db" / SECRET_FILE).stat().st_mode) == 0o600
    with serving(tmp_path / "db") as server:
        bearer = f"Bearer {tokens['access_token']}"
        assert server.get("/v1/api/auth/me", Authorization=bearer) == (200, {"user": "system", "role": "system"})


def test_a_database_in_memory_is_served_too(tmp_path: Path) -> None:
    with serving(Path(":memory:")) as server:
        assert server.sql(ORDERS)[0] == 200
        assert server.stop()[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_too_many_wrong_passwords_are_429_with_the_time_to_wait(tmp_path: Path) -> None:
    with serving(tmp_path / "db", "--set", "login_attempts=2", "--set", "lockout_seconds=600") as server:
        answers = []
        for password in ("wrong password", "wrong again …", PASSWORD):
            connection = server.connect()
            connection.request("POST", "/v1/api/auth/login", json.dumps({"user": "system", "password": password}))
            response = connection.getresponse()
            answers.append((response.status, read(response)["error"]["code"], response.headers["Retry-After"]))
            connection.close()
        assert answers[:2] == [(401, "unauthenticated", None)] * 2
        assert answers[2][:2] == (429, "locked_out")
        assert 1 <= int(answers[2][2]) <= 600


def test_print_config_is_toml_with_every_setting_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tablecast.toml"
    file.write_text("[server]\nport = 9\n")
    done = subprocess.run(
        program("--config", file, "--data", tmp_path / "db", "--set", "drain-seconds=5", "--print-config"),
        env=environment(TABLECAST_LOG_LEVEL="error"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = tomllib.loads(done.stdout)
    assert list(printed) == list(SECTIONS)
    assert sum(map(len, printed.values())) == len(SETTINGS)
    assert (printed["server"]["port"], printed["server"]["drain_seconds"]) == (9, 5)
    assert printed["observability"]["log_level"] == "error"
    assert not (tmp_path / "db").exists()


# --- refusing to start ------------------------------------------------------------------------------------------


def test_an_address_that_others_reach_takes_tls_or_a_word(tmp_path: Path) -> None:
    said = refused("--data", tmp_path / "db", "--host", "0.0.0.0", "--port", 0)
    assert "host 0.0.0.0 can be reached from other machines" in said
    assert "set tls_certificate and tls_key, or insecure_network" in said
    assert not (tmp_path / "db").exists()
    with serving(tmp_path / "db", "--host", "0.0.0.0", "--insecure-network") as server:
        assert server.url.startswith("http://0.0.0.0:")
        assert server.get("/health")[0] == 200


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--data", tmp_path / "db", "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another port" in said
    assert not (tmp_path / "db").exists()


def test_a_database_that_is_open_elsewhere_is_named(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "db"):
        assert refused("--data", tmp_path / "db", "--port", 0).startswith("error [database_locked]: ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--port", "http"], "the flag --port sets port to 'http'; it takes a whole number from 0 to 65,535"),
        (["--set", "prot=1"], "the flag --set sets 'prot', and there is no such setting: did you mean port?"),
        (["--set", "port"], "--set port has no value: write --set NAME=VALUE"),
        (["--config", "none.toml"], "the settings file none.toml cannot be read: No such file or directory"),
        (["--host", "no.such.host.invalid"], "host 'no.such.host.invalid' is no address of this machine"),
        (["--host", "192.0.2.1", "--insecure-network"], "cannot listen on 192.0.2.1 port 0: "),
        (["--tls-certificate", "c.pem"], "tls_certificate is set and tls_key is not: TLS takes both"),
        (["--tls-certificate", "c.pem", "--tls-key", "k.pem"], "tls_certificate c.pem cannot be read: No such file"),
        (["--durability", "maybe"], "durability 'maybe' is unknown"),
        (["--data", "/dev/null"], "/dev/null is a file; a database is a directory"),
    ],
)
def test_a_wrong_start_is_refused_in_one_line(tmp_path: Path, args: list[str], said: str) -> None:
    given = [] if "--data" in args else ["--data", str(tmp_path / "db")]
    port = [] if "--port" in args else ["--port", "0"]
    assert said in refused(*given, *port, *args)


def test_a_password_that_is_too_short_is_refused(tmp_path: Path) -> None:
    said = refused("--data", tmp_path / "db", "--port", 0, TABLECAST_PASSWORD="short")
    assert "the password is too short" in said


# --- TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that it signed itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    file, key = directory / "certificate.pem", directory / "key.pem"
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    named = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = [*new.split(), *named.split(), "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file, key


def test_tls_is_two_settings(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    with serving(tmp_path / "db", "--tls-certificate", file, "--tls-key", key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(file))
        connection = HTTPSConnection(*server.address, context=trusting, timeout=PATIENCE_SECONDS)
        assert call(connection, "GET", "/health")[0] == 200
        doubting = HTTPSConnection(*server.address, timeout=PATIENCE_SECONDS)
        with pytest.raises(ssl.SSLCertVerificationError):
            call(doubting, "GET", "/health")
        assert server.stop()[0] == 0


def test_a_certificate_that_is_none_is_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    for wrong in ((key, key), (file, file), (key, file)):
        said = refused("--data", tmp_path / "db", "--port", 0, "--tls-certificate", wrong[0], "--tls-key", wrong[1])
        assert "are no certificate with its unencrypted key, both PEM" in said


def test_an_encrypted_key_is_refused_instead_of_asked_for(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)],
        check=True,
        capture_output=True,
    )
    said = refused("--data", tmp_path / "db", "--port", 0, "--tls-certificate", file, "--tls-key", locked)
    assert "are no certificate with its unencrypted key" in said


# --- ending -----------------------------------------------------------------------------------------------------


def parked(server: Server) -> bool:
    status, text = server.get("/metrics", Authorization=basic("system", PASSWORD))
    assert status == 200
    return "\ntablecast_long_polls_parked 1.0\n" in text


def test_a_drain_answers_parked_consumes_and_finishes_running_writes(tmp_path: Path) -> None:
    with serving(tmp_path / "db") as server:
        server.rows(f"{ORDERS}; {EVENTS}")
        answers: list[tuple[int, Any]] = []
        request = {"topic": "app.events", "timeout_seconds": 300}
        headers = {"Authorization": basic("system", PASSWORD)}

        def consume() -> None:
            answers.append(call(server.connect(), "POST", "/v1/api/topics/consume", request, headers))

        waiting = threading.Thread(target=consume)
        waiting.start()
        wait_until(lambda: parked(server))
        write = Running(server, "INSERT INTO app.orders VALUES (1)")
        server.process.send_signal(signal.SIGTERM)
        waiting.join(PATIENCE_SECONDS)
        [(status, answer)] = answers
        assert (status, answer["messages"]) == (200, [])
        server.stops_accepting()
        assert write.finish() == 200
        assert server.ended()[0] == 0
    with tablecast.open(tmp_path / "db", create=False) as db:
        assert db.query("SELECT id FROM app.orders").rows == [(1,)]


def test_what_outlasts_the_drain_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path / "db", "--set", "drain_seconds=1") as server:
        server.rows(ORDERS)
        write = Running(server, "INSERT INTO app.orders VALUES (1)")
        assert server.stop()[0] == 0
        write.close()
    with tablecast.open(tmp_path / "db", create=False) as db:
        assert db.query("SELECT id FROM app.orders").rows == []


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "db", "--set", "drain_seconds=3600") as server:
        server.rows(f"{ORDERS}; INSERT INTO app.orders VALUES (7)")
        write = Running(server, "INSERT INTO app.orders VALUES (1)")
        server.process.send_signal(signal.SIGTERM)
        server.stops_accepting()
        assert server.stop(signal.SIGINT)[0] == -signal.SIGINT
        write.close()
    with tablecast.open(tmp_path / "db", create=False) as db:
        assert db.query("SELECT id FROM app.orders").rows == [(7,)]
        assert db.verify().problems == []


# --- connections ------------------------------------------------------------------------------------------------


def raw(server: Server, data: bytes) -> bytes:
    """Everything that is answered to these bytes until the server closes."""
    with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def test_a_head_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    beginnings = (b"", b"GET /health HT", b"\r\n", b"GET /health HTTP/1.1\r\nX: ")
    with serving(tmp_path / "db", "--set", "body_timeout_seconds=2") as server, ThreadPoolExecutor() as pool:
        for answer in pool.map(lambda begun: raw(server, begun), beginnings):
            assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert b'"no complete request came within 2 s"' in answer
        assert server.get("/health")[0] == 200


def test_a_head_that_does_not_end_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "db") as server:
        with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nX: ")

            def is_answered() -> bool:
                client.sendall(b"x" * 1_000)
                return bool(select.select([client], [], [], 0)[0])

            wait_until(is_answered)
            assert client.recv(1_000).startswith(b"HTTP/1.1 431 ")
        answer = raw(server, b"GET /health HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert server.get("/health", X="x" * 30_000)[0] == 200


def test_more_connections_than_allowed_are_refused_and_those_open_go_on(tmp_path: Path) -> None:
    with serving(tmp_path / "db", "--set", "max_connections=2", "--set", "max_parked_polls=1") as server:
        kept = [server.connect() for _ in range(2)]
        for connection in kept:
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        answer = raw(server, b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"all 2 connections are taken" in answer
        kept[0].request("GET", "/health")
        assert kept[0].getresponse().status == 200
        kept[1].close()
        wait_until(lambda: raw(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "))
        kept[0].close()


def test_the_address_in_a_header_is_believed_only_from_a_trusted_proxy(tmp_path: Path) -> None:
    def codes(server: Server) -> list[int]:
        """Of wrong passwords that claim to come from one address each."""
        headers = {"Authorization": basic("system", "wrong password")}
        return [server.get("/v1/api/auth/me", **headers, **{"X-Forwarded-For": f"10.0.0.{n}"})[0] for n in range(4)]

    with serving(tmp_path / "db", "--set", "login_attempts=2") as server:
        assert codes(server) == [401, 401, 429, 429]
    with serving(tmp_path / "db", "--set", "login_attempts=2", "--set", "trusted_proxies=127.0.0.0/8") as server:
        assert codes(server) == [401, 401, 401, 401]
