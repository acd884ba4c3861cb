"""Sending dead letters back: exactly the named offset comes back, and every state stays one that can be stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.codec import group as codec
from tablecast.codec.group import ACKED, Acked, Claim, Fragment, GroupState, Returned
from tablecast.core import group
from tablecast.core.fragments import status_at
from tablecast.core.redelivery import REDRIVEN, has_work, is_done, mark_done, restore

NOW, LATER = 1_000, 2_000
BACK = Returned(None, 0, REDRIVEN)


@st.composite
def states(draw: st.DrawFn) -> GroupState:
    """Canonical states: lengths and statuses, neighbours different, the first not acknowledged."""
    start = committed = draw(st.integers(0, 8))
    statuses = st.sampled_from(
        [
            ACKED,
            BACK,
            Claim("ann", NOW, 1),
            Claim("bob", LATER, 2),
            Returned(None, 2, "bad"),
            Returned("ann", 1, "late"),
        ]
    )
    fragments: list[Fragment] = []
    below: object = ACKED
    for length, status in draw(st.lists(st.tuples(st.integers(1, 3), statuses), max_size=6)):
        if status != below:
            fragments.append(Fragment(start, start + length, status))
            start, below = start + length, status
    return GroupState(committed, tuple(fragments))


def canonical(state: GroupState) -> GroupState:
    assert codec.decode(codec.encode(state)) == state
    return state


def tiles(state: GroupState, upto: int) -> list[object]:
    """The status of every offset below `upto`; None: never given."""
    return [status_at(state, offset) if offset < state.next_offset else None for offset in range(upto)]


@given(states(), st.integers(0, 30))
def test_restore_opens_that_offset_and_no_other(state: GroupState, offset: int) -> None:
    restored = canonical(restore(state, offset))
    expected = tiles(state, 40)
    if isinstance(expected[offset], Acked):
        expected[offset] = BACK
    assert tiles(restored, 40) == expected
    assert restore(restored, offset) == restored


@given(states(), st.integers(0, 30))
def test_mark_done_acknowledges_that_offset_and_no_other(state: GroupState, offset: int) -> None:
    done = canonical(mark_done(state, offset))
    expected = tiles(state, 40)
    for skipped in range(state.next_offset, offset):
        expected[skipped] = BACK  # passed over: not sent back yet
    expected[offset] = ACKED
    assert tiles(done, 40) == expected
    assert is_done(done, offset)
    assert mark_done(done, offset) == done


@given(states(), st.integers(0, 30))
def test_is_done_means_acknowledged(state: GroupState, offset: int) -> None:
    assert is_done(state, offset) == isinstance(tiles(state, 40)[offset], Acked)


@given(states(), st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=8))
def test_any_sequence_stays_canonical(state: GroupState, steps: list[tuple[bool, int]]) -> None:
    for opens, offset in steps:
        state = canonical(restore(state, offset) if opens else mark_done(state, offset))


@given(st.sets(st.integers(0, 30)))
def test_marking_all_in_any_order_leaves_nothing_but_a_position(offsets: set[int]) -> None:
    state = GroupState(0)
    for offset in sorted(offsets, reverse=True):
        state = canonical(mark_done(state, offset))
    for offset in range(31):
        state = canonical(mark_done(state, offset))
    assert state == GroupState(31)


def test_below_the_position_everything_else_stays_done() -> None:
    restored = canonical(restore(GroupState(10, (Fragment(10, 12, Claim("ann", LATER, 1)),)), 4))
    assert restored == GroupState(
        4, (Fragment(4, 5, BACK), Fragment(5, 10, ACKED), Fragment(10, 12, Claim("ann", LATER, 1)))
    )


@pytest.mark.parametrize("offset", [0, 4, 9])
def test_a_restored_message_is_given_once_more_and_alone(offset: int) -> None:
    state = restore(GroupState(10), offset)
    state, claimed = group.claim(
        state, consumer="ann", limit=100, log_start=0, log_end=10, now_ms=NOW, visibility_ms=60_000
    )
    assert (claimed.start, claimed.end, claimed.deliveries) == (offset, offset + 1, (1,))
    state, _ = group.ack_upto(state, offset)
    assert state == GroupState(10)


def test_neighbours_that_came_back_together_are_one_fragment() -> None:
    state = restore(restore(GroupState(10), 9), 8)
    assert canonical(state) == GroupState(8, (Fragment(8, 10, BACK),))


def test_what_was_never_given_cannot_be_restored() -> None:
    assert restore(GroupState(10), 10) == GroupState(10)


# --- has_work ------------------------------------------------------------------------------------------------


@given(states(), st.integers(0, 5), st.sampled_from([NOW - 1, NOW, LATER]))
def test_has_work_says_whether_a_claim_would_give_something(state: GroupState, new: int, now: int) -> None:
    log_end = state.next_offset + new
    _, claimed = group.claim(
        state, consumer="eve", limit=100, log_start=0, log_end=log_end, now_ms=now, visibility_ms=60_000
    )
    assert has_work(state, log_end=log_end, now_ms=now) == (claimed.start < claimed.end)


def saturated() -> GroupState:
    """Every second message acknowledged, the others in an open claim."""
    pieces = (Fragment(i, i + 1, ACKED if i % 2 else Claim("ann", LATER, 1)) for i in range(group.MAX_FRAGMENTS))
    return GroupState(0, tuple(pieces))


def test_a_saturated_group_has_no_work_in_new_messages() -> None:
    state = saturated()
    _, claimed = group.claim(
        state, consumer="eve", limit=9, log_start=0, log_end=10_000, now_ms=NOW, visibility_ms=60_000
    )
    assert claimed.start == claimed.end and claimed.saturated
    assert not has_work(state, log_end=10_000, now_ms=NOW)
    assert has_work(state, log_end=10_000, now_ms=LATER)  # its claims are overdue then
