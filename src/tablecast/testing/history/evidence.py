"""What is known to be there and what is known to be missing: together, torn transactions."""

from __future__ import annotations

from collections.abc import Iterator

from tablecast.testing.history.writes import Outcome, Write, Writes


class Evidence:
    """Numbers of the writes that a topic or table shows, and of those that one should show and does not."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.absent: set[int] = set()

    def torn(self, writes: Writes) -> Iterator[tuple[Write, Write]]:
        """For each write that is absent though its transaction is not: one that is there, and the absent."""
        for number in sorted(self.absent):
            absent = writes.all[number]
            there = [mate for mate in writes.by_txn[absent.txn_id] if mate.number in self.there]
            if there and not _may_be_effectless(absent, writes):
                yield there[0], absent


def _may_be_effectless(write: Write, writes: Writes) -> bool:
    """Whether it is an update or delete that may have found no row. Of an acknowledged one we were told."""
    if write.outcome is not Outcome.UNKNOWN or write.op not in ("update", "delete"):
        return False
    commit = (writes.txn_seq.get(write.txn_id, 0), write.number)
    earlier = [w for w in writes.by_row[write.row_key] if w.seq is not None and (w.seq, w.number) < commit]
    last = max(earlier, key=lambda w: (w.seq or 0, w.number), default=None)
    return last is None or last.op == "delete"
