"""Running COPY, AUDIT and backfills: from a job, as a server described it, to its result.

    tablecast.spark.copying.run(job, Server("http://127.0.0.1:8080", user=…, password=…))

The session is the one that is given, or runs already in this process, or a new one on `master`. While the job runs it has
the settings that the job needs; then it has its own again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tablecast import errors
from tablecast.client.bulk import Server
from tablecast.client.failures import Failure, rebuilt
from tablecast.codec.result import Result
from tablecast.errors import SparkFailed, TablecastError
from tablecast.model.spark_job import AuditTopic, Backfill, CopyFrom, CopyTopic, SparkJob
from tablecast.spark.pipelines.reason import reason
from tablecast.spark.progress import Quiet, Watcher
from tablecast.spark.registration import register
from tablecast.spark.session import MEASURED, session

MASTER = "TABLECAST_SPARK_MASTER"  # where Spark runs, if nobody says; else local[*]
ARROW_ROWS = 65_536  # rows at once between Spark and Python: as many as sealing works on
_SETTINGS = {
    **{name: MEASURED[name] for name in ("spark.sql.python.filterPushdown.enabled", "spark.sql.session.timeZone")},
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what every reader of Parquet knows
}


def run(
    job: SparkJob,
    server: Server,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """What the statement answers. Raises the error that the server, or a task, raised."""
    found = spark or SparkSession.getActiveSession() or session(master or os.environ.get(MASTER, "local[*]"))
    watcher = watcher or Quiet()
    try:
        with explained(), settled(found) as ready:
            return _runner(job)(ready, server, job, watcher)
    finally:
        watcher.ended()


def _runner(job: SparkJob) -> Callable[[SparkSession, Server, Any, Watcher], Result]:
    if isinstance(job, CopyFrom):
        from tablecast.spark.copy_from import copy_from

        return copy_from
    if isinstance(job, CopyTopic):
        from tablecast.spark.copy_to import copy_to

        return copy_to
    if isinstance(job, Backfill):
        from tablecast.spark.backfill import backfill

        return backfill
    assert isinstance(job, AuditTopic)
    from tablecast.spark.audit import audit

    return audit


@contextmanager
def settled(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with the settings that a job needs for as long as it runs."""
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    _set(spark, _SETTINGS)
    try:
        yield register(spark)
    finally:
        _set(spark, before)


def _set(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@contextmanager
def explained() -> Iterator[None]:
    """What Spark raises is told in one line; an error of tablecast that a task raised is that error again."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as e:
        raise _explanation(e) from e


def _explanation(error: Exception) -> TablecastError:
    said = reason(error)
    name, _, message = said.partition(": ")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TablecastError):
        return rebuilt(Failure(kind.code, message))
    return SparkFailed(said)
