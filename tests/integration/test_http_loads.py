"""Loads over HTTP: parts streamed to disk, one commit however often it is asked for, and nothing left of what was not."""

from __future__ import annotations

import gc
import http.client
import io
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from server_fixture import PASSWORD, ServerProcess, ServerThread, basic

from tablecast.client.bulk import SEALED, BulkClient, LoadDone, Server
from tablecast.client.retry import Retry
from tablecast.codec.log import LogBatch
from tablecast.core import failpoint
from tablecast.core.seal import Sealer
from tablecast.core.seal_values import LoadValues
from tablecast.errors import (
    DuplicateKey,
    InvalidRequest,
    NotSealable,
    PermissionDenied,
    StaleLoad,
    Timeout,
    TooLarge,
    Unauthenticated,
    UnknownLoad,
    UnknownTable,
    UnknownTopic,
    Unreachable,
)
from tablecast.model.spark_job import Backfill
from tablecast.server.load_work import LoadWork
from tablecast.storage.parts import seal_parts
from tablecast.testing.failpoints import Gate

LIMIT = 3_000_000
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.01


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    data = tmp_path_factory.mktemp("loads") / "db"
    with ServerThread(data, max_body_bytes=20_000, max_part_bytes=LIMIT, body_timeout_seconds=2) as running:
        running.sql("CREATE NAMESPACE app; CREATE TOPIC app.events; CREATE USER TABLE app.own (id BIGINT PRIMARY KEY)")
        for name, role in (("ann", "user"), ("svc", "service"), ("other", "service")):
            running.sql(f"CREATE USER '{name}' WITH PASSWORD '{name} has one' ROLE '{role}'")
        yield running


@pytest.fixture
def table(server: ServerThread, request: pytest.FixtureRequest) -> str:
    name = f"app.t{abs(hash(request.node.nodeid))}"
    server.sql(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, v TEXT); ALTER TOPIC app.events ADD SOURCE {name} ON ANY")
    return name


@pytest.fixture
def client(server: ServerThread) -> Iterator[BulkClient]:
    with bulk(server) as made:
        yield made


def bulk(server: Any, user: str = "system", **settings: Any) -> BulkClient:
    password = PASSWORD if user == "system" else f"{user} has one"
    return BulkClient(Server(server.url, user, password, **settings))


def part_of(ids: range, width: int = 10) -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{i:0{width}}" for i in ids]})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def ids_of(server: Any, table: str) -> list[int]:
    return [int(row[0]) for row in server.sql(f"SELECT id FROM {table} ORDER BY id")[0]["rows"]]


def staged_files(server: ServerThread) -> set[str]:
    return {str(path) for path in Path(server._settings.data).rglob("staging/*/*") if path.name != "LOAD"}


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(POLL_SECONDS)


# --- one commit -------------------------------------------------------------------------------------------------


def test_parts_become_one_commit(server: ServerThread, client: BulkClient, table: str, tmp_path: Path) -> None:
    load = client.begin_load(table, "query-1", 0)
    assert load.committed is None
    assert load.table == server.db.engine.catalog.table(table).schema
    assert [(topic.full_name, route.table_id) for topic, route in load.routes] == [("app.events", load.table.table_id)]
    file = tmp_path / "part"
    file.write_bytes(part_of(range(10)))
    pieces = [part_of(range(20, 30))[at : at + 100] for at in range(0, 2000, 100)]
    staged = [
        client.put_part(load.load_id, 0, file),
        client.put_part(load.load_id, 1, part_of(range(10, 20)), attempt="a1"),
        client.put_part(load.load_id, 2, lambda: iter(pieces)),
    ]
    assert [(part.part, part.attempt, part.rows) for part in staged] == [(0, "0", 10), (1, "a1", 10), (2, "0", 10)]
    assert ids_of(server, table) == []
    before = server.db.engine.seq
    done = client.commit_load(load.load_id, [(0, "0"), (1, "a1"), (2, "0")])
    assert (done.row_count, done.already) == (30, False)
    assert done.seq > before
    assert ids_of(server, table) == list(range(30))
    [[distinct]] = server.sql(f"SELECT count(DISTINCT _seq) AS n FROM {table}")[0]["rows"]
    assert int(distinct) == 1


def test_everything_may_be_asked_again(server: ServerThread, client: BulkClient, table: str) -> None:
    load = client.begin_load(table, "query-1", 5)
    assert client.begin_load(table, "query-1", 5).load_id == load.load_id
    client.put_part(load.load_id, 0, part_of(range(3)))
    client.put_part(load.load_id, 0, part_of(range(4)))  # replaces it
    first = client.commit_load(load.load_id, [(0, "0")])
    assert client.commit_load(load.load_id, [(0, "0")]) == LoadDone(first.seq, 4, True, 4)
    again = client.begin_load(table, "query-1", 5)
    assert (again.load_id, again.committed) == ("", LoadDone(first.seq, 4, True, 4))
    assert client.begin_load(table, "query-1", 4).committed is not None
    assert client.begin_load(table, "query-1", 6).committed is None
    assert ids_of(server, table) == list(range(4))


def test_only_the_named_attempts_count(server: ServerThread, client: BulkClient, table: str) -> None:
    load = client.begin_load(table, "query-1", 0)
    client.put_part(load.load_id, 0, part_of(range(5)), attempt="failed")
    client.put_part(load.load_id, 0, part_of(range(100, 105)), attempt="good")
    client.commit_load(load.load_id, [(0, "good")])
    assert ids_of(server, table) == list(range(100, 105))
    eventually(lambda: not [path for path in staged_files(server) if load.load_id in path])


def test_an_aborted_load_leaves_nothing(server: ServerThread, client: BulkClient, table: str) -> None:
    load = client.begin_load(table, "query-1", 0)
    client.put_part(load.load_id, 0, part_of(range(5)))
    listed = server.get("/v1/api/loads").json()["loads"]
    [mine] = [each for each in listed if each["load_id"] == load.load_id]
    assert (mine["table"], mine["parts"], mine["state"], mine["user_id"]) == (table, 1, "open", "system")
    client.abort_load(load.load_id)
    client.abort_load(load.load_id)
    with pytest.raises(UnknownLoad):
        client.put_part(load.load_id, 1, part_of(range(5)))
    with pytest.raises(UnknownLoad):
        client.commit_load(load.load_id, [(0, "0")])
    assert not [path for path in staged_files(server) if load.load_id in path]
    assert ids_of(server, table) == []


def test_bad_rows_fail_the_whole_with_the_error_they_are(server: ServerThread, client: BulkClient, table: str) -> None:
    client.sql(f"INSERT INTO {table} VALUES (7, 'here')")
    load = client.begin_load(table, "query-1", 0)
    client.put_part(load.load_id, 0, part_of(range(10)))
    with pytest.raises(DuplicateKey):
        client.commit_load(load.load_id, [(0, "0")])
    assert ids_of(server, table) == [7]


def test_a_part_sealed_with_the_plan_that_beginning_answered(
    server: ServerThread, client: BulkClient, table: str, tmp_path: Path
) -> None:
    """Rows and messages are finished here; the server takes them in. Both are as if it had made them."""
    load = client.begin_load(table, "query-1", 0, kind="sealed")
    assert (load.user_id, load.load_number > 0) == ("system", True)
    sealer = Sealer(load.table, load.routes, load.load_number, LoadValues(load.created_ms, load.user_id))
    with pa.ipc.open_stream(part_of(range(500))) as rows:
        [file] = seal_parts(sealer, rows, tmp_path, "sealed")
    staged = client.put_part(load.load_id, 0, file.path, content_type=SEALED)
    assert staged.rows == 500
    done = client.commit_load(load.load_id, [(0, "0")])
    assert ids_of(server, table) == list(range(500))
    opened = client.open_snapshot(table)
    [batch] = client.read_snapshot(opened.snapshot_id, seq=True)
    assert batch.column("_seq").to_pylist() == [done.seq] * 500
    end = client.describe_topic("app.events").partitions[0].end_offset
    heads = [LogBatch(found).head for found in client.stream_log("app.events", 0, end - 500, end)]
    assert {head.seq for head in heads} == {done.seq}
    client.sql(f"ALTER TABLE {table} ADD COLUMN w INT")
    stale = client.begin_load(table, "query-1", 1, kind="sealed")
    client.sql(f"ALTER TABLE {table} ADD COLUMN x INT")
    with pytest.raises(StaleLoad):
        client.commit_load(stale.load_id, [])


# --- a commit that takes long -----------------------------------------------------------------------------------


def test_who_asks_while_a_commit_is_under_way_waits_for_it(
    server: ServerThread, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients give up waiting and ask again, each on a new connection. There is one commit, and all hear of it."""
    gate, answers, asked, begun = Gate(), [], threading.Semaphore(0), []
    work, engine = LoadWork.commit, server.db.engine.loads.commit

    async def counted(self: LoadWork, *args: Any) -> Any:
        asked.release()
        return await work(self, *args)

    monkeypatch.setattr(LoadWork, "commit", counted)
    monkeypatch.setattr(server.db.engine.loads, "commit", lambda *args: begun.append(args) or engine(*args))

    def committed() -> None:
        with bulk(server, timeout_seconds=0.2, retry=Retry(attempts=1)) as impatient:
            answers.append(impatient.commit_load(load.load_id, [(0, "0")], patience_seconds=WAIT_SECONDS))

    with bulk(server) as client:
        load = client.begin_load(table, "query-1", 0)
        client.put_part(load.load_id, 0, part_of(range(50)))
        with failpoint.armed("before_sync", gate):
            asking = [threading.Thread(target=committed) for _ in range(2)]
            for thread in asking:
                thread.start()
            gate.wait_reached()
            for _ in range(6):
                assert asked.acquire(timeout=WAIT_SECONDS)
            gate.open()
            for thread in asking:
                thread.join()
    assert [(answer.row_count, answer.already) for answer in answers] == [(50, False)] * 2
    assert answers[0].seq == answers[1].seq
    assert len(begun) == 1
    assert ids_of(server, table) == list(range(50))


class Dying(ServerProcess):
    """It kills itself at the failpoint that the variable names."""

    COMMAND = (
        sys.executable,
        "-c",
        "from tablecast.testing.failpoints import arm_from_environment as arm; from tablecast.cli import main; arm(); main()",
        *ServerProcess.COMMAND[3:],
    )


def test_a_server_killed_when_a_commit_was_durable_and_not_told_answers_that_it_was(tmp_path: Path) -> None:
    with Dying(tmp_path / "db", environment={"TABLECAST_FAILPOINT": "before_forgetting:kill"}) as first:
        first.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
        with bulk(first, retry=Retry(attempts=1)) as client:
            load = client.begin_load("t", "query-1", 3)
            client.put_part(load.load_id, 0, part_of(range(1000)))
            with pytest.raises(Timeout):
                client.commit_load(load.load_id, [(0, "0")])
    with ServerProcess(tmp_path / "db") as second, bulk(second) as client:
        done = client.commit_load(load.load_id, [(0, "0")])
        assert (done.row_count, done.already) == (1000, True)
        assert client.begin_load("t", "query-1", 3).committed == done
        assert len(ids_of(second, "t")) == 1000
        staged = client.begin_load("t", "query-1", 4)
        client.put_part(staged.load_id, 0, part_of(range(1000, 2000)))
        second.kill()
    with ServerProcess(tmp_path / "db") as third, bulk(third) as client:
        assert client.begin_load("t", "query-1", 4).load_id == staged.load_id  # what was staged waits for its commit
        assert client.commit_load(staged.load_id, [(0, "0")]).row_count == 1000
        assert len(ids_of(third, "t")) == 2000


# --- parts ------------------------------------------------------------------------------------------------------


def test_a_part_may_be_larger_than_a_body_and_not_larger_than_its_own_limit(
    server: ServerThread, client: BulkClient, table: str, tmp_path: Path
) -> None:
    load = client.begin_load(table, "query-1", 0)
    fits = part_of(range(500), width=4000)
    assert 20_000 < len(fits) < LIMIT
    assert client.put_part(load.load_id, 0, fits).bytes == len(fits)
    too_large = tmp_path / "large"
    too_large.write_bytes(part_of(range(900), width=4000))
    sources: list[Any] = [too_large, too_large.read_bytes(), lambda: iter([too_large.read_bytes()])]
    for source in sources:
        with pytest.raises(TooLarge, match="max_part_bytes"):
            client.put_part(load.load_id, 1, source)
    assert len([path for path in staged_files(server) if load.load_id in path]) == 1


def test_what_is_refused_at_once_is_told_while_the_body_is_still_being_sent(
    server: ServerThread, client: BulkClient
) -> None:
    """The sender stops, and hears why, instead of finding the connection broken."""
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b"x" * 2000

    with pytest.raises(UnknownLoad):
        client.put_part("no such load", 0, pieces)


def raw(server: ServerThread, load_id: str, part: int, length: int) -> socket.socket:
    sender = socket.create_connection((server.host, server.port), timeout=WAIT_SECONDS)
    sender.sendall(
        f"PUT /v1/api/loads/{load_id}/parts/{part} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
        f"Authorization: {basic('system', PASSWORD)}\r\n\r\n".encode()
    )
    return sender


def test_a_sender_that_goes_away_or_falls_silent_leaves_nothing(
    server: ServerThread, client: BulkClient, table: str
) -> None:
    load = client.begin_load(table, "query-1", 0)

    def files() -> list[str]:
        return [path for path in staged_files(server) if load.load_id in path]

    with closing(raw(server, load.load_id, 0, 1_000_000)) as sender:
        sender.sendall(b"x" * 400_000)
        eventually(files)  # it goes to disk as it comes
    eventually(lambda: not files())
    with closing(raw(server, load.load_id, 0, 1_000_000)) as sender:
        sender.sendall(b"x" * 400_000)
        answer = http.client.HTTPResponse(sender)
        answer.begin()
        assert answer.status == 408
        assert b"silent for 2 seconds" in answer.read()
    eventually(lambda: not files())
    client.put_part(load.load_id, 0, part_of(range(3)))
    assert client.commit_load(load.load_id, [(0, "0")]).row_count == 3


@pytest.mark.parametrize("data", [b"", b"no Arrow at all", part_of(range(100))[:-300]])
def test_what_is_no_arrow_stream_is_refused(server: ServerThread, client: BulkClient, table: str, data: bytes) -> None:
    load = client.begin_load(table, "query-1", 0)
    with pytest.raises(InvalidRequest):
        client.put_part(load.load_id, 0, data)
        client.commit_load(load.load_id, [(0, "0")])
    assert ids_of(server, table) == []


def test_a_part_takes_no_memory_of_its_size(tmp_path: Path) -> None:
    """Sent from a file and kept in one: 64 MiB go through in pieces, on both sides."""
    data = tmp_path / "part"
    batch = pa.table({"id": pa.array(range(8192), pa.int64()), "v": ["x" * 1016] * 8192})
    with pa.ipc.new_stream(str(data), batch.schema) as writer:
        for _ in range(8):
            writer.write_table(batch)
    size = data.stat().st_size
    assert size > 64_000_000
    with ServerThread(tmp_path / "db") as server, bulk(server) as client:
        server.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
        load = client.begin_load("t", "query-1", 0)
        client.put_part(load.load_id, 0, part_of(range(10)))
        gc.collect()
        before = resident()
        peak = 0

        def pieces() -> Iterator[bytes]:
            nonlocal peak
            with data.open("rb") as file:
                while piece := file.read(1 << 20):
                    peak = max(peak, resident())
                    yield piece

        assert client.put_part(load.load_id, 1, pieces).bytes == size
        assert peak - before < size // 2


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- who, and what is no load -----------------------------------------------------------------------------------


def test_who_may_load(server: ServerThread, table: str) -> None:
    with bulk(server, "ann") as ann:
        for call in (
            lambda: ann.begin_load(table, "q", 0),
            lambda: ann.begin_load("app.own", "q", 0),
            lambda: ann.begin_backfill(Backfill("app.other", table, ("insert",)), "q"),
            lambda: ann.put_part("x", 0, b"data"),
            lambda: ann.commit_load("x", []),
            lambda: ann.abort_load("x"),
        ):
            with pytest.raises(PermissionDenied):
                call()
    with bulk(server, "svc") as svc, bulk(server, "other") as other, bulk(server) as system:
        load = svc.begin_load(table, "q", 0)
        svc.put_part(load.load_id, 0, part_of(range(3)))
        for call in (
            lambda: svc.begin_backfill(Backfill("app.other", table, ("insert",)), "q"),
            lambda: other.put_part(load.load_id, 0, part_of(range(9))),
            lambda: other.commit_load(load.load_id, [(0, "0")]),
            lambda: other.abort_load(load.load_id),
        ):
            with pytest.raises(PermissionDenied):
                call()
        assert system.commit_load(load.load_id, [(0, "0")]).row_count == 3
    with BulkClient(Server(server.url, "svc", "wrong")) as wrong, pytest.raises(Unauthenticated):
        wrong.begin_load(table, "q", 1)


def test_what_cannot_be_a_load_is_told(server: ServerThread, client: BulkClient, table: str) -> None:
    with pytest.raises(UnknownTable):
        client.begin_load("app.none", "q", 0)
    with pytest.raises(InvalidRequest):
        client.begin_load(table, "q", 0, mode="replace")
    with pytest.raises(InvalidRequest):
        client.begin_load(table, "", 0)
    with pytest.raises(InvalidRequest):
        client.begin_load(table, "q", 0, mode="changes")
    with pytest.raises(InvalidRequest, match="a source goes with mode backfill"):
        client.begin_load(table, "q", 0, mode="backfill", kind="sealed")
    with pytest.raises(UnknownTopic):
        client.begin_backfill(Backfill("app.none", table, ("insert",)), "q")
    with pytest.raises(InvalidRequest):
        client.begin_backfill(Backfill("app.events", table, ()), "q")
    with pytest.raises(NotSealable):
        client.begin_load("app.own", "q", 0, kind="sealed")
    load = client.begin_load(table, "q", 0)
    for part, attempt in ((0, "../up"), (0, ""), (-1, "0"), (10**12, "0")):
        with pytest.raises(InvalidRequest):
            client.put_part(load.load_id, part, part_of(range(3)), attempt=attempt)
    with pytest.raises(InvalidRequest):
        client.commit_load(load.load_id, [(0, "never")])
    packed = server.request("PUT", f"/v1/api/loads/{load.load_id}/parts/0", b"x", headers={"Content-Encoding": "gzip"})
    assert (packed.status, packed.error["code"]) == (415, "unsupported_media_type")


# --- settings ---------------------------------------------------------------------------------------------------


def test_settings_travel_and_never_show_secrets() -> None:
    server = Server("https://ann:s%2Fcret@example.com:8080/base/", timeout_seconds=5)
    assert (server.url, server.user, server.password) == ("https://example.com:8080/base", "ann", "s/cret")
    again = pickle.loads(pickle.dumps(server))
    assert again == server
    for shown in (repr(server), str(server), repr(Server("http://x", token="t0ken"))):
        assert "cret" not in shown
        assert "t0ken" not in shown


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "ftp://x"},
        {"url": "example.com"},
        {"url": "http://x", "user": "ann"},
        {"url": "http://x", "password": "p"},
        {"url": "http://x", "user": "ann", "password": "p", "token": "t"},
        {"url": "http://x", "ca_file": "ca.pem"},
        {"url": "http://x", "timeout_seconds": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Server(**settings)


def test_a_missing_certificate_file_is_told() -> None:
    with pytest.raises(InvalidRequest, match=r"none\.pem"):
        BulkClient(Server("https://x", ca_file="/nowhere/none.pem"))


def test_over_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    key, certificate, data = tmp_path / "k.pem", tmp_path / "c.pem", tmp_path / "part"
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*new.split(), *names], check=True, capture_output=True)
    data.write_bytes(part_of(range(5000)))
    flags = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with ServerProcess(tmp_path / "db", *flags) as process:
        url = f"https://{process.host}:{process.port}"
        with BulkClient(Server(url, "system", PASSWORD, ca_file=str(certificate))) as client:
            client.sql(
                "CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT); CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY"
            )
            load = client.begin_load("t", "query-1", 0)
            client.put_part(load.load_id, 0, data)
            client.put_part(load.load_id, 1, lambda: iter([part_of(range(5000, 5010))]))
            assert client.commit_load(load.load_id, [(0, "0"), (1, "0")]).row_count == 5010
            assert sum(LogBatch(batch).head.count for batch in client.stream_log("e", 0, 0, 5010)) == 5010
            opened = client.open_snapshot("t")
            assert sum(batch.num_rows for batch in client.read_snapshot(opened.snapshot_id)) == 5010
        stranger = Server(url, "system", PASSWORD, retry=Retry(attempts=1))
        with BulkClient(stranger) as client, pytest.raises(Unreachable, match="certificate"):
            client.describe_topic("e")
