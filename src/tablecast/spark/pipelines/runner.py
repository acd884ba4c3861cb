"""Keeps pipelines running: those of the catalog as it is wished there, or those of files.

Once a second it asks the server what is wished and reports how each pipeline fares. While the server is away, what runs
goes on to try (the pipelines have their own patience), and what is wished is taken to be what was wished last.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tablecast.client.bulk import BulkClient
from tablecast.errors import InvalidPipeline, TablecastError, UnknownPipeline
from tablecast.model.names import full_name_of, spelled
from tablecast.model.pipeline import InputKind
from tablecast.spark.pipelines.definition import Definition, of_record
from tablecast.spark.pipelines.life import MAX_BEGINNING, Life, Terms
from tablecast.spark.pipelines.query import Surroundings

LOOK_SECONDS = 1.0  # between two looks at what is wished, and between two reports
END_SECONDS = 60.0  # for a pipeline to end its batch when the runner ends
_DEFINITIONS = "SELECT name, desired_state, definition FROM system.pipelines WHERE definition IS NOT NULL"
_TABLE_ID = "SELECT table_id FROM system.tables WHERE namespace = ? AND name = ?"
_TOPIC_ID = "SELECT topic_id FROM system.topics WHERE namespace = ? AND name = ?"
_log = logging.getLogger("tablecast.pipelines")

Wished = Callable[[], list[Definition]]


@dataclass(frozen=True, slots=True)
class CatalogPipelines:
    """What the catalog wishes to run; `names`: of these only, as text."""

    client: BulkClient
    names: Sequence[str] = ()

    def __call__(self) -> list[Definition]:
        [rows] = self.client.sql(_DEFINITIONS)
        return [of_record(text) for name, state, text in rows if state == "running" and self._is_mine(name)]

    def _is_mine(self, name: str) -> bool:
        return not self.names or name in map(full_name_of, self.names)

    def check(self) -> None:
        """That the names there are exist, at the beginning: later they may be dropped."""
        [rows] = self.client.sql(_DEFINITIONS)
        known = {name for name, *_ in rows}
        for name in self.names:
            if full_name_of(name) not in known:
                raise UnknownPipeline(f"there is no pipeline {name}; SHOW PIPELINES lists them", pipeline=name)


@dataclass(frozen=True, slots=True)
class FilePipelines:
    definitions: Sequence[Definition]

    def __call__(self) -> list[Definition]:
        return list(self.definitions)

    def check(self) -> None:
        names = [definition.name for definition in self.definitions]
        for name in names:
            if names.count(name) > 1:
                raise InvalidPipeline(f"two pipelines are called {name}: give one of them another name=", pipeline=name)


class Runner:
    def __init__(
        self, around: Surroundings, client: BulkClient, wished: CatalogPipelines | FilePipelines, terms: Terms
    ) -> None:
        self._around = around
        self.client = client  # of the thread that calls `run`
        self._wished = wished
        self._terms = terms
        self._lives: dict[str, Life] = {}
        self._ended = threading.Event()
        self._turns = threading.Semaphore(MAX_BEGINNING)
        self._is_away = False
        self.name = f"{socket.gethostname()}:{os.getpid()}"

    @property
    def names(self) -> list[str]:
        """Of what it runs."""
        return list(self._lives)

    def last_error(self, name: str) -> str | None:
        return self._lives[name].last_error

    def end(self) -> None:
        """From any thread, and from a signal handler."""
        self._ended.set()

    def close(self) -> None:
        self.client.close()

    def run(self) -> int:
        """Until it is told to end. With `once`: until all are through. Returns the exit code."""
        self._wished.check()
        try:
            return self._once() if self._terms.once else self._keep()
        finally:
            self._end_all()

    def _keep(self) -> int:
        while not self._ended.is_set():
            self._with_server(self._follow)
            self._with_server(self._report)
            self._ended.wait(LOOK_SECONDS)
        return 0

    def _once(self) -> int:
        self._follow()
        while any(life.is_alive() for life in self._lives.values()) and not self._ended.is_set():
            self._with_server(self._report)
            self._ended.wait(LOOK_SECONDS / 5)
        self._with_server(self._report)
        failed = [name for name, life in self._lives.items() if life.state == "failed"]
        for name in failed:
            _log.error("%s did not get through: %s", name, self._lives[name].last_error)
        return 1 if failed or self._ended.is_set() else 0

    def _with_server(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except TablecastError as error:
            if not self._is_away:
                _log.warning("the server does not answer: %s", error.message)
            self._is_away = True
        else:
            if self._is_away:
                _log.info("the server is back")
            self._is_away = False

    # --- what is wished ---

    def _follow(self) -> None:
        wished = {definition.name: definition for definition in self._wished()}
        over = [name for name, life in self._lives.items() if not self._is_wished(life, wished.get(name))]
        for name in over:
            self._lives[name].end()
        for name in over:
            self._close(name)
        for name, definition in wished.items():
            if name not in self._lives:
                life = Life(definition, self._around, self._terms, self._ids, self._turns)
                self._lives[name] = life
                life.start()

    def _is_wished(self, life: Life, definition: Definition | None) -> bool:
        return definition is not None and definition.same_as == life.definition.same_as

    def _close(self, name: str) -> None:
        life = self._lives[name]
        life.join(END_SECONDS)
        if life.is_alive():
            _log.warning("%s has not ended yet", name)
            return  # looked at again in the next round
        _log.info("%s stopped", name)
        self._with_server(lambda: self._tell(life))
        del self._lives[name]

    def _end_all(self) -> None:
        for life in self._lives.values():
            life.end()
        until = time.monotonic() + END_SECONDS
        for life in self._lives.values():
            life.join(max(0.0, until - time.monotonic()))
        self._with_server(self._report)

    # --- reports ---

    def _report(self) -> None:
        for life in self._lives.values():
            self._tell(life)

    def _tell(self, life: Life) -> None:
        self.client.report_pipeline(
            spelled(life.definition.name),
            {
                "state": life.state,
                "runner": self.name,
                "rows_in": life.seen.rows_in,
                "rows_out": life.tally.rows_out,
                "rejected": life.tally.rejected,
                "skipped": life.seen.skipped,
                "input_rows_per_second": life.seen.rates[0],
                "processed_rows_per_second": life.seen.rates[1],
                "batch_id": life.seen.batch_id,
                "last_batch_ms": life.tally.last_batch_ms,
                "last_error": life.last_error,
                "restarts": life.restarts,
                "positions": life.seen.positions,
                "target": life.definition.pipeline.target,
                "of_file": life.definition.declared is not None,
            },
        )

    def _ids(self, definition: Definition) -> dict[str, int]:
        """Of the topics it reads and of its target."""
        pipeline = definition.pipeline
        found = {f"table {pipeline.target}": self._id(_TABLE_ID, pipeline.target)}
        for name in pipeline.named(InputKind.TOPIC):
            found[f"topic {name}"] = self._id(_TOPIC_ID, name)
        return found

    def _id(self, sql: str, name: str) -> int:
        with BulkClient(self._around.server) as client:  # of the pipeline's own thread
            [found] = client.sql(sql, name.split(".", 1))
        for row in found:
            return int(row[0])
        raise InvalidPipeline(f"there is no {name}", name=name)
