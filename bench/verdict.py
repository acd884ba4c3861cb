"""What a row says: who is ahead, by how much, and whether the aim was met. Rows are as `bench.run` writes them to JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

Row = dict[str, Any]
Verdict = Literal["wins", "even", "loses", ""]
EVEN = 0.05  # two rounds of one side differ by as much on a machine with neighbours: nobody is ahead


def advantage(row: Row) -> float:
    """How many times better ours is, whichever way the row counts."""
    ratio = float(row["ratio"])
    if not row["at_most"]:
        return ratio
    return 1 / ratio if ratio else float("inf")


def verdict(row: Row) -> Verdict:
    """Only beside another system: nobody wins against the limit of a library, or against itself."""
    if row["kind"] != "peer":
        return ""
    ours = advantage(row)
    if ours < 1 - EVEN:
        return "loses"
    return "wins" if ours > 1 + EVEN else "even"


def aim(row: Row) -> str:
    if not row["target"]:
        return ""
    return f"{'≤' if row['at_most'] else '≥'} {row['target']:g}{'' if row['met'] else ' (missed)'}"


def number(value: float) -> str:
    """To three digits or more."""
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def rows_of(run: dict[str, Any]) -> Iterator[Row]:
    for suite in run["suites"].values():
        yield from suite["comparisons"]


def lost(run: dict[str, Any]) -> list[Row]:
    """The worst first."""
    return sorted((row for row in rows_of(run) if verdict(row) == "loses"), key=advantage)


def missed(run: dict[str, Any]) -> list[Row]:
    return [row for row in rows_of(run) if not row["met"]]


def not_measured(run: dict[str, Any]) -> list[str]:
    """One line each: what, and how it could be."""
    found = []
    for name, suite in run["suites"].items():
        for row in suite.get("not_measured", []):
            what = f"{row['workload']} beside {row['against']}" if row["against"] else f"{name}, {row['workload']}"
            found.append(f"{what}: {row['reason']}")
    return found + [f"the suite {name}: {reason}" for name, reason in run["missing_suites"].items()]
