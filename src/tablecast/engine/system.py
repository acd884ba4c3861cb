"""System tables: what the engine knows about itself, made when it is asked for.

Each takes a role: what is about people takes dba, everything else service. Each has columns and a key as any table has, so
that a live query can tell which of its rows are others than a moment ago (engine.live_sampling). What is in them is made by
engine.system_rows.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pyarrow as pa

from tablecast.codec.arrow_types import arrow_schema
from tablecast.codec.rows import Row
from tablecast.engine import system_rows as rows
from tablecast.engine.catalog import SYSTEM_NAMESPACE
from tablecast.engine.engine import Engine
from tablecast.engine.reading import KeyRange
from tablecast.model.schema import Column, ColumnType, Role, TableKind, TableSchema, TypeName

_IN_ORDER = (rows.audit_log,)  # kept in the order of their key, so that part of them can be read alone
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SystemTable:
    """`columns` is the text of `_DECLARED`."""

    def __init__(self, number: int, name: str, columns: str, make: Callable[..., rows.Rows], role: Role) -> None:
        declared = [column.split() for column in columns.split(",")]
        self.role = role  # who may read it, and those above
        self.schema = TableSchema(
            -number,  # below the ids of tables
            SYSTEM_NAMESPACE,
            name,
            TableKind.SHARED,
            tuple(Column(column.lstrip("*"), ColumnType(TypeName(kind))) for column, kind in declared),
            tuple(column[1:] for column, _ in declared if column.startswith("*")),
        )
        self.in_order = make in _IN_ORDER
        self._make = make
        self._arrow = arrow_schema(self.schema)
        self._row = namedtuple(name, [f"c{i}" for i in range(len(declared))])  # type: ignore[misc]
        self._times = [i for i, column in enumerate(self.schema.columns) if column.type.name is TypeName.TIMESTAMP]

    def make(self, engine: Engine) -> pa.Table:
        return self._table(self._make(engine))

    def make_part(self, engine: Engine, part: KeyRange, limit: int | None) -> pa.Table:
        """At least the rows of a key range of a table that is `in_order`, in its direction, `limit` of them if one is given."""
        assert self.in_order
        return self._table(islice(self._make(engine, part), None if part.prefix else limit))

    def _table(self, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
        columns = list(zip(*rows, strict=True)) or [()] * len(self._arrow)
        return pa.Table.from_arrays(
            [_array(values, field.type) for values, field in zip(columns, self._arrow, strict=True)], schema=self._arrow
        )

    def rows(self, engine: Engine) -> Iterator[Row]:
        """With the attributes that stored rows have in memory: what filters and live queries read."""
        for values in self._make(engine):
            converted = list(values)
            for i in self._times:
                converted[i] = None if values[i] is None else _EPOCH + timedelta(milliseconds=values[i])
            yield self._row(*converted)

    def dicts(self, engine: Engine) -> Iterator[dict[str, Any]]:
        """Rows by column name; times as milliseconds."""
        names = self.schema.column_names
        return (dict(zip(names, values, strict=True)) for values in self._make(engine))


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array([None if ms is None else ms * 1000 for ms in values], pa.int64()).cast(kind)
    return pa.array(values, kind)


# Columns of the key have a star.
_DECLARED: list[tuple[Callable[..., rows.Rows], Role, str]] = [
    (rows.namespaces, Role.SERVICE, "*name TEXT, created_at TIMESTAMP"),
    (
        rows.tables, Role.SERVICE,
        "table_id BIGINT, *namespace TEXT, *name TEXT, kind TEXT, access_level TEXT, primary_key TEXT, "
        "ttl_seconds BIGINT, replicate BOOLEAN, version BIGINT, created_at TIMESTAMP",
    ),
    (
        rows.columns, Role.SERVICE,
        "*namespace TEXT, *table_name TEXT, position BIGINT, *name TEXT, type TEXT, not_null BOOLEAN, "
        "primary_key BOOLEAN, default TEXT",
    ),
    (
        rows.topics, Role.SERVICE,
        "topic_id BIGINT, *namespace TEXT, *name TEXT, alias TEXT, partitions BIGINT, sources BIGINT, messages BIGINT, "
        "bytes BIGINT, retention_seconds BIGINT, retention_max_bytes BIGINT, dedup_window_seconds BIGINT, "
        "max_deliveries BIGINT, dead_letter TEXT, routes JSON, created_at TIMESTAMP, updated_at TIMESTAMP",
    ),
    (
        rows.topic_sources, Role.SERVICE,
        "*topic TEXT, *table_name TEXT, *ops TEXT, filter TEXT, partition_by TEXT, payload TEXT",
    ),
    (
        rows.topic_partitions, Role.SERVICE,
        "*topic TEXT, *partition_id BIGINT, start_offset BIGINT, end_offset BIGINT, messages BIGINT",
    ),
    (
        rows.topic_groups, Role.SERVICE,
        "*topic TEXT, *group_id TEXT, *partition_id BIGINT, committed BIGINT, claimed BIGINT, end_offset BIGINT, "
        "lag BIGINT, lag_seconds DOUBLE",
    ),
    (
        rows.topic_claims, Role.SERVICE,
        "*topic TEXT, *group_id TEXT, *partition_id BIGINT, *start_offset BIGINT, end_offset BIGINT, messages BIGINT, "
        "state TEXT, consumer TEXT, deadline TIMESTAMP, deliveries BIGINT, reason TEXT",
    ),
    (
        rows.jobs, Role.SERVICE,
        "*name TEXT, status TEXT, started_at TIMESTAMP, finished_at TIMESTAMP, runs BIGINT, removed BIGINT, "
        "bytes_freed BIGINT, error TEXT",
    ),
    (
        rows.loads, Role.SERVICE,
        "*load_id TEXT, table_name TEXT, writer_id TEXT, batch_id BIGINT, kind TEXT, mode TEXT, state TEXT, "
        "parts BIGINT, bytes BIGINT, user_id TEXT, created_at TIMESTAMP, active_at TIMESTAMP",
    ),
    (
        rows.pipelines, Role.SERVICE,
        "*name TEXT, target TEXT, sql TEXT, desired_state TEXT, state TEXT, input_rows_per_second DOUBLE, "
        "processed_rows_per_second DOUBLE, rows_in BIGINT, rows_out BIGINT, rejected BIGINT, lag BIGINT, "
        "batch_id BIGINT, last_error TEXT, last_batch_at TIMESTAMP, restarts BIGINT, runner TEXT, definition TEXT, "
        "inputs TEXT, skipped BIGINT",
    ),
    (
        rows.live_queries, Role.DBA,
        "*channel BIGINT, table_name TEXT, query TEXT, user_id TEXT, subscribers BIGINT, commits_told BIGINT, "
        "evaluation_seconds DOUBLE, sampled_seconds DOUBLE",
    ),
    (
        rows.replication, Role.SERVICE,
        "*node_id TEXT, broker TEXT, online BOOLEAN, sequence BIGINT, pending BIGINT, given_up BIGINT, "
        "last_flush TIMESTAMP, last_error TEXT, last_error_at TIMESTAMP, published BIGINT, publish_errors BIGINT, "
        "applied BIGINT, beaten BIGINT, seen BIGINT, quarantined BIGINT, ahead BIGINT, peers TEXT, rounds BIGINT, "
        "differing BIGINT, pulled BIGINT, pushed BIGINT, last_compared TIMESTAMP, set_aside BIGINT",
    ),
    (
        rows.replication_quarantine, Role.SERVICE,
        "*id TEXT, time TIMESTAMP, outgoing BOOLEAN, key TEXT, node_id TEXT, sequence BIGINT, bytes BIGINT, reason TEXT",
    ),
    (
        rows.cluster, Role.SERVICE,
        "*name TEXT, node_id TEXT, role TEXT, state TEXT, version TEXT, address TEXT, started_at TIMESTAMP",
    ),
    (rows.metrics, Role.SERVICE, "*name TEXT, *labels TEXT, kind TEXT, value DOUBLE"),
    (rows.settings, Role.SERVICE, "*name TEXT, value TEXT"),
    (rows.users, Role.DBA, "*name TEXT, role TEXT, created_at TIMESTAMP, changed_at TIMESTAMP, can_sign_in BOOLEAN"),
    (
        rows.audit_log, Role.DBA,
        "time TIMESTAMP, *seq BIGINT, *number BIGINT, user_id TEXT, role TEXT, action TEXT, target TEXT, outcome TEXT, "
        "detail TEXT, request_id TEXT",
    ),
    (
        rows.topic_redriven, Role.SERVICE,
        "*topic TEXT, *partition_id BIGINT, *start_offset BIGINT, end_offset BIGINT",
    ),
    (
        rows.topic_offsets, Role.SERVICE,
        "*topic_id BIGINT, *group_id TEXT, *partition_id BIGINT, last_acked_offset BIGINT, updated_at TIMESTAMP",
    ),
]  # fmt: skip

SYSTEM_TABLES = {
    make.__name__: SystemTable(number, make.__name__, columns, make, role)
    for number, (make, role, columns) in enumerate(_DECLARED, 1)
}
