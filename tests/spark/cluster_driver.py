"""A batch job on a cluster, one task of which stands still until it is let go.

    python cluster_driver.py MASTER URL DIRECTORY ROWS

Rows go into app.loaded in eight tasks. The first attempt of task HELD leaves its process id in `DIRECTORY/held` and
waits for `DIRECTORY/go`: long enough for a test to take its machine away.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.functions import col

import tablecast.spark

TASKS, HELD = 8, 3


def held(directory: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    for batch in batches:
        yield batch
        if task.partitionId() == HELD and task.attemptNumber() == 0:
            (Path(directory) / "held.new").write_text(str(os.getpid()))
            (Path(directory) / "held.new").rename(Path(directory) / "held")
            while not (Path(directory) / "go").exists():
                time.sleep(0.05)


def main() -> None:
    master, url, directory, rows = sys.argv[1:]
    settings = {
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory,
        "spark.eventLog.compress": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = tablecast.spark.session(master, app_name="a job on a cluster", **settings)
    frame = spark.range(0, int(rows), 1, TASKS).select("id", (col("id") % 1000).cast("string").alias("word"))

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return held(directory, batches)

    writing = frame.mapInArrow(hold, "id bigint, word string").write.format("tablecast").mode("append")
    credentials = {"user": "system", "password": os.environ["TABLECAST_PASSWORD"]}  # as options: they must not be seen
    writing.options(url=url, table="app.loaded", **credentials).save()
    spark.stop()


if __name__ == "__main__":
    main()
