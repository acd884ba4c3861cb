"""Storms of connections leave nothing behind. `make live-storm` has ten times as many, and compares the waits of others.

That comparison is in the program and not here: a test machine that is busy with something else would decide it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from live_storm import LEFT_BYTES, Left, Storm, Weathered, serve, weather

CYCLES = 250  # of each storm; two are of all kinds


@pytest.mark.slow
def test_storms_of_connections_leave_nothing_behind(tmp_path: Path) -> None:
    with serve(tmp_path / "data") as server:
        weathered = asyncio.run(weather(server, CYCLES, seed=1, calm_seconds=0.5))
    assert weathered.problems() == []
    assert all(storm.waits for storm in weathered.mixed), "the subscriber was served all the while"


def weathered(calm: float, plain: float, mixed: float) -> Weathered:
    nothing = Left(0, 0, 0, 10, 100 * 2**20)
    storms = [[Storm([], 1.0, [seconds])] for seconds in (calm, plain, mixed)]
    return Weathered(*storms, nothing, [nothing, nothing])


def test_waits_are_judged_by_those_of_a_calm_server() -> None:
    assert weathered(1.0, 1.9, 1.9).delays() == []
    assert weathered(1.0, 2.1, 1.9).delays() == [
        "among well-behaved guests waits are 2.10 times as long as on a calm server; at most 2"
    ]
    assert weathered(1.0, 1.9, 2.3).delays() == [
        "among guests of all kinds waits are 2.30 times as long as on a calm server; at most 2"
    ]
    assert len(weathered(1.0, 8.0, 8.3).delays()) == 2


def test_memory_is_judged_by_what_there_was_before() -> None:
    found = weathered(1.0, 1.0, 1.0)
    found.left[-1] = found.left[0] = replace(found.before, memory_bytes=found.before.memory_bytes + LEFT_BYTES + 1)
    assert len(found.problems()) == 1 and "the storms left" in found.problems()[0]
