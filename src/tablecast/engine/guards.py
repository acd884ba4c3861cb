"""Which keys of a table were written while somebody works on what it held, outside of the writer.

A sealed load looks for its keys in the table before it asks the writer to commit: there may be millions. Rows that are
written meanwhile would escape it. So it first opens a guard, at a commit's boundary: from then on every key inserted
into the table is noted, and what the guard noted is compared last, in the writer. A backfill tells rows of a snapshot,
which are no longer what they were if they are written before its commit: its guard notes every key that is written,
however, and what was noted is told again.

The rows of a sealed load are in no run of changes, and too many to note: a guard notes between which keys they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tablecast.engine.decision import Decision, View
from tablecast.model.change import Op

MAX_GUARDED_KEYS = 2_000_000  # noted for one load; beyond, its check is out of date and is made again

KeyRange = tuple[bytes, bytes]  # the first key and the last


class Guard(Protocol):
    """Only the writer's deciding thread notes."""

    @property
    def table_id(self) -> int: ...
    def note(self, op: Op, keys: Sequence[bytes]) -> None: ...
    def note_load(self, between: KeyRange) -> None: ...


@dataclass(slots=True, eq=False)
class InsertGuard:
    """Notes inserts: a key that is updated or deleted was there before, where a check finds it."""

    table_id: int
    loads: list[KeyRange] = field(default_factory=list)
    overrun: bool = False
    _noted: list[bytes] = field(default_factory=list)

    def note(self, op: Op, keys: Sequence[bytes]) -> None:
        if op is not Op.INSERT:
            return
        if self.overrun or len(self._noted) + len(keys) > MAX_GUARDED_KEYS:
            self.overrun = True
            self._noted.clear()
        else:
            self._noted += keys

    def note_load(self, between: KeyRange) -> None:
        self.loads.append(between)

    def take(self) -> list[bytes]:
        """What was noted since it was last asked. Safe beside `note`: one of the two lists gets each key."""
        noted, self._noted = self._noted, []
        return noted


@dataclass(slots=True, eq=False)
class ChangeGuard:
    """Notes every key that is written. Its sets belong to the deciding thread."""

    table_id: int
    overrun: bool = False  # by too many keys, or by a load
    noted: set[bytes] = field(default_factory=set)  # since `take` was last asked
    _earlier: set[bytes] = field(default_factory=set)

    def note(self, op: Op, keys: Sequence[bytes]) -> None:
        if self.overrun:
            return
        self.noted.update(keys)
        if len(self.noted) + len(self._earlier) > MAX_GUARDED_KEYS:
            self._give_up()

    def note_load(self, between: KeyRange) -> None:
        self._give_up()

    def _give_up(self) -> None:
        self.overrun, self.noted, self._earlier = True, set(), set()

    def take(self, *, everything: bool) -> set[bytes]:
        """What was noted since it was last asked, or since the guard was opened."""
        taken = self.noted | self._earlier if everything else self.noted
        self._earlier |= self.noted
        self.noted = set()
        return taken


class Guards:
    """Owned by the writer."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Guard, ...]] = {}

    def note(self, table_id: int, op: Op, keys: Sequence[bytes]) -> None:
        for guard in self._open.get(table_id, ()):
            guard.note(op, keys)

    def note_load(self, table_id: int, between: KeyRange) -> None:
        for guard in self._open.get(table_id, ()):
            guard.note_load(between)

    def add(self, guard: Guard) -> None:
        self._open[guard.table_id] = (*self._open.get(guard.table_id, ()), guard)

    def remove(self, guard: Guard) -> None:
        left = tuple(kept for kept in self._open.get(guard.table_id, ()) if kept is not guard)
        if left:
            self._open[guard.table_id] = left
        else:
            self._open.pop(guard.table_id, None)


@dataclass(slots=True)
class SetGuard:
    """Opens or closes a guard between two commits: all rows of earlier ones are in the store, all later are noted. When
    it is answered, what is published shows those rows too."""

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


@dataclass(slots=True)
class TakeNoted:
    """`ChangeGuard.take` between two commits: when it is answered, what is published shows all that was noted."""

    guard: ChangeGuard
    everything: bool
    weight: int = 1
    alone = True

    def decide(self, view: View) -> Decision:
        return Decision(self.guard.take(everything=self.everything))
