"""How a bulk load grows with executors: whether the server or the driver holds it at some rate.

On one machine executors would compete with each other and with the server. So each is slowed down to a share of the time
(`slowed`), as if it had a slow machine to itself; the server and the driver are not. Then a load should take a half and a quarter
of the time on two and on four of them, unless what they cannot share is in the way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Comparison
from bench.server.ours import server
from bench.spark.cluster import HOST, Cluster, cluster
from bench.spark.slowed import slowed
from bench.spark.workloads import Bench, session

SHARE = 0.1  # four of them leave more than half of the time to the server and to what it compacts
AIMS = {2: 1.6, 4: 2.8}
TASKS = 12  # as many for each executor, however many they are
ONE_TASK_PER_FILE = str(128 << 20)  # a file costs as much to open as a task may read
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "800m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before all executors are there: all get warm
    "spark.sql.files.openCostInBytes": ONE_TASK_PER_FILE,
}


def growth(path: Path, rows: int) -> Iterator[Comparison]:
    os.environ.setdefault("SPARK_LOCAL_IP", HOST)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with cluster(path, max(AIMS)) as machines:
        rates, spent = zip(*(_loaded(path, machines, count, rows) for count in (1, *AIMS)), strict=True)
    for i, (count, aim) in enumerate(AIMS.items(), 1):
        yield Comparison(
            f"bulk load of {rows:,} rows on {count} executors, each running a tenth of the time", "on one of them",
            rates[i], rates[0], "rows/s", aim, kind="itself",
            note=f"CPU seconds of the server per million rows, with compacting the loads before: {spent[i]:.2f} with {count}, "
            f"{spent[0]:.2f} with one",
        )  # fmt: skip


def _loaded(path: Path, machines: Cluster, executors: int, rows: int) -> tuple[float, float]:
    """Rows per second, and the server's processor time for a million of them."""
    (own_path := path / f"on-{executors}").mkdir()
    settings = {**SETTINGS, "spark.cores.max": str(executors)}
    with server(own_path) as port, session(machines.master, **settings) as spark:
        b = Bench(spark, port, own_path, rows, files=TASKS)
        for _ in range(executors):  # warms up: as many tasks on each of them, however many they are
            b.load(b.new_table())
        name, before = b.new_table(), b.server_seconds()
        with slowed(machines.workers, SHARE):
            rate = b.rate(lambda: b.load(name))
        return rate, (b.server_seconds() - before) / rows * 1e6
