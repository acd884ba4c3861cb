"""The rows of a live query, kept by folding its steps.

Readers see whole commits only, and what they have got does not change under them: rows that were given out are copied
before the next step is folded in. While initial rows come, first or again, the rows before them stay.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tablecast.model.change import Op
from tablecast.model.live import LiveStep, Values


class KeptRows(NamedTuple):
    """Rows by key, as of commit `seq`."""

    rows: Mapping[Values, Values]
    seq: int


class LiveRows:
    """One thread folds, any thread reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[Values, Values] = {}
        self._seq = 0
        self._is_given = False  # `_rows` is in somebody's hands
        self._coming: dict[Values, Values] | None = {}  # initial rows, not all of them yet
        self.version = 0  # counts whole states that differ from the one before; 0 until there is one

    def kept(self) -> KeptRows:
        with self._lock:
            self._is_given = True
            return KeptRows(MappingProxyType(self._rows), self._seq)

    @property
    def seq(self) -> int:
        return self._seq

    def fold(self, step: LiveStep) -> None:
        with self._lock:
            if step.changes and step.changes[0].reset:
                self._coming = {}
                return
            if self._coming is not None:
                _apply(step, self._coming)
                if step.whole:
                    self._replace(self._coming, step.seq)
                    self._coming = None
            elif step.changes:
                rows = dict(self._rows) if self._is_given else self._rows
                _apply(step, rows)
                self._replace(rows, step.seq)

    def _replace(self, rows: dict[Values, Values], seq: int) -> None:
        self._rows, self._seq, self._is_given = rows, seq, False
        self.version += 1


def _apply(step: LiveStep, rows: dict[Values, Values]) -> None:
    for change in step.changes:
        if change.op is Op.DELETE:
            rows.pop(change.key, None)  # with LIMIT a row may go that was never told
        elif change.row is not None:
            rows[change.key] = change.row
