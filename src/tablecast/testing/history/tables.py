"""Whether a table holds what its writes should have left in it.

Per row, the writes whose commit is known are applied in the order of their commits. Writes of unknown outcome
that no topic speaks about, and writes of one commit whose order nobody recorded, stay *open*: the row may
show them or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from tablecast.testing.history.events import RowKey
from tablecast.testing.history.evidence import Evidence
from tablecast.testing.history.observed import TableContent
from tablecast.testing.history.report import Findings, Kind
from tablecast.testing.history.values import contains, same
from tablecast.testing.history.writes import Outcome, Write, Writes

Columns = dict[str, Any]

_seq = attrgetter("seq")
_place = attrgetter("place")


def check_table(content: TableContent, writes: Writes, evidence: Evidence, findings: Findings) -> None:
    for row_key in content.repeated:
        findings.add(Kind.DUPLICATED, content.table, f"row {row_key} is there twice")
    written = (row_key for row_key in writes.by_row if content.holds(row_key))
    for row_key in dict.fromkeys([*written, *content.rows]):
        row = RowCheck(row_key, content.rows.get(row_key), writes.by_row.get(row_key, []), evidence)
        for kind, culprit in row.problems():
            findings.add(kind, content.table, culprit)


class State(NamedTuple):
    """A row after a commit: what is known of its columns, or None if it is not there."""

    columns: Columns | None
    seq: int | None


class RowCheck:
    """One row as it was seen (None: it was not there) against the writes to it."""

    def __init__(self, row_key: RowKey, seen: Columns | None, writes: list[Write], evidence: Evidence) -> None:
        self._row_key = row_key
        self._seen = seen
        self._evidence = evidence
        self._committed: list[Write] = []
        self._unordered: list[Write] = []
        for _, commit in groupby(
            sorted((w for w in writes if w.seq is not None and not w.doubtful), key=_seq), key=_seq
        ):
            self._take_commit(list(commit))
        self._states = list(_states(self._committed))
        self._unknown: list[Write] = []
        self._excluded: list[Write] = []  # refused, or not on a topic that asked
        for write in writes:
            if write.seq is None or write.doubtful:
                self._sort_in(write)

    def _take_commit(self, commit: list[Write]) -> None:
        """Orders the writes of a commit: as their transaction made them, or as a topic has them, or not."""
        topics = {write.place and write.place[0] for write in commit}
        if len({write.txn_id for write in commit}) > 1:
            if len(topics) == 1 and None not in topics:
                commit.sort(key=_place)
            else:
                self._unordered += commit
        self._committed += commit

    def _sort_in(self, write: Write) -> None:
        if write.outcome is Outcome.UNKNOWN and write.number not in self._evidence.absent:
            self._unknown.append(write)
        elif not (self._committed and write.surely_before(self._committed[-1])):
            self._excluded.append(write)

    @property
    def _what(self) -> str:
        return f"row {self._row_key} is {self._seen}"

    def problems(self) -> Iterator[tuple[Kind, str]]:
        as_expected = self._shows(self._states[-1])
        if as_expected and self._committed:
            self._evidence.there.add(self._committed[-1].number)
        self._weigh_unknown(as_expected)
        if not as_expected and not self._open_writes_explain():
            yield self._stray() or self._blame()

    def _stray(self) -> tuple[Kind, str] | None:
        """The row is as a write made it that should not have been able to."""
        for write in self._excluded:
            if write.reflected_in(self._seen):
                if write.outcome is Outcome.UNKNOWN:
                    return Kind.TORN, f"{self._what}, as {write} made it, which is not on its topic"
                return Kind.PHANTOM, f"{self._what}, as {write} would have made it"
        return None

    def _blame(self) -> tuple[Kind, str]:
        if not self._committed:
            return Kind.PHANTOM, f"{self._what}, but nobody wrote it"
        last = self._committed[-1]
        if any(self._shows(state) for state in self._states[:-1]):
            self._evidence.absent.add(last.number)
            return Kind.LOST if last.outcome is Outcome.OK else Kind.TORN, f"{self._what}, without {last}"
        if self._states[-1].columns is None:
            return Kind.PHANTOM, f"{self._what}, but it was removed by {last}"
        return Kind.WRONG_CONTENT, f"{self._what}, but {last} left {self._states[-1].columns}"

    def _shows(self, state: State) -> bool:
        if state.columns is None or self._seen is None:
            return state.columns is None and self._seen is None
        seq = self._seen.get("_seq")
        return contains(self._seen, state.columns) and (seq is None or same(seq, state.seq))

    def _weigh_unknown(self, as_expected: bool) -> None:
        """Notes what the row tells about a write of unknown outcome, when it can be read in one way only."""
        if len(self._unknown) != 1:
            return
        write = self._unknown[0]
        if not write.reflected_in(self._seen):
            if all(before.surely_before(write) for before in self._committed):
                self._evidence.absent.add(write.number)
        elif not as_expected:
            self._evidence.there.add(write.number)

    def _open_writes_explain(self) -> bool:
        """Whether the row can be what some of the open writes made of the committed ones."""
        open_writes = [*self._unknown, *self._unordered]
        if self._seen is None:
            return any(write.op == "delete" for write in open_writes)
        made = [write.row or {} for write in open_writes if write.op != "delete"]
        state = self._states[-1].columns
        if state is None:
            born = [write.row or {} for write in open_writes if write.op in ("insert", "upsert")]
            return bool(born) and self._mixes(set.intersection(*(set(row) for row in born)), made)
        return bool(made) and self._mixes(state, [state, *made])

    def _mixes(self, columns: Iterable[str], choices: list[Columns]) -> bool:
        """Whether each of the columns has a value from one of the choices."""
        seen = self._seen or {}
        return all(any(c in choice and same(seen.get(c), choice[c]) for choice in choices) for c in columns)


def _states(committed: list[Write]) -> Iterator[State]:
    """The row before its first write, and after each."""
    columns: Columns | None = None
    yield State(None, None)
    for write in committed:
        if write.op == "delete":
            columns = None
        elif write.op == "insert":
            columns = write.row or {}
        else:
            columns = {**(columns or {}), **(write.row or {})}
        yield State(columns, write.seq)
