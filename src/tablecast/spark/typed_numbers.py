"""Decimal digits of many rows at once: numbers out of words of eight characters.

A value of up to sixteen characters is two words, the first character in the lowest byte. Moved up until its last
character is the highest byte, what stands below is nothing, and eight digits become a number in three multiplications:

    "1234"  →  00 00 00 00 31 32 33 34  →  nibbles 0 0 0 0 1 2 3 4  →  pairs 0 0 12 34  →  0 1234  →  1234

Whatever is not only digits (a sign, a longer number) gives None: then Arrow parses the column.
"""

from __future__ import annotations

import numpy as np

DIGITS = 16  # of the longest number that is read here
_WORD = 8
_BIT = 8  # bits of a character


def _each(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * _WORD, "little"))


_ALL, _FULL = np.uint64(2**64 - 1), np.uint64(64)
ZEROS, _HIGH_NIBBLES, _NIBBLES, _SIXES, _SIXTEENS = map(_each, (0x30, 0xF0, 0x0F, 0x06, 0x10))
_HUNDRED_MILLIONS = np.uint64(10**8)
# Neighbours become one number: digits become pairs, pairs fours, fours all eight. Factor, how far apart, what stays.
_STEPS = [
    (np.uint64(10), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(100), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(10_000), np.uint64(32), np.uint64(0x00000000FFFFFFFF)),
]

Words = tuple[np.ndarray, np.ndarray]  # sixteen characters: the first eight, and the others


def whole(words: Words, sizes: np.ndarray) -> np.ndarray | None:
    """Numbers of `sizes` digits, as int64."""
    if not _fit(sizes):
        return None
    return _number(_aligned(words, sizes), sizes)


def fixed(words: Words, sizes: np.ndarray, scale: int) -> np.ndarray | None:
    """Numbers with `scale` digits after their point, times ten to the power of `scale`."""
    if scale == 0:
        return whole(words, sizes)
    if scale >= _WORD or not _fit(sizes) or int(sizes.min()) < scale + 2:
        return None
    low, high = _aligned(words, sizes)
    point = np.uint64(_BIT * (_WORD - 1 - scale))
    if not bool((high >> point & np.uint64(0xFF) == np.uint64(ord("."))).all()):
        return None
    behind = np.uint64(_BIT * (scale + 1))
    before = low << behind, high << behind | low >> (_FULL - behind)  # what stands before the point, moved up over it
    number = _number((before[0], before[1]), sizes - (scale + 1))
    part = _number((np.zeros_like(high), high & ~(_ALL >> np.uint64(_BIT * scale))), np.full_like(sizes, scale))
    return None if number is None or part is None else number * 10**scale + part


def _fit(sizes: np.ndarray) -> bool:
    return int(sizes.min()) > 0 and int(sizes.max()) <= DIGITS


def _aligned(words: Words, sizes: np.ndarray) -> Words:
    """The last character in the highest byte. A shift by 64 or more gives nothing, as numpy defines it."""
    low, high = words
    up = ((DIGITS - sizes) * _BIT).astype(np.uint64)
    return low << up, high << up | low >> (_FULL - up) | low << (up - _FULL)


def _number(words: Words, sizes: np.ndarray) -> np.ndarray | None:
    low, high = words
    last = _eight(high, np.minimum(sizes, _WORD))
    if last is None:
        return None
    if int(sizes.max()) <= _WORD:
        return last.astype(np.int64)
    first = _eight(low, np.maximum(sizes - _WORD, 0))
    return None if first is None else (first * _HUNDRED_MILLIONS + last).astype(np.int64)


def _eight(word: np.ndarray, sizes: np.ndarray) -> np.ndarray | None:
    """What `sizes` characters in the highest bytes say."""
    nibbles = word & _NIBBLES
    wrong = _ALL << ((_WORD - sizes) * _BIT).astype(np.uint64)  # the bytes that must be digits
    wrong &= ZEROS
    return _summed(word, nibbles, wrong)


def eight_digits(word: np.ndarray) -> np.ndarray | None:
    """What eight characters say."""
    return _summed(word, word & _NIBBLES, np.full_like(word, ZEROS))


def _summed(word: np.ndarray, nibbles: np.ndarray, wrong: np.ndarray) -> np.ndarray | None:
    """`wrong` begins as the high nibbles that there must be. In place: fresh arrays cost as much as the sums."""
    wrong ^= word & _HIGH_NIBBLES
    wrong |= (nibbles + _SIXES) & _SIXTEENS
    if wrong.any():
        return None
    for factor, shift, mask in _STEPS:
        next_ones = nibbles >> shift
        nibbles *= factor
        nibbles += next_ones
        nibbles &= mask
    return nibbles
