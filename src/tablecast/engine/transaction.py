"""Transactions: snapshot isolation, first committer wins.

A transaction reads the snapshot it began with, its own writes laid over it. Statements are decided at once, by the same
code as everywhere, against that private view; nothing is shared before COMMIT, which sends all of it to the writer as
one command. There each row written must still be the one that the transaction saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tablecast.codec.rows import row_header
from tablecast.engine.catalog import Catalog
from tablecast.engine.overlay import merged
from tablecast.engine.rows import CommitTransaction, RowCommand, Written
from tablecast.errors import TooLarge
from tablecast.model.change import ChangeRun, Op
from tablecast.storage.base import Family, Snapshot

MAX_TRANSACTION_ROWS = 1_000_000  # changes held in memory until COMMIT


class Transaction:
    """Implements `RowView` for its own statements. Used by one session at a time."""

    def __init__(self, snapshot: Snapshot, catalog: Catalog, seq: int, now_ms: int) -> None:
        self._snapshot = snapshot
        self.catalog = catalog
        self.seq = seq
        self.ts_ms = now_ms
        self._overlay: dict[bytes, bytes | None] = {}
        self._touched: dict[bytes, int | None] = {}
        self._runs: list[ChangeRun] = []
        self._changes = 0
        self.nbytes = 0  # of the keys and rows that were written

    def execute(self, command: RowCommand) -> Written:
        decision = command.decide(self)
        for run in decision.runs:
            self._take(run)
        written: Written = decision.response
        written.seq = None  # there is no commit yet
        return written

    def _take(self, run: ChangeRun) -> None:
        self._changes += len(run.keys)
        if self._changes > MAX_TRANSACTION_ROWS:
            raise TooLarge(f"a transaction changes at most {MAX_TRANSACTION_ROWS} rows; commit in smaller parts")
        header = row_header(self.seq, self.ts_ms)
        table = self.catalog.tables[run.table_id]
        encode = table.codec.encode
        for i, key in enumerate(run.keys):
            if key not in self._touched:
                found = self._snapshot.get(Family.ROWS, key)
                self._touched[key] = None if found is None else table.stamp(found)[0]
            value = None if run.op is Op.DELETE else header + encode(run.after[i])
            self._overlay[key] = value
            self.nbytes += len(key) + len(value or b"")
        self._runs.append(run)

    def commit_command(self) -> CommitTransaction | None:
        """What to send to the writer; None if nothing was written."""
        return CommitTransaction(self._runs, self._touched) if self._runs else None

    # --- RowView ---

    def get(self, family: Family, key: bytes) -> bytes | None:
        if family is Family.ROWS and key in self._overlay:
            return self._overlay[key]
        return self._snapshot.get(family, key)

    def are_new(self, prefix: bytes, lowest: bytes, keys: Sequence[bytes]) -> bool:
        return False

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(family, key) for key in keys]

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        if family is not Family.ROWS or not self._overlay or floor:
            return self._snapshot.scan(family, start, end, reverse=reverse, floor=floor)
        found = merged(self._snapshot, self._overlay, family, start, end)
        return iter(list(found)[::-1]) if reverse else found
