"""Writing a DataFrame: `df.write.format("tablecast").option("table", …).mode("append").save()`.

    driver     begins a load, checks the columns            one load per job, `job:<uuid>` unless a writerId is given
    tasks      stage their rows as parts of it              durable at the server, and invisible
    driver     commits the parts of the tasks that counted  one commit of tablecast, with all its messages

A task that is run twice, or twice at a time, stages twice; the driver hears of one, and what it does not name is never
seen. Inserts are sealed: executors finish rows and messages themselves, and the server only puts them in their place.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tablecast.client.bulk import BulkClient, LoadBegun
from tablecast.core.seal import require_sealable
from tablecast.errors import NotSealable, TablecastError
from tablecast.spark.committing import abort_loads, commit_parts
from tablecast.spark.fitting import Fit, fit
from tablecast.spark.sealing_task import send_sealed
from tablecast.spark.sending import named, send_rows
from tablecast.spark.task import Staged, current_task
from tablecast.spark.topic_target import into_table
from tablecast.spark.worker import settle
from tablecast.spark.write_options import WriteOptions, refuse_overwrite, write_options

ROWS, SEALED = "rows", "sealed"
JOB = "job:"  # what the id of a writer begins with that will not come back


def batch_writer(given: Mapping[str, str], frame: StructType, overwrite: bool) -> TableWriter:
    """On the driver, when a write is planned."""
    options = write_options(given)
    refuse_overwrite(overwrite)
    writer_id = options.writer_id or f"{JOB}{uuid.uuid4()}"
    with BulkClient(options.server, namespace=options.namespace) as client:
        return _Beginning(client, into_table(options, client), frame, writer_id).writer()


class _Beginning:
    """A load of the kind that fits, for a DataFrame that does."""

    def __init__(self, client: BulkClient, options: WriteOptions, frame: StructType, writer_id: str) -> None:
        self._client, self._options, self._frame, self._writer_id = client, options, frame, writer_id

    def writer(self) -> TableWriter:
        options = self._options
        if options.mode != "insert" or options.bulk == "never":
            return self._begun(ROWS)
        try:
            return self._begun(SEALED)
        except NotSealable:
            if options.bulk == "always":
                raise
            return self._begun(ROWS)

    def _begun(self, kind: str) -> TableWriter:
        options = self._options
        load = self._client.begin_load(
            options.table, self._writer_id, options.batch_id, mode=options.mode, kind=kind, op_column=options.op_column
        )
        try:
            fitted = fit(self._frame, load.table, options.mode, options.op_column)
            if kind == SEALED:
                require_sealable(load.table, load.routes, fitted.names)
        except TablecastError:
            if load.committed is None:
                self._client.abort_load(load.load_id)
            raise
        return TableWriter(options, load, fitted, kind)


class TableWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, load: LoadBegun, fitted: Fit, kind: str) -> None:
        self._options, self._load, self._fitted, self._kind = options, load, fitted, kind

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        settle()
        load, task, batches = self._load, current_task(), named(iterator, self._fitted)
        if load.committed is not None:
            return Staged(load.load_id, committed=True)
        with self._client() as client:
            if self._kind == SEALED:
                return send_sealed(client, load, batches, task)
            return send_rows(client, load.load_id, load.table, batches, task)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when every task has staged its part."""
        if self._load.committed is None:
            with self._client() as client:
                commit_parts(client, self._load.load_id, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when the job failed."""
        if self._load.committed is None:
            abort_loads(self._options.server, [self._load.load_id])

    def _client(self) -> BulkClient:
        return BulkClient(self._options.server, namespace=self._options.namespace)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.table!r}, {self._options.mode}, {self._kind})"
