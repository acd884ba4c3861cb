"""An answer's head and the beginning of its body go out together, and a head whose body is late goes out alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from tablecast.server.connection import HeadWithBody

pytestmark = pytest.mark.anyio


class Transport:
    """Remembers what each call to the system would carry."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.calls.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def written(transport: Transport, loop: asyncio.AbstractEventLoop) -> HeadWithBody:
    return HeadWithBody(cast(Any, transport), loop)


async def test_a_head_goes_with_the_body_that_follows_at_once() -> None:
    transport = Transport()
    answer = written(transport, asyncio.get_running_loop())
    answer.write(b"head ")
    answer.write(b"body")
    assert transport.calls == [b"head body"]
    answer.write(b" more")
    assert transport.calls == [b"head body", b" more"]
    await asyncio.sleep(0)
    assert transport.calls == [b"head body", b" more"]


async def test_a_head_whose_body_is_late_does_not_wait_for_it() -> None:
    transport = Transport()
    answer = written(transport, asyncio.get_running_loop())
    answer.write(b"head")
    await asyncio.sleep(0)
    assert transport.calls == [b"head"]
    answer.write(b"body")
    assert transport.calls == [b"head", b"body"]


async def test_closing_sends_the_head_first() -> None:
    transport = Transport()
    answer = written(transport, asyncio.get_running_loop())
    answer.write(b"head")
    answer.close()
    assert transport.calls == [b"head"]
    assert answer.is_closing()
    await asyncio.sleep(0)
    assert transport.calls == [b"head"]
