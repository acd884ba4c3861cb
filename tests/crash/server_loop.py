"""Kills a server under its clients many times, and stops at the first violation.

    python tests/crash/server_loop.py --kills 100 [--seed 1] [--keep DIRECTORY]

Each life is one database, killed LIFE_KILLS times; life i has the seed `--seed` + i. Seeds decide what is written and
how far apart the kills are; where exactly they fall is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from server_life import Lived, live

LIFE_KILLS = 10


def live_all(directory: Path, kills: int, seed: int, progress: Progress) -> list[Lived]:
    bar = progress.add_task("kills", total=kills)
    lives: list[Lived] = []
    for number, done in enumerate(range(0, kills, LIFE_KILLS)):
        home = directory / f"life-{seed + number}"
        lives.append(asyncio.run(live(home, seed + number, min(LIFE_KILLS, kills - done))))
        progress.advance(bar, lives[-1].kills)
        shutil.rmtree(home)
    return lives


def summary(lives: list[Lived]) -> str:
    writes = sum(lived.report.writes.acknowledged for lived in lives)
    messages = sum(topic.messages for lived in lives for topic in lived.report.topics.values())
    return (
        f"{sum(lived.kills for lived in lives):,} kills of {len(lives)} servers: {writes:,} writes in "
        f"{sum(lived.requests for lived in lives):,} requests, {sum(lived.repeated for lived in lives):,} attempts repeated, "
        f"{messages:,} messages, coverage 100.0 %, duplication 1.00; "
        f"{sum(lived.handled_twice for lived in lives):,} messages handled more than once"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--keep", type=Path, help="where the databases go (default: a temporary directory)")
    given = parser.parse_args()
    directory = given.keep or Path(tempfile.mkdtemp(prefix="tablecast-server-crash-"))
    logging.getLogger("tablecast.consumer").setLevel(logging.ERROR)  # that the server is away is known here
    console = Console()
    console.print(f"seed {given.seed}, databases in {directory}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        lives = live_all(directory, given.kills, given.seed, progress)
    console.print(summary(lives))
    if given.keep is None:
        directory.rmdir()  # of a life that broke a promise, what is left stays
    return 0


if __name__ == "__main__":
    sys.exit(main())
