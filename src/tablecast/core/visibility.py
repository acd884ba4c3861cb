"""How long a claim lasts: deadlines, renewal, and what happens when a consumer is gone.

A claim is its consumer's until its deadline. Past that it is *overdue*, and comes back when somebody looks:
the next `claim` of the group, or `expire` on a timer set to `next_deadline`. Until then its consumer may
still finish or renew it, since nobody else was given its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tablecast.codec.group import Claim, Fragment, GroupState, Returned, Status
from tablecast.core.fragments import edit, edit_all
from tablecast.errors import Conflict, InvalidRequest

EXPIRED: Final = "visibility timeout"
RELEASED: Final = "released by its consumer"


def deadline(now_ms: int, visibility_ms: int) -> int:
    if visibility_ms < 1:
        raise InvalidRequest(f"the visibility timeout is {visibility_ms} ms: it must be at least 1 ms")
    return now_ms + visibility_ms


def next_deadline(state: GroupState) -> int | None:
    """When the next claim runs out, in UTC ms; None without claims."""
    statuses = (fragment.status for fragment in state.fragments)
    return min((status.deadline_ms for status in statuses if isinstance(status, Claim)), default=None)


def expire(state: GroupState, now_ms: int) -> tuple[GroupState, int]:
    """Takes back every claim whose deadline is reached. Returns how many offsets came back."""
    overdue = sum(
        fragment.end - fragment.start
        for fragment in state.fragments
        if isinstance(fragment.status, Claim) and fragment.status.deadline_ms <= now_ms
    )
    if not overdue:
        return state, 0

    def take_back(piece: Fragment) -> Status:
        status = piece.status
        if not isinstance(status, Claim) or status.deadline_ms > now_ms:
            return status
        return Returned(status.consumer, status.deliveries, EXPIRED)

    return edit_all(state, take_back), overdue


def extend(state: GroupState, *, consumer: str, now_ms: int, visibility_ms: int) -> tuple[GroupState, int]:
    """Renews all claims of the consumer. Returns their new deadline; raises Conflict if it holds none."""
    if not held(state, consumer):
        raise Conflict(
            f"consumer {consumer!r} holds no claim: it was acknowledged or it ran out; claim again",
            consumer=consumer,
        )
    until_ms = deadline(now_ms, visibility_ms)

    def renew(piece: Fragment) -> Status:
        status = piece.status
        if not isinstance(status, Claim) or status.consumer != consumer:
            return status
        return Claim(consumer, until_ms, status.deliveries)

    return edit_all(state, renew), until_ms


def release(state: GroupState, consumer: str, *, delivered: bool) -> tuple[GroupState, int]:
    """The consumer went away: its claims come back at once. Returns how many offsets did.

    `delivered=False` says that it never saw the messages (the answer could not be sent, say): then the
    delivery that opened these claims is not counted.
    """
    return edit_all(state, _letting_go(consumer, 0 if delivered else 1)), held(state, consumer)


def give_back(state: GroupState, consumer: str, start: int, end: int) -> GroupState:
    """One claim of a consumer that never saw its messages: as `release`, for start <= offset < end only."""
    low, high = max(start, state.committed), min(end, state.next_offset)
    return edit(state, (low, high), _letting_go(consumer, 1)) if low < high else state


def _letting_go(consumer: str, uncounted: int) -> Callable[[Fragment], Status]:
    def let_go(piece: Fragment) -> Status:
        status = piece.status
        if not isinstance(status, Claim) or status.consumer != consumer:
            return status
        return Returned(consumer, status.deliveries - uncounted, RELEASED)

    return let_go


def held(state: GroupState, consumer: str) -> int:
    """How many offsets one consumer has claimed."""
    return sum(
        fragment.end - fragment.start
        for fragment in state.fragments
        if isinstance(fragment.status, Claim) and fragment.status.consumer == consumer
    )
