"""The tree's sums, kept step by step, against sums of everything; and that they tell entries apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.core.merkle import (
    BUCKETS,
    DEPTH,
    NOTHING,
    Sum,
    bucket_of,
    buckets_below,
    children,
    entry_sum,
    node_sum,
)
from tablecast.model.replication import Version

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
versions = st.builds(Version, st.integers(0, 9), st.sampled_from(["a", "b"]), st.integers(0, 9))
Entries = dict[str, tuple[Version, bool]]


def buckets_of(entries: Entries) -> dict[int, Sum]:
    found: dict[int, Sum] = {}
    for key, (version, tombstone) in entries.items():
        found[bucket_of(key)] = found.get(bucket_of(key), NOTHING) + entry_sum(key, version, tombstone)
    return found


@given(st.lists(st.tuples(keys, st.none() | st.tuples(versions, st.booleans())), max_size=40))
def test_steps_come_to_the_same_as_starting_over(steps: list[tuple[str, tuple[Version, bool] | None]]) -> None:
    entries: Entries = {}
    kept: dict[int, Sum] = {}
    for key, entry in steps:
        bucket = bucket_of(key)
        if key in entries:
            kept[bucket] -= entry_sum(key, *entries.pop(key))
        if entry is not None:
            entries[key] = entry
            kept[bucket] = kept.get(bucket, NOTHING) + entry_sum(key, *entry)
    assert {bucket: total for bucket, total in kept.items() if total != NOTHING} == buckets_of(entries)


@given(st.dictionaries(keys, st.tuples(versions, st.booleans()), max_size=30))
def test_every_level_is_the_sum_of_the_one_below(entries: Entries) -> None:
    buckets = buckets_of(entries)

    def check(level: int, index: int) -> None:
        below = children(buckets, level, index)
        assert sum(below, NOTHING) == node_sum(buckets, level, index)
        for child, total in enumerate(below, 16 * index):
            if level + 1 == DEPTH:
                assert total == buckets.get(child, NOTHING)
            elif total != NOTHING:
                check(level + 1, child)

    check(0, 0)
    assert node_sum(buckets, 0, 0).entries == len(entries)


@given(
    st.tuples(keys, versions, st.booleans()),
    st.tuples(keys, versions, st.booleans()),
)
def test_different_entries_have_different_sums(
    one: tuple[str, Version, bool], other: tuple[str, Version, bool]
) -> None:
    assert (entry_sum(*one) == entry_sum(*other)) == (one == other)


def test_key_and_node_do_not_run_into_each_other() -> None:
    assert entry_sum("ab", Version(1, "c", 1), False) != entry_sum("a", Version(1, "bc", 1), False)


def test_the_documented_sums() -> None:
    """Stable for ever: nodes of different versions compare them."""
    assert bucket_of("golden-key") == 0x5CD
    assert (
        format(entry_sum("golden-key", Version(1_640_995_200_000, "golden-node", 12345), False).digest, "032x")
        == "785bfcaa8769fed37abe4956c620abac"
    )


def test_keys_spread_over_the_buckets() -> None:
    counts = [0] * BUCKETS
    for i in range(40_960):
        counts[bucket_of(f"app.orders:{i}")] += 1
    assert max(counts) < 30
    assert sum(count == 0 for count in counts) < 10


@pytest.mark.parametrize(
    ("level", "index", "expected"),
    [(0, 0, range(BUCKETS)), (1, 10, range(2560, 2816)), (2, 163, range(2608, 2624)), (3, 2623, range(2623, 2624))],
)
def test_what_lies_below_a_node(level: int, index: int, expected: range) -> None:
    assert buckets_below(level, index) == expected
