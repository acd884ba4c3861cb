"""Where a reader starts."""

from __future__ import annotations

import enum

import msgspec


class StartKind(enum.StrEnum):
    LATEST = "Latest"
    EARLIEST = "Earliest"
    OFFSET = "Offset"
    TIMESTAMP = "Timestamp"


class Start(msgspec.Struct, frozen=True):
    """`value` is the offset, or the time in UTC milliseconds; unused for Latest and Earliest."""

    kind: StartKind
    value: int = 0


EARLIEST = Start(StartKind.EARLIEST)
LATEST = Start(StartKind.LATEST)
