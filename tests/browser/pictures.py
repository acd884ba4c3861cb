"""Takes the pictures of the console in docs/images: a server at work, with readers that keep up and one that does not.

make pictures
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # for server_fixture
from console_stage import Console, browser
from playwright.sync_api import sync_playwright
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast import EARLIEST

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SECONDS = 75.0  # of plots
WIDTH, HEIGHT = 1280, 860
SETUP = """
CREATE NAMESPACE shop;
CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), status TEXT DEFAULT 'new');
CREATE TABLE shop.stock (item TEXT PRIMARY KEY, pieces INT);
CREATE TOPIC shop.order_events PARTITIONS 2 WITH (max_deliveries = 3, dead_letter = 'shop.order_events_dlq');
ALTER TOPIC shop.order_events ADD SOURCE shop.orders ON INSERT, UPDATE WHERE amount > 10 PARTITION BY customer WITH (payload = 'diff');
CREATE TOPIC shop.stock_events;
ALTER TOPIC shop.stock_events ADD SOURCE shop.stock ON ANY;
"""


@contextmanager
def in_turns(work: Callable[[], None], pause_seconds: float) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.wait(pause_seconds):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def shop(url: str) -> Iterator[None]:
    """Orders are made and paid; `billing` keeps up, `reports` comes by now and then."""
    db, random, made = tablecast.connect(url, user="system", password=PASSWORD), Random(7), iter(range(1, 10**9))
    db.execute_all(SETUP)
    for group in ("billing", "reports"):
        db.consume("shop.order_events", group=group, start=EARLIEST)

    def write() -> None:
        rows = [
            (next(made), random.choice(("ann", "bob", "dee", "fay")), random.randrange(500, 9_900) / 100)
            for _ in range(random.randrange(1, 12))
        ]
        db.insert("shop.orders", [dict(zip(("id", "customer", "amount"), row, strict=True)) for row in rows])
        db.execute("UPDATE shop.orders SET status = 'paid' WHERE id = ?", [rows[0][0]])
        db.execute("INSERT INTO shop.stock VALUES ('tea', 1) ON CONFLICT (item) DO UPDATE SET pieces = ?", [rows[0][0]])

    def read(group: str) -> None:
        for partition in range(2):
            found = db.consume(
                "shop.order_events", group=group, partition=partition, limit=1000, timeout_seconds=0
            ).messages
            if found:
                db.ack("shop.order_events", group, found[-1].offset, partition=partition)

    with ExitStack() as stack:
        stack.enter_context(in_turns(write, 0.02))
        stack.enter_context(in_turns(lambda: read("billing"), 0.1))
        stack.enter_context(in_turns(lambda: read("reports"), 9.0))
        yield
    db.close()


def main() -> None:
    with ServerThread() as server, sync_playwright() as playwright, browser(playwright) as running, shop(server.url):
        page = running.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light").new_page()
        console = Console(page, server)
        console.sign_in()
        time.sleep(SECONDS)
        page.screenshot(path=IMAGES / "console-overview.png")
        console.open("topics/shop.order_events")
        page.get_by_role("heading", name="shop.order_events", level=1).wait_for()
        time.sleep(3)
        page.screenshot(path=IMAGES / "console-topic.png")
        console.open("sql")
        page.emulate_media(color_scheme="dark")
        console.write("SELECT id, customer, amount, status FROM shop.orders WHERE amount > 50")
        page.get_by_role("switch", name="Live").click()
        time.sleep(3)
        page.screenshot(path=IMAGES / "console-live.png")


if __name__ == "__main__":
    main()
