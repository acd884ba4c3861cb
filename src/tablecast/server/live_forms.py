"""What a live query tells, as bytes for its readers: frames of a WebSocket in two forms, and events of a stream.

What one commit told one group is encoded once in each form that somebody reads, and all of them get the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from tablecast.client.values import portable_values
from tablecast.codec.live import (
    JSON_FORM,
    MSGPACK_FORM,
    Change,
    Error,
    Form,
    LiveColumn,
    OpName,
    RowChange,
    ServerMessage,
    Values,
    encode,
)
from tablecast.core.live_query import LiveQuery
from tablecast.engine.live import Shown, Told
from tablecast.model.change import Op
from tablecast.server.answers import json_shape
from tablecast.server.live_socket import binary_frame, text_frame

SHAPES_KEPT = 4_096  # one per list of types: those of the queries that are told something now
_OPS: Final[dict[Op, OpName]] = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}

Shape = Callable[[Sequence[Any]], Values]


def columns_out(query: LiveQuery) -> list[LiveColumn]:
    return [LiveColumn(name, str(kind), hidden) for name, kind, hidden in query.columns]


def rows_out(query: LiveQuery, rows: Iterable[Sequence[Any]], form: Form) -> list[Values]:
    shape = _shape(query.types, form)
    return [shape(row) for row in rows]


def changes_out(query: LiveQuery, changes: Iterable[Shown], form: Form) -> list[RowChange]:
    row = _shape(query.types, form)
    return [
        RowChange(_OPS[op], row=row(values))
        if op is not Op.DELETE
        else RowChange("delete", key=_shape(query.key_types, form)(values))
        for op, values in changes
    ]


@lru_cache(SHAPES_KEPT)
def _shape(types: tuple[str, ...], form: Form) -> Shape:
    """What makes values of a form out of stored ones."""
    if form == MSGPACK_FORM:
        return portable_values
    return json_shape(types) or _as_it_is


def _as_it_is(values: Sequence[Any]) -> Values:
    return values


# --- frames -----------------------------------------------------------------------------------------------------


def frame(message: ServerMessage, form: Form) -> bytes:
    payload = _payload(message, form)
    return text_frame(payload) if form == JSON_FORM else binary_frame(payload)


def _change(told: Told, form: Form) -> Change:
    return Change(told.channel, told.seq, changes_out(told.query, told.changes, form))


def json_frame(told: Told) -> bytes:
    return frame(_change(told, JSON_FORM), JSON_FORM)


def msgpack_frame(told: Told) -> bytes:
    return frame(_change(told, MSGPACK_FORM), MSGPACK_FORM)


FRAMES: Final[dict[Form, tuple[str, Callable[[Told], bytes]]]] = {
    JSON_FORM: ("json-frame", json_frame),
    MSGPACK_FORM: ("msgpack-frame", msgpack_frame),
}


def _payload(message: ServerMessage, form: Form) -> bytes:
    """An error's details repeat what a client sent, which may be what no encoder takes: a number of a hundred digits."""
    try:
        return encode(message, form)
    except (OverflowError, ValueError, RecursionError):
        if not isinstance(message, Error):
            raise
        details = {name: ascii(value) for name, value in message.details.items()}
        text = message.message.encode(errors="backslashreplace").decode()
        return encode(Error(id=message.id, code=message.code, message=text, details=details), form)


# --- events -----------------------------------------------------------------------------------------------------


def event_id(history: str, seq: int) -> str:
    """What a reader that lost the stream after this commit resumes from."""
    return f"{history}-{seq}"


def event(message: ServerMessage, at: str | None = None) -> bytes:
    """An event of a stream, with its id."""
    name = type(message).__struct_config__.tag
    return b"event: %s\n%sdata: %s\n\n" % (str(name).encode(), _id_line(at), _payload(message, JSON_FORM))


def change_event(history: str, told: Told) -> bytes:
    return event(_change(told, JSON_FORM), event_id(history, told.seq))


def heartbeat(at: str) -> bytes:
    """No event, since it has no data; but a browser takes the id."""
    return b":\n%s\n" % _id_line(at)


def _id_line(at: str | None) -> bytes:
    return b"" if at is None else b"id: %s\n" % at.encode()
