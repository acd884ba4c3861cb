"""SIGKILL, at any moment: what was acknowledged is there, what was not is there whole or not at all.

Each test is one database that is killed several times. `make crash` does the same a thousand times.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from life import MOMENTS, RANDOM, Life

# Failpoints are spread so that each is met twice, on databases of different age. A killed process loses nothing
# in the weaker modes either: the kernel has the bytes.
LIVES = {
    1: ("fsync", ["before_write", "after_write", RANDOM, "before_sync", "after_sync", RANDOM]),
    2: ("fsync", ["before_ack", "during_retention", RANDOM, "during_drop", "during_checkpoint", "during_open"]),
    3: ("fsync", ["during_open", "during_checkpoint", "during_drop", RANDOM, "during_retention", "before_ack"]),
    4: ("fsync", ["after_sync", "before_sync", RANDOM, "after_write", "before_write", RANDOM]),
    5: ("interval(20)", [RANDOM, "before_write", RANDOM, "before_ack", RANDOM, RANDOM]),
    6: ("none", [RANDOM, "after_write", RANDOM, "before_ack", RANDOM, RANDOM]),
}


@pytest.mark.parametrize("seed", LIVES)
def test_a_killed_database_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    durability, moments = LIVES[seed]
    life = Life(tmp_path, seed, durability=durability)
    for moment in moments:
        killed, examined = life.die(moment)
        assert killed.wrote == (moment != "during_open")
    assert examined.report is not None
    assert examined.report.writes.acknowledged > 100
    assert examined.report.groups[0].acked > 100


def test_every_failpoint_is_met_twice_and_there_are_forty_kills() -> None:
    met = [moment for _, moments in LIVES.values() for moment in moments]
    assert all(met.count(moment) >= 2 for moment in MOMENTS)
    assert len(met) + len(LIVES) >= 40  # each life begins with one
