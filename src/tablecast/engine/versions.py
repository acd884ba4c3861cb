"""The versions of replicated rows as a decision changes them: records, sums of buckets, and when tombstones end.

Every row of a replicated table has a version, and so has a row that was deleted, for 24 hours: its tombstone keeps an
older write that comes late from bringing the row back.

A tombstone ends 24 hours after its own timestamp, not after it came here. So it ends at the same time everywhere but for
the difference of clocks; a node that forgot it earlier does not take it in again from one that did not (it is over by
its own timestamp), and when the slowest clock has passed, all buckets are equal again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tablecast.codec import keys
from tablecast.codec.versions import (
    Kept,
    bucket_key,
    decode_bucket,
    decode_version,
    decode_version_key,
    encode_bucket,
    encode_version,
    version_key,
)
from tablecast.core.merkle import NOTHING, Sum, bucket_of, entry_sum
from tablecast.engine.catalog import Catalog
from tablecast.engine.decision import Record, RowView, Sums
from tablecast.model.replication import Version
from tablecast.storage.base import Family, Reader

TOMBSTONE_KEPT_MS: Final = 24 * 3_600_000  # how long a write may be on its way and still not bring a deleted row back


def tombstone_ends_ms(version: Version) -> int:
    return version.timestamp_ms + TOMBSTONE_KEPT_MS


def kept_until_ms(value: bytes) -> int | None:
    """When a stored version is over; None for that of a row."""
    kept = decode_version(value)
    return tombstone_ends_ms(kept.version) if kept.tombstone else None


def stored_sum(value: bytes | None) -> Sum:
    return NOTHING if value is None else Sum(*decode_bucket(value))


def bucket_record(reader: Reader, place: tuple[int, int], change: Sum) -> Record:
    """A bucket after its change. Empty ones are not kept."""
    key = bucket_key(*place)
    total = stored_sum(reader.get(Family.BUCKETS, key)) + change
    return Family.BUCKETS, key, encode_bucket(*total) if total.entries else None


class VersionWrites:
    """The versions that one decision writes, one after the other: each sees those before it."""

    def __init__(self, view: RowView) -> None:
        self._view = view
        self._known: dict[bytes, Kept | None] = {}
        self.records: list[Record] = []
        self.sums: Sums = {}

    def places(self, table_id: int, event_keys: Iterable[str], row_keys: Iterable[bytes]) -> list[bytes]:
        """Where these rows' versions are kept. They are looked up at once."""
        found = [self.place(table_id, key, row_key) for key, row_key in zip(event_keys, row_keys, strict=True)]
        self.look(found)
        return found

    def place(self, table_id: int, event_key: str, row_key: bytes) -> bytes:
        return version_key(table_id, bucket_of(event_key), row_key)

    def look(self, places: Sequence[bytes]) -> None:
        unknown = [place for place in places if place not in self._known]
        for place, value in zip(unknown, self._view.get_many(Family.VERSIONS, unknown), strict=True):
            self._known[place] = None if value is None else decode_version(value)

    def at(self, place: bytes) -> Kept | None:
        return self._known[place]

    def put(self, place: bytes, event_key: str, kept: Kept | None) -> None:
        """None: nothing is to be known of the row any more."""
        change = NOTHING
        if (replaced := self._known[place]) is not None:
            change -= entry_sum(event_key, *replaced)
        if kept is not None:
            change += entry_sum(event_key, *kept)
        self._known[place] = kept
        self.records.append((Family.VERSIONS, place, None if kept is None else encode_version(kept)))
        if kept is not None and kept.tombstone:
            expiry = keys.expiry_key(tombstone_ends_ms(kept.version), Family.VERSIONS, place)
            self.records.append((Family.EXPIRY, expiry, b""))
        add_sum(self.sums, decode_version_key(place)[:2], change)


def add_sum(sums: Sums, place: tuple[int, int], change: Sum) -> None:
    sums[place] = sums.get(place, NOTHING) + change


def removed_sums(catalog: Catalog, forgotten: Mapping[bytes, bytes]) -> Sums:
    """What the buckets lose with these versions (by key), whose time is over."""
    sums: Sums = {}
    for key, value in forgotten.items():
        table_id, bucket, row_key = decode_version_key(key)
        table = catalog.tables.get(table_id)
        if table is not None and table.replica is not None:
            event_key = table.replica.key_at(row_key, len(keys.table_prefix(table_id)))
            add_sum(sums, (table_id, bucket), NOTHING - entry_sum(event_key, *decode_version(value)))
    return sums
