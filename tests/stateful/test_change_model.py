"""What changed since a commit, against a model that keeps every table as it was after every commit.

The model looks at the rows themselves after each commit, as they are stored, and knows nothing of change records. Whatever
happened (key changes, transactions, many commands in one commit, expiry, loads, new columns, trims, crashes), the difference
since any commit that is still kept turns the rows of then into the rows of now.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tablecast.codec import changes as codec
from tablecast.codec import keys
from tablecast.codec.rows import row_header
from tablecast.core import failpoint
from tablecast.engine import undo
from tablecast.engine.catalog import Table
from tablecast.engine.changes import NetChange, changes_since, commit_changes
from tablecast.engine.commit import Commit
from tablecast.engine.decision import Decision, View
from tablecast.engine.engine import Published
from tablecast.engine.rows import DeleteRows, InsertRows, UpdateRows
from tablecast.errors import DatabaseClosed, DuplicateKey, TransactionConflict, UnknownTable, WritesStopped
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.sql.database import Database
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.testing.clock import FakeClock
from tablecast.testing.failpoints import raising

sys.path.insert(0, str(Path(__file__).parents[1] / "behaviour"))
from load_parts import sealed_part

NEVER_SECONDS = 3600.0  # jobs run when a test says so
KEPT_SECONDS, MAX_BYTES = 100, 2_000
TTL_SECONDS = 10
MOST_LISTED, MOST_IN_A_PIECE = 12, 3
USERS = ("ann", "bob")
TABLES = {
    "app.shared": "CREATE TABLE app.shared (id BIGINT PRIMARY KEY, v TEXT)",
    "app.mine": "CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT)",
    "app.passing": f"CREATE STREAM TABLE app.passing (id BIGINT PRIMARY KEY, v TEXT) WITH (TTL_SECONDS = {TTL_SECONDS})",
}
Rows = dict[bytes, Any]  # storage key -> row, as stored

ids = st.integers(0, 9)
texts = st.sampled_from(["", "a", "b", "long " * 20])
tables = st.sampled_from(sorted(TABLES))
users = st.sampled_from(USERS)
few_ids = st.integers(0, 2)  # so that one commit meets a row again


def stored_rows(db: Database, table: Table) -> Rows:
    prefix = keys.table_prefix(table.table_id)
    found = db.engine.published.snapshot.scan(Family.ROWS, prefix, keys.after(prefix))
    return {key: table.codec.decode(value) for key, value in found}


def applied(rows: Rows, changes: Sequence[NetChange]) -> Rows:
    """The rows after the changes, each of which must fit what is there."""
    after = dict(rows)
    assert len({change.key for change in changes}) == len(changes)
    for change in changes:
        assert after.get(change.key) == change.before
        assert change.before is not None or change.after is not None
        if change.after is None:
            del after[change.key]
        else:
            after[change.key] = change.after
    return after


class History:
    """Every table after every commit, written down by a listener of the feed; and what the commits said of themselves."""

    def __init__(self) -> None:
        self.states: dict[int, dict[int, Rows]] = {}
        self.published: list[Published] = []  # some, with their snapshots
        self.troubles: list[BaseException] = []  # a listener's exceptions are swallowed

    def follow(self, db: Database) -> None:
        self.db = db
        self.published.clear()
        self.states = {seq: state for seq, state in self.states.items() if seq <= db.engine.seq}
        self.states.setdefault(db.engine.seq, self.state())
        self.stop = db.engine.feed.listen(self.note)

    def state(self) -> dict[int, Rows]:
        return {table_id: stored_rows(self.db, table) for table_id, table in self.db.engine.catalog.tables.items()}

    def note(self, commit: Commit) -> None:
        try:
            self.states[commit.seq] = state = self.state()
            self.published = [*self.published[-2:], self.db.engine.published]
            self._check(commit, self.states[commit.seq - 1], state)
        except BaseException as e:
            self.troubles.append(e)

    def _check(self, commit: Commit, before: dict[int, Rows], after: dict[int, Rows]) -> None:
        for table_id in before.keys() & after.keys():
            rows = {key: _shown(row, after[table_id].get(key)) for key, row in before[table_id].items()}
            if table_id not in commit.unlisted:
                assert applied(rows, commit_changes(commit, table_id)) == after[table_id]
            if rows != after[table_id]:
                assert table_id in commit.touched
        assert commit.unlisted <= commit.touched

    def at(self, seq: int, table: Table) -> Rows:
        """The table after the commit, its rows as they are read now: with the columns added since."""
        rows = self.states[seq].get(table.table_id, {})
        return {key: table.codec.decode(row_header(1, 1) + table.codec.encode(row)) for key, row in rows.items()}


def _shown(row: Any, like: Any) -> Any:
    """A row of an older version, as a commit that only added a column leaves it."""
    if like is None or type(like) is type(row):
        return row
    values = [getattr(row, name) for name in row.__struct_fields__]
    return type(like)(*values)


class Held:
    """A command that keeps the writer from deciding: what is submitted meanwhile becomes one commit with it."""

    weight = 1

    def __init__(self) -> None:
        self.gate = threading.Event()

    def decide(self, view: View) -> Decision:
        assert self.gate.wait(60)
        return Decision()


class ChangeMachine(RuleBasedStateMachine):
    db: Database

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(undo, "MAX_LISTED_CHANGES", MOST_LISTED)
        self.patch.setattr(codec, "PIECE_KEYS", MOST_IN_A_PIECE)
        self.clock = FakeClock()
        self.batches = self.columns = 0
        self.history = History()
        self.open()
        self.history.follow(self.db)
        self.db.execute("CREATE NAMESPACE app")
        for create in TABLES.values():
            self.db.execute(create)
        for name in TABLES:
            self.db.engine.keep_changes(self.table(name).table_id)

    def open(self) -> None:
        raise NotImplementedError

    def reopen(self) -> None:
        raise NotImplementedError

    def database(self, store: Any) -> Database:
        return Database(
            store, clock=self.clock, jobs_interval_seconds=NEVER_SECONDS, changes_kept_seconds=KEPT_SECONDS,
            changes_max_bytes=MAX_BYTES,
        )  # fmt: skip

    def table(self, name: str) -> Table:
        return self.db.engine.catalog.table(name)

    # --- writes ---

    @rule(
        name=tables, user=users, values=st.lists(st.tuples(ids, texts), min_size=1, max_size=15), upsert=st.booleans()
    )
    def insert(self, name: str, user: str, values: list[tuple[int, str]], upsert: bool) -> None:
        then = " ON CONFLICT (id) DO UPDATE SET v = excluded.v" if upsert else ""
        places = ", ".join(["(?, ?)"] * len(values))
        with suppress(DuplicateKey), self.db.session(user, "dba").transaction() as session:
            session.execute(f"INSERT INTO {name} (id, v) VALUES {places}{then}", [v for pair in values for v in pair])

    @rule(name=tables, user=users, first=ids, last=ids, text=texts)
    def update(self, name: str, user: str, first: int, last: int, text: str) -> None:
        self.db.session(user, "dba").execute(f"UPDATE {name} SET v = ? WHERE id BETWEEN ? AND ?", [text, first, last])

    @rule(name=tables, user=users, first=ids, last=ids, by=st.integers(-3, 3))
    def move(self, name: str, user: str, first: int, last: int, by: int) -> None:
        with suppress(DuplicateKey):
            self.db.session(user, "dba").execute(
                f"UPDATE {name} SET id = id + ? WHERE id BETWEEN ? AND ?", [by, first, last]
            )

    @rule(name=tables, user=users, first=ids, last=ids)
    def delete(self, name: str, user: str, first: int, last: int) -> None:
        self.db.session(user, "dba").execute(f"DELETE FROM {name} WHERE id BETWEEN ? AND ?", [first, last])

    @rule(user=users, steps=st.lists(st.tuples(tables, st.sampled_from("iud"), few_ids, texts), max_size=6))
    def transaction(self, user: str, steps: list[tuple[str, str, int, str]]) -> None:
        with suppress(DuplicateKey, TransactionConflict), self.db.session(user, "dba").transaction() as session:
            for name, kind, number, text in steps:
                if kind == "i":
                    session.execute(f"INSERT INTO {name} (id, v) VALUES (?, ?)", [number, text])
                elif kind == "u":
                    session.execute(f"UPDATE {name} SET v = ? WHERE id = ?", [text, number])
                else:
                    session.execute(f"DELETE FROM {name} WHERE id = ?", [number])

    @rule(user=users, steps=st.lists(st.tuples(tables, st.sampled_from("iud"), few_ids, texts), min_size=2, max_size=8))
    def many_commands_in_one_commit(self, user: str, steps: list[tuple[str, str, int, str]]) -> None:
        held = Held()
        tickets = [self.db.engine.submit(held)]
        tickets += [self.db.engine.submit(self._command(user, *step)) for step in steps]
        held.gate.set()
        for ticket in tickets:
            with suppress(DuplicateKey):
                ticket.wait()

    def _command(self, user: str, name: str, kind: str, number: int, text: str) -> Any:
        table = self.table(name)
        row_codec, schema = table.codec, table.schema
        owner = user if schema.per_user else None
        row = row_codec.struct(number, text)
        found = row_codec.keys_of_rows(row_codec.prefix(owner), [row])
        if kind == "i":
            return InsertRows(schema.table_id, schema.version, owner, found, [row], [row_codec.encode(row)])
        if kind == "u":
            transform: Callable[[Any], Any] = lambda before: row_codec.replace(before, {1: text})  # noqa: E731
            return UpdateRows(schema.table_id, schema.version, owner, found, transform)
        return DeleteRows(schema.table_id, schema.version, owner, found)

    @rule(numbers=st.sets(st.integers(100, 130), min_size=1, max_size=4))
    def load(self, numbers: set[int]) -> None:
        """A sealed load is not listed: what was kept before it is gone."""
        loads, table = self.db.engine.loads, self.table("app.shared")
        self.batches += 1
        info = loads.begin(SYSTEM_ACTOR, "app.shared", "job:test", self.batches, mode="insert", kind="sealed")
        rest = [None] * (len(table.schema.columns) - 2)
        loads.stage(info.load_id, 0, "a", sealed_part(info, [(number, "loaded", *rest) for number in numbers]))
        try:
            seq = loads.commit(info.load_id, [(0, "a")]).seq
        except DuplicateKey:
            return
        assert self.db.engine.changes_from(table.table_id) in (seq, None)

    # --- definitions ---

    @rule(name=tables)
    def add_a_column(self, name: str) -> None:
        self.columns += 1
        self.db.execute(f"ALTER TABLE {name} ADD COLUMN c{self.columns} INT DEFAULT {self.columns}")

    @rule(name=tables)
    def drop_and_make_again(self, name: str) -> None:
        old = self.table(name)
        self.db.execute(f"DROP TABLE {name}")
        self.db.execute(TABLES[name])
        assert self.db.engine.changes_from(old.table_id) is None
        assert self.db.engine.changes_from(self.table(name).table_id) is None
        with pytest.raises(UnknownTable):
            self.db.engine.keep_changes(old.table_id)

    # --- time and jobs ---

    @rule(name=tables)
    def keep(self, name: str) -> None:
        table_id = self.table(name).table_id
        known = self.db.engine.changes_from(table_id)
        found = self.db.engine.keep_changes(table_id)
        assert found == self.db.engine.changes_from(table_id) == (self.db.engine.seq if known is None else known)

    @rule(seconds=st.sampled_from([1, TTL_SECONDS, KEPT_SECONDS // 2, KEPT_SECONDS]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds * 1000)

    @rule()
    def expire(self) -> None:
        self.db.run_job("expiry")

    @rule()
    def trim(self) -> None:
        """What may go is gone, and nothing else."""
        self.db.run_job("changes")
        oldest_ms = self.clock() - KEPT_SECONDS * 1000
        for kept in self.db.engine.change_index.tables.values():
            assert kept.bytes <= MAX_BYTES
        for key, value in self.db.engine.store.scan(Family.CHANGES):
            assert codec.decode_change_head(value).ts_ms >= oldest_ms, key

    # --- crashes ---

    def again(self) -> None:
        self.reopen()
        self.history.follow(self.db)

    @rule()
    def crash(self) -> None:
        self.again()

    @rule(place=st.sampled_from(["before_write", "after_write", "before_sync", "after_sync", "before_ack"]), text=texts)
    def crash_in_a_write(self, place: str, text: str) -> None:
        with failpoint.armed(place, raising(StorageFailure("the disk is gone"))), pytest.raises(WritesStopped):
            self.db.execute(
                "INSERT INTO app.shared (id, v) VALUES (5, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v", [text]
            )
        self.again()

    # --- what must hold ---

    @invariant()
    def every_difference_is_right(self) -> None:
        assert not self.history.troubles, self.history.troubles[0]
        for published in (*self.history.published[:-1], self.db.engine.published):
            for table in published.catalog.tables.values():
                self._check_table(published, table)

    def _check_table(self, published: Published, table: Table) -> None:
        start, now = self.db.engine.changes_from(table.table_id), self.history.at(published.seq, table)
        for since in self.history.states:
            found = changes_since(self.db.engine, published, table, None, since)
            assert (found is not None) == (start is not None and start <= since <= published.seq)
            if found is not None:
                assert applied(self.history.at(since, table), found) == now
                # Where rows expire, one that was written again with equal values is told, too.
                assert table.ttl_ms is not None or all(change.before != change.after for change in found)
                for owner in USERS if table.schema.per_user else ():
                    mine = changes_since(self.db.engine, published, table, owner, since)
                    assert mine == [change for change in found if table.codec.owner(change.key) == owner]

    @invariant()
    def verify_finds_nothing(self) -> None:
        assert self.db.verify().problems == []

    def teardown(self) -> None:
        self.patch.undo()
        with suppress(DatabaseClosed):
            self.db.close()


class MemoryMachine(ChangeMachine):
    """A crash is a power cut: what was not synced is gone."""

    def open(self) -> None:
        self.db = self.database(MemoryStore(read_sorted))

    def reopen(self) -> None:
        store = self.db.engine.store
        assert isinstance(store, MemoryStore)
        survivor = store.crash()
        with suppress(DatabaseClosed):
            self.db.close()
        self.db.close()
        self.db = self.database(survivor)


class RocksMachine(ChangeMachine):
    """Closed and opened again."""

    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.db = self.database(RocksStore.open(str(Path(self.folder.name, "db"))))

    def reopen(self) -> None:
        self.db.close()
        self.db = self.database(RocksStore.open(str(Path(self.folder.name, "db")), create=False))

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


def examples(share: float) -> settings:
    return settings(max_examples=max(1, round(settings().max_examples * share)), stateful_step_count=25)


TestMemoryChanges = MemoryMachine.TestCase
TestMemoryChanges.settings = examples(0.4)
TestRocksChanges = RocksMachine.TestCase
TestRocksChanges.settings = examples(0.1)
