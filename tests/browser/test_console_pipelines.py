"""Pipelines in the console: what they read and write, how they fare, and the switch."""

from __future__ import annotations

import re
from typing import Any

from console_stage import Console
from playwright.sync_api import Locator, expect
from server_fixture import ServerThread

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY, customer TEXT);
CREATE TABLE app.customers (name TEXT PRIMARY KEY, city TEXT);
CREATE TABLE app.by_city (city TEXT PRIMARY KEY, orders BIGINT);
CREATE TOPIC app.order_events;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON INSERT;
CREATE PIPELINE app.cities INTO app.by_city AS
  SELECT c.city, count(*) AS orders FROM TOPIC app.order_events AS o JOIN TABLE app.customers AS c ON o.customer = c.name
  GROUP BY c.city WITH (dead_letter = 'app.odd');
INSERT INTO app.orders VALUES (1, 'ann'), (2, 'bob'), (3, 'ann');
"""


def report(server: ServerThread, **said: Any) -> None:
    """As a runner does."""
    answer = server.post("/pipelines/app.cities/report", {"runner": "host:1", **said})
    assert answer.status == 200, answer.body


def figure(console: Console, name: str) -> Locator:
    return console.page.locator(".figure").filter(has=console.page.get_by_text(name, exact=True)).locator("dd")


def test_no_pipelines_say_what_to_type(console: Console, console_server: ServerThread) -> None:
    console_server.sql("CREATE NAMESPACE app; CREATE TABLE app.orders (id INT PRIMARY KEY, customer TEXT)")
    console_server.sql("CREATE TOPIC app.order_events; ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY")
    console.sign_in(route="pipelines")
    expect(console.page.get_by_text("No pipelines yet")).to_be_visible()
    console.looks("pipelines-empty")
    console.page.get_by_role("link", name="Open in SQL").click()
    console.page.get_by_role("button", name="Run").click()
    expect(console.page.get_by_role("region", name="Result 2")).to_be_visible()
    console.go("Pipelines")
    console.page.get_by_role("link", name="app.counting").click()
    expect(console.page.get_by_label("Command")).to_contain_text(f"pipelines run {console_server.url} app.counting")


def test_a_pipeline_is_shown_as_its_runner_reports(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console.sign_in(route="pipelines/app.cities")
    expect(figure(console, "State")).to_contain_text("not attached")
    picture = console.page.get_by_role("group", name="What app.cities reads and writes")
    expect(picture.locator("desc")).to_have_text(
        "It reads topic app.order_events, table app.customers and writes app.by_city."
    )
    expect(picture.get_by_role("link", name=re.compile("app.odd"))).to_be_visible()
    report(console_server, state="running", rows_in=1, rows_out=7, rejected=2, input_rows_per_second=4.0,
           processed_rows_per_second=40.0, positions={"app.order_events": [1]})  # fmt: skip
    expect(figure(console, "State")).to_contain_text("running")
    expect(figure(console, "Lag")).to_have_text("2")
    expect(figure(console, "Rejected")).to_have_text("2")
    expect(picture).to_contain_text("7 rows written")
    expect(console.page.get_by_role("img", name="Rows: in 4/s, processed 40/s")).to_be_visible()
    console.wait_for_ink("Rows", "plot-1", "plot-3")
    console.wait_for_ink("Lag", "plot-4")
    expect(console.page.get_by_label("Text of the query")).to_contain_text(
        "FROM TOPIC app.order_events AS o JOIN TABLE app.customers AS c"
    )
    report(console_server, state="failed", last_error="no column city", restarts=3)
    expect(console.page.get_by_role("region", name="Last error")).to_contain_text("no column city")
    expect(figure(console, "Lag")).to_have_text("–")  # it no longer says where it is, neither here nor there
    assert console.plot("Lag").get_attribute("aria-label") == "Lag: messages –", "both at the same time"
    assert console.plot("Rows").get_attribute("aria-label") == "Rows: in –, processed –"
    text = console.page.get_by_label("Text of the query").bounding_box()
    button = console.page.get_by_role("button", name="Copy").bounding_box()
    assert text is not None and button is not None
    assert text["x"] + text["width"] <= button["x"], "the button covers no text"
    console.looks("pipeline")
    region = console.page.get_by_role("region", name="What app.cities reads and writes")
    assert region.evaluate("(area) => area.scrollWidth - area.clientWidth") == 0, "the picture is as narrow as the page"
    console.go("Pipelines")
    cells = console.page.get_by_role("grid", name="Pipelines").get_by_role("row").filter(has_text="app.cities")
    expect(cells).to_contain_text("failed")
    expect(cells).to_contain_text("no column city")
    console.looks("pipelines")


def test_a_pipeline_is_stopped_and_started(console: Console, console_server: ServerThread) -> None:
    def desired() -> str:
        state: str = console_server.sql("SELECT desired_state FROM system.pipelines")[0]["rows"][0][0]
        return state

    console_server.sql(SETUP)
    report(console_server, state="running", positions={"app.order_events": [1]})
    console.sign_in(route="pipelines/app.cities")
    console.page.get_by_role("button", name="Stop …").click()
    expect(console.page.get_by_role("dialog")).to_contain_text("Messages wait: 2 messages")
    console.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert desired() == "running"
    console.page.get_by_role("button", name="Stop …").click()
    console.page.get_by_role("dialog").get_by_role("button", name="Stop the pipeline").click()
    expect(figure(console, "State")).to_contain_text("wished: stopped")
    assert desired() == "stopped"
    console.page.get_by_role("button", name="Start").click()
    expect(console.page.get_by_text("app.cities is to run")).to_be_visible()
    assert desired() == "running"
