"""SQL to a live query.

Programs subscribe with one text and many values, so what depends on the text is kept: the parsed SELECT by its text, its
compiled forms by table and parameter types. Then a plan costs some microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time
from functools import lru_cache
from typing import Any

from sqlglot import exp

from tablecast.codec.rows import unknown_column
from tablecast.codec.values import coercion
from tablecast.core.expression.lattice import is_integer
from tablecast.core.expression.numeric import fits
from tablecast.core.expression.tree import TEXT
from tablecast.core.live_query import LiveForm, LiveQuery, Output, Types
from tablecast.core.rights import require_read
from tablecast.engine.catalog import DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, Catalog
from tablecast.model.names import read_part
from tablecast.model.schema import Actor, Column, ColumnType, TableSchema
from tablecast.sql.context import find_table, readable_system_table
from tablecast.sql.generated import lift_generated
from tablecast.sql.parameters import check_count, parameter_type
from tablecast.sql.parse_live import LiveSelect, checked_limit, parse_live
from tablecast.sql.readings import Placed, Readings, lift_readings
from tablecast.sql.statements import TableName

TEXTS_KEPT = 1024  # parsed
FORMS_KEPT = 1024  # compiled, about 20 kB each
KEPT_TEXT_CHARS = 2_000  # a longer text is parsed and compiled by each who sends it: it bounds what is kept

_AS_STORED = (str, datetime, date, time)  # types whose values may need a normal form before they are compared


def plan_live(
    catalog: Catalog, actor: Actor, sql: str, params: Sequence[Any] = (), namespace: str = DEFAULT_NAMESPACE
) -> LiveQuery:
    """The live query that `sql` is to this actor. Raises what is wrong with it, or PermissionDenied."""
    is_kept = len(sql) <= KEPT_TEXT_CHARS
    parsed = _parsed(sql) if is_kept else parse_live(sql)
    check_count(params, parsed.parameters)
    schema = _readable(catalog, actor, parsed.table, read_part(namespace))
    select, readings = _read(sql, schema) if is_kept else _with_readings(parsed, schema)
    params = readings.apply(params)
    limit = select.limit if select.limit_parameter is None else checked_limit(params[select.limit_parameter])
    # What decides about no row is left out: whoever asks for the same rows is told together.
    taken = [_taken(schema, select, i, value) if i in select.used else (None, None) for i, value in enumerate(params)]
    if select.names_user:
        taken.append((actor.user_id, TEXT))
    types = tuple([kind for _, kind in taken])
    form = _form(sql, schema, types) if is_kept else _compiled(select, schema, types)
    return form.bind(actor, tuple([value for value, _ in taken]), limit)


def _readable(catalog: Catalog, actor: Actor, name: TableName, namespace: str) -> TableSchema:
    if name.namespace == SYSTEM_NAMESPACE:
        return readable_system_table(actor, name).schema
    schema = find_table(catalog, name, namespace).schema
    require_read(actor, schema)
    return schema


@lru_cache(maxsize=TEXTS_KEPT)
def _parsed(sql: str) -> LiveSelect:
    return parse_live(sql)


@lru_cache(maxsize=TEXTS_KEPT)
def _read(sql: str, schema: TableSchema) -> tuple[LiveSelect, Readings]:
    return _with_readings(_parsed(sql), schema)


def _with_readings(select: LiveSelect, schema: TableSchema) -> tuple[LiveSelect, Readings]:
    """The parameters that stand beside columns take text as the column's type."""

    def column_of(node: exp.Column) -> Column | None:
        index = schema.index_of(node.name)
        return None if index is None else schema.columns[index]

    parts = [*(output.tree for output in select.outputs), *([] if select.where is None else [select.where])]
    trees, readings = lift_readings([Placed(part) for part in parts], column_of, select.parameters)
    outputs = tuple(output._replace(tree=tree) for output, tree in zip(select.outputs, trees, strict=False))
    where = None if select.where is None else trees[-1]
    used = select.used | set(range(select.parameters, readings.parameters))
    return replace(select, outputs=outputs, where=where, parameters=readings.parameters, used=used), readings


@lru_cache(maxsize=FORMS_KEPT)
def _form(sql: str, schema: TableSchema, types: Types) -> LiveForm:
    return _compiled(_read(sql, schema)[0], schema, types)


def _compiled(select: LiveSelect, schema: TableSchema, types: Types) -> LiveForm:
    outputs = [Output(output.name, _lifted(output.tree, select)) for output in select.outputs]
    where = None if select.where is None else _lifted(select.where, select)
    return LiveForm(schema, outputs, where, types)


def _lifted(tree: exp.Expr, select: LiveSelect) -> exp.Expr:
    """CURRENT_USER() as the last parameter, however often it is called."""
    lifted, names = lift_generated(tree, select.parameters + 1, ("current_user",))
    for node in lifted.find_all(exp.Placeholder) if len(names) > 1 else ():
        node.set("this", str(min(int(node.name), select.parameters + 1)))
    return lifted


def _taken(schema: TableSchema, select: LiveSelect, number: int, value: Any) -> tuple[Any, ColumnType | None]:
    """A parameter as the evaluator takes it, and its type. Beside a column an integer is of the column's type if it fits,
    which spares a conversion per row."""
    wanted = parameter_type(value)
    if number in select.beside and wanted is not None:
        beside = _column(schema, select.beside[number]).type
        if is_integer(wanted) and is_integer(beside) and fits(value, beside.name):
            return value, beside
    if type(value) in _AS_STORED and wanted is not None:
        value = coercion(wanted, f"${number + 1}")(value)
    return value, wanted


def _column(schema: TableSchema, name: str) -> Column:
    index = schema.index_of(name)
    if index is None:
        raise unknown_column(schema, name)
    return schema.columns[index]
