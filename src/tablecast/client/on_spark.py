"""COPY, AUDIT and backfills on Spark, met by a client: the server parsed the statement and answered that it runs on Spark.
So it is run here.

Spark is imported at this moment and not before: a client that never copies needs no Spark.
"""

from __future__ import annotations

import importlib

from tablecast.client.bulk_server import Server
from tablecast.codec.result import Result
from tablecast.errors import RunsOnSpark, SparkMissing
from tablecast.model.spark_job import job_of


def run_on_spark(refusal: RunsOnSpark, server: Server) -> Result:
    """Runs what the server refused to, as the user who asked. Raises SparkMissing if there is no Spark."""
    if "job" not in refusal.details:  # somebody else's word for something else
        raise refusal
    job = job_of(refusal.details["job"])
    try:
        copying = importlib.import_module("tablecast.spark.copying")
    except ImportError as e:
        raise SparkMissing(
            f'this statement runs on Spark, which is not installed ({e}): pip install "tablecast[spark]"'
        ) from e
    done: Result = copying.run(job, server)
    return done
