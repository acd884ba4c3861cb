"""The messages of many inserted rows: core.routing, column by column.

For every route of the table: which rows its filter takes, which partition each goes to, and what it says. Payloads are
made once per mode; a filter or PARTITION BY is computed for the batch at once. What a route makes of a batch of rows is a
`RouteRun`: its messages in the order of their partitions, and within one in the order of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_digest

from tablecast.codec.log import MessageClass
from tablecast.core.columns import as_list, from_starts, starts_and_bytes
from tablecast.core.columns_json import array_pieces, column_values, json_array, object_pieces
from tablecast.core.columns_key import element_array
from tablecast.core.columns_text import Texts
from tablecast.core.expression import Expression, compile_expression, compile_filter
from tablecast.model.change import Op
from tablecast.model.schema import TableSchema
from tablecast.model.topic import PayloadMode, Route, Topic

_TABLE_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class BatchRoute:
    """A route compiled for batches."""

    topic_id: int
    partitions: int
    message_class: MessageClass
    matches: Expression | None
    partition_by: Expression | None

    @property
    def says(self) -> PayloadMode:
        """What the payload holds: the diff of an insert is the full row."""
        mode = self.message_class.payload_mode
        return PayloadMode.KEY if mode is PayloadMode.KEY else PayloadMode.FULL


def batch_route(topic: Topic, route: Route, schema: TableSchema) -> BatchRoute:
    matches = None if route.filter is None else compile_filter(route.filter, schema)
    by_value = None if route.partition_by is None else compile_expression(route.partition_by, schema)
    said = MessageClass(schema.full_name, Op.INSERT, route.payload, None)
    return BatchRoute(topic.topic_id, topic.partitions, said, matches, by_value)


class Placed(NamedTuple):
    """Where a batch of rows goes on one route; None: all rows, and all to partition 0."""

    chosen: np.ndarray | None
    partitions: np.ndarray | None


def place(route: BatchRoute, batch: pa.RecordBatch, row_keys: pa.Array) -> Placed:
    """Raises ExpressionError if a filter or PARTITION BY fails on a row: which one, the row path tells."""
    chosen = None if route.matches is None else np.flatnonzero(are_true(route.matches.batch(batch)))
    if route.partitions == 1:
        return Placed(chosen, None)
    taken = None if chosen is None else pa.array(chosen)
    if route.partition_by is None:
        hashed = _without_table(row_keys if taken is None else row_keys.take(taken))
    else:
        assert route.partition_by.type is not None  # one that is always NULL is refused when the source is added
        value = route.partition_by.batch(batch if taken is None else batch.take(taken))
        hashed = element_array(route.partition_by.type, value)
    return Placed(chosen, (hashes_of(hashed) % np.uint64(route.partitions)).astype(np.uint16))


def are_true(condition: pa.Array) -> np.ndarray:
    """Which rows a condition takes: NULL is not TRUE."""
    if pa.types.is_null(condition.type):
        return np.zeros(len(condition), np.bool_)
    return np.asarray(condition.fill_null(False))


def _without_table(row_keys: pa.Array) -> pa.Array:
    """Row keys from after the table id on."""
    starts, data = starts_and_bytes(row_keys)
    kept = np.ones(len(data), np.bool_)
    for at in range(_TABLE_ID_BYTES):
        kept[starts[:-1] + at] = False
    return from_starts(starts - np.arange(len(starts), dtype=np.int32) * _TABLE_ID_BYTES, data[kept])


def hashes_of(values: pa.Array) -> np.ndarray:
    """XXH3-64 of each value; there is no vectorised form, so they are bytes for a moment."""
    return np.frombuffer(b"".join(map(xxh3_64_digest, as_list(values))), ">u8").astype(np.uint64)


# --- what messages say -------------------------------------------------------------------------------------------


class Messages(NamedTuple):
    """Hashes are seeded with the op, which is 0 for an insert."""

    keys: pa.Array
    payloads: pa.Array
    hashes: np.ndarray

    def taken(self, rows: np.ndarray) -> Messages:
        indices = pa.array(rows)
        return Messages(self.keys.take(indices), self.payloads.take(indices), self.hashes[rows])

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.payloads.nbytes + self.hashes.nbytes)


class RouteRun(NamedTuple):
    """`rows` tells which row of the batch each message is of; None: message i is of row i. `bounds` are (partition,
    where its messages begin, where they end)."""

    messages: Messages
    rows: np.ndarray | None
    bounds: list[tuple[int, int, int]]


def route_batch(
    schema: TableSchema, routes: Sequence[BatchRoute], placed: Sequence[Placed], batch: pa.RecordBatch, texts: Texts
) -> list[RouteRun]:
    """The messages of a batch of rows, one run per route."""
    if not routes:
        return []
    said = _say(schema, {route.says for route in routes}, batch, texts)
    return [_run(said[route.says], where) for route, where in zip(routes, placed, strict=True)]


def _say(
    schema: TableSchema, modes: set[PayloadMode], batch: pa.RecordBatch, texts: Texts
) -> dict[PayloadMode, Messages]:
    everything = list(range(len(schema.columns)))
    values = column_values(schema, everything if PayloadMode.FULL in modes else schema.key_indexes, batch, texts)
    keys = json_array(array_pieces(schema.key_indexes, values), batch.num_rows)
    said = {}
    for mode in modes:
        indexes = schema.key_indexes if mode is PayloadMode.KEY else everything
        payloads = json_array(object_pieces(schema, indexes, values), batch.num_rows)
        said[mode] = Messages(keys, payloads, hashes_of(payloads))
    return said


def _run(everything: Messages, placed: Placed) -> RouteRun:
    chosen, partitions = placed
    if chosen is not None and not len(chosen):
        return RouteRun(everything, chosen, [])
    if partitions is None:
        if chosen is None:
            return RouteRun(everything, None, [(0, 0, len(everything.keys))])
        return RouteRun(everything.taken(chosen), chosen, [(0, 0, len(chosen))])
    order = np.argsort(partitions, kind="stable")
    found, starts = np.unique(partitions[order], return_index=True)
    stops = [*starts[1:].tolist(), len(order)]
    rows = order if chosen is None else chosen[order]
    return RouteRun(everything.taken(rows), rows, list(zip(found.tolist(), starts.tolist(), stops, strict=True)))
