"""Errors that crossed the wire: from a code, a text and details back to the class they were raised as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tablecast import errors
from tablecast.errors import DatabaseError, TablecastError


class Failure(msgspec.Struct, frozen=True):
    """`{"code", "message", "details"}`, as every answer tells an error."""

    code: str
    message: str
    details: dict[str, Any] | None = None


class _Body(msgspec.Struct, frozen=True):
    error: Failure


ERRORS = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TablecastError)]
_BY_CODE = {cls.code: cls for cls in ERRORS}
# The class that stands for a status is the first one that has it; 500 says nothing about the cause.
_BY_STATUS = {cls.status: cls for cls in reversed(ERRORS)} | {500: DatabaseError}


def rebuilt(failure: Failure, status: int = 500) -> TablecastError:
    """An error of a code that this version does not know is the general one of its status; `details` keeps the code."""
    cls, details = _BY_CODE.get(failure.code), dict(failure.details or {})
    if cls is None:
        cls = _BY_STATUS.get(status, DatabaseError)
        details["code"] = failure.code
    error = cls(failure.message)
    error.details = details  # not as keywords: a detail may be called `message`
    return error


def own(error: TablecastError) -> TablecastError:
    """The same error for one of several callers: each raises an exception of its own."""
    twin = type(error)(error.message)
    twin.details = error.details
    return twin


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> TablecastError:
    """The error of an answer whose status is not 2xx."""
    packed = headers.get("content-type", "").startswith("application/msgpack")
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    try:
        error = rebuilt(decode(body, type=_Body).error, status)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Not the server's own words: something between it and us answered.
        error = _BY_STATUS.get(status, DatabaseError)(f"the answer has status {status} and no error in it")
        error.details = {"status": status}
    if (seconds := _seconds(headers.get("retry-after"))) is not None:
        error.details["retry_after_seconds"] = seconds
    return error


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date: allowed, but not what our server sends
        return None
