"""Runs workloads one after the other and shows what they found, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.hardware import commit
from bench.measure import Comparison, NotInstalled, NotMeasured

Found = Comparison | NotMeasured
Workload = Callable[[Path], Iterator[Found]]


def main(description: str | None, workloads: Callable[[bool], dict[str, Workload]]) -> int:
    """`workloads(quick)` names what can be measured."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="shorter rounds and smaller data")
    parser.add_argument("--only", nargs="*", choices=sorted(workloads(True)), help="names of workloads")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args()
    console, found, began = Console(), list[Found](), time.monotonic()
    for name, run in workloads(args.quick).items():
        if args.only and name not in args.only:
            continue
        with console.status(name):
            for each in _measured(name, run):
                found.append(each)
                console.print(f"{name}: {_line(each)}")
    console.print(_table([each for each in found if isinstance(each, Comparison)]))
    console.print(machine())
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(_as_json(found, args.quick, time.monotonic() - began), indent=2) + "\n")
    return 0


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _measured(name: str, run: Workload) -> Iterator[Found]:
    """In a directory of its own. What a workload needs and the machine lacks is a row, not the end."""
    path = Path(tempfile.mkdtemp(prefix=f"tablecast-bench-{name}-"))
    try:
        yield from run(path)
    except NotInstalled as e:
        yield NotMeasured(name, "", str(e))
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _line(found: Found) -> str:
    if isinstance(found, NotMeasured):
        return f"not measured: {found.against or found.workload}: {found.reason}"
    return f"{found.ratio:.2f} × {found.against}"


def _as_json(found: list[Found], quick: bool, seconds: float) -> dict[str, Any]:
    return {
        "machine": machine(),
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "quick": quick,
        "seconds": round(seconds),
        "comparisons": [
            {**asdict(each), "ratio": each.ratio, "met": each.met} for each in found if isinstance(each, Comparison)
        ],
        "not_measured": [asdict(each) for each in found if isinstance(each, NotMeasured)],
    }


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
