"""Whether a live query may go on: asked when it begins, when it goes live, and after every change of the catalog."""

from __future__ import annotations

from tablecast.codec.catalog import User
from tablecast.core.live_query import LiveQuery
from tablecast.core.rights import require, require_read
from tablecast.engine.catalog import SYSTEM_NAMESPACE, Catalog, Table
from tablecast.engine.system import SYSTEM_TABLES, SystemTable
from tablecast.errors import PermissionDenied, SchemaChanged, UnknownTable
from tablecast.model.schema import Actor, TableSchema


def check_access(query: LiveQuery, account: User | None, catalog: Catalog) -> None:
    """That the query has its table and its columns, and its actor the right. `account` is as it was in the beginning."""
    actor = _actor_now(query.actor, account, catalog)
    if is_sampled(query):
        require(actor, system_table_of(query).role, f"reading {query.table.full_name}")
    else:
        require_read(actor, table_of(query, catalog).schema)


def is_sampled(query: LiveQuery) -> bool:
    """Whether it is over a system table."""
    return query.table.namespace == SYSTEM_NAMESPACE


def system_table_of(query: LiveQuery) -> SystemTable:
    return SYSTEM_TABLES[query.table.name]


def table_of(query: LiveQuery, catalog: Catalog) -> Table:
    table = catalog.tables.get(query.table.table_id)
    if table is None:
        name = query.table.full_name
        raise UnknownTable(f"the table {name} was dropped", table=name)
    if query.every_column and table.schema.version != query.table.version:
        raise SchemaChanged(
            f"{table.schema.full_name} has other columns than when SELECT * was subscribed to; subscribe again",
            table=table.schema.full_name,
        )
    return table


def schema_of(catalog: Catalog, table_id: int) -> TableSchema | None:
    table = catalog.tables.get(table_id)
    return None if table is None else table.schema


def _actor_now(actor: Actor, account: User | None, catalog: Catalog) -> Actor:
    """With the role that the account has by now, if it changed since. Who has no account cannot lose it."""
    if account is None:
        return actor
    now = catalog.users.get(account.name)
    if now is None:
        raise PermissionDenied(f"the account {account.name!r} was dropped", user=account.name)
    return actor if now.role is account.role else Actor(actor.user_id, now.role)
