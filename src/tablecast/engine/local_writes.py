"""What a local write to a replicated table adds to its commit: a version per row, and an event in the outbox.

The outbox is a log like that of a topic, hidden from users: topic 0, one partition, one message per event with the
event's bytes as its payload and the place of the row's version as its key. Its offsets count the events of this
database, so an event's number is known when it is written, in the very commit of its row: nothing is ever published
that a crash could take back, and nothing is committed that is not on its way.

A row that no event can tell (a key or value over the limits) is committed all the same. It has a number and an empty
message, so that there is no gap, and is set aside with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tablecast.codec import catalog as records
from tablecast.codec.catalog import decode_record
from tablecast.codec.events import encode_event
from tablecast.codec.log import MessageClass
from tablecast.codec.rows import Row
from tablecast.codec.versions import Kept
from tablecast.core.conflict import local_timestamp_ms
from tablecast.core.replicated_rows import ReplicatedRows
from tablecast.core.routing import Append, content_hash
from tablecast.engine.decision import Record, Sums, View
from tablecast.engine.identity import node_record, numbering
from tablecast.engine.logs import OUTBOX
from tablecast.engine.quarantine import quarantine_records, set_aside
from tablecast.engine.versions import VersionWrites
from tablecast.errors import InvalidEvent, Overloaded
from tablecast.model.change import ChangeRun, Op
from tablecast.model.replication import Event, Node, OutboxMark, Quarantined, Version
from tablecast.model.topic import PayloadMode
from tablecast.storage.base import Family, Reader

NOT_SENT = b""  # the message of an event that was set aside
_SHOWN = 256  # characters of a key that the record of its event keeps


@dataclass(slots=True)
class Replicated:
    """What a commit takes in besides the rows."""

    records: list[Record] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)
    set_aside: list[Quarantined] = field(default_factory=list)


NO_EVENTS = Replicated()


def local_writes(view: View, runs: Sequence[ChangeRun], outbox_limit: int | None) -> Replicated:
    """Raises Overloaded if the outbox holds `outbox_limit` events already."""
    replicated = [run for run in runs if view.catalog.tables[run.table_id].replica is not None]
    if not replicated:
        return NO_EVENTS
    if outbox_limit is not None:
        _require_room(view, outbox_limit)
    count = sum(len(run.keys) for run in replicated)
    node, is_news = numbering(view, count)
    telling = _Telling(view, node)
    for run in replicated:
        telling.tell(run)
    return Replicated(
        [
            *([node_record(node)] if is_news else []),
            *telling.versions.records,
            *quarantine_records(view, telling.set_aside),
        ],
        telling.appends,
        telling.versions.sums,
        [aside for _, aside in telling.set_aside],
    )


def outbox_mark(reader: Reader | View) -> OutboxMark:
    stored = reader.get(Family.META, records.OUTBOX_KEY)
    return OutboxMark() if stored is None else decode_record(OutboxMark, stored)


def _require_room(view: View, limit: int) -> None:
    pending = view.log_end(*OUTBOX) - outbox_mark(view).offset
    if pending >= limit:
        raise Overloaded(
            f"the outbox holds {pending} events that no broker has taken yet; its limit is {limit}. "
            "Retry when the broker is back",
            pending=pending,
            limit=limit,
        )


class _Telling:
    """Makes events of runs, one after the other."""

    def __init__(self, view: View, node: Node) -> None:
        self._view = view
        self._node_id = node.node_id
        self._seq = node.seq_at(view.log_end(*OUTBOX))  # of the next event; all of one commit are of one epoch
        self.versions = VersionWrites(view)
        self.appends: list[Append] = []
        self.set_aside: list[tuple[int, Quarantined]] = []

    def tell(self, run: ChangeRun) -> None:
        table = self._view.catalog.tables[run.table_id]
        replica = table.replica
        assert replica is not None
        rows = run.before if run.op is Op.DELETE else run.after
        event_keys = [replica.key(row) for row in rows]
        places = self.versions.places(run.table_id, event_keys, run.keys)
        payloads = [
            self._event(replica, place, key, None if run.op is Op.DELETE else row)
            for place, key, row in zip(places, event_keys, rows, strict=True)
        ]
        said = MessageClass(table.schema.full_name, run.op, PayloadMode.FULL, None)
        hashes = [content_hash(run.op, payload) for payload in payloads]
        self.appends.append(Append(*OUTBOX, said, places, payloads, hashes))

    def _event(self, replica: ReplicatedRows, place: bytes, key: str, row: Row | None) -> bytes:
        replaced = self.versions.at(place)
        timestamp_ms = local_timestamp_ms(self._view.ts_ms, None if replaced is None else replaced.version)
        version = Version(timestamp_ms, self._node_id, self._seq)
        self._seq += 1
        self.versions.put(place, key, Kept(version, row is None))
        value = None
        try:
            replica.check_key(key)
            value = None if row is None else replica.value(row)
            return encode_event(Event(key, version, value))
        except InvalidEvent as e:
            event, size = Event(key[:_SHOWN], version, None), len(key) + len(value or "")
            self.set_aside.append(set_aside(event, e.message, outgoing=True, size=size, time_ms=self._view.ts_ms))
            return NOT_SENT
