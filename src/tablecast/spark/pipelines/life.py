"""One pipeline being kept running: a thread that starts its query, watches it, and starts it again when it fails.

    starting ──▶ running ──▶ backing_off ──▶ starting …        it failed: again, later each time
        │            └─────▶ stopped                           it was told to
        └──────────▶ failed                                    starting again would not help: somebody must look

A pipeline has its own thread, session and scheduler pool: whatever happens to it happens to no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tablecast.client.bulk import BulkClient
from tablecast.client.retry import chance
from tablecast.errors import CorruptData, OffsetOutOfRange
from tablecast.spark.pipelines.checkpoint import Checkpoint, PipelineChanged
from tablecast.spark.pipelines.definition import Definition
from tablecast.spark.pipelines.query import Surroundings, started
from tablecast.spark.pipelines.reason import cause, reason
from tablecast.spark.pipelines.seen import Seen
from tablecast.spark.pipelines.sink import Tally

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 60.0
BACKOFF_JITTER = 0.2  # of the pause, either way: pipelines that failed together do not come back together
LOOK_SECONDS = 0.3  # between two looks at a running query
MAX_BEGINNING = 2  # pipelines that begin at a time; see `_begun`
BEGIN_SECONDS = 20.0  # after that long without a sign of its first batch, the next one begins
ONCE_ATTEMPTS = 3  # of a pipeline that is run once: a machine under load, a server just then restarted
POOL = "spark.scheduler.pool"
HOPELESS = {each.__name__ for each in (PipelineChanged, CorruptData, OffsetOutOfRange)}
_log = logging.getLogger("tablecast.pipelines")


@dataclass(frozen=True, slots=True)
class Terms:
    """How pipelines are run. `ids` are asked for when one starts: see Definition.text."""

    checkpoints: Path
    once: bool = False
    restart: bool = False
    first_backoff_seconds: float = FIRST_BACKOFF_SECONDS


def told(error: BaseException) -> str:
    """What went wrong, and what to do about it where only somebody can."""
    text = reason(error)
    if cause(error) == OffsetOutOfRange.__name__:
        text += "; of a pipeline: fail_on_data_loss = FALSE, or begin anew with --restart-from-start"
    return text


class Life(threading.Thread):
    def __init__(
        self,
        definition: Definition,
        around: Surroundings,
        terms: Terms,
        ids: Callable[[Definition], dict[str, int]],
        turns: threading.Semaphore,
    ) -> None:
        super().__init__(name=f"pipeline {definition.name}", daemon=True)
        self.definition = definition
        self._around = around
        self._terms = terms
        self._ids = ids
        self._turns = turns
        self._restart = terms.restart
        self._ended = threading.Event()
        self.tally = Tally()
        self.state = "starting"
        self.last_error: str | None = None
        self.restarts = 0
        self.seen = Seen(definition.name, skips=not definition.pipeline.options.fail_on_data_loss)

    def end(self) -> None:
        """Asks it to stop; `join` waits for it."""
        self._ended.set()

    def run(self) -> None:
        failures = 0
        while True:
            before = self.seen.batch_id
            error = self._attempt()
            failures = 0 if self.seen.batch_id != before else failures
            if error is None or self._ended.is_set():
                self.state = "stopped"
                return
            self.last_error = told(error)
            failures += 1
            if cause(error) in HOPELESS or (self._terms.once and failures >= ONCE_ATTEMPTS):
                self._say("failed", error)
                return
            pause = self._pause(failures)
            self._say("backing_off", error, f"; again in {pause:.1f} s")
            if self._ended.wait(pause):
                self.state = "stopped"
                return
            self.restarts += 1

    def _say(self, state: str, error: BaseException, then: str = "") -> None:
        self.state = state
        _log.error("%s %s: %s%s", self.definition.name, state.replace("_", " "), self.last_error, then)
        _log.debug("%s: in full", self.definition.name, exc_info=error)

    def _pause(self, failures: int) -> float:
        pause = min(LONGEST_BACKOFF_SECONDS, self._terms.first_backoff_seconds * 2 ** min(failures - 1, 16))
        return float(pause * chance.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER))

    # --- one attempt ---

    def _attempt(self) -> BaseException | None:
        """Until it is told to end, or a run of `once` is through: None. Else what went wrong."""
        self.state = "starting"
        checkpoint = Checkpoint(self._directory(), self.definition.name)
        try:
            with checkpoint.held(), BulkClient(self._around.server) as client:
                ids = self._ids(self.definition)
                place = checkpoint.prepared(self.definition.text(ids), restart=self._restart)
                self.seen.expect({ids[f"topic {topic}"]: topic for topic in self.definition.topics})
                self._restart = False
                self._around.spark.sparkContext.setLocalProperty(POOL, self.definition.name)
                self._watch(self._begun(client, place))
        except Exception as error:  # the user's own code may raise anything
            return error
        return None

    def _directory(self) -> Path:
        given = self.definition.pipeline.options.checkpoint
        return Path(given) if given is not None else self._terms.checkpoints / self.definition.name

    def _begun(self, client: BulkClient, place: Path) -> StreamingQuery:
        """Few begin at a time: each starts Python processes, and Spark waits only some seconds for each of them."""
        with self._turns:
            query = started(self.definition, self._around, client, place, self.tally, once=self._terms.once)
            until = time.monotonic() + BEGIN_SECONDS
            while time.monotonic() < until and not (self._ended.is_set() or self._has_begun(query)):
                pass
        return query

    def _has_begun(self, query: StreamingQuery) -> bool:
        if not query.isActive or query.recentProgress:
            return True
        return self._ended.wait(LOOK_SECONDS)

    def _watch(self, query: StreamingQuery) -> None:
        self.state = "running"
        _log.info("%s runs (query %s)", self.definition.name, query.id)
        try:
            while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type]  # it takes parts of a second
                self._look(query)
                if self._ended.is_set():
                    return
            self._look(query)
        finally:
            query.stop()

    def _look(self, query: StreamingQuery) -> None:
        """Takes in what the query did since the last look. A batch that went through is the end of what was wrong."""
        if self.seen.take(progress.json for progress in query.recentProgress):
            self.last_error = None
