"""Runs the simulation of three nodes with many seeds, on all cores, and stops at the first that ends wrong.

    python tests/edge/sim_loop.py --runs 3000 [--first 0] [--workers 2] [--literal 200]

`--runs 1 --first SEED` repeats one run. `--literal` shows how many of so many seeds end with replicas that differ for ever
if clocks decide by the literal rule for timestamps that are ahead (`core.conflict` has the reason).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from simulation import LiteralRule, World

console = Console(soft_wrap=True, highlight=False)
TOGETHER = 10  # seeds handed to a process at a time


class Ran(NamedTuple):
    writes: int = 0
    virtual_seconds: float = 0.0
    violation: str | None = None


def run(seed: int) -> Ran:
    world = World(seed)
    try:
        world.run()
    except Exception:
        return Ran(violation=f"seed {seed}\n{traceback.format_exc()}")
    return Ran(len(world.writes), world.time.time())


def agrees_by_the_literal_rule(seed: int) -> bool:
    with LiteralRule():
        return World(seed).agree()


def with_bar(what: str, found: Iterator[Ran], total: int) -> Iterator[Ran]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(what, total=total)
        for ran in found:
            progress.advance(bar)
            yield ran


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=3000)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments.add_argument("--literal", type=int, default=100)
    given = arguments.parse_args()
    seeds = range(given.first, given.first + given.runs)
    began = time.perf_counter()
    writes, virtual = 0, 0.0
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for ran in with_bar("runs", pool.map(run, seeds, chunksize=TOGETHER), given.runs):
            if ran.violation is not None:
                console.print(ran.violation, markup=False)
                pool.shutdown(cancel_futures=True)
                return 1
            writes += ran.writes
            virtual += ran.virtual_seconds
        took = time.perf_counter() - began
        console.print(
            f"{given.runs} runs, {writes:,} acknowledged writes, {virtual / 3600:,.0f} hours of nodes, in {took:.0f} s:"
        )
        console.print("all replicas equal, every row of its last writer, nothing twice, silent at the end")
        literal = list(pool.map(agrees_by_the_literal_rule, range(given.literal), chunksize=TOGETHER))
    if literal:
        console.print(
            f"with the literal rule for clocks ahead {literal.count(False)} of {given.literal} seeds end with replicas that differ"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
