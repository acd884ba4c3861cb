"""The main job, end to end: tables of all three kinds, topics, 24 concurrent publishers, two groups.

Prints what was written, what arrived, and whether the one equals the other.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import tablecast

PUBLISHERS = 24
STATEMENTS = 100

SETUP = """
CREATE NAMESPACE shop;
CREATE TABLE shop.orders (
  id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT DEFAULT 'new');
CREATE USER TABLE shop.carts (item TEXT PRIMARY KEY, quantity INT NOT NULL);
CREATE STREAM TABLE shop.clicks (
  id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), page TEXT, at TIMESTAMP DEFAULT NOW()) WITH (TTL_SECONDS = 3600);
CREATE TOPIC shop.order_events ALIAS 'orders' PARTITIONS 4;
CREATE TOPIC shop.big_orders;
CREATE TOPIC shop.activity PARTITIONS 2;
ALTER TOPIC shop.order_events ADD SOURCE shop.orders ON ANY PARTITION BY customer WITH (payload = 'full');
ALTER TOPIC shop.big_orders ADD SOURCE shop.orders ON INSERT WHERE amount > 50 WITH (payload = 'key');
ALTER TOPIC shop.activity ADD SOURCE shop.carts ON ANY WITH (payload = 'diff');
ALTER TOPIC shop.activity ADD SOURCE shop.clicks ON INSERT;
"""


class Publisher(threading.Thread):
    """Inserts orders, updates every fourth of them, fills a cart, clicks."""

    def __init__(self, db: tablecast.Database, number: int, tick: object) -> None:
        super().__init__()
        self.db, self.number, self.tick = db, number, tick
        self.orders = self.updates = self.big = self.activity = 0
        self.latencies: list[float] = []

    def run(self) -> None:
        me = self.db.session(f"user{self.number}")
        for i in range(STATEMENTS):
            amount = (self.number * 31 + i * 17) % 100
            order = self.timed(
                self.db, "INSERT INTO shop.orders (customer, amount) VALUES (?, ?) RETURNING id",
                (f"customer{i % 7}", amount),
            ).scalar()  # fmt: skip
            self.orders += 1
            self.big += amount > 50
            if i % 4 == 0:
                self.timed(self.db, "UPDATE shop.orders SET status = 'paid' WHERE id = ?", (order,))
                self.updates += 1
            self.timed(
                me, "INSERT INTO shop.carts VALUES (?, 1) ON CONFLICT (item) DO UPDATE SET quantity = quantity + 1",
                (f"item{i % 5}",),
            )  # fmt: skip
            self.timed(me, "INSERT INTO shop.clicks (page) VALUES (?)", (f"/page/{i}",))
            self.activity += 2
            self.tick()  # type: ignore[operator]

    def timed(self, session: tablecast.Session, sql: str, params: tuple[object, ...]) -> tablecast.Result:
        began = time.perf_counter()
        result = session.execute(sql, params)
        self.latencies.append(time.perf_counter() - began)
        return result


def consume_all(db: tablecast.Database, topic: str, group: str, members: int) -> Counter[tuple[int, int]]:
    """A group reads a topic to its end; how often each (partition, offset) was handled."""
    seen: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def handle(message: tablecast.Message) -> None:
        with lock:
            seen[message.partition_id, message.offset] += 1

    threads = [
        threading.Thread(target=lambda: db.consumer(topic, group).run(handle, until_idle=True)) for _ in range(members)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def publish(db: tablecast.Database, console: Console) -> tuple[list[Publisher], float]:
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("24 publishers", total=PUBLISHERS * STATEMENTS)
        publishers = [Publisher(db, n, lambda: progress.advance(bar)) for n in range(PUBLISHERS)]
        began = time.perf_counter()
        for publisher in publishers:
            publisher.start()
        for publisher in publishers:
            publisher.join()
        return publishers, time.perf_counter() - began


def report(
    db: tablecast.Database,
    console: Console,
    publishers: list[Publisher],
    took: float,
    groups: dict[str, tuple[str, int]],
) -> bool:
    expected = {
        "shop.order_events": sum(p.orders + p.updates for p in publishers),
        "shop.big_orders": sum(p.big for p in publishers),
        "shop.activity": sum(p.activity for p in publishers),
    }
    table = Table(title="Every write, on every topic that asked for it", box=box.SIMPLE)
    for heading in ("topic", "read by", "writes", "messages", "coverage", "duplication"):
        table.add_column(heading, justify="left" if heading in ("topic", "read by") else "right", no_wrap=True)
    sound = True
    for topic, (group, members) in groups.items():
        seen = consume_all(db, topic, group, members)
        unique, total = len(seen), sum(seen.values())
        coverage, duplication = unique / expected[topic], total / max(unique, 1)
        sound = sound and unique == expected[topic] and total == unique
        table.add_row(
            topic,
            f"{group} × {members}",
            f"{expected[topic]:,}",
            f"{unique:,}",
            f"{coverage:.1%}",
            f"{duplication:.2f}",
        )
    console.print(table)
    latencies = sorted(latency for p in publishers for latency in p.latencies)
    p50, p99 = statistics.median(latencies) * 1000, latencies[int(len(latencies) * 0.99)] * 1000
    console.print(
        f"{len(latencies):,} durable writes (fsync) from {PUBLISHERS} threads in {took:.1f} s: "
        f"{len(latencies) / took:,.0f} a second, {len(latencies) / max(db.engine.commits, 1):.1f} per commit; "
        f"latency p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    )
    checked = db.verify()
    console.print(
        f"verify: {checked.rows:,} rows and {checked.messages:,} messages checked, "
        + ("sound" if checked.sound else f"NOT SOUND: {checked.problems[0]}")
    )
    return sound and checked.sound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="where to keep the database (default: a temporary directory)")
    path = parser.parse_args().data or Path(tempfile.mkdtemp(prefix="tablecast-demo-"))
    console = Console()
    try:
        with tablecast.open(path / "db") as db:
            db.execute(SETUP)
            publishers, took = publish(db, console)
            groups = {
                "shop.order_events": ("billing", 4),
                "shop.activity": ("analytics", 1),
                "shop.big_orders": ("fraud", 1),
            }
            sound = report(db, console, publishers, took, groups)
            lag = db.query("SELECT sum(lag) FROM system.topic_groups").scalar()
            console.print(f"lag of all groups: {lag} messages")
            top = db.query(
                "SELECT customer, count(*) AS orders, sum(amount) AS amount FROM shop.orders GROUP BY customer ORDER BY 1"
            )
            for customer, orders, amount in top.rows[:3]:
                console.print(f"{customer}: {orders} orders, {amount} in all")
        return 0 if sound else 1
    finally:
        if parser.parse_args().data is None:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
