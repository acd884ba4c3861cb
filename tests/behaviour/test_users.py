"""Accounts: who may make, change and drop whom; signing in; what survives. Over both stores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import argon2
import pytest

import tablecast
from tablecast.codec import catalog as records
from tablecast.codec.catalog import User
from tablecast.engine.passwords import needs_rehash
from tablecast.engine.users import CreateUser, RehashPassword
from tablecast.errors import (
    AlreadyExists,
    InUse,
    InvalidRequest,
    PermissionDenied,
    TransactionState,
    Unauthenticated,
    UnknownUser,
)
from tablecast.model.schema import SYSTEM_ACTOR, Actor, Role
from tablecast.sql import parse
from tablecast.sql.database import Database
from tablecast.storage.base import Family
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore
from tablecast.testing.clock import FakeClock

SECRET, OTHER = "correct horse", "battery staple"


class Home:
    """A database that can be opened again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._store: MemoryStore | RocksStore | None = None
        self.clock = FakeClock()

    def open(self) -> Database:
        if self._path is not None:
            self._store = RocksStore.open(str(self._path), create=True)
        else:
            self._store = self._store.crash() if isinstance(self._store, MemoryStore) else MemoryStore()
        return Database(self._store, clock=self.clock, jobs_interval_seconds=3600)


@pytest.fixture(params=["memory", "rocks"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(tmp_path / "shop" if request.param == "rocks" else None)


@pytest.fixture
def db(home: Home) -> Iterator[Database]:
    with home.open() as database:
        yield database
        assert database.verify().problems == []


def create(db: Database, name: str = "ann", role: str = "user", password: str = SECRET) -> User:
    db.execute(f"CREATE USER '{name}' WITH PASSWORD '{password}' ROLE '{role}'")
    return db.engine.catalog.users[name]


def shown(db: Database) -> list[tuple[object, ...]]:
    return db.query("SELECT name, role, can_sign_in FROM system.users").rows


# --- statements ---------------------------------------------------------------------------------------------------


def test_create_alter_drop(db: Database) -> None:
    db.execute(f"CREATE USER 'ann' WITH PASSWORD '{SECRET}'")
    assert shown(db) == [("ann", "user", True)]
    db.execute("ALTER USER 'ann' SET ROLE 'service'")
    db.execute("GRANT ROLE 'dba' TO 'ann'")
    assert shown(db) == [("ann", "dba", True)]
    db.execute("DROP USER 'ann'")
    assert shown(db) == []


def test_the_times_of_an_account(home: Home, db: Database) -> None:
    create(db)
    made_ms = home.clock()
    home.clock.advance(5_000)
    db.execute("GRANT ROLE 'service' TO 'ann'")
    user = db.engine.catalog.users["ann"]
    assert (user.created_ms, user.changed_ms) == (made_ms, made_ms + 5_000)


def test_if_exists_and_if_not_exists(db: Database) -> None:
    assert db.execute("DROP USER IF EXISTS 'ann'").message == "DROP USER: nothing to do"
    before = create(db)
    again = db.execute(f"CREATE USER IF NOT EXISTS 'ann' WITH PASSWORD '{OTHER}' ROLE 'dba'")
    assert again.message == "CREATE USER: nothing to do"
    assert db.engine.catalog.users["ann"] == before
    with pytest.raises(AlreadyExists, match="user 'ann' already exists"):
        create(db)


@pytest.mark.parametrize(
    "sql", ["DROP USER 'eve'", "GRANT ROLE 'dba' TO 'eve'", f"ALTER USER 'eve' SET PASSWORD '{SECRET}'"]
)
def test_somebody_unknown(db: Database, sql: str) -> None:
    with pytest.raises(UnknownUser, match="there is no user 'eve'"):
        db.execute(sql)


@pytest.mark.parametrize("name", ["a:b", " ann", "ann ", "é" * 128])
def test_bad_names(db: Database, name: str) -> None:
    with pytest.raises((InvalidRequest), match="1 to 255 bytes of printable text"):
        create(db, name)
    assert shown(db) == []


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800"])
def test_names_that_sql_does_not_let_through(db: Database, name: str) -> None:
    with pytest.raises(InvalidRequest, match="printable text"):
        db.engine.execute(CreateUser(SYSTEM_ACTOR, name))


@pytest.mark.parametrize("sql", ["CREATE USER 'ann' WITH PASSWORD '1234567'", "ALTER USER 'bob' SET PASSWORD 'short'"])
def test_a_short_password(db: Database, sql: str) -> None:
    bob = create(db, "bob")
    with pytest.raises(InvalidRequest, match="at least 8 characters"):
        db.execute(sql)
    assert dict(db.engine.catalog.users) == {"bob": bob}


def test_not_inside_a_transaction(db: Database) -> None:
    with db.transaction() as tx, pytest.raises(TransactionState):
        tx.execute(f"CREATE USER 'ann' WITH PASSWORD '{SECRET}'")


# --- who may ------------------------------------------------------------------------------------------------------

USER_STATEMENTS = [
    f"CREATE USER 'new' WITH PASSWORD '{SECRET}'",
    f"ALTER USER 'bob' SET PASSWORD '{OTHER}'",
    "ALTER USER 'bob' SET ROLE 'service'",
    "GRANT ROLE 'service' TO 'bob'",
    "DROP USER 'bob'",
]


@pytest.mark.parametrize("role", ["user", "service"])
@pytest.mark.parametrize("sql", USER_STATEMENTS)
def test_managing_users_takes_dba(db: Database, role: str, sql: str) -> None:
    bob = create(db, "bob")
    with pytest.raises(PermissionDenied, match="takes dba or above"):
        db.session("bob", role).execute(sql)
    assert dict(db.engine.catalog.users) == {"bob": bob}


@pytest.mark.parametrize("sql", USER_STATEMENTS)
def test_a_dba_may(db: Database, sql: str) -> None:
    create(db, "bob")
    before = dict(db.engine.catalog.users)
    db.session("dora", "dba").execute(sql)
    assert dict(db.engine.catalog.users) != before


@pytest.mark.parametrize(
    "sql",
    [
        f"CREATE USER 'eve' WITH PASSWORD '{SECRET}' ROLE 'system'",
        "GRANT ROLE 'system' TO 'bob'",
        "ALTER USER 'bob' SET ROLE 'system'",
        "ALTER USER 'root' SET ROLE 'user'",
        f"ALTER USER 'root' SET PASSWORD '{OTHER}'",
        "DROP USER 'root'",
    ],
)
def test_nobody_touches_what_is_above_them(db: Database, sql: str) -> None:
    create(db, "bob")
    create(db, "root", "system")
    before = dict(db.engine.catalog.users)
    with pytest.raises(PermissionDenied, match="takes system or above"):
        db.session("dora", "dba").execute(sql)
    assert dict(db.engine.catalog.users) == before
    db.execute(sql)
    assert dict(db.engine.catalog.users) != before


def test_the_account_system_stays_what_it_is(db: Database) -> None:
    with pytest.raises(InvalidRequest, match="has role system and no other"):
        create(db, "system", "dba")
    db.ensure_system_account(SECRET)
    for sql in ("ALTER USER 'system' SET ROLE 'dba'", "GRANT ROLE 'user' TO 'system'", "DROP USER 'system'"):
        with pytest.raises(InvalidRequest, match="'system'"):
            db.execute(sql)
    db.execute(f"ALTER USER 'system' SET PASSWORD '{OTHER}'")
    assert db.authenticate("system", OTHER) == SYSTEM_ACTOR


@pytest.mark.parametrize("table", ["system.users", "system.audit_log"])
def test_accounts_are_shown_to_a_dba(db: Database, table: str) -> None:
    with pytest.raises(PermissionDenied, match="takes dba"):
        db.session("billing", "service").query(f"SELECT * FROM {table}")
    with pytest.raises(PermissionDenied, match="takes dba"):
        db.session("billing", "service").execute(f"DESCRIBE {table}")
    db.session("dora", "dba").query(f"SELECT * FROM {table}")
    db.session("billing", "service").query("SELECT * FROM system.topics")


# --- signing in ---------------------------------------------------------------------------------------------------


def test_authenticate(db: Database) -> None:
    create(db, role="service")
    assert db.authenticate("ann", SECRET) == Actor("ann", Role.SERVICE)
    db.execute(f"ALTER USER 'ann' SET PASSWORD '{OTHER}'")
    assert db.authenticate("ann", OTHER) == Actor("ann", Role.SERVICE)
    with pytest.raises(Unauthenticated):
        db.authenticate("ann", SECRET)


def test_an_unknown_user_and_a_wrong_password_look_the_same(db: Database) -> None:
    create(db)
    db.engine.execute(CreateUser(SYSTEM_ACTOR, "robot"))  # without a password
    said = set()
    for name, password in [("ann", OTHER), ("eve", SECRET), ("robot", SECRET), ("", ""), ("ann", "")]:
        with pytest.raises(Unauthenticated) as refused:
            db.authenticate(name, password)
        said.add((str(refused.value), str(refused.value.details)))
    assert said == {("the user name or the password is wrong", "{}")}
    assert shown(db) == [("ann", "user", True), ("robot", "user", False)]


def test_an_old_hash_is_renewed_by_signing_in_and_ends_no_token(db: Database) -> None:
    old = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(SECRET)
    db.engine.execute(CreateUser(SYSTEM_ACTOR, "ann", Role.USER, old))
    before = db.engine.catalog.users["ann"]
    db.authenticate("ann", SECRET)
    create(db, "bob")  # behind the renewal in the writer's queue
    after = db.engine.catalog.users["ann"]
    assert after.password is not None and not needs_rehash(after.password)
    assert (after.token_epoch, after.changed_ms) == (before.token_epoch, before.changed_ms)
    assert db.authenticate("ann", SECRET) == Actor("ann", Role.USER)


def test_a_renewal_does_not_bring_an_old_password_back(db: Database) -> None:
    before = create(db).password
    assert before is not None
    db.execute(f"ALTER USER 'ann' SET PASSWORD '{OTHER}'")
    assert db.engine.execute(RehashPassword("ann", before, "renewed")) is False
    assert db.engine.execute(RehashPassword("eve", before, "renewed")) is False
    assert db.authenticate("ann", OTHER) == Actor("ann", Role.USER)


@pytest.mark.parametrize(
    ("sql", "grows"),
    [
        (f"ALTER USER 'ann' SET PASSWORD '{OTHER}'", True),
        ("GRANT ROLE 'dba' TO 'ann'", True),
        (f"DROP USER 'ann'; CREATE USER 'ann' WITH PASSWORD '{SECRET}'", True),
        ("GRANT ROLE 'user' TO 'ann'", False),  # it has that role
        (f"CREATE USER 'bob' WITH PASSWORD '{SECRET}'", False),
    ],
)
def test_the_token_epoch_grows_with_every_change(db: Database, sql: str, grows: bool) -> None:
    before = create(db).token_epoch
    db.execute(sql)
    assert (db.engine.catalog.users["ann"].token_epoch > before) == grows


# --- the first account --------------------------------------------------------------------------------------------


def test_the_system_account_with_a_given_password(db: Database) -> None:
    assert db.ensure_system_account(SECRET) is None
    assert db.authenticate("system", SECRET) == SYSTEM_ACTOR
    assert db.ensure_system_account(OTHER) is None, "it exists"
    assert db.authenticate("system", SECRET) == SYSTEM_ACTOR


def test_the_system_account_with_a_generated_password(db: Database) -> None:
    generated = db.ensure_system_account(None)
    assert generated is not None and len(generated) == 24
    assert db.authenticate("system", generated) == SYSTEM_ACTOR
    assert db.ensure_system_account(None) is None


def test_a_system_password_that_is_too_short_makes_no_account(db: Database) -> None:
    with pytest.raises(InvalidRequest, match="too short"):
        db.ensure_system_account("short")
    assert shown(db) == []


# --- rows of a user -----------------------------------------------------------------------------------------------


@pytest.fixture
def prefs(db: Database) -> Database:
    db.execute("CREATE NAMESPACE app; CREATE USER TABLE app.prefs (name TEXT PRIMARY KEY, value TEXT)")
    create(db)
    db.session("ann").execute("INSERT INTO app.prefs VALUES ('colour', 'green')")
    return db


def test_rows_outlive_their_user_but_no_namesake_gets_them(prefs: Database) -> None:
    prefs.execute("DROP USER 'ann'")
    assert prefs.execute("EXECUTE AS USER 'ann' (SELECT value FROM app.prefs)").rows == [("green",)]
    with pytest.raises(InUse, match=r"left rows in app\.prefs"):
        create(prefs)
    prefs.execute("EXECUTE AS USER 'ann' (DELETE FROM app.prefs)")
    create(prefs)
    assert prefs.session("ann").query("SELECT * FROM app.prefs").rows == []


def test_nobody_is_kept_from_a_name_that_left_nothing(prefs: Database) -> None:
    prefs.session("ann").execute("DELETE FROM app.prefs")
    prefs.execute("DROP USER 'ann'")
    create(prefs)


def test_rows_written_before_there_was_an_account_are_its_own(prefs: Database) -> None:
    prefs.execute("EXECUTE AS USER 'bob' (INSERT INTO app.prefs VALUES ('colour', 'blue'))")
    create(prefs, "bob")
    assert prefs.session("bob").query("SELECT value FROM app.prefs").rows == [("blue",)]


def test_what_has_expired_is_not_left_behind(home: Home, db: Database) -> None:
    db.execute("CREATE STREAM TABLE visits (id INT PRIMARY KEY) WITH (TTL_SECONDS = 60)")
    create(db)
    db.session("ann").execute("INSERT INTO visits VALUES (1)")
    db.execute("DROP USER 'ann'")
    home.clock.advance(60_000)
    create(db)


# --- what survives ------------------------------------------------------------------------------------------------


def test_accounts_are_there_when_it_is_opened_again(home: Home) -> None:
    with home.open() as db:
        create(db, "ann", "dba")
        create(db, "bob")
        db.execute("DROP USER 'bob'")
        before = dict(db.engine.catalog.users)
    with home.open() as again:
        assert dict(again.engine.catalog.users) == before
        assert again.authenticate("ann", SECRET) == Actor("ann", Role.DBA)
        assert again.verify().problems == []


def test_an_acknowledged_account_survives_the_death_of_its_process(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    script = f"""
import os, tablecast
db = tablecast.open({str(path)!r})
db.execute("CREATE USER 'ann' WITH PASSWORD '{SECRET}' ROLE 'service'")
os._exit(9)
"""
    died = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert died.returncode == 9
    with tablecast.open(path, create=False) as db:
        assert db.authenticate("ann", SECRET) == Actor("ann", Role.SERVICE)
        assert db.query("SELECT action, target FROM system.audit_log").rows == [("CREATE USER", "ann")]


def misplaced(user: User) -> tuple[bytes, bytes]:
    return records.user_key("eve"), records.encode_record(user)


def from_the_future(user: User) -> tuple[bytes, bytes]:
    return records.user_key("ann"), records.encode_record(User("ann", Role.USER, None, 0, 0, 10**9))


def without_a_hash(user: User) -> tuple[bytes, bytes]:
    return records.user_key("ann"), records.encode_record(User("ann", Role.USER, "plain text"))


def undecodable(user: User) -> tuple[bytes, bytes]:
    return records.user_key("ann"), b"\x01\xc1"


def misplaced_dropped(user: User) -> tuple[bytes, bytes]:
    return records.dropped_user_key("eve"), records.encode_record(records.DroppedUser("ann", 0))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (misplaced, "another key than its own"),
        (from_the_future, "is of commit 1000000000"),
        (without_a_hash, "a password hash that is none"),
        (undecodable, "User record does not decode"),
        (misplaced_dropped, "a dropped user stands under another key"),
    ],
)
def test_verify_names_a_damaged_account(damage: Callable[[User], tuple[bytes, bytes]], problem: str) -> None:
    store = MemoryStore()
    with Database(store) as db:
        key, value = damage(create(db))
        batch = store.batch()
        batch.put(Family.META, key, value)
        store.write(batch)
        (found,) = db.verify().problems
        assert problem in found


# --- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        f"CREATE USER 'ann' WITH '{SECRET}'",
        f"CREATE USER 'ann' PASSWORD '{SECRET}'",
        f"CREATE USER 'ann' '{SECRET}'",
        f"CREATE USER '{SECRET}' 'ann'",
        f"CREATE USER 'ann' WITH PASSWORD \"{SECRET}\"",
        f"CREATE USER 'ann' WITH PASSWORD ('{SECRET}')",
        f"CREATE USER 'ann' WITH PASSWORD 'x' '{SECRET}'",
        f"CREATE USER 'ann' WITH PASSWORD '{SECRET}' ROLE 'king'",
        f"CREATE USER 'ann' WITH PASSWORD '{SECRET}' ROLE",
        f"CREATE USER 'ann' WITH PASSWORD '{SECRET}",
        f"ALTER USER 'ann' '{SECRET}'",
        f"ALTER USER 'ann' SET '{SECRET}'",
        f"EXECUTE AS USER 'bob' (ALTER USER 'ann' SET '{SECRET}')",
        f"EXECUTE AS USER 'bob' (ALTER USER 'ann' SET PASSWORD '{SECRET}')",
        f"SELECT 1; ALTER USER 'ann' SET PASSWORD '{SECRET}'",
        f"CREATE USER 'system' WITH PASSWORD '{SECRET}'",
        f"ALTER USER 'nobody' SET PASSWORD '{SECRET}'",
    ],
)
def test_no_error_cache_or_entry_repeats_a_password(db: Database, sql: str) -> None:
    with pytest.raises(tablecast.TablecastError) as refused:
        db.execute(sql)
    assert SECRET not in str(refused.value) and SECRET not in str(refused.value.details)
    assert not any(SECRET in text for text in parse._cache._entries)
    assert SECRET not in str(db._plans)
    assert SECRET not in str(db.query("SELECT * FROM system.audit_log").rows)


def test_no_repr_shows_a_password_or_its_hash(db: Database) -> None:
    user = create(db)
    assert user.password is not None
    shown = [repr(user), repr(db.engine.catalog), str(parse.parse(f"CREATE USER 'eve' WITH PASSWORD '{SECRET}'"))]
    shown += [repr(CreateUser(SYSTEM_ACTOR, "ann", Role.USER, user.password))]
    assert not any(SECRET in text or user.password in text for text in shown)
