"""Last writer wins: which of two writes to one row stays.

A write's version is (timestamp_ms, node_id, seq), and the greater version wins, at its origin and at every peer. That is
all that replicas need to end up equal: each keeps the greatest version it has seen, in whatever order they came.

**Local writes.** A write takes the time of its commit, or one millisecond more than the version it replaces if that is
later. So a write beats what its writer saw, here and everywhere, however far the clock of the other one is ahead: an
acknowledged write is never taken back by the older one that it replaced.

**Clocks that are ahead.** Timestamps more than five minutes ahead of a node's clock are clamped for comparison. Taken
alone that rule breaks replication: two timestamps that are both clamped become equal, the node's name decides, and a
minute later, or on a node whose clock is a minute further, they are not clamped and the time decides. Two replicas then
keep different rows for ever. So the timestamp as it was written comes second:

    (min(timestamp_ms, now + 5 min), timestamp_ms, node_id, seq)

Clamping keeps order (a <= b gives min(a, c) <= min(b, c)) and the unclamped time decides what it made equal, so this is
the same order at every moment and on every node: that of (timestamp_ms, node_id, seq). A clock that is ahead is
therefore not corrected, and cannot be without knowing the right time; it is counted and warned of.

**The end of time.** No node takes an event beyond `MAX_TIMESTAMP_MS`, so none may write one either: a row that everybody
else refuses would differ for ever. A row that is at the limit has no later version, and a write to it is refused.
"""

from __future__ import annotations

from typing import Final

from tablecast.errors import Conflict
from tablecast.model.replication import Version

CLOCK_AHEAD_MS: Final = 5 * 60_000  # what clocks may differ before it is worth a warning
MAX_TIMESTAMP_MS: Final = 2**62  # of an event, whoever writes it: a clock is not there for another 146 million years


def beats(one: Version, other: Version) -> bool:
    """Whether the first of two writes stays. No clock has a say in it."""
    return one > other


def is_ahead(version: Version, now_ms: int) -> bool:
    return version.timestamp_ms > now_ms + CLOCK_AHEAD_MS


def local_timestamp_ms(now_ms: int, replaced: Version | None) -> int:
    """The time of a local write: later than what it replaces. Raises Conflict if no later time is left."""
    timestamp_ms = now_ms if replaced is None else max(now_ms, replaced.timestamp_ms + 1)
    if timestamp_ms > MAX_TIMESTAMP_MS:
        raise Conflict(
            f"the row was last written at {timestamp_ms - 1} ms, by a clock at the end of all time: no write can be later",
            timestamp_ms=timestamp_ms - 1,
        )
    return timestamp_ms
