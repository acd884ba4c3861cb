"""Readers of live queries that keep every byte they receive, so that it can be searched for what is not theirs."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlencode

from live_client import SECONDS
from server_fixture import Address
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from tablecast.client.live_rows import LiveRows
from tablecast.client.live_socket import live_url
from tablecast.client.live_state import LiveState, Query, QueryState
from tablecast.client.values import from_extension
from tablecast.codec.live import JSON_FORM, MSGPACK_FORM, Form, Ping, Pong, ServerMessage, encode, server_decoder

_decode = server_decoder(from_extension)


class Ear(Protocol):
    user: str
    heard: bytearray

    def close(self) -> None: ...


class SocketEar:
    """A WebSocket with the SDK's state behind it. `cut` loses the connection; the queries resume on the next one."""

    def __init__(self, server: Address, user: str, token: str, form: Form) -> None:
        self.user = user
        self.heard = bytearray()
        self.queries: dict[Query, LiveRows] = {}
        self._server, self._token, self._form = server, token, form
        self._state = LiveState()
        self._pongs = 0
        self._connect()

    # --- the connection ---

    def _connect(self) -> None:
        self._socket = socket.create_connection((self._server.host, self._server.port), SECONDS)
        self._frames = ClientProtocol(parse_uri(live_url(self._server.url)), max_size=None)
        request = self._frames.connect()
        request.headers["Authorization"] = f"Bearer {self._token}"
        self._frames.send_request(request)
        self._flush()
        while self._frames.handshake_exc is None and self._frames.state.name == "CONNECTING":
            self._hear()
        assert self._frames.handshake_exc is None, self._frames.handshake_exc
        self._state.connected()
        self._send()

    def cut(self) -> None:
        self._socket.close()
        self._state.disconnected()
        self._connect()

    def close(self) -> None:
        self._socket.close()

    def _hear(self) -> None:
        data = self._socket.recv(65_536)
        assert data, "the server hung up"
        self.heard += data
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY):
                self._received(_decode(bytes(event.data), self._form))
        self._send()

    def _received(self, message: ServerMessage) -> None:
        self._pongs += isinstance(message, Pong)
        self._state.received(message)
        for query, rows in self.queries.items():
            while query.steps:
                rows.fold(self._state.take(query))

    def _send(self) -> None:
        for message in self._state.messages_to_send():
            self._say(encode(message, self._form))
        self._flush()

    def _say(self, data: bytes) -> None:
        send = self._frames.send_text if self._form == JSON_FORM else self._frames.send_binary
        send(data)

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            self._socket.sendall(data)

    # --- queries ---

    def subscribe(self, sql: str, params: list[Any]) -> Query:
        query = self._state.open(sql, params, "default")
        self.queries[query] = LiveRows()
        self._send()
        return query

    def unsubscribe(self, query: Query) -> None:
        self._state.close(query)
        del self.queries[query]
        self._send()

    def until_live(self) -> None:
        """All of its queries; those that were refused have ended."""
        while any(query.state not in (QueryState.LIVE, QueryState.ENDED) for query in self.queries):
            self._hear()

    def hear_out(self, settled: Callable[[], None]) -> None:
        """Until everything that was committed has come: the hub has told all of it, and a pong comes behind that."""
        pongs = self._pongs
        while True:
            self.until_live()
            settled()
            self._say(encode(Ping(), self._form))
            self._flush()
            pongs += 1
            while self._pongs < pongs:
                self._hear()
            if all(query.state in (QueryState.LIVE, QueryState.ENDED) for query in self.queries):
                return


class StreamEar:
    """A stream of server-sent events. `cut` loses it; the next one resumes from the last id, as a browser does."""

    def __init__(self, server: Address, user: str, token: str, sql: str, params: list[Any]) -> None:
        self.user = user
        self.heard = bytearray()
        self._server, self._token = server, token
        self._path = f"/v1/api/live?{urlencode({'sql': sql, 'params': json.dumps(params)})}"
        self._connect(b"")

    def _connect(self, last_id: bytes) -> None:
        self._begins = len(self.heard)  # what this connection brings, from there on
        self._socket = socket.create_connection((self._server.host, self._server.port), SECONDS)
        lines = [
            f"GET {self._path} HTTP/1.1",
            f"Host: {self._server.host}:{self._server.port}",
            f"Authorization: Bearer {self._token}",
            *([f"Last-Event-ID: {last_id.decode()}"] if last_id else []),
        ]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())

    @property
    def last_id(self) -> bytes:
        """Of the last event that came whole."""
        whole = bytes(self.heard).rpartition(b"\n\n")[0]
        ids = re.findall(rb"^id: (\S+)$", whole, re.MULTILINE)
        return ids[-1] if ids else b""

    @property
    def mode(self) -> bytes:
        """How the last connection began, once that is known."""
        modes = re.findall(rb'"mode":"(\w+)"', bytes(self.heard[self._begins :]))
        return modes[0] if modes else b""

    def cut(self) -> None:
        self._socket.close()
        self._connect(self.last_id)

    def hear_until(self, mark: bytes) -> None:
        while mark not in self.heard:
            self._hear()

    def hear_the_beginning(self) -> None:
        while not self.mode:
            self._hear()

    def _hear(self) -> None:
        """A stream that cannot be told the next commit ends with `lagging`: its reader comes back."""
        data = self._socket.recv(65_536)
        self.heard += data
        if bytes(self.heard[self._begins :]).endswith(b"\r\n0\r\n\r\n") or not data:
            assert b"event: lagging" in self.heard[self._begins :], bytes(self.heard[self._begins :])[-1000:]
            self.cut()

    def close(self) -> None:
        self._socket.close()


FORMS: tuple[Form, ...] = (JSON_FORM, MSGPACK_FORM)
