"""Attacks on the query engine. Each wall is also tried alone, with the walls before it out of the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot.errors import ParseError

from tablecast.errors import InvalidRequest, NotFound, TablecastError, UnsupportedSql
from tablecast.sql.query import QueryEngine
from tablecast.sql.query_bind import BoundSelect, BoundSource
from tablecast.sql.query_check import is_refused

TABLES = {(None, "t"): pa.table({"id": [1, 2], "name": ["a", "b"]})}

secret_frame = pa.table({"secret": ["in a Python variable"]})


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    engine = QueryEngine(memory_limit_mb=64)
    yield engine
    engine.close()


FILES = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_csv_auto('{file}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM read_json_objects('{file}')",
    "SELECT * FROM read_ndjson('{file}')",
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM parquet_scan('{file}')",
    "SELECT * FROM parquet_metadata('{file}')",
    "SELECT * FROM parquet_schema('{file}')",
    "SELECT * FROM read_duckdb('{file}', table_name := 't')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{file}'",
    'SELECT * FROM "{file}"',
    "FROM '{file}'",
    "SELECT (SELECT count(*) FROM read_text('{file}')) FROM t",
    "WITH x AS (SELECT * FROM read_text('{file}')) SELECT * FROM x",
    "SELECT * FROM t, LATERAL (SELECT * FROM read_text('{file}'))",
    "SELECT * FROM t WHERE EXISTS (FROM read_text('{file}'))",
    "SELECT * FROM t UNION ALL SELECT 1, content FROM read_text('{file}')",
    "SELECT * FROM 'https://example.com/x.parquet'",
]
STATEMENTS = [
    "COPY t TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "ATTACH '{folder}/other.db'",
    "EXPORT DATABASE '{folder}/out'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{file}'",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "SET python_enable_replacements = true",
    "RESET lock_configuration",
    "RESET threads",
    "PRAGMA memory_limit = '100GB'",
    "PRAGMA enable_profiling",
    "CREATE SECRET s (TYPE s3)",
]
CATALOGS = [
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_functions()",
    "SELECT * FROM duckdb_tables()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM pragma_version()",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM pg_class",
    "SELECT * FROM system.information_schema.columns",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM duckdb_views",
    "WITH c AS (SELECT 1) SELECT * FROM (WITH pg_class AS (SELECT 2) SELECT 1), pg_class",
    "WITH pg_class AS (SELECT * FROM pg_class) SELECT * FROM pg_class",
    "WITH a AS (SELECT * FROM pg_class), pg_class AS (SELECT 1) SELECT * FROM a",
]
INDIRECT = [
    "SELECT * FROM query('SELECT 42')",
    "SELECT * FROM query_table('t')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT json_serialize_sql('SELECT 1')",
    "SELECT json_serialize_plan('SELECT 1')",
    "SELECT json_deserialize_sql('{{}}')",
    "SELECT * FROM test_all_types()",
    "SELECT * FROM repeat(1, 10)",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM which_secret('x', 's3')",
    "SELECT * FROM python_map_function()",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM (DESCRIBE t)",
    "SELECT * FROM (SUMMARIZE t)",
    "SELECT * FROM (SHOW TABLES)",
]
SCALARS = [
    "SELECT getenv('HOME')",
    "SELECT name, getenv('HOME') FROM t ORDER BY getenv('PATH')",
    "SELECT current_setting('memory_limit')",
    "SELECT getvariable('x')",
    "SELECT nextval('s')",
    "SELECT setseed(0.5)",
    "SELECT write_log('x')",
    "SELECT sleep_ms(1)",
    "SELECT pg_sleep(1)",
    "SELECT version()",
    "SELECT current_schemas(true)",
    "SELECT current_database()",
    "SELECT current_query()",
    "SELECT current_connection_id()",
    "SELECT has_table_privilege('t', 'select')",
    "SELECT pg_get_viewdef(1)",
    "SELECT inet_client_addr()",
    "SELECT stats(id) FROM t",
    "SELECT __internal_decompress_string(1)",
    "SELECT finalize(id) FROM t",
    "SELECT max(current_setting('threads')) OVER () FROM t",
    "SELECT id FROM t GROUP BY ALL HAVING count(*) > length(current_setting('threads'))",
    "SELECT list_transform([1], x -> current_setting('threads'))",
]
PYTHON = ["SELECT * FROM secret_frame", "SELECT * FROM TABLES", "SELECT * FROM engine"]


@pytest.fixture
def attack(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    return str(request.param).format(file=secret, folder=tmp_path)


def run(engine: QueryEngine, sql: str) -> pa.Table:
    return engine.run(sqlglot.parse_one(sql, dialect="duckdb"), TABLES)


@pytest.mark.parametrize("attack", FILES + CATALOGS + INDIRECT + SCALARS + PYTHON, indirect=True)
def test_refused_before_it_runs(engine: QueryEngine, attack: str) -> None:
    with pytest.raises((InvalidRequest, NotFound)) as caught:
        run(engine, attack)
    assert isinstance(caught.value, UnsupportedSql | NotFound)


@pytest.mark.parametrize("attack", STATEMENTS, indirect=True)
def test_only_queries_are_run(engine: QueryEngine, attack: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises((UnsupportedSql, ParseError)):
        run(engine, attack)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("attack", FILES + STATEMENTS + CATALOGS + INDIRECT + PYTHON, indirect=True)
def test_the_second_wall_alone(engine: QueryEngine, attack: str) -> None:
    source = BoundSource("t", (None, "t"), False, 1)
    with pytest.raises(TablecastError):
        engine._check_text(BoundSelect(attack, (source,)))


@pytest.mark.parametrize("attack", [s for s in SCALARS if "__internal" not in s], indirect=True)
def test_the_second_wall_alone_knows_functions(engine: QueryEngine, attack: str) -> None:
    with pytest.raises(UnsupportedSql, match="not available"):
        engine._check_text(BoundSelect(attack, (BoundSource("t", (None, "t"), False, 1),)))


@pytest.mark.parametrize("sql", ["SELECT 1; SELECT 2", "SELECT 1; COPY (SELECT 1) TO 'x'", "", ";"])
def test_the_second_wall_takes_one_statement(engine: QueryEngine, sql: str) -> None:
    with pytest.raises(UnsupportedSql):
        engine._check_text(BoundSelect(sql, ()))


@pytest.mark.parametrize("attack", FILES + STATEMENTS + PYTHON, indirect=True)
def test_the_locked_session_alone(engine: QueryEngine, attack: str, tmp_path: Path) -> None:
    cursor = engine._cursor()
    cursor.register("t", TABLES[None, "t"])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(duckdb.Error):
        cursor.execute(attack).fetchall()
    cursor.close()
    assert sorted(tmp_path.iterdir()) == before


def test_settings_of_the_locked_session(engine: QueryEngine) -> None:
    cursor = engine._cursor()
    settings = dict(cursor.execute("SELECT name, value FROM duckdb_settings()").fetchall())
    cursor.close()
    off = (
        *("enable_external_access", "autoinstall_known_extensions", "autoload_known_extensions"),
        *("allow_community_extensions", "allow_unsigned_extensions", "allow_persistent_secrets"),
        *("python_enable_replacements", "python_scan_all_frames", "enable_external_file_cache"),
    )
    assert {name: settings[name] for name in off} == dict.fromkeys(off, "false")
    assert settings["lock_configuration"] == "true"
    assert settings["allow_extension_repositories"] == "forbidden"
    assert settings["temp_directory"] == ""
    assert settings["TimeZone"] == "UTC"
    assert settings["threads"] == "2"
    assert settings["memory_limit"] == "61.0 MiB"


def test_every_function_that_duckdb_calls_volatile_was_considered() -> None:
    """A new release may bring functions that look outside: they show up here first."""
    harmless = {"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "error"}
    session = duckdb.connect(":memory:")
    found = session.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability = 'VOLATILE'"
    ).fetchall()
    session.close()
    assert {name for (name,) in found if not is_refused(name)} == harmless


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 1000000000)",
        "SELECT repeat(name, id) FROM t",
        "SELECT lpad('x', 2000000000, 'y')",
        "SELECT rpad(name, 10 * 1000 * 1000, 'y') FROM t",
    ],
)
def test_values_of_any_length_are_refused(engine: QueryEngine, sql: str) -> None:
    with pytest.raises(UnsupportedSql, match="at most 10,000"):
        run(engine, sql)


def test_qualified_functions_are_refused(engine: QueryEngine) -> None:
    for sql in (
        "SELECT main.getenv('HOME')",
        "SELECT pg_catalog.current_setting('threads')",
        "SELECT name.upper() FROM t",
    ):
        with pytest.raises(UnsupportedSql):
            run(engine, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM range(3)",
        "SELECT * FROM generate_series(1, 3)",
        "SELECT unnest([1, 2])",
        "SELECT * FROM unnest([1, 2]) AS u(x)",
        "SELECT current_date, current_timestamp, now(), pg_typeof(id) FROM t",
        "SELECT lpad(name, 5, '0'), repeat(name, 3), string_agg(name, ',') OVER () FROM t",
        "SELECT random(), uuid(), md5(name), json_object('a', id) FROM t",
    ],
)
def test_harmless_queries_pass_all_walls(engine: QueryEngine, sql: str) -> None:
    assert run(engine, sql).num_rows > 0
