"""A change: one row, before and after, in one commit."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple


class Op(enum.IntEnum):
    INSERT = 0
    UPDATE = 1
    DELETE = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Change(NamedTuple):
    """`before` is None for an insert, `after` is None for a delete. Rows are the table codec's row structs.

    `key` is the row's storage key; `user_id` owns the row in USER and STREAM tables and is None in SHARED ones.
    """

    table_id: int
    op: Op
    key: bytes
    before: Any
    after: Any
    user_id: str | None
