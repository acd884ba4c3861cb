"""What happens to a batch: its rows are judged, the good ones loaded into the target, the others sent to the dead-letter
topic, all of it as one commit, once. Whether the key of a row to be inserted is new, the commit itself finds.

The load is named by Spark's query id, which a checkpoint keeps, and the batch's number: a batch that is run again, after
a crash at any point, is answered as done. The batch itself is always computed, even if it turns out to be done: a query
with state (counts, windows) must take every batch in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tablecast.client.bulk import BulkClient
from tablecast.core.seal_judge import Reject
from tablecast.core.shown import shown
from tablecast.errors import TablecastError, TypeMismatch
from tablecast.model.pipeline import DuplicateLetters, LoadLetter, Pipeline, PipelineMode
from tablecast.spark.durable import make_durable
from tablecast.spark.pipelines.judging import Judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"
ATTEMPT = "0"  # the driver makes the one part of a load; were it to try again, the part would be the same
_log = logging.getLogger("tablecast.pipelines")


@dataclass(slots=True)
class Tally:
    """What the sink did since it was made."""

    rows_out: int = 0
    rejected: int = 0
    last_batch_ms: int | None = None


class Sink:
    """For `foreachBatch`. `columns` are the target's names of the batch's columns, in order. `client` is its own: batches
    come one after the other, in threads of Spark's choosing."""

    def __init__(
        self,
        client: BulkClient,
        pipeline: Pipeline,
        columns: Sequence[str],
        checkpoint: Path,
        tally: Tally,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._columns = tuple(columns)
        self._checkpoint = checkpoint
        self._tally = tally
        self._now_ms = now_ms

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        batch = frame.toArrow()
        writer_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert writer_id is not None, "foreachBatch runs in the thread of a query"
        if batch.num_rows:
            self._load(batch, writer_id, batch_id)
        self._tally.last_batch_ms = self._now_ms()

    def _load(self, batch: pa.Table, writer_id: str, batch_id: int) -> None:
        pipeline = self._pipeline
        begun = self._client.begin_load(pipeline.target, writer_id, batch_id, mode=pipeline.mode, kind="rows")
        if begun.committed is not None:
            _log.info("%s: batch %d was committed before", pipeline.full_name, batch_id)
            return
        verdict = Judge(begun.table, self._columns, pipeline.mode).verdict(batch)
        letters = self._letters(batch, verdict.rejects, begun.table.primary_key, batch_id)
        make_durable(self._checkpoint, batch_id)
        parts: list[tuple[int, str]] = []
        if verdict.good.num_rows:
            self._client.put_part(begun.load_id, 0, _stream(verdict.good), attempt=ATTEMPT)
            parts.append((0, ATTEMPT))
        duplicates = self._duplicates(batch_id)
        done = self._client.commit_load(begun.load_id, parts, dead_letters=letters, duplicates=duplicates)
        put_aside = 0 if duplicates is None else verdict.good.num_rows - done.row_count
        self._tally.rows_out += verdict.good.num_rows - put_aside
        self._tally.rejected += len(letters) + put_aside

    def _duplicates(self, batch_id: int) -> DuplicateLetters | None:
        """What the server does with a row to be inserted whose key is there; None: it fails the batch."""
        topic = self._pipeline.options.dead_letter
        if topic is None or self._pipeline.mode is not PipelineMode.INSERT:
            return None
        return DuplicateLetters(topic, self._pipeline.full_name, batch_id)

    def _letters(
        self, batch: pa.Table, rejects: Sequence[Reject], primary_key: Sequence[str], batch_id: int
    ) -> list[LoadLetter]:
        topic = self._pipeline.options.dead_letter
        if not rejects:
            return []
        if topic is None:
            raise refused(self._pipeline, rejects)
        rows = batch.take([reject.row for reject in rejects]).to_pylist()
        return [
            self._letter(topic, reject, shown(row), primary_key, batch_id)
            for reject, row in zip(rejects, rows, strict=True)
        ]

    def _letter(
        self, topic: str, reject: Reject, row: dict[str, Any], primary_key: Sequence[str], batch_id: int
    ) -> LoadLetter:
        key = msgspec.json.encode([row.get(name) for name in primary_key]).decode()
        return LoadLetter(
            topic, self._pipeline.full_name, reject.reason, row, key, reject.code, reject.column, batch_id
        )


def refused(pipeline: Pipeline, rejects: Sequence[Reject]) -> TablecastError:
    """Without a dead-letter topic nothing is left out: the pipeline stands still until somebody looks."""
    first = rejects[0]
    return TypeMismatch(
        f"{len(rejects)} rows do not fit {pipeline.target}; the first: {first.reason} "
        "(WITH (dead_letter = 'topic') would put them aside)",
        pipeline=pipeline.full_name,
        column=first.column,
    )


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    written: bytes = sink.getvalue().to_pybytes()
    return written
