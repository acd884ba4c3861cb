"""Pictures as SVG text, to stand in an HTML page: colours are the page's variables, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.verdict import Row, advantage, number, verdict

WIDTH = 960
LABELS = 470  # of the width, for what a bar is about
BAR = 30  # height of a row, the gap included
MOST = 100.0  # times; a bar beyond is cut, its figure is not
STEPS = (0.01, 0.1, 0.5, 1, 2, 10, 100)
HEIGHT, EDGE = 220, 64  # of a line chart, and its margin to the left
COLOURS = ("--first", "--second", "--third", "--fourth", "--fifth", "--sixth")


def bars(rows: Sequence[Row]) -> str:
    """How many times better ours is, on a scale of logarithms: to the right of 1 × ahead, to the left behind."""
    most = min(MOST, max([2.0, *(max(advantage(row), 1 / advantage(row)) for row in rows)]) * 1.2)
    height = BAR * len(rows) + 30
    parts = [_grid(most, height)]
    parts += [_bar(row, at * BAR + 6, most) for at, row in enumerate(rows)]
    said = "; ".join(f"{row['workload']} against {row['against']}: {advantage(row):.2f} times" for row in rows)
    return _svg(height, said, parts)


def _x(times: float, most: float) -> float:
    half = (WIDTH - LABELS) / 2 - 40
    return LABELS + 40 + half * (1 + math.log(min(max(times, 1 / most), most)) / math.log(most))


def _grid(most: float, height: int) -> str:
    lines = []
    for step in STEPS:
        if 1 / most <= step <= most:
            x, weight = _x(step, most), "axis" if step == 1 else "grid"
            lines.append(f'<line class="{weight}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 22}"/>')
            lines.append(f'<text class="small" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{step:g} ×</text>')
    return "".join(lines)


def _bar(row: Row, y: float, most: float) -> str:
    times = advantage(row)
    one, here = _x(1, most), _x(times, most)
    kind = verdict(row) or row["kind"]
    side, anchor = (here + 6, "start") if times >= 1 else (here - 6, "end")
    told = f"{row['workload']}: {number(row['ours'])} {row['unit']}; {row['against']}: {number(row['theirs'])}"
    return (
        f"<g><title>{escape(told)}</title>"
        f'<text x="{LABELS}" y="{y + 9}" text-anchor="end">{escape(_short(row["workload"]))}</text>'
        f'<text class="small" x="{LABELS}" y="{y + 20}" text-anchor="end">{escape(_short(row["against"]))}</text>'
        f'<rect class="{kind}" x="{min(one, here):.1f}" y="{y}" width="{max(1.5, abs(here - one)):.1f}" height="{BAR - 12}" rx="2"/>'
        f'<text class="small" x="{side:.1f}" y="{y + 13}" text-anchor="{anchor}">{times:.2f} ×</text></g>'
    )


def _short(text: str, most: int = 72) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def lines(title: str, unit: str, minutes: Sequence[float], series: dict[str, Sequence[float]]) -> str:
    """Each series over the minutes, from 0 up."""
    top = max([value for values in series.values() for value in values] or [1]) * 1.1 or 1
    last = max([*minutes, 1e-9])
    right, bottom = WIDTH - 150, HEIGHT - 24

    def point(minute: float, value: float) -> str:
        return f"{EDGE + (right - EDGE) * minute / last:.1f},{bottom - (bottom - 16) * value / top:.1f}"

    parts = [f'<line class="axis" x1="{EDGE}" x2="{right}" y1="{bottom}" y2="{bottom}"/>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - (bottom - 16) * share
        parts.append(f'<line class="grid" x1="{EDGE}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="small" x="{EDGE - 6}" y="{y + 4:.1f}" text-anchor="end">{number(top * share)}</text>'
        )
    parts.append(f'<text class="small" x="{right}" y="{HEIGHT - 6}" text-anchor="end">{last:g} minutes</text>')
    for (name, values), colour, at in zip(series.items(), COLOURS, range(len(series)), strict=False):
        points = " ".join(point(minute, value) for minute, value in zip(minutes, values, strict=True))
        parts.append(f'<polyline fill="none" style="stroke:var({colour})" stroke-width="2" points="{points}"/>')
        parts.append(f'<text style="fill:var({colour})" x="{right + 10}" y="{20 + 18 * at}">{escape(name)}</text>')
    heading = f"<h3>{escape(title)} ({escape(unit)})</h3>"
    return heading + _svg(HEIGHT, f"{title}, {unit}: {', '.join(series)}", parts)


def _svg(height: int, said: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(said)}">{"".join(parts)}</svg>'
