"""What executors do for an audit: rows of a snapshot, and messages of a log, as far as the two are to be compared.

row        key as messages have it, commit number, whether the source's filter takes it, the hashes that a message of
           it has: as an insert, as an update
message    where it stands, what it says of which row, whether its content is what its hash says
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from tablecast.client.bulk import BulkClient, Server
from tablecast.core.columns import as_list
from tablecast.core.columns_json import array_pieces, column_values, json_array, object_pieces
from tablecast.core.columns_text import shared_texts
from tablecast.core.expression import compile_filter
from tablecast.core.seal_routes import are_true
from tablecast.model.change import Op
from tablecast.model.schema import TableSchema
from tablecast.spark.worker import settle

ROWS = "key string, row_seq bigint, asked boolean, as_insert bigint, as_update bigint, row_payload string"
MESSAGES = (
    "partition_id int, offset bigint, message_id bigint, source_table string, op string, key string, seq bigint, "
    "content_hash bigint, payload string, sound boolean"
)
_OPS = {op.label: int(op) for op in Op}


def hashes(payloads: list[bytes], op: int) -> pa.Array:
    """Content hashes of messages of one op, as Spark has them: signed."""
    return pa.array(np.array([xxh3_64_intdigest(payload, op) for payload in payloads], np.uint64).view(np.int64))


@dataclass(frozen=True)
class SnapshotRows:
    """Reads ranges of a snapshot by their numbers. Travels to the executors."""

    server: Server
    snapshot_id: str
    ranges: tuple[tuple[str, str | None], ...]
    table: TableSchema
    filter: str | None
    with_payload: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        with BulkClient(self.server) as client:
            for numbers in batches:
                for number in numbers.column(0).to_pylist():
                    start, end = self.ranges[number]
                    for rows in client.read_snapshot(self.snapshot_id, start, end, seq=True):
                        yield self._described(rows)

    def _described(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        table = self.table
        seq = rows.column(rows.num_columns - 1).view(pa.int64())
        typed = rows.select(list(table.column_names))
        asked = np.ones(rows.num_rows, np.bool_)
        if self.filter is not None:
            asked = are_true(compile_filter(self.filter, table).batch(typed))
        values = column_values(table, range(len(table.columns)), typed, shared_texts(table, typed))
        keys = json_array(array_pieces(table.key_indexes, values), rows.num_rows)
        made = json_array(object_pieces(table, range(len(table.columns)), values), rows.num_rows)
        payloads = as_list(made)
        shown = made.cast(pa.string()) if self.with_payload else pa.nulls(rows.num_rows, pa.string())
        columns = [
            keys.cast(pa.string()),
            seq,
            pa.array(asked),
            hashes(payloads, Op.INSERT),
            hashes(payloads, Op.UPDATE),
        ]
        names = ["key", "row_seq", "asked", "as_insert", "as_update", "row_payload"]
        return pa.RecordBatch.from_arrays([*columns, shown], names=names)


@dataclass(frozen=True)
class Messages:
    """From envelopes. `payload_of` is the table whose payloads are needed later, if any."""

    payload_of: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            yield self._described(batch)

    def _described(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        payloads = as_list(batch.column("payload").cast(pa.binary()))
        ops = batch.column("op").to_pylist()
        said = np.array(
            [xxh3_64_intdigest(payload, _OPS[op]) for payload, op in zip(payloads, ops, strict=True)], np.uint64
        )
        sound = pc.equal(pa.array(said.view(np.int64)), batch.column("content_hash"))
        kept = pc.if_else(
            pc.equal(batch.column("source_table"), pa.scalar(self.payload_of, pa.string())),
            batch.column("payload"),
            pa.scalar(None, pa.string()),
        )
        names = ("partition_id", "offset", "message_id", "source_table", "op", "key", "seq", "content_hash")
        return pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in names), kept, sound], names=[*names, "payload", "sound"]
        )


def agrees(row: str | None, words: Sequence[Any] | None) -> bool:
    """Whether one of the last messages of a row says what the row says, as far as the table had its columns then."""
    if row is None or words is None:
        return False
    now = msgspec.json.decode(row)
    return any(_is_within(now, msgspec.json.decode(word["payload"])) for word in words if word["payload"] is not None)


def _is_within(now: dict[str, Any], then: dict[str, Any]) -> bool:
    return all(now.get(name) == value for name, value in then.items())
