"""A session: one actor's conversation with the database, one transaction at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tablecast.client.live_sync import LiveChanges, LiveTable
from tablecast.client.message_tables import gone
from tablecast.codec.given import check_arguments, check_optional, given_offsets, given_params, given_rows, given_text
from tablecast.codec.message_rows import with_rows
from tablecast.codec.packed_rows import PackedRows
from tablecast.codec.result import Result
from tablecast.codec.results import decode_results, encode_results
from tablecast.core.live_query import LiveQuery
from tablecast.core.rights import require
from tablecast.engine.audit import Audit, Outcome, append, audit_entry
from tablecast.engine.catalog import DEFAULT_NAMESPACE, Catalog
from tablecast.engine.decision import StalePlan
from tablecast.engine.engine import DEFAULT_VISIBILITY_MS, Engine
from tablecast.engine.groups import LetGo, Settle
from tablecast.engine.idempotency import Known, Once, Recall, may_be_known
from tablecast.engine.once_each import FINGERPRINT_BYTES, OnceEach
from tablecast.engine.rows import CommitTransaction, Written
from tablecast.engine.transaction import Transaction
from tablecast.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    TablecastError,
    TooLarge,
    TransactionState,
)
from tablecast.model.message import Consumed
from tablecast.model.names import full_name, full_name_of, read_name, read_part
from tablecast.model.position import StartLike, start_of
from tablecast.model.schema import SYSTEM_ACTOR, Actor, ColumnType, Role, TableSchema
from tablecast.model.topic import Topic
from tablecast.sql import statements as s
from tablecast.sql.audited import entry_of
from tablecast.sql.bulk import plan_rows
from tablecast.sql.context import Context, Submitted, Write, find_topic
from tablecast.sql.keyed import only_reads, without_control
from tablecast.sql.live import ThreadedLiveQueries
from tablecast.sql.parameters import check_count
from tablecast.sql.parse import parse
from tablecast.sql.plan import Plan, plan
from tablecast.sql.plan_insert import InsertPlan, write_result
from tablecast.sql.plan_live import plan_live
from tablecast.sql.plan_topic import (
    DEFAULT_LIMIT,
    ConsumeRequest,
    consume,
    done_with,
    read_arrow,
    settle,
    stream_arrow,
    wait_seconds,
)
from tablecast.sql.query import QueryEngine

PLANS_KEPT = 1024  # prepared statements per session; the oldest go first
STALE_ATTEMPTS = 10
READS = (
    s.Select | s.ShowNamespaces | s.ShowTables | s.ShowTopics | s.Describe | s.DescribeTopic
    | s.ShowPipelines | s.DescribePipeline
)  # fmt: skip


class Prepared(NamedTuple):
    """A statement of its own text, planned for one version of the catalog."""

    catalog: Catalog
    statement: s.Statement
    parameters: int
    plan: Plan


class Session:
    """The surface that users meet. Not for several threads at once inside one transaction."""

    def __init__(
        self,
        engine: Engine,
        queries: QueryEngine,
        actor: Actor = SYSTEM_ACTOR,
        namespace: str = DEFAULT_NAMESPACE,
        live: ThreadedLiveQueries | None = None,
    ) -> None:
        self._engine = engine
        self._queries = queries
        self._live = live or ThreadedLiveQueries(engine)
        self.actor = actor
        self.namespace = namespace = read_part(namespace)
        self._transaction: Transaction | None = None
        self._plans: dict[str, Prepared] = {}
        self._planning = threading.Lock()
        self._autocommit = Context(engine, queries, actor, namespace)

    # --- SQL ---

    def execute(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> Result:
        """Runs one or several statements and returns the last one's result."""
        sql, params = given_text(sql, "SQL"), given_params(params)
        prepared = self._plans.get(sql)
        if (
            prepared is not None
            and prepared.catalog is self._engine.catalog
            and prepared.parameters == len(params)
            and idempotency_key is None
            and self._transaction is None
        ):
            # What a program sends again and again: nothing is left to do but bind and run.
            try:
                return prepared.plan.run(self._autocommit, params)
            except MemoryError:
                raise TooLarge("the statement needs more memory than there is: do it in parts") from None
            except StalePlan:
                pass
            except PermissionDenied as error:
                raise self._denied(error, prepared.statement) from None
        return self.execute_all(sql, params, idempotency_key=idempotency_key)[-1]

    def query(self, sql: str, params: Sequence[Any] = ()) -> Result:
        """Runs a SELECT, SHOW or DESCRIBE. The result has rows, `.arrow()`, `.pandas()` and `.polars()`."""
        if not all(isinstance(statement, READS) for statement in parse(given_text(sql, "SQL"))):
            raise InvalidRequest("query() takes a SELECT; use execute() for anything else")
        return self.execute_all(sql, params)[-1]

    def execute_all(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> list[Result]:
        """Every statement's result. With an idempotency key they are one transaction, committed once.

        A repeat of several statements, or of an UPDATE or DELETE, answers each of them with that commit.
        """
        self._engine.check_open()
        sql, params = given_text(sql, "SQL"), given_params(params)
        if idempotency_key is not None:
            return self._execute_once(sql, params, idempotency_key)
        return self._execute_planned(sql, params)

    def _execute_planned(self, sql: str, params: Sequence[Any]) -> list[Result]:
        planned = self._planned(sql)
        if len(planned) == 1:
            statement, prepared = planned[0]
            check_count(params, statement.parameters)
            return [self._run(statement, prepared, params)]
        return self._run_each(planned, params)

    def _run_each(
        self, planned: Sequence[tuple[s.Statement, Plan | None]], params: Sequence[Any], first: int = 1
    ) -> list[Result]:
        check_count(params, sum(statement.parameters for statement, _ in planned))
        results, at = [], 0
        for number, (statement, prepared) in enumerate(planned, first):
            try:
                results.append(self._run(statement, prepared, params[at : at + statement.parameters]))
            except TablecastError as error:
                if len(planned) > 1:
                    error.details["statement"] = number  # those before it have happened
                raise
            at += statement.parameters
        return results

    def _planned(self, sql: str) -> list[tuple[s.Statement, Plan | None]]:
        """Statements with their plans; a plan holds for one version of the catalog."""
        context = self._context()
        prepared = self._plans.get(sql)
        if prepared is not None and prepared.catalog is context.catalog:
            return [(prepared.statement, prepared.plan)]
        parsed = parse(sql)
        if len(parsed) > 1 or not isinstance(parsed[0], s.Insert | s.Update | s.Delete | s.Select):
            # Statements behind one that defines something can only be planned when that has run.
            return [(statement, None) for statement in parsed]
        made = plan(parsed[0], context)
        with self._planning:
            self._plans[sql] = Prepared(context.catalog, parsed[0], parsed[0].parameters, made)
            if len(self._plans) > PLANS_KEPT:
                del self._plans[next(iter(self._plans))]
        return [(parsed[0], made)]

    def _run(self, statement: s.Statement, prepared: Plan | None, params: Sequence[Any]) -> Result:
        if isinstance(statement, s.Begin | s.Commit | s.Rollback):
            return self._control(statement)
        if isinstance(statement, s.ExecuteAs):
            return self._execute_as(statement, params)
        return self._run_planned(statement, prepared, self._context(), params)

    def _run_planned(
        self, statement: s.Statement, prepared: Plan | None, context: Context, params: Sequence[Any]
    ) -> Result:
        """Planned again, this statement alone, if its table was altered before it was decided."""
        for attempt in range(1, STALE_ATTEMPTS + 1):
            try:
                return (prepared or plan(statement, context)).run(context, params)
            except MemoryError:
                raise TooLarge("the statement needs more memory than there is: do it in parts") from None
            except StalePlan:
                prepared = None
                if attempt == STALE_ATTEMPTS:
                    raise
            except PermissionDenied as error:
                raise self._denied(error, statement) from None
        raise AssertionError("unreachable")

    def _denied(self, error: PermissionDenied, statement: s.Statement) -> PermissionDenied:
        """The same error, after the attempt is on its way to the audit log."""
        append(self._engine, entry_of(statement, self._context(), Outcome.DENIED, error.message))
        return error

    def _noted(self, error: PermissionDenied, action: str, target: str) -> PermissionDenied:
        """Likewise for what is not SQL."""
        append(self._engine, audit_entry(self.actor, action, target, Outcome.DENIED, error.message))
        return error

    def _context(self, once: tuple[str, bytes] | None = None) -> Context:
        return Context(self._engine, self._queries, self.actor, self.namespace, self._transaction, once)

    def _execute_as(self, statement: s.ExecuteAs, params: Sequence[Any]) -> Result:
        try:
            require(self.actor, Role.SERVICE, "EXECUTE AS USER")
        except PermissionDenied as error:
            raise self._denied(error, statement) from None
        # Ahead of the statements in the writer's queue: nothing of them is ever durable without it.
        self._engine.submit(Audit(entry_of(statement, self._context())))
        other = Session(self._engine, self._queries, Actor(statement.user, Role.USER), self.namespace)
        other._transaction = self._transaction
        results, at = [], 0
        for inner in statement.statements:
            if isinstance(inner, s.Begin | s.Commit | s.Rollback):
                raise TransactionState("EXECUTE AS USER holds statements, not transaction control")
            results.append(other._run(inner, None, params[at : at + inner.parameters]))
            at += inner.parameters
        return results[-1]

    # --- writes of callers that wait without a thread ---

    def _prepared_insert(self, sql: str) -> tuple[Prepared, InsertPlan] | None:
        """An INSERT that is planned already and reads nothing."""
        prepared = self._plans.get(sql)
        if (
            prepared is None
            or prepared.catalog is not self._engine.catalog
            or self._transaction is not None
            or not isinstance(prepared.plan, InsertPlan)
            or prepared.plan.reads
        ):
            return None
        return prepared, prepared.plan

    def _submitted_each(
        self, sql: str, params_of_each: Sequence[Sequence[Any]], idempotency_keys: Sequence[str]
    ) -> OnceEach | None:
        """The command of many requests with the same INSERT of one row; None if any of them takes a look of its own."""
        found = self._prepared_insert(sql)
        if found is None or not found[1].is_plain:
            return None
        asked = self._asked_for(sql)
        try:
            insert = found[1].write_each(self._autocommit, params_of_each)
            fingerprints = [_fingerprint(asked, params) for params in params_of_each]
        except (TablecastError, ValueError):
            return None  # one of them is wrong: which one, and how, is found one by one
        return OnceEach(self.actor.user_id, idempotency_keys, fingerprints, insert)

    def _submitted(self, sql: str, params: Sequence[Any], idempotency_key: str | None = None) -> Submitted | None:
        """The command of a single INSERT that is planned already, reads nothing and is no repeat; else None."""
        found = self._prepared_insert(given_text(sql, "SQL"))
        params = given_params(params)
        if found is None or found[0].parameters != len(params):
            return None
        prepared, insert = found
        context = self._autocommit
        if idempotency_key is not None:
            if may_be_known(self._engine.store, self.actor.user_id, idempotency_key):
                return None
            context = self._context((idempotency_key, self._fingerprint(sql, params)))
        try:
            return insert.write(context, params).submitted(context)
        except PermissionDenied as error:
            raise self._denied(error, prepared.statement) from None

    def _submitted_rows(
        self, table: str, rows: Any, columns: Sequence[str] | None, mode: str, idempotency_key: str | None
    ) -> Submitted | None:
        """The command of `insert`; None in a transaction, and for what may be a repeat. `rows` are as `given_rows` has them."""
        if self._transaction is not None:
            return None
        if idempotency_key is not None and may_be_known(self._engine.store, self.actor.user_id, idempotency_key):
            return None
        context = self._context(self._once_rows(table, rows, columns, mode, idempotency_key))
        return self._plan_rows(context, table, rows, columns, mode).submitted(context)

    def _plan_rows(self, context: Context, table: str, rows: Any, columns: Sequence[str] | None, mode: str) -> Write:
        try:
            return plan_rows(context, table, rows, columns, mode)
        except PermissionDenied as error:
            raise self._noted(error, mode.upper(), full_name_of(table, self.namespace)) from None

    def _once_rows(
        self, table: str, rows: Any, columns: Sequence[str] | None, mode: str, key: str | None
    ) -> tuple[str, bytes] | None:
        if key is None:
            return None
        name = full_name_of(table, self.namespace)
        return key, self._fingerprint(f"{mode} {name}", [_plain(rows), columns])

    def _fingerprint(self, text: str, params: Any) -> bytes:
        """What a request asks for: the same key with another fingerprint is a mistake."""
        return _fingerprint(self._asked_for(text), params)

    def _asked_for(self, text: str) -> blake2b:
        return blake2b(f"{self.actor.user_id}\x00{text}\x00".encode(), digest_size=FINGERPRINT_BYTES)

    # --- transactions ---

    def _control(self, statement: s.Statement) -> Result:
        if isinstance(statement, s.Begin):
            self.begin()
            return Result.of_write(0, "BEGIN", None)
        if isinstance(statement, s.Commit):
            return self.commit()
        self.rollback()
        return Result.of_write(0, "ROLLBACK", None)

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    def begin(self) -> None:
        if self._transaction is not None:
            raise TransactionState("there is a transaction already: COMMIT or ROLLBACK it first")
        engine = self._engine
        self._transaction = Transaction(engine.snapshot, engine.catalog, engine.seq, engine.now_ms())

    def commit(self) -> Result:
        """On a conflict the transaction is over and nothing of it happened."""
        command = self._end("COMMIT").commit_command()
        if command is None:
            return Result.of_write(0, "COMMIT", None)
        return _commit_result(self._engine.execute(command))

    def _commit_once(self, name: str) -> Result:
        """As `commit`, remembered for a day under the transaction's name."""
        transaction = self._end("COMMIT")
        command = transaction.commit_command() or CommitTransaction([], {})
        try:
            return _commit_result(self._engine.execute(Once(self.actor.user_id, name, self._named(name), command)))
        except Overloaded:
            self._transaction = transaction  # nothing has happened: it can be tried again
            raise

    def _committed_once(self, name: str) -> Result | None:
        """What `_commit_once` answered, if it committed."""
        known = self._known(name, self._named(name))
        return None if known is None else _commit_result(known.written)

    def _named(self, name: str) -> bytes:
        return self._fingerprint("COMMIT", [name])

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, verb: str) -> Transaction:
        if self._transaction is None:
            raise TransactionState(f"{verb} without BEGIN: there is no transaction")
        transaction, self._transaction = self._transaction, None
        return transaction

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction of its own session: committed at the end of the block, rolled back by an exception."""
        own = self.twin()
        own.begin()
        yield own
        if own._transaction is not None:
            own.commit()

    def _use_namespace(self, namespace: str) -> None:
        """Where names without a namespace are looked up from now on."""
        namespace = read_part(namespace)
        if namespace != self.namespace:
            self.namespace = namespace
            self._plans.clear()
            self._autocommit = Context(self._engine, self._queries, self.actor, namespace)

    def twin(self) -> Session:
        """Another session of the same actor: with a transaction of its own."""
        return Session(self._engine, self._queries, self.actor, self.namespace, self._live)

    def _execute_once(self, sql: str, params: Sequence[Any], key: str) -> list[Result]:
        if self._transaction is not None:
            raise TransactionState("an idempotency key goes with a whole transaction, not a statement inside of one")
        fingerprint = self._fingerprint(sql, params)
        parsed = parse(sql)
        statements = without_control(parsed)
        check_count(params, sum(statement.parameters for statement in statements))
        if len(parsed) == 1 and isinstance(parsed[0], s.Insert):
            return [self._insert_once(sql, parsed[0], params, key, fingerprint)]
        own = self.twin()
        own.begin()
        begun = len(statements) < len(parsed)
        known = self._known(key, fingerprint)  # else its statements would meet what they did themselves
        if known is not None:
            return _committed(known.written, begun)
        results = own._run_each([(statement, None) for statement in statements], params, 2 if begun else 1)
        # Also what changed nothing is remembered: its repeat must not change what came later.
        command = own._end("COMMIT").commit_command() or CommitTransaction([], {})
        if begun:
            results = [Result.of_write(0, "BEGIN", None), *results, Result.of_write(command.count, "COMMIT", None)]
        if all(only_reads(statement) for statement in statements):
            return results
        written: Written = self._engine.execute(
            Once(self.actor.user_id, key, fingerprint, command, answer=encode_results(results))
        )
        return _committed(written, begun)

    def _insert_once(
        self, sql: str, statement: s.Insert, params: Sequence[Any], key: str, fingerprint: bytes
    ) -> Result:
        known = self._known(key, fingerprint)
        if known is not None and not self._can_show(known, statement):
            return write_result("INSERT", known.written, None)
        [(_, prepared)] = self._planned(sql)
        return self._run_planned(statement, prepared, self._context((key, fingerprint)), params)

    def _known(self, key: str, fingerprint: bytes) -> Known | None:
        """What a request was answered before. Asked before it is planned: its table may be gone by now, or another."""
        if not may_be_known(self._engine.store, self.actor.user_id, key):
            return None
        known: Known | None = self._engine.execute(Recall(self.actor.user_id, key, fingerprint))
        return known

    def _can_show(self, known: Known, statement: s.Insert) -> bool:
        """Whether there are rows to show, and the table that they are of."""
        catalog, name = self._engine.catalog, full_name(statement.table, self.namespace)
        return statement.returning is not None and catalog.table_ids.get(name) == known.table_id

    # --- rows ---

    def insert(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]] | pa.Table | pa.RecordBatch,
        *,
        columns: Sequence[str] | None = None,
        mode: str = "insert",
        idempotency_key: str | None = None,
    ) -> Result:
        """Writes many rows as one statement. `mode`: insert, upsert, or delete (by primary key).

        Rows are mappings, sequences (of `columns`, or of all columns in order), or Arrow.
        """
        self._engine.check_open()
        rows = rows if isinstance(rows, PackedRows) else given_rows(rows)
        if idempotency_key is not None and self._transaction is not None:
            raise TransactionState("an idempotency key goes with a whole transaction, not a statement inside of one")
        once = self._once_rows(table, rows, columns, mode, idempotency_key)
        known = None if once is None else self._known(*once)
        if known is not None:
            return write_result(mode.upper(), known.written, None)
        for attempt in range(STALE_ATTEMPTS):
            try:
                context = self._context(once)
                return self._plan_rows(context, table, rows, columns, mode).run(context)
            except StalePlan:
                if attempt == STALE_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    # --- live queries ---

    def live(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> LiveChanges:
        """The rows of a SELECT, and from then on every change of them, as it is committed: iterate over it."""
        return self._live.changes(self._live_plan(sql, params, namespace))

    def live_table(self, sql: str, params: Sequence[Any] = (), *, namespace: str | None = None) -> LiveTable:
        """The rows of a SELECT, kept as they are now."""
        return self._live.table(self._live_plan(sql, params, namespace))

    def _live_plan(self, sql: str, params: Sequence[Any], namespace: str | None) -> Callable[[], LiveQuery]:
        def planned() -> LiveQuery:
            try:
                text, values = given_text(sql, "SQL"), given_params(params)
                return plan_live(self._engine.catalog, self.actor, text, values, namespace or self.namespace)
            except PermissionDenied as error:
                raise self._noted(error, "SUBSCRIBE", "") from None

        return planned

    # --- topics ---

    def topic(self, name: str) -> Topic:
        """A topic by name, `namespace.name`, or alias."""
        return find_topic(self._engine.catalog, read_name(name), self.namespace)

    def _may_consume(self, topic: str) -> None:
        try:
            require(self.actor, Role.SERVICE, f"consuming {topic}")
        except PermissionDenied as error:
            raise self._noted(error, "CONSUME", topic) from None

    def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        start: StartLike = None,
        partition: int | None = None,
        limit: int = DEFAULT_LIMIT,
        timeout_seconds: float | None = 0.0,
        consumer: str | None = None,
        visibility_seconds: float = DEFAULT_VISIBILITY_MS / 1000,
        auto_offset_reset: bool = False,
        ack: Consumed | None = None,
    ) -> Consumed:
        """Reads messages; as a group it claims them until they are acknowledged.

        Waits up to `timeout_seconds` for the first one, and wakes on the commit that brings it: 30 if it is None, and 300
        at most, however much is asked for. `ack` is what was consumed before and is done: it is acknowledged first, in the
        same commit.
        """
        self._engine.check_open()
        self._may_consume(topic)
        request = ConsumeRequest(
            group, start_of(start), partition, limit, wait_seconds(timeout_seconds), consumer, visibility_seconds, auto_offset_reset,
            done=done_with(ack),
        )  # fmt: skip
        return with_rows(consume(self._engine, self.topic(topic), request), self._types_of)

    def _types_of(self, table: str) -> Mapping[str, ColumnType]:
        """For `Message.row`."""
        try:
            return column_types(self._engine.catalog.table(table).schema)
        except NotFound:
            raise gone(table) from None

    def read_arrow(self, topic: str, *, start: StartLike = None, partition: int | None = None) -> pa.Table:
        """A whole topic, or a partition, from `start` (default: the earliest) to its end, as Arrow."""
        self._engine.check_open()
        self._may_consume(topic)
        return read_arrow(self._engine, self.topic(topic), ConsumeRequest(start=start_of(start), partition=partition))

    def stream_arrow(
        self, topic: str, *, start: StartLike = None, partition: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same as record batches, one after the other, for topics larger than memory."""
        self._engine.check_open()
        self._may_consume(topic)
        return stream_arrow(self._engine, self.topic(topic), ConsumeRequest(start=start_of(start), partition=partition))

    def ack(
        self,
        topic: str,
        group: str,
        upto_offset: int | None = None,
        *,
        partition: int = 0,
        offsets: Sequence[int] = (),
        consumer: str | None = None,
    ) -> int | None:
        """Acknowledges up to an offset, or single offsets. Returns the acknowledged offset, None if that is
        nothing yet."""
        return settle(self._engine, self._settle_command(topic, group, partition, upto_offset, offsets, consumer))

    def nack(
        self,
        topic: str,
        group: str,
        offsets: Sequence[int],
        *,
        partition: int = 0,
        reason: str = "nack",
        consumer: str | None = None,
    ) -> int | None:
        """Gives messages back: they are delivered again, or become dead letters."""
        return settle(self._engine, self._settle_command(topic, group, partition, None, offsets, consumer, reason))

    def _settle_command(
        self,
        topic: str,
        group: str,
        partition: int,
        upto: int | None,
        offsets: Sequence[int],
        consumer: str | None,
        nack_reason: str | None = None,
    ) -> Settle:
        self._engine.check_open()
        check_arguments(topic=topic, group=group, partition=partition, reason=nack_reason or "")
        check_optional(upto_offset=upto, consumer=consumer)
        offsets = given_offsets(offsets)
        self._may_consume(topic)
        if (upto is None) == (not offsets):
            raise InvalidRequest("give either upto_offset or offsets")
        found = self.topic(topic)
        return Settle(
            found.topic_id, group, partition, upto, list(offsets), nack_reason is not None, nack_reason or "", consumer
        )

    def extend(self, topic: str, group: str, consumer: str, visibility_seconds: float) -> int:
        """Renews a consumer's claims. Returns how many messages it still holds."""
        self._engine.check_open()
        check_arguments(topic=topic, group=group, consumer=consumer, visibility_seconds=visibility_seconds)
        self._may_consume(topic)
        held: int = self._engine.execute(
            LetGo(self.topic(topic).topic_id, group, consumer, visibility_ms=round(visibility_seconds * 1000))
        )
        return held

    def release(self, topic: str, group: str, consumer: str) -> int:
        """Gives a consumer's unacknowledged messages back at once. Returns how many."""
        self._engine.check_open()
        check_arguments(topic=topic, group=group, consumer=consumer)
        self._may_consume(topic)
        return self._engine.release(self.topic(topic), group, consumer)


def _commit_result(written: Written) -> Result:
    """A transaction that wrote nothing has no commit number."""
    return Result.of_write(written.count, "COMMIT", written.seq if written.count else None)


def _committed(written: Written, begun: bool) -> list[Result]:
    """The remembered results of a transaction; if it was `begun` in SQL, COMMIT alone tells the commit's number."""
    results = decode_results(written.answer, None if begun else written.seq)
    return [*results[:-1], results[-1].with_seq(written.seq)] if begun else results


@lru_cache(maxsize=512)
def column_types(schema: TableSchema) -> Mapping[str, ColumnType]:
    return {column.name: column.type for column in schema.columns}


_parameters = msgspec.msgpack.Encoder(enc_hook=repr)


def _fingerprint(asked: blake2b, params: Any) -> bytes:
    said = asked.copy()
    try:
        said.update(_parameters.encode(params))
    except OverflowError:  # an integer beyond 64 bits, which a DECIMAL takes
        said.update(repr(params).encode())
    return said.digest()


def _plain(rows: Any) -> Any:
    if isinstance(rows, PackedRows):
        return [rows.data, rows.decimals]
    return rows.to_pylist() if isinstance(rows, pa.Table | pa.RecordBatch) else rows
