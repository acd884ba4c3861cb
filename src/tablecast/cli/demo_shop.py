"""The shop of the demo: orders that 24 publishers write over HTTP, a live query that follows them, a group that reads
their messages."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tablecast.client.bulk_server import Server
from tablecast.client.live_sync import LiveChanges
from tablecast.client.sync import Client, connect
from tablecast.errors import TablecastError
from tablecast.model.change import Op
from tablecast.model.live import LiveChange, Values
from tablecast.model.message import Message

PUBLISHERS = 24
CUSTOMERS = 8
SHOW_SECONDS = 0.5  # between two pictures of what has arrived
TRICKLE_SECONDS = 0.25  # between two orders once the counting is over
TRICKLE_BATCH = 20  # orders, and the group comes by
LOOK_SECONDS = 0.2  # between two looks at what is waited for
PATIENCE_SECONDS = 180.0  # for whoever reads to catch up with what was written: a first batch of Spark takes seconds
TOPIC = "shop.order_events"
GROUP = "billing"
SETUP = f"""
CREATE NAMESPACE shop;
CREATE TABLE shop.orders (
  id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), customer TEXT NOT NULL, amount DECIMAL(12,2) NOT NULL,
  created_at TIMESTAMP DEFAULT NOW());
CREATE TOPIC {TOPIC} PARTITIONS 4;
ALTER TOPIC {TOPIC} ADD SOURCE shop.orders ON ANY WITH (payload = 'full');
CREATE TABLE shop.revenue (customer TEXT PRIMARY KEY, orders BIGINT, amount DECIMAL(18,2), newest TIMESTAMP);
CREATE TOPIC shop.revenue_events;
ALTER TOPIC shop.revenue_events ADD SOURCE shop.revenue ON ANY WITH (payload = 'full')
"""
LIVE = "SELECT customer, amount FROM shop.orders"


@dataclass(frozen=True, slots=True)
class Found:
    """What one reader found of the orders."""

    reader: str
    orders: int
    distinct: int


def signed_in(server: Server) -> Client:
    return connect(server.url, user=server.user, password=server.password)


def patiently_until(is_reached: Callable[[], bool]) -> bool:
    """Asks again and again; False if it took too long."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_reached():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_SECONDS)
    return True


# --- writing --------------------------------------------------------------------------------------------------------


class Publisher(threading.Thread):
    """Inserts orders through its own client until the time is over."""

    def __init__(self, server: Server, number: int, seconds: float) -> None:
        super().__init__()
        self._server, self._number, self._seconds = server, number, seconds
        self.latencies: list[float] = []

    def run(self) -> None:
        with signed_in(self._server) as client:
            until = time.perf_counter() + self._seconds
            while (began := time.perf_counter()) < until:
                i = len(self.latencies)
                insert_order(client, f"customer {(self._number + i) % CUSTOMERS}", f"{i % 90 + 10}.50")
                self.latencies.append(time.perf_counter() - began)


def insert_order(client: Client, customer: str, amount: str) -> None:
    client.insert("shop.orders", [{"customer": customer, "amount": amount}])


@dataclass(frozen=True, slots=True)
class Published:
    latencies: list[float]  # sorted
    seconds: float


def publish(server: Server, following: Following, console: Console, seconds: float) -> Published:
    publishers = [Publisher(server, number, seconds) for number in range(PUBLISHERS)]
    began = time.perf_counter()
    for publisher in publishers:
        publisher.start()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while any(publisher.is_alive() for publisher in publishers):
            live.update(following.shown(), refresh=True)
            publishers[0].join(SHOW_SECONDS)
    for publisher in publishers:
        publisher.join()
    took = time.perf_counter() - began
    return Published(sorted(latency for publisher in publishers for latency in publisher.latencies), took)


class Trickle(threading.Thread):
    """An order now and then and a group that comes by, for whoever looks at the server afterwards: its plots move."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._is_over = threading.Event()

    def run(self) -> None:
        try:
            with signed_in(self._server) as client:
                for number in itertools.count():
                    if self._is_over.wait(TRICKLE_SECONDS):
                        return
                    insert_order(client, f"customer {number % CUSTOMERS}", f"{number % 90 + 10}.50")
                    if number % TRICKLE_BATCH == 0:
                        consumed(client)
        except TablecastError:
            return  # the server has ended, which whoever waits for it says

    def stop(self) -> None:
        self._is_over.set()
        self.join()


# --- reading --------------------------------------------------------------------------------------------------------


class Following(threading.Thread):
    """Counts what a live query tells."""

    def __init__(self, changes: LiveChanges) -> None:
        super().__init__(daemon=True)
        self._changes = changes
        self._error: TablecastError | None = None
        self._forget()

    def run(self) -> None:
        try:
            for change in self._changes:
                self._take(change)
        except TablecastError as error:
            self._error = error  # for whoever waits

    def _forget(self) -> None:
        self._told: Counter[Values] = Counter()
        self._totals: dict[str, tuple[int, Decimal]] = {}

    def _take(self, change: LiveChange) -> None:
        if change.reset:
            self._forget()
        elif change.op is Op.INSERT and change.row is not None:
            customer, amount = change.row
            orders, total = self._totals.get(customer, (0, Decimal(0)))
            self._totals[customer] = orders + 1, total + amount
            self._told[change.key] += 1

    def has_all(self, orders: int) -> bool:
        if self._error is not None:
            raise self._error
        return self.found.distinct >= orders

    @property
    def found(self) -> Found:
        told = self._told.copy()
        return Found("live query", told.total(), len(told))

    def shown(self) -> Table:
        return by_customer("Orders, as a live query tells them", [(c, *t) for c, t in self._totals.copy().items()])


def consumed(client: Client) -> Found:
    """The topic, worked through by a group: every message acknowledged."""
    seen: Counter[str] = Counter()

    def take(message: Message) -> None:
        seen[message.value["id"]] += 1

    client.consumer(TOPIC, GROUP, batch=1_000).run(take, until_idle=True)
    return Found(f"group {GROUP!r}", seen.total(), len(seen))


def by_customer(title: str, rows: list[tuple[str, int, Decimal]]) -> Table:
    table = Table(title=title, box=box.SIMPLE)
    for heading in ("customer", "orders", "amount"):
        table.add_column(heading, justify="left" if heading == "customer" else "right")
    for customer, orders, amount in sorted(rows):
        table.add_row(customer, f"{orders:,}", f"{amount:,}")
    return table
