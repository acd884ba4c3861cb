"""Decimal digits of many rows at once: numbers out of words of eight characters.

A value of up to sixteen characters is one word or two, the first character in the lowest byte. Without the bits of `0`, and
moved up until its last character is the highest byte, what stands below is nothing, and eight digits become a number in three
multiplications:

    "1234"  →  01 02 03 04 and what follows  →  0 0 0 0 1 2 3 4  →  pairs 0 0 12 34  →  0 1234  →  1234

Whatever is not only digits (a sign, a longer number) gives None: then Arrow parses the column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WORD = 8  # bytes looked at together
DIGITS = 2 * WORD  # of the longest number that is read here
_BIT = 8  # bits of a character


def _each(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * WORD, "little"))


_ALL, _FULL = np.uint64(2**64 - 1), np.uint64(64)
ZEROS, _HIGH_NIBBLES, _SIXES = map(_each, (0x30, 0xF0, 0x06))
_POINT = np.uint64(ord(".") ^ ord("0"))
_HUNDRED_MILLIONS = np.uint64(10**8)
# Neighbours become one number: digits become pairs, pairs fours, fours all eight. How far apart, the factor, what stays.
_STEPS = [
    (np.uint64(8), np.uint64(10 << 8 | 1), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(16), np.uint64(100 << 16 | 1), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(32), np.uint64(10_000 << 32 | 1), np.uint64(0x00000000FFFFFFFF)),
]

Words = Sequence[np.ndarray]  # eight characters, or sixteen: as many as the longest number needs


def whole(words: Words, sizes: np.ndarray) -> np.ndarray | None:
    """Numbers of `sizes` digits, as int64."""
    if int(sizes.min()) < 1 or int(sizes.max()) > len(words) * WORD:
        return None
    return _number(_aligned(words, sizes))


def fixed(words: Words, sizes: np.ndarray, scale: int) -> np.ndarray | None:
    """Numbers with `scale` digits after their point, times ten to the power of `scale`."""
    if scale == 0:
        return whole(words, sizes)
    if scale >= WORD or int(sizes.min()) < scale + 2 or int(sizes.max()) > len(words) * WORD:
        return None
    aligned = _aligned(words, sizes)
    last = aligned[-1]
    if not bool((last >> np.uint64(_BIT * (WORD - 1 - scale)) & np.uint64(0xFF) == _POINT).all()):
        return None
    behind = ~(_ALL >> np.uint64(_BIT * scale))  # the bytes after the point; those before it are moved up over it
    moved = [word << np.uint64(_BIT) for word in aligned]
    if len(aligned) > 1:
        moved[-1] |= aligned[0] >> np.uint64(_BIT * (WORD - 1))
    moved[-1] &= ~behind
    moved[-1] |= last & behind
    return _number(moved)


def _aligned(words: Words, sizes: np.ndarray) -> list[np.ndarray]:
    """Digits as their values, the last in the highest byte. A shift by 64 or more gives nothing, as numpy defines it."""
    up = ((len(words) * WORD - sizes) * _BIT).astype(np.uint64)
    low = words[0] ^ ZEROS
    if len(words) == 1:
        return [low << up]
    return [low << up, (words[1] ^ ZEROS) << up | low >> (_FULL - up) | low << (up - _FULL)]


def _number(words: list[np.ndarray]) -> np.ndarray | None:
    found = eight_digits(words[-1])
    if found is not None and len(words) > 1:
        first = eight_digits(words[0])
        found = None if first is None else first * _HUNDRED_MILLIONS + found
    return None if found is None else found.view(np.int64)


def eight_digits(digits: np.ndarray) -> np.ndarray | None:
    """What eight digits say that were characters without the bits of `0`. In place: fresh arrays cost as much as the sums."""
    wrong = digits + _SIXES
    wrong |= digits
    if np.bitwise_or.reduce(wrong) & _HIGH_NIBBLES:
        return None
    for shift, factor, mask in _STEPS:
        digits *= factor
        digits >>= shift
        digits &= mask
    return digits
