"""Requests and answers as bytes: MessagePack, with rows as Arrow streams inside. The contract is docs/http.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pyarrow as pa

from tablecast.client.failures import Failure, rebuilt
from tablecast.client.values import pack_rows, portable_values
from tablecast.codec.given import given_params, given_text
from tablecast.codec.result import Result
from tablecast.errors import CorruptData, TablecastError, TypeMismatch
from tablecast.model.change import Op
from tablecast.model.message import Consumed, Message
from tablecast.model.names import DEFAULT_NAMESPACE as DEFAULT_NAMESPACE
from tablecast.model.position import Start, StartKind
from tablecast.model.topic import PayloadMode

# --- requests --------------------------------------------------------------------------------------------------


def request(fields: Mapping[str, Any], namespace: str = DEFAULT_NAMESPACE) -> bytes:
    """Fields that are None are left out, as is the namespace that names are looked up in anyway. Only `params` may hold
    values that MessagePack has no type for."""
    given = {name: value for name, value in fields.items() if value is not None}
    if namespace != DEFAULT_NAMESPACE:
        given["namespace"] = namespace
    try:
        if "params" in given:
            given["params"] = portable_values(given_params(given["params"]))
        return msgspec.msgpack.encode(given)
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise TypeMismatch(f"a value cannot be sent to the server: {e}") from e


def writes(packed: Sequence[bytes]) -> bytes:
    """One request that carries writes which are packed already."""
    return msgspec.msgpack.encode({"writes": [msgspec.Raw(write) for write in packed]})


def full_name(table: str, namespace: str) -> str:
    """As text: the server reads it, and folds it."""
    given_text(table, "the name of a table")
    return table if "." in table else f"{namespace}.{table}"


def start_fields(start: Start | None) -> dict[str, Any] | None:
    if start is None:
        return None
    value = {StartKind.OFFSET: "offset", StartKind.TIMESTAMP: "timestamp"}.get(start.kind)
    return {"type": start.kind.value} | ({} if value is None else {value: start.value})


def rows_path(table: str, mode: str, columns: Sequence[str] | None = None) -> str:
    query = {"mode": mode} | ({} if columns is None else {"columns": ",".join(columns)})
    return f"/v1/api/tables/{quote(table, safe='')}/rows?{urlencode(query)}"


def arrow_path(topic: str, start: Start | None, partition: int | None, namespace: str) -> str:
    query: dict[str, str] = {}
    if start is not None:
        query["start"] = _start_text(start)
    if partition is not None:
        query["partition"] = str(partition)
    if namespace != DEFAULT_NAMESPACE:
        query["namespace"] = namespace
    return f"/v1/api/topics/{quote(topic, safe='')}/arrow" + (f"?{urlencode(query)}" if query else "")


def _start_text(start: Start) -> str:
    if start.kind is StartKind.OFFSET:
        return f"offset:{start.value}"
    if start.kind is StartKind.TIMESTAMP:
        return f"timestamp:{datetime.fromtimestamp(start.value / 1000, UTC).isoformat(timespec='milliseconds')}"
    return start.kind.value.lower()


def arrow_stream(table: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def packed_rows(rows: Any) -> dict[str, Any]:
    """Fields of a write."""
    packed, decimals = pack_rows(rows)
    return {"rows": msgspec.Raw(packed), "decimals": decimals or None}


# --- answers ---------------------------------------------------------------------------------------------------


class _Outcome(msgspec.Struct, frozen=True):
    """What became of a statement or write: a result, or an error."""

    message: str = ""
    row_count: int = 0
    seq: int | None = None
    rows: bytes | None = None
    error: Failure | None = None


class _Results(msgspec.Struct, frozen=True):
    results: list[_Outcome]


class _Message(msgspec.Struct, frozen=True, gc=False):
    topic_id: int
    partition_id: int
    offset: int
    message_id: int
    source_table: str
    op: str
    ts: int
    payload_mode: PayloadMode
    key: bytes
    payload: bytes
    user_id: str | None
    seq: int
    content_hash: int
    delivery: int = 1


class _Consumed(msgspec.Struct, frozen=True):
    messages: list[_Message]
    next_offset: int | None = None
    next_offsets: dict[int, int] = {}
    has_more: bool = False
    skipped: list[tuple[int, int, int]] = []
    consumer: str | None = None
    waited_seconds: float = 0.0


_OPS = {op.label: op for op in Op}


def results(body: bytes) -> list[Result]:
    """Of several statements; the first that failed is raised instead."""
    found = [_result(outcome) for outcome in _decoded(body, _Results).results]
    for outcome in found:
        if isinstance(outcome, TablecastError):
            raise outcome
    return [outcome for outcome in found if isinstance(outcome, Result)]


def outcomes(body: bytes, count: int) -> list[Result | TablecastError]:
    """One per write, in order."""
    found = _decoded(body, _Results).results
    if len(found) != count:
        raise CorruptData(f"the server answered {len(found)} writes of {count}")
    return [_result(outcome) for outcome in found]


def written(body: bytes) -> Result:
    result = _result(_decoded(body, _Outcome))
    if isinstance(result, TablecastError):
        raise result
    return result


def _result(outcome: _Outcome) -> Result | TablecastError:
    if outcome.error is not None:
        return rebuilt(outcome.error)
    if outcome.rows is None:
        return Result.of_write(outcome.row_count, outcome.message, outcome.seq)
    result = Result.of_arrow(table(outcome.rows)).with_seq(outcome.seq)
    result.message, result.row_count = outcome.message, outcome.row_count
    return result


def table(data: bytes) -> pa.Table:
    try:
        return pa.ipc.open_stream(data).read_all()
    except pa.ArrowInvalid as e:
        raise CorruptData(f"the rows of the server's answer are not an Arrow stream: {e}") from e


def consumed(body: bytes) -> Consumed:
    found = _decoded(body, _Consumed)
    return Consumed(
        [_message(m) for m in found.messages], found.next_offset, found.has_more, tuple(found.skipped), found.consumer,
        next_offsets=found.next_offsets, waited_seconds=found.waited_seconds,
    )  # fmt: skip


def _message(m: _Message) -> Message:
    return Message(
        m.topic_id, m.partition_id, m.offset, m.message_id, m.source_table, _OPS[m.op], m.ts, m.payload_mode, m.key,
        m.payload, m.user_id, m.seq, m.content_hash, m.delivery,
    )  # fmt: skip


def number(body: bytes, field: str) -> int:
    """One number out of an answer such as `{"held": 5}`."""
    found = _decoded(body, dict[str, Any]).get(field)
    if not isinstance(found, int):
        raise CorruptData(f"the server's answer has no number {field!r}")
    return found


class _Acknowledged(msgspec.Struct, frozen=True):
    acknowledged_offset: int | None


def acknowledged(body: bytes) -> int | None:
    answer: _Acknowledged = _decoded(body, _Acknowledged)
    return answer.acknowledged_offset


def text(body: bytes, field: str) -> str:
    """Likewise one text."""
    found = _decoded(body, dict[str, Any]).get(field)
    if not isinstance(found, str):
        raise CorruptData(f"the server's answer has no text {field!r}")
    return found


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(f"the server's answer does not decode: {e}") from e
