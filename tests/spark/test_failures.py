"""What goes wrong around a write: each a clear error, or a clean recovery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from processes import PASSWORD, Server, until
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from writing import Writing

import tablecast
from tablecast import Client

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),  # mapInArrow looks for pandas first
]

WRONG = "no password of anybody"
COLUMNS = "id BIGINT PRIMARY KEY, n BIGINT"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with tablecast.connect(server.url, user="system", password=PASSWORD) as made:
        made.execute("CREATE NAMESPACE app")
        yield made


@pytest.fixture
def w(server: Server, client: Client) -> Writing:
    return Writing(server.url, client, PASSWORD)


def refused(write: Any) -> str:
    with pytest.raises(PySparkException) as error:
        write()
    return str(error.value)


def test_a_wrong_password_and_an_unknown_table(w: Writing, spark: SparkSession) -> None:
    frame = spark.range(5).selectExpr("id", "id AS n")
    stranger = Writing(w.url, w.client, WRONG)
    error = refused(lambda: stranger.save(frame, "app.t"))
    assert "Unauthenticated" in error
    assert WRONG not in error
    assert "UnknownTable" in refused(lambda: w.save(frame, "app.nowhere"))


def test_an_account_that_may_not_write(w: Writing, spark: SparkSession) -> None:
    w.table("kept", COLUMNS)
    w.client.execute(f"CREATE USER 'ann' WITH PASSWORD '{PASSWORD}' ROLE 'user'")
    writer = spark.range(5).selectExpr("id", "id AS n").write.format("tablecast").mode("append")
    error = refused(writer.options(url=w.url, user="ann", password=PASSWORD, table="app.kept").save)
    assert "PermissionDenied" in error
    assert PASSWORD not in error
    assert w.rows("app.kept") == []


def held_in_the_middle(frame: DataFrame, directory: Path) -> DataFrame:
    """The second partition gives its rows when the first one's are staged and somebody has put `go` there."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        for batch in batches:
            if task is not None and task.partitionId() == 1:
                (directory / "held").touch()
                while not (directory / "go").exists():
                    time.sleep(0.02)
            yield batch

    return frame.mapInArrow(hold, frame.schema)


class Job(threading.Thread):
    """A write in the background."""

    def __init__(self, spark: SparkSession, write: Any) -> None:
        super().__init__()
        self._spark, self._write = spark, write
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._spark.createDataFrame([(0,)], "n int")  # makes the session this thread's: it knows the data source
            self._write()
        except BaseException as error:
            self.error = error

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        def unless_failed() -> bool:
            assert self.error is None, str(self.error)
            return condition()

        until(what, unless_failed)


@pytest.mark.parametrize("bulk", ["always", "never"])
def test_a_server_that_is_killed_during_a_batch(
    w: Writing, server: Server, spark: SparkSession, tmp_path: Path, bulk: str
) -> None:
    """What was staged is there when it comes back, and the write goes on."""
    table = w.table("outlived", COLUMNS)
    frame = held_in_the_middle(spark.range(0, 100, 1, 2).selectExpr("id", "id AS n"), tmp_path)
    job = Job(spark, lambda: w.save(frame, table, bulk=bulk))
    job.until("the second task is held", lambda: (tmp_path / "held").exists())
    parts = "SELECT sum(parts) FROM system.loads"
    job.until("the first part is staged", lambda: w.client.query(parts).scalar() == 1)
    server.restart()
    (tmp_path / "go").touch()
    job.join()
    assert job.error is None
    assert w.rows(table) == [(i, i) for i in range(100)]
    assert len(w.messages(table)) == 100


def test_a_source_that_is_added_during_a_bulk_load(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    """Sealed rows lack the messages that the new source asks for: the load is refused, and nothing is half there."""
    table = w.table("rerouted", COLUMNS)
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "id AS n")
    held = held_in_the_middle(frame, tmp_path)
    job = Job(spark, lambda: w.save(held, table))
    job.until("the second task is held", lambda: (tmp_path / "held").exists())
    w.client.execute_all("CREATE TOPIC app.more; ALTER TOPIC app.more ADD SOURCE app.rerouted ON INSERT")
    (tmp_path / "go").touch()
    job.join()
    assert "StaleLoad: nothing was written" in str(job.error)
    assert "run it again" in str(job.error)
    assert w.rows(table) == w.messages(table) == []
    w.save(frame, table)
    assert len(w.rows(table)) == len(w.messages(table)) == 100
    assert w.client.query("SELECT end_offset FROM system.topic_partitions WHERE topic = 'app.more'").scalar() == 100


def test_rows_sent_as_they_are_meet_the_table_as_it_is(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    """Rows that are not sealed are decided at the commit, by what the table and its sources are then."""
    table = w.table("regrown", COLUMNS)
    frame = held_in_the_middle(spark.range(0, 100, 1, 2).selectExpr("id", "id AS n"), tmp_path)
    job = Job(spark, lambda: w.save(frame, table, bulk="never"))
    job.until("the second task is held", lambda: (tmp_path / "held").exists())
    w.client.execute(f"ALTER TABLE {table} ADD COLUMN word TEXT DEFAULT 'new'")
    (tmp_path / "go").touch()
    job.join()
    assert job.error is None
    assert w.rows(table) == [(i, i, "new") for i in range(100)]
