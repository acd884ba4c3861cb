"""Reading: a topic as Arrow, and rows by primary key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rocksdict import Cache, Rdict

from bench.measure import Comparison, in_turns, repeat_rate
from bench.peers import Numbers, Sqlite, Tablecast
from tablecast.codec import keys
from tablecast.codec.log import LogBatch
from tablecast.storage import rocks
from tablecast.storage.base import Family

LOOKUPS = 2000
CACHE_BYTES = 64 * 2**20  # as ours


def topic_as_arrow(path: Path, rounds: int, messages: int, batch: int = 1000) -> Iterator[Comparison]:
    side, numbers = Tablecast(path / f"topic{batch}", durability="none"), Numbers()
    for _ in range(messages // batch):
        side.insert(numbers.block(batch))
    topic = side.db.topic("bench.events")
    raw = _unpacked(side, topic.topic_id, path / f"raw{batch}")

    def as_arrow() -> float:
        began = time.perf_counter()
        rows = sum(piece.num_rows for piece in side.db.stream_arrow("bench.events"))
        return float(rows / (time.perf_counter() - began))

    def raw_scan() -> float:
        began, size = time.perf_counter(), 0
        for _, value in raw.items():
            size += len(value)
        assert size
        return messages / (time.perf_counter() - began)

    ours, limit = in_turns(rounds, as_arrow, raw_scan)
    side.db.close()
    raw.close()
    name = f"reading a topic of {messages:,} messages as Arrow ({batch:,} a commit)"
    yield Comparison(name, "raw RocksDB scan of the same messages", ours, limit, "messages/s", 0.5, kind="limit")


def _unpacked(side: Tablecast, topic_id: int, path: Path) -> Rdict:
    """The same messages in a RocksDB of their own, set up as ours is, and not packed: a scan shall find data."""
    raw = Rdict(str(path), rocks._family_options(Cache(CACHE_BYTES)))
    for key, value in side.db.engine.store.scan(Family.LOG, keys.log_prefix(topic_id, 0), None):
        batch = LogBatch(value)
        columns = (batch.hash_array(), batch.key_array(), batch.payload_array())
        plain = b"".join(memoryview(part) for column in columns for part in column.buffers() if part is not None)
        assert len(plain) > batch.head.payload_bytes
        raw[key] = plain
    return raw


def primary_key(path: Path, rounds: int, seconds: float, rows: int = 100_000) -> Iterator[Comparison]:
    ours, theirs, numbers = Tablecast(path / "tablecast", durability="none"), Sqlite(path / "sqlite"), Numbers()
    block = numbers.block(rows)
    for at in range(0, rows, 10_000):
        ours.insert(block[at : at + 10_000])
        theirs.insert(block[at : at + 10_000])
    wanted = [row[0] for row in block[:: rows // LOOKUPS]]
    connection = theirs.connection()

    def look_up_ours() -> int:
        for number in wanted:
            assert ours.db.execute("SELECT * FROM bench.orders WHERE id = ?", (number,)).rows
        return len(wanted)

    def look_up_theirs() -> int:
        for number in wanted:
            assert connection.execute("SELECT * FROM orders WHERE id = ?", (number,)).fetchall()
        return len(wanted)

    rate, peer = in_turns(
        rounds, lambda: repeat_rate(seconds, look_up_ours), lambda: repeat_rate(seconds, look_up_theirs)
    )
    ours.db.close()
    yield Comparison("primary-key SELECT, prepared", "sqlite3, same table", rate, peer, "lookups/s", 0.3)
