"""SELECT, prepared: from storage where the primary key decides, through the query engine otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tablecast.codec.result import Result
from tablecast.codec.rows import Row
from tablecast.core.expression.parse import ExpressionSql
from tablecast.core.rights import require_read, row_owner
from tablecast.engine.catalog import SYSTEM_NAMESPACE, Table
from tablecast.engine.reading import KeyRange, lookup_values, scan_values, values_arrow
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.errors import NotFound, UnsupportedSql
from tablecast.model.schema import TableSchema
from tablecast.sql.access import AccessKind, AccessPath, AccessPlan, plan_access
from tablecast.sql.context import Context, find_table, readable_system_table
from tablecast.sql.generated import generate, generator_name, lift_generated
from tablecast.sql.readings import Placed, columns_of_query, lift_readings
from tablecast.sql.statements import Select, TableName

TableKey = tuple[str | None, str]


class SelectPlan:
    """`table` only for a query that reads one table of ours, once; `access` also for one of a large system table."""

    def __init__(self, statement: Select, context: Context) -> None:
        self._statement = statement
        column_of = columns_of_query(known_schemas(context, statement.tables))
        [query], self._readings = lift_readings([Placed(statement.query)], column_of, statement.parameters)
        self._query, self._generated = _lifted(query, self._readings.parameters)
        self._table: Table | None = None
        self._access: AccessPlan | None = None
        self._shown: _Shown | None = None
        self._key: TableKey = (None, "")
        names = list(statement.tables)
        if len(names) == 1 and names[0].namespace == SYSTEM_NAMESPACE:
            system = SYSTEM_TABLES.get(names[0].name)
            if system is not None and system.in_order:
                self._access = plan_access(query, system.schema)
        elif len(names) == 1:
            self._key = names[0].namespace, names[0].name
            self._table = find_table(context.catalog, names[0], context.namespace)
            self._access = plan_access(query, self._table.schema)
            if self._access.projection is not None:
                self._shown = _Shown(self._table, self._access.projection)

    def run(self, context: Context, params: Sequence[Any]) -> Result:
        table, access = self._table, self._access
        params = self._readings.apply(params)
        if table is None or access is None:
            tables = read_tables(context, self._statement.tables, None if access is None else access.bind(params))
            return Result.of_arrow(context.queries.run(self._query, tables, (*params, *self._values(context))))
        require_read(context.actor, table.schema)
        path = access.bind(params)
        if path.exact and self._shown is not None:
            return self._shown.result(find_rows(context, table, path), path.offset, path.limit)
        if path.kind is AccessKind.FULL and path.limit is None:
            arrow = whole_table(context, table)
        else:
            arrow = values_arrow(table, find_rows(context, table, path), path.limit)
        return Result.of_arrow(context.queries.run(self._query, {self._key: arrow}, (*params, *self._values(context))))

    def _values(self, context: Context) -> tuple[Any, ...]:
        """What the query engine does not know: who asks."""
        return generate(context.values(), self._generated) if self._generated else ()


_IDS = ("snowflake_id", "uuid_v7")


def _lifted(given: exp.Expr, parameters: int) -> tuple[exp.Expr, list[str]]:
    """What the query engine does not know, as parameters: who asks, and the database's own clock."""
    made = next((name for node in given.walk() if (name := generator_name(node)) in _IDS), None)
    if made is not None:
        raise UnsupportedSql(
            f"{made.upper()}() makes the id of a row that is written: use it as a DEFAULT, in VALUES or in SET, not in a query",
            name=made,
        )
    query, names = lift_generated(given, parameters + 1, ("current_user", "now"))
    if names and isinstance(query, exp.Select):
        shown = zip(query.expressions, given.expressions, strict=True)
        query.set("expressions", [_named_as(new, old) if new != old else new for new, old in shown])
    return query, names


def _named_as(new: exp.Expr, old: exp.Expr) -> exp.Expr:
    return (
        new
        if isinstance(new, exp.Alias)
        else exp.alias_(new, generator_name(old) or old.sql(dialect=ExpressionSql), quoted=True)
    )


class _Shown:
    """Plain columns of stored rows: a result without the query engine."""

    def __init__(self, table: Table, projection: Sequence[tuple[str, str]]) -> None:
        names = table.schema.column_names
        indexes = [names.index(column) for _, column in projection]
        self._names = tuple(name for name, _ in projection)
        self._types = tuple(table.schema.columns[i].type for i in indexes)
        self._decode = table.codec.decode
        everything = indexes == list(range(len(names)))
        self._values = table.codec.values if everything else _getter(indexes)

    def result(self, found: Iterable[tuple[bytes, bytes]], offset: int, limit: int | None) -> Result:
        decode, values = self._decode, self._values
        if offset or limit is not None:
            found = islice(found, offset, limit)
        return Result.of_rows(self._names, self._types, [values(decode(value)) for _, value in found])


def _getter(indexes: Sequence[int]) -> Callable[[Row], tuple[Any, ...]]:
    get = attrgetter(*(f"c{i}" for i in indexes))
    return get if len(indexes) > 1 else lambda row: (get(row),)


def known_schemas(context: Context, names: Iterable[TableName]) -> dict[TableKey, TableSchema]:
    """The tables among `names` that there are; running the query says what is wrong with the others."""
    found: dict[TableKey, TableSchema] = {}
    for name in names:
        with contextlib.suppress(NotFound):
            is_system = name.namespace == SYSTEM_NAMESPACE
            source = SYSTEM_TABLES.get(name.name) if is_system else find_table(context.catalog, name, context.namespace)
            if source is not None:
                found[name.namespace, name.name] = source.schema
    return found


def find_rows(context: Context, table: Table, path: AccessPath) -> Iterable[tuple[bytes, bytes]]:
    """(key, stored value) of what an access path selects."""
    owner = row_owner(context.actor, table.schema)
    now_ms = context.engine.now_ms() if table.ttl_ms is not None else 0
    if path.kind is AccessKind.POINT or path.kind is AccessKind.POINTS:
        prefix, encode = table.codec.prefix(owner), table.codec.encode_key
        wanted = [encode(prefix, values) for values in path.equals]
        return lookup_values(context.reader, table, wanted, now_ms)
    part = KeyRange(path.prefix, path.lower, path.upper, path.reverse)
    return scan_values(context.reader, table, owner, part, now_ms)


def whole_table(context: Context, table: Table) -> pa.Table:
    owner = row_owner(context.actor, table.schema)
    now_ms = context.engine.now_ms()
    return values_arrow(table, scan_values(context.reader, table, owner, KeyRange(), now_ms))


def read_tables(
    context: Context, names: Iterable[TableName], path: AccessPath | None = None
) -> dict[TableKey, pa.Table]:
    """Everything a query names, as Arrow, under the names it uses. `path`: what is needed of the only one, a system table."""
    tables: dict[TableKey, pa.Table] = {}
    for name in names:
        if name.namespace == SYSTEM_NAMESPACE:
            tables[name.namespace, name.name] = system_table(context, name, path)
            continue
        table = find_table(context.catalog, name, context.namespace)
        require_read(context.actor, table.schema)
        tables[name.namespace, name.name] = whole_table(context, table)
    return tables


def system_table(context: Context, name: TableName, path: AccessPath | None = None) -> pa.Table:
    table = readable_system_table(context.actor, name)
    if path is None or path.kind not in (AccessKind.RANGE, AccessKind.FULL):
        return table.make(context.engine)
    part = KeyRange(path.prefix, path.lower, path.upper, path.reverse)
    return table.make_part(context.engine, part, path.limit)
