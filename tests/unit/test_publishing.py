"""The publisher's window: nothing is passed over, order is kept, and no event blocks the ones behind it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tablecast.core.backoff import MAX_BACKOFF_SECONDS, Backoff
from tablecast.core.publishing import (
    MAX_UNEXPLAINED,
    MAX_WINDOW_BYTES,
    NOT_AUTHORISED,
    PACKET_TOO_LARGE,
    PAYLOAD_INVALID,
    QUOTA_EXCEEDED,
    Answer,
    Outgoing,
    PublishWindow,
)

SUCCESS, NO_SUBSCRIBERS, UNSPECIFIED, IMPLEMENTATION = 0x00, 0x10, 0x80, 0x83


def window(count: int, limit: int = 100) -> PublishWindow:
    made = PublishWindow(limit)
    for seq in range(1, count + 1):
        made.take(Outgoing(seq, b"event"))
    return made


def sent(made: PublishWindow) -> list[int]:
    return [event.seq for event in made.to_send()]


def test_acknowledgements_in_any_order_move_the_cursor_over_a_prefix_only() -> None:
    made = window(4)
    assert sent(made) == [1, 2, 3, 4]
    for seq, cursor in [(3, None), (2, None), (1, 3), (4, 4)]:
        assert made.acknowledged(seq, NO_SUBSCRIBERS if seq == 3 else SUCCESS) is Answer.DONE
        assert made.settle() == cursor
    assert len(made) == 0


def test_what_was_not_acknowledged_is_sent_again_after_the_connection_was_lost() -> None:
    made = window(3)
    sent(made)
    made.acknowledged(2, SUCCESS)
    made.lost()
    assert made.acknowledged(1, SUCCESS) is Answer.STALE, "an acknowledgement of the lost connection"
    assert sent(made) == [1, 3]
    made.acknowledged(1, SUCCESS)
    assert made.settle() == 2


def test_a_skipped_event_is_done_without_being_sent() -> None:
    made = PublishWindow()
    made.take(Outgoing(1, b"old"), skip=True)
    made.take(Outgoing(2, b"new"))
    assert sent(made) == [2]
    assert made.settle() == 1


@pytest.mark.parametrize("reason", [NOT_AUTHORISED, QUOTA_EXCEEDED])
def test_a_broker_that_refuses_us_pauses_everything_and_loses_nothing(reason: int) -> None:
    made = window(3)
    sent(made)
    for _ in range(10 * MAX_UNEXPLAINED):
        assert made.acknowledged(1, reason) is Answer.PAUSED
        assert sent(made) == []
        made.resume()
        assert sent(made) == [1]
    assert made.settle() is None


@pytest.mark.parametrize("reason", [PACKET_TOO_LARGE, PAYLOAD_INVALID])
def test_an_event_that_is_refused_for_itself_is_set_aside_and_the_rest_flows(reason: int) -> None:
    made = window(3)
    sent(made)
    assert made.acknowledged(1, reason) is Answer.SET_ASIDE
    assert not made.paused
    made.acknowledged(2, SUCCESS)
    assert made.settle() == 2


@pytest.mark.parametrize("reason", [UNSPECIFIED, IMPLEMENTATION])
def test_an_event_refused_without_reason_again_and_again_does_not_block_the_head(reason: int) -> None:
    made = window(2)
    sent(made)
    made.acknowledged(2, SUCCESS)
    for _ in range(MAX_UNEXPLAINED - 1):
        assert made.acknowledged(1, reason) is Answer.PAUSED
        made.resume()
        assert sent(made) == [1]
    assert made.acknowledged(1, reason) is Answer.SET_ASIDE
    assert made.settle() == 2


def test_an_event_that_ends_every_connection_is_found_and_set_aside() -> None:
    """The broker says nothing: it closes as soon as it sees event 7."""
    made, taken, aside, connections = window(20), [], [], 0
    while len(taken) + len(aside) < 20:
        connections += 1
        for event in made.to_send():
            if event.seq == 7:
                if (found := made.lost(blamed=True)) is not None:
                    aside.append(found)
                break
            taken.append(event.seq)
            made.acknowledged(event.seq, SUCCESS)
        made.settle()
    assert aside == [7]
    assert taken == [seq for seq in range(1, 21) if seq != 7]
    assert connections < 40


def test_connections_that_break_for_reasons_of_their_own_are_not_blamed_on_an_event() -> None:
    made = window(3)
    for _ in range(10 * MAX_UNEXPLAINED):
        assert sent(made) == [1, 2, 3]
        assert made.lost() is None
    for _ in range(3):
        first = sent(made)[0]
        made.acknowledged(first, SUCCESS)
        assert made.lost(blamed=True) is None, "something was taken in between"


def test_the_window_is_bounded_in_events_and_bytes() -> None:
    assert window(100).room == 0
    made = PublishWindow(100)
    made.take(Outgoing(1, bytes(MAX_WINDOW_BYTES)))
    assert made.room == 0
    sent(made)
    made.acknowledged(1, SUCCESS)
    made.settle()
    assert made.room == 100


class WindowAgainstBroker(RuleBasedStateMachine):
    """An outbox, the window, and a broker that takes, refuses and forgets: everything arrives, first arrivals in order."""

    def __init__(self) -> None:
        super().__init__()
        self.window = PublishWindow(5)
        self.written = 0
        self.cursor = 0
        self.on_the_wire: list[int] = []
        self.taken: set[int] = set()
        self.aside: set[int] = set()

    @rule(count=st.integers(1, 8))
    def write(self, count: int) -> None:
        self.written += count

    @rule()
    def pump(self) -> None:
        after = self.cursor if self.window.last_taken is None else self.window.last_taken
        for seq in range(after + 1, min(self.written, after + self.window.room) + 1):
            self.window.take(Outgoing(seq, b"e"))
        batch = sent(self.window)
        assert batch == sorted(batch)
        self.on_the_wire += batch

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if not self.on_the_wire:
            return
        seq = data.draw(st.sampled_from(self.on_the_wire))
        reason = data.draw(st.sampled_from([SUCCESS, SUCCESS, SUCCESS, UNSPECIFIED, QUOTA_EXCEEDED, PACKET_TOO_LARGE]))
        self.on_the_wire.remove(seq)
        if reason == SUCCESS:
            self.taken.add(seq)
        if self.window.acknowledged(seq, reason) is Answer.SET_ASIDE:
            self.aside.add(seq)
        self.cursor = self.window.settle() or self.cursor

    @rule(blamed=st.booleans())
    def lose(self, blamed: bool) -> None:
        self.on_the_wire = []
        if (seq := self.window.lost(blamed=blamed)) is not None:
            self.aside.add(seq)

    @rule()
    def resume(self) -> None:
        self.window.resume()

    @invariant()
    def the_cursor_never_passes_what_the_broker_has_not(self) -> None:
        assert set(range(1, self.cursor + 1)) <= self.taken | self.aside
        assert len(self.window) <= 5

    def teardown(self) -> None:
        while self.cursor < self.written:
            self.lose(blamed=False)
            self.resume()
            self.pump()
            for seq in self.on_the_wire:
                self.taken.add(seq)
                self.window.acknowledged(seq, SUCCESS)
            self.cursor = self.window.settle() or self.cursor
        assert set(range(1, self.written + 1)) == self.taken | self.aside


TestWindowAgainstBroker = WindowAgainstBroker.TestCase


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8))
def test_waits_double_up_to_the_longest_and_stay_within_a_fifth(chances: list[float]) -> None:
    left = iter(chances)
    backoff = Backoff(lambda: next(left))
    for expected in (1, 2, 4, 8, 16, 32, MAX_BACKOFF_SECONDS):
        assert 0.8 * expected <= backoff.next() <= 1.2 * expected
    backoff.reset()
    assert 0.8 <= backoff.next() <= 1.2
