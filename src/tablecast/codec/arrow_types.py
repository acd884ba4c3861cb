"""The one Arrow type of every column type.

A TIMESTAMP is microseconds in UTC. JSON is its text. A UUID is Arrow's own `arrow.uuid` extension over 16
bytes: DuckDB reads it as its UUID type without a cast, and gives it back when `arrow_lossless_conversion`
is on (text otherwise); the bytes compare as UUIDs do.
"""

from __future__ import annotations

import pyarrow as pa

from tablecast.model.schema import ColumnType, TableSchema, TypeName

TYPE_MARK = b"tablecast.type"

_FIXED: dict[TypeName, pa.DataType] = {
    TypeName.BOOLEAN: pa.bool_(),
    TypeName.SMALLINT: pa.int16(),
    TypeName.INT: pa.int32(),
    TypeName.BIGINT: pa.int64(),
    TypeName.FLOAT: pa.float32(),
    TypeName.DOUBLE: pa.float64(),
    TypeName.TEXT: pa.string(),
    TypeName.BYTES: pa.binary(),
    TypeName.JSON: pa.string(),
    TypeName.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    TypeName.DATE: pa.date32(),
    TypeName.TIME: pa.time64("us"),
    TypeName.UUID: pa.uuid(),
}


def arrow_type(column_type: ColumnType) -> pa.DataType:
    if column_type.name is TypeName.DECIMAL:
        return pa.decimal128(column_type.precision, column_type.scale)
    return _FIXED[column_type.name]


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """One field per column, in order. Fields are nullable whatever the column says: a batch may hold keys only."""
    return pa.schema([arrow_field(column.name, column.type) for column in schema.columns])


def arrow_field(name: str, column_type: ColumnType) -> pa.Field:
    """JSON is text to Arrow: a mark in the field's metadata keeps what it is."""
    metadata = {TYPE_MARK: TypeName.JSON.encode()} if column_type.name is TypeName.JSON else None
    return pa.field(name, arrow_type(column_type), metadata=metadata)
