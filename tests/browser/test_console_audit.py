"""The audit log in the console: what is new comes by itself; filters, pages, and nobody below dba."""

from __future__ import annotations

from console_stage import Console
from playwright.sync_api import Locator, Route, expect
from server_fixture import PASSWORD, ServerThread

ENTRIES = 130  # more than a page


def entries(console: Console) -> Locator:
    return console.page.get_by_role("grid", name="Entries")


def test_entries_by_user_action_and_outcome(console: Console, console_server: ServerThread) -> None:
    console_server.sql("CREATE NAMESPACE app")
    console_server.sql(f"CREATE USER 'eve' WITH PASSWORD '{PASSWORD}' ROLE 'service'")
    assert console_server.post("/sql", {"sql": "CREATE NAMESPACE hers"}, user="eve").status == 403
    console.sign_in(route="audit")
    expect(entries(console)).to_contain_text("eve")
    console.looks("audit")
    console.page.get_by_label("Outcome").select_option("denied")
    expect(entries(console).get_by_role("row")).to_have_count(2)  # with the head
    expect(entries(console)).to_contain_text("eve")
    console.page.get_by_label("Outcome").select_option("any outcome")
    filters = console.page.get_by_role("search", name="Entries")
    filters.get_by_label("User").press_sequentially("system")
    filters.get_by_label("Action").fill("namespace")
    filters.get_by_label("Action").press("Enter")
    expect(entries(console).get_by_role("row")).to_have_count(2)
    expect(entries(console)).to_contain_text("app")
    assert "user=system" in console.page.url
    filters.get_by_label("User").fill("nobody")
    filters.get_by_label("User").press("Enter")
    expect(console.page.get_by_text("No entries like that")).to_be_visible()
    console.looks("audit-nothing")


def test_older_entries_come_page_by_page(console: Console, console_server: ServerThread) -> None:
    console_server.sql("; ".join(f"CREATE NAMESPACE n{i}" for i in range(ENTRIES)))
    console.sign_in(route="audit?action=namespace")
    expect(console.page.get_by_text("100 entries")).to_be_visible()
    console.page.get_by_role("button", name="Older").click()
    expect(console.page.get_by_text(f"{ENTRIES} entries")).to_be_visible()
    expect(entries(console)).to_have_attribute("aria-rowcount", str(ENTRIES + 1))
    expect(console.page.get_by_role("button", name="Older")).to_be_disabled()


def test_older_entries_that_come_late_are_not_put_among_others(console: Console, console_server: ServerThread) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "seq < ?" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    console_server.sql("; ".join(f"CREATE NAMESPACE n{i}" for i in range(ENTRIES)))
    console.sign_in(route="audit?action=namespace")
    expect(console.page.get_by_text("100 entries")).to_be_visible()
    console.page.route("**/v1/api/sql", hold)
    console.page.get_by_role("button", name="Older").click()
    action = console.page.get_by_role("search", name="Entries").get_by_label("Action")
    action.fill("nothing like it")
    action.press("Enter")
    expect(console.page.get_by_text("No entries like that")).to_be_visible()
    with console.page.expect_response("**/v1/api/sql"):
        held[0].continue_()
    console.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
    expect(console.page.get_by_text("No entries like that")).to_be_visible()


def test_what_happens_now_comes_by_itself(console: Console, console_server: ServerThread) -> None:
    console_server.sql("CREATE NAMESPACE before")
    console.sign_in(route="audit?action=namespace")
    newest = entries(console).locator("tbody [role=row]").first
    expect(newest).to_contain_text("before")
    for name in ("first", "second"):
        console_server.sql(f"CREATE NAMESPACE {name}; CREATE TABLE {name}.not_like_the_filter (id INT PRIMARY KEY)")
        expect(newest).to_contain_text(name)
    expect(console.page.get_by_text("3 entries")).to_be_visible()
