"""Cutting a range of keys into parts with about as many keys each, by looking at few of them.

Nothing knows how many keys lie between two. A short range is simply read. A long one is seen as a tree: keys that begin
alike, half a byte at a time. How many keys are below a branch is guessed by walking down from it to a place where they
can be counted, taking any one of the branches at each fork and multiplying by their number; on average that is right.
The heaviest branches are opened, guessed and opened again, until none weighs much beside a part; then they are dealt
out, in key order. That costs some thousand seeks, however many keys there are, and it follows any distribution:
numbers in sequence, random UUIDs as text, or few tenants of which one has nearly all rows.
"""

from __future__ import annotations

import heapq
from itertools import islice
from random import Random
from typing import NamedTuple

from tablecast.storage.base import Family, Reader

EXACT_KEYS = 200_000  # up to here reading all keys costs less than guessing
COUNTED_KEYS = 32  # a branch with fewer keys is counted when a walk comes to it
FEW_KEYS = 4  # one with fewer is counted when it is found
BRANCHES_PER_PART = 8  # how much finer the guess is than what it is for
MIN_OPENED = 24  # before guesses are believed: a walk seldom meets the one fork of many that has nearly all keys
MAX_OPENED = 4_000  # branches opened at most: bounds the time, about a millisecond each


class _Branch(NamedTuple):
    """Keys first <= key < high; there is one at `first`. `count` is how many, or None: FEW_KEYS or more."""

    first: bytes
    high: bytes | None
    count: int | None = None  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


def split_keys(reader: Reader, family: Family, start: bytes, end: bytes | None, parts: int) -> list[bytes]:
    """At most parts - 1 keys between start and end, ascending: where the second part begins, the third, and so on."""
    if parts < 2:
        return []
    few = [key for key, _ in islice(reader.scan(family, start, end), EXACT_KEYS)]
    if len(few) < EXACT_KEYS:
        return sorted({few[len(few) * i // parts] for i in range(1, parts)} - {few[0]}) if few else []
    return _Splitting(reader, family).split(_Branch(few[0], end), parts)


class _Splitting:
    def __init__(self, reader: Reader, family: Family) -> None:
        self._reader = reader
        self._family = family
        self._any = Random(0)  # the same table is cut in the same way each time

    def split(self, whole: _Branch, parts: int) -> list[bytes]:
        weighed = sorted(self._weighed(whole, parts))
        total = sum(weight for _, weight in weighed)
        cuts: list[bytes] = []
        passed = 0.0
        for first, weight in weighed:
            # Cut before a branch if the middle of it lies beyond the place: so the error is half a branch at most.
            if len(cuts) < parts - 1 and passed + weight / 2 >= total * (len(cuts) + 1) / parts and passed:
                cuts.append(first)
            passed += weight
        return cuts

    def _weighed(self, whole: _Branch, parts: int) -> list[tuple[bytes, float]]:
        """(first key, weight) of branches that together are the whole."""
        total = self._guess(whole)
        heap = [(-total, whole)]
        for opened in range(MAX_OPENED):
            enough = total / (parts * BRANCHES_PER_PART) if opened >= MIN_OPENED else 0
            if -heap[0][0] <= max(enough, COUNTED_KEYS):
                break
            weight, branch = heapq.heappop(heap)
            total += weight  # which is negative, for a heap gives the least first
            for below in self._below(branch):
                guessed = self._guess(below)
                total += guessed
                heapq.heappush(heap, (-guessed, below))
        return [(branch.first, -weight) for weight, branch in heap]

    def _guess(self, branch: _Branch) -> float:
        """How many keys there may be, by one walk down."""
        if branch.count is not None:
            return branch.count
        guessed, factor = 0.0, 1
        while len(found := self._first_keys(branch.first, branch.high, COUNTED_KEYS)) == COUNTED_KEYS:
            below = self._below(branch)
            large = [each for each in below if each.count is None]
            guessed += factor * sum(each.count for each in below if each.count is not None)
            if not large:
                return guessed
            # A branch of a few keys that stands for all its neighbours, or is stood for by one, spoils the guess.
            factor *= len(large)
            branch = self._any.choice(large)
        return guessed + factor * len(found)

    def _below(self, branch: _Branch) -> list[_Branch]:
        """The branches that this one forks into."""
        last = next(iter(self._reader.scan(self._family, branch.first, branch.high, reverse=True)))[0]
        fork = _fork(branch.first, last)
        below: list[_Branch] = []
        start = branch.first
        while start <= last:
            found = self._first_keys(start, branch.high, FEW_KEYS)
            start = _after_half(found[0], fork)
            count = sum(key < start for key in found)
            below.append(_Branch(found[0], start, count if count < FEW_KEYS else None))
        return below

    def _first_keys(self, start: bytes, end: bytes | None, count: int) -> list[bytes]:
        return [key for key, _ in islice(self._reader.scan(self._family, start, end), count)]


def _fork(first: bytes, last: bytes) -> int:
    """The number of half bytes that two keys, and so all between them, begin with alike."""
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    if same >= len(first) or same >= len(last):
        return 2 * same
    return 2 * same + (first[same] >> 4 == last[same] >> 4)


def _after_half(key: bytes, fork: int) -> bytes:
    """The least key that begins like `key` up to the fork and has a greater half byte there."""
    at, is_low_half = divmod(fork, 2)
    byte = key[at] if at < len(key) else 0
    stem = int.from_bytes(key[:at], "big") * 256 + byte
    step = 1 if is_low_half else 16
    value = (stem // step + 1) * step
    return value.to_bytes(at + 2, "big")[1:] if value < 256 ** (at + 1) else b"\xff" * (len(key) + 1)
