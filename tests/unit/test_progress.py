"""How far a job is, as a bar and as lines."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tablecast.spark import progress
from tablecast.spark.progress import LINE_SECONDS, Bar, Lines, Quiet, shown


class Clock:
    """In place of `time.monotonic`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_bar_shows_how_far_it_is_and_is_gone_in_the_end() -> None:
    out = StringIO()
    bar = Bar(Console(file=out, force_terminal=True, width=120))
    bar.began("COPY app.orders", 2_000)
    bar.reached(1_500, 3)
    bar._progress.refresh()  # now, not when its own thread gets to it
    shown_so_far = out.getvalue()
    assert "COPY app.orders" in shown_so_far
    assert "1,500 of 2,000 rows" in shown_so_far
    assert "3 rejects" in shown_so_far
    bar.ended()
    assert out.getvalue().endswith("\x1b[2K")  # the line is taken back


def test_a_bar_counts_what_it_is_told_to() -> None:
    out = StringIO()
    bar = Bar(Console(file=out, force_terminal=True, width=120))
    bar.began("ADD SOURCE app.orders", 16, "ranges")
    bar.reached(4, 0)
    bar._progress.refresh()
    bar.ended()
    assert "4 of 16 ranges" in out.getvalue()
    assert "rejects" not in out.getvalue()


def test_lines_come_now_and_then_and_at_the_end(clock: Clock) -> None:
    out = StringIO()
    lines = Lines(out)
    lines.began("COPY app.orders", 2_000)
    clock.now += LINE_SECONDS / 2
    lines.reached(500, 0)
    assert out.getvalue() == ""
    clock.now += LINE_SECONDS / 2
    lines.reached(1_000, 0)
    lines.reached(1_200, 1)  # too soon for another
    clock.now += LINE_SECONDS / 2
    lines.reached(2_000, 1_234)
    lines.ended()
    assert out.getvalue().splitlines() == [
        "COPY app.orders: 1,000 of 2,000 rows, 100.0 rows/s",
        "COPY app.orders: 2,000 of 2,000 rows, 133.3 rows/s, 1,234 rejects",
    ]


def test_lines_of_a_job_without_rows(clock: Clock) -> None:
    out = StringIO()
    lines = Lines(out)
    lines.began("COPY TOPIC app.told", 0, "messages")
    lines.reached(0, 0)
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(progress.sys, "stderr", screen)
    assert isinstance(shown(), Lines)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    assert isinstance(shown(), Bar)


def test_who_did_not_ask_hears_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Quiet()
    quiet.began("COPY", 1)
    quiet.reached(1, 1)
    quiet.ended()
    assert capsys.readouterr() == ("", "")
