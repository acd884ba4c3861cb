"""The catalog in memory: immutable, compiled, replaced as a whole.

The writer decides on its own newest version; everybody else sees the version of the last durable commit. A `Table`
carries what its writes need: row codec, payload encoder, compiled checks and routes.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tablecast.codec.catalog import Namespace, User
from tablecast.codec.rows import LOADED_FORMAT, RowCodec, row_codec, row_load, row_stamp
from tablecast.core.expression import Expression, compile_filter
from tablecast.core.payload import PayloadEncoder, payload_encoder
from tablecast.core.replicated_rows import ReplicatedRows, replicated_rows, why_not_replicated
from tablecast.core.routing import CompiledRoute, compile_route
from tablecast.errors import CorruptData, UnknownNamespace, UnknownPipeline, UnknownTable, UnknownTopic, UnknownUser
from tablecast.model.change import Op
from tablecast.model.names import DEFAULT_NAMESPACE as DEFAULT_NAMESPACE
from tablecast.model.pipeline import Pipeline
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Topic

SYSTEM_NAMESPACE = "system"


# Commit number and time of each sealed load of one table, by load number. Only ever added to, by the writer and before
# any row of the load can be seen, so all versions of a table share one.
Stamps = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Table:
    schema: TableSchema
    codec: RowCodec
    payload: PayloadEncoder
    checks: tuple[Expression, ...]
    routes: Mapping[Op, tuple[CompiledRoute, ...]]
    loads: Stamps = field(default_factory=dict)
    replica: ReplicatedRows | None = None  # of a table that is replicated

    @property
    def table_id(self) -> int:
        return self.schema.table_id

    @property
    def ttl_ms(self) -> int | None:
        return None if self.schema.ttl_seconds is None else self.schema.ttl_seconds * 1000

    def stamp(self, value: bytes) -> tuple[int, int]:
        """The commit number and time of a stored row."""
        if not value or value[0] != LOADED_FORMAT:
            return row_stamp(value)
        number = row_load(value)
        found = None if number is None else self.loads.get(number)
        if found is None:
            raise CorruptData(f"a row of {self.schema.full_name} is of load {number}, which is not recorded")
        return found


def compile_table(schema: TableSchema, topics: Iterable[Topic], loads: Stamps | None = None) -> Table:
    routes: dict[Op, list[CompiledRoute]] = {op: [] for op in Op}
    for topic in topics:
        for route in topic.routes:
            if route.table_id == schema.table_id:
                compiled = compile_route(topic, route, schema)
                for op in route.ops:
                    routes[op].append(compiled)
    checks = tuple(compile_filter(check, schema) for check in schema.checks)
    frozen = {op: tuple(found) for op, found in routes.items()}
    replica = replicated_rows(schema) if schema.replicate and why_not_replicated(schema) is None else None
    stamps = {} if loads is None else loads
    return Table(schema, row_codec(schema), payload_encoder(schema), checks, frozen, stamps, replica)


@dataclass(frozen=True, slots=True)
class Catalog:
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    tables: Mapping[int, Table] = field(default_factory=dict)
    topics: Mapping[int, Topic] = field(default_factory=dict)
    table_ids: Mapping[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, int] = field(default_factory=dict)  # full names and aliases: see `_topic_ids`
    users: Mapping[str, User] = field(default_factory=dict)
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict)

    @staticmethod
    def of(
        namespaces: Iterable[Namespace],
        schemas: Iterable[TableSchema],
        topics: Iterable[Topic],
        users: Iterable[User] = (),
        pipelines: Iterable[Pipeline] = (),
        loads: Mapping[int, Stamps] | None = None,
    ) -> Catalog:
        kept = tuple(topics)
        catalog = Catalog(
            {n.name: n for n in namespaces},
            topics={t.topic_id: t for t in kept},
            users={user.name: user for user in users},
            pipelines={pipeline.full_name: pipeline for pipeline in pipelines},
        )
        stamps = loads or {}
        tables = {s.table_id: compile_table(s, kept, stamps.get(s.table_id)) for s in schemas}
        return replace(catalog, tables=tables)._named()

    def _named(self) -> Catalog:
        table_ids = {table.schema.full_name: table.table_id for table in self.tables.values()}
        return replace(self, table_ids=table_ids, topic_ids=_topic_ids(self.topics.values()))

    # --- looking up ---

    def namespace(self, name: str) -> Namespace:
        found = self.namespaces.get(name)
        if found is None:
            known = ", ".join(sorted(self.namespaces)) or "none"
            raise UnknownNamespace(
                f"there is no namespace {name!r} (known: {known}); CREATE NAMESPACE {name} makes it", namespace=name
            )
        return found

    def table(self, full_name: str) -> Table:
        table_id = self.table_ids.get(full_name)
        if table_id is None:
            self.namespace(full_name.partition(".")[0])
            raise UnknownTable(f"there is no table {full_name}{_nearest(full_name, self.table_ids)}", table=full_name)
        return self.tables[table_id]

    def topic(self, name: str) -> Topic:
        topic_id = self.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopic(f"there is no topic {name}{_nearest(name, self.topic_ids)}", topic=name)
        return self.topics[topic_id]

    def user(self, name: str) -> User:
        found = self.users.get(name)
        if found is None:
            raise UnknownUser(f"there is no user {name!r}", user=name)
        return found

    def pipeline(self, full_name: str) -> Pipeline:
        found = self.pipelines.get(full_name)
        if found is None:
            raise UnknownPipeline(
                f"there is no pipeline {full_name}{_nearest(full_name, self.pipelines)}", pipeline=full_name
            )
        return found

    def pipelines_using(self, *, table: str | None = None, topic: str | None = None) -> list[Pipeline]:
        return [p for p in self.pipelines.values() if table in p.tables or topic in p.topics]

    def alias_clashes(self) -> list[str]:
        """What is wrong with the aliases that are not in effect: only a database of an older version has such."""
        found = [t for t in self.topics.values() if self.topic_ids.get(t.alias_name or t.full_name) != t.topic_id]
        return [
            f"the alias {topic.alias} of topic {topic.full_name} is not in effect: {topic.alias_name} is topic "
            f"{self.topic(topic.alias_name or '').full_name}. ALTER TOPIC … RENAME TO or SET ALIAS tells them apart"
            for topic in found
        ]

    def topics_fed_by(self, table_id: int) -> list[Topic]:
        return [topic for topic in self.topics.values() if any(r.table_id == table_id for r in topic.routes)]

    # --- the next version ---

    def with_namespace(self, namespace: Namespace) -> Catalog:
        return replace(self, namespaces={**self.namespaces, namespace.name: namespace})

    def without_namespace(self, name: str) -> Catalog:
        return replace(self, namespaces={k: v for k, v in self.namespaces.items() if k != name})

    def with_user(self, user: User) -> Catalog:
        return replace(self, users={**self.users, user.name: user})

    def without_user(self, name: str) -> Catalog:
        return replace(self, users={k: v for k, v in self.users.items() if k != name})

    def with_pipeline(self, pipeline: Pipeline) -> Catalog:
        return replace(self, pipelines={**self.pipelines, pipeline.full_name: pipeline})

    def without_pipeline(self, full_name: str) -> Catalog:
        return replace(self, pipelines={k: v for k, v in self.pipelines.items() if k != full_name})

    def with_table(self, schema: TableSchema) -> Catalog:
        known = self.tables.get(schema.table_id)
        table = compile_table(schema, self.topics.values(), known.loads if known else None)
        return replace(self, tables={**self.tables, schema.table_id: table})._named()

    def without_table(self, table_id: int) -> Catalog:
        return replace(self, tables={k: v for k, v in self.tables.items() if k != table_id})._named()

    def with_topic(self, topic: Topic) -> Catalog:
        return self._with_topics({**self.topics, topic.topic_id: topic}, topic.topic_id)

    def without_topic(self, topic_id: int) -> Catalog:
        return self._with_topics({k: v for k, v in self.topics.items() if k != topic_id}, topic_id)

    def _with_topics(self, topics: dict[int, Topic], changed: int) -> Catalog:
        """Recompiles the tables that feed the changed topic, before or after."""
        fed = {
            route.table_id
            for version in (self.topics.get(changed), topics.get(changed))
            if version is not None
            for route in version.routes
        }
        tables = {
            table_id: compile_table(table.schema, topics.values(), table.loads) if table_id in fed else table
            for table_id, table in self.tables.items()
        }
        return replace(self, topics=topics, tables=tables)._named()


def _topic_ids(topics: Collection[Topic]) -> dict[str, int]:
    """Names and aliases are one space. Older versions let them clash: then a topic's own name comes first, then the alias
    that is in lower case, then that of the older topic."""
    found = {topic.full_name: topic.topic_id for topic in topics}
    for topic in sorted(topics, key=lambda topic: (topic.alias != (topic.alias or "").lower(), topic.topic_id)):
        if topic.alias_name is not None:
            found.setdefault(topic.alias_name, topic.topic_id)
    return found


def _namespace(name: str) -> str:
    return name.rpartition(".")[0] or DEFAULT_NAMESPACE


def _nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name, from the namespace that was asked. An alias is in the default one."""
    asked = _namespace(name)
    close = difflib.get_close_matches(name, [each for each in known if _namespace(each) == asked], n=1)
    return f"; did you mean {close[0]}?" if close else ""
