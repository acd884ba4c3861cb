"""The audit log: every privileged action is in it, in the commit of what it did; so is every attempt that was denied."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tablecast
from tablecast import Database
from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import AuditEntry, CommitMark
from tablecast.core import failpoint
from tablecast.core.printable import printable
from tablecast.core.snowflake import SnowflakeIds
from tablecast.engine.audit import (
    AUDIT_KEPT_MS,
    MAX_AUDIT_CHARS,
    Audit,
    Audited,
    audit_entries,
    audit_entry,
    current_request_id,
)
from tablecast.engine.bounds import KeyBounds
from tablecast.engine.catalog import Catalog
from tablecast.engine.commit import PendingCommit
from tablecast.engine.decision import Decision, View
from tablecast.engine.logs import LogState
from tablecast.errors import (
    AlreadyExists,
    BackupError,
    DatabaseClosed,
    PermissionDenied,
    Unauthenticated,
    WritesStopped,
)
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.storage.base import Family, StorageFailure
from tablecast.storage.memory import MemoryStore
from tablecast.testing.clock import START_MS, FakeClock
from tablecast.testing.failpoints import raising

SECRET = "correct horse"
SETUP = """CREATE NAMESPACE app; CREATE TABLE app.orders (id INT PRIMARY KEY, amount INT);
    CREATE USER TABLE app.prefs (name TEXT PRIMARY KEY);
    CREATE TOPIC app.events ALIAS 'orders' WITH (max_deliveries = 1, dead_letter = 'app.dead');
    ALTER TOPIC app.events ADD SOURCE app.orders ON ANY; INSERT INTO app.orders VALUES (1, 10)"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with Database(MemoryStore(), clock=clock, jobs_interval_seconds=3600) as database:
        database.execute(SETUP)
        yield database
        assert database.verify().problems == []


def log(db: Database, since: int = 0) -> list[tuple[Any, ...]]:
    """What happened after a commit. Entries that nobody waits for are ahead of this question in the writer's queue."""
    db.engine.execute(Flush())
    columns = "user_id, role, action, target, outcome, detail"
    return db.query(f"SELECT {columns} FROM system.audit_log WHERE seq > ?", [since]).rows


def crashed(db: Database) -> Database:
    """What a machine that lost its power finds."""
    store = db.engine.store
    assert isinstance(store, MemoryStore)
    survivor = store.crash()
    for _ in range(2):  # the first time the store is gone already
        with contextlib.suppress(DatabaseClosed):
            db.close()
    return Database(survivor, jobs_interval_seconds=3600)


class Flush:
    weight = 1

    def decide(self, view: View) -> Decision:
        return Decision()


# --- what is in it ------------------------------------------------------------------------------------------------


def test_definitions(db: Database) -> None:
    assert [(action, target, outcome) for _, _, action, target, outcome, _ in log(db)] == [
        ("CREATE NAMESPACE", "app", "ok"),
        ("CREATE TABLE", "app.orders", "ok"),
        ("CREATE TABLE", "app.prefs", "ok"),
        ("CREATE TOPIC", "app.events", "ok"),
        ("ADD SOURCE", "app.events", "ok"),
    ]


@pytest.mark.parametrize(
    ("sql", "entry"),
    [
        ("ALTER TABLE app.orders ADD COLUMN note TEXT", ("ALTER TABLE ADD COLUMN", "app.orders", "")),
        ("ALTER TOPIC orders SET (retention_seconds = 60)", ("SET TOPIC", "app.events", "")),
        ("ALTER TOPIC app.events DROP SOURCE app.orders", ("DROP SOURCE", "app.events", "source app.orders")),
        ("CLEAR TOPIC orders", ("CLEAR TOPIC", "app.events", "")),
        ("DROP TOPIC orders", ("DROP TOPIC", "app.events", "")),
        ("DROP TABLE app.orders CASCADE", ("DROP TABLE", "app.orders", "")),
        (
            "RESET GROUP 'g' ON app.events TO OFFSET 0",
            ("RESET GROUP", "app.events", "group 'g' to offset 0"),
        ),
        ("RESET GROUP 'g' ON orders TO LATEST", ("RESET GROUP", "app.events", "group 'g' to latest")),
        ("REDRIVE TOPIC app.dead ALL", ("REDRIVE", "app.dead", "")),
        (f"CREATE USER 'eve' WITH PASSWORD '{SECRET}' ROLE 'dba'", ("CREATE USER", "eve", "role dba")),
        (f"ALTER USER 'ann' SET PASSWORD '{SECRET}'", ("ALTER USER", "ann", "password")),
        ("ALTER USER 'ann' SET ROLE 'service'", ("ALTER USER", "ann", "role service")),
        ("GRANT ROLE 'dba' TO 'ann'", ("GRANT ROLE", "ann", "role dba")),
        ("DROP USER 'ann'", ("DROP USER", "ann", "")),
    ],
)
def test_each_action_names_who_and_what_in_its_own_commit(db: Database, sql: str, entry: tuple[str, ...]) -> None:
    db.execute(f"CREATE USER 'ann' WITH PASSWORD '{SECRET}'")
    db.consume("app.events", group="g")
    dora = db.session("dora", "dba")
    before = db.engine.seq
    dora.execute(sql)
    action, target, detail = entry
    assert db.engine.seq == before + 1, "the action and its entry are one commit"
    assert log(db, before) == [("dora", "dba", action, target, "ok", detail)]


@pytest.mark.parametrize(
    "sql", ["CREATE NAMESPACE IF NOT EXISTS app", "DROP USER IF EXISTS 'eve'", "DROP TOPIC IF EXISTS app.nothing"]
)
def test_what_did_nothing_leaves_nothing(db: Database, sql: str) -> None:
    before = db.engine.seq
    db.execute(sql)
    assert log(db, before) == []


def test_what_failed_leaves_nothing(db: Database) -> None:
    before = db.engine.seq
    with pytest.raises(AlreadyExists):
        db.execute("CREATE NAMESPACE app")
    assert log(db, before) == []


def test_ordinary_work_leaves_nothing(db: Database) -> None:
    before = db.engine.seq
    db.session("billing", "service").execute("INSERT INTO app.orders VALUES (2, 5); SELECT * FROM app.orders")
    db.session("ann").execute("INSERT INTO app.prefs VALUES ('x')")
    db.ack("app.events", "g", db.consume("app.events", group="g").messages[-1].offset)
    assert log(db, before) == []


def test_execute_as_user_names_the_user_and_the_kinds_of_statement(db: Database) -> None:
    before = db.engine.seq
    billing = db.session("billing", "service")
    billing.execute("EXECUTE AS USER 'ann' (INSERT INTO app.prefs VALUES ('private matter'); SELECT * FROM app.prefs)")
    assert log(db, before) == [("billing", "service", "EXECUTE AS", "ann", "ok", "INSERT, SELECT")]


def test_nothing_of_execute_as_is_durable_without_its_entry(clock: FakeClock) -> None:
    db = Database(MemoryStore(), clock=clock, jobs_interval_seconds=3600)
    db.execute("CREATE USER TABLE prefs (name TEXT PRIMARY KEY)")
    db.execute("EXECUTE AS USER 'ann' (INSERT INTO prefs VALUES ('x'))")
    with crashed(db) as again:
        assert [action for _, _, action, *_ in log(again)] == ["CREATE TABLE", "EXECUTE AS"]


def test_a_commit_that_fails_leaves_neither_action_nor_entry(clock: FakeClock) -> None:
    db = Database(MemoryStore(), clock=clock, jobs_interval_seconds=3600)
    failure = StorageFailure("the disk is gone")
    with failpoint.armed("before_sync", raising(failure)), pytest.raises(WritesStopped):
        db.execute("CREATE NAMESPACE app")
    with crashed(db) as again:
        assert log(again) == []
        assert "app" not in again.engine.catalog.namespaces


# --- what was denied ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "action", "target"),
    [
        ("CREATE TOPIC app.mine", "CREATE TOPIC", "app.mine"),
        ("INSERT INTO app.orders VALUES (9, 9)", "INSERT", "app.orders"),
        ("UPDATE app.orders SET amount = 0", "UPDATE", "app.orders"),
        ("DELETE FROM app.orders", "DELETE", "app.orders"),
        ("SELECT * FROM app.orders", "SELECT", "app.orders"),
        ("SELECT * FROM system.users", "SELECT", "system.users"),
        ("CONSUME FROM orders", "CONSUME", "app.events"),
        ("SHOW TOPICS", "SHOW TOPICS", ""),
        ("EXECUTE AS USER 'bob' (SELECT 1)", "EXECUTE AS", "bob"),
        (f"CREATE USER 'eve' WITH PASSWORD '{SECRET}'", "CREATE USER", "eve"),
    ],
)
def test_denied_attempts(db: Database, sql: str, action: str, target: str) -> None:
    before = db.engine.seq
    eve = db.session("eve")
    for _ in range(2):  # the second time it is prepared
        with pytest.raises(PermissionDenied) as denied:
            eve.execute(sql)
    assert log(db, before) == [("eve", "user", action, target, "denied", str(denied.value))] * 2


def test_denied_attempts_that_are_not_sql(db: Database) -> None:
    before = db.engine.seq
    eve = db.session("eve")
    attempts = [
        lambda: eve.insert("app.orders", [(9, 9)]),
        lambda: eve.insert("app.orders", [(9,)], columns=["id"], mode="delete"),
        lambda: eve.consume("app.events"),
        lambda: eve.ack("app.events", "g", 0),
        lambda: eve.read_arrow("app.events"),
    ]
    for attempt in attempts:
        with pytest.raises(PermissionDenied):
            attempt()
    assert [(action, target, outcome) for _, _, action, target, outcome, _ in log(db, before)] == [
        ("INSERT", "app.orders", "denied"),
        ("DELETE", "app.orders", "denied"),
        ("CONSUME", "app.events", "denied"),
        ("CONSUME", "app.events", "denied"),
        ("CONSUME", "app.events", "denied"),
    ]


def test_denied_attempts_of_tasks() -> None:
    async def attempt() -> None:
        async with await tablecast.open_async(":memory:") as db:
            await db.execute("CREATE TABLE t (id INT PRIMARY KEY); CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY")
            before, eve = db.engine.seq, await db.session("eve")
            for call in (
                lambda: eve.execute("INSERT INTO t VALUES (?)", [1]),
                lambda: eve.execute("INSERT INTO t VALUES (?)", [1]),  # from here on on the event loop itself
                lambda: eve.insert("t", [(1,)]),
                lambda: eve.consume("e"),
                lambda: eve.ack("e", "g", 0),
            ):
                with pytest.raises(PermissionDenied):
                    await call()
            entries = log(db.database, before)
            assert [(action, outcome) for _, _, action, _, outcome, _ in entries] == [
                ("INSERT", "denied"),
                ("INSERT", "denied"),
                ("INSERT", "denied"),
                ("CONSUME", "denied"),
                ("CONSUME", "denied"),
            ]

    asyncio.run(attempt())


def test_an_account_above_ones_own_is_a_denied_attempt(db: Database) -> None:
    before = db.engine.seq
    with pytest.raises(PermissionDenied):
        db.session("dora", "dba").execute(f"CREATE USER 'eve' WITH PASSWORD '{SECRET}' ROLE 'system'")
    ((user, _, action, target, outcome, _),) = log(db, before)
    assert (user, action, target, outcome) == ("dora", "CREATE USER", "eve", "denied")


# --- signing in, backups, and what the server adds ----------------------------------------------------------------


def test_failed_sign_ins(db: Database) -> None:
    before = db.engine.seq
    with pytest.raises(Unauthenticated):
        db.authenticate("eve", SECRET, request_id="r-1")
    assert log(db, before) == [("eve", None, "SIGN IN", "", "failed", "")]
    assert db.query("SELECT request_id FROM system.audit_log WHERE seq > ?", [before]).rows == [("r-1",)]


def test_successful_sign_ins_are_not_noise(db: Database) -> None:
    db.ensure_system_account(SECRET)
    before = db.engine.seq
    db.authenticate("system", SECRET)
    assert log(db, before) == []


def test_backups(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "shop") as db:
        target = str(tmp_path / "copy")
        db.backup(target)
        with pytest.raises(BackupError):
            db.backup(target)
        assert log(db) == [
            ("system", "system", "BACKUP", target, "ok", ""),
            ("system", "system", "BACKUP", target, "failed", "backup_error"),
        ]


def test_an_entry_of_the_server(db: Database, clock: FakeClock) -> None:
    before = db.engine.seq
    db.audit(Actor("ann", Role.SERVICE), "SIGN IN", outcome="ok", detail="after a lock-out", request_id="r-7")
    assert log(db, before) == [("ann", "service", "SIGN IN", "", "ok", "after a lock-out")]
    row = db.query("SELECT time, seq, request_id FROM system.audit_log WHERE seq > ?", [before]).rows[0]
    assert (round(row[0].timestamp() * 1000), row[1], row[2]) == (clock(), before + 1, "r-7")


def test_the_request_under_way_is_in_its_entries() -> None:
    """Requests that share a session, at the same time."""

    async def serve() -> None:
        async with await tablecast.open_async(":memory:") as db:
            before, service = db.engine.seq, await db.session("billing", "service")

            async def request(number: int) -> None:
                current_request_id.set(f"r-{number}")
                await service.execute(f"EXECUTE AS USER 'user-{number}' (SELECT 1)")
                with pytest.raises(PermissionDenied):
                    await service.execute(f"CREATE NAMESPACE n{number}")

            await asyncio.gather(*(request(number) for number in range(10)))
            await db.execute("CREATE NAMESPACE app")
            found = await db.query("SELECT request_id, target FROM system.audit_log WHERE seq > ?", [before])
            of_ten = {(f"r-{n}", target) for n in range(10) for target in (f"user-{n}", f"n{n}")}
            assert set(found.rows) == of_ten | {(None, "app")}

    asyncio.run(serve())


def test_a_closed_database_says_in_its_log_what_it_could_not_take(caplog: pytest.LogCaptureFixture) -> None:
    db = tablecast.open(":memory:")
    db.close()
    with caplog.at_level(logging.ERROR, "tablecast.audit"):
        db.audit("eve", "SIGN IN", outcome="failed")
    assert "not in the audit log (database_closed)" in caplog.text and "'eve'" in caplog.text


# --- bounds -------------------------------------------------------------------------------------------------------


def test_entries_end(db: Database, clock: FakeClock) -> None:
    assert len(log(db)) == 5
    clock.advance(AUDIT_KEPT_MS - 1)
    db.execute("CREATE NAMESPACE later")
    assert db.run_job("expiry").count == 0
    clock.advance(1)
    assert db.run_job("expiry").count == 5
    assert [target for _, _, _, target, _, _ in log(db)] == ["later"]


@given(st.text(max_size=3 * MAX_AUDIT_CHARS), st.text(max_size=8))
def test_what_strangers_send_is_cut_and_can_be_stored(text: str, other: str) -> None:
    entry = audit_entry(text, other, text, text, text, text)
    for kept in (entry.user, entry.target, entry.outcome, entry.detail, entry.request_id):
        assert kept is not None and len(kept) == min(len(printable(text)), MAX_AUDIT_CHARS)
    assert records.decode_record(AuditEntry, records.encode_record(entry)) == entry


def test_a_lone_surrogate_can_be_stored() -> None:
    assert audit_entry("a\ud800", "SIGN IN").user == r"a\ud800"


# --- entries of one commit ----------------------------------------------------------------------------------------


def pending(store: MemoryStore, seq: int) -> PendingCommit:
    return PendingCommit(store, Catalog(), LogState(), KeyBounds(store), seq, START_MS)


@pytest.mark.parametrize("count", [*range(18), 100])
def test_entries_of_one_commit_keep_their_order_and_have_no_gap(count: int) -> None:
    store, commit = MemoryStore(), None
    for seq, wanted in ((1, 3), (2, count)):
        commit = pending(store, seq)
        for number in range(wanted):
            commit.apply(Audit(audit_entry("ann", f"{seq}.{number}")).decide(commit))
        store.write(commit.close(SnowflakeIds())[0])
    places = [records.decode_audit_key(key) for key, _ in store.scan(Family.META, records.AUDIT, b"audit0")]
    assert places == [(1, 0), (1, 1), (1, 2), *((2, number) for number in range(count))]
    found = [(seq, entry.action) for seq, _, entry in audit_entries(store, 2)]
    assert found == [(seq, f"{seq}.{number}") for seq, number in places]
    assert len(list(audit_entries(store, 1))) == 3, "what is not durable yet is not shown"


# --- a page of it -------------------------------------------------------------------------------------------------


@dataclass
class Several:
    """As many entries in one commit."""

    count: int
    weight: int = 1

    def decide(self, view: View) -> Decision:
        entries = [audit_entry(f"u{number % 3}", f"A{view.seq}.{number}") for number in range(self.count)]
        keys = [records.audit_key(view.seq, number) for number in range(self.count)]
        return Decision(
            records=[(Family.META, k, records.encode_record(e)) for k, e in zip(keys, entries, strict=True)]
        )


@pytest.fixture(scope="module")
def long_log() -> Iterator[Database]:
    with tablecast.open(":memory:") as db:
        for number in range(40):
            db.engine.execute(Several(number % 4))
        yield db


OPS: dict[str, Any] = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt}


@pytest.mark.parametrize("op", OPS)
def test_a_bound_is_where_it_is_said_to_be(long_log: Database, op: str) -> None:
    places = long_log.query("SELECT seq, number FROM system.audit_log").rows
    crowded = max(seq for seq, number in places if number == 2)
    select = "SELECT seq, number FROM system.audit_log WHERE"
    for bound in range(-1, places[-1][0] + 2):
        wanted = [place for place in places if OPS[op](place[0], bound)]
        assert long_log.query(f"{select} seq {op} ? LIMIT 3", [bound]).rows == wanted[:3]
        newest = f"{select} seq {op} ? ORDER BY seq DESC, number DESC LIMIT 2 OFFSET 1"
        assert long_log.query(newest, [bound]).rows == wanted[::-1][1:3]
    for bound in range(-1, 4):
        wanted = [place for place in places if place[0] == crowded and OPS[op](place[1], bound)]
        assert long_log.query(f"{select} seq = ? AND number {op} ? LIMIT 1", [crowded, bound]).rows == wanted[:1]


bounds = st.one_of(st.integers(-2, 50), st.sampled_from([-(2**63), 2**63 - 1, 2**70]))


@given(
    st.lists(st.tuples(st.sampled_from(["seq", "number"]), st.sampled_from(list(OPS)), bounds), max_size=2),
    st.booleans(),
    st.sampled_from(["", "ORDER BY seq, number", "ORDER BY seq DESC, number DESC", "ORDER BY seq DESC, number"]),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(0, 5),
)
def test_part_of_it_is_what_all_of_it_says(
    long_log: Database, terms: list[Any], one_user: bool, order: str, limit: int | None, offset: int
) -> None:
    conditions = [f"{column} {op} {value}" for column, op, value in terms] + ["user_id = 'u1'"] * one_user
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = "SELECT seq, number, user_id, action"
    tail = "" if limit is None else f"LIMIT {limit} OFFSET {offset}"
    found = long_log.query(f"{columns} FROM system.audit_log {where} {order} {tail}").rows
    # The same of a derived table, of which nothing is left out before the query engine sees it.
    everything = "(SELECT a.* FROM system.audit_log a, (VALUES (1)) AS one(n)) AS every"
    assert found == long_log.query(f"{columns} FROM {everything} {where} {order or 'ORDER BY seq, number'} {tail}").rows


def test_a_page_reads_no_other_page(long_log: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    decode = records.decode_audit_key
    monkeypatch.setattr(records, "decode_audit_key", lambda key: read.append(1) or decode(key))  # type: ignore[func-returns-value]
    page = "SELECT seq, number FROM system.audit_log WHERE seq < ? ORDER BY seq DESC, number DESC LIMIT 5"
    [*_, (seq, _)] = long_log.query(page, [2**62]).rows
    assert len(read) == 5
    assert all(row[0] < seq for row in long_log.query(page, [seq]).rows)
    assert len(read) == 10
    assert long_log.query("SELECT count(*) FROM system.audit_log").scalar() > 50


def test_an_audited_command_answers_and_weighs_as_without() -> None:
    class Seven:
        weight = 7
        alone = True

        def decide(self, view: View) -> Decision:
            return Decision("seven", records=[(Family.META, b"seven", b"7")])

    audited = Audited(Seven(), audit_entry(SYSTEM_ACTOR, "SEVEN"))
    assert (audited.weight, audited.alone) == (7, True)
    decision = audited.decide(pending(MemoryStore(), 1))
    assert decision.response == "seven"
    assert [key for _, key, _ in decision.records[:2]] == [b"seven", records.audit_key(1, 0)]


def entry_without_expiry(seq: int) -> tuple[bytes, bytes]:
    return records.audit_key(seq, 7), records.encode_record(audit_entry("ann", "SIGN IN"))


def undecodable(seq: int) -> tuple[bytes, bytes]:
    return records.audit_key(seq, 7), b"\x01\xc1"


def of_no_commit(seq: int) -> tuple[bytes, bytes]:
    return records.AUDIT + b"x", records.encode_record(audit_entry("ann", "SIGN IN"))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (entry_without_expiry, "(SIGN IN) has no expiry entry"),
        (undecodable, "AuditEntry record does not decode"),
        (of_no_commit, "not that of an audit entry"),
    ],
)
def test_verify_names_a_damaged_entry(damage: Any, problem: str) -> None:
    store = MemoryStore()
    with Database(store) as db:
        db.execute("CREATE NAMESPACE app")
        batch = store.batch()
        batch.put(Family.META, *damage(db.engine.seq))
        store.write(batch)
        (found,) = db.verify().problems
        assert problem in found


def test_verify_names_an_entry_of_a_commit_that_never_was() -> None:
    store = MemoryStore()
    with Database(store) as db:
        db.execute("CREATE NAMESPACE app")
        mark = records.decode_record(CommitMark, store.get(Family.META, records.COMMIT_KEY) or b"")
        entry, key = audit_entry("ann", "SIGN IN"), records.audit_key(mark.seq + 1, 0)
        batch = store.batch()
        batch.put(Family.META, key, records.encode_record(entry))
        batch.put(Family.EXPIRY, keys.expiry_key(AUDIT_KEPT_MS, Family.META, key), b"")
        store.write(batch)
        (found,) = db.verify().problems
        assert f"of commit {mark.seq + 1}, but the last commit is {mark.seq}" in found
