"""Pipelines in SQL: what is read, what is given to Spark, and what is refused before Spark sees it."""

from __future__ import annotations

import pytest

from tablecast.errors import InvalidPipeline, SqlSyntaxError, TablecastError, UnsupportedSql
from tablecast.model.pipeline import InputKind, PipelineMode, PipelineOptions
from tablecast.sql import statements as s
from tablecast.sql.parse import parse
from tablecast.sql.spark_query import MAX_INPUTS, MAX_QUERY_BYTES, mark, output_names


def created(query: str, rest: str = "") -> s.CreatePipeline:
    [statement] = parse(f"CREATE PIPELINE app.p INTO app.t AS {query} {rest}")
    assert isinstance(statement, s.CreatePipeline)
    return statement


def test_all_of_it() -> None:
    [statement] = parse(
        """CREATE PIPELINE IF NOT EXISTS app.revenue INTO app.by_day MODE insert AS
           SELECT c.name, sum(amount) AS total FROM TOPIC app.order_events AS o
           JOIN TABLE crm.customers c ON o.customer = c.id WHERE c.note <> 'it''s (' GROUP BY c.name
           WITH (trigger_seconds = 0.5, starting = 'latest', dead_letter = 'app.dlq', watermark = '10 minutes',
                 checkpoint = '/var/lib/x', max_messages = 500, fail_on_data_loss = false);"""
    )
    assert isinstance(statement, s.CreatePipeline)
    assert (statement.name, statement.target) == (s.TableName("app", "revenue"), s.TableName("app", "by_day"))
    assert statement.mode is PipelineMode.INSERT
    assert statement.if_not_exists
    assert statement.inputs == (
        s.NamedInput(InputKind.TOPIC, s.TableName("app", "order_events"), "order_events"),
        s.NamedInput(InputKind.TABLE, s.TableName("crm", "customers"), "customers"),
    )
    assert " ".join(statement.query.split()) == (
        "SELECT c.name, sum(amount) AS total FROM `order_events` AS o "
        "JOIN `customers` c ON o.customer = c.id WHERE c.note <> 'it''s (' GROUP BY c.name"
    )
    assert statement.options == PipelineOptions(0.5, "latest", "app.dlq", "_ts 10 minutes", "/var/lib/x", 500, False)


def test_what_is_left_out_has_its_default() -> None:
    statement = created("SELECT a FROM TOPIC x")
    assert statement.mode is PipelineMode.UPSERT
    assert statement.options == PipelineOptions()
    assert statement.options.starting == "earliest"
    assert statement.inputs == (s.NamedInput(InputKind.TOPIC, s.TableName(None, "x"), "x"),)


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("SELECT a FROM topic App.X", "SELECT a FROM `x`"),
        ("SELECT a FROM TOPIC app.`x` AS y", "SELECT a FROM `x` AS y"),
        ("SELECT topic, table FROM TOPIC x", "SELECT topic, table FROM `x`"),  # columns of these names
        ("SELECT 'FROM TOPIC y' AS a FROM TOPIC x", "SELECT 'FROM TOPIC y' AS a FROM `x`"),
        ("SELECT a FROM TOPIC x -- FROM TOPIC y\n", "SELECT a FROM `x`"),
        ("WITH w AS (SELECT * FROM TOPIC x) SELECT a FROM w", "WITH w AS (SELECT * FROM `x`) SELECT a FROM w"),
        (
            "SELECT window.start AS a, count(*) AS n FROM TOPIC x GROUP BY window(_ts, '1 hour')",
            "SELECT window.start AS a, count(*) AS n FROM `x` GROUP BY window(_ts, '1 hour')",
        ),
        (
            "SELECT l.a FROM TOPIC one.x l JOIN TOPIC two.x r ON l.a = r.a",
            "SELECT l.a FROM `topic_one_x` l JOIN `topic_two_x` r ON l.a = r.a",
        ),
        ("SELECT l.a FROM TOPIC x l JOIN TOPIC x r ON l.a = r.a", "SELECT l.a FROM `x` l JOIN `x` r ON l.a = r.a"),
        ("SELECT a FROM TOPIC x UNION ALL SELECT b FROM TOPIC y", "SELECT a FROM `x` UNION ALL SELECT b FROM `y`"),
    ],
)
def test_spark_gets_the_text_as_it_was_written(written: str, given: str) -> None:
    assert created(written).query == given


def test_the_others() -> None:
    name = s.TableName("app", "p")
    assert parse("START PIPELINE app.p") == [s.StartPipeline(name)]
    assert parse("STOP PIPELINE IF EXISTS app.p") == [s.StopPipeline(name, True)]
    assert parse("DROP PIPELINE IF EXISTS app.p") == [s.DropPipeline(name, True)]
    assert parse("SHOW PIPELINES; SHOW PIPELINES IN app") == [s.ShowPipelines(), s.ShowPipelines("app")]
    assert parse("DESCRIBE PIPELINE app.p") == [s.DescribePipeline(name)]
    assert parse("DESCRIBE pipeline") == [s.Describe(s.TableName(None, "pipeline"))]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT a, x.b, count(*) AS n FROM TOPIC x", ["a", "b", "n"]),
        ("SELECT a AS `Strange Name` FROM TOPIC x", ["Strange Name"]),
        ("SELECT * FROM TOPIC x", None),
        ("SELECT x.*, 1 AS one FROM TOPIC x", None),
        ("WITH w AS (SELECT a AS b FROM TOPIC x) SELECT b FROM w", ["b"]),
    ],
)
def test_names_of_the_result(query: str, names: list[str] | None) -> None:
    assert output_names(created(query).tree) == names


def test_a_result_without_a_name() -> None:
    with pytest.raises(InvalidPipeline, match="column 2 of the result"):
        output_names(created("SELECT a, count(*) FROM TOPIC x").tree)


@pytest.mark.parametrize(
    ("query", "error", "culprit"),
    [
        ("SELECT a FROM x", InvalidPipeline, "x is no input: write FROM TOPIC name"),
        ("SELECT a FROM TOPIC x, y", InvalidPipeline, "y is no input"),
        ("SELECT a FROM TOPIC x JOIN app.y ON TRUE", InvalidPipeline, "app.y is no input"),
        ("SELECT a FROM parquet.`/etc/passwd`", InvalidPipeline, "is no input"),
        ("SELECT a FROM TOPIC x JOIN csv.`/etc/passwd`", InvalidPipeline, "is no input"),
        ("SELECT a FROM TOPIC x WHERE a IN (SELECT b FROM text.`/tmp`)", InvalidPipeline, "is no input"),
        ("SELECT a FROM TOPIC x JOIN range(10)", UnsupportedSql, "table functions"),
        ("SELECT a FROM identifier('csv.`/etc/passwd`')", UnsupportedSql, "table functions"),
        ("SELECT reflect('java.lang.Runtime', 'x') AS a FROM TOPIC x", UnsupportedSql, "reflect()"),
        ("SELECT a + JAVA_METHOD('c', 'm') AS a FROM TOPIC x", UnsupportedSql, "java_method()"),
        ("SELECT a FROM TOPIC x WHERE a = ?", UnsupportedSql, "cannot take parameters"),
        ("INSERT INTO t SELECT a FROM TOPIC x", UnsupportedSql, "one query"),
        ("DELETE FROM TOPIC x", UnsupportedSql, "one query"),
        ("SELECT a FROM TOPIC x.y.z", SqlSyntaxError, "x.y.z"),
        ("SELECT a FROM TOPIC 'x'", SqlSyntaxError, "expected a name"),
        ("SELECT a FROM TOPIC _x", InvalidPipeline, "underscore"),
        ("SELECT a FROM TOPIC system.x", InvalidPipeline, "reserved"),
        ("SELECT a FROM TOPIC x WHERE", SqlSyntaxError, "query"),
        ("SELECT a b c FROM TOPIC x", SqlSyntaxError, "query"),
        ("WITH x AS (SELECT 1 AS a) SELECT a FROM TOPIC x", InvalidPipeline, "choose another name"),
        ("SELECT " + "(" * 40 + "1" + ")" * 40 + " AS a FROM TOPIC x", SqlSyntaxError, "nested too deeply"),
        (f"SELECT '{'a' * MAX_QUERY_BYTES}' AS a FROM TOPIC x", InvalidPipeline, "bytes"),
        ("SELECT a FROM TOPIC x " + "JOIN TABLE y " * MAX_INPUTS, InvalidPipeline, f"at most {MAX_INPUTS}"),
        ("", SqlSyntaxError, "a query"),
    ],
)
def test_queries_that_are_refused(query: str, error: type[TablecastError], culprit: str) -> None:
    with pytest.raises(TablecastError) as caught:
        created(query)
    assert type(caught.value) is error
    assert culprit in caught.value.message


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ("(speed = 9)", "unknown option speed"),
        ("(starting = 'now')", "earliest or latest"),
        ("(watermark = 'soon')", "it is a delay"),
        ("(watermark = 'a b 10 minutes')", "it is a delay"),
        ("(trigger_seconds = 100000)", "from 0 to 86400"),
        ("(trigger_seconds = 'x')", "number of seconds"),
        ("(max_messages = 0)", "from 1"),
        ("(fail_on_data_loss = 'no')", "TRUE or FALSE"),
        ("(dead_letter = 'a.b.c')", "namespace.topic"),
        ("(starting = 'latest', starting = 'latest')", "twice"),
    ],
)
def test_options_that_are_refused(options: str, culprit: str) -> None:
    with pytest.raises(TablecastError, match=culprit):
        created("SELECT a FROM TOPIC x", f"WITH {options}")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("10 minutes", "_ts 10 minutes"),
        ("1 HOUR", "_ts 1 hours"),
        ("At 2 days", "at 2 days"),
        ("5second", "_ts 5 seconds"),
    ],
)
def test_watermarks(written: str, kept: str) -> None:
    assert created("SELECT a FROM TOPIC x", f"WITH (watermark = '{written}')").options.watermark == kept


@pytest.mark.parametrize(
    ("sql", "culprit"),
    [
        ("CREATE PIPELINE p AS SELECT a FROM TOPIC x", "expected INTO"),
        ("CREATE PIPELINE p INTO t SELECT a FROM TOPIC x", "expected AS"),
        ("CREATE PIPELINE p INTO t MODE merge AS SELECT a FROM TOPIC x", "insert or upsert or delete"),
        ("START PIPELINE", "the name of a pipeline"),
        ("DROP PIPELINE a.b.c", "a.b.c"),
        ("SHOW PIPELINE p", "SHOW PIPELINES"),
    ],
)
def test_statements_that_are_refused(sql: str, culprit: str) -> None:
    with pytest.raises(TablecastError, match=culprit):
        parse(sql)


def test_marks_are_no_names_of_users() -> None:
    with pytest.raises(TablecastError, match="is no input"):
        created(f"SELECT a FROM TOPIC x JOIN {mark(7)}")
