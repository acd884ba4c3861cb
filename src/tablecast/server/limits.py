"""How often somebody may ask, and how often somebody may guess.

**Buckets.** A user or address may make so many requests a second, and save up a second's worth. Per name one number is
kept: the time at which its bucket is full again. A name whose time is past needs no entry at all, so memory follows
those who ask now, and it is bounded.

**Lock-out.** Wrong passwords are counted twice: for the user *from one address*, and for the address, whatever the name.
Both stop a guesser where it is, and touch nobody elsewhere: there is no count of a user from everywhere, because whoever
can write a name could shut its owner out with it. An attempt counts before its password is looked at: a thousand guesses
sent at once are not a thousand guesses free, and what is refused costs no hash. Attempts while locked out count for
nothing, so a lock-out always ends.

An address of IPv6 is its first 64 bits, which is what one customer has.

Time is `monotonic_clock`: a stepped wall clock neither frees nor holds anybody. All of it is in memory: a restart
forgets it, and costs a guesser nothing but the guesses it had anyway.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tablecast.errors import LockedOut, RateLimited

MAX_BUCKETS = 100_000  # names remembered by one limit; the longest-known is forgotten first
MAX_GUESSERS = 100_000  # pairs of user and address, and addresses, whose wrong passwords are counted

IPV6_BITS = 64  # of an address that count

Clock = Callable[[], int]
K = TypeVar("K")
V = TypeVar("V")


def monotonic_clock() -> int:
    """Milliseconds since some moment, never stepped."""
    return time.monotonic_ns() // 1_000_000


def network_of(address: str) -> str:
    """Whom an address stands for when requests are counted."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address  # of a socket that has none
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, IPV6_BITS), strict=False))
    return str(found)


class Recent(Generic[K, V]):
    """A dict of at most `limit` entries: the one put first goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Puts it last, whether it was there or not."""
        self._entries.pop(key, None)
        if len(self._entries) >= self._limit:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)


class Buckets:
    """`per_second` requests for each name, and bursts of a second's worth, at least one."""

    def __init__(self, what: str, per_second: float, clock: Clock, *, limit: int = MAX_BUCKETS) -> None:
        self._what = what
        self._per_second = per_second
        self._cost_ms = 1000 / per_second
        self._depth_ms = max(1000.0, self._cost_ms)
        self._clock = clock
        self._full_at: Recent[str, float] = Recent(limit)

    def take(self, name: str) -> None:
        """Takes one request's worth, or raises RateLimited and takes nothing."""
        now = self._clock()
        full_at = max(self._full_at.get(name) or 0.0, now) + self._cost_ms
        wait_ms = full_at - self._depth_ms - now
        if wait_ms > 1e-6:  # what rounding leaves
            raise RateLimited(
                f"{self._what} {name} makes more than {self._per_second:g} requests a second; slow down",
                retry_after_seconds=wait_ms / 1000,
            )
        self._full_at.put(name, full_at)


@dataclass(slots=True)
class _Wrong:
    """Wrong passwords so far; and whether there were too many before, in a time that is over."""

    count: int = 0
    last_ms: int = 0
    had_too_many: bool = False


class Lockout:
    """Addresses are as `network_of` makes them."""

    def __init__(
        self, attempts: int, attempts_per_address: int, seconds: float, clock: Clock, *, limit: int = MAX_GUESSERS
    ) -> None:
        self._attempts = attempts
        self._attempts_per_address = attempts_per_address
        self._window_ms = int(seconds * 1000)
        self._clock = clock
        self._of_pairs: Recent[tuple[str, str], _Wrong] = Recent(limit)
        self._of_addresses: Recent[str, _Wrong] = Recent(limit)

    def attempt(self, user: str, address: str) -> None:
        """Counts a wrong password in advance; raises LockedOut if there were too many."""
        of_pair = self._current(self._of_pairs, (user, address), self._attempts)
        of_address = self._current(self._of_addresses, address, self._attempts_per_address)
        self._check(of_pair, self._attempts, f"for {user} from {address}")
        self._check(of_address, self._attempts_per_address, f"from {address}")
        now = self._clock()
        self._of_pairs.put((user, address), replace(of_pair, count=of_pair.count + 1, last_ms=now))
        self._of_addresses.put(address, replace(of_address, count=of_address.count + 1, last_ms=now))

    def withdraw(self, user: str, address: str) -> None:
        """The attempt came to no answer: nothing was learned from it."""
        self._take_back(self._of_pairs, (user, address))
        self._take_back(self._of_addresses, address)

    def succeeded(self, user: str, address: str) -> bool:
        """True if the user had been locked out at this address before. What the address guessed at others still counts:
        else whoever has an account could guess for ever."""
        wrong = self._of_pairs.get((user, address))
        self._of_pairs.drop((user, address))
        self._take_back(self._of_addresses, address)
        return wrong is not None and wrong.had_too_many

    def _current(self, counts: Recent[K, _Wrong], key: K, bound: int) -> _Wrong:
        found = counts.get(key)
        if found is None:
            return _Wrong()
        is_over = self._clock() - found.last_ms >= self._window_ms
        return _Wrong(had_too_many=found.had_too_many or found.count >= bound) if is_over else found

    def _check(self, wrong: _Wrong, bound: int, where: str) -> None:
        if wrong.count >= bound:
            left_ms = wrong.last_ms + self._window_ms - self._clock()
            raise LockedOut(
                f"too many wrong passwords {where}; try again in {-(-left_ms // 1000)} s",
                retry_after_seconds=left_ms / 1000,
            )

    def _take_back(self, counts: Recent[K, _Wrong], key: K) -> None:
        found = counts.get(key)
        if found is not None:
            found.count = max(0, found.count - 1)
