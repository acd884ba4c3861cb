"""The limit of a request's head is the same in however many pieces it comes, and behind whatever comes before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from tablecast.server.connection import MAX_HEAD_BYTES, connection_class
from tablecast.server.doorkeeper import Doorkeeper

START, END = b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n\r\n"


class Transport(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def serve(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def answered(pieces: list[bytes]) -> list[int]:
    """The statuses of what is answered to these pieces, one per turn of the loop."""

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(serve, log_config=None, access_log=False)
        config.load()
        kind = connection_class(10, 3_600, Doorkeeper(1.0, 3_600, loop=loop))
        connection, transport = kind(config, ServerState(), {}), Transport()
        connection.connection_made(transport)
        for piece in pieces:
            if not transport.closed:
                connection.data_received(piece)
            for _ in range(10):  # an answer takes a few turns
                await asyncio.sleep(0)
        connection.connection_lost(None)
        return [int(answer[:3]) for answer in transport.written.split(b"HTTP/1.1 ")[1:]]

    return asyncio.run(run())


def head(size: int, fields: int = 1) -> bytes:
    """Of exactly so many bytes, in so many fields."""
    room = size - len(START) - len(END) + 2
    each = room // fields
    lines = [b"a: " + b"x" * (each - 5) + b"\r\n" for _ in range(fields - 1)]
    last = room - each * (fields - 1)
    made = START + b"".join(lines) + b"a: " + b"x" * (last - 5) + b"\r\n" + b"\r\n"
    assert len(made) == size
    return made


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places) if start < end]


@given(
    beyond=st.integers(-2_000, 200_000),
    fields=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 300_000), max_size=5),
)
@example(beyond=0, fields=1, cuts=[])
@example(beyond=1, fields=1, cuts=[])
@example(beyond=1, fields=40, cuts=[])
@example(beyond=100_000, fields=1, cuts=[])
def test_a_head_has_one_limit_however_it_comes(beyond: int, fields: int, cuts: list[int]) -> None:
    sent = head(MAX_HEAD_BYTES + beyond, fields)
    assert answered(pieces(sent, cuts)) == [200 if beyond <= 0 else 431]


@pytest.mark.parametrize("before", [b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"])
def test_a_large_head_behind_another_request_is_not_served(before: bytes) -> None:
    found = answered([before + head(MAX_HEAD_BYTES + 30_000)])
    assert found in ([], [200], [200, 431]), "nothing, if it came before the turn of the first answer"
    assert answered([before, head(MAX_HEAD_BYTES + 30_000)]) == [200, 431]
    assert answered([before + head(MAX_HEAD_BYTES - 100)]) == [200, 200]


def test_a_large_body_in_one_piece_is_no_head() -> None:
    size = 5 * MAX_HEAD_BYTES
    sent = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
    assert answered([sent]) == [200]
    assert answered([sent + sent]) == [200, 200]
