"""Uncommitted writes laid over what is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tablecast.storage.base import Family, Reader


def merged(
    store: Reader, overlay: Mapping[bytes, bytes | None], family: Family, start: bytes, end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """A scan of the store with uncommitted writes laid over it."""
    pending = sorted(k for k in overlay if k >= start and (end is None or k < end))
    at = 0
    for key, value in store.scan(family, start, end):
        while at < len(pending) and pending[at] < key:
            laid = overlay[pending[at]]
            if laid is not None:
                yield pending[at], laid
            at += 1
        if at < len(pending) and pending[at] == key:
            laid = overlay[key]
            at += 1
            if laid is not None:
                yield key, laid
            continue
        yield key, value
    for key in pending[at:]:
        laid = overlay[key]
        if laid is not None:
            yield key, laid
