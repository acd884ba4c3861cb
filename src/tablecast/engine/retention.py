"""Commands that remove what is over: old log batches; expired rows, keys and audit entries. All bounded and re-checked.

A job looks at a snapshot and proposes; the writer decides on what is there now. Expiry is not a change for topics: a row
whose time is over leaves no message. For who follows a table's rows it is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tablecast.codec import keys
from tablecast.codec.catalog import LOAD_WRITERS, AuditEntry, LoadWriter, LogStart, decode_record
from tablecast.core import failpoint
from tablecast.engine.audit import AUDIT_KEPT_MS
from tablecast.engine.decision import Decision, Record, View
from tablecast.engine.dedup import decode_seen
from tablecast.engine.idempotency import decode_remembered
from tablecast.engine.load_batches import forgotten_ms
from tablecast.engine.log import head_at, offset_at_time, offset_within_bytes
from tablecast.engine.logs import OUTBOX
from tablecast.engine.versions import kept_until_ms, removed_sums
from tablecast.model.topic import Topic
from tablecast.storage.base import Family, Reader


@dataclass(frozen=True, slots=True)
class Removed:
    count: int = 0
    bytes: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.count + other.count, self.bytes + other.bytes)


def retained_from(
    reader: Reader, topic: Topic, partition: int, *, now_ms: int, start: int, end: int, bytes_end: int
) -> int:
    """The offset before which the topic's retention lets go: first by age, then by size."""
    kept_from = start
    if topic.retention_seconds is not None:
        oldest_ms = now_ms - topic.retention_seconds * 1000
        kept_from = offset_at_time(reader, topic.topic_id, partition, oldest_ms, kept_from, end)
    if topic.retention_max_bytes is not None and kept_from < end:
        small_enough = offset_within_bytes(
            reader, topic.topic_id, partition, topic.retention_max_bytes, bytes_end, kept_from, end
        )
        newest = head_at(reader, topic.topic_id, partition, end - 1)  # stays, however small the limit is
        kept_from = max(kept_from, min(small_enough, newest.first_offset if newest else small_enough))
    return kept_from


@dataclass(slots=True)
class TrimLog:
    """Removes a partition's messages below `upto`, by range. `upto` is a batch's first offset or the log's end."""

    topic_id: int
    partition: int
    upto: int
    weight: int = 1

    def decide(self, view: View) -> Decision:
        place = self.topic_id, self.partition
        start = view.log_start(*place)
        is_there = self.topic_id in view.catalog.topics or place == OUTBOX
        if not is_there or not start < self.upto <= view.written_end(*place):
            return Decision(Removed())
        first, kept = head_at(view, *place, start), head_at(view, *place, self.upto)
        bytes_before = kept.bytes_before if kept else view.written_bytes(*place)
        failpoint.hit("during_retention")
        return Decision(
            Removed(self.upto - start, bytes_before - (first.bytes_before if first else bytes_before)),
            ranges=[(Family.LOG, keys.log_key(*place, start), keys.log_key(*place, self.upto))],
            log_starts={place: LogStart(self.upto, bytes_before)},
        )


@dataclass(slots=True)
class RemoveExpired:
    """Follows expiry entries whose time has come. One that comes too early, because of a later write or a window that
    grew, is filed again for the right time."""

    entries: list[bytes] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return len(self.entries)

    def decide(self, view: View) -> Decision:
        records: list[Record] = []
        expired: dict[bytes, bytes] = {}
        tombstones: dict[bytes, bytes] = {}
        gone: dict[tuple[str, bytes], int] = {}  # a key that was written twice has two entries
        for entry in self.entries:
            expires_ms, family, key = keys.decode_expiry_key(entry)
            if expires_ms > view.ts_ms:
                continue
            records.append((Family.EXPIRY, entry, None))
            value = view.get(Family(family), key)
            ends_ms = None if value is None else self._ends_ms(view, Family(family), key, value)
            if value is None or ends_ms is None:
                continue
            if ends_ms <= view.ts_ms:
                if family == Family.ROWS:
                    expired[key] = value
                else:
                    records.append((Family(family), key, None))
                if family == Family.VERSIONS:
                    tombstones[key] = value
                gone[family, key] = len(key) + len(value)
            else:
                records.append((Family.EXPIRY, keys.expiry_key(ends_ms, family, key), b""))
        sums = removed_sums(view.catalog, tombstones)
        return Decision(Removed(len(gone), sum(gone.values())), records=records, expired=expired, sums=sums)

    def _ends_ms(self, view: View, family: Family, key: bytes, value: bytes) -> int | None:
        """When what is stored expires; None for never."""
        if family is Family.ROWS:
            table = view.catalog.tables.get(int.from_bytes(key[:4], "big"))
            if table is None:
                return 0
            return None if table.ttl_ms is None else table.stamp(value)[1] + table.ttl_ms
        if family is Family.VERSIONS:
            return kept_until_ms(value)
        if family is Family.META and key.startswith(LOAD_WRITERS):
            return forgotten_ms(decode_record(LoadWriter, value))
        if family is Family.META:
            return decode_record(AuditEntry, value).time_ms + AUDIT_KEPT_MS
        if key[:1] == b"i":
            return decode_remembered(value).expires_ms
        topic = view.catalog.topics.get(int.from_bytes(key[1:5], "big"))
        return 0 if topic is None else decode_seen(value) + topic.dedup_window_seconds * 1000
