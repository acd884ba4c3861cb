"""Ids: never twice, always growing, whatever the clock, the threads and the restarts do."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.core.snowflake import EPOCH_MS, NODE_LIMIT, STEP, SnowflakeIds, id_time_ms

NOW = 1_640_995_200_000
PER_MS = 4096
MS_2089 = 3_776_000_000_000  # a moment in August 2089


def test_golden_id() -> None:
    assert SnowflakeIds(node=5).take(NOW) == ((NOW - EPOCH_MS) << 22) | 5 == 264_905_529_753_600_005


def test_an_id_tells_its_time() -> None:
    ids = SnowflakeIds(node=1023)
    assert [id_time_ms(ids.take(NOW)) for _ in range(3)] == [NOW] * 3


@given(
    st.lists(st.tuples(st.integers(0, MS_2089), st.integers(1, 10_000)), max_size=30), st.integers(0, NODE_LIMIT - 1)
)
def test_runs_never_overlap_and_always_grow(takes: list[tuple[int, int]], node: int) -> None:
    """Also with a clock that jumps back and forth."""
    ids = SnowflakeIds(node)
    last = -1
    for now, count in takes:
        first = ids.take(now, count)
        assert first > last
        assert first % STEP == node
        assert first >= (now - EPOCH_MS) << 22
        last = first + (count - 1) * STEP
        assert ids.last == last


def test_a_full_millisecond_borrows_from_the_next() -> None:
    ids = SnowflakeIds()
    first = ids.take(NOW, PER_MS)
    assert id_time_ms(first + (PER_MS - 1) * STEP) == NOW
    assert id_time_ms(ids.take(NOW)) == NOW + 1
    assert id_time_ms(ids.take(NOW + 1)) == NOW + 1


def test_a_clock_that_went_backwards_changes_nothing() -> None:
    ids = SnowflakeIds()
    first = ids.take(NOW)
    assert ids.take(NOW - 3_600_000) == first + STEP
    assert ids.take(0) == first + 2 * STEP
    assert ids.take(NOW + 1) > first + 2 * STEP


def test_before_the_epoch_ids_begin_at_the_node() -> None:
    assert SnowflakeIds(node=7).take(0) == 7


@given(st.integers(-1, 2**62), st.integers(0, NODE_LIMIT - 1), st.integers(0, MS_2089))
def test_a_restart_goes_on_after_the_last_id_of_whatever_node(last: int, node: int, now: int) -> None:
    first = SnowflakeIds(node, last).take(now)
    assert first > last
    assert first % STEP == node


def test_two_nodes_never_give_the_same() -> None:
    a, b = SnowflakeIds(1), SnowflakeIds(2)
    assert not {a.take(NOW) for _ in range(100)} & {b.take(NOW) for _ in range(100)}


def test_ids_fit_63_bits_until_2089() -> None:
    assert SnowflakeIds(node=1023).take(MS_2089) < 2**63
    assert SnowflakeIds().take(EPOCH_MS + 2**41) == 2**63  # and this is when that ends


@pytest.mark.parametrize("node", [-1, NODE_LIMIT])
def test_a_node_has_ten_bits(node: int) -> None:
    with pytest.raises(ValueError, match=rf"0\.\.1023, not {node}"):
        SnowflakeIds(node)


def test_threads_never_share_an_id() -> None:
    ids = SnowflakeIds()
    found: list[list[int]] = [[] for _ in range(4)]
    together = threading.Barrier(4)

    def take(mine: list[int]) -> None:
        together.wait()
        for _ in range(2000):
            mine.append(ids.take(NOW, 3))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [first + i * STEP for mine in found for first in mine for i in range(3)]
    assert len(set(every)) == len(every) == 4 * 2000 * 3
    assert all(mine == sorted(mine) for mine in found)
    assert max(every) == ids.last
