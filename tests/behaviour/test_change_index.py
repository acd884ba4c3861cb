"""The index of changes, case by case, over both stores: what is told, what is kept and for how long, and what verify finds.

Random histories against a model: tests/stateful/test_change_model.py.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tablecast.codec import catalog as records
from tablecast.codec import changes as codec
from tablecast.codec import keys
from tablecast.codec.catalog import ChangeStart, encode_record
from tablecast.codec.rows import row_header
from tablecast.engine import undo
from tablecast.engine.catalog import Table
from tablecast.engine.change_index import KeepChanges, StopChanges
from tablecast.engine.changes import NetChange, changes_since, commit_changes
from tablecast.engine.commit import Commit
from tablecast.engine.decision import Decision, View
from tablecast.engine.rows import DeleteRows, InsertRows
from tablecast.model.position import EARLIEST
from tablecast.sql.database import Database
from tablecast.storage.base import Family
from tablecast.storage.home import FORMAT
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.testing.clock import FakeClock

NEVER_SECONDS = 3600.0  # jobs run when a test says so
KEPT_SECONDS, MAX_BYTES = 100, 2_000
TTL_SECONDS = 10
TABLES = {
    "app.shared": "CREATE TABLE app.shared (id BIGINT PRIMARY KEY, v TEXT)",
    "app.passing": f"CREATE STREAM TABLE app.passing (id BIGINT PRIMARY KEY, v TEXT) WITH (TTL_SECONDS = {TTL_SECONDS})",
}


class Held:
    """A command that keeps the writer from deciding: what is submitted meanwhile becomes one commit with it."""

    weight = 1

    def __init__(self) -> None:
        self.gate = threading.Event()

    def decide(self, view: View) -> Decision:
        assert self.gate.wait(60)
        return Decision()


# --- one by one ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore(read_sorted) if request.param == "memory" else RocksStore.open(str(tmp_path / "db"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(store: Any, clock: FakeClock) -> Iterator[Database]:
    made = Database(
        store, clock=clock, jobs_interval_seconds=NEVER_SECONDS, changes_kept_seconds=KEPT_SECONDS,
        changes_max_bytes=MAX_BYTES,
    )  # fmt: skip
    made.execute("CREATE NAMESPACE app")
    for create in TABLES.values():
        made.execute(create)
    yield made
    made.close()


def kept(db: Database, name: str = "app.shared") -> Table:
    table = db.engine.catalog.table(name)
    db.engine.keep_changes(table.table_id)
    return table


def since(db: Database, table: Table, seq: int) -> list[tuple[Any, Any]] | None:
    """(before, after) as values."""
    found = changes_since(db.engine, db.engine.published, table, None, seq)
    return None if found is None else [(_values(table, c.before), _values(table, c.after)) for c in found]


def _values(table: Table, row: Any) -> Any:
    return None if row is None else table.codec.values(row)


def put(db: Database, number: int, text: str = "a", table: str = "app.shared") -> int:
    db.execute(f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v", [number, text])
    return db.engine.seq


def told(db: Database) -> list[Commit]:
    found: list[Commit] = []
    db.engine.feed.listen(found.append)
    return found


def test_a_difference_is_told_in_the_order_of_the_last_change_and_each_row_once(db: Database) -> None:
    put(db, 1), put(db, 2)
    table = kept(db)
    begin = db.engine.seq
    put(db, 2, "b"), put(db, 3), put(db, 1, "c"), put(db, 2, "d"), put(db, 9)
    db.execute("DELETE FROM app.shared WHERE id = 9")
    assert since(db, table, begin) == [(None, (3, "a")), ((1, "a"), (1, "c")), ((2, "a"), (2, "d"))]
    put(db, 2, "a")
    assert since(db, table, begin) == [(None, (3, "a")), ((1, "a"), (1, "c"))]  # row 2 is what it was
    assert since(db, table, db.engine.seq) == []


def test_a_commit_that_has_not_happened_is_not_known(db: Database) -> None:
    table = kept(db)
    assert since(db, table, db.engine.seq + 1) is None
    assert since(db, table, db.engine.seq - 1) is None


def test_a_table_whose_changes_are_not_kept_has_no_records_and_is_unlisted(db: Database) -> None:
    commits = told(db)
    put(db, 1)
    table_id = db.engine.catalog.table("app.shared").table_id
    assert commits[-1].touched == commits[-1].unlisted == {table_id}
    assert commit_changes(commits[-1], table_id) == []
    assert list(db.engine.store.scan(Family.CHANGES)) == []


def test_expiry_is_a_change_but_no_message(db: Database, clock: FakeClock) -> None:
    db.execute("CREATE TOPIC app.events")
    db.execute("ALTER TOPIC app.events ADD SOURCE app.passing ON ANY")
    table = kept(db, "app.passing")
    begin = put(db, 1, "old", "app.passing")
    put(db, 2, "old", "app.passing")
    commits = told(db)
    clock.advance(TTL_SECONDS * 1000)
    put(db, 2, "new", "app.passing")  # its old row is over, but was not removed yet
    assert [
        (_values(table, c.before), _values(table, c.after)) for c in commit_changes(commits[-1], table.table_id)
    ] == [((2, "old"), (2, "new"))]
    assert db.run_job("expiry").count == 1
    removal = next(commit for commit in commits if table.table_id in commit.touched and not commit.runs)
    assert commit_changes(removal, table.table_id) == [NetChange(_key(table, 1), table.codec.struct(1, "old"), None)]
    assert removal.unlisted == frozenset()
    assert since(db, table, begin) == [(None, (2, "new")), ((1, "old"), None)]
    assert len(db.consume("app.events", start=EARLIEST, limit=100).messages) == 3


def _key(table: Table, number: int, user: str = "system") -> bytes:
    owner = user if table.schema.per_user else None
    return table.codec.key_of_row(table.codec.prefix(owner), table.codec.struct(number, None))


def test_a_command_that_fails_leaves_no_change(db: Database) -> None:
    """The message that the row asks for cannot be made: found out after the row was looked at."""
    db.execute("CREATE TOPIC app.events")
    db.execute("ALTER TOPIC app.events ADD SOURCE app.shared ON ANY WHERE id + 9223372036854775800 > 0")
    table, held = kept(db), Held()
    put(db, 1)
    codec_, schema = table.codec, table.schema
    commits = told(db)
    db.engine.submit(held)
    tickets = []
    for number in (2, 50, 4):
        row = codec_.struct(number, "a")
        command = InsertRows(schema.table_id, schema.version, None, [_key(table, number)], [row], [codec_.encode(row)])
        tickets.append(db.engine.submit(command))
    held.gate.set()
    tickets[0].wait(), tickets[2].wait()
    with pytest.raises(Exception, match="9223372036854775800"):
        tickets[1].wait()
    changed = [change.key for commit in commits for change in commit_changes(commit, schema.table_id)]
    assert changed == [_key(table, 2), _key(table, 4)]
    assert db.verify().problems == []


def test_a_row_that_many_commands_of_one_commit_change_is_one_change(db: Database) -> None:
    put(db, 1, "old")
    table, held = kept(db), Held()
    table_id, version = table.table_id, table.schema.version
    commits = told(db)
    row = table.codec.struct(1, "new")
    tickets = [
        db.engine.submit(held),
        db.engine.submit(DeleteRows(table_id, version, None, [_key(table, 1)])),
        db.engine.submit(InsertRows(table_id, version, None, [_key(table, 1)], [row], [table.codec.encode(row)])),
        db.engine.submit(DeleteRows(table_id, version, None, [_key(table, 2)])),
    ]
    held.gate.set()
    for ticket in tickets:
        ticket.wait()
    (commit,) = commits
    assert len(commit.runs) == 2
    assert commit_changes(commit, table_id) == [NetChange(_key(table, 1), table.codec.struct(1, "old"), row)]


@pytest.mark.parametrize(("name", "limit"), [("MAX_LISTED_CHANGES", 3), ("MAX_LISTED_BYTES", 100)])
def test_a_commit_that_changes_too_much_is_not_listed(
    db: Database, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    table = kept(db)
    db.execute("INSERT INTO app.shared VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    first = db.engine.seq
    commits = told(db)
    monkeypatch.setattr(undo, name, limit)
    db.execute("UPDATE app.shared SET v = 'x' WHERE id <= 3")  # three rows of about 22 bytes: just listed
    assert since(db, table, first) is not None
    monkeypatch.setattr(undo, name, limit - 1 if limit == 3 else 60)
    db.execute("UPDATE app.shared SET v = 'y' WHERE id <= 3")
    assert [bool(commit.unlisted) for commit in commits] == [False, True]
    assert db.engine.changes_from(table.table_id) == db.engine.seq
    assert since(db, table, db.engine.seq - 1) is None
    assert since(db, table, db.engine.seq) == []
    put(db, 1, "z")
    assert since(db, table, db.engine.seq - 1) == [((1, "y"), (1, "z"))]
    assert db.verify().problems == []


def test_trimming_by_age_takes_what_is_too_old_and_nothing_else(db: Database, clock: FakeClock) -> None:
    table = kept(db)
    seqs = []
    for number in range(5):
        seqs.append(put(db, number))
        clock.advance(1000)
    clock.advance((KEPT_SECONDS - 3) * 1000)  # the third is just kept
    db.run_job("changes")
    assert db.engine.changes_from(table.table_id) == seqs[1]
    assert since(db, table, seqs[0]) is None
    assert since(db, table, seqs[1]) == [(None, (number, "a")) for number in (2, 3, 4)]
    assert db.verify().problems == []


def test_trimming_by_size_leaves_as_much_as_is_allowed(db: Database) -> None:
    table = kept(db)
    seqs = [put(db, 1, "x" * 300) for _ in range(20)]
    db.run_job("changes")
    sizes = [len(value) for _, value in db.engine.store.scan(Family.CHANGES)]
    assert sum(sizes) <= MAX_BYTES < sum(sizes) + max(sizes)
    assert db.engine.changes_from(table.table_id) == seqs[-len(sizes) - 1]
    assert since(db, table, seqs[-len(sizes) - 1]) == []
    assert db.run_job("changes").count == 0
    assert db.verify().problems == []


def test_a_trim_that_overtakes_a_reader_is_noticed(
    db: Database, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = kept(db)
    begin = db.engine.seq
    put(db, 1)
    clock.advance(2 * KEPT_SECONDS * 1000)
    read = db.engine.store.scan

    def scan_late(family: Family, *bounds: Any, **options: Any) -> Any:
        monkeypatch.setattr(db.engine.store, "scan", read)
        db.run_job("changes")
        return read(family, *bounds, **options)

    monkeypatch.setattr(db.engine.store, "scan", scan_late)
    assert since(db, table, begin) is None


def test_what_nobody_uses_is_no_longer_kept(db: Database, clock: FakeClock) -> None:
    table = kept(db)
    put(db, 1)
    clock.advance((KEPT_SECONDS - 1) * 1000)
    db.run_job("changes")
    assert db.engine.changes_from(table.table_id) is not None
    db.engine.use_changes(table.table_id)
    clock.advance(2000)
    db.run_job("changes")  # the record goes, but somebody used the table
    assert db.engine.changes_from(table.table_id) is not None
    assert list(db.engine.store.scan(Family.CHANGES)) == []
    clock.advance((KEPT_SECONDS - 2) * 1000)
    db.run_job("changes")
    assert db.engine.changes_from(table.table_id) is None
    assert db.engine.store.get(Family.META, records.change_start_key(table.table_id)) is None
    seq = put(db, 2)
    assert since(db, table, seq) is None
    assert db.engine.keep_changes(table.table_id) == seq + 1
    assert db.verify().problems == []


def test_what_changed_or_was_used_since_it_was_proposed_goes_on_being_kept(db: Database, clock: FakeClock) -> None:
    table_id = kept(db).table_id
    stop = StopChanges(db.engine.kept_changes, table_id)
    assert db.engine.execute(stop).count == 0  # just used
    clock.advance(KEPT_SECONDS * 1000)
    put(db, 1)
    assert db.engine.execute(stop).count == 0  # just changed
    clock.advance((KEPT_SECONDS + 1) * 1000)
    db.run_job("changes")
    assert db.engine.changes_from(table_id) is None


def test_all_who_ask_at_once_get_the_same_beginning(db: Database) -> None:
    table_id = db.engine.catalog.table("app.shared").table_id
    held = Held()
    db.engine.submit(held)
    tickets = [db.engine.submit(KeepChanges(table_id)) for _ in range(5)]
    held.gate.set()
    assert (
        {ticket.wait() for ticket in tickets}
        == {db.engine.changes_from(table_id)}
        == {db.engine.keep_changes(table_id)}
    )


def test_a_backup_has_the_changes(db: Database, tmp_path: Path) -> None:
    table = kept(db)
    begin = db.engine.seq
    put(db, 1), put(db, 1, "b"), put(db, 2)
    db.engine.backup(str(tmp_path / "copy"))
    opened = MemoryStore if isinstance(db.engine.store, MemoryStore) else RocksStore
    copy = Database(opened.open(str(tmp_path / "copy")))
    try:
        assert since(copy, copy.engine.catalog.table("app.shared"), begin) == since(db, table, begin)
        assert copy.verify().problems == []
    finally:
        copy.close()


# --- damage --------------------------------------------------------------------------------------------------


def _change(db: Database, family: Family, key: bytes, value: bytes | None) -> None:
    batch = db.engine.store.batch()
    if value is None:
        batch.delete(family, key)
    else:
        batch.put(family, key, value)
    db.engine.store.write(batch)


def _entries(db: Database) -> list[tuple[bytes, bytes]]:
    return list(db.engine.store.scan(Family.CHANGES))


def _rewritten(value: bytes, befores: dict[bytes, bytes | None], *, ts_ms: int | None = None) -> bytes:
    head = codec.decode_change_head(value)
    return codec.encode_changes(head.ts_ms if ts_ms is None else ts_ms, head.bytes_before, befores)


def _lose(db: Database, at: int) -> None:
    _change(db, Family.CHANGES, _entries(db)[at][0], None)


def _reorder(db: Database) -> None:
    (_, seq, _), value = keys.decode_change_key(_entries(db)[1][0]), _entries(db)[1][1]
    _lose(db, 1)
    _change(db, Family.CHANGES, keys.change_key(db.engine.catalog.table("app.shared").table_id, seq, 1), value)


def _swap_row(db: Database, at: int, before: Callable[[bytes, bytes | None], bytes | None]) -> None:
    key, value = _entries(db)[at]
    ((row_key, stored),) = codec.decode_changes(value).items()
    _change(db, Family.CHANGES, key, _rewritten(value, {row_key: before(row_key, stored)}))


def _other_stamp(db: Database) -> None:
    _swap_row(db, 1, lambda _, stored: row_header(1, 1) + stored[17:])  # type: ignore[index]


def _other_row(db: Database) -> None:
    table = db.engine.catalog.table("app.shared")
    _swap_row(db, 1, lambda _, stored: stored[:17] + table.codec.encode(table.codec.struct(5, "x")))  # type: ignore[index]


def _other_time(db: Database) -> None:
    key, value = _entries(db)[1]
    _change(db, Family.CHANGES, key, _rewritten(value, codec.decode_changes(value), ts_ms=1))


def _other_table(db: Database) -> None:
    key, value = _entries(db)[1]
    _change(db, Family.CHANGES, key, _rewritten(value, {b"\x00\x00\x00\x63key.": None}))


def _write_unlisted(db: Database, number: int) -> None:
    table = db.engine.catalog.table("app.shared")
    value = row_header(db.engine.seq, 1) + table.codec.encode(table.codec.struct(number, "a"))
    _change(db, Family.ROWS, _key(table, number), value)


def _move_start(db: Database, seq: int) -> None:
    key = records.change_start_key(db.engine.catalog.table("app.shared").table_id)
    _change(db, Family.META, key, encode_record(ChangeStart(seq)))


DAMAGES: dict[str, tuple[Callable[[Database], None], str]] = {
    "the first record is gone": (lambda db: _lose(db, 0), "stands at byte 0"),
    "a record in the middle is gone": (lambda db: _lose(db, 1), "stands at byte"),
    "the last record is gone": (lambda db: _lose(db, 2), "no change record of it|last change record of it"),
    "a row was written that is not listed": (
        lambda db: _write_unlisted(db, 8), "no change record of it",
    ),
    "a record is a piece without the one before": (_reorder, "piece 1 after piece 0"),
    "bytes that do not decode": (lambda db: _change(db, Family.CHANGES, _entries(db)[1][0], b"\x01"), "corrupt_data"),
    "a row before of another commit": (_other_stamp, "is of commit 1, but the last change record of it"),
    "a row before that does not decode": (lambda db: _swap_row(db, 1, lambda *_: b"\x09"), "corrupt_data"),
    "a row under another key": (_other_row, "under another key"),
    "a time that goes back": (_other_time, "older than the one before"),
    "a row of another table": (_other_table, "a row of another table"),
    "a record of a table that is not kept": (
        lambda db: _change(db, Family.CHANGES, keys.change_key(77, 1), codec.encode_changes(1, 0, {})),
        "table 77, whose changes are not kept",
    ),
    "a beginning of a table that does not exist": (
        lambda db: _change(db, Family.META, records.change_start_key(77), encode_record(ChangeStart(1))),
        "table 77, which does not exist",
    ),
    "a beginning in the future": (lambda db: _move_start(db, 1000), "but the last is"),
    "a beginning too late": (lambda db: _move_start(db, db.engine.seq), "is not after"),
    "a beginning too early": (lambda db: _move_start(db, 1), "row .* is of commit .* which has no change record"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_what_is_wrong(db: Database, clock: FakeClock, damage: str) -> None:
    put(db, 7)
    kept(db)
    for text in ("a", "b", "c"):
        put(db, 1, text)
        clock.advance(1)
    assert db.verify().problems == []
    assert db.verify().changes == 3
    harm, expected = DAMAGES[damage]
    harm(db)
    problems = "\n".join(db.verify().problems)
    assert re.search(expected, problems), problems


# --- older databases -----------------------------------------------------------------------------------------


def test_a_database_made_before_there_were_changes_is_opened(tmp_path: Path) -> None:
    from rocksdict import Options, Rdict

    path = tmp_path / "db"
    with Database(RocksStore.open(str(path))) as db:
        db.execute("CREATE NAMESPACE app")
        db.execute(TABLES["app.shared"])
        put(db, 1)
    options = Options(raw_mode=True)
    families = [name for name in Rdict.list_cf(str(path / "store"), options) if name != "default"]
    native = Rdict(str(path / "store"), options, {name: Options(raw_mode=True) for name in families})
    native.drop_column_family("changes")
    native.close()
    (path / "TABLECAST").write_text('{"format":2,"created_by":"0.0.9"}')
    for number in (2, 3):
        with Database(RocksStore.open(str(path))) as db:
            table = kept(db)
            begin = db.engine.seq
            put(db, number)
            assert since(db, table, begin) == [(None, (number, "a"))]
            assert db.verify().problems == []
    assert f'"format":{FORMAT}' in (path / "TABLECAST").read_text()
