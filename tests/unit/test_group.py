"""Consumer groups where scripts and the model do not reach: refusals, limits, and what a step costs.

How a group behaves step by step is in golden/group/*.txt; that it always does, in
stateful/test_group_model.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablecast.codec.group import Claim, GroupState, Returned, encode
from tablecast.core import group
from tablecast.core.fragments import edges
from tablecast.errors import Conflict, InvalidRequest, OffsetOutOfRange, Overloaded

LOG_END = 1_000_000


def claim(
    state: GroupState,
    consumer: str = "ann",
    limit: int = 100,
    *,
    log_start: int = 0,
    log_end: int = LOG_END,
    now_ms: int = 0,
    visibility_ms: int = 100,
    max_deliveries: int = 0,
    auto_offset_reset: bool = False,
) -> tuple[GroupState, group.Claimed]:
    return group.claim(
        state,
        consumer=consumer,
        limit=limit,
        log_start=log_start,
        log_end=log_end,
        now_ms=now_ms,
        visibility_ms=visibility_ms,
        max_deliveries=max_deliveries,
        auto_offset_reset=auto_offset_reset,
    )


def torn(fragments: int) -> GroupState:
    """One claim of ann's with every second message acknowledged: that many fragments, an odd number."""
    state, _ = claim(group.first(0), limit=fragments)
    state, _ = group.ack(state, range(1, fragments, 2))
    assert len(state.fragments) == fragments
    return state


@given(
    st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 5)), min_size=1, max_size=6),
    st.sets(st.integers(0, 29)),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.sampled_from(["ann", "bob", None]),
)
def test_a_range_is_acknowledged_as_its_offsets_are(
    claims: list[tuple[str, int]], acked: set[int], bounds: tuple[int, int], consumer: str | None
) -> None:
    state = group.first(0)
    for holder, count in claims:
        state, _ = claim(state, holder, count)
    state, _ = group.ack(state, [offset for offset in acked if offset < state.next_offset])
    start, end = sorted(bounds)
    if start == end:
        with pytest.raises(InvalidRequest, match="empty"):
            group.ack_range(state, start, end, consumer=consumer)
    elif end > state.next_offset:
        with pytest.raises(OffsetOutOfRange):
            group.ack_range(state, start, end, consumer=consumer)
    else:
        expected, _ = group.ack(state, range(start, end), consumer=consumer)
        assert group.ack_range(state, start, end, consumer=consumer) == expected


# --- what is refused ---


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"limit": 0}, "the limit is 0"),
        ({"consumer": ""}, "has 0 characters"),
        ({"consumer": "x" * 257}, "has 257 characters"),
        ({"visibility_ms": 0}, "0 ms"),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(wrong: dict[str, int | str], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        claim(group.first(0), **wrong)  # type: ignore[arg-type]
    assert said in refused.value.message


def test_renewing_for_no_time_is_refused() -> None:
    state, _ = claim(group.first(0))
    with pytest.raises(InvalidRequest):
        group.extend(state, consumer="ann", now_ms=0, visibility_ms=0)


def test_lost_messages_are_named_with_the_way_out() -> None:
    with pytest.raises(OffsetOutOfRange) as refused:
        claim(group.first(10), log_start=25)
    assert refused.value.details == {"lost_from": 10, "log_start": 25}
    for word in ("[10, 25)", "RESET GROUP", "auto_offset_reset"):
        assert word in refused.value.message


def test_auto_offset_reset_skips_to_the_start_of_the_log_and_says_so() -> None:
    state, got = claim(group.first(10), limit=5, log_start=25, auto_offset_reset=True)
    assert (got.skipped, got.start, got.end) == ((10, 25), 25, 30)
    assert state.committed == 25


def test_auto_offset_reset_skips_even_when_there_is_nothing_to_give() -> None:
    state, got = claim(group.first(10), log_start=25, log_end=25, auto_offset_reset=True)
    assert (got.skipped, got.start, got.end) == ((10, 25), 25, 25)
    assert state == group.first(25)


def test_retention_up_to_the_next_message_loses_nothing() -> None:
    state, _ = claim(group.first(0), "ann", 5)
    _, got = claim(state, "bob", 5, log_start=5)
    assert (got.skipped, got.start, got.end) == (None, 5, 10)

    state, _ = group.nack(state, [4], reason="again")
    _, got = claim(state, "bob", 5, log_start=4)
    assert (got.skipped, got.start, got.end) == (None, 4, 5)


def test_a_refused_nack_names_every_offset_that_is_in_the_way() -> None:
    state, _ = claim(group.first(0), limit=10)
    state, _ = group.ack_upto(state, 2)
    state, _ = group.ack(state, [5, 6])
    with pytest.raises(Conflict) as refused:
        group.nack(state, [1, 4, 5, 6, 7], reason="no")
    assert refused.value.details == {"offsets": [1, 5, 6]}


def test_the_reason_of_a_nack_is_cut_to_its_limit() -> None:
    state, _ = claim(group.first(0), limit=1)
    state, _ = group.nack(state, [0], reason="x" * 10_000)
    assert state.fragments[0].status == Returned(None, 1, "x" * group.MAX_REASON_CHARS)


def test_no_offsets_are_no_change() -> None:
    state, _ = claim(group.first(3))
    assert group.ack(state, []) == (state, group.Acknowledged(2))
    assert group.nack(state, [], reason="none") == (state, 0)


def test_repeated_offsets_count_once() -> None:
    state, _ = claim(group.first(0), limit=4)
    assert group.nack(state, [2, 1, 2, 1], reason="twice")[1] == 2


# --- dead letters ---


def test_no_more_dead_letters_at_a_time_than_the_limit() -> None:
    state, _ = claim(group.first(0), limit=10, log_end=10)
    letters: list[int] = []
    for _ in range(4):
        state, got = claim(state, limit=3, log_end=10, now_ms=100, max_deliveries=1)
        assert got.start == got.end
        assert len(got.dead) <= 3
        letters += [letter.offset for letter in got.dead]
    assert letters == list(range(10))
    assert state == group.first(10)


def test_a_lower_limit_of_deliveries_holds_for_what_came_back_before() -> None:
    state, _ = claim(group.first(0), limit=1, log_end=1)
    state, got = claim(state, limit=1, log_end=1, now_ms=100, max_deliveries=0)
    assert got.deliveries == (2,)
    state, got = claim(state, limit=1, log_end=1, now_ms=200, max_deliveries=2)
    assert got.dead == (group.DeadLetter(0, 2, group.EXPIRED),)


# --- limits ---


def test_a_saturated_group_gives_nothing_new_and_says_so() -> None:
    state = torn(group.MAX_FRAGMENTS - 1)
    _, got = claim(state)
    assert not got.saturated
    assert got.end - got.start == 100

    state, _ = claim(state, "bob", 1)
    assert group.is_saturated(state)
    after, got = claim(state)
    assert got.saturated
    assert got.start == got.end
    assert after == state


def test_a_saturated_group_gives_what_came_back() -> None:
    state = torn(group.MAX_FRAGMENTS - 1)
    state, _ = claim(state, "bob", 10)
    state, _ = group.release(state, "bob", delivered=True)
    after, got = claim(state, "cid", 10)
    assert (got.start, got.end, got.saturated) == (group.MAX_FRAGMENTS - 1, group.MAX_FRAGMENTS + 9, True)
    assert len(after.fragments) == len(state.fragments)


def test_a_saturated_group_cuts_only_its_first_fragment() -> None:
    state, _ = claim(group.first(0), "bob", 10)
    state, _ = claim(state, "ann", group.MAX_FRAGMENTS)
    state, _ = group.ack(state, range(10, group.MAX_FRAGMENTS + 8, 2))
    state, _ = claim(state, "cid", 10)
    assert group.is_saturated(state)

    back, _ = group.release(state, "cid", delivered=True)
    _, got = claim(back, "bob", 3)
    assert got.start == got.end, "ten came back as one fragment, and three of them would split it"
    back, _ = group.release(state, "bob", delivered=True)
    _, got = claim(back, "cid", 3)
    assert (got.start, got.end) == (0, 3)


def test_a_single_ack_or_nack_that_would_split_further_is_refused_but_never_one_that_joins() -> None:
    state = torn(group.MAX_FRAGMENTS - 1)
    state, got = claim(state, "bob", 10)
    steps: list[Callable[[], object]] = [
        lambda: group.ack(state, [got.start + 5]),
        lambda: group.nack(state, [got.start + 5], reason="no"),
    ]
    for step in steps:
        with pytest.raises(Overloaded) as refused:
            step()
        assert refused.value.details["max_fragments"] == group.MAX_FRAGMENTS

    joined, _ = group.ack(state, [2, 4])
    assert len(joined.fragments) == len(state.fragments) - 4
    moved, position = group.ack_upto(state, got.start + 5, consumer="bob")
    assert position is None
    assert group.lag(moved, LOG_END) == group.lag(state, LOG_END) - 6


@settings(deadline=None)
@given(st.data())
def test_a_group_under_the_fragment_limit_stays_small_and_gets_to_the_end(data: st.DataObject) -> None:
    """With a limit of 6 fragments, any mix of steps stays within twice that and drains in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "MAX_FRAGMENTS", 6)
        state, now_ms = group.first(0), 0
        for _ in range(data.draw(st.integers(0, 40))):
            now_ms += data.draw(st.sampled_from((0, 40)))
            state = random_step(state, now_ms, data)
            assert len(state.fragments) <= 2 * 6 + 4
        steps = 0
        while state.committed < 60:
            now_ms += 1_000
            state, got = claim(state, "last", 4, log_end=60, now_ms=now_ms)
            assert got.start == state.committed
            state, _ = group.ack_upto(state, got.end - 1, consumer="last")
            steps += 1
        assert steps <= 60


def random_step(state: GroupState, now_ms: int, data: st.DataObject) -> GroupState:
    consumer = data.draw(st.sampled_from(("ann", "bob", "cid", "dan")))
    step = data.draw(st.sampled_from(("claim", "ack", "nack", "upto", "release")))
    if step == "claim":
        return claim(state, consumer, data.draw(st.integers(1, 5)), log_end=60, now_ms=now_ms)[0]
    if step == "release":
        return group.release(state, consumer, delivered=True)[0]
    claims = [part for part in state.fragments if isinstance(part.status, Claim)]
    if not claims:
        return state
    part = data.draw(st.sampled_from(claims))
    offset = data.draw(st.integers(part.start, part.end - 1))
    try:
        if step == "ack":
            return group.ack(state, [offset])[0]
        if step == "nack":
            return group.nack(state, [offset], reason="again")[0]
    except Overloaded:
        return state
    return group.ack_upto(state, offset)[0]


# --- cost ---


def calls_of(step: Callable[[], object]) -> int:
    """How many calls a step makes, of Python and of C: a measure of work that no busy machine disturbs."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def scattered(state: GroupState) -> Iterator[int]:
    return (part.start for part in state.fragments if isinstance(part.status, Claim))


STEPS: dict[str, Callable[[GroupState], object]] = {
    "claim": lambda state: claim(state),
    "expire and claim": lambda state: claim(state, now_ms=1_000),
    "bury": lambda state: claim(state, now_ms=1_000, limit=10_000, max_deliveries=1),
    "ack up to the end": lambda state: group.ack_upto(state, state.next_offset - 1),
    "ack every claimed one": lambda state: group.ack(state, scattered(state), consumer="ann"),
    "nack every claimed one": lambda state: group.nack(state, scattered(state), reason="all"),
    "release": lambda state: group.release(state, "ann", delivered=True),
    "extend": lambda state: group.extend(state, consumer="ann", now_ms=5, visibility_ms=100),
    "encode": encode,
}


@pytest.mark.parametrize("name", STEPS)
def test_the_work_of_a_step_grows_no_faster_than_the_fragments(name: str) -> None:
    few, many = torn(501), torn(2_001)
    assert calls_of(lambda: STEPS[name](many)) < 5 * calls_of(lambda: STEPS[name](few))


def test_a_single_ack_in_a_large_state_touches_only_its_neighbours() -> None:
    few, many = torn(101), torn(3_001)
    assert calls_of(lambda: group.ack(many, [2_000])) < 2 * calls_of(lambda: group.ack(few, [50]))


# --- edges ---


@settings(deadline=None)
@given(st.sets(st.integers(0, 60)))
def test_edges_describe_exactly_the_runs(offsets: set[int]) -> None:
    bounds = edges(sorted(offsets))
    runs = list(zip(bounds[::2], bounds[1::2], strict=True))
    assert {at for start, end in runs for at in range(start, end)} == offsets
    assert all(one < other for one, other in pairwise(bounds))
