"""The Overview of the console: numbers that follow the server by themselves."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from console_stage import SIZES, Console
from playwright.sync_api import Locator, WebSocketRoute, expect
from server_fixture import ServerThread

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY, customer TEXT);
CREATE TOPIC app.order_events;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY;
"""
CONSUME = {"topic": "app.order_events", "group_id": "billing", "start": {"type": "Earliest"}, "timeout_seconds": 0}


def row(console: Console, table: str, name: str) -> Locator:
    return console.page.get_by_role("grid", name=table).get_by_role("row").filter(has_text=name)


@contextmanager
def writing(server: ServerThread) -> Iterator[None]:
    """One row after the other, until the end of the block."""
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            server.sql("INSERT INTO app.orders VALUES (?, 'ann')", [number])
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_an_empty_database_says_what_to_do_first(console: Console) -> None:
    console.sign_in()
    expect(console.page.get_by_text("No topics yet")).to_be_visible()
    expect(console.page.get_by_text("This server does not replicate")).to_be_visible()
    console.looks("overview-empty")
    console.page.get_by_role("link", name="Open in SQL").click()
    expect(console.page.get_by_role("textbox", name="SQL")).to_contain_text("CREATE TOPIC app.order_events")
    console.page.get_by_role("button", name="Run").click()
    expect(console.page.get_by_role("region", name="Result 5")).to_contain_text("INSERT 1")
    console.go("Overview")
    expect(row(console, "Topics", "app.order_events")).to_contain_text("1")


LONG_FIGURES = """(figures) => {
  for (const figure of figures) figure.firstChild.textContent = "123,456/s";
  for (const note of document.querySelectorAll(".figure small")) note.textContent = "123,456/s commits";
}"""


def test_large_numbers_have_room(console: Console) -> None:
    console.sign_in()
    figures = console.page.locator(".figure dd")
    expect(figures.filter(has_text="commits")).to_be_visible()
    for width, height in SIZES.items():
        console.page.set_viewport_size({"width": width, "height": height})
        figures.evaluate_all(LONG_FIGURES)
        assert console.cut_off() == [], f"at {width} px"


def test_lag_goes_down_when_a_consumer_acknowledges(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console_server.sql("INSERT INTO app.orders VALUES (1, 'ann'), (2, 'bob'), (3, 'cid')")
    assert len(console_server.post("/topics/consume", CONSUME).json()["messages"]) == 3
    console.sign_in()
    expect(row(console, "Topics", "app.order_events")).to_contain_text("3")
    lag = row(console, "Groups", "billing").get_by_role("gridcell").nth(2)
    expect(lag).to_have_text("3")
    ack = {"topic": "app.order_events", "group_id": "billing", "partition_id": 0, "upto_offset": 1}
    assert console_server.post("/topics/ack", ack).status == 200
    expect(lag).to_have_text("1")
    console_server.sql("INSERT INTO app.orders VALUES (4, 'dan')")
    expect(lag).to_have_text("2")
    expect(row(console, "Topics", "app.order_events")).to_contain_text("4")


def test_plots_move_and_tell_their_latest_values(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console.sign_in()
    writes = console.page.get_by_role("img", name=re.compile("^Writes: commands"))
    expect(writes).to_have_attribute("aria-label", re.compile(r"commands 0/s, rows 0/s"))
    with writing(console_server):
        expect(writes).to_have_attribute("aria-label", re.compile(r"commands [1-9][0-9,.]*/s, rows [1-9][0-9,.]*/s"))
        latency = console.page.get_by_role("img", name=re.compile("^Commit latency"))
        expect(latency).to_have_attribute("aria-label", re.compile(r"p50 [1-9].*s, p99 [1-9].*s"))
        console.wait_for_ink("Writes", "plot-3")  # as many rows as commands: one line on the other
        console.wait_for_ink("Commit latency", "plot-1", "plot-2")
        console.wait_for_ink("Messages", "plot-1")
        console.wait_for_ink("Live queries", "plot-1", "plot-3")
        console.shot("overview-moving")
    expect(row(console, "Live queries", "system.metrics")).to_be_visible()  # the page's own
    console.looks("overview")


def test_pipelines_are_plotted_where_there_are_some(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console.sign_in()
    console.wait_for_ink("Live queries", "plot-1", "plot-3")
    expect(console.plot("Pipelines")).to_have_count(0)
    expect(console.plot("Replication")).to_have_count(0)
    console_server.sql("""CREATE TABLE app.copies (id INT PRIMARY KEY, customer TEXT);
        CREATE PIPELINE app.copying INTO app.copies AS SELECT id, customer FROM TOPIC app.order_events;
        INSERT INTO app.orders VALUES (1, 'ann'), (2, 'bob'), (3, 'cid')""")
    report = {"runner": "host:1", "state": "running", "rows_out": 5, "positions": {"app.order_events": [1]}}
    assert console_server.post("/pipelines/app.copying/report", report).status == 200
    expect(console.plot("Pipelines")).to_have_attribute("aria-label", "Pipelines: running 1, lag in messages 2")
    console.wait_for_ink("Pipelines", "plot-1", "plot-4")


def test_it_goes_on_by_itself_when_the_connection_was_lost(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    links: list[WebSocketRoute] = []
    is_cut = threading.Event()

    def link(socket: WebSocketRoute) -> None:
        links.append(socket)
        if is_cut.is_set():
            socket.close()
        else:
            socket.connect_to_server()

    console.page.route_web_socket("**/v1/ws", link)
    console.sign_in()
    expect(row(console, "Topics", "app.order_events")).to_contain_text("0")
    console.wait_for_ink("Live queries", "plot-1")  # its first sample, which no other may follow
    is_cut.set()
    links[0].close()
    expect(console.page.get_by_text("The connection is lost")).to_be_visible()
    assert console.ink("Live queries", "plot-1").right > 0.8, (
        "the last sample is at the end, also if it is the only one"
    )
    console.looks("offline")
    console_server.sql("INSERT INTO app.orders VALUES (1, 'ann')")
    is_cut.clear()
    expect(console.page.get_by_text("The connection is lost")).to_be_hidden()
    expect(row(console, "Topics", "app.order_events")).to_contain_text("1")
