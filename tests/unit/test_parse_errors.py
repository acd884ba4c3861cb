"""Every wrong text gets an error of ours that names the culprit; nothing else ever leaves `parse`."""

from __future__ import annotations

import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tablecast.errors import (
    InvalidRequest,
    InvalidSchema,
    InvalidTopic,
    SqlSyntaxError,
    TablecastError,
    TooLarge,
    UnknownColumn,
    UnsupportedSql,
)
from tablecast.sql.parse import MAX_SQL_BYTES, parse
from tablecast.sql.statements import Select, Statement


def refused(sql: str, error: type[TablecastError], *culprits: str) -> TablecastError:
    with pytest.raises(TablecastError) as caught:
        parse(sql)
    assert type(caught.value) is error, caught.value
    for culprit in culprits:
        assert culprit in str(caught.value)
    return caught.value


# --- not SQL at all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", ["", "   \n", ";;;", "-- only\n/* comments */", "/**/;"])
def test_nothing_to_do(sql: str) -> None:
    refused(sql, SqlSyntaxError, "no statement")


@pytest.mark.parametrize(
    ("sql", "culprit"),
    [
        ("hello world", "found hello"),
        ("{'json': true}", "found {"),
        ("\ufeff\u0001\u0002", "expected a statement"),
        ("MZ\x90\x00\x03", "NUL"),
        ("SELECT '\ud800'", "not valid Unicode"),
        ("SELECT 'abc", "column 8: a string is not closed"),
        ('SELECT "abc', "quoted name is not closed"),
        ("SELECT $$abc", "$$ is missing"),
        ("SELECT 1 /* abc", "comment is not closed"),
        ("SELECT (1", "column 8: ( is not closed"),
        ("SELECT 1)", "column 9: ) closes nothing"),
        ("SELECT (1]", "column 10: ] closes nothing"),
        ("SELECT 1 +", "operand is missing after +"),
        ("SELECT 1 2", "column 10: unexpected text at 2"),
        ("SELECT FROM WHERE", "line 1"),
        ("SELECT {: 1}", "cannot be read as SQL"),
        ("SELECT CAST(1 AS NULLABLE(NULLABLE(1)))", "line 1"),
        ("WITH x AS (SELECT 1) GRANT y", "unexpected text"),
        ("CREATE THING x", "found THING"),
        ("SHOW ME", "expected NAMESPACES or TABLES or TOPICS or PIPELINES after SHOW"),
    ],
)
def test_not_sql(sql: str, culprit: str) -> None:
    refused(sql, SqlSyntaxError, culprit)


def test_errors_carry_line_and_column() -> None:
    error = refused("CREATE TOPIC t\n  -- what?\n  PARTITION 3", SqlSyntaxError, "found PARTITION")
    assert (error.details["line"], error.details["column"]) == (3, 3)


def test_too_large() -> None:
    refused("SELECT '" + "x" * MAX_SQL_BYTES + "'", TooLarge, "at most 1000000")
    with pytest.raises(TooLarge):
        parse("SELECT 'éé'", max_bytes=12)
    refused("SELECT " + "1," * 150_000 + "1", TooLarge, "words and signs")
    refused("SELECT 1;" * 10_001, TooLarge, "10001 statements")


def test_one_wrong_statement_refuses_the_text_and_is_named() -> None:
    error = refused("SELECT 1; CREATE TABLE t (a INT); SELECT 2", InvalidSchema, "statement 2 of 3", "primary key")
    assert error.details["statement"] == 2
    refused("SELECT 1; EXECUTE AS USER 'a' (SELECT 1; BAD)", SqlSyntaxError, "statement 2 of 2: statement 2 of 2")


# --- nesting ------------------------------------------------------------------------------------------------

NESTS = {
    "parentheses": ("(", "1", ")"),
    "NOT": ("NOT ", "1", ""),
    "minus": ("- ", "1", ""),
    "CASE": ("CASE WHEN ", "1", " THEN 1 END"),
    "functions": ("abs(", "1", ")"),
    "casts": ("CAST(", "1", " AS INT)"),
    "cast chain": ("", "1", "::int"),
    "subqueries": ("(SELECT ", "1", ")"),
    "lists": ("[", "1", "]"),
    "structs": ("{'a': ", "1", "}"),
    "arrays": ("ARRAY[", "1", "]"),
    "rows": ("ROW(", "1", ")"),
    "typed calls": ("INT((", "1", "))"),
    "IF": ("IF [", "1", "]"),
    "subscripts": ("", "x", "[1]"),
    "lambdas": ("x -> ", "1", ""),
    "sums": ("1 + ", "1", ""),
    "dots": ("", "a", ".b"),
}


def nested(nest: str, depth: int) -> str:
    left, middle, right = NESTS[nest]
    return f"SELECT {left * depth}{middle}{right * depth}"


@pytest.mark.parametrize("nest", NESTS)
def test_nesting_ten_thousand_deep_is_refused(nest: str) -> None:
    refused(nested(nest, 10_000), SqlSyntaxError)


@pytest.mark.parametrize("nest", NESTS)
def test_nesting_five_deep_is_fine(nest: str) -> None:
    assert parse(nested(nest, 5))


@pytest.mark.parametrize("nest", ["parentheses", "functions", "subqueries", "lists", "casts"])
def test_more_than_32_open_brackets_are_refused(nest: str) -> None:
    refused(nested(nest, 33), SqlSyntaxError, "more than 32 brackets are open")
    assert parse(nested(nest, 20))


def test_deep_nesting_is_refused_from_a_deep_stack_too() -> None:
    def down(levels: int) -> None:
        if levels:
            down(levels - 1)
        else:
            refused(f"SELECT {'(' * 30}1{')' * 30}", SqlSyntaxError, "nested too deeply")

    down(sys.getrecursionlimit() - 350)


@pytest.mark.parametrize("call", ["ROW", "ARRAY[", "STRUCT", "INT", "DATE"])
def test_backtracking_is_bounded(call: str) -> None:
    """These take the parser time exponential in the depth; thirty levels would outlive us."""
    left, right = (call, "]") if call.endswith("[") else (call + "(", ")")
    refused(f"SELECT {left * 30}1{right * 30}", SqlSyntaxError, "nested too deeply")


def test_no_function_makes_the_tree_explode() -> None:
    (statement,) = parse(f"SELECT {'sort_array(1, ' * 20}1{')' * 20}")
    assert isinstance(statement, Select)
    assert sum(1 for _ in statement.query.walk()) < 100


def test_stored_expressions_are_refused_where_whoever_reads_them_would_recurse() -> None:
    long = " AND ".join(["a"] * 500)
    refused(f"ALTER TOPIC t ADD SOURCE x ON ANY WHERE {long}", SqlSyntaxError, "nested too deeply")


# --- what a query may not do --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "'file.csv'",
        "'orders'",
        '"file.parquet"',
        '"/etc/passwd"',
        '"s3://bucket/x"',
        '"a*"',
        'app."x.csv"',
        '"x.csv".app',
        '"bücher"',
        f'"{"x" * 64}"',
    ],
)
def test_files_cannot_be_read(source: str) -> None:
    for sql in (
        "SELECT * FROM {}",
        "SELECT (SELECT 1 FROM {})",
        "WITH x AS (SELECT * FROM {}) SELECT 1",
        "SELECT * FROM t JOIN {} ON TRUE",
        "INSERT INTO t SELECT * FROM {}",
        "DELETE FROM t WHERE a IN (SELECT 1 FROM {})",
        "UPDATE t SET a = (SELECT 1 FROM {})",
    ):
        refused(sql.format(source), SqlSyntaxError, "table")


@pytest.mark.parametrize(
    ("sql", "culprit"),
    [
        ("SELECT * FROM read_csv('x')", "read_csv"),
        ("SELECT * FROM read_text('x')", "read_text"),
        ("SELECT * FROM glob('*')", "glob"),
        ("SELECT * FROM \"read_csv\"('x')", "read_csv"),
        ("SELECT * FROM app.read_csv('x')", "read_csv"),
        ("SELECT * FROM ?", "a table is named"),
        ("SELECT * FROM duckdb_settings()", "duckdb_settings"),
        ("SELECT * FROM query('SELECT 1')", "query"),
        ("SELECT * FROM t, LATERAL read_csv(t.x)", "LATERAL"),
        ("INSERT INTO t SELECT * FROM read_csv('x')", "read_csv"),
        ("SELECT getenv('HOME')", "getenv"),
        ("DELETE FROM t WHERE a = getenv('HOME')", "getenv"),
        ("SELECT current_setting('x')", "current_setting"),
        ("SELECT * INTO x FROM y", "INTO"),
        ("SELECT * FROM t FOR UPDATE", "FOR UPDATE"),
        ("SELECT * FROM a.b.c", "a.b.c"),
        ("SELECT * FROM a.b.c.d", "a.b.c.d"),
        ("SELECT * FROM t AT (VERSION => 3)", "AT"),
        ("SELECT * FROM (DESCRIBE t)", "DESCRIBE"),
        ("WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", "DELETE"),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "INSERT"),
        ("FROM t", "FROM"),
        ("TABLE t", "TABLE"),
    ],
)
def test_refused_queries(sql: str, culprit: str) -> None:
    refused(sql, UnsupportedSql, culprit)


REFUSED = """ATTACH 'x'|DETACH x|PRAGMA x|SET x = 1|RESET x
    |INSTALL httpfs|LOAD httpfs|EXPORT DATABASE 'x'|IMPORT DATABASE 'x'|CALL f()|USE x|CHECKPOINT|VACUUM
    |EXPLAIN SELECT 1|PIVOT t ON a|SUMMARIZE t|TRUNCATE t|MERGE INTO t|CREATE VIEW v AS SELECT 1
    |CREATE INDEX i ON t (a)|CREATE SCHEMA s
    |CREATE SECRET s|CREATE OR REPLACE TABLE t|CREATE TEMP TABLE t
    |SAVEPOINT s|PREPARE p AS SELECT 1
    |EXECUTE p|GRANT SELECT ON t TO x|REVOKE x"""


@pytest.mark.parametrize("statement", REFUSED.split("|"))
def test_refused_statements_are_named(statement: str) -> None:
    refused(statement, UnsupportedSql, statement.split()[0])


@pytest.mark.parametrize(
    ("sql", "culprit"),
    [
        ("SELECT * FROM t WHERE a = :name", "named"),
        ("SELECT $name", "named"),
        ("SELECT @x", "named"),
        ("SELECT $0", "from $1"),
        ("SELECT $70000", "from $1"),
        ("SELECT ?, $1", "not both"),
        ("CONSUME FROM t LIMIT ?", "parameters are for values"),
        ("SELECT " + "x[1]," * 1001 + "1", "subscripts"),
    ],
)
def test_parameters_and_limits(sql: str, culprit: str) -> None:
    refused(sql, SqlSyntaxError, culprit)


# --- changes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error", "culprit"),
    [
        ("INSERT INTO t (a, b) VALUES (1, 2), (1)", SqlSyntaxError, "row 2 has 1 values"),
        ("INSERT INTO t VALUES (1, 2), (1)", SqlSyntaxError, "row 2 has 1 values"),
        ("INSERT INTO t (a, A) VALUES (1, 2)", SqlSyntaxError, "column a is named twice"),
        ('INSERT INTO t VALUES ("x")', SqlSyntaxError, "single quotes"),
        ("INSERT INTO t VALUES (count(*))", UnsupportedSql, "VALUES"),
        ("INSERT INTO t AS x VALUES (1)", UnsupportedSql, "alias"),
        ("INSERT INTO t", SqlSyntaxError, "VALUES"),
        ("INSERT INTO system.users VALUES (1)", InvalidSchema, "'system' is reserved"),
        ("INSERT INTO 'x.csv' VALUES (1)", InvalidSchema, "'x.csv'"),
        ("INSERT INTO a.b.c VALUES (1)", UnsupportedSql, "a.b.c"),
        ("INSERT OR REPLACE INTO t VALUES (1)", UnsupportedSql, "ON CONFLICT"),
        ("INSERT INTO t BY NAME SELECT 1 AS a", UnsupportedSql, "BY NAME"),
        ("INSERT INTO t VALUES (1) ON CONFLICT ON CONSTRAINT c DO NOTHING", UnsupportedSql, "CONSTRAINT"),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) WHERE b DO NOTHING", UnsupportedSql, "WHERE"),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a + 1) DO NOTHING", SqlSyntaxError, "a + 1"),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO UPDATE SET a = x.b", UnknownColumn, "x.b"),
        ("INSERT INTO t VALUES (1) RETURNING * EXCLUDE (a)", UnsupportedSql, "EXCEPT"),
        ("INSERT INTO t VALUES (1) RETURNING sum(a)", UnsupportedSql, "aggregate sum"),
        ("UPDATE t SET a = 1 FROM u", UnsupportedSql, "UPDATE … FROM"),
        ("UPDATE t SET a = 1, a = 2", SqlSyntaxError, "column a twice"),
        ("UPDATE t SET (a, b) = (1, 2)", UnsupportedSql, "column = value"),
        ("UPDATE t SET a = 1 WHERE u.b = 2", UnknownColumn, "u.b"),
        ("UPDATE t SET a = 1 WHERE b LIMIT 3", UnsupportedSql, "LIMIT"),
        ("UPDATE t SET a = sum(b)", UnsupportedSql, "aggregate sum"),
        ("UPDATE t SET a = 1 WHERE row_number() OVER () = 1", UnsupportedSql, "window"),
        ("UPDATE t AS x SET a = (SELECT 1)", UnsupportedSql, "alias x"),
        ("UPDATE system.users SET a = 1", InvalidSchema, "'system' is reserved"),
        ("DELETE FROM t USING u WHERE t.a = u.a", UnsupportedSql, "USING"),
        ("DELETE t WHERE a", UnsupportedSql, "DELETE FROM"),
        ("DELETE FROM _t", InvalidSchema, "underscore"),
    ],
)
def test_refused_changes(sql: str, error: type[TablecastError], culprit: str) -> None:
    refused(sql, error, culprit)


# --- tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "error", "culprit"),
    [
        ("a INT", InvalidSchema, "no primary key"),
        ("a INT PRIMARY KEY, A TEXT", InvalidSchema, "two columns named a"),
        ("a INT PRIMARY KEY, b INT PRIMARY KEY", InvalidSchema, "PRIMARY KEY (a, b)"),
        ("a INT PRIMARY KEY, PRIMARY KEY (a)", InvalidSchema, "two primary keys"),
        ("a INT, PRIMARY KEY (b)", InvalidSchema, "column b"),
        ("a INT, PRIMARY KEY (a, a)", InvalidSchema, "column a twice"),
        ("a JSON PRIMARY KEY", InvalidSchema, "column a of t is JSON"),
        ("a INT NULL PRIMARY KEY", InvalidSchema, "cannot be NULL"),
        ("a INT PRIMARY KEY NULL NOT NULL", InvalidSchema, "contradict"),
        ("a INT PRIMARY KEY DEFAULT 1 DEFAULT 2", InvalidSchema, "DEFAULT is written twice"),
        ("_a INT PRIMARY KEY", InvalidSchema, "'_a'"),
        ('"a b" INT PRIMARY KEY', InvalidSchema, "'a b'"),
        ("é INT PRIMARY KEY", InvalidSchema, "'é'"),
        (f"{'a' * 64} INT PRIMARY KEY", InvalidSchema, "at most 63 bytes"),
        ("select INT PRIMARY KEY", SqlSyntaxError, "double quotes"),
        ("a WIBBLE PRIMARY KEY", InvalidSchema, "unknown type WIBBLE"),
        ("a VARCHAR(10) PRIMARY KEY", UnsupportedSql, "column a: VARCHAR"),
        ("a INT[] PRIMARY KEY", UnsupportedSql, "array"),
        ("a DECIMAL(39) PRIMARY KEY", InvalidSchema, "DECIMAL(39,0)"),
        ("a DECIMAL(0) PRIMARY KEY", InvalidSchema, "DECIMAL(0,0)"),
        ("a DECIMAL(5,6) PRIMARY KEY", InvalidSchema, "DECIMAL(5,6)"),
        ("a INT PRIMARY KEY UNIQUE", UnsupportedSql, "UNIQUE"),
        ("a INT PRIMARY KEY REFERENCES b", UnsupportedSql, "REFERENCES"),
        ("a INT PRIMARY KEY GENERATED ALWAYS AS (1)", UnsupportedSql, "GENERATED"),
        ("a INT PRIMARY KEY, UNIQUE (a)", UnsupportedSql, "UNIQUE"),
        ("a INT PRIMARY KEY, FOREIGN KEY (a) REFERENCES b", UnsupportedSql, "FOREIGN"),
        ("a INT PRIMARY KEY DEFAULT SNOWFLAKE_ID()", InvalidSchema, "SNOWFLAKE_ID() is a default for BIGINT"),
        ("a BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID", SqlSyntaxError, "()"),
        ("a INT PRIMARY KEY DEFAULT (1 + 1)", SqlSyntaxError, "column a"),
        ("a INT PRIMARY KEY CHECK ()", SqlSyntaxError, "a condition"),
        ("a INT PRIMARY KEY CHECK (a > )", SqlSyntaxError, "operand"),
        ("a INT PRIMARY KEY CHECK (a > ?)", UnsupportedSql, "parameters"),
        ("a INT PRIMARY KEY CHECK (a > (SELECT 1))", UnsupportedSql, "subquery"),
        ("a INT PRIMARY KEY CHECK (sum(a) > 1)", UnsupportedSql, "aggregate sum"),
        ("a INT PRIMARY KEY,", SqlSyntaxError, "found )"),
        ("a INT PRIMARY KEY b INT", SqlSyntaxError, "found b"),
        ("", SqlSyntaxError, "found )"),
    ],
)
def test_refused_columns(columns: str, error: type[TablecastError], culprit: str) -> None:
    refused(f"CREATE TABLE t ({columns})", error, culprit)


@pytest.mark.parametrize(
    ("sql", "error", "culprit"),
    [
        ("CREATE STREAM TABLE t (a INT PRIMARY KEY)", InvalidSchema, "TTL_SECONDS"),
        ("CREATE USER TABLE t (a INT PRIMARY KEY) WITH (TYPE = 'SHARED')", InvalidSchema, "both USER"),
        ("CREATE TABLE t (a INT PRIMARY KEY) WITH (TYPE = 'BIG')", InvalidSchema, "'BIG'"),
        (
            "CREATE TABLE t (a INT PRIMARY KEY) WITH (TTL_SECONDS = 0)",
            SqlSyntaxError,
            "TTL_SECONDS is from 1",
        ),
        (
            "CREATE TABLE t (a INT PRIMARY KEY) WITH (TTL_SECONDS = -5)",
            SqlSyntaxError,
            "TTL_SECONDS is from 1",
        ),
        ("CREATE TABLE t (a INT PRIMARY KEY) WITH (REPLICATE = 1)", SqlSyntaxError, "TRUE or FALSE"),
        ("CREATE TABLE t (a INT PRIMARY KEY) WITH (ACCESS_LEVEL = 'X')", InvalidSchema, "RESTRICTED"),
        (
            "CREATE TABLE t (a INT PRIMARY KEY) WITH (COLOUR = 1)",
            InvalidSchema,
            "COLOUR: the options are TYPE",
        ),
        (
            "CREATE TABLE t (a INT PRIMARY KEY) WITH (REPLICATE = TRUE, replicate = TRUE)",
            InvalidSchema,
            "twice",
        ),
        ("CREATE TABLE a.b.c (a INT PRIMARY KEY)", SqlSyntaxError, "column 14: table a.b.c"),
        ("CREATE TABLE system.t (a INT PRIMARY KEY)", InvalidSchema, "'system' is reserved"),
        ("CREATE TABLE t", SqlSyntaxError, "end of the statement"),
        ("CREATE NAMESPACE system", InvalidSchema, "reserved"),
        ("CREATE NAMESPACE a.b", SqlSyntaxError, "found ."),
        ("DROP TABLE 'x'", SqlSyntaxError, "found 'x'"),
        ("ALTER TABLE t DROP COLUMN a", UnsupportedSql, "DROP"),
        ("ALTER TABLE t RENAME TO u", UnsupportedSql, "RENAME"),
        ("ALTER TABLE t ADD UNIQUE (a)", UnsupportedSql, "UNIQUE"),
        ("ALTER TABLE t ADD COLUMN a INT PRIMARY KEY", InvalidSchema, "primary key"),
    ],
)
def test_refused_table_statements(sql: str, error: type[TablecastError], culprit: str) -> None:
    refused(sql, error, culprit)


# --- topics, groups, users ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error", "culprit"),
    [
        ("CREATE TOPIC t PARTITIONS 0", InvalidTopic, "not 0"),
        ("CREATE TOPIC t PARTITIONS 1025", InvalidTopic, "from 1 to 1024"),
        ("CREATE TOPIC t PARTITIONS -1", InvalidTopic, "not -1"),
        ("CREATE TOPIC t PARTITIONS 1.5", SqlSyntaxError, "whole number"),
        ("CREATE TOPIC t ALIAS 'a b'", InvalidTopic, "alias 'a b'"),
        ("CREATE TOPIC system.t", InvalidTopic, "reserved"),
        ("CREATE TOPIC t PARTITIONS 2 ALIAS 'x'", SqlSyntaxError, "in this order"),
        ("CREATE TOPIC t WITH (retention_seconds = -1)", InvalidTopic, "NULL means no limit"),
        ("CREATE TOPIC t WITH (retention_max_bytes = 0)", InvalidTopic, "retention_max_bytes"),
        ("CREATE TOPIC t WITH (max_deliveries = NULL)", InvalidTopic, "0 turns it off"),
        ("CREATE TOPIC t WITH (max_deliveries = 99999999999999999999)", SqlSyntaxError, "max_deliveries"),
        ("CREATE TOPIC t WITH (color = 1)", InvalidTopic, "the options are retention_seconds"),
        ("CREATE TOPIC a.t WITH (dead_letter = 'a.t')", InvalidTopic, "its own dead-letter"),
        ("CREATE TOPIC t WITH (dead_letter = 'a.b.c')", InvalidTopic, "a.b.c"),
        ("CREATE TOPIC t WITH ()", SqlSyntaxError, "name of an option"),
        ("ALTER TOPIC t", SqlSyntaxError, "ADD SOURCE"),
        ("ALTER TOPIC t ADD SOURCE x", SqlSyntaxError, "expected ON"),
        ("ALTER TOPIC t ADD SOURCE x ON TRUNCATE", SqlSyntaxError, "INSERT, UPDATE, DELETE or ANY"),
        ("ALTER TOPIC t ADD SOURCE x ON INSERT, INSERT", InvalidTopic, "INSERT twice"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WHERE", SqlSyntaxError, "an expression after WHERE"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WHERE a >", SqlSyntaxError, "operand"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WHERE a b c", SqlSyntaxError, "unexpected text at b"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WHERE a = ?", UnsupportedSql, "parameters"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WHERE a IN (SELECT 1)", UnsupportedSql, "subquery"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WHERE count(*) > 1", UnsupportedSql, "aggregate count"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY PARTITION BY a, b", SqlSyntaxError, "unexpected text at ,"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WITH (payload = 'half')", InvalidTopic, "key, full, diff"),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WITH (backfill = 'yes')", SqlSyntaxError, "TRUE or FALSE"),
        (
            "ALTER TOPIC t ADD SOURCE x ON ANY WITH (backfill = TRUE, dry_run = TRUE)",
            InvalidTopic,
            "goes with backfill = 'spark'",
        ),
        ("ALTER TOPIC t ADD SOURCE x ON ANY WITH (payload = 'key') WHERE a", SqlSyntaxError, "in this order"),
        ("CONSUME FROM t GROUP billing", SqlSyntaxError, "single quotes"),
        ("CONSUME FROM t GROUP ''", SqlSyntaxError, "1 to 255 bytes"),
        ("CONSUME FROM t FROM YESTERDAY", SqlSyntaxError, "EARLIEST, LATEST"),
        ("CONSUME FROM t FROM OFFSET -1", SqlSyntaxError, "OFFSET is from 0"),
        ("CONSUME FROM t FROM TIMESTAMP 'noon'", SqlSyntaxError, "'noon' is not a time"),
        ("CONSUME FROM t LIMIT 0", SqlSyntaxError, "LIMIT is from 1"),
        ("CONSUME FROM t PARTITION 1024", SqlSyntaxError, "PARTITION is from 0 to 1023"),
        ("ACK t GROUP 'g'", SqlSyntaxError, "UPTO OFFSET or OFFSET"),
        ("NACK t GROUP 'g' UPTO OFFSET 3", SqlSyntaxError, "expected OFFSET"),
        ("RESET GROUP 'g' ON t", SqlSyntaxError, "expected TO"),
        ("EXECUTE AS USER 'a'", SqlSyntaxError, "( followed by statements"),
        ("EXECUTE AS USER 'a' ()", SqlSyntaxError, "no statement"),
        ("EXECUTE AS USER 'a' (SELECT 1) SELECT 2", SqlSyntaxError, "found SELECT"),
        ("EXECUTE AS USER 'a' (SELECT 1; SELECT 2", SqlSyntaxError, "( is not closed"),
        ("EXECUTE AS USER 'a' (BEGIN)", UnsupportedSql, "BEGIN"),
        ("EXECUTE AS USER 'a' (EXECUTE AS USER 'b' (SELECT 1))", UnsupportedSql, "EXECUTE AS"),
        ("CREATE USER 'ann'", SqlSyntaxError, "WITH PASSWORD"),
        ("CREATE USER 'ann' WITH PASSWORD ''", InvalidRequest, "empty"),
        ("CREATE USER 'ann' WITH PASSWORD 'x' ROLE 'king'", InvalidRequest, "user, service, dba, system"),
        ("ALTER USER 'ann' SET SHOESIZE 9", SqlSyntaxError, "PASSWORD or ROLE"),
    ],
)
def test_refused_topic_and_user_statements(sql: str, error: type[TablecastError], culprit: str) -> None:
    refused(sql, error, culprit)


# --- fuzz ---------------------------------------------------------------------------------------------------

VALID = [
    "CREATE USER TABLE IF NOT EXISTS app.t (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), "
    "d DECIMAL(9,2) NOT NULL CHECK (d > 0), CONSTRAINT c CHECK (id <> d)) WITH (TYPE = 'USER')",
    "ALTER TABLE t ADD COLUMN c TEXT DEFAULT 'x'",
    "CREATE TOPIC a.b ALIAS 'c' PARTITIONS 4 WITH (retention_seconds = NULL, dead_letter = 'a.d')",
    "ALTER TOPIC a.b ADD SOURCE a.t ON INSERT, UPDATE WHERE d > 1 PARTITION BY id WITH (payload = 'diff')",
    "CONSUME FROM a.b GROUP 'g' FROM TIMESTAMP '2031-01-01' PARTITION 0 LIMIT 5",
    "ACK a.b GROUP 'g' PARTITION 0 UPTO OFFSET 9; RESET GROUP 'g' ON a.b TO LATEST",
    "EXECUTE AS USER 'u' (INSERT INTO t VALUES (?); SELECT 1)",
    "INSERT INTO a.t (id, d) VALUES (1, DEFAULT), (?, ? + 1) "
    "ON CONFLICT (id) DO UPDATE SET d = excluded.d WHERE t.d < 3 RETURNING *, id AS k",
    "UPDATE a.t SET d = d * 2, c = DEFAULT WHERE t.id IN (1, 2) RETURNING d",
    "DELETE FROM t WHERE CASE WHEN d > 1 THEN TRUE ELSE c LIKE 'x%' END",
    "WITH x AS (SELECT a, sum(b) OVER (PARTITION BY c) s FROM t) SELECT * FROM x JOIN y USING (a) "
    "WHERE s BETWEEN 1 AND $1 GROUP BY ALL HAVING count(*) > 1 ORDER BY 1 DESC LIMIT 3",
    "SELECT x[1], {'a': [1, 2]}, a::INT, CAST(b AS DATE), INTERVAL 3 DAY, l -> l + 1 FROM t UNION VALUES (1)",
    "CREATE USER 'a' WITH PASSWORD 'b' ROLE 'dba'; GRANT ROLE 'dba' TO 'a'",
]
WORDS = sorted({word for sql in VALID for word in sql.replace("(", " ( ").replace(",", " , ").split()})
WORDS += [
    "'",
    '"',
    "$$",
    "/*",
    "--",
    "{{",
    "{%",
    "::",
    "?",
    "$",
    ":",
    "@",
    "[",
    "]",
    "{",
    "}",
    "\\",
    ";",
    "é",
]


def parses_or_refuses(sql: str) -> None:
    try:
        statements = parse(sql)
    except TablecastError as error:
        assert str(error)
    else:
        assert statements and all(isinstance(statement, Statement) for statement in statements)


@given(st.text(max_size=200))
@example("\x1c\u2028\x85")
def test_any_text(sql: str) -> None:
    parses_or_refuses(sql)


@given(st.lists(st.sampled_from(WORDS), max_size=25))
@settings(max_examples=300)
def test_any_soup_of_words(words: list[str]) -> None:
    parses_or_refuses(" ".join(words))
    parses_or_refuses("SELECT " + " ".join(words))


@given(st.data())
@settings(max_examples=300)
def test_any_damage_to_a_valid_statement(data: st.DataObject) -> None:
    sql = data.draw(st.sampled_from(VALID))
    start = data.draw(st.integers(0, len(sql)))
    end = data.draw(st.integers(start, min(len(sql), start + 20)))
    patch = data.draw(st.one_of(st.just(""), st.sampled_from(WORDS), st.text(max_size=3)))
    parses_or_refuses(sql[:start] + patch + sql[end:])


@pytest.mark.parametrize("sql", VALID)
def test_the_seeds_of_the_fuzz_are_valid_themselves(sql: str) -> None:
    assert parse(sql)
