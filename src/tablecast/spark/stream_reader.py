"""Reading a topic as it grows: `spark.readStream.format("tablecast").option("topic", …)`.

Spark asks for the newest offset, plans a micro-batch up to it, and keeps both in its checkpoint; after a crash it plans
the same batch again, with the same offsets, and the log gives the same messages.

With option `group`, progress is written to that group of the topic, so that its lag is seen in `system.topic_groups`
like any consumer's. When Spark asks for the newest offset after `start`, all before `start` is done: that is what is
reported. It is for the eye only; the stream goes on from its checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tablecast.client.bulk import BulkClient
from tablecast.errors import InvalidRequest, TablecastError, UnknownGroup
from tablecast.spark.log_reading import TopicLog, described
from tablecast.spark.offsets import (
    LATEST,
    LogRange,
    Offsets,
    PartitionRange,
    Position,
    StreamOffset,
    check_same,
    kept,
    limited,
    resolve,
    stream_offset,
    tasks,
)
from tablecast.spark.options import ReadOptions
from tablecast.spark.topic_reader import LogReading, LogTask, checked_schema, form_of, wanted_tasks

REPORT_SECONDS = 2.0  # between two reports of progress while there is more to read: each is a commit of the server
_FROM_NOW = Position("startingOffsets", LATEST)
_log = logging.getLogger("tablecast.spark")


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        assert options.topic is not None
        if options.ending is not None:
            raise InvalidRequest(f'option "{options.ending.option}" is for spark.read: a stream does not end')
        self._options, self._topic = options, options.topic
        with options.connect() as client:
            said, _ = described(client, self._topic)
        form = form_of(options, said)
        log = TopicLog(options.server, said.name, said.topic_id, options.fail_on_data_loss)
        self._reading = LogReading(log, form, checked_schema(schema, form.struct()))
        self._client: BulkClient | None = None
        self._target: Offsets | None = None  # of AvailableNow
        self._reported: tuple[float, Offsets] | None = None

    # --- offsets ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        options, place = self._options, self._options.starting or _FROM_NOW
        said, partitions = described(self._open(), self._topic, place.ts_ms)
        starts = resolve(place, self._topic, partitions, fail_on_data_loss=options.fail_on_data_loss)
        return StreamOffset(said.topic_id, starts).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = stream_offset(start)
        partitions = self._partitions(begin)
        ends = self._ends(begin, partitions)
        if isinstance(limit, ReadMaxRows):
            ends = limited(self._readable(begin.offsets, partitions), ends, limit.max_rows)
        self._report(begin.offsets, is_idle=ends == begin.offsets)
        return StreamOffset(begin.topic_id, ends).as_json()

    def _ends(self, begin: StreamOffset, partitions: list[PartitionRange]) -> Offsets:
        """Never before where the stream stands, and with AvailableNow not after what was there when it began."""
        target = self._target
        return {
            p.partition: max(begin.offsets[p.partition], p.end if target is None else min(p.end, target[p.partition]))
            for p in partitions
        }

    def _readable(self, starts: Offsets, partitions: list[PartitionRange]) -> Offsets:
        """What retention took does not count against a limit."""
        return {p.partition: min(max(starts[p.partition], p.start), p.end) for p in partitions}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        said, partitions = described(self._open(), self._topic)
        return StreamOffset(said.topic_id, {p.partition: p.end for p in partitions}).as_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, partitions = described(self._open(), self._topic)
        self._target = {p.partition: p.end for p in partitions}

    def _partitions(self, begin: StreamOffset) -> list[PartitionRange]:
        said, partitions = described(self._open(), self._topic)
        check_same(begin, self._topic, said.topic_id, partitions)
        return partitions

    # --- batches ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, until = stream_offset(start), stream_offset(end)
        known = self._partitions(until)
        ranges = [LogRange(p, offset, until.offsets[p]) for p, offset in sorted(begin.offsets.items())]
        left = kept(
            self._topic, ranges, {p.partition: p.start for p in known},
            fail_on_data_loss=self._options.fail_on_data_loss,
        )  # fmt: skip
        at_least = self._options.min_partitions is not None
        return [LogTask(heap) for heap in tasks(left, wanted_tasks(self._options), at_least=at_least)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._report(stream_offset(end).offsets, is_idle=False)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- progress ---

    def _report(self, done: Offsets, *, is_idle: bool) -> None:
        """A failure is logged and no more: the stream itself does not depend on it."""
        if self._options.group is None:
            return
        at, before = self._reported or (float("-inf"), None)
        if done == before or not (is_idle or time.monotonic() - at >= REPORT_SECONDS):
            return
        try:
            self._reset_group(self._options.group, done, before or {})
            self._reported = time.monotonic(), done
        except TablecastError as e:
            _log.warning("progress of group %s on %s was not reported: %s", self._options.group, self._topic, e)

    def _reset_group(self, group: str, done: Offsets, before: Offsets) -> None:
        """A group begins with its first CONSUME; after that it can be set."""
        moved = [
            f"RESET GROUP {_quoted(group)} ON {self._reading.log.topic} PARTITION {p} TO OFFSET {offset}"
            for p, offset in done.items()
            if before.get(p) != offset
        ]
        try:
            self._open().sql("; ".join(moved))
        except UnknownGroup:
            self._open().sql(f"CONSUME FROM {self._reading.log.topic} GROUP {_quoted(group)} FROM EARLIEST LIMIT 1")
            self._open().sql("; ".join(moved))

    # --- the connection: one per process, never pickled ---

    def _open(self) -> BulkClient:
        if self._client is None:
            self._client = self._options.connect()
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
