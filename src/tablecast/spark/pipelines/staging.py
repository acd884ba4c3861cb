"""What a task of a pipeline does with the rows of its partition: it judges them, stages them, and tells the driver.

    rows ──▶ Judge ──▶ a part of rows     ──▶ the server's staging
                  └──▶ a part of letters  ──▶ likewise            ──▶ one `Told` for the driver, which commits

It is the last step of the query's own plan, so nothing else of a result leaves the executors. A task that is run twice, or
twice at a time, stages twice; the driver hears of one, and what it does not name is never seen.

A batch that turns out to be committed already is computed all the same, and not sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tablecast.client.bulk import LETTERS, BulkClient, LoadBegun, Server
from tablecast.model.names import spelled
from tablecast.model.pipeline import Pipeline
from tablecast.spark.pipelines.judging import Judge
from tablecast.spark.pipelines.letters import Letters
from tablecast.spark.sending import read_to_the_end, send_typed
from tablecast.spark.task import Staged, current_batch, current_task
from tablecast.spark.worker import settle

COLUMN = "told"
SCHEMA = f"{COLUMN} binary"
_ARROW = pa.schema([pa.field(COLUMN, pa.binary())])
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Told(Staged):
    """What became of a task's rows. `reason` and `column`: of the first of those that do not fit."""

    rejected: int = 0
    reason: str = ""
    column: str | None = None


decode = msgspec.msgpack.Decoder(Told).decode


@dataclass(frozen=True)
class Staging:
    """`columns` are the target's names of the result's columns, in order."""

    server: Server
    pipeline: Pipeline
    columns: tuple[str, ...]

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: one row for a partition that had any."""
        settle()
        given = (batch for batch in batches if batch.num_rows)
        first = next(given, None)
        if first is not None:
            told = self._staged(itertools.chain((first,), given))
            yield pa.RecordBatch.from_arrays([pa.array([_encode(told)], pa.binary())], schema=_ARROW)

    def _staged(self, batches: Iterable[pa.RecordBatch]) -> Told:
        query_id, batch_id = current_batch()
        with BulkClient(self.server) as client:
            target, mode = spelled(self.pipeline.target), self.pipeline.mode
            load = client.begin_load(target, query_id, batch_id, mode=mode, kind="rows")
            if load.committed is not None:
                read_to_the_end(batches)
                return Told(committed=True)
            with Letters(self.pipeline, load.table.primary_key, batch_id) as letters:
                return self._sent(client, load, batches, letters)

    def _sent(self, client: BulkClient, load: LoadBegun, batches: Iterable[pa.RecordBatch], letters: Letters) -> Told:
        task = current_task()
        staged = send_typed(client, load.load_id, self._good(load, batches, letters), task)
        parts = staged.parts
        if letters.kept:
            part = task.part(len(parts))
            client.put_part(load.load_id, part, letters.pieces, attempt=task.attempt, content_type=LETTERS)
            parts = (*parts, (part, task.attempt))
        return Told(
            load.load_id, parts, staged.rows, rejected=letters.count, reason=letters.reason, column=letters.column
        )

    def _good(self, load: LoadBegun, batches: Iterable[pa.RecordBatch], letters: Letters) -> Iterator[pa.RecordBatch]:
        judge = Judge(load.table, self.columns, self.pipeline.mode)
        for batch in batches:
            verdict = judge.verdict(batch)
            letters.add(batch.rename_columns(list(self.columns)), verdict.rejects)
            if verdict.good.num_rows:
                yield verdict.good
