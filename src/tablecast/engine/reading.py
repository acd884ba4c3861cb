"""Reading tables: by key, by key range, or whole; as rows or as Arrow. Expired rows are never shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from tablecast.codec import keys
from tablecast.codec.arrow_types import arrow_schema
from tablecast.codec.row_columns import row_columns, stamps
from tablecast.codec.rows import Row
from tablecast.engine.catalog import Table
from tablecast.engine.rows import is_live
from tablecast.model.schema import TypeName
from tablecast.storage.base import Family, Reader

SEQ_COLUMN = "_seq"
MANY_ROWS = 256  # from here on columns are built all at once; below, what that takes costs more than it saves
PIECE_ROWS = 16_384  # in a record batch


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Part of a table in key order. `prefix` are values of the first key columns that all rows share; `lower` and
    `upper` bound the next key column, as (value, inclusive)."""

    prefix: tuple[Any, ...] = ()
    lower: tuple[Any, bool] | None = None
    upper: tuple[Any, bool] | None = None
    reverse: bool = False


WHOLE = KeyRange()


def key_bounds(table: Table, user_id: str | None, part: KeyRange) -> tuple[bytes, bytes | None]:
    """The storage keys start <= key < end of a key range."""
    types = table.codec.key_types
    fixed = table.codec.prefix(user_id)
    for column_type, value in zip(types, part.prefix, strict=False):
        fixed += keys.element(column_type)[0](value)
    start, end = fixed, keys.after(fixed)
    if part.lower is not None or part.upper is not None:
        encode = keys.element(types[len(part.prefix)])[0]
        if part.lower is not None:
            value, inclusive = part.lower
            start = fixed + encode(value)
            start = start if inclusive else keys.after(start) or start
        if part.upper is not None:
            value, inclusive = part.upper
            end = fixed + encode(value)
            end = keys.after(end) if inclusive else end
    return start, end


def scan_values(
    reader: Reader, table: Table, user_id: str | None, part: KeyRange, now_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    """(key, stored value) of live rows, in key order."""
    start, end = key_bounds(table, user_id, part)
    if end is not None and start >= end:
        return iter(())
    found = reader.scan(Family.ROWS, start, end, reverse=part.reverse)
    if table.ttl_ms is None:
        return found
    return ((key, value) for key, value in found if is_live(table, value, now_ms))


def lookup_values(reader: Reader, table: Table, wanted: Sequence[bytes], now_ms: int) -> list[tuple[bytes, bytes]]:
    """(key, stored value) of those keys that have a live row, in the order of the keys."""
    stored = reader.get_many(Family.ROWS, wanted)
    return [
        (key, value)
        for key, value in zip(wanted, stored, strict=True)
        if value is not None and is_live(table, value, now_ms)
    ]


def rows_arrow(table: Table, rows: Sequence[Row], seqs: Sequence[int] | None = None) -> pa.Table:
    """Rows as an Arrow table, with their commit numbers as `_seq` if given."""
    schema = arrow_schema(table.schema)
    columns = []
    for i, (column, field) in enumerate(zip(table.schema.columns, schema, strict=True)):
        name = f"c{i}"
        values = [getattr(row, name) for row in rows]
        if column.type.name is TypeName.UUID:
            stored = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
            columns.append(pa.ExtensionArray.from_storage(field.type, stored))
        else:
            columns.append(pa.array(values, field.type))
    if seqs is not None:
        schema = schema.append(pa.field(SEQ_COLUMN, pa.int64()))
        columns.append(pa.array(seqs, pa.int64()))
    return pa.Table.from_arrays(columns, schema=schema)


def values_arrow(table: Table, found: Iterable[tuple[bytes, bytes]], limit: int | None = None) -> pa.Table:
    """Stored values as an Arrow table with `_seq`."""
    values = [value for _, value in (found if limit is None else islice(found, limit))]
    if len(values) < MANY_ROWS:
        return rows_arrow(table, [table.codec.decode(value) for value in values], [table.stamp(v)[0] for v in values])
    pieces = [values[at : at + PIECE_ROWS] for at in range(0, len(values), PIECE_ROWS)]
    return pa.Table.from_batches([values_batch(table, piece) for piece in pieces])


def values_batch(table: Table, values: Sequence[bytes], *, with_seq: bool = True) -> pa.RecordBatch:
    """Many stored values at once, without making rows of them."""
    seqs = stamps(values, table.stamp)  # also if nobody wants them: it looks at the formats
    columns = row_columns(table.schema).columns(values)
    schema = columns_schema(table, with_seq=with_seq)
    return pa.RecordBatch.from_arrays([*columns, pa.array(seqs)] if with_seq else columns, schema=schema)


def columns_schema(table: Table, *, with_seq: bool) -> pa.Schema:
    schema = arrow_schema(table.schema)
    return schema.append(pa.field(SEQ_COLUMN, pa.int64())) if with_seq else schema
