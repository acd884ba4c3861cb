"""Groups in the console: lag that falls, claims, dead letters that are sent back, and moves that say what they mean."""

from __future__ import annotations

import re

from console_stage import Console
from playwright.sync_api import Locator, WebSocketRoute, expect
from server_fixture import ServerThread

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY, what TEXT);
CREATE TOPIC app.work WITH (max_deliveries = 1, dead_letter = 'app.work_dlq');
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
INSERT INTO app.jobs VALUES (0, 'a'), (1, 'b'), (2, 'c'), (3, 'd');
"""


def consume(server: ServerThread, consumer: str = "ann", limit: int = 100) -> list[int]:
    """The offsets that the group `billing` gave."""
    wanted = {"topic": "app.work", "group_id": "billing", "consumer": consumer, "limit": limit, "timeout_seconds": 0}
    answer = server.post("/topics/consume", wanted)
    assert answer.status == 200, answer.body
    return [message["offset"] for message in answer.json()["messages"]]


def ack(server: ServerThread, **of: object) -> None:
    answer = server.post("/topics/ack", {"topic": "app.work", "group_id": "billing", "partition_id": 0, **of})
    assert answer.status == 200, answer.body


def fail_all(server: ServerThread, offsets: list[int]) -> None:
    """They become dead letters, with the next claim."""
    assert consume(server) == offsets
    ack(server, offsets=offsets, nack=True, reason="no such customer")
    assert consume(server) == []


def figure(console: Console, name: str) -> Locator:
    return console.page.locator(".figure").filter(has=console.page.get_by_text(name, exact=True)).locator("dd")


def row(console: Console, grid: str, text: str) -> Locator:
    return console.page.get_by_role("grid", name=grid, exact=True).get_by_role("row").filter(has_text=text)


def answer_dialog(console: Console, button: str) -> None:
    console.page.get_by_role("dialog").get_by_role("button", name=button).click()
    expect(console.page.get_by_role("dialog")).to_be_hidden()


def test_no_groups_say_what_to_type(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console.sign_in(route="groups")
    expect(console.page.get_by_text("No groups yet")).to_be_visible()
    expect(console.page.get_by_text("CONSUME FROM app.order_events GROUP 'billing'")).to_be_visible()
    console.looks("groups-empty")
    consume(console_server)
    expect(row(console, "Groups", "billing")).to_be_visible()
    console.looks("groups")
    row(console, "Groups", "billing").click()
    expect(console.page.get_by_role("heading", name="billing", level=1)).to_be_visible()
    console.open("groups/app.work/nobody")
    expect(console.page.get_by_text("Nobody has read app.work as nobody yet")).to_be_visible()


def test_lag_goes_down_and_claims_go_when_a_consumer_acknowledges(
    console: Console, console_server: ServerThread
) -> None:
    console_server.sql(SETUP)
    assert consume(console_server, limit=3) == [0, 1, 2]
    console.sign_in(route="groups/app.work/billing")
    expect(figure(console, "Lag")).to_contain_text("4")
    expect(row(console, "Open claims", "ann")).to_contain_text("0 to 2")
    plot = console.page.get_by_role("img", name=re.compile("^Lag over time"))
    expect(plot).to_have_attribute("aria-label", "Lag over time: lag 4, claimed 3")
    console.wait_for_ink("Lag over time", "plot-4", "plot-1")
    console.looks("group")
    ack(console_server, upto_offset=1, consumer="ann")
    expect(figure(console, "Lag")).to_contain_text("2")
    expect(row(console, "Open claims", "ann")).to_contain_text("2 to 2")
    expect(plot).to_have_attribute("aria-label", "Lag over time: lag 2, claimed 1")
    ack(console_server, upto_offset=2, consumer="ann")
    expect(console.page.get_by_text("No open claims")).to_be_visible()
    partition = console.page.get_by_role("grid", name="Partitions").get_by_role("row").nth(1)
    expect(partition.get_by_role("gridcell")).to_have_text(["0", "3", "0", "4", "1"])


def test_the_lag_over_time_is_there_again_when_one_comes_back(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    consume(console_server, limit=3)
    console.sign_in(route="groups/app.work/billing")
    console.wait_for_ink("Lag over time", "plot-4")
    console.go("Groups")
    ack(console_server, upto_offset=2, consumer="ann")
    row(console, "Groups", "billing").click()
    expect(console.plot("Lag over time")).to_have_attribute("aria-label", "Lag over time: lag 1, claimed 0")
    console.wait_for_ink("Lag over time", "plot-4", height=0.4)  # from the lag before down to that of now
    console.page.get_by_role("button", name="Sign out").click()
    console.sign_in(route="groups/app.work/billing")
    console.wait_for_ink("Lag over time", "plot-4")
    drawn = console.ink("Lag over time", "plot-4")
    assert drawn.bottom - drawn.top < 0.2, "nothing is left of what somebody else saw"


def test_a_dead_letter_is_sent_back(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    consume(console_server, limit=2)
    ack(console_server, upto_offset=1)
    console.sign_in(route="groups/app.work/billing")
    expect(console.page.get_by_text("No dead letters of this group")).to_be_visible()
    fail_all(console_server, [2, 3])
    letters = console.page.get_by_role("grid", name="Dead letters")
    expect(letters.get_by_role("row")).to_have_count(3)  # they come by themselves, under their head
    expect(letters).to_contain_text("no such customer")
    row(console, "Dead letters", "[2]").click()
    opened = console.page.get_by_role("region", name=re.compile("^Message"))
    expect(opened.get_by_label("Payload")).to_contain_text('"what": "c"')
    console.looks("group-letters")
    row(console, "Dead letters", "[2]").get_by_role("button").click()
    expect(console.page.get_by_role("dialog")).to_contain_text(
        "Message 2 of partition 0 of app.work is given to the group"
    )
    assert console.violations() == []
    answer_dialog(console, "Redrive 1 letter")
    expect(console.page.get_by_text("Sent back: 1 letter")).to_be_visible()
    expect(row(console, "Dead letters", "[2]")).to_contain_text("sent back")
    expect(figure(console, "Lag")).to_contain_text("1")
    assert consume(console_server) == [2]
    ack(console_server, upto_offset=2)
    console.page.get_by_role("button", name="Redrive all …").click()
    expect(console.page.get_by_role("dialog")).to_contain_text("1 letter to billing on app.work")
    answer_dialog(console, "Redrive 1 letter")
    expect(row(console, "Dead letters", "[3]")).to_contain_text("sent back")
    expect(console.page.get_by_role("button", name="Redrive")).to_have_count(0)  # nothing is left to send
    assert consume(console_server) == [3]  # the other was sent back before
    console.page.reload()
    expect(row(console, "Dead letters", "[2]")).to_contain_text("sent back")  # the server remembers


def test_a_reset_says_what_it_means_in_numbers(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    consume(console_server, limit=3)
    ack(console_server, upto_offset=1)
    console.sign_in(route="groups/app.work/billing")
    reset = console.page.get_by_role("region", name="Move the group")
    reset.get_by_role("button", name="Reset …").click()
    dialog = console.page.get_by_role("dialog")
    expect(dialog).to_contain_text("partition 0 from 2 to 0")
    expect(dialog).to_contain_text("2 messages will be given again")
    expect(dialog).to_contain_text("1 message in consumers' hands")
    console.shot("group-reset")
    assert console.violations() == []
    answer_dialog(console, "Cancel")
    reset.get_by_label("To").select_option("the end")
    reset.get_by_role("button", name="Reset …").click()
    expect(dialog).to_contain_text("2 messages will not be given to this group any more")
    answer_dialog(console, "Reset the group")
    expect(figure(console, "Lag")).to_contain_text("0")
    reset.get_by_label("To").select_option("an offset")
    reset.get_by_role("spinbutton", name="Offset").fill("1")
    reset.get_by_role("button", name="Reset …").click()
    expect(dialog).to_contain_text("3 messages will be given again")
    answer_dialog(console, "Reset the group")
    expect(figure(console, "Lag")).to_contain_text("3")
    reset.get_by_label("To").select_option("a time")
    reset.get_by_label("Time", exact=True).fill("2001-01-01T00:00:00")
    reset.get_by_role("button", name="Reset …").click()
    expect(dialog).to_contain_text("partition 0 from 1 to 0")
    answer_dialog(console, "Reset the group")
    expect(figure(console, "Lag")).to_contain_text("4")  # the dialog is gone before the group is moved
    assert consume(console_server, "bob") == [0, 1, 2, 3]


def test_a_reset_waits_until_its_numbers_are_known(console: Console, console_server: ServerThread) -> None:
    """Where the log begins and ends comes by a live query of its own, which is held up here."""
    held: list[tuple[WebSocketRoute, str | bytes]] = []

    def link(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def said(message: str | bytes) -> None:
            if "FROM system.topic_partitions" in str(message):
                held.append((server, message))
            else:
                server.send(message)

        socket.on_message(said)

    console_server.sql(SETUP)
    consume(console_server, limit=3)
    ack(console_server, upto_offset=1)
    console.page.route_web_socket("**/v1/ws", link)
    console.sign_in(route="groups/app.work/billing")
    expect(figure(console, "Lag")).to_contain_text("2")
    button = console.page.get_by_role("button", name="Reset …")
    expect(button).to_be_disabled()
    for server, message in held:
        server.send(message)
    button.click()
    expect(console.page.get_by_role("dialog")).to_contain_text("partition 0 from 2 to 0")


def test_a_topic_without_dead_letters_says_how_to_have_them(console: Console, console_server: ServerThread) -> None:
    console_server.sql("CREATE NAMESPACE app; CREATE TABLE app.t (id INT PRIMARY KEY); CREATE TOPIC app.plain")
    console_server.post("/topics/consume", {"topic": "app.plain", "group_id": "billing", "timeout_seconds": 0})
    console.sign_in(route="groups/app.plain/billing")
    expect(console.page.get_by_text("ALTER TOPIC app.plain SET (max_deliveries")).to_be_visible()
    console.page.get_by_role("link", name="Open in SQL").click()
    console.page.get_by_role("button", name="Run").click()
    expect(console.page.get_by_role("region", name="Result")).to_be_visible()
    console.open("groups/app.plain/billing")
    expect(console.page.get_by_text("No dead letters of this group")).to_be_visible()
