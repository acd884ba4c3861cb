"""Text functions: everything counts code points, and only what Unicode calls a space separator is trimmed."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np

from tablecast.core.expression.failure import Failure

# All code points of category Zs. Tabs and line breaks are not among them.
SPACES = " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"

_MAX_LENGTH = (1 << 32) - 1
_PRINTABLE = {code: chr(code) for code in range(32, 127) if chr(code) not in "\\'\""}


def substring(text: str, offset: int, length: int = _MAX_LENGTH) -> str:
    """From 1, or from the end if negative; 0 is the place before the first. A negative length reaches to the left."""
    for what, number in (("offset", offset), ("length", length)):
        if not -_MAX_LENGTH - 1 <= number <= _MAX_LENGTH:
            raise Failure(f"SUBSTRING {what} {number} is out of range")
    start = offset - 1 if offset >= 0 else len(text) + offset
    first, last = sorted((start, start + length))
    return text[max(first, 0) : max(last, 0)]


def replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def contains(text: str, part: str) -> bool:
    return part in text


def concat(*values: str | None) -> str:
    return "".join(value for value in values if value is not None)


# --- what a value looks like as text ------------------------------------------------------------------------


def boolean_text(value: bool) -> str:
    return "true" if value else "false"


def decimal_text(value: Decimal) -> str:
    return format(value, "f")


def double_text(value: float) -> str:
    if value != value:
        raise Failure("NaN has no text form: its sign is not defined")
    return repr(value)


def float_text(value: float) -> str:
    if value != value:
        raise Failure("NaN has no text form: its sign is not defined")
    # Shortest digits that give back the 32 bits, laid out as a 64-bit float's are.
    return repr(float(np.format_float_scientific(np.float32(value), trim="-")))


def timestamp_text(value: datetime) -> str:
    return f"{value.date().isoformat()} {time_text(value.time())}"


def time_text(value: time) -> str:
    seconds = value.strftime("%H:%M:%S")
    return f"{seconds}.{value.microsecond:06d}".rstrip("0") if value.microsecond else seconds


def date_text(value: date) -> str:
    return value.isoformat()


def bytes_text(value: bytes) -> str:
    return "".join(_PRINTABLE.get(byte) or f"\\x{byte:02X}" for byte in value)


def uuid_text(value: Any) -> str:
    return str(value)
