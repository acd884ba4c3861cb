"""`kill -9` of the server under 24 publishers and 4 consumers: every acknowledged write once, in table and topics.

Real processes, real sockets; the clients are the SDK with nothing but a patient retry. `server_loop.py` does the same
for as long as one likes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from server_life import live
from server_loop import summary

KILLS = 5
LIMIT_SECONDS = 240


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_killed_server_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    lived = asyncio.run(asyncio.wait_for(live(tmp_path, seed, KILLS), LIMIT_SECONDS))
    print(summary([lived]))  # noqa: T201 - figures for whoever runs it with -s
    assert lived.report.writes.acknowledged > 500
    assert lived.repeated >= KILLS, "kills that nobody noticed prove nothing"
