"""The demo's part on Spark: a pipeline from the topic into a revenue table, a Parquet archive, and an audit."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from tablecast.cli.demo_shop import TOPIC, Found, by_customer, insert_order, patiently_until
from tablecast.client.bulk import BulkClient
from tablecast.client.bulk_server import Server
from tablecast.client.sync import Client
from tablecast.codec.result import Result
from tablecast.errors import JavaMissing
from tablecast.model.position import EARLIEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = f"""
CREATE PIPELINE shop.revenue_by_customer INTO shop.revenue MODE upsert AS
SELECT customer, count(*) AS orders, CAST(sum(amount) AS DECIMAL(18,2)) AS amount, max(_ts) AS newest
FROM TOPIC {TOPIC} WHERE _op = 'insert' GROUP BY customer
WITH (starting = 'earliest')
"""
REVENUE = "SELECT customer, orders, amount FROM shop.revenue ORDER BY customer"
TOLD = (
    "SELECT customer, count(*), CAST(sum(amount) AS DECIMAL(18,2)) FROM shop.orders GROUP BY customer ORDER BY customer"
)


def why_not_on_spark() -> str | None:
    """What is missing, and how to get it; None if nothing is."""
    try:
        from tablecast.spark.java import find_java
    except ImportError:
        return "PySpark is not installed: pip install 'tablecast[spark]'"
    try:
        find_java()
    except JavaMissing as error:
        return error.message
    return None


@contextmanager
def on_spark(server: Server, client: Client, path: Path) -> Iterator[OnSpark]:
    client.execute(PIPELINE)
    client.execute("START PIPELINE shop.revenue_by_customer")
    with (
        _session(path / "spark.log") as spark,
        _pipelines(spark, server, path / "checkpoints"),
        _archive(spark, server, path) as archiving,
    ):
        yield OnSpark(spark, client, archiving, path / "archive")


class OnSpark:
    """What runs there while orders are written, and what it has found of them."""

    def __init__(self, spark: SparkSession, client: Client, archiving: Any, archive: Path) -> None:
        self._spark, self._client, self._archiving, self._archive = spark, client, archiving, archive
        self._warm_at = 0

    def warm_up(self) -> None:
        """One order through everything: Spark's first batch takes seconds."""
        insert_order(self._client, "customer 0", "1.00")
        self._catch_up()
        self._warm_at = int(self._client.query("SELECT max(_seq) FROM shop.revenue").scalar())

    def found(self) -> list[Found]:
        self._catch_up()
        self._archiving.processAllAvailable()
        archived = self._spark.read.parquet(str(self._archive))
        unique = archived.select("_partition", "_offset").distinct().count()
        counted = self._client.query("SELECT CAST(coalesce(sum(orders), 0) AS BIGINT) FROM shop.revenue").scalar()
        return [
            Found("pipeline on Spark", counted, counted),
            Found("Parquet archive, by Spark", archived.count(), unique),
        ]

    def _catch_up(self) -> bool:
        """Waits until the target says what a query over the orders says."""
        expected = self._client.query(TOLD).rows
        return patiently_until(lambda: self._client.query(REVENUE).rows == expected)

    def audit(self, console: Console) -> bool:
        """Prints the revenue and the audit of the topic; whether that is sound."""
        console.print(by_customer("Revenue, as the pipeline has it", list(self._client.query(REVENUE).rows)))
        audited = self._client.execute(f"AUDIT TOPIC {TOPIC}")
        console.print(_audited(audited))
        return audited.message.endswith(": sound")

    def latencies(self) -> list[float]:
        """From the commit of the newest order in a row of the target to the commit of that row, sorted."""
        found = []
        topic, group = "shop.revenue_events", "watch"
        while messages := self._client.consume(topic, group=group, start=EARLIEST, limit=1000).messages:
            for message in (message for message in messages if message.seq > self._warm_at):
                newest = datetime.fromisoformat(json.loads(message.payload)["newest"])
                found.append(message.ts / 1000 - newest.timestamp())
            self._client.ack(topic, group, messages[-1].offset)
        return sorted(found)


def _audited(result: Result) -> Table:
    table = Table(title=f"On Spark: {result.message}", box=box.SIMPLE)
    told = ("source", "coverage", "duplication", "messages", "missing", "repeated", "gaps")
    for name in told:
        table.add_column(name, justify="left" if name == "source" else "right")
    for row in result.rows:
        said = dict(zip(result.columns, row, strict=True))
        table.add_row(*("–" if said[name] is None else str(said[name]) for name in told))
    return table


# --- what runs there ------------------------------------------------------------------------------------------------


@contextmanager
def _session(log: Path) -> Iterator[SparkSession]:
    """On two cores. What Spark has to say goes to its log: started processes inherit it as their standard error."""
    from tablecast.spark.session import session

    kept = os.dup(2)
    with log.open("wb") as said:
        os.dup2(said.fileno(), 2)
    try:
        spark = session("local[2]", "demo", **{"spark.sql.shuffle.partitions": 2})
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _pipelines(spark: SparkSession, server: Server, checkpoints: Path) -> Iterator[None]:
    """What `tablecast pipelines run` does, in this process and session."""
    from tablecast.spark.pipelines.life import Terms
    from tablecast.spark.pipelines.query import Surroundings, reader_options
    from tablecast.spark.pipelines.runner import CatalogPipelines, Runner

    with BulkClient(server) as client:
        around = Surroundings(spark, server, reader_options(server))
        runner = Runner(around, client, CatalogPipelines(client), Terms(checkpoints))
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            yield
        finally:
            runner.end()
            thread.join()


@contextmanager
def _archive(spark: SparkSession, server: Server, path: Path) -> Iterator[Any]:
    """The topic as Parquet, exactly once, by Spark's own file sink."""
    from tablecast.spark.pipelines.query import reader_options

    source = spark.readStream.format("tablecast").options(**reader_options(server)).option("topic", TOPIC)
    messages = source.option("startingOffsets", "earliest").option("decode", "true").load()
    sink = messages.writeStream.format("parquet").option("checkpointLocation", str(path / "checkpoints" / "archive"))
    query = sink.trigger(processingTime="2 seconds").start(str(path / "archive"))
    try:
        yield query
    finally:
        query.stop()
