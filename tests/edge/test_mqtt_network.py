"""The broker in memory keeps to what a real one does, as long as nothing is injected, and is the same for the same seed."""

from __future__ import annotations

from random import Random

from tablecast.edge.base import OFFLINE, ONLINE, Delivery, Limits, Outfit, Publication, Subscription
from tablecast.errors import TablecastError
from tablecast.testing.mqtt_network import Faults, MemoryLink, MqttNetwork
from tablecast.testing.virtual_time import VirtualTime

LONG_SECONDS = 200.0


class User:
    def __init__(self, *, acknowledges: bool = True) -> None:
        self.connections = 0
        self.deliveries: list[Delivery] = []
        self.answers: list[tuple[int, int]] = []
        self.link: MemoryLink
        self.acknowledges = acknowledges

    def connected(self, limits: Limits) -> None:
        self.connections += 1

    def disconnected(self, error: TablecastError) -> None:
        pass

    def refused(self, error: TablecastError) -> None:
        pass

    def delivered(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        if self.acknowledges:
            self.link.acknowledge(delivery)

    def acknowledged(self, token: int, reason: int) -> None:
        self.answers.append((token, reason))

    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.deliveries]


class World:
    def __init__(self, faults: Faults | None = None) -> None:
        self.time = VirtualTime()
        self.network = MqttNetwork(self.time, Random(1), faults)

    def join(self, name: str, *topics: str, no_local: bool = False, acknowledges: bool = True) -> User:
        user = User(acknowledges=acknowledges)
        heard = tuple(Subscription(topic, no_local) for topic in topics)
        user.link = self.network.link(Outfit(name, heard, f"here/{name}"))
        user.link.open(user)
        self.time.run_for(1)
        return user


def test_messages_arrive_in_order_and_are_answered() -> None:
    world = World()
    a, b = world.join("a"), world.join("b", "t")
    for number in range(100):
        a.link.publish(Publication("t", str(number).encode()), number)
    world.time.run_for(10)
    assert b.payloads() == [str(number).encode() for number in range(100)]
    assert a.answers == [(number, 0) for number in range(100)]


def test_what_was_not_acknowledged_comes_again_and_what_was_does_not() -> None:
    world = World()
    a, b = world.join("a"), world.join("b", "t", acknowledges=False)
    for payload in (b"one", b"two"):
        a.link.publish(Publication("t", payload))
    world.time.run_for(1)
    first, _ = b.deliveries
    b.link.acknowledge(first)
    world.time.run_for(1)
    world.network.cut("b")
    a.link.publish(Publication("t", b"three"))
    world.network.heal("b")
    world.time.run_for(LONG_SECONDS)
    assert b.connections == 2
    assert b.payloads() == [b"one", b"two", b"two", b"three"]
    b.link.acknowledge(first)
    assert b.deliveries[2].connection != first.connection


def test_a_broker_that_loses_its_sessions_forgets_and_one_that_keeps_them_does_not() -> None:
    for keeps in (True, False):
        world = World()
        a, b = world.join("a"), world.join("b", "t", acknowledges=False)
        a.link.publish(Publication("t", b"one"))
        world.time.run_for(1)
        world.network.crash(keep_sessions=keeps)
        world.time.run_for(LONG_SECONDS)
        world.network.restart()
        world.time.run_for(LONG_SECONDS)
        assert b.payloads() == [b"one"] * (2 if keeps else 1)


def test_presence_retained_and_by_will_and_nobody_hears_itself() -> None:
    world = World()
    a = world.join("a", "t", no_local=True)
    watcher = world.join("watcher", "here/+")
    assert b"online" == ONLINE in watcher.payloads()
    a.link.publish(Publication("t", b"mine"))
    a.link.close()
    world.time.run_for(1)
    assert watcher.payloads()[-1] == OFFLINE
    assert a.deliveries == []


def test_a_link_that_was_closed_hears_nothing_any_more() -> None:
    world = World()
    a, b = world.join("a"), world.join("b", "t")
    a.link.publish(Publication("t", b"on its way"))
    while not world.network.bytes.get("t"):
        world.time.run_for(0.001)
    b.link.close()
    world.time.run_for(LONG_SECONDS)
    assert b.deliveries == []


def test_messages_expire() -> None:
    world = World()
    a, b = world.join("a"), world.join("b", "t")
    world.network.cut("b")
    a.link.publish(Publication("t", b"short", expires_seconds=1))
    a.link.publish(Publication("t", b"long", expires_seconds=10_000))
    world.time.run_for(LONG_SECONDS)
    world.network.heal("b")
    world.time.run_for(LONG_SECONDS)
    assert b.payloads() == [b"long"]


def test_faults_lose_double_and_disorder() -> None:
    def run() -> tuple[list[bytes], int]:
        world = World(Faults(duplicate=0.2, reorder=0.2, lose=0.2))
        a, b = world.join("a"), world.join("b", "t")
        for number in range(200):
            a.link.publish(Publication("t", str(number).encode()))
        world.time.run_for(LONG_SECONDS)
        return b.payloads(), world.network.sent

    found, sent = run()
    assert 0 < len(set(found)) < 200, "some are lost"
    assert len(set(found)) < len(found), "some came twice"
    assert found != sorted(found, key=int)
    assert (found, sent) == run(), "the same seed, the same run"


def test_virtual_time_runs_what_is_due_in_order() -> None:
    time = VirtualTime()
    done: list[tuple[float, str]] = []
    time.call_later(2, lambda: done.append((time.time(), "late")))
    time.call_later(1, lambda: time.call_later(0.5, lambda: done.append((time.time(), "chained"))))
    time.call_later(1.5, done.append, (1.5, "registered later"))
    time.call_later(1, lambda: done.append((0, "cancelled"))).cancel()
    time.run_for(1.9)
    assert done == [(1.5, "registered later"), (1.5, "chained")]
    time.run_for(1)
    assert done[-1] == (2, "late")
    assert time.time() == 2.9
