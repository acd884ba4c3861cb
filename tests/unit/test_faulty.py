"""FaultyStore fails and holds exactly what it was told to, and nothing else."""

from __future__ import annotations

import contextlib
import threading

import pytest

from tablecast.errors import DatabaseClosed
from tablecast.storage.base import Family, StorageFailure, Store
from tablecast.storage.memory import MemoryStore
from tablecast.testing.faulty import Call, Fault, FaultyStore

ROWS = Family.ROWS


def put(store: Store, key: bytes) -> None:
    batch = store.batch()
    batch.put(ROWS, key, b"v")
    store.write(batch)


def keys(store: Store) -> list[bytes]:
    return [key for key, _ in store.scan(ROWS)]


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(memory: MemoryStore) -> FaultyStore:
    return FaultyStore(memory)


@pytest.mark.parametrize(
    ("fault", "text"), [(Fault.ENOSPC, "No space left on device"), (Fault.EIO, "Input/output error")]
)
def test_the_nth_write_fails_and_never_reaches_the_store(store: FaultyStore, fault: Fault, text: str) -> None:
    put(store, b"a")
    store.fail(Call.WRITE, nth=2, fault=fault)
    put(store, b"b")
    with pytest.raises(StorageFailure, match=text) as caught:
        put(store, b"c")
    assert caught.value.details["errno"] == fault.value
    assert keys(store) == [b"a", b"b"]
    assert store.calls == {Call.WRITE: 3, Call.SYNC: 0, Call.INGEST: 0}


def test_a_short_write_fails_and_is_there_nevertheless(store: FaultyStore) -> None:
    store.fail(Call.WRITE, fault=Fault.SHORT)
    with pytest.raises(StorageFailure):
        put(store, b"a")
    assert keys(store) == [b"a"]


@pytest.mark.parametrize(("fault", "survivors"), [(Fault.EIO, [b"a"]), (Fault.SHORT, [b"a", b"b"])])
def test_a_failed_sync_leaves_durable_what_the_fault_says(
    store: FaultyStore, memory: MemoryStore, fault: Fault, survivors: list[bytes]
) -> None:
    put(store, b"a")
    store.sync()
    put(store, b"b")
    store.fail(Call.SYNC, fault=fault)
    with pytest.raises(StorageFailure, match="sync failed"):
        store.sync()
    assert keys(store) == [b"a", b"b"]
    assert keys(memory.crash()) == survivors


def test_after_a_failure_nothing_is_written_any_more(store: FaultyStore, memory: MemoryStore) -> None:
    store.fail(Call.SYNC)
    put(store, b"a")
    with pytest.raises(StorageFailure):
        store.sync()
    with pytest.raises(StorageFailure, match="until opened again"):
        put(store, b"b")
    with pytest.raises(StorageFailure, match="until opened again"):
        store.sync()
    assert keys(store) == [b"a"]
    assert keys(memory.crash()) == []


def test_nth_counts_from_one(store: FaultyStore) -> None:
    with pytest.raises(ValueError, match="counts from 1"):
        store.fail(Call.WRITE, nth=0)


def test_a_held_sync_waits_and_is_not_durable_until_released(store: FaultyStore, memory: MemoryStore) -> None:
    put(store, b"a")
    acknowledged = threading.Event()

    def sync() -> None:
        store.sync()
        acknowledged.set()

    thread = threading.Thread(target=sync)
    with store.hold_sync() as hold:
        thread.start()
        hold.wait_until_held()
        assert keys(store) == [b"a"]
        assert not acknowledged.is_set()
        assert memory._durable[ROWS].entries == {}
    thread.join()
    assert acknowledged.is_set()
    assert keys(memory.crash()) == [b"a"]


def test_only_the_next_sync_is_held(store: FaultyStore) -> None:
    store.hold_sync().release()
    store.sync()
    store.sync()
    assert store.calls[Call.SYNC] == 2


def test_a_held_sync_can_fail_when_released(store: FaultyStore) -> None:
    failures: list[Exception] = []

    def sync() -> None:
        try:
            store.sync()
        except StorageFailure as failure:
            failures.append(failure)

    store.fail(Call.SYNC)
    thread = threading.Thread(target=sync)
    with store.hold_sync() as hold:
        thread.start()
        hold.wait_until_held()
    thread.join()
    assert len(failures) == 1


def test_closing_releases_a_held_sync(memory: MemoryStore) -> None:
    store = FaultyStore(memory)

    def sync() -> None:
        with contextlib.suppress(DatabaseClosed):  # it may get through before the store is closed, or after
            store.sync()

    hold = store.hold_sync()
    thread = threading.Thread(target=sync)
    thread.start()
    hold.wait_until_held()
    store.close()
    thread.join()
    with pytest.raises(DatabaseClosed):
        memory.get(ROWS, b"a")
