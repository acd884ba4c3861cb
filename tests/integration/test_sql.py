"""SQL end to end: every statement of the contract, what it answers, and what it puts on the topics."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import tablecast
from tablecast import EARLIEST, LATEST, Database, Message, Op, Result, Session, Start, StartKind
from tablecast.codec.keys import decode_expiry_key, log_prefix
from tablecast.errors import (
    DuplicateKey,
    InvalidRequest,
    NotNullViolation,
    OffsetOutOfRange,
    TransactionConflict,
    UnknownColumn,
    UnknownTable,
)
from tablecast.storage.base import Family
from tablecast.testing.clock import START_MS, FakeClock

HOUR_MS = 3_600_000
START = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as database:
        database.execute("CREATE NAMESPACE app")
        yield database
        assert database.verify().problems == []


@pytest.fixture
def orders(db: Database) -> Database:
    """A table of orders and a topic that hears of everything."""
    db.execute_all(
        """
        CREATE TABLE app.orders (
          id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT DEFAULT 'new'
        );
        CREATE TOPIC app.events;
        ALTER TOPIC app.events ADD SOURCE app.orders ON ANY WITH (payload = 'diff');
        INSERT INTO app.orders (id, customer, amount) VALUES (1, 'ann', 10), (2, 'bob', 20), (3, 'ann', 30)
        """
    )
    return db


def messages(db: Database, topic: str = "app.events", start: Start = EARLIEST) -> list[Message]:
    return db.consume(topic, start=start, limit=10_000).messages


def since(db: Database, mark: int, topic: str = "app.events") -> list[tuple[str, Any, dict[str, Any]]]:
    """Op, key and payload of everything from an offset on."""
    found = messages(db, topic, Start(StartKind.OFFSET, mark))
    return [(m.op.label, json.loads(m.key), m.value) for m in found]


def ids(result: Result) -> list[Any]:
    return [row[0] for row in result]


# --- types ---------------------------------------------------------------------------------------------------

EVERY_TYPE = """CREATE TABLE app.every (
  id INT PRIMARY KEY, flag BOOLEAN, small SMALLINT, big BIGINT, single FLOAT, twice DOUBLE, price DECIMAL(20,4),
  label TEXT, raw BYTES, doc JSON, at TIMESTAMP, day DATE, clock TIME, ref UUID)"""
ROWS: list[tuple[Any, ...]] = [
    (
        1, True, -3, 2**60, 1.5, 0.1, Decimal("12345678.9000"), "héllo", b"\x00\xff", {"a": [1, None]},
        dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC), dt.date(2026, 1, 2), dt.time(3, 4, 5, 6), UUID(int=5),
    ),
    (
        2, False, -(2**15), -(2**63), -0.5, 1e300, Decimal("-0.0001"), "", b"", [],
        dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.date(9999, 12, 31), dt.time(0), UUID(int=2**128 - 1),
    ),
    (3, *[None] * 13),
]  # fmt: skip
PAYLOAD = {
    "_table": "app.every", "id": 1, "flag": True, "small": -3, "big": "1152921504606846976", "single": 1.5,
    "twice": 0.1, "price": "12345678.9000", "label": "héllo", "raw": "AP8=", "doc": {"a": [1, None]},
    "at": "2026-01-02T03:04:05.678901Z", "day": "2026-01-02", "clock": "03:04:05.000006",
    "ref": "00000000-0000-0000-0000-000000000005",
}  # fmt: skip
TYPES = [
    "INT", "BOOLEAN", "SMALLINT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(20,4)", "TEXT", "BYTES", "JSON", "TIMESTAMP",
    "DATE", "TIME", "UUID",
]  # fmt: skip


@pytest.fixture
def every(db: Database) -> Database:
    db.execute(EVERY_TYPE)
    db.execute_all("CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.every ON ANY")
    for row in ROWS:
        db.execute(f"INSERT INTO app.every VALUES ({', '.join('?' * len(row))})", row)
    return db


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM app.every",  # by a scan of storage
        "SELECT * FROM app.every WHERE id >= 1 ORDER BY id",  # by key range
        "SELECT * FROM app.every WHERE 1 + 1 = 2 ORDER BY id",  # by the query engine
        "WITH x AS (SELECT * FROM app.every) SELECT * FROM x ORDER BY id",
    ],
)
def test_every_type_comes_back_as_it_was(every: Database, sql: str) -> None:
    result = every.execute(sql)
    assert result.rows == ROWS
    assert [kind for _, kind in result.schema] == TYPES
    assert [type(value) for value in result.rows[0]] == [type(value) for value in ROWS[0]]


def test_every_type_by_key_and_returning(every: Database) -> None:
    assert every.execute("SELECT * FROM app.every WHERE id = ?", [2]).rows == [ROWS[1]]
    assert every.execute("UPDATE app.every SET id = id WHERE id = 1 RETURNING *").rows == [ROWS[0]]
    assert every.execute("DELETE FROM app.every WHERE id = 2 RETURNING *").rows == [ROWS[1]]


def test_every_type_in_a_payload(every: Database) -> None:
    found = messages(every)
    assert found[0].value == PAYLOAD
    assert found[2].value == {"_table": "app.every"} | dict.fromkeys(PAYLOAD, None) | {"_table": "app.every", "id": 3}
    assert list(found[0].value) == list(PAYLOAD), "columns in the table's order"


def test_every_type_through_arrow_pandas_and_polars(every: Database) -> None:
    result = every.execute("SELECT * FROM app.every ORDER BY id")
    table = result.arrow()
    assert table.column("price").type == pa.decimal128(20, 4)
    assert table.column("at").type == pa.timestamp("us", "UTC")
    assert table.column("big").to_pylist() == [2**60, -(2**63), None]
    assert table.column("doc").to_pylist() == ['{"a":[1,null]}', "[]", None]
    frame = result.pandas()
    assert list(frame.columns) == list(result.columns)
    assert frame.loc[0, "price"] == Decimal("12345678.9000")
    assert frame.loc[0, "ref"] == UUID(int=5)
    polars = result.polars()
    assert polars["day"].to_list() == [dt.date(2026, 1, 2), dt.date(9999, 12, 31), None]
    assert polars["ref"].to_list()[0] == str(UUID(int=5))
    assert polars["label"].to_list() == ["héllo", "", None]


def test_every_type_goes_in_again_as_arrow(every: Database) -> None:
    for sql in ("SELECT * FROM app.every", "SELECT * FROM app.every WHERE 1 + 1 = 2"):
        table = every.execute(sql).arrow()
        every.execute("DELETE FROM app.every")
        assert every.insert("app.every", table).row_count == 3
        assert every.execute("SELECT * FROM app.every ORDER BY id").rows == ROWS


def test_every_type_through_insert_select(every: Database) -> None:
    columns = ", ".join(every.execute("SELECT * FROM app.every").columns[1:])
    every.execute(f"INSERT INTO app.every SELECT id + 10, {columns} FROM app.every")
    copied = every.execute("SELECT * FROM app.every WHERE id > 10 ORDER BY id").rows
    assert [row[1:] for row in copied] == [row[1:] for row in ROWS]


def test_every_type_as_a_literal(db: Database) -> None:
    db.execute(EVERY_TYPE)
    db.execute(
        """INSERT INTO app.every (id, flag, small, big, single, twice, price, label, doc, at, day, clock, ref) VALUES
        (1, TRUE, -3, 1152921504606846976, 1.5, 0.1, 12345678.9, 'héllo', '{"a": [1, null]}',
         '2026-01-02T03:04:05.678901Z', DATE '2026-01-02', '03:04:05.000006', '00000000-0000-0000-0000-000000000005')"""
    )
    row = db.execute("SELECT * FROM app.every").rows[0]
    assert [*row[:8], *row[9:]] == [*ROWS[0][:8], *ROWS[0][9:]]


@pytest.mark.parametrize("column", [c for c in PAYLOAD if c not in ("_table", "id", "doc", "single")])
def test_every_type_can_be_a_key_and_a_partition_key(every: Database, column: str) -> None:
    kind = dict(every.execute("SELECT * FROM app.every").schema)[column]
    every.execute(f"CREATE TABLE app.keyed (k {kind} PRIMARY KEY, v INT)")
    every.execute("CREATE TOPIC app.spread PARTITIONS 8")
    every.execute("ALTER TOPIC app.spread ADD SOURCE app.keyed ON INSERT PARTITION BY k")
    at = list(PAYLOAD).index(column) - 1
    values = sorted(row[at] for row in ROWS[:2])
    every.insert("app.keyed", [{"k": value, "v": i} for i, value in reversed(list(enumerate(values)))])
    assert every.execute("SELECT k FROM app.keyed").rows == [(value,) for value in values], "in key order"
    for i, value in enumerate(values):
        assert every.execute("SELECT v FROM app.keyed WHERE k = ?", [value]).scalar() == i
    assert every.execute("SELECT v FROM app.keyed WHERE k > ?", [values[0]]).rows == [(1,)]
    assert len(messages(every, "app.spread")) == 2


# --- tables --------------------------------------------------------------------------------------------------


def test_namespaces(db: Database) -> None:
    assert db.execute("CREATE NAMESPACE IF NOT EXISTS app").message == "CREATE NAMESPACE: nothing to do"
    db.execute("CREATE NAMESPACE other")
    assert ids(db.execute("SHOW NAMESPACES")) == ["app", "default", "other"]
    db.execute("DROP NAMESPACE other")
    assert db.execute("DROP NAMESPACE IF EXISTS other").message == "DROP NAMESPACE: nothing to do"
    assert ids(db.execute("SELECT name FROM system.namespaces")) == ["app", "default"]


def test_a_name_without_a_namespace_is_in_the_sessions(db: Database) -> None:
    session = db.session("root", "system", namespace="app")
    session.execute("CREATE TABLE here (id INT PRIMARY KEY)")
    session.execute("CREATE TOPIC told; ALTER TOPIC told ADD SOURCE here ON ANY")
    session.execute("INSERT INTO here VALUES (1)")
    assert db.execute("SELECT * FROM app.here").rows == session.execute("SELECT * FROM here").rows == [(1,)]
    assert len(session.consume("told", start=EARLIEST).messages) == 1
    with pytest.raises(UnknownTable, match=r"default\.here"):
        db.execute("SELECT * FROM here")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE TABLE app.t (id INT PRIMARY KEY)", ("SHARED", "PRIVATE", None, False)),
        ("CREATE SHARED TABLE app.t (id INT PRIMARY KEY)", ("SHARED", "PRIVATE", None, False)),
        ("CREATE USER TABLE app.t (id INT PRIMARY KEY)", ("USER", "PRIVATE", None, False)),
        ("CREATE STREAM TABLE app.t (id INT PRIMARY KEY) WITH (TTL_SECONDS = 60)", ("STREAM", "PRIVATE", 60, False)),
        ("CREATE TABLE app.t (id INT PRIMARY KEY) WITH (TYPE = 'USER')", ("USER", "PRIVATE", None, False)),
        ("CREATE TABLE app.t (id INT PRIMARY KEY) WITH (ACCESS_LEVEL = 'PUBLIC')", ("SHARED", "PUBLIC", None, False)),
        ("CREATE TABLE app.t (id INT PRIMARY KEY) WITH (REPLICATE = TRUE)", ("SHARED", "PRIVATE", None, True)),
        ("CREATE TABLE IF NOT EXISTS app.t (id INT PRIMARY KEY)", ("SHARED", "PRIVATE", None, False)),
    ],
)
def test_kinds_of_tables(db: Database, sql: str, expected: tuple[Any, ...]) -> None:
    db.execute(sql)
    assert db.execute("SELECT kind, access_level, ttl_seconds, replicate FROM system.tables").rows == [expected]
    assert db.execute("CREATE TABLE IF NOT EXISTS app.t (other TEXT PRIMARY KEY)").message.endswith("nothing to do")
    assert db.execute("SELECT * FROM app.t").columns == ("id",)
    db.execute("DROP TABLE app.t")
    assert db.execute("SHOW TABLES").rows == []
    assert db.execute("DROP TABLE IF EXISTS app.t").message == "DROP TABLE: nothing to do"


def test_a_dropped_table_leaves_nothing_to_its_successor(orders: Database) -> None:
    orders.execute("DROP TABLE app.orders CASCADE")
    orders.execute("CREATE TABLE app.orders (id BIGINT PRIMARY KEY)")
    assert orders.execute("SELECT * FROM app.orders").rows == []
    orders.execute("INSERT INTO app.orders VALUES (1)")
    assert len(messages(orders)) == 3, "its sources went with it"


def test_defaults(db: Database, clock: FakeClock) -> None:
    db.execute(
        """CREATE TABLE app.t (
          id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), ref UUID DEFAULT UUID_V7(), at TIMESTAMP DEFAULT NOW(),
          who TEXT DEFAULT CURRENT_USER(), price DECIMAL(5,2) DEFAULT 1.5, doc JSON DEFAULT '{"a": 1}', none INT)"""
    )
    rows = db.session("ann", "service").execute("INSERT INTO app.t (none) VALUES (1), (2), (NULL) RETURNING *").rows
    assert [row[2:] for row in rows] == [(START, "ann", Decimal("1.50"), {"a": 1}, n) for n in (1, 2, None)]
    assert len({row[0] for row in rows}) == len({row[1] for row in rows}) == 3
    assert [row[0] for row in rows] == sorted(row[0] for row in rows), "snowflake ids grow"
    assert all(row[1].version == 7 and row[1].int >> 80 == START_MS for row in rows)
    clock.advance(1000)
    (row,) = db.execute("INSERT INTO app.t DEFAULT VALUES RETURNING at, who, price").rows
    assert row == (START + dt.timedelta(seconds=1), "system", Decimal("1.50"))
    db.execute("UPDATE app.t SET price = 9, none = 9")
    db.execute("UPDATE app.t SET price = DEFAULT, none = DEFAULT")
    assert set(db.execute("SELECT price, none FROM app.t").rows) == {(Decimal("1.50"), None)}
    assert db.insert("app.t", [{}, {"price": 3}]).row_count == 2


def test_composite_keys(db: Database) -> None:
    db.execute_all(
        """CREATE TABLE app.t (a TEXT, b INT, c TEXT, v INT, PRIMARY KEY (b, a));
        CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.t ON ANY WITH (payload = 'key')"""
    )
    db.execute("INSERT INTO app.t VALUES ('x', 1, 'c', 1), ('y', 1, 'c', 2), ('x', 2, 'c', 3), ('', -1, 'c', 4)")
    assert ids(db.execute("SELECT v FROM app.t")) == [4, 1, 2, 3], "ordered by (b, a)"
    assert ids(db.execute("SELECT v FROM app.t WHERE b = 1 AND a = 'y'")) == [2]
    assert ids(db.execute("SELECT v FROM app.t WHERE b = 1")) == [1, 2]
    assert ids(db.execute("SELECT v FROM app.t WHERE b = 1 AND a > 'x'")) == [2]
    assert ids(db.execute("SELECT v FROM app.t WHERE a = 'x' ORDER BY b")) == [1, 3]
    with pytest.raises(DuplicateKey, match="b = 1, a = 'x'"):
        db.execute("INSERT INTO app.t VALUES ('x', 1, 'c', 9)")
    assert [json.loads(m.key) for m in messages(db)] == [[1, "x"], [1, "y"], [2, "x"], [-1, ""]]
    assert messages(db)[0].value == {"_table": "app.t", "b": 1, "a": "x"}


def test_add_column(orders: Database) -> None:
    """Rows and messages that exist stay as they are stored; rows are read with the default."""
    before = messages(orders)
    orders.execute("ALTER TABLE app.orders ADD COLUMN prio INT DEFAULT 3")
    orders.execute("ALTER TABLE app.orders ADD COLUMN tag TEXT NOT NULL DEFAULT 'none'")
    orders.execute("ALTER TABLE app.orders ADD COLUMN IF NOT EXISTS tag INT")
    assert messages(orders) == before
    assert orders.execute("SELECT prio, tag FROM app.orders WHERE id = 1").rows == [(3, "none")]
    assert orders.execute("SELECT sum(prio) FROM app.orders WHERE prio > 1").scalar() == 9
    orders.execute("UPDATE app.orders SET status = 'paid' WHERE id = 1")
    orders.execute("INSERT INTO app.orders (id, customer, prio) VALUES (4, 'cy', NULL)")
    (_, _, update), (_, _, insert) = since(orders, 3)
    assert update == {"_table": "app.orders", "id": "1", "status": {"old": "new", "new": "paid"}}
    assert (insert["prio"], insert["tag"]) == (None, "none")
    orders.execute("ALTER TOPIC app.events DROP SOURCE app.orders")
    orders.execute("ALTER TOPIC app.events ADD SOURCE app.orders ON ANY WHERE prio = 3 AND tag = 'none'")
    orders.execute("DELETE FROM app.orders")
    assert [key for _, key, _ in since(orders, 5)] == [["1"], ["2"], ["3"]], "a filter sees the default of old rows"


# --- writing -------------------------------------------------------------------------------------------------


def test_insert_forms(orders: Database) -> None:
    assert orders.execute("INSERT INTO app.orders VALUES (4, 'cy', 1.005, NULL)").message == "INSERT 1"
    assert (
        orders.execute("INSERT INTO app.orders (customer, id) VALUES ('di', 2 + 3), (?, ?)", ["ed", 6]).row_count == 2
    )
    assert orders.insert("app.orders", [(7, "fi")], columns=["id", "customer"]).row_count == 1
    assert (
        orders.insert("app.orders", [{"id": 8, "customer": "gi"}, {"customer": "hy", "id": 9, "amount": 1}]).row_count
        == 2
    )
    rows = orders.execute("SELECT id, customer, amount, status FROM app.orders WHERE id > 3").rows
    assert rows == [
        (4, "cy", Decimal("1.01"), None), (5, "di", None, "new"), (6, "ed", None, "new"), (7, "fi", None, "new"),
        (8, "gi", None, "new"), (9, "hy", Decimal(1), "new"),
    ]  # fmt: skip
    assert [key for _, key, _ in since(orders, 3)] == [[str(i)] for i in range(4, 10)]
    assert orders.insert("app.orders", []).row_count == 0


def test_insert_select(orders: Database) -> None:
    result = orders.execute(
        "INSERT INTO app.orders (id, customer, amount) SELECT max(id) + 10, customer, sum(amount) FROM app.orders "
        "GROUP BY customer ORDER BY customer RETURNING id, amount"
    )
    assert result.rows == [(13, Decimal(40)), (12, Decimal(20))]
    assert result.row_count == 2


@pytest.mark.parametrize(
    ("tail", "row", "published"),
    [
        ("ON CONFLICT DO NOTHING", (Decimal(10), "new"), False),
        ("ON CONFLICT (id) DO NOTHING", (Decimal(10), "new"), False),
        ("ON CONFLICT (id) DO UPDATE SET amount = excluded.amount", (Decimal(5), "new"), True),
        ("ON CONFLICT (id) DO UPDATE SET amount = amount + excluded.amount, status = 'x'", (Decimal(15), "x"), True),
        ("ON CONFLICT (id) DO UPDATE SET amount = orders.amount * 2 WHERE orders.amount < 50", (Decimal(20), "new"), True),
        ("ON CONFLICT (id) DO UPDATE SET amount = 0 WHERE orders.amount > 50", (Decimal(10), "new"), False),
        ("ON CONFLICT (id) DO UPDATE SET status = CURRENT_USER()", (Decimal(10), "system"), True),
    ],
)  # fmt: skip
def test_on_conflict(orders: Database, tail: str, row: tuple[Any, ...], published: bool) -> None:
    sql = f"INSERT INTO app.orders (id, customer, amount) VALUES (1, 'zed', 5), (9, 'new', 9) {tail} RETURNING id"
    returned = orders.execute(sql)
    assert ids(returned) == ([1, 9] if published else [9])
    assert returned.row_count == len(returned)
    assert orders.execute("SELECT amount, status FROM app.orders WHERE id = 1").rows == [row]
    assert orders.execute("SELECT customer FROM app.orders WHERE id = 1").scalar() == "ann"
    assert [op for op, _, _ in since(orders, 3)] == (["update", "insert"] if published else ["insert"])


def test_upsert_and_delete_without_sql(orders: Database) -> None:
    """An upsert overwrites the columns that each row names, and no others."""
    orders.execute("UPDATE app.orders SET status = 'paid'")
    orders.insert("app.orders", [{"id": 1, "customer": "x"}, {"id": 2, "customer": "y", "amount": 5}], mode="upsert")
    orders.insert("app.orders", [{"id": 9, "customer": "z"}], mode="upsert")
    assert orders.execute("SELECT * FROM app.orders").rows == [
        (1, "x", Decimal(10), "paid"), (2, "y", Decimal(5), "paid"), (3, "ann", Decimal(30), "paid"), (9, "z", None, "new"),
    ]  # fmt: skip
    assert orders.insert("app.orders", [{"id": 1}, {"id": 77}, {"id": 1}], mode="delete").row_count == 1
    assert orders.insert("app.orders", [(2,), (3,)], mode="delete").row_count == 2
    assert ids(orders.execute("SELECT id FROM app.orders")) == [9]
    assert [op for op, _, _ in since(orders, 6)] == ["update", "update", "insert", "delete", "delete", "delete"]


def test_returning(orders: Database) -> None:
    sql = "UPDATE app.orders SET amount = amount * 2 WHERE customer = 'ann' RETURNING id, amount / 2 AS half, upper(customer)"
    result = orders.execute(sql)
    assert result.columns[:2] == ("id", "half")
    assert [(row[0], row[2]) for row in result] == [(1, "ANN"), (3, "ANN")]
    assert [float(row[1]) for row in result] == [10.0, 30.0]
    assert (result.row_count, result.message) == (2, "UPDATE 2")
    assert orders.execute("DELETE FROM app.orders WHERE id = 2 RETURNING *").rows == [(2, "bob", Decimal(20), "new")]
    assert orders.execute("DELETE FROM app.orders WHERE id = 2 RETURNING *").rows == []


def test_update_with_expressions_and_subqueries(orders: Database) -> None:
    orders.execute("UPDATE app.orders SET amount = CASE WHEN amount > 15 THEN amount - 1 ELSE 0 END, status = customer")
    assert orders.execute("SELECT amount, status FROM app.orders").rows == [
        (Decimal(0), "ann"), (Decimal(19), "bob"), (Decimal(29), "ann"),
    ]  # fmt: skip
    result = orders.execute(
        "UPDATE app.orders SET amount = (SELECT max(amount) FROM app.orders) "
        "WHERE id IN (SELECT id FROM app.orders WHERE customer = ?) RETURNING id, amount",
        ["ann"],
    )
    assert result.rows == [(1, Decimal(29)), (3, Decimal(29))]
    gone = orders.execute("DELETE FROM app.orders WHERE amount = (SELECT max(amount) FROM app.orders) RETURNING id")
    assert sorted(ids(gone)) == [1, 3]
    assert [op for op, _, _ in since(orders, 6)] == ["update", "update", "delete", "delete"]


def test_an_update_of_the_primary_key_is_a_delete_and_an_insert(orders: Database) -> None:
    assert orders.execute("UPDATE app.orders SET id = id + 1").row_count == 3
    assert orders.execute("SELECT id, customer FROM app.orders").rows == [(2, "ann"), (3, "bob"), (4, "ann")]
    told = [(op, key) for op, key, _ in since(orders, 3)]
    assert told == [("delete", [k]) for k in "123"] + [("insert", [k]) for k in "234"]
    orders.execute("UPDATE app.orders SET id = 6 - id")
    assert orders.execute("SELECT id, customer FROM app.orders").rows == [(2, "ann"), (3, "bob"), (4, "ann")]


def test_equal_values_publish_an_empty_diff(orders: Database) -> None:
    assert orders.execute("UPDATE app.orders SET status = 'new', amount = amount WHERE id = 1").row_count == 1
    assert since(orders, 3) == [("update", ["1"], {"_table": "app.orders", "id": "1"})]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE app.orders SET amount = 1 WHERE id = 99",
        "UPDATE app.orders SET amount = 1 WHERE customer = 'nobody'",
        "DELETE FROM app.orders WHERE amount > 1000",
        "INSERT INTO app.orders (id, customer) VALUES (1, 'x') ON CONFLICT DO NOTHING",
        "INSERT INTO app.orders SELECT * FROM app.orders WHERE FALSE",
        "SELECT * FROM app.orders",
        "BEGIN; COMMIT",
        "BEGIN; DELETE FROM app.orders; ROLLBACK",
    ],
)
def test_what_changes_nothing_publishes_nothing(orders: Database, sql: str) -> None:
    seq = orders.engine.seq
    assert orders.execute(sql).row_count in (0, 3)
    assert orders.engine.seq == seq, "and is no commit"
    assert since(orders, 3) == []


def test_payload_modes(db: Database) -> None:
    db.execute("CREATE TABLE app.t (id INT PRIMARY KEY, a INT, b TEXT)")
    for mode in ("full", "key", "diff"):
        db.execute(f"CREATE TOPIC app.{mode}")
        db.execute(f"ALTER TOPIC app.{mode} ADD SOURCE app.t ON ANY WITH (payload = '{mode}')")
    db.execute("INSERT INTO app.t VALUES (1, 1, 'x')")
    db.execute("UPDATE app.t SET a = 2, b = b")
    db.execute("DELETE FROM app.t")
    full = [{"_table": "app.t", "id": 1, "a": a, "b": "x"} for a in (1, 2, 2)]
    key = {"_table": "app.t", "id": 1}
    assert [m.value for m in messages(db, "app.full")] == full
    assert [m.value for m in messages(db, "app.key")] == [key] * 3
    assert [m.value for m in messages(db, "app.diff")] == [full[0], key | {"a": {"old": 1, "new": 2}}, full[2]]
    assert [m.op for m in messages(db, "app.full")] == [Op.INSERT, Op.UPDATE, Op.DELETE]


# --- _seq ----------------------------------------------------------------------------------------------------


def test_seq_is_the_commit_that_last_wrote_the_row(orders: Database) -> None:
    assert "_seq" not in orders.execute("SELECT * FROM app.orders").columns
    first = orders.execute("SELECT DISTINCT _seq FROM app.orders").scalar()
    written = orders.execute("UPDATE app.orders SET amount = 0 WHERE id = 2")
    assert written.seq is not None
    assert written.seq > first
    rows = orders.execute("SELECT id, _seq FROM app.orders ORDER BY id").rows
    assert rows == [(1, first), (2, written.seq), (3, first)]
    assert ids(orders.execute("SELECT id FROM app.orders WHERE _seq > ?", [first])) == [2]
    assert [m.seq for m in messages(orders)] == [first] * 3 + [written.seq]


def test_a_transaction_is_one_commit(orders: Database) -> None:
    with orders.transaction() as tx:
        tx.execute("INSERT INTO app.orders (id, customer) VALUES (4, 'x')")
        tx.execute("UPDATE app.orders SET amount = 1 WHERE id = 1")
        tx.execute("DELETE FROM app.orders WHERE id = 2")
    told = messages(orders)[3:]
    assert [m.op.label for m in told] == ["insert", "update", "delete"]
    assert {m.seq for m in told} == {orders.engine.seq}
    assert set(orders.execute("SELECT _seq FROM app.orders WHERE id IN (1, 4)").rows) == {(orders.engine.seq,)}


def test_a_column_cannot_be_called_seq(orders: Database) -> None:
    with pytest.raises(UnknownColumn, match="_seq"):
        orders.execute("INSERT INTO app.orders (id, customer, _seq) VALUES (9, 'x', 1)")
    with pytest.raises(UnknownColumn, match="_seq"):
        orders.execute("UPDATE app.orders SET _seq = 1")


# --- transactions --------------------------------------------------------------------------------------------


def test_begin_commit_rollback(orders: Database) -> None:
    session = orders.session("s", "service")
    session.execute("BEGIN")
    session.execute("UPDATE app.orders SET status = 'a'")
    session.execute("INSERT INTO app.orders (id, customer) VALUES (4, 'x')")
    assert session.execute("SELECT count(*) FROM app.orders WHERE id > 0").scalar() == 4
    assert ids(session.execute("SELECT status FROM app.orders WHERE id = 1")) == ["a"]
    assert orders.execute("SELECT count(*) FROM app.orders").scalar() == 3, "nobody else sees it"
    assert since(orders, 3) == []
    done = session.execute("COMMIT")
    assert (done.row_count, done.seq) == (4, orders.engine.seq)
    assert len(since(orders, 3)) == 4
    session.execute("BEGIN; DELETE FROM app.orders; ROLLBACK")
    assert orders.execute("SELECT count(*) FROM app.orders").scalar() == 4
    results = orders.execute_all("BEGIN; DELETE FROM app.orders WHERE id = 4; SELECT count(*) FROM app.orders; COMMIT")
    assert results[2].scalar() == 3


def test_a_failed_statement_leaves_the_rest_of_its_transaction(orders: Database) -> None:
    with orders.transaction() as tx:
        tx.execute("INSERT INTO app.orders (id, customer) VALUES (4, 'x')")
        with pytest.raises(DuplicateKey):
            tx.execute("INSERT INTO app.orders (id, customer) VALUES (5, 'y'), (4, 'z')")
        with pytest.raises(NotNullViolation):
            tx.execute("UPDATE app.orders SET customer = NULL")
    assert ids(orders.execute("SELECT id FROM app.orders")) == [1, 2, 3, 4]


def test_an_exception_rolls_back(orders: Database) -> None:
    with pytest.raises(ZeroDivisionError), orders.transaction() as tx:
        tx.execute("DELETE FROM app.orders")
        raise ZeroDivisionError
    assert orders.execute("SELECT count(*) FROM app.orders").scalar() == 3


def test_readers_in_a_transaction_do_not_see_later_commits(orders: Database) -> None:
    session = orders.session("s", "service")
    queries = (
        "SELECT id, amount FROM app.orders",
        "SELECT id, amount FROM app.orders WHERE id = 1",
        "SELECT customer, sum(amount) FROM app.orders GROUP BY customer ORDER BY 1",
        "SELECT id FROM app.orders WHERE id > 1 ORDER BY id DESC",
    )
    session.begin()
    before = [session.execute(sql).rows for sql in queries]
    orders.execute("UPDATE app.orders SET amount = 99")
    orders.execute("DELETE FROM app.orders WHERE id = 3")
    orders.execute("INSERT INTO app.orders (id, customer) VALUES (4, 'x')")
    assert [session.execute(sql).rows for sql in queries] == before
    session.commit()
    assert [session.execute(sql).rows for sql in queries] != before


def test_first_committer_wins(orders: Database) -> None:
    one, two = orders.session("one", "service"), orders.session("two", "service")
    one.begin()
    two.begin()
    one.execute("UPDATE app.orders SET amount = amount + 1 WHERE id = 1")
    two.execute("UPDATE app.orders SET amount = amount + 1 WHERE id = 1")
    two.execute("DELETE FROM app.orders WHERE id = 2")
    one.commit()
    with pytest.raises(TransactionConflict, match="id = 1"):
        two.commit()
    assert not two.in_transaction
    assert orders.execute("SELECT id, amount FROM app.orders WHERE id < 3").rows == [(1, Decimal(11)), (2, Decimal(20))]
    assert len(since(orders, 3)) == 1


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (
            "INSERT INTO app.orders (id, customer) VALUES (9, 'a')",
            "INSERT INTO app.orders (id, customer) VALUES (9, 'b')",
        ),
        ("DELETE FROM app.orders WHERE id = 1", "UPDATE app.orders SET amount = 1 WHERE id = 1"),
        ("UPDATE app.orders SET amount = 1 WHERE id = 1", "DELETE FROM app.orders WHERE id = 1"),
        ("UPDATE app.orders SET id = 9 WHERE id = 1", "INSERT INTO app.orders (id, customer) VALUES (9, 'b')"),
        ("UPDATE app.orders SET amount = 1 WHERE id = 1", "ALTER TABLE app.orders ADD COLUMN extra INT"),
    ],
)
def test_conflicts(orders: Database, mine: str, theirs: str) -> None:
    session = orders.session("s", "service")
    session.begin()
    session.execute(mine)
    orders.execute(theirs)
    before = orders.execute("SELECT * FROM app.orders").rows
    with pytest.raises(TransactionConflict):
        session.commit()
    assert orders.execute("SELECT * FROM app.orders").rows == before


def test_transactions_on_different_rows_do_not_conflict(orders: Database) -> None:
    sessions = [orders.session(f"s{i}", "service") for i in (1, 2, 3)]
    for i, session in enumerate(sessions, 1):
        session.begin()
        session.execute("UPDATE app.orders SET amount = 0 WHERE id = ?", [i])
    for session in sessions:
        session.commit()
    assert orders.execute("SELECT sum(amount) FROM app.orders").scalar() == 0


# --- retried requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO app.orders (id, customer) VALUES (9, 'x') RETURNING id, customer",
        "UPDATE app.orders SET amount = amount + 1 RETURNING id, amount",
        "DELETE FROM app.orders WHERE amount < 25 RETURNING *",
        "UPDATE app.orders SET amount = amount + 1 WHERE id = 99 RETURNING id",
        "UPDATE app.orders SET id = id + 100 RETURNING id",
        "INSERT INTO app.orders (id, customer) VALUES (9, 'x'); DELETE FROM app.orders WHERE id = 1 RETURNING id",
    ],
)
def test_a_repeated_request_commits_once_and_is_answered_alike(orders: Database, clock: FakeClock, sql: str) -> None:
    def answers() -> list[Any]:
        return [
            (r.message, r.row_count, r.seq, r.columns, r.rows) for r in orders.execute_all(sql, idempotency_key="k")
        ]

    first = answers()
    rows, told = orders.execute("SELECT *, _seq FROM app.orders").rows, messages(orders)
    clock.advance(23 * HOUR_MS)
    orders.run_job("expiry")
    assert answers() == first
    assert orders.execute("SELECT *, _seq FROM app.orders").rows == rows
    assert messages(orders) == told


def test_what_changed_nothing_is_remembered_too(orders: Database) -> None:
    """Else the repeat of a DELETE that found nothing would delete what came since."""
    sql = "DELETE FROM app.orders WHERE id = 9"
    assert orders.execute(sql, idempotency_key="k").row_count == 0
    orders.execute("INSERT INTO app.orders (id, customer) VALUES (9, 'x')")
    assert orders.execute(sql, idempotency_key="k").row_count == 0
    assert orders.execute("SELECT count(*) FROM app.orders").scalar() == 4


def test_a_key_is_forgotten_after_a_day(orders: Database, clock: FakeClock) -> None:
    sql = "UPDATE app.orders SET amount = amount + 1 WHERE id = 1"
    orders.execute(sql, idempotency_key="k")
    clock.advance(24 * HOUR_MS)
    orders.execute(sql, idempotency_key="k")
    assert orders.execute("SELECT amount FROM app.orders WHERE id = 1").scalar() == 12
    clock.advance(24 * HOUR_MS)
    assert orders.run_job("expiry").count == 1


def test_rows_without_sql_are_retried_alike(orders: Database) -> None:
    rows = [{"id": 9, "customer": "x"}]
    first = orders.insert("app.orders", rows, idempotency_key="k")
    again = orders.insert("app.orders", rows, idempotency_key="k")
    assert (again.row_count, again.seq) == (first.row_count, first.seq) == (1, orders.engine.seq)
    assert len(messages(orders)) == 4


# --- expiry --------------------------------------------------------------------------------------------------


@pytest.fixture
def visits(db: Database) -> Session:
    db.execute_all(
        """CREATE STREAM TABLE app.visits (id INT PRIMARY KEY, page TEXT) WITH (TTL_SECONDS = 60);
        CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.visits ON ANY"""
    )
    session = db.session("ann", "service")
    session.execute("INSERT INTO app.visits VALUES (1, 'a'), (2, 'b')")
    return session


def expiring(db: Database) -> list[bytes]:
    """What is to be removed one day, except audit entries: definitions leave those."""
    entries = [key for key, _ in db.engine.store.scan(Family.EXPIRY)]
    return [key for key in entries if decode_expiry_key(key)[1] != Family.META]


def test_an_expired_row_is_invisible_at_once_and_gone_with_the_job(
    db: Database, visits: Session, clock: FakeClock
) -> None:
    clock.advance(59_999)
    assert ids(visits.execute("SELECT id FROM app.visits")) == [1, 2]
    clock.advance(1)
    for sql in (
        "SELECT * FROM app.visits",
        "SELECT * FROM app.visits WHERE id = 1",
        "SELECT * FROM app.visits WHERE id > 0 ORDER BY id DESC",
        "SELECT page, count(*) FROM app.visits GROUP BY page",
        "UPDATE app.visits SET page = 'x' RETURNING *",
        "DELETE FROM app.visits WHERE id = 1 RETURNING *",
    ):
        assert visits.execute(sql).rows == []
    assert len(list(db.engine.store.scan(Family.ROWS))) == 2
    assert db.run_job("expiry").count == 2
    assert list(db.engine.store.scan(Family.ROWS)) == expiring(db) == []
    assert len(messages(db)) == 2, "expiry is no change: no message"
    assert db.execute("SELECT removed, status FROM system.jobs WHERE name = 'expiry'").rows == [(2, "done")]


def test_a_key_that_expired_can_be_inserted_again(db: Database, visits: Session, clock: FakeClock) -> None:
    clock.advance(60_000)
    visits.execute("INSERT INTO app.visits VALUES (1, 'again')")
    assert visits.execute("SELECT * FROM app.visits").rows == [(1, "again")]
    assert [m.op.label for m in messages(db)] == ["insert"] * 3
    db.run_job("expiry")
    assert visits.execute("SELECT * FROM app.visits").rows == [(1, "again")], "the older entry does not take it along"


def test_a_write_renews_a_rows_time(db: Database, visits: Session, clock: FakeClock) -> None:
    clock.advance(40_000)
    visits.execute("UPDATE app.visits SET page = 'new' WHERE id = 1")
    clock.advance(40_000)
    db.run_job("expiry")
    assert visits.execute("SELECT id FROM app.visits").rows == [(1,)]
    clock.advance(20_000)
    assert visits.execute("SELECT id FROM app.visits").rows == []


# --- topics --------------------------------------------------------------------------------------------------


def test_create_alter_drop_topic(db: Database) -> None:
    db.execute(
        "CREATE TOPIC app.t ALIAS 'short' PARTITIONS 4 WITH (retention_seconds = 60, retention_max_bytes = 1000, "
        "dedup_window_seconds = 5, max_deliveries = 3, dead_letter = 'app.dead')"
    )
    settings = "retention_seconds, retention_max_bytes, dedup_window_seconds, max_deliveries, dead_letter"
    sql = f"SELECT alias, partitions, {settings} FROM system.topics WHERE name = 't'"
    assert db.execute(sql).rows == [("short", 4, 60, 1000, 5, 3, "app.dead")]
    db.execute("ALTER TOPIC short SET (retention_seconds = NULL, retention_max_bytes = NULL, max_deliveries = 0)")
    assert db.execute(sql).rows == [("short", 4, None, None, 5, 0, "app.dead")]
    assert db.execute("CREATE TOPIC IF NOT EXISTS app.t").message == "CREATE TOPIC: nothing to do"
    assert sorted(db.execute("SHOW TOPICS").arrow().column("name").to_pylist()) == ["dead", "t"]
    db.execute("DROP TOPIC short")
    assert db.execute("DROP TOPIC IF EXISTS app.t").message == "DROP TOPIC: nothing to do"
    db.execute("DROP TOPIC app.dead")
    assert db.execute("SHOW TOPICS").rows == []


def test_sources(orders: Database) -> None:
    orders.execute("CREATE TOPIC app.picked PARTITIONS 3")
    orders.execute(
        "ALTER TOPIC app.picked ADD SOURCE app.orders ON INSERT, UPDATE WHERE amount > 15 AND status = 'new' "
        "PARTITION BY customer WITH (payload = 'key')"
    )
    assert orders.execute("DESCRIBE TOPIC app.picked").rows == [
        ("app.picked", "app.orders", "insert, update", "amount > 15 AND status = 'new'", "customer", "key")
    ]
    assert messages(orders, "app.picked") == [], "what was there before is not told without a backfill"
    orders.execute("UPDATE app.orders SET amount = amount")
    orders.execute("DELETE FROM app.orders WHERE id = 3")
    assert sorted(m.key for m in messages(orders, "app.picked")) == [b'["2"]', b'["3"]']
    orders.execute("ALTER TOPIC app.picked DROP SOURCE app.orders ON UPDATE")
    orders.execute("UPDATE app.orders SET amount = amount")
    assert len(messages(orders, "app.picked")) == 2
    orders.execute("ALTER TOPIC app.picked ADD SOURCE app.orders ON UPDATE, DELETE")
    orders.execute("DELETE FROM app.orders")
    assert len(messages(orders, "app.picked")) == 4
    orders.execute("ALTER TOPIC app.picked DROP SOURCE app.orders")
    assert orders.execute("DESCRIBE TOPIC app.picked").rows == []


def test_a_filter_matches_only_what_is_true(db: Database) -> None:
    """Three-valued: NULL is not TRUE. The after image, and the before image of a delete."""
    db.execute_all(
        """CREATE TABLE app.t (id INT PRIMARY KEY, v INT); CREATE TOPIC app.events;
        ALTER TOPIC app.events ADD SOURCE app.t ON ANY WHERE v > 10;
        INSERT INTO app.t VALUES (1, 5), (2, 15), (3, NULL);
        UPDATE app.t SET v = 20 WHERE id = 1; UPDATE app.t SET v = NULL WHERE id = 2;
        DELETE FROM app.t"""
    )
    assert [(op, key) for op, key, _ in since(db, 0)] == [("insert", [2]), ("update", [1]), ("delete", [1])]


def test_backfill(orders: Database) -> None:
    orders.execute("CREATE TOPIC app.late")
    orders.execute("UPDATE app.orders SET amount = 99 WHERE id = 1")
    sql = "ALTER TOPIC app.late ADD SOURCE app.orders ON ANY WHERE amount > 25 WITH (backfill = TRUE)"
    assert orders.execute(sql).row_count == 2
    orders.execute("INSERT INTO app.orders (id, customer, amount) VALUES (4, 'x', 50)")
    assert [(op, key) for op, key, _ in since(orders, 0, "app.late")] == [("insert", [key]) for key in "134"]


def test_all_changes_of_one_row_keep_their_order(orders: Database) -> None:
    orders.execute("CREATE TOPIC app.spread PARTITIONS 8; ALTER TOPIC app.spread ADD SOURCE app.orders ON ANY")
    for n in range(20):
        orders.execute("UPDATE app.orders SET amount = ?", [n])
    by_key: dict[bytes, list[Message]] = {}
    for message in messages(orders, "app.spread"):
        by_key.setdefault(message.key, []).append(message)
    for told in by_key.values():
        assert len({m.partition_id for m in told}) == 1
        assert [m.value["amount"] for m in told] == [f"{n}.00" for n in range(20)]
    offsets = {(m.partition_id, m.offset) for m in messages(orders, "app.spread")}
    ends = orders.execute(
        "SELECT partition_id, end_offset FROM system.topic_partitions WHERE topic = 'app.spread'"
    ).rows
    assert offsets == {(p, o) for p, end in ends for o in range(end)}, "gapless from 0"


def test_message_fields(orders: Database, clock: FakeClock) -> None:
    first, second, third = messages(orders)
    topic = orders.topic("app.events")
    assert (first.topic_id, first.partition_id, first.offset, first.delivery) == (topic.topic_id, 0, 0, 1)
    assert (first.source_table, first.op, first.payload_mode, first.user_id) == ("app.orders", Op.INSERT, "diff", None)
    assert first.ts == clock()
    assert first.message_id < second.message_id < third.message_id
    assert len({first.content_hash, second.content_hash, third.content_hash}) == 3
    arrow = orders.read_arrow("app.events")
    assert arrow.column("payload").to_pylist() == [m.payload for m in (first, second, third)]
    assert arrow.column("offset").to_pylist() == [0, 1, 2]
    assert orders.read_arrow("app.events", start=Start(StartKind.OFFSET, 2)).num_rows == 1


def test_dedup_window(db: Database, clock: FakeClock) -> None:
    """The same (table, op, key, content) inside the window is told once, and counted."""
    db.execute_all(
        """CREATE TABLE app.t (id INT PRIMARY KEY, v INT); CREATE TOPIC app.events WITH (dedup_window_seconds = 30);
        ALTER TOPIC app.events ADD SOURCE app.t ON ANY; INSERT INTO app.t VALUES (1, 1), (2, 1)"""
    )
    for v in (5, 5, 6, 5):
        db.execute("UPDATE app.t SET v = ? WHERE id = 1", [v])
    assert [m.value["v"] for m in messages(db)] == [1, 1, 5, 6]
    counted = "SELECT value FROM system.settings WHERE name = 'deduplicated_since_open'"
    assert db.execute(counted).scalar() == "2"
    clock.advance(29_999)
    db.execute("UPDATE app.t SET v = 5 WHERE id = 1")
    assert len(messages(db)) == 4
    clock.advance(1)
    db.execute("UPDATE app.t SET v = 5 WHERE id = 1")
    db.execute("UPDATE app.t SET v = 5 WHERE id = 2")
    assert [json.loads(m.key) for m in messages(db)[4:]] == [[1], [2]]
    clock.advance(30_000)
    db.run_job("expiry")
    assert list(db.engine.store.scan(Family.KEYS)) == []


def test_a_dedup_window_that_grows(db: Database, clock: FakeClock) -> None:
    """What was remembered for the shorter window counts for the longer one, and is removed after it."""
    db.execute_all(
        """CREATE TABLE app.t (id INT PRIMARY KEY, v INT); CREATE TOPIC app.events WITH (dedup_window_seconds = 10);
        ALTER TOPIC app.events ADD SOURCE app.t ON ANY; INSERT INTO app.t VALUES (1, 1); UPDATE app.t SET v = 2;
        ALTER TOPIC app.events SET (dedup_window_seconds = 100)"""
    )
    clock.advance(20_000)
    assert db.run_job("expiry").count == 0
    db.execute("UPDATE app.t SET v = 2")
    assert len(messages(db)) == 2
    clock.advance(80_000)
    assert db.run_job("expiry").count == 2
    assert list(db.engine.store.scan(Family.KEYS)) == expiring(db) == []


def test_clear_topic(orders: Database) -> None:
    orders.consume("app.events", group="behind", limit=1)
    orders.consume("app.events", group="done")
    orders.ack("app.events", "done", 2)
    assert orders.execute("CLEAR TOPIC app.events").row_count == 3
    assert messages(orders) == []
    orders.execute("UPDATE app.orders SET amount = 1 WHERE id = 1")
    assert [m.offset for m in messages(orders)] == [3], "offsets go on where they were"
    assert [m.offset for m in orders.consume("app.events", group="done").messages] == [3]
    with pytest.raises(OffsetOutOfRange):
        orders.consume("app.events", group="behind", consumer="other")
    topic = orders.topic("app.events").topic_id
    assert len(list(orders.engine.store.scan(Family.LOG, log_prefix(topic, 0)))) == 1


# --- groups by SQL -------------------------------------------------------------------------------------------


def test_consume_and_ack_by_sql(orders: Database, clock: FakeClock) -> None:
    result = orders.execute("CONSUME FROM app.events GROUP 'billing' LIMIT 2")
    assert result.columns == (
        "partition_id", "offset", "message_id", "source_table", "op", "ts", "payload_mode", "key", "payload", "user_id",
        "seq", "delivery",
    )  # fmt: skip
    found = result.dicts()
    assert [(row["offset"], row["op"], row["key"], row["delivery"]) for row in found] == [
        (0, "insert", ["1"], 1), (1, "insert", ["2"], 1),
    ]  # fmt: skip
    assert found[0]["payload"]["customer"] == "ann"
    assert found[0]["ts"] == START
    assert orders.execute("ACK app.events GROUP 'billing' UPTO OFFSET 0").message == "ACK: acknowledged up to 0"
    assert orders.execute("NACK app.events GROUP 'billing' OFFSET 1").message == "NACK: acknowledged up to 0"
    assert [
        (r["offset"], r["delivery"]) for r in orders.execute("CONSUME FROM app.events GROUP 'billing'").dicts()
    ] == [(1, 2)]
    assert ids(orders.execute("SELECT lag FROM system.topic_groups")) == [2]
    clock.advance(5000)
    assert orders.execute("SELECT committed, claimed, end_offset, lag, lag_seconds FROM system.topic_groups").rows == [
        (1, 1, 3, 2, 5.0)
    ]
    orders.execute("ACK app.events GROUP 'billing' OFFSET 1")
    assert [r["offset"] for r in orders.execute("CONSUME FROM app.events GROUP 'billing' PARTITION 0").dicts()] == [2]


def test_where_a_read_starts(orders: Database, clock: FakeClock) -> None:
    clock.advance(HOUR_MS)
    orders.execute("UPDATE app.orders SET amount = 0 WHERE id = 1")
    clock.advance(HOUR_MS)
    orders.execute("UPDATE app.orders SET amount = 1 WHERE id = 1")

    def offsets(start: str, group: str = "") -> list[int]:
        return [row[1] for row in orders.execute(f"CONSUME FROM app.events {group} {start}")]

    assert offsets("FROM EARLIEST") == [0, 1, 2, 3, 4]
    assert offsets("FROM LATEST") == []
    assert offsets("FROM OFFSET 3") == [3, 4]
    assert offsets("FROM TIMESTAMP '2026-01-01T01:00:00Z'") == [3, 4], "not older than"
    assert offsets("FROM TIMESTAMP '2026-01-01T01:00:00.001Z'") == [4]
    assert offsets("FROM TIMESTAMP '2030-01-01T00:00:00Z'") == []
    assert offsets("FROM TIMESTAMP '2020-01-01T00:00:00Z'") == [0, 1, 2, 3, 4]
    assert offsets("FROM OFFSET 4", "GROUP 'a'") == [4]
    assert offsets("", "GROUP 'b'") == [0, 1, 2, 3, 4], "a group begins at the earliest"
    assert offsets("", "GROUP 'a'") == []
    assert orders.consume("app.events", start=LATEST).next_offset == 5


def test_reset_group(orders: Database) -> None:
    orders.consume("app.events", group="g")
    orders.ack("app.events", "g", 2)

    def next_offsets() -> list[int]:
        return [m.offset for m in orders.consume("app.events", group="g").messages]

    assert next_offsets() == []
    assert orders.execute("RESET GROUP 'g' ON app.events TO OFFSET 1").message == "RESET GROUP 1"
    assert next_offsets() == [1, 2]
    orders.execute("RESET GROUP 'g' ON app.events PARTITION 0 TO EARLIEST")
    assert next_offsets() == [0, 1, 2]
    orders.execute("RESET GROUP 'g' ON app.events TO LATEST")
    assert next_offsets() == []
    orders.execute("RESET GROUP 'g' ON app.events TO TIMESTAMP '2026-01-01T00:00:00Z'")
    assert next_offsets() == [0, 1, 2]


@pytest.fixture
def failing(orders: Database) -> Database:
    """One message of the topic was given up on."""
    orders.execute("CREATE TOPIC app.jobs WITH (max_deliveries = 2, dead_letter = 'app.dead')")
    orders.execute("ALTER TOPIC app.jobs ADD SOURCE app.orders ON ANY")
    orders.execute("UPDATE app.orders SET amount = 7 WHERE id < 3")
    for _ in range(2):
        orders.consume("app.jobs", group="g", limit=1)
        orders.nack("app.jobs", "g", [0], reason="no luck")
    assert [m.offset for m in orders.consume("app.jobs", group="g").messages] == [1]
    return orders


def test_dead_letters_and_redrive(failing: Database) -> None:
    (letter,) = messages(failing, "app.dead")
    assert letter.value["_dead_letter"] == {
        "topic": "app.jobs", "topic_id": failing.topic("app.jobs").topic_id, "group": "g", "partition": 0, "offset": 0,
        "deliveries": 2, "reason": "no luck",
    }  # fmt: skip
    assert letter.value["message"] == messages(failing, "app.jobs")[0].value
    failing.ack("app.jobs", "g", 1)
    assert failing.execute("REDRIVE TOPIC app.dead ALL").row_count == 1
    assert failing.execute("REDRIVE TOPIC app.dead ALL").row_count == 0, "once is enough"
    again = failing.consume("app.jobs", group="g").messages
    assert [(m.offset, m.delivery) for m in again] == [(0, 1)]
    assert failing.consume("app.jobs", group="other", limit=1).messages[0].offset == 0
    failing.ack("app.jobs", "g", 0)
    assert failing.execute("SELECT lag FROM system.topic_groups WHERE topic = 'app.jobs' AND group_id = 'g'").rows == [
        (0,)
    ]


def test_redrive_of_one(failing: Database) -> None:
    assert failing.execute("REDRIVE TOPIC app.dead OFFSET 0").message == "REDRIVE 1"
    assert [m.offset for m in failing.consume("app.jobs", group="g").messages] == [0]


def test_redrive_of_what_its_topic_no_longer_keeps(failing: Database) -> None:
    """The dead letter's copy is told again, to the partition the message was in."""
    original = messages(failing, "app.jobs")[0]
    failing.execute("CLEAR TOPIC app.jobs")
    failing.execute("REDRIVE TOPIC app.dead ALL")
    (copy,) = messages(failing, "app.jobs")
    assert (copy.offset, copy.key, copy.payload) == (2, original.key, original.payload)


def test_a_dead_letter_is_never_taken_for_a_repeat(failing: Database) -> None:
    """It is all that is left of its message: a dedup window does not swallow the second one, nor what is sent back."""
    for topic in ("app.dead", "app.jobs"):
        failing.execute(f"ALTER TOPIC {topic} SET (dedup_window_seconds = 3600)")
    failing.ack("app.jobs", "g", 1)
    for deaths in (2, 3):
        assert failing.execute("REDRIVE TOPIC app.dead ALL").row_count == 1
        for _ in range(2):
            failing.consume("app.jobs", group="g", limit=1)
            failing.nack("app.jobs", "g", [0], reason="no luck")
        assert failing.consume("app.jobs", group="g").messages == []
        assert len(messages(failing, "app.dead")) == deaths
    failing.execute("CLEAR TOPIC app.jobs")
    assert failing.execute("REDRIVE TOPIC app.dead ALL").row_count == 1
    assert [m.value["customer"] for m in messages(failing, "app.jobs")] == ["ann"]


def test_redrive_to_a_topic_that_was_made_anew(failing: Database) -> None:
    """At the letter's offset it has another message: refused, and nothing is sent back."""
    failing.execute("DROP TOPIC app.jobs")
    failing.execute("CREATE TOPIC app.jobs; ALTER TOPIC app.jobs ADD SOURCE app.orders ON ANY")
    failing.execute("UPDATE app.orders SET amount = 8 WHERE id = 3")
    failing.consume("app.jobs", group="g")
    failing.ack("app.jobs", "g", 0)
    with pytest.raises(InvalidRequest, match=r"came from a topic app\.jobs that was dropped"):
        failing.execute("REDRIVE TOPIC app.dead ALL")
    assert failing.consume("app.jobs", group="g").messages == []
    assert len(messages(failing, "app.jobs")) == 1


def test_a_redriven_copy_goes_to_its_rows_partition(db: Database) -> None:
    db.execute_all(
        """CREATE TABLE app.t (id INT PRIMARY KEY);
        CREATE TOPIC app.jobs PARTITIONS 8 WITH (max_deliveries = 1, dead_letter = 'app.dead');
        ALTER TOPIC app.jobs ADD SOURCE app.t ON ANY"""
    )
    db.insert("app.t", [{"id": i} for i in range(20)])
    home = {m.key: m.partition_id for m in messages(db, "app.jobs")}
    for m in db.consume("app.jobs", group="g").messages:
        db.nack("app.jobs", "g", [m.offset], partition=m.partition_id)
    db.consume("app.jobs", group="g")
    db.execute("CLEAR TOPIC app.jobs")
    assert db.execute("REDRIVE TOPIC app.dead ALL").row_count == 20
    assert {m.key: m.partition_id for m in messages(db, "app.jobs")} == home


# --- retention -----------------------------------------------------------------------------------------------


def log_entries(db: Database, topic: str, partition: int = 0) -> int:
    prefix = log_prefix(db.topic(topic).topic_id, partition)
    return sum(key.startswith(prefix) for key, _ in db.engine.store.scan(Family.LOG, prefix))


def test_retention_by_age(orders: Database, clock: FakeClock) -> None:
    orders.execute("ALTER TOPIC app.events SET (retention_seconds = 3600)")
    orders.consume("app.events", group="behind", limit=1)
    for _ in range(3):
        clock.advance(HOUR_MS // 2)
        orders.execute("UPDATE app.orders SET amount = 0 WHERE id = 1")
    removed = orders.run_job("retention")
    assert removed.count == 3
    assert removed.bytes > 0
    assert log_entries(orders, "app.events") == 3, "one batch of the log per commit: the first is really gone"
    assert orders.execute("SELECT start_offset, end_offset, messages FROM system.topic_partitions").rows == [(3, 6, 3)]
    assert [m.offset for m in messages(orders)] == [3, 4, 5]
    with pytest.raises(OffsetOutOfRange, match="RESET GROUP"):
        orders.consume("app.events", group="behind", consumer="another")
    assert orders.run_job("retention").count == 0
    clock.advance(24 * HOUR_MS)
    assert orders.run_job("retention").count == 3
    assert log_entries(orders, "app.events") == 0
    orders.execute("UPDATE app.orders SET amount = 0 WHERE id = 1")
    assert [m.offset for m in messages(orders)] == [6]
    assert orders.execute("SELECT runs, removed FROM system.jobs WHERE name = 'retention'").rows == [(2, 6)]


def test_retention_by_size(orders: Database) -> None:
    for n in range(20):
        orders.execute("UPDATE app.orders SET status = ?", ["x" * 100 + str(n)])
    bytes_before = orders.execute("SELECT bytes FROM system.topics").scalar()
    limit = bytes_before // 3
    orders.execute(f"ALTER TOPIC app.events SET (retention_max_bytes = {limit})")
    removed = orders.run_job("retention")
    assert removed.bytes == bytes_before - orders.execute("SELECT bytes FROM system.topics").scalar()
    kept = orders.execute("SELECT bytes, messages FROM system.topics").rows[0]
    assert limit // 2 < kept[0] <= limit, "as much as fits, and no more"
    assert kept[1] == len(messages(orders)) == 63 - removed.count
    assert [m.offset for m in messages(orders)] == list(range(removed.count, 63))


def test_retention_by_size_keeps_the_newest_commit(orders: Database) -> None:
    """However small the limit: what was just written can be read."""
    orders.execute("UPDATE app.orders SET amount = 1 WHERE id < 3")
    orders.execute("ALTER TOPIC app.events SET (retention_max_bytes = 1)")
    assert orders.run_job("retention").count == 3
    assert [m.offset for m in messages(orders)] == [3, 4]
    assert log_entries(orders, "app.events") == 1


# --- looking around ------------------------------------------------------------------------------------------


def test_describe_and_system_tables(orders: Database) -> None:
    assert orders.execute("DESCRIBE app.orders").rows == [
        (0, "id", "BIGINT", True, True, None), (1, "customer", "TEXT", True, False, None),
        (2, "amount", "DECIMAL(12,2)", False, False, None), (3, "status", "TEXT", False, False, "new"),
    ]  # fmt: skip
    orders.execute("CREATE NAMESPACE other")
    orders.execute("CREATE TABLE other.t (id INT PRIMARY KEY)")
    shown = orders.execute("SHOW TABLES IN other")
    assert [(row["namespace"], row["name"]) for row in shown.dicts()] == [("other", "t")]
    assert len(orders.execute("SHOW TABLES")) == 2
    assert orders.execute("SHOW TOPICS IN other").rows == []
    joined = orders.execute(
        "SELECT t.name, count(*) FROM system.tables t JOIN system.columns c ON c.table_name = t.name "
        "AND c.namespace = t.namespace GROUP BY t.name ORDER BY 1"
    )
    assert joined.rows == [("orders", 4), ("t", 1)]
    settings = dict(orders.execute("SELECT * FROM system.settings").rows)
    assert settings["durability"] == "fsync"
    assert settings["commit_number"] == str(orders.engine.seq)
    assert ids(orders.execute("SELECT name FROM system.jobs")) == ["retention", "expiry", "claims", "loads", "changes"]


def test_what_the_query_engine_offers(orders: Database) -> None:
    queries = {
        "SELECT customer, sum(amount) FROM app.orders GROUP BY customer HAVING sum(amount) > 25": [("ann", Decimal(40))],
        "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id DESC) FROM app.orders ORDER BY id": [
            (1, 2), (2, 1), (3, 1),
        ],
        "SELECT a.id, b.id FROM app.orders a JOIN app.orders b ON a.customer = b.customer AND a.id < b.id": [(1, 3)],
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT sum(i) FROM n": [(6,)],
        "SELECT id FROM app.orders WHERE amount > ANY (SELECT amount FROM app.orders) ORDER BY id": [(2,), (3,)],
        "SELECT id FROM app.orders ORDER BY amount DESC LIMIT 1 OFFSET 1": [(2,)],
        "SELECT DISTINCT customer FROM app.orders ORDER BY 1": [("ann",), ("bob",)],
        "SELECT 1 + 1": [(2,)],
    }  # fmt: skip
    for sql, rows in queries.items():
        assert orders.query(sql).rows == rows, sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM app.orders",
        "SELECT id, customer FROM app.orders WHERE id = 2",
        "SELECT id AS n FROM app.orders WHERE id >= 2 AND id < 3",
        "SELECT * FROM app.orders WHERE id IN (3, 1)",
        "SELECT * FROM app.orders ORDER BY id DESC LIMIT 2",
        "SELECT * FROM app.orders ORDER BY id LIMIT 1 OFFSET 1",
        "SELECT * FROM app.orders WHERE id BETWEEN 2 AND 9 ORDER BY id DESC",
    ],
)
def test_storage_and_query_engine_agree(orders: Database, sql: str) -> None:
    """What the primary key decides is answered without the query engine: with the same rows."""
    by_engine = sql.replace("app.orders", "(SELECT * FROM app.orders)")
    fast, slow = orders.execute(sql), orders.execute(by_engine)
    assert fast.columns == slow.columns
    assert fast.schema == slow.schema
    assert sorted(fast.rows) == sorted(slow.rows) if "ORDER BY" not in sql else fast.rows == slow.rows
