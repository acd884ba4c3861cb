"""A table that feeds three topics: full rows, keyed by a column, and filtered; and rows for it."""

from __future__ import annotations

import pyarrow as pa

DEFINITIONS = """
    CREATE NAMESPACE app;
    CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), note JSON);
    CREATE TOPIC app.full PARTITIONS 4; CREATE TOPIC app.keyed PARTITIONS 3; CREATE TOPIC app.filtered;
    ALTER TOPIC app.full ADD SOURCE app.orders ON ANY WITH (payload = 'full');
    ALTER TOPIC app.keyed ADD SOURCE app.orders ON ANY PARTITION BY customer WITH (payload = 'key');
    ALTER TOPIC app.filtered ADD SOURCE app.orders ON INSERT, UPDATE WHERE amount > 100 AND customer <> 'customer 3'
"""
TOPICS = ("app.full", "app.keyed", "app.filtered")


def orders(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": [f"customer {i % 7}" for i in ids],
            "amount": [f"{i % 1000}.{i % 100:02d}" for i in ids],
            "note": [f'{{"n": {i}}}' if i % 3 else None for i in ids],
        }
    )
