"""Races of live queries with writers, many times, on all cores; stops at the first violation.

    python tests/integration/live_race.py --runs 500 [--seed 1] [--workers 2]

In each run 200 clients subscribe, go away in the middle of anything, and resume, at least three times each, while writers
write as fast as they can. When the writers are done every client must have exactly the rows of its SELECT, and the database
must verify. Run i has the seed `--seed` + i; one run in SOCKET_SHARE goes over real sockets, with the SDK's state at the other
end, the others are subscribers of the hub in one process.

That all of it happened is part of it: `MUST_MEET` of each kind, over all runs, and commits in every run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

import race_hub
import race_sockets
from race_workload import Raced
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

SOCKET_SHARE = 2
TOLD = 50  # runs between two lines of a log
MANY = 20  # runs of a kind, from which on it must have met everything
MUST_MEET = {"hub": race_hub.MUST_MEET, "sockets": race_sockets.MUST_MEET}


def run(seed: int) -> Raced:
    """Raises nothing: what went wrong is told with the seed."""
    over_sockets = seed % SOCKET_SHARE == 0
    try:
        return asyncio.run(race_sockets.race(seed) if over_sockets else race_hub.race(seed))
    except Exception as error:
        kind = "sockets" if over_sockets else "hub"
        return Raced(seed, kind, violation=f"{kind} run {seed}: {type(error).__name__}: {error}")


def run_all(runs: int, seed: int, workers: int, progress: Progress) -> list[Raced]:
    """Until there were enough, or one was violated."""
    bar, found = progress.add_task("runs", total=runs), list[Raced]()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running: set[Future[Raced]] = {pool.submit(run, seed + number) for number in range(runs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            found += [future.result() for future in done]
            progress.advance(bar, len(done))
            if not progress.console.is_terminal and len(found) // TOLD > (len(found) - len(done)) // TOLD:
                progress.console.print(f"{len(found):,} runs")  # where there is no bar to be looked at
            if any(raced.violation for raced in found):
                pool.shutdown(cancel_futures=True)
                break
    return found


def met_by(found: list[Raced], kind: str) -> Counter[str]:
    return sum((raced.met for raced in found if raced.kind == kind), Counter())


def not_met(found: list[Raced]) -> list[str]:
    """What should have happened to somebody in so many runs, and did not."""
    return [
        f"{what} ({kind})"
        for kind, expected in MUST_MEET.items()
        if sum(raced.kind == kind for raced in found) >= MANY
        for what in sorted(expected - set(met_by(found, kind)))
    ]


def summary(found: list[Raced]) -> Table:
    commits, written = sum(raced.commits for raced in found), sum(raced.written for raced in found)
    table = Table(title=f"{len(found):,} runs, {written:,} writes in {commits:,} commits")
    table.add_column("what clients met while it was written")
    met = {kind: met_by(found, kind) for kind in MUST_MEET}
    for kind in met:
        table.add_column(f"{kind}, {sum(raced.kind == kind for raced in found):,} runs", justify="right")
    for what, _ in sum(met.values(), Counter[str]()).most_common():
        table.add_row(what, *(f"{times[what]:,}" if times[what] else "" for times in met.values()))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        console.print(f"seed {given.seed}, {given.workers} workers")
        found = run_all(given.runs, given.seed, given.workers, progress)
    console.print(summary(found))
    violated = [raced for raced in found if raced.violation is not None]
    for raced in violated:
        console.print(f"violated: {raced.violation}", style="red", markup=False, highlight=False)
        console.print(f"repeat with: python tests/integration/live_race.py --runs 1 --seed {raced.seed}")
    missing = not_met(found)
    if not violated:
        console.print("every client had the rows of its SELECT")
        if missing:
            console.print(f"but nobody met: {', '.join(missing)}", style="red")
    return 1 if violated or missing else 0


if __name__ == "__main__":
    sys.exit(main())
