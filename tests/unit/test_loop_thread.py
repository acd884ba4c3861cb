"""An event loop in a thread: whoever calls it gets an answer, also while it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tablecast.client.loop_thread import LoopThread
from tablecast.errors import DatabaseClosed

LONG_SECONDS = 30.0


async def forever() -> None:
    await asyncio.Event().wait()


class Caller:
    """A thread that calls, and what it was told."""

    def __init__(self, thread: LoopThread) -> None:
        self._called = thread
        self.told: list[BaseException] = []
        self.thread = threading.Thread(target=self._call, daemon=True)
        self.thread.start()

    def _call(self) -> None:
        try:
            self._called.run(forever)
        except BaseException as error:
            self.told.append(error)


class EndsSlowly(LoopThread):
    """Somebody calls when all calls were ended, and the loop has not stopped yet."""

    late: Caller

    async def _end_tasks(self) -> None:
        await super()._end_tasks()
        self.late = Caller(self)
        self.late.thread.join(0.2)  # long enough to be refused, or to get in


def test_a_call_that_comes_while_it_ends_is_refused() -> None:
    thread = EndsSlowly("client")
    thread.close()
    thread.late.thread.join(LONG_SECONDS)
    assert [type(error) for error in thread.late.told] == [DatabaseClosed]


def test_calls_that_wait_learn_of_the_end() -> None:
    thread = LoopThread("client")
    callers = [Caller(thread) for _ in range(5)]
    while thread.run(count) < 1 + len(callers):  # until all of them are in
        pass
    thread.close()
    for caller in callers:
        caller.thread.join(LONG_SECONDS)
    assert [type(error) for caller in callers for error in caller.told] == [DatabaseClosed] * len(callers)


async def count() -> int:
    return len(asyncio.all_tasks())


def test_closing_again_is_fine_and_calling_is_not() -> None:
    thread = LoopThread("client")
    closing = [threading.Thread(target=thread.close) for _ in range(4)]
    for each in closing:
        each.start()
    for each in closing:
        each.join(LONG_SECONDS)
        assert not each.is_alive()
    thread.close()

    def unmade() -> Any:
        raise AssertionError("a call that is refused is not begun")

    with pytest.raises(DatabaseClosed):
        thread.run(unmade)
