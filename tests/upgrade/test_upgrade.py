"""Databases that earlier versions made open, prove sound, answer as their makers did, and go on.

Each file in fixtures/ was made by the real code of its time (make_fixture.py) and holds what that code said was in it. The
clock goes on where it stood then: claims are still held, rows still live, idempotency keys still count.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from make_fixture import LIVE, NEVER_SECONDS, ONCE, PASSWORD, USER, VISIBILITY_SECONDS, groups, messages, rows, tables

import tablecast
from tablecast import EARLIEST
from tablecast.cli.backup import restore_from
from tablecast.cli.verify import verified
from tablecast.codec import keys
from tablecast.engine import adoption
from tablecast.engine.adoption import AdoptRows
from tablecast.engine.engine import Engine
from tablecast.engine.live import LiveHub, LiveSubscription, Told
from tablecast.errors import DuplicateKey, FormatTooNew, TablecastError, Unauthenticated
from tablecast.model.change import Op
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.sql.plan_live import plan_live
from tablecast.storage.home import FORMAT, Marker
from tablecast.testing.clock import FakeClock

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(file.name.removesuffix(".tar.xz") for file in FIXTURES.glob("*.tar.xz"))
EVERY_FORMAT = {1, 2, 3, 4}
TTL_MS = 3_600_000
DAY_MS = 86_400_000


class Old:
    """A fixture, unpacked: the directory, what was told of it, and a clock that goes on from there."""

    def __init__(self, name: str, directory: Path) -> None:
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
        self.path = directory / "db"
        self.told: dict[str, Any] = json.loads((directory / "told.json").read_text())
        self.clock = FakeClock(self.told["now_ms"])

    @property
    def marker(self) -> Marker:
        return msgspec.json.decode((self.path / "TABLECAST").read_bytes(), type=Marker)

    def open(self, path: Path | None = None) -> tablecast.Database:
        return tablecast.open(path or self.path, create=False, clock=self.clock, jobs_interval_seconds=NEVER_SECONDS)


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    return Old(request.param, tmp_path)


@pytest.fixture
def db(old: Old) -> Iterator[tablecast.Database]:
    with old.open() as database:
        yield database


def test_there_is_one_of_every_format(tmp_path: Path) -> None:
    assert max(EVERY_FORMAT) == FORMAT, "a new format takes a fixture of the one before: make fixture"
    assert {Old(name, tmp_path / name).marker.format for name in NAMES} == EVERY_FORMAT


def test_there_is_one_of_every_version_before_this_one(tmp_path: Path) -> None:
    """If it fails: `make fixture`, with the sources of the version that is missing."""
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    _, *before = re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    made_by = {Old(name, tmp_path / name).marker.created_by for name in NAMES}
    assert before and set(before) <= made_by


# --- opening --------------------------------------------------------------------------------------------------------


def test_it_opens_and_is_of_this_format_from_then_on(old: Old) -> None:
    maker = old.marker.created_by
    for _ in range(2):
        with old.open() as db:
            assert db.engine.seq >= old.told["seq"]
    assert old.marker == Marker(FORMAT, maker)


def test_it_proves_sound(db: tablecast.Database) -> None:
    report = db.verify()
    assert report.problems == []
    assert report.rows and report.messages


def test_what_it_holds_is_what_its_maker_said(old: Old, db: tablecast.Database) -> None:
    assert tables(db, old.told["extras"]) == old.told["rows"]
    assert {topic: messages(db, topic) for topic in old.told["messages"]} == old.told["messages"]
    found = groups(db)
    assert [row for row in found if row in old.told["groups"]] == old.told["groups"]
    for topic, _, partition, committed, claimed, end, lag in (row for row in found if row not in old.told["groups"]):
        start, _ = db.engine.log_range(db.topic(topic).topic_id, partition)
        assert (committed, claimed, lag) == (start, 0, end - start), "not read yet: it begins where the log does"


def test_queries_of_every_kind_answer(db: tablecast.Database) -> None:
    assert db.query("SELECT name, price, priority FROM app.everything WHERE id = 2").rows == [
        ("after the column", Decimal("7.00"), 4)
    ]
    total = (
        "SELECT count(*), count(note), max(price) FROM app.everything JOIN app.stock ON warehouse = 1 AND item = 'tea'"
    )
    assert db.query(total).rows == [(61, 61, Decimal("59.59"))]
    assert db.query("SELECT topic FROM system.topic_sources WHERE payload = 'diff'").rows == [("app.diffs",)]


def test_the_command_line_verifies_it_before_anything_has_opened_it(old: Old) -> None:
    for _ in range(2):
        assert verified(old.path).problems == []


def test_a_backup_that_an_older_version_made_is_restored(old: Old, tmp_path: Path) -> None:
    restore_from(old.path, tmp_path / "restored", check=True)
    with old.open(tmp_path / "restored") as db:
        assert rows(db, "app.everything") == old.told["rows"]["app.everything"]
        assert messages(db, "app.full") == old.told["messages"]["app.full"]


# --- going on -------------------------------------------------------------------------------------------------------


def test_writes_go_on_where_they_were(old: Old, db: tablecast.Database) -> None:
    before = len(old.told["messages"]["app.full"])
    newest_id = db.query("SELECT max(id) FROM app.everything").scalar()
    old.clock.advance(1)
    done = db.execute(
        "INSERT INTO app.everything (name, price) VALUES ('name 1 é', 12), ('x', 0) RETURNING id, priority"
    )
    assert done.seq > old.told["seq"]
    assert all(number > newest_id and priority == 3 for number, priority in done.rows)
    after = messages(db, "app.full")
    assert [m for m in after if m[4] <= old.told["seq"]] == old.told["messages"]["app.full"]
    assert len(after) == before + 1
    for partition in (0, 1):
        offsets = [m[1] for m in after if m[0] == partition]
        assert offsets == list(range(len(offsets))), "no gap where the versions meet"
    db.execute("UPDATE app.stock SET pieces = 5 WHERE item = 'tea'; DELETE FROM app.stock WHERE item = 'pot'")
    assert [m[2] for m in messages(db, "app.cleared")][-2:] == ["update", "delete"]
    assert db.verify().problems == []


def test_what_was_written_is_there_after_the_next_opening(old: Old) -> None:
    with old.open() as db:
        db.execute("INSERT INTO app.notes VALUES (7, 'new')")
        db.session("bob").execute("INSERT INTO app.notes VALUES (7, 'new')")
        seq = db.engine.seq
    with old.open() as db:
        assert db.engine.seq >= seq
        assert [row[1] for row in rows(db.session("bob"), "app.notes")] == ["str of bob", "str to go", "str new"]


def test_a_request_that_was_sent_before_commits_once(old: Old, db: tablecast.Database) -> None:
    statement, key = ONCE
    if not old.told["extras"]["users"]:  # a key belonged to nobody then, and to no user now; it was kept for a day
        with pytest.raises(DuplicateKey):
            db.execute(statement, idempotency_key=key)
        return
    assert db.execute(statement, idempotency_key=key).seq == old.told["once"]
    assert db.query("SELECT count(*) FROM app.stock WHERE item = 'once'").scalar() == 1


def test_dedup_windows_are_still_open(old: Old, db: tablecast.Database) -> None:
    """The topic tells keys of updates: a second update of the same row says the same."""
    db.execute("UPDATE app.stock SET pieces = 99 WHERE item = 'cup'")
    assert messages(db, "app.once") == old.told["messages"]["app.once"]
    old.clock.advance(DAY_MS + 1)
    db.execute("UPDATE app.stock SET pieces = 100 WHERE item = 'cup'")
    assert len(messages(db, "app.once")) == len(old.told["messages"]["app.once"]) + 1


def test_rows_still_end_when_their_time_is_over(old: Old, db: tablecast.Database) -> None:
    ann = db.session(USER)
    assert ann.query("SELECT count(*) FROM app.clicks").scalar() == 1
    old.clock.advance(TTL_MS)
    assert ann.query("SELECT count(*) FROM app.clicks").scalar() == 0
    db.run_job("expiry")
    assert db.verify().problems == []


# --- groups ---------------------------------------------------------------------------------------------------------


def offsets(db: tablecast.Database, topic: str, group: str, limit: int = 100) -> list[tuple[int, int]]:
    found = db.consume(topic, group=group, partition=0, consumer="new", limit=limit).messages
    return [(message.offset, message.delivery) for message in found]


def test_a_claim_is_held_until_its_time_is_over(old: Old, db: tablecast.Database) -> None:
    """Offsets 0 to 2 were acknowledged, 3 is claimed for a minute, 4 to 6 for ten."""
    assert offsets(db, "app.full", "billing", limit=2) == [(7, 1), (8, 1)]
    db.ack("app.full", "billing", 5, consumer="two")
    old.clock.advance(60_000)
    assert offsets(db, "app.full", "billing", limit=1) == [(3, 2)]
    db.ack("app.full", "billing", offsets=[3], consumer="new")
    old.clock.advance(VISIBILITY_SECONDS * 1000)
    assert (6, 2) in offsets(db, "app.full", "billing")


def test_what_was_given_back_comes_first_and_what_is_done_never(db: tablecast.Database) -> None:
    """Of 0 to 4, 0, 1 and 3 were acknowledged, 4 was given back, and 2 was claimed for a minute."""
    found = offsets(db, "app.keys", "audit")
    assert found[0] == (4, 2)
    assert not {0, 1, 2, 3} & {offset for offset, _ in found}


def test_a_group_gets_everything_to_the_end_once(old: Old, db: tablecast.Database) -> None:
    old.clock.advance(VISIBILITY_SECONDS * 1000)
    seen = []
    while found := offsets(db, "app.keys", "audit"):
        seen += [offset for offset, _ in found]
        db.ack("app.keys", "audit", offsets=seen, consumer="new")
    end = len(old.told["messages"]["app.keys"])
    assert sorted(seen) == [2, *range(4, end)]
    assert db.query("SELECT sum(lag) FROM system.topic_groups WHERE group_id = 'audit'").scalar() == 0


def test_a_dead_letter_can_be_sent_back(db: tablecast.Database) -> None:
    [letter] = db.consume("app.diffs_dead", start=EARLIEST).messages
    assert letter.value["_dead_letter"]["reason"] == "too hard"
    db.execute("REDRIVE TOPIC app.diffs_dead ALL")
    assert offsets(db, "app.diffs", "strict", limit=1)[0][0] == 0


# --- accounts -------------------------------------------------------------------------------------------------------


def test_users_sign_in_with_their_passwords(old: Old, db: tablecast.Database) -> None:
    if not old.told["extras"]["users"]:
        assert db.ensure_system_account(PASSWORD) is None  # the first start of a server makes the account
        assert db.authenticate("system", PASSWORD).user_id == "system"
        return
    assert db.authenticate(USER, PASSWORD).user_id == USER
    with pytest.raises(Unauthenticated):
        db.authenticate(USER, "another password")


# --- live queries ---------------------------------------------------------------------------------------------------


class Follower:
    """Rows by a live query, from wherever somebody was before the upgrade."""

    def __init__(self, before: list[list[Any]]) -> None:
        self.rows = {tuple(row[:2]): tuple(row) for row in before}
        self.mode = ""

    async def follow(self, db: tablecast.Database, seq: int, history: str) -> None:
        hub = LiveHub(db.engine)
        subscription = await hub.open(plan_live(db.engine.catalog, SYSTEM_ACTOR, LIVE), self, seq, history)
        self.mode = subscription.mode
        if self.mode == "refetch":
            self.rows = {tuple(values[:2]): tuple(values) for values in (await subscription.rows(1_000))[0]}
        self.fold(await subscription.go_live() or [])
        await asyncio.to_thread(db.execute, "UPDATE app.stock SET pieces = 77 WHERE item = 'tea'")
        await hub.settled()
        hub.close(subscription)
        await hub.stop()

    def fold(self, changes: Any) -> None:
        for op, values in changes:
            key = tuple(values[:2])
            if op is Op.DELETE:
                self.rows.pop(key, None)
            else:
                self.rows[key] = tuple(values)

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        self.fold(told.changes)

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        raise AssertionError(error)

    def must_resume(self, subscription: LiveSubscription) -> None:
        raise AssertionError("nothing was too much")


def test_a_live_query_resumes_or_is_told_to_fetch_again(old: Old, db: tablecast.Database) -> None:
    """A version with live queries left what it takes to resume; before that there was nothing to resume from."""
    was = old.told["extras"]["live"]
    before = was or {"seq": old.told["seq"], "history": "0" * 16, "rows": []}
    follower = Follower(before["rows"])
    asyncio.run(follower.follow(db, before["seq"], before["history"]))
    assert follower.mode == ("resumed" if was else "refetch")
    assert sorted(follower.rows.values()) == sorted(db.query(LIVE).rows)
    assert any(77 in row for row in follower.rows.values())


# --- replication ----------------------------------------------------------------------------------------------------


def test_rows_from_before_there_was_replication_reach_other_nodes(old: Old, db: tablecast.Database) -> None:
    """The option was accepted and kept in every format."""
    with tablecast.open(":memory:", clock=old.clock) as peer:
        peer.execute(
            "CREATE NAMESPACE app; CREATE TABLE app.mirrored (id INT PRIMARY KEY, v TEXT) WITH (REPLICATE = TRUE)"
        )
        peer.engine.replication.apply([entry.data for entry in db.engine.replication.outbox(100)])
        assert peer.query("SELECT * FROM app.mirrored ORDER BY id").rows == [(1, "a"), (3, "c")]
        assert peer.engine.replication.roots() == db.engine.replication.roots()


def test_an_upgrade_that_was_cut_off_is_completed(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    def adopt_one_row(engine: Engine) -> None:
        [table] = [table for table in engine.catalog.tables.values() if table.replica is not None]
        engine.execute(AdoptRows(table.table_id, keys.table_prefix(table.table_id)))

    with monkeypatch.context() as patched:
        patched.setattr(adoption, "ROWS_AT_ONCE", 1)
        patched.setattr(tablecast.engine.engine, "adopt_rows", adopt_one_row)
        with old.open() as db:
            cut_off = db.verify().problems
    assert bool(cut_off) == (old.told["extras"]["live"] is None), "there is something to complete in older formats"
    with old.open() as db:
        assert db.verify().problems == []


# --- the other way round --------------------------------------------------------------------------------------------


def test_a_newer_format_is_refused_and_left_alone(old: Old) -> None:
    newer = msgspec.json.encode({"format": FORMAT + 1, "created_by": "9.0.0", "what": "is not known yet"})
    (old.path / "TABLECAST").write_bytes(newer)
    kept = shutil.copytree(old.path, old.path.with_name("kept"))
    with pytest.raises(FormatTooNew, match=rf"format {FORMAT + 1}, written by tablecast 9\.0\.0.*use a newer one"):
        old.open()
    assert contents(old.path) == contents(kept)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
