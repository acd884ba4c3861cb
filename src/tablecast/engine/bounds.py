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
    """Owned by the writer. Every inserted key must raise its bound, in the commit that inserts it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[bytes, bytes] = {}

    def are_beyond(self, prefix: bytes, lowest: bytes) -> bool:
        """Whether `lowest`, and so every key above it, is greater than every key that begins with `prefix`."""
        return lowest > self._bound(prefix)

    def raise_to(self, prefix: bytes, highest: bytes) -> None:
        # A bound not known yet is read first: taken from this insert alone it would be too low.
        if highest > self._bound(prefix):
            self._last[prefix] = highest

    def forget_if_many(self) -> None:
        """Between commits only: within one, the store does not have the keys that raised a bound."""
        if len(self._last) >= PREFIXES_KEPT:
            self._last.clear()

    def _bound(self, prefix: bytes) -> bytes:
        last = self._last.get(prefix)
        if last is None:
            found = next(iter(self._store.scan(Family.ROWS, prefix, keys.after(prefix), reverse=True)), None)
            last = self._last[prefix] = prefix if found is None else found[0]
        return last
