"""A node: its publisher, its applier and its anti-entropy on one link, and which message is for whom.

    {prefix}/replication/events         the events of all nodes; a node does not hear its own
    {prefix}/replication/nodes/{node}   online or offline, retained
    {prefix}/replication/sync/{node}    comparing (see `edge.anti_entropy`)

Everything happens on one loop, one thing after the other. What carries no data of tables (presence, questions, replies) is
acknowledged at once: if it is lost, another one follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tablecast.core.backoff import Chance
from tablecast.core.publishing import DEFAULT_WINDOW_EVENTS
from tablecast.edge.address import check_prefix
from tablecast.edge.anti_entropy import DEFAULT_INTERVAL_SECONDS, AntiEntropy
from tablecast.edge.applier import Applier
from tablecast.edge.base import ONLINE, Delivery, Limits, Link, Loop, Outfit, Replica, Subscription
from tablecast.edge.publisher import DEFAULT_OUTBOX_EVENTS, Overflow, Publisher
from tablecast.edge.status import StatusBoard
from tablecast.errors import InvalidRequest, TablecastError

DEFAULT_PREFIX = "tablecast"


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    prefix: str = DEFAULT_PREFIX
    overflow: str = Overflow.COALESCE
    outbox_events: int = DEFAULT_OUTBOX_EVENTS
    window_events: int = DEFAULT_WINDOW_EVENTS
    compare_seconds: float = DEFAULT_INTERVAL_SECONDS

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        if self.overflow not in list(Overflow):
            policies = ", ".join(Overflow)
            raise InvalidRequest(
                f"there is no overflow policy {self.overflow!r}: they are {policies}", overflow=self.overflow
            )
        _check_positive(self.outbox_events, "outbox_events")
        _check_positive(self.window_events, "window_events")
        _check_positive(self.compare_seconds, "compare_seconds")


def _check_positive(value: float, name: str) -> None:
    if not value > 0:
        raise InvalidRequest(f"{name} is {value}: it must be more than 0", setting=name)


class Topics:
    """Where the nodes of one prefix speak."""

    def __init__(self, prefix: str, node_id: str) -> None:
        base = f"{prefix}/replication"
        self.events = f"{base}/events"
        self.sync = f"{base}/sync"
        self.questions = f"{self.sync}/{node_id}"
        self.replies = f"{self.questions}/replies"
        self.nodes = f"{base}/nodes"
        self.presence = f"{self.nodes}/{node_id}"
        self.node_of = re.compile(re.escape(f"{self.nodes}/") + "([^/]+)").fullmatch


def outfit(prefix: str, node_id: str) -> Outfit:
    """Who a node is to its broker: with another prefix it is another client."""
    topics = Topics(prefix, node_id)
    heard = (
        Subscription(topics.events, no_local=True),
        Subscription(topics.questions),
        Subscription(topics.replies),
        Subscription(f"{topics.nodes}/+"),
    )
    return Outfit(f"{prefix}-{node_id}", heard, topics.presence)


class EdgeNode:
    """Implements `LinkUser`: the link tells it what happens."""

    def __init__(
        self, replica: Replica, link: Link, loop: Loop, chance: Chance, settings: EdgeSettings, board: StatusBoard
    ) -> None:
        self._link = link
        self._board = board
        self._topics = topics = Topics(settings.prefix, replica.node_id)
        self.publisher = Publisher(
            replica,
            link,
            loop,
            board,
            topics.events,
            chance,
            window=settings.window_events,
            overflow=Overflow(settings.overflow),
            limit=settings.outbox_events,
        )
        self._applier = Applier(replica, link, loop, board, chance)
        self._anti_entropy = AntiEntropy(
            replica,
            link,
            loop,
            board,
            topics.sync,
            chance,
            lambda: self._applier.busy or replica.pending() > 0,
            interval_seconds=settings.compare_seconds,
        )
        self._for: dict[str, Callable[[Delivery], None]] = {
            topics.questions: self._anti_entropy.asked,
            topics.replies: self._anti_entropy.replied,
        }

    def start(self) -> None:
        self._link.open(self)
        self.publisher.woken()

    def connected(self, limits: Limits) -> None:
        self._board.connected()
        self.publisher.connected(limits)
        self._anti_entropy.connected(limits)

    def disconnected(self, error: TablecastError) -> None:
        # Some brokers refuse an event and then hang up: the refusal says more than the end of the connection.
        self._board.disconnected(None if self.publisher.paused else error)
        self.publisher.disconnected()
        self._applier.disconnected()
        self._anti_entropy.disconnected()

    def refused(self, error: TablecastError) -> None:
        self._board.failed(error)

    def acknowledged(self, token: int, reason: int) -> None:
        if token > 0:
            self.publisher.acknowledged(token, reason)  # it is the event's sequence number
        else:
            self._anti_entropy.acknowledged(-token, reason)  # it is the message's size

    def delivered(self, delivery: Delivery) -> None:
        if delivery.topic == self._topics.events:
            self._applier.delivered(delivery)
            return
        self._link.acknowledge(delivery)
        receive = self._for.get(delivery.topic)
        if receive is not None:
            receive(delivery)
        elif (found := self._topics.node_of(delivery.topic)) is not None:
            self._anti_entropy.presence(found[1], delivery.payload == ONLINE)
