"""Digits read in words: what is a number reads as Python reads it, and what is not is left to others."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.spark.typed_numbers import DIGITS, Words, fixed, whole

BEHIND = b'","'  # what follows a value in its payload must not count


def words(texts: list[str]) -> tuple[Words, np.ndarray]:
    data = b"".join((text.encode() + BEHIND * 8)[:DIGITS] for text in texts)
    both = np.frombuffer(data, "<u8").reshape(-1, 2)
    return (both[:, 0], both[:, 1]), np.array([len(text) for text in texts])


@given(st.lists(st.integers(0, 10**DIGITS - 1), min_size=1))
def test_whole_numbers(numbers: list[int]) -> None:
    found = whole(*words([str(number) for number in numbers]))
    assert found is not None
    assert found.tolist() == numbers


@given(st.integers(0, 7), st.lists(st.integers(0, 10**14 - 1), min_size=1))
def test_numbers_with_a_point(scale: int, numbers: list[int]) -> None:
    texts = [f"{Decimal(number).scaleb(-scale):.{scale}f}" for number in numbers]
    found = fixed(*words(texts), scale)
    assert found is not None
    assert found.tolist() == numbers


@given(st.text("0123456789+-.e:/ x\0", min_size=1, max_size=DIGITS), st.integers(1, 7))
def test_what_is_no_plain_number_is_left_to_others(text: str, scale: int) -> None:
    """Also in company of numbers."""
    found = whole(*words(["12", text, "3"]))
    assert (found is not None) == text.isdecimal()
    before, point, behind = text.rpartition(".")
    is_fixed = point == "." and before.isdecimal() and behind.isdecimal() and len(behind) == scale
    assert (fixed(*words([f"1.{'2' * scale}", text]), scale) is not None) == is_fixed


@pytest.mark.parametrize("text", ["", "1" * (DIGITS + 1)])
def test_a_size_that_does_not_fit(text: str) -> None:
    (low, high), _ = words(["1"])
    assert whole((low, high), np.array([len(text)])) is None
    assert fixed((low, high), np.array([len(text)]), 2) is None
