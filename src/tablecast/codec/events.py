"""The event: one write to one replicated row, as bytes that every node makes alike.

A CBOR map (RFC 8949) with text keys in exactly this order, integers and lengths in their shortest form, no tags, no
indefinite lengths:

    key            text, at most 256 bytes: which row
    node_id        text, 1 to 64 bytes: who wrote it
    seq            integer, 0 to 2^63 - 1: the writer's number of the event
    timestamp_ms   integer, 0 to 2^63 - 1: when, UTC
    tombstone      true: the row was deleted
    value          text, at most 256 KiB: the row; left out of a tombstone

Reading is strict where a mistake would change what an event means: wrong types, missing fields, a tombstone with a
value, bytes after the map, a field twice, anything over its limit. It bears what a newer writer may do: fields it does
not know, in any order.

The only module that knows `cbor2`.
"""

from __future__ import annotations

import io
from typing import Any, Final

import cbor2

from tablecast.errors import InvalidEvent
from tablecast.model.replication import Event, Version

MAX_KEY_BYTES: Final = 256
MAX_VALUE_BYTES: Final = 256 * 1024
MAX_NODE_ID_BYTES: Final = 64
MAX_EVENT_BYTES: Final = 300 * 1024  # key, value and head with room for fields that a newer writer adds
MAX_INTEGER: Final = 2**63 - 1  # what every language's signed integer holds
_MAX_DEPTH: Final = 8  # of fields we do not know

_KINDS: Final[dict[type, str]] = {
    str: "text", int: "an integer", bool: "a boolean", bytes: "bytes", float: "a float", list: "an array", dict: "a map",
    type(None): "null",
}  # fmt: skip


class _Tagged:
    """An item with a tag, whatever it is: no field of ours has one."""

    def __init__(self, value: Any, immutable: bool) -> None:
        pass


# The tags that cbor2 would make something of: dates, large integers, patterns. Nothing is computed for a field we ignore.
_OPAQUE: Final = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799), _Tagged
)


def encode_event(event: Event) -> bytes:
    """The event's bytes. Raises InvalidEvent if it is over a limit."""
    version = event.version
    _check_size("key", event.key, MAX_KEY_BYTES)
    fields: dict[str, Any] = {
        "key": event.key,
        "node_id": version.node_id,
        "seq": version.seq,
        "timestamp_ms": version.timestamp_ms,
        "tombstone": event.value is None,
    }
    if event.value is not None:
        _check_size("value", event.value, MAX_VALUE_BYTES)
        fields["value"] = event.value
    return cbor2.dumps(fields)


def decode_event(data: bytes) -> Event:
    """The event in these bytes. Raises InvalidEvent, whose message says what is wrong."""
    fields = _fields(data)
    key = _text(fields, "key", MAX_KEY_BYTES)
    node_id = _text(fields, "node_id", MAX_NODE_ID_BYTES)
    if not node_id:
        raise InvalidEvent("the event's node_id is empty")
    version = Version(_integer(fields, "timestamp_ms"), node_id, _integer(fields, "seq"))
    tombstone = _field(fields, "tombstone", bool)
    if not tombstone:
        return Event(key, version, _text(fields, "value", MAX_VALUE_BYTES))
    if "value" in fields:
        raise InvalidEvent("the event is a tombstone and has a value: it can be one of them only")
    return Event(key, version, None)


def _fields(data: bytes) -> dict[Any, Any]:
    if len(data) > MAX_EVENT_BYTES:
        raise InvalidEvent(f"the event has {len(data)} bytes; the limit is {MAX_EVENT_BYTES}", bytes=len(data))
    decoder = cbor2.CBORDecoder(
        io.BytesIO(data),
        semantic_decoders=_OPAQUE,
        max_depth=_MAX_DEPTH,
        allow_indefinite=False,
        allow_duplicate_keys=False,
    )
    try:
        fields = decoder.decode()
    except (cbor2.CBORDecodeError, ValueError, TypeError, RecursionError) as e:
        raise InvalidEvent(f"the event is not CBOR: {e}") from e
    if not isinstance(fields, dict):
        raise InvalidEvent(f"the event is not a map but {type(fields).__name__}")
    _check_end(decoder)
    return fields


def _check_end(decoder: cbor2.CBORDecoder) -> None:
    try:
        decoder.read(1)
    except cbor2.CBORDecodeEOF:
        return
    raise InvalidEvent("bytes follow the event: a message is one event and nothing else")


def _field(fields: dict[Any, Any], name: str, kind: type) -> Any:
    if name not in fields:
        raise InvalidEvent(f"the event has no {name}", field=name)
    value = fields[name]
    if type(value) is not kind:  # not isinstance: a bool is no integer here
        raise InvalidEvent(
            f"the event's {name} is {_KINDS.get(type(value), 'something else')}, not {_KINDS[kind]}", field=name
        )
    return value


def _text(fields: dict[Any, Any], name: str, limit_bytes: int) -> str:
    value: str = _field(fields, name, str)
    _check_size(name, value, limit_bytes)
    return value


def _integer(fields: dict[Any, Any], name: str) -> int:
    value: int = _field(fields, name, int)
    if not 0 <= value <= MAX_INTEGER:
        raise InvalidEvent(f"the event's {name} is {value}, not within 0 to 2^63 - 1", field=name)
    return value


def _check_size(name: str, value: str, limit_bytes: int) -> None:
    if len(value) * 4 <= limit_bytes:
        return  # no character takes more than four bytes
    size = len(value.encode())
    if size > limit_bytes:
        raise InvalidEvent(f"the event's {name} takes {size} bytes; the limit is {limit_bytes}", field=name, bytes=size)
