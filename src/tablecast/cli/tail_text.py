"""A message as a line: coloured for a person, JSON for a program."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.text import Text

from tablecast.cli.console import visible
from tablecast.codec.keys import timestamp_from_us
from tablecast.model.change import Op
from tablecast.model.message import Message

_COLOURS = {Op.INSERT: "green", Op.UPDATE: "yellow", Op.DELETE: "red"}


def as_text(message: Message) -> Text:
    at = timestamp_from_us(message.ts * 1000).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = Text(f"{at} {message.partition_id}/{message.offset} ", style="dim")
    line.append(f"{message.op.label:<6} ", style=f"not dim bold {_COLOURS[message.op]}")
    line.append(f"{message.source_table} ", style="not dim")
    if message.user_id is not None:
        line.append(f"{visible(message.user_id)} ", style="not dim cyan")
    line.append(visible(message.payload.decode()), style="not dim")
    if message.delivery > 1:
        line.append(f" (delivery {message.delivery})", style="not dim red")
    return line


def as_json(message: Message) -> str:
    said: dict[str, Any] = {
        "partition_id": message.partition_id,
        "offset": str(message.offset),
        "message_id": str(message.message_id),
        "source_table": message.source_table,
        "op": message.op.label,
        "ts": timestamp_from_us(message.ts * 1000),
        "payload_mode": message.payload_mode,
        "key": msgspec.Raw(message.key),
        "payload": msgspec.Raw(message.payload),
        "user_id": message.user_id,
        "seq": str(message.seq),
        "delivery": message.delivery,
    }
    return msgspec.json.encode(said).decode()
