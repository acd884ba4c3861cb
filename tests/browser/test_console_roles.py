"""What a role may not do is not offered: the console beside the matrix of roles that the server is held to."""

from __future__ import annotations

import pytest
from console_stage import Console
from playwright.sync_api import Locator, expect
from server_fixture import PASSWORD, ServerThread
from test_roles import ENDPOINTS, STATEMENTS, SYSTEM_TABLE_READERS

from tablecast.sql import statements as s

RANKS = ("user", "service", "dba", "system")
SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TABLE app.secrets (id INT PRIMARY KEY) WITH (ACCESS_LEVEL = 'RESTRICTED');
CREATE TABLE app.done (id INT PRIMARY KEY);
CREATE TOPIC app.work WITH (max_deliveries = 1, dead_letter = 'app.dead');
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
ALTER TOPIC app.work ADD SOURCE app.secrets ON INSERT;
CREATE TOPIC app.done_events;
ALTER TOPIC app.done_events ADD SOURCE app.jobs ON INSERT;
CREATE PIPELINE app.flow INTO app.done AS SELECT id FROM TOPIC app.done_events;
INSERT INTO app.jobs VALUES (1);
"""
CLAIM = {"topic": "app.work", "group_id": "billing", "consumer": "ann", "timeout_seconds": 0}


def may(role: str, least: str) -> bool:
    return RANKS.index(role) >= RANKS.index(least)


def least_of(statement: type[s.Statement]) -> str:
    """The truth: the least role of a kind of statement."""
    return next(row.least for row in STATEMENTS if row.kind is statement)


def stage(server: ServerThread, role: str) -> None:
    server.sql(SETUP)
    server.sql(f"CREATE USER 'a_{role}' WITH PASSWORD '{PASSWORD}' ROLE '{role}'")
    server.post("/topics/consume", CLAIM)
    nack = {"topic": "app.work", "group_id": "billing", "offsets": [0], "nack": True}
    assert server.post("/topics/ack", nack).status == 200
    server.post("/topics/consume", CLAIM)  # it becomes a dead letter


def offered(console: Console, route: str, awaited: Locator, button: str) -> bool:
    """`awaited` is there when everything is that the page shows."""
    console.open(route)
    expect(awaited).to_be_visible()
    return console.page.get_by_role("button", name=button).count() > 0


@pytest.mark.parametrize("role", RANKS)
def test_pages_of_the_menu(console: Console, console_server: ServerThread, role: str) -> None:
    console_server.sql(f"CREATE USER 'a_{role}' WITH PASSWORD '{PASSWORD}' ROLE '{role}'")
    console.sign_in(f"a_{role}", PASSWORD)
    needed = {
        "SQL": next(e.least for e in ENDPOINTS if e.path.endswith("/sql")),
        "Topics": SYSTEM_TABLE_READERS["topics"],
        "Groups": SYSTEM_TABLE_READERS["topic_groups"],
        "Pipelines": SYSTEM_TABLE_READERS["pipelines"],
        "Edge": SYSTEM_TABLE_READERS["replication"],
        "Jobs": SYSTEM_TABLE_READERS["jobs"],
        "Audit": SYSTEM_TABLE_READERS["audit_log"],
    }
    shown = console.page.get_by_role("navigation", name="Pages").get_by_role("link").all_text_contents()
    assert [page for page in needed if page in shown] == [page for page, least in needed.items() if may(role, least)]


def test_the_address_of_a_page_that_is_not_offered(console: Console, console_server: ServerThread) -> None:
    console_server.sql(f"CREATE USER 'ann' WITH PASSWORD '{PASSWORD}' ROLE 'user'")
    console.sign_in("ann", PASSWORD, "topics")
    expect(console.page.get_by_role("heading", name="Not for your role")).to_be_visible()
    console.looks("not-offered")


@pytest.mark.parametrize("role", RANKS[1:])
def test_buttons(console: Console, console_server: ServerThread, role: str) -> None:
    stage(console_server, role)
    console.sign_in(f"a_{role}", PASSWORD)
    topic, group, pipeline = "topics/app.work", "groups/app.work/billing", "pipelines/app.flow"
    letters = console.page.get_by_role("grid", name="Dead letters")
    messages = console.page.get_by_role("grid", name="Messages")
    buttons = {
        s.ClearTopic: offered(console, topic, messages, "Clear …"),
        s.Redrive: offered(console, group, letters, "Redrive all …")
        or offered(console, group, letters, "Redrive letter"),
        s.ResetGroup: offered(console, group, letters, "Reset …"),
        s.StopPipeline: offered(console, pipeline, console.page.get_by_label("Text of the query"), "Stop …"),
    }
    assert buttons == {statement: may(role, least_of(statement)) for statement in buttons}


@pytest.mark.parametrize("role", RANKS[1:])
def test_tables_of_the_insert_form(console: Console, console_server: ServerThread, role: str) -> None:
    """A RESTRICTED table is for dba and above."""
    stage(console_server, role)
    console.sign_in(f"a_{role}", PASSWORD, "topics/app.work?view=insert")
    form = console.page.get_by_role("region", name="Insert a row")
    expect(form.get_by_role("button", name="Insert")).to_be_visible()
    assert (form.get_by_label("Table").count() > 0) == may(role, "dba")
