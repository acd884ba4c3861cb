"""A row as its dead letter shows it: JSON's own types, texts cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_SHOWN_CHARS = 1_000  # of a value in a dead letter: it tells which row it was, and is not a second copy of it


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _shown(value) for name, value in values.items()}


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"
