"""Topics in the console: the picture, the messages by place and time, the tail, and the form that inserts a row."""

from __future__ import annotations

import re

from console_stage import Console
from playwright.sync_api import Locator, expect
from server_fixture import ServerThread

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), gift BOOLEAN, note JSON,
                         at TIMESTAMP DEFAULT NOW());
CREATE TOPIC app.order_events PARTITIONS 2 WITH (max_deliveries = 3, dead_letter = 'app.dead');
ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY WHERE amount > 10 PARTITION BY customer WITH (payload = 'diff');
"""
CONSUME = {"topic": "app.order_events", "group_id": "billing", "start": {"type": "Earliest"}, "timeout_seconds": 0}


def row(console: Console, grid: str, text: str | re.Pattern[str]) -> Locator:
    return console.page.get_by_role("grid", name=grid, exact=True).get_by_role("row").filter(has_text=text)


def follow_link(console: Console, name: str) -> None:
    console.page.get_by_role("link", name=name, exact=True).click()


def test_no_topics_say_what_to_type(console: Console) -> None:
    console.sign_in(route="topics")
    expect(console.page.get_by_text("No topics yet")).to_be_visible()
    console.looks("topics-empty")
    follow_link(console, "Open in SQL")
    console.page.get_by_role("button", name="Run").click()
    expect(console.page.get_by_role("region", name="Result 4")).to_be_visible()
    console.go("Topics")
    expect(row(console, "Topics", "app.order_events")).to_be_visible()
    console.looks("topics")
    console.page.keyboard.press("/")
    console.page.keyboard.type("nothing like it")
    expect(console.page.get_by_text("No topic has a name like that")).to_be_visible()


def test_a_row_inserted_with_the_form_arrives_in_the_tail(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console.sign_in(route="topics/app.order_events?view=tail")
    expect(console.page.get_by_text("Waiting for messages")).to_be_visible()
    other = Console(console.page.context.new_page(), console_server)  # a tab beside it
    other.sign_in(route="topics/app.order_events?view=insert")
    form = other.page.get_by_role("region", name="Insert a row")
    form.get_by_label("id").fill("7")
    form.get_by_label("customer").fill("ann")
    form.get_by_label("amount").fill("12.5")
    form.get_by_label("gift").select_option("true")
    form.get_by_label("note").fill('{"long": 9007199254740993}')
    expect(form.get_by_label("The statement")).to_contain_text('INSERT INTO "app"."orders" ("id", "customer"')
    form.get_by_role("button", name="Insert").click()
    came = form.get_by_role("status")
    expect(came).to_contain_text("became 1 message")
    expect(came.get_by_label("Payload")).to_contain_text('"long": 9007199254740993')  # not rounded
    other.looks("topic-insert")
    assert other.complaints == []
    expect(row(console, "Tail", '["7"]')).to_contain_text("insert")


def test_the_form_says_when_a_row_becomes_no_message(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console.sign_in(route="topics/app.order_events?view=insert")
    form = console.page.get_by_role("region", name="Insert a row")
    form.get_by_label("id").fill("1")
    form.get_by_label("customer").fill("bob")
    form.get_by_label("amount").fill("2")
    form.get_by_role("button", name="Insert").click()
    expect(form).to_contain_text("no message came of it")
    expect(form).to_contain_text("The filter did not match: amount > 10")
    form.get_by_label("amount").fill("much")
    form.get_by_role("button", name="Insert").click()
    expect(form.get_by_role("alert")).to_contain_text("type_mismatch")
    assert console_server.sql("SELECT count(*) AS n FROM app.orders")[0]["rows"] == [["1"]]


HIDE = """(state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
POLLS = """const polls = (window.polls = []), send = window.fetch;
window.fetch = (to, init) => {
  if (String(to).endsWith("/topics/consume")) polls.push(init.signal);
  return send(to, init);
};"""
OPEN_WHEN_PAUSED = """() => {
  const pace = document.querySelector("[data-testid=tail-pace]");
  window.open_when_paused = new Promise((resolve) => {
    const look = () => pace.textContent.includes("paused") && resolve(polls.filter((poll) => !poll.aborted).length);
    new MutationObserver(look).observe(pace, { childList: true, characterData: true, subtree: true });
  });
}"""


def test_the_tail_stands_still_when_nobody_sees_it(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console.page.add_init_script(POLLS)
    console.sign_in(route="topics/app.order_events?view=tail")
    pace = console.page.get_by_test_id("tail-pace")
    expect(pace).to_contain_text("following")
    console.page.wait_for_function("polls.filter((poll) => !poll.aborted).length === 2")  # a partition each
    console.page.evaluate(OPEN_WHEN_PAUSED)
    console.page.evaluate(HIDE, "hidden")
    assert console.page.evaluate("open_when_paused") == 0  # what it says is so from the moment that it says it
    expect(pace).to_contain_text("paused")
    console_server.sql("INSERT INTO app.orders (id, customer, amount) VALUES (1, 'ann', 20)")
    expect(console.page.get_by_text("1 message", exact=True)).to_be_visible()  # the picture goes on; the tail does not
    expect(row(console, "Tail", '["1"]')).to_have_count(0)
    console.page.evaluate(HIDE, "visible")
    expect(row(console, "Tail", '["1"]')).to_be_visible()


def test_a_fast_topic_is_sampled_and_the_tail_says_so(console: Console, console_server: ServerThread) -> None:
    console_server.sql("""
        CREATE NAMESPACE app; CREATE TABLE app.ticks (id INT PRIMARY KEY);
        CREATE TOPIC app.fast; ALTER TOPIC app.fast ADD SOURCE app.ticks ON INSERT;
        """)
    console.sign_in(route="topics/app.fast?view=tail")
    expect(console.page.get_by_test_id("tail-pace")).to_contain_text("following")
    console_server.sql("INSERT INTO app.ticks SELECT i FROM unnest(range(0, 20000)) AS t(i)")
    expect(row(console, "Tail", re.compile(r'\["\d+"\]|\[\d+\]')).first).to_be_visible()
    console_server.sql("INSERT INTO app.ticks VALUES (20000)")
    expect(console.page.get_by_test_id("tail-pace")).to_contain_text(re.compile(r"19,[0-9]{3} messages left out"))
    console.looks("topic-tail")
    newest = console.page.get_by_role("grid", name="Tail").get_by_role("row").nth(1)
    expect(newest).to_contain_text("20,000")


def test_messages_by_offset_and_time_with_their_differences(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console_server.sql(
        "INSERT INTO app.orders (id, customer, amount) SELECT i, 'ann', 20 FROM unnest(range(0, 250)) AS t(i)"
    )
    console_server.sql('UPDATE app.orders SET amount = 30, note = \'{"why": "more"}\' WHERE id = 249')
    partition = console_server.sql(
        "SELECT partition_id FROM system.topic_partitions WHERE topic = 'app.order_events' AND messages > 0"
    )[0]["rows"][0][0]
    console.sign_in(route=f"topics/app.order_events?partition={partition}")
    grid = console.page.get_by_role("grid", name="Messages")
    expect(grid.get_by_role("row").nth(1)).to_contain_text("update")  # the newest first
    grid.get_by_role("row").nth(1).click()
    changed = console.page.get_by_role("table", name="What changed")
    expect(changed.get_by_role("row", name="amount")).to_contain_text("20.00")
    expect(changed.get_by_role("row", name="amount")).to_contain_text("30.00")
    expect(changed.get_by_role("row", name="note")).to_contain_text("NULL")
    console.looks("topic")
    console.page.get_by_role("button", name="Older").click()
    expect(console.page.get_by_text("offsets 51 to 150")).to_be_visible()
    where = console.page.get_by_role("region", name="Messages").get_by_label("From")
    where.select_option("an offset")
    console.page.get_by_role("spinbutton", name="Offset").fill("17")
    console.page.get_by_role("button", name="Show").click()
    expect(grid.get_by_role("row").nth(1)).to_contain_text("17")
    where.select_option("a time")
    console.page.get_by_label("Time").fill("2001-01-01T00:00:00")
    console.page.get_by_role("button", name="Show").click()
    expect(console.page.get_by_text("offsets 0 to 99")).to_be_visible()
    assert "from=time" in console.page.url


def test_an_offset_that_is_gone_has_a_way_on(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console_server.sql("INSERT INTO app.orders (id, customer, amount) VALUES (1, 'ann', 20)")
    console_server.sql("CLEAR TOPIC app.order_events")
    console_server.sql("INSERT INTO app.orders (id, customer, amount) VALUES (2, 'ann', 20)")
    partition = console_server.sql(
        "SELECT partition_id FROM system.topic_partitions WHERE topic = 'app.order_events' AND messages > 0"
    )[0]["rows"][0][0]
    console.sign_in(route=f"topics/app.order_events?partition={partition}&from=offset&offset=0")
    expect(console.page.get_by_role("alert")).to_contain_text("offset_out_of_range")
    console.looks("topic-out-of-range")
    follow_link(console, "From the earliest")
    expect(row(console, "Messages", '["2"]')).to_be_visible()


def test_the_picture_leads_from_tables_to_groups(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console_server.sql("INSERT INTO app.orders (id, customer, amount) VALUES (1, 'ann', 20), (2, 'ann', 30)")
    assert console_server.post("/topics/consume", CONSUME).status == 200
    console.sign_in(route="topics/app.order_events")
    picture = console.page.get_by_role("group", name="What feeds app.order_events, and who reads it")
    expect(picture).to_contain_text("WHERE amount > 10")
    expect(picture).to_contain_text("insert, update, delete")
    console.looks("topic-picture")
    expect(picture.locator("desc")).to_have_text(
        "app.order_events gets insert, update, delete of app.orders where amount > 10 as diff. It is read by group billing."
    )
    expect(picture.get_by_role("link", name=re.compile("billing"))).to_contain_text("2 behind")
    picture.get_by_role("link", name=re.compile("billing")).click()
    expect(console.page.get_by_role("heading", name="billing", level=1)).to_be_visible()


def test_clearing_says_how_much_goes(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    console_server.sql("INSERT INTO app.orders (id, customer, amount) VALUES (1, 'ann', 20), (2, 'ann', 30)")
    console.sign_in(route="topics/app.order_events")
    console.page.get_by_role("button", name="Clear …").click()
    dialog = console.page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 messages of app.order_events are removed")
    console.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert console_server.sql("SELECT messages FROM system.topics WHERE name = 'order_events'")[0]["rows"] == [["2"]]
    console.page.get_by_role("button", name="Clear …").click()
    console.page.get_by_role("button", name="Remove 2 messages").click()
    expect(console.page.get_by_text("app.order_events is empty")).to_be_visible()
    assert console_server.sql("SELECT messages FROM system.topics WHERE name = 'order_events'")[0]["rows"] == [["0"]]
