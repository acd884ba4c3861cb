"""What a task knows of itself, and what it tells the driver."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from tablecast.errors import InvalidRequest, TooLarge

# Where Spark keeps the id of a streaming query, which its checkpoint gave it, and the number of the micro-batch.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"
MAX_PARTS_OF_TASK = 4096  # of a million rows each, when they are sealed; the numbers of a load's parts fit 31 bits


@dataclass(frozen=True, slots=True)
class Task:
    """`partition` is the same for every attempt at it. `attempt` is no other's, ever: Spark counts attempts anew with
    every driver, and one that was taken for dead may still be at work."""

    partition: int
    attempt: str

    def part(self, number: int) -> int:
        """What the load knows the task's part by: parts of a load are in the order of partitions, then of numbers."""
        if number >= MAX_PARTS_OF_TASK:
            raise TooLarge(
                f"partition {self.partition} has more than {MAX_PARTS_OF_TASK} parts: use more partitions",
                limit=MAX_PARTS_OF_TASK,
            )
        return self.partition * MAX_PARTS_OF_TASK + number


def partition_of(part: int) -> int:
    return part // MAX_PARTS_OF_TASK


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task staged. Without a load: it had no rows. `committed`: the load was there already."""

    load_id: str | None = None
    parts: tuple[tuple[int, str], ...] = ()
    rows: int = 0
    committed: bool = False


def current_task() -> Task:
    context = _context()
    return Task(context.partitionId(), f"{context.taskAttemptId()}-{secrets.token_hex(6)}")


def current_batch() -> tuple[str, int]:
    """The id of the streaming query, and which of its micro-batches this is."""
    context = _context()
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise InvalidRequest("this task belongs to no micro-batch: continuous processing is not supported")
    return query_id, int(batch_id)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidRequest("rows are written by tasks of Spark, and this is none")
    return context


def local_directory() -> str | None:
    """Where Spark wants its tasks to keep files: it removes them when a worker did not. None: wherever the system does."""
    for named in os.environ.get(_LOCAL_DIRECTORIES, "").split(","):
        if named and Path(named).is_dir():
            return named
    return None
