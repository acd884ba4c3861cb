"""What rows were before a commit: gathered while it is decided, for the tables whose changes are kept.

The writer owns a `ChangeIndex`: which tables are kept, since which commit, and how many bytes of change records each was
given. A pending commit owns an `Undo`: for each such table the rows that it touches, as they were before its first touch.
Tables that are not kept cost a lookup in a dict per run, and a database without any costs nothing.

Not every commit is listed. One that changes very much of a table, or a sealed load, whose rows nobody looked at, would
cost more to list than whoever was away pays for fetching again. Then the table's changes are kept from that commit on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import ChangeStart
from tablecast.codec.changes import Befores, encode_changes, image_bytes, pieces
from tablecast.engine.bounds import KeyBounds
from tablecast.engine.catalog import Catalog, Table
from tablecast.model.change import ChangeRun, Op
from tablecast.storage.base import Batch, Family, Store

MAX_LISTED_CHANGES = 100_000  # rows of one table in one commit; beyond, fetching the table again is the cheaper way
MAX_LISTED_BYTES = 32 * 2**20  # of before images, likewise: what a commit writes is held in memory until it is written


@dataclass(slots=True)
class KeptTable:
    """Where a table's kept changes begin, and how many bytes of records it was ever given."""

    start: ChangeStart
    bytes_end: int

    @property
    def bytes(self) -> int:
        return self.bytes_end - self.start.bytes_before


class ChangeIndex:
    """Every kept table. Only the writer changes it, always before the store: a reader that looked at the store and then
    finds its commit still kept here has missed nothing."""

    def __init__(self) -> None:
        self.tables: dict[int, KeptTable] = {}

    def put(self, batch: Batch, table_id: int, seq: int, ts_ms: int, befores: Befores, size: int) -> None:
        """`size` is that of the before images."""
        kept = self.tables[table_id]
        for number, piece in enumerate(pieces(befores, size)):
            value = encode_changes(ts_ms, kept.bytes_end, piece)
            batch.put(Family.CHANGES, keys.change_key(table_id, seq, number), value)
            kept.bytes_end += len(value)

    def begin(self, batch: Batch, table_id: int, start: ChangeStart) -> None:
        """Changes up to `start.from_seq` are no longer kept; of a table that was not kept, later ones are from now on."""
        kept = self.tables.get(table_id)
        if kept is None:
            self.tables[table_id] = KeptTable(start, start.bytes_before)
        else:
            kept.start = start
        first, end = keys.table_prefix(table_id), keys.change_key(table_id, start.from_seq + 1)
        batch.delete_range(Family.CHANGES, first, end)
        batch.put(Family.META, records.change_start_key(table_id), records.encode_record(start))

    def begin_anew(self, batch: Batch, table_id: int, seq: int) -> None:
        """Nothing up to `seq` is kept: that commit could not be listed."""
        self.begin(batch, table_id, ChangeStart(seq, self.tables[table_id].bytes_end))

    def end(self, batch: Batch, table_id: int) -> None:
        """The table's changes are not kept any more."""
        self.tables.pop(table_id, None)
        prefix = keys.table_prefix(table_id)
        batch.delete_range(Family.CHANGES, prefix, keys.table_prefix(table_id + 1))
        batch.delete(Family.META, records.change_start_key(table_id))


Listed = dict[bytes, bytes | None]  # storage key -> stored value before the commit, in the order of the first touch


class Undo:
    """The before images of one commit."""

    def __init__(self, store: Store, bounds: KeyBounds, index: ChangeIndex) -> None:
        self._store = store
        self._bounds = bounds
        self._kept = index.tables
        self.listed: dict[int, Listed] = {}
        self._left_out: set[int] = set()

    def look(self, catalog: Catalog, runs: list[ChangeRun], expired: Mapping[bytes, bytes]) -> dict[int, Listed | None]:
        """What these rows were, as far as this commit has not touched them before; None for too much. Only reads."""
        gone: dict[int, Listed] = {}
        for key, value in expired.items():
            if self._lists(table_id := int.from_bytes(key[:4], "big")):
                gone.setdefault(table_id, {})[key] = value
        found: dict[int, Listed | None] = {**gone}
        for run in runs:
            if self._lists(run.table_id):
                found[run.table_id] = self._with_run(catalog.tables[run.table_id], run, found.get(run.table_id, {}))
        return found

    def _lists(self, table_id: int) -> bool:
        return table_id in self._kept and table_id not in self._left_out

    def _with_run(self, table: Table, run: ChangeRun, mine: Listed | None) -> Listed | None:
        if mine is None:
            return None
        known = self.listed.get(run.table_id, {})
        fresh = [key for key in run.keys if key not in known and key not in mine] if known or mine else run.keys
        if len(known) + len(mine) + len(fresh) > MAX_LISTED_CHANGES:
            return None
        if fresh and self._were_absent(table, run, fresh):
            mine.update(dict.fromkeys(fresh))
        else:
            mine.update(zip(fresh, self._store.get_many(Family.ROWS, fresh), strict=True))
        return mine

    def _were_absent(self, table: Table, run: ChangeRun, fresh: list[bytes]) -> bool:
        """Of a table without a TTL an insert says so; else it may meet a row whose time is over, which is still there."""
        if run.op is not Op.INSERT:
            return False
        return table.ttl_ms is None or self._bounds.are_beyond(table.codec.prefix(run.user_id), min(fresh))

    def take(self, found: Mapping[int, Listed | None]) -> None:
        for table_id, mine in found.items():
            if mine is None:
                self._leave_out(table_id)
            elif (listed := self.listed.get(table_id)) is None:
                self.listed[table_id] = mine
            else:
                listed.update(mine)

    def close(self) -> Iterator[tuple[int, Listed, int]]:
        """What is listed of each table, and its bytes. What turned out to be too much is left out."""
        for table_id, listed in list(self.listed.items()):
            size = image_bytes(listed)
            if size > MAX_LISTED_BYTES:
                self._leave_out(table_id)
            else:
                yield table_id, listed, size

    def _leave_out(self, table_id: int) -> None:
        self._left_out.add(table_id)
        self.listed.pop(table_id, None)
