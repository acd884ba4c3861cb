"""How large a message a broker lets in, as far as it has said or shown.

Some brokers announce a limit. Some answer a message that is too large with a reason code, and some just hang up on whoever sent
it: a connection that ends right after such a message was sent, twice in a row, is taken for that. The smallest size that was
refused is remembered until a larger message passes, or for some rounds of comparing: the reason may be gone.
"""

from __future__ import annotations

from collections.abc import Callable

from tablecast.core.anti_entropy import LEAST_MESSAGE_BYTES, Room
from tablecast.core.publishing import LOSSES_BEFORE_CARE, PACKET_TOO_LARGE, SUSPICION_SECONDS

FORGET_ROUNDS = 60


class Passable:
    def __init__(self, clock: Callable[[], float], left_out: Callable[[int], None]) -> None:
        self._clock = clock
        self._left_out = left_out
        self._announced: int | None = None
        self._refused: int | None = None  # the smallest size
        self._unanswered: list[int] = []  # sizes of messages, in the order in which they were sent
        self._sent_at = float("-inf")
        self._losses = 0  # in a row, since a message as large as those passed
        self._suspect = 0  # the least of the largest messages unanswered at them
        self._rounds = 0  # since something was refused
        self.room = Room()

    def announced(self, limit: int | None) -> None:
        self._announced = limit
        self._decide()

    def sent(self, size: int) -> None:
        self._unanswered.append(size)
        self._sent_at = self._clock()

    def acknowledged(self, size: int, reason: int) -> None:
        if size in self._unanswered:
            self._unanswered.remove(size)
        if reason == PACKET_TOO_LARGE:
            self._learn(size)
        elif size >= (self._suspect if self._refused is None else self._refused):
            self._refused, self._losses = None, 0
            self._decide()

    def lost(self) -> None:
        """The connection ended."""
        largest = max(self._unanswered, default=0)
        self._unanswered.clear()
        if largest > LEAST_MESSAGE_BYTES and self._clock() - self._sent_at < SUSPICION_SECONDS:
            self._losses += 1
            self._suspect = largest if self._losses == 1 else min(largest, self._suspect)
            if self._losses >= LOSSES_BEFORE_CARE:
                self._learn(largest)

    def compared(self) -> None:
        """A round of comparing went well."""
        self._rounds += 1
        if self._rounds >= FORGET_ROUNDS:
            self._refused = None
            self._decide()

    def _learn(self, size: int) -> None:
        self._refused = size if self._refused is None else min(size, self._refused)
        self._rounds = 0
        self._decide()

    def _decide(self) -> None:
        if self._refused is None:
            self.room = Room(self._announced, self._announced, self._left_out)
        else:
            largest = self._refused - 1 if self._announced is None else min(self._refused - 1, self._announced)
            self.room = Room(min(self._refused // 2, largest), largest, self._left_out)
