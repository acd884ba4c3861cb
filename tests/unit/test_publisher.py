"""The position of the outbox is saved, also if the first attempt fails and no event follows."""

from __future__ import annotations

from edge_double import Entry, LinkDouble, ReplicaDouble

from tablecast.core.backoff import MAX_BACKOFF_SECONDS
from tablecast.edge.base import Limits
from tablecast.edge.publisher import Publisher
from tablecast.edge.status import StatusBoard
from tablecast.errors import Overloaded
from tablecast.testing.virtual_time import VirtualTime

NOW_MS = 1_700_000_000_000
SUCCESS = 0


class Publishing:
    def __init__(self) -> None:
        self.time = VirtualTime()
        self.replica = ReplicaDouble()
        self.link = LinkDouble(self.time)
        self.board = StatusBoard(lambda: NOW_MS + int(self.time.time() * 1000))
        self.publisher = Publisher(self.replica, self.link, self.time, self.board, "events", lambda: 0.5)

    def publish(self, *seqs: int) -> None:
        """Sent, and taken by the broker."""
        self.replica.events += [Entry(seq, b"event") for seq in seqs]
        self.publisher.connected(Limits(None))
        self.time.run_for(0)
        for seq in seqs:
            self.publisher.acknowledged(seq, SUCCESS)
        self.time.run_for(1)

    def answer(self, error: Exception | None = None) -> None:
        [(_, done)] = self.replica.saving
        self.replica.saving.clear()
        done(None if error else 1, error)

    @property
    def saving(self) -> list[int]:
        return [seq for seq, _ in self.replica.saving]


def test_a_position_that_could_not_be_saved_is_saved_later() -> None:
    run = Publishing()
    run.publish(1, 2)
    for attempt in range(3):
        assert run.saving == [2], attempt
        run.answer(Overloaded("the queue is full"))
        assert run.saving == [], "not at once"
        run.time.run_for(2 * MAX_BACKOFF_SECONDS)
    assert run.board.status.last_error == "overloaded: the queue is full"
    run.publish(3)
    assert run.saving == [2], "one at a time"
    run.answer()
    run.time.run_for(1)
    assert run.saving == [3]
    run.answer()
    run.time.run_for(10 * MAX_BACKOFF_SECONDS)
    assert run.saving == []


def test_the_last_flush_is_when_everything_was_acknowledged() -> None:
    run = Publishing()
    assert run.board.status.outbox_status == (0, False, None)
    run.board.connected()
    run.time.run_for(5)
    run.publish(1, 2)
    assert run.board.status.last_flush_ms == NOW_MS + 5_000
    run.time.run_for(5)
    assert run.board.status.outbox_status == (2, True, NOW_MS + 5_000), "the position is not saved yet"
    run.answer()
    run.replica.events.clear()
    run.publish(3)
    assert run.board.status.last_flush_ms == NOW_MS + 11_000
