"""Rows: one table's values in the shape they are stored, routed and filtered in.

Stored value of a row (family ROWS):

    byte 0       format version, 1
    bytes 1-8    commit number that last wrote the row, u64 big-endian
    bytes 9-16   time of that commit, UTC milliseconds, u64 big-endian
    rest         the body: a MessagePack array, one value per column in the table's order

A row that a sealed load brought was finished before anybody knew its commit. Its header names the load instead, whose
record (codec.catalog.LoadStamp) has the rest:

    byte 0       format version, 2
    bytes 1-8    load number, u64 big-endian
    bytes 9-16   zero
    rest         the body, as above

In the body a DECIMAL is its text, a TIMESTAMP MessagePack's timestamp extension, a UUID 16 bytes, DATE and TIME their
ISO text, JSON its compact text; NULL is nil. Columns are only appended to a table, so a body that is shorter than the
table has columns was written before they were added: they hold their default.

In memory a row is a struct with one attribute per column, `c0`, `c1`, …: the expression compiler and the payload
encoder generate code that reads them. `RowCodec` generates the code that builds one from what a caller gave: per
column one test for the usual exact type, and the full coercion only when it fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from threading import Lock
from typing import Any, Protocol
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from tablecast.codec import keys
from tablecast.codec.values import INT_BITS, Coerce, coercion, decimal_bound
from tablecast.errors import CorruptData, InvalidRequest, NotNullViolation, TablecastError, UnknownColumn
from tablecast.model.schema import Column, DefaultKind, TableSchema, TypeName

ROW_FORMAT = 1
LOADED_FORMAT = 2
_FORMAT_BYTES = (bytes([ROW_FORMAT]), bytes([LOADED_FORMAT]))
_HEADER = struct.Struct(">BQQ")
HEADER_SIZE = _HEADER.size
_U64 = struct.Struct(">Q")

Row = Any  # a generated struct; its attributes are c0, c1, …
BuildRow = Callable[[Sequence[Any], "Defaults"], Row]

_PYTHON_TYPES: dict[TypeName, Any] = {
    TypeName.BOOLEAN: bool,
    TypeName.SMALLINT: int,
    TypeName.INT: int,
    TypeName.BIGINT: int,
    TypeName.FLOAT: float,
    TypeName.DOUBLE: float,
    TypeName.DECIMAL: Decimal,
    TypeName.TEXT: str,
    TypeName.BYTES: bytes,
    TypeName.JSON: str,
    TypeName.TIMESTAMP: datetime,
    TypeName.DATE: date,
    TypeName.TIME: time,
    TypeName.UUID: UUID,
}

# When this test fails, the value goes through the full coercion. Types without a test always do.
_USUAL = {
    TypeName.BOOLEAN: "{v} is not True and {v} is not False",
    TypeName.SMALLINT: "{v}.__class__ is not int or not {low} <= {v} <= {high}",
    TypeName.INT: "{v}.__class__ is not int or not {low} <= {v} <= {high}",
    TypeName.BIGINT: "{v}.__class__ is not int or not {low} <= {v} <= {high}",
    TypeName.DOUBLE: "{v}.__class__ is not float or {v} - {v} != 0.0",
    TypeName.DECIMAL: "not ({v}.__class__ is Decimal and {v} and {v}.same_quantum(q{i}) and -b{i} < {v} < b{i})",
    TypeName.TEXT: "{v}.__class__ is not str or not {v}.isascii()",  # beyond ASCII there may be lone surrogates
    TypeName.BYTES: "{v}.__class__ is not bytes",
    TypeName.TIMESTAMP: "{v}.__class__ is not datetime or {v}.tzinfo is not UTC",
    TypeName.DATE: "{v}.__class__ is not date",
    TypeName.UUID: "{v}.__class__ is not UUID",
}


# Generated values that a column of another type may hold too, and how it holds them.
_GENERATED_AS: dict[tuple[DefaultKind, TypeName], Callable[[Any], Any]] = {
    (DefaultKind.SNOWFLAKE_ID, TypeName.TEXT): str,
    (DefaultKind.UUID_V7, TypeName.TEXT): str,
    (DefaultKind.NOW, TypeName.DATE): datetime.date,
    (DefaultKind.NOW, TypeName.TIME): datetime.time,
}


class _UseDefault:
    """Stands for SQL's DEFAULT in a row of values."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = _UseDefault()


class Defaults(Protocol):
    """Where a statement's generated values come from: a clock, an id generator, an actor."""

    def now(self) -> datetime: ...
    def snowflake_id(self) -> int: ...
    def uuid_v7(self) -> UUID: ...
    def current_user(self) -> str: ...


def row_header(seq: int, ts_ms: int) -> bytes:
    return _HEADER.pack(ROW_FORMAT, seq, ts_ms)


def loaded_row_header(load_number: int) -> bytes:
    """The header of every row of one sealed load."""
    return _HEADER.pack(LOADED_FORMAT, load_number, 0)


def row_stamp(value: bytes) -> tuple[int, int]:
    """The commit number and time of a stored row that has them itself; of any row: `engine.catalog.Table.stamp`."""
    version, seq, ts_ms = _unpack_header(value)
    if version != ROW_FORMAT:
        raise CorruptData(f"a stored row has format {version}; one with its own commit number has {ROW_FORMAT}")
    return seq, ts_ms


def row_load(value: bytes) -> int | None:
    """The number of the load that brought a stored row; None if it has its own commit number."""
    version, number, _ = _unpack_header(value)
    if version == ROW_FORMAT:
        return None
    if version != LOADED_FORMAT:
        raise CorruptData(f"a stored row has format {version}; this tablecast reads {ROW_FORMAT} and {LOADED_FORMAT}")
    return number


def _unpack_header(value: bytes) -> tuple[int, int, int]:
    if len(value) < HEADER_SIZE:
        raise CorruptData(f"a stored row of {len(value)} bytes is shorter than its header of {HEADER_SIZE}")
    return _HEADER.unpack_from(value)


@lru_cache(maxsize=512)
def row_codec(schema: TableSchema) -> RowCodec:
    return RowCodec(schema)


class RowCodec:
    """Everything about the bytes of one version of one table."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.coercions = [_coerce_or_null(schema, column) for column in schema.columns]
        self.struct: type[Row] = _row_class(schema, self.coercions)
        self.encode: Callable[[Row], bytes] = msgspec.msgpack.Encoder(uuid_format="bytes").encode
        self._decode = msgspec.msgpack.Decoder(self.struct).decode
        self.key_types = tuple(schema.columns[i].type for i in schema.key_indexes)
        self._table_prefix = keys.table_prefix(schema.table_id)
        self.encode_key: Callable[[bytes, Sequence[Any]], bytes] = _key_encoder(schema)
        self.keys_of_rows: Callable[[bytes, Sequence[Row]], list[bytes]] = _row_key_encoder(schema)
        self.builder = lru_cache(maxsize=256)(self._builder)

    def prefix(self, user_id: str | None) -> bytes:
        """What the storage key of every row begins with; `user_id` for per-user tables."""
        if user_id is None:
            return self._table_prefix
        return keys.user_prefix(self.schema.table_id, user_id)

    def key_of_row(self, prefix: bytes, row: Row) -> bytes:
        return self.keys_of_rows(prefix, (row,))[0]

    def decode(self, value: bytes) -> Row:
        """The row in a stored value."""
        if value[:1] not in _FORMAT_BYTES:
            found = value[0] if value else "no byte"
            raise CorruptData(
                f"a row of {self.schema.full_name} has format {found}; this tablecast reads {ROW_FORMAT} and "
                f"{LOADED_FORMAT}"
            )
        try:
            return self._decode(value[HEADER_SIZE:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise CorruptData(f"a row of {self.schema.full_name} does not decode: {e}") from e

    def values(self, row: Row) -> tuple[Any, ...]:
        return msgspec.structs.astuple(row)

    def replace(self, row: Row, assignments: dict[int, Any]) -> Row:
        """The row with some columns (by index) set to given values, each coerced and checked for NULL."""
        values = list(msgspec.structs.astuple(row))
        for index, value in assignments.items():
            values[index] = self.coercions[index](value)
        return self.struct(*values)

    def default_value(self, index: int, defaults: Defaults) -> Any:
        """What a column holds when nothing is given for it."""
        default = _default_value(self.schema.columns[index], self.coercions[index])
        return default(defaults) if callable(default) else default

    def coerce_key(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.coercions[i](value) for i, value in zip(self.schema.key_indexes, values, strict=True))

    def decode_key(self, key: bytes, at: int) -> tuple[Any, ...]:
        """The primary key's values in a storage key whose prefix has `at` bytes."""
        return keys.decode_elements(self.key_types, key, at)

    def owner(self, key: bytes) -> str | None:
        return keys.decode_text(key, 4)[0] if self.schema.per_user else None

    def _builder(self, columns: tuple[str, ...]) -> BuildRow:
        """A function from values of these columns (DEFAULT allowed) to a row."""
        for i, name in enumerate(columns):
            if self.schema.index_of(name) is None:
                raise unknown_column(self.schema, name)
            if name in columns[:i]:
                raise InvalidRequest(f"column {name!r} is named twice", column=name)
        return _compile_builder(self.schema, columns, self.struct, self.coercions)


def unknown_column(schema: TableSchema, name: str) -> TablecastError:
    known = ", ".join(schema.column_names)
    return UnknownColumn(
        f"table {schema.full_name} has no column {name!r}; it has: {known}",
        table=schema.full_name,
        column=name,
    )


def _coerce_or_null(schema: TableSchema, column: Column) -> Coerce:
    coerce = coercion(column.type, column.name)
    required = schema.is_required(column)

    def coerce_or_null(value: Any) -> Any:
        if value is None:
            if required:
                raise NotNullViolation(
                    f"column {column.name!r} of {schema.full_name} is NOT NULL: give it a value",
                    table=schema.full_name,
                    column=column.name,
                )
            return None
        return coerce(value)

    return coerce_or_null


# Rows are equal only when they are of one class, so two rows of one schema must never have two: a class is kept here
# for as long as a row or a codec of it lives, however many other tables pass through the cache of codecs meanwhile.
_row_classes: WeakValueDictionary[TableSchema, type[Row]] = WeakValueDictionary()
_row_classes_lock = Lock()


def _row_class(schema: TableSchema, coercions: list[Coerce]) -> type[Row]:
    with _row_classes_lock:
        known = _row_classes.get(schema)
        if known is None:
            known = _row_classes[schema] = _new_row_class(schema, coercions)
        return known


def _new_row_class(schema: TableSchema, coercions: list[Coerce]) -> type[Row]:
    fields: list[tuple[str, Any, Any]] = []
    for i, column in enumerate(schema.columns):
        fallback = None
        if column.default is not None and column.default.kind is DefaultKind.LITERAL:
            literal = column.default.literal
            fallback = None if literal is None else coercions[i](literal)
        fields.append((f"c{i}", _PYTHON_TYPES[column.type.name] | None, fallback))
    return msgspec.defstruct(f"Row_{schema.name}", fields, array_like=True, gc=False)


def _compile_builder(
    schema: TableSchema, columns: tuple[str, ...], struct_type: type[Row], coercions: list[Coerce]
) -> BuildRow:
    names: dict[str, Any] = {"Row": struct_type, "DEFAULT": DEFAULT}
    given = [schema.index_of(name) for name in columns]
    lines = ["def build(values, defaults):"]
    lines.append(f"    {''.join(f'c{i}, ' for i in given)} = values" if given else "    () = values")
    for i, column in enumerate(schema.columns):
        v = f"c{i}"
        names[f"k{i}"] = coercions[i]
        names[f"d{i}"] = default = _default_value(column, coercions[i])
        if i not in given:
            lines.append(f"    {v} = d{i}(defaults)" if callable(default) else f"    {v} = d{i}")
            if not callable(default) and default is None:
                lines.append(f"    {v} = k{i}(None)")
            continue
        fetch = f"d{i}(defaults)" if callable(default) else f"d{i}"
        lines.append(f"    if {unusual(schema, i, names)}:")
        lines.append(f"        {v} = k{i}({fetch} if {v} is DEFAULT else {v})")
    lines.append(f"    return Row({', '.join(f'c{i}' for i in range(len(schema.columns)))})")
    exec(compile("\n".join(lines), f"<row builder of {schema.full_name}>", "exec"), names)
    build: BuildRow = names["build"]
    return build


def unusual(schema: TableSchema, index: int, names: dict[str, Any]) -> str:
    """Source code of the test whether column `c{index}` needs the full coercion. What it refers to is put into `names`."""
    column, v = schema.columns[index], f"c{index}"
    names |= {"datetime": datetime, "date": date, "UUID": UUID, "UTC": UTC, "Decimal": Decimal}
    names[f"q{index}"], names[f"b{index}"] = Decimal(1).scaleb(-column.type.scale), decimal_bound(column.type)
    bound = 1 << (INT_BITS.get(column.type.name, 64) - 1)
    test = _USUAL.get(column.type.name, "True").format(v=v, i=index, low=-bound, high=bound - 1)
    return f"({test})" if schema.is_required(column) else f"({v} is not None and ({test}))"


def _default_value(column: Column, coerce: Coerce) -> Any:
    """A constant, or a function of the statement's Defaults."""
    default = column.default
    if default is None or (default.kind is DefaultKind.LITERAL and default.literal is None):
        return None
    if default.kind is DefaultKind.LITERAL:
        return coerce(default.literal)
    generate = default.kind.value  # the name of the Defaults method
    to_column = _GENERATED_AS.get((default.kind, column.type.name), coerce)
    return lambda defaults: to_column(getattr(defaults, generate)())


def _key_encoder(schema: TableSchema) -> Callable[[bytes, Sequence[Any]], bytes]:
    encoders = [keys.element(schema.columns[i].type)[0] for i in schema.key_indexes]
    if len(encoders) == 1:
        only = encoders[0]
        return lambda prefix, values: prefix + only(values[0])
    return lambda prefix, values: (
        prefix + b"".join([encode(value) for encode, value in zip(encoders, values, strict=True)])
    )


def _row_key_encoder(schema: TableSchema) -> Callable[[bytes, Sequence[Row]], list[bytes]]:
    names: dict[str, Any] = {}
    elements = " + ".join(key_element(schema, i, f"row.c{i}", names) for i in schema.key_indexes)
    made: Callable[[bytes, Sequence[Row]], list[bytes]] = eval(
        f"lambda prefix, rows: [prefix + {elements} for row in rows]", names
    )
    return made


def key_element(schema: TableSchema, index: int, value: str, names: dict[str, Any]) -> str:
    """Source code of a column's element of a key, from that of its value. The usual keys are spared calls."""
    column_type = schema.columns[index].type
    names |= {"pack": _U64.pack, f"e{index}": keys.element(column_type)[0]}
    if column_type.name is TypeName.BIGINT:
        return f"pack({value} + {1 << 63})"
    if column_type.name is TypeName.TEXT:
        return f"{value}.encode().replace({keys.NUL!r}, {keys.ESCAPED_NUL!r}) + {keys.END!r}"
    return f"e{index}({value})"
