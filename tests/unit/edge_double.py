"""A link and a replica that do nothing by themselves: a test sees what was asked of them, and answers when it likes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from node_double import TABLE, Node

from tablecast.edge.base import Delivery, Done, LinkUser, Publication, Source
from tablecast.testing.virtual_time import VirtualTime


class LinkDouble:
    """Keeps to the contract: an acknowledgement of an earlier connection reaches nobody."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.connection = 1
        self.acknowledged: list[Delivery] = []
        self.published: list[tuple[float, Publication]] = []

    def open(self, user: LinkUser) -> None:
        pass

    def publish(self, publication: Publication, token: int | None = None) -> None:
        self.published.append((self._time.time(), publication))

    def acknowledge(self, delivery: Delivery) -> None:
        if delivery.connection == self.connection:
            self.acknowledged.append(delivery)

    def close(self) -> None:
        pass


class Entry(NamedTuple):
    seq: int
    data: bytes
    superseded: bool = False


class Outcome(NamedTuple):
    status: str = "applied"
    ahead: bool = False


class ReplicaDouble:
    """Commands wait in `applying` and `saving` for the test to answer them; `at_once` applies without being asked."""

    def __init__(self, node_id: str = "me", node: Node | None = None, *, at_once: bool = False) -> None:
        self.node_id = node_id
        self.node = node or Node()
        self.events: list[Entry] = []
        self.applying: list[tuple[list[bytes], Done]] = []
        self.saving: list[tuple[int, Done]] = []
        self._at_once = at_once

    def sequence(self) -> int:
        return len(self.events)

    def outbox(self, limit: int, after: int | None) -> Sequence[Entry]:
        return [entry for entry in self.events if after is None or entry.seq > after][:limit]

    def pending(self) -> int:
        return len(self.events)

    def published(self, seq: int, done: Done) -> None:
        self.saving.append((seq, done))

    def tree(self) -> Node:
        return self.node

    def apply(self, events: Sequence[bytes], source: Source, done: Done) -> None:
        if not self._at_once:
            self.applying.append((list(events), done))
            return
        for data in events:
            self.node.apply(TABLE, data)
        done([Outcome() for _ in events], None)

    def set_aside(self, seq: int, reason: str, done: Done) -> None:
        done(True, None)

    def drop_oldest(self, count: int, done: Done) -> None:
        done(0, None)

    def block_above(self, limit: int | None) -> None:
        pass


def event(number: int, connection: int = 1, **more: Any) -> Delivery:
    """The delivery of a message whose number is its payload."""
    return Delivery("events", str(number).encode(), None, None, number, connection, **more)
