"""What is in each system table: its rows, made when they are asked for.

A row is a tuple in the order of the table's columns (engine.system has those), a time UTC milliseconds. Everything here is
read from what readers see, or from counts that any thread may read: it may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tablecast.codec.group import Acked, Claim
from tablecast.core import group as groups
from tablecast.engine.audit import audit_entries
from tablecast.engine.engine import Engine
from tablecast.engine.groups import REDRIVE_GROUP
from tablecast.engine.jobs import job_records
from tablecast.engine.pipelines import NOT_ATTACHED
from tablecast.engine.positions import GroupPlace, group_places, whole_groups
from tablecast.engine.process import installed_version
from tablecast.engine.quarantine import quarantined_by_id
from tablecast.engine.reading import WHOLE, KeyRange
from tablecast.model.pipeline import Pipeline
from tablecast.model.schema import Default
from tablecast.model.topic import Topic

Rows = Iterator[tuple[Any, ...]]

_RATES = ("input_rows_per_second", "processed_rows_per_second")


def namespaces(engine: Engine) -> Rows:
    yield from sorted((n.name, n.created_ms) for n in engine.catalog.namespaces.values())


def tables(engine: Engine) -> Rows:
    for s in (table.schema for table in engine.catalog.tables.values()):
        yield (
            s.table_id, s.namespace, s.name, s.kind.value, s.access_level.value, ", ".join(s.primary_key),
            s.ttl_seconds, s.replicate, s.version, s.created_ms,
        )  # fmt: skip


def columns(engine: Engine) -> Rows:
    for table in engine.catalog.tables.values():
        schema = table.schema
        for position, column in enumerate(schema.columns):
            in_key = column.name in schema.primary_key
            yield (
                schema.namespace, schema.name, position, column.name, str(column.type), column.not_null or in_key,
                in_key, _shown_default(column.default),
            )  # fmt: skip


def _shown_default(default: Default | None) -> str | None:
    if default is None:
        return None
    if isinstance(default.literal, bytes):
        return f"X'{default.literal.hex()}'"
    return default.kind.value if default.literal is None else default.literal


# --- topics and groups ------------------------------------------------------------------------------------------


def topics(engine: Engine) -> Rows:
    for topic in engine.catalog.topics.values():
        ranges = [engine.log_range(topic.topic_id, p) for p in range(topic.partitions)]
        sizes = [engine.log_bytes(topic.topic_id, p) for p in range(topic.partitions)]
        yield (
            topic.topic_id, topic.namespace, topic.name, topic.alias, topic.partitions, len(topic.routes),
            sum(end - start for start, end in ranges), sum(end - start for start, end in sizes),
            topic.retention_seconds, topic.retention_max_bytes, topic.dedup_window_seconds, topic.max_deliveries,
            topic.dead_letter, _routes(engine, topic), topic.created_ms, topic.updated_ms or None,
        )  # fmt: skip


def _routes(engine: Engine, topic: Topic) -> str:
    """In JSON: what topic_sources has as rows."""
    names = ("table", "ops", "filter", "partition_by", "payload")
    routes = [dict(zip(names, (table, ops, *rest), strict=True)) for table, ops, *rest in _sources(engine, topic)]
    return msgspec.json.encode(routes).decode()


def _sources(engine: Engine, topic: Topic) -> Iterator[tuple[str, list[str], str | None, str | None, str]]:
    for route in topic.routes:
        table = engine.catalog.tables[route.table_id].schema.full_name
        yield table, [op.label for op in route.ops], route.filter, route.partition_by, route.payload.value


def topic_sources(engine: Engine) -> Rows:
    for topic in engine.catalog.topics.values():
        for table, ops, *rest in _sources(engine, topic):
            yield topic.full_name, table, ", ".join(ops), *rest


def topic_partitions(engine: Engine) -> Rows:
    for topic in engine.catalog.topics.values():
        for partition in range(topic.partitions):
            start, end = engine.log_range(topic.topic_id, partition)
            yield topic.full_name, partition, start, end, end - start


def topic_offsets(engine: Engine) -> Rows:
    """How far each group is in each partition."""
    for topic, (group, partition, state, updated_ms) in _groups(engine):
        yield topic.topic_id, group, partition, state.acknowledged_offset, updated_ms


def topic_groups(engine: Engine) -> Rows:
    now_ms = engine.now_ms()
    for topic, (group, partition, state, _) in _groups(engine):
        _, end = engine.log_range(topic.topic_id, partition)
        lag = groups.lag(state, max(end, state.next_offset))
        oldest = engine.message_time_ms(topic.topic_id, partition, state.committed) if lag else None
        waited = 0.0 if not lag else None if oldest is None else max(0, now_ms - oldest) / 1000
        yield topic.full_name, group, partition, state.committed, groups.claimed(state), end, lag, waited


def topic_claims(engine: Engine) -> Rows:
    """What groups were given and are not done with: in a consumer's hands, or come back and waiting."""
    for topic, (group, partition, state, _) in _groups(engine):
        for part in state.fragments:
            status = part.status
            if isinstance(status, Acked):
                continue
            held = isinstance(status, Claim)
            yield (
                topic.full_name, group, partition, part.start, part.end, part.end - part.start,
                "claimed" if held else "returned", status.consumer, getattr(status, "deadline_ms", None),
                status.deliveries, getattr(status, "reason", None),
            )  # fmt: skip


def topic_redriven(engine: Engine) -> Rows:
    """Dead letters that were sent back: runs of offsets of the topics that hold them."""
    for topic in engine.catalog.topics.values():
        for group, partition, state, _ in group_places(engine.snapshot, topic.topic_id):
            if group != REDRIVE_GROUP:
                continue
            if state.committed > 0:
                yield topic.full_name, partition, 0, state.committed
            for part in state.fragments:
                if isinstance(part.status, Acked):
                    yield topic.full_name, partition, part.start, part.end


def _groups(engine: Engine) -> Iterator[tuple[Topic, GroupPlace]]:
    snapshot = engine.snapshot
    for topic in engine.catalog.topics.values():
        for place in whole_groups(snapshot, topic, lambda *at: engine.log_range(*at)[0]):
            yield topic, place


# --- work -------------------------------------------------------------------------------------------------------


def jobs(engine: Engine) -> Rows:
    for j in job_records(engine.store, engine.jobs.names):
        yield j.name, j.status, j.started_ms or None, j.finished_ms, j.runs, j.removed, j.bytes_freed, j.error


def loads(engine: Engine) -> Rows:
    for o in engine.loads.open():
        yield (
            o.load_id, o.table, o.writer_id, o.batch_id, o.kind, o.mode, o.state, o.parts, o.bytes, o.user_id,
            o.created_ms, o.active_ms,
        )  # fmt: skip


def pipelines(engine: Engine) -> Rows:
    """Those of the catalog, and those that a runner has in a file and reports."""
    reports = engine.pipeline_reports
    reported, defined = reports.all(), engine.catalog.pipelines
    for name in sorted({*defined, *reported}):
        pipeline, said = defined.get(name), reported.get(name)
        fresh = said is not None and reports.is_fresh(said)
        report = said.report if said is not None else None
        if pipeline is None and not (report is not None and report.of_file and fresh):
            continue
        state = report.state if report is not None and fresh else "stopped" if _is_stopped(pipeline) else NOT_ATTACHED
        positions = {} if report is None else report.positions
        yield (
            name, pipeline.target if pipeline else report and report.target, pipeline and pipeline.query,
            "stopped" if _is_stopped(pipeline) else "running", state,
            *(getattr(report, field, None) if fresh else None for field in _RATES),
            *(getattr(report, field, None) for field in ("rows_in", "rows_out", "rejected")),
            _lag(engine, positions),
            *(getattr(report, field, None) for field in ("batch_id", "last_error", "last_batch_ms", "restarts")),
            report.runner if report is not None and fresh else None,
            None if pipeline is None else msgspec.json.encode(pipeline).decode(),
            ", ".join(positions if pipeline is None else (given.name for given in pipeline.inputs)),
            None if report is None else report.skipped,
        )  # fmt: skip


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


def live_queries(engine: Engine) -> Rows:
    """Those that are told what changes, equal ones as one."""
    for stats in list(engine.live_stats):
        for group in stats().groups:
            yield (
                group.channel, group.table, group.text, group.owner, group.subscribers, group.told,
                group.evaluation_seconds, group.sampled_seconds,
            )  # fmt: skip


# --- replication ------------------------------------------------------------------------------------------------


def replication(engine: Engine) -> Rows:
    """This node, if it is one."""
    now = engine.replication.status()
    if now.node_id is not None:
        yield (
            now.node_id, now.broker, now.online, now.sequence, now.pending, now.given_up, now.last_flush_ms,
            now.last_error, now.last_error_ms, now.published, now.publish_errors, now.applied, now.beaten, now.seen,
            now.quarantined, now.ahead, ", ".join(now.peers), now.rounds, now.differing, now.pulled, now.pushed,
            now.last_compared_ms, now.set_aside,
        )  # fmt: skip


def replication_quarantine(engine: Engine) -> Rows:
    """Events that were set aside, the oldest first."""
    for name, aside in sorted(quarantined_by_id(engine.store).items(), key=lambda pair: pair[1].time_ms):
        yield (
            name, aside.time_ms, aside.outgoing, aside.key, aside.node_id, aside.seq, aside.bytes,
            aside.reason,
        )  # fmt: skip


# --- the process, its people ------------------------------------------------------------------------------------


def cluster(engine: Engine) -> Rows:
    """The processes of this database: there is one, which writes."""
    identity, process = engine.replication.identity(), engine.process
    state = "draining" if process.is_draining() else "writes stopped" if engine.writes_stopped else "running"
    node = None if identity is None else identity.node_id
    yield node or process.host, node, "writer", state, installed_version(), process.address, process.started_ms


def metrics(engine: Engine) -> Rows:
    """What the server counts; in a process without one nobody does."""
    for name, labels, kind, value in engine.process.metrics():
        yield name, msgspec.json.encode(labels, order="sorted").decode(), kind, value


def settings(engine: Engine) -> Rows:
    yield "durability", engine.durability.name
    yield "commit_number", str(engine.seq)
    yield "store_bytes", str(engine.store.size_bytes())
    yield "deduplicated_since_open", str(engine.deduplicated)
    yield "write_queue_depth", str(engine.queue_depth)
    yield from engine.process.settings


def users(engine: Engine) -> Rows:
    yield from sorted(
        (user.name, user.role.name.lower(), user.created_ms, user.changed_ms, user.password is not None)
        for user in engine.catalog.users.values()
    )


def audit_log(engine: Engine, part: KeyRange = WHOLE) -> Rows:
    """There may be very many, so a page of them is read without the others; of a commit all are."""
    first, last = _commits(part, engine.seq)
    for seq, number, e in audit_entries(engine.store, last, first, reverse=part.reverse):
        role = None if e.role is None else e.role.name.lower()
        yield e.time_ms, seq, number, e.user, role, e.action, e.target, e.outcome, e.detail, e.request_id


def _commits(part: KeyRange, newest: int) -> tuple[int, int]:
    """The first and the last that a range of (seq, number) touches; the last is less than the first if none is."""
    if part.prefix:
        first = last = part.prefix[0]
    else:
        first = 0 if part.lower is None else part.lower[0] + (not part.lower[1])
        last = newest if part.upper is None else part.upper[0] - (not part.upper[1])
    return min(max(first, 0), newest + 1), min(max(last, -1), newest)
