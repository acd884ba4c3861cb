"""What a consumer decides: lanes, repeats, and what is told to the group."""

from __future__ import annotations

import signal
import threading

import pytest

from tablecast import Message, Op
from tablecast.client import delivery
from tablecast.client.consumer import StopSignal
from tablecast.client.delivery import (
    Handled,
    Membership,
    Settlement,
    Unconfirmed,
    check_concurrency,
    rounds,
    settlements,
)
from tablecast.errors import InvalidRequest
from tablecast.model.topic import PayloadMode


def message(offset: int, partition: int = 0, key: str = "", delivery: int = 1, table: str = "app.t") -> Message:
    return Message(
        1, partition, offset, offset, table, Op.INSERT, 0, PayloadMode.FULL, key.encode(), b"{}", None, 1, 0, delivery
    )


def offsets(lanes: list[list[Message]]) -> list[list[int]]:
    return [[m.offset for m in lane] for lane in lanes]


def test_one_handler_takes_one_partition_after_the_other() -> None:
    given = [message(0, 0), message(5, 1), message(1, 0), message(6, 1)]
    assert [offsets(lanes) for lanes in rounds(given, 1)] == [[[0, 1]], [[5, 6]]]


def test_several_handlers_take_one_row_each() -> None:
    given = [message(0, key="a"), message(1, key="b"), message(2, key="a"), message(0, 1, key="a"), message(3, key="b")]
    assert [offsets(lanes) for lanes in rounds(given, 4)] == [[[0, 2], [1, 3], [0]]]


def test_the_same_key_in_two_tables_is_two_rows() -> None:
    given = [message(0, key="a"), message(1, key="a", table="app.u")]
    assert [offsets(lanes) for lanes in rounds(given, 2)] == [[[0], [1]]]


def test_no_messages_no_rounds() -> None:
    assert list(rounds([], 1)) == list(rounds([], 8)) == []


def test_what_is_told_to_the_group_names_each_offset() -> None:
    handled = [Handled(message(3), None), Handled(message(9, 1), "why"), Handled(message(7), None)]
    assert settlements(handled) == [Settlement(0, [3, 7], []), Settlement(1, [], [(9, "why")])]


def test_a_repeat_is_what_was_handled_and_came_again() -> None:
    seen = Unconfirmed()
    seen.add(message(3))
    assert seen.is_repeat(message(3, delivery=2))
    assert not seen.is_repeat(message(3)), "a first delivery is none: it was redriven, its deliveries forgotten"
    assert not seen.is_repeat(message(3, 1, delivery=2)), "another partition"
    seen.confirm(Settlement(0, [3], []))
    assert not seen.is_repeat(message(3, delivery=2))


def test_the_memory_of_repeats_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "UNCONFIRMED_PLACES", 2)
    seen = Unconfirmed()
    for offset in range(3):
        seen.add(message(offset))
    assert [seen.is_repeat(message(offset, delivery=2)) for offset in range(3)] == [False, True, True]


def test_a_given_name_has_a_past_and_a_made_one_is_new() -> None:
    assert Membership.of("t", "g", "worker", 1, 60).has_past
    made = Membership.of("t", "g", None, 1, 60)
    assert not made.has_past
    assert made.name != Membership.of("t", "g", None, 1, 60).name


@pytest.mark.parametrize("concurrency", [0, -1])
def test_at_least_one_handler_runs(concurrency: int) -> None:
    with pytest.raises(InvalidRequest, match="at least 1"):
        check_concurrency(concurrency)


def test_a_stop_wakes_every_thread_that_waits_for_it() -> None:
    stop = StopSignal()
    ends: list[bool] = []
    threads = [threading.Thread(target=lambda: ends.append(stop.wait(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not stop.wait(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert ends == [True] * 3
    assert stop.wait(60)


def test_a_signal_handler_may_stop_the_thread_it_interrupts() -> None:
    """It runs while that very thread waits, or is about to."""
    stop = StopSignal()
    before = signal.signal(signal.SIGALRM, lambda number, frame: stop.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert stop.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
