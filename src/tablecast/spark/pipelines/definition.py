"""What a runner runs: a pipeline of the catalog, or one of a file. Both become the same value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tablecast.model.pipeline import InputKind, Pipeline
from tablecast.spark.pipelines.declare import Declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Definition:
    """`declared` is None for one of the catalog, whose query is SQL."""

    pipeline: Pipeline
    declared: Declared | None = None

    @property
    def name(self) -> str:
        return self.pipeline.full_name

    def result(self, session: SparkSession, frames: dict[str, DataFrame]) -> DataFrame:
        """The plan of what goes into the target."""
        if self.declared is not None:
            return self.declared.function(**frames)
        for view, frame in frames.items():
            frame.createOrReplaceTempView(view)
        return session.sql(self.pipeline.query)

    def text(self, ids: dict[str, int]) -> str:
        """All that its progress depends on, as JSON. `ids` are those of the topics it reads and of its target: one
        that was dropped and made anew is another one under the same name."""
        pipeline = self.pipeline
        held: dict[str, Any] = {
            "query": pipeline.query if self.declared is None else self.declared.text,
            "inputs": [[given.kind, given.name, given.view] for given in pipeline.inputs],
            "target": pipeline.target,
            "mode": pipeline.mode,
            "watermark": pipeline.options.watermark,
            "ids": dict(sorted(ids.items())),
        }
        return msgspec.json.encode(held).decode()

    @property
    def same_as(self) -> tuple[Any, ...]:
        """Two definitions of which this is equal run the same query in the same way."""
        pipeline = self.pipeline
        text = None if self.declared is None else self.declared.text
        return pipeline.query, pipeline.inputs, pipeline.target, pipeline.mode, pipeline.options, text

    @property
    def watermark(self) -> tuple[str, str] | None:
        """Column and delay."""
        if self.pipeline.options.watermark is None:
            return None
        column, _, delay = self.pipeline.options.watermark.partition(" ")
        return column, delay

    @property
    def topics(self) -> tuple[str, ...]:
        return self.pipeline.named(InputKind.TOPIC)


def of_record(text: str) -> Definition:
    """Of the column `definition` of system.pipelines."""
    return Definition(msgspec.json.decode(text, type=Pipeline))


def of_declared(declared: Declared) -> Definition:
    return Definition(declared.pipeline, declared)
