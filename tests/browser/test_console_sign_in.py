"""Signing in to the console: who it is, what it keeps, what a role is offered, and how a session ends."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

from console_stage import Console
from playwright.sync_api import expect
from server_fixture import PASSWORD, ServerThread


def menu(console: Console) -> list[str]:
    return console.page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()


def storage(console: Console) -> dict[str, Any]:
    stored: dict[str, Any] = console.page.evaluate("({ local: { ...localStorage }, session: { ...sessionStorage } })")
    return stored


def add_user(server: ServerThread, name: str, role: str) -> None:
    server.sql(f"CREATE USER '{name}' WITH PASSWORD 'the password of {name}' ROLE '{role}'")


def test_a_wrong_password_is_said_and_the_right_one_opens_the_overview(console: Console) -> None:
    console.open()
    console.looks("sign-in")
    console.page.get_by_label("User").fill("system")
    console.page.get_by_label("Password").fill("not the password")
    console.page.get_by_role("button", name="Sign in").click()
    expect(console.page.get_by_role("alert")).to_contain_text("The user name or the password is wrong")
    console.looks("sign-in-refused")
    console.page.get_by_label("Password").fill(PASSWORD)
    console.page.keyboard.press("Enter")
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_a_reload_goes_on_and_signing_out_forgets(console: Console) -> None:
    console.sign_in(route="sql")
    console.page.reload()
    expect(console.page.get_by_role("heading", level=1)).to_have_text("SQL")
    assert PASSWORD not in json.dumps(storage(console)), "only the refresh token is kept, and only in this tab"
    assert list(storage(console)["session"]) == ["tablecast.refresh"]
    assert storage(console)["local"] == {}
    console.page.get_by_role("button", name="Sign out").click()
    expect(console.page.get_by_label("Password")).to_be_visible()
    assert storage(console)["session"] == {}
    console.page.reload()
    expect(console.page.get_by_label("Password")).to_be_visible()


def answered(console: Console, text: str) -> AbstractContextManager[object]:
    """A block at whose end a statement with this text has been answered."""
    return console.page.expect_response(
        lambda answer: answer.url.endswith("/sql") and text in (answer.request.post_data or "")
    )


def test_a_session_that_the_server_ends_leads_back_and_says_why(console: Console, console_server: ServerThread) -> None:
    add_user(console_server, "ann", "dba")
    with answered(console, "FROM system.columns"), answered(console, "FROM system.topics"):
        console.sign_in("ann", "the password of ann", route="sql")  # the page asks for names; then it is quiet
    console_server.sql("ALTER USER 'ann' SET PASSWORD 'another password'")
    console.run("SHOW TABLES")
    expect(console.page.get_by_text("You were signed out")).to_be_visible()
    console.page.get_by_label("User").fill("ann")
    console.page.get_by_label("Password").fill("another password")
    console.page.keyboard.press("Enter")
    expect(console.page.get_by_role("heading", level=1)).to_have_text("SQL")


def test_a_token_is_renewed_before_it_ends(console: Console, console_server: ServerThread) -> None:
    """Time is the browser's: its clock is turned, and the server hears of the renewal."""
    console.page.clock.install()
    console.sign_in(route="sql")
    before = storage(console)["session"]
    with console.page.expect_response("**/v1/api/auth/refresh") as renewed:
        console.page.clock.fast_forward(console_server.post("/auth/login", _SYSTEM).json()["expires_in"] * 1000)
    assert renewed.value.ok
    console.run("SELECT 7 AS seven")
    expect(console.page.get_by_role("gridcell", name="7")).to_be_visible()
    console.page.wait_for_function(
        "(before) => sessionStorage['tablecast.refresh'] !== before", arg=before["tablecast.refresh"]
    )


_SYSTEM = {"user": "system", "password": PASSWORD}


def test_a_role_is_offered_what_it_may(console: Console, console_server: ServerThread) -> None:
    for role in ("user", "service", "dba"):
        add_user(console_server, role, role)
    console.sign_in("user", "the password of user")
    assert menu(console) == ["SQL"]
    console.open("overview")
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Not for your role")
    console.page.get_by_role("button", name="Sign out").click()
    console.sign_in("service", "the password of service")
    expect(console.page.get_by_role("heading", name="Replication")).to_be_visible()
    expect(console.page.get_by_role("heading", name="Live queries")).to_be_hidden()
    console.page.get_by_role("button", name="Sign out").click()
    console.sign_in("dba", "the password of dba")
    expect(console.page.get_by_role("heading", name="Live queries")).to_be_visible()
    expect(console.page.get_by_role("alert")).to_have_count(0)


def test_whoever_signs_in_next_finds_nothing_of_the_one_before(console: Console, console_server: ServerThread) -> None:
    add_user(console_server, "ann", "user")
    console.sign_in(route="sql")
    console.run("SELECT 'a secret' AS found")
    expect(console.page.get_by_role("gridcell", name="a secret")).to_be_visible()
    console.page.get_by_role("button", name="Sign out").click()
    console.sign_in("ann", "the password of ann", route="sql")
    expect(console.page.get_by_role("textbox", name="SQL")).not_to_contain_text("secret")
    console.page.get_by_role("button", name="History").click()
    expect(console.page.get_by_text("Nothing here")).to_be_visible()
    expect(console.page.get_by_text("a secret")).to_have_count(0)


def test_the_keyboard_leads_everywhere(console: Console) -> None:
    console.sign_in()
    expect(console.page.get_by_text("No topics yet")).to_be_visible()  # a busy page takes keys too late
    console.page.keyboard.press("g")
    console.page.keyboard.press("s")
    expect(console.page.get_by_role("heading", level=1)).to_have_text("SQL")
    expect(console.page.get_by_role("textbox", name="SQL")).to_be_focused()
    console.page.keyboard.type("g o?")  # in the editor these are letters
    expect(console.page.get_by_role("textbox", name="SQL")).to_have_text("g o?")
    console.page.get_by_role("button", name="Run").focus()
    console.page.keyboard.press("?")
    expect(console.page.get_by_role("dialog", name="Keys")).to_be_visible()
    console.looks("keys")
    console.page.keyboard.press("Escape")
    expect(console.page.get_by_role("dialog")).to_have_count(0)
    console.page.keyboard.press("g")
    console.page.keyboard.press("o")
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_on_a_phone_the_menu_shows_where_one_is(console: Console) -> None:
    console.page.set_viewport_size({"width": 390, "height": 844})
    console.sign_in(route="audit")
    pages = console.page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link", name="Audit")).to_be_in_viewport(ratio=1)
    console.page.keyboard.press("g")
    console.page.keyboard.press("o")
    expect(console.page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(pages.get_by_role("link", name="Overview")).to_be_in_viewport(ratio=1)


def test_light_and_dark_can_be_chosen_and_stay(console: Console) -> None:
    console.page.emulate_media(color_scheme="light")
    console.sign_in()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = console.page.evaluate(ground)
    console.page.get_by_role("button", name="Switch to dark").click()
    dark = console.page.evaluate(ground)
    assert dark != light
    console.page.reload()
    expect(console.page.get_by_role("button", name="Switch to light")).to_be_visible()
    assert console.page.evaluate(ground) == dark
