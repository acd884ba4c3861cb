"""ADD SOURCE with `backfill = 'spark'`: what a new source says of the rows that there are, made on executors.

    begin a load ──▶ snapshot, cut into key ranges ──▶ tasks: rows of a range ──▶ messages, staged ──▶ commit

The commit adds the source and takes the messages in. From the beginning on the server notes which rows are written, and
the commit tells those as they are then (engine.load_backfill): so nothing stops while Spark works, and the topic holds
what a backfill in the very commit would have put there.

Nothing of it is there before the commit. A job that is killed has added no source, or has added it with all messages;
what it had staged is removed after a day. A server that is started anew, a table that is altered or loaded into
meanwhile: the job begins again.
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from tablecast.client.bulk import BulkClient, LoadBegun, LoadDone, Server, SnapshotOpened
from tablecast.codec.result import Result
from tablecast.core.seal_messages import MessageSealer
from tablecast.errors import SnapshotGone, StaleLoad, TablecastError, UnknownLoad
from tablecast.model.spark_job import Backfill
from tablecast.spark.arrow_map import map_arrow
from tablecast.spark.copying import explained
from tablecast.spark.progress import Watcher, moving
from tablecast.spark.sealing_task import send_parts
from tablecast.spark.task import Task, current_task
from tablecast.spark.worker import settle

RANGES_PER_CORE = 8  # of the snapshot: few enough to be worth a task each, and a bar moves by as many steps
UNKNOWN_CORES = 16  # behind Spark Connect, which does not tell
MOST_RANGES = 1_024  # what a server cuts a snapshot into
ATTEMPTS = 4  # at a backfill whose snapshot, load or plan is gone before it is committed
JOB = "job:backfill:"

Parts = Sequence[tuple[int, str]]
T = TypeVar("T")


def backfill(spark: SparkSession, server: Server, job: Backfill, watcher: Watcher) -> Result:
    writer_id = f"{JOB}{uuid.uuid4()}"  # another one each time: a source may be dropped, and added again
    with BulkClient(server) as client:
        backfilling = _Backfilling(client, spark, job, writer_id, watcher)
        if job.dry_run:
            count = backfilling.counted()
            return Result.of_write(count, f"ADD SOURCE, dry run: {count}", None)
        done = backfilling.done()
    return Result.of_write(done.row_count, f"ADD SOURCE {done.row_count}", done.seq)


@dataclass
class _Backfilling:
    client: BulkClient
    spark: SparkSession
    job: Backfill
    writer_id: str
    watcher: Watcher

    def done(self) -> LoadDone:
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(StaleLoad, UnknownLoad, SnapshotGone):
                return self._attempt()
        return self._attempt()

    def counted(self) -> int:
        """How many messages there would be, of the rows as they are now. The server hears of it as of a load that is given
        up, so what it would refuse it refuses."""
        load = self.client.begin_backfill(self.job, self.writer_id)
        try:
            return sum(self._of_ranges(load, CountRanges, int))
        finally:
            with contextlib.suppress(TablecastError):
                self.client.abort_load(load.load_id)

    def _attempt(self) -> LoadDone:
        load = self.client.begin_backfill(self.job, self.writer_id)
        if load.committed is not None:
            return load.committed
        try:
            return self.client.commit_load(load.load_id, self._staged(load))
        except TablecastError:
            with contextlib.suppress(TablecastError):
                self.client.abort_load(load.load_id)
            raise

    def _staged(self, load: LoadBegun) -> Parts:
        return sorted(part for parts in self._of_ranges(load, TellRanges, list[tuple[int, str]]) for part in parts)

    def _of_ranges(self, load: LoadBegun, work: type[OfRanges], told_as: type[T]) -> list[T]:
        """What tasks say of each range of a snapshot that is taken now."""
        snapshot = self.client.open_snapshot(self.job.table, splits=_ranges(self.spark))
        try:
            count = len(snapshot.ranges)
            self.watcher.began(f"ADD SOURCE {self.job.table}", count, "ranges")
            numbers = self.spark.range(0, count, 1, count)
            with explained(), moving(self.spark, self.watcher, 0, count, 0):
                told = map_arrow(numbers, work(self.client.server, load, snapshot), "told string").collect()
            self.watcher.reached(count, 0)
            return [msgspec.json.decode(row.told, type=told_as) for row in told]
        finally:
            with contextlib.suppress(TablecastError):
                self.client.close_snapshot(snapshot.snapshot_id)


def _ranges(spark: SparkSession) -> int:
    cores = spark.sparkContext.defaultParallelism if hasattr(spark, "_jvm") else UNKNOWN_CORES
    return min(RANGES_PER_CORE * cores, MOST_RANGES)


@dataclass(frozen=True)
class OfRanges(ABC):
    """Travels to the executors: does something with the rows of some ranges, and gives back what it says of each."""

    server: Server
    load: LoadBegun
    snapshot: SnapshotOpened

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        with BulkClient(self.server) as client:
            for batch in batches:
                told = [msgspec.json.encode(self._done(client, n)).decode() for n in batch.column(0).to_pylist()]
                yield pa.RecordBatch.from_arrays([pa.array(told, pa.string())], names=["told"])

    def _done(self, client: BulkClient, number: int) -> Parts | int:
        start, end = self.snapshot.ranges[number]
        rows = client.read_snapshot(self.snapshot.snapshot_id, start, end)
        sealer = MessageSealer(self.load.table, self.load.routes, self.load.load_number)
        return self.of_range(client, number, sealer, rows)

    @abstractmethod
    def of_range(
        self, client: BulkClient, number: int, sealer: MessageSealer, rows: Iterator[pa.RecordBatch]
    ) -> Parts | int:
        """What is said of the rows of one range."""


class TellRanges(OfRanges):
    """Messages, staged: which parts they became."""

    def of_range(
        self, client: BulkClient, number: int, sealer: MessageSealer, rows: Iterator[pa.RecordBatch]
    ) -> Parts | int:
        return send_parts(client, self.load, sealer, rows, Task(number, current_task().attempt)).parts


class CountRanges(OfRanges):
    """Messages, made and thrown away: how many they were."""

    def of_range(
        self, client: BulkClient, number: int, sealer: MessageSealer, rows: Iterator[pa.RecordBatch]
    ) -> Parts | int:
        for batch in rows:
            sealer.add(batch, _nowhere)
            if sealer.full:
                sealer.part(_nowhere)
        sealer.part(_nowhere)
        return sealer.messages


def _nowhere(topic_id: int, partition: int, count: int, batch: bytes) -> None:
    pass
