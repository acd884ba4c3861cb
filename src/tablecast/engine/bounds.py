"""The last key of each table: what lies beyond it is certainly new.

An INSERT must know whether its keys exist. Most tables grow at their end (generated ids, times), and there one
comparison answers for a whole batch what would take a lookup per row. A bound is an upper bound: deletes do not lower
it, so it may be too high, which only costs the lookups.
"""

from __future__ import annotations

from tablecast.codec import keys
from tablecast.storage.base import Family, Store

PREFIXES_KEPT = 100_000  # tables, and users of per-user tables; beyond, bounds are forgotten and read again


class KeyBounds:
    """Owned by the writer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[bytes, bytes] = {}

    def are_beyond(self, prefix: bytes, lowest: bytes) -> bool:
        """Whether `lowest`, and so every key above it, is greater than every key that begins with `prefix`."""
        last = self._last.get(prefix)
        if last is None:
            last = self._read(prefix)
        return lowest > last

    def raise_to(self, prefix: bytes, highest: bytes) -> None:
        if highest > self._last.get(prefix, b""):
            self._last[prefix] = highest

    def _read(self, prefix: bytes) -> bytes:
        if len(self._last) >= PREFIXES_KEPT:
            self._last.clear()
        found = next(iter(self._store.scan(Family.ROWS, prefix, keys.after(prefix), reverse=True)), None)
        last = self._last[prefix] = prefix if found is None else found[0]
        return last
