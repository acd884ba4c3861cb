"""What the process that gets killed does, and what must be true of it afterwards.

Writer n owns the accounts from `n * OWNED` on, so it always knows which of them exist; accounts below
`CONTENDED` belong to everybody. Every write carries its own id in column `w`: of two equal writes nobody
could say later which one is there.

    app.accounts ──> app.account_events   full, 3 partitions; read by the group, folds to the table
                 ──> app.recent           diff, kept by size: retention trims it while it is written
                 ──> app.aged             keys of inserts, kept by age
    app.ledger   ──> app.ledger_events    full; written only together with accounts, in transactions
    app.notes    ──> app.note_events      full; a USER table
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tablecast.engine.engine import system_clock
from tablecast.testing.history import TopicRule, Write

WRITERS = 8
CONSUMERS = 2
OWNED = 1_000_000
CONTENDED = 6

ACCOUNTS, LEDGER, NOTES = "app.accounts", "app.ledger", "app.notes"
EVENTS, RECENT, AGED = "app.account_events", "app.recent", "app.aged"
LEDGER_EVENTS, NOTE_EVENTS = "app.ledger_events", "app.note_events"
GROUP = "settlement"
KEEPER = "keeper"  # a consumer that claims and never acknowledges: what it has must come back
ONCE = "once"  # begins the name of a transaction that was sent with that name as its idempotency key

SCRATCH_ROWS = 20

SCHEMA = f"""
CREATE NAMESPACE app;
CREATE TABLE {ACCOUNTS} (id BIGINT PRIMARY KEY, owner TEXT NOT NULL, balance INT NOT NULL, w TEXT NOT NULL);
CREATE TABLE {LEDGER} (entry TEXT PRIMARY KEY, account BIGINT NOT NULL, amount INT NOT NULL, w TEXT NOT NULL);
CREATE USER TABLE {NOTES} (name TEXT PRIMARY KEY, w TEXT NOT NULL);
CREATE TOPIC {EVENTS} PARTITIONS 3;
CREATE TOPIC {RECENT} WITH (retention_max_bytes = 20000);
CREATE TOPIC {AGED} PARTITIONS 2 WITH (retention_seconds = 3000);
CREATE TOPIC {LEDGER_EVENTS} PARTITIONS 2;
CREATE TOPIC {NOTE_EVENTS} PARTITIONS 2;
ALTER TOPIC {EVENTS} ADD SOURCE {ACCOUNTS} ON ANY WITH (payload = 'full');
ALTER TOPIC {RECENT} ADD SOURCE {ACCOUNTS} ON ANY WITH (payload = 'diff');
ALTER TOPIC {AGED} ADD SOURCE {ACCOUNTS} ON INSERT WHERE id >= {OWNED} WITH (payload = 'key');
ALTER TOPIC {LEDGER_EVENTS} ADD SOURCE {LEDGER} ON ANY WITH (payload = 'full');
ALTER TOPIC {NOTE_EVENTS} ADD SOURCE {NOTES} ON ANY WITH (payload = 'full');
"""

PRIMARY_KEYS = {ACCOUNTS: ["id"], LEDGER: ["entry"], NOTES: ["name"]}


def _owned_insert(write: Write) -> bool:
    return write.table == ACCOUNTS and write.op == "insert" and int(json.loads(write.key)[0]) >= OWNED


RULES = {
    EVENTS: TopicRule(lambda write: write.table == ACCOUNTS, folds=(ACCOUNTS,)),
    RECENT: TopicRule(lambda write: write.table == ACCOUNTS),
    AGED: TopicRule(_owned_insert),
    LEDGER_EVENTS: TopicRule(lambda write: write.table == LEDGER, folds=(LEDGER,)),
    NOTE_EVENTS: TopicRule(lambda write: write.table == NOTES, folds=(NOTES,)),
}

# One of these sends a ledger entry and its account's change as one request, once per idempotency key.
ENTER_NEW = (
    f"INSERT INTO {LEDGER} (entry, account, amount, w) VALUES (?, ?, ?, ?); "
    f"UPDATE {ACCOUNTS} SET balance = ?, w = ? WHERE id = ?"
)

TURN_MS = 20 * 60 * 1000


def user(writer: int) -> str:
    return f"user{writer}"


def clock_of(turn: int) -> Callable[[], int]:
    """Every opening of the database is a turn, 20 minutes after the one before: claims have run out by then,
    idempotency keys have not."""
    return lambda: system_clock() + turn * TURN_MS
