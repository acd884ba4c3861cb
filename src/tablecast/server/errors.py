"""Errors as answers: `{"error": {"code", "message", "details"}}`, always in JSON, with the status of the code."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from tablecast.errors import TablecastError

RETRY_AFTER_SECONDS = 1  # when an error does not say itself how long to wait
CHALLENGE = 'Basic realm="tablecast", charset="UTF-8", Bearer realm="tablecast"'
JSON = "application/json"


class ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody


_encode = msgspec.json.Encoder(enc_hook=str)  # details hold plain values; what is not plain is shown as text


def error_body(error: TablecastError) -> ErrorBody:
    """Details repeat what a client sent, which may be what no encoder takes, as a number of a hundred digits."""
    body = ErrorBody(error.code, error.message, error.details)
    try:
        _encode.encode(body)
    except (OverflowError, ValueError, RecursionError):
        shown = {name: ascii(value) for name, value in error.details.items()}
        return ErrorBody(error.code, error.message.encode(errors="backslashreplace").decode(), shown)
    return body


def error_response(error: TablecastError, *, status: int | None = None, close: bool = False) -> Response:
    """`close` ends the connection after the answer: what is left of the request will not be read."""
    status = error.status if status is None else status
    headers = _headers(error, status) | ({"Connection": "close"} if close else {})
    return Response(_encode.encode(ErrorAnswer(error_body(error))), status, headers, JSON)


def internal_error(request_id: str) -> Response:
    """For what nobody foresaw: the log has the rest, the client only what to quote."""
    body = ErrorBody(
        TablecastError.code,
        f"the server failed on this request; its log says why under request id {request_id}",
        {"request_id": request_id},
    )
    return Response(_encode.encode(ErrorAnswer(body)), TablecastError.status, media_type=JSON)


def _headers(error: TablecastError, status: int) -> dict[str, str]:
    if status in (429, 503):
        return {"Retry-After": str(max(1, math.ceil(error.details.get("retry_after_seconds", RETRY_AFTER_SECONDS))))}
    if status == 401:
        return {"WWW-Authenticate": CHALLENGE}
    if status == 405:
        return {"Allow": str(error.details["allow"])}
    return {}
