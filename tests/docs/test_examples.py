"""The example of replication is run as a user runs it: it starts mosquitto, stops it, and ends with equal shops."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pages import ROOT

EXAMPLE = ROOT / "examples" / "edge_three_nodes.py"
TITLES = (
    "A delivery in the north, and everybody knows",
    "No broker: each goes on alone",
    "Together again: the later write of each row is everywhere",
)


def shops(printed: str) -> dict[str, tuple[str, ...]]:
    """Of a table that was printed: stock, online and pending of each shop."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    return {name: tuple(rest[:3]) for name, *rest in cells}


@pytest.mark.slow
def test_three_shops_end_with_the_same_stock() -> None:
    wide = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, env=wide, timeout=180, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    starts = [done.stdout.index(title) for title in TITLES]
    assert starts == sorted(starts)
    delivered, alone, together = (
        shops(done.stdout[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)
    )
    names = ("north", "south", "west")
    assert delivered == dict.fromkeys(names, ("apple 10, pear 4", "yes", "0"))
    assert alone == {
        "north": ("apple 9, pear 4", "no", "1"),
        "south": ("apple 7, pear 4", "no", "1"),
        "west": ("apple 10, plum 1", "no", "2"),
    }
    assert together == dict.fromkeys(names, ("apple 7, plum 1", "yes", "0"))
