"""Loads the same rows on Spark and through SQL, and compares every message that they made.

    python tests/spark/compare_load.py --rows 5000000

Two servers, one table each, three routes: full rows, keyed by a column, and filtered. One gets the rows by COPY, the
other as inserts. Messages of one partition may stand in another order (a load puts those of each task together), so what
is compared is, for every partition, how many there are and the sum of a 128-bit hash of each: op, mode, key, payload and
content hash, byte for byte. One in a few thousand is compared as it stands, too. Then the loaded topics are audited.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from processes import PASSWORD, Server
from three_routes import DEFINITIONS, TOPICS, orders
from xxhash import xxh3_128_intdigest

import tablecast
from tablecast.client.bulk import BulkClient
from tablecast.client.bulk_server import Server as Address
from tablecast.codec.log import LogBatch, messages_arrow

FILE_ROWS, INSERT_ROWS = 250_000, 10_000
SAMPLED = 4_096  # one message in so many is kept as it is
ASKED = {"app.filtered": "WHERE amount > 100 AND customer <> 'customer 3'"}  # the rows a topic wants, if not all
COMPARED = ("source_table", "op", "payload_mode", "key", "payload", "content_hash")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    rows: int = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="tablecast-compare-") as directory:
        return compare(Path(directory), rows)


def compare(path: Path, rows: int) -> int:
    for name in ("in", "bulk", "sql"):
        (path / name).mkdir()
    with Server(path / "bulk") as bulk, Server(path / "sql") as sql, _client(bulk) as by_copy, _client(sql) as by_sql:
        by_copy.execute_all(DEFINITIONS)
        by_sql.execute_all(DEFINITIONS)
        for first in range(0, rows, FILE_ROWS):
            pq.write_table(orders(first, min(FILE_ROWS, rows - first)), path / "in" / f"{first}.parquet")
        _timed(rows, "COPY on Spark", lambda: by_copy.execute(f"COPY app.orders FROM '{path}/in' (FORMAT parquet)"))
        _timed(rows, "inserts", lambda: [by_sql.insert("app.orders", batch) for batch in _batches(path / "in")])
        differing = [topic for topic in TOPICS if not _same(topic, bulk, sql)]
        differing += [topic for topic in TOPICS if not _covered(topic, by_copy)]
    _say(f"differing: {', '.join(differing) if differing else 'nothing'}")
    return bool(differing)


def _covered(topic: str, client: tablecast.Client) -> bool:
    """That every row was judged and found on the topic, once. "sound" alone would also be said of what nobody could judge."""
    audit = client.execute(f"AUDIT TOPIC {topic}")
    log, source = sorted(audit.dicts(), key=lambda found: found["source"] is not None)
    asked = client.query(f"SELECT count(*) FROM app.orders {ASKED.get(topic, '')}").scalar()
    figures = {
        "coverage": (source["coverage"], 100.0),
        "duplication": (source["duplication"], 1.0),
        "unjudged": (source["unjudged"], 0),
        "covered": (source["covered"], asked),
        "messages": (log["messages"], asked),
        "duplication of the log": (log["duplication"], 1.0),
        "gaps": (log["gaps"], 0),
    }
    wrong = [f"{name} is {found} and not {wanted}" for name, (found, wanted) in figures.items() if found != wanted]
    told = ", ".join(f"{name} {found}" for name, (found, _) in figures.items())
    _say(f"{audit.message}; {told}" + "".join(f"\n  WRONG: {each}" for each in wrong))
    return not wrong and audit.message == f"AUDIT {topic}: sound"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _client(server: Server) -> tablecast.Client:
    return tablecast.connect(server.url, user="system", password=PASSWORD)


def _timed(rows: int, what: str, work: Callable[[], object]) -> None:
    began = time.perf_counter()
    work()
    _say(f"{what}: {rows:,} rows, {rows / (time.perf_counter() - began):,.0f} rows/s")


def _batches(source: Path) -> Iterator[pa.RecordBatch]:
    for file in sorted(source.iterdir()):
        yield from pq.read_table(file).combine_chunks().to_batches(max_chunksize=INSERT_ROWS)


def _same(topic: str, bulk: Server, sql: Server) -> bool:
    loaded, inserted = ({p: _digest(server, topic, p) for p in _partitions(server, topic)} for server in (bulk, sql))
    count = sum(messages for messages, _, _ in loaded.values())
    sampled = sum(len(sample) for _, _, sample in loaded.values())
    _say(f"{topic}: {count:,} messages, {sampled:,} compared one by one, same: {loaded == inserted}")
    return loaded == inserted


def _partitions(server: Server, topic: str) -> list[int]:
    with BulkClient(Address(server.url, user="system", password=PASSWORD)) as client:
        return sorted(p.partition_id for p in client.describe_topic(topic).partitions)


def _digest(server: Server, topic: str, partition: int) -> tuple[int, int, set[tuple[object, ...]]]:
    """How many messages there are, the sum of their hashes, and those that are compared as they stand."""
    count, total, sample = 0, 0, set[tuple[object, ...]]()
    with BulkClient(Address(server.url, user="system", password=PASSWORD)) as client:
        known = {p.partition_id: p for p in client.describe_topic(topic).partitions}[partition]
        for data in client.stream_log(topic, partition, known.start_offset, known.end_offset):
            found = messages_arrow([LogBatch(data)], 0, partition)
            for message in zip(*(found.column(name).to_pylist() for name in COMPARED), strict=True):
                digest = xxh3_128_intdigest(repr(message).encode())
                total = (total + digest) % 2**128
                if not digest % SAMPLED:
                    sample.add(message)
            count += found.num_rows
    return count, total, sample


if __name__ == "__main__":
    sys.exit(main())
