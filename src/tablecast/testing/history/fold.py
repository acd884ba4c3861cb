"""A table is the fold of its topic: what is left when every change is applied in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tablecast.errors import InvalidRequest
from tablecast.model.message import Message
from tablecast.testing.history.events import RowKey, Seen
from tablecast.testing.history.values import without_system


def fold(messages: Iterable[Message | Seen]) -> dict[RowKey, dict[str, Any]]:
    """The rows that full payloads leave behind: insert and update set, delete removes.

    Give the messages of each row in their order; how the rows are interleaved does not matter.
    """
    rows: dict[RowKey, dict[str, Any]] = {}
    for message in messages:
        seen = message if isinstance(message, Seen) else Seen.of(message)
        if seen.mode != "full":
            raise InvalidRequest(f"cannot fold {seen}: its payload mode is {seen.mode!r}, must be 'full'")
        if seen.op == "delete":
            rows.pop(seen.row_key, None)
        else:
            rows[seen.row_key] = without_system(seen.value)
    return rows
