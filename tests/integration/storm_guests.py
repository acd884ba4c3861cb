"""Guests of a server that come by the thousand: the well-behaved one, and all the others.

Each is one connection: it comes, does what its name says, and goes or is shown out. They speak bytes, not a library.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

from server_fixture import Address
from websockets.frames import Frame, Opcode

SECONDS = 60.0  # for what must come
RESET = struct.pack("ii", 1, 0)  # linger for no time: closing is a reset
HELD = 20  # guests that never read and stay, at a time
SEEN_BYTES = 2_000  # kept of what came: enough for what is looked for, and little of what is large
KEY = b64encode(b"sixteen bytes ok").decode()
SMALL = "SELECT id, grp FROM app.small WHERE grp = "
LARGE = "SELECT id, body FROM app.large"


class Guest:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._seen = b""

    @classmethod
    async def connect(cls, server: Address, *, receive_buffer: int | None = None) -> Guest:
        raw = socket.socket()
        raw.setblocking(False)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(raw, (server.host, server.port))
        return cls(*await asyncio.open_connection(sock=raw))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def ask(self, server: Address, token: str) -> None:
        """For the upgrade."""
        self.send(
            f"GET /v1/ws HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )

    def say(self, **message: Any) -> None:
        self.frame(Opcode.TEXT, json.dumps(message).encode())

    def frame(self, opcode: Opcode, data: bytes) -> None:
        self.send(Frame(opcode, data).serialize(mask=True))

    async def until(self, *texts: bytes) -> int:
        """Which of them came; what came with it and before is forgotten."""
        while not (found := [number for number, text in enumerate(texts) if text in self._seen]):
            data = await self._reader.read(65_536)
            assert data, f"the server hung up: {self._seen!r}"
            self._seen = self._seen[-SEEN_BYTES:] + data
        self._seen = b""
        return found[0]

    async def shown_out(self) -> None:
        """The server hangs up."""
        try:
            while await self._reader.read(65_536):
                pass
        except ConnectionError:
            pass
        await self.gone()

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def reset(self) -> None:
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await self.gone()

    async def gone(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass


class Guests:
    """Those of one storm. Some are still there when their turn is over; `leave` ends with them."""

    def __init__(self, server: Address, token: str, seed: int) -> None:
        self._server = server
        self._token = token
        self._chance = random.Random(seed)
        self._silent: list[Guest] = []
        self._unread: list[Guest] = []

    async def come(self, kind: str) -> None:
        behave: Callable[[], Awaitable[None]] = getattr(self, f"_{kind}")
        async with asyncio.timeout(SECONDS):
            await behave()

    async def leave(self) -> None:
        """Those that are silent are not to be let go by us: the server must notice."""
        async with asyncio.timeout(SECONDS):
            for guest in self._silent:
                await guest.shown_out()
            for guest in self._unread:
                await guest.reset()

    async def _upgraded(self, **options: Any) -> Guest:
        guest = await Guest.connect(self._server, **options)
        guest.ask(self._server, self._token)
        await guest.until(b"\r\n\r\n")
        return guest

    async def _subscribed(self) -> Guest:
        guest = await self._upgraded()
        guest.say(type="subscribe", id=1, sql=SMALL + str(self._chance.randrange(10)))
        await guest.until(b'"live"')
        return guest

    # --- how they behave ---

    async def _plain(self) -> None:
        guest = await self._subscribed()
        guest.frame(Opcode.CLOSE, b"\x03\xe8")
        await guest.shown_out()

    async def _reads_much(self) -> None:
        """What the one that never reads asks for, too: with it a storm of well-behaved guests is the same storm."""
        guest = await self._upgraded()
        guest.say(type="subscribe", id=1, sql=LARGE)
        while await guest.until(b'"type":"live"', b'"last":false'):
            guest.say(type="next_batch", id=1)
        guest.frame(Opcode.CLOSE, b"\x03\xe8")
        await guest.shown_out()

    async def _streams(self) -> None:
        """A reader of server-sent events, which goes when it has what was there."""
        guest = await Guest.connect(self._server)
        query = urlencode({"sql": SMALL + str(self._chance.randrange(10))})
        guest.send(
            f"GET /v1/api/live?{query} HTTP/1.1\r\nHost: {self._server.host}:{self._server.port}\r\n"
            f"Authorization: Bearer {self._token}\r\n\r\n".encode()
        )
        await guest.until(b"event: live")
        await guest.reset()

    async def _resets(self) -> None:
        """After a subscription that it may not have waited for."""
        guest = await self._upgraded()
        for number in range(self._chance.randrange(4)):
            guest.say(type="subscribe", id=number, sql=SMALL + str(number))
        if self._chance.random() < 0.5:
            guest.say(type="ping")
            await guest.until(b'"pong"')
        await guest.reset()

    async def _breaks_off(self) -> None:
        """In the middle of its request for the upgrade, or right after."""
        guest = await Guest.connect(self._server)
        if self._chance.random() < 0.5:
            guest.send(b"GET /v1/ws HTTP/1.1\r\nHost: here\r\nUpgr")
        else:
            guest.ask(self._server, self._token)
        await guest.reset()

    async def _falls_silent(self) -> None:
        """Half open, as far as the server can tell: it answers no ping."""
        self._silent.append(await self._subscribed())

    async def _babbles(self) -> None:
        guest = await self._subscribed()
        guest.send(b"\xff" + self._chance.randbytes(self._chance.randrange(1, 300)))
        await guest.shown_out()

    async def _makes_no_sense(self) -> None:
        guest = await self._subscribed()
        guest.say(type="subscribe", nonsense=[1, {"a": None}])
        await guest.until(b'"error"')
        self._silent.append(guest)  # it does not agree to be closed, either

    async def _says_too_much(self) -> None:
        guest = await self._subscribed()
        guest.send(struct.pack("!BBQ", 0x81, 0xFF, 2**24) + b"mask" + b"x" * 100_000)
        await guest.shown_out()

    async def _never_reads(self) -> None:
        """It asks for far more than the sockets hold, several times."""
        guest = await self._upgraded(receive_buffer=4096)
        guest.stop_reading()
        for number in range(8):
            guest.say(type="subscribe", id=number, sql=LARGE)
        self._unread.append(guest)
        if len(self._unread) > HELD:
            await self._unread.pop(0).reset()


MIXED = [
    "plain", "streams", "resets", "breaks_off", "falls_silent", "babbles", "makes_no_sense", "says_too_much", "never_reads",
]  # fmt: skip
PLAIN = ["plain"] * (len(MIXED) - 2) + ["streams", "reads_much"]
