"""The load generator: many sockets in a process of its own.

It is told what to do by lines of JSON on standard input and answers each with one on standard output. Times are those of
the monotonic clock, which all processes of a machine share.

    {"open": {port, path, authorization, sockets, queries, per_socket}}   → {"opened": subscriptions that are live}
    {"expect": n}                                                         → {"at": when the n-th change arrived}
    {"arrivals": n}                                                       → {"seqs": …, "at": …} of the n changes expected
    {"say": message}                                                      → {"at": when}: the first socket sends it
    {"close": true}                                                       → {"closed": true}
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvloop

from bench.live import frames

OPENING = 200  # sockets that are connecting at a time
CHANGE, LIVE, LAGGING, ERROR = b'{"type":"change"', b'{"type":"live"', b'{"type":"lagging"', b'{"type":"error"'


class Generator:
    """In the generator's own process."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sockets: list[Socket] = []
        self.changes = 0
        self.expected = 0
        self.done: asyncio.Future[float] | None = None
        self.noted: list[tuple[int, float]] | None = None

    async def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        (name, value), *_ = command.items()
        found: dict[str, Any] = await getattr(self, name)(value)
        return found

    async def open(self, how: dict[str, Any]) -> dict[str, Any]:
        queries = itertools.cycle(how["queries"])
        per_socket, gate = how["per_socket"] if how["queries"] else 0, asyncio.Semaphore(OPENING)

        async def one(mine: list[list[Any]]) -> None:
            async with gate:
                _, socket = await self.loop.create_connection(
                    lambda: Socket(self, how["path"], how["authorization"], mine), "127.0.0.1", how["port"]
                )
                self.sockets.append(socket)
                await socket.ready

        await asyncio.gather(*(one([next(queries) for _ in range(per_socket)]) for _ in range(how["sockets"])))
        return {"opened": how["sockets"] * per_socket}

    async def expect(self, count: int) -> dict[str, Any]:
        """Changes are counted from the last `reset` on: they may be there already."""
        self.expected = count
        self.done = self.loop.create_future()
        if self.changes >= count:
            self.done.set_result(time.monotonic())
        return {"at": await self.done}

    async def reset(self, noting: bool) -> dict[str, Any]:
        self.changes, self.expected, self.noted = 0, 0, [] if noting else None
        return {"reset": True}

    async def arrivals(self, count: int) -> dict[str, Any]:
        await self.expect(count)
        return {"arrivals": self.noted}

    async def say(self, message: dict[str, Any]) -> dict[str, Any]:
        at = time.monotonic()
        self.sockets[0].transport.write(frames.masked(json.dumps(message, separators=(",", ":")).encode()))
        return {"at": at}

    async def close(self, _: Any) -> dict[str, Any]:
        for socket in self.sockets:
            socket.transport.abort()
        self.sockets.clear()
        return {"closed": True}

    def changed(self, payloads: Sequence[bytes]) -> None:
        self.changes += len(payloads)
        if self.noted is not None:
            now = time.monotonic()
            self.noted += [(json.loads(payload)["seq"], now) for payload in payloads]
        if self.done is not None and not self.done.done() and self.changes >= self.expected > 0:
            self.done.set_result(time.monotonic())


class Socket(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, generator: Generator, path: str, authorization: str, queries: list[list[Any]]) -> None:
        self._generator = generator
        self._head = frames.upgrade(path, authorization)
        self._queries = queries
        self._waiting = len(queries)
        self._is_up = False
        self._data = b""
        self.ready: asyncio.Future[None] = generator.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        if not self._is_up:
            head, end, data = data.partition(frames.HEAD_END)
            if not end:
                self._data = head
                return
            self._upgraded(head)
        payloads, self._data = frames.split(data)
        changes = [payload for payload in payloads if payload.startswith(CHANGE)]
        if changes:
            self._generator.changed(changes)
        if len(changes) < len(payloads):
            self._other([payload for payload in payloads if not payload.startswith(CHANGE)])

    def _upgraded(self, head: bytes) -> None:
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            self.ready.set_exception(ConnectionError(head.decode(errors="replace")))
        self._is_up = True
        for number, (sql, params) in enumerate(self._queries):
            message = {"type": "subscribe", "id": number, "sql": sql, "params": params}
            self.transport.write(frames.masked(json.dumps(message, separators=(",", ":")).encode()))
        if not self._queries:
            self.ready.set_result(None)

    def _other(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            if payload.startswith(LIVE):
                self._waiting -= 1
                if not self._waiting:
                    self.ready.set_result(None)
            elif payload.startswith((LAGGING, ERROR)):
                sys.stderr.write(f"the generator was told {payload.decode()}\n")
                sys.exit(1)


async def _serve() -> None:
    generator, loop = Generator(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        sys.stdout.write(json.dumps(await generator.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


# --- for whoever measures -----------------------------------------------------------------------------------------


class Load:
    """The generator, seen from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load generator ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **command: Any) -> dict[str, Any]:
        self.send(**command)
        return self.answer()

    def open(self, port: int, sockets: int, queries: Sequence[tuple[str, list[Any]]], per_socket: int = 1) -> None:
        credentials = base64.b64encode(f"system:{_password()}".encode()).decode()
        self.ask(
            open={
                "port": port, "path": "/v1/ws", "authorization": f"Basic {credentials}", "sockets": sockets,
                "queries": list(queries), "per_socket": per_socket,
            }
        )  # fmt: skip


def _password() -> str:
    from bench.server.ours import PASSWORD

    return PASSWORD


@contextmanager
def load() -> Iterator[Load]:
    command = [sys.executable, "-m", "bench.live.generator"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Load(process)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
