"""What a row must keep to besides its types, and the words for a row that does not.

The engine judges single rows by it, a seal the rows it sorted out: one meaning, one text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tablecast.codec.column_rows import ColumnRows
from tablecast.core.expression import Expression
from tablecast.errors import CheckViolation, DuplicateKey, TooLarge, TypeMismatch
from tablecast.model.schema import TableSchema

MAX_ROW_BYTES = 2**20  # an encoded row; larger values belong in object storage, with their address in the row


def check_row(schema: TableSchema, checks: Iterable[Expression], row: Any) -> None:
    for check in checks:
        if check.row(row) is False:
            raise CheckViolation(
                f"the row violates CHECK ({check.sql}) of {schema.full_name}", table=schema.full_name, check=check.sql
            )


def encode_rows(schema: TableSchema, encode: Callable[[Any], bytes], rows: Sequence[Any]) -> list[bytes]:
    """Bodies, checked against the size limit."""
    try:
        bodies = list(map(encode, rows.stored() if isinstance(rows, ColumnRows) else rows))
    except UnicodeEncodeError as e:
        raise TypeMismatch(f"a TEXT value for {schema.full_name} holds a lone surrogate: not Unicode text") from e
    if max(map(len, bodies), default=0) > MAX_ROW_BYTES:
        size = next(len(body) for body in bodies if len(body) > MAX_ROW_BYTES)
        raise TooLarge(
            f"a row of {schema.full_name} takes {size} bytes; the limit is {MAX_ROW_BYTES}",
            table=schema.full_name,
            bytes=size,
            limit=MAX_ROW_BYTES,
        )
    return bodies


def duplicate_key(schema: TableSchema, key: Sequence[Any]) -> DuplicateKey:
    """`key` holds the primary key's values, in its order."""
    shown = ", ".join(f"{name} = {value!r}" for name, value in zip(schema.primary_key, key, strict=True))
    return DuplicateKey(f"{schema.full_name} already has a row with {shown}", table=schema.full_name, key=shown)
