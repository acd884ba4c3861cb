"""What this node has of the replicated tables, for other nodes to compare with: sums, entries and events.

Read from a snapshot of which every commit is durable: an event of ours that a peer got from here and a crash then took
back would leave its number to another event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tablecast.codec import keys
from tablecast.codec.events import encode_event
from tablecast.codec.versions import (
    bucket_key,
    decode_bucket_key,
    decode_version,
    decode_version_key,
    version_key,
)
from tablecast.core.merkle import BUCKETS, DEPTH, FANOUT, Sum, bucket_of, buckets_below, children, node_sum
from tablecast.core.replicated_rows import ReplicatedRows
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.decision import Decision, View
from tablecast.engine.versions import stored_sum
from tablecast.errors import InvalidEvent, InvalidRequest, UnknownTable, WritesStopped
from tablecast.model.replication import Event, Version
from tablecast.storage.base import Family, Reader

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine

SUM_BYTES = 16


class Entry(NamedTuple):
    """One row, or one tombstone, as nodes compare it."""

    key: str
    version: Version
    tombstone: bool


class Settle:
    """Changes nothing. Its answer comes when all that was written before it is durable."""

    weight = 1

    def decide(self, view: View) -> Decision:
        return Decision()


def settle(engine: Engine) -> None:
    """Returns when everything that is written is durable, whatever the durability asks for."""
    if engine.durability.on_commit:
        engine.execute(Settle())
        return
    engine.sync_now()
    if engine.writes_stopped:
        raise WritesStopped("writes stopped after a failed sync: what other nodes may be told of is not known")


def durable_replicas(engine: Engine) -> Replicas:
    """What the engine has at this moment, once that is durable."""
    snapshot = engine.store.snapshot(Family.ROWS, Family.VERSIONS, Family.BUCKETS)
    settle(engine)
    return Replicas(snapshot, engine.catalog)


class Replicas:
    def __init__(self, reader: Reader, catalog: Catalog) -> None:
        self._reader = reader
        self._catalog = catalog

    def roots(self) -> dict[str, bytes]:
        """The sum of each replicated table, by its full name."""
        tables = [table for table in self._catalog.tables.values() if table.replica is not None]
        return {t.schema.full_name: _bytes(node_sum(self._buckets(t, 0, 0), 0, 0)) for t in tables}

    def children(self, table: str, level: int, index: int) -> list[bytes]:
        """The sixteen sums right below a node of the table's tree."""
        found, _ = self._replicated(table)
        if not (0 <= level < DEPTH and 0 <= index < FANOUT**level):
            raise InvalidRequest(f"the tree has no inner node {index} on level {level}", level=level, index=index)
        return [_bytes(total) for total in children(self._buckets(found, level, index), level, index)]

    def entries(self, table: str, bucket: int) -> list[Entry]:
        """What lies in a bucket, ordered by key."""
        found, replica = self._replicated(table)
        if not 0 <= bucket < BUCKETS:
            raise InvalidRequest(f"there is no bucket {bucket}: they are 0 to {BUCKETS - 1}", bucket=bucket)
        prefix = bucket_key(found.table_id, bucket)
        entries = []
        for key, value in self._reader.scan(Family.VERSIONS, prefix, keys.after(prefix)):
            event_key = replica.key_at(decode_version_key(key)[2], len(keys.table_prefix(found.table_id)))
            entries.append(Entry(event_key, *decode_version(value)))
        return sorted(entries)

    def events_for(self, table: str, event_keys: Sequence[str]) -> list[bytes]:
        """The event of each row as it is now. Left out: keys that are not here, and rows that no event can tell."""
        found, replica = self._replicated(table)
        return list(self._events(found, replica, event_keys))

    def _events(self, table: Table, replica: ReplicatedRows, event_keys: Sequence[str]) -> Iterator[bytes]:
        for key in event_keys:
            try:
                replica.check_key(key)
                row_key = replica.storage_key(key)
                stored = self._reader.get(Family.VERSIONS, version_key(table.table_id, bucket_of(key), row_key))
                if stored is None:
                    continue
                kept = decode_version(stored)
                value = None if kept.tombstone else self._value(table, replica, row_key)
                yield encode_event(Event(key, kept.version, value))
            except InvalidEvent:
                continue

    def _value(self, table: Table, replica: ReplicatedRows, row_key: bytes) -> str:
        stored = self._reader.get(Family.ROWS, row_key)
        if stored is None:
            raise InvalidEvent(f"a row of {table.schema.full_name} has a version, but is not there")
        return replica.value(table.codec.decode(stored))

    def _replicated(self, name: str) -> tuple[Table, ReplicatedRows]:
        table = self._catalog.table(name)
        if table.replica is None:
            raise UnknownTable(f"{name} is not replicated: it was made without REPLICATE = TRUE", table=name)
        return table, table.replica

    def _buckets(self, table: Table, level: int, index: int) -> dict[int, Sum]:
        below = buckets_below(level, index)
        start, end = bucket_key(table.table_id, below.start), bucket_key(table.table_id, below.stop)
        scanned = self._reader.scan(Family.BUCKETS, start, end)
        return {decode_bucket_key(key)[1]: stored_sum(value) for key, value in scanned}


def _bytes(total: Sum) -> bytes:
    return total.digest.to_bytes(SUM_BYTES, "big")
