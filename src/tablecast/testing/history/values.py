"""When two recorded values are the same.

A value reaches a history along different roads: as Python had it when the write was sent, as JSON in a
message's payload, as a SELECT returned it. All are first reduced to what JSON can say (`recordable`: a
Decimal, timestamp, UUID or bytes becomes the text that a payload has for it). What is left are differences of
spelling, which `same` looks past, and nothing else:

- a number equals the string of its digits, as BIGINT and DECIMAL are strings in a payload, and 3 equals 3.0;
- an object or array equals the JSON text of it, as a JSON column is embedded in a payload but text in a row.

True and 1 are different, and so are 1.5 and "1.50": record a DECIMAL with its column's scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Row = Mapping[str, Any]

_MISSING = object()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def recordable(value: Any) -> Any:
    """`value` with only None, bool, int, float, str, list and dict in it."""
    return msgspec.to_builtins(value, str_keys=True)


def canonical_key(key: bytes | Sequence[Any]) -> str:
    """A primary key as one text, whether it is given as a message's key or as the values themselves."""
    values = _decode(key) if isinstance(key, bytes) else recordable(list(key))
    return _encode([_plain(value) for value in values]).decode()


def same(a: Any, b: Any) -> bool:
    if type(a) is type(b) and a == b:
        return True
    if isinstance(a, str) and isinstance(b, dict | list):
        a = _parsed(a)
    elif isinstance(b, str) and isinstance(a, dict | list):
        b = _parsed(b)
    return bool(_plain(a) == _plain(b))


def contains(row: Row, part: Row) -> bool:
    """Whether `row` has all of `part`'s columns, with the same values."""
    return all(same(row.get(column, _MISSING), value) for column, value in part.items())


def same_row(a: Row, b: Row) -> bool:
    """Whether the rows have the same columns and values, the system's own (`_seq`, `_table`) aside."""
    return contains(a, without_system(b)) and without_system(a).keys() == without_system(b).keys()


def without_system(row: Row) -> dict[str, Any]:
    return {column: value for column, value in row.items() if not column.startswith("_")}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _parsed(text: str) -> Any:
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return text
