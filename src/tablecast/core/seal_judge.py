"""The row path for one row, asked by whoever works on columns: would it be taken, and if not, why?

Columns tell only *that* a row is at fault. The words and their order (types first, column by column, then CHECK, size,
filters) are those of a write of this row alone, because it is one, up to the point where the engine would decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tablecast.codec.rows import row_codec
from tablecast.core.columns_cast import given_value
from tablecast.core.expression import Expression
from tablecast.core.payload import payload_encoder
from tablecast.core.routing import compile_route, route_run
from tablecast.core.row_rules import check_row, encode_rows
from tablecast.core.seal_values import LoadValues
from tablecast.errors import TablecastError
from tablecast.model.change import ChangeRun, Op
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Route, Topic


class Reject(NamedTuple):
    """A row that was not sealed. `row` counts from 0 over all that the sealer was given."""

    row: int
    column: str | None
    code: str
    reason: str


class RowJudge:
    def __init__(
        self,
        schema: TableSchema,
        checks: Sequence[Expression],
        routes: Sequence[tuple[Topic, Route]],
        values: LoadValues,
    ) -> None:
        self._schema = schema
        self._checks = checks
        self._values = values
        self._codec = row_codec(schema)
        self._payloads = payload_encoder(schema)
        self._routes = [compile_route(topic, route, schema) for topic, route in routes]

    def refusal(self, given: pa.RecordBatch, row: int) -> TablecastError | None:
        """Why the row path refuses this row; None if it takes it."""
        try:
            self._write(given, row)
        except TablecastError as error:
            return error
        return None

    def _write(self, given: pa.RecordBatch, at: int) -> None:
        schema, codec = self._schema, self._codec
        columns = [schema.columns[schema.column_names.index(name)] for name in given.schema.names]
        # In the table's order, so that the first column at fault is the one a write would name.
        order = sorted(range(len(columns)), key=lambda i: schema.column_names.index(columns[i].name))
        values = [given_value(columns[i], given.column(i), at) for i in order]
        row = codec.builder(tuple(columns[i].name for i in order))(values, self._values)
        check_row(schema, self._checks, row)
        bodies = encode_rows(schema, codec.encode, [row])
        keys = codec.keys_of_rows(codec.prefix(None), [row])
        run = ChangeRun(schema.table_id, schema.version, Op.INSERT, keys, [], [row], bodies, None)
        route_run(run, self._routes, self._payloads, schema.full_name)


def reject(row: int, error: TablecastError) -> Reject:
    column = error.details.get("column")
    return Reject(row, column if isinstance(column, str) else None, error.code, error.message)
