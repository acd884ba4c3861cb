"""Rows as a program packed them to send: MessagePack, an array per row, read straight into the rows of their table.

Unpacked by somebody who does not know the table, every value is an object first, which is then judged column by column, and
every DECIMAL passes through a function of its own. Who knows the table has msgspec judge while it unpacks: whole numbers
and their bounds, text, booleans, what may be NULL. Only columns of other types are looked at again, and a row that has
something unusual in one goes through the table's builder, as every row of other sources does. What cannot be read that way is
unpacked plainly: so there is one meaning, and one error, however rows arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tablecast.codec.column_rows import ColumnRows, column_reader
from tablecast.codec.rows import BuildRow, Defaults, Row, row_codec, unusual
from tablecast.codec.values import INT_BITS
from tablecast.errors import InvalidRequest, TablecastError
from tablecast.model.schema import Column, TableSchema, TypeName

FromExtension = Callable[[int, memoryview], Any]
_Read = Callable[[bytes, BuildRow, Defaults], list[Row]]
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)


class PackedRows:
    """`decimals` are the positions, in each row, whose values are decimal numbers that were written as text."""

    __slots__ = ("_from_extension", "data", "decimals")

    def __init__(self, data: bytes, decimals: Sequence[int], from_extension: FromExtension) -> None:
        self.data = data
        self.decimals = tuple(decimals)
        self._from_extension = from_extension

    def __len__(self) -> int:
        """As its head says, whatever follows."""
        kind = self.data[0] if self.data else 0
        if kind & 0xF0 == 0x90:
            return kind & 0x0F
        size = {0xDC: 2, 0xDD: 4}.get(kind)
        if size is None:
            raise InvalidRequest("rows are an array of arrays or of maps")
        return int.from_bytes(self.data[1 : 1 + size], "big")

    def plain(self) -> list[Any]:
        """Sequences and mappings, as a caller in Python would give them."""
        try:
            rows: list[Any] = msgspec.msgpack.decode(
                self.data, type=list[dict[str, Any] | list[Any]], ext_hook=self._from_extension
            )
        except TablecastError:
            raise
        except _UNREADABLE as e:
            raise InvalidRequest(f"the rows are wrong: {e}") from None
        for row in rows:
            for at in self.decimals:
                if isinstance(row, list) and at < len(row) and isinstance(row[at], str):
                    row[at] = _decimal(row[at], at)
        return rows

    def read(self, schema: TableSchema, build: BuildRow, defaults: Defaults) -> list[Row] | None:
        """Rows of all columns of a table, in order; None if they must be read plainly."""
        try:
            return _reader(schema, tuple(self._positions(schema)), self._from_extension)(self.data, build, defaults)
        except _UNREADABLE:
            return None

    def columns(self, schema: TableSchema) -> ColumnRows | None:
        """The same of many rows, which are quicker as columns."""
        decode, judged = _decoder(schema, tuple(self._positions(schema)), self._from_extension)
        try:
            rows = decode(self.data)
        except _UNREADABLE:
            return None
        return column_reader(row_codec(schema)).take(rows, judged)

    def _positions(self, schema: TableSchema) -> list[int]:
        return sorted({at for at in self.decimals if at < len(schema.columns)})


def _decimal(text: str, at: int) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise InvalidRequest(f"value {at} of a row, {text[:60]!r}, is no number: decimals names its position") from None


@lru_cache(maxsize=512)
def _reader(schema: TableSchema, decimals: tuple[int, ...], from_extension: FromExtension) -> _Read:
    decode, judged = _decoder(schema, decimals, from_extension)
    names: dict[str, Any] = {"Row": row_codec(schema).struct}
    doubts = []
    for i, column in enumerate(schema.columns):
        if i not in judged:
            is_text = i in decimals and column.type.name is not TypeName.DECIMAL  # of a column of another type
            doubts.append("True" if is_text else unusual(schema, i, names))
    cells = "".join(f"c{i}, " for i in range(len(schema.columns)))
    made = f"Row({cells})" if not doubts else f"build(({cells}), defaults) if {' or '.join(doubts)} else Row({cells})"
    loop = eval(f"lambda rows, build, defaults: [{made} for {cells} in rows]", names)
    return lambda data, build, defaults: loop(decode(data), build, defaults)


@lru_cache(maxsize=512)
def _decoder(
    schema: TableSchema, decimals: tuple[int, ...], from_extension: FromExtension
) -> tuple[Callable[[bytes], list[tuple[Any, ...]]], frozenset[int]]:
    """What unpacks rows of all columns, and the columns whose values it judges."""
    kinds, judged = [], set()
    for i, column in enumerate(schema.columns):
        kind = Decimal if i in decimals else _strict(column)
        if kind is not None and i not in decimals:
            judged.add(i)
        kinds.append(Any if kind is None else kind if schema.is_required(column) else kind | None)
    decoder = msgspec.msgpack.Decoder(list[tuple[tuple(kinds)]], ext_hook=from_extension)  # type: ignore[misc]
    return decoder.decode, frozenset(judged)


def _strict(column: Column) -> Any:
    """What msgspec takes exactly as the table does; None where the table takes more, or less."""
    name = column.type.name
    if name in INT_BITS:
        bound = 1 << (INT_BITS[name] - 1)
        return Annotated[int, Meta(ge=-bound, le=bound - 1)]
    return {TypeName.TEXT: str, TypeName.BOOLEAN: bool}.get(name)
