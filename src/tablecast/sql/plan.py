"""From a statement to something that runs: the one table of what each statement does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tablecast.codec.result import Result
from tablecast.core.rights import require
from tablecast.engine.audit import Audit, Audited
from tablecast.engine.groups import Moved, Redrive, ResetGroup, SentBack, Settle
from tablecast.errors import InvalidRequest, TransactionState
from tablecast.model.schema import ColumnType, Role, TypeName
from tablecast.model.topic import Topic
from tablecast.sql import statements as s
from tablecast.sql.audited import entry_of
from tablecast.sql.context import Context, find_topic
from tablecast.sql.messages import messages_result
from tablecast.sql.plan_change import plan_delete, plan_update
from tablecast.sql.plan_copy import run_on_spark
from tablecast.sql.plan_ddl import DEFINITIONS
from tablecast.sql.plan_insert import plan_insert
from tablecast.sql.plan_pipeline import PIPELINES
from tablecast.sql.plan_select import SelectPlan
from tablecast.sql.plan_topic import DEFAULT_LIMIT, ConsumeRequest, consume, settle
from tablecast.sql.plan_user import USERS


class Plan(Protocol):
    def run(self, context: Context, params: Sequence[Any]) -> Result: ...


class _Call:
    """A statement that is carried out by one function; nothing of it can be prepared."""

    def __init__(self, statement: s.Statement, call: Callable[[Any, Context], Result]) -> None:
        self._statement = statement
        self._call = call

    def run(self, context: Context, params: Sequence[Any]) -> Result:
        return self._call(self._statement, context)


def plan(statement: s.Statement, context: Context) -> Plan:
    if isinstance(statement, s.Insert):
        return plan_insert(statement, context)
    if isinstance(statement, s.Update):
        return plan_update(statement, context)
    if isinstance(statement, s.Delete):
        return plan_delete(statement, context)
    if isinstance(statement, s.Select):
        return SelectPlan(statement, context)
    return _Call(statement, _CALLS[type(statement)])


# --- topics ----------------------------------------------------------------------------------------------------


def _outside(context: Context, what: str) -> None:
    if context.transaction is not None:
        raise TransactionState(f"{what} is not possible inside a transaction: COMMIT or ROLLBACK first")


def _topic(context: Context, name: s.TableName, what: str, needed: Role = Role.SERVICE) -> Topic:
    _outside(context, what)
    topic = find_topic(context.catalog, name, context.namespace)
    require(context.actor, needed, f"{what} {topic.full_name}")
    return topic


def _consume(statement: s.Consume, context: Context) -> Result:
    topic = _topic(context, statement.topic, "CONSUME FROM")
    limit = DEFAULT_LIMIT if statement.limit is None else statement.limit
    request = ConsumeRequest(statement.group, statement.start, statement.partition, limit)
    return messages_result(consume(context.engine, topic, request).messages)


def _partition(topic: Topic, partition: int | None) -> int:
    if partition is None and topic.partitions > 1:
        raise InvalidRequest(f"{topic.full_name} has {topic.partitions} partitions: say which with PARTITION p")
    return partition or 0


def _ack(statement: s.Ack, context: Context) -> Result:
    topic = _topic(context, statement.topic, "ACK")
    partition = _partition(topic, statement.partition)
    command = Settle(topic.topic_id, statement.group, partition, statement.upto, list(statement.offsets))
    return _moved("ACK", settle(context.engine, command))


def _nack(statement: s.Nack, context: Context) -> Result:
    topic = _topic(context, statement.topic, "NACK")
    partition = _partition(topic, statement.partition)
    offsets = list(statement.offsets)
    return _moved(
        "NACK", settle(context.engine, Settle(topic.topic_id, statement.group, partition, None, offsets, True))
    )


def _moved(verb: str, acknowledged: int | None) -> Result:
    upto = "nothing is acknowledged yet" if acknowledged is None else f"acknowledged up to {acknowledged}"
    return Result.of_write(0, f"{verb}: {upto}", None)


def _redrive(statement: s.Redrive, context: Context) -> Result:
    topic = _topic(context, statement.topic, "REDRIVE TOPIC", Role.DBA)
    command = Redrive(topic.topic_id, statement.offset, statement.partition)
    sent: Counter[SentBack] = context.run(Audited(command, entry_of(statement, context)))
    context.engine.feed.wake(list(context.catalog.topics))
    rows = [(*place, count) for place, count in sent.items()]
    return _counted(f"REDRIVE {sent.total()}", sent.total(), _SENT_BACK, rows)


def _reset(statement: s.ResetGroup, context: Context) -> Result:
    topic = _topic(context, statement.topic, "RESET GROUP", Role.DBA)
    command = ResetGroup(topic.topic_id, statement.group, statement.partition, statement.to)
    moved: list[Moved] = context.run(Audited(command, entry_of(statement, context)))
    context.engine.feed.wake([topic.topic_id])
    return _counted(f"RESET GROUP {len(moved)}", len(moved), _MOVED, moved)


_SENT_BACK = {
    "topic": TypeName.TEXT,
    "group_id": TypeName.TEXT,
    "partition_id": TypeName.INT,
    "messages": TypeName.BIGINT,
}
_MOVED = {"partition_id": TypeName.INT, "offset": TypeName.BIGINT, "lag": TypeName.BIGINT}


def _counted(message: str, count: int, columns: Mapping[str, TypeName], rows: Sequence[tuple[Any, ...]]) -> Result:
    types = tuple(ColumnType(name) for name in columns.values())
    return Result.of_rows(tuple(columns), types, rows, message=message, row_count=count)


# --- jobs ------------------------------------------------------------------------------------------------------


def _cancel_job(statement: s.CancelJob, context: Context) -> Result:
    _outside(context, "CANCEL JOB")
    require(context.actor, Role.DBA, "CANCEL JOB")
    running = context.engine.jobs.cancel(statement.name)
    context.run(Audit(entry_of(statement, context)))
    return Result.of_write(int(running), "CANCEL JOB" if running else "CANCEL JOB: it is not running", None)


_CALLS: dict[type[s.Statement], Callable[[Any, Context], Result]] = {
    **DEFINITIONS,
    **USERS,
    **PIPELINES,
    s.Consume: _consume,
    s.Ack: _ack,
    s.Nack: _nack,
    s.Redrive: _redrive,
    s.ResetGroup: _reset,
    s.CancelJob: _cancel_job,
    s.RunOnSpark: run_on_spark,
}
