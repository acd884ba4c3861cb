"""Either the thread that commits answers a reader or the reader's task does, and never both."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Any, cast

import pytest

from tablecast.engine.ahead import Ahead
from tablecast.model.message import Consumed
from tablecast.server.connection import HeadWithBody
from tablecast.server.prompt_answer import HttpPrompt
from tablecast.sql.prompt import PromptReader

pytestmark = pytest.mark.anyio
COMMIT = cast(Any, object())
FOUND = Consumed(cast(Any, ["a message"]), 1, False)
NOTHING_FOUND = Consumed([], None, False)


class Way:
    """A `Prompt` that remembers."""

    def __init__(self, *, opens: bool = True) -> None:
        self._opens = opens
        self.said: list[Any] = []

    def open(self) -> bool:
        return self._opens

    def render(self, found: Consumed) -> bytes:
        return repr(found.messages).encode()

    def send(self, answer: bytes) -> None:
        self.said.append(answer)

    def close(self) -> None:
        self.said.append("closed")

    def abort(self) -> None:
        self.said.append("aborted")


def reader_of(way: Way, found: Consumed = FOUND) -> PromptReader:
    return PromptReader(asyncio.get_running_loop(), way, lambda commit: found)


async def test_a_reader_that_is_taken_is_told_what_it_was_answered() -> None:
    way, woken = Way(), asyncio.Event()
    reader = reader_of(way)
    assert reader.open(woken.set)
    held = reader.take(COMMIT)
    assert held is not None
    assert not reader.close()
    assert way.said == [], "it is ready, not said"
    held.let_go()
    held.finish()
    assert way.said == [b"['a message']", "closed"]
    assert await reader.given() is FOUND
    assert woken.is_set()
    assert not reader.close()
    assert way.said.count("closed") == 1


async def test_a_reader_whose_task_answers_is_not_taken() -> None:
    way = Way()
    reader = reader_of(way)
    reader.open(lambda: None)
    assert reader.close()
    assert reader.take(COMMIT) is None
    assert reader.close()
    assert way.said == ["closed"]


async def test_a_reader_is_taken_once() -> None:
    reader = reader_of(Way())
    reader.open(lambda: None)
    assert reader.take(COMMIT) is not None
    assert reader.take(COMMIT) is None


async def test_a_reader_that_does_not_wait_is_not_taken() -> None:
    way = Way()
    reader = reader_of(way)
    assert reader.take(COMMIT) is None
    assert reader.close()
    assert way.said == [], "it was never opened"


async def test_without_a_way_there_is_nothing_to_close() -> None:
    way = Way(opens=False)
    reader = reader_of(way)
    assert not reader.open(lambda: None)
    assert reader.take(COMMIT) is None
    assert reader.close()
    assert way.said == []


async def test_a_commit_that_brings_nothing_for_it_leaves_it_waiting() -> None:
    reader = reader_of(Way(), NOTHING_FOUND)
    reader.open(lambda: None)
    assert reader.take(COMMIT) is None
    assert reader.close()


async def test_a_reader_that_cannot_read_is_left_to_its_task() -> None:
    def fails(commit: Any) -> Consumed:
        raise LookupError

    reader = PromptReader(asyncio.get_running_loop(), Way(), fails)
    reader.open(lambda: None)
    assert reader.take(COMMIT) is None
    assert reader.close()


async def test_what_is_dropped_is_never_said() -> None:
    way = Way()
    reader = reader_of(way)
    reader.open(lambda: None)
    held = reader.take(COMMIT)
    assert held is not None
    held.drop()
    await asyncio.sleep(0)
    assert way.said == ["closed", "aborted"]


async def test_of_taking_and_closing_one_wins() -> None:
    """From two threads at once, many times."""
    winners = set()
    for _ in range(300):
        way = Way()
        reader = reader_of(way)
        reader.open(lambda: None)
        both = threading.Barrier(2)
        taken: list[Any] = []

        def take(reader: PromptReader = reader, both: threading.Barrier = both, taken: list[Any] = taken) -> None:
            both.wait()
            taken.append(reader.take(COMMIT))

        thread = threading.Thread(target=take)
        thread.start()
        both.wait()
        is_closed = reader.close()
        thread.join()
        assert is_closed == (taken[0] is None)
        winners.add(is_closed)
    assert winners, "whoever it was"


# --- answers of one commit ---


def test_an_answer_that_fails_keeps_no_other_from_being_given(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        def let_go(self) -> None:
            raise OSError

        finish = drop = let_go

    class Works:
        said = ""

        def let_go(self) -> None:
            self.said += "given "

        def finish(self) -> None:
            self.said += "finished "

        def drop(self) -> None:
            self.said += "dropped "

    works = Works()
    ahead = Ahead([Fails(), works])
    with caplog.at_level(logging.ERROR):
        ahead.let_go()
        ahead.finish()
    assert works.said == "given finished "
    assert len(caplog.records) == 2


def test_what_was_given_is_not_dropped_and_what_was_dropped_is_not_given() -> None:
    class Counted:
        def __init__(self) -> None:
            self.said: list[str] = []

        def let_go(self) -> None:
            self.said.append("given")

        def finish(self) -> None:
            self.said.append("finished")

        def drop(self) -> None:
            self.said.append("dropped")

    one, other = Counted(), Counted()
    given, dropped = Ahead([one]), Ahead([other])
    given.let_go()
    given.drop()
    given.finish()
    dropped.drop()
    dropped.let_go()
    dropped.finish()
    assert one.said == ["given", "finished"]
    assert other.said == ["dropped"]


# --- bytes ---


class Cycle:
    """What of uvicorn's is asked for."""

    default_headers = ((b"server", b"here"),)
    keep_alive = True


def prompt_of(transport: asyncio.Transport, body: bytes = b"x") -> HttpPrompt:
    return HttpPrompt(cast(Any, Cycle()), transport, lambda found: body, "a/b", "id")


async def test_what_the_socket_does_not_take_is_left_to_the_loop() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    prompt = prompt_of(transport, b"x" * 1_000_000)
    assert prompt.open()
    answer = prompt.render(FOUND)
    prompt.send(answer)
    prompt.close()
    assert 0 < len(prompt.unsent) < len(answer)
    head = HeadWithBody(transport, loop)
    head.was_given(prompt.unsent)
    head.write(b"a head")
    head.write(b"a body")
    reading, writing = await asyncio.open_connection(sock=theirs)
    assert await reading.readexactly(len(answer)) == answer
    head.close()
    assert await reading.read() == b"", "what was written again is not sent again"
    writing.close()


async def test_nothing_goes_past_what_is_still_to_be_sent() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    transport.write(b"x" * 1_000_000)
    assert not prompt_of(transport).open()
    theirs.close()
    transport.abort()


async def test_a_connection_that_is_gone_has_no_way() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    prompt = prompt_of(transport)
    assert prompt.open()
    theirs.close()
    prompt.send(b"to nobody")
    assert prompt.unsent == b"to nobody"
    prompt.close()
    transport.close()
    assert not prompt_of(transport).open()
