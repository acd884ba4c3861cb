"""While 5,000 changes a second flow the console answers as a person expects: within 100 ms, by the browser's own measure.

The machine may have others on it. So what counts is measured beside a quiet page of the same run, and measured again, a few
times, when the writer did not reach its rate or the machine had a bad moment. `-s` shows what was found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from console_stage import Console
from playwright.sync_api import expect
from server_fixture import ServerThread
from steady_rate import MANY_PER_SECOND, Writing

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.ticks (id INT PRIMARY KEY, value BIGINT);
CREATE TOPIC app.tick_events;
ALTER TOPIC app.tick_events ADD SOURCE app.ticks ON ANY;
INSERT INTO app.ticks SELECT i, 0 FROM unnest(range(0, 50)) AS t(i);
"""
INTERACTION_MS = 100  # what a person takes for immediate
SLOW_AT_REST_MS = 50  # a machine that needs more on a quiet page is judged by that
TIMES = 8  # that everything is touched
MEASUREMENTS = 5
BATCH_ROWS = 250
AIM_PER_SECOND = MANY_PER_SECOND * 11 // 10  # of the writer, so that it is more than enough
WATCH = """() => {
  globalThis.slow = [];
  const seen = (list) => slow.push(...list.getEntries().filter((entry) => entry.interactionId).map((entry) => entry.duration));
  new PerformanceObserver(seen).observe({ type: "event", durationThreshold: 16 });
}"""


def touch_sql(console: Console) -> None:
    console.page.get_by_role("button", name="History").click()
    console.page.get_by_role("textbox", name="SQL").focus()
    console.page.keyboard.press("End")
    console.page.keyboard.type(" ")
    console.page.get_by_role("grid", name="Live result").focus()
    console.page.keyboard.press("PageDown")
    console.page.keyboard.press("ArrowUp")


def touch_tail(console: Console) -> None:
    console.page.get_by_role("button", name="Pause").click()
    console.page.get_by_role("button", name="Go on").click()
    console.page.get_by_role("grid", name="Tail").focus()
    console.page.keyboard.press("ArrowDown")
    console.page.keyboard.press("Enter")  # the message opens


def touch_overview(console: Console) -> None:
    console.page.get_by_role("button", name="Switch to").click()  # every plot is drawn anew
    console.page.get_by_role("grid", name="Topics").focus()
    console.page.keyboard.press("ArrowDown")
    console.page.keyboard.press("ArrowUp")
    console.page.keyboard.press("?")
    console.page.get_by_role("dialog").wait_for()
    console.page.keyboard.press("Escape")
    console.page.get_by_role("dialog").wait_for(state="hidden")


def open_sql(console: Console) -> None:
    console.write("SELECT id, value FROM app.ticks")
    console.page.get_by_role("switch", name="Live").click()
    expect(console.page.get_by_role("grid", name="Live result")).to_be_visible()


def open_tail(console: Console) -> None:
    expect(console.page.get_by_role("grid", name="Tail")).to_be_visible()


def open_overview(console: Console) -> None:
    expect(console.page.get_by_role("grid", name="Topics")).to_be_visible()


@dataclass(frozen=True)
class Place:
    route: str
    open: Callable[[Console], None]
    touch: Callable[[Console], None]
    sampled: str | None  # the element that says that it is a sample


PLACES = {
    "sql": Place("sql", open_sql, touch_sql, "pace"),
    "tail": Place("topics/app.tick_events?view=tail", open_tail, touch_tail, "tail-pace"),
    "overview": Place("", open_overview, touch_overview, None),
}


def interact(console: Console, place: Place) -> list[float]:
    """How long each click and key took until it was painted: milliseconds, the quickest (under 16) left out."""
    console.page.evaluate("() => void slow.splice(0)")
    for _ in range(TIMES):
        place.touch(console)
    console.page.evaluate("() => new Promise((done) => setTimeout(done))")  # the observer has its turn
    durations: list[float] = console.page.evaluate("slow")
    return sorted(durations)


def worst(durations: list[float]) -> float:
    """But for one in fifty, as browsers count it."""
    return durations[-1 - len(durations) // 50] if durations else 0.0


class Measured(NamedTuple):
    rate: float  # changes per second that were committed meanwhile
    busy_ms: float
    quiet_ms: float

    def is_within(self, limit_ms: float) -> bool:
        return self.rate >= MANY_PER_SECOND and self.busy_ms <= limit_ms

    def __str__(self) -> str:
        return f"{self.busy_ms:.0f} ms at {self.rate:,.0f} changes/s, {self.quiet_ms:.0f} ms on the quiet page"


def measured(console: Console, server: ServerThread, place: Place) -> Measured:
    quiet = interact(console, place)
    with Writing(server, BATCH_ROWS, AIM_PER_SECOND) as writing:
        if place.sampled is not None:
            expect(console.page.get_by_test_id(place.sampled)).to_contain_text("showing a sample")
        began, before = time.monotonic(), writing.changes
        busy = interact(console, place)
        rate = (writing.changes - before) / (time.monotonic() - began)
    assert busy, "the browser measured"
    return Measured(rate, worst(busy), worst(quiet))


@pytest.mark.speed
@pytest.mark.parametrize("name", PLACES)
def test_it_stays_responsive_while_5000_changes_a_second_flow(
    console: Console, console_server: ServerThread, name: str
) -> None:
    """Where no measurement is within the limit, a machine that is slow at rest may be twice as slow."""
    place, found = PLACES[name], list[Measured]()
    console_server.sql(SETUP)
    console.sign_in(route=place.route)
    console.page.evaluate(WATCH)
    place.open(console)
    while len(found) < MEASUREMENTS and not any(each.is_within(INTERACTION_MS) for each in found):
        found.append(measured(console, console_server, place))
        sys.stdout.write(f"{name}: {found[-1]}\n")
    slow = [each for each in found if each.quiet_ms > SLOW_AT_REST_MS and each.is_within(2 * each.quiet_ms)]
    assert found[-1].is_within(INTERACTION_MS) or slow, "; ".join(map(str, found))
