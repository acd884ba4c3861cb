"""Databases that replicate, for tests with a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tablecast
from tablecast import EARLIEST, Database
from tablecast.model.replication_status import ReplicationStatus

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.notes (id BIGINT PRIMARY KEY, body TEXT) WITH (REPLICATE = TRUE);
CREATE TABLE app.pairs (key TEXT PRIMARY KEY, value TEXT) WITH (REPLICATE = TRUE);
CREATE TOPIC app.told;
ALTER TOPIC app.told ADD SOURCE app.notes ON INSERT;
ALTER TOPIC app.told ADD SOURCE app.notes ON UPDATE;
"""
EVENTS = "tablecast/replication/events"
COMPARE_SECONDS = 1.0
Condition = Callable[[ReplicationStatus], bool]


@contextmanager
def database(path: Path | str = ":memory:", **options: Any) -> Iterator[Database]:
    with tablecast.open(path, **options) as db:
        if "app" not in db.engine.catalog.namespaces:
            db.execute_all(SCHEMA)
        yield db
        assert db.verify().problems == []


@contextmanager
def node(url: str, node_id: str, path: Path | str = ":memory:", **options: Any) -> Iterator[Database]:
    with database(path, **{name: options.pop(name) for name in ("clock",) if name in options}) as db:
        db.replicate(url, node_id=node_id, **({"compare_seconds": COMPARE_SECONDS} | options))
        yield db


def until(db: Database, condition: Condition) -> ReplicationStatus:
    """The first status that fulfils it. Tests have a time limit."""
    for status in db.replication.watch():
        if condition(status):
            return status
    raise AssertionError(f"replication stopped before: {status}")


def notes(db: Database) -> list[tuple[Any, ...]]:
    return sorted(db.query("SELECT id, body FROM app.notes").rows)


def told(db: Database) -> list[bytes]:
    return [message.payload for message in db.consume("app.told", start=EARLIEST, limit=100_000).messages]
