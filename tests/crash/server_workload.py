"""What works on a server while it is killed: publishers and consumers of the SDK, and what must be true afterwards.

Every publisher is an account of its own with a client of its own, and owns the orders from `number * OWNED` on, so it
always knows which of them exist; `shop.stock` belongs to everybody. Every write carries its own name in column `w`.
Nothing here handles an outage: that is the SDK's work, with retries and idempotency keys, and each write is
acknowledged in the end.

    shop.orders ──> shop.order_events   full, 4 partitions by customer; read by the group, folds to the table
                ──> shop.big_orders     keys of inserts and updates with amount > 500
    shop.stock  ──> shop.stock_events   full, 2 partitions; folds to the table
    shop.notes  ──> shop.note_events    diff; a USER table
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tablecast import AsyncClient, Consumed, Message, Result, Retry
from tablecast.client.consumer_async import AsyncConsumer
from tablecast.testing.history import Recorder, Seen, TopicRule, Write

PUBLISHERS = 24
CONSUMERS = 4
OWNED = 1_000_000
SKUS = 6
GROUP = "billing"
ORDERS, STOCK, NOTES = "shop.orders", "shop.stock", "shop.notes"
EVENTS, BIG, STOCK_EVENTS, NOTE_EVENTS = "shop.order_events", "shop.big_orders", "shop.stock_events", "shop.note_events"

SCHEMA = f"""
CREATE NAMESPACE shop;
CREATE TABLE {ORDERS} (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount INT NOT NULL, w TEXT NOT NULL);
CREATE TABLE {STOCK} (sku TEXT PRIMARY KEY, on_hand INT NOT NULL, w TEXT NOT NULL);
CREATE USER TABLE {NOTES} (name TEXT PRIMARY KEY, w TEXT NOT NULL);
CREATE TOPIC {EVENTS} PARTITIONS 4;
CREATE TOPIC {BIG};
CREATE TOPIC {STOCK_EVENTS} PARTITIONS 2;
CREATE TOPIC {NOTE_EVENTS} PARTITIONS 2;
ALTER TOPIC {EVENTS} ADD SOURCE {ORDERS} ON ANY PARTITION BY customer WITH (payload = 'full');
ALTER TOPIC {BIG} ADD SOURCE {ORDERS} ON INSERT, UPDATE WHERE amount > 500 WITH (payload = 'key');
ALTER TOPIC {STOCK_EVENTS} ADD SOURCE {STOCK} ON ANY WITH (payload = 'full');
ALTER TOPIC {NOTE_EVENTS} ADD SOURCE {NOTES} ON ANY WITH (payload = 'diff');
"""
PRIMARY_KEYS = {ORDERS: ["id"], STOCK: ["sku"], NOTES: ["name"]}
UPSERT_STOCK = (
    f"INSERT INTO {STOCK} VALUES (?, ?, ?) ON CONFLICT (sku) DO UPDATE SET on_hand = excluded.on_hand, w = excluded.w"
)
UPSERT_NOTE = f"INSERT INTO {NOTES} VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET w = excluded.w"

Row = dict[str, Any]


def account(number: int) -> str:
    return f"publisher{number}"


def _customer(message: Seen) -> Any:
    return message.value["customer"]


def _is_big(write: Write) -> bool:
    return write.table == ORDERS and write.op != "delete" and (write.row or {})["amount"] > 500


RULES = {
    EVENTS: TopicRule(lambda write: write.table == ORDERS, folds=(ORDERS,), partition_by=_customer),
    BIG: TopicRule(_is_big),
    STOCK_EVENTS: TopicRule(lambda write: write.table == STOCK, folds=(STOCK,)),
    NOTE_EVENTS: TopicRule(lambda write: write.table == NOTES),
}


@dataclass(frozen=True)
class CountedRetry(Retry):
    """Patient enough for any restart; `waits` has every repetition that was needed."""

    attempts: int = 100_000
    backoff_seconds: float = 0.02
    max_backoff_seconds: float = 0.25
    total_seconds: float = 300.0
    waits: list[float] = field(default_factory=list)

    def backoffs(self) -> Iterator[float]:
        for wait in super().backoffs():
            self.waits.append(wait)
            yield wait


class Progress:
    """Counts acknowledged requests, and wakes who waits for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self._aim, self._reached = 0, asyncio.Event()

    def step(self) -> None:
        self.count += 1
        if self.count >= self._aim:
            self._reached.set()

    async def further(self, steps: int) -> None:
        self._aim = self.count + steps
        self._reached.clear()
        await self._reached.wait()


class Publisher:
    """Sends one write after the other, each in a random one of its `ways`, and records what it was told."""

    def __init__(self, client: AsyncClient, number: int, seed: int, progress: Progress) -> None:
        self.recorder = Recorder()
        self._client = client
        self._number = number
        self._progress = progress
        self._rng = random.Random(f"publisher {seed} {number}")
        self._names = itertools.count()
        self._fresh = itertools.count(number * OWNED)
        self._orders: dict[int, Row] = {}
        self._ways: list[Callable[[], Awaitable[None]]] = [
            self.insert_row, self.insert_sql, self.insert_values, self.insert_rows, self.insert_arrow, self.upsert_rows,
            self.update_one, self.update_two, self.delete_one, self.exchange, self.count_stock, self.note,
        ]  # fmt: skip

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            if len(self._orders) < 3:
                await self.insert_values()
            await self._rng.choice(self._ways)()

    # --- orders that are new ---

    async def insert_row(self) -> None:
        row = self._new()
        await self._insert([row], lambda: self._client.insert(ORDERS, [row]))

    async def insert_sql(self) -> None:
        row = self._new()
        await self._insert(
            [row], lambda: self._client.execute(f"INSERT INTO {ORDERS} VALUES (?, ?, ?, ?)", list(row.values()))
        )

    async def insert_values(self) -> None:
        rows = self._some_new()
        sql = f"INSERT INTO {ORDERS} VALUES " + ", ".join(["(?, ?, ?, ?)"] * len(rows))
        await self._insert(rows, lambda: self._client.execute(sql, [value for row in rows for value in row.values()]))

    async def insert_rows(self) -> None:
        rows = self._some_new()
        await self._insert(rows, lambda: self._client.insert(ORDERS, rows))

    async def insert_arrow(self) -> None:
        rows = self._some_new()
        table = pa.Table.from_pylist(rows)
        await self._insert(rows, lambda: self._client.insert(ORDERS, table))

    async def _insert(self, rows: list[Row], send: Callable[[], Awaitable[Result]]) -> None:
        await self._write([("insert", row) for row in rows], send)

    # --- orders that are there ---

    async def upsert_rows(self) -> None:
        known = [self._order(order) for order in self._some(2)]
        fresh = self._some_new()
        changes = [("update", row) for row in known] + [("insert", row) for row in fresh]
        await self._write(changes, lambda: self._client.insert(ORDERS, [*known, *fresh], mode="upsert"))

    async def update_one(self) -> None:
        (order,) = self._some(1)
        row = {**self._orders[order], "amount": self._amount(), "w": self._name()}
        sql = f"UPDATE {ORDERS} SET amount = ?, w = ? WHERE id = ?"
        await self._write([("update", row)], lambda: self._client.execute(sql, [row["amount"], row["w"], row["id"]]))

    async def update_two(self) -> None:
        """One statement, and what it sets depends on what was there: a second time it would show."""
        name, orders = self._name(), self._some(2)
        rows = [{**self._orders[order], "amount": self._orders[order]["amount"] + 1, "w": name} for order in orders]
        sql = f"UPDATE {ORDERS} SET amount = amount + 1, w = ? WHERE id IN (?, ?)"
        await self._write([("update", row) for row in rows], lambda: self._client.execute(sql, [name, *orders]))

    async def delete_one(self) -> None:
        (order,), name = self._some(1), self._name()
        self.recorder.invoke(name, ORDERS, "delete", [order], self._orders.pop(order))
        result = await self._client.execute(f"DELETE FROM {ORDERS} WHERE id = ?", [order])
        self._done([name], result, 1)

    async def exchange(self) -> None:
        """Two statements under one key are one transaction: one order goes when the other comes."""
        new, (old,) = self._new(), self._some(1)
        changed = {**self._orders[old], "amount": 0, "w": self._name()}
        sql = f"INSERT INTO {ORDERS} VALUES (?, ?, ?, ?); UPDATE {ORDERS} SET amount = 0, w = ? WHERE id = ?"
        params = [*new.values(), changed["w"], old]
        key = f"exchange {self._number} {new['w']}"
        changes = [("insert", new), ("update", changed)]
        await self._write(changes, lambda: self._client.execute(sql, params, idempotency_key=key), counted=1)

    async def _write(
        self, changes: Sequence[tuple[str, Row]], send: Callable[[], Awaitable[Result]], *, counted: int | None = None
    ) -> None:
        """`counted`: the rows that the answer speaks of, those of the last statement."""
        names = [f"{row['w']}.{row['id']}" for _, row in changes]
        for name, (op, row) in zip(names, changes, strict=True):
            self.recorder.invoke(name, ORDERS, op, [row["id"]], row, txn_id=names[0])
        result = await send()
        self._orders |= {row["id"]: row for _, row in changes}
        self._done(names, result, len(changes) if counted is None else counted)

    # --- the other tables ---

    async def count_stock(self) -> None:
        row: Row = {"sku": f"sku{self._rng.randrange(SKUS)}", "on_hand": self._amount(), "w": self._name()}
        self.recorder.invoke(row["w"], STOCK, "upsert", [row["sku"]], row)
        self._done([row["w"]], await self._client.execute(UPSERT_STOCK, list(row.values())), 1)

    async def note(self) -> None:
        row = {"name": f"note{self._rng.randrange(5)}", "w": self._name()}
        self.recorder.invoke(row["w"], NOTES, "upsert", [row["name"]], row, user_id=account(self._number))
        self._done([row["w"]], await self._client.execute(UPSERT_NOTE, list(row.values())), 1)

    # --- values ---

    def _done(self, names: Sequence[str], result: Result, rows: int) -> None:
        if result.row_count != rows:
            raise AssertionError(f"{names}: {rows} rows were to be written, the answer is {result}")
        self.recorder.ok(*names, seq=result.seq)
        self._progress.step()

    def _name(self) -> str:
        return f"{self._number}-{next(self._names)}"

    def _amount(self) -> int:
        return self._rng.randrange(1000)

    def _new(self) -> Row:
        return self._order(next(self._fresh))

    def _some_new(self) -> list[Row]:
        return [self._new() for _ in range(self._rng.randint(2, 5))]

    def _some(self, count: int) -> list[int]:
        return self._rng.sample(list(self._orders), count)

    def _order(self, order: int) -> Row:
        customer = self._rng.choice(("ann", "bob", "cy", "dee", "eve"))
        return {"id": order, "customer": customer, "amount": self._amount(), "w": self._name()}


class Observed:
    """A client that records what a consumer gets and acknowledges through it."""

    def __init__(self, client: AsyncClient, recorder: Recorder, name: str) -> None:
        self._client = client
        self._recorder = recorder
        self._name = name
        self.nack, self.extend, self.release = client.nack, client.extend, client.release

    async def consume(self, topic: str, **request: Any) -> Consumed:
        asked = self._recorder.now()
        found = await self._client.consume(topic, **request)
        for partition, start, end in () if request["ack"] is None else request["ack"].given:
            self._recorder.acked(GROUP, topic, partition, offsets=range(start, end))
        if found.messages:
            self._recorder.delivered(GROUP, self._name, topic, found.messages, asked=asked)
        return found

    async def ack(self, topic: str, group: str, upto_offset: int | None = None, **settled: Any) -> int:
        acknowledged = await self._client.ack(topic, group, upto_offset, **settled)
        self._recorder.acked(group, topic, settled["partition"], upto=upto_offset, offsets=settled["offsets"])
        return acknowledged


class Member:
    """One of the group's consumers, and what its handler got."""

    def __init__(self, client: AsyncClient, number: int) -> None:
        self.recorder = Recorder()
        self.handled: Counter[tuple[int, int]] = Counter()
        name = f"member{number}"
        self._consumer = AsyncConsumer(Observed(client, self.recorder, name), EVENTS, GROUP, name=name, batch=50)

    async def run(self) -> None:
        await self._consumer.run(self._handle, concurrency=4)

    def stop(self) -> None:
        self._consumer.stop()

    def _handle(self, message: Message) -> None:
        self.handled[message.partition_id, message.offset] += 1
