"""Who this database is among its peers: a name that is given once, and an epoch that changes when state may be lost.

Events are numbered `epoch << 32 | 1, 2, 3, …` without a gap within the epoch. A database that was restored from a backup
forgot the last numbers it gave; going on from the backup's would use them for other events, which peers would take for
those they know. So a restored database begins a new epoch, and a new one has a new epoch by itself: it is the time.

A device without a clock wakes up at the same time again and again, so where the time cannot be right the epoch is random,
out of a range that clocks do not reach. What follows a random epoch is random too: the same backup may be restored twice.

Files that went back some other way tell nobody. But the lost numbers come back from peers, and an event of ours that we
never wrote is the proof (`lost_state`): whoever hears of one begins a new epoch in the commit that takes it in.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from tablecast.codec import catalog as records
from tablecast.codec.catalog import decode_record, encode_record
from tablecast.engine.decision import Decision, Record, View
from tablecast.engine.logs import OUTBOX
from tablecast.errors import InvalidRequest, NodeMismatch
from tablecast.model.replication import MAX_EPOCH_EVENTS, Epoch, Node
from tablecast.storage.base import Family, Reader

EPOCHS_BEGIN_MS: Final = 1_767_225_600_000  # 2026-01-01 UTC: epochs are seconds since then
MAX_EPOCH: Final = 2**31 - 1  # numbers stay below 2^63
RANDOM_EPOCHS_BEGIN: Final = 2**30  # by the clock in 2060: those before are the time, these are random
RANDOM_EPOCHS_END: Final = MAX_EPOCH - 2**29  # of a first one: the rest is for those that follow it
RANDOM_STEPS: Final = 1_000  # a step to the next is at most that part of what is left: it lasts for far more of them
_NODE_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Identity(NamedTuple):
    node_id: str
    epoch: int


def identity_of(node: Node) -> Identity:
    return Identity(node.node_id, node.epoch.number)


def check_node_id(node_id: str) -> str:
    if not _NODE_ID.fullmatch(node_id):
        raise InvalidRequest(
            f"{node_id!r} is not a node id: use 1 to 64 letters, digits, dots, hyphens and underscores", node_id=node_id
        )
    return node_id


def stored_node(reader: Reader | View) -> Node | None:
    stored = reader.get(Family.META, records.NODE_KEY)
    return None if stored is None else decode_record(Node, stored)


def node_record(node: Node) -> Record:
    return Family.META, records.NODE_KEY, encode_record(node)


def new_node(view: View, node_id: str | None = None) -> Node:
    """A name that nobody chose is random: two databases must not have the same."""
    name = secrets.token_hex(4) if node_id is None else node_id
    number = _time_epoch(view.ts_ms)
    return Node(name, (Epoch(_random_epoch() if number is None else number, view.log_end(*OUTBOX)),))


def with_new_epoch(view: View, node: Node) -> Node:
    """Epochs without an event are not kept: however many begin, there are never more of them than events."""
    end = view.log_end(*OUTBOX)
    kept = tuple(epoch for epoch in node.epochs if epoch.first_offset < end)
    return msgspec.structs.replace(node, epochs=(*kept, Epoch(_next_epoch(view.ts_ms, node.epoch.number), end)))


def lost_state(view: View, node: Node, seq: int) -> bool:
    """Whether a number of ours, in an event that came from elsewhere, was given by a life of this database that is lost."""
    offset = node.offset_of(seq) if node.is_present(seq) else None
    return offset is not None and offset >= view.log_end(*OUTBOX)


def numbering(view: View, events: int) -> tuple[Node, bool]:
    """Whoever numbers this many events of this commit, and whether that is news."""
    node = stored_node(view)
    if node is None:
        return new_node(view), True
    if view.log_end(*OUTBOX) - node.epoch.first_offset + events > MAX_EPOCH_EVENTS:
        return with_new_epoch(view, node), True
    return node, False


def _time_epoch(ts_ms: int) -> int | None:
    """None if the time cannot be right."""
    number = (ts_ms - EPOCHS_BEGIN_MS) // 1000
    return number if 0 < number < RANDOM_EPOCHS_BEGIN else None


def _next_epoch(ts_ms: int, last: int) -> int:
    number = _time_epoch(ts_ms)
    if number is not None and number > last:
        return number
    if last >= RANDOM_EPOCHS_BEGIN:
        return last + 1 + secrets.randbelow(max(1, (MAX_EPOCH - last) // RANDOM_STEPS))
    return _random_epoch() if number is None else last + 1


def _random_epoch() -> int:
    return RANDOM_EPOCHS_BEGIN + secrets.randbelow(RANDOM_EPOCHS_END - RANDOM_EPOCHS_BEGIN)


@dataclass(slots=True)
class ClaimIdentity:
    """Gives the database its name; without one, keeps what it has or makes one up."""

    node_id: str | None
    weight: int = 1

    def decide(self, view: View) -> Decision:
        node = stored_node(view)
        if node is not None and self.node_id in (None, node.node_id):
            return Decision(identity_of(node))
        if node is not None and view.log_end(*OUTBOX) > 0:
            raise NodeMismatch(
                f"this database is the node {node.node_id!r}, and its rows carry that name; {self.node_id!r} needs "
                "a database of its own",
                node_id=node.node_id,
                given=self.node_id,
            )
        claimed = new_node(view, self.node_id)
        return Decision(identity_of(claimed), records=[node_record(claimed)])


@dataclass(slots=True)
class BeginEpoch:
    """For a database that may lack events it has published: one that was restored from a backup."""

    weight: int = 1

    def decide(self, view: View) -> Decision:
        node = stored_node(view)
        if node is None:
            return Decision(None)
        begun = with_new_epoch(view, node)
        return Decision(identity_of(begun), records=[node_record(begun)])
