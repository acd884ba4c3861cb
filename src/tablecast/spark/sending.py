"""From the Arrow batches of a task to staged parts of a load.

Rows are cast to the table's types here, by the code that seals them too, so that a value means the same whichever way it
goes, and one that cannot be fails its task with the row and the column in the error. A part is complete on this side
before the first byte is sent, in memory or, if it is large, in a file: it can be sent again when a connection breaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa

from tablecast.client.bulk import BulkClient
from tablecast.codec.arrow_types import arrow_field
from tablecast.codec.values import coercion
from tablecast.core.columns_cast import cast_column, given_value
from tablecast.errors import TablecastError, TooLarge
from tablecast.model.schema import Column, TableSchema
from tablecast.spark.fitting import Fit
from tablecast.spark.task import Staged, Task, local_directory

MAX_ROWS = 1_000_000  # rows of one load that are not sealed: all of them are in the server's memory until their commit
SPOOLED_BYTES = 8 * 2**20  # of a part in memory; beyond, it is a file
_PIECE_BYTES = 2**20


def named(batches: Iterable[pa.RecordBatch], fitted: Fit) -> Iterator[pa.RecordBatch]:
    """The columns that go into the table, under its names; batches without rows are left out."""
    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([batch.column(i) for i in fitted.taken], names=list(fitted.names))


def read_to_the_end(batches: Iterable[pa.RecordBatch]) -> None:
    """For a micro-batch that is committed already: a query with state (counts, windows) keeps only what it knows of
    partitions that were read to their end, and needs it for the next batch."""
    for _ in batches:
        pass


def send_rows(
    client: BulkClient, load_id: str, table: TableSchema, batches: Iterable[pa.RecordBatch], task: Task
) -> Staged:
    """Casts all batches and stages them as one part of a load of kind rows; nothing if there are no rows."""
    return send_typed(client, load_id, _typed(table, batches), task)


def send_typed(client: BulkClient, load_id: str, batches: Iterable[pa.RecordBatch], task: Task) -> Staged:
    """The same for batches that have the table's types."""
    with SpooledTemporaryFile(SPOOLED_BYTES, dir=local_directory()) as spool:
        rows = _write_stream(spool, batches)
        if not rows:
            return Staged(load_id)
        part = task.part(0)
        client.put_part(load_id, part, lambda: _pieces(spool), attempt=task.attempt)
    return Staged(load_id, ((part, task.attempt),), rows)


def _write_stream(spool: Any, batches: Iterable[pa.RecordBatch]) -> int:
    rows, writer = 0, None
    for batch in batches:
        rows += batch.num_rows
        if rows > MAX_ROWS:
            raise TooLarge(
                f"one commit takes {MAX_ROWS} rows, and this task alone has more: write in several batches (of a stream, "
                'with maxOffsetsPerTrigger; of a pipeline, with max_messages), or insert with option "bulk" = "always"',
                limit=MAX_ROWS,
            )
        if writer is None:
            writer = pa.ipc.new_stream(pa.PythonFile(spool, mode="w"), batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return rows


def _pieces(spool: Any) -> Iterator[bytes]:
    spool.seek(0)
    while piece := spool.read(_PIECE_BYTES):
        yield piece


# --- the table's types --------------------------------------------------------------------------------------------


def _typed(table: TableSchema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A column that the table does not have (the op's) goes as it is."""
    first = 0
    for batch in batches:
        columns, fields = [], []
        for name, given in zip(batch.schema.names, batch.columns, strict=True):
            index = table.index_of(name)
            column = None if index is None else table.columns[index]
            columns.append(given if column is None else _cast(column, given, first))
            fields.append(pa.field(name, given.type) if column is None else arrow_field(name, column.type))
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        first += batch.num_rows


def _cast(column: Column, given: pa.Array, first: int) -> pa.Array:
    made, refused = cast_column(column, given)
    if refused is not None:
        raise _refusal(column, given, np.flatnonzero(refused), first)
    return made


def _refusal(column: Column, given: pa.Array, rows: np.ndarray, first: int) -> TablecastError:
    """The words of the row path for the first one, and how many there are."""
    row = int(rows[0])
    try:
        coercion(column.type, column.name)(given_value(column, given, row))
    except TablecastError as error:
        others = f" ({len(rows)} rows of this batch are like it)" if len(rows) > 1 else ""
        return type(error)(f"row {first + row}: {error.message}{others}", **error.details, row=first + row)
    raise AssertionError(f"column {column.name!r} refused row {row} without a reason")
