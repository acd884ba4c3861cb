"""The thread that commits answers readers that wait: not before the disk has answered, and with what they would get anyway."""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.server_fixture import PASSWORD, ServerProcess, ServerThread, basic
from tablecast.core import failpoint
from tablecast.engine.ahead import Held
from tablecast.engine.commit import Commit
from tablecast.sql import waiting
from tablecast.sql.prompt import PromptReader
from tablecast.storage.base import StorageFailure
from tablecast.testing.failpoints import Gate, raising

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, note TEXT);
CREATE TOPIC app.events;
ALTER TOPIC app.events ADD SOURCE app.orders ON ANY;
CREATE TOPIC app.others PARTITIONS 2;
ALTER TOPIC app.others ADD SOURCE app.orders ON ANY;
"""
ANSWER_SECONDS = 30.0  # less than who waits waits at most
CONSUME = "/topics/consume"


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        for statement in SCHEMA.strip().split(";\n"):
            running.sql(statement)
        yield running


class Prepared:
    """Called, it waits until so many more answers are ready."""

    def __init__(self) -> None:
        self.count = 0
        self._ready = threading.Semaphore(0)

    def one(self) -> None:
        self.count += 1
        self._ready.release()

    def __call__(self, count: int) -> None:
        for _ in range(count):
            assert self._ready.acquire(timeout=ANSWER_SECONDS)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    found = Prepared()
    take = PromptReader.take

    def counted(self: PromptReader, commit: Commit) -> Held | None:
        held = take(self, commit)
        if held is not None:
            found.one()
        return held

    monkeypatch.setattr(PromptReader, "take", counted)
    return found


class Reader:
    """One connection, byte by byte."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._rest = b""

    def ask(self, path: str = CONSUME, *, head: str = "", **request: Any) -> None:
        asked = {"topic": "app.events", "timeout_seconds": 60, **request} if path == CONSUME else request
        body = json.dumps(asked).encode()
        self.socket.sendall(
            f"POST /v1/api{path} HTTP/1.1\r\nHost: here\r\nAuthorization: {basic('system', PASSWORD)}\r\n"
            f"Content-Type: application/json\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    @property
    def is_told(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    def answer(self) -> Any:
        head, _, body = self.whole_answer().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return json.loads(body)

    def whole_answer(self) -> bytes:
        """Head and body."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        size = int(self._rest.split(b"content-length: ")[1].split(b"\r\n")[0])
        end = self._rest.index(b"\r\n\r\n") + 4 + size
        while len(self._rest) < end:
            self._more()
        found, self._rest = self._rest[:end], self._rest[end:]
        return found

    def offsets(self) -> list[int]:
        return [message["offset"] for message in self.answer()["messages"]]

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the connection ended"
        self._rest += data

    def is_ended(self) -> bool:
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()


@contextmanager
def readers(server: ServerThread, count: int, **request: Any) -> Iterator[list[Reader]]:
    """They wait when this begins."""
    before = server.db.sleeping
    made = [Reader(server.port) for _ in range(count)]
    try:
        for reader in made:
            reader.ask(**request)
        until(lambda: server.db.sleeping == before + count)
        yield made
    finally:
        for reader in made:
            reader.close()


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(ANSWER_SECONDS * 1000)):
        if condition():
            return
        waiting.wait(0.001)
    raise AssertionError("it did not come to that")


@contextmanager
def writing(server: ServerThread, *, at: str = "before_sync", number: int = 1) -> Iterator[Gate]:
    """A row is written, and its commit stands at the gate."""
    gate = Gate()
    with failpoint.armed(at, gate):
        writer = threading.Thread(target=server.sql, args=(f"INSERT INTO app.orders VALUES ({number}, 'x')",))
        writer.start()
        try:
            gate.wait_reached()
            yield gate
        finally:
            gate.open()
            writer.join()


def test_nothing_is_said_before_the_disk_has_answered(server: ServerThread, prepared: Prepared) -> None:
    with readers(server, 2) as (one, other), writing(server) as gate:
        prepared(2)
        assert not one.is_told
        assert not other.is_told
        assert server.sql("SELECT count(*) FROM app.orders")[0]["rows"] == [["0"]], "readers do not see it either"
        gate.open()
        assert one.offsets() == other.offsets() == [0]
        assert server.sql("SELECT count(*) FROM app.orders")[0]["rows"] == [["1"]]


def test_who_was_told_sees_the_row_at_once(server: ServerThread, prepared: Prepared) -> None:
    """What is told is published before: the answer is there while the writer still waits for its own."""
    with readers(server, 1) as (reader,), writing(server, at="before_ack"):
        assert reader.offsets() == [0]
        assert server.sql("SELECT count(*) FROM app.orders")[0]["rows"] == [["1"]]
    prepared(1)


def test_a_commit_that_fails_is_told_to_nobody(server: ServerThread, prepared: Prepared) -> None:
    gate = Gate()

    def fail() -> None:
        gate()
        raising(StorageFailure("the disk said no"))()

    with readers(server, 2) as both, failpoint.armed("before_sync", fail):
        writer = threading.Thread(target=server.post, args=("/sql", {"sql": "INSERT INTO app.orders VALUES (1, 'x')"}))
        writer.start()
        gate.wait_reached()
        prepared(2)
        gate.open()
        assert [reader.is_ended() for reader in both] == [True, True], "not a word, and no empty answer either"
        writer.join()
        assert server.sql("SELECT count(*) FROM app.orders")[0]["rows"] == [["0"]], "it is not tried again"


def test_a_store_that_fails_to_write_is_told_to_nobody(server: ServerThread) -> None:
    with readers(server, 1) as (reader,), failpoint.armed("before_write", raising(StorageFailure("full"))):
        server.post("/sql", {"sql": "INSERT INTO app.orders VALUES (1, 'x')"})
        server.drain()
        told = not reader.is_ended() and reader.answer()["messages"]
        assert not told


@pytest.mark.parametrize("prompt", [0, 2, 100])
def test_all_of_many_readers_are_answered(
    server: ServerThread, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, prompt: int
) -> None:
    monkeypatch.setattr(waiting, "PROMPT_READERS", prompt)
    with readers(server, 12) as all_of_them:
        with writing(server) as gate:
            prepared(min(prompt, 12))
            gate.open()
            assert [reader.offsets() for reader in all_of_them] == [[0]] * 12
        for reader in all_of_them:  # and their connections go on
            reader.ask(start={"type": "Offset", "offset": 0})
        assert [reader.offsets() for reader in all_of_them] == [[0]] * 12


def test_requests_sent_ahead_are_answered_in_their_order(server: ServerThread, prepared: Prepared) -> None:
    with readers(server, 1) as (reader,), writing(server) as gate:
        prepared(1)
        reader.ask(start={"type": "Latest"}, timeout_seconds=0)
        reader.ask(topic="app.others", start={"type": "Earliest"}, timeout_seconds=60)
        server.sql("SELECT 1")  # on another connection, but read after them
        assert not reader.is_told
        gate.open()
        assert reader.offsets() == [0]
        assert reader.answer()["messages"] == []
        assert len(reader.answer()["messages"]) == 1


def test_only_so_many_have_a_descriptor_more(
    server: ServerThread, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PROMPT_READERS_IN_ALL", 1)
    for number in (1, 2):  # who has gone makes room
        with readers(server, 1) as (one,), readers(server, 1, topic="app.others") as (other,):
            server.sql(f"INSERT INTO app.orders VALUES ({number}, 'x')")
            assert len(one.offsets()) == len(other.offsets()) == 1
        assert prepared.count == number


@pytest.mark.parametrize("prompt", [0, 4])
def test_a_connection_that_is_to_be_closed_is_answered_first(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, prompt: int
) -> None:
    monkeypatch.setattr(waiting, "PROMPT_READERS", prompt)
    with readers(server, 1, head="Connection: close\r\n") as (reader,), writing(server) as gate:
        gate.open()
        assert reader.offsets() == [0]
        assert reader.is_ended()


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_the_answer_is_the_one_that_the_loop_would_give(
    server: ServerThread, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, accept: str, connection: str
) -> None:
    """Byte for byte, but for when it was asked."""
    head = f"Accept: {accept}\r\nConnection: {connection}\r\nX-Request-Id: mine\r\n"
    monkeypatch.setattr(waiting, "PROMPT_READERS", 1)
    with readers(server, 2, head=head) as both, writing(server) as gate:
        prepared(1)
        gate.open()
        prompt, usual = (reader.whole_answer() for reader in both)
    assert b"mine" in prompt
    assert len(prompt) > 200
    assert but_for_the_time(prompt, accept) == but_for_the_time(usual, accept)


def but_for_the_time(answer: bytes, form: str) -> tuple[list[bytes], dict[str, Any]]:
    """How long each waited is in the body, and with it how long the body is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    found = msgspec.json.decode(body) if form == "application/json" else msgspec.msgpack.decode(body)
    assert found.pop("waited_seconds") >= 0
    lines = head.split(b"\r\n")
    assert b"content-length: %d" % len(body) in lines
    return [line for line in lines if not line.startswith((b"date: ", b"content-length: "))], found


def test_who_begins_to_wait_meanwhile_is_woken(server: ServerThread, prepared: Prepared) -> None:
    with readers(server, 1) as (early,), writing(server) as gate:
        prepared(1)
        with readers(server, 1, partition_id=0) as (late,):  # in a line of its own
            gate.open()
            assert early.offsets() == late.offsets() == [0]


def test_who_was_answered_is_not_woken_to_look(
    server: ServerThread, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    monkeypatch.setattr(waiting.Waiting, "_wake", lambda self, topic_id: woken.append(topic_id))
    with readers(server, 2) as (one, other), writing(server) as gate:
        prepared(2)
        gate.open()
        assert one.offsets() == other.offsets() == [0]
    assert woken == []


def test_a_wait_that_ends_while_its_answer_is_ready_ends_with_it(server: ServerThread, prepared: Prepared) -> None:
    """The server drains, which answers who waits with nothing; but this one has something."""
    with readers(server, 1) as (reader,), writing(server) as gate:
        prepared(1)
        server.drain()
        until(lambda: server.db.sleeping == 0)
        assert not reader.is_told
        gate.open()
        assert reader.offsets() == [0]


def test_a_reader_that_goes_away_meanwhile_harms_nobody(server: ServerThread, prepared: Prepared) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    with readers(server, 3) as (leaves, resets, stays), writing(server) as gate:
        prepared(3)
        leaves.close()
        resets.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        resets.close()
        gate.open()
        assert stays.offsets() == [0]
    until(lambda: descriptors() <= before)
    with readers(server, 1) as (reader,), writing(server, number=2) as gate:
        gate.open()
        assert reader.offsets() == [1]


def test_a_reader_of_another_partition_waits_on(server: ServerThread) -> None:
    """It is woken for a commit that has nothing for it."""
    server.sql("INSERT INTO app.orders VALUES (0, 'to know the partition')")
    engine = server.db.engine
    topic_id = engine.catalog.topic("app.others").topic_id
    [first] = [partition for partition in (0, 1) if engine.log_range(topic_id, partition)[1]]
    with readers(server, 1, topic="app.others", partition_id=1 - first) as (reader,):
        for number in range(1, 100):
            server.sql(f"INSERT INTO app.orders VALUES ({number}, 'x')")
            if engine.log_range(topic_id, 1 - first)[1]:
                break
        assert reader.offsets() == [0]


def test_members_of_a_group_claim_as_ever(server: ServerThread) -> None:
    with readers(server, 2, group_id="g") as members:
        server.sql("INSERT INTO app.orders VALUES (1, 'x')")
        until(lambda: any(member.is_told for member in members))
        [told] = [member for member in members if member.is_told]
        assert told.offsets() == [0]


def test_over_tls(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*made.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    trusting = ssl.create_default_context(cafile=certificate)
    with ServerProcess(tmp_path / "db", "--tls-certificate", certificate, "--tls-key", key) as server:
        writer, reader = Reader(server.port, trusting), Reader(server.port, trusting)
        writer.ask("/sql", sql=SCHEMA)
        writer.answer()
        reader.ask()
        told: list[int] = []
        reading = threading.Thread(target=lambda: told.extend(reader.offsets()))
        reading.start()
        number = 0
        while reading.is_alive():  # the first rows may come before it waits
            number += 1
            writer.ask("/sql", sql=f"INSERT INTO app.orders VALUES ({number}, 'x')")
            writer.answer()
        assert len(told) == 1
        reader.ask(start={"type": "Earliest"})  # and the connection goes on
        assert reader.offsets()[0] == 0
        for connection in (reader, writer):
            connection.close()
