"""What a page shows comes by live queries: they are there while it is open, and it asks for nothing twice."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from console_stage import Console
from playwright.sync_api import Request
from server_fixture import PASSWORD, ServerThread

import tablecast

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY);
CREATE TABLE app.copies (id INT PRIMARY KEY);
CREATE TOPIC app.events WITH (max_deliveries = 3, dead_letter = 'app.dead');
ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT;
CREATE PIPELINE app.copying INTO app.copies AS SELECT id FROM TOPIC app.events;
INSERT INTO app.orders VALUES (1), (2);
"""
CLAIM = {"topic": "app.events", "group_id": "billing", "start": {"type": "Earliest"}, "timeout_seconds": 0}
PAGES = {
    "": "metrics topics topic_groups pipelines replication cluster live_queries",
    "topics": "topics metrics",
    "topics/app.events": "topics topic_sources topic_partitions topic_groups",
    "topics/app.events?view=tail": "topics topic_partitions",  # of the log; its messages come as any consumer's do
    "groups": "topic_groups",
    "groups/app.events/billing": "topic_groups topic_claims topics",
    "pipelines": "pipelines",
    "pipelines/app.copying": "pipelines",
    "edge": "replication",
    "jobs": "jobs loads",
    "audit": "audit_log",
}
MOVING = "SELECT name, labels, value FROM system.metrics WHERE name = 'tablecast_live_evaluation_seconds_total'"
SAMPLES = 5  # of the system tables: a page that asked again and again would have done so meanwhile


def followed(server: ServerThread) -> set[str]:
    """Tables with a live query of the console."""
    found = server.sql("SELECT table_name FROM system.live_queries WHERE query NOT LIKE '%evaluation_seconds%'")
    return {table for [table] in found[0]["rows"]}


def test_pages_follow_their_tables_and_do_not_ask_again(console: Console, console_server: ServerThread) -> None:
    console_server.sql(SETUP)
    assert console_server.post("/topics/consume", CLAIM).status == 200
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/sql"):
            asked.append(request.post_data or "")

    console.page.on("request", note)
    console.sign_in(route="sql")
    with (
        tablecast.connect(console_server.url, user="system", password=PASSWORD) as other,
        other.live(MOVING) as samples,
    ):
        for route, tables in PAGES.items():
            console.page.evaluate("document.title")  # Playwright tells what it has seen before
            asked.clear()
            console.open(route)
            wanted = {f"system.{name}" for name in tables.split()}
            next(sample for sample in samples if wanted <= followed(console_server))  # or the test takes too long
            for _ in islice(samples, SAMPLES):
                pass
            console.page.evaluate("document.title")
            assert [text for text, times in Counter(asked).items() if times > 1] == [], route
        console.open("sql")
        next(sample for sample in samples if not followed(console_server))  # nobody looks at any of it
