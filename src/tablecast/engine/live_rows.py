"""The rows a live query begins with, as of one commit, read piece by piece.

In key order; with LIMIT n the last n, greatest key first. They hold the commit's snapshot until the last one was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tablecast.core.live_query import LiveQuery
from tablecast.engine.reading import KeyRange, scan_values

if TYPE_CHECKING:
    from tablecast.engine.engine import Published


class InitialRows:
    """Read by one thread at a time. `close` may come from another: what is being read then ends soon."""

    def __init__(self, published: Published, query: LiveQuery, now_ms: int) -> None:
        table = published.catalog.tables[query.table.table_id]
        part = KeyRange(query.key_prefix, reverse=query.limit is not None)
        self._query = query
        self._decode = table.codec.decode
        self._stored: Iterator[tuple[bytes, bytes]] | None = scan_values(
            published.snapshot, table, query.owner, part, now_ms
        )
        self._left = query.limit

    def take(self, count: int, looked_at: int | None = None) -> tuple[list[tuple[Any, ...]], bool]:
        """The next rows, at most `count`, and whether they were the last. Stops early after `looked_at` stored rows."""
        query, decode = self._query, self._decode
        matches, shown = query.matches, query.shown
        wanted = count if self._left is None else min(count, self._left)
        rows: list[tuple[Any, ...]] = []
        looked = 0
        while len(rows) < wanted and looked != looked_at:
            stored = None if self._stored is None else next(self._stored, None)
            if stored is None:
                self.close()
                return rows, True
            row = decode(stored[1])
            looked += 1
            if matches(row):
                rows.append(shown(row))
        return rows, self._is_last(len(rows))

    def _is_last(self, taken: int) -> bool:
        if self._left is not None:
            self._left -= taken
            if not self._left:
                self.close()
        return self._stored is None

    def close(self) -> None:
        self._stored = None
