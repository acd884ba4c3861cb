"""Uncommitted writes laid over what is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tablecast.storage.base import Family, Reader

Laid = dict[bytes, bytes | None]  # None: removed


class Overlay:
    """The writes of one commit, by family. Many at once are only noted until somebody looks: most commits with many rows have
    one command, and nobody comes after it."""

    __slots__ = ("_laid", "_noted")

    def __init__(self) -> None:
        self._laid: dict[Family, Laid] = {}
        self._noted: dict[Family, list[tuple[Sequence[bytes], Sequence[bytes | None]]]] = {}

    def put(self, family: Family, key: bytes, value: bytes | None) -> None:
        self.of(family)[key] = value

    def put_many(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self._noted.setdefault(family, []).append((keys, values))

    def of(self, family: Family) -> Laid:
        laid = self._laid.setdefault(family, {})
        for keys, values in self._noted.pop(family, ()):
            laid.update(zip(keys, values, strict=True))
        return laid


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
