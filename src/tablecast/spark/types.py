"""The types of tablecast's columns in Spark, and in the Arrow batches that Spark takes.

Spark checks a batch's schema strictly: plain strings only, timestamps as microseconds in UTC, times as nanoseconds.

    BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s)   their Spark namesakes
    TEXT, JSON, UUID     string (JSON is its text, a UUID lower case with hyphens)
    BYTES                binary
    TIMESTAMP            timestamp (UTC)
    DATE, TIME           date, time(6)

Spark has no unsigned integers. Offsets, commit numbers and message ids stay below 2^63; a content hash uses all 64 bits
and keeps them, as a signed number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    TimeType,
)

from tablecast.errors import InvalidRequest
from tablecast.model.schema import ColumnType, TableSchema, TypeName

SEQ = "_seq"

_SPARK: dict[TypeName, DataType] = {
    TypeName.BOOLEAN: BooleanType(),
    TypeName.SMALLINT: ShortType(),
    TypeName.INT: IntegerType(),
    TypeName.BIGINT: LongType(),
    TypeName.FLOAT: FloatType(),
    TypeName.DOUBLE: DoubleType(),
    TypeName.TEXT: StringType(),
    TypeName.BYTES: BinaryType(),
    TypeName.JSON: StringType(),
    TypeName.TIMESTAMP: TimestampType(),
    TypeName.DATE: DateType(),
    TypeName.TIME: TimeType(6),
    TypeName.UUID: StringType(),
}

_HYPHENS = (8, 13, 18, 23)
_UUID_CHARACTERS = 36


def spark_type(column_type: ColumnType) -> DataType:
    if column_type.name is TypeName.DECIMAL:
        return DecimalType(column_type.precision, column_type.scale)
    return _SPARK[column_type.name]


def _struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


ENVELOPE = _struct(
    ("topic_id", LongType()),
    ("partition_id", IntegerType()),
    ("offset", LongType()),
    ("message_id", LongType()),
    ("source_table", StringType()),
    ("op", StringType()),
    ("payload_mode", StringType()),
    ("user_id", StringType()),
    ("ts", TimestampType()),
    ("key", StringType()),
    ("payload", StringType()),
    ("seq", LongType()),
    ("content_hash", LongType()),
)

# What a decoded message tells beside its row.
DECODED_TAIL = _struct(
    ("_op", StringType()),
    ("_offset", LongType()),
    ("_partition", IntegerType()),
    ("_ts", TimestampType()),
    ("_seq", LongType()),
    ("_user", StringType()),
)


def table_struct(schema: TableSchema, *, with_seq: bool = False) -> StructType:
    """A table's columns, all nullable: a delete by key or an older message may lack what the table demands."""
    fields = [(column.name, spark_type(column.type)) for column in schema.columns]
    return _struct(*fields, *([(SEQ, LongType())] if with_seq else []))


def decoded_struct(schema: TableSchema) -> StructType:
    for name in DECODED_TAIL.fieldNames():
        if name in schema.column_names:
            raise InvalidRequest(
                f"{schema.full_name} has a column {name!r}, which decoded messages have too: read it without "
                '"decode"', column=name
            )  # fmt: skip
    return StructType(table_struct(schema).fields + DECODED_TAIL.fields)


def arrow_of(struct: StructType) -> pa.Schema:
    """The Arrow schema that Spark demands of a batch of this struct."""
    return to_arrow_schema(struct, timezone="UTC")


def spark_columns(columns: Sequence[pa.Array], schema: pa.Schema) -> list[pa.Array]:
    """Columns as tablecast's own Arrow has them (see `codec.arrow_types`) in the types that Spark takes."""
    return [_spark_column(column, field.type) for column, field in zip(columns, schema, strict=True)]


def _spark_column(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    if column.type == pa.uuid():
        return uuid_text(column)
    if pa.types.is_uint64(column.type):
        return column.view(wanted)
    return column.cast(wanted)


def uuid_text(column: pa.Array) -> pa.Array:
    """UUIDs as text, by a table of two hexadecimal digits per byte."""
    stored = column.storage
    n = len(stored)
    raw = np.frombuffer(stored.buffers()[1], np.uint8).reshape(-1, 16)[stored.offset : stored.offset + n]
    text = np.full((n, _UUID_CHARACTERS), ord("-"), np.uint8)
    text[:, _DIGIT_PLACES] = _HEX[raw].reshape(n, 32)
    offsets = np.arange(0, (n + 1) * _UUID_CHARACTERS, _UUID_CHARACTERS, dtype=np.int32)
    valid = None if not stored.null_count else _bitmap(stored)
    return pa.Array.from_buffers(pa.string(), n, [valid, pa.py_buffer(offsets), pa.py_buffer(text)])


def _bitmap(column: pa.Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
_DIGIT_PLACES = np.array([i for i in range(_UUID_CHARACTERS) if i not in _HYPHENS])
