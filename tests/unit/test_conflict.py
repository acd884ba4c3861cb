"""Last writer wins: one order for every node and moment; and what the clamp alone would do."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tablecast.core.conflict import CLOCK_AHEAD_MS, beats, is_ahead, local_timestamp_ms
from tablecast.model.replication import Version

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
versions = st.builds(Version, st.integers(0, 10**7), names, st.integers(0, 5))
moments = st.integers(0, 10**7)


def literal(version: Version, now_ms: int) -> tuple[int, str, int]:
    """The clamp alone."""
    return min(version.timestamp_ms, now_ms + CLOCK_AHEAD_MS), version.node_id, version.seq


def clamped(version: Version, now_ms: int) -> tuple[int, int, bytes, int]:
    """The clamp, and then the time as it was written."""
    limit = now_ms + CLOCK_AHEAD_MS
    return min(version.timestamp_ms, limit), version.timestamp_ms, version.node_id.encode(), version.seq


@given(versions, versions, moments)
def test_comparing_by_clamped_times_is_the_same_at_every_moment(a: Version, b: Version, now_ms: int) -> None:
    assert beats(a, b) == (clamped(a, now_ms) > clamped(b, now_ms))
    assert beats(a, b) + beats(b, a) == (a != b)


@given(st.lists(versions, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_replicas_agree_whatever_the_order(written: list[Version], source: random.Random) -> None:
    def kept(arriving: list[Version]) -> Version:
        stored = arriving[0]
        for version in arriving[1:]:
            stored = version if beats(version, stored) else stored
        return stored

    assert kept(written) == kept(source.sample(written, len(written))) == max(written)


@given(versions, moments)
def test_a_local_write_beats_what_it_replaces(stored: Version, now_ms: int) -> None:
    mine = Version(local_timestamp_ms(now_ms, stored), "", 0)
    assert beats(mine, stored)
    assert mine.timestamp_ms >= now_ms


def test_a_local_write_takes_the_time_it_has() -> None:
    assert local_timestamp_ms(5, None) == 5
    assert local_timestamp_ms(5, Version(3, "z", 9)) == 5
    assert local_timestamp_ms(5, Version(5, "a", 1)) == 6
    assert local_timestamp_ms(5, Version(9, "a", 1)) == 10


def test_ahead_begins_after_five_minutes() -> None:
    assert not is_ahead(Version(CLOCK_AHEAD_MS, "a", 1), 0)
    assert is_ahead(Version(CLOCK_AHEAD_MS + 1, "a", 1), 0)


def test_the_clamp_alone_would_let_replicas_differ_for_ever() -> None:
    """Why the time as it was written comes second: without it, when one looks decides who wins."""
    hour = 3_600_000
    earlier, later = Version(hour, "b", 1), Version(hour + 60_000, "a", 1)  # both by clocks an hour ahead
    assert literal(earlier, 0) > literal(later, 0)
    assert literal(earlier, hour) < literal(later, hour)
    assert beats(later, earlier)
