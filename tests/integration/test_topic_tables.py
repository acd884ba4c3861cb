"""What system tables say of topics: their sources, their partitions, and how far each group is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import tablecast
from tablecast import Database
from tablecast.testing.clock import START_MS, FakeClock

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY, amount INT);
CREATE TABLE app.other (id INT PRIMARY KEY);
CREATE TOPIC app.events PARTITIONS 2;
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as database:
        database.execute_all(SCHEMA)
        yield database


def at(clock: FakeClock) -> datetime:
    return datetime.fromtimestamp(clock() / 1000, UTC)


def topic(db: Database, columns: str) -> tuple[Any, ...]:
    [row] = db.query(f"SELECT {columns} FROM system.topics WHERE name = 'events'").rows
    return row


def test_a_topic_has_its_routes_as_json(db: Database) -> None:
    assert topic(db, "routes, sources") == ([], 0)
    db.execute(
        "ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT, UPDATE WHERE amount > 1 PARTITION BY amount "
        "WITH (payload = 'diff')"
    )
    db.execute("ALTER TOPIC app.events ADD SOURCE app.other ON ANY")
    assert topic(db, "routes, sources") == (
        [
            {
                "table": "app.orders", "ops": ["insert", "update"], "filter": "amount > 1", "partition_by": "amount",
                "payload": "diff",
            },
            {
                "table": "app.other", "ops": ["insert", "update", "delete"], "filter": None, "partition_by": None,
                "payload": "full",
            },
        ],
        2,
    )  # fmt: skip
    assert topic(db, "routes->0->>'table'") == ("app.orders",)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TOPIC app.events ADD SOURCE app.other ON INSERT",
        "ALTER TOPIC app.events DROP SOURCE app.orders",
        "ALTER TOPIC app.events SET (retention_seconds = 60)",
        "DROP TABLE app.orders CASCADE",
    ],
)
def test_a_topic_says_when_its_definition_last_changed(db: Database, clock: FakeClock, change: str) -> None:
    made = at(clock)
    assert topic(db, "created_at, updated_at") == (made, made)
    db.execute("ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
    clock.advance(1_000)
    db.execute("INSERT INTO app.other VALUES (1)")
    db.consume("app.events", group="g")
    assert topic(db, "updated_at") == (made,), "its definition, not what is in it"
    db.execute(change)
    assert topic(db, "created_at, updated_at") == (made, at(clock))


def test_each_group_has_a_row_per_partition(db: Database, clock: FakeClock) -> None:
    db.execute("ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
    db.insert("app.orders", [(i, i) for i in range(20)])
    topic_id, made = db.topic("app.events").topic_id, datetime.fromtimestamp(START_MS / 1000, UTC)
    db.consume("app.events", group="g", partition=1)
    columns = "topic_id, group_id, partition_id, last_acked_offset, updated_at"
    assert db.query("SELECT * FROM system.topic_offsets LIMIT 0").columns == tuple(columns.split(", "))
    assert sorted(db.query("SELECT * FROM system.topic_offsets").rows) == [
        (topic_id, "g", 0, None, made), (topic_id, "g", 1, None, made),
    ]  # fmt: skip
    clock.advance(1_000)
    db.ack("app.events", "g", 3, partition=1)
    assert db.query("SELECT last_acked_offset, updated_at FROM system.topic_offsets ORDER BY partition_id").rows == [
        (None, made), (3, at(clock)),
    ]  # fmt: skip


def test_partitions_have_their_bounds(db: Database) -> None:
    db.execute("ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
    db.insert("app.orders", [(i, i) for i in range(20)])
    db.execute("CLEAR TOPIC app.events")
    found = db.query("SELECT * FROM system.topic_partitions ORDER BY partition_id")
    assert found.columns == ("topic", "partition_id", "start_offset", "end_offset", "messages")
    assert [(row[0], row[1], row[4]) for row in found.rows] == [("app.events", 0, 0), ("app.events", 1, 0)]
    assert sum(row[2] for row in found.rows) == sum(row[3] for row in found.rows) == 20
