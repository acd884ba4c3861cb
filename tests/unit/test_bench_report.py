"""The benchmarks' report: where tablecast loses it says so, in every form; what is not there is a line, not a crash."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench import all as whole
from bench import html, report, run
from bench.hardware import commit, file_system
from bench.measure import Comparison, NotInstalled, NotMeasured
from bench.server import consuming
from bench.server.turns import OURS, Against, compared, in_turns, started
from bench.verdict import advantage, lost, not_measured, verdict
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]


def row(against: str, ours: float, theirs: float, **more: Any) -> dict[str, Any]:
    made = Comparison("writing", against, ours, theirs, "rows/s", more.pop("target", 0.0), **more)
    return run._as_json([made], False, 1.0)["comparisons"][0]  # type: ignore[no-any-return]


RUN: dict[str, Any] = {
    "quick": False,
    "hardware": {
        "processor": "A processor", "cores": 2, "memory_gb": 8.0, "kernel": "Linux 6", "file_system": "ext4", "fsync_us": 120,
        "python": "3.11",
    },
    "sides": [{"name": "Other", "version": "1.2", "acknowledged": "a kill", "settings": "fsync = off", "client": "c"}],
    "suites": {
        "engine": {
            "machine": "2 cores", "measured": "2026-01-02", "quick": False, "seconds": 3,
            "comparisons": [
                row("a faster one", 50, 200, target=0.2),
                row("a slower one", 300, 100, target=5.0),
                row("a quicker <one>", 8, 2, at_most=True, note="it promises less"),
                row("a tardier one", 2, 8, at_most=True),
                row("one like us", 99, 100),
                row("the bare disk", 50, 100, kind="limit"),
                row("without a route", 50, 100, kind="itself"),
            ],
            "not_measured": [{"workload": "writing", "against": "NATS", "reason": "nats-server is missing, install with pip"}],
        }
    },
    "missing_suites": {"spark": "the module pyspark is missing"},
}  # fmt: skip
ROWS = {each["against"]: each for each in RUN["suites"]["engine"]["comparisons"]}
LOST = ["a faster one", "a quicker <one>"]


# --- who is ahead -----------------------------------------------------------------------------------------------------


def test_ratios_and_verdicts() -> None:
    assert [(name, each["ratio"], verdict(each)) for name, each in ROWS.items()] == [
        ("a faster one", 0.25, "loses"),
        ("a slower one", 3.0, "wins"),
        ("a quicker <one>", 4.0, "loses"),
        ("a tardier one", 0.25, "wins"),
        ("one like us", 0.99, "even"),
        ("the bare disk", 0.5, ""),
        ("without a route", 0.5, ""),
    ]
    assert {each["against"] for each in lost(RUN)} == set(LOST)


figures = st.floats(0.001, 1e9)


@given(figures, figures)
def test_a_time_that_is_longer_loses_exactly_when_a_rate_that_is_lower_does(ours: float, theirs: float) -> None:
    rate, time = row("x", ours, theirs), row("x", theirs, ours, at_most=True)
    assert advantage(rate) == pytest.approx(advantage(time))
    swapped = row("x", theirs, ours)
    if verdict(rate) == "loses":
        assert ours < theirs
        assert verdict(swapped) == "wins"


def test_a_row_without_a_target_misses_none() -> None:
    assert row("x", 1, 100, at_most=True)["met"]
    assert not row("x", 1, 100, target=1.0)["met"]


# --- the pages --------------------------------------------------------------------------------------------------------


def test_markdown_says_where_tablecast_loses() -> None:
    page = report.page(RUN)
    section = page.split("## Where tablecast loses")[1].split("\n## ")[0]
    assert "behind in 2 of 5 rows" in section
    told = re.findall(r"- writing: .* of (.*) \(", section)
    assert sorted(told) == sorted(LOST)
    losing = [line for line in page.splitlines() if line.startswith("| writing") and "**loses**" in line]
    assert len(losing) == len(LOST)
    assert all(any(name in line for line in losing) for name in LOST)
    assert "a slower one: 3.00 × of ≥ 5 (missed)" in section


def test_markdown_has_machine_settings_and_what_was_not_measured() -> None:
    page = report.page(RUN)
    assert "A processor, 2 cores" in page
    assert "120 µs" in page
    assert "| Other | 1.2 | a kill | fsync = off | c |" in page
    assert "- not measured: writing beside NATS: nats-server is missing, install with pip" in page
    assert "- not measured: the suite spark: the module pyspark is missing" in page
    assert "a quicker <one>: it promises less." in page


def test_a_run_that_loses_nothing_says_so() -> None:
    engine = RUN["suites"]["engine"]
    won = {**RUN, "suites": {"engine": {**engine, "comparisons": [ROWS["a slower one"]]}}}
    assert "behind in 0 of 1 rows" in report.page(won)
    assert "**loses**" not in report.page(won)


def test_tables_go_between_marks_and_nowhere_else() -> None:
    page = (
        "before\n<!-- bench -->\nold\n<!-- /bench -->\nbetween\n<!-- bench server -->\nkept\n<!-- /bench server -->\n"
    )
    made = report.with_all_tables(page, RUN)
    assert made.startswith(
        "before\n<!-- bench -->\nGenerated from a committed run, `bench/results/engine.json`: 2 cores"
    )
    assert "old" not in made
    assert made.endswith("<!-- /bench -->\nbetween\n<!-- bench server -->\nkept\n<!-- /bench server -->\n")
    assert report.with_all_tables(made, RUN) == made


@pytest.mark.parametrize("suite", ["engine", "server", "live"])
def test_the_readme_shows_the_committed_run(suite: str) -> None:
    """If it fails: `python -m bench.all --gather` writes it anew."""
    committed = json.loads((ROOT / "bench" / "results" / f"{suite}.json").read_text())
    assert report.marked(suite, committed) in (ROOT / "README.md").read_text()


def test_the_page_is_made_of_the_committed_runs() -> None:
    """If it fails: `python -m bench.all --gather` writes it anew."""
    committed = json.loads((ROOT / "bench" / "results" / "all.json").read_text())
    assert (ROOT / "docs" / "benchmarks.md").read_text() == report.page(committed)
    for name, suite in committed["suites"].items():
        assert suite == json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text()), name


def test_a_run_says_of_which_commit_it_is(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    assert commit(tmp_path) is None
    for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "first"]):
        subprocess.run([*git, *command], check=True)
    first = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert commit(tmp_path) == first
    (tmp_path / "new").write_text("not committed")
    assert commit(tmp_path) == f"{first}, changed"
    assert run._as_json([], True, 1.0)["commit"] == commit()


class _Outside(HTMLParser):
    """Whatever a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]


def test_html_stands_alone_and_says_the_same() -> None:
    page = html.page(RUN)
    outside = _Outside()
    outside.feed(page)
    assert outside.fetched == []
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert page.count('<span class="loses">loses</span>') == len(LOST)
    assert "not measured: the suite spark" in page
    assert "a quicker &lt;one&gt;" in page
    assert "Not a result" not in page
    assert "Not a result" in html.page({**RUN, "quick": True})


def test_pictures_are_well_formed_and_point_the_right_way() -> None:
    picture = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", html.page(RUN), re.DOTALL)[0])
    axis = next(float(line.get("x1", "")) for line in picture.iter("line") if line.get("class") == "axis")
    bars = [(each.get("class"), float(each.get("x", ""))) for each in picture.iter("rect")]
    assert [kind for kind, _ in bars] == ["loses", "wins", "loses", "wins", "even", "limit", "itself"]
    assert [x >= axis - 0.1 for kind, x in bars if kind == "wins"] == [True, True]
    assert [x < axis - 1 for kind, x in bars if kind == "loses"] == [True, True]


def test_html_shows_a_soak() -> None:
    sample = {"minute": 1, "rss_mb": 200, "commit_p50": 1.0, "commit_p99": 2.0, "delivery": {"group": {"p50": 3.0}}}
    soak = {"minutes": 30, "rate": 500, "samples": [sample, {**sample, "minute": 2}], "readers": {"group": "four"}}
    pictures = re.findall(r"<svg.*?</svg>", html.page(RUN, soak), re.DOTALL)
    assert len(pictures) == 4
    assert all(len(ElementTree.fromstring(each).findall("polyline")) >= 1 for each in pictures[1:])


# --- what a machine lacks ---------------------------------------------------------------------------------------------


def lacking(path: Path) -> Iterator[run.Found]:
    yield Comparison("writing", "SQLite", 2.0, 1.0, "rows/s", 1.0)
    raise NotInstalled("mosquitto is missing, install with apt-get install mosquitto")


def test_a_workload_that_lacks_something_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(target)])
    assert run.main("", lambda quick: {"events": lacking, "more": lacking}) == 0
    found = json.loads(target.read_text())
    assert [each["against"] for each in found["comparisons"]] == ["SQLite", "SQLite"]
    reasons = {each["workload"]: each["reason"] for each in found["not_measured"]}
    assert reasons == dict.fromkeys(("events", "more"), "mosquitto is missing, install with apt-get install mosquitto")


@contextmanager
def here(path: Path) -> Iterator[int]:
    yield 1


@contextmanager
def absent(path: Path) -> Iterator[int]:
    raise NotInstalled("redis-server is missing")
    yield 1


def test_a_missing_peer_leaves_the_others(tmp_path: Path) -> None:
    peers = {"postgres": Against("PostgreSQL", 1.0), "redis": Against("Redis", 1.0)}
    with started(tmp_path, {OURS: here, "postgres": here, "redis": absent}) as them:
        assert them.ports == {OURS: 1, "postgres": 1}
    found = list(compared("writing", peers, {OURS: 6.0, "postgres": 3.0}, them.missing, "rows/s"))
    assert found == [
        Comparison("writing", "PostgreSQL", 6.0, 3.0, "rows/s", 1.0),
        NotMeasured("writing", "Redis", "redis-server is missing"),
    ]


def test_a_suite_that_fails_is_told_and_no_older_run_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suites = {"engine": whole.Suite("bench.no_such_suite"), "spark": whole.Suite("bench", ("no_such_module",), "pip")}
    monkeypatch.setattr(whole, "SUITES", suites)
    (tmp_path / "engine.json").write_text(json.dumps(RUN["suites"]["engine"]))
    kept = whole.gathered({}, tmp_path, False, {})
    assert list(kept["suites"]) == ["engine"]
    failed = whole._measure(["engine", "spark"], tmp_path, True)
    found = whole.gathered({}, tmp_path, False, failed)
    assert found["suites"] == {}
    assert found["missing_suites"] == {
        "engine": "failed: `python -m bench.no_such_suite` ended with 1",
        "spark": "the module no_such_module is missing, install with pip",
    }
    assert len(not_measured(found)) == 2


def test_every_suite_has_a_title_and_a_mark() -> None:
    assert set(whole.SUITES) == set(report.TITLES) == set(report.MARKS)


# --- measuring --------------------------------------------------------------------------------------------------------


def test_the_clock_of_consuming_stops_with_the_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits five seconds for nothing at the end is not slower for it."""
    now = 0.0
    monkeypatch.setattr(consuming.time, "perf_counter", lambda: now)
    left = {"first": [10, 10], "second": []}

    async def take(member: str) -> int:
        nonlocal now
        await asyncio.sleep(0)
        if left[member]:
            now += 1
            return left[member].pop()
        now += 5 if not left["first"] else 0
        return 0

    assert asyncio.run(consuming.drain(["first", "second"], take, 20)) == 10.0


def test_sides_alternate_and_their_medians_count() -> None:
    order: list[str] = []
    values = {"a": iter([1.0, 9.0, 2.0]), "b": iter([4.0, 4.0, 5.0])}

    def side(name: str) -> Any:
        async def one_round() -> float:
            order.append(name)
            return next(values[name])

        return one_round

    assert asyncio.run(in_turns(3, {name: side(name) for name in values})) == {"a": 2.0, "b": 4.0}
    assert order == ["a", "b"] * 3


def test_the_file_system_is_that_of_the_longest_mount_point() -> None:
    mounts = "disk / ext4 rw 0 0\nmemory /tmp tmpfs rw 0 0\nother /tmpfiles xfs rw 0 0\n"
    assert file_system(Path("/tmp/bench"), mounts) == "tmpfs"
    assert file_system(Path("/srv"), mounts) == "ext4"
