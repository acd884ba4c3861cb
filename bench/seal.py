"""`python -m bench.seal [--rows N] [--rounds N] [--partitions N] [--profile]`: sealing beside the row path, per core.

The same rows, as Arrow, once sealed into part files and once written by the engine (`insert`, fsync). What is compared is
the processor's time, of all threads: what one core does in a second if it does nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import tablecast
from bench.measure import in_turns
from tablecast.core.seal import Sealer
from tablecast.core.seal_values import LoadValues
from tablecast.model.change import Op
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.topic import Route, Topic
from tablecast.storage.parts import seal_parts

BATCH_ROWS = 10_000  # what Spark hands to Python at once
T = TypeName
ORDERS = TableSchema(
    7, "app", "orders", TableKind.SHARED,
    (
        Column("id", ColumnType(T.BIGINT)),
        Column("customer", ColumnType(T.TEXT), True),
        Column("amount", ColumnType(T.DECIMAL, 12, 2)),
        Column("status", ColumnType(T.TEXT)),
        Column("quantity", ColumnType(T.INT)),
        Column("created_at", ColumnType(T.TIMESTAMP)),
    ),
    ("id",),
)  # fmt: skip
STATUSES = pa.array(["new", "paid", "shipped", "returned"])


def orders(rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(first)
    for at in range(first, first + rows, BATCH_ROWS):
        count = min(BATCH_ROWS, first + rows - at)
        cents = np.zeros((count, 2), np.int64)
        cents[:, 0] = rng.integers(0, 10**7, count)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(np.arange(at, at + count) + 1_000_000),
                pa.array(np.char.add("customer-", rng.integers(0, 100_000, count).astype(str))),
                pa.Array.from_buffers(pa.decimal128(12, 2), count, [None, pa.py_buffer(cents)]),
                STATUSES.take(pa.array(rng.integers(0, len(STATUSES), count))),
                pa.array(rng.integers(1, 200, count).astype(np.int32)),
                pa.array(rng.integers(16 * 10**14, 17 * 10**14, count)).cast(pa.timestamp("us", "UTC")),
            ],
            list(ORDERS.column_names),
        )


def sealing(directory: Path, batches: list[pa.RecordBatch], partitions: int) -> float:
    """Rows per second of processor time."""
    sealer = Sealer(ORDERS, [(Topic(3, "app", "events", partitions), Route(7, (Op.INSERT,)))], 1, LoadValues(0, "ann"))
    began, rows = time.process_time(), 0
    for part in seal_parts(sealer, batches, directory, "bench"):
        rows += part.rows
        part.path.unlink()
    return rows / (time.process_time() - began)


class RowPath:
    """The engine, with the table and the topic that the parts are sealed for."""

    def __init__(self, path: Path, partitions: int) -> None:
        self._db = tablecast.open(str(path))
        self._db.execute("CREATE NAMESPACE app")
        self._db.execute(
            "CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT, "
            "quantity INT, created_at TIMESTAMP)"
        )
        self._db.execute(f"CREATE TOPIC app.events PARTITIONS {partitions}")
        self._db.execute("ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
        self._next = 0

    def inserting(self, rows: int) -> float:
        batches = list(orders(rows, self._next))
        self._next += rows
        began = time.process_time()
        for batch in batches:
            self._db.insert("app.orders", batch)
        return rows / (time.process_time() - began)

    def close(self) -> None:
        self._db.close()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000, help="sealed in a round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--partitions", type=int, default=1)
    options.add_argument("--profile", action="store_true", help="where a round of sealing spends its time")
    given = options.parse_args()
    batches = list(orders(given.rows))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if given.profile:
            from pyinstrument import Profiler

            with Profiler(interval=0.0005) as profiler:
                sealing(directory, batches, given.partitions)
            print(profiler.output_text(show_all=True))
            return 0
        engine = RowPath(directory / "db", given.partitions)
        ours, theirs = in_turns(
            given.rounds,
            lambda: sealing(directory, batches, given.partitions),
            lambda: engine.inserting(given.rows // 10),
        )
        engine.close()
    print(f"app.orders, six columns, one full route, {given.partitions} partition(s), per core:")
    print(f"  sealing      {ours:12,.0f} rows/s   {1e6 / ours:6.2f} µs a row")
    print(f"  row path     {theirs:12,.0f} rows/s   {1e6 / theirs:6.2f} µs a row")
    print(f"  ratio        {ours / theirs:12.1f} ×")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
