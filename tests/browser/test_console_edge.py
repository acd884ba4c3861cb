"""Replication in the console: this node, the others, what waits, and what was set aside; with a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from console_stage import Console
from mqtt_broker import Broker
from playwright.sync_api import Locator, expect
from server_fixture import ServerThread

import tablecast

STOCK = "CREATE NAMESPACE app; CREATE TABLE app.stock (sku TEXT PRIMARY KEY, count INT) WITH (REPLICATE = TRUE)"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path)
    running.start()
    yield running
    running.stop()


def figure(console: Console, name: str) -> Locator:
    return console.page.locator(".figure").filter(has=console.page.get_by_text(name, exact=True)).locator("dd")


def test_a_server_that_does_not_replicate_says_how_it_would(console: Console) -> None:
    console.sign_in(route="edge")
    expect(console.page.get_by_text("This server does not replicate")).to_be_visible()
    expect(console.page.get_by_label("Command")).to_contain_text("--mqtt mqtt://broker.local:1883")
    expect(console.page.get_by_text("WITH (REPLICATE = TRUE)")).to_be_visible()
    console.looks("edge-empty")


def test_peers_come_and_go_and_the_outbox_fills(console: Console, console_server: ServerThread, broker: Broker) -> None:
    console_server.sql(STOCK)
    console_server.db.database.replicate(broker.url, node_id="hall-1", compare_seconds=0.5)
    console.sign_in(route="edge")
    expect(figure(console, "This node")).to_contain_text("online")
    picture = console.page.get_by_role("group", name="This node, the broker and the other nodes")
    with tablecast.open(":memory:") as till:
        till.execute(STOCK)
        till.replicate(broker.url, node_id="till-7", compare_seconds=0.5)
        expect(figure(console, "Peers online")).to_have_text("1")
        expect(picture.locator("desc")).to_have_text("hall-1 is online. Online peers: till-7.")
        expect(console.page.get_by_role("region", name="Comparing")).not_to_contain_text("never")
        console.looks("edge")
    expect(figure(console, "Peers online")).to_have_text("0")
    expect(picture).to_contain_text("till-7")  # still in the picture, as one that is away
    broker.stop()
    expect(figure(console, "This node")).to_contain_text("offline")
    console_server.sql("INSERT INTO app.stock VALUES ('apple', 1), ('pear', 2)")
    expect(figure(console, "Outbox")).to_contain_text("2")
    console.go("Overview")
    expect(console.plot("Replication")).to_have_attribute("aria-label", "Replication: outbox 2, peers 0, online 0")
    console.wait_for_ink("Replication", "plot-4")
    console.go("Edge")
    expect(console.page.get_by_role("grid", name="Replicated tables")).to_contain_text("app.stock")


def test_what_cannot_be_sent_is_set_aside_with_the_reason(
    console: Console, console_server: ServerThread, broker: Broker
) -> None:
    console_server.sql(STOCK)
    console_server.db.database.replicate(broker.url, node_id="hall-1")
    console.sign_in(route="edge")
    expect(console.page.get_by_text("Nothing is set aside")).to_be_visible()
    console_server.sql("INSERT INTO app.stock VALUES (?, 1)", ["k" * 300])
    aside = console.page.get_by_role("grid", name="Set aside").get_by_role("row").filter(has_text="kkk")
    expect(aside).to_contain_text("out")
    expect(figure(console, "Set aside")).to_have_text("1")
    console.looks("edge-aside")
