"""How often something is tried, and how long to wait in between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tablecast.errors import InvalidRequest

chance = Random()  # for pauses. Our own: who seeds `random` must not find that others draw from it


@dataclass(frozen=True, slots=True)
class Retry:
    """Up to `attempts`, with doubling waits between them, as long as all of it takes less than `total_seconds`.

    For a handler: within one delivery of a message. For a client: one request that can be repeated safely; there the
    waits are shortened at random by up to half, so that clients that failed together do not come back together.
    """

    attempts: int = 1
    backoff_seconds: float = 0.1
    max_backoff_seconds: float = 10.0
    total_seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequest(f"attempts is {self.attempts}: there is at least 1 attempt", attempts=self.attempts)
        if min(self.backoff_seconds, self.max_backoff_seconds, self.total_seconds) < 0:
            raise InvalidRequest(f"{self}: seconds are not negative")

    def backoffs(self) -> Iterator[float]:
        """Seconds to wait after each failed attempt; none after the last one."""
        wait = self.backoff_seconds
        for _ in range(self.attempts - 1):
            yield wait
            wait = min(wait * 2, self.max_backoff_seconds)


REQUEST_RETRY = Retry(attempts=8, backoff_seconds=0.1, max_backoff_seconds=5.0, total_seconds=30.0)
