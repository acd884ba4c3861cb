"""A client of live queries for tests: it says what it is told to, and folds what it hears as the contract says."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self

import msgspec
from server_fixture import PASSWORD, Address, basic
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from tablecast.client.values import from_extension

SECONDS = 120.0  # to wait for what must come; it takes milliseconds
KEY = b64encode(b"sixteen bytes ok").decode()


class LiveClient:
    """`user=None` sends no credentials with the upgrade."""

    def __init__(
        self,
        server: Address,
        user: str | None = "system",
        password: str = PASSWORD,
        *,
        packed: bool = False,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        sent = dict(headers or {})
        if user is not None:
            sent.setdefault("Authorization", basic(user, password))
        self._packed = packed
        url = f"ws://{server.host}:{server.port}/v1/ws"
        self._stack = ExitStack()
        self.socket: ClientConnection = self._stack.enter_context(
            connect(
                url, additional_headers=sent, compression=None, max_size=None, close_timeout=1, proxy=None, **options
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, kind: str, **fields: Any) -> None:
        message = {"type": kind, **fields}
        self.socket.send(msgspec.msgpack.encode(message) if self._packed else json.dumps(message))

    def receive(self) -> dict[str, Any]:
        data = self.socket.recv(timeout=SECONDS)
        if isinstance(data, str):
            found = json.loads(data)
        else:
            found = msgspec.msgpack.decode(data, ext_hook=from_extension)
        assert isinstance(found, dict)
        return found

    def expect(self, kind: str) -> dict[str, Any]:
        found = self.receive()
        assert found["type"] == kind, found
        return found

    def refused(self, code: str, close: int) -> dict[str, Any]:
        """The connection ends, with this error and this close code."""
        error = self.expect("error")
        assert "id" not in error
        assert error["code"] == code, error
        assert self.closed() == close
        return error

    def closed(self) -> int:
        try:
            message = self.socket.recv(timeout=SECONDS)
        except ConnectionClosed as e:
            return 1006 if e.rcvd is None else e.rcvd.code
        raise AssertionError(f"it is still there and says {message!r}")

    def subscribe(self, name: int | str, sql: str, params: list[Any] | None = None, **options: Any) -> Mirror:
        """Until it is live."""
        mirror = Mirror(name, {"id": name, "sql": sql, "params": params or [], **options})
        self.send("subscribe", **mirror.request)
        while not mirror.is_live:
            self.feed(mirror)
        return mirror

    def resume(self, mirror: Mirror) -> None:
        mirror.is_live = False
        self.send("subscribe", **mirror.request | {"resume": mirror.seq, "history": mirror.history})
        while not mirror.is_live:
            self.feed(mirror)

    def feed(self, *mirrors: Mirror) -> dict[str, Any]:
        """The next message, told to all of them; it asks for more rows when there are."""
        message = self.receive()
        for mirror in mirrors:
            mirror.take(message)
            if message["type"] == "rows" and message["id"] == mirror.name and not message["last"]:
                self.send("next_batch", id=mirror.name)
        return message

    def until(self, key: Any, *mirrors: Mirror) -> None:
        """Until all have a row with this key."""
        while not all((key,) in mirror.rows for mirror in mirrors):
            self.feed(*mirrors)


class Mirror:
    """The rows of one subscription, by key. Raises what it is refused with."""

    def __init__(self, name: int | str, request: dict[str, Any] | None = None) -> None:
        self.name = name
        self.request = request or {}
        self.rows: dict[tuple[Any, ...], list[Any]] = {}
        self.seq = 0
        self.history = ""
        self.mode = ""
        self.channel: int | None = None
        self.is_live = False
        self.is_lagging = False
        self._key: list[int] = []

    def take(self, message: dict[str, Any]) -> None:
        if message.get("id") == self.name:
            getattr(self, f"_{message['type']}")(message)
        elif message["type"] == "change" and self.is_live and message["channel"] == self.channel:
            self._apply(message)

    def _subscribed(self, message: dict[str, Any]) -> None:
        self.mode, self._key, self.is_lagging = message["mode"], message["key"], False
        self.history = message["history"]
        if self.mode != "resumed":
            self.rows = {}

    def _rows(self, message: dict[str, Any]) -> None:
        for row in message["rows"]:
            self.rows[self._key_of(row)] = row
        self.seq = message["seq"]

    def _live(self, message: dict[str, Any]) -> None:
        self._apply(message)
        self.channel, self.is_live = message["channel"], True

    def _apply(self, message: dict[str, Any]) -> None:
        if message["type"] == "change" and message["seq"] <= self.seq:
            return
        for change in message["changes"]:
            if change["op"] == "delete":
                self.rows.pop(tuple(change["key"]), None)
            else:
                self.rows[self._key_of(change["row"])] = change["row"]
        self.seq = message["seq"]

    def _key_of(self, row: list[Any]) -> tuple[Any, ...]:
        return tuple(row[i] for i in self._key)

    def _lagging(self, message: dict[str, Any]) -> None:
        assert message["seq"] >= self.seq
        self.seq, self.is_live, self.is_lagging = message["seq"], False, True

    def _unsubscribed(self, message: dict[str, Any]) -> None:
        self.is_live = False

    def _error(self, message: dict[str, Any]) -> None:
        raise AssertionError(message)


# --- below the protocol -----------------------------------------------------------------------------------------


class RawSocket:
    """A TCP connection that was upgraded, and then does as it likes."""

    def __init__(self, server: Address, *headers: str, path: str = "/v1/ws", receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(SECONDS)
        self.socket.connect((server.host, server.port))
        lines = [
            f"GET {path} HTTP/1.1", f"Host: {server.host}:{server.port}", "Upgrade: websocket", "Connection: Upgrade",
            f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13", *headers,
        ]  # fmt: skip
        self.send("\r\n".join([*lines, "", ""]).encode())
        self.head = b""
        while b"\r\n\r\n" not in self.head:
            self.head += self.socket.recv(1)

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def text(self, message: Mapping[str, Any], *, fin: bool = True) -> None:
        self.send(Frame(Opcode.TEXT, json.dumps(message).encode(), fin).serialize(mask=True))

    def until_closed(self) -> bytes:
        """Everything that comes, until the server hangs up."""
        received = b""
        try:
            while data := self.socket.recv(65_536):
                received += data
        except ConnectionResetError:
            pass
        return received
