"""How large a message a broker lets in: what it says, what it answers, and when it hangs up."""

from __future__ import annotations

import pytest

from tablecast.core.passable import FORGET_ROUNDS, Passable
from tablecast.core.publishing import PACKET_TOO_LARGE, SUSPICION_SECONDS

SUCCESS = 0


class Broker:
    """Lets in messages up to a size; answers larger ones, or hangs up."""

    def __init__(self, limit: int, *, hangs_up: bool) -> None:
        self.limit = limit
        self.hangs_up = hangs_up
        self.now = 0.0
        self.left_out: list[int] = []
        self.passable = Passable(lambda: self.now, self.left_out.append)

    def send(self, size: int) -> bool:
        self.passable.sent(size)
        self.now += 0.01
        if size <= self.limit:
            self.passable.acknowledged(size, SUCCESS)
        elif self.hangs_up:
            self.passable.lost()
            self.passable.announced(None)  # connected again
        else:
            self.passable.acknowledged(size, PACKET_TOO_LARGE)
        return size <= self.limit

    @property
    def room(self) -> int:
        return self.passable.room.bytes


@pytest.mark.parametrize("hangs_up", [True, False])
def test_it_is_found_out(hangs_up: bool) -> None:
    broker = Broker(10_000, hangs_up=hangs_up)
    tries = 0
    while not broker.send(broker.room):
        broker.send(100)  # a question passes in between, and proves nothing
        tries += 1
        assert tries < 10
    assert 2_000 < broker.room <= 10_000
    assert broker.passable.room.passing([bytes(8_000), bytes(40_000), bytes(9)]) == [bytes(8_000), bytes(9)]
    assert broker.left_out == [40_000]


def test_a_broker_that_is_restarted_once_is_not_suspected() -> None:
    broker = Broker(10**6, hangs_up=True)
    before = broker.room
    broker.passable.sent(50_000)
    broker.passable.lost()
    assert broker.send(60_000)
    broker.passable.sent(50_000)
    broker.passable.lost()
    assert broker.room == before


def test_a_connection_that_ends_much_later_or_with_nothing_large_on_its_way_teaches_nothing() -> None:
    broker = Broker(10**6, hangs_up=True)
    before = broker.room
    for size, seconds in ((50_000, SUSPICION_SECONDS + 1), (500, 0.01)) * 3:
        broker.passable.sent(size)
        broker.now += seconds
        broker.passable.lost()
    assert broker.room == before


def test_a_larger_message_that_passes_is_proof() -> None:
    broker = Broker(10_000, hangs_up=False)
    before = broker.room
    broker.send(50_000)
    assert broker.room < before
    broker.limit = 10**6
    broker.send(50_000)
    assert broker.room == before


def test_after_many_rounds_it_is_tried_again() -> None:
    broker = Broker(10_000, hangs_up=False)
    before = broker.room
    broker.send(50_000)
    for _ in range(FORGET_ROUNDS):
        assert broker.room < before
        broker.passable.compared()
    assert broker.room == before


def test_what_a_broker_announces_holds_whatever_was_learnt() -> None:
    broker = Broker(10_000, hangs_up=False)
    broker.passable.announced(4_000)
    assert broker.room < 4_000
    broker.send(50_000)
    assert broker.room < 4_000
    assert broker.passable.room.passing([bytes(5_000)]) == []
