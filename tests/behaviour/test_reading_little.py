"""What the primary key decides reads what it needs: counted at the store, over ten thousand rows.

A scan reads some rows ahead; that, and nothing that grows with the table, is what a lookup may cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tablecast
from tablecast import Database
from tablecast.storage import rocks
from tablecast.storage.view import Scan

ROWS = 10_000
AHEAD = 64  # what a scan of rows takes at a time, at most


class Counter:
    """Rows that scans took from RocksDB, and keys that were looked up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        take, get = Scan._take, rocks.RocksSnapshot.get  # which its get_many calls for each key
        store_get, store_get_many = rocks.RocksStore.get, rocks.RocksStore.get_many

        def taking(scan: Scan, size: int) -> list[Any]:
            rows = take(scan, size)
            self.read += len(rows)
            return rows

        def getting(original: Any) -> Any:
            def one(reader: Any, family: Any, key: bytes) -> Any:
                self.read += 1
                return original(reader, family, key)

            return one

        def getting_many(original: Any) -> Any:
            def many(reader: Any, family: Any, keys: Sequence[bytes]) -> Any:
                self.read += len(keys)
                return original(reader, family, keys)

            return many

        monkeypatch.setattr(Scan, "_take", taking)
        monkeypatch.setattr(rocks.RocksSnapshot, "get", getting(get))
        monkeypatch.setattr(rocks.RocksStore, "get", getting(store_get))
        monkeypatch.setattr(rocks.RocksStore, "get_many", getting_many(store_get_many))

    def of(self, db: Database, sql: str, params: Sequence[Any] = ()) -> tuple[int, int]:
        """How many rows a query gave, and how many it read."""
        before = self.read
        return len(db.query(sql, params).rows), self.read - before


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with tablecast.open(tmp_path_factory.mktemp("little") / "db", durability="none", jobs_interval_seconds=3600) as db:
        db.execute("CREATE TABLE t (a INT, b INT, v TEXT, PRIMARY KEY (a, b))")
        db.insert("t", [(number // 100, number % 100, "x") for number in range(ROWS)])
        yield db


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


@pytest.mark.parametrize(
    ("sql", "gives", "reads"),
    [
        ("SELECT * FROM t WHERE a = 50 AND b = 7", 1, 1),
        ("SELECT v FROM t WHERE a = 50 AND b IN (7, 8, 999)", 2, 3),
        ("SELECT upper(v) FROM t WHERE a = 50 AND b = 7", 1, 1),
        ("SELECT count(*) FROM t WHERE a = 50 GROUP BY b", 100, 100 + AHEAD),
        ("SELECT * FROM t WHERE a = 50 AND b BETWEEN 10 AND 19", 10, 10 + AHEAD),
        ("SELECT * FROM t WHERE a >= 99 ORDER BY a, b", 100, 100 + AHEAD),
        ("SELECT * FROM t LIMIT 5", 5, 5 + AHEAD),
        ("SELECT * FROM t ORDER BY a DESC, b DESC LIMIT 5 OFFSET 5", 5, 10 + AHEAD),
        ("SELECT * FROM t WHERE a > 10 ORDER BY a, b LIMIT 3", 3, 3 + AHEAD),
    ],
)
def test_no_query_by_key_scans_the_table(db: Database, counter: Counter, sql: str, gives: int, reads: int) -> None:
    found, read = counter.of(db, sql)
    assert found == gives
    assert 0 < read <= reads


def test_what_the_key_does_not_decide_does(db: Database, counter: Counter) -> None:
    """The count counts: else the test above would show nothing."""
    assert counter.of(db, "SELECT count(*) FROM t WHERE v = 'x'")[1] >= ROWS


def test_changes_by_key_read_as_little(db: Database, counter: Counter) -> None:
    for sql in ("UPDATE t SET v = 'y' WHERE a = 1 AND b = 1", "DELETE FROM t WHERE a = 1 AND b = 2"):
        before = counter.read
        assert db.execute(sql).row_count == 1
        assert counter.read - before <= 10
    db.execute("INSERT INTO t VALUES (1, 2, 'x')")


def test_opening_reads_as_much_for_many_messages_as_for_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(messages: int) -> int:
        path = tmp_path / str(messages)
        with tablecast.open(path, durability="none", jobs_interval_seconds=3600) as db:
            db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            db.execute("CREATE TOPIC seen PARTITIONS 2; ALTER TOPIC seen ADD SOURCE t ON ANY")
            for start in range(0, messages, 50):
                db.insert("t", [(number,) for number in range(start, start + 50)])
        with monkeypatch.context() as patched:
            counter = Counter(patched)
            tablecast.open(path, jobs_interval_seconds=3600).close()
            return counter.read

    assert 0 < opened(10_000) == opened(100)
