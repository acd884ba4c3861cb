"""Sending a dead letter back: an offset that counted as acknowledged is given out once more.

`restore` opens it again in its group. Below `committed` that means moving `committed` back to it and remembering
everything in between as acknowledged, so that this one message comes back and no other.
"""

from __future__ import annotations

from tablecast.codec.group import ACKED, Acked, Claim, Fragment, GroupState, Returned
from tablecast.core.fragments import append, edit, status_at
from tablecast.core.group import is_saturated

REDRIVEN = "redriven"


def has_work(state: GroupState, *, log_end: int, now_ms: int) -> bool:
    """Whether a claim now could give anything: something new, something that came back, or an overdue claim.

    A saturated group is given nothing new: a reader that took that for work would claim again and again.
    """
    if state.next_offset < log_end and not is_saturated(state):
        return True
    return any(
        isinstance(part.status, Returned) or (isinstance(part.status, Claim) and part.status.deadline_ms <= now_ms)
        for part in state.fragments
    )


def restore(state: GroupState, offset: int) -> GroupState:
    """The offset is returned, with its deliveries forgotten. One that is not acknowledged stays as it is."""
    returned = Returned(None, 0, REDRIVEN)
    if offset >= state.next_offset:
        return state
    if offset >= state.committed:
        bounds = (offset, offset + 1)
        return edit(state, bounds, lambda part: returned if isinstance(part.status, Acked) else part.status)
    reopened = GroupState(offset, (Fragment(offset, state.committed, returned), *state.fragments))
    bounds_below = sorted({offset, offset + 1, state.committed})
    return edit(reopened, bounds_below, lambda part: returned if part.start == offset else ACKED)


def is_done(state: GroupState, offset: int) -> bool:
    if offset < state.committed:
        return True
    return offset < state.next_offset and isinstance(status_at(state, offset), Acked)


def mark_done(state: GroupState, offset: int) -> GroupState:
    """Acknowledges an offset that nobody was given: how a redrive remembers what it sent back."""
    if offset < state.committed:
        return state
    if offset >= state.next_offset:
        state = append(state, offset + 1, Returned(None, 0, REDRIVEN))
    return edit(state, (offset, offset + 1), lambda part: ACKED)
