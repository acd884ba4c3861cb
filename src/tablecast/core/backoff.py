"""How long to wait before the next attempt: 1, 2, 4 … 32 seconds, each up to a fifth shorter or longer.

The spread keeps nodes that lost the same broker from coming back in the same instant.
"""

from __future__ import annotations

from collections.abc import Callable

FIRST_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 32.0  # a node that was away for an hour is back within half a minute of its broker
SPREAD = 0.2

Chance = Callable[[], float]  # in [0, 1)


class Backoff:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._seconds = FIRST_SECONDS

    def next(self) -> float:
        """Seconds to wait now; the wait after it is twice as long."""
        seconds, self._seconds = self._seconds, min(self._seconds * 2, MAX_BACKOFF_SECONDS)
        return seconds * (1 + SPREAD * (2 * self._chance() - 1))

    def reset(self) -> None:
        """It went well: the next wait is the shortest again."""
        self._seconds = FIRST_SECONDS
