"""Runs workloads one after the other and shows what they found, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import Comparison

Workload = Callable[[Path], Iterator[Comparison]]


def main(description: str | None, workloads: Callable[[bool], dict[str, Workload]]) -> int:
    """`workloads(quick)` names what can be measured."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="shorter rounds and smaller data")
    parser.add_argument("--only", nargs="*", choices=sorted(workloads(True)), help="names of workloads")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args()
    console, found = Console(), []
    for name, run in workloads(args.quick).items():
        if args.only and name not in args.only:
            continue
        with console.status(name):
            path = Path(tempfile.mkdtemp(prefix=f"tablecast-bench-{name}-"))
            try:
                for comparison in run(path):
                    found.append(comparison)
                    console.print(f"{name}: {comparison.ratio:.2f} × {comparison.against}")
            finally:
                shutil.rmtree(path, ignore_errors=True)
    console.print(_table(found))
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    console.print(machine)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        comparisons = [{**asdict(c), "ratio": c.ratio, "met": c.met} for c in found]
        args.json.write_text(json.dumps({"machine": machine, "comparisons": comparisons}, indent=2) + "\n")
    return 0


def _table(found: list[Comparison]) -> Table:
    table = Table(show_lines=False)
    for heading in ("workload", "against", "ours", "theirs", "ratio", "target", ""):
        table.add_column(heading, justify="left" if heading in ("workload", "against", "") else "right")
    for c in found:
        target = f"{'≤' if c.at_most else '≥'} {c.target:g}" if c.target else ""
        table.add_row(
            c.workload, c.against, f"{c.ours:,.1f} {c.unit}" if c.ours < 100 else f"{c.ours:,.0f} {c.unit}",
            f"{c.theirs:,.1f}" if c.theirs < 100 else f"{c.theirs:,.0f}", f"{c.ratio:.2f} ×", target,
            ("yes" if c.met else "NO") + (f" ({c.note})" if c.note else ""),
        )  # fmt: skip
    return table
