"""The role matrix: nobody, user, service, dba and system, at every endpoint and with every kind of statement.

Each table below says what is asked, and the least role that gets it: `anybody` needs no credentials, `none` is refused
to all. From the least role on the answer is 200; below it 403; without credentials 401. A statement, endpoint, system
table or access level that is added to the source without a row here fails a test.

`{role}` in a text is the role that asks, so that each has something of its own to create or to drop; `given` is what
the account `system` runs before.
"""

from __future__ import annotations

import http.client
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pytest
from described import assert_described
from server_fixture import Answer, ServerThread, basic

from tablecast.engine.system import SYSTEM_TABLES
from tablecast.model.schema import AccessLevel, Role, TableKind
from tablecast.server.app import SERVED
from tablecast.sql import statements as s
from tablecast.sql.parse import parse

PASSWORDS = {role: f"the password of {role}" for role in ("user", "service", "dba", "system")}
ROLES = ("nobody", *PASSWORDS)  # from the least to the highest
ANYBODY, USER, SERVICE, DBA, SYSTEM, NONE = "anybody", "user", "service", "dba", "system", "none"
ACCOUNT = {role: f"a_{role}" for role in PASSWORDS}

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.public (id INT PRIMARY KEY, v INT) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE TABLE app.private (id INT PRIMARY KEY, v INT);
CREATE TABLE app.restricted (id INT PRIMARY KEY, v INT) WITH (ACCESS_LEVEL = 'RESTRICTED');
CREATE USER TABLE app.own (id INT PRIMARY KEY, v INT);
CREATE STREAM TABLE app.clicks (id INT PRIMARY KEY, v INT) WITH (TTL_SECONDS = 3600);
CREATE TOPIC app.dead;
CREATE TOPIC app.events WITH (max_deliveries = 1, dead_letter = 'app.dead');
ALTER TOPIC app.events ADD SOURCE app.private ON ANY;
CREATE TOPIC app.scratch;
CREATE PIPELINE app.flow INTO app.public AS SELECT id, v FROM TOPIC app.events;
INSERT INTO app.public VALUES (0, 0);
INSERT INTO app.private VALUES (0, 0), (1, 1), (2, 2);
INSERT INTO app.restricted VALUES (0, 0);
"""


class Row(NamedTuple):
    kind: type[s.Statement]
    least: str
    sql: str
    given: str = ""


# --- every kind of statement ------------------------------------------------------------------------------------

STATEMENTS = [
    # namespaces and tables
    Row(s.CreateNamespace,     DBA,     "CREATE NAMESPACE made_{role}"),
    Row(s.CreateNamespace,     DBA,     "CREATE NAMESPACE IF NOT EXISTS app"),
    Row(s.DropNamespace,       DBA,     "DROP NAMESPACE gone_{role}", "CREATE NAMESPACE gone_{role}"),
    Row(s.DropNamespace,       DBA,     "DROP NAMESPACE IF EXISTS never"),
    Row(s.CreateTable,         DBA,     "CREATE TABLE app.made_{role} (id INT PRIMARY KEY)"),
    Row(s.CreateTable,         DBA,     "CREATE USER TABLE app.mine_{role} (id INT PRIMARY KEY)"),
    Row(s.CreateTable,         DBA,     "CREATE TABLE IF NOT EXISTS app.public (id INT PRIMARY KEY)"),
    Row(s.DropTable,           DBA,     "DROP TABLE app.t_{role}", "CREATE TABLE app.t_{role} (id INT PRIMARY KEY)"),
    Row(s.DropTable,           DBA,     "DROP TABLE app.o_{role}", "CREATE USER TABLE app.o_{role} (id INT PRIMARY KEY)"),
    Row(s.AlterTableAddColumn, DBA,     "ALTER TABLE app.a_{role} ADD COLUMN w INT",
        "CREATE TABLE app.a_{role} (id INT PRIMARY KEY)"),
    # topics and groups
    Row(s.CreateTopic,         DBA,     "CREATE TOPIC app.topic_{role}"),
    Row(s.AddSource,           DBA,     "ALTER TOPIC app.add_{role} ADD SOURCE app.public ON ANY",
        "CREATE TOPIC app.add_{role}"),
    Row(s.AddSource,           DBA,     "ALTER TOPIC app.spy_{role} ADD SOURCE app.own ON ANY", "CREATE TOPIC app.spy_{role}"),
    Row(s.DropSource,          DBA,     "ALTER TOPIC app.sub_{role} DROP SOURCE app.public",
        "CREATE TOPIC app.sub_{role}; ALTER TOPIC app.sub_{role} ADD SOURCE app.public ON ANY"),
    Row(s.SetTopic,            DBA,     "ALTER TOPIC app.scratch SET (retention_seconds = 100)"),
    Row(s.RenameTopic,         DBA,     "ALTER TOPIC app.old_{role} RENAME TO new_{role}", "CREATE TOPIC app.old_{role}"),
    Row(s.SetAlias,            DBA,     "ALTER TOPIC app.called_{role} SET ALIAS '{role}'", "CREATE TOPIC app.called_{role}"),
    Row(s.DropTopic,           DBA,     "DROP TOPIC app.dt_{role}", "CREATE TOPIC app.dt_{role}"),
    Row(s.ClearTopic,          DBA,     "CLEAR TOPIC app.scratch"),
    Row(s.Consume,             SERVICE, "CONSUME FROM app.events FROM EARLIEST LIMIT 1"),
    Row(s.Consume,             SERVICE, "CONSUME FROM app.events GROUP 'g_{role}' LIMIT 1"),
    Row(s.Ack,                 SERVICE, "ACK app.events GROUP 'ack_{role}' UPTO OFFSET 0",
        "CONSUME FROM app.events GROUP 'ack_{role}' LIMIT 1"),
    Row(s.Ack,                 SERVICE, "ACK app.events GROUP 'single_{role}' OFFSET 0",
        "CONSUME FROM app.events GROUP 'single_{role}' LIMIT 1"),
    Row(s.Nack,                SERVICE, "NACK app.events GROUP 'nack_{role}' OFFSET 0",
        "CONSUME FROM app.events GROUP 'nack_{role}' LIMIT 1"),
    Row(s.Redrive,             DBA,     "REDRIVE TOPIC app.dead ALL"),
    Row(s.CancelJob,           DBA,     "CANCEL JOB 'retention'"),
    Row(s.ResetGroup,          DBA,     "RESET GROUP 'reset_{role}' ON app.events TO EARLIEST",
        "CONSUME FROM app.events GROUP 'reset_{role}' LIMIT 1"),
    # pipelines
    Row(s.CreatePipeline,      DBA,     "CREATE PIPELINE app.p_{role} INTO app.public AS SELECT id, v FROM TOPIC app.events"),
    Row(s.StartPipeline,       DBA,     "START PIPELINE app.flow"),
    Row(s.StopPipeline,        DBA,     "STOP PIPELINE app.flow"),
    Row(s.DropPipeline,        DBA,     "DROP PIPELINE app.q_{role}",
        "CREATE PIPELINE app.q_{role} INTO app.public AS SELECT id, v FROM TOPIC app.events"),
    Row(s.ShowPipelines,       SERVICE, "SHOW PIPELINES"),
    Row(s.DescribePipeline,    SERVICE, "DESCRIBE PIPELINE app.flow"),
    # looking around
    Row(s.ShowNamespaces,      USER,    "SHOW NAMESPACES"),
    Row(s.ShowTables,          USER,    "SHOW TABLES"),
    Row(s.ShowTopics,          SERVICE, "SHOW TOPICS"),
    Row(s.Describe,            USER,    "DESCRIBE app.public"),
    Row(s.Describe,            SERVICE, "DESCRIBE app.private"),
    Row(s.Describe,            DBA,     "DESCRIBE app.restricted"),
    Row(s.Describe,            USER,    "DESCRIBE app.own"),
    Row(s.Describe,            SERVICE, "DESCRIBE system.topics"),
    Row(s.Describe,            DBA,     "DESCRIBE system.audit_log"),
    Row(s.DescribeTopic,       SERVICE, "DESCRIBE TOPIC app.events"),
    # transactions
    Row(s.Begin,               USER,    "BEGIN; COMMIT"),
    Row(s.Commit,              USER,    "BEGIN; INSERT INTO app.own VALUES (1, 1); COMMIT"),
    Row(s.Commit,              SERVICE, "BEGIN; UPDATE app.public SET v = 1; COMMIT"),
    Row(s.Rollback,            USER,    "BEGIN; DELETE FROM app.own; ROLLBACK"),
    # users
    Row(s.ExecuteAs,           SERVICE, "EXECUTE AS USER 'zoe' (SELECT * FROM app.own)"),
    Row(s.ExecuteAs,           SERVICE, "EXECUTE AS USER 'a_system' (SELECT * FROM app.public)"),
    Row(s.ExecuteAs,           NONE,    "EXECUTE AS USER 'a_system' (SELECT * FROM app.private)"),
    Row(s.ExecuteAs,           NONE,    "EXECUTE AS USER 'a_system' (DROP TABLE app.public)"),
    Row(s.CreateUser,          DBA,     "CREATE USER 'u_{role}' WITH PASSWORD 'long enough'"),
    Row(s.CreateUser,          DBA,     "CREATE USER 'd_{role}' WITH PASSWORD 'long enough' ROLE 'dba'"),
    Row(s.CreateUser,          SYSTEM,  "CREATE USER 's_{role}' WITH PASSWORD 'long enough' ROLE 'system'"),
    Row(s.AlterUser,           DBA,     "ALTER USER 'w_{role}' SET PASSWORD 'another one'",
        "CREATE USER 'w_{role}' WITH PASSWORD 'long enough'"),
    Row(s.AlterUser,           DBA,     "ALTER USER 'r_{role}' SET ROLE 'service'",
        "CREATE USER 'r_{role}' WITH PASSWORD 'long enough'"),
    Row(s.AlterUser,           SYSTEM,  "ALTER USER 'x_{role}' SET PASSWORD 'another one'",
        "CREATE USER 'x_{role}' WITH PASSWORD 'long enough' ROLE 'system'"),
    Row(s.AlterUser,           SYSTEM,  "ALTER USER 'y_{role}' SET ROLE 'system'",
        "CREATE USER 'y_{role}' WITH PASSWORD 'long enough'"),
    Row(s.DropUser,            DBA,     "DROP USER 'v_{role}'", "CREATE USER 'v_{role}' WITH PASSWORD 'long enough'"),
    Row(s.DropUser,            SYSTEM,  "DROP USER 'z_{role}'",
        "CREATE USER 'z_{role}' WITH PASSWORD 'long enough' ROLE 'system'"),
    Row(s.GrantRole,           DBA,     "GRANT ROLE 'service' TO 'g_{role}'",
        "CREATE USER 'g_{role}' WITH PASSWORD 'long enough'"),
    Row(s.GrantRole,           SYSTEM,  "GRANT ROLE 'system' TO 'h_{role}'",
        "CREATE USER 'h_{role}' WITH PASSWORD 'long enough'"),
    # rows: what reads and writes tables is below, by access level
    Row(s.Select,              USER,    "SELECT 1 AS one"),
    Row(s.Select,              USER,    "SELECT CURRENT_USER() AS me"),
    Row(s.Insert,              USER,    "INSERT INTO app.own VALUES (2, 2)"),
    Row(s.Insert,              SERVICE, "INSERT INTO app.public VALUES (1, 1) ON CONFLICT DO NOTHING"),
    Row(s.Update,              USER,    "UPDATE app.clicks SET v = 1"),
    Row(s.Update,              DBA,     "UPDATE app.restricted SET v = 1"),
    Row(s.Delete,              USER,    "DELETE FROM app.own"),
    Row(s.Delete,              SERVICE, "DELETE FROM app.private WHERE id = 1"),
]  # fmt: skip

# What no role makes possible: refused as text, before anybody's rights are looked at.
NEVER = [
    "CREATE TABLE system.mine (id INT PRIMARY KEY)",
    "DROP TABLE system.audit_log",
    "ALTER TABLE system.users ADD COLUMN w INT",
    "ALTER TOPIC app.scratch ADD SOURCE system.audit_log ON ANY",
    "INSERT INTO system.users (name) VALUES ('eve')",
    "UPDATE system.settings SET value = 'none'",
    "DELETE FROM system.audit_log",
    "EXECUTE AS USER 'zoe' (EXECUTE AS USER 'yan' (SELECT * FROM app.own))",
]

# --- every system table -----------------------------------------------------------------------------------------

SYSTEM_TABLE_READERS = {
    "namespaces": SERVICE, "tables": SERVICE, "columns": SERVICE, "topics": SERVICE, "topic_sources": SERVICE,
    "topic_partitions": SERVICE, "topic_offsets": SERVICE,
    "topic_groups": SERVICE, "jobs": SERVICE, "settings": SERVICE, "loads": SERVICE,
    "pipelines": SERVICE, "replication": SERVICE, "replication_quarantine": SERVICE, "live_queries": DBA, "users": DBA,
    "audit_log": DBA, "topic_claims": SERVICE, "topic_redriven": SERVICE, "metrics": SERVICE, "cluster": SERVICE,
}  # fmt: skip

# --- every access level -----------------------------------------------------------------------------------------


class Access(NamedTuple):
    reads: str
    writes: str


TABLES = {
    "app.public":     Access(reads=USER,    writes=SERVICE),
    "app.private":    Access(reads=SERVICE, writes=SERVICE),
    "app.restricted": Access(reads=DBA,     writes=DBA),
    "app.own":        Access(reads=USER,    writes=USER),
    "app.clicks":     Access(reads=USER,    writes=USER),
}  # fmt: skip

READS = [
    "SELECT * FROM {table}",
    "SELECT v FROM {table} WHERE id = 0",
    "SELECT count(*) AS n FROM {table}",
    "SELECT p.v FROM app.public AS p JOIN {table} AS t ON p.id = t.id",
    "SELECT * FROM app.public WHERE id IN (SELECT id FROM {table})",
    "WITH t AS (SELECT * FROM {table}) SELECT * FROM t",
    "SELECT id FROM app.public UNION ALL SELECT id FROM {table}",
    "SELECT (SELECT max(v) FROM {table}) AS m",
    "INSERT INTO app.own SELECT id, v FROM {table} WHERE id < 0",
    "UPDATE app.own SET v = (SELECT max(v) FROM {table}) WHERE id = -1",
    "DELETE FROM app.own WHERE id IN (SELECT v FROM {table} WHERE id < 0)",
]
# Each twice: the second time a statement goes the prepared way. 900 and above are the keys of the role that asks.
WRITES = [
    "DELETE FROM {table} WHERE id = {key}",
    "INSERT INTO {table} VALUES ({key}, 1)",
    "INSERT INTO {table} VALUES ({key}, 2) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    "INSERT INTO {table} SELECT {key} + 10, 1 ON CONFLICT (id) DO NOTHING",
    "UPDATE {table} SET v = 3 WHERE id = {key}",
    "UPDATE {table} SET v = 4 WHERE id = {key} RETURNING v",
    "DELETE FROM {table} WHERE id >= {key} AND id < {key} + 20",
]

# --- every endpoint ---------------------------------------------------------------------------------------------

API = "/v1/api"
CLAIM = {"topic": "app.events", "group_id": "h_{role}", "consumer": "c"}


class Endpoint(NamedTuple):
    method: str
    path: str
    least: str
    body: Any = None
    address: str = ""  # the path with its parameters, where it has some


ENDPOINTS = [
    Endpoint("POST", f"{API}/sql", USER, {"sql": "SELECT 1 AS one"}),
    Endpoint("POST", f"{API}/transactions", USER),
    Endpoint("DELETE", f"{API}/transactions/{{transaction}}", USER, None, f"{API}/transactions/none"),
    Endpoint("POST", f"{API}/writes", USER, {"writes": [{"sql": "DELETE FROM app.own"}]}),
    Endpoint("POST", f"{API}/tables/{{table}}/rows", USER, [{"id": 7}], f"{API}/tables/app.own/rows?mode=upsert"),
    Endpoint("POST", f"{API}/tables/{{table}}/rows", SERVICE, [{"id": 7}], f"{API}/tables/app.public/rows?mode=upsert"),
    Endpoint("POST", f"{API}/tables/{{table}}/rows", NONE, [{"name": "eve"}], f"{API}/tables/system.users/rows"),
    Endpoint("POST", f"{API}/topics/consume", SERVICE,
             {"topic": "app.events", "start": {"type": "Earliest"}, "limit": 1, "timeout_seconds": 0}),
    Endpoint("POST", f"{API}/topics/consume", SERVICE, {**CLAIM, "limit": 1, "timeout_seconds": 0}),
    Endpoint("POST", f"{API}/topics/extend", SERVICE, {**CLAIM, "visibility_seconds": 60}),
    Endpoint("POST", f"{API}/topics/ack", SERVICE, {**CLAIM, "partition_id": 0, "upto_offset": 0}),
    Endpoint("POST", f"{API}/topics/release", SERVICE, CLAIM),
    Endpoint("GET", f"{API}/topics/{{topic}}/arrow", SERVICE, None, f"{API}/topics/app.events/arrow"),
    Endpoint("GET", f"{API}/topics/{{topic}}/log", SERVICE, None, f"{API}/topics/app.events/log"),
    Endpoint("GET", f"{API}/topics/{{topic}}", SERVICE, None, f"{API}/topics/app.events"),
    Endpoint("POST", f"{API}/snapshots", USER, {"table": "app.own"}),
    Endpoint("POST", f"{API}/snapshots", SERVICE, {"table": "app.private"}),
    Endpoint("DELETE", f"{API}/snapshots/{{snapshot}}", USER, None, f"{API}/snapshots/none"),
    Endpoint("POST", f"{API}/loads", SERVICE, {"table": "app.private", "writer_id": "{role}", "batch_id": 0}),
    Endpoint("POST", f"{API}/loads", SERVICE, {"table": "app.own", "writer_id": "{role}", "batch_id": 0}),
    Endpoint("GET", f"{API}/loads", SERVICE),
    Endpoint("DELETE", f"{API}/loads/{{load}}", SERVICE, None, f"{API}/loads/none"),
    Endpoint("POST", f"{API}/pipelines/{{name}}/report", SERVICE,
             {"state": "running", "runner": "{role}"}, f"{API}/pipelines/app.flow/report"),
    Endpoint("POST", f"{API}/verify", DBA),
    Endpoint("POST", f"{API}/auth/login", ANYBODY, {"user": "a_user", "password": PASSWORDS["user"]}),
    Endpoint("GET", f"{API}/auth/me", USER),
    Endpoint("GET", "/health", ANYBODY),
    Endpoint("GET", "/ready", ANYBODY),
    Endpoint("GET", "/metrics", SERVICE),
    Endpoint("GET", "/openapi.json", ANYBODY),
    Endpoint("GET", "/docs", ANYBODY),
]  # fmt: skip
REFRESH = ("POST", f"{API}/auth/refresh")  # each needs a token of its own: a test of its own
BACKUP = ("POST", f"{API}/backup")  # of files, which a server in memory has not: test_maintenance.py
# These need something that was opened before: a test of its own, too.
LIVE = ("GET", f"{API}/live")  # does not end by itself: a test of its own
OF_A_SNAPSHOT = ("GET", f"{API}/snapshots/{{snapshot}}/rows")
OF_A_TRANSACTION = ("POST", f"{API}/transactions/{{transaction}}/commit")
OF_A_LOAD = [("PUT", f"{API}/loads/{{load}}/parts/{{part}}"), ("POST", f"{API}/loads/{{load}}/commit")]


# --- asking -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        prepare(running)
        yield running


def prepare(server: ServerThread) -> None:
    server.sql(SETUP)
    for role, password in PASSWORDS.items():
        server.sql(f"CREATE USER '{ACCOUNT[role]}' WITH PASSWORD '{password}' ROLE '{role}'")
        server.sql(filled("CONSUME FROM app.events GROUP 'h_{role}' FROM EARLIEST LIMIT 1", role))  # a group to ack for


def expected(role: str, least: str) -> int:
    if least == ANYBODY:
        return 200
    if role == "nobody":
        return 401
    return 200 if least != NONE and ROLES.index(role) >= ROLES.index(least) else 403


def request(server: ServerThread, role: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    sent = headers if role == "nobody" else headers | {"Authorization": basic(ACCOUNT[role], PASSWORDS[role])}
    answer = server.request(method, path, body, user=None, headers=sent)
    assert_described(method, path, answer)
    return answer


def ask(server: ServerThread, role: str, sql: str) -> Answer:
    return request(server, role, "POST", f"{API}/sql", {"sql": sql})


def judge(answer: Answer, role: str, least: str, what: str) -> None:
    wanted = expected(role, least)
    assert answer.status == wanted, f"{role}: {what}: {answer.status} instead of {wanted}: {answer.body!r}"
    if wanted != 200:
        assert answer.error["code"] == {401: "unauthenticated", 403: "permission_denied"}[wanted]


def filled(value: Any, role: str) -> Any:
    """With the role in place of `{role}`."""
    if isinstance(value, dict):
        return {name: filled(item, role) for name, item in value.items()}
    return value.replace("{role}", role) if isinstance(value, str) else value


# --- the tables are whole ---------------------------------------------------------------------------------------


def test_every_kind_of_statement_has_a_row() -> None:
    kinds = {kind for _, kind in inspect.getmembers(s, inspect.isclass) if issubclass(kind, s.Statement)}
    assert {row.kind for row in STATEMENTS} == kinds - {s.Statement, s.RunOnSpark}  # which has a test of its own
    for row in STATEMENTS:
        assert row.kind in {type(statement) for statement in parse(filled(row.sql, "user"))}, row.sql


@pytest.mark.parametrize("sql", ["COPY app.public FROM '/tmp/x' (FORMAT json)", "AUDIT TOPIC app.events"])
def test_what_runs_on_spark_is_described_to_service_and_above(server: ServerThread, sql: str) -> None:
    """The server runs none of it. Who may not run it is not told more."""
    for role in ROLES:
        answer = ask(server, role, sql)
        wanted = expected(role, SERVICE)
        assert answer.status == (400 if wanted == 200 else wanted), answer.body
        assert answer.error["code"] == (
            "runs_on_spark" if wanted == 200 else {401: "unauthenticated", 403: "permission_denied"}[wanted]
        )


@pytest.mark.parametrize(
    ("table", "least"),
    [
        ("app.public", USER), ("app.private", SERVICE), ("app.own", USER),
        *((f"system.{name}", least) for name, least in SYSTEM_TABLE_READERS.items()),
    ],
)  # fmt: skip
def test_live_queries_are_for_who_may_read_the_table(server: ServerThread, table: str, least: str) -> None:
    """An answer that is let in does not end: its head is looked at."""
    for role in ROLES:
        headers = {} if role == "nobody" else {"Authorization": basic(ACCOUNT[role], PASSWORDS[role])}
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
        connection.request(LIVE[0], f"{LIVE[1]}?{urlencode({'sql': f'SELECT * FROM {table}'})}", headers=headers)
        assert connection.getresponse().status == expected(role, least), (role, table)
        connection.close()


def test_every_endpoint_has_a_row() -> None:
    apart = {REFRESH, BACKUP, OF_A_SNAPSHOT, OF_A_TRANSACTION, *OF_A_LOAD, LIVE}
    assert {(row.method, row.path) for row in ENDPOINTS} | apart == {(e.method, e.path) for e in SERVED}


def test_every_system_table_has_a_row() -> None:
    assert SYSTEM_TABLE_READERS.keys() == SYSTEM_TABLES.keys()


def test_every_access_level_kind_of_table_and_role_has_a_row() -> None:
    assert {f"app.{level.lower()}" for level in AccessLevel} <= TABLES.keys()
    assert len(TABLES) == len(AccessLevel) + len(TableKind) - 1  # SHARED is there once per level
    assert [role.name.lower() for role in Role] == list(PASSWORDS)


# --- the matrix -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: row.sql)
def test_statements(server: ServerThread, row: Row) -> None:
    for role in ROLES:
        if row.given:
            server.sql(filled(row.given, role))
        judge(ask(server, role, filled(row.sql, role)), role, row.least, row.sql)


@pytest.mark.parametrize("sql", NEVER)
def test_what_no_role_may(server: ServerThread, sql: str) -> None:
    statuses = [ask(server, role, sql).status for role in ROLES]
    assert statuses == [401, 400, 400, 400, 400]


@pytest.mark.parametrize("table", SYSTEM_TABLE_READERS)
def test_system_tables(server: ServerThread, table: str) -> None:
    for role in ROLES:
        for sql in (f"SELECT * FROM system.{table}", f'SELECT count(*) AS n FROM app.own, "system"."{table}"'):
            judge(ask(server, role, sql), role, SYSTEM_TABLE_READERS[table], sql)


@pytest.mark.parametrize("table", TABLES)
def test_reading(server: ServerThread, table: str) -> None:
    for role in ROLES:
        for sql in READS:
            judge(ask(server, role, sql.format(table=table)), role, TABLES[table].reads, sql)


@pytest.mark.parametrize("table", TABLES)
def test_writing_with_sql(server: ServerThread, table: str) -> None:
    for role in ROLES:
        key = 900 + 30 * ROLES.index(role)
        for _ in range(2):
            for sql in WRITES:
                judge(ask(server, role, sql.format(table=table, key=key)), role, TABLES[table].writes, sql)


@pytest.mark.parametrize("table", TABLES)
def test_writing_rows(server: ServerThread, table: str) -> None:
    for role in ROLES:
        key = 2_000 + ROLES.index(role)
        arrow = pa.table({"id": pa.array([key], pa.int32()), "v": pa.array([1], pa.int32())})
        for mode in ("insert", "upsert", "delete"):
            rows: list[Any] = [{"id": key}] if mode == "delete" else [{"id": key, "v": 1}]
            answer = request(server, role, "POST", f"{API}/tables/{table}/rows?mode={mode}", rows)
            judge(answer, role, TABLES[table].writes, f"{mode} into {table}")
        stream = arrow_stream(arrow)
        kind = {"Content-Type": "application/vnd.apache.arrow.stream"}
        answer = request(server, role, "POST", f"{API}/tables/{table}/rows?mode=upsert", stream, **kind)
        judge(answer, role, TABLES[table].writes, f"Arrow into {table}")


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("table", TABLES)
def test_reading_a_snapshot(server: ServerThread, table: str) -> None:
    for role in ROLES:
        opened = request(server, role, "POST", f"{API}/snapshots", {"table": table})
        judge(opened, role, TABLES[table].reads, f"a snapshot of {table}")
        if opened.status == 200:
            path = f"{API}/snapshots/{opened.json()['snapshot_id']}"
            assert request(server, role, "GET", f"{path}/rows").status == 200
            for other in ROLES:
                if other != role:
                    expected = 401 if other == "nobody" else 410
                    assert request(server, other, "GET", f"{path}/rows").status == expected
            assert request(server, role, "DELETE", path).json() == {"closed": True}


def test_a_transaction_is_that_of_the_account_that_began_it(server: ServerThread) -> None:
    for role in ROLES[1:]:
        begun = request(server, role, "POST", f"{API}/transactions").json()["transaction_id"]
        path = f"{API}/transactions/{begun}/commit"
        for other in ROLES:
            if other != role:
                assert request(server, other, "POST", path).status == (401 if other == "nobody" else 409)
        assert request(server, role, "POST", path).status == 200


@pytest.mark.parametrize("table", TABLES)
def test_loading(server: ServerThread, table: str) -> None:
    """A load takes service, also into a table that is the user's own; who began it, and dba, may go on with it."""
    least = DBA if TABLES[table].writes == DBA else SERVICE
    for role in ROLES:
        begun = request(
            server, role, "POST", f"{API}/loads", {"table": table, "writer_id": f"by_{role}", "batch_id": 0}
        )
        judge(begun, role, least, f"a load into {table}")
    owner = {"table": table, "writer_id": "matrix", "batch_id": 0}
    load = request(server, least, "POST", f"{API}/loads", owner).json()["load_id"]
    path = f"{API}/loads/{load}"
    part = arrow_stream(pa.table({"id": pa.array([4_000], pa.int32()), "v": pa.array([1], pa.int32())}))
    for role in reversed(ROLES):
        judge(request(server, role, "PUT", f"{path}/parts/0", part), role, least, "a part")
    for role in ROLES:
        judge(request(server, role, "POST", f"{path}/commit", {"parts": [[0, "0"]]}), role, least, "a commit")


@pytest.mark.parametrize("table", TABLES)
def test_writing_many(server: ServerThread, table: str) -> None:
    """Each write of a request has its own answer: what the role may not do is refused beside what it may."""
    for role in ROLES:
        key = 3_000 + ROLES.index(role)
        writes = [
            {"table": table, "rows": [{"id": key, "v": 1}], "mode": "upsert"},
            {"sql": f"UPDATE {table} SET v = 2 WHERE id = {key}"},
            {"sql": f"UPDATE app.own SET v = (SELECT max(v) FROM {table}) WHERE id = -1"},
            {"sql": "DELETE FROM app.own WHERE id = -1"},
        ]
        answer = request(server, role, "POST", f"{API}/writes", {"writes": writes})
        assert answer.status == expected(role, USER)
        if role != "nobody":
            statuses = [status_of(result) for result in answer.json()["results"]]
            access = TABLES[table]
            assert statuses == [expected(role, least) for least in (access.writes, access.writes, access.reads, USER)]


def status_of(result: dict[str, Any]) -> int:
    return {"permission_denied": 403}[result["error"]["code"]] if "error" in result else 200


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.address or row.path}")
def test_endpoints(server: ServerThread, row: Endpoint) -> None:
    """With a password, and with a token: the role is the account's, however it signs in."""
    for role in ROLES:
        answer = request(server, role, row.method, row.address or row.path, filled(row.body, role))
        judge(answer, role, row.least, row.path)
        if role != "nobody":
            bearer = {"Authorization": f"Bearer {tokens(server, role)['access_token']}"}
            body = filled(row.body, role)
            answer = server.request(row.method, row.address or row.path, body, user=None, headers=bearer)
            judge(answer, role, row.least, row.path)


def tokens(server: ServerThread, role: str) -> dict[str, Any]:
    login = {"user": ACCOUNT[role], "password": PASSWORDS[role]}
    answer = server.post("/auth/login", login, user=None)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("role", PASSWORDS)
def test_a_refresh_token_needs_no_other_credentials_and_is_none_itself(server: ServerThread, role: str) -> None:
    token = tokens(server, role)["refresh_token"]
    as_access = server.get(f"{API}/auth/me", user=None, headers={"Authorization": f"Bearer {token}"})
    assert as_access.status == 401
    refreshed = server.post("/auth/refresh", {"refresh_token": token}, user=None)
    assert (refreshed.status, refreshed.json()["role"]) == (200, role)
    assert server.post("/auth/refresh", {"refresh_token": "none"}, user=None).status == 401


def test_what_was_refused_has_changed_nothing() -> None:
    """A user who tried everything made nothing, and what it tried to drop is there."""
    with ServerThread() as fresh:
        prepare(fresh)
        for row in STATEMENTS:
            if row.given:
                fresh.sql(filled(row.given, "user"))
        before = [fresh.sql(f"SELECT * FROM system.{table}")[0]["rows"] for table in ("tables", "topics", "users")]
        for row in STATEMENTS:
            if row.least not in (ANYBODY, USER):
                judge(ask(fresh, "user", filled(row.sql, "user")), "user", row.least, row.sql)
        after = [fresh.sql(f"SELECT * FROM system.{table}")[0]["rows"] for table in ("tables", "topics", "users")]
        assert after == before


# --- the role user as a consumer --------------------------------------------------------------------------------

CONSUMING = [
    # what                                                                                                 off  on
    (f"{API}/topics/consume", {"topic": "app.events", "timeout_seconds": 0},                               403, 200),
    (f"{API}/topics/consume", {"topic": "app.events", "timeout_seconds": 0, "start": {"type": "Earliest"}}, 403, 200),
    (f"{API}/topics/consume", {"topic": "app.events", "timeout_seconds": 0, "group_id": "g"},              403, 403),
    (f"{API}/topics/ack", {"topic": "app.events", "group_id": "g", "upto_offset": 0},                      403, 403),
    (f"{API}/topics/ack", {"topic": "app.events", "group_id": "g", "offsets": [0], "nack": True},          403, 403),
    (f"{API}/topics/extend", {"topic": "app.events", "group_id": "g", "consumer": "c", "visibility_seconds": 9}, 403, 403),
    (f"{API}/topics/release", {"topic": "app.events", "group_id": "g", "consumer": "c"},                   403, 403),
    (f"{API}/topics/app.events/arrow", None,                                                               403, 403),
    (f"{API}/sql", {"sql": "CONSUME FROM app.events FROM EARLIEST"},                                       403, 403),
    (f"{API}/sql", {"sql": "CONSUME FROM app.events GROUP 'g'"},                                           403, 403),
    (f"{API}/sql", {"sql": "ACK app.events GROUP 'g' UPTO OFFSET 0"},                                      403, 403),
]  # fmt: skip


@pytest.mark.parametrize("allowed", [False, True], ids=["off", "on"])
def test_allow_user_role_consume(allowed: bool) -> None:
    with ServerThread(allow_user_role_consume=allowed) as server:
        prepare(server)
        for path, body, off, on in CONSUMING:
            method = "GET" if body is None else "POST"
            answer = request(server, "user", method, path, body)
            assert answer.status == (on if allowed else off), f"{path} {body}: {answer.body!r}"
            assert request(server, "nobody", method, path, body).status == 401
