"""Numbered parameters mean the same with and without space around them; strings between dollars stay strings."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tablecast
from tablecast.cli.script import split
from tablecast.errors import SqlSyntaxError
from tablecast.sql.tokens import Source, tokenize

STATEMENTS = [
    ("INSERT INTO t VALUES($1,$2)", [1, "a"]),
    ("INSERT INTO t(id,v)VALUES($1,$2),($3,$2)", [1, "a", 2]),
    ("INSERT INTO t VALUES($1,$2)ON CONFLICT(id)DO UPDATE SET v=$2||$3 RETURNING id,v", [1, "a", "b"]),
    ("INSERT INTO t SELECT $1,$2", [1, "a"]),
    ("UPDATE t SET v=$1||$2,id=$3 WHERE id IN($4,$5)AND v<>$1 RETURNING id,v", ["a", "b", 4, 5, 6]),
    ("DELETE FROM t WHERE id BETWEEN $1AND $2OR v IN($3,$4)", [1, 2, "a", "b"]),
    ("SELECT $1::INT+$2::INT,$3,coalesce($4,$5)FROM t WHERE id>=$1AND id<=$2LIMIT $1", [1, 2, "a", "b", "c"]),
    ("WITH n AS(SELECT $1 AS a,$2 AS b)SELECT a,b FROM n", [1, 2]),
    ("SELECT [$1,$2][1],CASE WHEN $1=$2THEN $2 ELSE $1 END", [1, 2]),
]


def kinds(text: str) -> list[tuple[str, str]]:
    return [(token.token_type.name, token.text) for token in tokenize(Source(text))]


def spaced(text: str) -> str:
    """Space before and after every parameter of a text without strings."""
    return re.sub(r"(\$\d)", r" \1 ", text)


@pytest.mark.parametrize(("sql", "params"), STATEMENTS)
def test_every_statement_takes_parameters_without_space(sql: str, params: list[object]) -> None:
    with tablecast.open(":memory:") as one, tablecast.open(":memory:") as two:
        for database in (one, two):
            database.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT); INSERT INTO t VALUES (5, 'x')")
        assert one.execute(sql, params).rows == two.execute(spaced(sql), params).rows
        assert one.query("SELECT * FROM t").rows == two.query("SELECT * FROM t").rows


def test_a_live_query_does_too() -> None:
    with tablecast.open(":memory:") as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT); INSERT INTO t VALUES (5, 'x'), (6, 'y')")
        with database.live_table("SELECT id FROM t WHERE id IN($1,$2)AND v IN($3,$4)", [5, 6, "x", "z"]) as table:
            assert list(table.ready().rows.values()) == [(5,)]


PIECES = [
    "$1", "$23", "id", "'it''s $1,$2'", '"a $1,$"', "$$ $1,$2 $$", "$t$ $1,$ $$ $t$", "-- $1,$\n", "/* $1,$ /* ' */ */",
    "E'a\\' $1,$ '", "X'00'", "7", "::", "v$1", "t1", "$_é1$ $1,$2 $_é1$",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from([",", "(", ")", "+", "=", "||", ";", "<"]))
def test_space_around_what_stands_between_operators_changes_nothing(pieces: list[str], operator: str) -> None:
    close, wide = operator.join(pieces), f" {operator} ".join(pieces)
    assert kinds(close) == kinds(wide)
    assert split(close)[0] == [part.strip() for part in split(wide)[0]] or operator != ";"


@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_tokens_stand_where_their_text_does(pieces: list[str]) -> None:
    text = ",".join(pieces)
    for token in tokenize(Source(text)):
        if token.token_type.name in ("PARAMETER", "NUMBER", "VAR", "COMMA"):
            assert text[token.start : token.end + 1] == token.text


@given(st.text(alphabet="$1a,'\"-/*? \nE\\", max_size=12))
def test_any_text_has_tokens_or_is_refused(text: str) -> None:
    try:
        tokenize(Source(text))
    except SqlSyntaxError:
        pass


@pytest.mark.parametrize("sql", ["SELECT $1,?", "SELECT ?,$1", "SELECT ?$1", "SELECT $x,$1", "SELECT $,$1"])
def test_what_names_no_parameter_is_refused_with_its_place(sql: str) -> None:
    with tablecast.open(":memory:") as database, pytest.raises(SqlSyntaxError, match=r"line 1, column \d+"):
        database.query(sql, [1, 2])


@pytest.mark.parametrize("tag", ["", "t", "_", "tag1", "é"])
def test_a_string_between_dollars_holds_what_looks_like_parameters(tag: str) -> None:
    with tablecast.open(":memory:") as database:
        for body in map(",".join, itertools.permutations(["$1", "$2", "'"])):
            assert database.query(f"SELECT ${tag}${body}${tag}$,$1", [7]).rows == [(body, 7)]
