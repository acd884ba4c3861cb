"""Four writes on a cluster that makes a second attempt at whatever takes long: `spark.speculation`.

    python speculation_driver.py MASTER URL DIRECTORY

Rows go into app.sealed, app.sent, app.streamed and app.piped: by the bulk path, as rows, by a stream, and by the pipeline
app.piped. Each has tasks enough that Spark can tell a slow one from the others. Nothing in here is slow.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import tablecast.spark
from tablecast.client.bulk import BulkClient, Server
from tablecast.spark.pipelines.life import Terms
from tablecast.spark.pipelines.query import Surroundings, reader_options
from tablecast.spark.pipelines.runner import CatalogPipelines, Runner

ROWS, TASKS = 4_000, 4
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def batches(spark: SparkSession, options: dict[str, str]) -> None:
    frame = spark.range(0, ROWS, 1, TASKS).selectExpr("id", "id * 2 AS n")
    for table, bulk in (("app.sealed", "always"), ("app.sent", "never")):
        frame.write.format("tablecast").options(**options, table=table, bulk=bulk).mode("append").save()


def stream(spark: SparkSession, options: dict[str, str], directory: Path) -> None:
    reading = spark.readStream.format("tablecast").options(**options, topic="app.asked", decode="true")
    changes = reading.options(startingOffsets="earliest", minPartitions=str(TASKS)).load().select("id", "n")
    writing = changes.writeStream.format("tablecast").options(**options, table="app.streamed", mode="upsert")
    writing = writing.option("checkpointLocation", str(directory / "streamed"))
    writing.trigger(availableNow=True).start().awaitTermination()


def pipeline(spark: SparkSession, url: str, directory: Path) -> int:
    server = Server(url, user="system", password=os.environ["TABLECAST_PASSWORD"])
    with BulkClient(server) as client:
        around = Surroundings(spark, server, reader_options(server))
        return Runner(around, client, CatalogPipelines(client), Terms(directory / "pipelines", once=True)).run()


def main() -> int:
    master, url, directory = sys.argv[1:]
    events = {"spark.eventLog.dir": directory}
    spark = tablecast.spark.session(master, app_name="attempts", **SETTINGS, **events)
    options = {"url": url, "user": "system", "password": os.environ["TABLECAST_PASSWORD"]}
    batches(spark, options)
    stream(spark, options, Path(directory))
    code = pipeline(spark, url, Path(directory))
    spark.stop()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
