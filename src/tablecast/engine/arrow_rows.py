"""Arrow columns as rows of a table, and what an upsert leaves of the row that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tablecast.codec.arrow_types import arrow_type
from tablecast.codec.rows import Row, unknown_column
from tablecast.engine.catalog import Table
from tablecast.engine.rows import Resolve, encode_rows
from tablecast.errors import TypeMismatch


def arrow_rows(table: Table, given: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Cast to the table's types at once, then plain tuples."""
    columns = []
    for name in given.column_names:
        index = table.schema.index_of(name)
        if index is None:
            raise unknown_column(table.schema, name)
        wanted = arrow_type(table.schema.columns[index].type)
        try:
            column = given.column(name)
            columns.append((column if column.type == wanted else column.cast(wanted)).to_pylist())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise TypeMismatch(
                f"column {name!r} cannot be cast from {given.column(name).type} to {wanted}: {e}", column=name
            ) from e
    return list(zip(*columns, strict=True)) if columns else []


def replace_named(table: Table, rows: Sequence[Row], named: Sequence[tuple[str, ...]]) -> Resolve:
    """Upsert: the columns that a row names are overwritten, others stay."""
    indexes = {columns: named_indexes(table, columns) for columns in set(named)}
    chosen = {id(row): indexes[columns] for row, columns in zip(rows, named, strict=True)}
    return lambda existing, proposed: overwritten(table, existing, proposed, chosen[id(proposed)])


def named_indexes(table: Table, columns: Sequence[str]) -> list[int]:
    """Where these columns stand, without those of the primary key."""
    names, in_key = table.schema.column_names, table.schema.key_indexes
    return [i for c in columns if (i := names.index(c)) not in in_key]


def overwritten(table: Table, existing: Row, proposed: Row, indexes: Sequence[int]) -> Row:
    kept, given = list(msgspec.structs.astuple(existing)), msgspec.structs.astuple(proposed)
    for i in indexes:
        kept[i] = given[i]
    after = table.codec.struct(*kept)
    encode_rows(table, [after])  # the two together may be over the limit
    return after
