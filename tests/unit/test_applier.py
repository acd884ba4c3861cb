"""Nothing is acknowledged to the broker that a crash could take back."""

from __future__ import annotations

from edge_double import LinkDouble, Outcome, ReplicaDouble, event

from tablecast.core.backoff import MAX_BACKOFF_SECONDS
from tablecast.edge.applier import EVENTS_PER_COMMIT, Applier
from tablecast.edge.status import StatusBoard
from tablecast.errors import Overloaded
from tablecast.testing.virtual_time import VirtualTime

LONG_SECONDS = 10 * MAX_BACKOFF_SECONDS


class Applying:
    def __init__(self) -> None:
        self.time = VirtualTime()
        self.replica = ReplicaDouble()
        self.link = LinkDouble(self.time)
        self.board = StatusBoard(lambda: 0)
        self.applier = Applier(self.replica, self.link, self.time, self.board, lambda: 0.5)

    def deliver(self, *numbers: int) -> None:
        for number in numbers:
            self.applier.delivered(event(number, self.link.connection))
        self.time.run_for(0)

    def answer(self, error: Exception | None = None) -> None:
        [(payloads, done)] = self.replica.applying
        self.replica.applying.clear()
        done(None if error else [Outcome() for _ in payloads], error)

    def lose_the_connection(self) -> None:
        self.link.connection += 1
        self.applier.disconnected()

    @property
    def handed_over(self) -> list[list[bytes]]:
        return [payloads for payloads, _ in self.replica.applying]

    @property
    def acknowledged(self) -> list[int]:
        return [delivery.number for delivery in self.link.acknowledged]


def test_an_event_is_acknowledged_when_its_commit_is_durable_and_not_before() -> None:
    run = Applying()
    run.deliver(1, 2)
    run.time.run_for(LONG_SECONDS)
    assert run.handed_over == [[b"1", b"2"]]
    assert run.acknowledged == []
    run.answer()
    assert run.acknowledged == [1, 2]
    assert run.board.status.applied == 2


def test_what_comes_while_a_commit_is_under_way_waits_for_its_own() -> None:
    run = Applying()
    run.deliver(1)
    run.deliver(2, 3)
    assert run.handed_over == [[b"1"]]
    run.answer()
    assert run.acknowledged == [1]
    run.time.run_for(0)
    assert run.handed_over == [[b"2", b"3"]]
    assert run.acknowledged == [1]
    run.answer()
    assert run.acknowledged == [1, 2, 3]
    assert not run.applier.busy


def test_a_commit_that_fails_acknowledges_nothing_and_is_tried_again() -> None:
    run = Applying()
    run.deliver(1, 2)
    for attempt in range(3):
        assert run.handed_over == [[b"1", b"2"]], attempt
        run.answer(Overloaded("the queue is full"))
        assert run.handed_over == [], "not at once"
        run.time.run_for(LONG_SECONDS)
        assert run.acknowledged == []
    assert run.board.status.last_error == "overloaded: the queue is full"
    run.answer()
    assert run.acknowledged == [1, 2]


def test_nothing_of_a_lost_connection_is_acknowledged() -> None:
    """Numbers are used again: the acknowledgement would be for a message that nobody has looked at."""
    run = Applying()
    run.deliver(1)
    run.deliver(2)
    run.lose_the_connection()
    run.answer()
    run.time.run_for(LONG_SECONDS)
    assert run.acknowledged == []
    assert run.handed_over == [], "what was not handed over comes again, and is not applied from memory"
    run.deliver(1, 2)
    assert run.handed_over == [[b"1", b"2"]]
    run.answer()
    assert run.acknowledged == [1, 2]


def test_a_commit_takes_so_many_events() -> None:
    run = Applying()
    run.deliver(*range(EVENTS_PER_COMMIT + 1))
    assert [len(payloads) for payloads in run.handed_over] == [EVENTS_PER_COMMIT]
    run.answer()
    run.time.run_for(0)
    assert [len(payloads) for payloads in run.handed_over] == [1]
