"""The writes of a history: what was asked, what became of it, and where to find it.

A write that was neither acknowledged nor refused is *unknown*: it may be there or not, but whole. When a
message shows that it is there, its commit number becomes known (`settle`), and from then on it is held to the
same rules as an acknowledged one.
"""

from __future__ import annotations

import bisect
import enum
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from tablecast.errors import CorruptData
from tablecast.testing.history.events import AnyEvent, Fail, Invoke, Ok, RowKey
from tablecast.testing.history.report import Findings, Kind, WriteFigures
from tablecast.testing.history.values import Row, contains

_number = attrgetter("number")

COMMITS = "commits"  # where a problem is that shows in the acknowledgements alone


class Outcome(enum.StrEnum):
    OK = "acknowledged"
    NOTHING = "effectless"  # acknowledged, but it changed no row
    FAILED = "refused"
    UNKNOWN = "unknown"


class Write(msgspec.Struct, eq=False, gc=False):
    """One row to be written or removed. `number` counts invocations; `seq` is the commit, once known."""

    number: int
    write_id: str
    row_key: RowKey
    op: str
    row: dict[str, Any] | None
    txn_id: str
    invoked_at: int
    outcome: Outcome = Outcome.UNKNOWN
    seq: int | None = None
    ended_at: int | None = None
    place: tuple[str, int] | None = None  # topic and offset of the first message found of it
    doubtful: bool = False  # some message is of this write or of another like it, nobody can say

    @property
    def table(self) -> str:
        return self.row_key.table

    @property
    def key(self) -> str:
        return self.row_key.key

    @property
    def user_id(self) -> str | None:
        return self.row_key.user_id

    def surely_before(self, other: Write) -> bool:
        return self.ended_at is not None and self.ended_at < other.invoked_at

    def reflected_in(self, row: Row | None) -> bool:
        """Whether the row looks as it would right after this write."""
        if self.op == "delete" or row is None:
            return self.op == "delete" and row is None
        return contains(row, self.row or {})

    def __str__(self) -> str:
        txn = f", transaction {self.txn_id!r}" if self.txn_id != self.write_id else ""
        return f"{self.outcome} write {self.write_id!r} ({self.op} {self.row_key}, seq {self.seq}{txn})"


class Writes:
    """All writes in order of invocation, and by row, by transaction, and by the commit that wrote a row."""

    def __init__(self, writes: list[Write]) -> None:
        self.all = writes
        self.by_row: defaultdict[RowKey, list[Write]] = defaultdict(list)
        self.by_txn: defaultdict[str, list[Write]] = defaultdict(list)
        self.by_commit: defaultdict[tuple[RowKey, int], list[Write]] = defaultdict(list)
        self.unknown_by_row: defaultdict[RowKey, list[Write]] = defaultdict(list)
        self.txn_seq: dict[str, int] = {}  # commit numbers of transactions, once known
        for write in writes:
            self._index(write)

    def _index(self, write: Write) -> None:
        self.by_row[write.row_key].append(write)
        self.by_txn[write.txn_id].append(write)
        if write.seq is not None:
            self._index_commit(write, write.seq)
        elif write.outcome is Outcome.UNKNOWN:
            self.unknown_by_row[write.row_key].append(write)

    def _index_commit(self, write: Write, seq: int) -> None:
        bisect.insort(self.by_commit[write.row_key, seq], write, key=_number)
        self.txn_seq.setdefault(write.txn_id, seq)

    def settle(self, write: Write, seq: int) -> None:
        """A write of unknown outcome turned out to be there, in commit `seq`."""
        write.seq = seq
        self.unknown_by_row[write.row_key].remove(write)
        self._index_commit(write, seq)

    def figures(self) -> WriteFigures:
        acknowledged = sum(write.outcome in (Outcome.OK, Outcome.NOTHING) for write in self.all)
        refused = sum(write.outcome is Outcome.FAILED for write in self.all)
        settled = sum(write.outcome is Outcome.UNKNOWN and write.seq is not None for write in self.all)
        return WriteFigures(acknowledged, refused, len(self.all) - acknowledged - refused, settled)


def read_writes(events: Iterable[AnyEvent], findings: Findings) -> Writes:
    """The writes with their outcomes, and the problems that the acknowledgements alone show."""
    by_id: dict[str, Write] = {}
    newest_seq = -1  # highest commit number acknowledged so far
    newest_at_invoke: dict[str, int] = {}
    for event in events:
        if isinstance(event, Invoke):
            _invoke(by_id, event)
            newest_at_invoke[event.write_id] = newest_seq
        elif isinstance(event, Fail):
            for write in _named(by_id, event):
                _fail(write, event)
        elif isinstance(event, Ok):
            for write in _named(by_id, event):
                _ok(write, event, newest_at_invoke[write.write_id], findings)
            newest_seq = max(newest_seq, -1 if event.seq is None else event.seq)
    writes = list(by_id.values())
    _acknowledge_whole_transactions(writes)
    return Writes(writes)


def _invoke(by_id: dict[str, Write], event: Invoke) -> None:
    if event.write_id in by_id:
        raise CorruptData(f"write {event.write_id!r} is invoked twice; a write id names one write")
    by_id[event.write_id] = Write(
        number=len(by_id),
        write_id=event.write_id,
        row_key=RowKey(event.table, event.user_id, event.key),
        op=event.op,
        row=event.row,
        txn_id=event.write_id if event.txn_id is None else event.txn_id,
        invoked_at=event.at,
    )


def _named(by_id: dict[str, Write], event: Ok | Fail) -> list[Write]:
    try:
        return [by_id[write_id] for write_id in event.write_ids]
    except KeyError as error:
        raise CorruptData(f"write {error.args[0]!r} has an outcome but was never invoked") from None


def _fail(write: Write, event: Fail) -> None:
    if write.outcome is Outcome.UNKNOWN:  # a request that was sent again may be refused once and acknowledged once
        write.outcome, write.ended_at = Outcome.FAILED, event.at


def _ok(write: Write, event: Ok, newest_at_invoke: int, findings: Findings) -> None:
    if write.outcome in (Outcome.OK, Outcome.NOTHING):
        if write.seq != event.seq:
            findings.add(Kind.DUPLICATED, COMMITS, f"{write} was acknowledged again with seq {event.seq}")
        return
    write.outcome = Outcome.NOTHING if event.seq is None else Outcome.OK
    write.seq, write.ended_at = event.seq, event.at
    if event.seq is not None and event.seq <= newest_at_invoke:
        findings.add(Kind.REORDERED, COMMITS, f"{write} was sent after seq {newest_at_invoke} had been acknowledged")


def _acknowledge_whole_transactions(writes: list[Write]) -> None:
    """One acknowledgement speaks for the whole transaction, even if the recorder died between its writes."""
    acknowledged = {write.txn_id: write for write in writes if write.outcome is Outcome.OK}
    for write in writes:
        if write.outcome is Outcome.UNKNOWN and write.txn_id in acknowledged:
            mate = acknowledged[write.txn_id]
            write.outcome, write.seq, write.ended_at = Outcome.OK, mate.seq, mate.ended_at
