"""Readers of live queries that keep every byte they receive, so that it can be searched for what is not theirs."""

from __future__ import annotations

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
    """A stream of server-sent events."""

    def __init__(self, server: Address, user: str, token: str, sql: str) -> None:
        self.user = user
        self.heard = bytearray()
        self._socket = socket.create_connection((server.host, server.port), SECONDS)
        path = f"/v1/api/live?{urlencode({'sql': sql})}"
        head = f"GET {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        self._socket.sendall(head.encode())

    def hear_until(self, mark: bytes) -> None:
        while mark not in self.heard:
            data = self._socket.recv(65_536)
            assert data, "the server hung up"
            self.heard += data

    def close(self) -> None:
        self._socket.close()


FORMS: tuple[Form, ...] = (JSON_FORM, MSGPACK_FORM)
