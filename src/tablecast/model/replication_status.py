"""How replication goes, as one value: for people, for metrics, for whoever waits until an outbox is empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class OutboxStatus(NamedTuple):
    """How the outbox goes: what whoever waits for it, or draws it, needs."""

    pending: int  # events that no broker has acknowledged
    online: bool
    last_flush_ms: int | None  # when the broker had acknowledged every event that there was


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """Counts are since the node was started; what a database knows without one is in the first four."""

    node_id: str | None = None  # None: nothing was replicated yet
    sequence: int = 0  # the number of this node's last event
    pending: int = 0  # events that no broker has acknowledged
    given_up: int = 0  # events that were ever dropped for want of room
    broker: str | None = None  # its address, without credentials
    online: bool = False
    last_flush_ms: int | None = None  # when the broker had acknowledged every event that there was
    last_error: str | None = None
    last_error_ms: int | None = None
    published: int = 0
    publish_errors: int = 0  # events that were refused by the broker, or could not be made
    set_aside: int = 0  # of them those that are not sent again: they are in the quarantine
    applied: int = 0
    beaten: int = 0  # events that lost against what was here
    seen: int = 0  # events that came again
    quarantined: int = 0
    ahead: int = 0  # events of clocks that are more than five minutes ahead
    peers: tuple[str, ...] = ()  # nodes that are online now
    last_compared_ms: int | None = None  # when a comparison with a peer last came to its end
    rounds: int = 0  # comparisons with a peer that came to their end
    differing: int = 0  # of them those that found something
    pulled: int = 0  # events that they brought
    pushed: int = 0  # and gave

    @property
    def outbox_status(self) -> OutboxStatus:
        return OutboxStatus(self.pending, self.online, self.last_flush_ms)
