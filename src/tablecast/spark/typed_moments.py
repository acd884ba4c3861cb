"""Moments of many rows at once, as the encoder writes them: `2025-10-09T08:53:20.005000Z`, or `…:20Z` for a whole second.

Rows of a log were mostly written one after the other, so a minute, the first sixteen characters, is that of the row before:
each run of rows with the same minute is read once. Seconds and millionths are eight digits together (`typed_numbers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tablecast.spark.typed_numbers import ZEROS, eight_digits

WHOLE, SIZE = 20, 27  # characters without and with a fraction
BYTES = 32  # that must be there to read one
_ROWS_PER_RUN = 32  # at least: in shorter runs Arrow's parser is as quick
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_MICROS = np.uint64(60_000_000)


def _word(pattern: bytes) -> tuple[np.uint64, np.uint64]:
    """Which bytes of eight count (`?` does not), and what they are."""
    mask = bytes(0 if byte == ord("?") else 0xFF for byte in pattern)
    wanted = bytes(byte & kept for byte, kept in zip(pattern, mask, strict=True))
    return np.uint64(int.from_bytes(mask, "little")), np.uint64(int.from_bytes(wanted, "little"))


_SECOND_WITH_FRACTION, _END_OF_FRACTION = _word(b":??.????"), _word(b'??Z"????')
_WHOLE_SECOND = _word(b':??Z"???')
_B8, _B16, _B32, _B48 = map(np.uint64, (8, 16, 32, 48))
_TWO_BYTES = np.uint64(0xFFFF)


class Moments(NamedTuple):
    micros: np.ndarray  # since 1970, int64
    sizes: np.ndarray | int  # of their texts


def moments(words: Sequence[np.ndarray]) -> Moments | None:
    """Four words of each row, from the first character on. None if they must be read another way."""
    minutes = _minutes(words[0], words[1])
    if minutes is None:
        return None
    second, rest = words[2], words[3]
    digits = second >> _B32 << _B16
    digits |= (rest & _TWO_BYTES) << _B48
    sizes: np.ndarray | int = SIZE
    is_with = _is(second, _SECOND_WITH_FRACTION)
    is_with &= _is(rest, _END_OF_FRACTION)
    if not is_with.all():
        whole = np.flatnonzero(~is_with)
        if not bool(_is(second[whole], _WHOLE_SECOND).all()):
            return None
        digits[whole] = ZEROS << _B16
        sizes = np.full(len(digits), SIZE)
        sizes[whole] = WHOLE
    digits |= second >> _B8 & _TWO_BYTES
    digits ^= ZEROS
    within = eight_digits(digits)
    if within is None or int(within.max()) >= _MINUTE_MICROS:
        return None
    return Moments(minutes + within.view(np.int64), sizes)


def _is(words: np.ndarray, pattern: tuple[np.uint64, np.uint64]) -> np.ndarray:
    mask, wanted = pattern
    found: np.ndarray = words & mask == wanted
    return found


def _minutes(first: np.ndarray, second: np.ndarray) -> np.ndarray | None:
    """The moments at which their minutes began, if they change seldom enough."""
    differs = first[1:] != first[:-1]
    differs |= second[1:] != second[:-1]
    starts = np.concatenate(([0], np.flatnonzero(differs) + 1))
    if len(starts) * _ROWS_PER_RUN > max(len(first), _ROWS_PER_RUN):
        return None
    try:
        began = [_minute(first[at].tobytes() + second[at].tobytes()) for at in starts]
    except ValueError:
        return None
    return np.repeat(np.array(began, np.int64), np.diff(starts, append=len(first)))


@lru_cache(maxsize=1024)
def _minute(text: bytes) -> int:
    """Strictly: `fromisoformat` would take a blank for the T, or a week for the day."""
    return (datetime.strptime(text.decode("ascii") + "Z", "%Y-%m-%dT%H:%M%z") - _EPOCH) // timedelta(microseconds=1)
