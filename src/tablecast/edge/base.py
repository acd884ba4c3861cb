"""The contracts between a node and its surroundings: a link to a broker, a loop that keeps time, the replica behind it.

A node is one thread of control. Everything below is called on its loop and calls back on it, nothing blocks for long, and
nothing here knows whether time is real. `edge.link` speaks MQTT on an asyncio loop; `testing.mqtt_network` is its twin
with a seeded network and virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from tablecast.core.anti_entropy import Tree
from tablecast.errors import TablecastError


class Timer(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    """The part of an asyncio event loop that a node needs."""

    def time(self) -> float:
        """Seconds that only grow."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer: ...
    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer: ...
    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object: ...


# --- the link to a broker ---------------------------------------------------------------------------------------------


class Subscription(NamedTuple):
    topic: str
    no_local: bool = False  # what this node publishes itself is not sent back to it


@dataclass(frozen=True, slots=True)
class Outfit:
    """Who a node is to its broker."""

    client_id: str
    subscriptions: tuple[Subscription, ...]
    presence_topic: str  # retained: ONLINE while connected; the broker itself says OFFLINE when the link breaks


RECEIVE_MAXIMUM = 1_000  # deliveries that a broker sends without an acknowledgement: bounds what gathers in a node
ONLINE = b"online"
OFFLINE = b"offline"


class Delivery(NamedTuple):
    """A message from the broker, which keeps it until it is acknowledged."""

    topic: str
    payload: bytes
    response_topic: str | None
    correlation: bytes | None
    number: int  # the link's: which message
    connection: int  # and of which connection: an acknowledgement must not reach another message of the next one


class Publication(NamedTuple):
    topic: str
    payload: bytes
    response_topic: str | None = None
    correlation: bytes | None = None
    expires_seconds: int | None = None  # a broker does not deliver it later than that
    retain: bool = False


class Limits(NamedTuple):
    """What the broker said when it let us in."""

    max_packet_bytes: int | None


class LinkUser(Protocol):
    """Whom a link tells what happens. Calls come on the loop; none may raise."""

    def connected(self, limits: Limits) -> None: ...
    def disconnected(self, error: TablecastError) -> None:
        """The connection is gone, or could not be made. The link tries again by itself."""
        ...

    def refused(self, error: TablecastError) -> None:
        """The connection holds, and the broker does not let us subscribe."""
        ...

    def delivered(self, delivery: Delivery) -> None: ...
    def acknowledged(self, token: int, reason: int) -> None:
        """The broker's answer (a reason code of MQTT 5) to a publication. Not called once the connection is lost."""
        ...


class Link(Protocol):
    """A connection that is made again whenever it breaks, with the session that the broker kept."""

    def open(self, user: LinkUser) -> None:
        """Begins to connect, and goes on until `close`."""
        ...

    def publish(self, publication: Publication, token: int | None = None) -> None:
        """At least once, in the order of the calls, while connected; else it is lost. `token` comes back with the
        broker's answer."""
        ...

    def acknowledge(self, delivery: Delivery) -> None:
        """Tells the broker that it may forget the message. Of an earlier connection: does nothing, it comes again."""
        ...

    def close(self) -> None: ...


# --- the replica ------------------------------------------------------------------------------------------------------

Done = Callable[[Any, BaseException | None], None]  # a command's answer once it is durable, or why there is none


class OutboxEntry(Protocol):
    """An event of this node on its way out; `superseded` if its row has a newer version by now."""

    @property
    def seq(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def superseded(self) -> bool: ...


class Source(StrEnum):
    """Where events came from: a broker, which may deliver twice, or a peer that was asked for them."""

    LIVE = "live"
    SYNC = "sync"


class Replica(Protocol):
    """A node's tables and outbox, as its edge sees them. Commands call `done` on the loop, in the order of the calls."""

    @property
    def node_id(self) -> str: ...
    def sequence(self) -> int:
        """The number of the last event of this node."""
        ...

    def outbox(self, limit: int, after: int | None) -> Sequence[OutboxEntry]:
        """Events that are durable and not published, in order, beginning after a number."""
        ...

    def pending(self) -> int:
        """How many those are."""
        ...

    def published(self, seq: int, done: Done) -> None:
        """Moves the outbox's cursor past an event and all before it."""
        ...

    def tree(self) -> Tree:
        """The tables as they are now; all of it is durable."""
        ...

    def apply(self, events: Sequence[bytes], source: Source, done: Done) -> None:
        """Takes events of other nodes in; answers with an `Outcome` for each."""
        ...

    def set_aside(self, seq: int, reason: str, done: Done) -> None:
        """Puts an event of this node that no broker takes into quarantine."""
        ...

    def drop_oldest(self, count: int, done: Done) -> None:
        """Gives up the first events of the outbox; answers how many."""
        ...

    def block_above(self, limit: int | None) -> None:
        """Local writes to replicated tables are refused while so many events are pending."""
        ...
