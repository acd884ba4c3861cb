"""`python -m bench.report RESULTS.json PAGE.md [MARK]`: puts a run's table between the page's marks (default: bench)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any


def table(run: dict[str, Any], command: str) -> str:
    lines = [
        f"One run of `make {command}` on {run['machine']}. Both sides of a row ran in turns; medians.",
        "",
        "| workload | against | tablecast | the other | ratio | aim |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for c in run["comparisons"]:
        # A target of 0 is none: the row is there to compare with.
        aim = f"{'≤' if c['at_most'] else '≥'} {c['target']:g}" if c["target"] else ""
        met = "" if c["met"] else " (missed)"
        lines.append(
            f"| {c['workload']} | {c['against']} | {_number(c['ours'])} {c['unit']} | {_number(c['theirs'])} "
            f"| {c['ratio']:.2f} × | {aim}{met} |"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def main() -> int:
    results, page = Path(sys.argv[1]), Path(sys.argv[2])
    mark = sys.argv[3] if len(sys.argv) > 3 else "bench"
    made = f"<!-- {mark} -->\n{table(json.loads(results.read_text()), mark.replace(' ', '-'))}\n<!-- /{mark} -->"
    marks = re.compile(f"<!-- {mark} -->.*?<!-- /{mark} -->", re.DOTALL)
    page.write_text(marks.sub(lambda _: made, page.read_text()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
