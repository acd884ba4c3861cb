"""Storms of connections leave nothing behind. `make live-storm` has ten times as many, and compares the waits of others.

That comparison is in the program and not here: a test machine that is busy with something else would decide it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from live_storm import serve, weather

CYCLES = 250  # of each storm; two are of all kinds


@pytest.mark.slow
def test_storms_of_connections_leave_nothing_behind(tmp_path: Path) -> None:
    with serve(tmp_path / "data") as server:
        weathered = asyncio.run(weather(server, CYCLES, seed=1))
    assert weathered.problems() == []
    assert all(storm.waits for storm in weathered.mixed), "the subscriber was served all the while"
