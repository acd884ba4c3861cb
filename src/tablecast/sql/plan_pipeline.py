"""Statements about pipelines, as functions (statement, context) -> Result.

What can be known of a query before Spark sees it is checked when it is created: its inputs and its target exist, the
columns it reads are theirs, its result has columns of the target, among them those that a row cannot do without. Types
are Spark's to tell: they are checked when the pipeline starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from sqlglot import exp

from tablecast.codec.result import Result
from tablecast.core.rights import require
from tablecast.engine import pipelines
from tablecast.engine.catalog import Catalog
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.errors import InvalidPipeline, UnknownColumn
from tablecast.model.names import full_name, read_name
from tablecast.model.pipeline import InputKind, Pipeline, PipelineInput, PipelineMode, PipelineOptions
from tablecast.model.schema import ColumnType, Role, TableSchema, TypeName
from tablecast.model.topic import Topic
from tablecast.sql import statements as s
from tablecast.sql.context import Context, find_table, find_topic, refuse_system, topic_name
from tablecast.sql.plan_ddl import carry_out, permit
from tablecast.sql.spark_query import mark, output_names

# What a message has beside the columns of its table, and what one has that is not decoded.
MESSAGE_COLUMNS = ("_op", "_offset", "_partition", "_ts", "_seq", "_user")
ENVELOPE_COLUMNS = (
    *("topic_id", "partition_id", "offset", "message_id", "source_table", "op", "payload_mode"),
    *("user_id", "ts", "key", "payload", "seq", "content_hash"),
)

Columns = frozenset[str]


def create_pipeline(statement: s.CreatePipeline, context: Context) -> Result:
    refuse_system(statement.name, "CREATE PIPELINE")
    permit(context, "CREATE PIPELINE")
    catalog, namespace = context.catalog, context.namespace
    target = find_table(catalog, statement.target, namespace).schema
    columns = [_input_columns(catalog, given, namespace) for given in statement.inputs]
    _check_columns(statement.tree, columns)
    _check_output(output_names(statement.tree), target, statement.mode)
    pipeline = Pipeline(
        statement.name.namespace or namespace,
        statement.name.name,
        target.full_name,
        statement.mode,
        statement.query,
        _inputs(catalog, statement.inputs, namespace),
        _options(statement.options, catalog, namespace),
    )
    pipelines.check_pipeline(catalog, pipeline)
    command = pipelines.CreatePipeline(pipeline, statement.if_not_exists)
    return carry_out(statement, context, command, "CREATE PIPELINE")


def _inputs(catalog: Catalog, given: tuple[s.NamedInput, ...], namespace: str) -> tuple[PipelineInput, ...]:
    found = (PipelineInput(each.kind, _input_name(catalog, each, namespace), each.view) for each in given)
    return tuple(dict.fromkeys(found))


def _input_name(catalog: Catalog, given: s.NamedInput, namespace: str) -> str:
    if given.kind is InputKind.TOPIC:
        return find_topic(catalog, given.name, namespace).full_name
    return find_table(catalog, given.name, namespace).schema.full_name


def _options(options: PipelineOptions, catalog: Catalog, namespace: str) -> PipelineOptions:
    if options.dead_letter is None:
        return options
    full = topic_name(catalog, read_name(options.dead_letter), namespace)
    return msgspec.structs.replace(options, dead_letter=full)


# --- what can be known of the query -----------------------------------------------------------------------------


def _input_columns(catalog: Catalog, given: s.NamedInput, namespace: str) -> Columns:
    if given.kind is InputKind.TABLE:
        return frozenset(find_table(catalog, given.name, namespace).schema.column_names)
    return topic_columns(catalog, find_topic(catalog, given.name, namespace))


def topic_columns(catalog: Catalog, topic: Topic) -> Columns:
    """Messages of one table have its columns; others are read as they are."""
    sources = {route.table_id for route in topic.routes}
    if len(sources) != 1:
        return frozenset(ENVELOPE_COLUMNS)
    return frozenset((*catalog.tables[sources.pop()].schema.column_names, *MESSAGE_COLUMNS))


def _check_columns(tree: exp.Query, inputs: list[Columns]) -> None:
    """In a query without subqueries each column is of an input, or one that the query itself named. A deeper query is
    left to Spark, as are the parts of a struct, which look like qualified columns."""
    if not isinstance(tree, exp.Select) or any(node is not tree for node in tree.find_all(exp.Query)):
        return
    tables = {table.alias_or_name: inputs[_number(table, inputs)] for table in tree.find_all(exp.Table)}
    if len(tables) != len(list(tree.find_all(exp.Table))):
        return
    made = {name.lower() for name in _made_names(tree)}
    for column in tree.find_all(exp.Column):
        _check_column(column, tables, made)


def _number(table: exp.Table, inputs: list[Columns]) -> int:
    return next(i for i in range(len(inputs)) if table.name == mark(i))


def _made_names(tree: exp.Select) -> Iterator[str]:
    yield from (selected.alias for selected in tree.selects if selected.alias)
    yield "window"
    yield "session_window"
    for alias in tree.find_all(exp.TableAlias):  # of LATERAL VIEW
        yield from (column.name for column in alias.columns)
    for function in tree.find_all(exp.Lambda):
        yield from (argument.name for argument in function.expressions)


def _check_column(column: exp.Column, tables: Mapping[str, Columns], made: set[str]) -> None:
    name, qualifier = column.name.lower(), column.table
    if isinstance(column.this, exp.Star) or column.args.get("db"):
        return
    if qualifier and qualifier not in tables:
        return
    known = tables[qualifier] if qualifier else frozenset().union(*tables.values(), made)
    if name not in {each.lower() for each in known}:
        where = f" of {qualifier}" if qualifier else ""
        raise UnknownColumn(f"there is no column {column.name}{where}{_nearest(name, known)}", column=column.name)


def _nearest(name: str, known: Columns) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _check_output(names: list[str] | None, target: TableSchema, mode: PipelineMode) -> None:
    """Names of the result are compared as Spark does, without regard to case."""
    if names is None:
        return
    folded = [name.lower() for name in names]
    for name in names:
        if folded.count(name.lower()) > 1:
            raise InvalidPipeline(f"two columns of the result are called {name}", column=name)
        if target.index_of(name.lower()) is None:
            raise UnknownColumn(
                f"{target.full_name} has no column {name}{_nearest(name, frozenset(target.column_names))}", column=name
            )
    for column in needed_columns(target, mode):
        if column not in folded:
            raise InvalidPipeline(f"the result has no column {column}, which {target.full_name} needs", column=column)


def needed_columns(target: TableSchema, mode: PipelineMode) -> list[str]:
    """Without which no row can be made, or found: the primary key, and what is NOT NULL; unless a default fills it."""
    if mode is PipelineMode.DELETE:
        return list(target.primary_key)
    keyed = target.primary_key if mode is PipelineMode.UPSERT else ()
    required = [c.name for c in target.columns if c.default is None and target.is_required(c)]
    return list(dict.fromkeys((*keyed, *required)))


# --- the rest ---------------------------------------------------------------------------------------------------


def start_pipeline(statement: s.StartPipeline, context: Context) -> Result:
    return _set(statement, context, True, "START PIPELINE")


def stop_pipeline(statement: s.StopPipeline, context: Context) -> Result:
    return _set(statement, context, False, "STOP PIPELINE")


def _set(statement: s.StartPipeline | s.StopPipeline, context: Context, running: bool, message: str) -> Result:
    permit(context, message)
    name = full_name(statement.name, context.namespace)
    return carry_out(statement, context, pipelines.SetPipeline(name, running, statement.if_exists), message)


def drop_pipeline(statement: s.DropPipeline, context: Context) -> Result:
    permit(context, "DROP PIPELINE")
    name = full_name(statement.name, context.namespace)
    return carry_out(statement, context, pipelines.DropPipeline(name, statement.if_exists), "DROP PIPELINE")


def show_pipelines(statement: s.ShowPipelines, context: Context) -> Result:
    require(context.actor, Role.SERVICE, "SHOW PIPELINES")
    table = SYSTEM_TABLES["pipelines"].make(context.engine)
    if statement.namespace is not None:
        prefix = f"{statement.namespace}."
        table = table.filter([name.startswith(prefix) for name in table.column("name").to_pylist()])
    return Result.of_arrow(table)


def describe_pipeline(statement: s.DescribePipeline, context: Context) -> Result:
    require(context.actor, Role.SERVICE, f"DESCRIBE PIPELINE {statement.name}")
    pipeline = context.catalog.pipeline(full_name(statement.name, context.namespace))
    options = msgspec.structs.asdict(pipeline.options)
    rows = [
        ("into", pipeline.target),
        ("mode", pipeline.mode.value),
        *((given.kind.value, f"{given.name} as {given.view}") for given in pipeline.inputs),
        ("query", pipeline.query),
        *((name, str(value)) for name, value in options.items() if value is not None),
        ("desired_state", "running" if pipeline.running else "stopped"),
    ]
    return Result.of_rows(("property", "value"), (ColumnType(TypeName.TEXT), ColumnType(TypeName.TEXT)), rows)


PIPELINES: dict[type[s.Statement], Callable[[Any, Context], Result]] = {
    s.CreatePipeline: create_pipeline,
    s.StartPipeline: start_pipeline,
    s.StopPipeline: stop_pipeline,
    s.DropPipeline: drop_pipeline,
    s.ShowPipelines: show_pipelines,
    s.DescribePipeline: describe_pipeline,
}
