"""A change: one row, before and after, in one commit."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Op(enum.IntEnum):
    INSERT = 0
    UPDATE = 1
    DELETE = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Change(NamedTuple):
    """`before` is None for an insert, `after` is None for a delete. Rows are the table codec's row structs."""

    table_id: int
    op: Op
    key: bytes
    before: Any
    after: Any
    user_id: str | None


class ChangeRun(NamedTuple):
    """Consecutive changes of one table and one op: what one statement did, as columns.

    `keys[i]` is the i-th row's storage key. `before` is empty for inserts, `after` for deletes. `bodies` holds the
    encoded after images where they are known already, else it is empty. `user_id` owns the rows in USER and STREAM
    tables and is None in SHARED ones.
    """

    table_id: int
    version: int
    op: Op
    keys: list[bytes]
    before: Sequence[Any]
    after: Sequence[Any]
    bodies: list[bytes]
    user_id: str | None

    def changes(self) -> Iterator[Change]:
        nothing = [None] * len(self.keys)
        for key, before, after in zip(self.keys, self.before or nothing, self.after or nothing, strict=True):
            yield Change(self.table_id, self.op, key, before, after, self.user_id)
