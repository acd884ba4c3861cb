"""A pipeline as a StreamingQuery: its inputs as DataFrames, its result checked against the target and
staged by its tasks, its sink.

Every pipeline has a Spark session of its own (views and settings apart, one JVM), in which time is UTC.

How results leave the query follows from it: rows that changed for one that aggregates (the target's row of the same key
is replaced), the whole result for one that also sorts, else every new row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tablecast.client.bulk import BulkClient, Server
from tablecast.model.names import spelled
from tablecast.model.pipeline import InputKind, PipelineInput
from tablecast.model.schema import TableSchema
from tablecast.spark.fitting import fit
from tablecast.spark.options import SOURCE_NAME
from tablecast.spark.pipelines.definition import Definition
from tablecast.spark.pipelines.sink import Sink, Tally
from tablecast.spark.pipelines.staging import SCHEMA, Staging
from tablecast.spark.source import TablecastDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_MESSAGES_PER_BATCH = 200_000  # of a topic, unless the pipeline says otherwise: bounds a batch's time and memory
_AGGREGATE = re.compile(r"^[\s:+\-]*~(Aggregate|Distinct)\b", re.MULTILINE)  # ~ is a stream's, not a table's
_SORT = re.compile(r"\A(?:[\s:+\-]*~Project[^\n]*\n)*[\s:+\-]*~Sort\b")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a query is started with. `options` reach the server: url and credentials."""

    spark: SparkSession
    server: Server
    options: Mapping[str, str]


def started(
    definition: Definition, around: Surroundings, client: BulkClient, checkpoint: Path, tally: Tally, *, once: bool
) -> StreamingQuery:
    """`client` is for the query's sink alone. Raises whatever Spark or the server has against it."""
    session = own_session(around.spark)
    frames = {given.view: _frame(session, definition, given, around) for given in definition.pipeline.inputs}
    columns, result = _fitted(definition.result(session, frames), definition, around.server)
    staged = result.mapInArrow(Staging(around.server, definition.pipeline, columns).stage, SCHEMA)
    sink = Sink(client, definition.pipeline, checkpoint, tally)
    writer = (
        staged.writeStream.queryName(definition.name)
        .option("checkpointLocation", f"file://{checkpoint.absolute()}")  # Spark takes it as it is: nothing is escaped
        .outputMode(output_mode(result))
        .foreachBatch(sink)
    )
    seconds = definition.pipeline.options.trigger_seconds
    timed = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds")
    )
    return timed.start()


def reader_options(server: Server) -> dict[str, str]:
    """How Spark's readers reach the server; Spark hides a password and a token wherever it shows options."""
    named = {
        "url": server.url, "user": server.user, "password": server.password, "token": server.token,
        "caFile": server.ca_file,
    }  # fmt: skip
    return {name: value for name, value in named.items() if value is not None}


def own_session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.dataSource.register(TablecastDataSource)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    return session


# --- inputs -----------------------------------------------------------------------------------------------------


def _frame(session: SparkSession, definition: Definition, given: PipelineInput, around: Surroundings) -> DataFrame:
    if given.kind is InputKind.TABLE:
        table = session.read.format(SOURCE_NAME).options(**around.options).option("table", spelled(given.name))
        return table.option("minPartitions", "1").load()  # one task: its snapshot ends with it, batch after batch
    options = definition.pipeline.options
    reader = session.readStream.format(SOURCE_NAME).options(**around.options).option("topic", spelled(given.name))
    reader = reader.option("startingOffsets", options.starting)
    reader = reader.option("maxOffsetsPerTrigger", str(options.max_messages or MAX_MESSAGES_PER_BATCH))
    reader = reader.option("failOnDataLoss", str(options.fail_on_data_loss).lower())
    if _is_of_one_table(around.server, given.name):
        reader = reader.option("decode", "true")
    frame = reader.load()
    if definition.watermark is not None and definition.watermark[0] in frame.columns:
        frame = frame.withWatermark(*definition.watermark)
    return frame


def _is_of_one_table(server: Server, topic: str) -> bool:
    with BulkClient(server) as client:
        return len(client.describe_topic(spelled(topic)).tables) == 1


# --- results ----------------------------------------------------------------------------------------------------


def _fitted(result: DataFrame, definition: Definition, server: Server) -> tuple[tuple[str, ...], DataFrame]:
    """The result's columns under the names that the target has for them."""
    found = fit(result.schema, _schema_of(server, definition.pipeline.target), definition.pipeline.mode)
    plain = [f"c{i}" for i in range(len(result.columns))]
    chosen = result.toDF(*plain).select(*(f"c{i}" for i in found.taken))
    return found.names, chosen.toDF(*found.names)


def _schema_of(server: Server, table: str) -> TableSchema:
    """As it is now. There is no cheaper question than a snapshot that is closed at once."""
    with BulkClient(server) as client:
        snapshot = client.open_snapshot(spelled(table))
        client.close_snapshot(snapshot.snapshot_id)
    return snapshot.table


def output_mode(result: DataFrame) -> str:
    plan = result._jdf.queryExecution().analyzed().toString()
    if _AGGREGATE.search(plan) is None:
        return "append"
    return "complete" if _SORT.match(plan) else "update"
