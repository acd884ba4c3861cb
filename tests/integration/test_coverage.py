"""Every matching write is on every topic that asked for it: once, in order, whatever else is going on.

24 threads write to five tables with ten sources while four competing consumers per topic read. Every request
and answer is recorded; then the history checker compares what was said with what is there.

Thread n owns the rows whose key holds its number, so it knows their content, hence which filter they match;
`shop.stock` belongs to everybody. Every write carries its own name in column `w`.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tablecast
from tablecast.engine.observer import CommitReport, Nobody
from tablecast.engine.verify import verify_engine
from tablecast.model.message import Message
from tablecast.model.position import EARLIEST, Start, StartKind
from tablecast.testing.history import History, Recorder, Seen, TopicRule, Write, check

WRITERS = 24
CONSUMERS = 4
GROUP = "audit"

SCHEMA = """
CREATE NAMESPACE shop;
CREATE TABLE shop.orders (
  id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT DEFAULT 'new', w TEXT);
CREATE TABLE shop.stock (sku TEXT PRIMARY KEY, on_hand INT, w TEXT);
CREATE USER TABLE shop.carts (item TEXT PRIMARY KEY, quantity INT, w TEXT);
CREATE USER TABLE shop.prefs (area TEXT, name TEXT, value TEXT, w TEXT, PRIMARY KEY (area, name));
CREATE STREAM TABLE shop.clicks (id BIGINT PRIMARY KEY, page TEXT, w TEXT) WITH (TTL_SECONDS = 86400);

CREATE TOPIC shop.order_events PARTITIONS 4;
CREATE TOPIC shop.big_orders PARTITIONS 2;
CREATE TOPIC shop.order_changes PARTITIONS 3;
CREATE TOPIC shop.paid_and_gone;
CREATE TOPIC shop.stock_events PARTITIONS 4;
CREATE TOPIC shop.activity PARTITIONS 2;
CREATE TOPIC shop.prefs_set;
CREATE TOPIC shop.click_log PARTITIONS 4;

ALTER TOPIC shop.order_events ADD SOURCE shop.orders ON ANY PARTITION BY customer WITH (payload = 'full');
ALTER TOPIC shop.big_orders ADD SOURCE shop.orders ON INSERT, UPDATE WHERE amount > 50 WITH (payload = 'key');
ALTER TOPIC shop.order_changes ADD SOURCE shop.orders ON ANY WITH (payload = 'diff');
ALTER TOPIC shop.paid_and_gone ADD SOURCE shop.orders ON DELETE WHERE status = 'paid' WITH (payload = 'full');
ALTER TOPIC shop.stock_events ADD SOURCE shop.stock ON ANY WITH (payload = 'full');
ALTER TOPIC shop.activity ADD SOURCE shop.carts ON ANY WITH (payload = 'diff');
ALTER TOPIC shop.activity ADD SOURCE shop.prefs ON ANY WITH (payload = 'full');
ALTER TOPIC shop.activity ADD SOURCE shop.clicks ON INSERT WITH (payload = 'key');
ALTER TOPIC shop.prefs_set ADD SOURCE shop.prefs ON INSERT, UPDATE WHERE value IS NOT NULL WITH (payload = 'key');
ALTER TOPIC shop.click_log ADD SOURCE shop.clicks ON INSERT WHERE page LIKE '/sale/%' PARTITION BY page
  WITH (payload = 'full');
"""
SOURCES = SCHEMA.count("ADD SOURCE")

Row = dict[str, Any]


def of_table(*tables: str) -> Callable[[Write], bool]:
    return lambda write: write.table in tables


def said(write: Write, column: str) -> Any:
    assert write.row is not None, f"{write} does not tell {column}"
    return write.row[column]


def customer(message: Seen) -> Any:
    return message.value["customer"]


def page(message: Seen) -> Any:
    return message.value["page"]


RULES = {
    "shop.order_events": TopicRule(of_table("shop.orders"), folds=("shop.orders",), partition_by=customer),
    "shop.big_orders": TopicRule(
        lambda w: w.table == "shop.orders" and w.op != "delete" and Decimal(said(w, "amount")) > 50
    ),
    "shop.order_changes": TopicRule(of_table("shop.orders")),
    "shop.paid_and_gone": TopicRule(
        lambda w: w.table == "shop.orders" and w.op == "delete" and said(w, "status") == "paid"
    ),
    "shop.stock_events": TopicRule(of_table("shop.stock"), folds=("shop.stock",)),
    "shop.activity": TopicRule(of_table("shop.carts", "shop.prefs", "shop.clicks"), folds=("shop.prefs",)),
    "shop.prefs_set": TopicRule(
        lambda w: w.table == "shop.prefs" and w.op != "delete" and said(w, "value") is not None
    ),
    "shop.click_log": TopicRule(
        lambda w: w.table == "shop.clicks" and said(w, "page").startswith("/sale/"), partition_by=page
    ),
}


class Publisher:
    """Runs one statement after the other and writes down what it asked for and what it was told."""

    def __init__(self, db: tablecast.Database, number: int, seed: int) -> None:
        self.recorder = Recorder()
        self._db = db
        self._number = number
        self._user = f"user{number}"
        self._me = db.session(self._user)
        self._rng = random.Random(f"{seed} {number}")
        self._names = itertools.count()
        self._fresh = itertools.count(number * 1_000_000)
        self._orders: dict[int, Row] = {}
        self._items: set[str] = set()
        self._prefs: set[tuple[str, str]] = set()
        self._ways: list[Callable[[], None]] = [
            self.place_order, self.place_order, self.place_some_orders, self.change_order, self.change_order,
            self.put_order, self.keep_order, self.cancel_order, self.count_stock, self.count_stock,
            self.clear_stock, self.fill_cart, self.empty_cart, self.set_pref, self.unset_pref, self.click,
        ]  # fmt: skip

    def run(self, statements: int) -> None:
        for _ in range(statements):
            self._rng.choice(self._ways)()

    # --- shop.orders ---

    def place_order(self) -> None:
        row = self._order(next(self._fresh))
        self._write("INSERT INTO shop.orders VALUES (?, ?, ?, ?, ?)", list(row.values()), ("insert", row))

    def place_some_orders(self) -> None:
        rows = [self._order(next(self._fresh)) for _ in range(self._rng.randint(2, 4))]
        sql = "INSERT INTO shop.orders VALUES " + ", ".join(["(?, ?, ?, ?, ?)"] * len(rows))
        self._write(sql, [v for row in rows for v in row.values()], *(("insert", row) for row in rows))

    def change_order(self) -> None:
        if not self._orders:
            return self.place_order()
        before = self._some_order()
        row = {**before, "amount": self._amount(), "status": self._status(), "w": self._name()}
        sql = "UPDATE shop.orders SET amount = ?, status = ?, w = ? WHERE id = ?"
        return self._write(sql, (row["amount"], row["status"], row["w"], row["id"]), ("update", row))

    def put_order(self) -> None:
        """An upsert by a thread that knows whether the row is there."""
        exists = bool(self._orders) and self._rng.random() < 0.5
        row = self._order(self._some_order()["id"] if exists else next(self._fresh))
        sql = (
            "INSERT INTO shop.orders VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "customer = excluded.customer, amount = excluded.amount, status = excluded.status, w = excluded.w"
        )
        self._write(sql, list(row.values()), ("update" if exists else "insert", row))

    def keep_order(self) -> None:
        """A conflict that does nothing must say nothing."""
        if not self._orders:
            return self.place_order()
        row = self._order(self._some_order()["id"])
        self.recorder.invoke(row["w"], "shop.orders", "insert", [row["id"]], row)
        sql = "INSERT INTO shop.orders VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
        assert self._db.execute(sql, list(row.values())).row_count == 0
        return self.recorder.ok(row["w"], seq=None)

    def cancel_order(self) -> None:
        if not self._orders:
            return self.place_order()
        row = self._orders.pop(self._some_order()["id"])
        name = self._name()
        self.recorder.invoke(name, "shop.orders", "delete", [row["id"]], row)
        result = self._db.execute("DELETE FROM shop.orders WHERE id = ?", (row["id"],))
        assert result.row_count == 1
        return self.recorder.ok(name, seq=result.seq)

    def _order(self, order: int) -> Row:
        names = ("ann", "bob", "cy", "dee", "eve")
        return {
            "id": order, "customer": self._rng.choice(names), "amount": self._amount(), "status": self._status(),
            "w": self._name(),
        }  # fmt: skip

    def _some_order(self) -> Row:
        return self._orders[self._rng.choice(list(self._orders)[-20:])]

    def _amount(self) -> Decimal:
        return Decimal(self._rng.randrange(10_000)).scaleb(-2)

    def _status(self) -> str:
        return self._rng.choice(("new", "paid"))

    def _write(self, sql: str, params: Sequence[Any], *changes: tuple[str, Row]) -> None:
        statement = changes[0][1]["w"]
        for op, row in changes:
            self.recorder.invoke(row["w"], "shop.orders", op, [row["id"]], row, txn_id=statement)
        result = self._db.execute(sql, params)
        assert result.row_count == len(changes)
        self.recorder.ok(*(row["w"] for _, row in changes), seq=result.seq)
        self._orders |= {row["id"]: row for _, row in changes}

    # --- the other tables ---

    def count_stock(self) -> None:
        row: Row = {"sku": f"sku{self._rng.randrange(6)}", "on_hand": self._rng.randrange(100), "w": self._name()}
        self.recorder.invoke(row["w"], "shop.stock", "upsert", [row["sku"]], row)
        sql = (
            "INSERT INTO shop.stock VALUES (?, ?, ?) "
            "ON CONFLICT (sku) DO UPDATE SET on_hand = excluded.on_hand, w = excluded.w"
        )
        self._told(row["w"], self._db.execute(sql, list(row.values())))

    def clear_stock(self) -> None:
        """The row may be gone already: somebody else's delete, and then nothing happens."""
        sku, name = f"sku{self._rng.randrange(6)}", self._name()
        self.recorder.invoke(name, "shop.stock", "delete", [sku])
        self._told(name, self._db.execute("DELETE FROM shop.stock WHERE sku = ?", (sku,)))

    def fill_cart(self) -> None:
        row: Row = {"item": f"item{self._rng.randrange(8)}", "quantity": self._rng.randrange(9), "w": self._name()}
        op = "update" if row["item"] in self._items else "insert"
        self.recorder.invoke(row["w"], "shop.carts", op, [row["item"]], row, user_id=self._user)
        sql = (
            "INSERT INTO shop.carts VALUES (?, ?, ?) "
            "ON CONFLICT (item) DO UPDATE SET quantity = excluded.quantity, w = excluded.w"
        )
        self._told(row["w"], self._me.execute(sql, list(row.values())))
        self._items.add(row["item"])

    def empty_cart(self) -> None:
        """Every item in one statement."""
        names = {item: self._name() for item in sorted(self._items)}
        for item, name in names.items():
            self.recorder.invoke(name, "shop.carts", "delete", [item], txn_id=f"e{name}", user_id=self._user)
        result = self._me.execute("DELETE FROM shop.carts")
        assert result.row_count == len(names)
        if names:
            self.recorder.ok(*names.values(), seq=result.seq)
        self._items.clear()

    def set_pref(self) -> None:
        area, name = self._rng.choice("abc"), self._rng.choice("xyz")
        row: Row = {"area": area, "name": name, "value": self._rng.choice((None, "on", "off")), "w": self._name()}
        op = "update" if (area, name) in self._prefs else "insert"
        self.recorder.invoke(row["w"], "shop.prefs", op, [area, name], row, user_id=self._user)
        sql = (
            "INSERT INTO shop.prefs VALUES (?, ?, ?, ?) "
            "ON CONFLICT (area, name) DO UPDATE SET value = excluded.value, w = excluded.w"
        )
        self._told(row["w"], self._me.execute(sql, list(row.values())))
        self._prefs.add((area, name))

    def unset_pref(self) -> None:
        key, w = (self._rng.choice("abc"), self._rng.choice("xyz")), self._name()
        self.recorder.invoke(w, "shop.prefs", "delete", key, user_id=self._user)
        result = self._me.execute("DELETE FROM shop.prefs WHERE area = ? AND name = ?", key)
        assert result.row_count == (key in self._prefs)
        self._told(w, result)
        self._prefs.discard(key)

    def click(self) -> None:
        where = self._rng.choice(("home", "sale"))
        row: Row = {"id": next(self._fresh), "page": f"/{where}/{self._rng.randrange(4)}", "w": self._name()}
        self.recorder.invoke(row["w"], "shop.clicks", "insert", [row["id"]], row, user_id=self._user)
        self._told(row["w"], self._me.execute("INSERT INTO shop.clicks VALUES (?, ?, ?)", list(row.values())))

    def _told(self, name: str, result: tablecast.Result) -> None:
        self.recorder.ok(name, seq=result.seq if result.row_count else None)

    def _name(self) -> str:
        return f"{self._number}-{next(self._names)}"


class Member:
    """One of the consumers that compete for a topic."""

    def __init__(self, db: tablecast.Database, topic: str, number: int) -> None:
        self.recorder = Recorder()
        self._db = db
        self._topic = topic
        self._name = f"{topic}-{number}"

    def run(self, published: threading.Event) -> None:
        """Until nothing is left after the last write."""
        while True:
            was_over = published.is_set()
            messages = self._take()
            if was_over and not messages:
                return

    def _take(self) -> list[Message]:
        asked = self.recorder.now()
        messages = self._db.consume(
            self._topic, group=GROUP, consumer=self._name, limit=200, timeout_seconds=0.1, visibility_seconds=3600
        ).messages
        if messages:
            self.recorder.delivered(GROUP, self._name, self._topic, messages, asked=asked)
        for partition, of_partition in itertools.groupby(messages, key=lambda message: message.partition_id):
            offsets = [message.offset for message in of_partition]
            self._db.ack(self._topic, GROUP, offsets[-1], partition=partition, consumer=self._name)
            self.recorder.acked(GROUP, self._topic, partition, offsets=offsets)
        return messages


class Crew:
    """Threads that run together; the first error of any of them is raised at the end."""

    def __init__(self) -> None:
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *args: Any) -> None:
        def run() -> None:
            try:
                work(*args)
            except BaseException as error:
                self._errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


def publish_and_consume(db: tablecast.Database, statements: int, seed: int) -> list[Recorder]:
    publishers = [Publisher(db, number, seed) for number in range(WRITERS)]
    members = [Member(db, topic, number) for topic in RULES for number in range(CONSUMERS)]
    writing, reading, published = Crew(), Crew(), threading.Event()
    for member in members:
        reading.start(member.run, published)
    for publisher in publishers:
        writing.start(publisher.run, statements)
    try:
        writing.join()
    finally:
        published.set()
        reading.join()
    return [*(publisher.recorder for publisher in publishers), *(member.recorder for member in members)]


def observe(db: tablecast.Database) -> Recorder:
    recorder = Recorder()
    for table, key in {"shop.orders": ["id"], "shop.stock": ["sku"]}.items():
        recorder.saw_table(table, db.query(f"SELECT *, _seq FROM {table}").dicts(), key)
    personal = {"shop.carts": ["item"], "shop.prefs": ["area", "name"], "shop.clicks": ["id"]}
    for user, (table, key) in itertools.product([f"user{n}" for n in range(WRITERS)], personal.items()):
        rows = db.session(user).query(f"SELECT *, _seq FROM {table}").dicts()
        recorder.saw_table(table, rows, key, user_id=user)
    for topic in RULES:
        recorder.saw_topic(topic, whole_topic(db, topic))
    return recorder


def whole_topic(db: tablecast.Database, topic: str) -> Iterator[Message]:
    for partition in range(db.topic(topic).partitions):
        start, has_more = EARLIEST, True
        while has_more:
            found = db.consume(topic, start=start, partition=partition, limit=10_000)
            yield from found.messages
            has_more, start = found.has_more, Start(StartKind.OFFSET, found.next_offset or 0)


def prove(db: tablecast.Database, statements: int, seed: int) -> None:
    db.execute(SCHEMA)
    recorders = [*publish_and_consume(db, statements, seed), observe(db)]
    history = History(itertools.chain.from_iterable(recorder.history().events for recorder in recorders))
    report = check(history, routes=RULES)
    report.raise_if_bad()
    assert report.writes.acknowledged >= WRITERS * statements * 0.9
    assert report.writes.refused == report.writes.unknown == 0
    for figures in report.topics.values():
        assert figures.expected > 0
        assert figures.coverage_percent == 100.0
        assert figures.duplication == 1
        assert figures.messages == figures.expected
        assert figures.gaps == 0
    assert len(report.groups) == len(RULES)
    for group in report.groups:
        assert group.deliveries == group.unique == group.acked == report.topics[group.topic].messages
    lags = db.query("SELECT topic, sum(lag) FROM system.topic_groups GROUP BY topic ORDER BY topic").rows
    assert lags == [(topic, 0) for topic in sorted(RULES)]
    verified = verify_engine(db.engine)
    assert verified.problems == []
    assert verified.messages == sum(figures.messages for figures in report.topics.values())


class Requests(Nobody):
    """How many commands the writer was asked for."""

    count = 0

    def committed(self, report: CommitReport) -> None:
        self.count += report.commands


def test_there_are_ten_sources_on_five_tables() -> None:
    assert SOURCES == 10
    assert SCHEMA.count("TABLE shop.") == 5


def test_every_write_is_on_its_topics_in_memory() -> None:
    with tablecast.open(":memory:") as db:
        prove(db, statements=20, seed=1)


def test_every_write_is_on_its_topics_on_disk(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "db") as db:
        requests = Requests()
        db.engine.observe(requests)
        prove(db, statements=20, seed=2)
        assert requests.count >= WRITERS * 20
        assert db.engine.commits < 0.8 * requests.count  # group commit at work, not one commit per request
    with tablecast.open(tmp_path / "db") as db:
        assert verify_engine(db.engine).problems == []


@pytest.mark.slow
def test_twelve_thousand_statements_on_disk(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "db") as db:
        prove(db, statements=500, seed=3)
