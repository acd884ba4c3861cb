"""Rows of a replicated table as events, and back.

    key      `namespace.table:` and the primary key as text
    value    the row as JSON, as a message of mode full tells it (core.payload)

The text of a key column is what JSON would say of it, without quotes: 42, true, 12.50, 2022-01-01T00:00:00Z, base64 for
BYTES. One column stands as it is; several are joined by commas, with `%` written `%25` and `,` written `%2C` inside of
each. There is one text per key: what reads as a key but is not written that way is refused, so that a row has the same
key on every node.

A value may lack columns: they were added to the table later, and hold their default, as in a stored row. It may not
have columns that the table lacks: those would be lost here in silence, and the replicas would differ for ever.
JSON's own null in a JSON column would read as NULL, so its column is named in a further member, `_json_null`.

A table of the shape (key TEXT PRIMARY KEY, value TEXT) maps to its bare key and value: nodes that are nothing but a
key-value store understand that. Keys that look like `name.name:…` are rows of other tables on every node, so such a
table cannot replicate them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from tablecast.codec.rows import Row, RowCodec, row_codec
from tablecast.codec.values import coercion
from tablecast.core.payload import PayloadEncoder, payload_encoder
from tablecast.errors import InvalidEvent, TablecastError
from tablecast.model.schema import Column, DefaultKind, TableKind, TableSchema, TypeName

_ROW_KEY: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*\.[A-Za-z][A-Za-z0-9_]*):", re.ASCII)
_JSON_NULL: Final = "_json_null"  # names that begin with an underscore are never columns
_TABLE: Final = "_table"


def table_of(key: str) -> str | None:
    """The full name of the table that an event's key names; None for a bare key."""
    found = _ROW_KEY.match(key)
    return None if found is None else found[1]


def is_bare(schema: TableSchema) -> bool:
    """Whether the table has the shape of a plain key-value store."""
    shape = [(column.name, column.type.name) for column in schema.columns]
    return shape == [("key", TypeName.TEXT), ("value", TypeName.TEXT)] and schema.primary_key == ("key",)


def why_not_replicated(schema: TableSchema) -> str | None:
    """What stands against replicating such a table; None if nothing does."""
    if schema.kind is not TableKind.SHARED:
        return f"it is a {schema.kind} table, whose rows are apart per user; only SHARED tables replicate"
    if schema.ttl_seconds is not None:
        return "its rows expire by themselves (TTL_SECONDS), at a different moment on every node"
    return None


@lru_cache(maxsize=512)
def replicated_rows(schema: TableSchema) -> ReplicatedRows:
    return BareRows(schema) if is_bare(schema) else ReplicatedRows(schema)


class ReplicatedRows:
    """One version of one table as events."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.prefix = f"{schema.full_name}:"
        self._codec: RowCodec = row_codec(schema)
        self._payload: PayloadEncoder = payload_encoder(schema)
        self._columns = [schema.columns[i] for i in schema.key_indexes]
        self._texts = [_key_text(column.type.name) for column in self._columns]
        self._key_values = attrgetter(*(f"c{i}" for i in schema.key_indexes))  # of one column, its value alone
        self._json_columns = [i for i, c in enumerate(schema.columns) if c.type.name is TypeName.JSON]
        self._members = msgspec.json.Decoder(_members(schema)).decode
        self._read = [_reader(column) for column in schema.columns]
        self._build = self._codec.builder(schema.column_names)

    # --- rows to events ---

    def key(self, row: Row) -> str:
        values = self._key_values(row)
        return self._key_of((values,) if len(self._texts) == 1 else values)

    def key_at(self, storage_key: bytes, at: int) -> str:
        """The key of the row under a storage key whose prefix has `at` bytes."""
        return self._key_of(self._codec.decode_key(storage_key, at))

    def _key_of(self, values: Sequence[Any]) -> str:
        if len(self._texts) == 1:
            return self.prefix + self._texts[0](values[0])
        texts = [text(value) for text, value in zip(self._texts, values, strict=True)]
        return self.prefix + ",".join(map(_escaped, texts))

    def check_key(self, key: str) -> None:
        """Raises InvalidEvent for a key that nodes would take for one of another table."""

    def value(self, row: Row) -> str:
        """Raises InvalidEvent for a row that no event can tell."""
        said = self._payload.full(row).decode()
        nulls = [i for i in self._json_columns if getattr(row, f"c{i}") == "null"]
        if not nulls:
            return said
        named = msgspec.json.encode([self.schema.columns[i].name for i in nulls]).decode()
        return f'{said[:-1]},"{_JSON_NULL}":{named}}}'

    # --- events to rows ---

    def row(self, key: str, value: str) -> Row:
        """The row in an event. Raises InvalidEvent if it is none of this table."""
        try:
            row = self._build(self._values(self._members(value)), None)  # type: ignore[arg-type]  # nothing is left to defaults
        except (msgspec.MsgspecError, TablecastError) as e:
            raise InvalidEvent(f"the value of {_shown(key)} is not a row of {self.schema.full_name}: {e}") from e
        if self.key(row) != key:
            raise InvalidEvent(f"the key {_shown(key)} is not that of the row in its value, {_shown(self.key(row))}")
        return row

    def storage_key(self, key: str) -> bytes:
        """Where the row of that key is stored. Raises InvalidEvent if it is no key of this table."""
        texts = self._key_texts(key)
        try:
            given = [_from_text(c, text) for c, text in zip(self._columns, texts, strict=True)]
            values = self._codec.coerce_key(given)
        except (ValueError, TablecastError) as e:
            raise InvalidEvent(f"{_shown(key)} is not a key of {self.schema.full_name}: {e}") from e
        if self._key_of(values) != key:
            raise InvalidEvent(f"the key {_shown(key)} is written {_shown(self._key_of(values))}")
        return self._codec.encode_key(self._codec.prefix(None), values)

    def _key_texts(self, key: str) -> list[str]:
        text = key[len(self.prefix) :]
        return [text] if len(self._columns) == 1 else [_unescaped(part) for part in text.split(",")]

    def _values(self, members: Any) -> list[Any]:
        given = msgspec.structs.astuple(members)
        values = [read(value) for read, value in zip(self._read, given, strict=False)]
        for name in getattr(members, _JSON_NULL.lstrip("_")):
            index = self.schema.index_of(name)
            if index not in self._json_columns or values[index] is not None:
                raise InvalidEvent(f"{_JSON_NULL} names {name!r}, which is no JSON column that is null")
            values[index] = "null"
        return values


class BareRows(ReplicatedRows):
    """A key-value table: keys and values stand for themselves."""

    def __init__(self, schema: TableSchema) -> None:
        super().__init__(schema)
        self.prefix = ""

    def check_key(self, key: str) -> None:
        if table_of(key) is not None:
            raise InvalidEvent(f"the key {_shown(key)} reads as a row of the table {table_of(key)}")

    def value(self, row: Row) -> str:
        if row.c1 is None:
            raise InvalidEvent(f"the value of {_shown(row.c0)} is NULL, which a bare value cannot tell")
        value: str = row.c1
        return value

    def row(self, key: str, value: str) -> Row:
        return self._build([key, value], None)  # type: ignore[arg-type]  # nothing is left to defaults


# --- key columns as text ------------------------------------------------------------------------------------------


def _key_text(name: TypeName) -> Callable[[Any], str]:
    return _KEY_TEXTS.get(name, str)


def _float_text(value: float) -> str:
    return repr(value + 0.0)  # as keys have it, -0.0 is 0.0


def _timestamp_text(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


_KEY_TEXTS: dict[TypeName, Callable[[Any], str]] = {
    TypeName.BOOLEAN: lambda value: "true" if value else "false",
    TypeName.FLOAT: _float_text,
    TypeName.DOUBLE: _float_text,
    TypeName.DECIMAL: lambda value: format(value, "f"),
    TypeName.BYTES: lambda value: base64.b64encode(value).decode(),
    TypeName.TIMESTAMP: _timestamp_text,
    TypeName.DATE: lambda value: value.isoformat(),
    TypeName.TIME: lambda value: value.isoformat(),
}


def _from_text(column: Column, text: str) -> Any:
    return base64.b64decode(text, validate=True) if column.type.name is TypeName.BYTES else text


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(",", "%2C")


def _unescaped(text: str) -> str:
    return text.replace("%2C", ",").replace("%25", "%")


def _shown(key: str) -> str:
    return repr(key if len(key) <= 80 else key[:80] + "…")


# --- values -----------------------------------------------------------------------------------------------------------


def _members(schema: TableSchema) -> type[msgspec.Struct]:
    """The JSON object of a row. A column that may be absent has what a row of before it was added holds."""
    fields: list[tuple[str, Any, Any]] = []
    for i, column in enumerate(schema.columns):
        kind = msgspec.Raw if column.type.name is TypeName.JSON else Any
        fields.append((f"c{i}", kind, _absent(column)))
    fields.append((_JSON_NULL.lstrip("_"), tuple[str, ...], ()))
    names = {f"c{i}": column.name for i, column in enumerate(schema.columns)} | {_JSON_NULL.lstrip("_"): _JSON_NULL}
    return msgspec.defstruct(
        f"Replicated_{schema.name}",
        fields,
        rename=names,
        tag_field=_TABLE,
        tag=schema.full_name,
        forbid_unknown_fields=True,
    )


def _absent(column: Column) -> Any:
    default = column.default
    if default is None or default.kind is not DefaultKind.LITERAL or default.literal is None:
        return None
    value = coercion(column.type, column.name)(default.literal)
    if column.type.name is TypeName.BYTES:
        return base64.b64encode(value).decode()
    return msgspec.Raw(value.encode()) if column.type.name is TypeName.JSON else value


def _reader(column: Column) -> Callable[[Any], Any]:
    if column.type.name is TypeName.JSON:
        return _json_text
    if column.type.name is TypeName.BYTES:
        return _base64
    return lambda value: value


def _json_text(raw: msgspec.Raw | None) -> str | None:
    text = None if raw is None else bytes(raw).decode()
    return None if text == "null" else text


def _base64(value: Any) -> Any:
    try:
        return value if value is None else base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError) as e:
        raise InvalidEvent(f"{value!r} is not base64") from e
