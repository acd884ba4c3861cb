"""The soak's judgement: a row that is missing or came twice is known, and what grows is not called flat."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench.soak.flat import flatness
from bench.soak.page import page, verdicts
from bench.soak.tally import Coverage, Tally, bucket, quantile_ms
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
MINUTES = [float(minute) for minute in range(1, 31)]


# --- tallies ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50)), st.integers(0, 51))
def test_a_tally_counts_as_a_set_does(numbers: list[int], total: int) -> None:
    tally = Tally()
    for number in numbers:
        tally.take(number, 0, 1000)
    seen = set(numbers)
    found = tally.coverage(total)
    assert tally.distinct == len(seen)
    assert found == Coverage(total, len([each for each in seen if each < total]), len(numbers))
    assert found.whole == (total > 0 and Counter(numbers) == Counter(range(total)))


def test_one_row_missing_of_a_million_is_not_whole() -> None:
    assert Coverage(10, 10, 10).whole
    assert not Coverage(10, 9, 9).whole
    assert not Coverage(10, 10, 11).whole
    assert not Coverage(10, 9, 10).whole
    assert not Coverage(0, 0, 0).whole


@given(st.lists(st.floats(0.01, 1e6), min_size=1), st.sampled_from([0.5, 0.99, 1.0]))
def test_quantiles_are_right_to_five_percent(times: list[float], share: float) -> None:
    buckets = Counter(bucket(each) for each in times)
    ordered = sorted(times)
    exact = next(each for at, each in enumerate(ordered, 1) if at >= share * len(ordered) - 1e-9)
    assert quantile_ms(buckets, share) == pytest.approx(exact, rel=0.051)


def test_latencies_are_told_once() -> None:
    tally = Tally()
    tally.take(0, 0, 5_000)
    assert tally.latencies() == {bucket(5.0): 1}
    assert tally.latencies() == {}
    assert quantile_ms({}, 0.5) == 0.0


# --- flatness ---------------------------------------------------------------------------------------------------------


def test_what_grows_is_not_flat() -> None:
    growing = flatness("memory", "MB", MINUTES, [100 + 2 * minute for minute in MINUTES], 1.1)
    assert not growing.flat
    assert growing.per_hour == pytest.approx(120)


def test_what_still_rises_at_the_end_is_not_flat_though_its_thirds_are_alike() -> None:
    rising = [400 + minute for minute in MINUTES]  # 60 an hour
    found = flatness("memory", "MB", MINUTES, rising, 1.1, most_per_hour=0.05)
    assert found.has_stayed and found.still_rises and not found.flat
    assert found.late_per_hour == pytest.approx(60)
    assert flatness("memory", "MB", MINUTES, rising, 1.1, most_per_hour=0.2).flat
    filled = [*(300 + 6 * minute for minute in MINUTES[:15]), *[390.0] * 15]  # caches, which are full then
    assert flatness("memory", "MB", MINUTES, filled, 1.1, most_per_hour=0.05).late_per_hour < 10


def test_noise_and_settling_are_flat() -> None:
    noise = [100.0 + 5 * (-1) ** i for i in range(len(MINUTES))]
    assert flatness("memory", "MB", MINUTES, noise, 1.1).flat
    settling = [300.0, 200.0, 150.0, *[100.0] * 27]
    found = flatness("memory", "MB", MINUTES, settling, 1.1)
    assert (found.first, found.last, found.per_hour) == (100.0, 100.0, pytest.approx(0))


@given(st.floats(0.1, 1e4), st.floats(0, 1e4), st.floats(1.0, 2.0))
def test_a_step_is_flat_exactly_within_ratio_or_slack(before: float, rise: float, most: float) -> None:
    values = [before] * 15 + [before + rise] * 15
    found = flatness("p50", "ms", MINUTES, values, most, slack=1.0)
    assert found.flat == ((before + rise) / before <= most or (before + rise) - before <= 1.0)


def test_the_page_is_made_of_the_committed_run() -> None:
    """If it fails: `python -m bench.soak --gather` writes it anew."""
    committed = json.loads((ROOT / "bench" / "results" / "soak.json").read_text())
    assert (ROOT / "docs" / "soak.md").read_text() == page(committed)


# --- the page ---------------------------------------------------------------------------------------------------------


def soak(**group: Any) -> dict[str, Any]:
    covered = {"expected": 100_000, "distinct": 100_000, "received": 100_000, "percent": 100.0, "duplication": 1.0}
    sample = {
        "rate": 500.0,
        "rss_mb": 300.0,
        "cpu_us": 900.0,
        "yardstick_ms": 20.0,
        "commit_p50": 2.0,
        "commit_p99": 9.0,
    }
    return {
        "minutes": 30.0, "maximum": 1000.0, "rate": 500.0, "measured": "2026-01-02", "readers": {"group": "four consumers"},
        "hardware": {
            "processor": "A processor", "cores": 2, "memory_gb": 8.0, "kernel": "Linux 6", "file_system": "ext4", "fsync_us": 120,
            "python": "3.11",
        },
        "samples": [{**sample, "minute": minute, "delivery": {"group": {"p50": 3.0, "p99": 8.0}}} for minute in MINUTES],
        "coverage": {"group": {**covered, "whole": True, **group}},
    }  # fmt: skip


def test_a_good_run_says_so() -> None:
    run = soak()
    assert all(good for _, good in verdicts(run))
    assert "every reader had every row once" in page(run)
    assert "| group | 100,000 | 100,000 | 100.0 % | 1.00 |" in page(run)


def test_a_missing_row_is_never_rounded_away() -> None:
    run = soak(distinct=99_999, received=99_999, percent=99.999, whole=False)
    assert "**Not everything held:**" in page(run)
    assert "coverage 99.9 %" in page(run)
    assert "100.0 %" not in page(run)


def test_memory_that_grows_is_named() -> None:
    run = soak()
    for at, sample in enumerate(run["samples"]):
        sample["rss_mb"] = 300.0 + 10 * at
    (bad,) = [sentence for sentence, good in verdicts(run) if not good]
    assert bad.startswith("resident memory of the server: 1.")
    assert bad in page(run)
