"""The store's twin in memory: the same contract, nothing on disk, and a crash whenever a test wants one.

A family is a dict and the sorted list of its keys, made when a scan needs it. A snapshot shares the dict; the
next write to a shared family copies it first. So a write after a snapshot costs as much as the family is
large: fine for tests, and the reason why this is for tests.

`sync` folds what was written into a second set of families, the durable ones. `crash` returns a new store
with just those: what a machine that lost its power would find. Staging is a temporary directory, which outlives that.
Sorted files are RocksDB's, so reading them is handed in (`storage.rocks.read_sorted`).
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from tablecast.errors import BackupError, CorruptData, DatabaseClosed
from tablecast.storage.base import Batch, Family, StorageFailure

Row = tuple[bytes, bytes]


class Put(NamedTuple):
    family: Family
    key: bytes
    value: bytes


class Delete(NamedTuple):
    family: Family
    key: bytes


class DeleteRange(NamedTuple):
    family: Family
    start: bytes
    end: bytes


Operation = Put | Delete | DeleteRange


class _Table:
    """One family. Once `shared`, it is never changed again."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = entries
        self.shared = False
        self._keys: list[bytes] | None = None

    def keys(self) -> list[bytes]:
        if self._keys is None:
            self._keys = sorted(self.entries)
        return self._keys

    def apply(self, operation: Operation) -> None:
        match operation:
            case Put(_, key, value):
                if key not in self.entries:
                    self._keys = None
                self.entries[key] = value
            case Delete(_, key):
                if self.entries.pop(key, None) is not None:
                    self._keys = None
            case DeleteRange(_, start, end):
                keys = self.keys()
                for key in keys[bisect_left(keys, start) : bisect_left(keys, end)]:
                    del self.entries[key]
                self._keys = None

    def scan(self, start: bytes, end: bytes | None, reverse: bool, floor: bool) -> Iterator[Row]:
        keys = self.keys()
        first = bisect_left(keys, start)
        if floor:
            first = max(0, bisect_right(keys, start) - 1)
        last = len(keys) if end is None else bisect_left(keys, end)
        found = keys[first:last]
        return ((key, self.entries[key]) for key in (reversed(found) if reverse else found))


_Tables = dict[Family, _Table]


def _empty() -> _Tables:
    return {family: _Table({}) for family in Family}


def _apply(tables: _Tables, operations: Sequence[Operation]) -> None:
    for operation in operations:
        table = tables[operation.family]
        if table.shared:
            table = tables[operation.family] = _Table(dict(table.entries))
        table.apply(operation)


class MemoryBatch:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._operations: list[Operation] | None = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self._unwritten().append(Put(family, key, value))

    def put_many(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._unwritten().extend(Put(family, key, value) for key, value in zip(keys, values, strict=True))

    def delete(self, family: Family, key: bytes) -> None:
        self._unwritten().append(Delete(family, key))

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        operations = self._unwritten()
        if start < end:
            operations.append(DeleteRange(family, start, end))

    def __len__(self) -> int:
        return len(self._unwritten())

    def consume(self) -> list[Operation]:
        operations, self._operations = self._unwritten(), None
        return operations

    def _unwritten(self) -> list[Operation]:
        self._store.require_open()
        if self._operations is None:
            raise ValueError("this batch was written; a batch is written once")
        return self._operations


class MemorySnapshot:
    """Tables that no one changes any more, readable until the store closes."""

    def __init__(self, store: MemoryStore, tables: _Tables) -> None:
        self._store = store
        self._tables = tables

    def get(self, family: Family, key: bytes) -> bytes | None:
        self._store.require_open()
        return self._tables[family].entries.get(key)

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(family, key) for key in keys]

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[Row]:
        self._store.require_open()
        if reverse and floor:
            raise ValueError("a scan from the floor of a key ascends; reverse it or give a floor, not both")
        return self._while_open(self._tables[family].scan(start, end, reverse, floor))

    def _while_open(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self._store.require_open()
            yield row


class _Directory:
    """A temporary directory that lives as long as somebody holds this."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="tablecast-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _cannot_read(path: str) -> list[Row]:
    raise StorageFailure(f"this store in memory was not told how to read {path}", path=path)


class MemoryStore:
    """See `tablecast.storage.base.Store` for the contract."""

    def __init__(self, read_sorted: Callable[[str], list[Row]] = _cannot_read) -> None:
        self._read_sorted = read_sorted
        self._staging: _Directory | None = None
        self._tables = _empty()
        self._durable = _empty()
        self._unsynced: list[Operation] = []
        self._closed = False
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: str) -> Self:
        """A store with what `checkpoint` put at `path`."""
        families = msgspec.msgpack.decode(Path(path).read_bytes(), type=dict[Family, dict[bytes, bytes]])
        return cls._holding(families)

    @classmethod
    def _holding(cls, families: dict[Family, dict[bytes, bytes]]) -> Self:
        store = cls()
        for tables in (store._tables, store._durable):  # a family that is not there was not known yet: empty
            tables.update({family: _Table(dict(entries)) for family, entries in families.items()})
        return store

    def crash(self) -> Self:
        """Ends this store as a power cut would; the new one has what was synced, or what `close` left."""
        with self._lock:
            self._closed = True
            found = self._holding({family: table.entries for family, table in self._durable.items()})
            found._read_sorted, found._staging = self._read_sorted, self._staging
            return found

    def get(self, family: Family, key: bytes) -> bytes | None:
        with self._lock:  # a batch that is being applied is not seen in part
            self.require_open()
            return self._tables[family].entries.get(key)

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(family, key) for key in keys]

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[Row]:
        return self.snapshot(family).scan(family, start, end, reverse=reverse, floor=floor)

    def snapshot(self, *families: Family) -> MemorySnapshot:
        with self._lock:
            self.require_open()
            tables = {family: self._tables[family] for family in families or Family}
            for table in tables.values():
                table.shared = True
        return MemorySnapshot(self, tables)

    def batch(self) -> MemoryBatch:
        self.require_open()
        return MemoryBatch(self)

    def write(self, batch: Batch) -> None:
        if not isinstance(batch, MemoryBatch):
            raise TypeError(f"a batch made by this store is needed, not {type(batch).__name__}")
        with self._lock:
            self.require_open()
            operations = batch.consume()
            _apply(self._tables, operations)
            self._unsynced += operations

    def sync(self) -> None:
        with self._lock:
            self.require_open()
            _apply(self._durable, self._unsynced)
            self._unsynced = []

    def staging(self) -> str:
        with self._lock:
            self.require_open()
            if self._staging is None:
                self._staging = _Directory()
            return self._staging.path

    def require_room(self) -> None:
        pass

    def reclaim(self) -> None:
        pass

    def bounds(self, path: str) -> tuple[bytes, bytes]:
        rows = self._read_sorted(path)
        if not rows:
            raise CorruptData(f"{path} is a sorted file without entries", path=path)
        return rows[0][0], rows[-1][0]

    def ingest(self, family: Family, paths: Sequence[str]) -> None:
        taken = [Put(family, key, value) for path in paths for key, value in self._read_sorted(path)]
        with self._lock:
            self.require_open()
            _apply(self._tables, taken)
            _apply(self._durable, taken)

    def checkpoint(self, path: str) -> None:
        with self._lock:
            self.require_open()
            content = msgspec.msgpack.encode({f.value: table.entries for f, table in self._tables.items()})
        try:
            with Path(path).open("xb") as file:
                file.write(content)
        except FileExistsError as error:
            raise BackupError(f"{path} exists already; a backup needs a free place", path=path) from error

    def size_bytes(self) -> int:
        with self._lock:
            self.require_open()
            return sum(len(k) + len(v) for table in self._tables.values() for k, v in table.entries.items())

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self.sync()
                self._closed = True

    def require_open(self) -> None:
        if self._closed:
            raise DatabaseClosed("this store in memory is closed")
