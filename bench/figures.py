"""`python -m bench.figures PAGE.md …`: figures in prose, taken from the committed runs.

A page names where a figure comes from in a comment right before it, which no reader sees:

    <!-- server; 24 callers, batches of 500 rows; PostgreSQL; ours -->92,600

which is: of `bench/results/server.json` the row whose workload is that text and whose `against` has that text in it, and of
it `ours`, `theirs` or `ratio`, to three digits, or its `verdict`: whether ours wins. This module writes the figures; a test of
the docs compares them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.verdict import verdict

RESULTS = Path(__file__).parent / "results"
FIGURE = re.compile(r"(<!-- (\w+); ([^;]+); ([^;]*); (ours|theirs|ratio|verdict) -->)([\d,.]+|[*\w]+)")
DIGITS = 3


def rounded(value: float) -> str:
    text = f"{float(f'{value:.{DIGITS}g}'):,.10f}"
    return text.rstrip("0").rstrip(".")


def row(results: Path, run: str, workload: str, against: str) -> dict[str, Any]:
    file = results / f"{run}.json"
    if not file.exists():
        raise SystemExit(f"there is no {file.name}: its benchmark was not run, or failed")
    rows: list[dict[str, Any]] = json.loads(file.read_text())["comparisons"]
    found = [each for each in rows if each["workload"] == workload and against in each["against"]]
    if len(found) != 1:
        raise SystemExit(f"{run}.json has {len(found)} rows {workload!r} against {against!r}; a figure needs one")
    return found[0]


def told(found: dict[str, Any]) -> str:
    """In bold where somebody who chooses should look twice."""
    said = verdict(found)
    return "**loses**" if said == "loses" else said


def with_figures(page: str, results: Path = RESULTS) -> str:
    """The page with every figure as the runs have it."""

    def figure(mark: re.Match[str]) -> str:
        comment, run, workload, against, field, _ = mark.groups()
        found = row(results, run, workload, against)
        return comment + (told(found) if field == "verdict" else rounded(found[field]))

    return FIGURE.sub(figure, page)


def main() -> int:
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(with_figures(page.read_text()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
