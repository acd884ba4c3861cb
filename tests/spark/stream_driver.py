"""A Spark driver to be killed: it keeps one streaming query going, topic → transform → table, until it is.

    python stream_driver.py URL CHECKPOINT [MASTER]

MASTER is local[2,4], a cluster, or a Connect server.
When the query fails (the server was away for too long, a worker was killed too often), it is started again from its
checkpoint, in the same session; when this process is killed, the next one does so.
"""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, upper, when
from pyspark.sql.streaming.query import StreamingQuery

import tablecast.spark

TOPIC, TARGET = "app.asked", "app.made"
LOCAL, CONNECT = "local[2,4]", "sc://"
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
}


def transformed(changes: DataFrame) -> DataFrame:
    return changes.select(
        "id",
        (col("n") * 2).alias("twice"),
        upper("word").alias("word"),
        when(col("_op") == "delete", "delete").otherwise("upsert").alias("op"),
    )


def start(spark: SparkSession, url: str, checkpoint: str) -> StreamingQuery:
    reading = spark.readStream.format("tablecast").option("url", url).option("topic", TOPIC)
    changes = (
        reading.option("decode", "true")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000")
        .load()
    )
    writing = transformed(changes).writeStream.format("tablecast").option("url", url).option("table", TARGET)
    return writing.option("opColumn", "op").option("checkpointLocation", checkpoint).start()


def main() -> None:
    url, checkpoint, *further = sys.argv[1:]
    master = further[0] if further else LOCAL
    settings = {} if master.startswith(CONNECT) else SETTINGS
    spark = tablecast.spark.session(master, app_name="a stream to be killed", **settings)
    while True:
        query = start(spark, url, checkpoint)
        print("started", flush=True)  # noqa: T201
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print("failed", str(error)[:2_000], flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
