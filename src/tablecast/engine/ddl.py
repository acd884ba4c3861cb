"""Commands that change the catalog. Each is alone in its commit: nothing else is decided on top of it or under it.

What a dropped thing held is removed by range in the same commit: no crash leaves half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import LogStart, Namespace, NextIds, encode_record
from tablecast.codec.rows import Row
from tablecast.core import failpoint
from tablecast.core.expression import compile_expression, compile_filter
from tablecast.core.replicated_rows import is_bare, why_not_replicated
from tablecast.core.routing import route_run
from tablecast.engine.catalog import SYSTEM_NAMESPACE, Catalog, Table, compile_table
from tablecast.engine.decision import Decision, Record, View
from tablecast.engine.rows import is_live
from tablecast.errors import (
    AlreadyExists,
    DuplicateSource,
    InUse,
    InvalidSchema,
    InvalidTopic,
    TypeMismatch,
    UnknownSource,
)
from tablecast.model.change import ChangeRun, Op
from tablecast.model.pipeline import Pipeline
from tablecast.model.schema import Column, DefaultKind, TableSchema, TypeName
from tablecast.model.topic import Route, Topic
from tablecast.storage.base import Family

BACKFILL_CHUNK_ROWS = 1000  # rows routed at a time; the whole backfill is one commit


class Alone:
    """Decided in a commit of its own."""

    weight = 1
    alone = True


def next_ids(view: View) -> NextIds:
    stored = view.get(Family.META, records.IDS_KEY)
    return NextIds() if stored is None else records.decode_record(NextIds, stored)


def _saved(key: bytes, record: records.Record) -> Record:
    return Family.META, key, encode_record(record)


# --- namespaces ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CreateNamespace(Alone):
    name: str
    if_not_exists: bool = False

    def decide(self, view: View) -> Decision:
        if self.name == SYSTEM_NAMESPACE or self.name in view.catalog.namespaces:
            if self.if_not_exists:
                return Decision(False)
            raise AlreadyExists(f"namespace {self.name} already exists", namespace=self.name)
        made = Namespace(self.name, view.ts_ms)
        return Decision(
            True, records=[_saved(records.namespace_key(self.name), made)], catalog=view.catalog.with_namespace(made)
        )


@dataclass(slots=True)
class DropNamespace(Alone):
    name: str
    if_exists: bool = False

    def decide(self, view: View) -> Decision:
        if self.if_exists and self.name not in view.catalog.namespaces:
            return Decision(False)
        view.catalog.namespace(self.name)
        held = [t.schema.full_name for t in view.catalog.tables.values() if t.schema.namespace == self.name]
        held += [t.full_name for t in view.catalog.topics.values() if t.namespace == self.name]
        held += [p.full_name for p in view.catalog.pipelines.values() if p.namespace == self.name]
        if held:
            raise InUse(f"namespace {self.name} still holds {', '.join(sorted(held)[:5])}: drop them first")
        return Decision(
            True,
            records=[(Family.META, records.namespace_key(self.name), None)],
            catalog=view.catalog.without_namespace(self.name),
        )


# --- tables --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CreateTable(Alone):
    """`schema` comes with table_id 0; the command assigns one."""

    schema: TableSchema
    if_not_exists: bool = False

    def decide(self, view: View) -> Decision:
        view.catalog.namespace(self.schema.namespace)
        if self.schema.full_name in view.catalog.table_ids:
            if self.if_not_exists:
                return Decision(False)
            raise AlreadyExists(f"table {self.schema.full_name} already exists", table=self.schema.full_name)
        if self.schema.replicate:
            check_replicated(view.catalog, self.schema)
        ids = next_ids(view)
        schema = msgspec.structs.replace(self.schema, table_id=ids.table, created_ms=view.ts_ms)
        return Decision(
            True,
            records=[
                _saved(records.table_key(schema.table_id), schema),
                _saved(records.IDS_KEY, msgspec.structs.replace(ids, table=ids.table + 1)),
            ],
            catalog=view.catalog.with_table(schema),
        )


def check_replicated(catalog: Catalog, schema: TableSchema) -> None:
    why = why_not_replicated(schema)
    bare = next((t.schema.full_name for t in catalog.tables.values() if t.replica and is_bare(t.schema)), None)
    if why is None and is_bare(schema) and bare is not None:
        why = f"a table of (key TEXT, value TEXT) replicates its bare keys, and {bare} does so already: name a column otherwise"
    if why is not None:
        raise InvalidSchema(f"table {schema.full_name} cannot have REPLICATE = TRUE: {why}", table=schema.full_name)


@dataclass(slots=True)
class AddColumn(Alone):
    table: str
    column: Column
    if_not_exists: bool = False

    def decide(self, view: View) -> Decision:
        schema = view.catalog.table(self.table).schema
        if schema.index_of(self.column.name) is not None:
            if self.if_not_exists:
                return Decision(False)
            raise AlreadyExists(f"{self.table} already has a column {self.column.name!r}", column=self.column.name)
        self._check()
        altered = msgspec.structs.replace(schema, columns=(*schema.columns, self.column), version=schema.version + 1)
        if schema.replicate and is_bare(schema) != is_bare(altered):
            raise InvalidSchema(
                f"{self.table} is replicated, and only a table of (key TEXT, value TEXT) by bare keys: to become or to "
                "stop being one would give every row another key on other nodes",
                table=self.table,
            )
        return Decision(
            True,
            records=[_saved(records.table_key(schema.table_id), altered)],
            catalog=view.catalog.with_table(altered),
        )

    def _check(self) -> None:
        default = self.column.default
        if default is not None and default.kind is not DefaultKind.LITERAL:
            raise InvalidSchema(
                f"column {self.column.name!r}: an added column takes a literal DEFAULT (rows that exist get it), "
                f"not {default.kind.value}()",
                column=self.column.name,
            )
        if self.column.not_null and (default is None or default.literal is None):
            raise InvalidSchema(
                f"column {self.column.name!r} is NOT NULL: give it a DEFAULT, the rows that exist need a value",
                column=self.column.name,
            )


@dataclass(slots=True)
class DropTable(Alone):
    table: str
    if_exists: bool = False
    cascade: bool = False

    def decide(self, view: View) -> Decision:
        if self.if_exists and self.table not in view.catalog.table_ids:
            return Decision(False)
        table_id = view.catalog.table(self.table).table_id
        fed = view.catalog.topics_fed_by(table_id)
        if fed and not self.cascade:
            names = ", ".join(topic.full_name for topic in fed)
            raise InUse(
                f"table {self.table} feeds {names}: drop those sources first, or DROP TABLE … CASCADE drops them too",
                table=self.table,
                topics=[topic.full_name for topic in fed],
            )
        used = view.catalog.pipelines_using(table=self.table)
        if used and not self.cascade:
            raise in_use(f"table {self.table}", used, "or DROP TABLE … CASCADE drops them too")
        catalog = view.catalog
        dropped: list[Record] = [(Family.META, records.table_key(table_id), None)]
        for pipeline in used:
            catalog = catalog.without_pipeline(pipeline.full_name)
            dropped.append((Family.META, records.pipeline_key(pipeline.full_name), None))
        for topic in fed:
            kept = tuple(route for route in topic.routes if route.table_id != table_id)
            altered = altered_topic(view, topic, routes=kept)
            catalog = catalog.with_topic(altered)
            dropped.append(_saved(records.topic_key(topic.topic_id), altered))
        is_replicated = view.catalog.tables[table_id].replica is not None
        replica_families = (Family.VERSIONS, Family.BUCKETS) if is_replicated else ()
        failpoint.hit("during_drop")
        return Decision(
            True,
            records=dropped,
            ranges=[
                _whole(Family.ROWS, keys.table_prefix(table_id)),
                _whole(Family.META, records.LOADS + keys.table_prefix(table_id)),
                _whole(Family.META, records.LOAD_WRITERS + keys.table_prefix(table_id)),
                *(_whole(family, keys.table_prefix(table_id)) for family in replica_families),
            ],
            catalog=catalog.without_table(table_id),
            change_starts={} if view.kept_changes(table_id) is None else {table_id: None},
        )


def in_use(what: str, pipelines: Sequence[Pipeline], instead: str = "") -> InUse:
    names = ", ".join(pipeline.full_name for pipeline in pipelines)
    return InUse(
        f"{what} is used by the pipeline {names}: drop it first" + (f", {instead}" if instead else ""),
        pipelines=[pipeline.full_name for pipeline in pipelines],
    )


def _whole(family: Family, prefix: bytes) -> tuple[Family, bytes, bytes]:
    end = keys.after(prefix)
    assert end is not None  # ids never reach 2**32 - 1
    return family, prefix, end


# --- topics --------------------------------------------------------------------------------------------------


def altered_topic(view: View, topic: Topic, **fields: Any) -> Topic:
    return msgspec.structs.replace(topic, updated_ms=view.ts_ms, **fields)


def check_topic(topic: Topic) -> None:
    if topic.max_deliveries and not topic.dead_letter:
        raise InvalidTopic(
            f"{topic.full_name}: max_deliveries needs dead_letter, a topic that takes what was given up on",
            topic=topic.full_name,
        )
    if topic.dead_letter in (topic.full_name, topic.alias_name or topic.full_name):
        raise InvalidTopic(f"{topic.full_name} cannot be its own dead_letter topic", topic=topic.full_name)


def check_names(catalog: Catalog, topic: Topic, *names: str | None) -> None:
    """Refuses a topic that would be called by one of these names, if it is the name or the alias of another, or both its own
    name and its alias."""
    for name in filter(None, names):
        owner = catalog.topics.get(catalog.topic_ids.get(name, 0), topic)
        if owner.topic_id != topic.topic_id or topic.full_name == topic.alias_name:
            raise _taken(name, owner)


def _taken(name: str, owner: Topic) -> AlreadyExists:
    how = "is" if name == owner.full_name else "is the alias of"
    return AlreadyExists(
        f"{name} {how} topic {owner.full_name} already; names and aliases share one space",
        name=name,
        topic=owner.full_name,
    )


@dataclass(slots=True)
class CreateTopic(Alone):
    """`topic` comes with topic_id 0. A dead-letter topic that does not exist yet is made with it."""

    topic: Topic
    if_not_exists: bool = False

    def decide(self, view: View) -> Decision:
        catalog = view.catalog
        catalog.namespace(self.topic.namespace)
        named = catalog.topics.get(catalog.topic_ids.get(self.topic.full_name, 0))
        if self.if_not_exists and named is not None and named.full_name == self.topic.full_name:
            return Decision(False)
        check_names(catalog, self.topic, self.topic.full_name, self.topic.alias_name)
        check_topic(self.topic)
        made = [self.topic]
        dead_letter = missing_topic(catalog, self.topic.dead_letter)
        if dead_letter is not None:
            made.append(dead_letter)
        return Decision(True, records=(added := add_topics(view, made))[0], catalog=added[1])


def missing_topic(catalog: Catalog, dead_letter: str | None) -> Topic | None:
    """The dead-letter topic that is to be made, if there is none of this name."""
    if dead_letter is None or dead_letter in catalog.topic_ids:
        return None
    namespace, _, name = dead_letter.partition(".")
    if not name:
        raise InvalidTopic(f"dead_letter {dead_letter!r} must be namespace.topic", topic=dead_letter)
    catalog.namespace(namespace)
    return Topic(0, namespace, name)


def add_topics(view: View, topics: list[Topic]) -> tuple[list[Record], Catalog]:
    catalog, ids, saved = view.catalog, next_ids(view), []
    for topic in topics:
        topic = altered_topic(view, topic, topic_id=ids.topic, created_ms=view.ts_ms)
        ids = msgspec.structs.replace(ids, topic=ids.topic + 1)
        catalog = catalog.with_topic(topic)
        saved.append(_saved(records.topic_key(topic.topic_id), topic))
    return [*saved, _saved(records.IDS_KEY, ids)], catalog


@dataclass(slots=True)
class SetTopic(Alone):
    """`settings` are fields of Topic with their new values."""

    topic: str
    settings: dict[str, Any]

    def decide(self, view: View) -> Decision:
        topic = view.catalog.topic(self.topic)
        altered = altered_topic(view, topic, **self.settings)
        check_topic(altered)
        dead_letter = missing_topic(view.catalog, altered.dead_letter)
        saved, catalog = add_topics(view, [dead_letter]) if dead_letter else ([], view.catalog)
        return Decision(
            True,
            records=[*saved, _saved(records.topic_key(topic.topic_id), altered)],
            catalog=catalog.with_topic(altered),
        )


@dataclass(slots=True)
class AddSource(Alone):
    topic: str
    table: str
    route: Route  # with table_id 0
    backfill: bool = False

    def decide(self, view: View) -> Decision:
        decision = self.added(view)
        if self.backfill:
            table, only = view.catalog.table(self.table), self.alone_in(view.catalog, view.seq)
            for run in _existing(view, table):
                decision.appends += route_run(run, only.routes[Op.INSERT], only.payload, table.schema.full_name)
        decision.response = sum(len(append.keys) for append in decision.appends)
        return decision

    def added(self, view: View) -> Decision:
        """The source, without the messages of a backfill."""
        topic, route = self.planned(view.catalog, view.seq)
        altered = altered_topic(view, topic, routes=(*topic.routes, route))
        return Decision(
            records=[_saved(records.topic_key(topic.topic_id), altered)], catalog=view.catalog.with_topic(altered)
        )

    def planned(self, catalog: Catalog, seq: int) -> tuple[Topic, Route]:
        """The topic as it is, and the source as commit `seq` would add it."""
        topic, table = catalog.topic(self.topic), catalog.table(self.table)
        route = msgspec.structs.replace(self.route, table_id=table.table_id, from_seq=seq, backfilled=self.backfill)
        self._check(topic, table, route)
        return topic, route

    def alone_in(self, catalog: Catalog, seq: int) -> Table:
        """The table as if the source were its only one."""
        topic, route = self.planned(catalog, seq)
        only = msgspec.structs.replace(topic, routes=(route,))
        return compile_table(catalog.table(self.table).schema, [only])

    def _check(self, topic: Topic, table: Table, route: Route) -> None:
        for existing in topic.routes:
            twice = set(existing.ops) & set(route.ops)
            if existing.table_id == table.table_id and twice:
                ops = ", ".join(op.name for op in sorted(twice))
                raise DuplicateSource(
                    f"{table.schema.full_name} already feeds {topic.full_name} ON {ops}; DROP SOURCE first to change it",
                    topic=topic.full_name, table=table.schema.full_name, ops=ops,
                )  # fmt: skip
        if self.backfill and Op.INSERT not in route.ops:
            raise InvalidTopic("backfill publishes rows that exist as inserts: the source must be ON INSERT or ANY")
        if route.filter is not None:
            compile_filter(route.filter, table.schema)
        if route.partition_by is not None:
            by = compile_expression(route.partition_by, table.schema)
            if by.type is not None and by.type.name is TypeName.JSON:
                raise TypeMismatch(f"PARTITION BY {route.partition_by} is JSON, which has no order to hash by")


def _existing(view: View, table: Table) -> list[ChangeRun]:
    """The rows there are now, as inserts."""
    prefix = keys.table_prefix(table.table_id)
    runs: list[ChangeRun] = []
    rows: list[Row] = []  # of the last run
    for key, value in view.scan(Family.ROWS, prefix, keys.after(prefix)):
        if not is_live(table, value, view.ts_ms):
            continue
        owner = table.codec.owner(key)
        if not runs or runs[-1].user_id != owner or len(runs[-1].keys) >= BACKFILL_CHUNK_ROWS:
            rows = []
            runs.append(ChangeRun(table.table_id, table.schema.version, Op.INSERT, [], [], rows, [], owner))
        runs[-1].keys.append(key)
        rows.append(table.codec.decode(value))
    return runs


@dataclass(slots=True)
class DropSource(Alone):
    topic: str
    table: str
    ops: tuple[Op, ...] | None  # None: all of the table's sources

    def decide(self, view: View) -> Decision:
        topic, table_id = view.catalog.topic(self.topic), view.catalog.table(self.table).table_id
        dropped = set(Op) if self.ops is None else set(self.ops)
        mine = {op for route in topic.routes if route.table_id == table_id for op in route.ops}
        if not mine or (self.ops is not None and not dropped <= mine):
            what = "" if self.ops is None else " ON " + ", ".join(op.name for op in self.ops)
            raise UnknownSource(f"{self.table}{what} does not feed {topic.full_name}", topic=topic.full_name)
        kept: list[Route] = []
        for route in topic.routes:
            left = tuple(op for op in route.ops if route.table_id != table_id or op not in dropped)
            if left:
                kept.append(msgspec.structs.replace(route, ops=left))
        altered = altered_topic(view, topic, routes=tuple(kept))
        return Decision(
            True,
            records=[_saved(records.topic_key(topic.topic_id), altered)],
            catalog=view.catalog.with_topic(altered),
        )


@dataclass(slots=True)
class DropTopic(Alone):
    topic: str
    if_exists: bool = False

    def decide(self, view: View) -> Decision:
        if self.if_exists and self.topic not in view.catalog.topic_ids:
            return Decision(False)
        topic = view.catalog.topic(self.topic)
        ids = view.catalog.topic_ids
        users = [t.full_name for t in view.catalog.topics.values() if ids.get(t.dead_letter or "") == topic.topic_id]
        if users:
            raise InUse(
                f"{topic.full_name} takes the dead letters of {', '.join(users)}: drop or ALTER them first",
                topic=topic.full_name,
            )
        used = view.catalog.pipelines_using(topic=topic.full_name)
        if used:
            raise in_use(f"topic {topic.full_name}", used)
        prefix = keys.topic_prefix(topic.topic_id)
        failpoint.hit("during_drop")
        return Decision(
            True,
            records=[(Family.META, records.topic_key(topic.topic_id), None)],
            ranges=[
                _whole(Family.LOG, prefix),
                _whole(Family.GROUPS, prefix),
                _whole(Family.KEYS, b"d" + prefix),
                _whole(Family.META, records.LOG_STARTS + prefix),
            ],
            catalog=view.catalog.without_topic(topic.topic_id),
        )


@dataclass(slots=True)
class ClearTopic(Alone):
    """Removes every message. Offsets go on where they were: a reader that is behind is told."""

    topic: str

    def decide(self, view: View) -> Decision:
        topic = view.catalog.topic(self.topic)
        decision = Decision(0)
        for partition in range(topic.partitions):
            start, end = view.log_start(topic.topic_id, partition), view.log_end(topic.topic_id, partition)
            decision.response += end - start
            place = topic.topic_id, partition
            decision.log_starts[place] = LogStart(end, view.written_bytes(*place))
            decision.ranges.append((Family.LOG, keys.log_key(*place, start), keys.log_key(*place, end)))
        return decision
