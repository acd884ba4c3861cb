"""The database as plain dicts and lists: tables of rows, topics of messages, groups of offsets.

It says what SPEC says, one message at a time: no ranges, no batches, no bytes but where the contract itself speaks of
bytes (the partition hash). It is slow and obvious, and the machine in test_database_model.py holds the real database
against it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from model_groups import Dead, GroupModel
from model_statements import ChangeModel, ColumnModel, Row, Stored, TableModel, Where, Write
from xxhash import xxh3_64_intdigest

from tablecast.errors import OffsetOutOfRange
from tablecast.model.change import Op

INT_BYTES = {"SMALLINT": 2, "INT": 4, "BIGINT": 8}
DAY_MS = 24 * 3600 * 1000
EVERY_LETTER = 1_000_000


@dataclass(frozen=True)
class Said:
    """One message as a reader must get it."""

    op: Op
    table: str
    mode: str
    user: str | None
    key: list[Any]
    payload: dict[str, Any]
    seq: int
    ts_ms: int


@dataclass(frozen=True)
class SourceModel:
    table: str
    ops: frozenset[Op]
    where: Where | None
    partition_by: str | None
    mode: str


@dataclass
class TopicModel:
    name: str
    partitions: int
    dedup_ms: int = 0
    retention_ms: int | None = None
    max_deliveries: int = 0
    dead_letter: str | None = None
    topic_id: int = 0  # as the database chose it
    sources: list[SourceModel] = field(default_factory=list)
    logs: list[list[Said]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    groups: dict[str, dict[int, GroupModel]] = field(default_factory=dict)
    seen: dict[tuple[Any, ...], int] = field(default_factory=dict)  # for the dedup window: when it was last said
    redriven: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.clear_all()

    def clear_all(self) -> None:
        """As it is when new."""
        self.logs = [[] for _ in range(self.partitions)]
        self.starts = [0] * self.partitions
        self.sources, self.groups, self.seen, self.redriven = [], {}, {}, set()

    def end(self, partition: int) -> int:
        return len(self.logs[partition])

    def kept(self, partition: int) -> list[Said]:
        return self.logs[partition][self.starts[partition] :]


@dataclass(frozen=True)
class Remembered:
    """What a request with an idempotency key was answered, and is again, whatever became of its table."""

    write: Write
    expires_ms: int
    seq: int | None
    count: int


class DatabaseModel:
    def __init__(self, tables: Iterable[TableModel], topics: Iterable[TopicModel], now: Callable[[], int]) -> None:
        self.tables = {table.name: table for table in tables}
        self.topics = {topic.name: topic for topic in topics}
        self.now = now
        self.remembered: dict[tuple[str, str], Remembered] = {}  # by user and key

    # --- rows ---

    def effect(self, write: Write) -> list[ChangeModel]:
        """What a statement does now. Raises what the database must raise."""
        return write.statement.effect(self.tables[write.table], write.user, self.now())

    def commit(self, changes: list[ChangeModel], seq: int) -> None:
        for change in changes:
            self.keep(change, seq)
            self.publish(change, seq)

    def keep(self, change: ChangeModel, seq: int) -> None:
        rows = self.tables[change.table].rows
        if change.after is None:
            del rows[change.place]
        else:
            rows[change.place] = Stored(change.after, seq, self.now())

    def add_column(self, table: TableModel, column: ColumnModel) -> None:
        table.columns.append(column)
        for place, stored in table.rows.items():
            table.rows[place] = replace(stored, row=stored.row | {column.name: column.default})

    # --- routing ---

    def publish(self, change: ChangeModel, seq: int) -> None:
        for topic in self.topics.values():
            for source in topic.sources:
                if source.table == change.table and change.op in source.ops:
                    self.route(topic, source, change, seq)

    def route(self, topic: TopicModel, source: SourceModel, change: ChangeModel, seq: int) -> None:
        if source.where is not None and source.where.matches(change.row) is not True:
            return
        table, row = self.tables[change.table], change.row
        partition = xxh3_64_intdigest(self._hashed(table, source, change)) % topic.partitions
        said = Said(
            change.op, table.name, source.mode, change.place[0], [shown(table, name, row[name]) for name in table.key],
            payload(table, source.mode, change), seq, self.now(),
        )  # fmt: skip
        self.append(topic, partition, said)

    def _hashed(self, table: TableModel, source: SourceModel, change: ChangeModel) -> bytes:
        if source.partition_by is not None:
            value = change.row[source.partition_by]
            return b"" if value is None else element(table, source.partition_by, value)
        owner = b"" if change.place[0] is None else change.place[0].encode() + b"\x00\x01"
        return owner + b"".join(element(table, name, change.row[name]) for name in table.key)

    def append(self, topic: TopicModel, partition: int, said: Said) -> None:
        identity = (said.table, said.op, said.user, json.dumps([said.key, said.payload], sort_keys=True))
        if topic.dedup_ms and said.ts_ms - topic.seen.get(identity, -DAY_MS) < topic.dedup_ms:
            return
        topic.seen[identity] = said.ts_ms
        topic.logs[partition].append(said)

    def add_source(self, topic: TopicModel, source: SourceModel, backfill: bool, seq: int) -> int:
        topic.sources.append(source)
        if not backfill:
            return 0
        table = self.tables[source.table]
        inserts = [ChangeModel(table.name, Op.INSERT, p, None, s.row) for p, s in table.live(self.now()).items()]
        matching = [c for c in inserts if source.where is None or source.where.matches(c.row) is True]
        for change in matching:
            self.route(topic, source, change, seq)
        return len(matching)

    def drop_source(self, topic: TopicModel, table: str, ops: frozenset[Op]) -> None:
        kept = [replace(s, ops=s.ops - ops) if s.table == table else s for s in topic.sources]
        topic.sources = [source for source in kept if source.ops]

    def drop_table(self, table: TableModel) -> None:
        """CASCADE: its sources go with it."""
        table.rows.clear()
        for topic in self.topics.values():
            self.drop_source(topic, table.name, frozenset(Op))

    # --- groups ---

    def claim(
        self, topic: TopicModel, group: str, partition: int, *, consumer: str, limit: int, starts: Sequence[int],
        visibility_ms: int, skip_lost: bool, seq: int,
    ) -> tuple[dict[int, int], bool]:  # fmt: skip
        """Offset -> delivery count, and whether something was skipped. What is dead goes to the dead-letter topic. A group
        that is not there yet begins at `starts`, an offset per partition."""
        states = topic.groups.setdefault(group, {p: GroupModel(start) for p, start in enumerate(starts)})
        state = deepcopy(states[partition])
        state.expire(self.now())
        skipped = bool(state.lost(topic.starts[partition]))
        if skipped and not skip_lost:
            raise OffsetOutOfRange("retained away")
        states[partition] = state
        state.skip_lost(topic.starts[partition])
        while True:
            dead = state.bury(limit, topic.max_deliveries, topic.starts[partition])
            for letter in dead:
                self._dead_letter(topic, group, partition, letter, seq)
            deadline = self.now() + visibility_ms
            given = state.give(consumer, limit, topic.end(partition), deadline, topic.max_deliveries)
            if given or not dead:
                return given, skipped

    def expire(self, topic: TopicModel, group: str, partition: int, seq: int) -> int:
        """What the job does: claims that ran out come back, and what used up its deliveries is dead."""
        state = topic.groups[group][partition]
        expired = state.expire(self.now())
        dead = state.bury(EVERY_LETTER, topic.max_deliveries, topic.starts[partition])
        for letter in dead:
            self._dead_letter(topic, group, partition, letter, seq)
        return expired + len(dead)

    def settled(self, topic: TopicModel, group: str) -> dict[int, GroupModel]:
        """The group's states; an ack or a reset makes one that is not there yet begin where the logs begin."""
        known = topic.groups.get(group)
        return known or {p: GroupModel(start, simple=True) for p, start in enumerate(topic.starts)}

    def _dead_letter(self, topic: TopicModel, group: str, partition: int, letter: Dead, seq: int) -> None:
        assert topic.dead_letter is not None
        original = topic.logs[partition][letter.offset]
        origin = {
            "topic": topic.name, "topic_id": topic.topic_id, "group": group, "partition": partition,
            "offset": letter.offset, "deliveries": letter.deliveries, "reason": letter.reason,
        }  # fmt: skip
        wrapped = {"_table": original.table, "_dead_letter": origin, "message": original.payload}
        self.append(self.topics[topic.dead_letter], 0, replace(original, payload=wrapped, seq=seq, ts_ms=self.now()))

    def reset(self, topic: TopicModel, group: str, partition: int, offset: int) -> None:
        states = topic.groups.setdefault(group, self.settled(topic, group))
        states[partition] = GroupModel(offset, simple=states[partition].simple)

    def redrive(self, dead: TopicModel, only: int | None, seq: int) -> int:
        wanted = range(dead.starts[0], dead.end(0)) if only is None else [only]
        waiting = [offset for offset in wanted if offset not in dead.redriven]
        for offset in waiting:
            self._send_back(dead.logs[0][offset], seq)
            dead.redriven.add(offset)
        return len(waiting)

    def _send_back(self, letter: Said, seq: int) -> None:
        origin = letter.payload["_dead_letter"]
        topic, partition = self.topics[origin["topic"]], origin["partition"]
        if origin["offset"] >= topic.starts[partition]:
            topic.groups[origin["group"]][partition].restore(origin["offset"])
            return
        again = replace(letter, payload=letter.payload["message"], seq=seq, ts_ms=self.now())
        self.append(topic, partition, again)

    # --- jobs ---

    def retain(self) -> int:
        removed = 0
        for topic in self.topics.values():
            if topic.retention_ms is None:
                continue
            oldest = self.now() - topic.retention_ms
            for partition, log in enumerate(topic.logs):
                start = topic.starts[partition]
                kept = next((i for i in range(start, len(log)) if log[i].ts_ms >= oldest), len(log))
                topic.starts[partition] = kept
                removed += kept - start
        return removed

    def clear(self, topic: TopicModel) -> int:
        removed = sum(len(topic.kept(partition)) for partition in range(topic.partitions))
        topic.starts = [topic.end(partition) for partition in range(topic.partitions)]
        return removed

    def remove_expired(self) -> None:
        for table in self.tables.values():
            live = table.live(self.now())
            table.rows = {place: stored for place, stored in table.rows.items() if place in live}


# --- words and bytes -----------------------------------------------------------------------------------------


def shown(table: TableModel, column: str, value: Any) -> Any:
    """A value in JSON: BIGINT as text."""
    kind = next(c.type for c in table.columns if c.name == column)
    return str(value) if kind == "BIGINT" and value is not None else value


def payload(table: TableModel, mode: str, change: ChangeModel) -> dict[str, Any]:
    def show(row: Row, names: Iterable[str]) -> dict[str, Any]:
        return {name: shown(table, name, row[name]) for name in names}

    said = {"_table": table.name} | show(change.row, table.key)
    if mode == "key":
        return said
    if mode == "full" or change.op is not Op.UPDATE:
        return said | show(change.row, [column.name for column in table.columns])
    assert change.before is not None
    assert change.after is not None
    old, new = (show(row, [c.name for c in table.columns]) for row in (change.before, change.after))
    return said | {name: {"old": old[name], "new": new[name]} for name in new if old[name] != new[name]}


def element(table: TableModel, column: str, value: Any) -> bytes:
    """A value as the partition hash sees it: big-endian with the sign bit flipped, text ended by 00 01."""
    kind = next(c.type for c in table.columns if c.name == column)
    if kind == "TEXT":
        return str(value).encode() + b"\x00\x01"
    width = INT_BYTES[kind]
    return int(value + (1 << (8 * width - 1))).to_bytes(width, "big")
