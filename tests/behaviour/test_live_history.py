"""A commit number is resumed from only in the history that it is of: never after commits were lost and their numbers used
again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tablecast
from tablecast.cli.backup import restore_from
from tablecast.codec.catalog import HISTORY_KEY, History, encode_record
from tablecast.engine.live import LiveHub, LiveSubscription, Told
from tablecast.errors import DatabaseClosed, InvalidRequest, TablecastError
from tablecast.model.change import Op
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.sql.database import Database
from tablecast.sql.plan_live import plan_live
from tablecast.storage.base import Family
from tablecast.storage.memory import MemoryStore

NEVER_SECONDS = 3600
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)"
Rows = dict[Any, Any]


def on_disk(path: Path, **options: Any) -> Database:
    return tablecast.open(str(path), jobs_interval_seconds=NEVER_SECONDS, **options)


def in_memory(store: MemoryStore, **options: Any) -> Database:
    return Database(store, jobs_interval_seconds=NEVER_SECONDS, **options)


def after_a_crash(db: Database, **options: Any) -> Database:
    """A power cut: what was not synced is gone."""
    store = db.engine.store
    assert isinstance(store, MemoryStore)
    survivor = store.crash()
    with suppress(DatabaseClosed):
        db.close()
    return in_memory(survivor, **options)


class Follower:
    """Keeps rows by a live query, from one database to the next."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.seq: int | None = None
        self.history: str | None = None
        self.mode = ""

    async def follow(self, db: Database, then: Callable[[], None] = lambda: None) -> None:
        hub = LiveHub(db.engine)
        query = plan_live(db.engine.catalog, SYSTEM_ACTOR, "SELECT id, v FROM t")
        subscription = await hub.open(query, self, self.seq, self.history)
        self.mode, self.history = subscription.mode, db.engine.history
        if self.mode != "resumed":
            self.rows = dict((await subscription.rows(1000))[0])
        self.fold(await subscription.go_live() or [])
        then()
        await hub.settled()
        self.seq = hub.detach(subscription)
        await hub.stop()

    def fold(self, changes: Any) -> None:
        for op, values in changes:
            if op is Op.DELETE:
                self.rows.pop(values[0], None)
            else:
                self.rows[values[0]] = values[1]

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        self.fold(told.changes)

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        raise AssertionError(error)

    def must_resume(self, subscription: LiveSubscription) -> None:
        raise AssertionError("nothing was too much")


def selected(db: Database) -> Rows:
    return dict(db.query("SELECT id, v FROM t").rows)


def insert(db: Database, *ids: int) -> None:
    for number in ids:
        db.execute("INSERT INTO t VALUES (?, ?)", [number, f"in {db.engine.history}"])


# --- when it is kept, and when it is another --------------------------------------------------------------------


def test_a_database_keeps_its_history(tmp_path: Path) -> None:
    with on_disk(tmp_path / "db") as db:
        history = db.engine.history
        assert len(bytes.fromhex(history)) == 8
    for _ in range(2):
        with on_disk(tmp_path / "db") as db:
            assert db.engine.history == history
    with on_disk(tmp_path / "other") as db:
        assert db.engine.history != history


def test_a_database_from_before_there_were_histories_gets_one() -> None:
    store = MemoryStore()
    db = in_memory(store)
    batch = store.batch()
    batch.delete(Family.META, HISTORY_KEY)
    store.write(batch)
    store.sync()
    again = after_a_crash(db)
    assert again.engine.history != db.engine.history
    with after_a_crash(again) as third:
        assert third.engine.history == again.engine.history


@pytest.mark.parametrize("damage", [None, b"\x02", encode_record(History(""))])
def test_verify_misses_it(damage: bytes | None) -> None:
    store = MemoryStore()
    with in_memory(store) as db:
        assert db.verify().sound
        batch = store.batch()
        if damage is None:
            batch.delete(Family.META, HISTORY_KEY)
        else:
            batch.put(Family.META, HISTORY_KEY, damage)
        store.write(batch)
        [problem] = db.verify().problems
        assert "History" in problem or "history" in problem


def test_a_crash_loses_nothing_that_was_told_when_each_commit_is_synced() -> None:
    db = in_memory(MemoryStore())
    with after_a_crash(db) as again:
        assert again.engine.history == db.engine.history


@pytest.mark.parametrize("weak", ["none", "interval(60000)"])
@pytest.mark.parametrize("then", ["fsync", "none"])
def test_a_crash_that_may_have_lost_commits_begins_another_however_it_is_opened(weak: str, then: str) -> None:
    db = in_memory(MemoryStore(), durability=weak)
    with after_a_crash(db, durability=then) as again:
        assert again.engine.history != db.engine.history


@pytest.mark.parametrize("weak", ["none", "interval(60000)"])
def test_a_clean_close_loses_nothing(tmp_path: Path, weak: str) -> None:
    with on_disk(tmp_path / "db") as db:
        history = db.engine.history
    for durability in (weak, weak, "fsync"):
        with on_disk(tmp_path / "db", durability=durability) as db:
            assert db.engine.history == history


def test_a_copy_has_a_history_of_its_own_however_it_is_made(tmp_path: Path) -> None:
    with on_disk(tmp_path / "db") as db:
        history = db.engine.history
        db.backup(tmp_path / "backup")
        assert db.engine.history == history
    with on_disk(tmp_path / "db") as db:
        assert db.engine.history == history, "the one that was copied goes on"
    shutil.copytree(tmp_path / "backup", tmp_path / "copied")
    restore_from(tmp_path / "backup", tmp_path / "restored", check=True)
    restore_from(tmp_path / "db", tmp_path / "moved", check=False)
    found = [history]
    for name in ("backup", "copied", "restored", "moved"):
        for opening in range(2):
            with on_disk(tmp_path / name) as db:
                found += [] if opening else [db.engine.history]
                assert db.engine.history == found[-1], "which it keeps"
    assert len(set(found)) == 5


def test_a_backup_that_fails_changes_nothing(tmp_path: Path) -> None:
    with on_disk(tmp_path / "db") as db:
        history = db.engine.history
        (tmp_path / "taken").mkdir()
        with pytest.raises(TablecastError):
            db.backup(tmp_path / "taken")
    with on_disk(tmp_path / "db") as db:
        assert db.engine.history == history


# --- resuming ---------------------------------------------------------------------------------------------------


def test_a_restored_database_is_fetched_again_by_who_saw_later_commits(tmp_path: Path) -> None:
    async def life() -> None:
        follower = Follower()
        with on_disk(tmp_path / "db") as db:
            db.execute_all(TABLE)
            await follower.follow(db, lambda: insert(db, 1))
            db.backup(tmp_path / "backup")
            await follower.follow(db, lambda: insert(db, 2, 3))
            assert (follower.mode, follower.rows) == ("resumed", selected(db))
        restore_from(tmp_path / "backup", tmp_path / "restored", check=False)
        with on_disk(tmp_path / "restored") as db:
            insert(db, 4, 5, 6)
            assert follower.seq is not None
            assert db.engine.seq > follower.seq, "the numbers were used again"
            await follower.follow(db)
            assert (follower.mode, follower.rows) == ("refetch", selected(db))
            await follower.follow(db, lambda: insert(db, 7))
            assert (follower.mode, follower.rows) == ("resumed", selected(db))

    asyncio.run(life())


def test_commits_that_a_crash_took_back_are_not_resumed_from() -> None:
    async def life() -> None:
        follower, store = Follower(), MemoryStore()
        db = in_memory(store, durability="none")
        db.execute_all(TABLE)
        await follower.follow(db, lambda: insert(db, 1))
        store.sync()
        await follower.follow(db, lambda: insert(db, 2, 3))
        with after_a_crash(db, durability="none") as again:
            insert(again, 4, 5, 6)
            assert set(selected(again)) == {1, 4, 5, 6}
            await follower.follow(again)
            assert (follower.mode, follower.rows) == ("refetch", selected(again))

    asyncio.run(life())


def test_a_number_without_its_history_is_refused() -> None:
    async def life() -> None:
        follower = Follower()
        with tablecast.open(":memory:") as db:
            db.execute_all(TABLE)
            follower.seq = 0
            with pytest.raises(InvalidRequest, match="history"):
                await follower.follow(db)

    asyncio.run(life())
