"""How acknowledged threads are woken: one after the other, and nobody is left behind when one of them goes astray."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

import tablecast
from tablecast import Database
from tablecast.core import failpoint
from tablecast.testing.failpoints import Gate

LONG_SECONDS = 60.0  # no test waits for it, unless it has failed


@pytest.fixture
def db() -> Iterator[Database]:
    with tablecast.open(":memory:", jobs_interval_seconds=3600) as database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        yield database


@contextmanager
def on_signal(handler: Callable[[], None]) -> Iterator[None]:
    def call(number: int, frame: FrameType | None) -> None:
        handler()

    before = signal.signal(signal.SIGUSR1, call)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def insert_in_thread(db: Database, number: int) -> threading.Thread:
    thread = threading.Thread(target=db.insert, args=("t", [(number,)]), daemon=True)
    thread.start()
    return thread


def queued(db: Database, count: int) -> None:
    while db.engine.queue_depth < count:
        os.sched_yield()


def main_thread_first_in_a_chain(db: Database, others: int, meanwhile: Callable[[], None]) -> list[threading.Thread]:
    """The main thread and others wait for one commit, which is acknowledged after `meanwhile` ran in the main thread.

    A first commit is held up at its fsync, so that all of theirs gather in the next one.
    """
    gate, second = Gate(), Gate()
    threads: list[threading.Thread] = []

    def gather() -> None:
        gate.wait_reached()
        queued(db, 1)  # the main thread's
        threads.extend(insert_in_thread(db, 100 + i) for i in range(others))
        queued(db, 1 + others)
        with failpoint.armed("before_ack", second):
            gate.open()
            second.wait_reached()
            os.kill(os.getpid(), signal.SIGUSR1)

    with failpoint.armed("before_sync", gate):
        first = insert_in_thread(db, 1)
        director = threading.Thread(target=gather)
        director.start()
        gate.wait_reached()

    def handler() -> None:
        second.open()
        meanwhile()

    try:
        with on_signal(handler):
            db.insert("t", [(2,)])
    finally:
        director.join(LONG_SECONDS)
        first.join(LONG_SECONDS)
    return threads


def test_a_signal_handler_may_write_while_its_thread_is_being_woken(db: Database) -> None:
    threads = main_thread_first_in_a_chain(db, 3, lambda: db.insert("t", [(3,)]) and None)
    for thread in threads:
        thread.join(LONG_SECONDS)
        assert not thread.is_alive()
    assert db.query("SELECT count(*) FROM t").scalar() == 6


def test_a_thread_that_is_interrupted_still_passes_the_chain_on(db: Database) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt() -> None:
        raise Interrupted

    threads: list[threading.Thread] = []
    before = set(threading.enumerate())
    with pytest.raises(Interrupted):
        threads = main_thread_first_in_a_chain(db, 3, interrupt)
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG_SECONDS)
        assert not thread.is_alive()
    assert db.query("SELECT count(*) FROM t").scalar() == 5
    assert threads == []
