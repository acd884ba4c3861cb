"""What running a statement needs: where to read, where to write, who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tablecast.codec.result import Result
from tablecast.core.rights import require
from tablecast.engine.catalog import SYSTEM_NAMESPACE, Catalog, Table
from tablecast.engine.decision import Command
from tablecast.engine.engine import Engine
from tablecast.engine.generated import StatementValues
from tablecast.engine.idempotency import Once
from tablecast.engine.rows import RowCommand, Written
from tablecast.engine.system import SYSTEM_TABLES, SystemTable
from tablecast.engine.transaction import Transaction
from tablecast.errors import PermissionDenied, UnknownTable
from tablecast.model.names import DEFAULT_NAMESPACE, TableName, full_name
from tablecast.model.schema import Actor, Role
from tablecast.model.topic import Topic
from tablecast.sql.query import QueryEngine
from tablecast.storage.base import Reader


@dataclass(slots=True)
class Context:
    """One statement's surroundings. Reads see the transaction if there is one, else the last durable commit."""

    engine: Engine
    queries: QueryEngine
    actor: Actor
    namespace: str = DEFAULT_NAMESPACE
    transaction: Transaction | None = None
    once: tuple[str, bytes] | None = None  # idempotency key and the request's fingerprint

    @property
    def catalog(self) -> Catalog:
        return self.engine.catalog if self.transaction is None else self.transaction.catalog

    @property
    def reader(self) -> Reader:
        return self.engine.snapshot if self.transaction is None else self.transaction

    def values(self) -> StatementValues:
        return StatementValues(self.engine.now_ms, self.engine.ids, self.actor.user_id)

    def write(self, command: RowCommand) -> Any:
        if self.transaction is not None:
            return self.transaction.execute(command)
        return self.engine.execute(self.once_only(command))

    def once_only(self, command: RowCommand) -> Command:
        return command if self.once is None else Once(self.actor.user_id, *self.once, command, command.table_id)

    def run(self, command: Command) -> Any:
        return self.engine.execute(command)


class Write(NamedTuple):
    """A statement that has come down to one command; `result` makes its answer from the writer's."""

    command: RowCommand
    result: Callable[[Written], Result]

    def run(self, context: Context) -> Result:
        return self.result(context.write(self.command))

    def submitted(self, context: Context) -> Submitted:
        return Submitted(context.once_only(self.command), self.result)


class Submitted(NamedTuple):
    """A write for callers that hand it to the writer themselves, and wait for it without a thread."""

    command: Command
    result: Callable[[Written], Result]


def find_table(catalog: Catalog, name: TableName, namespace: str) -> Table:
    return catalog.table(full_name(name, namespace))


def readable_system_table(actor: Actor, name: TableName) -> SystemTable:
    """Who may read none of them is not told which there are."""
    found = SYSTEM_TABLES.get(name.name)
    require(actor, Role.SERVICE if found is None else found.role, f"reading {name}")
    if found is None:
        known = ", ".join(SYSTEM_TABLES)
        raise UnknownTable(f"there is no system table {name}; there are: {known}", table=str(name))
    return found


def find_topic(catalog: Catalog, name: TableName, namespace: str) -> Topic:
    return catalog.topic(topic_name(catalog, name, namespace))


def topic_name(catalog: Catalog, name: TableName, namespace: str) -> str:
    """The full name of a topic: what is called so in the namespace comes before what has the alias. Of a topic that does
    not exist, the name that it would have."""
    full, alias = full_name(name, namespace), full_name(name, DEFAULT_NAMESPACE)
    if full in catalog.topic_ids:
        return catalog.topic(full).full_name
    aliased = catalog.topics.get(catalog.topic_ids.get(alias, 0))
    return full if aliased is None or aliased.alias_name != alias or name.namespace is not None else aliased.full_name


def refuse_system(name: TableName, what: str) -> None:
    if name.namespace == SYSTEM_NAMESPACE:
        raise PermissionDenied(f"{what} {name}: the system namespace belongs to tablecast", name=str(name))
