"""Two hundred clients subscribe, vanish and resume under writers, and all of them have what SELECT says in the end.

`make live-race` does the same five hundred times.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import race_hub
import race_sockets

MET_AT_THE_HUB = {
    "snapshot", "resumed", "refetch", "left before its rows were whole", "left before it was live", "too slow",
    "made to resume", "fell behind",
}  # fmt: skip


@pytest.mark.slow
def test_whoever_comes_and_goes_at_the_hub_has_the_rows_in_the_end() -> None:
    met: Counter[str] = Counter()
    for seed in range(10):
        raced = asyncio.run(race_hub.race(seed))
        assert raced.violation is None
        met += raced.met
    assert set(met) >= MET_AT_THE_HUB, "the runs are worth something only if all of it happens"


@pytest.mark.slow
def test_whoever_comes_and_goes_over_sockets_has_the_rows_in_the_end() -> None:
    raced = asyncio.run(race_sockets.race(1))
    assert raced.violation is None
    assert set(raced.met) >= {"snapshot", "resumed", "cut when live"}
