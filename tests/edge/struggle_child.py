"""A node that is told what to do, made to be killed: `struggle_child.py DIRECTORY URL NODE SKEW_MS`.

Reads one JSON request a line and answers each with one: a write with the version that it has once it is acknowledged.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from edge_nodes import node, told

from tablecast import Database
from tablecast.core import backoff
from tablecast.core.merkle import bucket_of

TABLE = "app.notes"
ROWS = 12  # few, so that nodes write to the same ones
BUCKETS = sorted({bucket_of(f"{TABLE}:{row}") for row in range(ROWS)})
WRITE = "INSERT INTO app.notes VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body"
DELETE = "DELETE FROM app.notes WHERE id = ?"
PATIENCE_SECONDS = 0.05, 0.4  # first and longest pause before a node connects again: a test has no half minute to wait


def entries(db: Database) -> list[Any]:
    found = db.engine.replication.replicas()
    return sorted(entry for bucket in BUCKETS for entry in found.entries(TABLE, bucket))


def write(db: Database, row: int, body: str | None) -> dict[str, Any]:
    """`version` is None if there was nothing to delete."""
    sql, values = (DELETE, [row]) if body is None else (WRITE, [row, body])
    if not db.execute(sql, values).row_count:
        return {"version": None}
    return {"version": next(entry.version for entry in entries(db) if entry.key == f"{TABLE}:{row}")}


def look(db: Database) -> dict[str, Any]:
    rows = sorted(db.query("SELECT id, body FROM app.notes").rows)
    roots = {name: sum_.hex() for name, sum_ in db.engine.replication.roots().items()}
    return {"rows": rows, "entries": entries(db), "roots": roots, "pending": db.replication.status().pending}


def answer(db: Database, asked: dict[str, Any]) -> dict[str, Any]:
    match asked["do"]:
        case "write":
            return write(db, asked["row"], asked["body"])
        case "look":
            return look(db)
        case "told":
            return {"told": [payload.decode() for payload in told(db)], "problems": db.verify().problems}
    raise AssertionError(asked)


def main(path: str, url: str, name: str, skew_ms: str) -> None:
    backoff.FIRST_SECONDS, backoff.MAX_BACKOFF_SECONDS = PATIENCE_SECONDS
    with node(url, name, Path(path), clock=lambda: time.time_ns() // 1_000_000 + int(skew_ms)) as db:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(answer(db, json.loads(line)), default=str) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
