"""A store whose disk fails, or hangs, exactly when a test says so.

`FaultyStore` wraps any store and passes every call on, except:

- `fail(call, nth, fault)` arms one failure: the n-th `write`, `sync` or `ingest` from now raises `StorageFailure`. As
  the contract demands, nothing can be written or synced afterwards; reads go on. What the wrapped store then
  holds is told by the `Fault`.
- `hold_sync()` stops the next sync before it reaches the wrapped store, until it is released. Between
  `wait_until_held` and `release` a test knows that the write is visible and not durable.

        with store.hold_sync() as hold:
            thread.start()              # it will sync
            hold.wait_until_held()
            assert nothing_is_acknowledged()
        thread.join()                   # leaving the block releases
"""

from __future__ import annotations

import enum
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from tablecast.storage.base import Batch, Family, Snapshot, StorageFailure, Store

_HOLD_LIMIT_SECONDS = 60.0


class Call(enum.StrEnum):
    WRITE = "write"
    SYNC = "sync"
    INGEST = "ingest"


class Fault(enum.Enum):
    """What happens to the call. The caller gets the same error for all of them: it cannot know."""

    ENOSPC = errno.ENOSPC  # nothing of it reached the wrapped store
    EIO = errno.EIO  # the same, with the other error a disk gives
    SHORT = errno.EFBIG  # all of it reached the wrapped store, and only the answer is a failure


class Hold:
    """One sync, held. Released by `release`, by leaving the block and by closing the store."""

    def __init__(self) -> None:
        self._held = threading.Event()
        self._released = threading.Event()

    def wait_until_held(self) -> None:
        """Returns when a sync has arrived."""
        if not self._held.wait(_HOLD_LIMIT_SECONDS):
            raise TimeoutError(f"no sync arrived within {_HOLD_LIMIT_SECONDS:.0f} s")

    def release(self) -> None:
        self._released.set()

    def stop_here(self) -> None:
        self._held.set()
        if not self._released.wait(_HOLD_LIMIT_SECONDS):
            raise TimeoutError(f"a held sync was not released within {_HOLD_LIMIT_SECONDS:.0f} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class FaultyStore:
    """Does as `store` does until told otherwise. `calls` counts the writes, syncs and ingests asked for."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls = dict.fromkeys(Call, 0)
        self._armed: dict[tuple[Call, int], Fault] = {}
        self._hold: Hold | None = None
        self._failure: StorageFailure | None = None

    # arming

    def fail(self, call: Call, *, nth: int = 1, fault: Fault = Fault.EIO) -> None:
        """The n-th such call from now fails; 1 is the next one."""
        if nth < 1:
            raise ValueError(f"nth counts from 1, not {nth}")
        self._armed[call, self.calls[call] + nth] = fault

    def hold_sync(self) -> Hold:
        """The next sync stops before it reaches the wrapped store."""
        self._hold = Hold()
        return self._hold

    # the calls that can fail

    def write(self, batch: Batch) -> None:
        fault = self._next(Call.WRITE)
        if fault in (None, Fault.SHORT):
            self.store.write(batch)
        self._raise(Call.WRITE, fault)

    def sync(self) -> None:
        fault = self._next(Call.SYNC)
        if self._hold is not None:
            self._hold.stop_here()
            self._hold = None
        if fault in (None, Fault.SHORT):
            self.store.sync()
        self._raise(Call.SYNC, fault)

    def ingest(self, family: Family, paths: Sequence[str]) -> None:
        fault = self._next(Call.INGEST)
        if fault in (None, Fault.SHORT):
            self.store.ingest(family, paths)
        self._raise(Call.INGEST, fault)

    def _next(self, call: Call) -> Fault | None:
        if self._failure is not None:
            raise StorageFailure(f"no more writes until opened again: {self._failure}") from self._failure
        self.calls[call] += 1
        return self._armed.pop((call, self.calls[call]), None)

    def _raise(self, call: Call, fault: Fault | None) -> None:
        if fault is not None:
            self._failure = StorageFailure(f"a {call} failed: {os.strerror(fault.value)}", errno=fault.value)
            raise self._failure

    # the calls that are passed on

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self.store.get(family, key)

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.store.get_many(family, keys)

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(family, start, end, reverse=reverse, floor=floor)

    def batch(self) -> Batch:
        return self.store.batch()

    def snapshot(self, *families: Family) -> Snapshot:
        return self.store.snapshot(*families)

    def staging(self) -> str:
        return self.store.staging()

    def bounds(self, path: str) -> tuple[bytes, bytes]:
        return self.store.bounds(path)

    def checkpoint(self, path: str) -> None:
        self.store.checkpoint(path)

    def require_room(self) -> None:
        self.store.require_room()

    def reclaim(self) -> None:
        self.store.reclaim()

    def size_bytes(self) -> int:
        return self.store.size_bytes()

    def close(self) -> None:
        if self._hold is not None:
            self._hold.release()
        self.store.close()
