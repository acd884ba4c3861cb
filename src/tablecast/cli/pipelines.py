"""`tablecast pipelines run`: a Spark session and a runner, on a server's pipelines or on those of files, until a signal.

A directory is served by this process itself, for as long as it runs: readers and writers of Spark speak HTTP.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from tablecast.cli.opening import explained_sign_in
from tablecast.cli.reaching import check_spark, reached, spark_settings
from tablecast.cli.target import Target
from tablecast.client.bulk import BulkClient, Server
from tablecast.client.retry import Retry
from tablecast.errors import InvalidRequest

LEVELS = ("debug", "info", "warning", "error")
FAIR = {"spark.scheduler.mode": "FAIR"}  # a pipeline with much to do leaves room for the others
IMPATIENT = Retry(attempts=3, backoff_seconds=0.1, total_seconds=5.0)  # the runner asks again in a second anyway
ANSWER_SECONDS = 15.0
_FIRST = "SELECT 1 AS one"


@dataclass(frozen=True, slots=True)
class Request:
    target: Target
    pipelines: Sequence[str]
    master: str
    checkpoints: Path
    once: bool
    restart: bool
    settings: Sequence[str]
    log_level: str

    @property
    def files(self) -> list[Path]:
        return [Path(given) for given in self.pipelines if given.endswith(".py")]

    @property
    def names(self) -> list[str]:
        return [given for given in self.pipelines if not given.endswith(".py")]

    def check(self) -> None:
        self.target.check()
        if self.files and self.names:
            raise InvalidRequest("give names of the catalog, or files, not both: a runner runs one kind")
        if self.log_level not in LEVELS:
            raise InvalidRequest(f"--log-level {self.log_level}: it is one of {', '.join(LEVELS)}")
        for name in self.names:
            if "." not in name:
                raise InvalidRequest(f"{name}: a pipeline is named namespace.name, a file ends in .py")


def run_pipelines(request: Request) -> int:
    """Returns the exit code."""
    request.check()
    check_spark()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tablecast.pipelines").setLevel(request.log_level.upper())
    with reached(request.target, otherwise="CREATE PIPELINE makes a pipeline in one") as server:
        return _run(request, server)


# --- the runner -------------------------------------------------------------------------------------------------


def _run(request: Request, server: Server) -> int:
    from tablecast.spark.pipelines.declare import load_file
    from tablecast.spark.pipelines.definition import of_declared
    from tablecast.spark.pipelines.life import Terms
    from tablecast.spark.pipelines.query import Surroundings, reader_options
    from tablecast.spark.pipelines.runner import CatalogPipelines, FilePipelines, Runner
    from tablecast.spark.session import session

    with BulkClient(replace(server, retry=IMPATIENT, timeout_seconds=ANSWER_SECONDS)) as client:
        with explained_sign_in(request.target, server.user):
            client.sql(_FIRST)  # a wrong password shows before Spark is started
        declared = [of_declared(found) for file in request.files for found in load_file(file)]
        wished = FilePipelines(declared) if declared else CatalogPipelines(client, request.names)
        wished.check()
        spark = session(
            request.master, app_name="tablecast pipelines", **FAIR, **spark_settings(tuple(request.settings))
        )
        try:
            spark.sparkContext.setLogLevel("ERROR")
            around = Surroundings(spark, server, reader_options(server))
            runner = Runner(around, client, wished, Terms(request.checkpoints, request.once, request.restart))
            with _ended_by_signals(runner):
                return runner.run()
        finally:
            spark.stop()


@contextmanager
def _ended_by_signals(runner: object) -> Iterator[None]:
    """The first SIGTERM or SIGINT ends the runner when its batches are through; the second one this process."""
    from tablecast.spark.pipelines.runner import Runner

    assert isinstance(runner, Runner)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        runner.end()

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
