"""System tables: what the engine knows about itself, as Arrow tables made when they are asked for.

Each takes a role: what is about people takes dba, everything else service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tablecast.core import group as groups
from tablecast.engine.audit import audit_entries
from tablecast.engine.engine import Engine
from tablecast.engine.groups import group_states
from tablecast.engine.jobs import job_records
from tablecast.engine.pipelines import NOT_ATTACHED
from tablecast.model.pipeline import Pipeline
from tablecast.model.schema import Role

_TIME = pa.timestamp("us", "UTC")


def _table(fields: list[tuple[str, pa.DataType]], rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = [_array(values, kind) for values, (_, kind) in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if kind == _TIME:
        return pa.array([None if ms is None else ms * 1000 for ms in values], pa.int64()).cast(_TIME)
    return pa.array(values, kind)


def namespaces(engine: Engine) -> pa.Table:
    rows = [(n.name, n.created_ms) for n in engine.catalog.namespaces.values()]
    return _table([("name", pa.string()), ("created_at", _TIME)], sorted(rows))


def tables(engine: Engine) -> pa.Table:
    rows = [
        (s.table_id, s.namespace, s.name, s.kind.value, s.access_level.value, ", ".join(s.primary_key), s.ttl_seconds,
         s.replicate, s.version, s.created_ms)
        for s in (table.schema for table in engine.catalog.tables.values())
    ]  # fmt: skip
    return _table(
        [
            ("table_id", pa.int64()), ("namespace", pa.string()), ("name", pa.string()), ("kind", pa.string()),
            ("access_level", pa.string()), ("primary_key", pa.string()), ("ttl_seconds", pa.int64()),
            ("replicate", pa.bool_()), ("version", pa.int64()), ("created_at", _TIME),
        ],
        rows,
    )  # fmt: skip


def columns(engine: Engine) -> pa.Table:
    rows = []
    for table in engine.catalog.tables.values():
        schema = table.schema
        for position, column in enumerate(schema.columns):
            default = column.default
            shown = None if default is None else default.literal if default.literal is not None else default.kind.value
            in_key = column.name in schema.primary_key
            rows.append((schema.namespace, schema.name, position, column.name, str(column.type),
                         column.not_null or in_key, in_key, shown))  # fmt: skip
    return _table(
        [
            ("namespace", pa.string()), ("table_name", pa.string()), ("position", pa.int64()), ("name", pa.string()),
            ("type", pa.string()), ("not_null", pa.bool_()), ("primary_key", pa.bool_()), ("default", pa.string()),
        ],
        rows,
    )  # fmt: skip


def topics(engine: Engine) -> pa.Table:
    rows = []
    for topic in engine.catalog.topics.values():
        ranges = [engine.log_range(topic.topic_id, p) for p in range(topic.partitions)]
        sizes = [engine.log_bytes(topic.topic_id, p) for p in range(topic.partitions)]
        rows.append((topic.topic_id, topic.namespace, topic.name, topic.alias, topic.partitions, len(topic.routes),
                     sum(end - start for start, end in ranges), sum(end - start for start, end in sizes),
                     topic.retention_seconds, topic.retention_max_bytes, topic.dedup_window_seconds,
                     topic.max_deliveries, topic.dead_letter, topic.created_ms))  # fmt: skip
    return _table(
        [
            ("topic_id", pa.int64()), ("namespace", pa.string()), ("name", pa.string()), ("alias", pa.string()),
            ("partitions", pa.int64()), ("sources", pa.int64()), ("messages", pa.int64()), ("bytes", pa.int64()),
            ("retention_seconds", pa.int64()), ("retention_max_bytes", pa.int64()),
            ("dedup_window_seconds", pa.int64()), ("max_deliveries", pa.int64()), ("dead_letter", pa.string()),
            ("created_at", _TIME),
        ],
        rows,
    )  # fmt: skip


def topic_sources(engine: Engine) -> pa.Table:
    rows = [
        (topic.full_name, engine.catalog.tables[route.table_id].schema.full_name,
         ", ".join(op.label for op in route.ops), route.filter, route.partition_by, route.payload.value)
        for topic in engine.catalog.topics.values()
        for route in topic.routes
    ]  # fmt: skip
    return _table([(n, pa.string()) for n in ("topic", "table_name", "ops", "filter", "partition_by", "payload")], rows)


def topic_offsets(engine: Engine) -> pa.Table:
    rows = []
    for topic in engine.catalog.topics.values():
        for partition in range(topic.partitions):
            start, end = engine.log_range(topic.topic_id, partition)
            rows.append((topic.full_name, partition, start, end, end - start))
    return _table(
        [
            ("topic", pa.string()), ("partition_id", pa.int64()), ("start_offset", pa.int64()),
            ("end_offset", pa.int64()), ("messages", pa.int64()),
        ],
        rows,
    )  # fmt: skip


def topic_groups(engine: Engine) -> pa.Table:
    rows = []
    snapshot, now_ms = engine.snapshot, engine.now_ms()
    for topic in engine.catalog.topics.values():
        for group, partition, state in group_states(snapshot, topic.topic_id):
            if group.startswith("$"):
                continue
            _, end = engine.log_range(topic.topic_id, partition)
            lag = groups.lag(state, max(end, state.next_offset))
            oldest = engine.message_time_ms(topic.topic_id, partition, state.committed) if lag else None
            waited = 0.0 if not lag else None if oldest is None else max(0, now_ms - oldest) / 1000
            rows.append((topic.full_name, group, partition, state.committed, groups.claimed(state), end, lag, waited))
    return _table(
        [
            ("topic", pa.string()), ("group_id", pa.string()), ("partition_id", pa.int64()),
            ("committed", pa.int64()), ("claimed", pa.int64()), ("end_offset", pa.int64()), ("lag", pa.int64()),
            ("lag_seconds", pa.float64()),
        ],
        rows,
    )  # fmt: skip


def jobs(engine: Engine) -> pa.Table:
    rows = [
        (j.name, j.status, j.started_ms or None, j.finished_ms, j.runs, j.removed, j.bytes_freed, j.error)
        for j in job_records(engine.store, engine.jobs.names)
    ]
    return _table(
        [
            ("name", pa.string()), ("status", pa.string()), ("started_at", _TIME), ("finished_at", _TIME),
            ("runs", pa.int64()), ("removed", pa.int64()), ("bytes_freed", pa.int64()), ("error", pa.string()),
        ],
        rows,
    )  # fmt: skip


def loads(engine: Engine) -> pa.Table:
    rows = [
        (o.load_id, o.table, o.writer_id, o.batch_id, o.kind, o.mode, o.state, o.parts, o.bytes, o.user_id, o.created_ms,
         o.active_ms)
        for o in engine.loads.open()
    ]  # fmt: skip
    return _table(
        [
            ("load_id", pa.string()), ("table_name", pa.string()), ("writer_id", pa.string()), ("batch_id", pa.int64()),
            ("kind", pa.string()), ("mode", pa.string()), ("state", pa.string()), ("parts", pa.int64()),
            ("bytes", pa.int64()), ("user_id", pa.string()), ("created_at", _TIME), ("active_at", _TIME),
        ],
        rows,
    )  # fmt: skip


def settings(engine: Engine) -> pa.Table:
    rows = [
        ("durability", engine.durability.name),
        ("commit_number", str(engine.seq)),
        ("store_bytes", str(engine.store.size_bytes())),
        ("deduplicated_since_open", str(engine.deduplicated)),
        ("write_queue_depth", str(engine.queue_depth)),
    ]
    return _table([("name", pa.string()), ("value", pa.string())], rows)


def users(engine: Engine) -> pa.Table:
    rows = [
        (user.name, user.role.name.lower(), user.created_ms, user.changed_ms, user.password is not None)
        for user in engine.catalog.users.values()
    ]
    return _table(
        [
            ("name", pa.string()), ("role", pa.string()), ("created_at", _TIME), ("changed_at", _TIME),
            ("can_sign_in", pa.bool_()),
        ],
        sorted(rows),
    )  # fmt: skip


def audit_log(engine: Engine) -> pa.Table:
    rows = [
        (e.time_ms, seq, e.user, None if e.role is None else e.role.name.lower(), e.action, e.target, e.outcome,
         e.detail, e.request_id)
        for seq, e in audit_entries(engine.store, engine.seq)
    ]  # fmt: skip
    texts = ("user_id", "role", "action", "target", "outcome", "detail", "request_id")
    return _table([("time", _TIME), ("seq", pa.int64()), *((name, pa.string()) for name in texts)], rows)


def pipelines(engine: Engine) -> pa.Table:
    """Those of the catalog, and those that a runner has in a file and reports."""
    reports = engine.pipeline_reports
    reported = reports.all()
    rows = []
    for name in sorted({*engine.catalog.pipelines, *reported}):
        pipeline, said = engine.catalog.pipelines.get(name), reported.get(name)
        fresh = said is not None and reports.is_fresh(said)
        report = said.report if said is not None else None
        if pipeline is None and not (report is not None and report.of_file and fresh):
            continue
        state = report.state if report is not None and fresh else "stopped" if _is_stopped(pipeline) else NOT_ATTACHED
        rows.append((
            name, pipeline.target if pipeline else report and report.target, pipeline and pipeline.query,
            "stopped" if _is_stopped(pipeline) else "running", state,
            *(getattr(report, field, None) if fresh else None for field in _RATES),
            *(getattr(report, field, None) for field in ("rows_in", "rows_out", "rejected")),
            None if report is None else _lag(engine, report.positions),
            *(getattr(report, field, None) for field in ("batch_id", "last_error", "last_batch_ms", "restarts")),
            report.runner if report is not None and fresh else None,
            None if pipeline is None else msgspec.json.encode(pipeline).decode(),
        ))  # fmt: skip
    return _table(
        [
            ("name", pa.string()), ("target", pa.string()), ("sql", pa.string()), ("desired_state", pa.string()),
            ("state", pa.string()), ("input_rows_per_second", pa.float64()),
            ("processed_rows_per_second", pa.float64()), ("rows_in", pa.int64()), ("rows_out", pa.int64()),
            ("rejected", pa.int64()), ("lag", pa.int64()), ("batch_id", pa.int64()), ("last_error", pa.string()),
            ("last_batch_at", _TIME), ("restarts", pa.int64()), ("runner", pa.string()), ("definition", pa.string()),
        ],
        rows,
    )  # fmt: skip


def live_queries(engine: Engine) -> pa.Table:
    """Those that are told what changes, equal ones as one."""
    rows = [
        (group.table, group.text, group.owner, group.subscribers, group.told, group.evaluation_seconds)
        for stats in list(engine.live_stats)
        for group in stats().groups
    ]
    return _table(
        [
            ("table_name", pa.string()), ("query", pa.string()), ("user_id", pa.string()), ("subscribers", pa.int64()),
            ("commits_told", pa.int64()), ("evaluation_seconds", pa.float64()),
        ],
        rows,
    )  # fmt: skip


def replication(engine: Engine) -> pa.Table:
    """This node, if it is one."""
    now = engine.replication.status()
    rows = [] if now.node_id is None else [(
        now.node_id, now.broker, now.online, now.sequence, now.pending, now.given_up, now.last_flush_ms, now.last_error,
        now.last_error_ms, now.published, now.publish_errors, now.applied, now.beaten, now.seen, now.quarantined, now.ahead,
        ", ".join(now.peers), now.rounds, now.differing, now.pulled, now.pushed,
    )]  # fmt: skip
    return _table(
        [
            ("node_id", pa.string()), ("broker", pa.string()), ("online", pa.bool_()), ("sequence", pa.int64()),
            ("pending", pa.int64()), ("given_up", pa.int64()), ("last_flush", _TIME), ("last_error", pa.string()),
            ("last_error_at", _TIME), ("published", pa.int64()), ("publish_errors", pa.int64()), ("applied", pa.int64()),
            ("beaten", pa.int64()), ("seen", pa.int64()), ("quarantined", pa.int64()), ("ahead", pa.int64()),
            ("peers", pa.string()), ("rounds", pa.int64()), ("differing", pa.int64()), ("pulled", pa.int64()),
            ("pushed", pa.int64()),
        ],
        rows,
    )  # fmt: skip


def replication_quarantine(engine: Engine) -> pa.Table:
    """Events that were set aside, the oldest first."""
    rows = [
        (aside.time_ms, aside.outgoing, aside.key, aside.node_id, aside.seq, aside.bytes, aside.reason)
        for aside in engine.replication.quarantine()
    ]
    return _table(
        [
            ("time", _TIME), ("outgoing", pa.bool_()), ("key", pa.string()), ("node_id", pa.string()),
            ("sequence", pa.int64()), ("bytes", pa.int64()), ("reason", pa.string()),
        ],
        rows,
    )  # fmt: skip


_RATES = ("input_rows_per_second", "processed_rows_per_second")


def _is_stopped(pipeline: Pipeline | None) -> bool:
    return pipeline is not None and not pipeline.running


def _lag(engine: Engine, positions: Mapping[str, Sequence[int]]) -> int | None:
    """Messages between what a runner has read and the ends of the logs now."""
    if not positions:
        return None
    lag = 0
    for name, offsets in positions.items():
        topic_id = engine.catalog.topic_ids.get(name)
        if topic_id is None:
            continue
        for partition, offset in enumerate(offsets[: engine.catalog.topics[topic_id].partitions]):
            start, end = engine.log_range(topic_id, partition)
            lag += max(0, end - max(offset, start))
    return lag


class SystemTable(NamedTuple):
    make: Callable[[Engine], pa.Table]
    role: Role = Role.SERVICE  # who may read it, and those above


SYSTEM_TABLES: dict[str, SystemTable] = {
    "namespaces": SystemTable(namespaces),
    "tables": SystemTable(tables),
    "columns": SystemTable(columns),
    "topics": SystemTable(topics),
    "topic_sources": SystemTable(topic_sources),
    "topic_offsets": SystemTable(topic_offsets),
    "topic_groups": SystemTable(topic_groups),
    "jobs": SystemTable(jobs),
    "loads": SystemTable(loads),
    "pipelines": SystemTable(pipelines),
    "live_queries": SystemTable(live_queries, Role.DBA),
    "replication": SystemTable(replication),
    "replication_quarantine": SystemTable(replication_quarantine),
    "settings": SystemTable(settings),
    "users": SystemTable(users, Role.DBA),
    "audit_log": SystemTable(audit_log, Role.DBA),
}
