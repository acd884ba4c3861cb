"""Pipelines in the catalog: created, shown, started, stopped and dropped, and what a runner reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast.client.bulk import LETTERS, BulkClient, LoadDone, Server
from tablecast.engine import pipelines as reported
from tablecast.engine.load_letters import MAX_LETTERS, MAX_LETTERS_BYTES
from tablecast.engine.pipelines import MAX_REPORTED_PIPELINES, REPORT_SECONDS, PipelineReport, PipelineReports
from tablecast.errors import (
    AlreadyExists,
    DuplicateKey,
    InUse,
    InvalidPart,
    InvalidPipeline,
    InvalidRequest,
    InvalidTopic,
    PermissionDenied,
    TablecastError,
    TooLarge,
    TransactionState,
    UnknownColumn,
    UnknownPipeline,
    UnknownTable,
    UnknownTopic,
)
from tablecast.model.pipeline import DuplicateLetters, LoadLetter
from tablecast.model.schema import Role
from tablecast.sql.database import Database

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer BIGINT, amount DECIMAL(12,2), note JSON);
CREATE TABLE app.customers (id BIGINT PRIMARY KEY, name TEXT);
CREATE TABLE app.revenue_by_day (day DATE PRIMARY KEY, total DECIMAL(12,2), n BIGINT NOT NULL, note TEXT);
CREATE TOPIC app.order_events ALIAS 'events' PARTITIONS 2;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY;
"""
REVENUE = """
CREATE PIPELINE app.revenue INTO app.revenue_by_day AS
SELECT CAST(o._ts AS DATE) AS day, sum(amount) AS total, count(*) AS n
FROM TOPIC app.order_events o JOIN TABLE app.customers c ON o.customer = c.id
WHERE o._op = 'insert' AND c.name <> 'nobody' GROUP BY CAST(o._ts AS DATE)
"""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tablecast.open(tmp_path / "db") as database:
        database.execute(SETUP)
        yield database


def pipelines(db: Any, columns: str = "name, desired_state, state") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in db.query(f"SELECT {columns} FROM system.pipelines ORDER BY name")]


# --- the life of a definition ---


def test_a_pipeline_is_kept(db: Database, tmp_path: Path) -> None:
    db.execute(REVENUE + "WITH (dead_letter = 'app.dlq', trigger_seconds = 2)")
    assert pipelines(db, "name, target, desired_state, state") == [
        ("app.revenue", "app.revenue_by_day", "running", "not attached")
    ]
    assert [name for (name,) in db.query("SELECT name FROM system.topics ORDER BY name")] == ["dlq", "order_events"]
    before = pipelines(db, "definition")
    db.close()
    with tablecast.open(tmp_path / "db") as again:
        assert pipelines(again, "definition") == before
        assert again.verify().sound
        described = dict(again.query("DESCRIBE PIPELINE app.revenue"))
        assert described["into"] == "app.revenue_by_day"
        assert described["topic"] == "app.order_events as order_events"
        assert described["dead_letter"] == "app.dlq"
        assert len(list(again.query("SHOW PIPELINES IN app"))) == 1
        assert not list(again.query("SHOW PIPELINES IN other"))


def test_start_stop_and_drop(db: Database) -> None:
    db.execute(REVENUE)
    assert db.execute("STOP PIPELINE app.revenue").message == "STOP PIPELINE"
    assert pipelines(db) == [("app.revenue", "stopped", "stopped")]
    assert db.execute("STOP PIPELINE app.revenue").message == "STOP PIPELINE: nothing to do"
    db.execute("START PIPELINE app.revenue")
    assert pipelines(db) == [("app.revenue", "running", "not attached")]
    db.execute("DROP PIPELINE app.revenue")
    assert pipelines(db) == []
    with pytest.raises(UnknownPipeline, match=r"app\.revenue"):
        db.execute("DROP PIPELINE app.revenue")
    for verb in ("START", "STOP", "DROP"):
        db.execute(f"{verb} PIPELINE IF EXISTS app.revenue")


def test_it_is_created_once(db: Database) -> None:
    db.execute(REVENUE)
    with pytest.raises(AlreadyExists):
        db.execute(REVENUE)
    again = REVENUE.replace("CREATE PIPELINE", "CREATE PIPELINE IF NOT EXISTS")
    assert db.execute(again).message == "CREATE PIPELINE: nothing to do"


def test_names_are_those_of_the_session(db: Database) -> None:
    db.session("dan", Role.DBA, "app").execute(
        "CREATE PIPELINE p INTO revenue_by_day AS SELECT DATE'2026-01-01' AS day, 1 AS n FROM TOPIC events"
    )
    [(text,)] = pipelines(db, "definition")
    known = msgspec.json.decode(text)
    assert (known["namespace"], known["target"]) == ("app", "app.revenue_by_day")
    assert known["inputs"] == [{"kind": "topic", "name": "app.order_events", "view": "events"}]


def test_what_is_audited(db: Database) -> None:
    db.execute(REVENUE)
    db.execute("STOP PIPELINE app.revenue; START PIPELINE app.revenue; DROP PIPELINE app.revenue")
    said = [tuple(row) for row in db.query("SELECT action, target FROM system.audit_log WHERE action LIKE '%PIPELINE'")]
    assert said == [(f"{verb} PIPELINE", "app.revenue") for verb in ("CREATE", "STOP", "START", "DROP")]


def test_who_may(db: Database) -> None:
    db.execute(REVENUE)
    service = db.session("sam", Role.SERVICE)
    assert len(list(service.query("SHOW PIPELINES"))) == 1
    for sql in (REVENUE, "STOP PIPELINE app.revenue", "DROP PIPELINE app.revenue"):
        with pytest.raises(PermissionDenied, match="takes dba"):
            service.execute(sql)
    user = db.session("ann", Role.USER)
    for sql in ("SHOW PIPELINES", "DESCRIBE PIPELINE app.revenue", "SELECT * FROM system.pipelines"):
        with pytest.raises(PermissionDenied):
            user.execute(sql)


def test_not_inside_a_transaction(db: Database) -> None:
    session = db.session("dan", Role.DBA)
    session.execute("BEGIN")
    with pytest.raises(TransactionState):
        session.execute(REVENUE)


# --- what is checked ---


@pytest.mark.parametrize(
    ("query", "error", "culprit"),
    [
        ("SELECT 1 AS n, DATE'2026-01-01' AS day FROM TOPIC app.nothing", UnknownTopic, "app.nothing"),
        ("SELECT 1 AS n FROM TOPIC app.order_events JOIN TABLE app.nothing x", UnknownTable, "app.nothing"),
        ("SELECT 1 AS n, DATE'2026-01-01' AS day FROM TABLE app.orders", InvalidPipeline, "reads no topic"),
        ("SELECT _ts AS day, amont AS total FROM TOPIC app.order_events", UnknownColumn, "did you mean amount"),
        ("SELECT o._ts AS day, o.name AS note FROM TOPIC app.order_events o", UnknownColumn, "no column name of o"),
        ("SELECT _ts AS dai, 1 AS n FROM TOPIC app.order_events", UnknownColumn, "did you mean day"),
        ("SELECT _ts AS day, 1 AS n, 2 AS N FROM TOPIC app.order_events", InvalidPipeline, "two columns"),
        ("SELECT 1 AS n FROM TOPIC app.order_events", InvalidPipeline, "no column day"),
        ("SELECT _ts AS day FROM TOPIC app.order_events", InvalidPipeline, "no column n"),
    ],
)
def test_a_wrong_query(db: Database, query: str, error: type[TablecastError], culprit: str) -> None:
    with pytest.raises(TablecastError) as caught:
        db.execute(f"CREATE PIPELINE app.p INTO app.revenue_by_day AS {query}")
    assert type(caught.value) is error, caught.value
    assert culprit in caught.value.message
    assert pipelines(db) == []


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM TOPIC app.order_events",  # for Spark to judge
        "SELECT _ts AS day, 1 AS n, get_json_object(note, '$.a') AS note FROM TOPIC app.order_events",
        "SELECT window.start AS day, count(*) AS n FROM TOPIC app.order_events GROUP BY window(_ts, '1 day')",
        "SELECT day, n FROM (SELECT _ts AS day, 1 AS n FROM TOPIC app.order_events)",
        "SELECT _ts AS day, e AS n FROM TOPIC app.order_events LATERAL VIEW explode(array(1, 2)) t AS e",
        "SELECT _ts AS day, aggregate(array(1), 0, (a, x) -> a + x) AS n FROM TOPIC app.order_events",
        "SELECT _TS AS DAY, 1 AS N FROM TOPIC app.order_events",
    ],
)
def test_a_right_query(db: Database, query: str) -> None:
    db.execute(f"CREATE PIPELINE app.p INTO app.revenue_by_day AS {query}")
    assert pipelines(db) == [("app.p", "running", "not attached")]


def test_the_key_is_enough_to_delete(db: Database) -> None:
    db.execute(
        "CREATE PIPELINE app.p INTO app.revenue_by_day MODE delete AS SELECT _ts AS day FROM TOPIC app.order_events"
    )
    assert len(pipelines(db)) == 1


def test_no_circle(db: Database) -> None:
    with pytest.raises(InvalidPipeline, match="circle"):
        db.execute("CREATE PIPELINE app.p INTO app.orders AS SELECT id FROM TOPIC app.order_events")
    with pytest.raises(InvalidPipeline, match="dead_letter"):
        db.execute(REVENUE + "WITH (dead_letter = 'events')")


# --- what it uses cannot be dropped ---


def test_what_is_used_stays(db: Database) -> None:
    db.execute(REVENUE + "WITH (dead_letter = 'app.dlq')")
    for what in ("TABLE app.customers", "TABLE app.revenue_by_day", "TOPIC app.order_events", "TOPIC app.dlq"):
        with pytest.raises(InUse, match=r"app\.revenue"):
            db.execute(f"DROP {what}")
    db.execute("DROP PIPELINE app.revenue")
    db.execute("DROP TOPIC app.dlq")
    db.execute("DROP TABLE app.customers")


def test_cascade_drops_the_pipeline_too(db: Database) -> None:
    db.execute(REVENUE)
    db.execute("DROP TABLE app.customers CASCADE")
    assert pipelines(db) == []
    assert db.verify().sound


def test_a_namespace_with_a_pipeline(db: Database) -> None:
    db.execute("CREATE NAMESPACE flows")
    db.execute(REVENUE.replace("app.revenue INTO", "flows.revenue INTO"))
    with pytest.raises(InUse, match=r"flows\.revenue"):
        db.execute("DROP NAMESPACE flows")


# --- reports ---


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(SETUP)
        running.sql(REVENUE)
        yield running


def bulk(server: ServerThread, user: str = "system", password: str = PASSWORD) -> BulkClient:
    return BulkClient(Server(server.url, user=user, password=password))


def shown(server: ServerThread, columns: str) -> list[list[Any]]:
    rows: list[list[Any]] = server.sql(f"SELECT {columns} FROM system.pipelines ORDER BY name")[0]["rows"]
    return rows


def test_a_report_is_shown(server: ServerThread) -> None:
    server.sql("INSERT INTO app.orders (id) VALUES " + ", ".join(f"({i})" for i in range(20)))
    with bulk(server) as client:
        wished = client.report_pipeline(
            "app.revenue",
            {"state": "running", "runner": "here:1", "rows_in": 7, "rows_out": 3, "rejected": 1, "skipped": 6, "restarts": 2,
             "batch_id": 4, "last_error": "x", "input_rows_per_second": 1.5, "positions": {"app.order_events": [3, 4]}},
        )  # fmt: skip
    assert wished == "running"
    columns = "state, runner, rows_in, rows_out, rejected, restarts, batch_id, last_error, input_rows_per_second, lag, skipped"
    assert shown(server, columns) == [["running", "here:1", "7", "3", "1", "2", "4", "x", 1.5, "13", "6"]]


def test_a_report_is_measured(server: ServerThread) -> None:
    with bulk(server) as client:
        client.report_pipeline(
            "app.revenue",
            {"state": "running", "runner": "x", "rows_in": 20, "rows_out": 12, "rejected": 3, "skipped": 5, "restarts": 1,
             "input_rows_per_second": 2.5, "processed_rows_per_second": 40.0},
        )  # fmt: skip
    text = server.get("/metrics").body.decode()
    measured = {"running": 1, "rows_in": 20, "rows_out": 12, "rejected_rows": 3, "skipped_messages": 5, "restarts": 1,
                "input_rows_per_second": 2.5, "processed_rows_per_second": 40}  # fmt: skip
    for name, value in measured.items():
        assert f'tablecast_pipeline_{name}{{pipeline="app.revenue"}} {float(value)}\n' in text


def test_the_lag_is_that_of_now(server: ServerThread) -> None:
    with bulk(server) as client:
        client.report_pipeline(
            "app.revenue", {"state": "running", "runner": "x", "positions": {"app.order_events": [0, 0]}}
        )
    assert shown(server, "lag") == [["0"]]
    server.sql("INSERT INTO app.orders (id) VALUES (1), (2), (3)")
    assert shown(server, "lag") == [["3"]]


def test_a_report_says_what_is_wished(server: ServerThread) -> None:
    with bulk(server) as client:
        said = {"state": "running", "runner": "x"}
        server.sql("STOP PIPELINE app.revenue")
        assert client.report_pipeline("app.revenue", said) == "stopped"
        assert client.report_pipeline("app.of_a_file", said | {"target": "app.t", "of_file": True}) == "unknown"
        assert client.report_pipeline("app.dropped", said) == "unknown"
    assert [row[0] for row in shown(server, "name")] == ["app.of_a_file", "app.revenue"]
    assert shown(server, "name, target, sql, state")[0] == ["app.of_a_file", "app.t", None, "running"]


def test_reports_that_are_refused(server: ServerThread) -> None:
    server.sql("CREATE USER 'ann' WITH PASSWORD 'a password of ann' ROLE 'user'")
    said = {"state": "running", "runner": "x"}
    path = "/pipelines/app.revenue/report"
    assert server.post(path, said, user=None).status == 401
    assert server.post(path, said, user="ann", password="a password of ann").status == 403
    assert server.post(path, said | {"state": "dancing"}).error["code"] == "invalid_pipeline"
    assert server.post(path, said | {"last_error": "x" * 5_000}).error["code"] == "invalid_pipeline"
    assert server.post(path, said | {"colour": "red"}).status == 400
    assert server.post("/pipelines/nothing/report", said).error["code"] == "invalid_pipeline"
    assert shown(server, "state") == [["not attached"]]


def test_reports_grow_old() -> None:
    now = [0]
    reports = PipelineReports(lambda: now[0])
    reports.put("app.p", PipelineReport("running", "x"))
    now[0] = round(REPORT_SECONDS * 1000)
    assert reports.is_fresh(reports.all()["app.p"])
    now[0] += 1
    assert not reports.is_fresh(reports.all()["app.p"])


def test_an_old_report_is_not_believed(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.execute(REVENUE)
    db.engine.pipeline_reports.put("app.revenue", PipelineReport("running", "here:1", rows_in=5))
    db.engine.pipeline_reports.put("app.of_a_file", PipelineReport("running", "here:1", of_file=True))
    assert pipelines(db, "name, state, runner") == [
        ("app.of_a_file", "running", "here:1"), ("app.revenue", "running", "here:1"),
    ]  # fmt: skip
    monkeypatch.setattr(reported, "REPORT_SECONDS", -1)
    assert pipelines(db, "name, state, runner, rows_in") == [("app.revenue", "not attached", None, 5)]


def test_reports_are_bounded() -> None:
    reports = PipelineReports(lambda: 0)
    for i in range(MAX_REPORTED_PIPELINES + 10):
        reports.put(f"app.p{i}", PipelineReport("running", "x"))
    assert len(reports.all()) == MAX_REPORTED_PIPELINES
    assert "app.p0" not in reports.all()


# --- dead letters of a load ---


def letter(topic: str = "app.dlq", **row: Any) -> LoadLetter:
    return LoadLetter(topic, "app.revenue", "it does not fit", row or {"day": "x"}, key='["x"]', column="day")


def lines(letters: list[LoadLetter]) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in letters)


def staged(client: BulkClient, load_id: str, part: int, letters: list[LoadLetter], attempt: str = "0") -> int:
    """How many the server found in it."""
    return client.put_part(load_id, part, lines(letters), attempt=attempt, content_type=LETTERS).rows


def test_letters_are_committed_with_their_load(server: ServerThread) -> None:
    server.sql("CREATE TOPIC app.dlq")
    with bulk(server) as client:
        load = client.begin_load("app.revenue_by_day", "w", 0, mode="upsert")
        assert staged(client, load.load_id, 0, [letter()]) == 1
        assert staged(client, load.load_id, 4, [letter(day="no attempt that counts")], "lost") == 1
        assert staged(client, load.load_id, 4, [letter(day="y")], "won") == 1
        done = client.commit_load(load.load_id, [(0, "0"), (4, "won")])
        again = client.begin_load("app.revenue_by_day", "w", 0, mode="upsert")
        assert again.committed is not None
        assert (again.committed.seq, again.committed.row_count) == (done.seq, 0)
        repeated = client.commit_load(load.load_id, [(0, "0"), (4, "won")])
        assert repeated.already
    messages = server.db.database.consume("app.dlq", limit=10, group="g").messages
    assert [message.seq for message in messages] == [done.seq] * 2
    payload = msgspec.json.decode(messages[0].payload)
    assert payload["_table"] == "app.revenue_by_day"
    assert payload["_rejected"]["reason"] == "it does not fit"
    assert payload["row"] == {"day": "x"}
    assert server.db.database.verify().sound


def inserted(client: BulkClient, batch_id: int, rows: list[tuple[str, int]], to: DuplicateLetters | None) -> LoadDone:
    load = client.begin_load("app.seen", "w", batch_id, mode="insert")
    sink = pa.BufferOutputStream()
    columns = [pa.array([row[i] for row in rows]) for i in range(2)]
    batch = pa.RecordBatch.from_arrays(columns, names=["word", "n"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    client.put_part(load.load_id, 0, sink.getvalue().to_pybytes())
    if to is not None:
        staged(client, load.load_id, 1, [letter()])
    return client.commit_load(load.load_id, [(0, "0"), (1, "0")] if to else [(0, "0")], duplicates=to)


def test_rows_whose_key_is_there_become_letters_of_the_commit_that_finds_them(server: ServerThread) -> None:
    server.sql(
        "CREATE TOPIC app.dlq;"
        "CREATE TABLE app.seen (word TEXT PRIMARY KEY, n INT, note TEXT DEFAULT 'none');"
        "INSERT INTO app.seen VALUES ('old', 1, 'kept')"
    )
    aside = DuplicateLetters("app.dlq", "app.revenue", 7)
    rows = [("a", 1), ("old", 2), ("b", 3), ("a", 4)]
    with bulk(server) as client:
        with pytest.raises(DuplicateKey, match="row 1"):
            inserted(client, 7, rows, None)
        done = inserted(client, 7, rows, aside)
        assert (done.row_count, done.already) == (2, False)
        again = client.begin_load("app.seen", "w", 7, mode="insert").committed
        assert again is not None
        assert (again.seq, again.row_count) == (done.seq, 2)
    kept = server.sql("SELECT word, n, note FROM app.seen ORDER BY word")[-1]["rows"]
    assert kept == [["a", 1, "none"], ["b", 3, "none"], ["old", 1, "kept"]]
    messages = server.db.database.consume("app.dlq", limit=10, group="g").messages
    assert {message.seq for message in messages} == {done.seq}
    told = [msgspec.json.decode(message.payload) for message in messages]
    assert sorted((each["_rejected"]["code"], each["row"].get("word"), each["row"].get("n")) for each in told) == [
        ("duplicate_key", "a", 4),
        ("duplicate_key", "old", 2),
        ("type_mismatch", None, None),
    ]
    refused = next(each for each in told if each["row"].get("word") == "old")
    assert refused["_table"] == "app.seen"
    assert refused["_rejected"]["batch_id"] == 7
    assert "already has a row with word = 'old'" in refused["_rejected"]["reason"]
    assert server.db.database.verify().sound


def test_duplicates_are_for_inserts_and_not_without_end(server: ServerThread) -> None:
    server.sql("CREATE TOPIC app.dlq; CREATE TABLE app.seen (word TEXT PRIMARY KEY, n INT)")
    aside = DuplicateLetters("app.dlq", "app.revenue")
    with bulk(server) as client:
        load = client.begin_load("app.seen", "w", 0, mode="upsert")
        with pytest.raises(InvalidRequest, match="mode insert, not upsert"):
            client.commit_load(load.load_id, [], duplicates=aside)
        client.abort_load(load.load_id)
        with pytest.raises(TooLarge):
            inserted(client, 1, [("same", i) for i in range(MAX_LETTERS + 2)], aside)
        with pytest.raises(TooLarge):  # with the letter that comes with it
            inserted(client, 2, [("same", i) for i in range(MAX_LETTERS + 1)], aside)
    assert server.sql("SELECT word FROM app.seen")[-1]["rows"] == []


def test_letters_that_are_refused(server: ServerThread) -> None:
    server.sql("CREATE TOPIC app.dlq")
    with bulk(server) as client:
        for number, (letters, error) in enumerate(
            [
                ([letter("app.order_events")], InvalidTopic),
                ([letter("app.nothing")], UnknownTopic),
                ([letter()] * (MAX_LETTERS // 2 + 1), TooLarge),  # of two parts
            ]
        ):
            load = client.begin_load("app.revenue_by_day", "w", number, mode="upsert")
            staged(client, load.load_id, 0, letters)
            staged(client, load.load_id, 1, letters)
            with pytest.raises(error):
                client.commit_load(load.load_id, [(0, "0"), (1, "0")])
    assert server.db.database.consume("app.dlq", limit=10, group="g").messages == []
    assert server.db.database.verify().sound


@pytest.mark.parametrize(
    ("part", "error", "culprit"),
    [
        (lines([letter()]) + b'{"topic": "app.dlq"}\n', InvalidPart, "line 2"),
        (lines([letter()]) + b"not JSON\n", InvalidPart, "line 2"),
        (b'{"topic": "app.dlq", "pipeline": "p", "reason": "\xff", "row": {}}\n', InvalidPart, "line 1"),
        (b"{" + b"[" * 100_000, InvalidPart, "line 1"),
        (b"", InvalidPart, "not a whole Arrow IPC stream"),
        (lines([letter()] * (MAX_LETTERS + 1)), TooLarge, str(MAX_LETTERS)),
        (lines([letter(day="x" * 2**20)]) * 65, TooLarge, str(MAX_LETTERS_BYTES)),
    ],
    ids=["no letter", "no JSON", "no UTF-8", "too deep", "nothing", "too many", "too long"],
)
def test_parts_that_are_no_letters_are_not_staged(
    server: ServerThread, part: bytes, error: type[TablecastError], culprit: str
) -> None:
    with bulk(server) as client:
        load = client.begin_load("app.revenue_by_day", "w", 0, mode="upsert")
        with pytest.raises(error, match=culprit):
            client.put_part(load.load_id, 0, part, content_type=LETTERS)
        with pytest.raises(InvalidPart, match="was not staged"):
            client.commit_load(load.load_id, [(0, "0")])


def test_a_sealed_load_takes_no_letters(server: ServerThread) -> None:
    with bulk(server) as client:
        load = client.begin_load("app.revenue_by_day", "w", 0, kind="sealed")
        with pytest.raises(InvalidPart):
            staged(client, load.load_id, 0, [letter()])
