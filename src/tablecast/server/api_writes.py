"""`POST /v1/api/writes`: many independent writes in one request.

They are submitted together, so they share commits with each other and with whatever else arrives, and each has its own
result or error. This is what a client sends that carries the writes of many callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from tablecast.client.values import from_extension
from tablecast.codec.packed_rows import PackedRows
from tablecast.codec.result import Result
from tablecast.engine.decision import StalePlan
from tablecast.engine.rows import Written
from tablecast.errors import InvalidRequest, TablecastError
from tablecast.model.names import DEFAULT_NAMESPACE, full_name_of
from tablecast.server.answers import ColumnOut, accepted, answer, arrow_stream, check_rows, result_out
from tablecast.server.api_sql import check_sql_size, parsed
from tablecast.server.bodies import JSON, MSGPACK, Decoder, Rows
from tablecast.server.call import Call
from tablecast.server.errors import ErrorBody, error_body
from tablecast.server.values import json_params, json_rows
from tablecast.sql import statements as s
from tablecast.sql.aio import FEW_ROWS, AsyncSession, Started
from tablecast.sql.parse_table import MAX_COLUMNS

MAX_WRITES = 10_000  # of one request: what a commit or two take
_NIL = msgspec.Raw(b"\xc0")

Position = Annotated[int, Meta(ge=0, le=MAX_COLUMNS)]


class WriteIn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Either `table` and `rows`, or `sql`."""

    table: str | None = None
    rows: Rows | None = None
    decimals: Annotated[
        list[Position],
        Meta(description="with MessagePack: where in each row of an array, from 0, DECIMAL values are written as text"),
    ] = []
    columns: list[str] | None = None
    mode: str = "insert"
    sql: Annotated[str | None, Meta(description="one INSERT, UPDATE or DELETE")] = None
    params: list[Any] = []
    namespace: str = DEFAULT_NAMESPACE
    idempotency_key: str | None = None

    @property
    def has_rows(self) -> bool:
        return self.rows is not None

    def given_rows(self) -> Any:
        return self.rows


class PackedWriteIn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The same, with rows that nobody has looked into: they are read when it is known for which table."""

    table: str | None = None
    rows: msgspec.Raw = _NIL
    decimals: list[Position] = []
    columns: list[str] | None = None
    mode: str = "insert"
    sql: str | None = None
    params: list[Any] = []
    namespace: str = DEFAULT_NAMESPACE
    idempotency_key: str | None = None

    @property
    def has_rows(self) -> bool:
        return bytes(self.rows) != bytes(_NIL)

    def given_rows(self) -> Any:
        """A few are better looked at now: see `sql.aio`."""
        packed = PackedRows(bytes(self.rows), self.decimals, from_extension)
        return packed if len(packed) > FEW_ROWS else packed.plain()


class PackedWritesRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    writes: Annotated[list[PackedWriteIn], Meta(min_length=1, max_length=MAX_WRITES)]


class WritesRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    writes: Annotated[list[WriteIn], Meta(min_length=1, max_length=MAX_WRITES)]


class WriteOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a write did, or `error`. `schema` and `rows` are there with RETURNING."""

    row_count: int | UnsetType = UNSET
    seq: int | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    schema: list[ColumnOut] | UnsetType = UNSET
    rows: list[list[Any]] | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class WritePacked(msgspec.Struct, frozen=True, kw_only=True):
    """The same in MessagePack: `rows` is an Arrow stream, which has the schema in it."""

    row_count: int | UnsetType = UNSET
    seq: int | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    rows: bytes | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class WritesAnswer(msgspec.Struct, frozen=True):
    results: list[WriteOut]


class WritesPacked(msgspec.Struct, frozen=True):
    results: list[WritePacked]


Begun = Started | TablecastError | asyncio.Task[Result | TablecastError]
Write = WriteIn | PackedWriteIn
_decoder = Decoder(WritesRequest, PackedWritesRequest)


async def write_many(call: Call) -> Response:
    call.refuse_transaction()
    request, media_type = await call.decoded(_decoder)
    results = await _results(call, request.writes, media_type == JSON)
    if accepted(call.headers) == MSGPACK:
        packed = {id(result): _packed(result) for result in results}  # many may share one
        return answer(WritesPacked([packed[id(result)] for result in results]), MSGPACK)
    return answer(WritesAnswer([_out(result) for result in results]), JSON)


async def _results(call: Call, writes: Sequence[Write], from_json: bool) -> list[Result | TablecastError]:
    """All are handed to the writer before any of them is waited for."""
    together = {} if from_json else await _begun_together(call, writes)
    in_them = {at for places in together for at in places}
    rest = [at for at in range(len(writes)) if at not in in_them]
    begun = [await _begun(call, writes[at], from_json) for at in rest]
    found: dict[int, Result | TablecastError] = {}
    for places, written in together.items():
        try:
            done = await written
        except TablecastError:  # what it is for each, is found for each: nothing has happened
            rest += places
            begun += [await _begun(call, writes[at], from_json) for at in places]
        else:
            found |= dict.fromkeys(places, Result.of_write(done.count, f"INSERT {done.count}", done.seq))
    for at, one in zip(rest, begun, strict=True):
        found[at] = await _ended(call, writes[at], from_json, one)
    return [found[at] for at in range(len(writes))]


# --- alike: the same INSERT of one row, as when many callers of a client do the same -----------------------------

Places = tuple[int, ...]  # where among the writes of the request


async def _begun_together(call: Call, writes: Sequence[Write]) -> dict[Places, asyncio.Future[Written]]:
    alike: dict[tuple[str, str], list[int]] = {}
    for at, write in enumerate(writes):
        if write.sql is not None and write.table is None and not write.has_rows and write.idempotency_key is not None:
            alike.setdefault((write.namespace, write.sql), []).append(at)
    begun: dict[Places, asyncio.Future[Written]] = {}
    for (namespace, sql), places in alike.items():
        if len(places) > 1 and len(sql) <= call.services.settings.max_sql_bytes:
            session = await call.session(namespace)
            given = [(writes[at].params, writes[at].idempotency_key) for at in places]
            try:
                written = session.started_each(sql, [params for params, _ in given], [key or "" for _, key in given])
            except TablecastError:
                continue  # each is told by itself
            if written is not None:
                begun[tuple(places)] = written
    return begun


# --- each by itself ----------------------------------------------------------------------------------------------


async def _begun(call: Call, write: Write, from_json: bool) -> Begun:
    """Most writes are handed to the writer at once, before any of them is waited for; the others are tasks."""
    try:
        started = _started(call, await call.session(write.namespace), write, from_json)
    except TablecastError as error:
        return error
    return started or asyncio.ensure_future(_attempt(call, write, from_json))


def _started(call: Call, session: AsyncSession, write: Write, from_json: bool) -> Started | None:
    key = write.idempotency_key
    if from_json or (write.sql is None) == (write.table is None):
        return None
    if write.sql is not None:
        check_sql_size(write.sql, call.services.settings.max_sql_bytes)
        return session.started(write.sql, write.params, idempotency_key=key) if not write.has_rows else None
    if write.table is None or not write.has_rows:
        return None
    return session.started_rows(write.table, write.given_rows(), write.columns, write.mode, key)


async def _ended(call: Call, write: Write, from_json: bool, begun: Begun) -> Result | TablecastError:
    try:
        if isinstance(begun, TablecastError):
            raise begun
        if isinstance(begun, asyncio.Task):
            return await begun
        result = begun.result(await begun.written)
        check_rows([result], call.services.settings.max_result_rows)
        return result
    except StalePlan:  # its table was altered a moment ago, and nothing has happened
        return await _attempt(call, write, from_json)
    except TablecastError as error:
        call.services.metrics.error(error.code)
        return error


async def _attempt(call: Call, write: Write, from_json: bool) -> Result | TablecastError:
    """An unforeseen exception fails the request: nothing is known about the other writes then, as after a crash."""
    try:
        result = await _write(call, write, from_json)
        check_rows([result], call.services.settings.max_result_rows)
        return result
    except TablecastError as error:
        call.services.metrics.error(error.code)
        return error


async def _write(call: Call, write: Write, from_json: bool) -> Result:
    session = await call.session(write.namespace)
    if write.sql is not None:
        await _check_sql(call, write.sql, write)
        params = json_params(write.params) if from_json else write.params
        return await session.execute(write.sql, params, idempotency_key=write.idempotency_key)
    if write.table is None or not write.has_rows:
        raise InvalidRequest("a write has either table and rows, or sql")
    rows = write.given_rows()
    if from_json:
        if write.decimals:
            raise InvalidRequest("decimals goes with MessagePack: in JSON a DECIMAL is text anyway")
        table = full_name_of(write.table, write.namespace)
        rows = json_rows(call.services.db.engine.catalog, table, rows, write.columns)
    return await session.insert(
        write.table, rows, columns=write.columns, mode=write.mode, idempotency_key=write.idempotency_key
    )


async def _check_sql(call: Call, sql: str, write: Write) -> None:
    if write.table is not None or write.has_rows:
        raise InvalidRequest("a write has either table and rows, or sql, not both")
    check_sql_size(sql, call.services.settings.max_sql_bytes)
    statements = await parsed(sql)
    if len(statements) != 1 or not isinstance(statements[0], s.Insert | s.Update | s.Delete):
        raise InvalidRequest("the sql of a write is one INSERT, UPDATE or DELETE; anything else goes to /v1/api/sql")


def _out(result: Result | TablecastError) -> WriteOut:
    if isinstance(result, TablecastError):
        return WriteOut(error=error_body(result))
    done = WriteOut(row_count=result.row_count, seq=result.seq, message=result.message)
    if not result.is_query:
        return done
    shown = result_out(result)
    return msgspec.structs.replace(done, schema=shown.schema, rows=shown.rows)


def _packed(result: Result | TablecastError) -> WritePacked:
    if isinstance(result, TablecastError):
        return WritePacked(error=error_body(result))
    rows = arrow_stream(result.arrow()) if result.is_query else UNSET
    return WritePacked(row_count=result.row_count, seq=result.seq, message=result.message, rows=rows)
