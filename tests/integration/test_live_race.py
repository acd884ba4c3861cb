"""Two hundred clients subscribe, vanish and resume under writers, and all of them have what SELECT says in the end.

`make live-race` does the same five hundred times.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest
import race_hub
import race_sockets

from tablecast.engine.live import LiveSubscription, Told
from tablecast.engine.live_telling import Telling

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


def test_a_hub_that_tells_a_commit_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows would be right in the end: that it was told wrongly is all there is to see."""
    tell_all = Telling._tell_all

    def twice(self: Telling, members: Iterable[LiveSubscription], told: Told) -> int:
        members = list(members)
        before = {subscription: subscription.seq for subscription in members}
        tell_all(self, members, told)
        for subscription, seq in before.items():
            subscription.seq = seq
        return tell_all(self, members, told)

    monkeypatch.setattr(Telling, "_tell_all", twice)
    raced = asyncio.run(race_hub.race(1, clients=40, writes=10))
    assert raced.violation is not None and "told again" in raced.violation
