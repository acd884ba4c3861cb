"""Live queries of system tables, through real sockets and streams: sampled, and told as any other live query.

The sampling is steered: a sample is taken when a test says so.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from live_client import LiveClient, Mirror
from server_fixture import PASSWORD, ServerThread
from steered import Steered
from test_live_socket import connections, eventually
from test_live_sse import Stream

import tablecast
from tablecast.engine import live_sampling
from tablecast.engine.system import SYSTEM_TABLES

BUFFER_BYTES = 20_000
SETUP = """
    CREATE NAMESPACE app;
    CREATE TABLE app.orders (id BIGINT PRIMARY KEY, name TEXT);
    CREATE TOPIC app.order_events PARTITIONS 2;
    ALTER TOPIC app.order_events ADD SOURCE app.orders ON INSERT;
    CREATE USER 'ann' WITH PASSWORD 'correct horse';
    CREATE USER 'sue' WITH PASSWORD 'battery staple' ROLE 'service';
"""
LAGS = "SELECT topic, group_id, partition_id, lag FROM system.topic_groups"
OFFSETS = "SELECT topic, partition_id, end_offset FROM system.topic_partitions"


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """It leaves no trace: when everybody has gone, every index is empty."""
    with ServerThread(live_buffer_bytes=BUFFER_BYTES) as running:
        running.sql(SETUP)
        yield running
        eventually(lambda: running.hub.is_empty and connections(running) == 0)


@pytest.fixture
def steered(server: ServerThread) -> Steered:
    return Steered(server.hub)


def select(server: ServerThread, sql: str) -> list[Any]:
    found: list[Any] = server.sql(sql)[0]["rows"]
    return sorted(found)


def shown(mirror: Mirror) -> list[Any]:
    return sorted(mirror.rows.values())


def consume(server: ServerThread, **options: Any) -> list[dict[str, Any]]:
    request = {"topic": "app.order_events", "group_id": "g", "start": {"type": "Earliest"}, "timeout_seconds": 0}
    answer = server.post("/topics/consume", request | options)
    assert answer.status == 200, answer.body
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def ack(server: ServerThread, message: dict[str, Any], **options: Any) -> None:
    place = {"partition_id": message["partition_id"], "offsets": [message["offset"]]}
    answer = server.post("/topics/ack", {"topic": "app.order_events", "group_id": "g"} | place | options)
    assert answer.status == 200, answer.body


# --- what is told ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_packed", [False, True], ids=["json", "msgpack"])
def test_what_a_sample_shows_is_what_select_says(server: ServerThread, steered: Steered, is_packed: bool) -> None:
    queries = {
        "lags": LAGS,
        "some": f"{LAGS} WHERE lag > 1",
        "ends": OFFSETS,
        "topics": "SELECT namespace || '.' || name AS topic, partitions, created_at FROM system.topics",
        "claims": "SELECT * FROM system.topic_claims",
        "tables": "SELECT * FROM system.tables",
    }
    chance = random.Random(7)
    key = 0
    with (
        LiveClient(server, packed=is_packed) as client,
        tablecast.connect(server.url, user="system", password=PASSWORD) as sdk,
    ):
        mirrors = {name: client.subscribe(name, sql) for name, sql in queries.items()}
        for step in range(40):
            match chance.randrange(5):
                case 0 | 1:
                    count = chance.randrange(1, 5)
                    server.sql("; ".join(f"INSERT INTO app.orders VALUES ({key + i}, 'x')" for i in range(count)))
                    key += count
                case 2:
                    for message in consume(server, limit=chance.randrange(1, 4), consumer=f"c{chance.randrange(2)}"):
                        if chance.random() < 0.7:
                            ack(server, message, **({"nack": True} if chance.random() < 0.3 else {}))
                case 3:
                    server.sql(f"CREATE TOPIC IF NOT EXISTS app.t{chance.randrange(3)}")
                case 4:
                    server.sql(f"DROP TOPIC IF EXISTS app.t{chance.randrange(3)}")
            steered.tick_on(server.loop)
            catch_up(client, list(mirrors.values()))
            for name, sql in queries.items():
                wanted = sdk.query(sql).rows if is_packed else select(server, sql)
                assert sorted(map(str, visible(mirrors[name], wanted))) == sorted(map(str, wanted)), (step, name)


def visible(mirror: Mirror, wanted: list[Any]) -> list[Any]:
    """Its rows as SELECT gives them: without hidden columns, which come last."""
    kind = type(wanted[0]) if wanted else list
    return [kind(row[: len(wanted[0])]) if wanted else row for row in mirror.rows.values()]


def catch_up(client: LiveClient, mirrors: list[Mirror]) -> None:
    """Everything that was told before this."""
    client.send("ping", nonce="here")
    while client.feed(*mirrors).get("nonce") != "here":
        pass


def test_it_says_that_it_is_sampled_and_counts_samples_above_commits(server: ServerThread, steered: Steered) -> None:
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql=OFFSETS)
        subscribed = client.expect("subscribed")
        assert (subscribed["sampled"], subscribed["mode"], subscribed["key"]) == (1.0, "snapshot", [0, 1])
        first = client.expect("rows")["seq"]
        live = client.expect("live")
        server.sql("INSERT INTO app.orders VALUES (1, 'a')")
        client.send("ping")
        assert client.expect("pong")["seq"] < first <= live["seq"]  # so no reader takes a sample for something old
        steered.tick_on(server.loop)
        change = client.expect("change")
        assert change["seq"] > live["seq"]
        assert [c["op"] for c in change["changes"]] == ["update"]
        client.send("subscribe", id=2, sql="SELECT id FROM app.orders")
        assert "sampled" not in client.expect("subscribed")


def test_rows_come_go_and_change_by_key(server: ServerThread, steered: Steered) -> None:
    with LiveClient(server) as client:
        mirror = client.subscribe(1, "SELECT partitions FROM system.topics WHERE name <> 'order_events'")
        for sql, op in [
            ("CREATE TOPIC app.other", "insert"),
            ("DROP TOPIC app.other; CREATE TOPIC app.other PARTITIONS 3", "update"),
            ("DROP TOPIC app.other", "delete"),
        ]:
            server.sql(sql)
            steered.tick_on(server.loop)
            assert [change["op"] for change in client.feed(mirror)["changes"]] == [op]
        steered.tick_on(server.loop)  # nothing is different: nothing is told
        client.send("ping")
        client.expect("pong")


def test_a_limit_bounds_the_first_rows(server: ServerThread, steered: Steered) -> None:
    server.sql("; ".join(f"CREATE TOPIC app.t{i}" for i in range(5)))
    with LiveClient(server) as client:
        mirror = client.subscribe(1, "SELECT name FROM system.topics LIMIT 2", batch_rows=1)
        assert [row[0] for row in mirror.rows.values()] == ["t4", "t3"]


def test_a_stream_of_events_tells_the_same(server: ServerThread, steered: Steered) -> None:
    with Stream(server, OFFSETS) as stream:
        assert stream.expect("subscribed").data["sampled"] == 1.0
        assert sorted(stream.expect("rows").data["rows"]) == select(server, OFFSETS)
        assert stream.expect("live").data["changes"] == []
        server.sql("INSERT INTO app.orders VALUES (1, 'a')")
        steered.tick_on(server.loop)
        [change] = stream.expect("change").data["changes"]
        assert change["row"] in select(server, OFFSETS)
    with Stream(server, OFFSETS, last_id=stream.last_id) as again:
        assert again.expect("subscribed").data["mode"] == "refetch"


# --- sharing ------------------------------------------------------------------------------------------------------


def test_a_table_is_read_once_and_equal_queries_are_one(
    server: ServerThread, steered: Steered, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SYSTEM_TABLES["topic_partitions"]
    reads: list[str] = []
    make = table._make
    monkeypatch.setattr(table, "_make", lambda engine: reads.append("read") or make(engine))
    with LiveClient(server) as one, LiveClient(server, "sue", "battery staple") as two, LiveClient(server) as three:
        clients = (one, two, three)
        mirrors = [
            one.subscribe(1, OFFSETS),
            two.subscribe(1, OFFSETS),
            three.subscribe(1, f"{OFFSETS} WHERE partition_id = 0"),
        ]
        assert len(reads) == 2, "the first answer of each of two different queries"
        stats = server.hub.stats()
        assert sorted((group.subscribers, group.sampled_seconds) for group in stats.groups) == [(1, 1.0), (2, 1.0)]
        columns = "query, subscribers, sampled_seconds"
        listed = select(
            server, f"SELECT {columns} FROM system.live_queries WHERE table_name = 'system.topic_partitions'"
        )
        assert [row[1:] for row in listed] == [["2", 1.0], ["1", 1.0]]
        server.sql("; ".join(f"INSERT INTO app.orders VALUES ({i}, 'x')" for i in range(10)))
        encoded = stats.counts.encodings
        steered.tick_on(server.loop)
        assert len(reads) == 3
        for client, mirror in zip(clients, mirrors, strict=True):
            client.feed(mirror)
        assert shown(mirrors[0]) == shown(mirrors[1]) == select(server, OFFSETS)
        assert server.hub.stats().counts.encodings == encoded + 2
    eventually(lambda: server.hub.is_empty)
    assert len(reads) >= 3


# --- who may, and how it ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "sue_may"), [("topics", True), ("metrics", True), ("users", False), ("audit_log", False)]
)
def test_rights_are_those_of_select(server: ServerThread, table: str, sue_may: bool) -> None:
    for user, password, may in [("ann", "correct horse", False), ("sue", "battery staple", sue_may)]:
        with LiveClient(server, user, password) as client:
            client.send("subscribe", id=1, sql=f"SELECT * FROM system.{table}")
            answer = client.receive()
            assert (answer["type"] == "subscribed") is may, answer
            assert may or answer["code"] == "permission_denied"


def test_rights_that_are_taken_end_it(server: ServerThread, steered: Steered) -> None:
    with LiveClient(server, "sue", "battery staple") as client:
        client.subscribe(1, OFFSETS)
        server.sql("ALTER USER 'sue' SET ROLE 'user'")
        assert client.refused("unauthenticated", 4401)
    eventually(lambda: server.hub.is_empty)
    with LiveClient(server, "sue", "battery staple") as client:
        client.send("subscribe", id=1, sql=OFFSETS)
        assert client.expect("error")["code"] == "permission_denied"


def test_a_resume_is_a_refetch(server: ServerThread, steered: Steered) -> None:
    with LiveClient(server) as client:
        mirror = client.subscribe(1, OFFSETS)
    server.sql("INSERT INTO app.orders VALUES (1, 'a')")
    with LiveClient(server) as client:
        client.resume(mirror)
        assert mirror.mode == "refetch"
        assert shown(mirror) == select(server, OFFSETS)


def test_a_slow_reader_is_told_to_resume_and_has_everything_then(server: ServerThread, steered: Steered) -> None:
    columns = ", ".join(f"'{'x' * 2_000}{i}' || end_offset AS c{i}" for i in range(20))
    sql = f"SELECT partition_id, {columns} FROM system.topic_partitions"
    with LiveClient(server, max_queue=1) as slow:
        mirror = slow.subscribe(1, sql)
        lagging = 0
        for key in range(400):
            server.sql(f"INSERT INTO app.orders VALUES ({key}, 'x')")
            steered.tick_on(server.loop)
            if not server.hub.stats().subscriptions:
                lagging = key
                break
        assert lagging, "it was never left out"
        while not mirror.is_lagging:
            slow.feed(mirror)
        slow.resume(mirror)
        assert mirror.mode == "refetch"
        wanted = select(server, sql)
        assert sorted(visible(mirror, wanted)) == wanted


def test_an_answer_has_a_limit(server: ServerThread, steered: Steered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sampling, "MAX_SAMPLED_ROWS", 3)
    with LiveClient(server) as client:
        client.send("subscribe", id=1, sql="SELECT * FROM system.settings")
        error = client.expect("error")
        assert (error["code"], error["details"]["limit"]) == ("too_large", 3)
        client.subscribe(2, "SELECT name FROM system.topics")
        server.sql("; ".join(f"CREATE TOPIC app.t{i}" for i in range(3)))
        steered.tick_on(server.loop)
        error = client.expect("error")
        assert (error["id"], error["code"]) == (2, "too_large")
        eventually(lambda: server.hub.is_empty)


def test_there_are_only_so_many(server: ServerThread, steered: Steered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sampling, "MAX_SAMPLED_QUERIES", 2)
    with LiveClient(server) as client:
        client.subscribe(1, OFFSETS)
        client.subscribe(2, LAGS)
        client.subscribe(3, OFFSETS)  # as many as one likes of the same
        client.send("subscribe", id=4, sql="SELECT name FROM system.topics")
        assert client.expect("error")["code"] == "overloaded"
        client.send("unsubscribe", id=2)
        client.expect("unsubscribed")
        client.subscribe(4, "SELECT name FROM system.topics")


def test_a_stop_ends_all_of_it() -> None:
    with ServerThread() as own:
        own.sql(SETUP)
        with LiveClient(own) as client:
            client.subscribe(1, "SELECT name, labels, value FROM system.metrics")
            hub = own.hub
            own.drain()
            assert client.closed() == 1012
    assert hub.is_empty


# --- through the SDK ------------------------------------------------------------------------------------------------


def test_a_live_table_sees_the_lag_go_down_while_a_consumer_acknowledges(
    server: ServerThread, steered: Steered
) -> None:
    server.sql("; ".join(f"INSERT INTO app.orders VALUES ({i}, 'x')" for i in range(20)))
    with tablecast.connect(server.url, user="sue", password="battery staple") as client:
        claim = partial(client.consume, "app.order_events", group="g", start=tablecast.EARLIEST, partition=0)
        kept = claim(limit=1).messages  # of another consumer, which never acknowledges it
        with client.live_table(
            "SELECT lag FROM system.topic_groups WHERE group_id = 'g' AND partition_id = 0"
        ) as table:
            [lag] = table.ready().rows.values()
            lags = list(lag)
            while messages := claim(limit=2).messages:
                client.ack("app.order_events", "g", partition=0, offsets=[message.offset for message in messages])
                steered.tick_on(server.loop)
                table.changed(timeout_seconds=30)
                lags += table.rows["app.order_events", "g", 0]
            assert lags[0] > len(lags) > 2
            assert lags == sorted(lags, reverse=True)
            assert lags[-1] == len(kept) == 1


def test_a_live_table_goes_on_after_its_connection_was_lost(server: ServerThread, steered: Steered) -> None:
    with (
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
        client.live_table("SELECT name FROM system.topics") as table,
    ):
        table.ready()
        server.sql("CREATE TOPIC app.later")
        server.sql(f"ALTER USER 'system' SET PASSWORD '{PASSWORD}'")  # ends every connection of the account
        while ("app", "later") not in table.rows:  # no sample was taken: it fetched again
            table.changed(timeout_seconds=30)


def test_an_embedded_database_does_the_same() -> None:
    with tablecast.open(":memory:") as db:
        db.execute("CREATE NAMESPACE app")
        with (
            db.live("SELECT name FROM system.topics") as changes,
            db.live_table("SELECT name FROM system.tables") as table,
        ):
            table.ready()
            db.execute("CREATE TOPIC app.t; CREATE TABLE app.x (id INT PRIMARY KEY)")
            change = next(changes)
            assert (change.op, change.key, change.row, change.initial) == (
                tablecast.Op.INSERT,
                ("app", "t"),
                ("t",),
                False,
            )
            table.changed(timeout_seconds=30)
            assert dict(table.rows) == {("app", "x"): ("x",)}
            assert db.query("SELECT count(*) FROM system.live_queries WHERE sampled_seconds = 1").scalar() == 2
        assert db.query("SELECT count(*) FROM system.live_queries").scalar() == 0


# --- the tables themselves ------------------------------------------------------------------------------------------


def test_metrics_are_those_of_the_scrape(server: ServerThread) -> None:
    lines = server.get("/metrics").body.decode().splitlines()
    scraped = {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
    rows = server.sql("SELECT name, labels, kind, value FROM system.metrics")[0]["rows"]
    told = set()
    for name, labels, kind, value in rows:
        pairs = ",".join(f'{key}="{text}"' for key, text in json.loads(labels).items())
        told.add(f"{name}{{{pairs}}}" if pairs else name)
        assert kind in ("counter", "gauge", "histogram")
        assert isinstance(value, float)
    assert len(told) == len(rows), "name and labels are the key"
    normal = {_sorted_labels(series) for series in scraped}
    assert {_sorted_labels(series) for series in told} >= normal
    assert "tablecast_commit_number" in told


def _sorted_labels(series: str) -> str:
    name, brace, labels = series.partition("{")
    return name + brace + ",".join(sorted(labels.rstrip("}").split('",')))


def test_an_embedded_database_counts_nothing_and_is_alone_in_its_cluster() -> None:
    with tablecast.open(":memory:") as db:
        assert db.query("SELECT * FROM system.metrics").rows == []
        [(node, role, state, address)] = db.query("SELECT node_id, role, state, address FROM system.cluster").rows
        assert (node, role, state, address) == (None, "writer", "running", None)


def test_the_cluster_is_this_server() -> None:
    with ServerThread() as server:
        [row] = server.sql("SELECT role, state, version, address FROM system.cluster")[0]["rows"]
        assert row == ["writer", "running", tablecast.__version__, server.url]
        server.drain()
        eventually(lambda: server.sql("SELECT state FROM system.cluster")[0]["rows"] == [["draining"]])


def test_claims_show_who_holds_what_and_what_came_back(server: ServerThread) -> None:
    server.sql("; ".join(f"INSERT INTO app.orders VALUES ({i}, 'x')" for i in range(12)))
    given = consume(server, limit=100, partition_id=0, consumer="c1")
    ack(server, given[0], nack=True, reason="not today")
    columns = "start_offset, end_offset, messages, state, consumer, deliveries, reason, deadline IS NULL"
    rows = server.sql(f"SELECT {columns} FROM system.topic_claims ORDER BY start_offset")[0]["rows"]
    assert rows == [
        ["0", "1", "1", "returned", None, "1", "not today", True],
        ["1", str(len(given)), str(len(given) - 1), "claimed", "c1", "1", None, False],
    ]
