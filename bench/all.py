"""`python -m bench.all [--quick] [--only SUITE …] [--gather]`: every benchmark, one after the other, and one report of all.

Each suite runs in a process of its own and writes `bench/results/SUITE.json`. What they found is gathered, with the machine and
the settings of every side, in `bench/results/all.json`, and from that are made: docs/benchmarks.md, the README's tables, the
figures in the docs' prose, and build/bench.html with pictures.

--quick is a look of a few minutes: it writes to build/ alone. --only measures some suites again and takes the others from the
committed run. --gather measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import html, report
from bench.figures import with_figures
from bench.hardware import hardware
from bench.sides import sides

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
BUILD = ROOT / "build"
NOT_RUN = "no committed run has it"


@dataclass(frozen=True, slots=True)
class Suite:
    module: str
    needs: tuple[str, ...] = ()  # modules beyond tablecast's own
    install: str = ""


SUITES = {
    "engine": Suite("bench"),
    "server": Suite("bench.server", ("asyncpg", "nats", "redis"), "pip install 'tablecast[bench,server]'"),
    "live": Suite("bench.live"),
    "spark": Suite("bench.spark", ("pyspark",), "pip install 'tablecast[spark]'"),
    "edge": Suite("bench.edge", ("paho",), "pip install 'tablecast[mqtt]'"),
}
console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="shorter rounds and smaller data; nothing committed changes"
    )
    parser.add_argument("--only", nargs="*", choices=list(SUITES), help="names of suites")
    parser.add_argument("--gather", action="store_true", help="measure nothing: make the report anew")
    args = parser.parse_args()
    place = BUILD / "bench" if args.quick else RESULTS
    place.mkdir(parents=True, exist_ok=True)
    about = _about(place, measured=not args.gather)  # the machine is quiet now, not after the run
    chosen = [] if args.gather else args.only or list(SUITES)
    failed = _measure(chosen, place, args.quick)
    run = gathered(about, place, args.quick, failed)
    _write(run, place)
    return 1 if any(reason.startswith("failed") for reason in failed.values()) else 0


def _about(place: Path, measured: bool) -> dict[str, Any]:
    """The machine and the sides: as they are, or as they were in the run that is gathered again."""
    if not measured and (place / "all.json").exists():
        kept = json.loads((place / "all.json").read_text())
        return {"hardware": kept["hardware"], "sides": kept["sides"]}
    return {"hardware": hardware(), "sides": sides()}


def _measure(names: Sequence[str], place: Path, quick: bool) -> dict[str, str]:
    """Why there is nothing of some of them. An older run does not stand in for one that failed."""
    failed = {}
    for name in names:
        console.rule(name)
        target, fresh = place / f"{name}.json", place / f"{name}.json.new"  # who interrupts it keeps what there was
        if reason := _run(SUITES[name], fresh, quick):
            failed[name] = reason
            target.unlink(missing_ok=True)
            console.print(f"not measured: {name}: {reason}", style="red", markup=False)
        else:
            fresh.replace(target)
    return failed


def _run(suite: Suite, target: Path, quick: bool) -> str:
    for module in suite.needs:
        if importlib.util.find_spec(module) is None:
            return f"the module {module} is missing, install with {suite.install}"
    command = [sys.executable, "-m", suite.module, "--json", str(target), *(["--quick"] if quick else [])]
    ended = subprocess.run(command, check=False, cwd=ROOT)
    return f"failed: `python -m {suite.module}` ended with {ended.returncode}" if ended.returncode else ""


def gathered(about: dict[str, Any], place: Path, quick: bool, failed: dict[str, str]) -> dict[str, Any]:
    files = {name: place / f"{name}.json" for name in SUITES}
    return {
        "quick": quick,
        **about,
        "suites": {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()},
        "missing_suites": {name: failed.get(name, NOT_RUN) for name, file in files.items() if not file.exists()},
    }


def _write(run: dict[str, Any], place: Path) -> None:
    (place / "all.json").write_text(json.dumps(run, indent=2) + "\n")
    soak = RESULTS / "soak.json"
    BUILD.mkdir(exist_ok=True)
    (BUILD / "bench.html").write_text(html.page(run, json.loads(soak.read_text()) if soak.exists() else None))
    (BUILD / "bench.md" if run["quick"] else ROOT / "docs" / "benchmarks.md").write_text(report.page(run))
    console.print(f"wrote {place / 'all.json'} and {BUILD / 'bench.html'}", markup=False)
    if not run["quick"]:
        _renew_pages(run)


def _renew_pages(run: dict[str, Any]) -> None:
    readme = ROOT / "README.md"
    readme.write_text(report.with_all_tables(readme.read_text(), run))
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text()
        try:
            renewed = with_figures(text)
        except SystemExit as e:  # a peer is missing: the figure stays, and the test of the docs tells
            console.print(f"{page.name}: {e}", style="red", markup=False)
            continue
        if renewed != text:
            page.write_text(renewed)


if __name__ == "__main__":
    raise SystemExit(main())
