"""Seen numbers against a plain set."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tablecast.core.watermark import MAX_SPANS, Watermark

numbers = st.integers(0, 60) | st.integers((5 << 32) + 1, (5 << 32) + 20)


def is_canonical(watermark: Watermark) -> bool:
    spans = watermark.spans
    apart = all(low[1] + 1 < high[0] for low, high in pairwise(spans))
    return apart and all(first <= last for first, last in spans)


@given(st.lists(numbers, max_size=120))
def test_it_is_a_set(added: list[int]) -> None:
    model: set[int] = set()
    watermark = Watermark()
    for number in added:
        assert (number in watermark) == (number in model)
        assert watermark.add(number) == (number not in model)
        model.add(number)
        assert is_canonical(watermark)
    assert {n for first, last in watermark.spans for n in range(first, last + 1)} == model
    assert Watermark(watermark.spans).spans == watermark.spans


def test_a_stream_in_order_is_one_span() -> None:
    watermark = Watermark()
    for number in range(1, 10_001):
        watermark.add(number)
    assert watermark.spans == ((1, 10_000),)


@given(st.lists(st.integers(0, 3 * MAX_SPANS), min_size=MAX_SPANS, max_size=4 * MAX_SPANS))
def test_what_it_forgets_is_taken_for_new_never_for_seen(added: list[int]) -> None:
    watermark = Watermark()
    for number in added:
        watermark.add(2 * number)
        assert len(watermark.spans) <= MAX_SPANS
        assert is_canonical(watermark)
    seen = {n for first, last in watermark.spans for n in range(first, last + 1)}
    assert seen <= {2 * number for number in added}


def test_the_lowest_is_forgotten_first() -> None:
    watermark = Watermark()
    for number in range(MAX_SPANS + 1):
        watermark.add(2 * number)
    assert 0 not in watermark
    assert 2 in watermark
    assert 2 * MAX_SPANS in watermark
