"""Which rows of a batch the target takes, and what is the matter with the others.

Types are judged column by column, by the very casts and coercions of a write (core.columns_cast); what else a table asks
of a row (CHECK, size) by the row path itself, which also has the words for a row that is refused (core.seal_judge).
Whether a key is new is not judged here: the commit alone knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablecast.codec.arrow_types import arrow_field
from tablecast.codec.rows import row_codec
from tablecast.core.columns_cast import cast_column, given_value, required
from tablecast.core.expression import compile_filter
from tablecast.core.row_rules import MAX_ROW_BYTES
from tablecast.core.seal_judge import Reject, RowJudge, reject
from tablecast.core.seal_values import LoadValues
from tablecast.errors import TablecastError
from tablecast.model.schema import Column, TableSchema


@dataclass(frozen=True, slots=True)
class Verdict:
    """`good` has the target's own types; `rejects` count from 0 over the batch."""

    good: pa.RecordBatch
    rejects: tuple[Reject, ...]


class _Unknown(LoadValues):
    """Stands for what the server will generate: whether a row fits does not depend on it."""

    def snowflake_id(self) -> int:
        return 1


class Judge:
    """For one version of the target and one set of columns, which are named as the target's are."""

    def __init__(self, schema: TableSchema, columns: Sequence[str], mode: str) -> None:
        self._schema = schema
        self._columns = [schema.columns[schema.column_names.index(name)] for name in columns]
        self._arrow = pa.schema([arrow_field(column.name, column.type) for column in self._columns])
        self._codec = row_codec(schema)
        self._keys_only = mode == "delete"
        self._checks = [] if self._keys_only else [compile_filter(check, schema) for check in schema.checks]
        self._rows = RowJudge(schema, self._checks, (), _Unknown(0, "nobody"))

    def verdict(self, batch: pa.RecordBatch) -> Verdict:
        """The batch's columns are in the order of `columns`."""
        given = pa.RecordBatch.from_arrays(batch.columns, schema=_plain(batch, self._arrow))
        cast = [cast_column(column, array) for column, array in zip(self._columns, given.columns, strict=True)]
        suspects = self._suspects(given, cast)
        rejects = [found for row in suspects if (found := self._refusal(given, row)) is not None]
        good = pa.RecordBatch.from_arrays([array for array, _ in cast], schema=self._arrow)
        if rejects:
            kept = np.ones(given.num_rows, np.bool_)
            kept[[found.row for found in rejects]] = False
            good = good.filter(pa.array(kept))
        return Verdict(good, tuple(rejects))

    def _suspects(self, given: pa.RecordBatch, cast: Sequence[tuple[pa.Array, Any]]) -> Iterator[int]:
        """Rows that the row path is asked about; the others fit."""
        if self._checks:
            return iter(range(given.num_rows))
        marked = np.zeros(given.num_rows, np.bool_)
        for column, (array, refused) in zip(self._columns, cast, strict=True):
            missing = required(array) if self._is_required(column) else None
            for mark in (refused, missing, self._long(array)):
                if mark is not None:
                    marked |= mark
        return map(int, np.flatnonzero(marked))

    def _is_required(self, column: Column) -> bool:
        return self._schema.is_required(column)

    def _long(self, array: pa.Array) -> Any:
        """Values that may make their row too large."""
        if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
            return None
        limit = MAX_ROW_BYTES // (2 * len(self._schema.columns))
        return np.asarray(pc.fill_null(pc.greater(pc.binary_length(array), limit), False))

    def _refusal(self, given: pa.RecordBatch, row: int) -> Reject | None:
        error = self._key_refusal(given, row) if self._keys_only else self._rows.refusal(given, row)
        return None if error is None else reject(row, error)

    def _key_refusal(self, given: pa.RecordBatch, row: int) -> TablecastError | None:
        held = {
            column.name: given_value(column, array, row)
            for column, array in zip(self._columns, given.columns, strict=True)
        }
        try:
            self._codec.coerce_key([held[name] for name in self._schema.primary_key])
        except TablecastError as error:
            return error
        return None


def _plain(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in zip(wanted.names, batch.schema.types, strict=True)])
