"""Three nodes, a broker and bad luck, in memory and in virtual time. A seed is a run: the same one does the same.

Nodes write to the same few rows, with clocks up to an hour apart. Nodes crash, the broker crashes (with and without what it
kept), links are cut, deliveries are lost, doubled, out of order, answers are lost. Then it is quiet, a fourth node joins
with an empty database, and everything must be as promised:

- all tables are equal, versions and tombstones included;
- every row is what the greatest version of all acknowledged writes to it made of it;
- no change is twice on a topic of any node;
- every database verifies, and comparing has ended: nothing but roots is exchanged any more.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar
from unittest.mock import patch

from tablecast.core.backoff import MAX_BACKOFF_SECONDS
from tablecast.core.conflict import CLOCK_AHEAD_MS
from tablecast.core.merkle import bucket_of
from tablecast.edge.base import Done
from tablecast.edge.node import EdgeNode, EdgeSettings, outfit
from tablecast.edge.replica import EngineReplica
from tablecast.edge.status import StatusBoard
from tablecast.engine import apply_events
from tablecast.engine.decision import Command
from tablecast.engine.engine import Engine
from tablecast.engine.replicas import Entry
from tablecast.engine.verify import verify_engine
from tablecast.errors import DatabaseClosed, TablecastError
from tablecast.model.position import EARLIEST
from tablecast.model.replication import Version
from tablecast.sql.query import QueryEngine
from tablecast.sql.session import Session
from tablecast.storage.memory import MemoryStore
from tablecast.testing.clock import START_MS
from tablecast.testing.mqtt_network import Faults, MqttNetwork
from tablecast.testing.virtual_time import Scheduled, VirtualTime

TABLE = "app.notes"
SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.notes (id BIGINT PRIMARY KEY, body TEXT) WITH (REPLICATE = TRUE);
CREATE TOPIC app.told;
ALTER TOPIC app.told ADD SOURCE app.notes ON INSERT;
ALTER TOPIC app.told ADD SOURCE app.notes ON UPDATE;
"""
WRITE = "INSERT INTO app.notes VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body"
DELETE = "DELETE FROM app.notes WHERE id = ?"
ROWS = 12  # few, so that nodes write to the same ones
WRITTEN_BUCKETS = sorted({bucket_of(f"{TABLE}:{row}") for row in range(ROWS)})
SKEW_MS = 3_600_000
COMMIT_SECONDS = (0.0, 0.02)
SLOW_COMMIT_SECONDS = (0.0, 0.3)
COMPARE_SECONDS = 60.0
PAUSES_SECONDS = (0.0, 0.001, 0.1, 3.0, 40.0)
QUIET_ROUNDS = 60  # of comparing, until all must be equal
NEVER_SECONDS = 10**9


class Life:
    """The loop of one life of a node: what a crash leaves behind never runs."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.over = False

    def time(self) -> float:
        return self._time.time()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Scheduled:
        return self.call_later(0.0, callback, *args)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> Scheduled:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Scheduled:
        return self._time.call_later(delay, self._run, callback, args)

    def _run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.over:
            callback(*args)


class InTurn(EngineReplica):
    """Commands are done when they are submitted, and told some time later: a crash may come in between."""

    def __init__(self, engine: Engine, loop: Life, random: Random) -> None:
        super().__init__(engine, loop)
        self._execute = engine.execute
        self._life = loop
        self._random = random

    def submit(self, command: Command, done: Done) -> None:
        answer, error = self._done(command)
        self._life.call_later(self._random.uniform(*COMMIT_SECONDS), done, answer, error)

    def _done(self, command: Command) -> tuple[Any, TablecastError | None]:
        LiteralRule.now_ms = self._engine.now_ms()
        try:
            return self._execute(command), None
        except TablecastError as error:
            return None, error


class TakesTime(InTurn):
    """Commands are done some time after they are submitted, and told at once: a crash in between leaves nothing of them."""

    def __init__(self, engine: Engine, loop: Life, random: Random) -> None:
        super().__init__(engine, loop, random)
        self._free_at = 0.0

    def submit(self, command: Command, done: Done) -> None:
        now = self._life.time()
        self._free_at = max(self._free_at, now) + self._random.uniform(*SLOW_COMMIT_SECONDS)
        self._life.call_later(self._free_at - now, self._finish, command, done)

    def _finish(self, command: Command, done: Done) -> None:
        done(*self._done(command))


class LiteralRule:
    """Last writer wins by (the time clamped to five minutes ahead of the reader's clock, node, number): see `core.conflict`.

    It stands for `beats` while it is entered, to show what it would do.
    """

    now_ms = 0

    def __enter__(self) -> None:
        self._patch = patch.object(apply_events, "beats", self.beats)
        self._patch.start()

    def __exit__(self, *error: object) -> None:
        self._patch.stop()

    @classmethod
    def beats(cls, one: Version, other: Version) -> bool:
        limit = cls.now_ms + CLOCK_AHEAD_MS
        return (min(one.timestamp_ms, limit), *one[1:]) > (min(other.timestamp_ms, limit), *other[1:])


@dataclass(frozen=True, slots=True)
class Write:
    """An acknowledged one, and what it made of its row."""

    row: int
    body: str | None
    version: Version


class SimulatedNode:
    def __init__(self, world: World, name: str, skew_ms: int) -> None:
        self._world = world
        self.name = name
        self._skew_ms = skew_ms
        self._store = MemoryStore()
        self.alive = False
        self.start()
        self.session.execute_all(SCHEMA)

    @property
    def client_id(self) -> str:
        return f"tablecast-{self.name}"

    def start(self) -> None:
        world = self._world
        self._life = Life(world.time)
        self.engine = Engine(self._store, clock=self._clock, jobs_interval_seconds=NEVER_SECONDS)
        self.engine.replication.claim_identity(self.name)
        self.session = Session(self.engine, world.queries)
        self.board = StatusBoard(self._clock)
        replica = world.replica(self.engine, self._life, world.random)
        self._link = world.network.link(outfit("tablecast", self.name))
        settings = EdgeSettings(compare_seconds=COMPARE_SECONDS)
        self._edge = EdgeNode(replica, self._link, self._life, world.random.random, settings, self.board)
        replica.on_growth(self._edge.publisher.woken)
        self._edge.start()
        self.alive = True

    def crash(self) -> None:
        self.alive = False
        self._life.over = True
        self._link.close()
        survivor = self._store.crash()
        for _ in range(2):
            with contextlib.suppress(DatabaseClosed):
                self.engine.close()
        self._store = survivor

    def write(self, row: int, body: str | None) -> Write | None:
        """None: there was nothing to delete."""
        sql, values = (DELETE, [row]) if body is None else (WRITE, [row, body])
        if not self.session.execute(sql, values).row_count:
            return None
        return Write(row, body, self.versions()[row])

    def versions(self) -> dict[int, Version]:
        return {int(entry.key.partition(":")[2]): entry.version for entry in self.entries()}

    def entries(self) -> list[Entry]:
        found = self.engine.replication.replicas()
        return sorted(entry for bucket in WRITTEN_BUCKETS for entry in found.entries(TABLE, bucket))

    def contents(self) -> tuple[list[Any], list[Entry], dict[str, bytes]]:
        """Rows, every version and tombstone, and the sum of all of them."""
        rows = sorted(self.session.query("SELECT id, body FROM app.notes").rows)
        return rows, self.entries(), self.engine.replication.roots()

    def bodies_told(self) -> Iterator[str]:
        for message in self.session.consume("app.told", start=EARLIEST, limit=100_000).messages:
            yield message.payload.decode()

    def _clock(self) -> int:
        return START_MS + 10 * SKEW_MS + self._skew_ms + int(self._world.time.time() * 1000)


@dataclass
class World:
    replica: ClassVar[type[InTurn]] = InTurn
    seed: int
    steps: int = 60
    random: Random = field(init=False)
    time: VirtualTime = field(init=False, default_factory=VirtualTime)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.queries = shared_queries()
        self.network = MqttNetwork(self.time, self.random, self._faults())
        self.nodes = [SimulatedNode(self, name, self._skew()) for name in ("ant", "bee", "cat")]
        self.writes: list[Write] = []

    def _faults(self) -> Faults:
        chance = self.random.choice((0.0, 0.02, 0.2))
        return Faults(*(chance * self.random.random() for _ in range(4)))

    def _skew(self) -> int:
        return self.random.choice((0, self.random.randint(-SKEW_MS, SKEW_MS)))

    # --- what happens ---

    def run(self) -> None:
        try:
            self.struggle()
            self.calm_down()
            self.check()
        finally:
            self.close()

    def struggle(self) -> None:
        for number in range(self.steps):
            self._step(number)
            self.time.run_for(self.random.choice(PAUSES_SECONDS))

    def _step(self, number: int) -> None:
        roll = self.random.random()
        node = self.random.choice(self.nodes)
        if roll < 0.7:
            self._write(node, number)
        elif roll < 0.78:
            self._crash(node)
        elif roll < 0.9:
            self.network.cut(node.client_id)
            self.time.call_later(self.random.uniform(0, 300), self.network.heal, node.client_id)
        elif self.network.up:
            self.network.crash(keep_sessions=self.random.random() < 0.5)
            self.time.call_later(self.random.uniform(0, 120), self.network.restart)

    def _write(self, node: SimulatedNode, number: int) -> None:
        for some in range(self.random.choice((1, 1, 1, 5)) if node.alive else 0):
            row, deletes = self.random.randrange(ROWS), self.random.random() < 0.25
            done = node.write(row, None if deletes else f"{node.name}-{number}-{some}")
            if done is not None:
                self.writes.append(done)

    def _crash(self, node: SimulatedNode) -> None:
        if node.alive:
            node.crash()
            self.time.call_later(self.random.uniform(0, 200), node.start)

    def calm_down(self, rounds: int = QUIET_ROUNDS) -> None:
        self.time.run_for(400)  # every cut is healed, everybody is up
        self.network.faults = Faults()
        self.nodes.append(SimulatedNode(self, "dog", 0))
        for _ in range(rounds):
            self.time.run_for(COMPARE_SECONDS + MAX_BACKOFF_SECONDS)
            if self._is_quiet():
                return

    def agree(self) -> bool:
        """Whether all end with the same rows, whatever else is wrong."""
        try:
            self.struggle()
            self.calm_down(rounds=10)
            return len({str(node.contents()) for node in self.nodes}) == 1
        finally:
            self.close()

    def _is_quiet(self) -> bool:
        replicas = [node.engine.replication for node in self.nodes]
        return len({str(r.roots()) for r in replicas}) == 1 and not any(r.pending() for r in replicas)

    # --- what must be so ---

    def check(self) -> None:
        first, *others = self.nodes
        contents = rows, entries, _ = first.contents()
        for other in others:
            assert other.contents() == contents, f"seed {self.seed}: {other.name} differs from {first.name}"
        self._check_winners(dict(rows), {entry.key: entry.version for entry in entries})
        for node in self.nodes:
            twice = [body for body, count in Counter(node.bodies_told()).items() if count > 1]
            assert not twice, f"seed {self.seed}: twice on a topic of {node.name}: {twice}"
            problems = verify_engine(node.engine).problems
            assert not problems, f"seed {self.seed}: {node.name}: {problems}"
        self._check_silence()

    def _check_winners(self, rows: dict[int, str], versions: dict[str, Version]) -> None:
        best: dict[int, Write] = {}
        for write in self.writes:
            held = best.get(write.row)
            if held is None or write.version > held.version:
                best[write.row] = write
        for row, write in best.items():
            assert versions[f"{TABLE}:{row}"] == write.version, f"seed {self.seed}: row {row} is not of {write}"
            assert rows.get(row) == write.body, f"seed {self.seed}: row {row} is not what {write} made of it"
        assert len(versions) == len(best), f"seed {self.seed}: rows that nobody wrote"

    def _check_silence(self) -> None:
        before = [node.board.status for node in self.nodes]
        self.time.run_for(5 * COMPARE_SECONDS)
        for node, then in zip(self.nodes, before, strict=True):
            now = node.board.status
            assert now.rounds > then.rounds, f"seed {self.seed}: {node.name} compares with nobody"
            assert (now.differing, now.pulled, now.pushed) == (then.differing, then.pulled, then.pushed)

    def close(self) -> None:
        for node in self.nodes:
            if node.alive:
                node.crash()


def shared_queries(made: list[QueryEngine] = []) -> QueryEngine:  # noqa: B006 - one for all runs: it takes 15 ms to open
    if not made:
        made.append(QueryEngine())
    return made[0]
