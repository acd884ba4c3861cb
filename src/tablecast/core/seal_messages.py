"""Sealing messages alone: what sources say, as of an insert, of rows that a table holds already.

The rows come in the table's own types, so there is nothing to cast and nothing to reject; keys and payloads, filters and
partitions are those of `core.seal`. A filter that fails on a row fails the whole, with the words of the row path: that is
what ADD SOURCE with a backfill in the database does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tablecast.core.columns_key import row_keys
from tablecast.core.columns_text import shared_texts
from tablecast.core.seal import PART_BYTES, sliced
from tablecast.core.seal_judge import RowJudge
from tablecast.core.seal_log import Emit, RouteLog
from tablecast.core.seal_part import Sealed
from tablecast.core.seal_routes import Placed, batch_route, place, route_batch
from tablecast.core.seal_values import LoadValues
from tablecast.errors import CorruptData, ExpressionError
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Route, Topic


class MessageSealer:
    """A `core.seal.Sealer` that makes parts without rows. `messages` counts all that it made."""

    def __init__(
        self,
        schema: TableSchema,
        routes: Sequence[tuple[Topic, Route]],
        load_number: int,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._schema, self._load_number, self._part_bytes = schema, load_number, part_bytes
        self._routes = [batch_route(topic, route, schema) for topic, route in routes]
        self._judge = RowJudge(schema, (), routes, LoadValues(0, ""))
        self.messages = 0
        self._begin()

    def _begin(self) -> None:
        self._emitted_bytes = self._rows = 0
        self._logs = [RouteLog(route) for route in self._routes]

    @property
    def full(self) -> bool:
        return self._emitted_bytes + self._waiting_bytes >= self._part_bytes

    @property
    def empty(self) -> bool:
        return not (self._emitted_bytes or self._waiting_bytes)

    @property
    def _waiting_bytes(self) -> int:
        return sum(log.nbytes for log in self._logs)

    def add(self, batch: pa.RecordBatch, emit: Emit) -> None:
        """Takes rows in, with the table's columns, and emits the log batches that are known then."""
        for piece in sliced(batch):
            texts = shared_texts(self._schema, piece)
            runs = route_batch(self._schema, self._routes, self._placed(piece), piece, texts)
            for log, run in zip(self._logs, runs, strict=True):
                log.add(run, self._rows, self._counted(emit))
            self._rows += piece.num_rows

    def part(self, emit: Emit) -> Sealed:
        """Emits what is left; the next part begins."""
        for log in self._logs:
            log.finish(self._counted(emit))
        self._begin()
        return Sealed(self._schema.table_id, self._load_number, pa.array([], pa.binary()), iter(()), {})

    def _counted(self, emit: Emit) -> Emit:
        def counted(topic_id: int, partition: int, count: int, batch: bytes) -> None:
            self._emitted_bytes += len(batch)
            self.messages += count
            emit(topic_id, partition, count, batch)

        return counted

    def _placed(self, piece: pa.RecordBatch) -> list[Placed]:
        keys = row_keys(self._schema, piece)
        try:
            return [place(route, piece, keys) for route in self._routes]
        except ExpressionError as error:
            for row in range(piece.num_rows):
                refusal = self._judge.refusal(piece, row)
                if refusal is not None:
                    raise refusal from error
            raise CorruptData(
                f"a row of {self._schema.full_name} fails an expression by column but not by itself"
            ) from error
