"""The SQL page of the console: running, errors at their place, history, and a SELECT that stays live."""

from __future__ import annotations

import json
import re

import pytest
from console_stage import Console
from playwright.sync_api import Locator, Route, expect
from server_fixture import ServerThread
from steady_rate import Writing
from test_live_socket import eventually

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.notes (id INT PRIMARY KEY, room TEXT, text TEXT);
CREATE TABLE app.ticks (id INT PRIMARY KEY, value BIGINT);
"""


@pytest.fixture
def console(console: Console, console_server: ServerThread) -> Console:
    """Signed in, on the page."""
    console_server.sql(SETUP)
    console.sign_in(route="sql")
    return console


def cells(grid: Locator) -> list[list[str]]:
    rows = grid.locator("tbody [role=row]").all()
    return [row.get_by_role("gridcell").all_inner_texts() for row in rows]


def live(console: Console) -> Locator:
    return console.page.get_by_role("grid", name="Live result")


def switch(console: Console) -> Locator:
    return console.page.get_by_role("switch", name="Live")


# --- running ----------------------------------------------------------------------------------------------------


def test_a_table_and_a_topic_are_made_and_what_is_written_arrives(
    console: Console, console_server: ServerThread
) -> None:
    console.run("""CREATE TOPIC app.events;
        ALTER TOPIC app.events ADD SOURCE app.notes ON ANY;
        INSERT INTO app.notes VALUES (1, 'lobby', 'hello; world'), (2, 'attic', NULL);
        SELECT * FROM app.notes""")
    for number in (1, 2, 3):
        expect(console.page.get_by_role("region", name=f"Result {number}")).to_contain_text("✓")
    assert cells(console.page.get_by_role("grid", name="Result 4")) == [
        ["1", "lobby", "hello; world"],
        ["2", "attic", "NULL"],
    ]
    expect(console.page.get_by_role("columnheader", name="id INT")).to_be_visible()
    console.looks("sql")
    console.run("CONSUME FROM app.events FROM EARLIEST")
    expect(console.page.get_by_role("grid", name="Result")).to_contain_text("app.notes")


def test_what_is_selected_is_run_alone(console: Console) -> None:
    console.write("SELECT 1 AS one")
    console.page.keyboard.press("Enter")
    console.page.keyboard.insert_text("SELECT 2 AS two")
    console.page.keyboard.press("Escape")
    console.page.keyboard.press("Shift+Home")
    console.page.keyboard.press("Control+Enter")
    expect(console.page.get_by_role("columnheader")).to_have_text(["two INT"])


@pytest.mark.parametrize(
    ("text", "code", "culprit"),
    [
        ("SELECT 1;\nSELEC 2", "sql_syntax", "SELEC"),
        ("SELECT '😀', 1;\n\n  SELECT id, nope FROM app.notes", "unknown_column", "nope"),
        ("SELECT * FROM app.nothing", "unknown_table", "app.nothing"),
        ("INSERT INTO app.notes VALUES (1, 'a', 'b'), (1, 'a', 'b')", "duplicate_key", "app.notes"),
    ],
)
def test_an_error_is_shown_at_its_place_with_its_code(console: Console, text: str, code: str, culprit: str) -> None:
    console.run(text)
    expect(console.page.get_by_role("alert")).to_contain_text(code)
    marked = console.page.locator(".cm-error")
    assert "".join(marked.all_inner_texts()).startswith(culprit)
    console.page.get_by_role("button", name="Show in the text").click()
    expect(console.page.get_by_role("textbox", name="SQL")).to_be_focused()
    if code == "unknown_column":
        expect(console.page.get_by_role("alert")).to_contain_text("What stands before it has happened: 1 statement")
        console.looks("sql-error")
    console.page.keyboard.type("x")
    expect(marked).to_have_count(0)


def test_names_are_completed(console: Console) -> None:
    console.write("SELECT * FROM app.")
    console.page.keyboard.type("no")
    expect(console.page.get_by_role("option", name="notes")).to_be_visible()
    console.page.wait_for_function("document.activeElement.shadowRoot.querySelector('[role=option][aria-selected]')")
    console.looks("sql-completion")
    console.page.keyboard.press("Enter")
    expect(console.page.get_by_role("textbox", name="SQL")).to_have_text("SELECT * FROM app.notes")


def test_names_that_come_late_are_completed_too(console: Console) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "FROM system." in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    console.page.route("**/v1/api/sql", hold)
    console.page.reload()
    console.write("SELECT * FROM app.")
    console.page.keyboard.type("no")
    expect(console.page.get_by_role("textbox", name="SQL")).to_have_text("SELECT * FROM app.no")
    expect(console.page.get_by_role("option")).to_have_count(0)
    for route in held:
        route.continue_()
    expect(console.page.get_by_role("option", name="notes")).to_be_visible()


def test_what_is_given_can_be_run_when_the_page_is_drawn(console: Console) -> None:
    """Whoever presses Run in the very moment that it is there."""
    console.go("Topics")
    console.page.evaluate(PRESS_RUN)
    console.page.get_by_role("link", name="Open in SQL").click()
    expect(console.page.get_by_role("region", name="Result 4")).to_be_visible()


PRESS_RUN = """() => {
  const press = () => {
    const run = [...document.querySelectorAll("button")].find(({ textContent }) => textContent === "Run");
    if (run === undefined) return;
    watch.disconnect();
    run.click();
  };
  const watch = new MutationObserver(press);
  watch.observe(document.body, { subtree: true, childList: true });
}"""


def test_what_was_run_is_kept_but_no_password(console: Console) -> None:
    console.run("SELECT 41 AS first")
    expect(console.page.get_by_role("grid", name="Result")).to_contain_text("41")
    console.run("CREATE USER 'ann' WITH PASSWORD 'correct horse'")
    expect(console.page.get_by_role("region", name="Result")).to_contain_text("✓")
    console.page.get_by_role("button", name="History").click()
    items = console.page.get_by_role("region", name="History").get_by_role("listitem")
    expect(items).to_have_count(1)
    console.looks("sql-history")
    items.get_by_role("button").click()
    expect(console.page.get_by_role("textbox", name="SQL")).to_have_text("SELECT 41 AS first")
    assert "correct horse" not in json.dumps(console.page.evaluate("[{ ...localStorage }, { ...sessionStorage }]"))


def test_a_large_result_is_scrolled_by_keyboard_and_copied(console: Console) -> None:
    console.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    console.run("SELECT i AS n, 'a \"b\", ' || i AS t FROM unnest(range(0, 20000)) AS r(i)")
    grid = console.page.get_by_role("grid", name="Result")
    expect(grid).to_have_attribute("aria-rowcount", "20001")
    assert len(cells(grid)) < 200, "only what is in sight is there"
    grid.focus()
    console.page.keyboard.press("End")
    expect(grid.get_by_role("row", selected=True)).to_contain_text("19999")
    console.page.keyboard.press("ArrowUp")
    expect(grid.get_by_role("row", selected=True)).to_contain_text("19998")
    console.page.get_by_role("button", name="Copy CSV").click()
    expect(console.page.get_by_text("Copied as CSV")).to_be_visible()
    lines = console.page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[:2] == ["n,t", '0,"a ""b"", 0"'] and len(lines) == 20001
    console.page.get_by_role("button", name="Copy JSON").click()
    expect(console.page.get_by_text("Copied as JSON")).to_be_visible()
    copied = json.loads(console.page.evaluate("navigator.clipboard.readText()"))
    assert copied[7] == {"n": "7", "t": 'a "b", 7'}


# --- live -------------------------------------------------------------------------------------------------------


WATCH_FLASHES = """() => {
  globalThis.flashes = new Set();
  const look = () => {
    for (const row of document.querySelectorAll("tr.flash")) flashes.add(`${row.classList[1]} ${row.innerText}`);
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
}"""


def test_a_live_select_flashes_by_what_happens(console: Console, console_server: ServerThread) -> None:
    console_server.sql("INSERT INTO app.notes VALUES (1, 'a', 'there'), (2, 'a', 'to go')")
    console.page.evaluate(WATCH_FLASHES)
    console.write("SELECT 1 AS another;\nSELECT id, text FROM app.notes WHERE room = 'a'")
    switch(console).click()
    rows = live(console).locator("tbody [role=row]")
    expect(rows).to_have_text(["1there", "2to go"])

    console_server.sql("INSERT INTO app.notes VALUES (3, 'a', 'new'), (4, 'elsewhere', 'not seen')")
    expect(rows).to_have_text(["3new", "1there", "2to go"])
    console_server.sql("UPDATE app.notes SET text = 'changed' WHERE id = 1")
    expect(rows).to_have_text(["1changed", "3new", "2to go"])  # what changed last stands on top
    console_server.sql("DELETE FROM app.notes WHERE id = 2")
    console.shot("sql-live-flashing")
    expect(rows).to_have_text(["1changed", "3new"])  # it has faded
    flashes = console.page.evaluate("[...flashes].map((text) => text.split(/\\s+/).join(' '))")
    assert flashes == ["insert 3 new", "update 1 changed", "delete 2 to go"]
    expect(console.page.locator("tr.flash")).to_have_count(0)
    console.looks("sql-live")

    switch(console).click()
    expect(switch(console)).not_to_be_checked()
    eventually(lambda: console_server.sql("SELECT count(*) FROM system.live_queries")[0]["rows"] == [["0"]])


def test_a_row_far_below_is_seen_when_it_changes_and_who_has_scrolled_stays(
    console: Console, console_server: ServerThread
) -> None:
    console_server.sql("INSERT INTO app.ticks SELECT i, 0 FROM unnest(range(0, 1000)) AS t(i)")
    console.write("SELECT id, value FROM app.ticks")
    switch(console).click()
    first = live(console).locator("tbody [role=row]").first
    expect(first).to_have_text("00")
    console_server.sql("UPDATE app.ticks SET value = 7 WHERE id = 900")
    expect(first).to_have_text("9007")
    live(console).focus()
    for _ in range(5):
        console.page.keyboard.press("PageDown")
    top = "() => document.querySelector('[aria-label=\"Live result\"]').parentElement.scrollTop"
    # Rows far below are drawn once they are scrolled to: it is read when the place has stayed the same for a frame.
    at_rest = f"""async () => {{
      for (let before = -1; ; before = ({top})()) {{
        await new Promise(requestAnimationFrame);
        const row = document.querySelector("[aria-selected=true]");
        if (row && ({top})() === before) return [row.innerText, before];
      }}
    }}"""
    read, before = console.page.evaluate(at_rest)
    console_server.sql("UPDATE app.ticks SET value = 8 WHERE id IN (0, 900, 998, 999)")  # two above, two below
    console.page.wait_for_function(f"(before) => ({top})() === before + 60", arg=before)
    read = int(read.split()[0])
    shown = live(console).locator("tbody [role=row]").filter(has_text=re.compile(rf"^{read}0$"))
    expect(shown).to_be_in_viewport()


def test_keywords_have_a_colour_of_their_own(console: Console) -> None:
    console.write("SELECT room, 'text', 12 FROM app.notes -- why")
    line = console.page.locator(".cm-line")
    expect(line.locator("span", has_text="-- why")).to_have_count(1)  # a busy browser colours a moment later
    colours = line.evaluate("""(line) => {
      const colours = {};
      const walk = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
      while (walk.nextNode()) {
        const { textContent, parentElement } = walk.currentNode;
        for (const word of textContent.trim().split(/\\s+/)) colours[word] = getComputedStyle(parentElement).color;
      }
      return colours;
    }""")
    plain = colours["room,"] if "room," in colours else colours["room"]
    assert colours["SELECT"] == colours["FROM"] != plain
    assert len({colours[word] for word in ("SELECT", "'text'", "12", "--")} | {plain}) == 5


def test_a_live_select_may_begin_without_rows(console: Console, console_server: ServerThread) -> None:
    console.write("SELECT id, text FROM app.notes")
    switch(console).click()
    expect(console.page.get_by_text("No rows yet")).to_be_visible()
    console_server.sql("INSERT INTO app.notes VALUES (1, 'a', 'first')")
    expect(live(console)).to_contain_text("first")


@pytest.mark.parametrize("text", ["SELECT count(*) FROM app.notes", "DELETE FROM app.notes"])
def test_what_cannot_be_live_says_why(console: Console, text: str) -> None:
    console.write(text)
    switch(console).click()
    expect(console.page.get_by_role("alert")).to_contain_text("unsupported_sql")


def test_under_many_changes_it_samples_says_so_and_ends_with_the_truth(
    console: Console, console_server: ServerThread
) -> None:
    console.write("SELECT id, value FROM app.ticks")
    switch(console).click()
    pace = console.page.get_by_test_id("pace")
    with Writing(console_server, 250):
        expect(pace).to_contain_text("showing a sample 4 times a second")
        console.shot("sql-live-sampled")
        console.page.get_by_role("button", name="History").click()
        expect(console.page.get_by_role("region", name="History")).to_be_visible()
    [[value]] = console_server.sql("SELECT DISTINCT value FROM app.ticks")[0]["rows"]
    rows = live(console).locator("tbody [role=row]")
    expect(rows.filter(has_not=console.page.get_by_role("gridcell", name=value, exact=True))).to_have_count(0)
    expect(pace).to_have_text("250 rows")
    shown = cells(live(console))
    assert len(shown) > 10 and {row[1] for row in shown} == {value}
