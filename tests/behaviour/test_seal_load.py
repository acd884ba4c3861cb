"""A sealed load is the same write as an insert: two databases, one loaded and one written, say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablecast
from tablecast.core.seal import Sealer
from tablecast.core.seal_values import LoadValues
from tablecast.errors import DuplicateKey
from tablecast.model.position import EARLIEST
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.storage.parts import seal_parts

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), note JSON,
    status TEXT DEFAULT 'new', CHECK (amount >= 0));
CREATE TOPIC app.spread PARTITIONS 3;
ALTER TOPIC app.spread ADD SOURCE app.orders ON INSERT WHERE amount > 100 PARTITION BY customer;
CREATE TOPIC app.keys PARTITIONS 2;
ALTER TOPIC app.keys ADD SOURCE app.orders ON ANY WITH (payload = 'key');
CREATE TOPIC app.folded;
ALTER TOPIC app.folded ADD SOURCE app.orders ON ANY
"""


def rows(count: int) -> pa.RecordBatch:
    rng = np.random.default_rng(count)
    cents = np.zeros((count, 2), np.int64)
    cents[:, 0] = rng.integers(0, 50_000, count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(rng.permutation(count)),
            pa.array([f"c{n} é\n" for n in rng.integers(0, 20, count)]),
            pa.Array.from_buffers(pa.decimal128(12, 2), count, [None, pa.py_buffer(cents)]),
            pa.array([None if n % 3 else f'{{"n": {n}}}' for n in range(count)]),
        ],
        ["id", "customer", "amount", "note"],
    )


def load(db: tablecast.Database, batch: pa.RecordBatch, directory: Path, part_rows: int) -> int:
    loads = db._engine.loads
    info = loads.begin(SYSTEM_ACTOR, "app.orders", "job:test", 0, mode="insert", kind="sealed")
    sealer = Sealer(info.table, info.routes, info.load_number, LoadValues(0, "system"), part_rows=part_rows)
    parts = []
    for number, made in enumerate(
        seal_parts(sealer, [batch.slice(0, part_rows), batch.slice(part_rows)], directory, "p")
    ):
        with made.path.open("rb") as file:
            loads.stage(info.load_id, number, "a", file)
        parts.append((number, "a"))
    assert sealer.reject_count == 0
    return loads.commit(info.load_id, parts).row_count


def told(db: tablecast.Database, topic: str, partition: int) -> list[tuple[Any, ...]]:
    """What a partition tells, without what its commit assigned."""
    found = db.consume(topic, start=EARLIEST, partition=partition, limit=100_000).messages
    assert [message.offset for message in found] == list(range(len(found)))
    return [(m.source_table, m.op, m.payload_mode, m.user_id, m.key, m.payload, m.content_hash) for m in found]


def test_a_sealed_load_is_the_same_write_as_an_insert(tmp_path: Path) -> None:
    batch = rows(20_000)
    loaded, inserted = tablecast.open(str(tmp_path / "loaded")), tablecast.open(str(tmp_path / "inserted"))
    try:
        for db in (loaded, inserted):
            db.execute_all(SCHEMA)
        assert load(loaded, batch, tmp_path, 12_000) == 20_000
        inserted.insert("app.orders", batch)
        everything = "SELECT * FROM app.orders ORDER BY id"
        assert loaded.query(everything).rows == inserted.query(everything).rows
        for topic, partitions in (("app.spread", 3), ("app.keys", 2), ("app.folded", 1)):
            for partition in range(partitions):
                assert told(loaded, topic, partition) == told(inserted, topic, partition)
        assert loaded.verify().problems == []
        with pytest.raises(DuplicateKey):
            loaded.insert("app.orders", batch.slice(0, 1))
    finally:
        loaded.close()
        inserted.close()
