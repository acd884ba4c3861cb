"""Receivers crash, and nothing else goes wrong: acknowledging late is then all that keeps events from being lost.

Comparing would bring back what was lost, so it is off. The broker keeps what was not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from simulation import WRITE, TakesTime, World

from tablecast.edge.anti_entropy import AntiEntropy
from tablecast.edge.applier import Applier
from tablecast.edge.base import Delivery
from tablecast.testing.mqtt_network import Faults

SEEDS = 8
CRASH_SECONDS = 0.5  # after a write, at most: its event is on its way, or in the receiver and not durable
pytestmark = pytest.mark.slow


class OnlyReceiversCrash(World):
    """The first node writes and stays up; the others only listen, and crash while events arrive."""

    replica = TakesTime

    def _faults(self) -> Faults:
        return Faults()

    def _step(self, number: int) -> None:
        """Each row is written once: a later write to it would hide that an earlier one is lost."""
        writer, *receivers = self.nodes
        writer.session.execute(WRITE, [number, "once"])
        if self.random.random() < 0.3:
            crash_at = self.random.uniform(0, CRASH_SECONDS)
            self.time.call_later(crash_at, self._crash, self.random.choice(receivers))

    def calm_down(self, rounds: int = 0) -> None:
        self.time.run_for(1_000)


@pytest.fixture(autouse=True)
def without_comparing() -> Iterator[None]:
    with patch.object(AntiEntropy, "_round", lambda self: None):
        yield


def test_what_a_receiver_had_not_committed_when_it_crashed_comes_again() -> None:
    for seed in range(SEEDS):
        assert OnlyReceiversCrash(seed).agree(), f"seed {seed}: replicas differ"


def test_acknowledging_on_arrival_would_be_noticed() -> None:
    delivered = Applier.delivered

    def acknowledge_at_once(self: Applier, delivery: Delivery) -> None:
        self._link.acknowledge(delivery)
        delivered(self, delivery)

    with patch.object(Applier, "delivered", acknowledge_at_once):
        assert not all(OnlyReceiversCrash(seed).agree() for seed in range(SEEDS))
