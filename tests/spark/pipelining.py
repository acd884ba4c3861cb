"""What tests of pipelines share: a runner in a thread, on the session of all tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
from pyspark.sql import SparkSession
from reading import Shop
from server_fixture import PASSWORD

from tablecast.client.bulk import BulkClient, Server
from tablecast.model.position import EARLIEST
from tablecast.spark.pipelines.definition import Definition
from tablecast.spark.pipelines.life import Terms
from tablecast.spark.pipelines.query import Surroundings, reader_options
from tablecast.spark.pipelines.runner import CatalogPipelines, FilePipelines, Runner

WAIT_SECONDS = 180.0  # for a condition on a machine under load


def until(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS:.0f} s: {what}"
        time.sleep(0.05)
    return found


class Flow:
    """A shop whose pipelines are run."""

    def __init__(self, shop: Shop, checkpoints: Path) -> None:
        self.shop, self.checkpoints = shop, checkpoints
        self.spark: SparkSession = shop.spark

    def sql(self, *statements: str) -> list[dict[str, Any]]:
        return self.shop.sql(*statements)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.sql(sql)[-1]["rows"]]

    def pipeline(self, name: str, columns: str) -> tuple[Any, ...]:
        [row] = self.rows(f"SELECT {columns} FROM system.pipelines WHERE name = 'app.{name}'")
        return row

    def letters(self, topic: str) -> list[dict[str, Any]]:
        read = self.shop.server.db.database.consume(topic, group=None, start=EARLIEST, limit=1_000)
        return [msgspec.json.decode(message.payload) for message in read.messages]

    def runner(self, *names: str, definitions: list[Definition] | None = None, **terms: Any) -> Runner:
        server = Server(self.shop.server.url, user="system", password=PASSWORD)
        client = BulkClient(server)
        chosen = CatalogPipelines(client, names) if definitions is None else FilePipelines(definitions)
        around = Surroundings(self.spark, server, reader_options(server))
        return Runner(around, client, chosen, Terms(self.checkpoints, **{"first_backoff_seconds": 0.2, **terms}))

    def once(self, *names: str, **terms: Any) -> int:
        """What is there now, worked off; the exit code."""
        with contextlib.closing(self.runner(*names, once=True, **terms)) as runner:
            return runner.run()


class Running:
    """A runner at work in a thread, until the block ends."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, name="test-runner")

    def _run(self) -> None:
        self.code = self.runner.run()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.end()
        self._thread.join(WAIT_SECONDS)
        self.runner.close()
        assert not self._thread.is_alive()
