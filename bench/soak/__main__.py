"""`python -m bench.soak [--minutes 30] [--rate N] [--gather]`: half of maximum load for a while, with every kind of reader attached.

Writes bench/results/soak.json and docs/soak.md, or, if it is shorter than half an hour, build/soak.json and build/soak.md: a look,
not a result. Ends with 1 if memory or a latency was not flat, or if a reader missed a row or got one twice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.hardware import commit, hardware
from bench.measure import NotInstalled
from bench.soak.course import Course, started
from bench.soak.page import page, verdicts
from bench.soak.readers import READERS
from bench.soak.tally import Coverage
from tablecast.errors import JavaMissing
from tablecast.spark import find_java

ROOT = Path(__file__).parents[2]
RESULT_MINUTES = 30.0
SAMPLES = 30  # of a run, at most one a minute
SHORTEST_SECONDS = 10.0  # of a sample: two micro-batches of the stream
HALF = 0.5
WARM_SECONDS = 20.0  # at the ramp's first rate: Spark compiles its query, caches fill


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=RESULT_MINUTES)
    parser.add_argument("--rate", type=float, help="writes per second to hold, instead of half of the maximum")
    parser.add_argument(
        "--gather", action="store_true", help="measure nothing: make the page of the committed run anew"
    )
    args = parser.parse_args()
    console = Console()
    if args.gather:
        return _write(json.loads((ROOT / "bench" / "results" / "soak.json").read_text()), console)
    about = {"measured": datetime.now(UTC).date().isoformat(), "commit": commit(), "hardware": hardware()}
    path = Path(tempfile.mkdtemp(prefix="tablecast-soak-"))
    try:
        find_java()
        with started(path) as course:
            run = _soak(course, args.minutes, args.rate, console)
    except (NotInstalled, JavaMissing) as e:
        console.print(f"not measured: {e}", markup=False)
        return 2
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return _write({**about, **run}, console)


def _soak(course: Course, minutes: float, rate: float | None, console: Console) -> dict[str, Any]:
    def say(text: str) -> None:
        console.print(text, markup=False)

    say("every reader is attached; warming up …")
    course.hold(100.0, WARM_SECONDS)
    most = None if rate else course.maximum(say)
    held = rate or HALF * (most or 0.0)
    course.catch_up()
    say(f"holding {held:,.0f} writes/s for {minutes:g} minutes …")
    samples = _held(course, held, minutes, say)
    coverage = course.finish()
    return {
        "minutes": minutes,
        "maximum": most,
        "rate": held,
        "readers": {name: READERS[name] for name in READERS},
        "samples": samples,
        "coverage": {name: _as_json(coverage.get(name, Coverage(0, 0, 0))) for name in READERS},
    }


def _held(course: Course, rate: float, minutes: float, say: Any) -> list[dict[str, Any]]:
    seconds = min(60.0, max(SHORTEST_SECONDS, minutes * 60 / SAMPLES))
    course.board.rate.value = rate
    began, samples = time.monotonic(), list[dict[str, Any]]()
    while (gone := time.monotonic() - began) < minutes * 60:
        found = course.sample(min(seconds, minutes * 60 - gone), (gone + seconds) / 60)
        samples.append(found)
        say(
            f"minute {found['minute']:5.1f}: {found['rate']:7,.0f} writes/s, {found['rss_mb']:6.0f} MB, "
            f"commit p50 {found['commit_p50']:.1f} p99 {found['commit_p99']:.1f} ms"
        )
    return samples


def _as_json(coverage: Coverage) -> dict[str, Any]:
    return {
        "expected": coverage.expected, "distinct": coverage.distinct, "received": coverage.received,
        "percent": coverage.percent, "duplication": coverage.duplication, "whole": coverage.whole,
    }  # fmt: skip


def _write(run: dict[str, Any], console: Console) -> int:
    is_result = run["minutes"] >= RESULT_MINUTES
    data = ROOT / ("bench/results" if is_result else "build") / "soak.json"
    text = ROOT / ("docs" if is_result else "build") / "soak.md"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(run, indent=2) + "\n")
    text.write_text(page(run))
    console.print(f"wrote {data} and {text}", markup=False)
    problems = [sentence for sentence, good in verdicts(run) if not good]
    for problem in problems:
        console.print(problem, style="red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
