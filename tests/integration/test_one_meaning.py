"""One text, one meaning: a literal, a type name or a cast says the same in SELECT, INSERT, UPDATE, DELETE, DEFAULT and filters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

import tablecast
from tablecast import Database
from tablecast.errors import SqlSyntaxError, TypeMismatch, UnsupportedSql
from tablecast.model.schema import TypeName
from tablecast.sql.parse_column import _TYPES

EIGHT = datetime(2020, 1, 1, 8, tzinfo=UTC)


@pytest.fixture
def db() -> Iterator[Database]:
    with tablecast.open(":memory:") as database:
        database.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, i INT, b BOOLEAN, n DECIMAL(6,2), d DOUBLE, y BYTES, da DATE, ti TIME, "
            "ts TIMESTAMP, x TEXT, u UUID, j JSON); INSERT INTO t (id, y) VALUES (1, X'0aff')"
        )
        yield database


def routed(db: Database, condition: str) -> bool:
    """Whether a source with this filter takes the row with id 1 when it is written again."""
    db.execute(f"CREATE TOPIC seen; ALTER TOPIC seen ADD SOURCE t ON UPDATE WHERE {condition}")
    db.execute("UPDATE t SET id = id WHERE id = 1")
    found = db.read_arrow("seen").num_rows
    db.execute("DROP TOPIC seen")
    return found == 1


# --- types and bytes ------------------------------------------------------------------------------------

SAMPLES: dict[TypeName, tuple[str, Any]] = {
    TypeName.BOOLEAN: ("true", True),
    TypeName.SMALLINT: ("5", 5),
    TypeName.INT: ("5", 5),
    TypeName.BIGINT: ("5", 5),
    TypeName.FLOAT: ("1.5", 1.5),
    TypeName.DOUBLE: ("1.5", 1.5),
    TypeName.DECIMAL: ("1.5", Decimal("1.500")),
    TypeName.TEXT: ("a", "a"),
    TypeName.BYTES: ("\\x0aa", b"\na"),
    TypeName.TIMESTAMP: ("2020-01-01 08:00", EIGHT),
    TypeName.DATE: ("2020-01-01", date(2020, 1, 1)),
    TypeName.TIME: ("10:00", time(10)),
    TypeName.UUID: ("00000000-0000-0000-0000-000000000000", None),
}


@pytest.mark.parametrize("name", [name for name, kind in _TYPES.items() if kind in SAMPLES and name != "TIMESTAMPTZ"])
def test_a_type_has_every_name_of_it_in_queries_and_in_changes(db: Database, name: str) -> None:
    text, value = SAMPLES[_TYPES[name]]
    db.execute(
        f"CREATE TABLE typed (id INT PRIMARY KEY, v {name}); INSERT INTO typed VALUES (1, CAST('{text}' AS {name}))"
    )
    shown = db.query(f"SELECT CAST('{text}' AS {name}), '{text}'::{name}").rows[0]
    assert shown == (shown[0], shown[0]) == tuple(db.query("SELECT v, v FROM typed").rows[0])
    assert value is None or shown[0] == value
    assert db.query(f"SELECT id FROM typed WHERE v = '{text}'::{name}").rows == [(1,)]
    assert (
        db.execute(f"UPDATE typed SET v = CAST('{text}' AS {name}) WHERE v = CAST('{text}' AS {name})").row_count == 1
    )
    assert db.execute(f"DELETE FROM typed WHERE v = CAST('{text}' AS {name})").row_count == 1


@pytest.mark.parametrize("name", ["JSON", "JSONB"])
def test_json_too(db: Database, name: str) -> None:
    assert db.query(f"SELECT CAST('[1]' AS {name})").rows == db.query("SELECT CAST('[1]' AS JSON)").rows


def test_bytes_are_written_in_hexadecimal_everywhere(db: Database) -> None:
    assert db.query("SELECT X'0aff', x'0AFF', X''").rows == [(b"\n\xff", b"\n\xff", b"")]
    assert db.query("SELECT id FROM t WHERE y = X'0aff'").rows == [(1,)]
    assert routed(db, "y = x'0AFF'")
    assert not routed(db, "y = X'0a'")
    db.execute("CREATE TABLE k (key BYTES PRIMARY KEY, v BYTES DEFAULT X'00ff' CHECK (v <> X'01'))")
    db.execute("INSERT INTO k (key) VALUES (X'aa')")
    db.execute("ALTER TABLE k ADD COLUMN w BYTES DEFAULT X'ADD0'")
    assert db.query("SELECT * FROM k WHERE key = X'AA'").rows == [(b"\xaa", b"\0\xff", b"\xad\xd0")]
    assert db.execute("UPDATE k SET v = X'bb' || v WHERE key = X'aa' RETURNING v").rows == [(b"\xbb\0\xff",)]
    shown = db.query("SELECT \"default\" FROM system.columns WHERE table_name = 'k' AND name = 'w'").scalar()
    assert shown == "X'add0'"
    assert db.execute("DELETE FROM k WHERE v = X'bb00ff'").row_count == 1


@pytest.mark.parametrize("wrong", ["X'0'", "X'0g'", "X'0x10'", "X'0_a0'", "X'é0'"])
def test_what_is_not_hexadecimal_is_a_syntax_error(db: Database, wrong: str) -> None:
    for sql in (f"SELECT {wrong}", f"INSERT INTO t (id, y) VALUES (2, {wrong})", f"DELETE FROM t WHERE y = {wrong}"):
        with pytest.raises(SqlSyntaxError, match="even number of hexadecimal digits"):
            db.execute(sql)


def test_a_default_survives_a_restart_and_travels(tmp_path: Any) -> None:
    with tablecast.open(tmp_path / "db") as db:
        db.execute("CREATE TABLE k (id INT PRIMARY KEY, v BYTES DEFAULT X'00ff')")
    with tablecast.open(tmp_path / "db") as db:
        db.insert("k", [{"id": 1}])
        assert db.query("SELECT v FROM k").rows == [(b"\0\xff",)]


def test_a_parameter_may_stand_right_before_a_cast(db: Database) -> None:
    assert db.query("SELECT ?::INT, (?)::TEXT", ["5", 6]).rows == [(5, "6")]
    db.execute("INSERT INTO t (id, i) VALUES (?, ?::INT)", [2, 5.0])
    assert db.execute("UPDATE t SET i = ?::INT WHERE id = ?::INT", [7.0, 2.0]).row_count == 1
    assert db.execute("DELETE FROM t WHERE i = ?::INT", [7.0]).row_count == 1


# --- literals -------------------------------------------------------------------------------------------

CASTS = [
    ("5.5", "INT", "i", 6),
    ("-5.5", "INT", "i", -6),
    (".5", "INT", "i", 1),
    ("yes", "BOOLEAN", "b", True),
    ("N", "BOOLEAN", "b", False),
    ("1", "BOOLEAN", "b", True),
    ("1.005", "DECIMAL(6,2)", "n", Decimal("1.01")),
    ("5.", "DOUBLE", "d", 5.0),
    ("2020-1-1", "DATE", "da", date(2020, 1, 1)),
    ("10:00", "TIME", "ti", time(10)),
    ("9:05:07.5", "TIME", "ti", time(9, 5, 7, 500_000)),
    ("2020-1-1 8:00", "TIMESTAMP", "ts", EIGHT),
    ("2020-01-01 10:00+02:00", "TIMESTAMP", "ts", EIGHT),
    ("2020-01-01T06:30:00-0130", "TIMESTAMP", "ts", EIGHT),
    ("2020-01-01 08:00 UTC", "TIMESTAMP", "ts", EIGHT),
]


@pytest.mark.parametrize(("text", "name", "column", "value"), CASTS)
def test_a_literal_is_cast_to_the_same_value_everywhere(
    db: Database, text: str, name: str, column: str, value: object
) -> None:
    cast = f"CAST('{text}' AS {name})"
    assert db.query(f"SELECT {cast}").rows == [(value,)]
    assert db.query(f"SELECT TRY_CAST('{text}' AS {name})").rows == [(value,)]
    assert db.execute(f"UPDATE t SET {column} = {cast} WHERE id = 1").row_count == 1
    assert db.query(f"SELECT {column} FROM t").rows == [(value,)]
    for condition in (f"{column} = {cast}", f"{column} = '{text}'", f"{column} IN ('{text}')"):
        assert db.query(f"SELECT id FROM t WHERE {condition}").rows == [(1,)], condition
        assert db.query(f"SELECT count(*) FROM t WHERE {condition} GROUP BY id").rows == [(1,)], condition
        assert routed(db, condition), condition
    assert db.execute(f"INSERT INTO t (id, {column}) VALUES (2, {cast})").row_count == 1
    assert db.execute(f"DELETE FROM t WHERE {column} = {cast}").row_count == 2


REFUSED = [
    ("1e3", "INT"),
    ("1_000", "INT"),
    ("0x10", "BIGINT"),
    ("on", "BOOLEAN"),
    ("1e2", "DECIMAL(6,2)"),
    ("2020/1/1", "DATE"),
    ("2020-01-01 10:00", "DATE"),
    ("24:00:00", "TIME"),
    ("10:00:00+02", "TIME"),
    ("2020-01-01 10:00 Europe/Berlin", "TIMESTAMP"),
    ("{80000000-0000-0000-0000-000000000000}", "UUID"),
]


@pytest.mark.parametrize(("text", "name"), REFUSED)
def test_what_one_of_them_does_not_read_none_does(db: Database, text: str, name: str) -> None:
    for sql in (
        f"SELECT CAST('{text}' AS {name})",
        f"SELECT id FROM t WHERE '{text}'::{name} IS NULL",
        f"UPDATE t SET x = CAST(CAST('{text}' AS {name}) AS TEXT)",
        f"DELETE FROM t WHERE CAST('{text}' AS {name}) IS NULL",
    ):
        with pytest.raises(TypeMismatch, match="expected"):
            db.execute(sql)


# --- zones ----------------------------------------------------------------------------------------------

ZONED = "2020-01-01 10:00+02:00"


@pytest.fixture
def at_eight(db: Database) -> Database:
    db.execute("UPDATE t SET ts = ?, x = ? WHERE id = 1", [EIGHT, ZONED])
    return db


BESIDE = [
    "ts = {}",
    "{} = t.ts",
    "ts BETWEEN {} AND {}",
    "ts IN ('2019-01-01', {})",
    "COALESCE(ts, {}) = ts",
    "max(ts) OVER () = {}",
    "CAST(x AS TIMESTAMP) = {}",
    "DATE_TRUNC('hour', ts) = {}",
]


@pytest.mark.parametrize("condition", BESIDE)
def test_a_text_with_a_zone_beside_a_timestamp_is_that_moment(at_eight: Database, condition: str) -> None:
    literal = condition.replace("{}", f"'{ZONED}'")
    assert at_eight.query(f"SELECT {literal} FROM t").rows == [(True,)]
    given = condition.replace("{}", "$1")
    for value in (ZONED, EIGHT):
        assert at_eight.query(f"SELECT {given} FROM t", [value]).rows == [(True,)], value


def test_text_is_cast_with_its_zone(at_eight: Database) -> None:
    result = at_eight.query("SELECT CAST(x AS TIMESTAMP), x::TIMESTAMP AS y, TRY_CAST('x' || x AS TIMESTAMP) FROM t")
    assert result.rows == [(EIGHT, EIGHT, None)]
    assert result.columns[:2] == ("CAST(x AS TIMESTAMP)", "y")
    assert at_eight.query("SELECT CAST(? AS TIMESTAMP)", [ZONED]).rows == [(EIGHT,)]


def test_beside_a_text_it_is_text(at_eight: Database) -> None:
    for condition in ("x = {}", "x IN ({}, 'a')", "x LIKE {}", "x || '' = {}", "lower(x) = lower({})"):
        literal, given = condition.replace("{}", f"'{ZONED}'"), condition.replace("{}", "?")
        assert at_eight.query(f"SELECT {literal} FROM t").rows == [(True,)], condition
        assert at_eight.query(f"SELECT {given} FROM t", [ZONED]).rows == [(True,)], condition
    assert at_eight.query(f"SELECT '{ZONED}', ?", [ZONED]).rows == [(ZONED, ZONED)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM (SELECT id, ts AS moment FROM t) WHERE moment = {}",
        "SELECT date_trunc('day', {})",
        "SELECT ts FROM t UNION SELECT {}",
        "SELECT id FROM t WHERE ti = {}",
        "SELECT id FROM t WHERE da = {}",
        "SELECT CASE WHEN id = 1 THEN ts ELSE {} END FROM t",
    ],
)
def test_where_it_is_not_certain_it_is_refused(at_eight: Database, sql: str) -> None:
    with pytest.raises(TypeMismatch, match=r"has a zone.*CAST"):
        at_eight.query(sql.replace("{}", f"'{ZONED}'"))
    beside_a_column = sql.endswith(("ti = {}", "da = {}"))  # a parameter is read as the column's type there
    with pytest.raises(TypeMismatch, match="cannot hold" if beside_a_column else r"has a zone.*CAST"):
        at_eight.query(sql.replace("{}", "?"), [ZONED])
    meant = "CAST('08:00' AS TIME)" if "ti =" in sql else f"CAST('{ZONED}' AS TIMESTAMP)"
    at_eight.query(sql.replace("{}", meant))


# --- ids ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SNOWFLAKE_ID", "UUID_V7"])
def test_ids_are_made_for_rows_that_are_written(db: Database, name: str) -> None:
    for sql in (f"SELECT {name}()", f"SELECT id, {name}() FROM t", f"INSERT INTO t (id) SELECT {name}() FROM t"):
        with pytest.raises(UnsupportedSql, match=rf"{name}\(\) makes the id of a row that is written"):
            db.execute(sql)
