"""Where a reader starts."""

from __future__ import annotations

import enum

import msgspec

from tablecast.errors import InvalidRequest


class StartKind(enum.StrEnum):
    LATEST = "Latest"
    EARLIEST = "Earliest"
    OFFSET = "Offset"
    TIMESTAMP = "Timestamp"


class Start(msgspec.Struct, frozen=True):
    """`value` is the offset, or the time in UTC milliseconds; unused for Latest and Earliest."""

    kind: StartKind
    value: int = 0


StartLike = Start | str | int | None  # "earliest", "latest" or an offset as well


def start_of(start: StartLike) -> Start | None:
    """What a caller gives as a start."""
    if start is None or isinstance(start, Start):
        return start
    if isinstance(start, str) and start.lower() in _WORDS:
        return _WORDS[start.lower()]
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return Start(StartKind.OFFSET, int(start))
    raise InvalidRequest(f"start is 'earliest', 'latest', an offset from 0 on or a Start, not {start!r:.60}")


EARLIEST = Start(StartKind.EARLIEST)
LATEST = Start(StartKind.LATEST)
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
