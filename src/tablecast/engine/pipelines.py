"""Pipelines in the catalog, and what their runners report.

A definition is durable; how it fares is not: a runner reports every few seconds, and what it said is kept in memory and
believed for REPORT_SECONDS. After that the pipeline counts as `not attached`: nobody says that it is kept running.

The lag is reckoned when it is asked for, from the positions a runner reported and the ends of the logs now: it grows
while the runner is away.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tablecast.codec import catalog as records
from tablecast.codec.catalog import encode_record
from tablecast.engine.catalog import Catalog
from tablecast.engine.ddl import Alone, add_topics, missing_topic
from tablecast.engine.decision import Decision, Record, View
from tablecast.errors import AlreadyExists, InvalidPipeline
from tablecast.model.pipeline import InputKind, Pipeline
from tablecast.storage.base import Family

REPORT_SECONDS = 30.0  # a runner reports every few seconds; after that long without, nobody knows
MAX_REPORTED_PIPELINES = 1_000  # kept in memory; beyond them the one that is silent longest is forgotten
MAX_REPORT_CHARS = 4_000  # of an error or a name in a report: a stack trace belongs into the runner's log
NOT_ATTACHED = "not attached"
STATES = ("stopped", "starting", "running", "failed", "backing_off")


# --- commands ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CreatePipeline(Alone):
    """A dead-letter topic that does not exist yet is made with it."""

    pipeline: Pipeline
    if_not_exists: bool = False

    def decide(self, view: View) -> Decision:
        catalog, made = view.catalog, self.pipeline
        catalog.namespace(made.namespace)
        if made.full_name in catalog.pipelines:
            if self.if_not_exists:
                return Decision(False)
            raise AlreadyExists(f"pipeline {made.full_name} already exists", pipeline=made.full_name)
        check_pipeline(catalog, made)
        dead_letter = missing_topic(catalog, made.options.dead_letter)
        saved, catalog = add_topics(view, [dead_letter]) if dead_letter else ([], catalog)
        made = msgspec.structs.replace(made, created_ms=view.ts_ms, changed_ms=view.ts_ms)
        return Decision(True, records=[*saved, _saved(made)], catalog=catalog.with_pipeline(made))


def check_pipeline(catalog: Catalog, pipeline: Pipeline) -> None:
    """What it names exists, and nothing goes round in a circle."""
    catalog.table(pipeline.target)
    for name in pipeline.named(InputKind.TABLE):
        catalog.table(name)
    topics = [catalog.topic(name) for name in pipeline.named(InputKind.TOPIC)]
    if not topics:
        raise InvalidPipeline(f"{pipeline.full_name} reads no topic: FROM TOPIC … is what makes it run")
    target_id = catalog.table(pipeline.target).table_id
    for topic in topics:
        if any(route.table_id == target_id for route in topic.routes):
            raise InvalidPipeline(
                f"{pipeline.full_name} writes {pipeline.target}, which feeds {topic.full_name}, which it reads: "
                "it would run in a circle",
                pipeline=pipeline.full_name, topic=topic.full_name,
            )  # fmt: skip
        if pipeline.options.dead_letter == topic.full_name:
            raise InvalidPipeline(f"{pipeline.full_name} reads {topic.full_name}: it cannot be its dead_letter too")


@dataclass(slots=True)
class SetPipeline(Alone):
    """START and STOP: what is wished. A runner sees it and acts."""

    name: str
    running: bool
    if_exists: bool = False

    def decide(self, view: View) -> Decision:
        if self.if_exists and self.name not in view.catalog.pipelines:
            return Decision(False)
        pipeline = view.catalog.pipeline(self.name)
        if pipeline.running == self.running:
            return Decision(False)
        altered = msgspec.structs.replace(pipeline, running=self.running, changed_ms=view.ts_ms)
        return Decision(True, records=[_saved(altered)], catalog=view.catalog.with_pipeline(altered))


@dataclass(slots=True)
class DropPipeline(Alone):
    name: str
    if_exists: bool = False

    def decide(self, view: View) -> Decision:
        if self.if_exists and self.name not in view.catalog.pipelines:
            return Decision(False)
        view.catalog.pipeline(self.name)
        return Decision(
            True,
            records=[(Family.META, records.pipeline_key(self.name), None)],
            catalog=view.catalog.without_pipeline(self.name),
        )


def _saved(pipeline: Pipeline) -> Record:
    return Family.META, records.pipeline_key(pipeline.full_name), encode_record(pipeline)


# --- reports -------------------------------------------------------------------------------------------------


class PipelineReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a pipeline fares. `positions`: of each topic it reads, the next offset of each partition, in order."""

    state: str
    runner: str
    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    skipped: int = 0  # messages that were gone before they were read, of a pipeline that may go on then
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    batch_id: int | None = None
    last_batch_ms: int | None = None
    last_error: str | None = None
    restarts: int = 0
    positions: dict[str, list[int]] = {}
    target: str | None = None
    of_file: bool = False  # a runner's own, not one of the catalog


@dataclass(frozen=True, slots=True)
class Reported:
    report: PipelineReport
    at_ms: int


class PipelineReports:
    """The last report of each pipeline. For any thread."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._reported: OrderedDict[str, Reported] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, name: str, report: PipelineReport) -> None:
        with self._lock:
            self._reported[name] = Reported(report, self._now_ms())
            self._reported.move_to_end(name)
            while len(self._reported) > MAX_REPORTED_PIPELINES:
                self._reported.popitem(last=False)

    def all(self) -> dict[str, Reported]:
        with self._lock:
            return dict(self._reported)

    def is_fresh(self, reported: Reported) -> bool:
        return self._now_ms() - reported.at_ms <= REPORT_SECONDS * 1000


def check_report(report: PipelineReport) -> None:
    if report.state not in STATES:
        raise InvalidPipeline(f"state {report.state[:60]!r} is none of {', '.join(STATES)}", state=report.state[:60])
    for text in (report.runner, report.last_error, report.target):
        if text is not None and len(text) > MAX_REPORT_CHARS:
            raise InvalidPipeline(f"a text of a report has at most {MAX_REPORT_CHARS} characters, not {len(text)}")
