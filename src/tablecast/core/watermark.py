"""Which events of a node were taken in already: a set of numbers, kept as spans.

Events come almost in order and almost without gaps, so a node's numbers are one span, or a few while something is
missing. A gap may also stay: a number that its writer used for an event over the limit, or the step to a new epoch.

The set is bounded. When it has too many spans the lowest is forgotten, never the gap above it filled: an event that is
taken for new is compared by its version and changes nothing, one that is taken for seen would be lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

MAX_SPANS: Final = 256  # of one node; about 5 KB, written with every commit that takes in events of the node

Span = tuple[int, int]  # the first and the last number, both in it


class Watermark:
    """Spans in ascending order that neither overlap nor touch."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.changed = False
        for first, last in spans:
            self._firsts.append(first)
            self._lasts.append(last)

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(zip(self._firsts, self._lasts, strict=True))

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq) - 1
        return at >= 0 and seq <= self._lasts[at]

    def add(self, seq: int) -> bool:
        """Whether the number is new."""
        at = bisect_right(self._firsts, seq)  # the span that begins after it
        if at and seq <= self._lasts[at - 1]:
            return False
        self.changed = True
        joins_below = at > 0 and self._lasts[at - 1] == seq - 1
        joins_above = at < len(self._firsts) and self._firsts[at] == seq + 1
        if joins_below and joins_above:
            self._lasts[at - 1] = self._lasts.pop(at)
            del self._firsts[at]
        elif joins_below:
            self._lasts[at - 1] = seq
        elif joins_above:
            self._firsts[at] = seq
        else:
            self._insert(at, seq)
        return True

    def _insert(self, at: int, seq: int) -> None:
        self._firsts.insert(at, seq)
        self._lasts.insert(at, seq)
        if len(self._firsts) > MAX_SPANS:
            del self._firsts[0], self._lasts[0]
