"""`tablecast copy`: COPY, AUDIT and backfills, put together from options, looked up by the server, and run on Spark.

The statement is made as SQL text and parsed like any other: what may be copied, and how it is said, is known in one
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tablecast.cli.opening import explained_sign_in
from tablecast.cli.options import Format
from tablecast.cli.reaching import check_spark, reached, spark_settings
from tablecast.cli.render import render
from tablecast.cli.target import Target
from tablecast.client.bulk import BulkClient, Server
from tablecast.codec.result import Result
from tablecast.errors import CorruptData, RunsOnSpark
from tablecast.model.spark_job import SparkJob, job_of

QUIET_SPARK = {"spark.ui.showConsoleProgress": "false"}  # its bar and ours would write over one another


@dataclass(frozen=True, slots=True)
class Request:
    target: Target
    statement: str
    master: str
    settings: tuple[str, ...]
    format: Format


def statement(head: str, options: Mapping[str, Any]) -> str:
    """`head ( NAME value, … )`; options that were not given are None."""
    given = [f"{name} {_said(value)}" for name, value in options.items() if value is not None]
    return f"{head} ({', '.join(given)})"


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return str(value) if isinstance(value, int) else quoted(str(value))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def run(request: Request) -> Result:
    """Prints the answer, and returns it."""
    request.target.check()
    check_spark()
    settings = spark_settings(request.settings)
    with reached(request.target, otherwise="CREATE TABLE and CREATE TOPIC make what is copied") as server:
        job = _job(request, server)
        result = _run(job, server, request.master, settings)
    render(result, request.format)
    return result


def _job(request: Request, server: Server) -> SparkJob:
    """What the server makes of the statement, before Spark is started: names that do not exist show at once."""
    with BulkClient(server) as client, explained_sign_in(request.target, server.user):
        try:
            client.sql(request.statement)
        except RunsOnSpark as told:
            return job_of(told.details.get("job"))
    raise CorruptData("the server ran a statement that runs on Spark")


def _run(job: SparkJob, server: Server, master: str, settings: Mapping[str, str]) -> Result:
    from tablecast.spark import copying, progress
    from tablecast.spark.session import session

    spark = session(master, "tablecast copy", **{**QUIET_SPARK, **settings})
    try:
        if not master.startswith("sc://"):
            spark.sparkContext.setLogLevel("ERROR")
        return copying.run(job, server, spark=spark, watcher=progress.shown())
    finally:
        spark.stop()
