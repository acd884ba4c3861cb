"""Names as text: read as SQL reads identifiers, and written so that they read the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.errors import InvalidTopic, SqlSyntaxError
from tablecast.model.names import TableName, full_name, full_name_of, read_name, read_part, spelled
from tablecast.sql import statements as s
from tablecast.sql.parse import parse
from tablecast.sql.tokens import RESERVED

words = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,6}", fullmatch=True).filter(
    lambda word: word.lower() not in RESERVED | {"system"}
)
parts = words | words.map(lambda word: f'"{word}"')
spaces = st.sampled_from(["", " "])
texts = parts | st.tuples(parts, spaces, spaces, parts).map(lambda t: f"{t[0]}{t[1]}.{t[2]}{t[3]}")


def as_sql(text: str) -> TableName:
    [statement] = parse(f"CLEAR TOPIC {text}")
    assert isinstance(statement, s.ClearTopic)
    return statement.topic


@given(texts)
def test_a_text_is_the_name_that_it_is_in_sql(text: str) -> None:
    assert read_name(text) == as_sql(text)


@given(words, words)
def test_a_name_that_is_spelled_reads_the_same(namespace: str, name: str) -> None:
    full = f"{namespace}.{name}"
    assert full_name_of(spelled(full)) == full
    assert full_name(as_sql(spelled(full)), "") == full
    assert str(read_name(spelled(full))) == spelled(full)


@pytest.mark.parametrize(
    ("text", "namespace", "full"),
    [
        ("Orders", "default", "default.orders"),
        ("Orders", "App", "app.orders"),
        ("Orders", '"App"', "App.orders"),
        ('"Orders"', "app", "app.Orders"),
        ("DEFAULT.Orders", "app", "default.orders"),
        ("order", "app", "app.order"),  # a reserved word, which SQL takes in quotes only
    ],
)
def test_a_full_name(text: str, namespace: str, full: str) -> None:
    assert full_name_of(text, namespace) == full


@pytest.mark.parametrize(
    "text", ["", " ", ".", "a.", ".a", "a.b.c", '"a', 'a"b"', "a b", '""', '"a"."b"."c"', "a\n.\n"]
)
def test_what_is_no_name_stays_as_it_is(text: str) -> None:
    assert read_name(text) == TableName(None, text)
    assert read_part(text) == text


def test_the_namespace_default_needs_no_quotes() -> None:
    assert as_sql("default.orders") == as_sql('"default".Orders') == TableName("default", "orders")
    assert parse("SHOW TOPICS IN Default") == parse('SHOW TOPICS IN "default"')
    with pytest.raises(SqlSyntaxError, match="reserved"):
        as_sql("default")


@pytest.mark.parametrize(
    ("text", "alias"), [("ra", "ra"), ("Ra", "ra"), ('"ra"', "ra"), ('"Ra"', '"Ra"'), (" RA ", "ra")]
)
def test_an_alias_is_kept_as_text(text: str, alias: str) -> None:
    [created, altered] = parse(f"CREATE TOPIC t ALIAS '{text}'; ALTER TOPIC t SET ALIAS '{text}'")
    assert isinstance(created, s.CreateTopic)
    assert isinstance(altered, s.SetAlias)
    assert created.alias == altered.alias == alias


@pytest.mark.parametrize("option", ["Orders", "ORDERS", '"orders"', "App.orders", 'app . "orders"', 'app."Orders"'])
def test_a_topic_in_an_option_is_read_like_any_other(option: str) -> None:
    [topic] = parse(f"ALTER TOPIC t SET (dead_letter = '{option}')")
    assert isinstance(topic, s.SetTopic)
    assert topic.options.dead_letter == as_sql(option)
    [pipeline] = parse(f"CREATE PIPELINE p INTO t AS SELECT 1 AS a FROM TOPIC e WITH (dead_letter = '{option}')")
    assert isinstance(pipeline, s.CreatePipeline)
    assert read_name(pipeline.options.dead_letter or "") == as_sql(option)


@pytest.mark.parametrize("option", ["a.b.c", "a b", '"a', "_a", "system.t"])
def test_an_option_that_names_no_topic_is_refused(option: str) -> None:
    with pytest.raises(InvalidTopic):
        parse(f"ALTER TOPIC t SET (dead_letter = '{option}')")
