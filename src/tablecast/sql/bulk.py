"""Rows without SQL: many rows of one table as one statement, from Python values, as they were packed, or Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tablecast.codec import column_rows
from tablecast.codec.given import given_list, given_text, given_value
from tablecast.codec.packed_rows import PackedRows
from tablecast.codec.rows import Row, unknown_column
from tablecast.core.rights import require_write, row_owner
from tablecast.engine.arrow_rows import arrow_rows, replace_named
from tablecast.engine.catalog import Table
from tablecast.engine.generated import StatementValues
from tablecast.engine.rows import DeleteRows
from tablecast.errors import InvalidRequest, TypeMismatch
from tablecast.model.names import read_name
from tablecast.model.schema import TableSchema, TypeName
from tablecast.sql.context import Context, Write, find_table, refuse_system
from tablecast.sql.plan_insert import insert_rows, write_result
from tablecast.sql.readings import read_text

MODES = ("insert", "upsert", "delete")


def plan_rows(context: Context, name: str, rows: Any, columns: Sequence[str] | None, mode: str) -> Write:
    if mode not in MODES:
        raise InvalidRequest(f"mode {mode!r} is unknown: use one of {', '.join(MODES)}", mode=mode)
    target = read_name(name)
    columns = None if columns is None else [given_text(each, "a column") for each in given_list(columns, "columns")]
    refuse_system(target, mode)
    table = find_table(context.catalog, target, context.namespace)
    require_write(context.actor, table.schema)
    if isinstance(rows, pa.Table | pa.RecordBatch):
        columns, rows = tuple(rows.column_names), arrow_rows(table, rows)
    if mode == "delete":
        return _delete(context, table, rows.plain() if isinstance(rows, PackedRows) else rows, columns)
    made, named = _built(table, rows, columns, context.values())
    resolve = replace_named(table, made, named) if mode == "upsert" else None
    command = insert_rows(context, table, made, resolve, False)
    return Write(command, lambda written: write_result(mode.upper(), written, None))


def _built(
    table: Table, rows: Sequence[Any] | PackedRows, columns: Sequence[str] | None, values: StatementValues
) -> tuple[Sequence[Row], list[tuple[str, ...]]]:
    """As `_build`. BYTES may be given as base64 text, and numbers by NumPy, which is rare: it is looked for when it is missed."""
    try:
        return _build(table, rows, columns, values)
    except (TypeMismatch, InvalidRequest, *_FOREIGN):
        plain = rows.plain() if isinstance(rows, PackedRows) else rows
    try:
        return _build(table, [_plain(table.schema, row, columns) for row in plain], columns, values)
    except _FOREIGN as e:
        raise InvalidRequest(f"rows are mappings or sequences of values: {e}") from None


_FOREIGN = (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError)


def _plain(schema: TableSchema, row: Any, columns: Sequence[str] | None) -> Any:
    """A row with Python's values, and its texts for BYTES read; what else is wrong with it is found when it is built."""
    row = given_value(row)
    names = schema.column_names if columns is None else columns
    found = {column.name: column for column in schema.columns if column.type.name is TypeName.BYTES}
    if isinstance(row, Mapping):
        return {name: read_text(value, found.get(name)) for name, value in row.items()}
    if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != len(names):
        return row
    read = [read_text(value, found.get(name)) for name, value in zip(names, row, strict=True)]
    return tuple(read) if isinstance(row, tuple) else read


def _build(
    table: Table, rows: Sequence[Any] | PackedRows, columns: Sequence[str] | None, values: StatementValues
) -> tuple[Sequence[Row], list[tuple[str, ...]]]:
    """Rows, and which columns each of them named."""
    if isinstance(rows, PackedRows):
        every = table.schema.column_names
        if columns is None or tuple(columns) == every:
            made: Sequence[Row] | None
            if len(rows) >= column_rows.MANY:
                made = rows.columns(table.schema)
            else:
                made = rows.read(table.schema, table.codec.builder(every), values)
            if made is not None:
                return made, [every] * len(made)
        rows = rows.plain()
    if not rows:
        return [], []
    named = table.schema.column_names if columns is None else tuple(columns)
    is_mapping = isinstance(rows[0], Mapping)
    if is_mapping and columns is not None:
        raise InvalidRequest("columns goes with sequences; mappings name their columns themselves")
    if len(rows) >= column_rows.MANY and named == table.schema.column_names:
        read = _read_columns(table, rows, named if is_mapping else None)
        if read is not None:
            return read, [named] * len(rows)
    if is_mapping:
        return _build_mappings(table, rows, values)
    build = table.codec.builder(named)
    try:
        return [build(row, values) for row in rows], [named] * len(rows)
    except (ValueError, TypeError):
        _explain_width(rows, named)
        raise


def _read_columns(table: Table, rows: Sequence[Any], names: tuple[str, ...] | None) -> Sequence[Row] | None:
    """`names` of mappings. None if rows must be built one by one, or are built as quickly."""
    reader = column_rows.column_reader(table.codec)
    if not reader.pays:
        return None
    given = rows if names is None else _in_order(rows, names)
    return None if given is None else reader.read(given)


def _in_order(rows: Sequence[Any], names: tuple[str, ...]) -> list[Any] | None:
    """Mappings that name all columns, as sequences; None if one of them names others, or fewer."""
    if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(names)} or len(names) == 1:
        return None
    try:
        return list(map(itemgetter(*names), rows))
    except KeyError:
        return None


def _build_mappings(
    table: Table, rows: Sequence[Mapping[str, Any]], values: StatementValues
) -> tuple[list[Row], list[tuple[str, ...]]]:
    made: list[Row] = []
    named: list[tuple[str, ...]] = []
    columns: tuple[str, ...] = ()
    first: Any = None
    build: Any = None
    pick: Any = None
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"rows are either all mappings or all sequences, not {type(row).__name__} among them")
        if build is None or row.keys() != first:
            columns, first = tuple(row), row.keys()
            build = table.codec.builder(columns)
            pick = itemgetter(*columns) if len(columns) > 1 else lambda row, columns=columns: [row[c] for c in columns]
        made.append(build(pick(row), values))
        named.append(columns)
    return made, named


def _explain_width(rows: Sequence[Any], named: tuple[str, ...]) -> None:
    for row in rows:
        if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != len(named):
            shown = len(row) if isinstance(row, Sequence) else type(row).__name__
            raise InvalidRequest(f"a row has {len(named)} values ({', '.join(named)}), not {shown}") from None


def _delete(context: Context, table: Table, rows: Sequence[Any], columns: Sequence[str] | None) -> Write:
    schema = table.schema
    owner = row_owner(context.actor, schema)
    prefix, codec = table.codec.prefix(owner), table.codec
    keys = []
    for given in rows:
        row = given_value(given)
        if not isinstance(row, Mapping):
            named = tuple(columns or schema.primary_key)
            _explain_width([row], named)
            row = dict(zip(named, row, strict=True))
        for name in row:
            if schema.index_of(name) is None:
                raise unknown_column(schema, name)
        missing = [name for name in schema.primary_key if name not in row]
        if missing:
            raise InvalidRequest(f"delete from {schema.full_name} needs the primary key: {missing[0]!r} is missing")
        row = _plain(schema, row, None)
        keys.append(codec.encode_key(prefix, codec.coerce_key([row[name] for name in schema.primary_key])))
    command = DeleteRows(schema.table_id, schema.version, owner, keys)
    return Write(command, lambda written: write_result("DELETE", written, None))
