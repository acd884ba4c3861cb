"""Makes a database as the tablecast that is imported makes it, and writes down what that tablecast says is in it.

    python tests/upgrade/make_fixture.py fixtures/v0.2.0.tar.xz
    PYTHONPATH=older-checkout/src python tests/upgrade/make_fixture.py fixtures/format-1.tar.xz

It keeps to what every version understands; what a version may lack is tried, and left out if it is refused (`EXTRAS`).

    db/         the directory, as a killed process left it: one life that was closed, one whose end is in the
                write-ahead log only, with claims that are held
    told.json   what its maker answered: rows, messages, groups, commit numbers
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import tablecast
from tablecast import EARLIEST
from tablecast.errors import TablecastError
from tablecast.testing.clock import FakeClock

TIME_STEP_MS = 1_000  # between statements: times and ids differ
NEVER_SECONDS = 3_600  # between jobs: none of them runs
VISIBILITY_SECONDS = 600
MAX_FIXTURE_BYTES = 200_000  # it is kept in the repository for ever
ONCE = ("INSERT INTO app.stock VALUES (9, 'once', 1)", "request-17")
USER, PASSWORD = "ann", "a long password"
ROWS = 60  # in the table of all types: enough for SST files with more than one key, and small

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.everything (
  id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), flag BOOLEAN, small SMALLINT, number INT, ratio FLOAT, exact DOUBLE,
  price DECIMAL(12,2) CHECK (price >= 0), name TEXT NOT NULL, raw BYTES, note JSON, at TIMESTAMP DEFAULT NOW(),
  born DATE, alarm TIME, ref UUID DEFAULT UUID_V7());
CREATE TABLE app.stock (warehouse INT, item TEXT, pieces INT NOT NULL, PRIMARY KEY (warehouse, item));
CREATE USER TABLE app.notes (id INT PRIMARY KEY, body TEXT);
CREATE STREAM TABLE app.clicks (id INT PRIMARY KEY, page TEXT) WITH (TTL_SECONDS = 3600);
CREATE TOPIC app.full ALIAS 'everything' PARTITIONS 2;
CREATE TOPIC app.keys;
CREATE TOPIC app.diffs WITH (max_deliveries = 1, dead_letter = 'app.diffs_dead');
CREATE TOPIC app.own;
CREATE TOPIC app.once WITH (dedup_window_seconds = 86400);
CREATE TOPIC app.cleared;
ALTER TOPIC app.full ADD SOURCE app.everything ON ANY WHERE price > 1 PARTITION BY name;
ALTER TOPIC app.keys ADD SOURCE app.everything ON INSERT WITH (payload = 'key');
ALTER TOPIC app.diffs ADD SOURCE app.stock ON ANY WITH (payload = 'diff');
ALTER TOPIC app.own ADD SOURCE app.notes ON ANY WITH (payload = 'full');
ALTER TOPIC app.own ADD SOURCE app.clicks ON INSERT;
ALTER TOPIC app.once ADD SOURCE app.stock ON UPDATE WITH (payload = 'key');
ALTER TOPIC app.cleared ADD SOURCE app.stock ON ANY;
"""
EVERYTHING = """
INSERT INTO app.everything (flag, small, number, ratio, exact, price, name, raw, note, born, alarm)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
FIRST_LIFE = [
    "INSERT INTO app.everything (id, name) VALUES (1, 'only a name')",
    "INSERT INTO app.stock VALUES (1, 'tea', 10), (1, 'cup', 20), (2, 'tea', 30)",
    "UPDATE app.stock SET pieces = pieces + 1 WHERE item = 'tea'",
    "DELETE FROM app.stock WHERE warehouse = 2",
    "CLEAR TOPIC app.cleared",
    "ALTER TABLE app.everything ADD COLUMN priority INT NOT NULL DEFAULT 3",
    "INSERT INTO app.everything (id, name, price, priority) VALUES (2, 'after the column', 5, 4)",
]
SECOND_LIFE = [
    "UPDATE app.stock SET pieces = 0 WHERE item = 'cup'",
    "UPDATE app.everything SET price = 7, note = '{\"paid\": [1, null]}' WHERE id = 2",
    "BEGIN; INSERT INTO app.stock VALUES (3, 'pot', 1); UPDATE app.stock SET pieces = 2 WHERE item = 'pot'; COMMIT",
    "DELETE FROM app.everything WHERE id = 1",
]
EXTRAS = {
    "users": f"CREATE USER '{USER}' WITH PASSWORD '{PASSWORD}' ROLE 'service'",
    "pipelines": "CREATE PIPELINE app.totals INTO app.stock AS SELECT 1 AS warehouse, name AS item, 1 AS pieces "
    "FROM TOPIC app.full",
    "replicated": "CREATE TABLE app.mirrored (id INT PRIMARY KEY, v TEXT) WITH (REPLICATE = TRUE);"
    "INSERT INTO app.mirrored VALUES (1, 'a'), (2, 'b'), (3, 'c'); DELETE FROM app.mirrored WHERE id = 2",
}
OWN = {USER: ("app.notes", "app.clicks"), "bob": ("app.notes", "app.clicks")}
LIVE = "SELECT warehouse, item, pieces FROM app.stock"


class Writing:
    """Statements with time between them."""

    def __init__(self, db: tablecast.Database, clock: FakeClock) -> None:
        self.db, self._clock = db, clock

    def run(self, sql: str, params: Any = (), *, session: tablecast.Session | None = None) -> None:
        self._clock.advance(TIME_STEP_MS)
        (session or self.db).execute_all(sql, params)


# --- two lives ----------------------------------------------------------------------------------------------------


def write(path: Path) -> dict[str, Any]:
    """The whole content; the last database is left open, for the process to die with."""
    clock = FakeClock()
    with opened(path / "db", clock) as db:
        first_life(Writing(db, clock))
    db = opened(path / "db", clock)
    extras = second_life(Writing(db, clock))
    return told(db, clock, extras)


def opened(path: Path, clock: FakeClock) -> tablecast.Database:
    return tablecast.open(path, clock=clock, jobs_interval_seconds=NEVER_SECONDS)


def first_life(writing: Writing) -> None:
    writing.run(SCHEMA)
    for number in range(ROWS):
        writing.run(EVERYTHING, values(number))
    for statement in FIRST_LIFE:
        writing.run(statement)
    for user, (notes, clicks) in OWN.items():
        session = writing.db.session(user)
        writing.run(f"INSERT INTO {notes} VALUES (1, 'of {user}'), (2, 'to go')", session=session)
        writing.run(f"INSERT INTO {clicks} VALUES (1, '/{user}')", session=session)
    consume(writing.db)


def values(number: int) -> list[Any]:
    """Of every type, its ends among them."""
    sign = -1 if number % 2 else 1
    note = [None, {"n": number, "deep": [{"x": None}]}, "text", [1.5, True]][number % 4]
    return [
        number % 3 == 0, sign * 32_767, sign * (2**31 - 1), sign / 4, sign * 1e300 if number % 5 else None,
        f"{number}.{number:02}", f"name {number % 7} é", bytes([number, 0, 255]), json.dumps(note),
        f"2024-02-{number % 28 + 1:02}", f"{number % 24:02}:59:59.999999",
    ]  # fmt: skip


def consume(db: tablecast.Database) -> None:
    """Groups that are somewhere: acknowledged with a hole, given back, and given up on."""
    db.consume("app.keys", group="audit", consumer="one", limit=5)
    db.ack("app.keys", "audit", offsets=[0, 1, 3], consumer="one")
    db.nack("app.keys", "audit", [4], consumer="one")
    db.consume("app.full", group="billing", partition=0, consumer="one", limit=4)
    db.ack("app.full", "billing", 2, consumer="one")
    db.consume("app.diffs", group="strict", consumer="one", limit=2)
    db.nack("app.diffs", "strict", [0], reason="too hard", consumer="one")
    db.ack("app.diffs", "strict", offsets=[1], consumer="one")
    db.consume("app.diffs", group="strict", consumer="one", limit=1)  # it is found to be a dead letter


def second_life(writing: Writing) -> dict[str, Any]:
    """Nothing of it is in an SST file."""
    db, extras = writing.db, {}
    for name, statements in EXTRAS.items():
        extras[name] = tried(writing, statements)
    extras["live"] = watched(db)
    for statement in SECOND_LIFE:
        writing.run(statement)
    writing.run("DELETE FROM app.notes WHERE id = 2", session=db.session(USER))
    db.execute(ONCE[0], idempotency_key=ONCE[1])
    db.consume("app.full", group="billing", partition=0, consumer="two", limit=3, visibility_seconds=VISIBILITY_SECONDS)
    return extras


def tried(writing: Writing, statements: str) -> bool:
    try:
        writing.run(statements)
    except TablecastError:
        return False
    return True


def watched(db: tablecast.Database) -> dict[str, Any] | None:
    """Where a live query was that the process took with it; from here on the changes of its table are kept."""
    if not hasattr(db, "live_table"):
        return None
    with db.live_table(LIVE) as table:
        table.ready()
        rows = [list(row) for row in table.rows.values()]
        return {"seq": db.engine.seq, "history": db.engine.history, "rows": rows}


# --- what its maker says --------------------------------------------------------------------------------------------


def told(db: tablecast.Database, clock: FakeClock, extras: dict[str, Any]) -> dict[str, Any]:
    once = db.execute(ONCE[0], idempotency_key=ONCE[1])
    return {
        "now_ms": clock(),
        "seq": db.engine.seq,
        "extras": extras,
        "rows": tables(db, extras),
        "messages": {topic: messages(db, topic) for topic in topics(db)},
        "groups": groups(db),
        "once": once.seq,
    }


def tables(db: tablecast.Database, extras: dict[str, Any]) -> dict[str, Any]:
    """By table, and by user where each has its own."""
    shared = ["app.everything", "app.stock", *(["app.mirrored"] if extras["replicated"] else [])]
    found = {name: rows(db, name) for name in shared}
    for user, names in OWN.items():
        found |= {f"{name} of {user}": rows(db.session(user), name) for name in names}
    return found


def rows(session: tablecast.Session, table: str) -> list[list[str]]:
    result = session.query(f"SELECT *, _seq FROM {table}")
    return sorted([f"{type(value).__name__} {value}" for value in row] for row in result.rows)


def topics(db: tablecast.Database) -> list[str]:
    return [
        f"{space}.{name}" for space, name in db.query("SELECT namespace, name FROM system.topics ORDER BY name").rows
    ]


def messages(db: tablecast.Database, topic: str) -> list[list[Any]]:
    partitions = db.query("SELECT partitions FROM system.topics WHERE namespace || '.' || name = ?", [topic]).scalar()
    return [
        [
            m.partition_id, m.offset, m.op.label, m.ts, m.seq, m.source_table, m.user_id, m.key.decode(),
            m.payload.decode(),
        ]
        for partition in range(partitions)
        for m in db.consume(topic, start=EARLIEST, partition=partition, limit=1_000).messages
    ]  # fmt: skip


def groups(db: tablecast.Database) -> list[list[Any]]:
    columns = "topic, group_id, partition_id, committed, claimed, end_offset, lag"
    return [list(row) for row in db.query(f"SELECT {columns} FROM system.topic_groups ORDER BY 1, 2, 3").rows]


# --- the file ---------------------------------------------------------------------------------------------------


def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        subprocess.run([sys.executable, __file__, "--write", directory], check=True)
        partial = target.with_name(target.name + ".partial")
        with tarfile.open(partial, "w:xz", preset=9) as archive:
            for name in ("told.json", "db"):
                archive.add(path / name, name, filter=without_traces)
    size = partial.stat().st_size
    if size > MAX_FIXTURE_BYTES:
        raise SystemExit(f"{partial} has {size:,} bytes, more than {MAX_FIXTURE_BYTES:,}: make its content smaller")
    partial.replace(target)
    sys.stdout.write(f"{target}: {size:,} bytes\n")


def without_traces(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Not who made it, nor RocksDB's own log, which names the machine."""
    if Path(member.name).name.startswith("LOG"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--write", action="store_true", help="write into the directory TARGET and die; used by itself")
    args = parser.parse_args()
    if not args.write:
        return make(args.target)
    said = write(args.target)
    (args.target / "told.json").write_text(json.dumps(said, indent=1, ensure_ascii=False))
    os._exit(0)  # as a kill: nothing is closed, nothing is flushed


if __name__ == "__main__":
    main()
