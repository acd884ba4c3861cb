"""Once in the table and once on the topic, whatever is repeated, lost or killed on the way."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import kill_loop
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from writing import Writing, writing

from tablecast.client.bulk import BulkClient, LoadBegun, Server
from tablecast.client.retry import Retry
from tablecast.errors import Timeout
from tablecast.spark.committing import commit_parts
from tablecast.spark.sealing_task import send_sealed
from tablecast.spark.sending import send_rows
from tablecast.spark.task import Staged, Task

pytestmark = pytest.mark.long

KINDS = ("rows", "sealed")
COLUMNS = "id BIGINT PRIMARY KEY, n INT"
KILLS = 4


@pytest.fixture(scope="module")
def w(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writing]:
    with writing(tmp_path_factory.mktemp("server") / "data") as made:
        yield made


def server(w: Writing, **settings: object) -> Server:
    return Server(w.url, user="system", password="a password for tests", **settings)  # type: ignore[arg-type]


def send(client: BulkClient, load: LoadBegun, kind: str, ids: range, task: Task) -> Staged:
    batches = [pa.record_batch({"id": pa.array(ids, pa.int64()), "n": pa.array([1] * len(ids), pa.int32())})]
    if kind == "sealed":
        return send_sealed(client, load, batches, task)
    return send_rows(client, load.load_id, load.table, batches, task)


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_attempts_at_a_partition_the_one_that_is_named_counts(w: Writing, kind: str) -> None:
    """A speculative task, or one whose executor was taken for dead, staged the same rows as another."""
    table = w.table(f"attempts_{kind}", COLUMNS)
    with BulkClient(server(w)) as client:
        load = client.begin_load(table, "q", 0, kind=kind)
        first = send(client, load, kind, range(50), Task(0, "1-aa"))
        again = send(client, load, kind, range(50), Task(0, "2-bb"))
        other = send(client, load, kind, range(50, 80), Task(1, "3-cc"))
        assert first.parts != again.parts
        done = commit_parts(client, load.load_id, [other, None, again])
        send_late = client.begin_load(table, "q", 0, kind=kind)
    assert (done.row_count, done.already) == (80, False)
    assert send_late.committed is not None
    assert [row[0] for row in w.rows(table)] == list(range(80))
    assert len(w.messages(table)) == 80


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_died_between_staging_and_commit(w: Writing, kind: str) -> None:
    """The next one finds the load, stages its own parts, and what the first one staged is never seen."""
    table = w.table(f"died_{kind}", COLUMNS)
    with BulkClient(server(w)) as client:
        load = client.begin_load(table, "q", 7, kind=kind)
        send(client, load, kind, range(50), Task(0, "0-dead"))
        found = client.begin_load(table, "q", 7, kind=kind)
        assert found.load_id == load.load_id
        staged = send(client, found, kind, range(20), Task(0, "0-new"))
        assert commit_parts(client, found.load_id, [staged]).row_count == 20
        client.abort_load(load.load_id)  # the first one was not dead after all
        assert commit_parts(client, load.load_id, [staged]).already
    assert len(w.rows(table)) == len(w.messages(table)) == 20
    assert w.open_loads() == []


class Lossy:
    """Between a client and the server: forwards everything, and loses the answers to the first `lost` commits."""

    def __init__(self, url: str, lost: int) -> None:
        host = url.removeprefix("http://")
        outer, lock = self, threading.Lock()
        self.commits = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = (
                    self.rfile.read(int(self.headers.get("Content-Length", 0))) if not self.chunked else self.pieces()
                )
                headers = {name: value for name, value in self.headers.items() if name.lower() in KEPT}
                upstream = http.client.HTTPConnection(host, timeout=60)
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                said = answer.read()
                upstream.close()
                with lock:
                    is_commit = self.path.endswith("/commit")
                    outer.commits += is_commit
                    if is_commit and outer.commits <= lost:
                        self.close_connection = True
                        return
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            @property
            def chunked(self) -> bool:
                return self.headers.get("Transfer-Encoding", "") == "chunked"

            def pieces(self) -> bytes:
                found = b""
                while size := int(self.rfile.readline(), 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            do_GET = do_POST = do_PUT = do_DELETE = forward  # noqa: N815 - the names are http.server's

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Lossy:
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


KEPT = ("authorization", "accept", "content-type")


@contextmanager
def through(w: Writing, lossy: Lossy) -> Iterator[Writing]:
    yield Writing(lossy.url, w.client)


@pytest.mark.parametrize("bulk", ["never", "always"])
def test_a_commit_whose_answer_is_lost(w: Writing, spark: SparkSession, bulk: str) -> None:
    table = w.table(f"lost_{bulk}", COLUMNS)
    with Lossy(w.url, lost=2) as lossy, through(w, lossy) as far:
        far.save(spark.range(0, 100, 1, 2).selectExpr("id", "1 AS n"), table, bulk=bulk)
        assert lossy.commits == 3
    assert len(w.rows(table)) == len(w.messages(table)) == 100


def test_a_commit_that_is_never_answered_says_that_nobody_knows(w: Writing) -> None:
    table = w.table("unknown", COLUMNS)
    with (
        Lossy(w.url, lost=1) as lossy,
        BulkClient(Server(lossy.url, "system", "a password for tests", retry=Retry())) as far,
    ):
        load = far.begin_load(table, "q", 0)
        staged = send(far, load, "rows", range(10), Task(0, "a"))
        with pytest.raises(Timeout, match="whether the rows were written is not known"):
            commit_parts(far, load.load_id, [staged])
        assert commit_parts(far, load.load_id, [staged]).already
    assert len(w.rows(table)) == len(w.messages(table)) == 10


@pytest.mark.slow
def test_a_stream_that_is_killed_everywhere(tmp_path: Path) -> None:
    """A few kills; `python tests/spark/kill_loop.py --kills 20` for more."""
    lived = kill_loop.live(tmp_path, seed=4, kills=KILLS)
    assert lived.replayed
    assert sum(lived.kills.values()) >= KILLS
    assert lived.messages > 0
