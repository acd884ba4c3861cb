"""Clients subscribe, vanish and resume under writers, and all of them have what SELECT says in the end.

`make live-race` does the same five hundred times, each time with two hundred clients.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import live_race
import pytest
import race_hub
import race_sockets
from race_workload import Raced

from tablecast.client.live_socket import LiveSocket
from tablecast.client.transport import NoAnswer
from tablecast.engine.live import LiveSubscription, Told
from tablecast.engine.live_telling import Telling
from tablecast.errors import Overloaded

CLIENTS = 60  # of a run over sockets
MOST_RUNS = 8  # two have met everything, but for bad luck


@pytest.mark.slow
def test_whoever_comes_and_goes_at_the_hub_has_the_rows_in_the_end() -> None:
    run_until_met(race_hub.race, first=2, must_meet=race_hub.MUST_MEET)


@pytest.mark.slow
def test_whoever_comes_and_goes_over_sockets_has_the_rows_in_the_end() -> None:
    run_until_met(partial(race_sockets.race, clients=CLIENTS), first=1, must_meet=race_sockets.MUST_MEET)


def run_until_met(race: Callable[[int], Coroutine[Any, Any, Raced]], first: int, must_meet: set[str]) -> None:
    """The runs are worth something only if all of it happens. The first two seeds are one that keeps the past and one that
    does not; what is up to the threads may take another."""
    met: Counter[str] = Counter()
    for seed in range(first, first + MOST_RUNS):
        raced = asyncio.run(race(seed))
        assert raced.violation is None
        met += raced.met
        if seed > first and set(met) >= must_meet:
            return
    assert set(met) >= must_meet


# --- what the race itself is worth ------------------------------------------------------------------------------


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


def test_a_server_that_keeps_a_subscription_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_sockets, "EMPTY_SECONDS", 0.0)
    monkeypatch.setattr(race_hub.LiveHub, "is_empty", False)
    raced = asyncio.run(race_sockets.race(1, clients=2, writes=1))
    assert raced.violation is not None and "an index still holds something" in raced.violation


def test_a_client_whose_upgrade_comes_to_nothing_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the SDK does: a machine that is busy with other things is no violation."""
    opened, refused = race_sockets.SocketClient._open, list[NoAnswer | Overloaded]()
    causes = iter([NoAnswer("timed out during opening handshake", sent=False), Overloaded("too many connect")] * 3)

    async def at_last(self: race_sockets.SocketClient) -> LiveSocket:
        if (cause := next(causes, None)) is not None:
            refused.append(cause)
            raise cause
        return await opened(self)

    monkeypatch.setattr(race_sockets.SocketClient, "_open", at_last)
    raced = asyncio.run(race_sockets.race(1, clients=2, writes=1))
    assert raced.violation is None and len(refused) == 6


def test_runs_in_which_nothing_happens_are_no_success() -> None:
    idle = [Raced(seed, kind) for kind in ("hub", "sockets") for seed in range(live_race.MANY)]
    assert live_race.not_met(idle[:-1]) == [f"{what} (hub)" for what in sorted(race_hub.MUST_MEET)]
    assert "lagging (sockets)" in live_race.not_met(idle)
    idle[0].written, idle[0].refused = 3, 2
    idle[0].count([], commits=1_000)
    assert idle[0].violation is not None and "no race" in idle[0].violation
