"""Messages of a log as Spark takes them: the envelope, or decoded rows.

Nearly everything of the envelope is the stored bytes under another name: unsigned numbers are seen as signed, bytes as
text. What a batch says once for many messages (source table, op, mode, user) is written out, as Spark takes no
dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.codec.log import LogBatch, messages_arrow
from tablecast.errors import PayloadMismatch
from tablecast.model.schema import TableSchema
from tablecast.spark.filters import RowFilter, kept_rows
from tablecast.spark.offsets import LogRange
from tablecast.spark.typed import PayloadDecoder
from tablecast.spark.types import DECODED_TAIL, arrow_of

CHUNK_ROWS = 16_384  # of one Arrow batch for Spark; larger ones fall out of the processor's cache while they are made
TAIL_ARROW = arrow_of(DECODED_TAIL)
_PAYLOAD = "payload"
_TAIL_OF = {
    "_op": "op",
    "_offset": "offset",
    "_partition": "partition_id",
    "_ts": "ts",
    "_seq": "seq",
    "_user": "user_id",
}


class Shape(Protocol):
    """From messages as `codec.log` gives them to what the read gives."""

    schema: pa.Schema

    def shaped(self, stored: pa.RecordBatch) -> pa.RecordBatch: ...


def chunks(batches: Iterator[LogBatch], topic_id: int, partition: int) -> Iterator[pa.RecordBatch]:
    """About CHUNK_ROWS messages at a time: small log batches are joined, large ones cut."""
    waiting: list[LogBatch] = []
    rows = 0
    for batch in batches:
        if waiting and rows + batch.head.count > CHUNK_ROWS:
            yield from _cut(messages_arrow(waiting, topic_id, partition))
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.head.count
    if waiting:
        yield from _cut(messages_arrow(waiting, topic_id, partition))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for at in range(0, batch.num_rows, CHUNK_ROWS):
        yield batch.slice(at, CHUNK_ROWS)


def _column(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        said = column.dictionary
        return _same(said[0].as_py(), len(column)) if len(said) == 1 else column.dictionary_decode()
    if pa.types.is_uint64(column.type) or pa.types.is_binary(column.type):
        return column.view(wanted)
    return column.cast(wanted)


@lru_cache(maxsize=16)
def _same(value: str | None, count: int) -> pa.Array:
    """A column of one value. Batches of a log mostly have as many messages, which say the same: it is made once."""
    return pa.array([value], pa.string()).take(pa.array(np.zeros(count, np.int32)))


class Envelopes:
    """Messages as they are."""

    def __init__(self, schema: pa.Schema, filters: Sequence[RowFilter] = ()) -> None:
        self.schema, self._filters = schema, filters

    def shaped(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        columns = [_column(stored.column(field.name), field.type) for field in self.schema]
        return kept_rows(pa.RecordBatch.from_arrays(columns, schema=self.schema), self._filters)


class Decoded:
    """Rows of one source table; messages of other tables are left out."""

    def __init__(self, table: TableSchema, schema: pa.Schema, filters: Sequence[RowFilter] = ()) -> None:
        self.schema = schema
        self._table, self._names = table.full_name, table.column_names
        self._decoder = PayloadDecoder(table)
        self._early = [f for f in filters if f.column in _TAIL_OF]
        self._late = [f for f in filters if f.column not in _TAIL_OF]

    def shaped(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Filters on what the envelope tells come first: what they drop is not decoded."""
        told = self._told(_of_table(stored, self._table))
        columns = dict(zip(self._names, self._rows(told), strict=True))
        made = [columns[name] if name in columns else told.column(name) for name in self.schema.names]
        return kept_rows(pa.RecordBatch.from_arrays(made, schema=self.schema), self._late)

    def _told(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """What a message tells beside its row, and its payload."""
        columns = {field.name: _column(stored.column(_TAIL_OF[field.name]), field.type) for field in TAIL_ARROW}
        return kept_rows(pa.RecordBatch.from_pydict({**columns, _PAYLOAD: stored.column(_PAYLOAD)}), self._early)

    def _rows(self, told: pa.RecordBatch) -> list[pa.Array]:
        try:
            return self._decoder.columns(told.column(_PAYLOAD))
        except PayloadMismatch as e:
            row = int(e.details.get("row", 0))
            place = f"partition {told.column('_partition')[row]}, offset {told.column('_offset')[row]}"
            raise PayloadMismatch(
                f"{place}: {e.message}; the table was made anew since, or the topic has other writers: "
                'read it without "decode", or from a later offset',
                **e.details,
            ) from e


def _of_table(stored: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """Most often all of them, which the dictionary tells without looking at a row."""
    sources = stored.column("source_table")
    if sources.dictionary.to_pylist() == [table]:
        return stored
    return stored.filter(pc.equal(sources.dictionary_decode(), table))


def shaped_chunks(
    batches: Iterator[LogBatch], topic_id: int, piece: LogRange, shape: Shape
) -> Iterator[pa.RecordBatch]:
    for chunk in chunks(batches, topic_id, piece.partition):
        made = shape.shaped(chunk)
        if made.num_rows:
            yield made
