"""Messages as rows: payloads with the Python values of their table's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from tablecast.codec.values import Coerce, text_coercion
from tablecast.errors import PayloadMismatch, TypeMismatch
from tablecast.model.change import Op
from tablecast.model.message import Consumed, Message, RowReader
from tablecast.model.schema import ColumnType, TypeName
from tablecast.model.topic import PayloadMode

TypesOf = Callable[[str], Mapping[str, ColumnType]]  # of a source table, by column; raises if they are not known
TABLE = "_table"


def with_rows(consumed: Consumed, types_of: TypesOf) -> Consumed:
    """The same, whose messages have a `row`."""

    reader = RowReader.of(lambda message: row(message, types_of(message.source_table)))
    for message in consumed.messages:
        msgspec.structs.force_setattr(message, "reader", reader)
    return consumed


def row(message: Message, types: Mapping[str, ColumnType]) -> dict[str, Any]:
    """The columns that the payload has. Of a diff, those that changed have their values as `old` and `new`."""
    is_diff = message.payload_mode is PayloadMode.DIFF and message.op is Op.UPDATE
    found: dict[str, Any] = {}
    for name, value in message.value.items():
        if name == TABLE:
            continue
        if name not in types:
            raise _mismatch(message, f"the table has no column {name!r}")
        try:
            if is_diff and isinstance(value, dict):
                found[name] = {image: _value(types[name], name, each) for image, each in value.items()}
            else:
                found[name] = _value(types[name], name, value)
        except TypeMismatch as error:
            raise _mismatch(message, error.message) from None
    return found


def _value(column_type: ColumnType, name: str, value: Any) -> Any:
    return value if value is None or column_type.name is TypeName.JSON else _reader(column_type, name)(value)


@lru_cache(maxsize=4096)
def _reader(column_type: ColumnType, name: str) -> Coerce:
    return text_coercion(column_type, name)


def _mismatch(message: Message, why: str) -> PayloadMismatch:
    return PayloadMismatch(
        f"message {message.partition_id}:{message.offset} is no row of {message.source_table} as it is now: {why}; "
        "its value has the payload",
        table=message.source_table,
    )
