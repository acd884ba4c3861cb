"""A Spark session with what tablecast's readers and writers were measured with.

| setting | why |
|---|---|
| checkpointFileManagerClass = FileSystemBased… | the default asks Hadoop's FileContext, 4 files a micro-batch |
| python.unix.domain.socket | the way between the JVM and Python, for every batch |
| python.filterPushdown | filters reach the reader, so that rows they drop are not sent to the JVM |
| session.timeZone = UTC | a TIMESTAMP is UTC, in the table and in the DataFrame |
| ui.showConsoleProgress = false | its bars overwrite what a program prints |
| ui.enabled = false | a port and a second of start; ask for it with `**{"spark.ui.enabled": "true"}` |

The first two, with the worker's frozen garbage (see `worker`), took a micro-batch with a Python sink from 260 to 88 ms.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from tablecast.spark.java import find_java
from tablecast.spark.registration import register
from tablecast.spark.topic_reader import PARALLELISM

MEASURED: Mapping[str, str] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_CONNECT = "sc://"
_RUNTIME = ("spark.sql.python.filterPushdown.enabled", "spark.sql.session.timeZone")


def session(master: str = "local[*]", app_name: str = "tablecast", **conf: Any) -> SparkSession:
    """A session that knows the format `tablecast`: started here, or the one that runs already.

    `master` is any of Spark's (local[*], spark://…, yarn, k8s://…), or sc://… of a Spark Connect server. `conf` are
    settings of Spark, which win over the measured ones: session(**{"spark.driver.memory": "4g"}).
    """
    made = _remote(master, conf) if master.startswith(_CONNECT) else _started(master, app_name, conf)
    return register(made)


def _started(master: str, app_name: str, conf: Mapping[str, Any]) -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java().home)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault(PARALLELISM, str(_cores(master)))
    builder = SparkSession.builder.master(master).appName(app_name)
    made: SparkSession = _configured(builder, {**MEASURED, **conf}).getOrCreate()
    return made


def _remote(master: str, conf: Mapping[str, Any]) -> SparkSession:
    """The server was started by somebody else: only what can be set at run time is set."""
    settings = {**{name: MEASURED[name] for name in _RUNTIME}, **conf}
    made: SparkSession = _configured(SparkSession.builder.remote(master), settings).getOrCreate()
    return made


def _configured(builder: Any, conf: Mapping[str, Any]) -> Any:
    for name, value in conf.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    return builder


def _cores(master: str) -> int:
    asked = re.match(r"local\[(\d+)", master)
    return int(asked.group(1)) if asked else 1 if master == "local" else os.cpu_count() or 1
