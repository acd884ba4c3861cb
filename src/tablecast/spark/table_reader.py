"""Reading a table: `spark.read.format("tablecast").option("table", …)`, all of it at one commit number.

Planning takes a snapshot at the server, cut into key ranges; every task reads a range of that snapshot, so writes that
come meanwhile are seen by none. Spark never says when a read is over, so the snapshot is a lease that ends by itself
some minutes after it was last read from, unless the whole table is one task (`minPartitions` 1). A connection that
breaks is made again by the client, which leaves out what it has given already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tablecast.errors import SnapshotGone
from tablecast.model.schema import TableSchema
from tablecast.spark.filters import Pushable, RowFilter, kept_rows, understood
from tablecast.spark.options import ReadOptions
from tablecast.spark.topic_reader import checked_schema, wanted_tasks
from tablecast.spark.types import spark_columns, table_struct
from tablecast.spark.worker import settle


class KeyRange(InputPartition):
    """Keys start <= … < end of one snapshot."""

    def __init__(self, snapshot_id: str, start: str, end: str | None) -> None:
        self.snapshot_id, self.start, self.end = snapshot_id, start, end


class WholeTable(InputPartition):
    """All of a table, in one task: it opens a snapshot of its own and closes it, so a read that is repeated every second
    leaves nothing behind."""

    def __init__(self) -> None:
        """Without a value, unlike Spark's stand-in."""


def table_schema(options: ReadOptions) -> TableSchema:
    """As it is now. There is no cheaper question than a snapshot that is closed at once."""
    assert options.table is not None
    with options.connect() as client:
        snapshot = client.open_snapshot(options.table)
        client.close_snapshot(snapshot.snapshot_id)
    return snapshot.table


class TableReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        assert options.table is not None
        self._options, self._table = options, options.table
        known = table_schema(options)
        self._schema = checked_schema(schema, table_struct(known, with_seq=options.include_seq))
        self._filters: list[RowFilter] = []

    @property
    def pushFilters(self) -> Pushable:  # noqa: N802 - Spark's name
        return Pushable(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self._options.push_filters:
            return filters
        self._filters, left = understood(filters, self._schema)
        return left

    def partitions(self) -> list[InputPartition]:
        if self._options.min_partitions == 1:
            return [WholeTable()]
        with self._options.connect() as client:
            snapshot = client.open_snapshot(self._table, splits=wanted_tasks(self._options))
        return [KeyRange(snapshot.snapshot_id, start, end) for start, end in snapshot.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, KeyRange | WholeTable):  # Spark's stand-in for no partitions at all
            return
        settle()
        batches = self._batches(partition) if isinstance(partition, KeyRange) else self._whole()
        for batch in batches:
            columns = spark_columns([batch.column(name) for name in self._schema.names], self._schema)
            made = kept_rows(pa.RecordBatch.from_arrays(columns, schema=self._schema), self._filters)
            if made.num_rows:
                yield made

    def _whole(self) -> Iterator[pa.RecordBatch]:
        with self._options.connect() as client:
            snapshot = client.open_snapshot(self._table)
            try:
                for start, end in snapshot.ranges:
                    yield from client.read_snapshot(snapshot.snapshot_id, start, end, seq=self._options.include_seq)
            finally:
                client.close_snapshot(snapshot.snapshot_id)

    def _batches(self, part: KeyRange) -> Iterator[pa.RecordBatch]:
        with self._options.connect() as client:
            try:
                yield from client.read_snapshot(part.snapshot_id, part.start, part.end, seq=self._options.include_seq)
            except SnapshotGone as e:
                raise SnapshotGone(
                    f"the snapshot of {self._table} that this read was planned on is gone: it was not read from for too "
                    f"long, or the server was restarted; read the table again ({e.message})",
                    table=self._table,
                ) from e
