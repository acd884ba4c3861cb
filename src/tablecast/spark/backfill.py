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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


def backfill(spark: SparkSession, server: Server, job: Backfill, watcher: Watcher) -> Result:
    writer_id = f"{JOB}{uuid.uuid4()}"  # another one each time: a source may be dropped, and added again
    with BulkClient(server) as client:
        done = _Backfilling(client, spark, job, writer_id, watcher).done()
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
        snapshot = self.client.open_snapshot(self.job.table, splits=_ranges(self.spark))
        try:
            count = len(snapshot.ranges)
            self.watcher.began(f"ADD SOURCE {self.job.table}", count, "ranges")
            numbers = self.spark.range(0, count, 1, count)
            telling = TellRanges(self.client.server, load, snapshot)
            with explained(), moving(self.spark, self.watcher, 0, count, 0):
                told = map_arrow(numbers, telling, "parts string").collect()
            self.watcher.reached(count, 0)
            return sorted(part for row in told for part in msgspec.json.decode(row.parts, type=list[tuple[int, str]]))
        finally:
            with contextlib.suppress(TablecastError):
                self.client.close_snapshot(snapshot.snapshot_id)


def _ranges(spark: SparkSession) -> int:
    cores = spark.sparkContext.defaultParallelism if hasattr(spark, "_jvm") else UNKNOWN_CORES
    return min(RANGES_PER_CORE * cores, MOST_RANGES)


@dataclass(frozen=True)
class TellRanges:
    """Travels to the executors: messages of the rows of some ranges, staged. Gives back which parts each became."""

    server: Server
    load: LoadBegun
    snapshot: SnapshotOpened

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        with BulkClient(self.server) as client:
            for batch in batches:
                told = [msgspec.json.encode(self._staged(client, n)).decode() for n in batch.column(0).to_pylist()]
                yield pa.RecordBatch.from_arrays([pa.array(told, pa.string())], names=["parts"])

    def _staged(self, client: BulkClient, number: int) -> Parts:
        load, snapshot = self.load, self.snapshot
        start, end = snapshot.ranges[number]
        sealer = MessageSealer(load.table, load.routes, load.load_number)
        rows = client.read_snapshot(snapshot.snapshot_id, start, end)
        return send_parts(client, load, sealer, rows, Task(number, current_task().attempt)).parts
