"""The SDK against a real server: the surface of the embedded database, its types, its errors."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from time import monotonic
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast import EARLIEST, AsyncClient, Client, Message, Op, Start, StartKind, connect, connect_async
from tablecast.client import tokens
from tablecast.errors import (
    Conflict,
    DatabaseClosed,
    DuplicateKey,
    IdempotencyMismatch,
    InvalidRequest,
    OffsetOutOfRange,
    PermissionDenied,
    SqlSyntaxError,
    TypeMismatch,
    Unauthenticated,
    UnknownTable,
    UnknownTopic,
)

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT, amount DECIMAL(12,2));
CREATE TOPIC app.events ALIAS 'orders' PARTITIONS 2;
ALTER TOPIC app.events ADD SOURCE app.orders ON ANY;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TOPIC app.work;
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
CREATE TABLE app.every (
  id INT PRIMARY KEY, b BOOLEAN, s SMALLINT, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(38,4), t TEXT, y BYTES, j JSON,
  ts TIMESTAMP, da DATE, ti TIME, u UUID
);
"""


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(SETUP)
        yield running


@pytest.fixture
def client(server: ServerThread) -> Iterator[Client]:
    with connect(server.url, user="system", password=PASSWORD) as connected:
        yield connected


def in_loop(server: ServerThread, test: Callable[[AsyncClient], Awaitable[None]], **settings: Any) -> None:
    async def life() -> None:
        async with await connect_async(server.url, user="system", password=PASSWORD, **settings) as client:
            await test(client)

    asyncio.run(asyncio.wait_for(life(), 120))


# --- types -------------------------------------------------------------------------------------------------------

ROW = (
    1, True, -7, 2**63 - 1, 0.5, 0.1, Decimal("1234567890123456789012345678901234.5678"), "naïve; 'quoted'", b"\x00\xff",
    {"a": [1, 2.5, None, {"b": "c"}], "n": -1}, datetime(2026, 1, 31, 12, 30, 15, 123456, UTC), date(1999, 12, 31),
    time(23, 59, 59, 999999), UUID("12345678-1234-5678-1234-567812345678"),
)  # fmt: skip
COLUMNS = ["id", "b", "s", "l", "f", "d", "n", "t", "y", "j", "ts", "da", "ti", "u"]


def exact(row: tuple[Any, ...]) -> list[tuple[type, str]]:
    return [(type(value), repr(value)) for value in row]


def test_every_type_survives_both_ways(client: Client) -> None:
    client.execute(f"INSERT INTO app.every VALUES ({', '.join('?' * len(ROW))})", ROW)
    client.insert("app.every", [(2, *ROW[1:])])
    client.insert("app.every", [dict(zip(COLUMNS, (3, *ROW[1:]), strict=True))])
    client.insert(
        "app.every", client.query("SELECT * FROM app.every WHERE id = 1").arrow().set_column(0, "id", pa.array([4]))
    )
    for found in client.query("SELECT * FROM app.every ORDER BY id"):
        assert exact(found[1:]) == exact(ROW[1:])
    (back,) = client.execute("UPDATE app.every SET s = 5 WHERE id = 1 RETURNING *").rows
    assert exact(back[3:]) == exact(ROW[3:])


def test_nothing_is_something_too(client: Client) -> None:
    client.execute(f"INSERT INTO app.every VALUES ({', '.join('?' * len(ROW))})", [1] + [None] * (len(ROW) - 1))
    (row,) = client.query("SELECT * FROM app.every").rows
    assert row == (1, *[None] * (len(ROW) - 1))


@pytest.mark.parametrize("place", range(1, len(ROW)), ids=COLUMNS[1:])
def test_a_parameter_has_its_type_in_an_expression(client: Client, place: int) -> None:
    """Compared as what it is, not as text."""
    client.insert("app.every", [ROW])
    if COLUMNS[place] != "j":
        found = client.query(f"SELECT id FROM app.every WHERE {COLUMNS[place]} = ?", [ROW[place]])
        assert found.rows == [(1,)]


def test_a_zone_is_converted_and_a_big_integer_kept(client: Client) -> None:
    there = datetime(2026, 1, 31, 14, 30, tzinfo=timezone(timedelta(hours=2)))
    client.insert("app.every", [{"id": 1, "ts": there, "n": 10**33}, {"id": 2, "ts": datetime(2026, 1, 31, 12, 30)}])
    stamps = client.query("SELECT ts FROM app.every ORDER BY id").rows
    assert stamps == [(datetime(2026, 1, 31, 12, 30, tzinfo=UTC),)] * 2
    assert client.query("SELECT n FROM app.every WHERE id = 1").scalar() == Decimal(10**33)


def test_a_result_is_what_the_embedded_database_gives(server: ServerThread, client: Client) -> None:
    db = server.db.database
    for number, sql in enumerate(
        [
            "INSERT INTO app.orders VALUES (1, 'ann', 2.5), (2, 'bob', NULL)",
            "UPDATE app.orders SET amount = 7 WHERE id = 2 RETURNING id, amount",
            "DELETE FROM app.orders WHERE id = 99",
            "SELECT id, customer, amount FROM app.orders ORDER BY id",
            "SELECT SUM(id) AS total FROM app.orders",
            "SELECT * FROM app.orders WHERE id = 99",
            "SHOW TABLES",
        ]
    ):
        if number:
            here, there = db.execute(sql), client.execute(sql)
            assert (there.rows, there.columns, there.schema) == (here.rows, here.columns, here.schema)
            assert (there.message, there.row_count, there.is_query) == (here.message, here.row_count, here.is_query)
            assert (there.seq is None) == (here.seq is None)
        else:
            db.execute(sql)


# --- writing -----------------------------------------------------------------------------------------------------


def test_rows_in_every_form_and_mode(client: Client) -> None:
    assert client.insert("app.orders", [{"id": 1, "customer": "ann"}]).message == "INSERT 1"
    client.insert("app.orders", [(2, "bob")], columns=["id", "customer"])
    client.insert("app.orders", pa.table({"id": [3, 4], "customer": ["cy", "dee"]}))
    client.insert("app.orders", [(5, "eve", 1)])
    assert client.insert("app.orders", [{"id": 1, "amount": 9}], mode="upsert").row_count == 1
    assert client.insert("app.orders", [(2,), (5,)], mode="delete").message == "DELETE 2"
    rows = client.query("SELECT * FROM app.orders ORDER BY id").rows
    assert rows == [(1, "ann", Decimal("9.00")), (3, "cy", None), (4, "dee", None)]
    with pytest.raises(InvalidRequest, match="mode"):
        client.insert("app.orders", [(2,)], mode="sideways")
    with pytest.raises(InvalidRequest, match="rows are"):
        client.insert("app.orders", {"id": 1})


def test_a_namespace_is_where_names_are_looked_up(server: ServerThread) -> None:
    with connect(server.url, user="system", password=PASSWORD, namespace="app") as client:
        client.execute("INSERT INTO orders VALUES (1, 'ann', 1)")
        client.insert("orders", [(2, "bob", 2)])
        client.insert("orders", pa.table({"id": [3]}))
        assert client.query("SELECT COUNT(*) FROM orders").scalar() == 3
        assert len(client.consume("events", start=EARLIEST).messages) == 3
        assert len(client.consume("orders", start=EARLIEST).messages) == 3, "its alias"
        assert client.read_arrow("events").num_rows == 3
        found = client.consume("events", group="g", consumer="c").messages
        assert client.extend("events", "g", "c", 60) == len(found) == 3
        assert client.release("events", "g", "c") == 3


def test_many_tasks_share_requests_and_every_write_is_there(server: ServerThread) -> None:
    async def test(client: AsyncClient) -> None:
        sends = 0
        real = client._connection.call

        async def counted(request: Any) -> Any:
            nonlocal sends
            sends += request.path.endswith("/writes")
            return await real(request)

        client._connection.call = counted  # type: ignore[method-assign]
        sql = "INSERT INTO app.orders VALUES (?, ?, ?)"
        ends = await asyncio.gather(
            *(client.execute(sql, [n % 900, f"c{n}", n]) for n in range(1000)), return_exceptions=True
        )
        assert [type(end) for end in ends].count(DuplicateKey) == 100
        assert (await client.query("SELECT COUNT(*) FROM app.orders")).scalar() == 900
        assert sends < 20

    in_loop(server, test)


def test_many_threads_share_one_client(client: Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: client.insert("app.orders", [(n, "x", n)]), range(400)))
        counts = list(pool.map(lambda n: client.query("SELECT COUNT(*) FROM app.orders").scalar(), range(16)))
    assert counts == [400] * 16


def test_concurrent_updates_of_one_row_all_happen(server: ServerThread) -> None:
    """A keyed UPDATE is a transaction on the server: those that others got ahead of are sent again."""

    async def test(client: AsyncClient) -> None:
        await client.insert("app.orders", [(1, "ann", 0)])
        await asyncio.gather(
            *(client.execute("UPDATE app.orders SET amount = amount + 1 WHERE id = 1") for _ in range(20))
        )
        assert (await client.query("SELECT amount FROM app.orders")).scalar() == 20

    in_loop(server, test)


def test_a_key_of_the_caller_commits_once(client: Client) -> None:
    sql = "INSERT INTO app.orders VALUES (?, ?, ?) RETURNING id"
    first = client.execute(sql, [1, "ann", 1], idempotency_key="order-1")
    again = client.execute(sql, [1, "ann", 1], idempotency_key="order-1")
    assert (again.rows, again.seq, again.message) == (first.rows, first.seq, first.message)
    with pytest.raises(IdempotencyMismatch):
        client.execute(sql, [2, "bob", 1], idempotency_key="order-1")
    rows = pa.table({"id": [7]})
    assert (
        client.insert("app.orders", rows, idempotency_key="rows").seq
        == client.insert("app.orders", rows, idempotency_key="rows").seq
    )
    both = "UPDATE app.orders SET amount = amount + 1 WHERE id = 1; DELETE FROM app.orders WHERE id = 7"
    for _ in range(2):
        assert [r.row_count for r in client.execute_all(both, idempotency_key="both")] == [1, 1]
    assert client.query("SELECT id, amount FROM app.orders").rows == [(1, Decimal("2.00"))]


def test_several_statements_and_transactions_in_one_text(client: Client) -> None:
    results = client.execute_all(
        "BEGIN; INSERT INTO app.orders VALUES (1, 'ann', 1); SELECT COUNT(*) FROM app.orders; COMMIT"
    )
    assert results[2].scalar() == 1
    with pytest.raises(DuplicateKey):
        client.execute("BEGIN; INSERT INTO app.orders VALUES (2, 'x', 1), (1, 'ann', 1); COMMIT")
    assert client.query("SELECT COUNT(*) FROM app.orders").scalar() == 1


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda c: c.execute("SELEC 1"), SqlSyntaxError),
        (lambda c: c.query("SELECT * FROM app.nothing"), UnknownTable),
        (lambda c: c.insert("app.nothing", [(1,)]), UnknownTable),
        (lambda c: c.insert("app.orders", [("one", "x", 1)]), TypeMismatch),
        (lambda c: c.execute("INSERT INTO app.orders VALUES (?, ?, ?)", [1]), InvalidRequest),
        (lambda c: c.execute("INSERT INTO app.orders VALUES (?, ?, ?)", [object(), 1, 1]), TypeMismatch),
        (lambda c: c.consume("app.nothing"), UnknownTopic),
        (lambda c: c.consume("app.work", limit=0), InvalidRequest),
        (lambda c: c.consume("app.work", start=Start(StartKind.OFFSET, 99)), OffsetOutOfRange),
        (lambda c: c.ack("app.work", "g"), InvalidRequest),
        (lambda c: c.ack("app.work", "g", 5), tablecast.TablecastError),
        (lambda c: c.read_arrow("app.nothing"), UnknownTopic),
        (lambda c: list(c.stream_arrow("app.nothing")), UnknownTopic),
        (lambda c: c.query("DELETE FROM app.orders"), InvalidRequest),
    ],
)
def test_errors_are_those_of_the_embedded_database(
    server: ServerThread, client: Client, call: Callable[[Any], object], expected: type[Exception]
) -> None:
    with pytest.raises(expected) as there:
        call(client)
    if not isinstance(there.value, TypeMismatch) or "cannot be sent" not in str(there.value):
        with pytest.raises(expected) as here:
            call(server.db.database)
        assert type(there.value) is type(here.value)


def test_who_may_do_what(server: ServerThread, client: Client) -> None:
    client.execute("CREATE USER 'ann' WITH PASSWORD 'a long password' ROLE 'user'")
    with connect(server.url, user="ann", password="a long password") as ann:
        with pytest.raises(PermissionDenied):
            ann.consume("app.work")
        with pytest.raises(PermissionDenied):
            ann.execute("CREATE NAMESPACE other")
    with connect(server.url, user="ann", password="wrong password") as stranger, pytest.raises(Unauthenticated):
        stranger.query("SELECT 1")
    with connect(server.url) as nobody, pytest.raises(Unauthenticated):
        nobody.query("SELECT 1")


def test_a_changed_password_ends_the_token_and_the_client_tells(server: ServerThread, client: Client) -> None:
    client.execute("CREATE USER 'ann' WITH PASSWORD 'a long password' ROLE 'dba'")
    with connect(server.url, user="ann", password="a long password") as ann:
        assert ann.query("SELECT 1 AS one").scalar() == 1
        client.execute("ALTER USER 'ann' SET ROLE 'service'")
        assert ann.query("SELECT 1 AS one").scalar() == 1, "signed in again"
        client.execute("ALTER USER 'ann' SET PASSWORD 'another password'")
        with pytest.raises(Unauthenticated):
            ann.query("SELECT 1 AS one")


# --- topics ------------------------------------------------------------------------------------------------------


def test_messages_are_those_of_the_embedded_database(server: ServerThread, client: Client) -> None:
    client.insert("app.orders", [(n, "ann", n) for n in range(10)])
    client.execute("UPDATE app.orders SET amount = 0 WHERE id < 3")
    client.execute("DELETE FROM app.orders WHERE id = 9")
    db = server.db.database
    for settings in (
        {"start": EARLIEST},
        {"start": EARLIEST, "limit": 3},
        {"partition": 1, "start": Start(StartKind.OFFSET, 2)},
        {"partition": 0, "start": Start(StartKind.TIMESTAMP, 0)},
        {},
    ):
        assert client.consume("app.events", **settings) == db.consume("app.events", **settings)
    ops = {message.op for message in client.consume("app.events", start=EARLIEST).messages}
    assert ops == {Op.INSERT, Op.UPDATE, Op.DELETE}


def test_groups_over_the_wire(client: Client) -> None:
    client.insert("app.jobs", [(n,) for n in range(6)])
    found = client.consume("app.work", group="g", consumer="ann", limit=4)
    assert [m.offset for m in found.messages] == [0, 1, 2, 3]
    assert found.consumer == "ann"
    assert client.ack("app.work", "g", 1, consumer="ann") == 1
    assert client.ack("app.work", "g", offsets=[3], consumer="ann") == 1
    assert client.nack("app.work", "g", [2], reason="not now", consumer="ann") == 1
    with pytest.raises(Conflict):
        client.nack("app.work", "g", [2], consumer="ann")
    assert client.extend("app.work", "g", "ann", 30) == 0
    again = client.consume("app.work", group="g", consumer="bob")
    assert (again.messages[0].offset, again.messages[0].delivery) == (2, 2)
    assert client.release("app.work", "g", "bob") == len(again.messages)


def test_what_was_consumed_is_acknowledged_with_the_next_claim(server: ServerThread, client: Client) -> None:
    client.insert("app.jobs", [(n,) for n in range(6)])
    before = server.db.engine.seq
    first = client.consume("app.work", group="g", limit=2)
    second = client.consume("app.work", group="g", limit=2, ack=first)
    assert [m.offset for m in second.messages] == [2, 3]
    assert server.db.engine.seq == before + 2, "one commit a turn"
    assert client.ack("app.work", "g", 0) == 1, "the first two are done, the claim after them is not"
    last = client.consume("app.work", group="g", ack=second)
    assert client.consume("app.work", group="g", ack=last).messages == []
    assert client.consume("app.work", group="g", ack=last).messages == [], "again does no harm"
    assert client.ack("app.work", "g", 5) == 5


def test_arrow_of_a_topic_whole_and_in_parts(server: ServerThread, client: Client) -> None:
    for part in range(5):
        client.insert("app.orders", [(part * 100 + n, "x" * 50, n) for n in range(100)])
    whole = server.db.database.read_arrow("app.events")
    assert client.read_arrow("app.events").equals(whole)
    streamed = list(client.stream_arrow("app.events"))
    assert pa.Table.from_batches(streamed).equals(whole)
    assert client.read_arrow("app.events", partition=1, start=Start(StartKind.OFFSET, 10)).equals(
        server.db.database.read_arrow("app.events", partition=1, start=Start(StartKind.OFFSET, 10))
    )
    future = Start(StartKind.TIMESTAMP, 4_102_444_800_000)
    assert client.read_arrow("app.events", start=future).num_rows == 0
    assert list(client.stream_arrow("app.events", start=future)) == []
    some = client.stream_arrow("app.events")
    assert next(some).num_rows > 0
    some.close()
    assert client.query("SELECT 1 AS one").scalar() == 1, "a stream that is left early does no harm"


def test_a_consume_wakes_with_the_commit(client: Client) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(client.consume, "app.work", group="g", timeout_seconds=60)
        client.insert("app.jobs", [(1,)])
        assert [m.value["id"] for m in waiting.result(60).messages] == [1]


def test_the_loop_over_a_client(client: Client) -> None:
    client.insert("app.jobs", [(n,) for n in range(250)])
    handled: list[int] = []
    assert client.consumer("app.work", "g").run(lambda m: handled.append(m.value["id"]), until_idle=True) == 250
    assert handled == list(range(250))
    assert client.query("SELECT lag FROM system.topic_groups").scalar() == 0
    consumer = client.consumer("app.work", "other", name="worker")

    def stop_at_ten(message: Message) -> None:
        if message.offset == 10:
            consumer.stop()

    assert consumer.run(stop_at_ten) == 11
    assert client.consume("app.work", group="other", limit=1).messages[0].offset == 11


def test_the_loop_over_an_async_client(server: ServerThread) -> None:
    async def test(client: AsyncClient) -> None:
        consumer = client.consumer("app.work", "g")
        handled: list[int] = []

        async def handle(message: Message) -> None:
            handled.append(message.value["id"])
            if len(handled) == 100:
                consumer.stop()

        running = asyncio.create_task(consumer.run(handle, concurrency=8))
        await asyncio.gather(*(client.insert("app.jobs", [(n,)]) for n in range(100)))
        assert await running == 100
        assert sorted(handled) == list(range(100))

    in_loop(server, test)


def test_a_cancelled_consume_leaves_no_claim(server: ServerThread) -> None:
    async def test(client: AsyncClient) -> None:
        waiting = asyncio.create_task(client.consume("app.work", group="g", consumer="gone", timeout_seconds=60))
        while not server.db.parked:
            await asyncio.sleep(0.001)
        waiting.cancel()
        while server.db.parked:
            await asyncio.sleep(0.001)
        await client.insert("app.jobs", [(1,)])
        assert len((await client.consume("app.work", group="g", consumer="here")).messages) == 1

    in_loop(server, test)


# --- the end -----------------------------------------------------------------------------------------------------


def test_closing_with_writes_in_flight_loses_none_of_those_accepted(server: ServerThread) -> None:
    async def test(client: AsyncClient) -> None:
        writes = [asyncio.create_task(client.insert("app.jobs", [(n,)])) for n in range(200)]
        await asyncio.sleep(0)
        await client.close()
        ends = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(end) for end in ends} == {tablecast.Result}
        with pytest.raises(DatabaseClosed):
            await client.insert("app.jobs", [(201,)])

    in_loop(server, test)
    assert server.db.database.query("SELECT COUNT(*) FROM app.jobs").scalar() == 200


def test_a_thread_learns_that_the_client_was_closed(server: ServerThread) -> None:
    client = connect(server.url, user="system", password=PASSWORD)
    client.query("SELECT 1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.consume, "app.work", timeout_seconds=60)
        parked = threading.Event()
        while not server.db.parked:
            parked.wait(0.001)
        client.close()
        with pytest.raises(DatabaseClosed):
            waiting.result(60)
    client.close()
    with pytest.raises(DatabaseClosed):
        client.query("SELECT 1")


def test_an_interrupted_call_is_cancelled_on_the_server_too(server: ServerThread, client: Client) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    main, checking = threading.get_ident(), threading.Event()

    def send_when_parked() -> None:
        while not server.db.parked:
            checking.wait(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)

    try:
        threading.Thread(target=send_when_parked).start()
        with pytest.raises(KeyboardInterrupt):
            client.consume("app.work", group="g", timeout_seconds=60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    while server.db.parked:
        checking.wait(0.001)
    assert client.query("SELECT 1 AS one").scalar() == 1


def test_a_client_does_not_survive_a_fork(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(InvalidRequest, match="fork"):
        client.query("SELECT 1")
    monkeypatch.undo()
    assert client.query("SELECT 1 AS one").scalar() == 1


def test_a_client_uses_few_threads(client: Client) -> None:
    client.query("SELECT 1")
    assert len([t for t in threading.enumerate() if t.name == "tablecast-client"]) == 1


@pytest.mark.parametrize("life_used", [0.9, 100.0], ids=["renewed in time", "refused first"])
def test_a_client_outlives_its_tokens(monkeypatch: pytest.MonkeyPatch, life_used: float) -> None:
    """It is asked again and again until two tokens are over: by its own clock, or because the server refuses them."""
    monkeypatch.setattr(tokens, "LIFE_USED", life_used)
    renewed_with: list[str] = []
    renew = tokens.Tokens._renew

    async def counted(self: tokens.Tokens) -> None:
        renewed_with.append("refresh token" if self._refresh else "password")
        await renew(self)

    monkeypatch.setattr(tokens.Tokens, "_renew", counted)
    with (
        ServerThread(access_token_seconds=1) as server,
        connect(server.url, user="system", password=PASSWORD) as client,
    ):
        until = monotonic() + 60
        while len(renewed_with) < 3:
            assert client.query("SELECT 1 AS one").scalar() == 1
            assert monotonic() < until
    assert renewed_with == ["password", "refresh token", "refresh token"]
