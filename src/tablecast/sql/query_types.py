"""Arrow on its way into DuckDB and out of it.

In: a TIMESTAMP is an instant in UTC. DuckDB's TIMESTAMP without a zone does arithmetic on instants, its
zoned type on a session's calendar; so columns go in without their zone (the same bytes) and come out with
it. JSON is text that says so in its field's metadata, `tablecast.type = JSON`, and becomes DuckDB's JSON,
so that the result can say so too. UUID is Arrow's own extension type both ways.

Out: only the types of `codec.arrow_types`, plus lists, structs, maps and intervals made by the query:

    small and unsigned integers   the next wider signed type; uint64 as HUGEINT HUGEINT (SUM of BIGINT)
    decimal128(38, 0) marked `tablecast.type = HUGEINT`: the same 16 bytes, read as int enum, large or view
    strings   string NULL without a type           string naive or zoned timestamps     timestamp[us, UTC]
    BOOLEAN                       bool, where DuckDB uses a byte each
    JSON                          string marked `tablecast.type = JSON` BIT, TIMETZ, UHUGEINT, …
    refused: cast them
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tablecast.codec.arrow_types import TYPE_MARK
from tablecast.errors import UnsupportedSql
from tablecast.model.schema import TypeName
from tablecast.sql.query_bind import SEQ

JSON_MARK = {TYPE_MARK: b"JSON"}
HUGEINT_MARK = {TYPE_MARK: b"HUGEINT"}

_INSTANT = pa.timestamp("us", tz="UTC")
_HUGEINT = pa.decimal128(38, 0)
_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int16(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): _HUGEINT,
    pa.float16(): pa.float32(),
    pa.null(): pa.string(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


# --- in ------------------------------------------------------------------------------------------------


def scannable(data: pa.Table | pa.RecordBatchReader, *, with_seq: bool, uses: int) -> Any:
    """What to register for a table that the query names `uses` times. A reader gives its rows only once."""
    if isinstance(data, pa.RecordBatchReader):
        if uses > 1:
            return scannable(data.read_all(), with_seq=with_seq, uses=uses)
        return _scannable_reader(data, with_seq)
    names, target = _target(data.schema, with_seq)
    table = data if len(names) == data.num_columns else data.select(names)
    return table if target is None else table.cast(target)


def _scannable_reader(reader: pa.RecordBatchReader, with_seq: bool) -> pa.RecordBatchReader:
    names, target = _target(reader.schema, with_seq)
    schema = target or pa.schema([reader.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (batch.select(names).cast(schema) for batch in reader))


def _target(schema: pa.Schema, with_seq: bool) -> tuple[list[str], pa.Schema | None]:
    names = [name for name in schema.names if with_seq or name != SEQ]
    fields = [schema.field(name) for name in names]
    types = [_input_type(field) for field in fields]
    if all(given is field.type for given, field in zip(types, fields, strict=True)):
        return names, None
    return names, pa.schema([pa.field(name, given) for name, given in zip(names, types, strict=True)])


def _input_type(field: pa.Field[Any]) -> pa.DataType:
    kind: pa.DataType = field.type
    if isinstance(kind, pa.TimestampType) and kind.tz is not None:
        return pa.timestamp(kind.unit)
    if field.metadata and field.metadata.get(TYPE_MARK) == b"JSON" and kind == pa.string():
        return pa.json_()
    return kind


def column_kinds(schemas: Iterable[pa.Schema]) -> dict[str, set[TypeName | None]]:
    """Which columns of a name are TIMESTAMP and which TEXT, None for any other: what `query_casts` asks."""
    kinds: dict[str, set[TypeName | None]] = {}
    for schema in schemas:
        for field in schema:
            kinds.setdefault(field.name.lower(), set()).add(_kind(field))
    return kinds


def _kind(field: pa.Field[Any]) -> TypeName | None:
    if pa.types.is_timestamp(field.type):
        return TypeName.TIMESTAMP
    return TypeName.TEXT if pa.types.is_string(field.type) and not field.metadata else None


# --- out -----------------------------------------------------------------------------------------------


def plain(table: pa.Table) -> pa.Table:
    """The result in plain types. Columns of one name stay as they are, in their order."""
    if all(_is_plain(field) for field in table.schema):
        return table
    columns = [_plain_column(column, field) for column, field in zip(table.columns, table.schema, strict=True)]
    fields = [field for field, _ in columns]
    return pa.Table.from_arrays([column for _, column in columns], schema=pa.schema(fields))


def _is_plain(field: pa.Field[Any]) -> bool:
    if isinstance(field.type, pa.BaseExtensionType):
        return isinstance(field.type, pa.UuidType)
    return bool(plain_type(field.type, field.name) == field.type)


def _plain_column(column: Any, field: pa.Field[Any]) -> tuple[pa.Field[Any], Any]:
    kind: Any = field.type
    chunks: list[Any]
    if isinstance(kind, pa.JsonType):
        return pa.field(field.name, pa.string(), metadata=JSON_MARK), column.cast(pa.string())
    if isinstance(kind, pa.OpaqueType) and kind.type_name == "hugeint":
        chunks = [_as_decimal(chunk) for chunk in column.chunks]
        return pa.field(field.name, _HUGEINT, metadata=HUGEINT_MARK), _chunked(chunks, _HUGEINT)
    if isinstance(kind, pa.Bool8Type):
        chunks = [chunk.storage.cast(pa.bool_()) for chunk in column.chunks]
        return pa.field(field.name, pa.bool_()), _chunked(chunks, pa.bool_())
    target = plain_type(kind, field.name)
    mark = HUGEINT_MARK if kind == pa.uint64() else None
    # `safe` would refuse nanoseconds that no microsecond equals; they are cut off, as DuckDB's own cast does.
    return pa.field(field.name, target, metadata=mark), column.cast(target, safe=False)


def _chunked(chunks: Any, kind: Any) -> Any:
    return pa.chunked_array(chunks, type=kind)


def _as_decimal(hugeints: Any) -> Any:
    """Both are 16 bytes, little-endian, two's complement."""
    storage = hugeints.storage
    return pa.Array.from_buffers(_HUGEINT, len(storage), storage.buffers(), offset=storage.offset)


def plain_type(kind: pa.DataType, column: str) -> pa.DataType:
    if isinstance(kind, pa.TimestampType):
        return _INSTANT
    if isinstance(kind, pa.DictionaryType):
        return plain_type(kind.value_type, column)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_extension(kind, column)
    if pa.types.is_nested(kind):
        return _plain_nested(kind, column)
    return _WIDER.get(kind, kind)


def _plain_extension(kind: pa.DataType, column: str) -> pa.DataType:
    if isinstance(kind, pa.UuidType):
        return kind
    if isinstance(kind, pa.JsonType):
        return pa.string()
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    name = kind.type_name if isinstance(kind, pa.OpaqueType) else str(kind)
    raise UnsupportedSql(f"column {column!r} has the type {name.upper()}: cast it to TEXT", column=column)


def _plain_nested(kind: pa.DataType, column: str) -> pa.DataType:
    if isinstance(kind, pa.MapType):
        return pa.map_(plain_type(kind.key_type, column), plain_type(kind.item_type, column))
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(plain_type(field.type, column)) for field in kind.fields])
    if isinstance(kind, pa.ListType | pa.FixedSizeListType | pa.LargeListType):
        return pa.list_(plain_type(kind.value_type, column))
    raise UnsupportedSql(f"column {column!r} has the type {kind}: cast it to TEXT", column=column)
