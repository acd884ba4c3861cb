"""SELECT, prepared: from storage where the primary key decides, through the query engine otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tablecast.engine.catalog import SYSTEM_NAMESPACE, Table
from tablecast.engine.reading import KeyRange, lookup_values, scan_values, values_arrow
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.errors import UnknownTable
from tablecast.model.schema import Role
from tablecast.sql.access import AccessPath, AccessPlan, plan_access
from tablecast.sql.context import Context, find_table
from tablecast.sql.result import Result
from tablecast.sql.rights import require, require_read, row_owner
from tablecast.sql.statements import Select, TableName

TableKey = tuple[str | None, str]


class SelectPlan:
    """`table` and `access` only for a query that reads one table of ours."""

    def __init__(self, statement: Select, context: Context) -> None:
        self._statement = statement
        self._table: Table | None = None
        self._access: AccessPlan | None = None
        self._key: TableKey = (None, "")
        names = list(statement.tables)
        if statement.simple and len(names) == 1 and names[0].namespace != SYSTEM_NAMESPACE:
            self._key = names[0].namespace, names[0].name
            self._table = find_table(context.catalog, names[0], context.namespace)
            self._access = plan_access(statement.query, self._table.schema)

    def run(self, context: Context, params: Sequence[Any]) -> Result:
        table = self._table
        if table is None or self._access is None:
            tables = read_tables(context, self._statement.tables)
            return Result.of_arrow(context.queries.run(self._statement.query, tables, params))
        if not table.schema.per_user:
            require_read(context.actor, table.schema)
        path = self._access.bind(params)
        found = find_rows(context, table, path)
        if path.exact:
            return self._exact(table, path, found)
        if path.kind == "full" and path.limit is None and path.residual_free:
            arrow = whole_table(context, table)
        else:
            arrow = values_arrow(table, found, path.limit)
        return Result.of_arrow(context.queries.run(self._statement.query, {self._key: arrow}, params))

    def _exact(self, table: Table, path: AccessPath, found: Iterable[tuple[bytes, bytes]]) -> Result:
        raise NotImplementedError


def find_rows(context: Context, table: Table, path: AccessPath) -> Iterable[tuple[bytes, bytes]]:
    """(key, stored value) of what an access path selects."""
    owner = row_owner(context.actor, table.schema)
    now_ms = context.engine.now_ms() if table.ttl_ms is not None else 0
    if path.kind in ("point", "points"):
        prefix, encode = table.codec.prefix(owner), table.codec.encode_key
        wanted = [encode(prefix, values) for values in path.equals]
        return lookup_values(context.reader, table, wanted, now_ms)
    part = KeyRange(path.prefix, path.lower, path.upper, path.reverse)
    return scan_values(context.reader, table, owner, part, now_ms)


def whole_table(context: Context, table: Table) -> pa.Table:
    owner = row_owner(context.actor, table.schema)
    now_ms = context.engine.now_ms()
    return values_arrow(table, scan_values(context.reader, table, owner, KeyRange(), now_ms))


def read_tables(context: Context, names: Iterable[TableName]) -> dict[TableKey, pa.Table]:
    """Everything a query names, as Arrow, under the names it uses."""
    tables: dict[TableKey, pa.Table] = {}
    for name in names:
        if name.namespace == SYSTEM_NAMESPACE:
            tables[name.namespace, name.name] = _system_table(context, name)
            continue
        table = find_table(context.catalog, name, context.namespace)
        require_read(context.actor, table.schema)
        tables[name.namespace, name.name] = whole_table(context, table)
    return tables


def _system_table(context: Context, name: TableName) -> pa.Table:
    require(context.actor, Role.SERVICE, f"reading {name}")
    make = SYSTEM_TABLES.get(name.name)
    if make is None:
        known = ", ".join(SYSTEM_TABLES)
        raise UnknownTable(f"there is no system table {name}; there are: {known}", table=str(name))
    return make(context.engine)
