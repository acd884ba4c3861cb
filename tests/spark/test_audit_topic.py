"""AUDIT TOPIC: what is sound is found sound, and a loss, a repeat or another content is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from copying import ORDERS, Copying
from pyspark.sql import SparkSession
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast.codec import keys
from tablecast.codec.log import MessageClass
from tablecast.codec.rows import HEADER_SIZE
from tablecast.core.routing import Append, content_hash
from tablecast.engine.decision import Decision, View
from tablecast.model.change import Op
from tablecast.model.topic import PayloadMode
from tablecast.storage.base import Family

Findings = dict[str | None, dict[str, Any]]


@contextmanager
def serving(data: Path) -> Iterator[Copying]:
    with (
        ServerThread(data) as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        client.execute("CREATE NAMESPACE IF NOT EXISTS app")
        yield Copying(server.url, client)


def audited(c: Copying, topic: str) -> tuple[Findings, str]:
    """By source; None is the log."""
    result = c.client.execute(f"AUDIT TOPIC {topic}")
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    return {row["source"]: row for row in rows}, result.message


def test_a_sound_topic_covers_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as c:
        table = c.table("orders", ORDERS)
        c.client.insert(table, [(i, "ann", i) for i in range(500)])
        c.client.execute(f"UPDATE {table} SET amount = amount + 1 WHERE id < 100")
        c.client.execute(f"DELETE FROM {table} WHERE id >= 450")
        c.client.execute(f"INSERT INTO {table} VALUES (460, 'back', 1)")
        found, message = audited(c, f"{table}_told")
        assert message == f"AUDIT {table}_told: sound"
        assert found[table] | {"examples": None} == {
            "topic": f"{table}_told", "source": table, "judged_by": "fold", "coverage": 100.0, "duplication": 1.0,
            "rows": 451, "covered": 451, "missing": 0, "differing": 0, "extra": 0, "unjudged": 0, "messages": 651,
            "repeated": 0, "gaps": 0, "examples": None,
        }  # fmt: skip
        assert (found[None]["messages"], found[None]["gaps"], found[None]["repeated"]) == (651, 0, 0)


def test_what_a_source_does_not_ask_for_is_not_demanded(spark: SparkSession, tmp_path: Path) -> None:
    """A filter, a source added later, one that was backfilled, one of inserts alone, and an altered table."""
    with serving(tmp_path / "data") as c:
        c.client.execute_all(
            f"CREATE TABLE app.t ({ORDERS}); CREATE TOPIC app.part PARTITIONS 2; CREATE TOPIC app.late;"
            "CREATE TOPIC app.filled; CREATE TOPIC app.inserts;"
            "ALTER TOPIC app.part ADD SOURCE app.t ON INSERT, UPDATE WHERE amount > 50 WITH (payload = 'full');"
            "ALTER TOPIC app.inserts ADD SOURCE app.t ON INSERT"
        )
        c.client.insert("app.t", [(i, "ann", i) for i in range(100)])
        c.client.execute_all(
            "ALTER TOPIC app.late ADD SOURCE app.t ON ANY; ALTER TOPIC app.filled ADD SOURCE app.t ON ANY WITH (backfill = TRUE);"
            "ALTER TABLE app.t ADD COLUMN note TEXT"
        )
        c.client.execute("UPDATE app.t SET note = 'x' WHERE id < 10")
        found = {
            topic: audited(c, topic)[0]["app.t"] for topic in ("app.part", "app.late", "app.filled", "app.inserts")
        }
        assert {audited(c, topic)[1] for topic in found} == {
            "AUDIT app.part: sound",
            "AUDIT app.late (90 rows not judged): sound",
            "AUDIT app.filled: sound",
            "AUDIT app.inserts (1 source not judged): sound",
        }
        seen = {topic: (row["judged_by"], row["covered"], row["unjudged"]) for topic, row in found.items()}
        assert seen == {
            "app.part": ("last writes", 49, 0),
            "app.late": ("fold", 10, 90),
            "app.filled": ("fold", 100, 0),
            "app.inserts": ("nothing: no source asks for both INSERT and UPDATE", 0, 0),
        }


@pytest.mark.parametrize(
    ("plant", "wrong"),
    [
        ("loss", {"missing": 1}),
        ("repeat", {"repeated": 1, "differing": 1}),
        ("content", {"differing": 1}),
        ("phantom", {"extra": 1}),
    ],
)
def test_what_is_planted_is_found(spark: SparkSession, tmp_path: Path, plant: str, wrong: dict[str, int]) -> None:
    """Rows written with the source away, or messages that the table knows nothing of."""
    data = tmp_path / "data"
    with serving(data) as c:
        c.table("orders", ORDERS, partitions=1)
        c.client.insert("app.orders", [(i, "ann", i) for i in range(20)])
    with tablecast.open(str(data)) as db:
        _plant(db, plant)
    with serving(data) as c:
        found, message = audited(c, "app.orders_told")
        assert message.endswith("NOT SOUND")
        source = found["app.orders"]
        assert {name: source[name] for name in ("missing", "repeated", "differing", "extra") if source[name]} == wrong
        if plant != "repeat":
            (example,) = source["examples"]
            assert (example["key"], example["what"]) == ('["99"]' if plant == "phantom" else '["7"]', next(iter(wrong)))
            if plant != "phantom":
                assert source["coverage"] == 95.0
        else:
            assert source["duplication"] == pytest.approx(21 / 20, abs=1e-4)


@dataclass
class Forge:
    """A command that no user has: it writes rows without messages, or messages without rows."""

    records: list[Any] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    newest: bytes | None = None  # a row's key: the row is written again, by this commit
    weight: int = 1

    def decide(self, view: View) -> Decision:
        records = list(self.records)
        if self.newest is not None:
            value = view.get(Family.ROWS, self.newest)
            assert value is not None
            records.append((Family.ROWS, self.newest, value[:1] + view.seq.to_bytes(8, "big") + value[9:]))
        return Decision(None, letters=list(self.appends), records=records)


def _plant(db: tablecast.Database, plant: str) -> None:
    engine = db.engine
    (table,), (topic,) = engine.catalog.tables.values(), engine.catalog.topics.values()
    prefix = table.codec.prefix(None)
    stored = engine.store.scan(Family.ROWS, prefix, keys.after(prefix))
    key, row = next((key, row) for key, row in ((k, table.codec.decode(v)) for k, v in stored) if row.c0 == 7)
    engine.execute(_FORGED[plant](db, table, topic, row, key))


def _message(table: Any, topic: Any, row: Any) -> Append:
    payload, key = table.payload.full(row), table.payload.message_key(row)
    said = MessageClass(table.schema.full_name, Op.INSERT, PayloadMode.FULL, None)
    return Append(topic.topic_id, 0, said, [key], [payload], [content_hash(Op.INSERT, payload)])


_FORGED: dict[str, Callable[..., Forge]] = {
    "loss": lambda db, table, topic, row, key: Forge(newest=key),
    "repeat": lambda db, table, topic, row, key: Forge(appends=[_message(table, topic, row)]),
    "phantom": lambda db, table, topic, row, key: Forge(
        appends=[_message(table, topic, msgspec.structs.replace(row, c0=99))]
    ),
    "content": lambda db, table, topic, row, key: Forge(
        records=[(Family.ROWS, key, _with_other_body(db, table, row, key))]
    ),
}


def _with_other_body(db: tablecast.Database, table: Any, row: Any, key: bytes) -> bytes:
    value = db.engine.store.get(Family.ROWS, key)
    assert value is not None
    changed: bytes = value[:HEADER_SIZE] + table.codec.encode(msgspec.structs.replace(row, c1="eve"))
    return changed
