"""The tiling under a consumer group: cutting, changing and joining fragments.

A group state is a row of tiles without gap or overlap (see `codec.group`). Every step of a group is one of
two edits: give the offsets between some bounds another status, or append a tile at the end. Both touch a
window of tiles and its two neighbours, and leave the canonical form behind:

- neighbours of equal status become one tile;
- all below `committed` counts as one acknowledged tile, so an acknowledged tile that reaches it melts into
  it. That is the only way `committed` moves.

An edit costs a bisect, the tiles of its window and the copy of a tuple: linear in tiles and bounds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from tablecast.codec.group import ACKED, Fragment, GroupState, Status

_start = attrgetter("start")


def status_at(state: GroupState, offset: int) -> Status:
    """What became of an offset below `next_offset`."""
    if offset < state.committed:
        return ACKED
    return state.fragments[_index(state.fragments, offset)].status


def edit(state: GroupState, bounds: Sequence[int], change: Callable[[Fragment], Status]) -> GroupState:
    """Cuts at each bound, then asks `change` for the status of every piece between the first and the last.

    Bounds are at least two ascending offsets in [committed, next_offset]. No piece spans a bound, so
    `change` may judge a piece by its start.
    """
    low, high = bounds[0], bounds[-1]
    first = _index(state.fragments, low)
    stop = _index(state.fragments, high - 1) + 1
    pieces = _cut(state.fragments[first:stop], bounds)
    changed = [_with_status(piece, change(piece)) if low <= piece.start < high else piece for piece in pieces]
    return _spliced(state, first, stop, changed)


def edit_all(state: GroupState, change: Callable[[Fragment], Status]) -> GroupState:
    if not state.fragments:
        return state
    return edit(state, (state.committed, state.next_offset), change)


def append(state: GroupState, end: int, status: Status) -> GroupState:
    """One more tile, from `next_offset` to `end`."""
    count = len(state.fragments)
    return _spliced(state, count, count, [Fragment(state.next_offset, end, status)])


def edges(offsets: Sequence[int]) -> list[int]:
    """Where the runs in ascending offsets begin and end: 3, 4, 5, 9 -> 3, 6, 9, 10."""
    bounds: list[int] = []
    for offset in offsets:
        if bounds and bounds[-1] == offset:
            bounds[-1] = offset + 1
        else:
            bounds += (offset, offset + 1)
    return bounds


def _index(fragments: tuple[Fragment, ...], offset: int) -> int:
    return bisect_right(fragments, offset, key=_start) - 1


def _cut(fragments: Sequence[Fragment], bounds: Sequence[int]) -> list[Fragment]:
    pieces = []
    at = 0
    for fragment in fragments:
        start = fragment.start
        while at < len(bounds) and bounds[at] < fragment.end:
            if bounds[at] > start:
                pieces.append(Fragment(start, bounds[at], fragment.status))
                start = bounds[at]
            at += 1
        pieces.append(fragment if start == fragment.start else Fragment(start, fragment.end, fragment.status))
    return pieces


def _with_status(piece: Fragment, status: Status) -> Fragment:
    return piece if status is piece.status else Fragment(piece.start, piece.end, status)


def _spliced(state: GroupState, first: int, stop: int, pieces: list[Fragment]) -> GroupState:
    """The state with `pieces` in place of fragments[first:stop], joined with the neighbours on both sides."""
    old = state.fragments
    before = old[first - 1] if first else Fragment(0, state.committed, ACKED)
    window = _joined([before, *pieces, *old[stop : stop + 1]])
    if first:
        return GroupState(state.committed, (*old[: first - 1], *window, *old[stop + 1 :]))
    return GroupState(window[0].end, (*window[1:], *old[stop + 1 :]))


def _joined(pieces: list[Fragment]) -> list[Fragment]:
    joined = [pieces[0]]
    for piece in pieces[1:]:
        last = joined[-1]
        if piece.status == last.status:
            joined[-1] = Fragment(last.start, piece.end, last.status)
        else:
            joined.append(piece)
    return joined
