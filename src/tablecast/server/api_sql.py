"""`POST /v1/api/sql`: statements as text, results in the order of the statements."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from tablecast.codec.result import Result
from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.errors import TooLarge
from tablecast.server.answers import (
    ResultOut,
    ResultPacked,
    accepted,
    answer,
    arrow_answer,
    check_bytes,
    check_rows,
    header_text,
    is_large,
    result_out,
    result_packed,
)
from tablecast.server.bodies import ARROW, JSON, MSGPACK, Decoder
from tablecast.server.call import Call
from tablecast.server.values import json_params
from tablecast.sql import statements as s
from tablecast.sql.keyed import check_ended, refuse_control
from tablecast.sql.parse import parse
from tablecast.sql.session import READS

SMALL_TEXT_CHARS = 2_000  # parsed on the event loop: a millisecond or two the first time, a lookup from then on
_PREPARED = s.Insert | s.Update | s.Delete | s.Select


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    sql: Annotated[str, Meta(description="one statement, or several with semicolons between them")]
    params: Annotated[list[Any], Meta(description="a value for each ?, in order")] = []
    namespace: Annotated[str, Meta(description="where names without a namespace are looked up")] = DEFAULT_NAMESPACE


class SqlAnswer(msgspec.Struct, frozen=True):
    status: str
    took_ms: float
    results: list[ResultOut]


class SqlPacked(msgspec.Struct, frozen=True):
    status: str
    took_ms: float
    results: list[ResultPacked]


_decoder = Decoder(SqlRequest)


async def run_sql(call: Call) -> Response:
    began = perf_counter()
    request, media_type = await call.decoded(_decoder)
    check_sql_size(request.sql, call.services.settings.max_sql_bytes)
    params = json_params(request.params) if media_type == JSON else request.params
    results = await _execute(call, request, params)
    wanted = accepted(call.headers, (JSON, MSGPACK, ARROW))
    rendered = partial(_within, call.services.settings.max_answer_bytes, results, wanted, began)
    return await asyncio.get_running_loop().run_in_executor(None, rendered) if is_large(results) else rendered()


def check_sql_size(sql: str, limit: int) -> None:
    size = len(sql) if sql.isascii() else len(sql.encode())
    if size > limit:
        raise TooLarge(f"the SQL text has {size} bytes: max_sql_bytes is {limit}", size=size, limit=limit)


async def parsed(sql: str) -> list[s.Statement]:
    if len(sql) <= SMALL_TEXT_CHARS:
        return parse(sql)
    return await asyncio.get_running_loop().run_in_executor(None, parse, sql)


async def _execute(call: Call, request: SqlRequest, params: list[Any]) -> list[Result]:
    statements = await parsed(request.sql)
    if call.transaction_id is not None:
        return await _execute_within(call, request, params, statements)
    results = await _execute_alone(call, request, params, statements)
    check_rows(results, call.services.settings.max_result_rows)
    return results


async def _execute_within(
    call: Call, request: SqlRequest, params: list[Any], statements: Sequence[s.Statement]
) -> list[Result]:
    """In the transaction that the request belongs to. What it cannot be told the answer of must not be committed."""
    refuse_control(statements)
    settings = call.services.settings
    async with call.in_transaction(request.namespace) as session:
        results = await session.execute_all(request.sql, params)
        try:
            check_rows(results, settings.max_result_rows)
            check_bytes(sum(result.nbytes for result in results), settings.max_answer_bytes)
        except TooLarge:
            if not all(isinstance(statement, READS) for statement in statements):
                await session.rollback()
            raise
        return results


async def _execute_alone(
    call: Call, request: SqlRequest, params: list[Any], statements: Sequence[s.Statement]
) -> list[Result]:
    """A statement that can be prepared goes through the actor's shared session, where it may be already. Anything else gets
    a session of its own: if it begins a transaction, nobody else is in it."""
    key = call.idempotency_key
    check_ended(statements)
    if not all(isinstance(statement, READS) for statement in statements):
        call.services.db.engine.require_room()  # else the threads that reads need would wait with it
    if len(statements) == 1 and isinstance(statements[0], _PREPARED):
        session = await call.session(request.namespace)
        return [await session.execute(request.sql, params, idempotency_key=key)]
    own = await call.services.sessions.own(call.who, request.namespace)
    try:
        return await own.execute_all(request.sql, params, idempotency_key=key)
    finally:
        if own.in_transaction:
            await own.rollback()


def _within(max_answer_bytes: int, results: list[Result], wanted: str, began: float) -> Response:
    """The answer, if it is small enough: as far as can be told before it is made, which takes its size again in memory."""
    check_bytes(sum(result.nbytes for result in results), max_answer_bytes)
    response = _rendered(results, wanted, began)
    check_bytes(len(response.body), max_answer_bytes)
    return response


def _rendered(results: list[Result], wanted: str, began: float) -> Response:
    if wanted == ARROW:
        last = results[-1]
        return arrow_answer(last.arrow(), result_headers(last))
    took_ms = round((perf_counter() - began) * 1000, 3)
    if wanted == MSGPACK:
        return answer(SqlPacked("success", took_ms, [result_packed(result) for result in results]), MSGPACK)
    return answer(SqlAnswer("success", took_ms, [result_out(result) for result in results]), JSON)


def result_headers(result: Result) -> dict[str, str]:
    headers = {"X-Message": header_text(result.message), "X-Row-Count": str(result.row_count)}
    return headers if result.seq is None else headers | {"X-Seq": str(result.seq)}
