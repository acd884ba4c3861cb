"""Groups that nobody claims for: their readers read without a group and commit how far they are, as with Kafka's assign.

Such a group stores positions and hands nothing out, so any offset of the log can be acknowledged, not only those that were
given to it. That ends, partition by partition, with the first claim: then acks are checked against what was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tablecast.codec.group import ACKED, GroupState, Returned
from tablecast.core import group
from tablecast.core.fragments import append, edit

NOT_GIVEN: Final = "not given yet"  # why an offset below a committed one is open


def first(start_offset: int) -> GroupState:
    return GroupState(start_offset, simple=True)


def commit_upto(state: GroupState, upto_offset: int) -> GroupState:
    """Everything up to `upto_offset`, included, is acknowledged. Never moves backwards."""
    if upto_offset < state.committed:
        return state
    if upto_offset + 1 >= state.next_offset:
        return first(upto_offset + 1)
    return _simple(edit(state, (state.committed, upto_offset + 1), lambda _: ACKED))


def commit(state: GroupState, offsets: Sequence[int]) -> GroupState:
    """Single offsets are acknowledged; those below them stay open."""
    return _simple(group.ack(_reaching(state, max(offsets) + 1), offsets)[0])


def commit_range(state: GroupState, start: int, end: int) -> GroupState:
    return _simple(group.ack_range(_reaching(state, end), start, end))


def _reaching(state: GroupState, end: int) -> GroupState:
    return append(state, end, Returned(None, 0, NOT_GIVEN)) if end > state.next_offset else state


def _simple(state: GroupState) -> GroupState:
    return msgspec.structs.replace(state, simple=True)
