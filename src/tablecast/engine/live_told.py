"""What a commit tells the subscribers of a live query.

A row is judged before and after: one that starts to match is an insert to the subscriber, one that stops to match a
delete, whatever the statement was. An update that shows the same values is nothing, except where rows expire: there the
row before may be one that a subscriber was never shown, because its time was over. So a subscriber folds what it is told
in one way: insert and update put the row, delete removes the key if it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tablecast.core.fanout import Images
from tablecast.core.live_query import LiveQuery
from tablecast.model.change import Op


class Shown(NamedTuple):
    """`values` are those of the shown row; of a delete, those of its primary key."""

    op: Op
    values: tuple[Any, ...]


@dataclass(slots=True)
class Counts:
    """What a hub has done since it began. `encodings` next to `deliveries` is how often bytes were shared."""

    deliveries: int = 0
    evaluations: int = 0
    evaluation_seconds: float = 0.0
    encodings: int = 0
    caught_up: int = 0  # how often it fell behind and went on from the kept changes


class Told:
    """What one commit did to the rows of one query: the same object for all its subscribers, encoded once per form.

    `seq` is the commit; after a hub fell behind, the last of several.
    """

    __slots__ = ("_counts", "_forms", "changes", "channel", "query", "seq")

    def __init__(self, channel: int, seq: int, changes: list[Shown], query: LiveQuery, counts: Counts) -> None:
        self.channel = channel
        self.seq = seq
        self.changes = changes
        self.query = query
        self._counts = counts
        self._forms: dict[str, bytes] = {}

    def form(self, name: str, make: Callable[[Told], bytes]) -> bytes:
        """The bytes that `make` gives; it is asked once per name."""
        found = self._forms.get(name)
        if found is None:
            found = self._forms[name] = make(self)
            self._counts.encodings += 1
        return found


def judge(query: LiveQuery, changes: Iterable[Images]) -> list[Shown]:
    """Raises ExpressionError if the filter cannot be evaluated for one of the rows."""
    matches, shown, expires = query.matches, query.shown, query.table.ttl_seconds is not None
    found: list[Shown] = []
    for change in changes:
        before, after = change.before, change.after
        was = before is not None and matches(before)
        if after is not None and matches(after):
            values = shown(after)
            if not was:
                found.append(Shown(Op.INSERT, values))
            elif expires or values != shown(before):
                found.append(Shown(Op.UPDATE, values))
        elif was:
            found.append(Shown(Op.DELETE, query.key_of(before)))
    return found


def net(query: LiveQuery, parts: Sequence[list[Shown]]) -> list[Shown]:
    """Several differences, one after the other, as one: each row once."""
    told = [part for part in parts if part]
    if len(told) < 2:
        return told[0] if told else []
    found: dict[tuple[Any, ...], Shown] = {}
    for shown in (shown for part in told for shown in part):
        key = shown.values if shown.op is Op.DELETE else tuple([shown.values[i] for i in query.key_indexes])
        earlier = found.pop(key, None)
        came = earlier is not None and earlier.op is Op.INSERT and shown.op is Op.UPDATE
        found[key] = Shown(Op.INSERT, shown.values) if came else shown
    return list(found.values())
