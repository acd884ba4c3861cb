"""Moments read in words: as Python reads them, and what is none is left to others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablecast.spark.typed_moments import BYTES, moments

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEHIND = b'","next":"2024'  # what follows a value in its payload must not count


def words(texts: list[bytes]) -> list[np.ndarray]:
    data = b"".join((text + b'"' + BEHIND * 3)[:BYTES] for text in texts)
    table = np.frombuffer(data, "<u8").reshape(-1, BYTES // 8)
    return [table[:, number] for number in range(BYTES // 8)]


def text_of(moment: datetime) -> bytes:
    return msgspec.json.encode(moment)[1:-1]


minutes = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 58)).map(
    lambda moment: moment.replace(second=0, microsecond=0, tzinfo=UTC)
)
within = st.one_of(st.integers(0, 59).map(lambda second: second * 10**6), st.integers(0, 60 * 10**6 - 1))


@given(minutes, st.lists(within, min_size=1), st.integers(0, 40))
def test_moments_of_a_minute_and_the_next(minute: datetime, micros: list[int], more: int) -> None:
    rows = [minute + timedelta(microseconds=each) for each in micros * 32]
    rows += [minute + timedelta(minutes=1, milliseconds=each) for each in range(more * 32)]
    texts = [text_of(row) for row in rows]
    found = moments(words(texts))
    assert found is not None
    assert found.micros.tolist() == [(row - EPOCH) // timedelta(microseconds=1) for row in rows]
    sizes = np.broadcast_to(found.sizes, len(rows)).tolist()
    assert sizes == [len(text) for text in texts]


def test_minutes_that_keep_changing_are_left_to_others() -> None:
    rows = [EPOCH + timedelta(minutes=number) for number in range(100)]
    assert moments(words([text_of(row) for row in rows])) is None


GOOD = b"2024-02-29T12:30:45.000001Z"


@pytest.mark.parametrize(
    "text",
    [
        b"2024-02-30T12:30:45.000001Z",
        b"2024-02-29T24:30:45.000001Z",
        b"2024-02-29T12:60:45.000001Z",
        b"2024-02-29T12:30:60.000001Z",
        b"2024-02-29T12:30:45.00000xZ",
        b"2024-02-29T12:30:4x.000001Z",
        b"2024-02-29T12:30:45.000001+",
        b"2024-02-29T12:30:45.001Z",
        b"2024-02-29T12:30:45,000001Z",
        b"2024-02-29 12:30:45.000001Z",
        b"2024-02-29T12:30:45",
        b"2024-02-29T12:30:45+01:00",
        b"2024-02-29T12:30-45Z",
        b"2024-2-29T112:30:45Z",
        b"20\xff4-02-29T12:30:45Z",
        b"",
    ],
)
def test_what_is_no_moment_is_left_to_others(text: bytes) -> None:
    """Also in company of moments."""
    assert moments(words([GOOD] * 40)) is not None
    assert moments(words([GOOD] * 40 + [text] + [GOOD] * 40)) is None
    assert moments(words([text])) is None
