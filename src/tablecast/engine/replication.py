"""Replication as the engine offers it to whoever carries events between nodes (tablecast.edge).

    local write ──▶ version, bucket, event in the outbox      one commit (engine.local_writes)
    outbox      ──▶ read, send, `Published`                   a mark that only moves on (engine.outbox)
    event       ──▶ `ApplyEvents`                             one commit (engine.apply_events)
    comparison  ──▶ roots, children, entries, events_for      sums of versions (engine.replicas, core.merkle)

Nothing here knows how events travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from tablecast.engine.apply_events import LIVE, ApplyEvents, Outcome
from tablecast.engine.identity import BeginEpoch, ClaimIdentity, Identity, check_node_id, identity_of, stored_node
from tablecast.engine.logs import OUTBOX
from tablecast.engine.outbox import Outbox, OutboxEntry, Published
from tablecast.engine.quarantine import ClearQuarantine, quarantined
from tablecast.engine.replicas import Entry, Replicas, durable_replicas
from tablecast.model.replication import SEQ_SHIFT, Quarantined
from tablecast.model.replication_status import OutboxStatus, ReplicationStatus

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine


class Carrier(Protocol):
    """Whoever brings events to a broker and from it."""

    def status(self) -> ReplicationStatus: ...
    def watch(self) -> Iterator[ReplicationStatus]: ...
    def stop(self) -> None: ...


class Replication:
    """Every call may wait for the disk but those that say otherwise."""

    outbox_topic_id = OUTBOX[0]  # for `engine.feed.subscribe`: woken when there is something to publish

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._outbox = Outbox(engine)
        self.carrier: Carrier | None = None  # who carries events now, if anybody does

    # --- who we are ---

    def identity(self) -> Identity | None:
        """None as long as nobody claimed one and no replicated row was written. Never waits."""
        node = stored_node(self._engine.store)
        return None if node is None else identity_of(node)

    def claim_identity(self, node_id: str | None = None) -> Identity:
        """Gives this database its name, once. Raises NodeMismatch if it has another, under which it has events."""
        claimed: Identity = self._engine.execute(ClaimIdentity(None if node_id is None else check_node_id(node_id)))
        return claimed

    def begin_epoch(self) -> Identity | None:
        """To be called once for a database that is older than what it published: it was restored from a backup."""
        begun: Identity | None = self._engine.execute(BeginEpoch())
        return begun

    def sequence(self) -> int:
        """The number of the last event; of none, the one before the first. Never waits."""
        node = stored_node(self._engine.store)
        if node is None:
            return 0
        return node.epoch.number << SEQ_SHIFT | self._engine.log_range(*OUTBOX)[1] - node.epoch.first_offset

    def status(self) -> ReplicationStatus:
        """How replication goes. Never waits."""
        if self.carrier is not None:
            return self.carrier.status()
        identity = self.identity()
        name = None if identity is None else identity.node_id
        return ReplicationStatus(name, self.sequence(), self.pending(), self.dropped())

    def outbox_status(self) -> OutboxStatus:
        """Of the status, what is about the outbox: pending, online, last flush. Never waits."""
        return self.status().outbox_status

    def watch(self) -> Iterator[ReplicationStatus]:
        """The status now, and again whenever it changed, until replication is stopped."""
        return iter([self.status()]) if self.carrier is None else self.carrier.watch()

    # --- out ---

    def outbox(self, limit: int, after: int | None = None) -> list[OutboxEntry]:
        """Events that wait, in order: at most `limit`, above the mark and above `after`."""
        return self._outbox.read(limit, after)

    def published(self, seq: int) -> int:
        """Moves the mark: the broker has everything up to this event. Returns by how many it moved."""
        moved: int = self._engine.execute(Published(seq))
        return moved

    def pending(self) -> int:
        """How many events wait. Never waits itself."""
        return self._outbox.pending()

    def dropped(self) -> int:
        """How many events were ever given up for want of room. Never waits."""
        return self._outbox.dropped()

    @property
    def block_above(self) -> int | None:
        """Local writes to replicated tables get Overloaded while this many events or more wait; None: never."""
        return self._engine.outbox_limit

    @block_above.setter
    def block_above(self, limit: int | None) -> None:
        self._engine.outbox_limit = limit

    # --- in ---

    def apply(self, events: Sequence[bytes], *, source: str = LIVE) -> list[Outcome]:
        """Takes in events of other nodes; durable when it returns."""
        outcomes: list[Outcome] = self._engine.execute(ApplyEvents(events, source))
        return outcomes

    # --- comparing ---

    def replicas(self) -> Replicas:
        """What this node has, at one moment and durable: for several questions that belong together."""
        return durable_replicas(self._engine)

    def roots(self) -> dict[str, bytes]:
        return self.replicas().roots()

    def children(self, table: str, level: int, index: int) -> list[bytes]:
        return self.replicas().children(table, level, index)

    def entries(self, table: str, bucket: int) -> list[Entry]:
        return self.replicas().entries(table, bucket)

    def events_for(self, table: str, keys: Sequence[str]) -> list[bytes]:
        return self.replicas().events_for(table, keys)

    # --- what was set aside ---

    def quarantine(self) -> list[Quarantined]:
        """The oldest first. Never waits."""
        return quarantined(self._engine.store)

    def clear_quarantine(self) -> int:
        """Forgets them. Returns how many there were."""
        count: int = self._engine.execute(ClearQuarantine())
        return count
