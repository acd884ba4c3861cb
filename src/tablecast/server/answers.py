"""What a call answers with, in the form that `Accept` asks for.

JSON is for people and browsers: BIGINT, DECIMAL and larger numbers are strings, because a browser would round them; JSON
columns stand in the answer as what they are, BYTES as base64, times in ISO 8601. MessagePack and Arrow are for
programs: rows travel as an Arrow stream and keep every type.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
from starlette.datastructures import Headers
from starlette.responses import Response

from tablecast.codec.result import Result
from tablecast.errors import TooLarge
from tablecast.server.bodies import ARROW, JSON, MSGPACK

LARGE_ROWS = 500  # rendering that many rows takes about a millisecond: from here on in a thread
_HEADER_SAFE = "".join(c for c in string.printable if c not in "%\r\n\t\v\f")

_json = msgspec.json.Encoder(enc_hook=str)  # what SQL knows and JSON does not, as an interval, is shown as text
_msgpack = msgspec.msgpack.Encoder(enc_hook=str)


# --- content types ----------------------------------------------------------------------------------------------


def accepted(headers: Headers, offered: tuple[str, ...] = (JSON, MSGPACK)) -> str:
    """The offered type that the client likes best; JSON if it does not say, or likes none of them."""
    said = headers.get("accept")
    return JSON if said is None else _liked_best(said, offered)


@lru_cache(maxsize=64)  # clients say the same with every request
def _liked_best(said: str, offered: tuple[str, ...]) -> str:
    wishes = sorted((_wish(part) for part in said.split(",")), key=lambda wish: -wish[1])
    return next((kind for kind, quality in wishes if kind in offered and quality > 0), JSON)


def _wish(part: str) -> tuple[str, float]:
    kind, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return kind.lower(), float(value)
            except ValueError:
                return kind.lower(), 0.0
    return kind.lower(), 1.0


def answer(value: Any, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """A struct, dict or list as JSON or MessagePack."""
    return Response(encoded(value, media_type), headers=headers, media_type=media_type)


def encoded(value: Any, media_type: str) -> bytes:
    return (_msgpack if media_type == MSGPACK else _json).encode(value)


# --- results ----------------------------------------------------------------------------------------------------


class ColumnOut(msgspec.Struct, frozen=True):
    """`type` is null where SQL has no name for it, as for a list."""

    name: str
    type: str | None


class ResultOut(msgspec.Struct, frozen=True):
    """One statement's answer in JSON. A statement without rows has an empty schema."""

    schema: list[ColumnOut]
    rows: list[list[Any]]
    row_count: int
    message: str
    seq: int | None


class ResultPacked(msgspec.Struct, frozen=True):
    """The same in MessagePack; `rows` is an Arrow stream, nil for a statement without rows."""

    message: str
    row_count: int
    seq: int | None
    rows: bytes | None


def check_rows(results: Sequence[Result], max_result_rows: int) -> None:
    for result in results:
        if len(result) > max_result_rows:
            raise TooLarge(
                f"the result has {len(result)} rows: max_result_rows is {max_result_rows}. Add a LIMIT, or read in parts",
                rows=len(result), limit=max_result_rows,
            )  # fmt: skip


def check_bytes(size: int, max_answer_bytes: int) -> None:
    if size > max_answer_bytes:
        raise TooLarge(
            f"the answer has {size} bytes: max_answer_bytes is {max_answer_bytes}. Ask for fewer rows or columns, or read "
            "a table in parts with a snapshot",
            size=size, limit=max_answer_bytes,
        )  # fmt: skip


def is_large(results: Sequence[Result]) -> bool:
    return sum(len(result) for result in results) > LARGE_ROWS


def result_out(result: Result) -> ResultOut:
    columns = [ColumnOut(name, kind) for name, kind in result.schema]
    return ResultOut(columns, _json_rows(result, columns), result.row_count, result.message, result.seq)


def result_packed(result: Result) -> ResultPacked:
    rows = arrow_stream(result.arrow()) if result.is_query else None
    return ResultPacked(result.message, result.row_count, result.seq, rows)


def _json_rows(result: Result, columns: list[ColumnOut]) -> list[Any]:
    shape = json_shape([column.type for column in columns])
    return list(result.stored_rows()) if shape is None else [shape(row) for row in result.stored_rows()]


def json_shape(types: Sequence[str | None]) -> Callable[[Sequence[Any]], list[Any]] | None:
    """What makes JSON values of a row's stored ones; None if they are the same."""
    changed = [_JSON_FORMS.get(kind) for kind in types]
    if not any(changed):
        return None
    return lambda row: [v if to is None or v is None else to(v) for to, v in zip(changed, row, strict=True)]


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _nested(value: Any) -> Any:
    """A list, struct or map: numbers that a browser would round become strings at any depth."""
    if isinstance(value, list | tuple):
        return [_nested(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _nested(inner) for key, inner in value.items()}
    return str(value) if type(value) is int and abs(value) >= 2**53 else value


# Decimals, times, UUIDs and bytes become what they should by themselves.
_JSON_FORMS: dict[str | None, Any] = {"BIGINT": str, "HUGEINT": str, "JSON": _raw, None: _nested}


# --- Arrow ------------------------------------------------------------------------------------------------------


def arrow_stream(table: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def arrow_answer(table: pa.Table | pa.RecordBatch, headers: Mapping[str, str]) -> Response:
    return Response(arrow_stream(table), headers=headers, media_type=ARROW)


def header_text(text: str) -> str:
    """Text as a header can carry it: what is not ASCII is percent-encoded UTF-8."""
    return quote(text, safe=_HEADER_SAFE)
