"""What a message says: JSON, made from rows.

    full   {"_table": "app.orders", every column}
    key    {"_table": "app.orders", primary key columns}
    diff   for an update: the key columns, and each changed column as {"old": …, "new": …}; insert and delete as full

and a message's key: the primary key's values as a JSON array. BIGINT and DECIMAL are strings (a browser would round
them), a DECIMAL with all its digits and no exponent; TIMESTAMP is ISO 8601 with Z, BYTES is base64, JSON columns are
embedded as they are, NULL is null.

Encoding is on the write path of every row, so per table a struct type and a loop over rows that calls its constructor
are generated once, and msgspec writes the bytes. Rows that came as columns (codec.column_rows) are not taken apart and put
together again: the constructor is mapped over the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tablecast.codec.column_rows import ColumnRows, Values
from tablecast.model.change import Op
from tablecast.model.schema import Column, TableSchema, TypeName
from tablecast.model.topic import PayloadMode

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_FEW = 8  # up to here a call for each row is quicker
RowsToBytes = Callable[[Sequence[Any]], list[bytes]]
_TABLE = "_table"
_PLAIN_SCALE = 6  # up to this scale str() of a Decimal never uses an exponent; beyond, 0.0000001 becomes 1E-7


@lru_cache(maxsize=512)
def payload_encoder(schema: TableSchema) -> PayloadEncoder:
    return PayloadEncoder(schema)


class PayloadEncoder:
    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        everything = list(range(len(schema.columns)))
        self._full: RowsToBytes = _object_encoder(schema, everything)
        self._key: RowsToBytes = _object_encoder(schema, list(schema.key_indexes))
        self.message_keys: RowsToBytes = _key_array_encoder(schema)
        self._json: list[Callable[[Any], Any]] = [_json_value(column) for column in schema.columns]

    def full(self, row: Any) -> bytes:
        return self._full((row,))[0]

    def key(self, row: Any) -> bytes:
        return self._key((row,))[0]

    def message_key(self, row: Any) -> bytes:
        return self.message_keys((row,))[0]

    def diff(self, before: Any, after: Any) -> bytes:
        said: dict[str, Any] = {_TABLE: self._schema.full_name}
        for i in self._schema.key_indexes:
            said[self._schema.columns[i].name] = self._json[i](getattr(after, f"c{i}"))
        for i, (old, new) in enumerate(
            zip(msgspec.structs.astuple(before), msgspec.structs.astuple(after), strict=True)
        ):
            if i not in self._schema.key_indexes and old != new:
                said[self._schema.columns[i].name] = {"old": self._json[i](old), "new": self._json[i](new)}
        return _encode(said)

    def payloads(self, mode: PayloadMode, op: Op, before: Sequence[Any], after: Sequence[Any]) -> list[bytes]:
        """One payload per change of one op."""
        if mode is PayloadMode.DIFF and op is Op.UPDATE:
            return [self.diff(old, new) for old, new in zip(before, after, strict=True)]
        encode = self._key if mode is PayloadMode.KEY else self._full
        return encode(before if op is Op.DELETE else after)


def _json_value(column: Column) -> Callable[[Any], Any]:
    """A column's value as msgspec should see it to write the JSON we promise."""
    if column.type.name is TypeName.BIGINT:
        return lambda v: None if v is None else str(v)
    if column.type.name is TypeName.DECIMAL and column.type.scale > _PLAIN_SCALE:
        return lambda v: None if v is None else format(v, "f")
    if column.type.name is TypeName.JSON:
        return lambda v: None if v is None else msgspec.Raw(v.encode())
    return lambda v: v


def _json_expression(schema: TableSchema, index: int) -> str:
    """The same as source code over `r`, inlined where that is faster than a call."""
    column, v = schema.columns[index], f"r.c{index}"
    if column.type.name is TypeName.BIGINT:
        required = schema.is_required(column)
        return f"str({v})" if required else f"None if {v} is None else str({v})"
    if column.type.name is TypeName.DECIMAL and column.type.scale > _PLAIN_SCALE:
        return f"None if {v} is None else format({v}, 'f')"
    if column.type.name is TypeName.JSON:
        return f"None if {v} is None else Raw({v}.encode())"
    return v


def _json_column(column: Column, index: int) -> Callable[[ColumnRows], Values]:
    """The same of a whole column. The text of a DECIMAL is there already, that of a BIGINT is shared with the key."""
    name, json_value = column.type.name, _json_value(column)
    if name is TypeName.BIGINT:
        return lambda rows: rows.texts(index)
    if name is TypeName.DECIMAL and column.type.scale <= _PLAIN_SCALE:
        return lambda rows: rows.bodies[index]
    if name in (TypeName.DECIMAL, TypeName.JSON):
        return lambda rows: [None if v is None else json_value(v) for v in rows.columns[index]]
    return lambda rows: rows.columns[index]


def _object_encoder(schema: TableSchema, indexes: list[int]) -> RowsToBytes:
    fields = [(f"c{i}", Any) for i in indexes]
    names = {f"c{i}": schema.columns[i].name for i in indexes}
    if any(_encode(name) != b'"%s"' % name.encode() for name in names.values()):
        return _dict_encoder(schema, indexes)  # a struct cannot have fields whose names JSON escapes
    said = msgspec.defstruct(
        f"Payload_{schema.name}", fields, rename=names, tag_field=_TABLE, tag=schema.full_name, gc=False
    )
    by_row = _compiled(f"Said({', '.join(_json_expression(schema, i) for i in indexes)})", said)
    columns = [_json_column(schema.columns[i], i) for i in indexes]
    return _either(by_row, lambda rows: list(map(_encode, map(said, *[column(rows) for column in columns]))))


def _dict_encoder(schema: TableSchema, indexes: list[int]) -> RowsToBytes:
    pairs = [f"{schema.columns[i].name!r}: {_json_expression(schema, i)}" for i in indexes]
    return _compiled(f"{{{', '.join([f'{_TABLE!r}: {schema.full_name!r}', *pairs])}}}", None)


def _key_array_encoder(schema: TableSchema) -> RowsToBytes:
    indexes = schema.key_indexes
    types = [schema.columns[i].type.name for i in indexes]
    if len(types) == 1 and types[0] in _INTEGER_KEYS:  # the usual key: formatted, not encoded
        form = _INTEGER_KEYS[types[0]]
        by_row: RowsToBytes = eval(f"lambda rows: [{form!r} % r.c{indexes[0]} for r in rows]")
        begin, end = form.decode().split("%d")
        between = f"{end}\n{begin}"
        return _either(by_row, lambda rows: f"{begin}{between.join(rows.texts(indexes[0]))}{end}".encode().split(b"\n"))
    columns = [_json_column(schema.columns[i], i) for i in indexes]
    return _either(
        _compiled(f"[{', '.join(_json_expression(schema, i) for i in indexes)}]", None),
        lambda rows: list(map(_encode, zip(*[column(rows) for column in columns], strict=True))),
    )


_INTEGER_KEYS = {TypeName.BIGINT: b'["%d"]', TypeName.INT: b"[%d]", TypeName.SMALLINT: b"[%d]"}


def _either(by_row: RowsToBytes, by_column: Callable[[ColumnRows], list[bytes]]) -> RowsToBytes:
    return lambda rows: by_column(rows) if isinstance(rows, ColumnRows) else by_row(rows)


def _compiled(expression: str, said: type | None) -> RowsToBytes:
    names = {"encode": _encode, "encode_many": _encode_many, "Said": said, "Raw": msgspec.Raw, "FEW": _FEW}
    made: RowsToBytes = eval(
        f"lambda rows: [encode({expression}) for r in rows] if len(rows) < FEW "
        f"else encode_many([{expression} for r in rows])",
        names,
    )
    return made


def _encode_many(said: Sequence[Any]) -> list[bytes]:
    """Written as lines and cut apart: a sixth quicker than one call for each. No JSON of ours has a line break in it; if
    somebody else's had, there would be more lines than rows."""
    lines = _encode_lines(said).split(b"\n")
    lines.pop()
    return lines if len(lines) == len(said) else [_encode(each) for each in said]
