"""Consumer groups: who holds which offsets of a partition, what is done, and what comes next.

One `GroupState` per (topic, group, partition). Nothing here reads a clock, a disk or a random number: a
function takes a frozen state and returns a new one with its result, and the caller makes the new one
durable. A function that raises has changed nothing.

    offsets    0 ········ committed ········ next_offset ········ log_end
                  acked               fragments           never given

                   claim                            ack
        new ──────────────────▶ claimed ──────────────────────────▶ acked
                                 │   ▲                                ▲
           nack, expire, release │   │ claim                          │ late ack, dead letter,
                                 ▼   │                                │ or skipped after retention
                                returned ─────────────────────────────┘

- A claim is named by its consumer. A reader without a name is given a fresh one for each claim, so that for
  it "this consumer" and "this claim" are the same thing.
- An ack needs no clock: it comes out the same whether or not an overdue claim was taken back in between.
- The count of deliveries belongs to the offset: it survives nacks and expiry, and only `reset` forgets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import dropwhile, takewhile
from typing import Final, NamedTuple

from tablecast.codec.group import ACKED, Acked, Claim, Fragment, GroupState, Returned, Status
from tablecast.core.fragments import append, edges, edit, status_at
from tablecast.core.visibility import (
    EXPIRED,
    RELEASED,
    deadline,
    expire,
    extend,
    give_back,
    held,
    next_deadline,
    release,
)
from tablecast.errors import Conflict, InvalidRequest, OffsetOutOfRange, Overloaded

__all__ = [
    "EXPIRED",
    "MAX_CONSUMER_CHARS",
    "MAX_FRAGMENTS",
    "MAX_REASON_CHARS",
    "RELEASED",
    "Acknowledged",
    "Claimed",
    "DeadLetter",
    "GroupState",
    "ack",
    "ack_range",
    "ack_upto",
    "bury",
    "claim",
    "claimed",
    "expire",
    "extend",
    "first",
    "give_back",
    "held",
    "is_overdue",
    "is_saturated",
    "lag",
    "nack",
    "next_deadline",
    "release",
    "reset",
]

# Fragments per state. Every claim and ack rewrites its state whole, so this bounds what one of them writes.
# At the limit nothing new is given (`Claimed.saturated`) and a single ack or nack that would split further
# is refused; cumulative acks go on. Those may add one fragment per open claim, so a state stays within about
# twice the limit.
MAX_FRAGMENTS: Final = 4096
MAX_CONSUMER_CHARS: Final = 256  # a consumer's name is stored with each fragment it holds
MAX_REASON_CHARS: Final = 256  # so is a nack's reason; the rest of a longer text is cut off


class DeadLetter(NamedTuple):
    """Given `deliveries` times in vain. It counts as acknowledged: write it away in the same commit."""

    offset: int
    deliveries: int
    reason: str


class Claimed(NamedTuple):
    """What a claim gives: offsets start <= offset < end, none when they are equal.

    `deliveries[i]` is how often offset `start + i` was given, this time included. `skipped` is the range in
    which retention removed messages the group had not done. `saturated`: new messages wait until acks catch
    up. Dead letters without offsets mean: claim again, at most `limit` are sorted out at a time.
    """

    start: int
    end: int
    deliveries: tuple[int, ...]
    deadline_ms: int
    dead: tuple[DeadLetter, ...] = ()
    skipped: tuple[int, int] | None = None
    saturated: bool = False


class Acknowledged(NamedTuple):
    """`acknowledged_offset` is the state's; `left_alone` are the offsets another consumer holds by now."""

    acknowledged_offset: int | None
    left_alone: tuple[int, ...] = ()


def first(start_offset: int) -> GroupState:
    """A group that has been given nothing yet and begins at `start_offset`."""
    return GroupState(start_offset)


def reset(state: GroupState, offset: int) -> tuple[GroupState, int]:
    """Moves the group to `offset`, in either direction. Returns how many claimed offsets were dropped."""
    return GroupState(offset, simple=state.simple), claimed(state)


def lag(state: GroupState, log_end: int) -> int:
    """Messages of the log that are not acknowledged, those in open claims included."""
    acked = sum(part.end - part.start for part in state.fragments if isinstance(part.status, Acked))
    return log_end - state.committed - acked


def claimed(state: GroupState) -> int:
    """Offsets in open claims."""
    return sum(part.end - part.start for part in state.fragments if isinstance(part.status, Claim))


def is_saturated(state: GroupState) -> bool:
    """At MAX_FRAGMENTS: nothing new is given until acks catch up."""
    return len(state.fragments) >= MAX_FRAGMENTS


# --- claim --------------------------------------------------------------------------------------------------


def claim(
    state: GroupState,
    *,
    consumer: str,
    limit: int,
    log_start: int,
    log_end: int,
    now_ms: int,
    visibility_ms: int,
    max_deliveries: int = 0,
    auto_offset_reset: bool = False,
) -> tuple[GroupState, Claimed]:
    """Gives one contiguous range of at most `limit` offsets: the oldest that came back, else new ones.

    Overdue claims come back first. What came back after `max_deliveries` (0: no limit) is not given again but
    ends in `dead`. Raises OffsetOutOfRange when retention removed what the group still needs, unless
    `auto_offset_reset`: then that counts as acknowledged, and `skipped` says so.
    """
    _check_request(consumer, limit)
    _check_log_end(state, log_end)
    deadline_ms = deadline(now_ms, visibility_ms)
    state, _ = expire(state, now_ms)
    state, skipped = _without_lost(state, log_start, auto_offset_reset)
    state, dead = bury(state, limit, log_start=log_start, max_deliveries=max_deliveries)
    saturated = is_saturated(state)

    start, end = _returned_range(state, limit, max_deliveries, saturated)
    if start < end:
        state, deliveries = _take_returned(state, start, end, consumer, deadline_ms)
        return state, Claimed(start, end, deliveries, deadline_ms, dead, skipped, saturated)
    start = state.next_offset
    end = start if saturated else min(start + limit, log_end)
    if start < end:
        state = append(state, end, Claim(consumer, deadline_ms, 1))
    return state, Claimed(start, end, (1,) * (end - start), deadline_ms, dead, skipped, saturated)


def _check_request(consumer: str, limit: int) -> None:
    if not 0 < len(consumer) <= MAX_CONSUMER_CHARS:
        raise InvalidRequest(
            f"the consumer's name has {len(consumer)} characters: it must have 1 to {MAX_CONSUMER_CHARS}"
        )
    if limit < 1:
        raise InvalidRequest(f"the limit is {limit}: a claim takes at least 1 message")


def _check_log_end(state: GroupState, log_end: int) -> None:
    if state.next_offset > log_end:
        raise OffsetOutOfRange(
            f"the group is at offset {state.next_offset}, but the log ends at {log_end}: "
            f"move it with RESET GROUP to an offset up to {log_end}",
            offset=state.next_offset,
            log_end=log_end,
        )


def _without_lost(
    state: GroupState, log_start: int, auto_offset_reset: bool
) -> tuple[GroupState, tuple[int, int] | None]:
    """Deals with what retention took. Open claims below `log_start` stay: those messages were given."""
    lost_from = _lost_from(state, log_start)
    if lost_from is None:
        return state, None
    if not auto_offset_reset:
        raise OffsetOutOfRange(
            f"retention removed messages in [{lost_from}, {log_start}) before the group was done with them: "
            f"go on at {log_start} with RESET GROUP … TO EARLIEST, or consume with auto_offset_reset",
            lost_from=lost_from,
            log_start=log_start,
        )
    if state.fragments:
        bounds = (state.committed, min(log_start, state.next_offset))
        state = edit(state, bounds, lambda part: ACKED if isinstance(part.status, Returned) else part.status)
    if state.next_offset < log_start:
        state = append(state, log_start, ACKED)
    return state, (lost_from, log_start)


def _lost_from(state: GroupState, log_start: int) -> int | None:
    if state.committed >= log_start:
        return None
    waiting = (part.start for part in state.fragments if isinstance(part.status, Returned))
    oldest = next(waiting, state.next_offset)
    return oldest if oldest < log_start else None


def bury(
    state: GroupState, limit: int, *, log_start: int, max_deliveries: int
) -> tuple[GroupState, tuple[DeadLetter, ...]]:
    """Takes out, the oldest first, what came back after its last delivery; what retention removed is not there to take."""
    dead: list[DeadLetter] = []
    for part, status in _used_up(state, max_deliveries):
        start = max(part.start, log_start)
        end = min(part.end, start + limit - len(dead))
        dead += [DeadLetter(at, status.deliveries, status.reason) for at in range(start, end)]
    return _edit_named(state, [letter.offset for letter in dead], lambda part: ACKED), tuple(dead)


def _used_up(state: GroupState, max_deliveries: int) -> Iterator[tuple[Fragment, Returned]]:
    for part in state.fragments if max_deliveries else ():
        if isinstance(part.status, Returned) and part.status.deliveries >= max_deliveries:
            yield part, part.status


def is_overdue(state: GroupState, now_ms: int, *, log_start: int, max_deliveries: int) -> bool:
    """Whether a claim ran out, or a message waits to be buried."""
    runs_out = next_deadline(state)
    if runs_out is not None and runs_out <= now_ms:
        return True
    return any(part.end > log_start for part, _ in _used_up(state, max_deliveries))


def _returned_range(state: GroupState, limit: int, max_deliveries: int, saturated: bool) -> tuple[int, int]:
    """The oldest run that came back and may be given again.

    A saturated group gives whole fragments only, so that the claim does not add one. The fragment at
    `committed` is cut all the same: its ack will free it, and that is how a group always gets out of
    saturation.
    """

    def is_kept(part: Fragment) -> bool:
        return not isinstance(part.status, Returned) or 0 < max_deliveries <= part.status.deliveries

    start = end = 0
    for part in takewhile(lambda part: not is_kept(part), dropwhile(is_kept, state.fragments)):
        start = part.start if start == end else start
        end = min(part.end, start + limit)
        if end < part.end:
            return start, part.start if saturated and start > state.committed else end
    return start, end


def _take_returned(
    state: GroupState, start: int, end: int, consumer: str, deadline_ms: int
) -> tuple[GroupState, tuple[int, ...]]:
    deliveries: list[int] = []

    def take(part: Fragment) -> Status:
        assert isinstance(part.status, Returned)
        count = part.status.deliveries + 1
        deliveries.extend([count] * (part.end - part.start))
        return Claim(consumer, deadline_ms, count)

    return edit(state, (start, end), take), tuple(deliveries)


# --- ack, nack ----------------------------------------------------------------------------------------------


def ack_upto(state: GroupState, upto_offset: int, *, consumer: str | None = None) -> tuple[GroupState, int | None]:
    """Acknowledges what one consumer was given up to `upto_offset`, included. Returns `acknowledged_offset`.

    Which consumer: `consumer`, else the one that holds `upto_offset`, or held it last if it came back.
    (Unnamed readers have a name per claim: for them it is the claim `upto_offset` lies in, and no other.)

    Of the offsets up to `upto_offset`, exactly these become acknowledged:
    - those the consumer holds;
    - those it held until they expired or were released, and that nobody was given since: done, if late.
    All others stay as they are: what another holds or held last, and what was nacked, as nobody did that.

    An `upto_offset` that is acknowledged already changes nothing for a reader without a name, and nothing
    below `committed` ever changes: repeated and outdated acks are harmless. One that was never given to
    anybody raises OffsetOutOfRange.
    """
    _check_given(state, upto_offset)
    if upto_offset < state.committed:
        return state, state.acknowledged_offset
    holder = consumer if consumer is not None else _holder(status_at(state, upto_offset))
    if holder is not None:
        bounds = (state.committed, upto_offset + 1)
        state = edit(state, bounds, lambda part: ACKED if _holder(part.status) == holder else part.status)
    return state, state.acknowledged_offset


def ack(state: GroupState, offsets: Iterable[int], *, consumer: str | None = None) -> tuple[GroupState, Acknowledged]:
    """Acknowledges single offsets: claimed ones, and those that came back and that nobody was given since.

    With `consumer`, those in another's open claim are left alone and reported; without, whoever holds them.
    Raises OffsetOutOfRange if one was never given to anybody, Overloaded at MAX_FRAGMENTS.
    """
    named = [offset for offset in _named(state, offsets) if offset >= state.committed]
    left_alone: list[int] = []

    def finish(part: Fragment) -> Status:
        if not _is_anothers(part, consumer):
            return ACKED
        left_alone.extend(range(part.start, part.end))
        return part.status

    state = _bounded(state, _edit_named(state, named, finish))
    return state, Acknowledged(state.acknowledged_offset, tuple(left_alone))


def ack_range(state: GroupState, start: int, end: int, *, consumer: str | None = None) -> GroupState:
    """As `ack` of every offset from `start` on and below `end`."""
    if start >= end:
        raise InvalidRequest(f"a range of offsets from {start} to {end} is empty")
    _check_given(state, end - 1)
    start = max(start, state.committed)
    if start >= end:
        return state
    return _bounded(
        state, edit(state, (start, end), lambda part: part.status if _is_anothers(part, consumer) else ACKED)
    )


def _is_anothers(part: Fragment, consumer: str | None) -> bool:
    return consumer is not None and isinstance(part.status, Claim) and part.status.consumer != consumer


def nack(
    state: GroupState, offsets: Iterable[int], *, reason: str, consumer: str | None = None
) -> tuple[GroupState, int]:
    """Gives claimed offsets back: available at once, with their deliveries counted. Returns how many.

    All or none: raises Conflict if one is not claimed (by `consumer`, when given), OffsetOutOfRange if one
    was never given to anybody, Overloaded at MAX_FRAGMENTS.
    """
    named = _named(state, offsets)
    foreign = [offset for offset in named if offset < state.committed]

    def give_back(part: Fragment) -> Status:
        if isinstance(part.status, Claim) and consumer in (None, part.status.consumer):
            return Returned(None, part.status.deliveries, reason[:MAX_REASON_CHARS])
        foreign.extend(range(part.start, part.end))
        return part.status

    nacked = _edit_named(state, named[len(foreign) :], give_back)
    if foreign:
        whose = "an open claim" if consumer is None else f"an open claim of {consumer!r}"
        raise Conflict(
            f"offset {', '.join(map(str, foreign[:10]))} cannot be nacked: only messages in {whose} can, "
            f"and these are acknowledged, came back already, or belong to another consumer",
            offsets=foreign,
        )
    return _bounded(state, nacked), len(named)


def _named(state: GroupState, offsets: Iterable[int]) -> list[int]:
    named = sorted(set(offsets))
    if named:
        _check_given(state, named[-1])
    return named


def _check_given(state: GroupState, offset: int) -> None:
    if offset >= state.next_offset:
        raise OffsetOutOfRange(
            f"offset {offset} was not given to this group yet: only offsets below {state.next_offset} were",
            offset=offset,
            next_offset=state.next_offset,
        )


def _edit_named(state: GroupState, named: Sequence[int], change: Callable[[Fragment], Status]) -> GroupState:
    if not named:
        return state
    members = frozenset(named)
    return edit(state, edges(named), lambda part: change(part) if part.start in members else part.status)


def _bounded(before: GroupState, after: GroupState) -> GroupState:
    if len(after.fragments) > max(len(before.fragments), MAX_FRAGMENTS):
        raise Overloaded(
            f"the group is split into {len(before.fragments)} fragments, the limit is {MAX_FRAGMENTS}: "
            f"acknowledge its oldest messages, or up to an offset, before single ones in between",
            fragments=len(before.fragments),
            max_fragments=MAX_FRAGMENTS,
        )
    return after


def _holder(status: Status) -> str | None:
    return None if isinstance(status, Acked) else status.consumer
