"""Pipelines: a query over topics whose results go into a table, kept running by `tablecast pipelines`."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class PipelineMode(enum.StrEnum):
    """What a result does to the target's row of the same primary key."""

    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete"


class InputKind(enum.StrEnum):
    TOPIC = "topic"  # read as a stream of messages
    TABLE = "table"  # read anew, as a snapshot, for every batch of messages


class PipelineInput(msgspec.Struct, frozen=True):
    """`view` is what the query calls it."""

    kind: InputKind
    name: str
    view: str


class PipelineOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What WITH says. `watermark` is a column and how late it may be: `_ts 10 minutes`."""

    trigger_seconds: float = 1.0
    starting: str = "earliest"
    dead_letter: str | None = None
    watermark: str | None = None
    checkpoint: str | None = None
    max_messages: int | None = None  # of one topic in one batch
    fail_on_data_loss: bool = True  # what to do when retention was faster


class Pipeline(msgspec.Struct, frozen=True):
    """`query` is Spark SQL over the views of `inputs`; `running` is what is wished, not what is."""

    namespace: str
    name: str
    target: str
    mode: PipelineMode
    query: str
    inputs: tuple[PipelineInput, ...]
    options: PipelineOptions = PipelineOptions()
    running: bool = True
    created_ms: int = 0
    changed_ms: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    def named(self, kind: InputKind) -> tuple[str, ...]:
        return tuple(given.name for given in self.inputs if given.kind is kind)

    @property
    def tables(self) -> frozenset[str]:
        """Every table it reads or writes."""
        return frozenset((self.target, *self.named(InputKind.TABLE)))

    @property
    def topics(self) -> frozenset[str]:
        """Every topic it reads, and the one that takes its dead letters."""
        dead_letter = (self.options.dead_letter,) if self.options.dead_letter else ()
        return frozenset((*self.named(InputKind.TOPIC), *dead_letter))


class LoadLetter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row that could not be written, on its way to a dead-letter topic. `row` is what it held; `key`, of what there
    is of its primary key."""

    topic: str
    pipeline: str
    reason: str
    row: dict[str, Any]
    key: str = "[]"
    code: str = "type_mismatch"
    column: str | None = None
    batch_id: int = 0


class DuplicateLetters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the rows of a load go whose key is there already: only its commit knows which they are."""

    topic: str
    pipeline: str
    batch_id: int = 0
