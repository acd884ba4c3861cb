"""Which keys of a table were written while somebody checks, outside of the writer, that others are free.

A sealed load looks for its keys in the table before it asks the writer to commit: there may be millions. Rows that are
written meanwhile would escape it. So it first opens a guard, at a commit's boundary: from then on every key written to
the table is noted, and what the guard noted is compared last, in the writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tablecast.engine.decision import Decision, View

MAX_GUARDED_KEYS = 2_000_000  # noted for one load; beyond, its check is out of date and is made again


@dataclass(slots=True, eq=False)
class Guard:
    table_id: int
    _noted: list[bytes] = field(default_factory=list)
    overrun: bool = False

    def note(self, keys: Sequence[bytes]) -> None:
        if self.overrun or len(self._noted) + len(keys) > MAX_GUARDED_KEYS:
            self.overrun = True
            self._noted.clear()
        else:
            self._noted += keys

    def take(self) -> list[bytes]:
        """What was noted since it was last asked. Safe beside `note`: one of the two lists gets each key."""
        noted, self._noted = self._noted, []
        return noted


class Guards:
    """Owned by the writer: only its deciding thread notes."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Guard, ...]] = {}

    def note(self, table_id: int, keys: Sequence[bytes]) -> None:
        for guard in self._open.get(table_id, ()):
            guard.note(keys)

    def add(self, guard: Guard) -> None:
        self._open[guard.table_id] = (*self._open.get(guard.table_id, ()), guard)

    def remove(self, guard: Guard) -> None:
        left = tuple(kept for kept in self._open.get(guard.table_id, ()) if kept is not guard)
        if left:
            self._open[guard.table_id] = left
        else:
            self._open.pop(guard.table_id, None)


@dataclass(slots=True)
class ChangeGuard:
    """Opens or closes a guard between two commits: all rows of earlier ones are in the store, all later are noted."""

    guards: Guards
    guard: Guard
    opens: bool
    weight: int = 1
    alone = True

    def decide(self, view: View) -> Decision:
        if self.opens:
            self.guards.add(self.guard)
        else:
            self.guards.remove(self.guard)
        return Decision()
