"""The contract between tablecast and whatever keeps its bytes.

A store holds ordered key-value *families*. Keys order as unsigned bytes; any bytes are a key, the empty
string too (it sorts first), and any bytes are a value. One thread writes (`write`, `sync`, `checkpoint`); any
thread reads, takes snapshots and closes. Values handed out are the caller's own; keys and values handed in
are not kept mutable by the caller.

- `write(batch)` is atomic over all families and visible to readers of the store when it returns. It is *not*
  durable. A batch is written once; a second time is a ValueError.
- `sync()` returns when everything written before the call is durable. It releases the GIL while it waits.
- A snapshot sees exactly what was written when it was taken, for ever. Dropping it frees it.
- A failed `write` or `sync` raises `OSError`-like trouble as `StorageFailure`; after one, nothing further may
  be written: what is durable is unknown until the store is opened again. Reads go on.
- `close()` ends everything: it makes what was written durable, takes open scans and snapshots down with it
  and may be called twice. From then on every call, on the store, its snapshots and batches, raises
  `DatabaseClosed`; so does a scan, once it needs more than it has already fetched.
- `ingest(family, paths)` takes in sorted files whole. Unlike a write it is durable when it returns, so what was
  written before must be synced first: else a crash could keep the files and lose what came before them.
- A read that meets bytes it cannot trust raises `CorruptData`; it never leaves them out in silence.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol

from tablecast.errors import DatabaseError


class Family(enum.StrEnum):
    META = "meta"  # format, catalog, log starts, settings
    ROWS = "rows"  # table id, [user], primary key -> row
    LOG = "log"  # topic, partition, first offset -> log batch
    GROUPS = "groups"  # topic, group, partition -> group state
    KEYS = "keys"  # idempotency keys and dedup entries
    EXPIRY = "expiry"  # expiry time, family, key -> nothing: what a job removes, in order
    CHANGES = "changes"  # table id, commit, piece -> what the rows that the commit changed were before it
    VERSIONS = "versions"  # table id, bucket, primary key -> which write the row is of, of replicated tables
    BUCKETS = "buckets"  # table id, bucket -> the sum of its versions


class StorageFailure(DatabaseError):
    """The disk said no: no space, an I/O error, a corrupt file. Not retried; writes stop."""

    code = "storage_failure"


class Reader(Protocol):
    def get(self, family: Family, key: bytes) -> bytes | None: ...

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """As many answers as keys, in their order."""
        ...

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < end, ascending, or descending with `reverse`.

        `floor=True` (ascending only, else a ValueError) begins at the greatest key <= start instead, if there
        is one: a seek, not a search. `end` still holds: a floor that is not below it yields nothing.

        A scan is one consistent view: of its snapshot, or of the store at the time of the call.
        """
        ...


class Batch(Protocol):
    def put(self, family: Family, key: bytes, value: bytes) -> None: ...

    def put_many(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """As many puts, in their order."""
        ...

    def delete(self, family: Family, key: bytes) -> None: ...

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Removes start <= key < end; nothing when start >= end. Later operations win over earlier ones."""
        ...

    def __len__(self) -> int:
        """How many operations it holds."""
        ...


class Snapshot(Reader, Protocol): ...


class Store(Reader, Protocol):
    def batch(self) -> Batch: ...

    def write(self, batch: Batch) -> None: ...

    def sync(self) -> None: ...

    def snapshot(self, *families: Family) -> Snapshot:
        """Of these families, or of all. Each costs a few microseconds, and a commit takes one."""
        ...

    def staging(self) -> str:
        """A directory for files on their way into the store: on its disk, made if need be, and no part of a
        checkpoint. What is in it outlives a crash."""
        ...

    def bounds(self, path: str) -> tuple[bytes, bytes]:
        """The first and the last key of a sorted file; CorruptData for one that `ingest` would refuse."""
        ...

    def ingest(self, family: Family, paths: Sequence[str]) -> None:
        """All entries of these files, which lie in `staging` and share no key: visible together, and durable.

        They win over what was written before, and no snapshot that was taken before sees them. The files stay; taking
        them in again changes nothing, unless their keys were written since. Failing is as failing to write.
        """
        ...

    def checkpoint(self, path: str) -> None:
        """A consistent copy of everything written, at `path`, which must not exist (else `BackupError`).

        Safe while reads go on. The copy appears at `path` whole and durable, or not at all.
        """
        ...

    def size_bytes(self) -> int:
        """About how much space the store takes."""
        ...

    def require_room(self) -> None:
        """Raises DiskFull while only what removes data should be written."""
        ...

    def reclaim(self) -> None:
        """To be called now and then: keeps a reserve of the disk, and while it is short of one gives back the space of what
        was removed."""
        ...

    def close(self) -> None: ...
