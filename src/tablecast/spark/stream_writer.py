"""Writing a stream: `df.writeStream.format("tablecast").option("table", …)`, each micro-batch once.

    tasks      begin the load of (query id, batch id), or find it begun, and stage their rows as parts of it
    driver     commits the parts of the tasks that counted; one commit of tablecast, with all its messages

The query id is in the checkpoint and the batch id is Spark's own, so a batch that is run again, after whatever died, has
the same name: if it was committed, the server says so, and nothing is written twice. Spark tells the commit neither:
tasks read both and carry the load in their messages. A task without rows begins nothing; a batch in which no task had
rows has nothing to commit.

Spark makes the writer anew for the plan and for the commit of every batch. What the driver checks is remembered for a
while, so that a small batch does not pay for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tablecast.client.bulk import BulkClient, LoadBegun
from tablecast.errors import InvalidRequest
from tablecast.spark.committing import abort_loads, commit_parts, staged_of, the_load
from tablecast.spark.durable import local_place, make_durable
from tablecast.spark.fitting import Fit, fit
from tablecast.spark.sealing_task import send_sealed
from tablecast.spark.sending import named, read_to_the_end, send_rows
from tablecast.spark.task import Staged, current_batch, current_task
from tablecast.spark.topic_target import into_table
from tablecast.spark.worker import settle
from tablecast.spark.write_options import WriteOptions, refuse_writer_id, write_options

REMEMBERED_SECONDS = 60.0  # that a DataFrame fits a table: the server judges every batch anyway

_fitted: dict[tuple[WriteOptions, str], tuple[float, tuple[WriteOptions, Fit]]] = {}


def stream_writer(given: Mapping[str, str], frame: StructType, overwrite: bool = False) -> StreamTableWriter:
    """On the driver, twice for every micro-batch."""
    options = write_options(given)
    refuse_writer_id(options)
    if overwrite and options.mode != "upsert":
        raise InvalidRequest(
            f'outputMode("complete") tells every row again in each batch: that goes with mode upsert, not {options.mode}'
        )
    return StreamTableWriter(*_fit(options, frame))


def _fit(options: WriteOptions, frame: StructType) -> tuple[WriteOptions, Fit]:
    key, now = (options, frame.json()), time.monotonic()
    known = _fitted.get(key)
    if known is None or now - known[0] > REMEMBERED_SECONDS:
        _fitted.clear()  # of one or two streams in this process: nothing else is worth keeping
        known = _fitted[key] = (now, _checked(options, frame))
    return known[1]


def _checked(given: WriteOptions, frame: StructType) -> tuple[WriteOptions, Fit]:
    """The options with the table named, and how the DataFrame fits it."""
    with _client(given) as client:
        options = into_table(given, client)
        snapshot = client.open_snapshot(options.table)
        client.close_snapshot(snapshot.snapshot_id)
    return options, fit(frame, snapshot.table, options.mode, options.op_column)


def _client(options: WriteOptions) -> BulkClient:
    return BulkClient(options.server, namespace=options.namespace)


class StreamTableWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, fitted: Fit) -> None:
        self._options, self._fitted = options, fitted

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        settle()
        batches = named(iterator, self._fitted)
        first = next(batches, None)
        if first is None:
            return Staged()
        batches = itertools.chain((first,), batches)
        with _client(self._options) as client:
            load = self._begun(client)
            if load.committed is not None:
                read_to_the_end(batches)
                return Staged(load.load_id, committed=True)
            if self._sealed:
                return send_sealed(client, load, batches, current_task())
            return send_rows(client, load.load_id, load.table, batches, current_task())

    @property
    def _sealed(self) -> bool:
        return self._options.bulk == "always"

    def _begun(self, client: BulkClient) -> LoadBegun:
        options, (query_id, batch_id) = self._options, current_batch()
        kind = "sealed" if self._sealed else "rows"
        return client.begin_load(
            options.table, query_id, batch_id, mode=options.mode, kind=kind, op_column=options.op_column
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when every task has staged its part."""
        staged = staged_of(messages)
        load_id = the_load(staged, f"batch {batchId} into {self._options.table}")
        if load_id is not None:
            self._make_durable(batchId)
            with _client(self._options) as client:
                commit_parts(client, load_id, staged)

    def _make_durable(self, batch_id: int) -> None:
        """Of a checkpoint on this machine, the driver's. Spark does not say where it is if a setting of the session does."""
        place = None if self._options.checkpoint is None else local_place(self._options.checkpoint)
        if place is not None:
            make_durable(place, batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when a batch failed."""
        abort_loads(self._options.server, {each.load_id for each in staged_of(messages) if each.load_id})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.table!r}, {self._options.mode})"
