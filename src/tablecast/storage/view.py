"""Reading a range from a native iterator that `close` can take away at any moment.

A `View` is one family as it was at one moment: RocksDB pins that state for as long as the iterator lives. A
`Scan` reads a range of a view piece by piece, 1, 2, 4, … entries at a time. Only the view holds the native
iterator between pieces, so dropping the view frees it however many half-read scans are left, and each of
those then raises `DatabaseClosed` when it needs its next piece. Several scans may share a view: each
remembers its last key and seeks back to it when another one has moved the iterator meanwhile.

An iterator that is no longer valid has reached the end *or* met trouble; every piece that comes up short asks
which.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, NoReturn, Protocol, TypeVar

from tablecast.errors import CorruptData, DatabaseClosed
from tablecast.storage.base import Family, StorageFailure

Row = tuple[bytes, bytes]
T = TypeVar("T")

_numbers = itertools.count(1)  # a view names its mover by number: by reference, the two would be a cycle


class NativeIterator(Protocol):
    """What is used of RocksDB's iterator. `key` is None when it is not valid; `status` raises trouble."""

    def valid(self) -> bool: ...
    def status(self) -> None: ...
    def seek(self, key: bytes, /) -> None: ...
    def seek_for_prev(self, key: bytes, /) -> None: ...
    def seek_to_last(self) -> None: ...
    def next(self) -> None: ...
    def prev(self) -> None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes: ...


class PerFamily(dict[Family, T], Generic[T]):
    """What calls need, by family. Closing the store empties it: a missing family means closed."""

    def __init__(self, path: Path, entries: Mapping[Family, T]) -> None:
        super().__init__(entries)
        self._path = path

    def __missing__(self, family: Family) -> NoReturn:
        if self:
            raise KeyError(f"family {family} is not part of this snapshot")
        raise closed_error(self._path)


def closed_error(path: Path) -> DatabaseClosed:
    return DatabaseClosed(f"{path} is closed", path=str(path))


def explained(error: Exception, path: Path, closed: bool) -> Exception:
    """A failed read in our words."""
    if closed:
        return closed_error(path)
    if isinstance(error, KeyError):  # what rocksdict makes of a key that is not bytes
        return TypeError(f"a key is bytes: {error}")
    kind = CorruptData if str(error).startswith("Corruption") else StorageFailure
    return kind(f"reading {path} failed: {error}", path=str(path))


class View:
    """One family at one moment: a native iterator, and the number of the scan that moved it last."""

    __slots__ = ("__weakref__", "lock", "mover", "native", "path")

    def __init__(self, path: Path, native: NativeIterator) -> None:
        self.path = path
        self.native: NativeIterator | None = native
        self.lock = threading.Lock()
        self.mover = 0

    def drop(self) -> None:
        with self.lock:
            self.native = None


class Scan:
    """A range of a view, read piece by piece: between pieces only the view holds the native iterator."""

    __slots__ = ("_end", "_floor", "_last", "_number", "_owner", "_reverse", "_start", "_view")

    def __init__(
        self, view: View, start: bytes, end: bytes | None, reverse: bool, floor: bool, owner: object = None
    ) -> None:
        if reverse and floor:
            raise ValueError("a scan from the floor of a key ascends; reverse it or give a floor, not both")
        self._view = view
        self._owner = owner  # the snapshot the view belongs to: close finds the view through it
        self._start = start
        self._end = end
        self._reverse = reverse
        self._floor = floor
        self._last: bytes | None = None
        self._number = next(_numbers)

    def rows(self, ahead: int) -> Iterator[Row]:
        size = 1
        while piece := self._take(size):
            yield from piece
            if len(piece) < size:
                return
            size = min(size * 2, ahead)

    def _take(self, size: int) -> list[Row]:
        view = self._view
        with view.lock:
            native = view.native
            if native is None:
                raise closed_error(view.path)
            try:
                if view.mover != self._number:
                    view.mover = self._number
                    self._seek(native)
                if self._last is not None and native.valid():  # invalid means trouble, told below
                    native.prev() if self._reverse else native.next()
                piece = self._backward(native, size) if self._reverse else self._forward(native, size)
                if len(piece) < size:
                    native.status()
            except Exception as error:
                raise explained(error, view.path, closed=False) from error
        if piece:
            self._last = piece[-1][0]
        return piece

    def _seek(self, native: NativeIterator) -> None:
        if self._last is not None:
            native.seek(self._last)  # stands there, as a view does not change
        elif self._floor:
            self._seek_floor(native)
        elif not self._reverse:
            native.seek(self._start)
        elif self._end is None:
            native.seek_to_last()
        else:
            native.seek_for_prev(self._end)
            if native.key() == self._end:
                native.prev()

    def _seek_floor(self, native: NativeIterator) -> None:
        """Most often the key itself is there, and finding it unpacks one block; `seek_for_prev` unpacks the next as well,
        and those of a log are megabytes."""
        native.seek(self._start)
        if native.key() == self._start:
            return
        native.seek_for_prev(self._start)
        if not native.valid():
            native.status()
            native.seek(self._start)

    # A piece ends on its last row, not behind it: the next one may never be asked for, and to step there is to read and
    # unpack it, which for a log batch is most of the work.

    def _forward(self, native: NativeIterator, size: int) -> list[Row]:
        piece: list[Row] = []
        append, key, value, step, end = piece.append, native.key, native.value, native.next, self._end
        while (at := key()) is not None and (end is None or at < end):
            append((at, value()))
            if len(piece) == size:
                break
            step()
        return piece

    def _backward(self, native: NativeIterator, size: int) -> list[Row]:
        piece: list[Row] = []
        append, key, value, step, start = piece.append, native.key, native.value, native.prev, self._start
        while (at := key()) is not None and at >= start:
            append((at, value()))
            if len(piece) == size:
                break
            step()
        return piece
