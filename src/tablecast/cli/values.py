"""A result's values as JSON and as text, the same for every format.

BIGINT, HUGEINT and DECIMAL are strings in JSON, inside lists and structs too, since many JSON readers would round
them. TIMESTAMP is ISO 8601 with Z, BYTES base64, an interval an ISO 8601 duration, and a JSON column is embedded as
it is stored. Text is the same without the quotes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tablecast.codec.result import Result

ToJson = Callable[[Any], Any]


def json_rows(result: Result) -> Iterator[list[Any]]:
    """Each row's values as msgspec writes them to JSON."""
    converters = [_converter(result, i, kind) for i, (_, kind) in enumerate(result.schema)]
    for row in result.stored_rows():
        yield [None if v is None else convert(v) for convert, v in zip(converters, row, strict=True)]


def text_rows(result: Result) -> Iterator[list[str | None]]:
    """Each row's values as text; None is NULL."""
    for row in json_rows(result):
        yield [_text(value) for value in row]


def _converter(result: Result, index: int, kind: str | None) -> ToJson:
    if kind is None:
        return _nested(result.arrow().schema.field(index).type)
    if kind in ("BIGINT", "HUGEINT"):
        return str
    if kind.startswith("DECIMAL"):
        return _decimal
    if kind == "JSON":
        return lambda text: msgspec.Raw(text.encode())
    return msgspec.to_builtins


def _nested(kind: Any) -> ToJson:
    """For what a query makes of columns: lists, structs, maps, intervals."""
    if isinstance(kind, pa.MapType):
        key, item = _nested(kind.key_type), _nested(kind.item_type)
        return lambda pairs: {str(key(k)): _unless_null(item, v) for k, v in pairs}
    if isinstance(kind, pa.StructType):
        fields = {field.name: _nested(field.type) for field in kind.fields}
        return lambda value: {name: _unless_null(convert, value[name]) for name, convert in fields.items()}
    if isinstance(kind, pa.ListType):
        element = _nested(kind.value_type)
        return lambda values: [_unless_null(element, v) for v in values]
    if kind == pa.int64():
        return str
    if isinstance(kind, pa.Decimal128Type):
        return _decimal
    if kind == pa.month_day_nano_interval():
        return _duration
    return msgspec.to_builtins


def _unless_null(convert: ToJson, value: Any) -> Any:
    return None if value is None else convert(value)


def _decimal(value: Decimal) -> str:
    return format(value, "f")  # str() would turn to exponents at small numbers


def _duration(value: Any) -> str:
    seconds = Decimal(value.nanoseconds).scaleb(-9).normalize()
    return f"P{value.months}M{value.days}DT{seconds:f}S"


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)  # JSON has no word for infinity
    return msgspec.json.encode(value).decode()
