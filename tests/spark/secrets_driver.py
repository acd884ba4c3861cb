"""A program that reads and writes with a password, reads with a token, and runs a pipeline, while Spark tells all it can, for
test_secrets: what it prints is searched.

    python secrets_driver.py URL USER PASSWORD EVENT_LOG_DIR WRONG_PASSWORD TOKEN

All of Spark that handles plans, options and Python sources logs at DEBUG (the whole of it would fill minutes). Left out is
py4j's logger in the user's own process, which at DEBUG repeats every argument of every call to Spark.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

import tablecast.spark
from tablecast.client.bulk import BulkClient, Server
from tablecast.spark.pipelines.life import Terms
from tablecast.spark.pipelines.query import Surroundings, reader_options
from tablecast.spark.pipelines.runner import CatalogPipelines, Runner

LOGGING = Path(__file__).with_name("secrets_log4j2.properties")
url, user, password, events, wrong, token = sys.argv[1:]
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
logging.getLogger("py4j").setLevel(logging.INFO)
spark = tablecast.spark.session(
    "local[1]",
    **{
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events,
        "spark.eventLog.compress": "false",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={LOGGING.as_uri()}",
    },
)


def say(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")


def ours(builder: Any, secret: str = password, **target: str) -> Any:
    return builder.format("tablecast").options(url=url, user=user, password=secret, **target)


def show(frame: DataFrame) -> None:
    say(repr(frame), frame.schema)
    frame.explain("extended")
    say("rows", frame.filter("id > 0").count())


def refused(work: Callable[[], object]) -> None:
    try:
        work()
    except PySparkException as e:
        say("failed as it should:", e)


def streamed(writer: Any) -> None:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    say(query.lastProgress, query.status)
    query.explain(True)


show(ours(spark.read, topic="app.ev_ev", decode="true").load())
show(ours(spark.read, table="app.ev").load())
show(spark.read.format("tablecast").options(url=url, token=token, table="app.ev").load())
refused(lambda: ours(spark.read, wrong, table="app.ev").load())
refused(lambda: spark.read.format("tablecast").options(url=url, token=token + "x", table="app.ev").load())
changes = ours(spark.readStream, topic="app.ev_ev", startingOffsets="earliest", decode="true").load().select("id", "v")
streamed(changes.writeStream.format("console"))
streamed(
    ours(changes.writeStream, table="app.copy", mode="upsert").option("checkpointLocation", f"{events}/../checkpoint")
)
for first, bulk in ((10, "always"), (20, "never")):
    rows = spark.range(first, first + 5).selectExpr("id", "'written' AS v")
    ours(rows.write, table="app.copy", bulk=bulk).mode("append").save()
    refused(lambda rows=rows: ours(rows.write, wrong, table="app.copy").mode("append").save())  # type: ignore[misc]
    refused(lambda rows=rows: ours(rows.write, table="app.copy").mode("append").save())  # type: ignore[misc]  # the keys are there
show(ours(spark.read, table="app.copy").load())
for secret in (password, wrong):
    server = Server(url, user=user, password=secret)
    with BulkClient(Server(url, user=user, password=password)) as client:
        terms = Terms(Path(events).parent / "pipelines", once=True, first_backoff_seconds=0.1)
        runner = Runner(Surroundings(spark, server, reader_options(server)), client, CatalogPipelines(client), terms)
        say("the runner ended with", runner.run())
say("done")
spark.stop()
