"""One rule for names at every door: the spellings of a name reach the same topic or table, and no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from cli_fixture import invoke
from live_client import LiveClient
from server_fixture import PASSWORD, ServerThread

from tablecast import EARLIEST, Client, connect, connect_async
from tablecast.client.bulk import BulkClient, Server
from tablecast.codec.log import LogBatch
from tablecast.errors import (
    InvalidSchema,
    InvalidTopic,
    NotFound,
    PermissionDenied,
    RunsOnSpark,
    SqlSyntaxError,
    UnknownTable,
    UnknownTopic,
    UnsupportedSql,
)
from tablecast.model.message import Message
from tablecast.model.schema import Role
from tablecast.model.spark_job import Backfill, job_of
from tablecast.spark.options import ReadOptions
from tablecast.spark.pipelines.declare import pipeline, table, topic
from tablecast.spark.topic_reader import form_of
from tablecast.sql.session import Session

# In each pair of things the names differ by case only: whoever mixes them up reads the other's.
SETUP = """
CREATE NAMESPACE app; CREATE NAMESPACE "App";
CREATE TABLE app.things (id BIGINT PRIMARY KEY); CREATE TABLE app."Things" (id BIGINT PRIMARY KEY);
CREATE TOPIC app.events ALIAS 'Happened'; ALTER TOPIC app.events ADD SOURCE app.things ON ANY;
CREATE TOPIC app."Events" ALIAS '"Happened"'; ALTER TOPIC app."Events" ADD SOURCE app."Things" ON ANY;
INSERT INTO app.things VALUES (1); INSERT INTO app."Things" VALUES (2);
"""
FOLDED, QUOTED = 1, 2
TOPICS = {
    **dict.fromkeys(
        ["app.events", "App.Events", "APP.EVENTS", 'app."events"', '"app".eVents', " app . events "], FOLDED
    ),
    **dict.fromkeys(["happened", "Happened", '"happened"', "default.happened", "Default.HAPPENED"], FOLDED),
    **dict.fromkeys(['app."Events"', 'APP."Events"', '"Happened"', 'default."Happened"'], QUOTED),
}
TABLES = {
    **dict.fromkeys(["app.things", "App.Things", "APP.THINGS", 'app."things"', '"app".tHings'], FOLDED),
    **dict.fromkeys(['app."Things"', 'APP."Things"'], QUOTED),
}
NO_TOPICS = ["events", 'app."EVENTS"', '"App".events', 'app."Happened"', "app.happened", "app.events.x", '"app.events"']
NO_TABLES = ["things", 'app."THINGS"', '"App".things', "app.things.x", '"app.things"']


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(SETUP)
        yield running


@pytest.fixture(scope="module")
def client(server: ServerThread) -> Iterator[Client]:
    with connect(server.url, user="system", password=PASSWORD) as connected:
        yield connected


@pytest.fixture(scope="module")
def bulk(server: ServerThread) -> Iterator[BulkClient]:
    with BulkClient(Server(server.url, user="system", password=PASSWORD)) as connected:
        yield connected


class Doors:
    """Ways to say a name. Each answers what is read there."""

    def __init__(self, server: ServerThread, client: Client, bulk: BulkClient) -> None:
        self.server, self.client, self.bulk = server, client, bulk
        self.session = Session(server.db.engine, server.db.database._queries)

    # --- topics ---

    def sql_consume(self, name: str) -> int:
        [row] = self.client.execute(f"CONSUME FROM {name} FROM EARLIEST").dicts()
        return int(row["payload"]["id"])

    def http_consume(self, name: str) -> int:
        answer = self._posted("/topics/consume", {"topic": name, "start": {"type": "Earliest"}, "timeout_seconds": 0})
        return int(self.server.db.engine.catalog.topics[answer["messages"][0]["topic_id"]].routes[0].table_id)

    def http_arrow(self, name: str) -> int:
        answer = self.server.get(f"/v1/api/topics/{quote(name, safe='')}/arrow")
        self._check(answer.status, answer)
        return 2 if b'"id":"2"' in answer.body else 1

    def sdk_consume(self, name: str) -> int:
        return _id(self.client.consume(name, start=EARLIEST).messages)

    def sdk_arrow(self, name: str) -> int:
        return int(json.loads(self.client.read_arrow(name)["payload"][0].as_py())["id"])

    def sdk_group(self, name: str) -> int:
        found = self.client.consume(name, group=f"g {name}", start=EARLIEST)
        self.client.extend(name, f"g {name}", found.consumer or "", 60)
        self.client.nack(name, f"g {name}", [0])
        self.client.release(name, f"g {name}", found.consumer or "")
        again = self.client.consume(name, group=f"g {name}")
        assert self.client.ack(name, f"g {name}", 0) == 0
        self.server.sql(f"RESET GROUP 'g {name}' ON {name} TO EARLIEST")
        return _id(again.messages)

    def sdk_consumer(self, name: str) -> int:
        seen: list[Message] = []
        consumer = self.client.consumer(name, f"c {name}")
        consumer.run(lambda message: (seen.append(message), consumer.stop())[0])
        return _id(seen)

    def sdk_async(self, name: str) -> int:
        async def read() -> int:
            async with await connect_async(self.server.url, user="system", password=PASSWORD) as client:
                return _id((await client.consume(name, start=EARLIEST)).messages)

        return asyncio.run(read())

    def embedded_consume(self, name: str) -> int:
        return _id(self.session.consume(name, start=EARLIEST).messages)

    def described(self, name: str) -> int:
        said = self.bulk.describe_topic(name)
        assert self.bulk.describe_topic(said.name) == said, "a name that is answered can be asked for"
        assert [self.snapshot(source.table) for source in said.sources[:1]] == [said.tables[0].table_id]
        return said.tables[0].table_id

    def log(self, name: str) -> int:
        [batch] = self.bulk.stream_log(name, 0, 0, 1)
        return _id(list(LogBatch(batch).messages(0, 0)))

    def tail(self, name: str) -> int:
        done = invoke("tail", self.server.url, name, "--no-follow", "--format", "ndjson", "--from", "earliest")
        if done.exit_code:
            raise UnknownTopic(done.stderr)
        return int(json.loads(done.stdout.splitlines()[0])["payload"]["id"])

    def audit_on_spark_looked_up(self, name: str) -> int:
        return self.described(self._job(f"AUDIT TOPIC {name}").topic)

    def dead_letter(self, name: str) -> int:
        escaped = name.replace("'", "''")
        self.server.sql(f"CREATE TOPIC dead_letters_of WITH (max_deliveries = 1, dead_letter = '{escaped}')")
        try:
            [[stored]] = self.server.sql("SELECT dead_letter FROM system.topics WHERE name = 'dead_letters_of'")[0][
                "rows"
            ]
            catalog = self.server.db.engine.catalog
            return catalog.topic(stored).routes[0].table_id
        finally:
            self.server.sql("DROP TOPIC dead_letters_of")

    # --- tables ---

    def select(self, name: str) -> int:
        return int(self.client.query(f"SELECT min(id) FROM {name}").rows[0][0])

    def live(self, name: str) -> int:
        with self.client.live_table(f"SELECT id FROM {name} WHERE id < 3") as live:
            [[found]] = live.ready().rows.values()
            return int(found)

    def http_rows(self, name: str) -> int:
        return self._written(lambda row: self._posted(f"/tables/{quote(name, safe='')}/rows", [row]))

    def http_writes(self, name: str) -> int:
        def write(row: dict[str, int]) -> None:
            [said] = self._posted("/writes", {"writes": [{"table": name, "rows": [row]}]})["results"]
            if said.get("error"):
                raise UnknownTable(said["error"]["message"])

        return self._written(write)

    def sdk_insert(self, name: str) -> int:
        return self._written(lambda row: self.client.insert(name, [row]))

    def embedded_insert(self, name: str) -> int:
        return self._written(lambda row: self.session.insert(name, [row]))

    def snapshot(self, name: str) -> int:
        return _snapshot(self.bulk, name)

    def load(self, name: str) -> int:
        load = self.bulk.begin_load(name, f"w {name}", 0)
        self.bulk.abort_load(load.load_id)
        return load.table.table_id

    def copy_on_spark_looked_up(self, name: str) -> int:
        return self.snapshot(self._job(f"COPY {name} FROM './x' (FORMAT parquet)").table)

    # --- how ---

    def _written(self, write: Callable[[dict[str, int]], Any]) -> int:
        write({"id": 77})
        counts = [
            self.server.sql(f"DELETE FROM {table} WHERE id = 77")[0]["row_count"]
            for table in ("app.things", 'app."Things"')
        ]
        assert sorted(counts) == [0, 1]
        return counts.index(1) + 1

    def _posted(self, path: str, body: Any) -> Any:
        answer = self.server.post(path, body)
        self._check(answer.status, answer)
        return answer.json()

    def _check(self, status: int, answer: Any) -> None:
        if status != 200:
            assert status == 404, answer.body
            raise UnknownTopic(answer.error["message"])

    def _job(self, sql: str) -> Any:
        with pytest.raises(RunsOnSpark) as said:
            self.session.execute(sql)
        return job_of(said.value.details["job"])


def _snapshot(bulk: BulkClient, name: str) -> int:
    opened = bulk.open_snapshot(name)
    bulk.close_snapshot(opened.snapshot_id)  # an account may have few at a time
    return opened.table.table_id


def _id(messages: list[Message]) -> int:
    return int(json.loads(messages[0].payload)["id"])


@pytest.fixture
def doors(server: ServerThread, client: Client, bulk: BulkClient, monkeypatch: pytest.MonkeyPatch) -> Doors:
    monkeypatch.setenv("TABLECAST_PASSWORD", PASSWORD)
    return Doors(server, client, bulk)


TOPIC_DOORS = [
    Doors.sql_consume, Doors.http_consume, Doors.http_arrow, Doors.sdk_consume, Doors.sdk_arrow, Doors.sdk_group,
    Doors.sdk_consumer, Doors.sdk_async, Doors.embedded_consume, Doors.described, Doors.log, Doors.tail,
    Doors.audit_on_spark_looked_up, Doors.dead_letter,
]  # fmt: skip
TABLE_DOORS = [
    Doors.select, Doors.live, Doors.http_rows, Doors.http_writes, Doors.sdk_insert, Doors.embedded_insert,
    Doors.snapshot, Doors.load, Doors.copy_on_spark_looked_up,
]  # fmt: skip
Door = Callable[[Doors, str], int]


@pytest.mark.parametrize("door", TOPIC_DOORS, ids=lambda door: door.__name__)
def test_the_spellings_of_a_topic(door: Door, doors: Doors) -> None:
    assert {name: door(doors, name) for name in TOPICS} == TOPICS


@pytest.mark.parametrize("door", TABLE_DOORS, ids=lambda door: door.__name__)
def test_the_spellings_of_a_table(door: Door, doors: Doors) -> None:
    assert {name: door(doors, name) for name in TABLES} == TABLES


NO_SUCH = (NotFound, SqlSyntaxError, InvalidSchema, InvalidTopic, UnsupportedSql)  # what SQL cannot read, it says so


@pytest.mark.parametrize("door", TOPIC_DOORS, ids=lambda door: door.__name__)
def test_other_names_are_no_topic(door: Door, doors: Doors) -> None:
    for name in NO_TOPICS:
        if door is not Doors.dead_letter:  # which is made, if it does not exist
            with pytest.raises(NO_SUCH):
                door(doors, name)


@pytest.mark.parametrize("door", TABLE_DOORS, ids=lambda door: door.__name__)
def test_other_names_are_no_table(door: Door, doors: Doors) -> None:
    for name in NO_TABLES:
        with pytest.raises(NO_SUCH):
            door(doors, name)


def test_a_repeat_may_spell_the_table_otherwise(doors: Doors) -> None:
    row = [{"id": 77}]
    for insert in (doors.client.insert, doors.session.insert):
        first, *repeats = [
            insert(name, row, idempotency_key=f"{insert}") for name, table in TABLES.items() if table == FOLDED
        ]
        assert {repeat.seq for repeat in repeats} == {first.seq}
        doors.server.sql("DELETE FROM app.things WHERE id = 77")


def test_who_is_refused_is_audited_under_the_full_name(server: ServerThread) -> None:
    eve = server.db.database.session("eve", "user", "App")
    for name in ("things", "App.Things", '"things"'):
        with pytest.raises(PermissionDenied):
            eve.insert(name, [{"id": 1}])
    server.sql("CREATE NAMESPACE later")  # behind the entries in the writer's queue
    entries = "SELECT DISTINCT target FROM system.audit_log WHERE user_id = 'eve'"
    assert server.sql(entries)[0]["rows"] == [["app.things"]]


# --- the namespace ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["app", "App", "APP", '"app"'])
def test_the_spellings_of_a_namespace(namespace: str, server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", PASSWORD)
    read: list[Any] = []
    with connect(server.url, user="system", password=PASSWORD, namespace=namespace) as client:
        read += [
            client.query("SELECT min(id) FROM Things").scalar(),
            _id(client.consume("Events", start=EARLIEST).messages),
        ]
        read += [
            2 - client.insert("Things", [{"id": 77}]).row_count,
            client.insert("Things", [[77]], mode="delete").row_count,
        ]
    session = server.db.database.session("root", Role.SYSTEM, namespace)
    read += [
        session.query("SELECT min(id) FROM Things").scalar(),
        _id(session.consume("Events", start=EARLIEST).messages),
    ]
    with BulkClient(Server(server.url, user="system", password=PASSWORD), namespace=namespace) as bulk:
        read += [bulk.describe_topic("Events").tables[0].table_id, _snapshot(bulk, "Things")]
    with LiveClient(server) as live:
        live.send("subscribe", id="q", sql="SELECT id FROM Things WHERE id = 1", namespace=namespace)
        read.append(live.receive()["type"] == "subscribed")
    done = invoke("sql", server.url, "-c", "SELECT min(id) FROM Things", "--namespace", namespace, "--format", "csv")
    read.append(int(done.stdout.splitlines()[1]))
    assert read == [1] * len(read)


def test_a_namespace_that_differs_in_case_only_is_another(server: ServerThread) -> None:
    with connect(server.url, user="system", password=PASSWORD, namespace='"App"') as client:
        with pytest.raises(UnknownTable):
            client.query("SELECT * FROM things")
        with pytest.raises(UnknownTopic):
            client.consume("events")
        assert _id(client.consume("happened", start=EARLIEST).messages) == FOLDED, "an alias needs no namespace"


# --- Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["app.things", "App.Things", "things", "THINGS", '"app".things'])
def test_the_source_table_of_a_read(table: str, bulk: BulkClient) -> None:
    options = ReadOptions(bulk.server, "app.events", decode=True, source_table=table)
    found = form_of(options, bulk.describe_topic("App.Events")).table
    assert found is not None
    assert found.full_name == "app.things"


def test_names_of_a_pipeline_in_python() -> None:
    made = pipeline(
        into="App.Things", inputs={"a": topic('APP."Events"'), "b": table("app.Things")}, dead_letter='App."Dead"'
    )(lambda a, b: a)
    assert (made.pipeline.target, made.pipeline.options.dead_letter) == ("app.things", "app.Dead")
    assert [given.name for given in made.pipeline.inputs] == ["app.Events", "app.things"]


def test_a_backfill_on_spark_looks_its_names_up(doors: Doors, bulk: BulkClient) -> None:
    doors.server.sql('CREATE TABLE app."More" (id BIGINT PRIMARY KEY)')
    job = doors._job("""ALTER TOPIC APP."Events" ADD SOURCE App."More" ON ANY WITH (backfill = 'spark')""")
    assert isinstance(job, Backfill)
    load = bulk.begin_backfill(job, "w", 0)
    bulk.abort_load(load.load_id)
    assert load.table.full_name == "app.More"
