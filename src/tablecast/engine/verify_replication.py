"""Proves what is kept for replication sound, as part of `verify`. Every fact is told twice:

row           has the version of a row, and there is no other such version than of rows
tombstone     has no row, and an expiry entry
version       lies in the bucket of its row's event key, of a timestamp that nodes take
bucket        is the sum of its versions, computed anew
outbox        each event is of this node, has the number of its offset, and the row that its message's key names;
              the version of a row that this node wrote last is that of an event still in the outbox, if it is there
marks         the outbox's lies within its log; the epochs of the node begin one after the other; what was seen of
              other nodes are spans in order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import decode_record
from tablecast.codec.events import decode_event
from tablecast.codec.log import LogBatch
from tablecast.codec.versions import (
    Kept,
    decode_bucket_key,
    decode_version,
    decode_version_key,
)
from tablecast.core.merkle import NOTHING, Sum, bucket_of, entry_sum
from tablecast.core.routing import content_hash
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.identity import stored_node
from tablecast.engine.local_writes import NOT_SENT, outbox_mark
from tablecast.engine.logs import OUTBOX, LogState
from tablecast.engine.quarantine import quarantined
from tablecast.engine.versions import stored_sum, tombstone_ends_ms
from tablecast.errors import TablecastError
from tablecast.model.replication import Node, SeenEvents
from tablecast.storage.base import Family, Reader

Bad = Callable[[str], None]


def check_replication(reader: Reader, catalog: Catalog, logs: LogState, batches: Iterator[LogBatch], bad: Bad) -> int:
    """Tells `bad` whatever is wrong. `batches` are those of the outbox. Returns how many versions there are."""
    _check_strays(reader, catalog, bad)
    _check_marks(reader, logs, bad)
    node = stored_node(reader)
    written: dict[bytes, int] = {}  # place of a version -> offset of the last event of it
    for batch in batches:
        _Outbox(node, bad).check(batch, written)
    count = 0
    for table in catalog.tables.values():
        if table.replica is not None:
            count += _TableVersions(reader, table, node, written, bad).check()
    return count


def _check_strays(reader: Reader, catalog: Catalog, bad: Bad) -> None:
    kept = {table.table_id for table in catalog.tables.values() if table.replica is not None}
    for family in (Family.VERSIONS, Family.BUCKETS):
        start = b""
        for table_id in [*sorted(kept), None]:
            end = None if table_id is None else keys.table_prefix(table_id)
            for key, _ in reader.scan(family, start, end):
                bad(f"{family} has an entry {key.hex()} of a table that is not replicated")
                break
            start = b"" if table_id is None else keys.table_prefix(table_id + 1)


def _check_marks(reader: Reader, logs: LogState, bad: Bad) -> None:
    log, mark = logs.at(*OUTBOX), outbox_mark(reader)
    if not log.start.offset <= mark.offset <= log.next_offset:
        bad(f"the outbox is published up to {mark.offset}, but holds {log.start.offset} to {log.next_offset}")
    node = stored_node(reader)
    if node is None and log.next_offset:
        bad("the outbox has events, but the database has no node id")
    for earlier, later in pairwise(() if node is None else node.epochs):
        if later.number <= earlier.number or later.first_offset < earlier.first_offset:
            bad(f"epoch {later.number} follows {earlier.number}, but does not come after it")
    for key, value in reader.scan(Family.META, records.SEEN, keys.after(records.SEEN)):
        spans = decode_record(SeenEvents, value).spans
        if any(first > last for first, last in spans) or any(a[1] + 1 >= b[0] for a, b in pairwise(spans)):
            bad(f"what was seen of node {key[len(records.SEEN) :]!r} is not spans in order")
    quarantined(reader)


class _Outbox:
    def __init__(self, node: Node | None, bad: Bad) -> None:
        self._node = node
        self._bad = bad

    def check(self, batch: LogBatch, written: dict[bytes, int]) -> None:
        for message in batch.messages(*OUTBOX):
            written[message.key] = message.offset
            where = f"the event at offset {message.offset} of the outbox"
            if content_hash(message.op, message.payload) != message.content_hash:
                self._bad(f"{where} does not match its content hash")
            if message.payload != NOT_SENT and self._node is not None:
                self._check_event(where, message.payload, self._node, message.offset, message.key)

    def _check_event(self, where: str, data: bytes, node: Node, offset: int, place: bytes) -> None:
        try:
            event = decode_event(data)
            _, bucket, _ = decode_version_key(place)
        except TablecastError as e:
            self._bad(f"{where}: {e.message}")
            return
        if (event.version.node_id, event.version.seq) != (node.node_id, node.seq_at(offset)):
            self._bad(f"{where} is number {event.version.seq} of {event.version.node_id}, not {node.seq_at(offset)}")
        if bucket != bucket_of(event.key):
            self._bad(f"{where} is of {event.key!r}, which is of another bucket")


class _TableVersions:
    def __init__(self, reader: Reader, table: Table, node: Node | None, written: dict[bytes, int], bad: Bad) -> None:
        assert table.replica is not None
        self._reader = reader
        self._table = table
        self._replica = table.replica
        self._node = node
        self._written = written
        self._bad = bad
        self._name = table.schema.full_name
        self._prefix = keys.table_prefix(table.table_id)

    def check(self) -> int:
        sums: dict[int, Sum] = {}
        count = living = 0
        for key, value in self._scan(Family.VERSIONS):
            _, bucket, row_key = decode_version_key(key)
            kept = decode_version(value)
            event_key = self._replica.key_at(row_key, len(self._prefix))
            sums[bucket] = sums.get(bucket, NOTHING) + entry_sum(event_key, *kept)
            if bucket != bucket_of(event_key):
                self._bad(f"the version of {event_key!r} lies in bucket {bucket}, which is not its own")
            self._check_kept(event_key, key, row_key, kept)
            count += 1
            living += not kept.tombstone
        self._check_rows(living)
        self._check_buckets(sums)
        return count

    def _scan(self, family: Family) -> Iterator[tuple[bytes, bytes]]:
        return self._reader.scan(family, self._prefix, keys.after(self._prefix))

    def _check_kept(self, event_key: str, place: bytes, row_key: bytes, kept: Kept) -> None:
        is_there = self._reader.get(Family.ROWS, row_key) is not None
        if is_there == kept.tombstone:
            self._bad(f"{event_key!r} has a {'tombstone and a row' if is_there else 'version, but no row'}")
        if kept.tombstone:
            entry = keys.expiry_key(tombstone_ends_ms(kept.version), Family.VERSIONS, place)
            if self._reader.get(Family.EXPIRY, entry) is None:
                self._bad(f"the tombstone of {event_key!r} has no expiry entry")
        self._check_origin(event_key, place, kept)

    def _check_origin(self, event_key: str, place: bytes, kept: Kept) -> None:
        """A version of ours whose event is still kept: the last event of its row, then, is that one."""
        offset = self._written.get(place)
        if offset is None or self._node is None or kept.version.node_id != self._node.node_id:
            return
        mine = self._node.offset_of(kept.version.seq)
        if mine is not None and self._node.is_present(kept.version.seq) and mine != offset:
            self._bad(f"{event_key!r} is of event {mine} of the outbox, but the last event of it is {offset}")

    def _check_rows(self, living: int) -> None:
        rows = sum(1 for _ in self._scan(Family.ROWS))
        if rows != living:
            self._bad(f"{self._name} has {rows} rows, and versions of {living}")

    def _check_buckets(self, sums: dict[int, Sum]) -> None:
        stored = {decode_bucket_key(key)[1]: stored_sum(value) for key, value in self._scan(Family.BUCKETS)}
        for bucket in sorted(sums.keys() | stored.keys()):
            if sums.get(bucket) != stored.get(bucket):
                self._bad(f"bucket {bucket} of {self._name} is not the sum of its versions")
                return
