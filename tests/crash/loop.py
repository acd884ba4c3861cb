"""Kills the database many times, on all cores, and stops at the first violation.

    python tests/crash/loop.py --kills 1000 [--seed 1] [--workers 2] [--keep DIRECTORY]

Each life is one database, killed LIFE_KILLS times at random moments and failpoints; life i has the seed
`--seed` + i, so `--kills 20 --seed <the seed of that life>` repeats one life alone.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from examine import Examined
from life import MOMENTS, RANDOM, Life, Violation
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

LIFE_KILLS = 20  # the history of a life is checked whole after each kill: longer lives cost the square
RANDOM_SHARE = 0.5


@dataclass(slots=True)
class Lived:
    """What one life came to. `violation` says what broke, and the data is kept at `home`."""

    seed: int
    home: Path
    moments: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unknown: int = 0
    messages: int = 0
    resent: int = 0
    came_back: int = 0
    violation: str | None = None

    def take(self, moment: str, examined: Examined) -> None:
        self.moments[moment] += 1
        self.resent += examined.resent
        self.came_back += examined.came_back
        assert examined.report is not None  # there is one unless there is a violation
        self.acknowledged = examined.report.writes.acknowledged
        self.unknown = examined.report.writes.unknown
        self.messages = sum(topic.messages for topic in examined.report.topics.values())


def live(directory: Path, seed: int, kills: int) -> Lived:
    lived = Lived(seed, directory / f"life-{seed}")
    rng = random.Random(f"loop {seed}")
    try:
        life = Life(lived.home, seed)
        lived.moments["during_open"] += 1
        while life.kills < kills:
            moment = RANDOM if rng.random() < RANDOM_SHARE else rng.choice(MOMENTS)
            _, examined = life.die(moment)
            lived.take(moment, examined)
    except Violation as violation:
        lived.violation = str(violation)
        return lived
    shutil.rmtree(lived.home)
    return lived


def live_all(directory: Path, kills: int, seed: int, workers: int, progress: Progress) -> list[Lived]:
    """Lives until there were enough kills, or one was violated."""
    bar = progress.add_task("kills", total=kills)
    plan = [min(LIFE_KILLS, kills - done) for done in range(0, kills, LIFE_KILLS)]
    lives: list[Lived] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running: set[Future[Lived]] = {
            pool.submit(live, directory, seed + number, count) for number, count in enumerate(plan)
        }
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                lives.append(future.result())
                progress.advance(bar, lives[-1].moments.total())
            if any(lived.violation for lived in lives):
                pool.shutdown(cancel_futures=True)
                break
    return lives


def summary(lives: list[Lived]) -> Table:
    moments: Counter[str] = sum((lived.moments for lived in lives), Counter())
    table = Table(title=f"{moments.total():,} kills of {len(lives)} databases")
    table.add_column("killed at")
    table.add_column("times", justify="right")
    for moment in MOMENTS:
        table.add_row(moment, f"{moments[moment]:,}")
    table.add_section()
    for label, count in (
        ("writes acknowledged, all there", sum(lived.acknowledged for lived in lives)),
        ("writes of unknown outcome, whole or absent", sum(lived.unknown for lived in lives)),
        ("messages on the topics at the end", sum(lived.messages for lived in lives)),
        ("requests sent again, committed once", sum(lived.resent for lived in lives)),
        ("unacknowledged messages that came back", sum(lived.came_back for lived in lives)),
    ):
        table.add_row(label, f"{count:,}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="where the databases go (default: a temporary directory)")
    given = parser.parse_args()
    directory = given.keep or Path(tempfile.mkdtemp(prefix="tablecast-crash-"))
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        console.print(f"seed {given.seed}, {given.workers} workers")
        lives = live_all(directory, given.kills, given.seed, given.workers, progress)
    console.print(summary(lives))
    violated = [lived for lived in lives if lived.violation is not None]
    for lived in violated:
        console.print(f"violated: {lived.violation}", style="red", markup=False, highlight=False)
        console.print(f"repeat with: python tests/crash/loop.py --kills {LIFE_KILLS} --seed {lived.seed}")
        console.print(f"what is left: {lived.home}")
    if not violated:
        console.print("no promise was broken")
        shutil.rmtree(directory, ignore_errors=given.keep is None)
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
