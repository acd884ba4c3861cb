"""Live queries over real sockets: what is told is what SELECT says, and nobody's misbehaviour is another's loss."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_client import KEY, LiveClient, Mirror, RawSocket
from server_fixture import PASSWORD, Address, ServerProcess, ServerThread, basic
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from tablecast.codec.live import MAX_ID_CHARS, MAX_MESSAGE_BYTES
from tablecast.server import live, live_connection, live_socket
from tablecast.server.background import in_background
from tablecast.server.settings import Settings

BUFFER_BYTES = 20_000
TABLES = """
    CREATE NAMESPACE app;
    CREATE TABLE app.orders (id BIGINT PRIMARY KEY, name TEXT, amount DECIMAL(10,2)) WITH (ACCESS_LEVEL = 'PUBLIC');
    CREATE TABLE app.secrets (id BIGINT PRIMARY KEY);
    CREATE USER TABLE app.notes (id BIGINT PRIMARY KEY, note TEXT);
    CREATE USER 'ann' WITH PASSWORD 'correct horse';
    CREATE USER 'bob' WITH PASSWORD 'battery staple';
"""
ORDERS = "SELECT id, name, amount FROM app.orders"


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerThread]:
    with ServerThread(live_max_subscriptions=8, live_buffer_bytes=BUFFER_BYTES) as running:
        running.sql(TABLES)
        yield running


@pytest.fixture
def server(shared: ServerThread) -> Iterator[ServerThread]:
    """Each test leaves no trace: the table is empty, and so is every index."""
    yield shared
    shared.sql("DELETE FROM app.orders")
    eventually(lambda: shared.hub.is_empty and connections(shared) == 0)


def connections(server: ServerThread) -> float:
    [line] = [
        s for s in server.get("/metrics").body.decode().splitlines() if s.startswith("tablecast_live_connections ")
    ]
    return float(line.split()[1])


def eventually(is_so: Callable[[], Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


def rows(server: ServerThread, sql: str = ORDERS, **options: Any) -> list[Any]:
    found: list[Any] = server.sql(sql, **options)[0]["rows"]
    return sorted(found)


def shown(mirror: Mirror) -> list[Any]:
    return sorted(mirror.rows.values())


# --- from the first row to the last change ----------------------------------------------------------------------


def test_rows_then_changes_each_commit_whole(server: ServerThread) -> None:
    server.sql("INSERT INTO app.orders VALUES (1, 'a', 1.5), (2, 'b', 2)")
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql="SELECT name FROM app.orders WHERE amount < 10")
        subscribed = client.expect("subscribed")
        assert subscribed["schema"] == [
            {"name": "name", "type": "TEXT"},
            {"name": "id", "type": "BIGINT", "hidden": True},
        ]
        assert (subscribed["mode"], subscribed["key"]) == ("snapshot", [1])
        assert client.expect("rows")["rows"] == [["a", "1"], ["b", "2"]]
        live = client.expect("live")
        assert live["changes"] == []
        server.sql(
            "BEGIN; INSERT INTO app.orders VALUES (3, 'c', 3); UPDATE app.orders SET amount = 99 WHERE id = 1; COMMIT"
        )
        change = client.expect("change")
        assert change["seq"] > live["seq"]
        assert change["changes"] == [{"op": "insert", "row": ["c", "3"]}, {"op": "delete", "key": ["1"]}]
        server.sql("UPDATE app.orders SET amount = 4 WHERE id = 3")  # not shown, so nothing to tell
        server.sql("UPDATE app.orders SET name = 'cc' WHERE id = 3")
        assert client.expect("change")["changes"] == [{"op": "update", "row": ["cc", "3"]}]
        client.send("unsubscribe", id=1)
        client.expect("unsubscribed")
        assert server.hub.is_empty
        server.sql("DELETE FROM app.orders WHERE id = 3")
        client.send("ping", nonce="n")
        assert client.expect("pong")["nonce"] == "n"


def test_no_gap_and_no_overlap_while_writers_run(server: ServerThread) -> None:
    """Eight clients subscribe, unsubscribe and resume at random under four writers; in the end all have what is there."""
    over = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        while not over.is_set():
            key, amount = chance.randrange(40), chance.randrange(100)
            server.sql(
                chance.choice([
                    "INSERT INTO app.orders VALUES (?, 'w', ?) ON CONFLICT DO UPDATE SET amount = excluded.amount",
                    "DELETE FROM app.orders WHERE id = ? AND amount <> ?",
                ]),
                [key, amount],
            )  # fmt: skip

    failures: list[BaseException] = []

    def follow(seed: int) -> None:
        chance = random.Random(seed)
        sql = f"SELECT id, amount FROM app.orders WHERE amount < {chance.choice([30, 50, 1000])} OR id = 1000"
        try:
            with LiveClient(server, packed=bool(seed % 2)) as client:
                mirror = client.subscribe(1, sql, batch_rows=chance.choice([1, 7, 1000]))
                for _ in range(6):
                    for _ in range(chance.randrange(20)):
                        client.feed(mirror)
                        if mirror.is_lagging:
                            client.resume(mirror)
                    client.send("unsubscribe", id=1)
                    while client.feed(mirror)["type"] != "unsubscribed":
                        pass
                    if chance.random() < 0.8:
                        client.resume(mirror)
                    else:
                        mirror = client.subscribe(1, sql, batch_rows=3)
                done.wait()
                while (1000 if seed % 2 else "1000",) not in mirror.rows:
                    client.feed(mirror)
                    if mirror.is_lagging:
                        client.resume(mirror)
                found = sorted([int(key), float(amount)] for key, amount in mirror.rows.values())
                assert found == sorted([int(key), float(amount)] for key, amount in rows(server, sql))
        except BaseException as e:
            done.abort()
            failures.append(e)

    done = threading.Barrier(9)
    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    followers = [threading.Thread(target=follow, args=(seed,)) for seed in range(8)]
    for thread in (*writers, *followers):
        thread.start()
    eventually(lambda: done.n_waiting == 8 or done.broken)
    over.set()
    for thread in writers:
        thread.join()
    server.sql("INSERT INTO app.orders VALUES (1000, 'the last', 0)")
    if not done.broken:
        done.wait()
    for thread in followers:
        thread.join()
    if failures:
        raise failures[0]


def test_rows_come_in_batches_as_they_are_asked_for(server: ServerThread) -> None:
    server.post("/tables/app.orders/rows", [{"id": i} for i in range(25)])
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql=ORDERS, batch_rows=10)
        client.expect("subscribed")
        assert len(client.expect("rows")["rows"]) == 10
        server.sql("UPDATE app.orders SET name = 'new' WHERE id IN (5, 15); DELETE FROM app.orders WHERE id = 24")
        client.send("next_batch", id=1)
        second = client.expect("rows")
        assert [row[1] for row in second["rows"]] == [None] * 10, "rows as of one commit"
        client.send("next_batch", id=1)
        third = client.expect("rows")
        assert (len(third["rows"]), third["last"]) == (5, True)
        live = client.expect("live")
        assert {change["op"] for change in live["changes"]} == {"update", "delete"}
        assert len(live["changes"]) == 3


def test_large_rows_come_in_smaller_batches(server: ServerThread) -> None:
    for at in range(0, 60, 10):
        server.post("/tables/app.orders/rows", [{"id": i, "name": "x" * 100_000} for i in range(at, at + 10)])
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql=ORDERS, batch_rows=10_000)
        mirror, batches = Mirror(1), 0
        while not mirror.is_live:
            batches += client.feed(mirror)["type"] == "rows"
        assert (len(mirror.rows), batches) == (60, 31), (
            "two rows each, to learn how large they are, and nothing at last"
        )
    with LiveClient(server) as client:
        assert len(client.subscribe(1, "SELECT id FROM app.orders", batch_rows=10_000).rows) == 60


def test_last_rows_first(server: ServerThread) -> None:
    server.post("/tables/app.orders/rows", [{"id": i} for i in range(10)])
    with LiveClient(server) as client:
        mirror = client.subscribe(1, "SELECT id FROM app.orders LIMIT 3")
        assert list(mirror.rows) == [("9",), ("8",), ("7",)]


# --- resuming ---------------------------------------------------------------------------------------------------


def test_what_was_missed_comes_with_deletions(server: ServerThread) -> None:
    server.sql("INSERT INTO app.orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    with LiveClient(server) as client:
        mirror = client.subscribe(1, ORDERS)
    server.sql("DELETE FROM app.orders WHERE id = 1; UPDATE app.orders SET name = 'x' WHERE id = 2")
    server.sql("UPDATE app.orders SET name = 'y' WHERE id = 2; INSERT INTO app.orders VALUES (4, 'd', 4)")
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql=ORDERS, resume=mirror.seq, history=mirror.history)
        subscribed = client.expect("subscribed")
        assert (subscribed["mode"], subscribed["seq"]) == ("resumed", mirror.seq)
        live = client.expect("live")
        assert len(live["changes"]) == 3, "each row once"
        for message in (subscribed, live):
            mirror.take(message)
        assert shown(mirror) == rows(server)


@pytest.mark.parametrize("resume", [0, 2**50])
def test_a_past_that_is_not_known_is_fetched_again(server: ServerThread, resume: int) -> None:
    server.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
    with LiveClient(server) as client:
        mirror = client.subscribe(1, ORDERS, resume=resume, history=server.db.engine.history)
        assert mirror.mode == "refetch"
        assert shown(mirror) == rows(server)


def test_numbers_of_another_history_are_not_resumed_from(server: ServerThread) -> None:
    server.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
    with LiveClient(server) as client:
        mirror = client.subscribe(1, ORDERS)
        assert mirror.history == server.db.engine.history
        again = client.subscribe(2, ORDERS, resume=mirror.seq, history="0" * 16)
        assert (again.mode, again.history) == ("refetch", mirror.history)
        client.send("subscribe", id=3, sql=ORDERS, resume=mirror.seq)
        error = client.expect("error")
        assert (error["id"], error["code"], error["details"]) == (3, "invalid_request", {"parameter": "history"})
        assert client.subscribe(3, ORDERS, resume=mirror.seq, history=mirror.history).mode == "resumed"


def test_a_pong_says_how_far_everything_was_told(server: ServerThread) -> None:
    with LiveClient(server) as client:
        mirror = client.subscribe(1, ORDERS)
        server.sql("CREATE TABLE app.elsewhere (id INT PRIMARY KEY)")
        for key in range(20):
            server.sql("INSERT INTO app.elsewhere VALUES (?)", [key])
        client.send("ping")
        seq = client.expect("pong")["seq"]
        assert mirror.seq + 20 < seq <= server.db.engine.seq
        server.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
        client.until("1", mirror)
        client.send("ping")
        assert client.expect("pong")["seq"] >= mirror.seq > seq
    with LiveClient(server) as client:
        assert client.subscribe(1, ORDERS, resume=seq, history=mirror.history).mode == "resumed"
    server.sql("DROP TABLE app.elsewhere")


def test_a_past_that_was_let_go_is_fetched_again() -> None:
    with ServerThread(changes_kept_seconds=0) as own:
        own.sql(TABLES)
        with LiveClient(own) as client:
            mirror = client.subscribe(1, ORDERS)
        own.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
        own.sql("INSERT INTO app.orders VALUES (2, 'b', 1)")
        own.db.database.run_job("changes")
        with LiveClient(own) as client:
            client.resume(mirror)
            assert mirror.mode == "refetch"
            assert shown(mirror) == rows(own)


def test_a_reader_that_does_not_read_is_told_to_resume_and_has_everything_then(server: ServerThread) -> None:
    big = "x" * 50_000
    with LiveClient(server, max_queue=1) as slow, LiveClient(server) as quick:
        mirror, other = slow.subscribe(1, ORDERS), quick.subscribe(1, ORDERS)
        lagged = server.db.engine.live_stats[0]().counts.deliveries
        for key in range(300):
            server.sql("INSERT INTO app.orders VALUES (?, ?, 0)", [key, big])
            quick.until(str(key), other)
        while not mirror.is_lagging:
            slow.feed(mirror)
        assert len(mirror.rows) < 300
        slow.send("subscribe", id=1, sql=ORDERS, resume=mirror.seq, history=mirror.history)
        while not mirror.is_live:
            slow.feed(mirror)
        assert mirror.mode == "resumed"
        assert shown(mirror) == shown(other) == rows(server)
        assert server.hub.stats().counts.deliveries > lagged
    metrics = server.get("/metrics").body.decode()
    assert "tablecast_live_lagging_total 0.0" not in metrics


# --- who it is --------------------------------------------------------------------------------------------------


def test_a_password_or_a_token_in_the_first_message(server: ServerThread) -> None:
    with LiveClient(server, None) as client:
        client.send("authenticate", user="ann", password="correct horse")
        client.send("subscribe", id=1, sql=ORDERS)  # need not wait
        assert client.expect("auth_ok") == {"type": "auth_ok", "user": "ann", "role": "user"}
        client.expect("subscribed")
    token = server.post("/auth/login", {"user": "bob", "password": "battery staple"}).json()["access_token"]
    with LiveClient(server, None) as client:
        client.send("authenticate", token=token)
        assert client.expect("auth_ok")["user"] == "bob"
    with LiveClient(server, None, headers={"Authorization": f"Bearer {token}"}) as client:
        client.subscribe(1, ORDERS)


def test_wrong_credentials(server: ServerThread) -> None:
    with LiveClient(server, None) as client:
        client.send("authenticate", user="ann", password="wrong")
        client.send("subscribe", id=1, sql=ORDERS)
        client.refused("unauthenticated", 4401)
    with LiveClient(server, None) as client:
        client.send("authenticate", token="wrong")
        client.refused("unauthenticated", 4401)
    with LiveClient(server, None) as client:
        client.send("subscribe", id=1, sql=ORDERS)
        client.refused("unauthenticated", 4401)
    with pytest.raises(InvalidStatus) as caught:
        LiveClient(server, "ann", "wrong")
    assert caught.value.response.status_code == 401
    assert json.loads(caught.value.response.body)["error"]["code"] == "unauthenticated"


def test_who_does_not_say_who_it_is_is_sent_away() -> None:
    with ServerThread(live_auth_seconds=0.3) as own, LiveClient(own, None) as client:
        assert "0.3 seconds" in client.refused("unauthenticated", 4401)["message"]


def test_too_many_wrong_passwords() -> None:
    with ServerThread(login_attempts=2) as own:
        own.sql("CREATE USER 'cid' WITH PASSWORD 'correct horse'")
        for code, close in [("unauthenticated", 4401), ("unauthenticated", 4401), ("locked_out", 1013)]:
            with LiveClient(own, None) as client:
                client.send("authenticate", user="cid", password="wrong")
                client.refused(code, close)


def test_a_token_that_expires_ends_the_connection() -> None:
    with ServerThread(access_token_seconds=3) as own:
        own.sql(TABLES)
        token = own.post("/auth/login", {"user": "ann", "password": "correct horse"}).json()["access_token"]
        with LiveClient(own, None) as client:
            client.send("authenticate", token=token)
            client.expect("auth_ok")
            client.subscribe(1, ORDERS)
            assert "expired" in client.refused("unauthenticated", 4401)["message"]
        assert own.hub.is_empty


@pytest.mark.parametrize(
    "statement",
    ["ALTER USER 'dan' SET PASSWORD 'another one'", "ALTER USER 'dan' SET ROLE 'service'", "DROP USER 'dan'"],
)
def test_an_account_that_is_changed_or_dropped_ends_its_connections(server: ServerThread, statement: str) -> None:
    server.sql("CREATE USER 'dan' WITH PASSWORD 'correct horse'")
    with LiveClient(server, "dan", "correct horse") as client, LiveClient(server, "ann", "correct horse") as other:
        client.subscribe(1, "SELECT id FROM app.notes")
        other.subscribe(1, ORDERS)
        server.sql(statement)
        found = client.receive()
        while "id" in found:  # the hub may be quicker: a right that is gone ends the subscription first
            assert found["code"] == "permission_denied"
            found = client.receive()
        assert found["code"] == "unauthenticated"
        assert client.closed() == 4401
        other.send("ping")
        other.expect("pong")
    server.sql("DROP USER IF EXISTS 'dan'")


def test_rights_are_those_of_select(server: ServerThread) -> None:
    with LiveClient(server, "ann", "correct horse") as client:
        client.send("subscribe", id="s", sql="SELECT * FROM app.secrets")
        error = client.expect("error")
        assert (error["id"], error["code"]) == ("s", "permission_denied")
        client.send("subscribe", id="s", sql="SELECT * FROM system.users")
        assert client.expect("error")["id"] == "s"
        client.subscribe("s", ORDERS)
    # Nobody waits for the entry of an attempt: it may come after the answer.
    attempts = "SELECT user_id, outcome FROM system.audit_log WHERE action = 'SUBSCRIBE'"
    eventually(lambda: ["ann", "denied"] in server.sql(attempts)[0]["rows"])


def test_nobody_gets_a_byte_of_another_users_rows(server: ServerThread) -> None:
    def write(user: str, password: str, key: int) -> None:
        server.sql("INSERT INTO app.notes VALUES (?, ?)", [key, f"only for {user}"], user=user, password=password)

    users = {"ann": "correct horse", "bob": "battery staple"}
    for user, password in users.items():
        write(user, password, 1)
    heads = [f"Authorization: {basic(user, password)}" for user, password in users.items()]
    with RawSocket(server, heads[0]) as ann, RawSocket(server, heads[1]) as bob:
        for each in (ann, bob):
            each.text({"type": "subscribe", "id": 1, "sql": "SELECT * FROM app.notes"})
        eventually(lambda: server.hub.stats().subscriptions == 2)
        for key in range(2, 30):
            for user, password in users.items():
                write(user, password, key)
        for each in (ann, bob):
            each.text({"type": "unsubscribe", "id": 1})
            each.send(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
        for_ann, for_bob = ann.until_closed(), bob.until_closed()
    assert for_ann.count(b"only for ann") == for_bob.count(b"only for bob") == 29
    assert b"only for bob" not in for_ann
    assert b"only for ann" not in for_bob


# --- what ends under a subscription -----------------------------------------------------------------------------


def test_a_table_that_is_dropped_or_altered(server: ServerThread) -> None:
    server.sql("CREATE TABLE app.gone (id BIGINT PRIMARY KEY); INSERT INTO app.gone VALUES (1)")
    with LiveClient(server) as client:
        star, named = (
            client.subscribe("star", "SELECT * FROM app.gone"),
            client.subscribe("named", "SELECT id FROM app.gone"),
        )
        server.sql("ALTER TABLE app.gone ADD COLUMN note TEXT")
        error = client.expect("error")
        assert (error["id"], error["code"]) == ("star", "schema_changed")
        server.sql("INSERT INTO app.gone (id) VALUES (2)")
        client.until("2", named)
        assert list(star.rows) == [("1",)]
        server.sql("DROP TABLE app.gone")
        error = client.expect("error")
        assert (error["id"], error["code"]) == ("named", "unknown_table")
        client.subscribe("named", ORDERS)


@pytest.mark.parametrize(
    ("sql", "params", "code"),
    [
        ("SELEC * FROM app.orders", [], "sql_syntax"),
        ("SELECT * FROM app.orders WHERE", [], "sql_syntax"),
        ("DELETE FROM app.orders", [], "unsupported_sql"),
        ("SELECT count(*) FROM app.orders", [], "unsupported_sql"),
        ("SELECT * FROM app.nothing", [], "unknown_table"),
        ("SELECT nothing FROM app.orders", [], "unknown_column"),
        ("SELECT * FROM app.orders WHERE id = ?", [], "invalid_request"),
        ("SELECT * FROM app.orders WHERE id = ?", ["x"], "type_mismatch"),
        ("SELECT * FROM app.orders WHERE id = ?", [10**40], "type_mismatch"),
    ],
)
def test_a_query_that_cannot_be_is_an_error_of_its_own(
    server: ServerThread, sql: str, params: list[Any], code: str
) -> None:
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql=sql, params=params)
        error = client.expect("error")
        assert (error["id"], error["code"]) == (1, code), error
        client.subscribe(1, ORDERS)


# --- several on one connection ----------------------------------------------------------------------------------


def test_two_of_the_same_share_what_they_are_told(server: ServerThread) -> None:
    with LiveClient(server) as client:
        first, second = client.subscribe(1, ORDERS), client.subscribe(2, "select ID, NAME, amount from app.orders")
        assert first.channel == second.channel
        server.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
        client.feed(first, second)
        assert shown(first) == shown(second) == rows(server)
        client.send("unsubscribe", id=1)
        client.expect("unsubscribed")
        server.sql("INSERT INTO app.orders VALUES (2, 'b', 1)")
        client.until("2", second)
        client.send("ping")
        client.expect("pong")  # the one message was for both
        assert shown(second) == rows(server)


def test_one_that_joins_a_channel_misses_nothing_that_the_others_are_told_meanwhile(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it caught up with is shaped in a thread, so that commits are told before its `live` can be sent."""
    monkeypatch.setattr(live, "LARGE_ROWS", -1)
    over = threading.Event()

    def write() -> None:
        key = 0
        while not over.is_set():
            key += 1
            server.sql(
                "INSERT INTO app.orders VALUES (?, 'w', 0) ON CONFLICT DO UPDATE SET amount = amount + 1", [key % 7]
            )

    writers = [threading.Thread(target=write) for _ in range(3)]
    with LiveClient(server) as client:
        stays = client.subscribe("stays", ORDERS)
        for thread in writers:
            thread.start()
        try:
            for number in range(60):
                comes = Mirror(number)
                client.send("subscribe", id=number, sql=ORDERS)
                while not comes.is_live:
                    client.feed(stays, comes)
                for _ in range(3):
                    client.feed(stays, comes)
                while comes.seq < stays.seq:  # it is told again what came before its `live`, however much that was
                    client.feed(stays, comes)
                assert shown(comes) == shown(stays), "both are told the same commits"
                client.send("unsubscribe", id=number)
                while client.feed(stays, comes)["type"] != "unsubscribed":
                    pass
        finally:
            over.set()
            for thread in writers:
                thread.join()


def test_subscriptions_of_a_connection_are_bounded(server: ServerThread) -> None:
    with LiveClient(server) as client:
        for name in range(8):
            client.subscribe(name, f"SELECT id FROM app.orders WHERE id > {name}")
        client.send("subscribe", id=8, sql=ORDERS)
        error = client.expect("error")
        assert (error["id"], error["code"]) == (8, "too_many_requests")
        client.send("unsubscribe", id=3)
        client.expect("unsubscribed")
        client.subscribe(8, ORDERS)
        client.send("subscribe", id=8, sql=ORDERS)
        client.refused("already_exists", 1002)


def test_json_and_messagepack_tell_the_same(server: ServerThread) -> None:
    server.sql(
        "CREATE TABLE app.kinds (id BIGINT PRIMARY KEY, d DECIMAL(10,2), j JSON, b BYTES, t TIMESTAMP, u UUID, f DOUBLE, ok BOOLEAN)"
    )
    statement = """INSERT INTO app.kinds VALUES (9007199254740993, 1.50, '{"a": [1]}', ?, '2026-01-31T12:00:00Z',
        '123e4567-e89b-12d3-a456-426614174000', 0.5, true)"""
    with LiveClient(server) as texts, LiveClient(server, packed=True) as packs:
        of_text, of_pack = (client.subscribe(1, "SELECT * FROM app.kinds") for client in (texts, packs))
        server.sql(statement, [{"$bytes": "aGk="}])
        texts.feed(of_text)
        packs.feed(of_pack)
        [[*told]] = of_text.rows.values()
        assert told == server.sql("SELECT * FROM app.kinds")[0]["rows"][0]
        [[key, decimal, doc, data, *_]] = of_pack.rows.values()
        assert (key, str(decimal), json.loads(doc), data) == (9007199254740993, "1.50", {"a": [1]}, b"hi")
        texts.send("subscribe", id=2, sql="SELECT id FROM app.kinds WHERE b = ?", params=[{"$bytes": "aGk="}])
        texts.expect("subscribed")
        assert texts.expect("rows")["rows"] == [["9007199254740993"]]
    server.sql("DROP TABLE app.kinds")


def test_a_subprotocol_settles_the_form(server: ServerThread) -> None:
    with LiveClient(server, subprotocols=["tablecast.msgpack"], packed=True) as client:
        assert client.socket.subprotocol == "tablecast.msgpack"
        client.subscribe(1, ORDERS)
    with LiveClient(server, subprotocols=["tablecast.msgpack"]) as client:
        client.send("ping")
        client.refused("invalid_request", 1003)
    with LiveClient(server, subprotocols=["graphql-ws", "tablecast.json"]) as client:
        assert client.socket.subprotocol == "tablecast.json"
    with LiveClient(server, subprotocols=["graphql-ws"]) as client:
        assert client.socket.subprotocol is None


# --- what is no message -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        "", "{}", "[]", "null", "nonsense", '{"type": "nothing"}', '{"type": "change"}', '{"type": "subscribe"}',
        '{"type": "ping", "more": 1}', '{"type": "subscribe", "id": 1, "sql": "x", "params": ' + "[" * 5_000,
        '{"type": "unsubscribe", "id": "' + "x" * (MAX_ID_CHARS + 1) + '"}',
        b"", b"\xc1", b"\x81\xa4type\xa4ping\x00", b"\x82\xa4type\xa4ping\xa5nonce\xc7\x01\x63x",
    ],
)  # fmt: skip
def test_what_is_no_message_ends_the_connection(server: ServerThread, data: str | bytes) -> None:
    with LiveClient(server) as client:
        client.socket.send(data)
        client.refused("invalid_request", 1007)


def test_the_other_form_ends_the_connection(server: ServerThread) -> None:
    with LiveClient(server) as client:
        client.send("ping")
        client.expect("pong")
        client.socket.send(b"\x81\xa4type\xa4ping")
        client.refused("invalid_request", 1003)


def test_text_that_is_not_utf8(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_socket, "CLOSE_SECONDS", 0.1)
    with RawSocket(server, f"Authorization: {basic('system', PASSWORD)}") as raw:
        raw.send(Frame(Opcode.TEXT, b'{"type": "ping", "nonce": "\xff"}').serialize(mask=True))
        assert raw.until_closed().endswith(Frame(Opcode.CLOSE, b"\x03\xefinvalid_request").serialize(mask=False))


def test_an_oversized_message_ends_the_connection_before_it_is_read(server: ServerThread) -> None:
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql="SELECT id FROM app.orders WHERE name <> '" + "x" * 60_000 + "'")
        client.expect("subscribed")
    with LiveClient(server) as client:
        client.socket.send("x" * (MAX_MESSAGE_BYTES + 1))
        client.refused("too_large", 1009)
    with RawSocket(server) as raw:
        raw.send(b"\x81\xff" + (2**62).to_bytes(8) + b"mask" + b"x" * 100)  # as if it would go on for years
        assert b"too_large" in raw.until_closed()
    with LiveClient(server) as client:  # in parts that are small each
        with contextlib.suppress(ConnectionClosed):  # it may hear of it before it has sent the last one
            client.socket.send("x" * 30_000 for _ in range(3))
        client.refused("too_large", 1009)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,  # unmasked
        b"\xff" * 100,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x83\x80mask",  # an opcode that is none
        b"\x80\x80mask",  # a part of nothing
        b"\xc1\x80mask",  # a reserved bit
        b"\x89\xfe\x01\x00mask" + b"x" * 256,  # a control frame that is too long
    ],
)
def test_what_is_no_frame_ends_the_connection(server: ServerThread, data: bytes) -> None:
    with LiveClient(server) as other, RawSocket(server, f"Authorization: {basic('system', PASSWORD)}") as raw:
        mirror = other.subscribe(1, ORDERS)
        raw.text({"type": "subscribe", "id": 1, "sql": ORDERS})
        eventually(lambda: server.hub.stats().subscriptions == 2)
        raw.send(data)
        said = raw.until_closed()
        assert b'"code":"invalid_request"' in said
        assert b"\x03\xea" in said, "close code 1002"
        assert server.hub.stats().subscriptions == 1
        server.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
        other.until("1", mirror)


def test_random_bytes_harm_nobody(server: ServerThread) -> None:
    chance = random.Random(5)
    with LiveClient(server) as other:
        mirror = other.subscribe(1, ORDERS)
        for _ in range(60):
            with RawSocket(server, f"Authorization: {basic('system', PASSWORD)}") as raw:
                payload = chance.randbytes(chance.randrange(1, 300))
                raw.send(payload if chance.random() < 0.5 else Frame(Opcode.BINARY, payload).serialize(mask=True))
        server.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
        other.until("1", mirror)


def test_a_message_in_parts_with_pings_between(server: ServerThread) -> None:
    with RawSocket(server, f"Authorization: {basic('system', PASSWORD)}") as raw:
        message = json.dumps({"type": "ping", "nonce": "in parts"}).encode()
        raw.send(Frame(Opcode.TEXT, message[:5], fin=False).serialize(mask=True))
        raw.send(Frame(Opcode.PING, b"hello").serialize(mask=True))
        raw.send(Frame(Opcode.CONT, message[5:9], fin=False).serialize(mask=True))
        for byte in Frame(Opcode.CONT, message[9:]).serialize(mask=True):
            raw.send(bytes([byte]))
        raw.send(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
        said = raw.until_closed()
        assert Frame(Opcode.PONG, b"hello").serialize(mask=False) in said
        assert re.search(rb'{"type":"pong","seq":\d+,"nonce":"in parts"}', said)


# --- the upgrade ------------------------------------------------------------------------------------------------


def test_pages_of_other_origins_are_refused(server: ServerThread) -> None:
    own = f"http://{server.host}:{server.port}"
    for origin, status in [(own, 101), ("https://evil.example", 403), ("null", 403), (f"{own}.evil.example", 403)]:
        with RawSocket(server, f"Origin: {origin}") as raw:
            assert raw.status == status, origin
    with ServerThread(allowed_origins="https://app.example, http://localhost:3000") as other:
        for origin, status in [
            ("https://app.example", 101),
            ("https://app.example:444", 403),
            ("http://localhost:3000", 101),
        ]:
            with RawSocket(other, f"Origin: {origin}") as raw:
                assert raw.status == status, origin
    with ServerThread(allowed_origins="*") as other, RawSocket(other, "Origin: https://evil.example") as raw:
        assert raw.status == 101


def test_other_paths_and_half_upgrades(server: ServerThread) -> None:
    with RawSocket(server, path="/v1/api/sql") as raw:
        assert raw.status == 404
        assert b'"not_found"' in raw.until_closed()
    with RawSocket(server, "Sec-WebSocket-Version: 8") as raw:
        assert raw.status == 400
    plain = server.get("/v1/ws")
    assert (plain.status, plain.error["code"]) == (404, "not_found")
    assert "WebSocket" in plain.error["message"]


def test_the_upgrade_is_in_log_and_metrics(server: ServerThread) -> None:
    with RawSocket(server, "X-Request-ID: mine") as raw:
        assert b"x-request-id: mine" in raw.head.lower()
    metrics = server.get("/metrics").body.decode()
    assert 'tablecast_http_requests_total{method="GET",route="/v1/ws",status="101"}' in metrics


def test_a_connection_outlives_the_time_for_a_request() -> None:
    """The clock of HTTP, which ran until the head of the upgrade was there, has stopped."""
    credentials = f"Authorization: {basic('system', PASSWORD)}"
    with ServerThread(body_timeout_seconds=0.5, live_ping_seconds=2) as own, RawSocket(own, credentials) as raw:
        assert raw.socket.recv(2) == Frame(Opcode.PING, b"").serialize(mask=False), "four times as long"
        raw.send(Frame(Opcode.PONG, b"").serialize(mask=True))
        raw.text({"type": "ping"})
        raw.send(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
        assert b'{"type":"pong","seq":' in raw.until_closed()


def test_a_server_in_the_background_speaks_it_too() -> None:
    with in_background(Settings(data=":memory:")) as background:
        address = Address(int(background.url.rpartition(":")[2]))
        headers = {"Authorization": f"Bearer {background.token}"}
        sql = {"headers": headers, "user": None}
        address.sql(
            "CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY, name TEXT, amount INT)", **sql
        )
        with LiveClient(address, None, headers=headers) as client:
            mirror = client.subscribe(1, ORDERS)
            address.sql("INSERT INTO app.orders VALUES (1, 'a', 1)", **sql)
            client.until("1", mirror)


def test_requests_before_an_upgrade_must_be_answered(server: ServerThread) -> None:
    """Else their answers would come between the frames."""
    with socket.create_connection((server.host, server.port), timeout=30) as raw:
        slow = json.dumps({"sql": "SELECT 1"}).encode()
        credentials = f"Authorization: {basic('system', PASSWORD)}\r\n"
        request = f"POST /v1/api/sql HTTP/1.1\r\nHost: x\r\n{credentials}Content-Length: {len(slow)}\r\n\r\n"
        upgrade = (
            "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        raw.sendall(request.encode() + slow + upgrade.encode())
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := raw.recv(65_536):
                received += data
        assert b" 101 " not in received


# --- who is no longer there -------------------------------------------------------------------------------------


def test_a_peer_that_is_gone_without_a_word_is_noticed() -> None:
    with ServerThread(live_ping_seconds=1) as own:  # time enough to answer, also on a busy machine
        own.sql(TABLES)
        with LiveClient(own) as answering, RawSocket(own, f"Authorization: {basic('system', PASSWORD)}") as silent:
            answering.subscribe(1, ORDERS)
            silent.text({"type": "subscribe", "id": 1, "sql": ORDERS})
            eventually(lambda: own.hub.stats().subscriptions == 2)
            assert Frame(Opcode.PING, b"").serialize(mask=False) in silent.until_closed()
            assert own.hub.stats().subscriptions == 1
            answering.send("ping")
            answering.expect("pong")


def test_rows_that_nobody_asks_for_are_let_go(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_connection, "WAIT_SECONDS", 0.1)
    server.sql("INSERT INTO app.orders VALUES (1, 'a', 1), (2, 'b', 2)")
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql=ORDERS, batch_rows=1)
        client.expect("subscribed")
        client.expect("rows")
        error = client.expect("error")
        assert (error["id"], error["code"]) == (1, "snapshot_gone")
        client.send("next_batch", id=1)
        client.subscribe(1, ORDERS)


def test_a_peer_that_takes_nothing_is_closed_in_the_end(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_socket, "STALL_SECONDS", 0.1)
    with RawSocket(server, f"Authorization: {basic('system', PASSWORD)}", receive_buffer=4_096) as raw:
        raw.text({"type": "subscribe", "id": 1, "sql": ORDERS})
        eventually(lambda: server.hub.stats().subscriptions == 1)
        for key in range(200):
            server.sql("INSERT INTO app.orders VALUES (?, ?, 0)", [key, "x" * 50_000])
        eventually(lambda: connections(server) == 0)


def test_a_peer_that_asks_and_does_not_read_is_not_read_either(server: ServerThread) -> None:
    """Else the answers to it would fill the memory."""
    pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 1_000
    with RawSocket(server, f"Authorization: {basic('system', PASSWORD)}", receive_buffer=4_096) as raw:
        raw.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            for _ in range(200):
                raw.send(pings)


def test_subscribing_counts_as_a_request() -> None:
    with ServerThread(requests_per_second_per_user=20) as own, LiveClient(own) as client:
        for name in range(60):
            client.send("subscribe", id=name, sql="SELECT * FROM nothing")
        codes = {client.expect("error")["code"] for _ in range(60)}
        assert codes == {"unknown_table", "rate_limited"}


def test_live_queries_are_a_system_table(server: ServerThread) -> None:
    shown_columns = "table_name, query, user_id, subscribers, commits_told"
    with LiveClient(server, "ann", "correct horse") as first, LiveClient(server, "ann", "correct horse") as second:
        for client in (first, second):
            client.subscribe(1, "SELECT note FROM app.notes WHERE id = ?", [7])
        found = server.sql(f"SELECT {shown_columns} FROM system.live_queries")[0]["rows"]
        assert found == [["app.notes", "SELECT note FROM app.notes WHERE id = $1", "ann", "2", "0"]]
        refused = server.post(
            "/sql", {"sql": "SELECT * FROM system.live_queries"}, user="ann", password="correct horse"
        )
        assert refused.error["code"] == "permission_denied"


def test_a_storm_of_connections_leaves_nothing(server: ServerThread) -> None:
    chance = random.Random(11)
    head = f"Authorization: {basic('system', PASSWORD)}"
    with LiveClient(server) as other:
        mirror = other.subscribe(1, ORDERS)
        for number in range(300):
            with RawSocket(server, head) as raw:
                for name in range(asked := chance.randrange(4)):
                    raw.text({"type": "subscribe", "id": name, "sql": f"SELECT id FROM app.orders WHERE id > {name}"})
                if asked and chance.random() < 0.3:
                    raw.socket.recv(1)
            if number % 30 == 0:
                server.sql("INSERT INTO app.orders VALUES (?, 'x', 1)", [number])
                other.until(str(number), mirror)
        eventually(lambda: server.hub.stats().subscriptions == 1)
        eventually(lambda: connections(server) == 1)


def test_drain_says_goodbye() -> None:
    with ServerThread() as own:
        own.sql(TABLES)
        with LiveClient(own) as client, LiveClient(own, None) as nobody:
            client.subscribe(1, ORDERS)
            own.drain()
            assert client.closed() == 1012
            assert nobody.closed() == 1012
            with RawSocket(own) as late:
                assert late.status == 503
        own.stop()


def test_drain_does_not_wait_for_those_who_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_socket, "CLOSE_SECONDS", 0.1)
    with ServerThread() as own, RawSocket(own, f"Authorization: {basic('system', PASSWORD)}") as silent:
        own.sql(TABLES)
        silent.text({"type": "subscribe", "id": 1, "sql": ORDERS})
        eventually(lambda: own.hub.stats().subscriptions == 1)
        own.stop()
        assert silent.until_closed().endswith(Frame(Opcode.CLOSE, b"\x03\xf4the server stops").serialize(mask=False))


def test_a_server_process_speaks_it_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as process:
        process.sql(TABLES)
        with LiveClient(process) as client:
            mirror = client.subscribe(1, ORDERS)
            process.sql("INSERT INTO app.orders VALUES (1, 'a', 1)")
            client.until("1", mirror)
            codes: list[int] = []
            ending = threading.Thread(target=lambda: codes.append(client.closed()))
            ending.start()
            assert process.terminate() == 0
            ending.join()
            assert codes == [1012]


def test_with_tls(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*made.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    trusting = ssl.create_default_context(cafile=certificate)

    async def ask(url: str) -> None:
        """With the client that reads and writes in one thread: Python's TLS is not made for two."""
        async with connect_async(url, ssl=trusting, compression=None, proxy=None) as client:
            await client.send(json.dumps({"type": "authenticate", "user": "system", "password": PASSWORD}))
            assert json.loads(await client.recv())["type"] == "auth_ok"
            await client.send("nonsense")
            assert json.loads(await client.recv())["code"] == "invalid_request"
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1007
        async with connect_async(url, ssl=trusting, compression=None, proxy=None) as client:
            await client.send("x" * (MAX_MESSAGE_BYTES + 1))  # an oversized one, where no half is closed
            assert json.loads(await client.recv())["code"] == "too_large"

    with ServerProcess(tmp_path / "data", "--tls-certificate", certificate, "--tls-key", key) as process:
        asyncio.run(asyncio.wait_for(ask(f"wss://{process.host}:{process.port}/v1/ws"), 60))
