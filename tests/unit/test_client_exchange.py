"""One connection of the SDK: answers in whatever pieces they come, and all the ways in which they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tablecast.client import transport as transports
from tablecast.client.exchange import BUFFER_BYTES, ConnectionLost, Exchange, by_name
from tablecast.client.transport import NoAnswer, Transport

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 201 Made\r\nTRANSFER-encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nlast: one\r\n\r\n"
)
NOTHING = b"HTTP/1.1 204 No\r\nX: y\r\n\r\n"
LONG = 1000.0  # seconds that no test waits


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def settled() -> None:
    """Everything that can go on without the outside has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


def void(_: object) -> None:
    pass


class Wire(asyncio.Transport):
    """Keeps what is written, and how reading was stopped and gone on with."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading: list[str] = []
        self.is_closed = False
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written.append(data)
        self.on_write()

    def pause_reading(self) -> None:
        self.reading.append("pause")

    def resume_reading(self) -> None:
        self.reading.append("resume")

    def close(self) -> None:
        self.is_closed = True


def connected() -> tuple[Exchange, Wire]:
    exchange, wire = Exchange(), Wire()
    exchange.connection_made(wire)
    return exchange, wire


def asked(exchange: Exchange, seconds: float = LONG, body: bytes = b"") -> asyncio.Task[bytes]:
    return asyncio.create_task(exchange.ask("POST", "/p", "h:1", {"A": "b"}, body, seconds))


def test_a_request_as_it_is_written() -> None:
    async def test() -> None:
        exchange, wire = connected()
        wire.on_write = lambda: exchange.data_received(NOTHING)
        await exchange.ask("POST", "/p", "h:1", {"A": "b", "C": "d"}, b"body", LONG)
        await exchange.ask("GET", "/q", "h:1", {}, b"", LONG)
        assert wire.written == [
            b"POST /p HTTP/1.1\r\nHost: h:1\r\nA: b\r\nC: d\r\nContent-Length: 4\r\n\r\nbody",
            b"GET /q HTTP/1.1\r\nHost: h:1\r\n\r\n",
        ]

    run(test)


# --- pieces ------------------------------------------------------------------------------------------------------

ANSWERS = {
    "plain": (PLAIN, 200, {"content-type": "a/b", "content-length": "11"}, b"hello world"),
    "chunked": (CHUNKED, 201, {"transfer-encoding": "chunked", "last": "one"}, b"hello world"),
    "nothing": (NOTHING, 204, {"x": "y"}, b""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_wherever_it_is_split(name: str) -> None:
    data, status, headers, body = ANSWERS[name]

    async def test() -> None:
        exchange, _ = connected()
        splits = [[data[:at], data[at:]] for at in range(1, len(data))]
        for pieces in [[data], [data[at : at + 1] for at in range(len(data))], *splits]:
            asking = asked(exchange)
            await settled()
            for piece in pieces:
                assert not asking.done()
                exchange.data_received(piece)
                await settled()
            assert (await asking, exchange.status, by_name(exchange.fields)) == (body, status, headers), pieces
            assert exchange.is_reusable

    run(test)


def test_of_headers_with_one_name_the_last_counts() -> None:
    assert by_name([(b"A", b"1"), (b"a", b"2"), (b"B", b"\xe9"), (b"A", b"3")]) == {"a": "3", "b": "é"}


def test_a_connection_that_the_server_ends_after_its_answer_is_not_used_again() -> None:
    async def test() -> None:
        exchange, wire = connected()
        wire.on_write = lambda: exchange.data_received(PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert await asked(exchange) == b"hello world"
        assert not exchange.is_reusable

    run(test)


def test_what_nobody_reads_yet_is_bounded_and_all_of_it_arrives() -> None:
    """An answer may come while the request is still being written: nobody takes it yet."""

    async def test() -> None:
        exchange, wire = connected()
        wire.on_write = exchange.pause_writing
        asking = asked(exchange)
        await settled()
        piece = b"x" * BUFFER_BYTES
        exchange.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (3 * BUFFER_BYTES) + piece)
        await settled()
        assert wire.reading == []
        exchange.data_received(piece)
        await settled()
        assert wire.reading == ["pause"]
        assert not asking.done()
        exchange.resume_writing()
        await settled()
        assert wire.reading == ["pause", "resume"]
        exchange.data_received(piece)
        assert await asking == piece * 3
        assert wire.reading == ["pause", "resume"]

    run(test)


# --- no answer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("came", [b"", PLAIN[:20], PLAIN[:-1]])
def test_an_answer_that_takes_too_long(came: bytes) -> None:
    async def test() -> None:
        exchange, wire = connected()
        wire.on_write = lambda: exchange.data_received(came)
        with pytest.raises(ConnectionLost, match="it took too long"):
            await asked(exchange, 0.0)
        assert not exchange.is_reusable

    run(test)


def test_a_request_that_takes_too_long_to_be_written() -> None:
    async def test() -> None:
        exchange, wire = connected()
        wire.on_write = exchange.pause_writing
        with pytest.raises(ConnectionLost, match="it took too long"):
            await asked(exchange, 0.0)
        assert not exchange.is_reusable

    run(test)


def test_an_answer_that_came_in_the_last_moment_is_one() -> None:
    async def test() -> None:
        exchange, wire = connected()
        loop = asyncio.get_running_loop()
        # Both in one round of the loop: the answer, and the end of the time, before whoever asked is awake again.
        wire.on_write = lambda: void(loop.call_soon(exchange.data_received, PLAIN))
        assert await asked(exchange, 0.0) == b"hello world"

    run(test)


def test_the_time_of_an_answer_that_came_is_over() -> None:
    async def test() -> None:
        exchange, wire = connected()
        wire.on_write = lambda: exchange.data_received(PLAIN)
        await asked(exchange, 0.0)
        await settled()
        assert exchange.is_reusable
        assert await asked(exchange) == b"hello world"

    run(test)


def test_whoever_asks_may_give_up() -> None:
    async def test() -> None:
        exchange, wire = connected()
        asking = asked(exchange, 0.0)
        await asyncio.sleep(0)
        assert wire.written
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not exchange.is_reusable

    run(test)


@pytest.mark.parametrize("came", [b"", PLAIN[:20], PLAIN[:-1], CHUNKED[:-2]])
def test_a_connection_that_ends_in_between(came: bytes) -> None:
    async def test() -> None:
        for error, said in ((None, "the server closed the connection"), (OSError("reset"), "reset")):
            exchange, wire = connected()
            wire.on_write = lambda exchange=exchange: exchange.data_received(came)  # type: ignore[misc]
            asking = asked(exchange)
            await settled()
            assert not asking.done()
            exchange.connection_lost(error)
            with pytest.raises(ConnectionLost, match=said):
                await asking
            assert not exchange.is_reusable

    run(test)


def test_an_answer_to_half_a_request_counts_though_the_connection_is_lost() -> None:
    async def test() -> None:
        exchange, wire = connected()
        wire.on_write = exchange.pause_writing
        asking = asked(exchange)
        await settled()
        exchange.data_received(PLAIN)
        await settled()
        assert not asking.done(), "the request is not written yet"
        exchange.connection_lost(OSError("broken pipe"))
        assert await asking == b"hello world"
        assert not exchange.is_reusable

    run(test)


def test_what_is_not_http() -> None:
    async def test() -> None:
        exchange, wire = connected()
        asking = asked(exchange)
        await settled()
        exchange.data_received(b"SSH-2.0-x\r\n")
        with pytest.raises(ConnectionLost, match="not HTTP"):
            await asking
        assert wire.is_closed

    run(test)


# --- connections -------------------------------------------------------------------------------------------------


class ToNobody(Transport):
    """Every connection of it is to nobody."""

    def __init__(self) -> None:
        super().__init__("http://host:1")
        self.made: list[tuple[Exchange, Wire]] = []
        self.is_reachable = True

    async def _connected(self) -> Exchange:
        if not self.is_reachable:
            raise NoAnswer("away", sent=False)
        self.made.append(connected())
        return self.made[-1][0]


def test_a_connection_is_used_again_but_not_after_a_request_without_an_answer() -> None:
    async def test() -> None:
        transport = ToNobody()

        def sending(seconds: float = LONG) -> asyncio.Task[transports.Answer]:
            return asyncio.create_task(transport.send("GET", "/", {}, b"", seconds))

        for _ in range(2):
            good = sending()
            await settled()
            transport.made[0][0].data_received(PLAIN)
            assert (await good).body == b"hello world"
        assert len(transport.made) == 1

        given_up = sending()
        await settled()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert [wire.is_closed for _, wire in transport.made] == [True]

        with pytest.raises(NoAnswer, match="it took too long") as caught:
            await sending(0.0)
        assert caught.value.sent
        assert [wire.is_closed for _, wire in transport.made] == [True, True]

        again = sending()
        await settled()
        assert len(transport.made) == 3
        transport.made[2][0].data_received(PLAIN)
        assert (await again).body == b"hello world"

    run(test)


def test_every_end_of_a_request_gives_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "CONNECTIONS", 1)

    async def test() -> None:
        transport = ToNobody()
        transport.is_reachable = False
        with pytest.raises(NoAnswer, match="away"):
            await transport.send("GET", "/", {}, b"", LONG)
        transport.is_reachable = True
        with pytest.raises(NoAnswer, match="too long"):
            await transport.send("GET", "/", {}, b"", 0.0)
        with pytest.raises(NoAnswer, match="too long"):
            async with transport.stream("GET", "/", {}, 0.0):
                pass
        first = asyncio.create_task(transport.send("GET", "/", {}, b"", LONG))
        await settled()
        second = asyncio.create_task(transport.send("GET", "/", {}, b"", LONG))
        await settled()
        assert len(transport.made) == 3, "one at a time"
        first.cancel()
        await settled()
        assert len(transport.made) == 4
        transport.made[3][0].data_received(PLAIN)
        assert (await second).status == 200

    run(test)
