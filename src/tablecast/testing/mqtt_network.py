"""A broker and its links in memory, with every kind of bad luck: the twin of `edge.link`, decided by a seed.

What a broker of MQTT 5 promises for QoS 1 is kept as long as nothing is injected: per connection messages arrive in order, a
session outlives its connection, what was not acknowledged is delivered again. `Faults` says how often that is broken, and
more than a network may: delivered twice, out of order, not at all. `cut` and `crash` break links and the broker.

Times come from a `VirtualTime`, chances from one seeded `Random`: a seed is a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tablecast.core.backoff import Backoff
from tablecast.edge.base import (
    OFFLINE,
    ONLINE,
    RECEIVE_MAXIMUM,
    Delivery,
    Limits,
    LinkUser,
    Outfit,
    Publication,
)
from tablecast.errors import Unreachable
from tablecast.testing.virtual_time import VirtualTime

SUCCESS = 0x00
LATENCY_SECONDS = (0.001, 0.05)
OUT_OF_ORDER_SECONDS = (0.05, 2.0)
NOTICED_SECONDS = (0.0, 20.0)  # until a node sees that its connection is gone


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances per message."""

    duplicate: float = 0.0
    reorder: float = 0.0
    lose: float = 0.0  # the broker forgets a delivery
    lose_answer: float = 0.0  # the connection breaks just before the acknowledgement of a publication arrives


class _Message(NamedTuple):
    publication: Publication
    sender: str
    expires_at: float | None


class _Session:
    """What the broker keeps for a client, connected or not."""

    def __init__(self, outfit: Outfit) -> None:
        self.outfit = outfit
        self.waiting: deque[_Message] = deque()
        self.unacknowledged: dict[int, _Message] = {}
        self.next_number = 0
        self.link: MemoryLink | None = None

    def number(self) -> int:
        self.next_number = self.next_number % 65_535 + 1
        return self.next_number


class MqttNetwork:
    def __init__(self, time: VirtualTime, random: Random, faults: Faults | None = None) -> None:
        self.time = time
        self.random = random
        self.faults = faults or Faults()
        self.up = True
        self.sent = 0  # publications that reached the broker, and their bytes by topic
        self.bytes: dict[str, int] = {}
        self._sessions: dict[str, _Session] = {}
        self._retained: dict[str, _Message] = {}
        self._unreachable: set[str] = set()

    def link(self, outfit: Outfit) -> MemoryLink:
        return MemoryLink(self, outfit)

    # --- breaking things ---

    def crash(self, *, keep_sessions: bool) -> None:
        """The broker dies; `restart` brings it back, with what it had on disk or with nothing."""
        self.up = False
        for session in self._connected():
            self._break(session, will=False)
        if not keep_sessions:
            self._sessions.clear()
            self._retained.clear()

    def restart(self) -> None:
        self.up = True

    def cut(self, client_id: str) -> None:
        """No way between the client and the broker until `heal`."""
        self._unreachable.add(client_id)
        self._lose(client_id)

    def heal(self, client_id: str) -> None:
        self._unreachable.discard(client_id)

    def reaches(self, client_id: str) -> bool:
        return self.up and client_id not in self._unreachable

    # --- the broker ---

    def connect(self, link: MemoryLink) -> None:
        client_id = link.outfit.client_id
        session = self._sessions.get(client_id)
        if session is None:
            session = self._sessions[client_id] = _Session(link.outfit)
        elif session.link is not None:
            self._break(session, will=False)
        session.link = link
        session.waiting.extendleft(reversed(session.unacknowledged.values()))
        session.unacknowledged.clear()
        heard = {subscription.topic for subscription in link.outfit.subscriptions}
        session.waiting.extend(m for topic, m in self._retained.items() if any(_matches(t, topic) for t in heard))
        self.deliver(session)

    def disconnect(self, link: MemoryLink) -> None:
        session = self._sessions.get(link.outfit.client_id)
        if session is not None and session.link is link:
            session.link = None

    def publish(self, sender: str, publication: Publication) -> None:
        self.sent += 1
        self.bytes[publication.topic] = self.bytes.get(publication.topic, 0) + len(publication.payload)
        expires = publication.expires_seconds
        message = _Message(publication, sender, None if expires is None else self.time.time() + expires)
        if publication.retain:
            self._retained[publication.topic] = message
        for session in list(self._sessions.values()):
            if self._hears(session, message):
                session.waiting.append(message)
                self.deliver(session)

    def deliver(self, session: _Session) -> None:
        while session.link is not None and session.waiting and len(session.unacknowledged) < RECEIVE_MAXIMUM:
            message = session.waiting.popleft()
            if message.expires_at is not None and message.expires_at < self.time.time():
                continue
            if self._happens(self.faults.lose):
                continue
            number = session.number()
            session.unacknowledged[number] = message
            session.link.arriving(number, message.publication)

    def acknowledged(self, client_id: str, number: int) -> None:
        session = self._sessions.get(client_id)
        if session is not None:
            session.unacknowledged.pop(number, None)
            self.deliver(session)

    def _hears(self, session: _Session, message: _Message) -> bool:
        return any(
            _matches(subscription.topic, message.publication.topic)
            and not (subscription.no_local and message.sender == session.outfit.client_id)
            for subscription in session.outfit.subscriptions
        )

    def _connected(self) -> list[_Session]:
        return [session for session in self._sessions.values() if session.link is not None]

    def _lose(self, client_id: str) -> None:
        session = self._sessions.get(client_id)
        if session is not None and session.link is not None:
            self._break(session, will=True)

    def _break(self, session: _Session, *, will: bool) -> None:
        link, session.link = session.link, None
        assert link is not None
        link.broken()
        if will:
            self.publish(session.outfit.client_id, Publication(session.outfit.presence_topic, OFFLINE, retain=True))

    def lose_connection(self, link: MemoryLink) -> None:
        self._lose(link.outfit.client_id)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance

    # --- the way between ---

    def latency(self) -> float:
        return self.random.uniform(*LATENCY_SECONDS)

    def arrivals(self) -> Iterator[float]:
        """How late a delivery is, for each time that it arrives: nearly always once, and on time."""
        yield self.random.uniform(*OUT_OF_ORDER_SECONDS) if self._happens(self.faults.reorder) else 0.0
        if self._happens(self.faults.duplicate):
            yield self.random.uniform(*OUT_OF_ORDER_SECONDS)

    def answer_is_lost(self) -> bool:
        return self._happens(self.faults.lose_answer)


class MemoryLink:
    """See `edge.base.Link` for the contract."""

    def __init__(self, network: MqttNetwork, outfit: Outfit) -> None:
        self.outfit = outfit
        self._network = network
        self._time = network.time
        self._backoff = Backoff(network.random.random)
        self._user: LinkUser
        self._connection = 0
        self._online = False  # as the node sees it
        self._is_connected = False  # as it is
        self._closed = False
        self._upward = 0.0  # when the last packet arrives, each way: the next is not earlier
        self._downward = 0.0

    # --- Link ---

    def open(self, user: LinkUser) -> None:
        self._user = user
        self._time.call_later(self._network.latency(), self._connect)

    def publish(self, publication: Publication, token: int | None = None) -> None:
        if self._online:
            self._up(self._published, publication, token)

    def acknowledge(self, delivery: Delivery) -> None:
        if self._online and delivery.connection == self._connection:
            self._up(self._network.acknowledged, self.outfit.client_id, delivery.number)

    def close(self) -> None:
        """As a process that was killed: nobody says farewell, the broker notices."""
        self._closed = True
        self._online = False
        self._network.lose_connection(self)

    # --- packets to the broker ---

    def _up(self, callback: Callable[..., object], *args: object) -> None:
        self._upward = max(self._upward, self._time.time() + self._network.latency())
        self._time.call_later(self._upward - self._time.time(), self._at_broker, self._connection, callback, args)

    def _at_broker(self, connection: int, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        if connection == self._connection and self._is_connected:
            callback(*args)

    def _published(self, publication: Publication, token: int | None) -> None:
        self._network.publish(self.outfit.client_id, publication)
        if self._network.answer_is_lost():
            self._network.lose_connection(self)
        elif token is not None:
            self._down(0.0, self._acknowledged, token)

    # --- packets from the broker ---

    def arriving(self, number: int, publication: Publication) -> None:
        for late in self._network.arrivals():
            self._down(late, self._delivered, number, publication)

    def _down(self, late: float, callback: Callable[..., object], *args: object) -> None:
        arrives = max(self._downward, self._time.time() + self._network.latency())
        if not late:
            self._downward = arrives
        self._time.call_later(arrives + late - self._time.time(), self._at_node, self._connection, callback, args)

    def _at_node(self, connection: int, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        if connection == self._connection and self._online:
            callback(*args)

    def _acknowledged(self, token: int) -> None:
        self._user.acknowledged(token, SUCCESS)

    def _delivered(self, number: int, publication: Publication) -> None:
        self._user.delivered(
            Delivery(
                publication.topic,
                publication.payload,
                publication.response_topic,
                publication.correlation,
                number,
                self._connection,
            )
        )

    # --- connecting ---

    def _connect(self) -> None:
        if self._closed:
            return
        if not self._network.reaches(self.outfit.client_id):
            self._failed()
            return
        self._connection += 1
        self._online = self._is_connected = True
        self._upward = self._downward = self._time.time()
        self._backoff.reset()
        self._user.connected(Limits(None))
        self._network.connect(self)
        self.publish(Publication(self.outfit.presence_topic, ONLINE, retain=True))

    def broken(self) -> None:
        """Nothing passes any more; the node notices some time later."""
        self._is_connected = False
        if not self._closed:
            self._time.call_later(self._network.random.uniform(*NOTICED_SECONDS), self._noticed, self._connection)

    def _noticed(self, connection: int) -> None:
        if connection == self._connection and self._online and not self._closed:
            self._failed()

    def _failed(self) -> None:
        self._online = False
        self._time.call_later(self._backoff.next(), self._connect)
        self._user.disconnected(Unreachable("the broker is away"))


def _matches(subscribed: str, topic: str) -> bool:
    """`+` stands for one level; the nodes use no other wildcard."""
    wanted, levels = subscribed.split("/"), topic.split("/")
    return len(wanted) == len(levels) and all(w in ("+", level) for w, level in zip(wanted, levels, strict=True))
