"""`df.writeStream.format("tablecast")`: every micro-batch is one commit, and is there once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from writing import Writing, writing

from tablecast.spark.durable import local_place
from tablecast.spark.source import TablecastDataSource

WAIT_SECONDS = 120
FIRST_FILE_AT = 1_760_000_000


@pytest.fixture(scope="module")
def w(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writing]:
    with writing(tmp_path_factory.mktemp("server") / "data") as made:
        yield made


class Stream:
    """A directory of files, one micro-batch each, into a table."""

    def __init__(self, w: Writing, spark: SparkSession, home: Path, table: str, **options: str) -> None:
        self._w, self._spark, self._home = w, spark, home
        self._options = {"table": table, **options}
        self._inputs = home / "input"
        self._inputs.mkdir()
        self.checkpoint = home / "checkpoint"

    def add(self, *rows: dict[str, Any]) -> None:
        number = len(list(self._inputs.iterdir()))
        made = self._home / f"{number:04}.json"
        made.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(made, (FIRST_FILE_AT + number,) * 2)  # Spark takes files by their times, which must not be equal
        made.rename(self._inputs / made.name)

    def frame(self, schema: str) -> DataFrame:
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self._inputs))

    def start(
        self, frame: DataFrame, output: str = "append", *, once: bool = True, source: str = "tablecast"
    ) -> StreamingQuery:
        writer = self._w.options(frame.writeStream, **self._options).format(source).outputMode(output)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if once:
            writer = writer.trigger(availableNow=True)
        started: StreamingQuery = writer.start()
        return started

    def run(self, frame: DataFrame, output: str = "append", *, source: str = "tablecast") -> StreamingQuery:
        """Everything that is there."""
        query = self.start(frame, output, source=source)
        assert query.awaitTermination(WAIT_SECONDS)
        return query

    def forget_last_commit(self) -> int:
        """As if the driver had died right before Spark wrote down that the batch is done."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
        return last


SCHEMA = "id bigint, n int"
COLUMNS = "id BIGINT PRIMARY KEY, n INT"


@pytest.mark.parametrize("bulk", ["auto", "always"])
def test_each_batch_is_one_commit_and_a_replay_changes_nothing(
    w: Writing, spark: SparkSession, tmp_path: Path, bulk: str
) -> None:
    table = w.table(f"streamed_{bulk}", COLUMNS)
    stream = Stream(w, spark, tmp_path, table, bulk=bulk)
    for first in (0, 10, 20):
        stream.add(*({"id": first + i, "n": i} for i in range(10)))
    stream.run(stream.frame(SCHEMA))
    assert w.rows(table) == [(i, i % 10) for i in range(30)]
    assert w.client.query(f"SELECT count(DISTINCT _seq) FROM {table}").scalar() == 3
    assert stream.forget_last_commit() == 2
    stream.add({"id": 30, "n": 0})
    stream.run(stream.frame(SCHEMA))
    assert [row[0] for row in w.rows(table)] == list(range(31))
    assert len(w.messages(table)) == 31
    assert w.open_loads() == []


def test_a_query_goes_on_where_it_was_and_another_one_is_another_writer(
    w: Writing, spark: SparkSession, tmp_path: Path
) -> None:
    table = w.table("continued", COLUMNS)
    for name, first in (("one", 0), ("two", 100)):
        (tmp_path / name).mkdir()
        stream = Stream(w, spark, tmp_path / name, table)
        for batch in range(2):  # both queries have batches 0 and 1
            stream.add({"id": first + batch, "n": 0})
            stream.run(stream.frame(SCHEMA))
    assert [row[0] for row in w.rows(table)] == [0, 1, 100, 101]


def test_changes_by_an_op_column(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    table = w.table("followed", COLUMNS)
    stream = Stream(w, spark, tmp_path, table, opColumn="op")
    stream.add({"id": 1, "n": 1, "op": "insert"}, {"id": 2, "n": 1, "op": "insert"}, {"id": 1, "n": 2, "op": "update"})
    stream.add({"id": 2, "op": "delete"}, {"id": 3, "n": 3, "op": "upsert"})
    stream.run(stream.frame(f"{SCHEMA}, op string"))
    assert w.rows(table) == [(1, 2), (3, 3)]
    assert sorted(op for op, _ in w.told(table)) == ["delete", "insert", "insert", "insert", "update"]


def test_an_aggregate_by_upsert(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    table = w.table("totals", "n INT PRIMARY KEY, rows BIGINT")
    stream = Stream(w, spark, tmp_path, table, mode="upsert")
    stream.add({"id": 1, "n": 1}, {"id": 2, "n": 2})
    stream.add({"id": 3, "n": 2})
    counted = stream.frame(SCHEMA).groupBy("n").count().withColumnRenamed("count", "rows")
    stream.run(counted, "complete")
    assert w.rows(table, order="n") == [(1, 1), (2, 2)]


@pytest.mark.long
def test_a_replay_takes_in_what_it_does_not_write(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    """The driver died after a commit, and the power with it: Spark's state of that batch is lost, too. A task that left
    its rows unread, because the batch is committed already, would not make it again."""
    table, keys = w.table("each_once", "n INT PRIMARY KEY, word TEXT"), 40_000
    stream = Stream(w, spark, tmp_path, table)
    stream.add({"id": 1, "n": keys})
    wide = "repeat('x', 300) AS word"  # more than waits in the buffers between Spark and its worker
    distinct = stream.frame(SCHEMA).selectExpr("explode(sequence(1, n)) AS n", wide).dropDuplicates(["n"])
    stream.run(distinct)
    assert stream.forget_last_commit() == 0
    lost = list((stream.checkpoint / "state").rglob("1.delta"))
    assert len(lost) == 2
    for path in lost:
        path.unlink()
    stream.add({"id": 2, "n": keys + 1})
    stream.run(distinct)
    assert w.client.query(f"SELECT count(*), max(n), count(DISTINCT _seq) FROM {table}").rows == [
        (keys + 1, keys + 1, 2)
    ]


def test_a_batch_without_rows_commits_nothing(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    table = w.table("silent", COLUMNS)
    stream = Stream(w, spark, tmp_path, table)
    stream.add({"id": 1, "n": 1})
    before = w.client.query("SELECT max(_seq) FROM app.silent").scalar()
    query = stream.run(stream.frame(SCHEMA).where("n > 1"))
    assert [progress["batchId"] for progress in query.recentProgress] == [0]
    assert w.rows(table) == []
    assert before is None
    assert w.client.query("SELECT count(*) FROM system.loads WHERE table_name = 'app.silent'").scalar() == 0
    stream.add({"id": 2, "n": 2})
    stream.run(stream.frame(SCHEMA).where("n > 1"))
    assert w.rows(table) == [(2, 2)]


def test_a_batch_that_is_refused_can_be_set_right(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of it is there; the batch is run again when the query is, with the same name."""
    table = w.table("refused", COLUMNS)
    w.client.execute(f"INSERT INTO {table} VALUES (2, 0)")
    stream = Stream(w, spark, tmp_path, table)
    stream.add({"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 3, "n": 3})
    with pytest.raises(StreamingQueryException, match="already has a row with id = 2"):
        stream.run(stream.frame(SCHEMA))
    assert [row[0] for row in w.rows(table)] == [2]
    w.client.execute(f"DELETE FROM {table} WHERE id = 2")
    stream.run(stream.frame(SCHEMA))
    assert w.rows(table) == [(1, 1), (2, 2), (3, 3)]


def test_a_column_that_is_added_while_a_stream_runs(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    table = w.table("growing", COLUMNS)
    stream = Stream(w, spark, tmp_path, table)
    stream.add({"id": 1, "n": 1})
    query = stream.start(stream.frame(SCHEMA), once=False)
    try:
        query.processAllAvailable()
        w.client.execute(f"ALTER TABLE {table} ADD COLUMN word TEXT DEFAULT 'none'")
        stream.add({"id": 2, "n": 2})
        query.processAllAvailable()
    finally:
        query.stop()
    assert w.rows(table) == [(1, 1, "none"), (2, 2, "none")]
    stream.add({"id": 3, "n": 3, "word": "new"})
    stream.run(stream.frame(f"{SCHEMA}, word string"))
    assert w.rows(table)[2] == (3, 3, "new")


def test_a_table_that_is_dropped_while_a_stream_runs(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    w.client.execute("CREATE TABLE app.dropped (id BIGINT PRIMARY KEY, n INT)")
    stream = Stream(w, spark, tmp_path, "app.dropped")
    stream.add({"id": 1, "n": 1})
    query = stream.start(stream.frame(SCHEMA), once=False)
    try:
        query.processAllAvailable()
        w.client.execute("DROP TABLE app.dropped")
        stream.add({"id": 2, "n": 2})
        with pytest.raises(StreamingQueryException, match=r"UnknownTable.*app\.dropped"):
            query.processAllAvailable()
    finally:
        query.stop()


def test_spark_tells_the_writer_where_the_checkpoint_is(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    """So that it can be made durable before a commit; tests/unit/test_durable.py has what becomes of it."""
    told = tmp_path / "told"

    class Telling(TablecastDataSource):
        @classmethod
        def name(cls) -> str:
            return "telling"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            told.write_text(self.options["checkpointLocation"])
            return super().streamWriter(schema, overwrite)

    spark.dataSource.register(Telling)
    stream = Stream(w, spark, tmp_path, w.table("telling", COLUMNS))
    stream.add({"id": 1, "n": 1})
    stream.run(stream.frame(SCHEMA), source="telling")
    place = local_place(told.read_text())
    assert place == stream.checkpoint
    assert (place / "offsets" / "0").exists()


def test_a_stream_into_a_topic(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    """Into the table that feeds it, once, also when a batch is run again."""
    table = w.table("fed", COLUMNS)
    stream = Stream(w, spark, tmp_path, "", topic=f"{table}_told")
    stream.add({"id": 1, "n": 1}, {"id": 2, "n": 2})
    stream.run(stream.frame(SCHEMA))
    stream.forget_last_commit()
    stream.add({"id": 3, "n": 3})
    stream.run(stream.frame(SCHEMA))
    assert w.rows(table) == [(1, 1), (2, 2), (3, 3)]
    assert sorted(int(row["id"]) for _, row in w.told(table)) == [1, 2, 3]


def test_what_is_refused_when_a_stream_is_planned(w: Writing, spark: SparkSession, tmp_path: Path) -> None:
    table = w.table("unplanned", COLUMNS)
    stream = Stream(w, spark, tmp_path, table)
    stream.add({"id": 1, "n": 1})
    with pytest.raises(StreamingQueryException, match="has no column 'm'; it has: id, n"):
        stream.run(stream.frame(SCHEMA).withColumnRenamed("n", "m"))
    w.client.execute("CREATE TOPIC app.unfed")
    (tmp_path / "unfed").mkdir()
    unfed = Stream(w, spark, tmp_path / "unfed", "", topic="app.unfed")
    unfed.add({"id": 1, "n": 1})
    with pytest.raises(StreamingQueryException, match=r"topic app\.unfed has no source table"):
        unfed.run(unfed.frame(SCHEMA))
