"""Rows of a store itself, without a database around it."""

from __future__ import annotations

from pathlib import Path

from tablecast.storage.base import Family
from tablecast.storage.rocks import RocksStore

ROWS = Family.ROWS


def write(store: RocksStore, entries: dict[bytes, bytes]) -> None:
    batch = store.batch()
    for key, value in entries.items():
        batch.put(ROWS, key, value)
    store.write(batch)


def contents(path: Path) -> dict[bytes, bytes]:
    store = RocksStore.open(str(path), create=False)
    try:
        return dict(store.scan(ROWS))
    finally:
        store.close()
