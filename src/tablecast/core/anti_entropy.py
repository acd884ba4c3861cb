"""Finding out what two nodes do not agree on, and exchanging just that.

Every table has a tree of sums over the versions of its rows and tombstones: 4,096 buckets, 16 children per node. Equal
sums mean equal contents, so a dialogue descends only where they differ:

    asker                                       peer
      AskRoots: the sums of my tables      ──▶
                                           ◀──  Roots: children of those that differ        (none: all is equal, silence)
      AskNodes: below the differing ones   ──▶
                                           ◀──  Nodes: their children                       (until buckets are reached)
      AskEntries: of differing buckets     ──▶
                                           ◀──  Entries: keys and versions
      AskEvents: where yours is newer      ──▶
                                           ◀──  Events                                      ──▶ applied by the asker
      Push: where mine is newer            ──▶  applied by the peer
                                           ◀──  Taken

`Dialogue` is the asker: `question` says what to send, `replied` takes the answer in and says what to apply. `reply` is the
peer, which remembers nothing. Neither does I/O; both read a `Tree`, the tables at one moment, anew for each step.

Work is done depth first, so what is still to ask stays small. A dialogue that breaks off is just forgotten: whatever was
exchanged is equal now, and the next one descends only into the rest. So it can be resumed, and an empty node fills up from
any peer, by the same few rules.

A broker may let in less than a message would take. `Room` is what a node knows of that: questions and replies are cut to it,
and an event that cannot pass alone is left out, so that it does not keep back the others.

What is written meanwhile changes the trees under the dialogue. That can make it ask in vain, never wrongly: events
carry versions, and the newer one wins wherever it arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from tablecast.codec.sync import (
    MAX_SYNC_BYTES,
    AskEntries,
    AskEvents,
    AskNodes,
    AskRoots,
    Entries,
    Entry,
    Events,
    Gone,
    Listed,
    Nodes,
    Push,
    Question,
    Reply,
    Roots,
    Taken,
)
from tablecast.core.merkle import DEPTH, FANOUT
from tablecast.errors import UnknownTable
from tablecast.model.replication import Version

T = TypeVar("T")

MAX_TABLES_ASKED = 100  # roots in a question: the reply has 16 sums for each that differs
MAX_NODES_ASKED = 150  # likewise
MAX_BUCKETS_ASKED = 128  # the reply stops where it is full; asking for more makes the question long for nothing
MAX_KEYS_ASKED = 200  # of 256 bytes at most: the question fits a message
LEAST_MESSAGE_BYTES = 1024  # a broker that lets in less cannot be used for comparing
AROUND_BYTES = 512  # of a message: what is around its list
ROOTS_BYTES = 448  # of a table in a reply: its name and 16 sums of 16 bytes
NODE_BYTES = 320  # likewise without the name
BUCKET_BYTES = 8  # of a bucket in a question, with room for the key to go on after
KEY_BYTES = 264  # of a key in a question
ENTRY_OVERHEAD_BYTES = 24  # numbers and lengths of an entry besides its texts
EVENT_OVERHEAD_BYTES = 5  # the length before an event


class TreeEntry(Protocol):
    """A row or a tombstone in its bucket."""

    @property
    def key(self) -> str: ...
    @property
    def version(self) -> Version: ...


class Tree(Protocol):
    """The replicated tables of a node at one moment."""

    def roots(self) -> Mapping[str, bytes]: ...
    def children(self, table: str, level: int, index: int) -> Sequence[bytes]:
        """The sums right below a node. Raises UnknownTable, as the next two."""
        ...

    def entries(self, table: str, bucket: int) -> Sequence[TreeEntry]:
        """In the order of their keys."""
        ...

    def events_for(self, table: str, keys: Sequence[str]) -> Sequence[bytes]:
        """The events that the rows and tombstones with these keys are now; keys that are gone are left out."""
        ...


Look = Callable[[], Tree]


class Room:
    """How much a message may hold: not so much that it holds up events, and no more than the broker lets in.

    A message has at most `limit` bytes, and one with a single event at most `largest`: an event that needs more is left out,
    and `left_out` is told its size. None is as much as there may be.
    """

    def __init__(
        self,
        limit: int | None = None,
        largest: int | None = None,
        left_out: Callable[[int], None] = lambda size: None,
    ) -> None:
        wanted = MAX_SYNC_BYTES if limit is None else min(limit, MAX_SYNC_BYTES)
        self.bytes = max(wanted, LEAST_MESSAGE_BYTES) - AROUND_BYTES
        self._largest = None if largest is None else max(largest, LEAST_MESSAGE_BYTES) - AROUND_BYTES
        self._left_out = left_out

    def items(self, most: int, each: int) -> int:
        """How many of a size fit, `most` at most. One in any case: without it nothing would ever be said."""
        return max(1, min(most, self.bytes // each))

    def passing(self, events: Sequence[bytes]) -> list[bytes]:
        largest = self._largest
        if largest is None:
            return list(events)
        for event in events:
            if len(event) > largest:
                self._left_out(len(event))
        return [event for event in events if len(event) <= largest]


class Missing(NamedTuple):
    """A version that one of the two has and the other lacks."""

    table: str
    key: str
    version: Version


class _Give(NamedTuple):
    """Keys whose events the peer lacks; they are read when it is their turn."""

    table: str
    keys: tuple[str, ...]


# --- the asker --------------------------------------------------------------------------------------------------------


class Dialogue:
    """One comparison of this node with one peer.

    `in_vain` are versions that were exchanged before, in a dialogue that went well, and still are missing: they cannot be
    had or cannot be kept, and are let be. `exchanged` are those of this dialogue.

    `broken_off`: the peer said what is no reply to the question, or that it is busy. Nothing is known then of what was not
    compared, and what was asked for may not have come.
    """

    def __init__(self, look: Look, in_vain: Container[Missing] = frozenset(), room: Room | None = None) -> None:
        self._look = look
        self._in_vain = in_vain
        self._room = room = room or Room()
        self._steps: deque[Question | _Give] = deque(
            AskRoots(dict(some))
            for some in _cut(sorted(look().roots().items()), room.items(MAX_TABLES_ASKED, ROOTS_BYTES))
        )
        self._asked: Question | None = None
        self.exchanged: set[Missing] = set()
        self.broken_off = False
        self.differing_buckets = 0
        self.pulled = 0
        self.pushed = 0

    def question(self) -> Question | None:
        """What to send next, or None: the dialogue is over."""
        assert self._asked is None, "one question at a time"
        while self._steps:
            step = self._steps.popleft()
            self._asked = self._push(step) if isinstance(step, _Give) else step
            if self._asked is not None:
                return self._asked
        return None

    def replied(self, reply: Reply) -> Sequence[bytes]:
        """Takes the reply to the last question in; returns events to apply. What is no reply to it ends the dialogue."""
        asked, self._asked = self._asked, None
        try:
            return self._replied(asked, reply)
        except UnknownTable:  # dropped here meanwhile
            self._forget(getattr(asked, "table", ""))
            return ()

    def _replied(self, asked: Question | None, reply: Reply) -> Sequence[bytes]:
        match asked, reply:
            case AskRoots(roots), Roots(children):
                tree = self._look()
                for table, sums in children.items():
                    if table in roots:
                        self._descend(tree, table, 0, [0], [sums])
            case AskNodes(table, level, indexes), Nodes(found) if found:
                if len(found) < len(indexes):
                    self._steps.appendleft(AskNodes(table, level, indexes[len(found) :]))
                self._descend(self._look(), table, level, indexes, found)
            case AskEntries(), Entries(buckets) if _belongs(asked, buckets):
                self._compare(self._look(), asked, buckets)
            case AskEvents(table, keys), Events(events, looked_at) if looked_at > 0:
                if looked_at < len(keys):
                    self._steps.appendleft(AskEvents(table, keys[looked_at:]))
                self.pulled += len(events)
                return events
            case Push(events), Taken():
                self.pushed += len(events)
            case _, Gone(table):
                self._forget(table)
            case _:
                self._steps.clear()
                self.broken_off = True
        return ()

    def _descend(
        self, tree: Tree, table: str, level: int, indexes: Sequence[int], theirs: Sequence[Sequence[bytes]]
    ) -> None:
        """Asks for what is below the children that differ."""
        differing = [
            index * FANOUT + child
            for index, sums in zip(indexes, theirs, strict=False)
            for child, (mine, their) in enumerate(zip(tree.children(table, level, index), sums, strict=False))
            if mine != their
        ]
        if level + 1 < DEPTH:
            self._ask_first(
                AskNodes(table, level + 1, some)
                for some in _cut(differing, self._room.items(MAX_NODES_ASKED, NODE_BYTES))
            )
        else:
            self.differing_buckets += len(differing)
            self._ask_first(
                AskEntries(table, some, None)
                for some in _cut(differing, self._room.items(MAX_BUCKETS_ASKED, BUCKET_BYTES))
            )

    def _compare(self, tree: Tree, asked: AskEntries, buckets: Sequence[Listed]) -> None:
        want: list[str] = []
        give: list[str] = []
        after = asked.after
        for listed in buckets:
            self._compare_bucket(tree, asked.table, listed, after, want, give)
            after = None if listed.complete else listed.entries[-1].key
        left = asked.buckets[len(buckets) - (after is not None) :] if buckets else []
        self._ask_first(
            [
                *(AskEvents(asked.table, some) for some in _cut(want, self._room.items(MAX_KEYS_ASKED, KEY_BYTES))),
                *([_Give(asked.table, tuple(give))] if give else []),
                *([AskEntries(asked.table, left, after)] if left else []),
            ]
        )

    def _compare_bucket(
        self, tree: Tree, table: str, listed: Listed, after: str | None, want: list[str], give: list[str]
    ) -> None:
        last = None if listed.complete else listed.entries[-1].key
        theirs = {entry.key: Version(entry.timestamp_ms, entry.node_id, entry.seq) for entry in listed.entries}
        mine = {
            entry.key: entry.version
            for entry in tree.entries(table, listed.bucket)
            if (after is None or entry.key > after) and (last is None or entry.key <= last)
        }
        for key in sorted(theirs.keys() | mine.keys()):
            their, own = theirs.get(key), mine.get(key)
            if their is not None and (own is None or their > own):
                self._exchange(Missing(table, key, their), want)
            elif own is not None and their != own:
                self._exchange(Missing(table, key, own), give)

    def _exchange(self, missing: Missing, direction: list[str]) -> None:
        if missing not in self._in_vain:
            self.exchanged.add(missing)
            direction.append(missing.key)

    def _push(self, give: _Give) -> Push | None:
        """As many of the events as fit a message; the rest is left for the next."""
        try:
            events, looked_at = _fitting(self._look(), give.table, give.keys, self._room)
        except UnknownTable:  # dropped meanwhile
            return None
        if looked_at < len(give.keys):
            self._steps.appendleft(_Give(give.table, give.keys[looked_at:]))
        return Push(events) if events else None

    def _ask_first(self, steps: Iterator[Question] | Sequence[Question | _Give]) -> None:
        self._steps.extendleft(reversed(list(steps)))

    def _forget(self, table: str) -> None:
        self._steps = deque(step for step in self._steps if getattr(step, "table", None) != table)


# --- the peer ---------------------------------------------------------------------------------------------------------


def reply(question: AskRoots | AskNodes | AskEntries | AskEvents, tree: Tree, room: Room | None = None) -> Reply:
    """The answer to a question that only reads. (A `Push` is answered by whoever can apply it.)"""
    try:
        return _reply(question, tree, room or Room())
    except UnknownTable:
        return Gone("" if isinstance(question, AskRoots) else question.table)


def _reply(question: AskRoots | AskNodes | AskEntries | AskEvents, tree: Tree, room: Room) -> Reply:
    match question:
        case AskRoots(theirs):
            mine = tree.roots()
            differing = [table for table, root in theirs.items() if mine.get(table, root) != root]
            fitting = differing[: room.items(MAX_TABLES_ASKED, ROOTS_BYTES)]
            return Roots({table: list(tree.children(table, 0, 0)) for table in fitting})
        case AskNodes(table, level, indexes):
            some = indexes[: room.items(MAX_NODES_ASKED, NODE_BYTES)]
            return Nodes([list(tree.children(table, level, index)) for index in some])
        case AskEntries(table, buckets, after):
            return Entries(list(_listed(tree, table, buckets, after, room.bytes)))
        case AskEvents(table, keys):
            return Events(*_fitting(tree, table, keys, room))


def _listed(tree: Tree, table: str, buckets: Sequence[int], after: str | None, room: int) -> Iterator[Listed]:
    for bucket in buckets:
        found = [_entry(entry) for entry in tree.entries(table, bucket) if after is None or entry.key > after]
        fitting = list(_while_room(found, room))
        if len(fitting) < len(found):
            if fitting:
                yield Listed(bucket, fitting, complete=False)
            return
        yield Listed(bucket, fitting, complete=True)
        room -= ENTRY_OVERHEAD_BYTES + sum(map(_entry_bytes, fitting))
        after = None


def _entry(entry: TreeEntry) -> Entry:
    return Entry(entry.key, *entry.version)


def _while_room(entries: Sequence[Entry], room: int) -> Iterator[Entry]:
    for entry in entries:
        room -= _entry_bytes(entry)
        if room < 0:
            return
        yield entry


def _entry_bytes(entry: Entry) -> int:
    return ENTRY_OVERHEAD_BYTES + len(entry.key.encode()) + len(entry.node_id.encode())


def _belongs(asked: AskEntries, buckets: Sequence[Listed]) -> bool:
    """Whether these are the first of the buckets asked for, and all but the last of them whole."""
    return (
        [listed.bucket for listed in buckets] == asked.buckets[: len(buckets)]
        and all(listed.complete for listed in buckets[:-1])
        and all(listed.complete or listed.entries for listed in buckets)
    )


def _fitting(tree: Tree, table: str, keys: Sequence[str], room: Room) -> tuple[list[bytes], int]:
    """The events of the first keys that fit a message, at least of one, and how many keys that were."""
    events: list[bytes] = []
    left = room.bytes
    for looked_at, key in enumerate(keys[:MAX_KEYS_ASKED]):
        found = room.passing(tree.events_for(table, [key]))
        left -= sum(EVENT_OVERHEAD_BYTES + len(event) for event in found)
        if left < 0 and events:
            return events, looked_at
        events += found
    return events, min(len(keys), MAX_KEYS_ASKED)


def _cut(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece
