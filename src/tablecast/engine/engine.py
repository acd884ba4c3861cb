"""The engine: a store, its writer, and what readers see.

Writes go through the writer. Readers see the last durable commit: its snapshot, its catalog, and where each partition's
log ends. None of these move before the commit that moved them is on disk.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec
import pyarrow as pa

from tablecast.codec.log import LogBatch
from tablecast.core import failpoint
from tablecast.core import group as groups
from tablecast.core.redelivery import has_work
from tablecast.core.snowflake import SnowflakeIds, require_clock
from tablecast.engine.adoption import adopt_rows
from tablecast.engine.ahead import NOTHING, Ahead
from tablecast.engine.catalog import Catalog
from tablecast.engine.change_index import CHANGES_KEPT_SECONDS, CHANGES_MAX_BYTES, KeptChanges
from tablecast.engine.commit import Commit
from tablecast.engine.decision import Command
from tablecast.engine.durability import Durability
from tablecast.engine.feed import Feed
from tablecast.engine.groups import Claim, Done, Given, LetGo
from tablecast.engine.guards import Guards
from tablecast.engine.history import begin_history, close_history, ended_in_copies, open_history
from tablecast.engine.jobs import INTERVAL_SECONDS, Jobs
from tablecast.engine.loads import Loads
from tablecast.engine.log import batches_from, head_at, not_there, offset_at_time, read_arrow, read_messages
from tablecast.engine.logs import LogState, PartitionLog
from tablecast.engine.observer import NOBODY, Observer, tell
from tablecast.engine.pipelines import PipelineReports
from tablecast.engine.positions import check_group_name, check_partition, load
from tablecast.engine.process import Process
from tablecast.engine.recent import RecentBatches
from tablecast.engine.recovery import recover
from tablecast.engine.replication import Replication
from tablecast.engine.ticket import Ticket
from tablecast.engine.undo import ChangeIndex
from tablecast.engine.writer import PUBLISHED, QUEUE_COMMANDS, Writer
from tablecast.errors import DatabaseClosed, Overloaded
from tablecast.model.message import LogSlice, Message
from tablecast.model.position import Start, StartKind
from tablecast.model.topic import Topic
from tablecast.storage.base import Snapshot, Store

if TYPE_CHECKING:
    from tablecast.engine.live import HubStats

MAX_CONSUME = 100_000  # messages in one answer
DEFAULT_VISIBILITY_MS = 60_000


def system_clock() -> int:
    return time.time_ns() // 1_000_000


class Published(NamedTuple):
    """What one durable commit left, as one value: read apart, the three may be of two commits."""

    snapshot: Snapshot
    catalog: Catalog
    seq: int


class Engine:
    def __init__(
        self,
        store: Store,
        *,
        durability: Durability | None = None,
        clock: Callable[[], int] = system_clock,
        jobs_interval_seconds: float = INTERVAL_SECONDS,
        node: int = 0,
        changes_kept_seconds: int = CHANGES_KEPT_SECONDS,
        changes_max_bytes: int = CHANGES_MAX_BYTES,
    ) -> None:
        self.store = store
        self.durability = durability or Durability()
        self._clock = clock
        recovered = recover(store, require_clock(clock()))
        self._history = open_history(store, may_lose=not self.durability.on_commit)
        self.catalog: Catalog = recovered.catalog
        self.seq = recovered.mark.seq
        self._floor_ms = recovered.mark.ts_ms
        self.snapshot: Snapshot = store.snapshot(*PUBLISHED)
        self.published = Published(self.snapshot, self.catalog, self.seq)
        self._logs: LogState = recovered.logs
        self._ends = {place: log.next_offset for place, log in recovered.logs.partitions.items()}
        self._starts = {place: log.start.offset for place, log in recovered.logs.partitions.items()}
        self.deduplicated = 0
        self.commits = 0
        self.ids = SnowflakeIds(node, recovered.mark.last_id)
        self.feed = Feed()
        self.pipeline_reports = PipelineReports(self.now_ms)
        self.process = Process(clock())
        self.live_stats: list[Callable[[], HubStats]] = []  # of every hub of live queries
        self.live_channels = itertools.count(1)  # numbers of their groups: none has that of another hub's
        self._recent = RecentBatches()
        self._turn = 0  # which partition a group's next claim looks at first
        self._closed = False
        self._writer = Writer(
            store,
            catalog=recovered.catalog,
            logs=recovered.logs,
            changes=recovered.changes,
            ids=self.ids,
            seq=recovered.mark.seq,
            ts_ms=recovered.mark.ts_ms,
            clock=clock,
            durability=self.durability,
            prepare=self._prepare,
            published=self._publish,
            told=self.feed.publish,
        )
        self.loads = Loads(self)
        self.replication = Replication(self)
        self.kept_changes = KeptChanges(self, changes_kept_seconds, changes_max_bytes)
        self._interval = _IntervalSync(self) if self.durability.interval_ms is not None else None
        adopt_rows(self)
        self.jobs = Jobs(self, jobs_interval_seconds)
        self.jobs.start()

    # --- writing ---

    def submit(
        self, command: Command, callback: Callable[[Ticket], None] | None = None, *, wait: bool = True
    ) -> Ticket:
        return self._writer.submit(command, callback, wait=wait)

    def execute(self, command: Command) -> Any:
        """Returns the command's answer once it is durable."""
        return self._writer.submit(command).wait()

    @property
    def writes_stopped(self) -> bool:
        return self._writer.failure is not None

    @property
    def guards(self) -> Guards:
        return self._writer.guards

    @property
    def queue_depth(self) -> int:
        return self._writer.queue_depth

    def require_room(self) -> None:
        """For who should not wait in line with a thread: Overloaded if the write queue is full now."""
        if self.queue_depth >= QUEUE_COMMANDS:
            tell(self.observer.refused)
            raise Overloaded(f"the write queue ({QUEUE_COMMANDS} commands) is full; retry later", queue=QUEUE_COMMANDS)

    @property
    def observer(self) -> Observer:
        return self._writer.observer

    def observe(self, observer: Observer = NOBODY) -> None:
        """Tells `observer` how the work goes, from now on, instead of whom it told before."""
        self._writer.observer = observer

    def _prepare(self, commit: Commit, *, answers: bool) -> Ahead:
        """On the deciding thread, before the commit is written. With `answers` there is time to make some."""
        for topic_id, partition, batch in commit.small_batches:
            if self.feed.is_awaited(topic_id):  # whom this commit wakes reads them next
                self._recent.keep(topic_id, partition, LogBatch(batch))
        return self.feed.prepared(commit) if answers else NOTHING

    def _publish(self, commit: Commit, snapshot: Snapshot, ahead: Ahead) -> None:
        """After the fsync, before anybody is told of it."""
        self.snapshot = snapshot
        self._ends.update(commit.ends)
        self._starts.update(commit.starts)
        self.catalog = commit.catalog
        self.seq = commit.seq
        self.published = Published(snapshot, commit.catalog, commit.seq)
        self._floor_ms = commit.ts_ms
        self.deduplicated += commit.deduplicated
        self.commits += 1
        ahead.let_go()

    # --- reading ---

    def whole_snapshot(self) -> Snapshot:
        """All families at one moment, for what checks or counts everything. May hold a commit not durable yet."""
        with self._writer.taking_in:
            return self.store.snapshot()

    def now_ms(self) -> int:
        return max(self._floor_ms, self._clock())

    def log_range(self, topic_id: int, partition: int, coming: Commit | None = None) -> tuple[int, int]:
        """The first offset kept and the one after the last, durable or in `coming`."""
        place = topic_id, partition
        start = self._starts.get(place, 0)
        end = self._ends.get(place, start)
        return start, end if coming is None else coming.ends.get(place, end)

    def log_bytes(self, topic_id: int, partition: int) -> tuple[int, int]:
        """Where the log kept begins and ends, counted in bytes ever written."""
        # Not `at`, which adds what it does not find: only the writer may, or it would go on with another counter.
        log = self._logs.partitions.get((topic_id, partition)) or PartitionLog()
        return log.start.bytes_before, log.bytes_end

    def log_end(self, topic_id: int, partition: int) -> tuple[int, int]:
        """Where the writer's log ends, in messages and bytes. A guess: the next moment may be another."""
        log = self._logs.partitions.get((topic_id, partition)) or PartitionLog()
        return log.next_offset, log.bytes_end

    def resolve(self, topic: Topic, partition: int, start: Start) -> int:
        first, end = self.log_range(topic.topic_id, partition)
        if start.kind is StartKind.EARLIEST:
            return first
        if start.kind is StartKind.LATEST:
            return end
        if start.kind is StartKind.TIMESTAMP:
            return offset_at_time(self.store, topic.topic_id, partition, start.value, first, end)
        if not first <= start.value <= end:
            raise not_there(topic, partition, start.value, first, end)
        return start.value

    def read(
        self, topic: Topic, partition: int, offset: int, limit: int, coming: Commit | None = None
    ) -> list[Message]:
        """Messages from `offset` on, also those that `coming` brings. Raises OffsetOutOfRange when it is not kept any more."""
        start, end = self.log_range(topic.topic_id, partition, coming)
        if offset < start:
            raise not_there(topic, partition, offset, start, end)
        return read_messages(self.store, topic.topic_id, partition, offset, end, limit, self._recent)

    def read_arrow(self, topic: Topic, partition: int, offset: int, end: int) -> Iterator[pa.RecordBatch]:
        start, durable_end = self.log_range(topic.topic_id, partition)
        if offset < start:
            raise not_there(topic, partition, offset, start, durable_end)
        return read_arrow(self.store, topic.topic_id, partition, offset, min(end, durable_end))

    def message_time_ms(self, topic_id: int, partition: int, offset: int) -> int | None:
        head = head_at(self.store, topic_id, partition, offset)
        return None if head is None else head.ts_ms

    @property
    def outbox_limit(self) -> int | None:
        return self._logs.outbox_limit

    @outbox_limit.setter
    def outbox_limit(self, limit: int | None) -> None:
        self._logs.outbox_limit = limit

    # --- changes ---

    @property
    def history(self) -> str:
        """Of what commit numbers are numbers: those of another history say nothing here."""
        return self._history.id

    def begin_history(self) -> None:
        """To be called once for a database that is older than what it told: it was restored from a backup."""
        self._history = begin_history(self.store, self._history)

    @property
    def change_index(self) -> ChangeIndex:
        return self._writer.changes

    def keep_changes(self, table_id: int) -> int:
        """Has the table's changes kept, if they are not yet. Returns the commit after which every one is, when durable."""
        return self.kept_changes.keep(table_id)

    def use_changes(self, table_id: int) -> None:
        """Says that somebody relies on the table's changes now: they go on being kept for as long as one is."""
        self.kept_changes.use(table_id)

    def changes_from(self, table_id: int) -> int | None:
        """The commit after which all changes of the table are kept; None if none are."""
        return self.kept_changes.start(table_id)

    # --- groups ---

    def claim(
        self,
        topic: Topic,
        group: str,
        *,
        limit: int,
        start: Start,
        partition: int | None = None,
        consumer: str | None = None,
        visibility_ms: int = DEFAULT_VISIBILITY_MS,
        auto_offset_reset: bool = False,
        done: Sequence[Done] = (),
    ) -> Claim | None:
        """The command that claims, or None when there is nothing to claim: reading costs no commit then."""
        check_group_name(group)
        partitions = self._partitions(topic, partition)
        if not done and not any(self._has_work(topic, group, p) for p in partitions):
            return None
        return Claim(
            topic.topic_id, group, consumer or f"anonymous-{uuid4().hex}", partitions, limit, start, visibility_ms,
            auto_offset_reset, done,
        )  # fmt: skip

    def _partitions(self, topic: Topic, partition: int | None) -> list[int]:
        """Those asked for; if any will do, each claim begins with another, so that none starves."""
        if partition is not None:
            check_partition(topic, partition)
            return [partition]
        self._turn += 1
        first = self._turn % topic.partitions
        return [*range(first, topic.partitions), *range(first)]

    def _has_work(self, topic: Topic, group: str, partition: int) -> bool:
        state = load(self.snapshot, topic.topic_id, group, partition)
        if state is None:
            return True
        _, end = self.log_range(topic.topic_id, partition)
        return has_work(state, log_end=end, now_ms=self.now_ms())

    def claimed_messages(self, topic: Topic, given: list[Given]) -> list[Message]:
        """The messages a claim gave, with their delivery counts."""
        found: list[Message] = []
        for part in given:
            messages = self.read(topic, part.partition, part.start, part.end - part.start) if part.deliveries else []
            found += [
                message if count == 1 else _delivered(message, count)
                for message, count in zip(messages, part.deliveries, strict=True)
            ]
        if self.observer is not NOBODY and (again := sum(count > 1 for part in given for count in part.deliveries)):
            tell(self.observer.redelivered, topic, again)
        return found

    def claimed_log(self, topic: Topic, given: list[Given]) -> list[LogSlice]:
        """The same as they are stored."""
        found: list[LogSlice] = []
        for part in given:
            start, end = self.log_range(topic.topic_id, part.partition)
            if part.deliveries and part.start < start:
                raise not_there(topic, part.partition, part.start, start, end)
            is_first = part.deliveries.count(1) == len(part.deliveries)
            for batch in batches_from(self.store, topic.topic_id, part.partition, part.start, part.end, self._recent):
                first, end = batch.head.first_offset, batch.head.end_offset
                low, high = max(first, part.start), min(end, part.end)
                counts = () if is_first else part.deliveries[low - part.start : high - part.start]
                found.append(LogSlice(part.partition, batch.cut(low - first, high - first), counts))
        return found

    def next_deadline_ms(self, topic: Topic, group: str) -> int | None:
        """When the next claim of the group runs out: a waiting reader looks again then."""
        deadlines = [
            groups.next_deadline(state)
            for p in range(topic.partitions)
            if (state := load(self.snapshot, topic.topic_id, group, p)) is not None
        ]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def release(self, topic: Topic, group: str, consumer: str, *, delivered: bool = True) -> int:
        count: int = self.execute(LetGo(topic.topic_id, group, consumer, delivered))
        self.feed.wake([topic.topic_id])
        return count

    # --- the end ---

    def backup(self, path: str) -> None:
        """A copy of the store as of now, taken while writes go on."""
        self.check_open()
        failpoint.hit("during_checkpoint")
        # Not while files are taken in: the backup could have a commit without them.
        with self._writer.taking_in, ended_in_copies(self.store, self._history):
            self.store.checkpoint(path)

    def sync_now(self) -> None:
        """Makes everything acknowledged durable, in the weaker modes; a failure stops writes there too."""
        self._writer.sync()

    def check_open(self) -> None:
        if self._closed:
            raise DatabaseClosed("the database is closed")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.jobs.stop()
        self.feed.wake_all()
        self._writer.close()
        if self._interval is not None:
            self._interval.stop()
        if not self.writes_stopped:
            self.store.sync()
            close_history(self.store, self._history)
        self.store.close()

    @property
    def closed(self) -> bool:
        return self._closed


def _delivered(message: Message, count: int) -> Message:
    return msgspec.structs.replace(message, delivery=count)


class _IntervalSync:
    """For durability interval(ms): syncs what was acknowledged, again and again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tablecast-interval", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._engine.durability.interval_ms is not None
        while not self._stopped.wait(self._engine.durability.interval_ms / 1000):
            self._engine.sync_now()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
