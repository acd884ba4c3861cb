"""SIGKILL, at any moment: what was acknowledged is there, what was not is there whole or not at all.

Each test is one database that is killed several times. `make crash` does the same a thousand times.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from life import MOMENTS, RANDOM, Life

# Failpoints are spread so that each is met twice, on databases of different age.
LIVES = {
    1: ["before_write", "after_write", RANDOM, "before_sync", "after_sync", RANDOM],
    2: ["before_ack", "during_retention", RANDOM, "during_drop", "during_checkpoint", "during_open"],
    3: ["during_open", "during_checkpoint", "during_drop", RANDOM, "during_retention", "before_ack"],
    4: ["after_sync", "before_sync", RANDOM, "after_write", "before_write", RANDOM],
    5: [RANDOM] * 6,
    6: [RANDOM] * 6,
    7: [RANDOM] * 6,
    8: [RANDOM] * 6,
}


@pytest.mark.parametrize("seed", LIVES)
def test_a_killed_database_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    life = Life(tmp_path, seed)
    for moment in LIVES[seed]:
        killed, examined = life.die(moment)
        assert killed.wrote == (moment != "during_open")
    assert examined.report is not None
    assert examined.report.writes.acknowledged > 100
    assert life.kills == len(LIVES[seed]) + 1


def test_every_failpoint_is_met_and_there_are_fifty_kills() -> None:
    met = [moment for moments in LIVES.values() for moment in moments]
    assert all(met.count(moment) >= 2 for moment in MOMENTS)
    assert len(met) + len(LIVES) >= 50
