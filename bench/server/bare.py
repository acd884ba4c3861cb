"""The limit of the stack: the server's HTTP and the SDK's transport with nothing between them but one fsync.

    python -m bench.server.bare PORT FILE

`POST /wait` is answered when the next `POST /ring` is on disk. There are no accounts, statements, rows, claims or threads: the one
that reads a request also writes and syncs it, which a server that others use meanwhile cannot do.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from bench.server.processes import free_port, running
from tablecast.client.transport import Transport
from tablecast.server.connection import connection_class
from tablecast.server.doorkeeper import Doorkeeper

ANSWER_SECONDS = 30.0
MAX_CONNECTIONS = 100


class Relay:
    def __init__(self, file: int) -> None:
        self._file = file
        self._waiting: list[asyncio.Future[bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        if scope["path"] == "/wait":
            mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            body = await mine
        elif scope["path"] == "/ring":
            os.write(self._file, body)
            os.fdatasync(self._file)
            for waiting in self._waiting:
                waiting.set_result(body)
            self._waiting.clear()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def server(path: Path) -> Iterator[int]:
    port = free_port()
    with running([sys.executable, "-m", "bench.server.bare", str(port), str(path / "bare")], port, path / "bare.log"):
        yield port


class BareClient:
    def __init__(self, port: int) -> None:
        self._transport = Transport(f"http://127.0.0.1:{port}")

    async def ask(self, path: str, body: bytes = b"-") -> bytes:
        return (await self._transport.send("POST", path, {}, body, ANSWER_SECONDS)).body

    async def close(self) -> None:
        await self._transport.close()


@asynccontextmanager
async def connections(port: int) -> AsyncIterator[tuple[BareClient, BareClient]]:
    one, other = BareClient(port), BareClient(port)
    try:
        yield one, other
    finally:
        await one.close()
        await other.close()


async def serve(port: int, path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    door = Doorkeeper(1.0, ANSWER_SECONDS, loop=asyncio.get_running_loop())
    config = uvicorn.Config(
        Relay(file), host="127.0.0.1", port=port, http=connection_class(MAX_CONNECTIONS, ANSWER_SECONDS, door),
        lifespan="off", access_log=False, log_config=None,
    )  # fmt: skip
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), sys.argv[2]))
