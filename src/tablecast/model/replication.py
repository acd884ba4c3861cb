"""Replication among nodes: events, versions, and what a node keeps about itself and the others."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

SEQ_SHIFT = 32  # an event number is the epoch above the count within it
MAX_EPOCH_EVENTS = 2**SEQ_SHIFT - 1


class Version(NamedTuple):
    """Which write a row is of. As a tuple it orders as writes do: see `core.conflict`.

    Python compares texts by code point, which is the order of their UTF-8 bytes.
    """

    timestamp_ms: int
    node_id: str
    seq: int


class Event(NamedTuple):
    """One write to one row, as nodes tell it to each other. `value` is None for a tombstone."""

    key: str
    version: Version
    value: str | None

    @property
    def tombstone(self) -> bool:
        return self.value is None


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """Events from this outbox offset on are numbered `number << 32 | 1`, `| 2`, …"""

    number: int
    first_offset: int


class Node(msgspec.Struct, frozen=True):
    """Who this database is among its peers. The last epoch is the present one; a new one begins whenever state may
    have been lost, so that a number never stands for two events."""

    node_id: str
    epochs: tuple[Epoch, ...]

    @property
    def epoch(self) -> Epoch:
        return self.epochs[-1]

    def seq_at(self, offset: int) -> int:
        """The number of the event at an offset of the outbox."""
        epoch = next(e for e in reversed(self.epochs) if e.first_offset <= offset)
        return epoch.number << SEQ_SHIFT | offset - epoch.first_offset + 1

    def offset_of(self, seq: int) -> int | None:
        """Where the event of that number stands in the outbox, or would; None if no epoch of this node has it."""
        for epoch in self.epochs:
            if epoch.number == seq >> SEQ_SHIFT and seq & MAX_EPOCH_EVENTS:
                offset: int = epoch.first_offset + (seq & MAX_EPOCH_EVENTS) - 1
                return offset
        return None

    def is_present(self, seq: int) -> bool:
        """Whether the number is of the present epoch. Of an earlier one, others may have been given that were lost."""
        return seq >> SEQ_SHIFT == self.epoch.number


class OutboxMark(msgspec.Struct, frozen=True):
    """Events below `offset` are published, or were given up: dropped for want of room, or set aside. `skipped` are set
    aside and not below it yet."""

    offset: int = 0
    dropped: int = 0
    skipped: tuple[int, ...] = ()


class SeenEvents(msgspec.Struct, frozen=True):
    """Numbers of one node's events that were taken in: inclusive spans, ascending, with gaps between them."""

    spans: tuple[tuple[int, int], ...] = ()


class Quarantined(msgspec.Struct, frozen=True):
    """An event that was set aside, and why. `outgoing`: one of ours that no peer would take. What was not even an
    event has no key."""

    reason: str
    outgoing: bool
    key: str | None = None
    node_id: str | None = None
    seq: int | None = None
    bytes: int = 0
    time_ms: int = 0
