"""Which tables' changes are kept, and for how long.

They are kept of tables that live queries read, from the first one on: `KeepChanges`. A job lets go of what is too old or
too much, by range (`TrimChanges`), and forgets the table (`StopChanges`) when nobody has used its changes for as long as
they would be kept. Who used what is not stored: after opening every kept table counts as used just then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tablecast.codec import keys
from tablecast.codec.catalog import ChangeStart
from tablecast.codec.changes import ChangeHead, decode_change_head
from tablecast.core import failpoint
from tablecast.engine.decision import Decision, View
from tablecast.engine.retention import Removed
from tablecast.engine.undo import KeptTable
from tablecast.errors import UnknownTable
from tablecast.storage.base import Family, Reader

if TYPE_CHECKING:
    from tablecast.engine.decision import RowView
    from tablecast.engine.engine import Engine

CHANGES_KEPT_SECONDS = 3600  # how long somebody may be away and still go on where it was
CHANGES_MAX_BYTES = 64 * 2**20  # of one table: who comes back may have to read them all


@dataclass(slots=True)
class KeepChanges:
    """From this commit on, which it has for itself, the table's changes are kept. Answers from which commit they are."""

    table_id: int
    weight: int = 1
    alone = True

    def decide(self, view: View) -> Decision:
        if self.table_id not in view.catalog.tables:
            raise UnknownTable("the table whose changes are to be kept was dropped", table_id=self.table_id)
        kept = view.kept_changes(self.table_id)
        if kept is not None:
            return Decision(kept.start.from_seq)
        return Decision(view.seq, change_starts={self.table_id: ChangeStart(view.seq)})


@dataclass(slots=True)
class StopChanges:
    """Ends the keeping, unless the table's changes were used or something changed since that was proposed."""

    changes: KeptChanges
    table_id: int
    weight: int = 1
    alone = True

    def decide(self, view: View) -> Decision:
        kept = view.kept_changes(self.table_id)
        if kept is None or kept.bytes or not self.changes.is_unused(self.table_id):
            return Decision(Removed())
        return Decision(Removed(1), change_starts={self.table_id: None})


@dataclass(slots=True)
class TrimChanges:
    """Removes the changes of commits up to `upto`. Counts as one: to count the records would be to read them."""

    table_id: int
    upto: int
    weight: int = 1
    alone = True

    def decide(self, view: View) -> Decision:
        kept = view.kept_changes(self.table_id)
        if kept is None or not kept.start.from_seq < self.upto < view.seq:
            return Decision(Removed())
        following = first_change(view, self.table_id, self.upto + 1, view.seq)
        bytes_before = kept.bytes_end if following is None else following[1].bytes_before
        failpoint.hit("during_retention")
        return Decision(
            Removed(1, bytes_before - kept.start.bytes_before),
            change_starts={self.table_id: ChangeStart(self.upto, bytes_before)},
        )


def first_change(reader: Reader | RowView, table_id: int, start: int, end: int) -> tuple[int, ChangeHead] | None:
    """The first commit in [start, end) that changed the table."""
    for key, value in reader.scan(Family.CHANGES, keys.change_key(table_id, start), keys.change_key(table_id, end)):
        return keys.decode_change_key(key)[1], decode_change_head(value)
    return None


def last_to_go(reader: Reader, table_id: int, kept: KeptTable, end: int, *, oldest_ms: int, max_bytes: int) -> int:
    """The last commit below `end` whose changes are too old or too much; `from_seq` if there is none: a bisection."""
    low, high, bytes_end = kept.start.from_seq + 1, end, kept.bytes_end
    while low < high:
        middle = (low + high) // 2
        found = first_change(reader, table_id, middle, high)
        if found is None or (found[1].ts_ms >= oldest_ms and bytes_end - found[1].bytes_before <= max_bytes):
            high = middle
        else:
            low = found[0] + 1
    return low - 1


class KeptChanges:
    """The keeping of changes in one engine."""

    def __init__(self, engine: Engine, kept_seconds: int, max_bytes: int) -> None:
        self._engine = engine
        self._kept_ms = kept_seconds * 1000
        self._max_bytes = max_bytes
        self._used_ms: dict[int, int] = {}

    def keep(self, table_id: int) -> int:
        self.use(table_id)
        start = self.start(table_id)
        if start is not None and start <= self._engine.seq:  # else it is being decided, and not durable yet
            return start
        answer: int = self._engine.execute(KeepChanges(table_id))
        return answer

    def use(self, table_id: int) -> None:
        self._used_ms[table_id] = self._engine.now_ms()

    def is_unused(self, table_id: int) -> bool:
        now_ms = self._engine.now_ms()
        return now_ms - self._used_ms.setdefault(table_id, now_ms) >= self._kept_ms

    def start(self, table_id: int) -> int | None:
        kept = self._engine.change_index.tables.get(table_id)
        return None if kept is None else kept.start.from_seq

    def sweep(self) -> Iterator[Removed]:
        """The job."""
        engine = self._engine
        for table_id, kept in list(engine.change_index.tables.items()):
            oldest_ms = engine.now_ms() - self._kept_ms
            upto = last_to_go(
                engine.store, table_id, kept, engine.seq + 1, oldest_ms=oldest_ms, max_bytes=self._max_bytes
            )
            if upto > kept.start.from_seq:
                yield engine.execute(TrimChanges(table_id, upto))
            if not kept.bytes and self.is_unused(table_id):
                yield engine.execute(StopChanges(self, table_id))
        for table_id in self._used_ms.keys() - engine.change_index.tables.keys():
            self._used_ms.pop(table_id, None)
