"""`POST /v1/api/tables/{table}/rows`: rows without SQL, the fast path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from tablecast.codec.result import Result
from tablecast.model.names import DEFAULT_NAMESPACE, full_name_of
from tablecast.server.answers import accepted, answer
from tablecast.server.arrow_bodies import decode_arrow
from tablecast.server.bodies import (
    ARROW,
    JSON,
    MSGPACK,
    NDJSON,
    Decoder,
    Rows,
    content_type,
    decode_ndjson,
    in_thread_if_large,
)
from tablecast.server.call import Call
from tablecast.server.values import json_rows

TAKEN = (JSON, MSGPACK, NDJSON, ARROW)


class RowsAnswer(msgspec.Struct, frozen=True):
    status: str
    row_count: int
    seq: int | None
    message: str


_decode_rows = Decoder(Rows)


async def write_rows(call: Call) -> Response:
    query = call.query("mode", "columns", "namespace")
    namespace = query.get("namespace", DEFAULT_NAMESPACE)
    table = call.path["table"]
    columns = query["columns"].split(",") if "columns" in query else None
    rows = await _read(call, full_name_of(table, namespace), columns)
    mode = query.get("mode", "insert")
    if call.transaction_id is not None:
        async with call.in_transaction(namespace) as transaction:
            result = await transaction.insert(table, rows, columns=columns, mode=mode)
    else:
        session = await call.session(namespace)
        result = await session.insert(table, rows, columns=columns, mode=mode, idempotency_key=call.idempotency_key)
    return answer(rows_answer(result), accepted(call.headers))


def rows_answer(result: Result) -> RowsAnswer:
    return RowsAnswer("success", result.row_count, result.seq, result.message)


async def _read(call: Call, table: str, columns: Sequence[str] | None) -> Any:
    media_type = content_type(call.headers, TAKEN)
    body = await call.incoming.read()
    return await in_thread_if_large(len(body), _decoded, call, body, media_type, table, columns)


def _decoded(call: Call, body: bytes, media_type: str, table: str, columns: Sequence[str] | None) -> Any:
    if media_type == ARROW:
        return decode_arrow(body)
    if media_type == MSGPACK:
        return _decode_rows(body, MSGPACK)
    rows = decode_ndjson(body) if media_type == NDJSON else _decode_rows(body, JSON)
    return json_rows(call.services.db.engine.catalog, table, rows, columns)
