"""What `tail` is asked for: where to begin, and which messages to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer

from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.position import EARLIEST, LATEST, Start, StartKind

PAYLOAD = "payload."
_FIELDS: dict[str, Callable[[Message], str | None]] = {
    "op": lambda message: message.op.label,
    "table": lambda message: message.source_table,
    "user": lambda message: message.user_id,
}

Filters = Mapping[str, frozenset[str]]


def parse_start(text: str | None) -> Start | None:
    """earliest, latest, an offset, or a time in ISO 8601 (UTC if it names no zone)."""
    if text is None:
        return None
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if named is not None:
        return named
    if text.isascii() and text.isdigit():
        return Start(StartKind.OFFSET, int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not earliest, latest, an offset, or a time such as 2026-01-31T12:00:00Z"
        raise typer.BadParameter(message, param_hint="--from") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return Start(StartKind.TIMESTAMP, round(moment.timestamp() * 1000))


def parse_filters(texts: Sequence[str]) -> Filters:
    filters: dict[str, frozenset[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        known = name in _FIELDS or (name.startswith(PAYLOAD) and len(name) > len(PAYLOAD))
        if not known or not values:
            message = f"{text!r} is not {'|'.join(_FIELDS)}|payload.FIELD=value,value"
            raise typer.BadParameter(message, param_hint="--filter")
        filters[name] = filters.get(name, frozenset()) | frozenset(values.split(","))
    unknown = filters.get("op", frozenset()) - {op.label for op in Op}
    if unknown:
        raise typer.BadParameter(f"there is no op {min(unknown)!r}: insert, update, delete", param_hint="--filter")
    return filters


def is_wanted(message: Message, filters: Filters) -> bool:
    return all(_value(message, name) in values for name, values in filters.items())


def _value(message: Message, name: str) -> str | None:
    if name in _FIELDS:
        return _FIELDS[name](message)
    return _at(message.value, name.removeprefix(PAYLOAD).split("."))


def _at(value: Any, path: Sequence[str]) -> str | None:
    """What stands there, as text: a string as it is, anything else as JSON. None if nothing does."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
