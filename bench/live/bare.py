"""The limit of the stack: WebSockets on uvloop with nothing behind them. It broadcasts what it is asked to.

    python -m bench.live.bare PORT

A message {"times": n, "bytes": m} has a frame of m bytes sent n times to every socket but the one that asked, 256 sockets
between two turns of the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys

import uvloop

from bench.live import frames

CHUNK = 256
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_sockets: dict[Bare, None] = {}


class Bare(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = b""
        self._is_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        _sockets[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        del _sockets[self]

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        if not self._is_up:
            head, end, data = data.partition(frames.HEAD_END)
            if not end:
                self._data = head
                return
            self._is_up = True
            self.transport.write(_accepted(head))
        payloads, self._data = frames.split(data)
        for payload in payloads:
            if payload.startswith(b'{"type":"subscribe"'):
                self.transport.write(frames.unmasked(b'{"type":"live"}'))
            else:
                self._asked = asyncio.ensure_future(_broadcast(self, **json.loads(payload)))


def _accepted(head: bytes) -> bytes:
    key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + _GUID).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + accept
        + b"\r\nSec-WebSocket-Protocol: tablecast.json\r\n\r\n"
    )


async def _broadcast(asking: Bare, times: int, bytes: int) -> None:  # noqa: A002 - a field of the message
    start, end = b'{"type":"change","seq":0,"changes":"', b'"}'
    frame = frames.unmasked(start + b"." * max(0, bytes - len(start) - len(end)) + end)
    sockets = [socket for socket in _sockets if socket is not asking]
    for _ in range(times):
        for at in range(0, len(sockets), CHUNK):
            for socket in sockets[at : at + CHUNK]:
                socket.transport.write(frame)
            await asyncio.sleep(0)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))
