"""The replicated tables of a node as dicts, for tests of comparing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tablecast.codec.events import decode_event, encode_event
from tablecast.core.merkle import NOTHING, Sum, bucket_of, children, entry_sum
from tablecast.errors import UnknownTable
from tablecast.model.replication import Event, Version

TABLE = "app.orders"


class Node:
    """The tables of a node in memory, with a tree that is computed anew each time."""

    def __init__(self, tables: Sequence[str] = (TABLE,), bucket: Callable[[str], int] = bucket_of) -> None:
        self.tables: dict[str, dict[str, Event]] = {table: {} for table in tables}
        self._bucket = bucket
        self.accepts: Callable[[Event], bool] = lambda event: True

    def write(
        self, key: str, timestamp_ms: int, node_id: str = "a", value: str | None = "v", table: str = TABLE
    ) -> None:
        self.tables[table][key] = Event(key, Version(timestamp_ms, node_id, timestamp_ms + 1), value)

    def apply(self, table: str, data: bytes) -> None:
        event = decode_event(data)
        held = self.tables[table].get(event.key)
        if self.accepts(event) and (held is None or event.version > held.version):
            self.tables[table][event.key] = event

    def roots(self) -> Mapping[str, bytes]:
        return {table: sum(self._sums(table).values(), NOTHING).digest.to_bytes(16, "big") for table in self.tables}

    def children(self, table: str, level: int, index: int) -> Sequence[bytes]:
        return [total.digest.to_bytes(16, "big") for total in children(self._sums(table), level, index)]

    def entries(self, table: str, bucket: int) -> Sequence[Event]:
        held = self._held(table)
        return [held[key] for key in sorted(held) if self._bucket(key) == bucket]

    def events_for(self, table: str, keys: Sequence[str]) -> Sequence[bytes]:
        held = self._held(table)
        return [encode_event(held[key]) for key in keys if key in held]

    def _held(self, table: str) -> dict[str, Event]:
        if table not in self.tables:
            raise UnknownTable(f"there is no table {table}")
        return self.tables[table]

    def _sums(self, table: str) -> dict[int, Sum]:
        sums: dict[int, Sum] = {}
        for event in self._held(table).values():
            bucket = self._bucket(event.key)
            sums[bucket] = sums.get(bucket, NOTHING) + entry_sum(event.key, event.version, event.tombstone)
        return sums
