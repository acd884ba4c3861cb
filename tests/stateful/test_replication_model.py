"""Three databases that tell each other their writes, against three models of dicts, with everything that goes wrong.

Events are delivered in any order, twice, or never; acknowledgements are lost; clocks are up to an hour apart; databases
crash. After every step each database is its model: rows, versions, tombstones, outcomes, the bytes of events, what topics
were told. In the end, what anti-entropy exchanges makes all of them equal, to the last write of each row.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tablecast.codec.events import decode_event, encode_event
from tablecast.core import failpoint
from tablecast.core.merkle import DEPTH, FANOUT, bucket_of
from tablecast.engine.apply_events import LIVE, SYNC
from tablecast.engine.outbox import DropOldest
from tablecast.engine.replicas import Replicas
from tablecast.errors import DatabaseClosed, WritesStopped
from tablecast.model.position import Start, StartKind
from tablecast.model.replication import Event
from tablecast.sql.database import Database
from tablecast.storage.base import StorageFailure
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.testing.clock import START_MS, FakeClock
from tablecast.testing.failpoints import raising

sys.path.insert(0, str(Path(__file__).parent))
from replica_model import BARE_TABLE, TABLE, ReplicaModel, event_key, event_value

NEVER_SECONDS = 3600.0  # jobs run when a test says so
HOUR_MS = 3_600_000
NAMES = ("a", "b", "c")
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.t (id BIGINT PRIMARY KEY, v TEXT) WITH (REPLICATE = TRUE);
CREATE TABLE app.kv (key TEXT PRIMARY KEY, value TEXT) WITH (REPLICATE = TRUE);
CREATE TOPIC app.told;
ALTER TOPIC app.told ADD SOURCE app.t ON ANY;
ALTER TOPIC app.told ADD SOURCE app.kv ON ANY;
"""
UPSERT = {
    TABLE: "INSERT INTO app.t VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    BARE_TABLE: "INSERT INTO app.kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
}
DELETE = {TABLE: "DELETE FROM app.t WHERE id = ?", BARE_TABLE: "DELETE FROM app.kv WHERE key = ?"}

OCCUPIED = {(table, bucket_of(event_key(table, key))) for table in (TABLE, BARE_TABLE) for key in ("1", "2", "3")}

nodes = st.sampled_from(NAMES)
writes = st.tuples(
    st.sampled_from([TABLE, TABLE, BARE_TABLE]), st.sampled_from(["1", "2", "3"]), st.none() | st.sampled_from(["", "x", "é"])
)  # fmt: skip


def run(db: Any, table: str, key: str, value: str | None) -> None:
    given: Any = int(key) if table == TABLE else key
    if value is None:
        db.execute(DELETE[table], [given])
    else:
        db.execute(UPSERT[table], [given, value])


def differing(mine: Replicas, theirs: Replicas, table: str) -> list[int]:
    """Buckets whose sums differ, found from the root down."""
    if mine.roots()[table] == theirs.roots()[table]:
        return []
    found = [0]
    for level in range(DEPTH):
        found = [
            index * FANOUT + i
            for index in found
            for i, (a, b) in enumerate(
                zip(mine.children(table, level, index), theirs.children(table, level, index), strict=True)
            )
            if a != b
        ]
    return found


class Node:
    """A database and its model."""

    def __init__(self, name: str, db: Database, clock: FakeClock) -> None:
        self.db, self.clock = db, clock
        db.execute(SCHEMA)
        identity = db.engine.replication.claim_identity(name)
        self.model = ReplicaModel(name, identity.epoch)
        self.inbox: list[bytes] = []

    @property
    def replication(self) -> Any:
        return self.db.engine.replication

    def check(self) -> None:
        model, found = self.model, self.replication.replicas()
        entries = [entry for table, bucket in OCCUPIED for entry in found.entries(table, bucket)]
        assert sorted(entries) == model.entries()
        rows = {event_key(TABLE, str(i)): event_value(TABLE, str(i), v) for i, v in self._rows("app.t")}
        rows |= dict(self._rows("app.kv"))
        assert rows == {key: event.value for key, event in model.kept.items() if event.value is not None}
        assert self.replication.pending() == len(model.outbox) - model.mark
        assert self.replication.sequence() == model.epoch << 32 | len(model.outbox)
        assert self._said() == model.said

    def _rows(self, table: str) -> list[Any]:
        return list(self.db.query(f"SELECT * FROM {table}").rows)

    def _said(self) -> list[Any]:
        messages = self.db.consume("app.told", limit=10_000, start=Start(StartKind.EARLIEST)).messages
        return [(event_key(m.source_table, json.loads(m.key)[0]), m.op) for m in messages]


class ReplicationMachine(RuleBasedStateMachine):
    def open(self, name: str, clock: FakeClock) -> Database:
        raise AssertionError("a store is chosen below")

    def reopen(self, node: Node) -> None:
        raise AssertionError("a store is chosen below")

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, Node] = {}
        self.handed: dict[tuple[str, int], bytes] = {}  # what the world has seen under a number
        self.touched: set[str] = set()

    @initialize(skews=st.tuples(*[st.integers(0, HOUR_MS)] * 3))
    def start(self, skews: tuple[int, ...]) -> None:
        for name, skew in zip(NAMES, skews, strict=True):
            clock = FakeClock(START_MS + HOUR_MS + skew)
            self.nodes[name] = Node(name, self.open(name, clock), clock)

    def at(self, name: str) -> Node:
        self.touched.add(name)
        return self.nodes[name]

    def hand_out(self, data: bytes) -> bytes:
        """A number never stands for two events."""
        version = decode_event(data).version
        assert self.handed.setdefault((version.node_id, version.seq), data) == data
        return data

    # --- writing ---

    @rule(name=nodes, write=writes)
    def write(self, name: str, write: tuple[str, str, str | None]) -> None:
        node = self.at(name)
        run(node.db, *write)
        self.modelled(node, write)

    @rule(name=nodes, several=st.lists(writes, min_size=1, max_size=4))
    def transaction(self, name: str, several: list[tuple[str, str, str | None]]) -> None:
        node = self.at(name)
        with node.db.transaction() as transaction:
            for write in several:
                run(transaction, *write)
        for write in several:
            self.modelled(node, write)

    def modelled(self, node: Node, write: tuple[str, str, str | None]) -> None:
        table, key, value = write
        said = None if value is None else event_value(table, key, value)
        node.model.write(event_key(table, key), said, node.clock())

    @rule(name=nodes, ms=st.sampled_from([1, 1000, 300_000]))
    def time_passes(self, name: str, ms: int) -> None:
        self.nodes[name].clock.advance(ms)

    # --- publishing ---

    @rule(name=nodes, limit=st.integers(1, 5), acknowledged=st.integers(0, 5), data=st.data())
    def publish(self, name: str, limit: int, acknowledged: int, data: st.DataObject) -> None:
        node = self.at(name)
        model = node.model
        entries = node.replication.outbox(limit)
        expected = model.outbox[model.mark :][:limit]
        assert [entry.data for entry in entries] == [encode_event(event) for event in expected]
        assert [entry.seq for entry in entries] == [event.version.seq for event in expected]
        assert [entry.superseded for entry in entries] == [model.kept[e.key].version != e.version for e in expected]
        for entry in entries:
            self.hand_out(entry.data)
            for other in self.nodes.values():
                if other is not node:
                    other.inbox.append(entry.data)
        for entry in entries[:acknowledged][-1:]:
            node.replication.published(entry.seq)
            model.mark += len(entries[:acknowledged])

    @rule(name=nodes, count=st.integers(1, 3))
    def drop_oldest(self, name: str, count: int) -> None:
        node = self.at(name)
        dropped = min(count, len(node.model.outbox) - node.model.mark)
        assert node.db.engine.execute(DropOldest(count)) == dropped
        node.model.mark += dropped

    # --- taking in ---

    @rule(name=nodes, data=st.data())
    def deliver(self, name: str, data: st.DataObject) -> None:
        node = self.at(name)
        if not node.inbox:
            return
        chosen = data.draw(st.lists(st.sampled_from(node.inbox), min_size=1, max_size=6))
        self.take(node, chosen, LIVE)

    @rule(name=nodes)
    def lose(self, name: str) -> None:
        self.nodes[name].inbox.clear()

    @rule(name=nodes)
    def own_events_come_back(self, name: str) -> None:
        node = self.at(name)
        self.take(node, [encode_event(event) for event in node.model.outbox], LIVE)

    @rule(name=nodes, poison=st.sampled_from([b"", b"\xa0", b"\xff" * 9, b"{}"]), data=st.data())
    def poison(self, name: str, poison: bytes, data: st.DataObject) -> None:
        """It holds up nothing."""
        node = self.at(name)
        good = data.draw(st.lists(st.sampled_from(node.inbox), max_size=2)) if node.inbox else []
        outcomes = node.replication.apply([poison, *good, poison])
        assert [outcomes[0].status, outcomes[-1].status] == ["quarantined"] * 2
        expected = [node.model.apply(decode_event(one), live=True) for one in good]
        assert [o.status for o in outcomes[1:-1]] == expected
        assert any(q.bytes == len(poison) and q.key is None for q in node.replication.quarantine())

    def take(self, node: Node, events: list[bytes], source: str) -> None:
        outcomes = node.replication.apply(events, source=source)
        expected = [node.model.apply(decode_event(one), live=source == LIVE) for one in events]
        assert [outcome.status for outcome in outcomes] == expected

    @rule(pair=st.sampled_from(list(permutations(NAMES, 2))))
    def sync(self, pair: tuple[str, str]) -> None:
        self.pull(*map(self.at, pair))

    def pull(self, node: Node, peer: Node) -> int:
        """What the peer has and the node lacks, found by comparing trees."""
        mine, theirs = node.replication.replicas(), peer.replication.replicas()
        wanted = 0
        for table in (TABLE, BARE_TABLE):
            keys = []
            for bucket in differing(mine, theirs, table):
                known = {entry.key: entry.version for entry in mine.entries(table, bucket)}
                for entry in theirs.entries(table, bucket):
                    if entry.key not in known or entry.version > known[entry.key]:
                        keys.append(entry.key)
            events = [self.hand_out(data) for data in theirs.events_for(table, keys)]
            assert [decode_event(one) for one in events] == [peer.model.kept[key] for key in keys]
            self.take(node, events, SYNC)
            wanted += len(events)
        return wanted

    # --- crashes ---

    @rule(name=nodes)
    def crash(self, name: str) -> None:
        self.reopen(self.at(name))

    @rule(
        name=nodes,
        write=writes,
        place=st.sampled_from(["before_write", "after_write", "before_sync", "after_sync", "before_ack"]),
    )
    def crash_in_a_write(self, name: str, write: tuple[str, str, str | None], place: str) -> None:
        """The row with its version, bucket and event is there after it, or none of it is."""
        node = self.at(name)
        if write[2] is None and node.model.value(event_key(*write[:2])) is None:
            return  # changes nothing, so nothing is written
        with failpoint.armed(place, raising(StorageFailure("the disk is gone"))), pytest.raises(WritesStopped):
            run(node.db, *write)
        self.reopen(node)
        if node.replication.sequence() > node.model.epoch << 32 | len(node.model.outbox):
            self.modelled(node, write)

    @rule(name=nodes, data=st.data(), place=st.sampled_from(["before_write", "after_sync"]))
    def crash_while_taking_in(self, name: str, data: st.DataObject, place: str) -> None:
        """Not acknowledged, so delivered again: it changes nothing, or what it did not change before."""
        node = self.at(name)
        if not node.inbox:
            return
        chosen = data.draw(st.lists(st.sampled_from(node.inbox), min_size=1, max_size=3, unique=True))
        if all(node.model.apply_changes_nothing(decode_event(one)) for one in chosen):
            return
        with failpoint.armed(place, raising(StorageFailure("the disk is gone"))), pytest.raises(WritesStopped):
            node.replication.apply(chosen)
        self.reopen(node)
        if place == "after_sync":
            for one in chosen:
                node.model.apply(decode_event(one), live=True)
        self.take(node, chosen, LIVE)

    # --- what must hold ---

    @invariant()
    def databases_are_their_models(self) -> None:
        for name in self.touched:
            self.nodes[name].check()
        self.touched.clear()

    def teardown(self) -> None:
        try:
            if self.nodes:
                self.converge()
        finally:
            for node in self.nodes.values():
                with suppress(DatabaseClosed):
                    node.db.close()

    def converge(self) -> None:
        written = [event for node in self.nodes.values() for event in node.model.outbox]
        for _ in range(2):
            for name, peer in permutations(NAMES, 2):
                self.pull(self.nodes[name], self.nodes[peer])
        winners: dict[str, Event] = {}
        for event in sorted(written, key=lambda e: e.version):
            winners[event.key] = event
        for node in self.nodes.values():
            node.check()
            assert node.model.kept == winners
            assert [e.version.seq for e in node.model.outbox] == [
                node.model.epoch << 32 | n for n in range(1, len(node.model.outbox) + 1)
            ]
            assert node.db.verify().problems == []
        roots = [node.replication.roots() for node in self.nodes.values()]
        assert roots[0] == roots[1] == roots[2]
        assert sum(self.pull(self.nodes[a], self.nodes[b]) for a, b in permutations(NAMES, 2)) == 0


def database(store: Any, clock: FakeClock) -> Database:
    return Database(store, clock=clock, jobs_interval_seconds=NEVER_SECONDS)


class MemoryMachine(ReplicationMachine):
    """A crash is a power cut: what was not synced is gone."""

    def open(self, name: str, clock: FakeClock) -> Database:
        return database(MemoryStore(read_sorted), clock)

    def reopen(self, node: Node) -> None:
        store = node.db.engine.store
        assert isinstance(store, MemoryStore)
        survivor = store.crash()
        with suppress(DatabaseClosed):
            node.db.close()
        node.db = database(survivor, node.clock)


class RocksMachine(ReplicationMachine):
    """Closed and opened again."""

    def open(self, name: str, clock: FakeClock) -> Database:
        if not self.nodes:
            self.folder = tempfile.TemporaryDirectory()
        return database(RocksStore.open(str(Path(self.folder.name, name))), clock)

    def reopen(self, node: Node) -> None:
        with suppress(WritesStopped):
            node.db.close()
        node.db = database(RocksStore.open(str(Path(self.folder.name, node.model.name)), create=False), node.clock)

    def teardown(self) -> None:
        super().teardown()
        if self.nodes:
            self.folder.cleanup()


def examples(share: float) -> settings:
    return settings(max_examples=max(1, round(settings().max_examples * share)), stateful_step_count=30)


TestMemoryReplication = MemoryMachine.TestCase
TestMemoryReplication.settings = examples(0.4)
TestRocksReplication = RocksMachine.TestCase
TestRocksReplication.settings = examples(0.1)
