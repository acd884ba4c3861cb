"""The process that gets killed: writers, consumers and a housekeeper on one database, until the end.

    python child.py DATABASE HISTORY TURN SEED DURABILITY

Whatever it asks and is answered goes into one history file per thread. Where it dies is told by the
environment (see `tablecast.testing.failpoints`) or decided by whoever sends the signal. It never ends by
itself: an error that nobody expects ends it with another exit code, which the parent takes for a violation.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workload import (
    ACCOUNTS,
    CONSUMERS,
    CONTENDED,
    ENTER_NEW,
    EVENTS,
    GROUP,
    KEEPER,
    LEDGER,
    NOTES,
    ONCE,
    OWNED,
    SCRATCH_ROWS,
    WRITERS,
    clock_of,
    user,
)

import tablecast
from tablecast.errors import TransactionConflict
from tablecast.testing.failpoints import arm_from_environment
from tablecast.testing.history import Recorder

Row = dict[str, Any]
READY = "ready"


class Writer:
    """Writes one thing after the other, each a random one of its `ways`."""

    def __init__(self, db: tablecast.Database, number: int, turn: int, rng: random.Random, path: Path) -> None:
        self._db = db
        self._me = db.session(user(number))
        self._rng = rng
        self._recorder = Recorder(path / f"writer-{number}.jsonl")
        self._prefix = f"{turn}-{number}"
        self._names = itertools.count()
        self._first = OWNED * (number + 1)
        owned = db.query(f"SELECT id FROM {ACCOUNTS} WHERE id >= ? AND id < ?", (self._first, self._first + OWNED))
        self._ids: list[int] = sorted(row[0] for row in owned.rows)
        self._fresh = itertools.count(self._first + 1000 * turn)
        self._ways: list[Callable[[], None]] = [
            self.insert_one,
            self.update_one,
            self.delete_one,
            self.insert_some,
            self.transfer,
            self.contend,
            self.contend_in_transaction,
            self.upsert_once,
            self.enter_once,
            self.note,
        ]

    def run(self) -> None:
        while True:
            if len(self._ids) < 3:
                self.insert_some()
            self._rng.choice(self._ways)()

    # --- the ways to write ---

    def insert_one(self) -> None:
        row = self._new_row()
        self._recorder.invoke(row["w"], ACCOUNTS, "insert", [row["id"]], row)
        sql = f"INSERT INTO {ACCOUNTS} (id, owner, balance, w) VALUES (?, ?, ?, ?)"
        self._done([row["w"]], self._db.execute(sql, list(row.values())))
        self._ids.append(row["id"])

    def update_one(self) -> None:
        change = self._change(self._rng.choice(self._ids))
        self._recorder.invoke(change["w"], ACCOUNTS, "update", [change["id"]], change)
        sql = f"UPDATE {ACCOUNTS} SET balance = ?, w = ? WHERE id = ?"
        self._done([change["w"]], self._db.execute(sql, (change["balance"], change["w"], change["id"])))

    def delete_one(self) -> None:
        account, name = self._ids.pop(self._rng.randrange(len(self._ids))), self._name()
        self._recorder.invoke(name, ACCOUNTS, "delete", [account])
        self._done([name], self._db.execute(f"DELETE FROM {ACCOUNTS} WHERE id = ?", (account,)))

    def insert_some(self) -> None:
        rows = [self._new_row() for _ in range(self._rng.randint(2, 5))]
        transaction = self._name()
        for row in rows:
            self._recorder.invoke(row["w"], ACCOUNTS, "insert", [row["id"]], row, txn_id=transaction)
        values = ", ".join(["(?, ?, ?, ?)"] * len(rows))
        sql = f"INSERT INTO {ACCOUNTS} (id, owner, balance, w) VALUES {values}"
        self._done([row["w"] for row in rows], self._db.execute(sql, [v for row in rows for v in row.values()]))
        self._ids += [row["id"] for row in rows]

    def transfer(self) -> None:
        """Two accounts and a ledger entry, in one transaction of three statements."""
        transaction = self._name()
        changes = [self._change(account) for account in self._rng.sample(self._ids, 2)]
        entry = self._entry(transaction, changes[0]["id"])
        for change in changes:
            self._recorder.invoke(change["w"], ACCOUNTS, "update", [change["id"]], change, txn_id=transaction)
        self._recorder.invoke(entry["w"], LEDGER, "insert", [entry["entry"]], entry, txn_id=transaction)
        session = self._db.session("system", "system")
        session.begin()
        for change in changes:
            sql = f"UPDATE {ACCOUNTS} SET balance = ?, w = ? WHERE id = ?"
            session.execute(sql, (change["balance"], change["w"], change["id"]))
        session.execute(f"INSERT INTO {LEDGER} VALUES (?, ?, ?, ?)", list(entry.values()))
        self._done([*(change["w"] for change in changes), entry["w"]], session.commit())

    def contend(self) -> None:
        row = self._contended_row()
        self._recorder.invoke(row["w"], ACCOUNTS, "upsert", [row["id"]], row)
        self._done([row["w"]], self._db.execute(UPSERT, list(row.values())))

    def contend_in_transaction(self) -> None:
        """First committer wins; whoever loses must leave no trace."""
        transaction = self._name()
        first, second = self._contended_row(), self._contended_row()
        second["id"] = (first["id"] + 1) % CONTENDED
        for row in (first, second):
            self._recorder.invoke(row["w"], ACCOUNTS, "upsert", [row["id"]], row, txn_id=transaction)
        names = [first["w"], second["w"]]
        session = self._db.session("system", "system")
        session.begin()
        for row in (first, second):
            session.execute(UPSERT, list(row.values()))
        try:
            self._done(names, session.commit())
        except TransactionConflict as error:
            self._recorder.fail(*names, error=error)

    def upsert_once(self) -> None:
        """Some accounts that exist and some that do not, under an idempotency key."""
        transaction = f"{ONCE}-{self._name()}"
        known = dict.fromkeys(self._rng.sample(self._ids, 2), "update")
        fresh = {next(self._fresh): "insert" for _ in range(2)}
        rows = [self._row(account) for account in (*known, *fresh)]
        for row in rows:
            op = known.get(row["id"], "insert")
            self._recorder.invoke(row["w"], ACCOUNTS, op, [row["id"]], row, txn_id=transaction)
        result = self._db.insert(ACCOUNTS, rows, mode="upsert", idempotency_key=transaction)
        self._done([row["w"] for row in rows], result)
        self._ids += fresh

    def enter_once(self) -> None:
        """A request of two statements under an idempotency key."""
        transaction = f"{ONCE}-{self._name()}"
        change = self._change(self._rng.choice(self._ids))
        entry = self._entry(transaction, change["id"])
        self._recorder.invoke(entry["w"], LEDGER, "insert", [entry["entry"]], entry, txn_id=transaction)
        self._recorder.invoke(change["w"], ACCOUNTS, "update", [change["id"]], change, txn_id=transaction)
        parameters = [*entry.values(), change["balance"], change["w"], change["id"]]
        result = self._db.execute(ENTER_NEW, parameters, idempotency_key=transaction)
        self._done([entry["w"], change["w"]], result)

    def note(self) -> None:
        name, w = f"note{self._rng.randrange(5)}", self._name()
        row = {"name": name, "w": w}
        self._recorder.invoke(w, NOTES, "upsert", [name], row, user_id=self._me.actor.user_id)
        sql = f"INSERT INTO {NOTES} VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET w = excluded.w"
        self._done([w], self._me.execute(sql, (name, w)))

    # --- rows ---

    def _done(self, names: list[str], result: tablecast.Result) -> None:
        if not result.row_count:
            raise AssertionError(f"{names}: {result} changed nothing, though nobody else writes these rows")
        self._recorder.ok(*names, seq=result.seq)

    def _name(self) -> str:
        return f"{self._prefix}-{next(self._names)}"

    def _new_row(self) -> Row:
        return self._row(next(self._fresh))

    def _contended_row(self) -> Row:
        return self._row(self._rng.randrange(CONTENDED))

    def _row(self, account: int) -> Row:
        return {"id": account, "owner": f"o{account % 7}", "balance": self._rng.randrange(1000), "w": self._name()}

    def _change(self, account: int) -> Row:
        return {"id": account, "balance": self._rng.randrange(1000), "w": self._name()}

    def _entry(self, name: str, account: int) -> Row:
        return {"entry": name, "account": account, "amount": self._rng.randrange(1000), "w": self._name()}


UPSERT = (
    f"INSERT INTO {ACCOUNTS} (id, owner, balance, w) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, balance = excluded.balance, w = excluded.w"
)


class Reader:
    """A member of the group. It acknowledges up to an offset, single offsets, nothing, or gives back."""

    def __init__(self, db: tablecast.Database, number: int, turn: int, rng: random.Random, path: Path) -> None:
        self._db = db
        self._name = f"reader-{turn}-{number}"
        self._rng = rng
        self._recorder = Recorder(path / f"reader-{number}.jsonl")

    def run(self) -> None:
        while True:
            name = KEEPER if self._rng.random() < 0.1 else self._name
            asked = self._recorder.now()
            found = self._db.consume(
                EVENTS, group=GROUP, consumer=name, limit=self._rng.randint(1, 40), timeout_seconds=5
            )
            self._recorder.delivered(GROUP, name, EVENTS, found.messages, asked=asked)
            if name != KEEPER:
                for partition, messages in itertools.groupby(found.messages, key=lambda m: m.partition_id):
                    self._settle(partition, [message.offset for message in messages])

    def _settle(self, partition: int, offsets: list[int]) -> None:
        if self._rng.random() < 0.1:
            self._db.nack(EVENTS, GROUP, offsets[-1:], partition=partition, consumer=self._name)
            offsets = offsets[:-1]
        if not offsets:
            return
        if self._rng.random() < 0.3:
            self._db.ack(EVENTS, GROUP, partition=partition, offsets=offsets, consumer=self._name)
        else:
            self._db.ack(EVENTS, GROUP, offsets[-1], partition=partition, consumer=self._name)
        self._recorder.acked(GROUP, EVENTS, partition, offsets=offsets)


class Housekeeper:
    """Retention, backups, changes kept of every table, and a table and a topic that come and go."""

    def __init__(self, db: tablecast.Database, backups: Path) -> None:
        self._db = db
        self._backups = backups

    def run(self) -> None:
        for number in itertools.count():
            self._db.run_job("retention")
            self._db.run_job("changes")
            self._come_and_go()
            if number % 4 == 0:
                backup = self._backups / f"backup-{number}"
                self._db.backup(backup)
                shutil.rmtree(backup)

    def _come_and_go(self) -> None:
        db = self._db
        db.execute("DROP TABLE IF EXISTS app.scratch CASCADE; DROP TOPIC IF EXISTS app.scratch_events")
        db.execute(
            "CREATE TABLE app.scratch (id BIGINT PRIMARY KEY); CREATE TOPIC app.scratch_events;"
            "ALTER TOPIC app.scratch_events ADD SOURCE app.scratch ON ANY WITH (payload = 'full')"
        )
        for table_id in db.engine.catalog.tables:
            db.engine.keep_changes(table_id)
        db.insert("app.scratch", [{"id": i} for i in range(SCRATCH_ROWS)])


def guarded(run: Callable[[], None]) -> Callable[[], None]:
    """An error in one thread is the end of all: the parent must hear of it."""

    def target() -> None:
        try:
            run()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(3)

    return target


def workers(db: tablecast.Database, history: Path, turn: int, seed: int) -> Iterator[Callable[[], None]]:
    for number in range(WRITERS):
        yield Writer(db, number, turn, random.Random(f"{seed} {turn} w{number}"), history).run
    for number in range(CONSUMERS):
        yield Reader(db, number, turn, random.Random(f"{seed} {turn} r{number}"), history).run
    backups = history.parent / f"backups-{turn}"
    backups.mkdir()
    yield Housekeeper(db, backups).run


def main() -> None:
    path, history, turn, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    arm_from_environment()
    db = tablecast.open(path, durability=sys.argv[5], clock=clock_of(turn))
    threads = [threading.Thread(target=guarded(run), daemon=True) for run in workers(db, history, turn, seed)]
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
