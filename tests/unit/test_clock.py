"""A FakeClock stands still, moves when told, and wakes who waits."""

from __future__ import annotations

import threading

import pytest

from tablecast.errors import InvalidRequest
from tablecast.testing.clock import START_MS, FakeClock


def test_it_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(5_000)
    assert (clock(), clock()) == (5_000, 5_000)
    assert clock.advance(250) == 5_250
    assert clock.set(9_000) == 9_000
    assert clock() == 9_000


def test_it_starts_at_a_fixed_day() -> None:
    assert FakeClock()() == START_MS


@pytest.mark.parametrize("move", [lambda c: c.advance(-1), lambda c: c.set(4_999)])
def test_it_goes_back_only_if_it_may(move) -> None:  # type: ignore[no-untyped-def]
    clock = FakeClock(5_000)
    with pytest.raises(InvalidRequest, match=r"at 5000 ms cannot go back to 4999 ms; .*may_go_back"):
        move(clock)
    assert clock() == 5_000
    stepping = FakeClock(5_000, may_go_back=True)
    move(stepping)
    assert stepping() == 4_999


def test_subscribers_see_the_new_time_in_the_order_they_came() -> None:
    clock, seen = FakeClock(0), []
    clock.subscribe(lambda: seen.append(("first", clock())))
    unsubscribe = clock.subscribe(lambda: seen.append(("second", clock())))
    clock.advance(1)
    unsubscribe()
    unsubscribe()  # once is enough, twice does no harm
    clock.set(2)
    assert seen == [("first", 1), ("second", 1), ("first", 2)]


def test_a_refused_move_wakes_nobody() -> None:
    clock, woken = FakeClock(10), []
    clock.subscribe(lambda: woken.append(clock()))
    with pytest.raises(InvalidRequest):
        clock.advance(-1)
    assert woken == []


def test_a_waiter_on_a_condition_is_woken_by_an_advance() -> None:
    clock, condition = FakeClock(0), threading.Condition()

    def wake() -> None:
        with condition:
            condition.notify_all()

    waiting = threading.Event()
    reached: list[int] = []

    def wait_until_1000() -> None:
        with condition:
            waiting.set()
            while clock() < 1000:
                condition.wait()
            reached.append(clock())

    clock.subscribe(wake)
    waiter = threading.Thread(target=wait_until_1000)
    waiter.start()
    waiting.wait()
    clock.advance(999)
    clock.advance(1)
    waiter.join()
    assert reached == [1000]


def test_no_advance_is_lost_between_threads() -> None:
    clock = FakeClock(0)
    threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock() == 8000
