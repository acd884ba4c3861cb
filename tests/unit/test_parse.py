"""What the SQL front end makes of correct text."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from sqlglot import exp

from tablecast.model.change import Op
from tablecast.model.position import EARLIEST, LATEST, Start, StartKind
from tablecast.model.schema import (
    AccessLevel,
    Column,
    ColumnType,
    Default,
    DefaultKind,
    Role,
    TableKind,
    TypeName,
)
from tablecast.model.topic import PayloadMode
from tablecast.sql import parse as parse_module
from tablecast.sql import statements as s
from tablecast.sql.parse import parse
from tablecast.sql.statements import Statement, TableName, is_default

ORDERS = TableName("app", "orders")
EVENTS = TableName("app", "order_events")
ALL_OPS = (Op.INSERT, Op.UPDATE, Op.DELETE)


def one(sql: str) -> Statement:
    (statement,) = parse(sql)
    return statement


def select(sql: str) -> s.Select:
    statement = one(sql)
    assert isinstance(statement, s.Select)
    return statement


def insert(sql: str) -> s.Insert:
    statement = one(sql)
    assert isinstance(statement, s.Insert)
    return statement


def update(sql: str) -> s.Update:
    statement = one(sql)
    assert isinstance(statement, s.Update)
    return statement


def create_table(sql: str) -> s.CreateTable:
    statement = one(sql)
    assert isinstance(statement, s.CreateTable)
    return statement


def column(definition: str) -> Column:
    return create_table(f"CREATE TABLE t (k INT PRIMARY KEY, {definition})").columns[1]


def text(tree: exp.Expr | None) -> str:
    assert tree is not None
    return tree.sql("duckdb")


# --- tables -------------------------------------------------------------------------------------------------


def test_create_table_with_everything() -> None:
    statement = create_table(
        """CREATE USER TABLE IF NOT EXISTS app.Orders (
             id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), customer TEXT NOT NULL,
             amount DECIMAL(12,2) CHECK (amount   > 0), status TEXT DEFAULT 'new', note JSON,
             created_at TIMESTAMP DEFAULT NOW(), CHECK (length(customer) < 100)
           ) WITH (type = 'user', TTL_SECONDS = 3600, ACCESS_LEVEL = 'PUBLIC', REPLICATE = TRUE);"""
    )
    assert statement == s.CreateTable(
        table=ORDERS,
        columns=(
            Column("id", ColumnType(TypeName.BIGINT), True, Default(DefaultKind.SNOWFLAKE_ID)),
            Column("customer", ColumnType(TypeName.TEXT), True),
            Column("amount", ColumnType(TypeName.DECIMAL, 12, 2)),
            Column("status", ColumnType(TypeName.TEXT), False, Default(DefaultKind.LITERAL, "new")),
            Column("note", ColumnType(TypeName.JSON)),
            Column("created_at", ColumnType(TypeName.TIMESTAMP), False, Default(DefaultKind.NOW)),
        ),
        primary_key=("id",),
        checks=("amount   > 0", "length(customer) < 100"),
        kind=TableKind.USER,
        ttl_seconds=3600,
        access_level=AccessLevel.PUBLIC,
        replicate=True,
        if_not_exists=True,
    )


def test_a_plain_table_is_shared_private_and_not_replicated() -> None:
    statement = create_table("create table t (a int, b text, primary key (b, a))")
    assert (statement.table, statement.kind) == (TableName(None, "t"), TableKind.SHARED)
    assert (statement.access_level, statement.replicate, statement.ttl_seconds) == ("PRIVATE", False, None)
    assert statement.primary_key == ("b", "a")
    assert [c.not_null for c in statement.columns] == [True, True]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("CREATE SHARED TABLE t (k INT PRIMARY KEY)", TableKind.SHARED),
        ("CREATE USER TABLE t (k INT PRIMARY KEY) WITH (TYPE = 'USER')", TableKind.USER),
        ("CREATE TABLE t (k INT PRIMARY KEY) WITH (TYPE = 'STREAM', TTL_SECONDS = 1)", TableKind.STREAM),
        ("CREATE STREAM TABLE t (k INT PRIMARY KEY) WITH (TTL_SECONDS = 1)", TableKind.STREAM),
    ],
)
def test_kinds(sql: str, kind: TableKind) -> None:
    assert create_table(sql).kind is kind


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("BOOLEAN BOOL", "BOOLEAN"),
        ("SMALLINT INT2", "SMALLINT"),
        ("INT INTEGER INT4 integer", "INT"),
        ("BIGINT INT8", "BIGINT"),
        ("FLOAT REAL FLOAT4", "FLOAT"),
        ("DOUBLE FLOAT8", "DOUBLE"),
        ("TEXT VARCHAR STRING", "TEXT"),
        ("BYTES BYTEA BLOB BINARY VARBINARY", "BYTES"),
        ("JSON JSONB", "JSON"),
        ("TIMESTAMP TIMESTAMPTZ DATETIME", "TIMESTAMP"),
        ("DATE", "DATE"),
        ("TIME", "TIME"),
        ("UUID", "UUID"),
    ],
)
def test_types_and_their_aliases(names: str, expected: str) -> None:
    assert {str(column(f"c {name}").type) for name in names.split()} == {expected}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("DOUBLE PRECISION", "DOUBLE"),
        ("DOUBLE   precision", "DOUBLE"),
        ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP"),
        ("DECIMAL", "DECIMAL(18,3)"),
        ("NUMERIC(5)", "DECIMAL(5,0)"),
        ("DECIMAL(38, 38)", "DECIMAL(38,38)"),
    ],
)
def test_types_of_several_words(written: str, expected: str) -> None:
    assert str(column(f"c {written} NOT NULL").type) == expected


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("c UUID DEFAULT UUID_V7()", Default(DefaultKind.UUID_V7)),
        ("c TIMESTAMP DEFAULT CURRENT_TIMESTAMP", Default(DefaultKind.NOW)),
        ("c TEXT DEFAULT CURRENT_USER()", Default(DefaultKind.CURRENT_USER)),
        ("c TEXT DEFAULT 'it''s'", Default(DefaultKind.LITERAL, "it's")),
        ("c INT DEFAULT -42", Default(DefaultKind.LITERAL, "-42")),
        ("c DOUBLE DEFAULT -1.5e3", Default(DefaultKind.LITERAL, "-1.5e3")),
        ("c DOUBLE DEFAULT .5", Default(DefaultKind.LITERAL, "0.5")),
        ("c BOOL DEFAULT TRUE", Default(DefaultKind.LITERAL, "true")),
        ("c DATE DEFAULT DATE '2031-01-02'", Default(DefaultKind.LITERAL, "2031-01-02")),
        ("c INT DEFAULT NULL", None),
        ("c INT NULL", None),
    ],
)
def test_defaults(definition: str, expected: Default | None) -> None:
    assert column(definition).default == expected


def test_the_rest_of_table_ddl() -> None:
    assert one("CREATE NAMESPACE IF NOT EXISTS App") == s.CreateNamespace("app", True)
    assert one("DROP NAMESPACE app CASCADE") == s.DropNamespace("app", cascade=True)
    assert one("DROP TABLE IF EXISTS app.orders") == s.DropTable(ORDERS, if_exists=True)
    assert one("drop table app.orders cascade") == s.DropTable(ORDERS, cascade=True)
    assert one("drop table app.orders restrict") == s.DropTable(ORDERS)
    added = Column("note", ColumnType(TypeName.TEXT), True, Default(DefaultKind.LITERAL, ""))
    assert one(
        "ALTER TABLE app.orders ADD COLUMN note TEXT NOT NULL DEFAULT '' CHECK (note <> 'x')"
    ) == s.AlterTableAddColumn(ORDERS, added, ("note <> 'x'",))
    assert one("ALTER TABLE app.orders ADD IF NOT EXISTS n INT") == s.AlterTableAddColumn(
        ORDERS, Column("n", ColumnType(TypeName.INT)), if_not_exists=True
    )


def test_names_fold_unless_quoted() -> None:
    statement = create_table('CREATE TABLE APP."Orders" (Id INT PRIMARY KEY, "order" INT, "Total" INT)')
    assert statement.table == TableName("app", "Orders")
    assert [c.name for c in statement.columns] == ["id", "order", "Total"]


# --- topics -------------------------------------------------------------------------------------------------


def test_create_topic() -> None:
    assert one(
        """CREATE TOPIC IF NOT EXISTS app.order_events ALIAS 'orders' PARTITIONS 4
           WITH (retention_seconds = 604800, retention_max_bytes = NULL, DEDUP_WINDOW_SECONDS = 0,
                 max_deliveries = 5, dead_letter = 'app.order_events_dlq')"""
    ) == s.CreateTopic(
        EVENTS,
        "orders",
        4,
        s.TopicOptions(604800, None, 0, 5, TableName("app", "order_events_dlq")),
        True,
    )
    assert one("CREATE TOPIC t") == s.CreateTopic(TableName(None, "t"))


def test_topic_options_that_are_not_named_stay_unset() -> None:
    statement = one("ALTER TOPIC app.order_events SET (retention_seconds = NULL)")
    assert statement == s.SetTopic(EVENTS, s.TopicOptions(retention_seconds=None))
    assert isinstance(statement, s.SetTopic) and statement.options.max_deliveries is UNSET


def test_add_source_keeps_the_text_of_its_expressions() -> None:
    statement = one(
        """ALTER TOPIC app.order_events ADD SOURCE app.orders ON UPDATE, INSERT
           WHERE Amount  > 100 /* big */ AND status IN ('paid', 'PARTITION BY') -- really
           PARTITION   BY lower(customer)
           WITH (payload = 'diff', backfill = TRUE);"""
    )
    assert statement == s.AddSource(
        EVENTS,
        ORDERS,
        (Op.INSERT, Op.UPDATE),
        "Amount  > 100 /* big */ AND status IN ('paid', 'PARTITION BY')",
        "lower(customer)",
        PayloadMode.DIFF,
        True,
    )


def test_sources_in_short() -> None:
    add = one("ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY")
    assert add == s.AddSource(EVENTS, ORDERS, ALL_OPS, payload=PayloadMode.FULL)
    drop = one("ALTER TOPIC app.order_events DROP SOURCE app.orders")
    assert drop == s.DropSource(EVENTS, ORDERS, ALL_OPS)
    drop = one("ALTER TOPIC app.order_events DROP SOURCE app.orders ON DELETE")
    assert drop == s.DropSource(EVENTS, ORDERS, (Op.DELETE,))
    by = one("ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY PARTITION BY a || b")
    assert isinstance(by, s.AddSource) and by.partition_by == "a || b"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DROP TOPIC IF EXISTS app.order_events", s.DropTopic(EVENTS, True)),
        ("CLEAR TOPIC app.order_events", s.ClearTopic(EVENTS)),
        ("CONSUME FROM app.order_events", s.Consume(EVENTS)),
        ("consume from orders limit 7", s.Consume(TableName(None, "orders"), limit=7)),
        (
            "CONSUME FROM app.order_events GROUP 'billing' FROM OFFSET 12 PARTITION 3 LIMIT 50",
            s.Consume(EVENTS, "billing", Start(StartKind.OFFSET, 12), 3, 50),
        ),
        ("CONSUME FROM app.order_events FROM LATEST", s.Consume(EVENTS, start=LATEST)),
        (
            "CONSUME FROM app.order_events FROM TIMESTAMP '1970-01-02T01:00:00.5+01:00'",
            s.Consume(EVENTS, start=Start(StartKind.TIMESTAMP, 86_400_500)),
        ),
        (
            "CONSUME FROM app.order_events FROM TIMESTAMP '1970-01-02 00:00'",
            s.Consume(EVENTS, start=Start(StartKind.TIMESTAMP, 86_400_000)),
        ),
        (
            "CONSUME FROM app.order_events FROM TIMESTAMP '0001-01-01'",
            s.Consume(EVENTS, start=Start(StartKind.TIMESTAMP, 0)),
        ),
        ("ACK app.order_events GROUP 'b' UPTO OFFSET 9", s.Ack(EVENTS, "b", upto=9)),
        ("ACK app.order_events GROUP 'b' PARTITION 2 UPTO OFFSET 9", s.Ack(EVENTS, "b", 2, 9)),
        ("ACK app.order_events GROUP 'b' OFFSET 3, 5", s.Ack(EVENTS, "b", offsets=(3, 5))),
        ("NACK app.order_events GROUP 'b' PARTITION 1 OFFSET 3", s.Nack(EVENTS, "b", (3,), 1)),
        ("REDRIVE TOPIC app.order_events", s.Redrive(EVENTS)),
        ("REDRIVE TOPIC app.order_events ALL", s.Redrive(EVENTS)),
        ("REDRIVE TOPIC app.order_events OFFSET 4", s.Redrive(EVENTS, offset=4)),
        ("REDRIVE TOPIC app.order_events PARTITION 1 OFFSET 4", s.Redrive(EVENTS, 1, 4)),
        ("RESET GROUP 'b' ON app.order_events TO EARLIEST", s.ResetGroup(EVENTS, "b", EARLIEST)),
        (
            "RESET GROUP 'b' ON app.order_events PARTITION 0 TO OFFSET 3",
            s.ResetGroup(EVENTS, "b", Start(StartKind.OFFSET, 3), 0),
        ),
    ],
)
def test_topic_statements(sql: str, expected: Statement) -> None:
    assert one(sql) == expected


# --- session and users --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SHOW TABLES", s.ShowTables()),
        ("SHOW TABLES IN app", s.ShowTables("app")),
        ("SHOW TOPICS", s.ShowTopics()),
        ("SHOW NAMESPACES", s.ShowNamespaces()),
        ("DESCRIBE app.orders", s.Describe(ORDERS)),
        ("DESC TABLE app.orders", s.Describe(ORDERS)),
        ("DESCRIBE system.users", s.Describe(TableName("system", "users"))),
        ("DESCRIBE TOPIC app.order_events", s.DescribeTopic(EVENTS)),
        ("DESCRIBE topic", s.Describe(TableName(None, "topic"))),
        ("DESCRIBE topic.x", s.Describe(TableName("topic", "x"))),
        ("BEGIN", s.Begin()),
        ("START TRANSACTION", s.Begin()),
        ("COMMIT WORK", s.Commit()),
        ("ROLLBACK TRANSACTION", s.Rollback()),
        ("CREATE USER 'ann' WITH PASSWORD 'pw'", s.CreateUser("ann", "pw")),
        (
            "CREATE USER IF NOT EXISTS 'ann' WITH PASSWORD 'pw' ROLE 'service'",
            s.CreateUser("ann", "pw", Role.SERVICE, True),
        ),
        ("ALTER USER 'ann' SET PASSWORD 'new'", s.AlterUser("ann", password="new")),
        ("ALTER USER 'ann' SET ROLE 'DBA'", s.AlterUser("ann", role=Role.DBA)),
        ("DROP USER IF EXISTS 'ann'", s.DropUser("ann", True)),
        ("GRANT ROLE 'dba' TO 'ann'", s.GrantRole(Role.DBA, "ann")),
        ("cancel job 'retention'", s.CancelJob("retention")),
    ],
)
def test_session_statements(sql: str, expected: Statement) -> None:
    assert one(sql) == expected


def test_execute_as_holds_its_statements_and_sums_their_parameters() -> None:
    statement = one("EXECUTE AS USER 'alice' (INSERT INTO t VALUES (?, ?); SELECT * FROM t WHERE a = ?;)")
    assert isinstance(statement, s.ExecuteAs)
    assert (statement.user, statement.parameters) == ("alice", 3)
    assert [type(inner) for inner in statement.statements] == [s.Insert, s.Select]
    assert [inner.parameters for inner in statement.statements] == [2, 1]


def test_passwords_are_neither_shown_nor_cached() -> None:
    sql = "CREATE USER 'ann' WITH PASSWORD 'hunter2'"
    assert "hunter2" not in repr(parse(sql))
    assert parse_module._cache.get(sql) is None


# --- INSERT -------------------------------------------------------------------------------------------------


def test_insert_values() -> None:
    statement = insert("INSERT INTO App.Orders (ID, customer) VALUES (1, DEFAULT), (?, lower(?) || 'x')")
    assert (statement.table, statement.columns, statement.query) == (ORDERS, ("id", "customer"), None)
    assert statement.parameters == 2
    assert statement.rows is not None
    assert [[text(cell) for cell in row] for row in statement.rows] == [
        ["1", "DEFAULT"],
        ["$1", "LOWER($2) || 'x'"],
    ]
    assert [is_default(cell) for cell in statement.rows[0]] == [False, True]


def test_insert_without_columns_and_with_default_values() -> None:
    assert insert("INSERT INTO t VALUES (1, 2)").columns is None
    statement = insert("INSERT INTO t DEFAULT VALUES")
    assert (statement.columns, statement.rows) == ((), ((),))


def test_insert_select_is_a_checked_query() -> None:
    statement = insert("INSERT INTO t (a) SELECT b FROM app.orders WHERE c = $2")
    assert statement.rows is None and statement.query is not None
    assert statement.query.tables == statement.reads == {ORDERS}
    assert statement.parameters == 2


def test_on_conflict() -> None:
    assert insert("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING").on_conflict == s.OnConflict(None)
    conflict = insert(
        """INSERT INTO app.orders VALUES (1) ON CONFLICT (ID, k)
           DO UPDATE SET n = orders.n + EXCLUDED.n, m = DEFAULT WHERE app.orders.n < excluded.n"""
    ).on_conflict
    assert conflict is not None and conflict.columns == ("id", "k")
    assert [(a.column, text(a.value)) for a in conflict.assignments] == [
        ("n", "n + excluded.n"),
        ("m", "DEFAULT"),
    ]
    assert text(conflict.where) == "n < excluded.n"


def test_returning() -> None:
    returning = insert("INSERT INTO t VALUES (1) RETURNING *, t.id, id AS Key, id + 1").returning
    assert returning is not None
    assert [output.name for output in returning] == ["*", "id", "key", "id + 1"]
    assert isinstance(returning[0].expression, exp.Star)
    assert text(returning[1].expression) == "id"


# --- UPDATE and DELETE --------------------------------------------------------------------------------------


def test_update() -> None:
    statement = update(
        "UPDATE app.orders SET amount = orders.amount * ?, status = DEFAULT, orders.n = 1 "
        "WHERE app.orders.id = ? AND status = 'x' RETURNING app.orders.*"
    )
    assert (statement.table, statement.parameters) == (ORDERS, 2)
    assert [(a.column, text(a.value)) for a in statement.assignments] == [
        ("amount", "amount * $1"),
        ("status", "DEFAULT"),
        ("n", "1"),
    ]
    assert is_default(statement.assignments[1].value)
    assert text(statement.where) == "id = $2 AND status = 'x'"
    assert statement.returning is not None and [o.name for o in statement.returning] == ["*"]


def test_a_quoted_default_is_a_column() -> None:
    assert not is_default(update('UPDATE t SET a = "default"').assignments[0].value)


def test_an_alias_is_dropped_with_the_qualifiers() -> None:
    assert text(update("UPDATE app.orders AS o SET a = o.b WHERE o.c = 1").where) == "c = 1"
    statement = one("DELETE FROM app.orders o WHERE o.c IS NULL")
    assert isinstance(statement, s.Delete)
    assert text(statement.where) == "c IS NULL"


def test_subqueries_keep_their_names_and_are_listed_as_reads() -> None:
    statement = one("DELETE FROM app.orders WHERE orders.id IN (SELECT orders.id FROM gone AS orders)")
    assert isinstance(statement, s.Delete)
    assert statement.reads == {TableName(None, "gone")}
    assert text(statement.where) == "id IN (SELECT orders.id FROM gone AS orders)"


def test_delete_everything() -> None:
    assert one("DELETE FROM app.orders") == s.Delete(ORDERS)


# --- SELECT -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", set()),
        ("SELECT * FROM a JOIN b.c USING (x)", {"a", "b.c"}),
        ("SELECT * FROM a WHERE x IN (SELECT x FROM b) UNION SELECT * FROM c", {"a", "b", "c"}),
        ("WITH x AS (SELECT * FROM a) SELECT * FROM x", {"a"}),
        ("WITH x AS (SELECT * FROM x) SELECT * FROM x", {"x"}),
        ("WITH x AS (SELECT * FROM y), y AS (SELECT 1) SELECT * FROM x, y", {"y"}),
        ("WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT * FROM x) SELECT * FROM x", set()),
        ("WITH x AS (SELECT 1) SELECT * FROM app.x", {"app.x"}),
        ("SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x), x", {"x"}),
        ("VALUES (1), (2)", set()),
        ("(SELECT * FROM a)", {"a"}),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.x = a.x), UNNEST([1, 2])", {"a", "b"}),
        ("SELECT * FROM System.Tables", {"system.tables"}),
        ('SELECT * FROM "Orders"', {'"Orders"'}),
    ],
)
def test_tables_of_a_query(sql: str, tables: set[str]) -> None:
    assert {str(table) for table in select(sql).tables} == tables


@pytest.mark.parametrize(
    ("sql", "simple"),
    [
        ("SELECT * FROM t", True),
        ("SELECT a + 1 AS b FROM app.t AS x WHERE a > ? ORDER BY b LIMIT 3 OFFSET 1", True),
        ("SELECT DISTINCT a FROM t", False),
        ("SELECT count(*) FROM t", False),
        ("SELECT a, row_number() OVER () FROM t", False),
        ("SELECT a FROM t GROUP BY a", False),
        ("SELECT a FROM t, u", False),
        ("SELECT a FROM (SELECT * FROM t)", False),
        ("SELECT a FROM t WHERE a = (SELECT 1)", False),
        ("SELECT a FROM t UNION ALL SELECT a FROM t", False),
        ("WITH x AS (SELECT 1) SELECT a FROM t", False),
        ("SELECT a FROM t TABLESAMPLE 10 PERCENT", False),
        ("SELECT unnest(a) FROM t", False),
        ("SELECT 1", False),
    ],
)
def test_simple_queries(sql: str, simple: bool) -> None:
    assert select(sql).simple is simple


def test_seq_is_noticed_only_when_named() -> None:
    assert not select("SELECT * FROM t").names_seq
    assert select("SELECT * FROM t WHERE _SEQ > 3").names_seq


def test_names_in_trees_are_folded() -> None:
    assert text(select('SELECT Amount, "Total" FROM App.Orders AS O').query) == (
        'SELECT amount, "Total" FROM app.orders AS o'
    )


def test_comments_do_not_turn_up_in_trees() -> None:
    assert text(select("SELECT a /* x */ FROM t -- */ y").query) == "SELECT a FROM t"


def test_parameters_count_in_the_order_of_the_text() -> None:
    statement = select("WITH x AS (SELECT ? AS a) SELECT a + ? FROM x WHERE a = ? LIMIT ?")
    assert statement.parameters == 4
    assert text(statement.query) == "WITH x AS (SELECT $1 AS a) SELECT a + $2 FROM x WHERE a = $3 LIMIT $4"
    assert all(node.this.isdecimal() for node in statement.query.find_all(exp.Placeholder))


def test_numbered_parameters_may_repeat() -> None:
    statement = select("SELECT $2, $1, $2")
    assert statement.parameters == 2
    assert text(statement.query) == "SELECT $2, $1, $2"


def test_long_chains_are_balanced_in_order() -> None:
    names = [f"c{i}" for i in range(1000)]
    query = select(f"SELECT * FROM t WHERE {' OR '.join(names)}").query
    assert [found.name for found in query.args["where"].find_all(exp.Column, bfs=False)] == names
    assert text(query).count(" OR ") == 999


# --- texts --------------------------------------------------------------------------------------------------


def test_several_statements_and_stray_semicolons() -> None:
    statements = parse(";; BEGIN; -- one\n INSERT INTO t VALUES (';'); /* ; */ COMMIT;;")
    assert [type(statement) for statement in statements] == [s.Begin, s.Insert, s.Commit]


def test_a_text_is_parsed_once_and_the_answer_is_the_callers_own_list() -> None:
    sql = "SELECT cached_once FROM t"
    first = parse(sql)
    first.clear()
    second = parse(sql)
    assert len(second) == 1
    assert parse(sql)[0] is second[0]


def test_the_cache_is_bounded_and_drops_the_oldest() -> None:
    cache = parse_module._Cache(limit=10)
    begin = (s.Begin(),)
    cache.put("aaaa", begin)
    cache.put("bbbb", begin)
    cache.get("aaaa")
    cache.put("cccc", begin)
    assert [cache.get(sql) for sql in ("aaaa", "bbbb", "cccc")] == [begin, None, begin]
    cache.put("d" * (parse_module.CACHED_TEXT_CHARS + 1), begin)
    assert cache.get("cccc") == begin


def test_the_limit_counts_bytes_and_can_be_set() -> None:
    sql = "SELECT 'ééé'"
    assert len(parse(sql, max_bytes=len(sql.encode()))) == 1


def test_dollar_parameter_before_a_final_empty_string() -> None:
    (statement,) = parse("SELECT * FROM t WHERE id = $1 AND name <> ''")
    assert statement.parameters == 1
