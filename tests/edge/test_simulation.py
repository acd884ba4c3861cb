"""Twenty seeds of three nodes with bad luck (`make edge-sim` runs thousands), and that the simulation would notice."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from simulation import LiteralRule, World

from tablecast.edge.anti_entropy import AntiEntropy
from tablecast.edge.applier import Applier

SEEDS = 20
TOGETHER = 10
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(0, SEEDS, TOGETHER))
def test_replicas_end_equal_and_nothing_acknowledged_is_lost(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        World(seed).run()


def test_a_seed_is_a_run() -> None:
    """Whatever the threads of the engines do meanwhile."""
    traces = []
    for _ in range(2):
        world = World(7)
        world.run()
        traces.append((world.writes, world.time.time(), world.network.sent, world.network.bytes))
    assert traces[0] == traces[1]


def ends_well(seed: int) -> bool:
    try:
        World(seed).run()
    except AssertionError:
        return False
    return True


def test_without_comparing_what_was_lost_stays_lost() -> None:
    with patch.object(AntiEntropy, "_round", lambda self: None):
        assert not all(ends_well(seed) for seed in range(3))


def test_nodes_that_hear_no_event_end_equal_by_comparing_alone() -> None:
    with patch.object(Applier, "delivered", lambda self, delivery: self._link.acknowledge(delivery)):
        World(1).run()


def test_a_clock_that_decides_makes_replicas_differ() -> None:
    with LiteralRule():
        assert not all(World(seed).agree() for seed in range(6))
