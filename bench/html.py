"""A run as one HTML file: pictures and tables, light or dark as the reader's system is, nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from bench.plots import bars, lines
from bench.report import TITLES
from bench.verdict import aim, lost, not_measured, number, verdict

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1b23; --soft: #666876; --line: #d9dae3; --wins: #2f7d4f; --loses: #b3392f;
  --even: #8a8c99; --limit: #4453b8; --itself: #9a7b1e; --first: #4453b8; --second: #2f7d4f; --third: #b3392f; --fourth: #9a7b1e;
  --fifth: #7a3f9d; --sixth: #1f7d8c; }
@media (prefers-color-scheme: dark) { :root { --page: #15161c; --text: #e6e7ee; --soft: #a0a2b1; --line: #34363f; --wins: #6cc48f;
  --loses: #f08a80; --even: #9a9cab; --limit: #97a4ff; --itself: #d9b95c; --first: #97a4ff; --second: #6cc48f; --third: #f08a80;
  --fourth: #d9b95c; --fifth: #cf9bef; --sixth: #6fcbd8; } }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: 0.87rem; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
td.figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { fill: var(--text); font-size: 12px; }
svg text.small { fill: var(--soft); font-size: 10px; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); }
rect.wins { fill: var(--wins); } rect.loses { fill: var(--loses); } rect.even { fill: var(--even); } rect.limit { fill: var(--limit); }
rect.itself { fill: var(--itself); } .loses { color: var(--loses); font-weight: 600; } .wins { color: var(--wins); }
.key span { margin-right: 1.2rem; white-space: nowrap; }
.key i { display: inline-block; width: 0.8rem; height: 0.8rem; margin-right: 0.35rem; }
"""
KEY = {
    "wins": "ahead of another system",
    "even": "within 5 %",
    "loses": "behind another system",
    "limit": "beside what the machine gives at best",
    "itself": "beside tablecast itself",
}


def page(run: dict[str, Any], soak: dict[str, Any] | None = None) -> str:
    quick = "<p><strong>A quick look: short rounds, small data. Not a result.</strong></p>" if run["quick"] else ""
    body = [
        "<h1>tablecast, side by side</h1>", quick, _machine(run["hardware"]), _losses(run),
        "<h2>The sides</h2>", _sides(run["sides"]), _key(), *(_suite(name, suite) for name, suite in run["suites"].items()),
        _not_measured(run), _soak(soak) if soak else "",
    ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tablecast benchmarks</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _machine(facts: dict[str, Any]) -> str:
    return (
        f"<p>{escape(facts['processor'])}, {facts['cores']} cores, {facts['memory_gb']} GB, {escape(facts['file_system'])} "
        f"(an fsync of 4 KiB: {facts['fsync_us']:,} µs), {escape(facts['kernel'])}, Python {facts['python']}. "
        "Both sides of a row ran in turns; medians.</p>"
    )


def _losses(run: dict[str, Any]) -> str:
    found = [
        f"<li>{escape(row['workload'])}: {number(row['ours'])} {row['unit']} beside {number(row['theirs'])} of "
        f"{escape(row['against'])} ({row['ratio']:.2f} ×)</li>"
        for row in lost(run)
    ]
    return f"<h2>Where tablecast loses</h2><ul>{''.join(found) or '<li>In no row of this run.</li>'}</ul>"


def _sides(sides: Sequence[dict[str, str]]) -> str:
    columns = ("name", "version", "acknowledged", "settings", "client")
    heads = ("side", "version", "an acknowledged write survives", "settings", "client")
    return _table(heads, [[escape(side[column]) for column in columns] for side in sides])


def _key() -> str:
    marks = [f'<span><i style="background:var(--{kind})"></i>{meaning}</span>' for kind, meaning in KEY.items()]
    return f'<p class="key">Bars show how many times better tablecast is. {"".join(marks)}</p>'


def _suite(name: str, suite: dict[str, Any]) -> str:
    rows = [
        [
            escape(row["workload"]), escape(row["against"]), f"{number(row['ours'])} {row['unit']}", number(row["theirs"]),
            f"{row['ratio']:.2f} ×", f'<span class="{verdict(row)}">{verdict(row)}</span>', aim(row), escape(row["note"]),
        ]
        for row in suite["comparisons"]
    ]  # fmt: skip
    heads = ("workload", "against", "tablecast", "the other", "ratio", "", "aim", "")
    return f"<h2>{TITLES[name]}</h2>{bars(suite['comparisons'])}{_table(heads, rows, figures=range(2, 5))}"


def _not_measured(run: dict[str, Any]) -> str:
    found = "".join(f"<li>not measured: {escape(each)}</li>" for each in not_measured(run))
    return f"<h2>Not measured</h2><ul>{found}</ul>" if found else ""


def _soak(soak: dict[str, Any]) -> str:
    minutes = [each["minute"] for each in soak["samples"]]

    def over(pick: str) -> list[float]:
        return [float(each[pick]) for each in soak["samples"]]

    delivery: dict[str, Sequence[float]] = {
        name: [each["delivery"][name]["p50"] for each in soak["samples"]] for name in soak["readers"] if name != "spark"
    }
    return (
        f"<h2>Soak: {soak['minutes']:g} minutes at {soak['rate']:,.0f} writes/s, half of the maximum</h2>"
        + lines("Resident memory of the server", "MB", minutes, {"server": over("rss_mb")})
        + lines("Commit", "ms", minutes, {"p50": over("commit_p50"), "p99": over("commit_p99")})
        + lines("Delivery, p50", "ms", minutes, delivery)
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], figures: range = range(0)) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="figure">{c}</td>' if i in figures else f"<td>{c}</td>" for i, c in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
