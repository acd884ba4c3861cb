"""From the broker into the tables: events are gathered, applied in one commit, and acknowledged when that is durable.

While one commit is under way the next events gather; the broker sends only so many without an acknowledgement, so the
gathering is bounded. Nothing is acknowledged that a crash could take back. What was applied and not yet acknowledged comes
again, and is known by its number.

A commit that fails (a full queue, a full disk) leaves its events unacknowledged and is tried again after a while.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tablecast.core.backoff import Backoff, Chance
from tablecast.edge.base import Delivery, Link, Loop, Replica, Source
from tablecast.edge.status import StatusBoard

EVENTS_PER_COMMIT = 500


class Applier:
    def __init__(self, replica: Replica, link: Link, loop: Loop, board: StatusBoard, chance: Chance) -> None:
        self._replica = replica
        self._link = link
        self._loop = loop
        self._board = board
        self._backoff = Backoff(chance)
        self._gathered: deque[Delivery] = deque()
        self._under_way: list[Delivery] = []
        self._due = False

    def delivered(self, delivery: Delivery) -> None:
        self._gathered.append(delivery)
        self._look()

    def disconnected(self) -> None:
        """What was not handed over yet comes again."""
        self._gathered.clear()

    @property
    def busy(self) -> bool:
        return bool(self._under_way or self._gathered)

    def _look(self) -> None:
        if not self._due and not self._under_way:
            self._due = True
            self._loop.call_soon(self._apply)

    def _apply(self) -> None:
        self._due = False
        if not self._gathered or self._under_way:
            return
        count = min(len(self._gathered), EVENTS_PER_COMMIT)
        self._under_way = [self._gathered.popleft() for _ in range(count)]
        self._hand_over()

    def _hand_over(self) -> None:
        self._replica.apply([delivery.payload for delivery in self._under_way], Source.LIVE, self._applied)

    def _applied(self, outcomes: Any, error: BaseException | None) -> None:
        if error is not None:
            self._board.failed(error)
            self._loop.call_later(self._backoff.next(), self._hand_over)
            return
        self._backoff.reset()
        self._board.took(outcomes)
        for delivery in self._under_way:
            self._link.acknowledge(delivery)
        self._under_way = []
        self._look()
