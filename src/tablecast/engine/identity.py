"""Who this database is among its peers: a name that is given once, and an epoch that changes when state may be lost.

Events are numbered `epoch << 32 | 1, 2, 3, …` without a gap within the epoch. A database that was restored from a backup
forgot the last numbers it gave; going on from the backup's would use them for other events, which peers would take for
those they know. So a restored database begins a new epoch, and a new one has a new epoch by itself: it is the time.
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
    return Node(name, (Epoch(_epoch_number(view.ts_ms), view.log_end(*OUTBOX)),))


def with_new_epoch(view: View, node: Node) -> Node:
    number = max(_epoch_number(view.ts_ms), node.epoch.number + 1)
    return msgspec.structs.replace(node, epochs=(*node.epochs, Epoch(number, view.log_end(*OUTBOX))))


def numbering(view: View, events: int) -> tuple[Node, bool]:
    """Whoever numbers this many events of this commit, and whether that is news."""
    node = stored_node(view)
    if node is None:
        return new_node(view), True
    if view.log_end(*OUTBOX) - node.epoch.first_offset + events > MAX_EPOCH_EVENTS:
        return with_new_epoch(view, node), True
    return node, False


def _epoch_number(ts_ms: int) -> int:
    return min(max(1, (ts_ms - EPOCHS_BEGIN_MS) // 1000), MAX_EPOCH)


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
