"""What is measured with Spark. Each side of a comparison runs in turns in one session of local[2]."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

import tablecast
import tablecast.spark
from bench.measure import Comparison, NotInstalled, in_turns
from bench.server.ours import PASSWORD, server
from bench.spark.memory_source import MemorySource
from tablecast.errors import JavaMissing
from tablecast.model.position import EARLIEST

COLUMNS = "id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT, quantity INT, created_at TIMESTAMP"
ROWS_OF_HTTP = 300_000
HTTP_BATCH = 10_000
MEMORY = Path("/dev/shm")


@contextmanager
def session(master: str = "local[2]", **conf: str) -> Iterator[SparkSession]:
    try:
        spark = tablecast.spark.session(master, app_name="tablecast bench", **conf)
    except JavaMissing as e:
        raise NotInstalled(str(e)) from e
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(MemorySource)
    try:
        yield spark
    finally:
        spark.stop()


def orders(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).select(
        "id",
        f.concat(f.lit("customer-"), f.col("id") % 1000).alias("customer"),
        ((f.col("id") % 50_000) / 100).cast("decimal(12,2)").alias("amount"),
        f.element_at(f.array(f.lit("new"), f.lit("paid"), f.lit("sent")), (f.col("id") % 3 + 1).cast("int")).alias(
            "status"
        ),
        (f.col("id") % 9).cast("int").alias("quantity"),
        f.timestamp_micros(f.lit(1_760_000_000_000_000) + f.col("id") * 1_000).alias("created_at"),
    )


class Bench:
    """A server, a Spark session, and the same rows as Parquet."""

    def __init__(self, spark: SparkSession, port: int, path: Path, rows: int, files: int = 2) -> None:
        self.spark, self.path, self.rows = spark, path, rows
        self.url = f"http://127.0.0.1:{port}"
        self.client = tablecast.connect(self.url, user="system", password=PASSWORD)
        self.client.execute("CREATE NAMESPACE IF NOT EXISTS bench")
        self.parquet = str(path / "orders.parquet")
        orders(spark, rows).repartition(files).sortWithinPartitions("id").write.mode("overwrite").parquet(self.parquet)
        self._made = 0

    def options(self, frame: Any) -> Any:
        return frame.format("tablecast").option("url", self.url).option("user", "system").option("password", PASSWORD)

    def new_table(self, client: tablecast.Client | None = None) -> str:
        execute = (client or self.client).execute
        self._made += 1
        name = f"bench.orders_{self._made}"
        execute(f"CREATE TABLE {name} ({COLUMNS})")
        execute(f"CREATE TOPIC {name}_events PARTITIONS 2")
        execute(f"ALTER TOPIC {name}_events ADD SOURCE {name} ON INSERT WITH (payload = 'full')")
        return name

    def drop(self, name: str, client: tablecast.Client | None = None) -> None:
        execute = (client or self.client).execute
        execute(f"DROP TOPIC {name}_events")
        execute(f"DROP TABLE {name}")

    def load(self, name: str) -> None:
        frame = self.spark.read.parquet(self.parquet)
        self.options(frame.write).option("table", name).mode("append").save()

    def server_seconds(self) -> float:
        """Processor time that the server has used so far."""
        used = self.client.query("SELECT value FROM system.metrics WHERE name = 'process_cpu_seconds_total'").scalar()
        return float(used)

    def rate(self, work: Callable[[], object], rows: int | None = None) -> float:
        began = time.perf_counter()
        work()
        return (rows or self.rows) / (time.perf_counter() - began)


@contextmanager
def bench(path: Path, rows: int, master: str = "local[2]") -> Iterator[Bench]:
    with server(path) as port, session(master) as spark:
        yield Bench(spark, port, path, rows)


def aggregate(frame: DataFrame) -> Any:
    """Touches every column: Parquet must not win by leaving some unread, which a Python source cannot do."""
    return frame.agg(
        f.count("id"), f.sum("id"), f.max("customer"), f.sum("amount"), f.max("status"), f.sum("quantity"), f.max("created_at")
    ).collect()[0]  # fmt: skip


def reading(path: Path, rounds: int, rows: int) -> Iterator[Comparison]:
    with bench(path, rows) as b:
        name = b.new_table()
        b.load(name)
        memory = Path(tempfile.mkdtemp(prefix="tablecast-bench-", dir=MEMORY if MEMORY.is_dir() else None))
        try:
            yield from _reading(b, name, memory / "orders.arrow", rounds)
        finally:
            shutil.rmtree(memory)


def _reading(b: Bench, name: str, memory: Path, rounds: int) -> Iterator[Comparison]:
    def topic() -> DataFrame:
        frame: DataFrame = b.options(b.spark.read).option("topic", f"{name}_events").option("decode", "true").load()
        return frame

    _to_arrow_file(topic(), memory)
    sides: list[DataFrame] = [
        topic(), b.spark.read.parquet(b.parquet), b.spark.read.format("memory").option("path", str(memory)).load()
    ]  # fmt: skip
    answers = {tuple(aggregate(side)) for side in sides}  # also warms up
    assert len(answers) == 1, answers
    ours, parquet, limit = in_turns(rounds, *(lambda s=side: b.rate(lambda: aggregate(s)) for side in sides))
    workload = f"reading a topic of {b.rows:,} messages, typed, into an aggregate"
    yield Comparison(workload, "spark.read.parquet of the same rows", ours, parquet, "rows/s", 0.25)
    bare = "a Python source yielding the same batches from memory"
    yield Comparison(workload, bare, ours, limit, "rows/s", 0.6, kind="limit")


def _to_arrow_file(frame: DataFrame, target: Path) -> None:
    """The same columns and batches as the topic gives, in a file. By way of Parquet: the driver could not hold them."""
    frame.write.parquet(str(target.with_suffix(".parquet")))
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    table: pa.Table = pyarrow.parquet.read_table(target.with_suffix(".parquet")).cast(schema)
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=16_384)


def loading(path: Path, rounds: int, rows: int) -> Iterator[Comparison]:
    # Rows over HTTP go to a server of their own: they shall not pay for what the loads before them left to compact.
    (http_path := path / "http").mkdir()
    with bench(path, rows) as b, server(http_path) as port:
        other = tablecast.connect(f"http://127.0.0.1:{port}", user="system", password=PASSWORD)
        other.execute("CREATE NAMESPACE bench")

        def ours() -> float:
            name = b.new_table()
            rate = b.rate(lambda: b.load(name))
            b.drop(name)
            return rate

        def parquet() -> float:
            source = b.spark.read.parquet(b.parquet)
            return b.rate(lambda: source.write.mode("overwrite").parquet(str(path / "copy.parquet")))

        def http() -> float:
            name = b.new_table(other)
            batches = _batches(b)
            sent = sum(len(batch) for batch in batches)
            rate = b.rate(lambda: [other.insert(name, batch) for batch in batches], sent)
            b.drop(name, other)
            return rate

        loaded, written, sent = in_turns(rounds, ours, parquet, http)
        workload = f"bulk load of {rows:,} rows with one full route"
        yield Comparison(workload, "Spark writing them as Parquet", loaded, written, "rows/s", 0.2)
        yield Comparison(
            workload, "HTTP rows from one client, 10,000 at a time", loaded, sent, "rows/s", 3, kind="itself"
        )


def _batches(b: Bench) -> list[pa.RecordBatch]:
    table = pyarrow.parquet.read_table(b.parquet).slice(0, ROWS_OF_HTTP).combine_chunks()
    found: list[pa.RecordBatch] = table.to_batches(max_chunksize=HTTP_BATCH)
    return found


def scaling(path: Path, rows: int) -> Iterator[Comparison]:
    """Beside the rates: what a load costs the server, which is what more executors cannot share."""
    rates, spent = [], []
    for threads in (1, 2):
        (own_path := path / f"with-{threads}").mkdir()
        with bench(own_path, rows, f"local[{threads}]") as b:
            b.load(b.new_table())  # warms up
            name = b.new_table()
            before = b.server_seconds()
            rates.append(b.rate(lambda b=b, name=name: b.load(name)))  # type: ignore[misc]
            spent.append((b.server_seconds() - before) / rows * 1e6)
    note = f"CPU seconds of the server per million rows: {spent[1]:.2f}, on local[1] {spent[0]:.2f}"
    yield Comparison("bulk load on local[2]", "on local[1]", rates[1], rates[0], "rows/s", 0, note=note, kind="itself")


# --- latency ----------------------------------------------------------------------------------------------------


def latency(path: Path, rounds: int) -> Iterator[Comparison]:
    with bench(path, 1_000) as b:
        ours = _stream_latencies(b, rounds)
        theirs = _rate_latencies(b, rounds)
        yield Comparison(
            "commit → row in the target table, p50", "a micro-batch of the same query, rate source to no-op sink",
            statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3, "ms", 3, at_most=True,
            kind="limit",
        )  # fmt: skip


def _transformed(frame: DataFrame, key: str) -> DataFrame:
    return frame.select(f.col(key).alias("id"), (f.col(key) * 2).alias("twice"))


def _stream_latencies(b: Bench, rounds: int) -> list[float]:
    b.client.execute_all(
        "CREATE TABLE bench.given (id BIGINT PRIMARY KEY); CREATE TOPIC bench.asked;"
        "ALTER TOPIC bench.asked ADD SOURCE bench.given ON INSERT WITH (payload = 'full');"
        "CREATE TABLE bench.made (id BIGINT PRIMARY KEY, twice BIGINT); CREATE TOPIC bench.told;"
        "ALTER TOPIC bench.told ADD SOURCE bench.made ON ANY"
    )
    source = b.options(b.spark.readStream).option("topic", "bench.asked").option("decode", "true")
    source = source.option("startingOffsets", "earliest").load()  # the first row may be there before the stream is
    sink = b.options(_transformed(source, "id").writeStream).option("table", "bench.made").option("mode", "upsert")
    query = sink.option("checkpointLocation", str(b.path / "checkpoint")).start()
    try:
        return [_one_latency(b, i) for i in range(rounds + 5)][5:]
    finally:
        query.stop()


def _one_latency(b: Bench, number: int) -> float:
    """From the acknowledged commit to the message that tells of the row in the target."""
    b.client.insert("bench.given", [{"id": number}])
    began = time.perf_counter()
    seen = b.client.consume("bench.told", group="watch", start=EARLIEST, timeout_seconds=60)
    assert seen.messages, "the stream does not write"
    took = time.perf_counter() - began
    b.client.ack("bench.told", "watch", seen.messages[-1].offset)
    return took


def _rate_latencies(b: Bench, rounds: int) -> list[float]:
    source = b.spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    sink = _transformed(source, "value").writeStream.format("noop")
    query = sink.option("checkpointLocation", str(b.path / "rate")).start()
    try:
        while len(query.recentProgress) < rounds + 5:
            query.processAllAvailable()
        return [p["durationMs"]["triggerExecution"] / 1e3 for p in query.recentProgress[5:] if p["numInputRows"]]
    finally:
        query.stop()
