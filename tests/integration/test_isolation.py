"""A user sees and touches its own rows of USER and STREAM tables, whatever SQL it sends.

Two worlds differ in one thing: what bob's rows hold, and how many there are. Ann sends the same texts to both, as a user
without further rights. If an answer, an error or a header depended on bob's rows, the worlds would answer differently;
so they must answer the same, down to the text of errors. Besides, no secret of bob's is in any answer or log line, and
his rows are what they were.

The texts are of two kinds: composed at random from relations, names and statements of every sort, and a list of those
that somebody who knows the parts (DuckDB, sqlglot, the catalog) would try first.
"""

from __future__ import annotations

import logging
import re
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_fixture import Answer, ServerThread

ANN, BOB = ("ann", "the password of ann"), ("bob", "the password of bob")
SECRETS = ("hush-7f3a", "hush-c41d")  # of bob's rows: one for each world
NUMBERS = (731_048_295, 640_917_382)
ARROW, MSGPACK = "application/vnd.apache.arrow.stream", "application/msgpack"

TIME_OR_REQUEST = re.compile(rb"[0-9a-f]{32}|\d{4}-\d\d-\d\dT[0-9:.]+Z")

SETUP = """
CREATE NAMESPACE app;
CREATE USER TABLE app.notes (id INT PRIMARY KEY, body TEXT, n BIGINT CHECK (n >= 0));
CREATE STREAM TABLE app.clicks (id INT PRIMARY KEY, body TEXT, n BIGINT) WITH (TTL_SECONDS = 3600);
CREATE TABLE app.public (id INT PRIMARY KEY, body TEXT, n BIGINT) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE TABLE app.vault (id INT PRIMARY KEY, body TEXT, n BIGINT) WITH (ACCESS_LEVEL = 'RESTRICTED');
CREATE TOPIC app.events ALIAS 'events';
ALTER TOPIC app.events ADD SOURCE app.notes ON ANY WITH (payload = 'full');
ALTER TOPIC app.events ADD SOURCE app.clicks ON ANY WITH (payload = 'full');
ALTER TOPIC app.events ADD SOURCE app.public ON ANY WITH (payload = 'full');
INSERT INTO app.public VALUES (1, 'for all', 1), (2, 'for all too', 2);
CREATE USER 'ann' WITH PASSWORD 'the password of ann';
CREATE USER 'bob' WITH PASSWORD 'the password of bob';
"""
OWN = "; ".join(
    f"DELETE FROM app.{table}; INSERT INTO app.{table} VALUES (1, 'ann one', 10), (2, 'ann two', 20), (3, NULL, NULL)"
    for table in ("notes", "clicks")
)


class Log(logging.Handler):
    """Every line of every logger, as the server would write it at its most talkative."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{self.format(record)} {record.__dict__!r}")


class World:
    """A server with bob's rows in it; he has the same keys as ann, and `rows` of them."""

    def __init__(self, server: ServerThread, number: int, rows: int) -> None:
        self.server = server
        self.secret, self.number = SECRETS[number], NUMBERS[number]
        server.sql(SETUP)
        self.values = ", ".join(f"({i}, '{self.secret}', {self.number})" for i in range(1, rows + 1))
        for table in ("notes", "clicks"):
            self.as_bob(f"INSERT INTO app.{table} VALUES {self.values}")
        server.sql(f"INSERT INTO app.vault VALUES (1, '{self.secret}', {self.number})")
        self._before = self.of_bob()

    def as_bob(self, sql: str) -> list[dict[str, Any]]:
        return self.server.sql(sql, user=BOB[0], password=BOB[1])

    def as_ann(self, sql: str, **options: Any) -> Answer:
        body = {"sql": sql, "namespace": options.pop("namespace", "app")}
        return self.server.post("/sql", body, user=ANN[0], password=ANN[1], **options)

    def of_bob(self) -> list[Any]:
        queries = "; ".join(f"SELECT id, body, n, _seq FROM app.{table} ORDER BY id" for table in ("notes", "clicks"))
        return [result["rows"] for result in self.as_bob(queries)]

    def check_bob(self) -> None:
        assert self.of_bob() == self._before


class Worlds:
    def __init__(self, worlds: tuple[World, World], log: Log) -> None:
        self._worlds = worlds
        self._log = log

    def attack(self, sql: str, **options: Any) -> Answer:
        """Ann's answer, which is the same in both worlds."""
        for secret in (*SECRETS, *map(str, NUMBERS)):
            assert secret not in sql, "an attack that knows the secret proves nothing"
        self._log.lines.clear()
        answers = []
        for world in self._worlds:
            assert world.as_ann(OWN).status == 200
            answers.append(world.as_ann(sql, **options))
            world.check_bob()
        check_silent(*(line.encode() for line in self._log.lines))
        for answer in answers:
            check_silent(answer.body, repr(answer.headers).encode())
            assert answer.status != 500, answer.body
        if answers[0].headers["content-type"] == "application/json":
            assert told(answers[0]) == told(answers[1]), sql
        return answers[0]


def check_silent(*texts: bytes) -> None:
    for text in texts:
        for secret in (*SECRETS, *map(str, NUMBERS)):
            assert secret.encode() not in text, f"{secret} is told: {text[:2000]!r}"
        for number in NUMBERS:
            assert number.to_bytes(8, "little") not in text, f"{number} is told as an integer: {text[:2000]!r}"


def told(answer: Answer) -> Any:
    """All of an answer but times, request and commit number. The order of rows is left to the query."""
    content = msgspec.json.decode(TIME_OR_REQUEST.sub(b"", answer.body))
    if answer.status != 200:
        return answer.status, content
    results = [
        {**result, "seq": None, "rows": sorted(map(repr, result["rows"] or ()))} for result in content["results"]
    ]
    return answer.status, results


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    log, root, ours = Log(), logging.getLogger(), logging.getLogger("tablecast")
    levels = root.level, ours.level
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)
    try:
        with ServerThread() as first, ServerThread() as second:
            yield Worlds((World(first, 0, 3), World(second, 1, 5)), log)
    finally:
        root.removeHandler(log)
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


# --- composed at random: texts that run -------------------------------------------------------------------------
#
# Every query has the columns id, body and n, so that any two go together.

OWN_NAMES = st.sampled_from(["app.notes", "notes", "app.clicks", '"app"."notes"', "APP.Notes", "clicks"])
SIMPLE = st.sampled_from(
    ["TRUE", "id = 1", "id IN (1, 2, 3, 4, 5)", "n > 10", "n IS NULL OR n <> 10", "body LIKE '%'", "NOT id = 2",
     "CURRENT_USER() = 'bob'", "CURRENT_USER() <> 'bob'", "id BETWEEN -1 AND 100", "id = 1 OR id = 4"]
)  # fmt: skip


def conditions(queries: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    nested = st.one_of(
        st.builds("id IN (SELECT id FROM ({}) AS q)".format, queries),
        st.builds("id NOT IN (SELECT n FROM ({}) AS q WHERE n IS NOT NULL)".format, queries),
        st.builds("EXISTS (SELECT 1 FROM ({}) AS q WHERE q.n > 20)".format, queries),
        st.builds("n >= (SELECT max(n) FROM ({}) AS q)".format, queries),
    )
    return st.one_of(SIMPLE, nested, st.builds("({}) OR ({})".format, SIMPLE, nested))


def larger(queries: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    part = st.one_of(OWN_NAMES, st.builds("({})".format, queries))
    joins = st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
    operators = st.sampled_from(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "UNION ALL BY NAME"])
    return st.one_of(
        st.builds("SELECT id, body, n FROM {} AS p WHERE {}".format, part, conditions(queries)),
        st.builds("SELECT l.id, r.body, l.n FROM {} AS l {} {} AS r ON l.id < r.id".format, part, joins, part),
        st.builds("SELECT l.id, r.body, r.n FROM {} AS l, LATERAL (SELECT * FROM {} AS i) AS r".format, part, part),
        st.builds("({}) {} ({})".format, queries, operators, queries),
        st.builds("WITH c AS ({}) SELECT c.id, d.body, c.n FROM c, c AS d".format, queries),
        st.builds("WITH notes AS ({}) SELECT id, body, n FROM notes".format, queries),
        st.builds("SELECT count(*) AS id, max(body) AS body, sum(n) AS n FROM {} AS p".format, part),
        st.builds("SELECT id, lag(body) OVER (ORDER BY id, n, body) AS body, n FROM {} AS p".format, part),
        st.builds("SELECT id, (SELECT max(body) FROM {} AS s) AS body, n FROM {} AS p".format, part, part),
    )


QUERIES = st.recursive(st.builds("SELECT id, body, n FROM {}".format, OWN_NAMES), larger, max_leaves=5)
RETURNING = st.sampled_from(["", " RETURNING *", " RETURNING id, upper(body) AS b"])
CONFLICT = st.sampled_from(
    [" ON CONFLICT DO NOTHING", " ON CONFLICT (id) DO UPDATE SET body = excluded.body, n = n + 1"]
)
VALUES = st.sampled_from(["NULL", "'x'", "CURRENT_USER()", "body", "body || 'x'"])
WRITES = st.one_of(
    st.builds("INSERT INTO {} VALUES ({}, 'x', 1){}{}".format, OWN_NAMES, st.integers(1, 6), CONFLICT, RETURNING),
    st.builds("INSERT INTO {} SELECT DISTINCT ON (id) id, body, n FROM ({}) AS q WHERE id IS NOT NULL ORDER BY id, body, n{}{}".format,
              OWN_NAMES, QUERIES, CONFLICT, RETURNING),
    st.builds("UPDATE {} SET body = {}, n = n + 1 WHERE {}{}".format, OWN_NAMES, VALUES, conditions(QUERIES), RETURNING),
    st.builds("DELETE FROM {} WHERE {}{}".format, OWN_NAMES, conditions(QUERIES), RETURNING),
)  # fmt: skip


@settings(max_examples=50)
@given(sql=QUERIES)
def test_no_query_reads_another_users_rows(worlds: Worlds, sql: str) -> None:
    assert worlds.attack(sql).status == 200


@settings(max_examples=50)
@given(sql=WRITES)
def test_no_write_touches_another_users_rows(worlds: Worlds, sql: str) -> None:
    assert worlds.attack(sql).status == 200


@settings(max_examples=50)
@given(sql=st.builds("BEGIN; {}; {}; {}; SELECT * FROM notes; COMMIT".format, WRITES, QUERIES, WRITES))
def test_no_transaction_does_either(worlds: Worlds, sql: str) -> None:
    assert worlds.attack(sql).status == 200


# --- composed at random: texts that should not run --------------------------------------------------------------

NAMES = st.one_of(OWN_NAMES, st.sampled_from(
    ["app . notes", "app/**/.notes", '"NOTES"', '"app.notes"', "app.notes.body", "app.vault", "app.public", "bob.notes",
     '"bob"."notes"', "notes@bob", 'app."notes/bob"', "app.notes$bob", "main.notes", "memory.main.notes", "temp.notes",
     "t0", "v0", "system.users", "system.audit_log", "system.tables", "events", "app.events", "sqlite_master",
     "information_schema.tables", "pg_catalog.pg_class", "duckdb_tables()", "duckdb_views()", "duckdb_columns()",
     "pragma_table_info('notes')", "read_csv('/etc/passwd')", "read_text('*')", "glob('*')", "parquet_scan('x')",
     "query('SELECT * FROM notes')", "query_table('notes')", "arrow_scan(1, 2, 3)", "seq_scan('notes')", "'notes'",
     "'/etc/passwd'", "unnest([1, 2])", "nothing"]
))  # fmt: skip
COLUMNS = st.sampled_from(
    ["*", "id, body, n", "COLUMNS(*)", "count(*)", "string_agg(body, ',')", "CAST(body AS INT)", "1 / (n - 20)", "user_id",
     "_seq IS NULL", "rowid", "notes", "getenv('HOME')", "current_setting('threads')", "error(body)", "stats(body)"]
)  # fmt: skip
MISUSES = st.recursive(
    st.builds("SELECT {} FROM {}".format, COLUMNS, NAMES),
    lambda queries: st.one_of(
        st.builds("SELECT {} FROM {} AS a JOIN ({}) AS b ON TRUE".format, COLUMNS, NAMES, queries),
        st.builds("SELECT {} FROM {} WHERE id IN ({})".format, COLUMNS, NAMES, queries),
        st.builds("WITH {} AS ({}) SELECT * FROM {}".format, st.sampled_from(["c", "notes", "t0"]), queries, NAMES),
        st.builds("WITH RECURSIVE c AS ({} UNION ALL SELECT * FROM c) SELECT * FROM c LIMIT 9".format, queries),
        st.builds("{} UNION ALL {}".format, queries, queries),
    ),
    max_leaves=3,
)
STATEMENTS = st.one_of(
    st.builds("EXECUTE AS USER 'bob' ({})".format, st.one_of(QUERIES, WRITES)),
    st.builds("EXPLAIN ANALYZE {}".format, MISUSES),
    st.builds("COPY ({}) TO '/tmp/never.csv'".format, QUERIES),
    st.builds("COPY {} TO STDOUT".format, NAMES),
    st.builds("DESCRIBE {}".format, NAMES),
    st.builds("SUMMARIZE {}".format, NAMES),
    st.builds("CREATE VIEW mine AS {}".format, QUERIES),
    st.builds("CREATE TABLE app.mine AS {}".format, QUERIES),
    st.builds("INSERT INTO {} {} RETURNING *".format, NAMES, MISUSES),
    st.builds("UPDATE {} SET body = ({}) RETURNING *".format, NAMES, MISUSES),
    st.builds("DELETE FROM {} USING {} RETURNING *".format, NAMES, NAMES),
    st.builds("CONSUME FROM {} FROM EARLIEST".format, NAMES),
    st.builds("ALTER TOPIC app.events ADD SOURCE {} ON ANY".format, NAMES),
    st.sampled_from(
        ["SHOW TABLES", "SHOW TOPICS", "PRAGMA table_info('notes')", "ATTACH ':memory:' AS other", "BEGIN"]
    ),
)
ATTACKS = st.one_of(MISUSES, MISUSES, STATEMENTS, st.builds("{}; {}".format, WRITES, MISUSES))


@settings(max_examples=80)
@given(sql=ATTACKS, namespace=st.sampled_from(["app", "app", "default", "system", "bob"]))
def test_no_misuse_finds_a_way(worlds: Worlds, sql: str, namespace: str) -> None:
    worlds.attack(sql, namespace=namespace)


# --- what a person would try ------------------------------------------------------------------------------------

NASTY = [
    # other spellings of a name
    "SELECT * FROM notes, app.notes AS b, \"app\".\"notes\" AS c",
    "SELECT * FROM \"APP\".\"NOTES\"",
    "SELECT * FROM app.U&\"\\006eotes\"",
    "SELECT * FROM U&\"d\\0061t\\+000061\"",
    "SELECT * FROM app.n\u043etes",
    "SELECT * FROM app.\"notes\x00bob\"",
    "SELECT * FROM app.\"notes'; --\"",
    "SELECT * FROM app.notes /* */ -- \n WHERE /*! TRUE */ TRUE",
    "SELECT * FROM app.notes; -- ; SELECT * FROM system.users",
    "SELECT/**/*/**/FROM/**/app.notes/**/WHERE/**/'bob'='bob'",
    "SELECT * FROM app.notes AS OF TIMESTAMP '2020-01-01'",
    "SELECT * FROM app.notes AT (VERSION => 1)",
    "SELECT * FROM app.notes TABLESAMPLE 100%",
    "FROM app.notes",
    "TABLE app.notes",
    "SELECT * FROM COLUMNS('.*')",
    "SELECT COLUMNS(*) FROM app.notes",
    "SELECT notes FROM app.notes",
    "SELECT rowid, * FROM app.notes",
    "SELECT ctid, xmin, tableoid, * FROM app.notes",
    "SELECT user_id, _user, _owner, _key FROM app.notes",
    "SELECT * FROM app.notes WHERE _seq > 0 ORDER BY _seq",
    "SELECT * FROM notes PIVOT (count(*) FOR body IN ('ann one'))",
    "PIVOT app.notes ON body",
    "SELECT * FROM app.notes POSITIONAL JOIN app.clicks",
    "SELECT * FROM app.notes ASOF JOIN app.clicks USING (id)",
    # who asks
    "SELECT * FROM notes WHERE CURRENT_USER() = 'bob' OR CURRENT_USER() <> 'bob'",
    "SET current_user = 'bob'; SELECT * FROM app.notes",
    "SET ROLE 'system'; SELECT * FROM app.notes",
    "SET SESSION AUTHORIZATION 'bob'; SELECT * FROM app.notes",
    "EXECUTE AS USER 'bob' (SELECT * FROM app.notes)",
    "EXECUTE AS USER 'ann' (SELECT * FROM app.notes)",
    "EXECUTE AS USER 'bob' (UPDATE app.notes SET body = 'mine')",
    "BEGIN; EXECUTE AS USER 'bob' (SELECT * FROM app.notes); COMMIT",
    "ALTER USER 'ann' SET ROLE 'system'; SELECT * FROM app.vault",
    "ALTER USER 'bob' SET PASSWORD 'known to ann'",
    "GRANT ROLE 'dba' TO 'ann'",
    "CREATE USER 'eve' WITH PASSWORD 'long enough' ROLE 'system'",
    "DROP USER 'bob'",
    # the system's own
    "SELECT * FROM system.users", "SELECT * FROM system.audit_log", "SELECT * FROM system.settings",
    "SELECT * FROM system.topic_groups", "SELECT * FROM system.columns", "SELECT * FROM system.nothing",
    "SELECT * FROM app.notes, system.audit_log",
    "WITH s AS (SELECT * FROM system.audit_log) SELECT * FROM s",
    "SELECT (SELECT max(detail) FROM system.audit_log) FROM app.notes",
    "INSERT INTO app.notes SELECT row_number() OVER (), name, 1 FROM system.users",
    "SELECT * FROM app.vault", "DESCRIBE app.vault", "DESCRIBE system.audit_log", "SHOW TABLES", "SHOW TOPICS",
    # the query engine's own
    "SELECT * FROM information_schema.tables", "SELECT * FROM information_schema.columns",
    "SELECT * FROM sqlite_master", "SELECT * FROM pg_catalog.pg_tables", "SELECT * FROM duckdb_tables()",
    "SELECT * FROM duckdb_views()", "SELECT * FROM duckdb_temporary_files()", "SELECT * FROM duckdb_memory()",
    "SELECT * FROM pragma_table_info('notes')", "SELECT * FROM pragma_show('notes')", "SELECT * FROM pragma_storage_info('t0')",
    "SELECT * FROM t0", "SELECT * FROM v0", "SELECT * FROM _t0", "SELECT * FROM tablecast_0", "SELECT * FROM memory.main.t0",
    "SELECT * FROM temp.main.t0", "SELECT * FROM query('SELECT * FROM t0')", "SELECT * FROM query_table('t0')",
    "SELECT * FROM query_table(['notes', 'clicks'], true)", "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM python_map_function()", "SELECT json_serialize_sql('SELECT * FROM notes')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM notes'))",
    "SELECT current_query()", "SELECT current_setting('temp_directory')", "SELECT getenv('TABLECAST_PASSWORD')",
    "SELECT getvariable('x')", "SELECT txid_current()", "SELECT version()", "SELECT stats(body) FROM app.notes",
    "EXPLAIN ANALYZE SELECT * FROM app.notes", "SUMMARIZE app.notes",
    # files
    "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/proc/self/environ')", "SELECT * FROM glob('/*')",
    "SELECT * FROM read_blob('/proc/self/mem')", "SELECT * FROM parquet_scan('*')", "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_json('*')", "SELECT * FROM read_ndjson_objects('*')", "SELECT * FROM sniff_csv('/etc/passwd')",
    "COPY app.notes TO '/tmp/never.csv'", "COPY app.notes FROM '/etc/passwd'", "COPY (SELECT 1) TO STDOUT",
    "EXPORT DATABASE '/tmp/never'", "IMPORT DATABASE '/tmp/never'", "ATTACH '/tmp/never.db' AS other", "DETACH memory",
    "USE memory.main", "INSTALL httpfs", "LOAD httpfs", "CHECKPOINT", "VACUUM", "CALL pragma_version()",
    "PRAGMA database_list", "PRAGMA show_tables", "PRAGMA enable_profiling", "SET enable_external_access = true",
    "RESET lock_configuration", "CREATE SECRET s (TYPE s3)", "CREATE MACRO f() AS TABLE SELECT 1", "SELECT f()",
    "PREPARE p AS SELECT * FROM notes", "EXECUTE p", "DECLARE c CURSOR FOR SELECT 1",
    # writing
    "INSERT INTO app.notes VALUES (1, 'x', 1)",
    "INSERT INTO app.notes VALUES (4, 'x', 1), (5, 'y', 2) RETURNING *",
    "INSERT INTO app.notes VALUES (4, 'x', 1) ON CONFLICT (id) DO UPDATE SET body = notes.body || '!' RETURNING body",
    "INSERT INTO app.notes VALUES (1, 'x', 1) ON CONFLICT (id) DO UPDATE SET body = notes.body || '!' RETURNING *",
    "INSERT INTO app.notes VALUES (5, 'x', 1) ON CONFLICT (id) DO NOTHING RETURNING *",
    "INSERT INTO app.notes (id, user_id) VALUES (9, 'bob')",
    "INSERT INTO app.notes SELECT id + 10, body, n FROM app.notes RETURNING *",
    "INSERT INTO app.notes SELECT id + 10, body, n FROM app.clicks ON CONFLICT DO NOTHING RETURNING (SELECT max(n) FROM notes)",
    "UPDATE app.notes SET body = 'mine' RETURNING *", "UPDATE app.notes SET id = id + 3 RETURNING *",
    "UPDATE app.notes SET body = b.body FROM app.clicks AS b WHERE b.id = notes.id RETURNING *",
    "UPDATE app.notes SET n = (SELECT sum(n) FROM app.clicks) RETURNING n",
    "DELETE FROM app.notes RETURNING *", "DELETE FROM app.notes USING app.clicks WHERE TRUE",
    "DELETE FROM app.clicks WHERE id IN (SELECT id FROM app.notes)", "TRUNCATE app.notes",
    "DROP TABLE app.notes", "ALTER TABLE app.notes ADD COLUMN leak TEXT", "ALTER TABLE app.notes RENAME TO mine",
    "MERGE INTO app.notes USING app.clicks ON TRUE WHEN MATCHED THEN DELETE",
    "INSERT INTO app.vault VALUES (2, 'x', 1)", "UPDATE app.vault SET n = 1 RETURNING *",
    # errors that quote values
    "SELECT CAST(body AS INT) FROM app.notes", "SELECT CAST(n AS TINYINT) FROM app.notes",
    "SELECT error(body) FROM app.notes", "SELECT error((SELECT string_agg(body, ',') FROM app.notes))",
    "SELECT strptime(body, '%Y') FROM app.notes", "SELECT json(body) FROM app.notes", "SELECT 1 // (n - 10) FROM app.notes",
    "UPDATE app.notes SET n = -1", "INSERT INTO app.notes SELECT 4, body, -1 FROM app.notes",
    "INSERT INTO app.notes VALUES (1, NULL, 1), (4, NULL, 1)", "UPDATE app.notes SET n = CAST(body AS BIGINT)",
    "SELECT body::UUID FROM app.notes", "SELECT [body][99999999999] FROM app.notes",
    # topics
    "CONSUME FROM app.events FROM EARLIEST", "CONSUME FROM events GROUP 'g'", "ACK events GROUP 'g' UPTO OFFSET 0",
    "RESET GROUP 'g' ON events TO EARLIEST", "REDRIVE TOPIC events ALL", "DESCRIBE TOPIC events", "CLEAR TOPIC events",
    "ALTER TOPIC app.events ADD SOURCE app.notes ON INSERT WHERE body LIKE '%'", "CREATE TOPIC app.mine",
    # a way out of the text
    "SELECT 1; SELECT * FROM app.notes; SELECT", "SELECT 'a\\'; SELECT * FROM app.vault; --'",
    "SELECT $$ ; $$; SELECT * FROM app.vault", "SELECT $1 FROM app.notes", "SELECT ?; SELECT ?",
    "BEGIN; SELECT * FROM app.notes; ROLLBACK; SELECT * FROM app.notes", "SELECT * FROM app.notes\x00",
]  # fmt: skip


@pytest.mark.parametrize("sql", NASTY, ids=ascii)
def test_nasty_texts(worlds: Worlds, sql: str) -> None:
    worlds.attack(sql)


@pytest.mark.parametrize("accept", [ARROW, MSGPACK])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT *, _seq FROM app.notes",
        "SELECT list(c.body) AS b, sum(a.n) AS s FROM app.notes AS a, app.clicks AS c",
        "DELETE FROM app.clicks RETURNING *",
    ],
)
def test_binary_answers(worlds: Worlds, sql: str, accept: str) -> None:
    answer = worlds.attack(sql, headers={"Accept": accept})
    assert (answer.status, answer.headers["content-type"]) == (200, accept)


def test_the_attacks_see_anns_own_rows(worlds: Worlds) -> None:
    """Else all of the above would pass on a server that answers nothing."""
    found = worlds.attack("SELECT count(*) AS c, max(body) AS b, sum(n) AS s FROM app.notes").json()
    assert found["results"][0]["rows"] == [["3", "ann two", "30"]]
    written = worlds.attack("UPDATE app.notes SET n = n + 1 RETURNING id, n").json()
    assert sorted(written["results"][0]["rows"], key=str) == [[1, "11"], [2, "21"], [3, None]]


# --- beside the text --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ServerThread(allow_user_role_consume=True) as server:
        yield World(server, 0, 3)


def test_bobs_idempotency_keys_give_ann_nothing(world: World) -> None:
    """The same key with the same request, in every way that a key can be sent: the answer is ann's own."""
    sql = "INSERT INTO app.notes (id, body) SELECT 100, max(body) FROM app.notes RETURNING *"
    sent: dict[str, Any] = {"sql": sql, "namespace": "app"}
    for headers in ({"Idempotency-Key": "key-1"}, {"Idempotency-Key": "key-1"}):
        answers = [
            world.server.post("/sql", sent, user=user, password=password, headers=headers)
            for user, password in (BOB, ANN)
        ]
        assert [answer.status for answer in answers] == [200, 200]
        assert world.secret.encode() in answers[0].body
        check_silent(answers[1].body, repr(answers[1].headers).encode())
    many = {"writes": [{"sql": sql.replace("100", "101"), "idempotency_key": "key-2"}]}
    bobs, anns = (world.server.post("/writes", many, user=user, password=password) for user, password in (BOB, ANN))
    assert world.secret.encode() in bobs.body
    assert anns.json()["results"][0]["row_count"] == 1
    check_silent(anns.body)
    world.as_bob("DELETE FROM app.notes WHERE id >= 100")


@pytest.mark.parametrize("mode", ["insert", "upsert", "delete"])
def test_rows_are_the_senders_own(world: World, mode: str) -> None:
    """Keys that bob has, too; and columns that would name somebody else."""
    rows = [{"id": i} for i in (1, 2)] if mode == "delete" else [{"id": i, "body": "ann's"} for i in (1, 2)]
    answer = world.server.post(f"/tables/app.notes/rows?mode={mode}", rows, user=ANN[0], password=ANN[1])
    assert answer.status == 200, answer.body
    named = [{"id": 50, "user_id": "bob"}]
    assert world.server.post("/tables/app.notes/rows", named, user=ANN[0], password=ANN[1]).status in (400, 404)
    world.check_bob()


def test_queries_of_two_users_at_once_never_meet(world: World) -> None:
    """One query engine serves both, with the same text: each answer has the rows of whoever asked."""
    sql = "SELECT body, count(*) AS c FROM (SELECT * FROM app.notes UNION ALL SELECT * FROM app.clicks) AS u GROUP BY body"
    assert world.as_ann(OWN).status == 200

    def ask(number: int) -> tuple[bool, bytes]:
        is_bob = number % 2 == 0
        user, password = BOB if is_bob else ANN
        answer = world.server.post("/sql", {"sql": sql}, user=user, password=password)
        assert answer.status == 200, answer.body
        return is_bob, answer.body

    with ThreadPoolExecutor(8) as pool:
        for is_bob, body in pool.map(ask, range(200)):
            if is_bob:
                assert b"ann" not in body
                assert world.secret.encode() in body
            else:
                check_silent(body)


# --- allow_user_role_consume ------------------------------------------------------------------------------------


def consume(world: World, who: tuple[str, str], accept: str = "application/json", **request: Any) -> Answer:
    body = {"topic": "app.events", "timeout_seconds": 0, "start": {"type": "Earliest"}, **request}
    return world.server.post("/topics/consume", body, user=who[0], password=who[1], headers={"Accept": accept})


@pytest.mark.parametrize("accept", ["application/json", MSGPACK, ARROW])
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_a_user_that_consumes_gets_messages_of_its_own_rows_only(world: World, accept: str, limit: int) -> None:
    """Offset by offset over the whole topic, in every format, by name and by alias."""
    assert world.as_ann(OWN).status == 200
    end = world.server.sql("SELECT end_offset FROM system.topic_partitions WHERE topic = 'app.events'")[0]["rows"][0][0]
    for offset in range(int(end) + 1):
        start = {"type": "Offset", "offset": offset}
        answer = consume(world, ANN, accept, start=start, limit=limit, topic="events")
        assert answer.status == 200, answer.body
        check_silent(answer.body, repr(answer.headers).encode())
        if accept == "application/json":
            check_messages(answer)


def check_messages(answer: Answer) -> None:
    for message in answer.json()["messages"]:
        assert message["user_id"] == "ann"
        check_silent(b64decode(message["payload"]), message["key"].encode())


def test_reading_on_from_next_offset_gets_all_of_anns_and_nothing_else(world: World) -> None:
    assert world.as_ann(OWN).status == 200
    offset, bodies, has_more = 0, [], True
    while has_more:
        answer = consume(world, ANN, start={"type": "Offset", "offset": offset}, limit=2).json()
        bodies += [msgspec.json.decode(b64decode(message["payload"])) for message in answer["messages"]]
        offset, has_more = answer["next_offset"], answer["has_more"]
    assert {body["_table"] for body in bodies} == {"app.notes", "app.clicks"}, "and none of the shared table's"
    assert {body["body"] for body in bodies} <= {"ann one", "ann two", "ann's", None, "x"}


def test_a_user_that_waits_is_not_answered_with_bobs_message(world: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consume, world, ANN, start={"type": "Latest"}, timeout_seconds=60)
        while not world.server.db.parked:
            assert not waiting.done() or waiting.result() is None, waiting.result().body
        world.as_bob("INSERT INTO app.notes VALUES (200, 'bob again', 1)")
        world.as_bob("DELETE FROM app.notes WHERE id = 200")
        assert world.as_ann("INSERT INTO app.notes VALUES (300, 'x', 1)").status == 200
        messages = waiting.result(60).json()["messages"]
    assert [msgspec.json.decode(b64decode(message["payload"]))["id"] for message in messages] == [300]
    assert world.as_ann("DELETE FROM app.notes WHERE id = 300").status == 200


@pytest.mark.parametrize("request_", [{"group_id": "g"}, {"group_id": "g", "consumer": "bob"}, {"partition_id": 1}])
def test_other_ways_to_consume_are_refused(world: World, request_: dict[str, Any]) -> None:
    answer = consume(world, ANN, **request_)
    assert answer.status in (400, 403)
    check_silent(answer.body)
