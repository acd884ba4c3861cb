"""One meaning for parameters: what a message says of a column is taken wherever the column is compared or set.

For every type, on every face, in every kind of statement; and a text that does not read as the type is the same error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from faces import FACES, face
from hypothesis import given
from hypothesis import strategies as st

import tablecast
from tablecast import EARLIEST
from tablecast.errors import TypeMismatch

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False),
    "DECIMAL(12,2)": st.decimals("-9999999999.99", "9999999999.99", places=2),
    "DECIMAL(38,10)": st.decimals("-1e27", "1e27", places=10, allow_nan=False),
    "TEXT": st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12),
    "BYTES": st.binary(max_size=12),
    "TIMESTAMP": st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(UTC)),
    "DATE": st.dates(date(1970, 1, 2), date(9000, 1, 1)),
    "TIME": st.times(),
    "UUID": st.uuids(),
}
COLUMNS = {f"c{i}": kind for i, kind in enumerate(VALUES)}
SETUP = f"""
CREATE TABLE t (id INT PRIMARY KEY, {", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())});
CREATE TOPIC p; ALTER TOPIC p ADD SOURCE t ON INSERT;
""" + "".join(
    f"CREATE TABLE k{name} (k {kind} PRIMARY KEY, v INT);"
    for name, kind in COLUMNS.items()
)  # fmt: skip


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Any]]:
    """Every face, opened once: examples are many."""
    with ExitStack() as stack:
        found = {kind: stack.enter_context(face(kind)) for kind in FACES}
        for database in found.values():
            database.execute(SETUP)
        yield found


def said_of(database: Any, row: dict[str, Any]) -> Any:
    """The message of a row that is inserted."""
    end = len(database.consume("p", start=EARLIEST, limit=100_000).messages)
    database.insert("t", [{"id": end} | row])
    message = database.consume("p", start=tablecast.Start(tablecast.StartKind.OFFSET, end), limit=1).messages[0]
    assert message.value["id"] == end
    return message


@pytest.mark.parametrize("kind", FACES)
@given(data=st.data())
def test_what_a_message_says_is_taken_everywhere(kind: str, places: dict[str, Any], data: st.DataObject) -> None:
    database = places[kind]
    column = data.draw(st.sampled_from(list(COLUMNS)))
    given_value = data.draw(VALUES[COLUMNS[column]])
    message = said_of(database, {column: given_value})
    value, at = message.value[column], message.value["id"]
    [stored] = database.query(f"SELECT {column} FROM t WHERE id = ?", [at]).first()
    assert message.row[column] == stored
    assert type(message.row[column]) is type(stored)

    for condition in (
        f"{column} = $1", f"$1 = {column}", f"{column} IN ($1)", f"{column} IN (NULL, $1, $1)",
        f"{column} BETWEEN $1 AND $1", f"{column} >= $1 AND {column} <= $1", f"{column} IS NOT DISTINCT FROM $1",
    ):  # fmt: skip
        found = database.query(f"SELECT {column} FROM t WHERE id = $2 AND ({condition})", [value, at]).rows
        assert found == [(stored,)], condition
        named = condition.replace(column, f"a.{column}")
        joined = f"SELECT a.{column} FROM t AS a JOIN t AS b ON a.id = b.id WHERE a.id = $2 AND ({named})"
        assert database.query(joined, [value, at]).rows == [(stored,)], joined
        for statement in (
            f"UPDATE t SET {column} = $1 WHERE id = $2 AND ({condition}) RETURNING {column}",
            f"UPDATE t SET {column} = (SELECT {column} FROM t WHERE id = $2) WHERE id = $2 AND ({condition}) "
            f"RETURNING {column}",
        ):
            assert database.execute(statement, [value, at]).rows == [(stored,)], statement
    upsert = f"INSERT INTO t (id, {column}) VALUES ($2, NULL) ON CONFLICT (id) DO UPDATE SET {column} = $1"
    again = f"{upsert} WHERE t.{column} = $1 RETURNING {column}"
    assert database.execute(again, [value, at]).rows == [(stored,)]
    assert database.execute(f"DELETE FROM t WHERE id = $2 AND {column} = $1", [value, at]).row_count == 1
    assert database.execute(f"INSERT INTO t (id, {column}) VALUES (?, ?) RETURNING {column}", [at, value]).rows == [
        (stored,)
    ]

    keys = f"k{column}"
    assert database.insert(keys, [{"k": value, "v": 1}], mode="upsert").row_count == 1
    assert database.insert(keys, [(value, 2)], mode="upsert", columns=["k", "v"]).row_count == 1
    assert database.query(f"SELECT k, v FROM {keys} WHERE k = ?", [value]).rows == [(stored, 2)]
    assert database.execute(f"UPDATE {keys} SET v = 3 WHERE k = ?", [value]).row_count == 1
    assert database.insert(keys, [{"k": value}], mode="delete").row_count == 1
    assert database.insert(keys, [(value, 2)]).row_count == 1
    assert database.execute(f"DELETE FROM {keys} WHERE k IN (?)", [value]).row_count == 1


@pytest.mark.parametrize("column", COLUMNS)
def test_a_live_query_takes_it_too(column: str) -> None:
    given_value = {
        "BOOLEAN": True, "TEXT": "x", "BYTES": b"hi", "TIMESTAMP": datetime(2024, 2, 29, 12, tzinfo=UTC), "DATE": date(2024, 2, 29),
        "TIME": time(12, 30), "UUID": UUID(int=7),
    }.get(COLUMNS[column], 5)  # fmt: skip
    with tablecast.open(":memory:") as database:
        database.execute(SETUP)
        value = said_of(database, {column: given_value}).value[column]
        for condition in (f"{column} = $1", f"{column} = $1 OR {column} IN ($1, NULL)", f"{column} BETWEEN $1 AND $1"):
            with database.live_table(f"SELECT id FROM t WHERE {condition}", [value]) as table:
                assert list(table.ready().rows.values()) == [(0,)]


def test_a_parameter_may_stand_beside_columns_of_several_types() -> None:
    with tablecast.open(":memory:") as database:
        database.execute(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT, n DECIMAL(5,2)); INSERT INTO t VALUES (5, '5', 5), (6, 'x', 1)"
        )
        both = "id = $1 AND v = $1 AND n = $1"
        assert database.query(f"SELECT id FROM t WHERE {both}", ["5"]).rows == [(5,)]
        assert database.query("SELECT $1, id FROM t WHERE id = $1", ["5"]).rows == [("5", 5)]
        assert database.execute(f"UPDATE t SET v = $1, n = $1 WHERE {both} RETURNING v, n", ["5"]).rows == [
            ("5", Decimal("5.00"))
        ]
        assert (
            database.execute(f"UPDATE t SET v = (SELECT max(v) FROM t WHERE id = $1) WHERE {both}", ["5"]).row_count
            == 1
        )
        assert database.execute(f"DELETE FROM t WHERE {both}", ["5"]).row_count == 1
        upsert = "INSERT INTO t VALUES ($1, $1, $1) ON CONFLICT (id) DO UPDATE SET v = $1, n = $1 WHERE t.id = $1 RETURNING v, n"
        for _ in range(2):
            assert database.execute(upsert, ["5"]).rows == [("5", Decimal("5.00"))]


def test_only_what_is_surely_a_column_of_a_table_decides() -> None:
    """A text beside a column that a query makes is compared as text."""
    with tablecast.open(":memory:") as database:
        database.execute("CREATE TABLE t (id BIGINT PRIMARY KEY); INSERT INTO t VALUES (5)")
        made = "SELECT CAST(id AS TEXT) AS id FROM t"
        for sql in (f"SELECT * FROM ({made}) WHERE id = ?", f"WITH t AS ({made}) SELECT * FROM t WHERE id = ?"):
            assert database.query(sql, ["05"]).rows == []
            assert database.query(sql, ["5"]).rows == [("5",)]


WRONG = {
    "BOOLEAN": "perhaps", "SMALLINT": "32768", "INT": "1.5", "BIGINT": "x", "FLOAT": "1e99", "DOUBLE": "nan", "DECIMAL(12,2)": "1e10",
    "DECIMAL(38,10)": "ten", "BYTES": "no base64!", "TIMESTAMP": "soon", "DATE": "2024-02-30", "TIME": "25:00", "UUID": "7",
}  # fmt: skip


@pytest.mark.parametrize("kind", FACES)
def test_a_text_that_does_not_read_as_the_type_is_one_error(kind: str, places: dict[str, Any]) -> None:
    database = places[kind]
    at = said_of(database, {}).value["id"]  # so that there is a row to look at
    for column, column_kind in COLUMNS.items():
        wrong = WRONG.get(column_kind)
        if wrong is None:
            continue
        told = set()
        for sql in (
            f"SELECT id FROM t WHERE {column} = ?",
            f"SELECT id FROM t WHERE {column} IN (?)",
            f"SELECT a.id FROM t AS a JOIN t AS b USING (id) WHERE a.{column} > ?",
            f"UPDATE t SET {column} = ? WHERE id = {at}",
            f"UPDATE t SET id = id WHERE {column} BETWEEN ? AND NULL",
            f"DELETE FROM t WHERE {column} = ?",
            f"INSERT INTO t (id, {column}) VALUES (-1, ?)",
            f"INSERT INTO t (id) VALUES ({at}) ON CONFLICT (id) DO UPDATE SET {column} = ?",
        ):
            with pytest.raises(TypeMismatch) as caught:
                database.execute(sql, [wrong])
            told.add((caught.value.message, caught.value.details.get("column")))
        for mode in ("insert", "upsert"):
            with pytest.raises(TypeMismatch) as caught:
                database.insert("t", [{"id": -1, column: wrong}], mode=mode)
            told.add((caught.value.message, caught.value.details.get("column")))
        [(message, named)] = told
        assert (named, repr(wrong) in message, column_kind.partition("(")[0] in message) == (column, True, True)
