"""One blocking connection to one server, for bodies of any size in both directions.

The SDK's own transport serves many tasks on one event loop; a job's task is one thread that moves many bytes, and for
that the plain way is the fastest: files go out by `sendfile`, answers come in through one buffer. Nothing here knows what
is sent. Every way in which an answer may fail to come is `NoAnswer`.
"""

from __future__ import annotations

import http.client
import io
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tablecast.client.bulk_server import Server
from tablecast.client.transport import NoAnswer

BUFFER_BYTES = 1024 * 1024  # of what is sent at a time
ARRIVING_BYTES = 64 * 1024  # of an answer; whatever is asked for that is larger does not go through the buffer
KEPT_SECONDS = 4.0  # a connection unused for longer may meet a server that hangs up: a new one is made

Pieces = Callable[[], Iterable[bytes]]
"""What is sent, from its beginning each time it is called."""
Source = bytes | Path | Pieces


class Silence(NoAnswer):
    """The request was sent, and nothing came for `timeout_seconds`."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """An answer: its status and headers, and a file to read its body from."""

    status: int
    headers: Mapping[str, str]  # by name in lower case
    body: io.BufferedReader

    def read(self) -> bytes:
        try:
            return self.body.read()
        except (OSError, http.client.HTTPException) as e:
            raise NoAnswer(str(e) or type(e).__name__, sent=True) from e


class BulkTransport:
    """Of one thread."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.url)
        self._server = server
        self._host, self._prefix = parts.hostname or "", parts.path
        self._tls = server.tls()
        self._port = parts.port or (443 if self._tls else 80)
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._used_at = 0.0

    def send(self, method: str, path: str, headers: Mapping[str, str], source: Source = b"") -> Arriving:
        """The answer, once its head is there. It must be read before the next request; if it was not, the connection is
        given up for a new one."""
        connection = self._ready()
        try:
            self._begin(connection, method, path, headers, source)
            unsent = self._send_body(connection, source)
            answer = self._answer(connection)
        except (OSError, http.client.HTTPException) as e:
            self.close()
            kind = Silence if isinstance(e, TimeoutError) else NoAnswer
            raise kind(str(e) or type(e).__name__, sent=True) from e
        if unsent:
            answer = Arriving(answer.status, answer.headers, io.BufferedReader(_Whole(answer.read())))
            self.close()
        return answer

    def close(self) -> None:
        connection, self._connection, self._response = self._connection, None, None
        if connection is not None:
            connection.close()

    # --- the connection ---

    def _ready(self) -> http.client.HTTPConnection:
        is_read = self._response is None or self._response.isclosed()
        if not is_read or time.monotonic() - self._used_at > KEPT_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> http.client.HTTPConnection:
        timeout = self._server.timeout_seconds
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        try:
            connection.connect()
        except OSError as e:  # a failed TLS handshake is one too
            raise NoAnswer(str(e) or type(e).__name__, sent=False) from e
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    # --- the request ---

    def _begin(
        self, connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str], source: Source
    ) -> None:
        connection.putrequest(method, self._prefix + path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        if isinstance(source, bytes):
            if source or method not in ("GET", "DELETE"):
                connection.putheader("Content-Length", str(len(source)))
        elif isinstance(source, Path):
            connection.putheader("Content-Length", str(source.stat().st_size))
        else:
            connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders(source if isinstance(source, bytes) and source else None)

    def _send_body(self, connection: http.client.HTTPConnection, source: Source) -> bool:
        """Whether something was left unsent, because the server answered before it had all."""
        if isinstance(source, bytes):
            return False
        send = self._send_file if isinstance(source, Path) else self._send_pieces
        try:
            return send(connection.sock, source)  # type: ignore[arg-type]
        except (BrokenPipeError, ConnectionResetError):
            return True  # it may have said why

    def _send_file(self, sock: socket.socket, path: Path) -> bool:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while file.tell() < size:
                if self._has_answered(sock):
                    return True
                sock.sendfile(file, file.tell(), min(BUFFER_BYTES, size - file.tell()))
        return False

    def _send_pieces(self, sock: socket.socket, pieces: Pieces) -> bool:
        for piece in pieces():
            if self._has_answered(sock):
                return True
            if piece:
                sock.sendall(b"%x\r\n" % len(piece))
                sock.sendall(piece)
                sock.sendall(b"\r\n")
        sock.sendall(b"0\r\n\r\n")
        return False

    def _has_answered(self, sock: socket.socket) -> bool:
        """With TLS there is no telling: what makes the socket readable may be TLS's own."""
        return not isinstance(sock, ssl.SSLSocket) and bool(select.select([sock], [], [], 0)[0])

    # --- the answer ---

    def _answer(self, connection: http.client.HTTPConnection) -> Arriving:
        response = self._response = connection.getresponse()
        self._used_at = time.monotonic()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Arriving(response.status, headers, io.BufferedReader(_Counted(self, response), ARRIVING_BYTES))

    def _read(self) -> None:
        self._used_at = time.monotonic()


class _Counted(io.RawIOBase):
    """A response's bytes; a read of it counts as use of the connection."""

    def __init__(self, transport: BulkTransport, response: http.client.HTTPResponse) -> None:
        self._transport = transport
        self._response = response

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._response.read1(len(buffer))  # what is there: `readinto` would lose it if the rest does not come
        buffer[: len(data)] = data
        self._transport._read()
        if not data:
            self._response.close()  # read to its end: the connection is good for another request
        return len(data)


class _Whole(io.RawIOBase):
    """Bytes that are there already."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._data.readinto(buffer)
