"""Reading tables: by key, by key range, or whole; as rows or as Arrow. Expired rows are never shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tablecast.codec import keys
from tablecast.codec.arrow_types import arrow_schema
from tablecast.codec.rows import Row, row_stamp
from tablecast.engine.catalog import Table
from tablecast.engine.rows import is_live
from tablecast.model.schema import TypeName
from tablecast.storage.base import Family, Reader

SEQ_COLUMN = "_seq"


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
    decode = table.codec.decode
    rows: list[Row] = []
    seqs: list[int] = []
    for _, value in found:
        if limit is not None and len(rows) >= limit:
            break
        rows.append(decode(value))
        seqs.append(row_stamp(value)[0])
    return rows_arrow(table, rows, seqs)
