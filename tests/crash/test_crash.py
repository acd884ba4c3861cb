"""SIGKILL, at any moment: what was acknowledged is there, what was not is there whole or not at all.

Each test is one database that is killed several times. `make crash` does the same a thousand times.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from life import MOMENTS, RANDOM, Life

# Each failpoint is met, some on databases of different age. A killed process loses nothing in the weaker modes either: the
# kernel has the bytes.
LIVES = {
    1: ("fsync", ["before_write", "after_write", RANDOM, "before_sync", "after_sync", "before_ack"]),
    2: ("fsync", ["during_open", "during_checkpoint", "during_drop", RANDOM, "during_retention", "after_sync"]),
    3: ("interval(20)", [RANDOM, "before_write", "before_ack", RANDOM]),
    4: ("none", [RANDOM, "after_write", RANDOM]),
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


def test_every_failpoint_is_met() -> None:
    assert {moment for _, moments in LIVES.values() for moment in moments} == set(MOMENTS)
