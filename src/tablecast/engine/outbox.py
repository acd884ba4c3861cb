"""The outbox: this database's own events on their way to a broker. A reader's cursor over a log, not a second queue.

The log is written by the commits that made the events (engine.local_writes). What is published is a mark, moved by a
command when the broker has said that it has an event; events below it are removed now and then.

Only what is durable is ever handed out. An event that were published and then lost in a crash would leave its number to
another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tablecast.codec import catalog as records
from tablecast.codec.catalog import encode_record
from tablecast.codec.events import decode_event
from tablecast.codec.versions import decode_version
from tablecast.engine.decision import Decision, View
from tablecast.engine.identity import stored_node
from tablecast.engine.local_writes import NOT_SENT, outbox_mark
from tablecast.engine.log import head_at, read_messages
from tablecast.engine.logs import OUTBOX
from tablecast.engine.quarantine import quarantine_records, set_aside
from tablecast.engine.replicas import settle
from tablecast.engine.retention import TrimLog
from tablecast.errors import OffsetOutOfRange
from tablecast.model.message import Message
from tablecast.model.replication import Node, OutboxMark
from tablecast.storage.base import Family

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine

TRIM_EVENTS: Final = 1_000  # published events that are removed together: a removal by range costs later reads a little


class OutboxEntry(NamedTuple):
    """An event that waits to be published. `superseded`: its row was written again since, by whomever."""

    seq: int
    data: bytes
    superseded: bool


class Outbox:
    """Reads what waits. Any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pending(self) -> int:
        """How many events no broker has taken yet; those that were set aside count until the mark is past them."""
        return max(0, self._engine.log_range(*OUTBOX)[1] - outbox_mark(self._engine.store).offset)

    def dropped(self) -> int:
        return outbox_mark(self._engine.store).dropped

    def read(self, limit: int, after: int | None = None) -> list[OutboxEntry]:
        """At most `limit` events, in order, with numbers above `after`. What was set aside is left out."""
        end = self._durable_end()
        node = stored_node(self._engine.store)
        if node is None:
            return []
        mark = outbox_mark(self._engine.store)
        offset = max(mark.offset, _following(node, after))
        try:
            found, reached = self._read(node, mark, offset, end, limit)
        except OffsetOutOfRange:
            if outbox_mark(self._engine.store).offset == mark.offset:
                raise
            return self.read(limit, after)  # published and removed since the mark was read
        if not found and reached > mark.offset and after is None:
            self._engine.submit(Published(node.seq_at(reached - 1)))  # nothing but what was set aside: it is done with
        return found

    def _read(self, node: Node, mark: OutboxMark, offset: int, end: int, limit: int) -> tuple[list[OutboxEntry], int]:
        """The events from `offset` on, and the offset after the last that was looked at."""
        found: list[OutboxEntry] = []
        while offset < end and len(found) < limit:
            messages = read_messages(self._engine.store, *OUTBOX, offset, end, limit - len(found))
            if not messages:
                break  # all of them were removed meanwhile
            sent = [m for m in messages if m.payload != NOT_SENT and m.offset not in mark.skipped]
            found += self._entries(node, sent)
            offset += len(messages)
        return found, offset

    def _durable_end(self) -> int:
        end = self._engine.log_range(*OUTBOX)[1]
        if not self._engine.durability.on_commit:
            settle(self._engine)
        return end

    def _entries(self, node: Node, messages: list[Message]) -> list[OutboxEntry]:
        """A message's key is the place of its row's version: if that is of another write, the event is superseded.

        If there is none the event was a tombstone, whose time is over here, and which peers must still hear of.
        """
        stored = self._engine.store.get_many(Family.VERSIONS, [m.key for m in messages])
        entries = []
        for message, value in zip(messages, stored, strict=True):
            seq = node.seq_at(message.offset)
            version = None if value is None else decode_version(value).version
            is_superseded = version is not None and (version.node_id, version.seq) != (node.node_id, seq)
            entries.append(OutboxEntry(seq, message.payload, is_superseded))
        return entries


def _following(node: Node, seq: int | None) -> int:
    """The offset after that of an event."""
    offset = None if seq is None else node.offset_of(seq)
    return 0 if offset is None else offset + 1


def _moved(view: View, mark: OutboxMark, offset: int) -> Decision:
    """The mark at a later offset, past what follows it and was set aside, and the log without what is below."""
    offset = min(offset, view.written_end(*OUTBOX))
    if offset <= mark.offset:
        return Decision(0)
    moved = offset - mark.offset
    skipped = {at for at in mark.skipped if at >= offset}
    while offset in skipped:
        skipped.remove(offset)
        offset += 1
    record = msgspec.structs.replace(mark, offset=offset, skipped=tuple(sorted(skipped)))
    trimmed = _trimmed(view, offset)
    trimmed.response = moved
    trimmed.records.append((Family.META, records.OUTBOX_KEY, encode_record(record)))
    return trimmed


def _trimmed(view: View, offset: int) -> Decision:
    if offset - view.log_start(*OUTBOX) < TRIM_EVENTS:
        return Decision()
    kept = head_at(view, *OUTBOX, offset)
    return TrimLog(*OUTBOX, offset if kept is None else kept.first_offset).decide(view)


@dataclass(slots=True)
class Published:
    """The broker has every event up to this number. Its answer is by how many the mark moved."""

    seq: int
    weight: int = 1

    def decide(self, view: View) -> Decision:
        node = stored_node(view)
        return Decision(0) if node is None else _moved(view, outbox_mark(view), _following(node, self.seq))


@dataclass(slots=True)
class DropOldest:
    """Gives up the oldest events, for want of room. Its answer is how many there were."""

    count: int
    weight: int = 1

    def decide(self, view: View) -> Decision:
        mark = outbox_mark(view)
        dropped = min(self.count, view.written_end(*OUTBOX) - mark.offset)
        if dropped <= 0:
            return Decision(0)
        counted = msgspec.structs.replace(mark, dropped=mark.dropped + dropped)
        return _moved(view, counted, mark.offset + dropped)


@dataclass(slots=True)
class Quarantine:
    """Sets one event of the outbox aside: the broker will never take it. Its answer: whether it was there."""

    seq: int
    reason: str
    weight: int = 1

    def decide(self, view: View) -> Decision:
        node, mark = stored_node(view), outbox_mark(view)
        offset = None if node is None else node.offset_of(self.seq)
        if offset is None or not mark.offset <= offset < view.written_end(*OUTBOX) or offset in mark.skipped:
            return Decision(False)
        [message] = read_messages(view, *OUTBOX, offset, offset + 1, 1)
        written = []
        if message.payload != NOT_SENT:
            event = decode_event(message.payload)
            aside = set_aside(event, self.reason, outgoing=True, size=len(message.payload), time_ms=view.ts_ms)
            written = quarantine_records(view, [aside])
        if offset == mark.offset:
            decision = _moved(view, mark, offset + 1)
        else:
            record = msgspec.structs.replace(mark, skipped=tuple(sorted((*mark.skipped, offset))))
            decision = Decision(records=[(Family.META, records.OUTBOX_KEY, encode_record(record))])
        decision.response = True
        decision.records += written
        return decision
