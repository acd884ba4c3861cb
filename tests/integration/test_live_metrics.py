"""What is counted of live queries, number by number: two readers of one query are told once each, of one encoding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from live_client import LiveClient
from server_fixture import ServerThread

from tablecast.engine.live import LiveHub, LiveSubscription, Told
from tablecast.errors import TablecastError
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.sql.plan_live import plan_live

ALL = "SELECT id, n FROM app.counted"
COUNTED = (
    "deliveries_total", "encodings_total", "evaluations_total", "evaluation_seconds_total", "behind_commits", "groups",
    "subscriptions",
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql("CREATE NAMESPACE app; CREATE TABLE app.counted (id INT PRIMARY KEY, n INT)")
        yield running


def scraped(server: ServerThread) -> dict[str, float]:
    lines = [line for line in server.get("/metrics").body.decode().splitlines() if not line.startswith("#")]
    values = dict(line.rsplit(" ", 1) for line in lines)
    return {name: float(values[f"tablecast_live_{name}"]) for name in COUNTED}


def settled(server: ServerThread) -> None:
    asyncio.run_coroutine_threadsafe(server.hub.settled(), server.loop).result()


def test_two_readers_of_one_query_are_two_deliveries_of_one_encoding(server: ServerThread) -> None:
    with LiveClient(server) as one, LiveClient(server) as other:
        mirrors = [client.subscribe(1, ALL) for client in (one, other)]
        before = scraped(server)
        assert (before["groups"], before["subscriptions"]) == (1, 2)
        server.sql("INSERT INTO app.counted VALUES (1, 10)")
        for client, mirror in zip((one, other), mirrors, strict=True):
            client.until(1, mirror)
        settled(server)
        after = scraped(server)
    told = {name: after[name] - before[name] for name in COUNTED}
    assert told["deliveries_total"] == 2
    assert told["encodings_total"] == 1
    assert told["evaluations_total"] == 1
    assert told["evaluation_seconds_total"] > 0
    assert after["behind_commits"] == 0


def test_another_form_is_another_encoding_and_another_query_another_evaluation(server: ServerThread) -> None:
    with LiveClient(server) as text, LiveClient(server, packed=True) as packed, LiveClient(server) as narrow:
        mirrors = [text.subscribe(1, ALL), packed.subscribe(1, ALL), narrow.subscribe(1, f"{ALL} WHERE n > 5")]
        before = scraped(server)
        server.sql("INSERT INTO app.counted VALUES (1, 10)")
        for client, mirror in zip((text, packed, narrow), mirrors, strict=True):
            client.until(1, mirror)
        server.sql("INSERT INTO app.counted VALUES (2, 1)")  # judged for both queries, and told to one of them
        for client, mirror in ((text, mirrors[0]), (packed, mirrors[1])):
            client.until(2, mirror)
        settled(server)
        after = scraped(server)
    told = {name: after[name] - before[name] for name in COUNTED}
    assert told["deliveries_total"] == 3 + 2
    assert told["encodings_total"] == 3 + 2
    assert told["evaluations_total"] == 2 + 2


class Looks:
    """A subscriber that looks at the numbers while it is told."""

    def __init__(self, server: ServerThread) -> None:
        self._server = server
        self.behind: list[float] = []

    async def subscribe(self, hub: LiveHub) -> None:
        self.subscription = await hub.open(plan_live(hub.engine.catalog, SYSTEM_ACTOR, ALL, ()), self)
        await self.subscription.rows(10)
        await self.subscription.go_live()

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        samples = self._server.db.engine.process.metrics()
        self.behind += [sample.value for sample in samples if sample.name == "tablecast_live_behind_commits"]

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        raise error

    def must_resume(self, subscription: LiveSubscription) -> None:
        raise AssertionError("it was told all of it")


def test_a_commit_that_is_being_told_is_one_that_they_are_behind(server: ServerThread) -> None:
    looks, hub = Looks(server), server.hub
    asyncio.run_coroutine_threadsafe(looks.subscribe(hub), server.loop).result()
    server.sql("INSERT INTO app.counted VALUES (1, 10)")
    settled(server)
    assert looks.behind == [1.0]
    assert scraped(server)["behind_commits"] == 0
    server.loop.call_soon_threadsafe(hub.close, looks.subscription)
