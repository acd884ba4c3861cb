"""Three nodes that are killed, with a real broker that is killed too; `make edge-kill` runs fifty seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from struggle import Struggle

SEEDS = 2  # of some seconds each


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nodes_that_are_killed_end_equal(tmp_path: Path, seed: int) -> None:
    struggle = Struggle(seed, tmp_path)
    struggle.run()
    assert struggle.kills and struggle.writes
