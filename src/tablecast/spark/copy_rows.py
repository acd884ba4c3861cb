"""Which rows of a batch a table takes, where the rows themselves are sent and the server decides them; and their keys.

The same casts, NOT NULL, CHECKs and words as sealing has (core.seal): columns tell that a row is at fault, and the row
path why. What depends on other rows, or on what only the server generates, is not judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tablecast.codec.arrow_types import arrow_field
from tablecast.core.columns_cast import cast_column, nulls, required
from tablecast.core.columns_key import row_keys
from tablecast.core.expression import compile_filter
from tablecast.core.seal_judge import Reject, RowJudge, reject
from tablecast.core.seal_values import LoadValues
from tablecast.model.schema import TableSchema
from tablecast.spark.worker import settle


class _AnyValues(LoadValues):
    """Stands for what only the server can generate: whether a row fits does not depend on it."""

    def snowflake_id(self) -> int:
        return 1


class RowsJudge:
    """For rows that come batch after batch: rejects are numbered through all of them."""

    def __init__(self, table: TableSchema, rejected: Callable[[Sequence[Reject]], None]) -> None:
        self._table, self._rejected = table, rejected
        checks = [compile_filter(check, table) for check in table.checks]
        self._judge = RowJudge(table, checks, (), _AnyValues(0, ""))
        self._asks_all = bool(checks)  # a CHECK may need columns that only the server fills
        self._count = 0

    def fitting(self, given: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that fit, in the table's types. The others are told."""
        typed, refused = _cast(self._table, given)
        suspects = np.ones(given.num_rows, np.bool_) if self._asks_all else refused
        found = self._reasons(given, np.flatnonzero(suspects).tolist())
        if found:
            self._rejected([each._replace(row=self._count + each.row) for each in found])
            kept = np.ones(given.num_rows, np.bool_)
            kept[[each.row for each in found]] = False
            typed = typed.filter(pa.array(kept))
        self._count += given.num_rows
        return typed

    def _reasons(self, given: pa.RecordBatch, rows: Sequence[int]) -> list[Reject]:
        judged = ((row, self._judge.refusal(given, row)) for row in rows)
        return [reject(row, error) for row, error in judged if error is not None]


def _cast(table: TableSchema, given: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
    """The given columns in the table's types, and the rows that one of them refuses."""
    arrays, fields = [], []
    refused = np.zeros(given.num_rows, np.bool_)
    for name, values in zip(given.schema.names, given.columns, strict=True):
        column = table.columns[table.column_names.index(name)]
        array, unfit = cast_column(column, values)
        lacking = required(array) if column.not_null or name in table.primary_key else None
        for rows in (unfit, lacking):
            refused |= np.False_ if rows is None else rows
        arrays.append(array)
        fields.append(arrow_field(name, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), refused


@dataclass(frozen=True)
class AddKeys:
    """Adds the key that each row has in the table, as bytes; NULL where a value cannot be of a key. Travels to the
    executors. `alone`: nothing but the keys."""

    table: TableSchema
    name: str
    alone: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            keys = self._keys(batch)
            yield (
                pa.RecordBatch.from_arrays([keys], names=[self.name])
                if self.alone
                else batch.append_column(self.name, keys)
            )

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        table = self.table
        typed, refused = _cast(table, batch.select(list(table.primary_key)))
        good = pa.array(~refused)
        sound = typed.filter(good)
        columns = [
            sound.column(column.name) if column.name in table.primary_key else nulls(column.type, sound.num_rows)
            for column in table.columns
        ]
        made = row_keys(table, pa.RecordBatch.from_arrays(columns, names=list(table.column_names)))
        if not refused.any():
            return made
        places = np.cumsum(~refused) - 1
        return made.take(pa.array(places, mask=refused))
