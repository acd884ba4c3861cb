"""`tablecast pipelines` as a process: signals, SIGKILL, a directory, and a password that is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import program, run
from pipelining import WAIT_SECONDS, until
from server_fixture import PASSWORD, ServerProcess

import tablecast

pytestmark = pytest.mark.long

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer INT, amount DECIMAL(12,2));
CREATE TABLE app.totals (customer INT PRIMARY KEY, n BIGINT, total DECIMAL(14,2));
CREATE TABLE app.copies (id BIGINT PRIMARY KEY, amount DECIMAL(12,2));
CREATE TOPIC app.order_events PARTITIONS 2;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON INSERT;
CREATE PIPELINE app.totals INTO app.totals AS
  SELECT customer, count(*) AS n, sum(amount) AS total FROM TOPIC app.order_events GROUP BY customer
  WITH (trigger_seconds = 0, max_messages = 40);
CREATE PIPELINE app.copies INTO app.copies MODE insert AS SELECT id, amount FROM TOPIC app.order_events
  WITH (trigger_seconds = 0, max_messages = 40);
"""
EXPECTED = "SELECT customer, count(*) AS n, sum(amount) AS total FROM app.orders GROUP BY customer ORDER BY customer"
FOUND = "SELECT customer, n, total FROM app.totals ORDER BY customer"


def orders(first: int, count: int) -> str:
    return "INSERT INTO app.orders VALUES " + ", ".join(f"({i}, {i % 7}, {i}.25)" for i in range(first, first + count))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "db") as running:
        running.sql(SETUP)
        yield running


def rows(server: ServerProcess, sql: str) -> list[Any]:
    found: list[Any] = server.sql(sql)[0]["rows"]
    return found


class RunnerProcess:
    def __init__(self, server: ServerProcess, directory: Path, *flags: object) -> None:
        words = program(
            "pipelines", "run", server.url, "--master", "local[2]", "--checkpoints", directory / "cp", *flags
        )
        self._log = (directory / "runner.log").open("a")
        self.process = subprocess.Popen(
            words, stdout=self._log, stderr=self._log, start_new_session=True,
            env={**os.environ, "TABLECAST_PASSWORD": PASSWORD},
        )  # fmt: skip

    def kill(self) -> None:
        """The whole of it, at once: the driver, its JVM and its workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        code = self.process.wait(WAIT_SECONDS)
        self._log.close()
        return code


def test_a_runner_that_is_killed_goes_on_where_it_was(server: ServerProcess, tmp_path: Path) -> None:
    server.sql(orders(0, 400))
    first = RunnerProcess(server, tmp_path)
    try:
        until(
            "it is in the middle of it", lambda: int(rows(server, "SELECT count(*) AS n FROM app.copies")[0][0]) > 100
        )
    finally:
        first.kill()
    server.sql(orders(400, 100))
    second = RunnerProcess(server, tmp_path)
    try:
        until("all is there", lambda: int(rows(server, "SELECT count(*) AS n FROM app.copies")[0][0]) == 500)
        until("and summed up", lambda: rows(server, FOUND) == rows(server, EXPECTED))
        until(
            "and told", lambda: rows(server, "SELECT DISTINCT state, lag FROM system.pipelines") == [["running", "0"]]
        )
        second.process.send_signal(signal.SIGTERM)
        assert second.ended() == 0
    finally:
        if second.process.poll() is None:
            second.kill()
    assert rows(server, FOUND) == rows(server, EXPECTED)
    assert rows(server, "SELECT DISTINCT state FROM system.pipelines") == [["stopped"]]
    said = (tmp_path / "runner.log").read_text()
    assert "app.totals runs" in said
    assert PASSWORD not in said


def test_a_result_that_the_driver_could_not_hold(server: ServerProcess, tmp_path: Path) -> None:
    """Spark fails a job whose tasks give the driver more than this: tasks give it nothing but how many rows they sent."""
    server.sql(
        "CREATE TABLE app.many (id BIGINT PRIMARY KEY, word TEXT);"
        """CREATE PIPELINE app.many INTO app.many AS
           SELECT id * 1000 + k AS id, sha2(CAST(id * 1000 + k AS STRING), 256) AS word
           FROM (SELECT id, explode(sequence(0, 999)) AS k FROM TOPIC app.order_events)"""
    )
    server.sql(orders(0, 100))
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    done = run(
        "pipelines", "run", server.url, "app.many", "--once", "--master", "local[2]", "--checkpoints", tmp_path / "cp",
        "--conf", "spark.driver.maxResultSize=1m", "--password-file", secret,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rows(server, "SELECT count(*) AS n, count(DISTINCT word) AS w, count(DISTINCT _seq) AS s FROM app.many") == [
        ["100000", "100000", "1"]
    ]
    assert rows(server, "SELECT rows_out FROM system.pipelines WHERE name = 'app.many'") == [["100000"]]


def test_a_directory_is_served_meanwhile(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "shop") as database:
        database.execute(SETUP)
        database.execute(orders(0, 30))
    done = run(
        "pipelines", "run", tmp_path / "shop", "app.totals", "--once", "--master", "local[2]", "--checkpoints",
        tmp_path / "cp",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "is served at http://127.0.0.1:" in done.stderr
    with tablecast.open(tmp_path / "shop") as database:
        assert list(database.query(FOUND)) == list(database.query(EXPECTED))
        assert not list(database.query("SELECT * FROM app.copies"))
        assert database.verify().sound


def test_a_wrong_password_shows_before_spark_is_started(server: ServerProcess, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not the password")
    done = run("pipelines", "run", server.url, "--password-file", wrong)
    assert done.returncode == 1
    assert "unauthenticated" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["app.nothing"], "there is no pipeline app.nothing"),
        (["nothing"], "namespace.name"),
        (["app.totals", "flows.py"], "not both"),
        (["nothing.py"], "cannot be read"),
        (["--log-level", "loud"], "debug, info, warning, error"),
    ],
)
def test_what_cannot_be_run(server: ServerProcess, tmp_path: Path, words: list[str], culprit: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    done = run("pipelines", "run", server.url, *words, "--password-file", secret)
    assert done.returncode == 1
    assert culprit in done.stderr


def test_a_list(server: ServerProcess, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    done = run("pipelines", "list", server.url, "--password-file", secret)
    assert done.returncode == 0
    assert "app.totals" in done.stdout
    assert "not attached" in done.stdout
