"""Which message tells of which write.

A message carries no write id: it is matched by row, op, commit number and content, from the most to the least
certain, and each write is given to one message of a topic at most. First, on all topics (`match_certain`):

1. acknowledged (or settled) writes of the same row, commit and content;
2. unknown writes of the same row, op and content, where there is only one choice. That settles the commit
   number of the write and of its transaction, which makes other choices clear.

Then (`match_rest`):

3. what became clear meanwhile, as in 1;
4. any write that fits, rather of a transaction that is known to be of this commit; if all have their message,
   one whose message could as well be of another (an insert and an update may both be of an upsert);
5. any write of the same row and commit that has no message yet: that is wrong content;
6. what is left over is a copy of a write that has its message, or of a commit that the acknowledgement did
   not name, or a refused write, or nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from tablecast.testing.history.events import RowKey, Seen
from tablecast.testing.history.observed import TopicLog
from tablecast.testing.history.report import Findings, Kind
from tablecast.testing.history.values import contains, same
from tablecast.testing.history.writes import Outcome, Write, Writes

Asks = Callable[[Write], bool]

# Explaining a stray message compares it with all writes of its row: too much if the log is wrong all over.
EXPLAINED_STRAYS = 1000


class Matching:
    """The writes behind one topic's messages. `copies` counts messages of writes that already had one."""

    def __init__(self, log: TopicLog, asks: Asks, writes: Writes, findings: Findings) -> None:
        self.topic = log.topic
        self.coarse = any(message.mode == "key" for message in log.messages)
        self.copies = 0
        self._write_of: dict[int, Write] = {}  # by position in log.messages
        self._message_of: dict[int, int] = {}  # and back, by number of the write
        self._messages = log.messages
        self._asks = asks
        self._writes = writes
        self._findings = findings
        self._left = list(range(len(log.messages)))

    @property
    def matched(self) -> Set[int]:
        """Numbers of the writes that have a message."""
        return self._message_of.keys()

    def match_certain(self) -> None:
        self._try(self._committed)
        self._try(self._only_unknown)

    def match_rest(self) -> None:
        self._try(self._committed)
        self._mark_doubtful()
        self._try(self._make_room)
        self._try(self._miswritten)
        strays = [i for i in self._left if not self._is_copy(self._messages[i])]
        for i in strays[:EXPLAINED_STRAYS]:
            self._explain(i, self._messages[i])
        for i in strays[EXPLAINED_STRAYS:]:
            self._add(Kind.PHANTOM, f"{self._messages[i]} is of no write of its commit")
        self._check_order()

    def _mark_doubtful(self) -> None:
        """A choice among unknown writes of different transactions is a guess: it proves nothing."""
        for i in self._left:
            choices = self._free(self._unknown(self._messages[i]))
            clear = [write for write in choices if write.txn_id in self._writes.txn_seq]
            if len({write.txn_id for write in clear or choices}) > 1:
                for write in clear or choices:
                    write.doubtful = True

    def _try(self, find: Callable[[int], Write | None]) -> None:
        self._left = [i for i in self._left if not self._give(i, find(i))]

    def _give(self, i: int, write: Write | None) -> bool:
        if write is None:
            return False
        message = self._messages[i]
        self._write_of[i] = write
        self._message_of[write.number] = i
        if write.place is None and message.mode != "key":
            write.place = (self.topic, message.offset)
        if write.seq is None:
            self._writes.settle(write, message.seq)
        if not self._asks(write):
            self._add(Kind.PHANTOM, f"{message}: the topic did not ask for {write}")
        return True

    # --- the ways to find a write, in their order -----------------------------------------------------------

    def _committed(self, i: int) -> Write | None:
        message = self._messages[i]
        for write in self._free(self._of_commit(message)):
            if tells_of(message, write):
                return write
        return None

    def _only_unknown(self, i: int) -> Write | None:
        candidates = self._free(self._unknown(self._messages[i]))
        return candidates[0] if len(candidates) == 1 else None

    def _make_room(self, i: int, tried: set[int] | None = None) -> Write | None:
        """A write that is free, or that becomes free by giving its message another one."""
        tried = set() if tried is None else tried
        for write in self._candidates(i):
            if write.number in tried:
                continue
            tried.add(write.number)
            holder = self._message_of.get(write.number)
            if holder is None or self._give(holder, self._make_room(holder, tried)):
                return write
        return None

    def _miswritten(self, i: int) -> Write | None:
        message = self._messages[i]
        of_commit = self._of_commit(message)
        left = self._free(of_commit)
        if not any(map(self._asks, left)) and any(tells_of(message, write) for write in of_commit):
            return None  # nothing is missing, and it says what another message says: a copy
        write = min(left, key=lambda w: (not self._asks(w), not same_op(message, w)), default=None)
        if write is not None:
            said = bytes(message.payload)
            self._add(Kind.WRONG_CONTENT, f"{message} says {said!r} for {write}: {write.row}")
        return write

    def _candidates(self, i: int) -> list[Write]:
        """All writes that the message could tell of, the likeliest first."""
        message = self._messages[i]
        of_commit = (write for write in self._of_commit(message) if tells_of(message, write))
        return sorted([*of_commit, *self._unknown(message)], key=lambda write: self._unlikeliness(i, write))

    def _unlikeliness(self, i: int, write: Write) -> tuple[bool, bool, bool]:
        """Rather one without message, in the order of its transaction, and of a transaction of this commit."""
        mates = (w for w in self._writes.by_txn[write.txn_id] if w.row_key == write.row_key and w != write)
        places = [(self._message_of[w.number], w.number) for w in mates if w.number in self.matched]
        disordered = any((place < i) != (number < write.number) for place, number in places)
        return write.number in self.matched, disordered, write.txn_id not in self._writes.txn_seq

    def _of_commit(self, message: Seen) -> Sequence[Write]:
        return self._writes.by_commit.get((message.row_key, message.seq), ())

    def _unknown(self, message: Seen) -> list[Write]:
        """Unknown writes that the message could tell of, unless their transaction is of another commit."""
        return [
            write
            for write in self._writes.unknown_by_row.get(message.row_key, ())
            if self._writes.txn_seq.get(write.txn_id, message.seq) == message.seq and tells_of(message, write)
        ]

    def _free(self, writes: Iterable[Write]) -> list[Write]:
        return [write for write in writes if write.number not in self.matched]

    # --- what nobody wrote ----------------------------------------------------------------------------------

    def _is_copy(self, message: Seen) -> bool:
        """All writes of the row in this commit that the topic asked for have their messages; this is one more."""
        of_commit = self._of_commit(message)
        if of_commit:
            self.copies += 1
            write = next((write for write in of_commit if tells_of(message, write)), of_commit[0])
            self._add(Kind.DUPLICATED, f"{message} is another message of {write}")
        return bool(of_commit)

    def _explain(self, i: int, message: Seen) -> None:
        twin = self._twin(message)
        if twin is None:
            self._add(Kind.PHANTOM, f"{message}: nobody wrote it")
        elif twin.number in self.matched:
            self.copies += 1
            self._add(Kind.DUPLICATED, f"{message} is another message of {twin}")
        elif twin.outcome is Outcome.OK:
            self._add(Kind.WRONG_CONTENT, f"{message} has the content of {twin}, but another seq")
            self._give(i, twin)
        elif twin.outcome is Outcome.UNKNOWN:
            of = self._writes.txn_seq[twin.txn_id]
            self._add(Kind.TORN, f"{message} is of {twin}, whose transaction is commit {of}")
            self._give(i, twin)
        else:
            self._add(Kind.PHANTOM, f"{message} is there, but of {twin}")

    def _twin(self, message: Seen) -> Write | None:
        """A write that the message could be of, whatever its commit: rather one that has no message."""
        alike = [w for w in self._writes.by_row.get(message.row_key, ()) if tells_of(message, w)]
        return min(alike, key=self._strangeness, default=None)

    def _strangeness(self, write: Write) -> tuple[int, int]:
        if write.outcome in (Outcome.FAILED, Outcome.NOTHING):
            return 2, write.number
        return int(write.number in self.matched), write.number

    # --- order ----------------------------------------------------------------------------------------------

    def _check_order(self) -> None:
        """The changes of one row come as their commits did, in one commit as the transaction made them."""
        last: dict[tuple[int, RowKey], Write] = {}
        for i, message in enumerate(self._messages):
            write = self._write_of.get(i)
            if write is not None:
                before = last.get((message.partition, write.row_key))
                if before is not None and self._belongs_after(before, write):
                    self._add(Kind.REORDERED, f"{message} of {write} follows {before}")
                last[message.partition, write.row_key] = write

    def _belongs_after(self, a: Write, b: Write) -> bool:
        assert a.seq is not None and b.seq is not None  # they have messages
        if a.seq != b.seq or a.number < b.number:
            return a.seq > b.seq
        # Where several transactions changed the row in one commit, which message is whose may be a guess.
        return len({write.txn_id for write in self._writes.by_commit[a.row_key, a.seq]}) == 1

    def _add(self, kind: Kind, culprit: str) -> None:
        self._findings.add(kind, self.topic, culprit)


def same_op(message: Seen, write: Write) -> bool:
    return message.op == write.op or (write.op == "upsert" and message.op in ("insert", "update"))


def tells_of(message: Seen, write: Write) -> bool:
    """Whether the message's op and payload are what the write would be told as."""
    if not same_op(message, write):
        return False
    payload = message.value
    if payload.get("_table") != write.table:
        return False
    row = write.row or {}
    if message.mode == "full":
        return contains(payload, row)
    return all(_said(payload[column], value, message) for column, value in row.items() if column in payload)


def _said(said: Any, value: Any, message: Seen) -> bool:
    if message.mode == "diff" and isinstance(said, dict) and said.keys() == {"old", "new"}:
        return same(said["new"], value)
    return same(said, value)
