"""Who reads along: a group of four, 200 live subscribers, a peer over MQTT, and a stream on Spark into a table."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import tablecast
from bench.server.ours import PASSWORD, connect
from bench.soak.role import CUSTOMERS, SCHEMA, Board, Final, Sample, sampled, sampling
from bench.soak.tally import Tally, now_us
from tablecast import EARLIEST, AsyncClient
from tablecast.model.message import Message
from tablecast.model.position import Start, StartKind

CONSUMERS = 4
WHOLE = 2  # live subscribers of the whole table, besides one for each customer: 200 together
LIMIT = 1000
WAIT_SECONDS = 2.0  # of a consume; also how soon a reader notices that it is over
TRIGGER_SECONDS = 5  # between micro-batches: a pipeline's, not a screen's
EVERYTHING = "SELECT id, sent_us FROM soak.orders"


class _Sent(msgspec.Struct):
    id: int
    sent_us: int


_decode = msgspec.json.Decoder(_Sent, strict=False).decode  # BIGINTs are strings in payloads


def take_all(tally: Tally, messages: Sequence[Message]) -> None:
    now = now_us()
    for message in messages:
        row = _decode(message.payload)
        tally.take(row.id, row.sent_us, now)


# --- a group of four, and whoever looks at what Spark wrote -----------------------------------------------------------


def groups(port: int, board: Board) -> None:
    async def run() -> None:
        group, copies = Tally(), Tally()
        async with await connect(port) as client, asyncio.TaskGroup() as tasks:
            for number in range(CONSUMERS):
                tasks.create_task(_consume(client, f"consumer {number}", group, board))
            tasks.create_task(_follow(client, copies, board))
            await sampling(
                board,
                lambda: [_sample("group", group), _sample("spark", copies)],
                lambda total: [Final("group", group.coverage(total)), Final("spark", copies.coverage(total))],
            )

    asyncio.run(run())


async def _consume(client: AsyncClient, name: str, tally: Tally, board: Board) -> None:
    while not board.over.is_set():
        found = await client.consume(
            "soak.events", group="billing", consumer=name, start=EARLIEST, limit=LIMIT, timeout_seconds=WAIT_SECONDS
        )
        take_all(tally, found.messages)
        last = {message.partition_id: message.offset for message in found.messages}
        for partition, offset in last.items():
            await client.ack("soak.events", "billing", offset, partition=partition, consumer=name)


async def _follow(client: AsyncClient, tally: Tally, board: Board) -> None:
    """Without a group: the topic of the table that Spark writes, from its beginning."""
    at = EARLIEST
    while not board.over.is_set():
        found = await client.consume("soak.copies", partition=0, start=at, limit=LIMIT, timeout_seconds=WAIT_SECONDS)
        take_all(tally, found.messages)
        if found.messages:
            at = Start(StartKind.OFFSET, found.messages[-1].offset + 1)


def _sample(role: str, tally: Tally) -> Sample:
    return Sample(role, tally.distinct, tally.latencies())


# --- 200 live subscribers ---------------------------------------------------------------------------------------------


def live(port: int, board: Board, ready: Any) -> None:
    """A connection each. Those of one customer share a tally: together they see every row once."""

    async def run() -> None:
        by_customer, whole = Tally(), [Tally() for _ in range(WHOLE)]
        up = asyncio.Semaphore(0)

        def tell() -> list[Sample]:
            fewest = min([by_customer, *whole], key=lambda tally: tally.distinct)
            together: dict[int, int] = {}
            for tally in (by_customer, *whole):
                for bucket, count in tally.latencies().items():
                    together[bucket] = together.get(bucket, 0) + count
            return [Sample("live", fewest.distinct, together)]

        def tell_last(total: int) -> list[Final]:
            all_of_it = sum((tally.coverage(total) for tally in whole), by_customer.coverage(total))
            return [Final("live", all_of_it)]

        subscribers = [
            asyncio.create_task(_subscribe(port, f"{EVERYTHING} WHERE customer = ?", [number], by_customer, up))
            for number in range(CUSTOMERS)
        ]
        subscribers += [asyncio.create_task(_subscribe(port, EVERYTHING, [], tally, up)) for tally in whole]
        for _ in subscribers:
            await up.acquire()
        ready.set()
        telling = asyncio.create_task(sampling(board, tell, tell_last))
        ended, _ = await asyncio.wait([telling, *subscribers], return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # a subscriber ends only with an error
        for task in subscribers:
            task.cancel()
        await asyncio.gather(*subscribers, return_exceptions=True)

    asyncio.run(run())


async def _subscribe(port: int, sql: str, params: list[Any], tally: Tally, up: asyncio.Semaphore) -> None:
    async with await connect(port) as client, client.live(sql, params) as changes:
        up.release()
        async for change in changes:
            assert not change.reset, "a live reader had to begin again"
            assert change.row is not None
            tally.take(change.row[0], change.row[1], now_us())


# --- a peer over MQTT -------------------------------------------------------------------------------------------------


def peer(path: str, broker: int, board: Board, ready: Any) -> None:
    """A database of its own that replicates the table; a topic of it tells what came, and when."""
    with tablecast.open(Path(path)) as db:
        db.execute_all(SCHEMA)
        db.execute_all("CREATE TOPIC soak.came; ALTER TOPIC soak.came ADD SOURCE soak.orders ON ANY")
        db.replicate(f"mqtt://127.0.0.1:{broker}", node_id="peer", prefix="soak")
        for status in db.replication.watch():
            if status.online:
                break
        ready.set()
        tally = Tally()
        reading = threading.Thread(target=_read_along, args=(db, tally, board))
        reading.start()
        sampled(board, lambda: [_sample("mqtt", tally)], lambda total: [Final("mqtt", tally.coverage(total))])
        reading.join()


def _read_along(db: tablecast.Database, tally: Tally, board: Board) -> None:
    at = EARLIEST
    while not board.over.is_set():
        found = db.consume("soak.came", partition=0, start=at, limit=LIMIT, timeout_seconds=WAIT_SECONDS)
        take_all(tally, found.messages)
        if found.messages:
            at = Start(StartKind.OFFSET, found.messages[-1].offset + 1)


# --- a stream on Spark ------------------------------------------------------------------------------------------------


def spark(port: int, checkpoint: str, board: Board, ready: Any) -> None:
    """Topic → table, exactly once. What arrives is read from the target's own topic, by `groups`."""
    import tablecast.spark

    session = tablecast.spark.session("local[1]", app_name="tablecast soak")
    session.sparkContext.setLogLevel("ERROR")
    server = {"url": f"http://127.0.0.1:{port}", "user": "system", "password": PASSWORD}
    source = session.readStream.format("tablecast").options(**server, topic="soak.events", decode="true")
    rows = source.option("startingOffsets", "earliest").load().select("id", "sent_us")
    sink = rows.writeStream.format("tablecast").options(**server, table="soak.copied", checkpointLocation=checkpoint)
    query = sink.trigger(processingTime=f"{TRIGGER_SECONDS} seconds").start()
    ready.set()
    try:
        while not board.over.wait(1):
            if not query.isActive:
                raise RuntimeError(f"the stream ended: {query.exception()}")
    finally:
        query.stop()
        session.stop()


READERS: dict[str, str] = {
    "group": f"{CONSUMERS} consumers of one group, 4 partitions, with acks",
    "live": f"{CUSTOMERS + WHOLE} live subscribers: {CUSTOMERS} of a customer each, {WHOLE} of the whole table",
    "mqtt": "a database that replicates through mosquitto",
    "spark": f"a Spark stream into a table, a micro-batch every {TRIGGER_SECONDS} seconds",
}
