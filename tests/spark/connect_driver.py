"""The data source over Spark Connect: `SPARK_REMOTE=sc://… python connect_driver.py URL CHECKPOINT`.

Writes a batch, reads its topic and its table back, streams the topic into another table, and prints what it found. Then passwords
in options, with the format as Spark alone registers it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tablecast.spark

ROWS = 1_000
IN_AN_OPTION = "p-w-in-an-option"


def _refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except PySparkException as error:
        return str(error)
    return "nothing"


def main() -> None:
    url, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    secret = os.environ["TABLECAST_PASSWORD"]
    tablecast.spark.register(spark, user="system", password=secret)

    def ours(builder: Any, **options: str) -> Any:
        return builder.format("tablecast").options(url=url, **options)

    ours(spark.range(ROWS).selectExpr("id", "cast(id % 7 as string) AS word").write, table="app.loaded").mode(
        "append"
    ).save()
    topic = ours(spark.read, topic="app.told", decode="true").load()
    table = ours(spark.read, table="app.loaded").load()
    changes = (
        ours(spark.readStream, topic="app.told", decode="true", startingOffsets="earliest").load().select("id", "word")
    )
    query = ours(changes.writeStream, table="app.copied", mode="upsert").option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    found = {
        "session": type(spark).__module__,
        "topic": topic.count(),
        "table": table.count(),
        "words": [row[0] for row in table.select("word").distinct().orderBy("word").collect()],
        "copied": ours(spark.read, table="app.copied").load().count(),
        "refused": [_refused(lambda: ours(spark.read, table="app.copied", Password=IN_AN_OPTION).load().schema)],
    }
    spark.dataSource.register(tablecast.spark.TablecastDataSource)
    secret_in = {"user": "system", "password": IN_AN_OPTION}
    rate = spark.readStream.format("rate").load()
    found["refused"] += [
        _refused(lambda: ours(spark.read, table="app.copied", **secret_in).load().count()),
        _refused(lambda: ours(spark.readStream, topic="app.told", **secret_in).load().schema),
        _refused(lambda: ours(spark.range(1).write, table="app.copied", **secret_in).mode("append").save()),
        _refused(lambda: ours(rate.writeStream, table="app.copied", checkpointLocation=f"{checkpoint}-refused", **secret_in)
                 .trigger(availableNow=True).start().awaitTermination()),
    ]  # fmt: skip
    print("found", json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
