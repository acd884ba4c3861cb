"""MQTT 5 on an asyncio loop. The only module that knows paho.

paho keeps the protocol, the loop keeps the sockets: no thread of paho's, so publishing, acknowledging and applying take
turns instead of fighting for the interpreter lock. What the link adds:

- it connects again by itself, after 1 to 32 s, to the session that the broker kept (clean start off, one day);
- messages are acknowledged by hand (`acknowledge`), once they are durable, and never those of an earlier connection:
  numbers are used again, and the acknowledgement would reach a message that nobody has looked at;
- what the broker had not acknowledged when a connection broke is dropped here. The outbox still has it, and reading it
  again is one path for a lost connection and for a lost process;
- the broker's limits are kept to: how many publications it takes at a time, how large they may be.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tablecast.core.backoff import Backoff, Chance
from tablecast.edge.address import BrokerAddress
from tablecast.edge.base import OFFLINE, ONLINE, RECEIVE_MAXIMUM, Delivery, Limits, LinkUser, Outfit, Publication
from tablecast.errors import InvalidRequest, PermissionDenied, TablecastError, Unauthenticated, Unreachable

SESSION_EXPIRY_SECONDS = 86_400  # how long a broker keeps what an absent node has not seen
KEEPALIVE_SECONDS = 30  # a broken link is noticed within this time and a half
CONNECT_SECONDS = 5.0  # for the connection to open; the loop waits meanwhile
TICK_SECONDS = 1.0  # how often paho looks after its keep-alive
MAX_PACKET_BYTES = 512 * 2**10  # that a broker may send us: an event has at most 300 KiB
DEFAULT_BROKER_IN_FLIGHT = 65_535  # what MQTT 5 means by a broker that states no receive maximum
PACKETS_PER_TURN = 256  # read before others on the loop have a turn
FAREWELL_WRITES = 100  # attempts to write what is left at `close`

_log = logging.getLogger("tablecast.edge")


class MqttLink:
    """See `edge.base.Link` for the contract."""

    def __init__(
        self,
        address: BrokerAddress,
        outfit: Outfit,
        loop: asyncio.AbstractEventLoop,
        chance: Chance,
        *,
        ca_file: str = "",
    ) -> None:
        self._address = address
        self._outfit = outfit
        self._loop = loop
        self._backoff = Backoff(chance)
        self._user: LinkUser
        self._client = _client(address, outfit, ca_file)
        self._attach()
        self._connection = 0
        self._progress = 0  # packets handled: tells whether another read is worth trying
        self._queue: deque[tuple[Publication, int | None]] = deque()
        self._in_flight: dict[int, int | None] = {}  # by paho's numbers
        self._quota = 0
        self._online = False
        self._closed = False
        self._refusal: TablecastError | None = None
        self._timers: set[asyncio.TimerHandle] = set()

    # --- Link ---

    def open(self, user: LinkUser) -> None:
        self._user = user
        self._loop.call_soon(self._connect)
        self._later(TICK_SECONDS, self._tick)

    def publish(self, publication: Publication, token: int | None = None) -> None:
        if not self._online:
            return
        self._queue.append((publication, token))
        self._send()

    def acknowledge(self, delivery: Delivery) -> None:
        if self._online and delivery.connection == self._connection:
            self._client.ack(delivery.number, 1)

    def close(self) -> None:
        """Says farewell, as far as the socket takes it at once, so that peers know without waiting for the broker."""
        if self._closed:
            return
        self.publish(Publication(self._outfit.presence_topic, OFFLINE, retain=True))
        self._closed = True
        self._client.disconnect()
        for _ in range(FAREWELL_WRITES):
            if self._client.loop_write() is not MQTTErrorCode.MQTT_ERR_SUCCESS or not self._client.want_write():
                break
        for timer in self._timers:
            timer.cancel()
        self._client._sock_close()

    def _send(self) -> None:
        """As many as the broker takes at a time. (paho's own bound cannot follow what the broker says.)"""
        while self._queue and len(self._in_flight) < self._quota:
            publication, token = self._queue.popleft()
            info = self._client.publish(
                publication.topic,
                publication.payload,
                qos=1,
                retain=publication.retain,
                properties=_properties(publication),
            )
            self._in_flight[info.mid] = token

    # --- connecting ---

    def _connect(self) -> None:
        if self._closed:
            return
        self._client.drop_out_messages()
        self._queue.clear()
        self._in_flight.clear()
        self._refusal = None
        self._connection += 1
        try:
            self._client.connect(
                self._address.host,
                self._address.port,
                KEEPALIVE_SECONDS,
                clean_start=False,
                properties=_connect_properties(),
            )
        except (OSError, ValueError) as error:  # ssl errors are both
            self._failed(Unreachable(f"the broker {self._address} cannot be reached: {error}"))

    def _failed(self, error: TablecastError) -> None:
        self._online = False
        if not self._closed:
            self._later(self._backoff.next(), self._connect)
            self._user.disconnected(error)

    def _on_connect(
        self, client: Client, userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._progress += 1
        if reason.is_failure:
            self._refusal = _refusal(self._address, reason)
            return  # the broker closes, and `_on_disconnect` follows
        self._online = True
        self._backoff.reset()
        self._quota = getattr(properties, "ReceiveMaximum", DEFAULT_BROKER_IN_FLIGHT)
        self._subscribe()
        self.publish(Publication(self._outfit.presence_topic, ONLINE, retain=True))
        self._user.connected(Limits(getattr(properties, "MaximumPacketSize", None)))

    def _on_disconnect(
        self, client: Client, userdata: Any, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        said = reason if flags.is_disconnect_packet_from_server else "the connection was lost"
        self._failed(self._refusal or Unreachable(f"the broker {self._address} is away: {said}", reason=reason.value))

    def _subscribe(self) -> None:
        wanted = [
            (subscription.topic, SubscribeOptions(qos=1, noLocal=subscription.no_local))
            for subscription in self._outfit.subscriptions
        ]
        if wanted:
            self._client.subscribe(wanted)

    def _on_subscribe(
        self, client: Client, userdata: Any, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        self._progress += 1
        refused = [
            f"{subscription.topic} ({reason})"
            for subscription, reason in zip(self._outfit.subscriptions, reasons, strict=False)
            if reason.is_failure
        ]
        if refused:
            self._later(self._backoff.next(), self._subscribe_again, self._connection)
            self._user.refused(
                PermissionDenied(f"the broker {self._address} does not let this node subscribe to {', '.join(refused)}")
            )

    def _subscribe_again(self, connection: int) -> None:
        if self._online and connection == self._connection:
            self._subscribe()

    # --- what arrives ---

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        self._progress += 1
        properties = message.properties
        self._user.delivered(
            Delivery(
                message.topic,
                bytes(message.payload),
                getattr(properties, "ResponseTopic", None),
                getattr(properties, "CorrelationData", None),
                message.mid,
                self._connection,
            )
        )

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._progress += 1
        token = self._in_flight.pop(mid, None)
        if token is not None and self._online:
            self._user.acknowledged(token, reason.value)
        self._send()

    # --- the loop ---

    def _attach(self) -> None:
        client, loop = self._client, self._loop
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_socket_open = lambda client, userdata, sock: loop.add_reader(sock, self._read)
        client.on_socket_register_write = lambda client, userdata, sock: loop.add_writer(sock, client.loop_write)
        client.on_socket_close = self._on_socket_close
        client.on_socket_unregister_write = self._on_socket_written

    def _on_socket_close(self, client: Client, userdata: Any, sock: Any) -> None:
        self._loop.remove_reader(sock)

    def _on_socket_written(self, client: Client, userdata: Any, sock: Any) -> None:
        self._loop.remove_writer(sock)

    def _read(self) -> None:
        """All that is there: paho reads one packet a call, and each turn of the loop costs more than a packet."""
        for _ in range(PACKETS_PER_TURN):
            before = self._progress
            if self._client.loop_read() is not MQTTErrorCode.MQTT_ERR_SUCCESS or self._progress == before:
                return

    def _tick(self) -> None:
        self._client.loop_misc()
        self._later(TICK_SECONDS, self._tick)

    def _later(self, seconds: float, callback: Any, *args: Any) -> None:
        if self._closed:
            return
        self._timers = {timer for timer in self._timers if timer.when() > self._loop.time()}
        self._timers.add(self._loop.call_later(seconds, callback, *args))


# --- what paho wants to know ------------------------------------------------------------------------------------------


def _client(address: BrokerAddress, outfit: Outfit, ca_file: str) -> Client:
    client = Client(
        CallbackAPIVersion.VERSION2,
        outfit.client_id,
        protocol=MQTTProtocolVersion.MQTTv5,
        reconnect_on_failure=False,
        manual_ack=True,
    )
    client.connect_timeout = CONNECT_SECONDS
    client.max_inflight_messages_set(0)  # no bound: the link keeps the broker's
    client.will_set(outfit.presence_topic, OFFLINE, qos=1, retain=True)
    if address.user is not None:
        client.username_pw_set(address.user, address.password)
    if address.tls:
        client.tls_set_context(_tls(ca_file))
    return client


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise InvalidRequest(
            f"the certificates in {ca_file} cannot be read: {error}; a PEM file is needed", setting="mqtt_ca"
        ) from error


def _connect_properties() -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = SESSION_EXPIRY_SECONDS
    properties.ReceiveMaximum = RECEIVE_MAXIMUM
    properties.MaximumPacketSize = MAX_PACKET_BYTES
    return properties


def _properties(publication: Publication) -> Properties | None:
    _, _, response_topic, correlation, expires_seconds, _ = publication
    if response_topic is None and correlation is None and expires_seconds is None:
        return None
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if response_topic is not None:
        properties.ResponseTopic = response_topic
    if correlation is not None:
        properties.CorrelationData = correlation
    if expires_seconds is not None:
        properties.MessageExpiryInterval = expires_seconds
    return properties


_WRONG_CREDENTIALS = (0x86, 0x8C)
_NOT_LET_IN = (0x87, 0x8A)


def _refusal(address: BrokerAddress, reason: ReasonCode) -> TablecastError:
    if reason.value in _WRONG_CREDENTIALS:
        return Unauthenticated(f"the broker {address} refuses the user name or the password", reason=reason.value)
    if reason.value in _NOT_LET_IN:
        return PermissionDenied(f"the broker {address} does not let this node in: {reason}", reason=reason.value)
    return Unreachable(f"the broker {address} refuses the connection: {reason}", reason=reason.value)
