"""A standalone cluster on loopback, and what happens when one of its machines is gone."""

from __future__ import annotations

from pathlib import Path

import kill_loop
import pytest
from processes import PASSWORD, Cluster, Driver, Server, until
from writing import Writing

import tablecast

pytestmark = pytest.mark.long

ROWS = 20_000
SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.loaded (id BIGINT PRIMARY KEY, word TEXT);
CREATE TOPIC app.loaded_told PARTITIONS 3;
ALTER TOPIC app.loaded_told ADD SOURCE app.loaded ON ANY WITH (payload = 'full');
"""


def test_a_worker_that_is_killed_in_the_middle_of_a_job(tmp_path: Path) -> None:
    with Server(tmp_path) as server, tablecast.connect(server.url, user="system", password=PASSWORD) as client:
        client.execute_all(SETUP)
        with Cluster(tmp_path) as cluster:
            arguments = (cluster.master, server.url, str(tmp_path), str(ROWS))
            with Driver("cluster_driver.py", *arguments, log=tmp_path / "driver.log") as driver:
                pid = int(until("a task is held", lambda: _held(tmp_path, driver)))
                assert client.query("SELECT count(*) FROM app.loaded").scalar() == 0
                cluster.kill_worker_of(pid)
                (tmp_path / "go").touch()
                driver.finish()
        there = Writing(server.url, client, PASSWORD)
        assert there.rows("app.loaded") == [(i, str(i % 1000)) for i in range(ROWS)]
        told = there.messages("app.loaded")
        assert len(told) == len({message.key for message in told}) == ROWS
        assert len({message.seq for message in told}) == 1
        assert there.open_loads() == []
        server.end()
    _password_is_nowhere(tmp_path)


def test_a_worker_that_is_killed_under_a_stream(tmp_path: Path) -> None:
    """Topic → transform → table, with a publisher at work: each change is made once and told once."""
    with Server(tmp_path) as server, Cluster(tmp_path) as cluster:
        arguments = (server.url, str(tmp_path / "checkpoint"), cluster.master)
        driver = Driver("stream_driver.py", *arguments, log=tmp_path / "driver.log")

        def strike() -> None:
            first, other = cluster.executors()
            cluster.kill_worker_of(first)
            until("one is gone", lambda: cluster.executors() == [other])

        assert kill_loop.live_through(server, driver, 1, strike) >= 2 * kill_loop.MOST_MESSAGES


def _held(directory: Path, driver: Driver) -> str | None:
    assert driver.running, driver.log.read_text()[-6000:]
    path = directory / "held"
    return path.read_text() if path.exists() else None


def _password_is_nowhere(directory: Path) -> None:
    """Not in the event log with its plans, not in what driver, master, workers and executors wrote."""
    files = [path for path in directory.rglob("*") if path.is_file() and directory / "data" not in path.parents]
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in files), "there is an event log"
    assert any(path.name == "stderr" for path in files), "executors wrote something"
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
