"""The link against a real broker: sessions kept, nothing acknowledged by mistake, refusals told apart."""

from __future__ import annotations

import asyncio
import functools
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mqtt_broker import Broker, program, running
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from tablecast.core.publishing import NOT_AUTHORISED
from tablecast.edge.address import BrokerAddress, check_prefix, parse_address
from tablecast.edge.base import OFFLINE, ONLINE, Delivery, Limits, Outfit, Publication, Subscription
from tablecast.edge.link import MAX_PACKET_BYTES, MqttLink
from tablecast.errors import InvalidRequest, PermissionDenied, TablecastError, Unauthenticated, Unreachable

PATIENCE_SECONDS = 60
SUCCESS = 0


def on_a_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class User:
    """Keeps what the link says, in order."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def connected(self, limits: Limits) -> None:
        self.said.put_nowait(("connected", limits))

    def disconnected(self, error: TablecastError) -> None:
        self.said.put_nowait(("disconnected", error))

    def refused(self, error: TablecastError) -> None:
        self.said.put_nowait(("refused", error))

    def delivered(self, delivery: Delivery) -> None:
        self.said.put_nowait(("delivered", delivery))

    def acknowledged(self, token: int, reason: int) -> None:
        self.said.put_nowait(("acknowledged", (token, reason)))

    async def next(self, kind: str) -> Any:
        """The next of a kind; others are passed over."""
        while True:
            said, what = await asyncio.wait_for(self.said.get(), PATIENCE_SECONDS)
            if said == kind:
                return what


def outfit(name: str, *topics: str, no_local: bool = False) -> Outfit:
    return Outfit(name, tuple(Subscription(topic, no_local) for topic in topics), f"here/{name}")


@asynccontextmanager
async def linked(
    broker: Broker | BrokerAddress, name: str, *topics: str, no_local: bool = False, ca_file: str = ""
) -> AsyncIterator[tuple[MqttLink, User]]:
    address = parse_address(broker.url) if isinstance(broker, Broker) else broker
    link = MqttLink(
        address, outfit(name, *topics, no_local=no_local), asyncio.get_running_loop(), lambda: 0.0, ca_file=ca_file
    )
    user = User()
    link.open(user)
    try:
        yield link, user
    finally:
        link.close()


async def listening(link: MqttLink, user: User) -> None:
    """Connected, and its subscriptions hold: the broker answers what was sent after them."""
    await user.next("connected")
    link.publish(Publication("t/ready", b""), token=10**6)
    await user.next("acknowledged")


def fields_of_connect(packet: bytes) -> dict[str, Any]:
    """The variable header of a CONNECT of MQTT 5 (3.1.2), read byte by byte."""
    assert packet[0] == 0x10, "a CONNECT"
    rest, at = variable_integer(packet, 1)
    assert len(packet) == at + rest, "and nothing else"
    assert packet[at : at + 7] == b"\x00\x04MQTT\x05"
    found: dict[str, Any] = {"flags": packet[at + 7], "keep alive": int.from_bytes(packet[at + 8 : at + 10], "big")}
    length, at = variable_integer(packet, at + 10)
    end = at + length
    while at < end:
        name, size = PROPERTIES[packet[at]]
        found[name] = int.from_bytes(packet[at + 1 : at + 1 + size], "big")
        at += 1 + size
    size = int.from_bytes(packet[end : end + 2], "big")
    return found | {"client id": packet[end + 2 : end + 2 + size].decode()}


PROPERTIES = {
    0x11: ("session expiry interval", 4),
    0x21: ("receive maximum", 2),
    0x27: ("maximum packet size", 4),
}


def variable_integer(packet: bytes, at: int) -> tuple[int, int]:
    """Its value, and where it ends."""
    value = shift = 0
    while True:
        value |= (packet[at] & 0x7F) << shift
        shift += 7
        at += 1
        if packet[at - 1] < 0x80:
            return value, at


CLEAN_START, WILL, WILL_QOS_1, WILL_RETAIN = 0x02, 0x04, 0x08, 0x20


@on_a_loop
async def test_what_a_node_says_when_it_connects(tmp_path: Path) -> None:
    """As a broker hears it: the session is kept for a day, and only so much comes without an acknowledgement."""
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(2)
        assert head[1] < 0x80, "a short packet"
        heard.set_result(head + await reader.readexactly(head[1]))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with linked(parse_address(f"mqtt://127.0.0.1:{port}"), "tablecast-till"):
            said = fields_of_connect(await asyncio.wait_for(heard, PATIENCE_SECONDS))
    assert said == {
        "flags": WILL | WILL_QOS_1 | WILL_RETAIN,
        "keep alive": 30,
        "session expiry interval": 86_400,
        "receive maximum": 1_000,
        "maximum packet size": 524_288,
        "client id": "tablecast-till",
    }
    assert not said["flags"] & CLEAN_START


@on_a_loop
async def test_messages_arrive_with_their_properties_and_are_acknowledged(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with linked(broker, "a") as (a, said_to_a), linked(broker, "b", "t/events") as (b, said_to_b):
            await said_to_a.next("connected")
            await listening(b, said_to_b)
            a.publish(Publication("t/events", b"\x00\xff", "t/replies", b"\x01\x02", 30), token=7)
            assert await said_to_a.next("acknowledged") == (7, SUCCESS)
            got = await said_to_b.next("delivered")
            assert (got.topic, got.payload, got.response_topic, got.correlation) == (
                "t/events", b"\x00\xff", "t/replies", b"\x01\x02",
            )  # fmt: skip
            b.acknowledge(got)


@on_a_loop
async def test_what_was_not_acknowledged_comes_again_and_what_was_does_not(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with linked(broker, "a") as (a, said_to_a):
            await said_to_a.next("connected")
            async with linked(broker, "b", "t/events") as (b, said_to_b):
                await listening(b, said_to_b)
                for token, payload in enumerate((b"one", b"two")):
                    a.publish(Publication("t/events", payload), token)
                first, second = await said_to_b.next("delivered"), await said_to_b.next("delivered")
                assert (first.payload, second.payload) == (b"one", b"two")
                b.acknowledge(first)
            async with linked(broker, "b", "t/events") as (_, said_to_b):
                assert (await said_to_b.next("delivered")).payload == b"two"


@on_a_loop
async def test_an_acknowledgement_of_an_earlier_connection_reaches_no_other_message(tmp_path: Path) -> None:
    """The broker numbers messages anew: the late one would acknowledge a message that nobody has seen."""
    with running(tmp_path) as broker:
        async with linked(broker, "a") as (a, said_to_a), linked(broker, "b", "t/events") as (b, said_to_b):
            await said_to_a.next("connected")
            await listening(b, said_to_b)
            a.publish(Publication("t/events", b"one"))
            late = await said_to_b.next("delivered")
            broker.stop()
            await said_to_b.next("disconnected")
            broker.start()
            await said_to_b.next("connected")
            again = await said_to_b.next("delivered")
            assert again.payload == b"one"
            b.acknowledge(late)
            assert late.connection != again.connection
            broker.stop()
            broker.start()
            assert (await said_to_b.next("delivered")).payload == b"one", "the late acknowledgement was not sent"


@on_a_loop
async def test_a_link_comes_back_when_its_broker_does(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    async with linked(broker, "a") as (_, said):
        error = await said.next("disconnected")
        assert isinstance(error, Unreachable)
        broker.start()
        try:
            await said.next("connected")
            broker.kill()
            assert isinstance(await said.next("disconnected"), Unreachable)
            broker.start()
            await said.next("connected")
        finally:
            broker.kill()


@on_a_loop
async def test_a_node_does_not_hear_itself(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with (
            linked(broker, "a", "t/events", no_local=True) as (a, said_to_a),
            linked(broker, "b", "t/events") as (b, said_to_b),
        ):
            await listening(a, said_to_a)
            await listening(b, said_to_b)
            a.publish(Publication("t/events", b"mine"))
            assert (await said_to_b.next("delivered")).payload == b"mine"
            b.publish(Publication("t/events", b"yours"))
            assert (await said_to_a.next("delivered")).payload == b"yours"


@on_a_loop
async def test_presence_is_told_by_the_node_and_by_the_broker_when_it_breaks_off(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        async with linked(broker, "watcher", "here/a") as (_, seen):
            await seen.next("connected")
            async with linked(broker, "a") as (_, said):
                await said.next("connected")
                assert (await seen.next("delivered")).payload == ONLINE
            assert (await seen.next("delivered")).payload == OFFLINE
            async with linked(broker, "a") as (link, said):
                assert (await seen.next("delivered")).payload == ONLINE
                wire = link._client.socket()
                assert isinstance(wire, socket.socket)
                wire.shutdown(socket.SHUT_RDWR)  # as a cut cable: nobody says farewell
                assert isinstance(await said.next("disconnected"), Unreachable)
                assert (await seen.next("delivered")).payload == OFFLINE
                assert (await seen.next("delivered")).payload == ONLINE, "it came back by itself"


@on_a_loop
async def test_more_publications_than_the_broker_takes_at_a_time_keep_their_order(tmp_path: Path) -> None:
    with running(tmp_path, "max_inflight_messages 5") as broker:
        async with linked(broker, "a") as (a, said_to_a), linked(broker, "b", "t/events") as (b, said_to_b):
            await said_to_a.next("connected")
            await listening(b, said_to_b)
            for token in range(300):
                a.publish(Publication("t/events", str(token).encode()), token)
            assert [await said_to_a.next("acknowledged") for _ in range(300)] == [(n, SUCCESS) for n in range(300)]
            for token in range(300):
                got = await said_to_b.next("delivered")
                assert got.payload == str(token).encode()
                b.acknowledge(got)


@on_a_loop
async def test_the_broker_says_how_large_a_packet_may_be(tmp_path: Path) -> None:
    with running(tmp_path, "max_packet_size 2000") as broker:
        async with linked(broker, "a") as (_, said):
            assert await said.next("connected") == Limits(2000)
    assert MAX_PACKET_BYTES > 300 * 1024


def secured(folder: Path) -> tuple[str, ...]:
    """ann may do all, bob nothing but say where he is."""
    subprocess.run([program("mosquitto_passwd"), "-b", "-c", folder / "users", "ann", "p/w@1"], check=True)
    subprocess.run([program("mosquitto_passwd"), "-b", folder / "users", "bob", "two"], check=True)
    (folder / "rights").write_text("user ann\ntopic readwrite #\nuser bob\ntopic write here/bob\n")
    (folder / "rights").chmod(0o600)
    return f"password_file {folder}/users", f"acl_file {folder}/rights"


@on_a_loop
async def test_credentials_and_rights(tmp_path: Path) -> None:
    with running(tmp_path, *secured(tmp_path), anonymous=False) as broker:
        ann = parse_address(f"mqtt://ann:p%2Fw%401@127.0.0.1:{broker.port}")
        bob = parse_address(f"mqtt://bob:two@127.0.0.1:{broker.port}")
        wrong = parse_address(f"mqtt://ann:secret@127.0.0.1:{broker.port}")
        async with (
            linked(ann, "ann", "t/events") as (_, said_to_ann),
            linked(bob, "bob", "t/events") as (b, said_to_bob),
        ):
            await said_to_ann.next("connected")
            await said_to_bob.next("connected")
            b.publish(Publication("t/events", b"x"), token=1)
            assert await said_to_bob.next("acknowledged") == (1, NOT_AUTHORISED)
        async with linked(wrong, "ann") as (_, said):
            error = await said.next("disconnected")
            assert isinstance(error, Unauthenticated | PermissionDenied)
            assert "secret" not in str(error)


@on_a_loop
async def test_a_broker_that_does_not_let_us_subscribe_is_told_of(tmp_path: Path) -> None:
    """mosquitto's list of rights lets everybody subscribe and then sends nothing, so the answer is made here."""
    with running(tmp_path) as broker:
        async with linked(broker, "a", "t/events", "t/more") as (link, said):
            await said.next("connected")
            granted, denied = (ReasonCode(PacketTypes.SUBACK, identifier=code) for code in (1, NOT_AUTHORISED))
            link._on_subscribe(link._client, None, 1, [granted, denied], None)
            error = await said.next("refused")
            assert isinstance(error, PermissionDenied)
            assert "t/more (Not authorized)" in str(error)
            assert "t/events" not in str(error)


def certificates(folder: Path) -> tuple[str, ...]:
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {folder}/key.pem -out {folder}/cert.pem"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return f"certfile {folder}/cert.pem", f"keyfile {folder}/key.pem"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # paho leaves a refused socket to its end
@on_a_loop
async def test_tls_with_a_certificate_of_our_own(tmp_path: Path) -> None:
    with running(tmp_path, *certificates(tmp_path)) as broker:
        address = parse_address(f"mqtts://127.0.0.1:{broker.port}")
        async with linked(address, "a", "t/events", ca_file=f"{tmp_path}/cert.pem") as (a, said):
            await said.next("connected")
            a.publish(Publication("t/events", bytes(250_000)), 1)
            assert len((await said.next("delivered")).payload) == 250_000
        async with linked(address, "a") as (_, said):
            error = await said.next("disconnected")
            assert isinstance(error, Unreachable)
            assert "certificate" in str(error)
        with pytest.raises(InvalidRequest, match="cannot be read"):
            async with linked(address, "a", ca_file=f"{tmp_path}/none.pem"):
                pass


def test_addresses() -> None:
    assert parse_address("mqtt://host") == BrokerAddress("host", 1883, False)
    assert parse_address("mqtts://[::1]") == BrokerAddress("::1", 8883, True)
    found = parse_address("mqtt://ann:p%40ss@host:99")
    assert (found.user, found.password, str(found)) == ("ann", "p@ss", "mqtt://host:99")
    assert "p@ss" not in repr(found)
    for wrong in ("host:1883", "http://host", "mqtt://", "mqtt://host/topic", "mqtt://host:0x1", "mqtt://h?a=b"):
        with pytest.raises(InvalidRequest, match="broker"):
            parse_address(wrong)
    for wrong in ("", "a//b", "/a", "a/+", "#", "$SYS", "x" * 129):
        with pytest.raises(InvalidRequest, match="prefix"):
            check_prefix(wrong)
    assert check_prefix("site/7") == "site/7"
