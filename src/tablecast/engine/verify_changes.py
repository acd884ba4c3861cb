"""Proves a table's kept changes sound (engine.changes), as part of `verify`.

A record says what rows were before its commit, and every stored row says which commit wrote it. So each row's commits
form a chain, in which every link is told twice:

    row before, of commit p        in the record of commit q > p        which is the row's next record after p
    row now, of commit r           r is the commit of the row's last record

A row before that was written after the index begins must have a record of just that commit; one written earlier must be the
first of its row in the index. The same holds for the row as it is now: no commit after the beginning wrote a row without
listing it. What cannot be proven: that a row which is gone was there (its last record tells it, and nothing else does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import ChangeStart, decode_record
from tablecast.codec.changes import decode_change_head, decode_changes
from tablecast.engine.catalog import Catalog, Table
from tablecast.storage.base import Family, Reader

Bad = Callable[[str], None]


def check_changes(reader: Reader, catalog: Catalog, last_seq: int, bad: Bad) -> int:
    """Tells `bad` whatever is wrong. Returns how many changes there are."""
    starts: dict[int, ChangeStart] = {}
    for key, value in reader.scan(Family.META, records.CHANGE_STARTS, keys.after(records.CHANGE_STARTS)):
        starts[records.decode_change_start_key(key)] = decode_record(ChangeStart, value)
    for key, _ in _stray(reader, starts):
        bad(f"there is a change record of table {keys.decode_change_key(key)[0]}, whose changes are not kept")
    count = 0
    for table_id, start in starts.items():
        table = catalog.tables.get(table_id)
        if table is None:
            bad(f"changes are kept of table {table_id}, which does not exist")
        elif start.from_seq > last_seq:
            bad(
                f"changes of {table.schema.full_name} are kept from commit {start.from_seq}, but the last is {last_seq}"
            )
        else:
            count += _TableChanges(reader, table, start, last_seq, bad).check()
    return count


def _stray(reader: Reader, starts: dict[int, ChangeStart]) -> Iterator[tuple[bytes, bytes]]:
    """The first record between two kept tables, of each such gap."""
    begin = b""
    for table_id in [*sorted(starts), None]:
        end = None if table_id is None else keys.table_prefix(table_id)
        yield from _first(reader, begin, end)
        if table_id is not None:
            begin = keys.table_prefix(table_id + 1)


def _first(reader: Reader, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    for entry in reader.scan(Family.CHANGES, start, end):
        yield entry
        return


class _TableChanges:
    def __init__(self, reader: Reader, table: Table, start: ChangeStart, last_seq: int, bad: Bad) -> None:
        self._reader = reader
        self._table = table
        self._start = start
        self._last_seq = last_seq
        self._bad = bad
        self._changed: dict[bytes, int] = {}  # key -> the last commit that a record has it of

    def check(self) -> int:
        prefix = keys.table_prefix(self._table.table_id)
        place, ts_ms, position, count = (self._start.from_seq, -1), 0, self._start.bytes_before, 0
        for key, value in self._reader.scan(Family.CHANGES, prefix, keys.after(prefix)):
            _, seq, piece = keys.decode_change_key(key)
            head = decode_change_head(value)
            self._check_place(place, (seq, piece))
            if head.bytes_before != position:
                self._say(seq, f"stands at byte {position}, its head says {head.bytes_before}")
            if head.ts_ms < ts_ms:
                self._say(seq, "is older than the one before it")
            befores = decode_changes(value)
            for row_key, before in befores.items():
                self._check_row(seq, row_key, before)
            place, ts_ms, position, count = (seq, piece), head.ts_ms, position + len(value), count + len(befores)
        self._check_now()
        return count

    def _say(self, seq: int, what: str) -> None:
        self._bad(f"the change record of {self._table.schema.full_name} in commit {seq} {what}")

    def _check_place(self, last: tuple[int, int], place: tuple[int, int]) -> None:
        seq, piece = place
        if not self._start.from_seq < seq <= self._last_seq:
            self._say(
                seq, f"is not after {self._start.from_seq}, where they begin, and up to {self._last_seq}, the last"
            )
        if place != (last[0], last[1] + 1) and (seq == last[0] or piece != 0):
            self._say(seq, f"has piece {piece} after piece {last[1]} of commit {last[0]}")

    def _check_row(self, seq: int, key: bytes, before: bytes | None) -> None:
        table, last = self._table, self._changed.get(key)
        if not key.startswith(keys.table_prefix(table.table_id)):
            self._say(seq, f"tells of a row of another table: {key.hex()}")
            return
        if last == seq:
            self._say(seq, f"tells twice of one row: {key.hex()}")
        if before is not None:
            row = table.codec.decode(before)
            if table.codec.key_of_row(table.codec.prefix(table.codec.owner(key)), row) != key:
                self._say(seq, f"has a row under another key than its own: {key.hex()}")
            self._check_link(f"the row {key.hex()} of {table.schema.full_name} before commit {seq}", before, last)
        self._changed[key] = seq

    def _check_link(self, what: str, value: bytes, last: int | None) -> None:
        written, _ = self._table.stamp(value)
        if last is None and written > self._start.from_seq:
            self._bad(f"{what} is of commit {written}, which has no change record of it")
        elif last is not None and written != last:
            self._bad(f"{what} is of commit {written}, but the last change record of it is of commit {last}")

    def _check_now(self) -> None:
        prefix = keys.table_prefix(self._table.table_id)
        for key, value in self._reader.scan(Family.ROWS, prefix, keys.after(prefix)):
            self._check_link(f"the row {key.hex()} of {self._table.schema.full_name}", value, self._changed.get(key))
