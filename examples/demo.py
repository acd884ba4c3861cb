"""The main job, end to end: a server, 24 publishers over HTTP, a pipeline on Spark, an archive, an audit.

Prints what was written, what arrived and where, and how fast. The files stay: the last lines say where.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

import tablecast
import tablecast.spark
from tablecast.client.bulk import BulkClient, Server
from tablecast.model.position import EARLIEST
from tablecast.spark.pipelines.life import Terms
from tablecast.spark.pipelines.query import Surroundings, reader_options
from tablecast.spark.pipelines.runner import CatalogPipelines, Runner

PUBLISHERS = 24
CUSTOMERS = 8
PATIENCE_SECONDS = 180.0
SETUP = """
CREATE NAMESPACE shop;
CREATE TABLE shop.orders (
  id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), customer TEXT NOT NULL, amount DECIMAL(12,2) NOT NULL,
  created_at TIMESTAMP DEFAULT NOW());
CREATE TOPIC shop.order_events PARTITIONS 4;
ALTER TOPIC shop.order_events ADD SOURCE shop.orders ON ANY WITH (payload = 'full');
CREATE TABLE shop.revenue (customer TEXT PRIMARY KEY, orders BIGINT, amount DECIMAL(18,2), newest TIMESTAMP);
CREATE TOPIC shop.revenue_events;
ALTER TOPIC shop.revenue_events ADD SOURCE shop.revenue ON ANY WITH (payload = 'full')
"""
PIPELINE = """
CREATE PIPELINE shop.revenue_by_customer INTO shop.revenue MODE upsert AS
SELECT customer, count(*) AS orders, CAST(sum(amount) AS DECIMAL(18,2)) AS amount, max(_ts) AS newest
FROM TOPIC shop.order_events WHERE _op = 'insert' GROUP BY customer
WITH (starting = 'earliest')
"""
REVENUE = "SELECT customer, orders, amount FROM shop.revenue ORDER BY customer"
TOLD = (
    "SELECT customer, count(*), CAST(sum(amount) AS DECIMAL(18,2)) FROM shop.orders GROUP BY customer ORDER BY customer"
)


@contextmanager
def served(path: Path) -> Iterator[Server]:
    """`tablecast serve` on embedded storage, as a process of its own."""
    password, said = secrets.token_urlsafe(16), path / "server.log"
    command = [sys.executable, "-m", "tablecast", "serve", "--data", str(path / "db"), "--port", "0"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, "TABLECAST_PASSWORD": password}, stdout=log, stderr=log)
        try:
            yield Server(_address(process, said), user="system", password=password)
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + PATIENCE_SECONDS
    while (found := re.search(r"http://[0-9.]+:\d+", log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the server did not start: see {log}")
        time.sleep(0.05)
    return found.group()


class Publisher(threading.Thread):
    """Inserts orders through its own client until the time is over."""

    def __init__(self, server: Server, number: int, seconds: float) -> None:
        super().__init__()
        self._server, self._number, self._seconds = server, number, seconds
        self.latencies: list[float] = []

    def run(self) -> None:
        with tablecast.connect(self._server.url, user=self._server.user, password=self._server.password) as client:
            until = time.perf_counter() + self._seconds
            while (began := time.perf_counter()) < until:
                i = len(self.latencies)
                order = {"customer": f"customer {(self._number + i) % CUSTOMERS}", "amount": f"{i % 90 + 10}.50"}
                client.insert("shop.orders", [order])
                self.latencies.append(time.perf_counter() - began)


@contextmanager
def pipelines(spark: SparkSession, server: Server, checkpoints: Path) -> Iterator[None]:
    """What `tablecast pipelines run` does, in this process and session."""
    with BulkClient(server) as client:
        runner = Runner(
            Surroundings(spark, server, reader_options(server)), client, CatalogPipelines(client), Terms(checkpoints)
        )
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            yield
        finally:
            runner.end()
            thread.join()


@contextmanager
def archive(spark: SparkSession, server: Server, path: Path) -> Iterator[Any]:
    """The topic as Parquet, exactly once, by Spark's own file sink."""
    source = spark.readStream.format("tablecast").options(**reader_options(server)).option("topic", "shop.order_events")
    messages = source.option("startingOffsets", "earliest").option("decode", "true").load()
    sink = messages.writeStream.format("parquet").option("checkpointLocation", str(path / "checkpoints" / "archive"))
    query = sink.trigger(processingTime="2 seconds").start(str(path / "archive"))
    try:
        yield query
    finally:
        query.stop()


def shown(client: tablecast.Client) -> Table:
    table = Table(title="Revenue, as the pipeline has it", box=box.SIMPLE)
    for heading in ("customer", "orders", "amount"):
        table.add_column(heading, justify="left" if heading == "customer" else "right")
    for customer, orders, amount in client.query(REVENUE).rows:
        table.add_row(customer, f"{orders:,}", f"{amount:,}")
    return table


def publish(server: Server, client: tablecast.Client, console: Console, seconds: float) -> tuple[list[float], float]:
    publishers = [Publisher(server, number, seconds) for number in range(PUBLISHERS)]
    began = time.perf_counter()
    for publisher in publishers:
        publisher.start()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while any(publisher.is_alive() for publisher in publishers):
            live.update(shown(client), refresh=True)
            publishers[0].join(0.5)
    for publisher in publishers:
        publisher.join()
    took = time.perf_counter() - began
    return sorted(latency for publisher in publishers for latency in publisher.latencies), took


def caught_up(client: tablecast.Client) -> bool:
    """Waits until the target says what a query over the orders says."""
    expected, until = client.query(TOLD).rows, time.monotonic() + PATIENCE_SECONDS
    while client.query(REVENUE).rows != expected:
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def warm_up(client: tablecast.Client) -> int:
    """One order through everything: Spark's first batch takes seconds. Returns the commit of the answer."""
    client.insert("shop.orders", [{"customer": "customer 0", "amount": "1.00"}])
    caught_up(client)
    return int(client.query("SELECT max(_seq) FROM shop.revenue").scalar())


def pipeline_latencies(client: tablecast.Client, after: int) -> list[float]:
    """From the commit of the newest order in a row of the target to the commit of that row; after a commit."""
    found = []
    while messages := client.consume("shop.revenue_events", group="watch", start=EARLIEST, limit=1000).messages:
        for message in (message for message in messages if message.seq > after):
            newest = datetime.fromisoformat(json.loads(message.payload)["newest"])
            found.append(message.ts / 1000 - newest.timestamp())
        client.ack("shop.revenue_events", "watch", messages[-1].offset)
    return sorted(found)


def at(values: list[float], share: float) -> str:
    return f"{values[min(len(values) - 1, int(len(values) * share))] * 1000:,.0f} ms" if values else "–"


def report(console: Console, client: tablecast.Client, spark: SparkSession, path: Path, orders: int) -> bool:
    archived = spark.read.parquet(str(path / "archive"))
    unique = archived.select("_partition", "_offset").distinct().count()
    rows = archived.count()
    table = Table(title="Every write, on every channel, once", box=box.SIMPLE)
    for heading in ("reader", "writes", "found", "coverage", "duplication"):
        table.add_column(heading, justify="left" if heading == "reader" else "right")
    counted = client.query("SELECT CAST(sum(orders) AS BIGINT) FROM shop.revenue").scalar()
    for reader, found, distinct in (("revenue table", counted, counted), ("Parquet archive", rows, unique)):
        table.add_row(reader, f"{orders:,}", f"{found:,}", f"{distinct / orders:.1%}", f"{found / distinct:.2f}")
    console.print(table)
    audited = client.execute("AUDIT TOPIC shop.order_events")
    console.print(audited_table(audited))
    return counted == rows == unique == orders and audited.message.endswith(": sound")


def audited_table(result: tablecast.Result) -> Table:
    table = Table(title=f"On Spark: {result.message}", box=box.SIMPLE)
    told = ("source", "coverage", "duplication", "messages", "missing", "repeated", "gaps")
    for name in told:
        table.add_column(name, justify="left" if name == "source" else "right")
    for row in result.rows:
        said = dict(zip(result.columns, row, strict=True))
        table.add_row(*("–" if said[name] is None else str(said[name]) for name in told))
    return table


@contextmanager
def spark_session(log: Path) -> Iterator[SparkSession]:
    """On two cores. What Spark has to say goes to its log: started processes inherit it as their standard error."""
    kept = os.dup(2)
    with log.open("wb") as said:
        os.dup2(said.fileno(), 2)
    try:
        spark = tablecast.spark.session("local[2]", "demo", **{"spark.sql.shuffle.partitions": 2})
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        os.dup2(kept, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="where to keep everything (default: a new temporary directory)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long is published")
    args = parser.parse_args()
    path = args.data or Path(tempfile.mkdtemp(prefix="tablecast-demo-"))
    path.mkdir(parents=True, exist_ok=True)
    console = Console()
    with served(path) as server, tablecast.connect(server.url, user="system", password=server.password) as client:
        client.execute_all(SETUP)
        client.execute(PIPELINE)
        client.execute("START PIPELINE shop.revenue_by_customer")
        console.print(f"server at {server.url}; starting Spark …")
        with spark_session(path / "spark.log") as spark:
            with pipelines(spark, server, path / "checkpoints"), archive(spark, server, path) as archiving:
                first = warm_up(client)
                latencies, took = publish(server, client, console, args.seconds)
                is_caught_up = caught_up(client)
                archiving.processAllAvailable()
            console.print(shown(client))
            is_sound = report(console, client, spark, path, 1 + len(latencies)) and is_caught_up
        streamed = pipeline_latencies(client, first)
    console.print(
        f"{len(latencies):,} orders from {PUBLISHERS} publishers over HTTP in {took:.1f} s, each durable (fsync) when "
        f"answered: {len(latencies) / took:,.0f} a second, p50 {at(latencies, 0.5)}, p99 {at(latencies, 0.99)}"
    )
    console.print(
        f"from an order's commit to the revenue table's, through Spark: p50 {at(streamed, 0.5)}, p99 {at(streamed, 0.99)}"
    )
    console.print(
        f"database {path / 'db'}\narchive  {path / 'archive'}\nlogs     {path / 'server.log'}, {path / 'spark.log'}"
    )
    return 0 if is_sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
