"""COPY, AUDIT and backfills on Spark reach a database only to be looked up: names become full names (as text), and the answer is
`runs_on_spark` with the job in it. Whoever has Spark runs that; a server never touches files that a statement names.
"""

from __future__ import annotations

import msgspec

from tablecast.codec.result import Result
from tablecast.core.rights import require
from tablecast.engine.ddl import AddSource
from tablecast.engine.load_backfill import backfill_routes
from tablecast.errors import RunsOnSpark, TransactionState
from tablecast.model.change import Op
from tablecast.model.names import read_name, spelled
from tablecast.model.schema import Role
from tablecast.model.spark_job import AuditTopic, Backfill, CopyFrom, CopyTopic, SparkJob, job_fields
from tablecast.model.topic import PayloadMode, Route
from tablecast.sql import statements as s
from tablecast.sql.context import Context, find_table, find_topic, refuse_system

_WORDS = {
    CopyFrom: "COPY … FROM",
    CopyTopic: "COPY TOPIC",
    AuditTopic: "AUDIT TOPIC",
    Backfill: "ADD SOURCE … backfill = 'spark'",
}


def run_on_spark(statement: s.RunOnSpark, context: Context) -> Result:
    what = _WORDS[type(statement.job)]
    if context.transaction is not None:
        raise TransactionState(f"{what} is not possible inside a transaction: COMMIT or ROLLBACK first")
    require(context.actor, Role.DBA if isinstance(statement.job, Backfill) else Role.SERVICE, what)
    job = _with_full_names(statement.job, context)
    why = "" if isinstance(job, Backfill) else ", where its files are"
    raise RunsOnSpark(
        f"{what} runs on Spark{why}, not in the database: use `tablecast copy` or `tablecast sql` with the address of a "
        "server, or execute() of a client that is connected to one",
        job=job_fields(job),
    )


def _with_full_names(job: SparkJob, context: Context) -> SparkJob:
    if isinstance(job, Backfill):
        return _planned(job, context)
    if isinstance(job, CopyFrom):
        table = find_table(context.catalog, read_name(job.table), context.namespace).schema
        return msgspec.structs.replace(job, table=spelled(table.full_name))
    topic = find_topic(context.catalog, read_name(job.topic), context.namespace)
    if isinstance(job, CopyTopic) and job.source_table is not None:
        source = find_table(context.catalog, read_name(job.source_table), context.namespace).schema
        return msgspec.structs.replace(job, topic=spelled(topic.full_name), source_table=spelled(source.full_name))
    return msgspec.structs.replace(job, topic=spelled(topic.full_name))


def _planned(job: Backfill, context: Context) -> Backfill:
    """What ADD SOURCE would refuse is refused before anybody starts Spark."""
    refuse_system(read_name(job.table), "ADD SOURCE")
    topic = find_topic(context.catalog, read_name(job.topic), context.namespace).full_name
    table = find_table(context.catalog, read_name(job.table), context.namespace).schema.full_name
    ops = tuple(Op[op.upper()] for op in job.ops)
    route = Route(0, ops, job.filter, job.partition_by, PayloadMode(job.payload))
    backfill_routes(context.catalog, AddSource(topic, table, route, backfill=True))
    return msgspec.structs.replace(job, topic=spelled(topic), table=spelled(table))
