"""Statements that define things or look at definitions, as functions (statement, context) -> Result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from tablecast.codec.result import Result, type_string
from tablecast.codec.values import coercion
from tablecast.core.expression import compile_filter
from tablecast.core.rights import require, require_read
from tablecast.engine import ddl
from tablecast.engine.audit import Audited
from tablecast.engine.catalog import SYSTEM_NAMESPACE
from tablecast.engine.decision import Command
from tablecast.engine.rename import RenameTopic, SetAlias
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.errors import InvalidSchema, TransactionState, TypeMismatch, UnsupportedSql
from tablecast.model.change import Op
from tablecast.model.names import full_name
from tablecast.model.schema import Column, ColumnType, DefaultKind, Role, TableSchema, TypeName
from tablecast.model.topic import Route, Topic
from tablecast.sql import statements as s
from tablecast.sql.audited import entry_of
from tablecast.sql.context import Context, find_table, find_topic, refuse_system, topic_name
from tablecast.sql.plan_select import system_table


def permit(context: Context, what: str) -> None:
    """Raises unless the actor may define things, here and now."""
    if context.transaction is not None:
        raise TransactionState("definitions cannot change inside a transaction: COMMIT or ROLLBACK first")
    require(context.actor, Role.DBA, what)


def carry_out(statement: s.Statement, context: Context, command: Command, message: str) -> Result:
    """Runs the command and leaves its entry in the audit log, in one commit."""
    answer = context.run(Audited(command, entry_of(statement, context)))
    count = answer if isinstance(answer, int) and not isinstance(answer, bool) else 0
    return Result.of_write(count, message if answer is not False else f"{message}: nothing to do", None)


def _done(statement: s.Statement, context: Context, command: Command, message: str) -> Result:
    permit(context, message)
    return carry_out(statement, context, command, message)


def create_namespace(statement: s.CreateNamespace, context: Context) -> Result:
    return _done(statement, context, ddl.CreateNamespace(statement.name, statement.if_not_exists), "CREATE NAMESPACE")


def drop_namespace(statement: s.DropNamespace, context: Context) -> Result:
    if statement.cascade:
        raise UnsupportedSql("DROP NAMESPACE … CASCADE is not supported: drop its tables and topics first")
    return _done(statement, context, ddl.DropNamespace(statement.name, statement.if_exists), "DROP NAMESPACE")


def create_table(statement: s.CreateTable, context: Context) -> Result:
    refuse_system(statement.table, "CREATE TABLE")
    schema = TableSchema(
        0,
        statement.table.namespace or context.namespace,
        statement.table.name,
        statement.kind,
        statement.columns,
        statement.primary_key,
        statement.checks,
        statement.ttl_seconds,
        statement.access_level,
        statement.replicate,
    )
    _check_schema(schema)
    return _done(statement, context, ddl.CreateTable(schema, statement.if_not_exists), "CREATE TABLE")


def _check_schema(schema: TableSchema) -> None:
    """Checks must be conditions on the columns, and defaults must fit theirs."""
    for check in schema.checks:
        compile_filter(check, schema)
    for column in schema.columns:
        _check_default(column)


def _check_default(column: Column) -> None:
    default = column.default
    if default is None:
        return
    try:
        if default.kind is DefaultKind.LITERAL and default.literal is not None:
            coercion(column.type, column.name)(default.literal)
        elif default.kind in _GENERATED_TYPES and column.type.name not in _GENERATED_TYPES[default.kind]:
            fits = " or ".join(_GENERATED_TYPES[default.kind])
            raise InvalidSchema(
                f"column {column.name!r} is {column.type}; DEFAULT {default.kind.value.upper()}() fits {fits}",
                column=column.name,
            )
    except TypeMismatch as e:
        raise InvalidSchema(f"the DEFAULT does not fit: {e.message}", **e.details) from e


_GENERATED_TYPES = {
    DefaultKind.SNOWFLAKE_ID: (TypeName.BIGINT, TypeName.TEXT),
    DefaultKind.UUID_V7: (TypeName.UUID, TypeName.TEXT),
    DefaultKind.NOW: (TypeName.TIMESTAMP, TypeName.DATE, TypeName.TIME),
    DefaultKind.CURRENT_USER: (TypeName.TEXT,),
}


def drop_table(statement: s.DropTable, context: Context) -> Result:
    refuse_system(statement.table, "DROP TABLE")
    name = full_name(statement.table, context.namespace)
    return _done(statement, context, ddl.DropTable(name, statement.if_exists, statement.cascade), "DROP TABLE")


def add_column(statement: s.AlterTableAddColumn, context: Context) -> Result:
    refuse_system(statement.table, "ALTER TABLE")
    if statement.checks:
        raise UnsupportedSql("ALTER TABLE ADD COLUMN takes no CHECK: rows that exist were never checked")
    name = full_name(statement.table, context.namespace)
    _check_default(statement.column)
    return _done(statement, context, ddl.AddColumn(name, statement.column, statement.if_not_exists), "ALTER TABLE")


# --- topics ----------------------------------------------------------------------------------------------------


def _options(options: s.TopicOptions, context: Context) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("retention_seconds", "retention_max_bytes", "dedup_window_seconds", "max_deliveries", "dead_letter"):
        value = getattr(options, name)
        if value is not UNSET:
            if isinstance(value, s.TableName):
                value = topic_name(context.catalog, value, context.namespace)
            found[name] = value
    return found


def create_topic(statement: s.CreateTopic, context: Context) -> Result:
    refuse_system(statement.topic, "CREATE TOPIC")
    topic = Topic(
        0,
        statement.topic.namespace or context.namespace,
        statement.topic.name,
        statement.partitions,
        statement.alias,
        **_options(statement.options, context),
    )
    return _done(statement, context, ddl.CreateTopic(topic, statement.if_not_exists), "CREATE TOPIC")


def add_source(statement: s.AddSource, context: Context) -> Result:
    refuse_system(statement.table, "ADD SOURCE")
    topic = find_topic(context.catalog, statement.topic, context.namespace)
    table = find_table(context.catalog, statement.table, context.namespace)
    route = Route(0, statement.ops, statement.filter, statement.partition_by, statement.payload)
    command = ddl.AddSource(topic.full_name, table.schema.full_name, route, statement.backfill)
    return _done(statement, context, command, "ADD SOURCE")


def drop_source(statement: s.DropSource, context: Context) -> Result:
    topic = find_topic(context.catalog, statement.topic, context.namespace)
    every = len(statement.ops) == len(Op)
    name = full_name(statement.table, context.namespace)
    command = ddl.DropSource(topic.full_name, name, None if every else statement.ops)
    return _done(statement, context, command, "DROP SOURCE")


def set_topic(statement: s.SetTopic, context: Context) -> Result:
    topic = find_topic(context.catalog, statement.topic, context.namespace)
    return _done(statement, context, ddl.SetTopic(topic.full_name, _options(statement.options, context)), "ALTER TOPIC")


def rename_topic(statement: s.RenameTopic, context: Context) -> Result:
    refuse_system(statement.to, "ALTER TOPIC")
    topic = find_topic(context.catalog, statement.topic, context.namespace)
    command = RenameTopic(topic.full_name, statement.to.namespace or topic.namespace, statement.to.name)
    return _done(statement, context, command, "ALTER TOPIC")


def set_alias(statement: s.SetAlias, context: Context) -> Result:
    topic = find_topic(context.catalog, statement.topic, context.namespace)
    return _done(statement, context, SetAlias(topic.full_name, statement.alias), "ALTER TOPIC")


def drop_topic(statement: s.DropTopic, context: Context) -> Result:
    name = topic_name(context.catalog, statement.topic, context.namespace)
    return _done(statement, context, ddl.DropTopic(name, statement.if_exists), "DROP TOPIC")


def clear_topic(statement: s.ClearTopic, context: Context) -> Result:
    topic = find_topic(context.catalog, statement.topic, context.namespace)
    return _done(statement, context, ddl.ClearTopic(topic.full_name), "CLEAR TOPIC")


# --- looking around --------------------------------------------------------------------------------------------


def _shown(context: Context, name: str, column: str | None = None, value: Any = None) -> Result:
    table = SYSTEM_TABLES[name].make(context.engine)
    if column is not None:
        table = table.filter([v == value for v in table.column(column).to_pylist()])
    return Result.of_arrow(table)


def show_namespaces(statement: s.ShowNamespaces, context: Context) -> Result:
    return _shown(context, "namespaces")


def show_tables(statement: s.ShowTables, context: Context) -> Result:
    return _shown(context, "tables", None if statement.namespace is None else "namespace", statement.namespace)


def show_topics(statement: s.ShowTopics, context: Context) -> Result:
    require(context.actor, Role.SERVICE, "SHOW TOPICS")
    return _shown(context, "topics", None if statement.namespace is None else "namespace", statement.namespace)


def describe(statement: s.Describe, context: Context) -> Result:
    if statement.table.namespace == SYSTEM_NAMESPACE:
        fields = system_table(context, statement.table).schema
        rows = [(i, field.name, type_string(field) or str(field.type)) for i, field in enumerate(fields)]
        types = (ColumnType(TypeName.BIGINT), ColumnType(TypeName.TEXT), ColumnType(TypeName.TEXT))
        return Result.of_rows(("position", "name", "type"), types, rows)
    schema = find_table(context.catalog, statement.table, context.namespace).schema
    require_read(context.actor, schema)
    table = SYSTEM_TABLES["columns"].make(context.engine)
    names = zip(table.column("namespace").to_pylist(), table.column("table_name").to_pylist(), strict=True)
    mine = table.filter([pair == (schema.namespace, schema.name) for pair in names])
    return Result.of_arrow(mine.drop_columns(["namespace", "table_name"]))


def describe_topic(statement: s.DescribeTopic, context: Context) -> Result:
    require(context.actor, Role.SERVICE, f"DESCRIBE TOPIC {statement.topic}")
    topic = find_topic(context.catalog, statement.topic, context.namespace)
    return _shown(context, "topic_sources", "topic", topic.full_name)


DEFINITIONS: dict[type[s.Statement], Callable[[Any, Context], Result]] = {
    s.CreateNamespace: create_namespace,
    s.DropNamespace: drop_namespace,
    s.CreateTable: create_table,
    s.DropTable: drop_table,
    s.AlterTableAddColumn: add_column,
    s.CreateTopic: create_topic,
    s.AddSource: add_source,
    s.DropSource: drop_source,
    s.SetTopic: set_topic,
    s.RenameTopic: rename_topic,
    s.SetAlias: set_alias,
    s.DropTopic: drop_topic,
    s.ClearTopic: clear_topic,
    s.ShowNamespaces: show_namespaces,
    s.ShowTables: show_tables,
    s.ShowTopics: show_topics,
    s.Describe: describe,
    s.DescribeTopic: describe_topic,
}
