"""A program that reads with a password while Spark tells all it can, for test_secrets: what it prints is searched.

    python secrets_driver.py URL USER PASSWORD EVENT_LOG_DIR WRONG_PASSWORD

All of Spark that handles plans, options and Python sources logs at DEBUG (the whole of it would fill minutes). Left out is
py4j's logger in the user's own process, which at DEBUG repeats every argument of every call to Spark.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pyspark.errors import PySparkException

import tablecast.spark

LOGGING = Path(__file__).with_name("secrets_log4j2.properties")
url, user, password, events, wrong = sys.argv[1:]
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


def read(secret: str, **target: str) -> None:
    frame = spark.read.format("tablecast").options(url=url, user=user, password=secret, **target).load()
    say(repr(frame), frame.schema)
    frame.explain("extended")
    say("rows", frame.filter("id > 0").count())


read(password, topic="app.ev_ev", decode="true")
read(password, table="app.ev")
try:
    read(wrong, table="app.ev")
except PySparkException as e:
    say("failed as it should:", e)
stream = spark.readStream.format("tablecast").options(
    url=url, user=user, password=password, topic="app.ev_ev", startingOffsets="earliest"
)
query = stream.load().writeStream.format("console").trigger(availableNow=True).start()
query.awaitTermination()
say(query.lastProgress, query.status)
query.explain(True)
say("done")
spark.stop()
