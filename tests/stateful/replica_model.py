"""A replicated node as plain dicts and lists: what the engine must do, told without an engine.

A node keeps the greatest version per key, numbers its own events without a gap, and says each change once. That is all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tablecast.model.change import Op
from tablecast.model.replication import Event, Version

BARE_TABLE, TABLE = "app.kv", "app.t"


def event_key(table: str, key: str) -> str:
    return key if table == BARE_TABLE else f"{table}:{key}"


def event_value(table: str, key: str, value: str) -> str:
    said = {"_table": table, "id": key, "v": value}
    return value if table == BARE_TABLE else json.dumps(said, ensure_ascii=False, separators=(",", ":"))


@dataclass
class ReplicaModel:
    name: str
    epoch: int
    kept: dict[str, Event] = field(default_factory=dict)  # by event key; a tombstone is an event without a value
    outbox: list[Event] = field(default_factory=list)  # every event it ever made
    mark: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    said: list[tuple[str, Op]] = field(default_factory=list)  # changes on its topic, in order

    def value(self, key: str) -> str | None:
        return self.kept[key].value if key in self.kept else None

    def write(self, key: str, value: str | None, now_ms: int) -> None:
        """A local write, or with None a delete."""
        if value is None and self.value(key) is None:
            return
        ts = max(now_ms, self.kept[key].version.timestamp_ms + 1) if key in self.kept else now_ms
        event = Event(key, Version(ts, self.name, self.epoch << 32 | len(self.outbox) + 1), value)
        self._change(event)
        self.outbox.append(event)

    def apply(self, event: Event, *, live: bool) -> str:
        place = event.version.node_id, event.version.seq
        if live and (place in self.seen or event.version.node_id == self.name):
            return "seen"
        self.seen.add(place)
        if event.key in self.kept and self.kept[event.key].version >= event.version:
            return "beaten"
        self._change(event)
        return "applied"

    def apply_changes_nothing(self, event: Event) -> bool:
        """Not even what it remembers."""
        return (event.version.node_id, event.version.seq) in self.seen

    def _change(self, event: Event) -> None:
        before = self.value(event.key)
        if event.value is not None:
            self.said.append((event.key, Op.INSERT if before is None else Op.UPDATE))
        elif before is not None:
            self.said.append((event.key, Op.DELETE))
        self.kept[event.key] = event

    def entries(self) -> list[tuple[str, Version, bool]]:
        return sorted((key, event.version, event.tombstone) for key, event in self.kept.items())
