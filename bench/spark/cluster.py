"""A standalone cluster of Spark on this machine: a master and workers of one core each, from the pip package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from bench.measure import NotInstalled
from bench.server.processes import free_port, running
from tablecast.errors import JavaMissing
from tablecast.spark.java import find_java

HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True, slots=True)
class Cluster:
    master: str
    workers: tuple[int, ...]  # process ids; executors run below them


@contextmanager
def cluster(path: Path, workers: int) -> Iterator[Cluster]:
    environment = _environment()
    port = free_port()
    master = f"spark://{HOST}:{port}"
    with ExitStack() as started:

        def start(what: str, name: str, port: int, *further: str) -> int:
            command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", "--host", HOST]
            command += ["--port", str(port), "--webui-port", str(free_port()), *further]
            return started.enter_context(running(command, port, path / f"{name}.log", environment))

        start("master.Master", "master", port)
        pids = [
            start("worker.Worker", f"worker-{n}", free_port(), "-c", "1", "-m", "1g", "-d", str(path / f"work-{n}"), master)
            for n in range(workers)
        ]  # fmt: skip
        yield Cluster(master, tuple(pids))


def _environment() -> dict[str, str]:
    try:
        java = find_java()
    except JavaMissing as e:
        raise NotInstalled(str(e)) from e
    return {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
    }
