"""The peers and the limit: SQLite with an outbox, and RocksDB without a database around it."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch

import tablecast

AMOUNT = Decimal("12.50")
NOTE = "x" * 120  # rows of about 200 bytes
Row = tuple[int, str, Any, str, str]

TABLE = "id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount {decimal}, status TEXT, note TEXT"
PRAGMAS = {"journal_mode": "WAL", "synchronous": "FULL"}
INSERT = "INSERT INTO {table} VALUES (?, ?, ?, ?, ?)"


def make_row(number: int) -> Row:
    return number, f"customer{number % 1000}", AMOUNT, "new", NOTE


class Numbers:
    """Row numbers that are never given twice, in blocks per caller."""

    def __init__(self) -> None:
        self._blocks = itertools.count(1)
        self._local = threading.local()

    def next(self) -> int:
        position = getattr(self._local, "position", None)
        if position is None or position % 1_000_000 == 0:
            position = next(self._blocks) * 1_000_000 + 1
        self._local.position = position + 1
        return int(position)

    def block(self, size: int) -> list[Row]:
        return [make_row(self.next()) for _ in range(size)]


class Sqlite:
    """WAL, synchronous=FULL; the row and its outbox row in one transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        connection = self.connection()
        connection.execute(f"CREATE TABLE orders ({TABLE.format(decimal='TEXT').replace('BIGINT', 'INTEGER')})")
        connection.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, payload TEXT)")

    def connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self._path, timeout=120, isolation_level=None)
            for name, value in PRAGMAS.items():
                found.execute(f"PRAGMA {name}={value}")
            self._local.connection = found
        return found

    def insert(self, rows: list[Row]) -> None:
        connection = self.connection()
        plain = [(row[0], row[1], str(row[2]), row[3], row[4]) for row in rows]
        outbox = [
            (str(row[0]), json.dumps(dict(zip(("id", "customer", "amount", "status", "note"), row, strict=True))))
            for row in plain
        ]
        connection.execute("BEGIN IMMEDIATE")
        if len(rows) == 1:
            connection.execute(INSERT.format(table="orders"), plain[0])
            connection.execute("INSERT INTO outbox (key, payload) VALUES (?, ?)", outbox[0])
        else:
            connection.executemany(INSERT.format(table="orders"), plain)
            connection.executemany("INSERT INTO outbox (key, payload) VALUES (?, ?)", outbox)
        connection.execute("COMMIT")


class Tablecast:
    """The same table with one full-payload route, or without."""

    def __init__(self, path: Path, *, route: bool = True, durability: str = "fsync") -> None:
        self.db = tablecast.open(path, durability=durability)
        self.db.execute(f"CREATE NAMESPACE bench; CREATE TABLE bench.orders ({TABLE.format(decimal='DECIMAL(12,2)')})")
        if route:
            self.db.execute("CREATE TOPIC bench.events; ALTER TOPIC bench.events ADD SOURCE bench.orders ON ANY")

    def insert_one(self, row: Row) -> None:
        self.db.execute(INSERT.format(table="bench.orders"), row)

    def insert(self, rows: list[Row]) -> None:
        self.db.insert("bench.orders", rows)


class RawRocks:
    """What RocksDB itself takes from Python: ready bytes, one batch, one fsync."""

    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        families = {name: Options(raw_mode=True) for name in ("rows", "log")}
        self.root = Rdict(str(path), options, column_families=families)
        self.rows = self.root.get_column_family_handle("rows")
        self.log = self.root.get_column_family_handle("log")

    def write(self, rows: list[tuple[bytes, bytes]], log: tuple[bytes, bytes]) -> int:
        batch = WriteBatch(raw_mode=True)
        put, family = batch.put, self.rows
        for key, value in rows:
            put(key, value, family)
        batch.put(log[0], log[1], self.log)
        self.root.write(batch)
        self.root.flush_wal(True)
        return len(rows)
