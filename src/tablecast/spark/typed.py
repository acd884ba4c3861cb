"""Payloads of one table as typed columns: what `decode=true` gives.

Two ways to the same values. `typed_layout` walks payloads that lie as the encoder lays them out, which is nearly all of
them, and costs a fraction of parsing. The rest (JSON columns that are not NULL, a batch across an ALTER TABLE) is
parsed here, payload by payload. `tests/spark/test_typed.py` holds both against a plain JSON parser.

A payload that was written before a column was added has no member for it: it reads as that column's literal default, or
NULL, as a row of the table does.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from tablecast.codec.values import coercion
from tablecast.errors import PayloadMismatch
from tablecast.model.schema import Column, DefaultKind, TableSchema, TypeName
from tablecast.spark.typed_layout import Layout, NotLaidOut
from tablecast.spark.types import arrow_of, table_struct

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = b"null"


class PayloadDecoder:
    """Makes columns of payloads of mode full of one table."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self.types: list[pa.DataType] = [field.type for field in arrow_of(table_struct(schema))]
        self._layout = Layout(schema, self.types)
        self._absent = [_absent(column) for column in schema.columns]
        self._readers = [_reader(column) for column in schema.columns]

    def columns(self, payloads: pa.Array) -> list[pa.Array]:
        """One array per column of the table. Raises PayloadMismatch, whose details have the row's number."""
        if not len(payloads):
            return [pa.array([], kind) for kind in self.types]
        try:
            return self._filled(self._layout.columns(payloads), len(payloads))
        except NotLaidOut:
            return self.parsed(payloads)

    def parsed(self, payloads: pa.Array) -> list[pa.Array]:
        """The same by parsing each payload."""
        rows = [self._row(number, payload) for number, payload in enumerate(payloads.to_pylist())]
        columns = zip(*rows, strict=True)
        return [pa.array(list(values), kind) for values, kind in zip(columns, self.types, strict=True)]

    def _filled(self, columns: list[pa.Array | None], rows: int) -> list[pa.Array]:
        return [
            _repeated(absent, kind, rows) if column is None else column
            for column, absent, kind in zip(columns, self._absent, self.types, strict=True)
        ]

    def _row(self, number: int, payload: bytes) -> list[Any]:
        try:
            said = _members(payload)
        except msgspec.MsgspecError as e:
            raise PayloadMismatch(f"a payload of {self._schema.full_name} is not a JSON object: {e}", row=number) from e
        if (table := said.get("_table")) is None or msgspec.json.decode(table) != self._schema.full_name:
            raise PayloadMismatch(f"a payload does not tell a row of {self._schema.full_name}", row=number)
        return [self._value(number, index, said) for index in range(len(self._readers))]

    def _value(self, number: int, index: int, said: dict[str, msgspec.Raw]) -> Any:
        column = self._schema.columns[index]
        raw = said.get(column.name)
        if raw is None:
            return self._absent[index]
        text = bytes(raw)
        try:
            return None if text == _NULL else self._readers[index](text)
        except (ValueError, TypeError, InvalidOperation, msgspec.MsgspecError) as e:
            raise PayloadMismatch(
                f"a payload of {self._schema.full_name} has no {column.type} in column {column.name!r}",
                row=number,
                column=column.name,
            ) from e


def _absent(column: Column) -> Any:
    default = column.default
    if default is None or default.kind is not DefaultKind.LITERAL or default.literal is None:
        return None
    value = coercion(column.type, column.name)(default.literal)
    return str(value) if column.type.name is TypeName.UUID else value


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    one = pa.array([value], kind)
    return pa.nulls(rows, kind) if value is None else one.take(pa.array(np.zeros(rows, np.int32)))


# --- one value ------------------------------------------------------------------------------------------------------


def _string(text: bytes) -> str:
    return msgspec.json.decode(text, type=str)


def _integer(text: bytes) -> int:
    return msgspec.json.decode(text, type=int)


def _number(text: bytes) -> float:
    return msgspec.json.decode(text, type=float)


def _timestamp(text: bytes) -> datetime:
    moment = datetime.fromisoformat(_string(text))
    if moment.tzinfo is None:
        raise ValueError("a time without its zone")
    return moment


_READERS: dict[TypeName, Callable[[bytes], Any]] = {
    TypeName.BOOLEAN: lambda text: msgspec.json.decode(text, type=bool),
    TypeName.SMALLINT: _integer,
    TypeName.INT: _integer,
    TypeName.BIGINT: lambda text: int(_string(text)),
    TypeName.FLOAT: _number,
    TypeName.DOUBLE: _number,
    TypeName.DECIMAL: lambda text: Decimal(_string(text)),
    TypeName.TEXT: _string,
    TypeName.BYTES: lambda text: binascii.a2b_base64(_string(text), strict_mode=True),
    TypeName.JSON: lambda text: text.decode(),
    TypeName.TIMESTAMP: _timestamp,
    TypeName.DATE: lambda text: date.fromisoformat(_string(text)),
    TypeName.TIME: lambda text: time.fromisoformat(_string(text)),
    TypeName.UUID: lambda text: str(UUID(_string(text))),
}


def _reader(column: Column) -> Callable[[bytes], Any]:
    return _READERS[column.type.name]
