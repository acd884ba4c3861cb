"""Values that JSON has no form for, on their way in: bytes as base64.

Everything else needs no care: text is read as the type of the column it is for. A parameter has no column, so bytes say
themselves that they are bytes: `{"$bytes": "aGk="}`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from tablecast.engine.catalog import Catalog
from tablecast.errors import NotFound, TypeMismatch
from tablecast.model.schema import TypeName

BYTES_MARK = "$bytes"


def json_params(params: list[Any]) -> list[Any]:
    return [_param(value) if isinstance(value, dict) else value for value in params]


def _param(value: dict[str, Any]) -> Any:
    if value.keys() != {BYTES_MARK}:
        return value
    return _bytes(value[BYTES_MARK], f'a parameter {{"{BYTES_MARK}": …}}')


def json_rows(catalog: Catalog, table: str, rows: list[Any], columns: Sequence[str] | None) -> list[Any]:
    """The rows with their BYTES columns decoded, in place. If there is no such table the session will say so."""
    try:
        schema = catalog.table(table).schema
    except NotFound:
        return rows
    names = [column.name for column in schema.columns if column.type.name is TypeName.BYTES]
    if not names:
        return rows
    order = list(schema.column_names if columns is None else columns)
    places = [(order.index(name), name) for name in names if name in order]
    for row in rows:
        for place, name in [(name, name) for name in names if name in row] if isinstance(row, dict) else places:
            if (isinstance(place, str) or place < len(row)) and row[place] is not None:
                row[place] = _bytes(row[place], f"column {name!r} is BYTES and")
    return rows


def _bytes(value: Any, what: str) -> bytes:
    if not isinstance(value, str):
        raise TypeMismatch(f"{what} takes base64 text, not {type(value).__name__}", got=type(value).__name__)
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError) as e:
        raise TypeMismatch(f"{what} takes base64 text: {e}") from None
