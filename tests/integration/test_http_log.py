"""A topic described, and its log streamed: stored batches cut to a range, nothing lost, nothing twice, nothing held."""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from secrets import token_bytes
from typing import Any

import msgspec
import pytest
from server_fixture import PASSWORD, ServerThread, basic, kept_port

from tablecast.client.bulk import BulkClient, Server
from tablecast.client.retry import Retry
from tablecast.codec.load_plan import decode_plan
from tablecast.codec.log import LogBatch
from tablecast.codec.log_stream import LOG_STREAM, LogStreamFailed, encode_error, read_frames
from tablecast.errors import OffsetOutOfRange, PermissionDenied, Timeout, TopicRecreated, Unreachable
from tablecast.server import api_log

MESSAGES = 500


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
        running.sql("CREATE TOPIC app.events PARTITIONS 2; CREATE TOPIC app.one; CREATE TOPIC app.empty")
        running.sql("ALTER TOPIC app.events ADD SOURCE app.t ON INSERT WHERE id >= 0 WITH (payload = 'full')")
        running.sql("ALTER TOPIC app.one ADD SOURCE app.t ON ANY")
        for first in range(0, MESSAGES, 50):
            running.post("/tables/app.t/rows", [{"id": i, "v": f"value {i}"} for i in range(first, first + 50)])
        running.sql("CREATE USER 'ann' WITH PASSWORD 'ann has one' ROLE 'user'")
        yield running


@pytest.fixture
def client(server: ServerThread) -> Iterator[BulkClient]:
    with BulkClient(Server(server.url, "system", PASSWORD)) as made:
        yield made


def offsets(batches: Any) -> list[int]:
    return [
        offset
        for batch in map(LogBatch, batches)
        for offset in range(batch.head.first_offset, batch.head.first_offset + batch.head.count)
    ]


# --- what a topic is --------------------------------------------------------------------------------------------


def test_a_topic_is_described_with_all_that_a_reader_needs(server: ServerThread, client: BulkClient) -> None:
    topic = client.describe_topic("app.events")
    assert (topic.name, len(topic.partitions)) == ("app.events", 2)
    assert sum(partition.end_offset - partition.start_offset for partition in topic.partitions) == MESSAGES
    [source] = topic.sources
    assert (source.table, source.op, source.payload, source.filter) == ("app.t", "insert", "full", "id >= 0")
    [table] = topic.tables
    assert table == server.db.engine.catalog.table("app.t").schema
    assert [partition.offset_at_timestamp for partition in topic.partitions] == [None, None]


def test_in_json_the_plan_is_base64(server: ServerThread) -> None:
    said = server.get("/v1/api/topics/events?namespace=app").json()
    assert decode_plan(msgspec.json.decode(f'"{said["plan"]}"', type=bytes)).table.full_name == "app.t"


def test_a_time_becomes_an_offset(server: ServerThread, client: BulkClient) -> None:
    batches = [LogBatch(batch).head for batch in client.stream_log("app.one", 0, 0, MESSAGES)]
    for head in batches[:3]:
        first = next(h.first_offset for h in batches if h.ts_ms >= head.ts_ms)
        [partition] = client.describe_topic("app.one", timestamp_ms=head.ts_ms).partitions
        assert partition.offset_at_timestamp == first
    [after] = client.describe_topic("app.one", timestamp_ms=batches[-1].ts_ms + 1).partitions
    assert after.offset_at_timestamp == MESSAGES
    iso = server.get("/v1/api/topics/app.one?timestamp=1970-01-01T00:00:00Z").json()
    assert iso["partitions"][0]["offset_at_timestamp"] == 0


# --- ranges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, MESSAGES), (17, 18), (17, 333), (49, 51), (50, 100), (7, 7)])
def test_a_range_is_what_a_consumer_reads(server: ServerThread, client: BulkClient, start: int, end: int) -> None:
    batches = list(client.stream_log("app.one", 0, start, end))
    assert offsets(batches) == list(range(start, end))
    topic = server.db.engine.catalog.topic("app.one")
    read = server.db.engine.read(topic, 0, start, end - start) if end > start else []
    assert [m for batch in batches for m in LogBatch(batch).messages(topic.topic_id, 0)] == read


def test_chunks_end_anywhere_and_nothing_is_lost(
    server: ServerThread, client: BulkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 3_000, 20_000):
        monkeypatch.setattr(api_log, "CHUNK_BYTES", size)
        assert offsets(client.stream_log("app.one", 0, 3, MESSAGES - 3)) == list(range(3, MESSAGES - 3))


def test_partitions_are_apart_and_together_whole(server: ServerThread, client: BulkClient) -> None:
    topic = client.describe_topic("app.events")
    found = 0
    for partition in topic.partitions:
        batches = list(client.stream_log("app.events", partition.partition_id, 0, partition.end_offset))
        assert offsets(batches) == list(range(partition.end_offset))
        found += sum(LogBatch(batch).head.count for batch in batches)
    assert found == MESSAGES


def test_without_start_and_end_it_is_all_there_is(server: ServerThread) -> None:
    answer = server.get("/v1/api/topics/app.one/log")
    assert (answer.status, answer.headers["content-type"]) == (200, LOG_STREAM)
    body = memoryview(answer.body)
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        at += size
        return bytes(body[at - size : at])

    assert offsets(read_frames(read, 0)) == list(range(MESSAGES))
    assert at == len(body)
    assert server.get("/v1/api/topics/app.empty/log").body == b"\0\0\0\0" + bytes(8)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("start=3&end=2", 400, "invalid_request"),
        ("start=-1", 400, "invalid_request"),
        ("start=1e3", 400, "invalid_request"),
        ("start=99999999999999999999", 400, "invalid_request"),
        ("partition=7", 400, "invalid_request"),
        ("offset=1", 400, "invalid_request"),
        (f"end={MESSAGES + 1}", 416, "offset_out_of_range"),
        (f"start={MESSAGES + 1}", 416, "offset_out_of_range"),
        ("topic_id=4711", 409, "topic_recreated"),
    ],
)
def test_what_cannot_be_is_refused(server: ServerThread, query: str, status: int, code: str) -> None:
    answer = server.get(f"/v1/api/topics/app.one/log?{query}")
    assert (answer.status, answer.error["code"]) == (status, code)


def test_a_role_that_may_not_consume_reads_no_log(server: ServerThread) -> None:
    with BulkClient(Server(server.url, "ann", "ann has one")) as ann:
        with pytest.raises(PermissionDenied):
            ann.describe_topic("app.one")
        with pytest.raises(PermissionDenied):
            list(ann.stream_log("app.one", 0, 0, 1))
    # An attempt is not made to wait for its entry in the audit log: it comes soon after the answer.
    sql, deadline = "SELECT user_id, target FROM system.audit_log WHERE outcome = 'denied'", time.monotonic() + 60
    while len(denied := server.sql(sql)[0]["rows"]) < 2:
        assert time.monotonic() < deadline, denied
    assert denied == [["ann", "app.one"]] * 2


# --- what changes meanwhile -------------------------------------------------------------------------------------


@pytest.fixture
def filled() -> Iterator[ServerThread]:
    """A server with one topic of 40 batches."""
    with ServerThread() as running:
        running.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT); CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY")
        for first in range(0, 400, 10):
            running.post("/tables/t/rows", [{"id": i, "v": "x" * 100} for i in range(first, first + 10)])
        yield running


def bulk(server: ServerThread, **settings: Any) -> BulkClient:
    return BulkClient(Server(server.url, "system", PASSWORD, **settings))


def test_a_topic_made_again_is_another_one(filled: ServerThread) -> None:
    with bulk(filled) as client:
        before = client.describe_topic("e")
        filled.sql("DROP TOPIC e; CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY; DELETE FROM t")
        assert client.describe_topic("e").topic_id != before.topic_id
        with pytest.raises(TopicRecreated):
            list(client.stream_log("e", 0, 0, 400, topic_id=before.topic_id))


def test_what_retention_took_before_is_a_status_and_meanwhile_an_error_frame(
    filled: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_log, "CHUNK_BYTES", 1)  # each batch a chunk
    inner, chunks = api_log._LogReading.chunk, itertools.count()

    def overtaken(self: Any) -> bytes:
        if next(chunks) == 1:  # the server reads ahead of its client: when it comes to the second one, and not later
            filled.db.database.execute("CLEAR TOPIC e")
        return inner(self)

    with bulk(filled) as client, monkeypatch.context() as patched:
        patched.setattr(api_log._LogReading, "chunk", overtaken)
        reading = client.stream_log("e", 0, 0, 400)
        first = next(reading)
        with pytest.raises(OffsetOutOfRange):
            list(reading)
        assert LogBatch(first).head.first_offset == 0
    with bulk(filled) as client, pytest.raises(OffsetOutOfRange):
        list(client.stream_log("e", 0, 0, 400))
    assert filled.get("/v1/api/topics/e/log?start=0&end=400").status == 416


def test_an_error_on_the_way_is_told_in_the_stream() -> None:
    error = OffsetOutOfRange("gone", offset=3)
    data = memoryview(encode_error(error))
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        at += size
        return bytes(data[at - size : at])

    with pytest.raises(LogStreamFailed) as raised:
        list(read_frames(read, 0))
    assert (raised.value.error.code, raised.value.error.details) == ("offset_out_of_range", {"offset": 3})


def test_a_reader_that_stops_reading_holds_the_server_and_not_its_memory(
    filled: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads no further than the sockets take; when the reader goes away, it stops."""
    for part in range(9):  # of noise, which cannot be packed well
        rows = [{"id": 10_000 + 100 * part + i, "v": b64encode(token_bytes(75_000)).decode()} for i in range(90)]
        filled.post("/tables/t/rows", rows)
    monkeypatch.setattr(api_log, "CHUNK_BYTES", 64 * 1024)
    chunks, finished = [], threading.Event()
    inner = api_log._LogReading.chunk
    monkeypatch.setattr(api_log._LogReading, "chunk", lambda self: chunks.append(self.at) or inner(self))
    stream = api_log._stream

    async def watched(*args: Any) -> Any:
        try:
            async for chunk in stream(*args):
                yield chunk
        finally:
            finished.set()

    monkeypatch.setattr(api_log, "_stream", watched)
    with closing(socket.create_connection((filled.host, filled.port), timeout=60)) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        reader.sendall(
            f"GET /v1/api/topics/e/log HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('system', PASSWORD)}\r\n\r\n".encode()
        )
        assert reader.recv(12) == b"HTTP/1.1 200"
        assert not finished.wait(0.5)  # it waits for its reader, who reads nothing
    assert finished.wait(60)
    assert len(chunks) < 50


def test_a_server_that_stops_does_not_wait_for_readers_who_go_on_elsewhere(
    filled: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_log, "CHUNK_BYTES", 1)
    inner, chunks = api_log._LogReading.chunk, itertools.count()

    def stopping(self: Any) -> bytes:
        if next(chunks) == 1:  # the server reads ahead of its client: when it comes to the second one, and not later
            filled.lifecycle._draining = True  # as its signal does, without ending the server of the test
        return inner(self)

    monkeypatch.setattr(api_log._LogReading, "chunk", stopping)
    with bulk(filled, retry=Retry(attempts=1)) as client:
        reading = client.stream_log("e", 0, 0, 400)
        next(reading)
        with pytest.raises(Timeout, match="the server stops"):
            list(reading)
        filled.lifecycle._draining = False
        assert offsets(client.stream_log("e", 0, 10, 400)) == list(range(10, 400))


# --- a connection that breaks -----------------------------------------------------------------------------------


class Breaking:
    """A proxy that breaks each connection after some bytes, until it has broken `times`."""

    def __init__(self, server: ServerThread, after_bytes: int, times: int) -> None:
        self._target = (server.host, server.port)
        self._after_bytes, self.left = after_bytes, times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Breaking:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with closing(client), closing(socket.create_connection(self._target)) as server:
                self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        budget = self._after_bytes if self.left > 0 else 2**40
        asking = threading.Thread(target=self._copy, args=(client, server))
        asking.start()
        while budget > 0 and (data := server.recv(min(65_536, budget))):
            client.sendall(data)
            budget -= len(data)
        self.left -= budget <= 0
        for side in (client, server):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        asking.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def test_a_broken_stream_goes_on_where_it_broke(filled: ServerThread) -> None:
    with (
        Breaking(filled, after_bytes=9_000, times=5) as proxy,
        BulkClient(Server(proxy.url, "system", PASSWORD, retry=Retry(attempts=3, backoff_seconds=0.001))) as client,
    ):
        assert offsets(client.stream_log("e", 0, 0, 400)) == list(range(400))
    assert proxy.left <= 0


def test_a_server_that_is_not_there_is_unreachable_in_the_end() -> None:
    waited: list[float] = []
    with kept_port() as port:
        nowhere = Server(f"http://127.0.0.1:{port}", "a", "b", retry=Retry(attempts=4, backoff_seconds=0.25))
        with BulkClient(nowhere, sleep=waited.append) as client, pytest.raises(Unreachable):
            client.describe_topic("e")
    assert len(waited) == 3
    assert waited[0] < waited[2]


def test_one_connection_serves_many_calls(filled: ServerThread) -> None:
    with bulk(filled) as client:
        client.describe_topic("e")
        first = client._transport._connection
        list(client.stream_log("e", 0, 0, 400))
        client.sql("SELECT count(*) AS n FROM t")
        assert client._transport._connection is first is not None
        reading = client.stream_log("e", 0, 0, 400)
        next(reading)
        client.describe_topic("e")  # an answer that was not read to its end is given up for a new connection
        assert isinstance(client._transport._connection, http.client.HTTPConnection)
