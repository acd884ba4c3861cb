"""What the driver does with a batch: it commits what the tasks staged, rows and dead letters, as one commit, once.

The load is named by Spark's query id, which a checkpoint keeps, and the batch's number: a batch that is run again, after
a crash at any point, is answered as done. Whether the key of a row to be inserted is new, the commit itself finds.

Of the result the driver sees nothing but what each task tells of its part (see `staging`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tablecast.client.bulk import BulkClient
from tablecast.errors import TablecastError, TooLarge, TypeMismatch
from tablecast.model.names import spelled
from tablecast.model.pipeline import DuplicateLetters, Pipeline, PipelineMode
from tablecast.spark.committing import BRIEFLY, commit_parts, the_load
from tablecast.spark.durable import make_durable
from tablecast.spark.pipelines.letters import MAX_LETTERS
from tablecast.spark.pipelines.staging import Told, decode
from tablecast.spark.sending import MAX_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"
_log = logging.getLogger("tablecast.pipelines")


@dataclass(slots=True)
class Tally:
    """What the sink did since it was made."""

    rows_out: int = 0
    rejected: int = 0
    last_batch_ms: int | None = None


class Sink:
    """For `foreachBatch` of a query whose last step is `staging`. `client` is its own: batches come one after the other,
    in threads of Spark's choosing."""

    def __init__(
        self,
        client: BulkClient,
        pipeline: Pipeline,
        checkpoint: Path,
        tally: Tally,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._checkpoint = checkpoint
        self._tally = tally
        self._now_ms = now_ms

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        writer_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert writer_id is not None, "foreachBatch runs in the thread of a query"
        try:
            self._commit([decode(told) for (told,) in frame.collect()], batch_id)
        except Exception:
            self._give_up(writer_id, batch_id)
            raise
        self._tally.last_batch_ms = self._now_ms()

    def _commit(self, told: Sequence[Told], batch_id: int) -> None:
        pipeline = self._pipeline
        if any(each.committed for each in told):
            _log.info("%s: batch %d was committed before", pipeline.full_name, batch_id)
        load_id = the_load(told, f"batch {batch_id}")
        if load_id is None:
            return
        rows, rejected = sum(each.rows for each in told), sum(each.rejected for each in told)
        self._check(told, rows, rejected, batch_id)
        make_durable(self._checkpoint, batch_id)
        duplicates = self._duplicates(batch_id)
        done = commit_parts(self._client, load_id, told, duplicates)
        put_aside = 0 if duplicates is None else rows - done.row_count
        self._tally.rows_out += rows - put_aside
        self._tally.rejected += rejected + put_aside

    def _check(self, told: Sequence[Told], rows: int, rejected: int, batch_id: int) -> None:
        name = self._pipeline.full_name
        first = next((each for each in told if each.rejected), None)
        if first is not None and self._pipeline.options.dead_letter is None:
            raise refused(self._pipeline, first, rejected)
        if first is not None and rejected > MAX_LETTERS:
            raise TooLarge(
                f"{rejected} rows of batch {batch_id} do not fit {self._pipeline.target}, and {MAX_LETTERS} may be put "
                f"aside at a time: that is a wrong query rather than wrong rows; the first: {first.reason}",
                pipeline=name,
                limit=MAX_LETTERS,
            )
        if rows > MAX_ROWS:
            raise TooLarge(
                f"batch {batch_id} has {rows} rows, and one commit takes {MAX_ROWS}: lower max_messages, and begin anew with "
                "--restart-from-start, for what a batch reads does not change once it was begun",
                pipeline=name,
                limit=MAX_ROWS,
            )

    def _duplicates(self, batch_id: int) -> DuplicateLetters | None:
        """What the server does with a row to be inserted whose key is there; None: it fails the batch."""
        topic = self._pipeline.options.dead_letter
        if topic is None or self._pipeline.mode is not PipelineMode.INSERT:
            return None
        return DuplicateLetters(spelled(topic), self._pipeline.full_name, batch_id)

    def _give_up(self, writer_id: str, batch_id: int) -> None:
        """Forgets what was staged: the next attempt stages it again, and there may be many."""
        pipeline, server = self._pipeline, replace(self._client.server, retry=BRIEFLY)
        with contextlib.suppress(TablecastError), BulkClient(server) as client:
            found = client.begin_load(spelled(pipeline.target), writer_id, batch_id, mode=pipeline.mode, kind="rows")
            if found.committed is None:
                client.abort_load(found.load_id)


def refused(pipeline: Pipeline, first: Told, rejected: int) -> TablecastError:
    """Without a dead-letter topic nothing is left out: the pipeline stands still until somebody looks."""
    return TypeMismatch(
        f"{rejected} rows do not fit {pipeline.target}; the first: {first.reason} "
        "(WITH (dead_letter = 'topic') would put them aside)",
        pipeline=pipeline.full_name,
        column=first.column,
    )
