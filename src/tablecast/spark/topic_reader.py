"""Reading a topic in one go: `spark.read.format("tablecast").option("topic", …)`.

Planning asks the server once what the topic holds, resolves where to begin and end, lets filters on offset, partition
and time narrow that, and makes tasks of it. A task streams its ranges from the server and gives Arrow batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tablecast.client.bulk import BulkClient, TopicInfo
from tablecast.errors import InvalidRequest, UnknownSource
from tablecast.model.names import full_name_of, spelled
from tablecast.model.schema import TableSchema
from tablecast.spark.filters import Pushable, RowFilter, bounds, understood
from tablecast.spark.log_reading import TopicLog, described
from tablecast.spark.messages import Decoded, Envelopes, Shape, shaped_chunks
from tablecast.spark.offsets import (
    EARLIEST,
    LATEST,
    LogRange,
    Offsets,
    PartitionRange,
    Position,
    resolve,
    tasks,
)
from tablecast.spark.options import ReadOptions
from tablecast.spark.types import ENVELOPE, arrow_of, decoded_struct
from tablecast.spark.worker import settle

PARALLELISM = "SPARK_TABLECAST_PARALLELISM"  # set by `tablecast.spark.session`, for planning in another process
_FROM_START, _TO_END = Position("startingOffsets", EARLIEST), Position("endingOffsets", LATEST)
_FULL = "full"


class LogTask(InputPartition):
    """Ranges that one Spark task reads, one after the other."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        self.ranges = tuple(ranges)


def wanted_tasks(options: ReadOptions) -> int:
    return options.min_partitions or int(os.environ.get(PARALLELISM, 0)) or os.cpu_count() or 1


# --- what a topic's messages are made into ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """Envelope, or rows of `table`."""

    table: TableSchema | None = None

    def struct(self) -> StructType:
        return ENVELOPE if self.table is None else decoded_struct(self.table)

    def shape(self, schema: pa.Schema, filters: Sequence[RowFilter] = ()) -> Shape:
        if self.table is None:
            return Envelopes(schema, filters)
        return Decoded(self.table, schema, filters)


def form_of(options: ReadOptions, topic: TopicInfo) -> Form:
    """Raises UnknownSource or InvalidRequest when messages cannot be decoded, and says why."""
    if not options.decode:
        return Form()
    tables = {spelled(table.full_name): table for table in topic.tables}
    name = _source_table(options, topic.name, list(tables))
    partial = sorted({source.payload for source in topic.sources if source.table == name and source.payload != _FULL})
    if partial and not options.allow_partial:
        raise InvalidRequest(
            f"source {name} of {topic.name} has payload {partial[0]!r}: its messages do not have every column. Read "
            'without "decode", or set "allowPartial" to get NULL for what a message lacks',
            source=name, payload=partial[0],
        )  # fmt: skip
    return Form(tables[name])


def _source_table(options: ReadOptions, topic: str, tables: list[str]) -> str:
    wanted = options.source_table
    if wanted is not None:
        wanted = spelled(full_name_of(wanted, topic.partition(".")[0]))
        if wanted not in tables:
            raise UnknownSource(f"{wanted} is not a source of {topic}; its sources: {', '.join(tables) or 'none'}")
        return wanted
    if len(tables) != 1:
        said = (
            f'its sources are {", ".join(tables)}: name one in option "sourceTable"' if tables else "it has no source"
        )
        raise InvalidRequest(f"topic {topic} cannot be decoded: {said}", topic=topic)
    return tables[0]


def checked_schema(given: StructType, offered: StructType) -> pa.Schema:
    """The Arrow schema of what is asked for: the offered columns or some of them, in any order."""
    types = {field.name: field.dataType for field in offered.fields}
    for field in given.fields:
        if types.get(field.name) != field.dataType:
            has = types.get(field.name)
            what = "there is no such column" if has is None else f"it is {has.simpleString()}"
            raise InvalidRequest(f"column {field.name!r} cannot be read as {field.dataType.simpleString()}: {what}")
    return arrow_of(StructType([offered[field.name] for field in given.fields]))


# --- reading ----------------------------------------------------------------------------------------------------------


class LogReading:
    """What tasks need: the log, and the shape of what they give. Pickled to the executors."""

    def __init__(self, log: TopicLog, form: Form, schema: pa.Schema, filters: Sequence[RowFilter] = ()) -> None:
        self.log, self.form, self.schema, self.filters = log, form, schema, list(filters)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogTask):  # Spark's stand-in for no partitions at all
            return
        settle()
        shape = self.form.shape(self.schema, self.filters)
        with BulkClient(self.log.server) as client:
            for piece in partition.ranges:
                batches = self.log.batches(client, piece)
                yield from shaped_chunks(batches, self.log.topic_id, piece, shape)


class TopicReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        assert options.topic is not None
        self._options = options
        self._topic = options.topic
        with options.connect() as client:
            said, _ = described(client, self._topic)
        form = form_of(options, said)
        log = TopicLog(options.server, said.name, said.topic_id, options.fail_on_data_loss)
        self._reading = LogReading(log, form, checked_schema(schema, form.struct()))

    @property
    def pushFilters(self) -> Pushable:  # noqa: N802 - Spark's name
        return Pushable(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self._options.push_filters:
            return filters
        self._reading.filters, left = understood(filters, self._reading.schema)
        return left

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with options.connect() as client:
            ranges = self._narrowed(client, self._ranges(client))
        at_least = options.min_partitions is not None
        return [LogTask(heap) for heap in tasks(ranges, wanted_tasks(options), at_least=at_least)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)

    def _ranges(self, client: BulkClient) -> list[LogRange]:
        starting, ending = self._options.starting or _FROM_START, self._options.ending or _TO_END
        starts = self._resolved(client, starting)
        ends = self._resolved(client, ending)
        for partition, start in starts.items():
            if start > ends[partition] and starting.ts_ms is None and ending.ts_ms is None and _is_given(ending):
                raise InvalidRequest(
                    f"partition {partition} of {self._topic} would begin at offset {start} and end at "
                    f"{ends[partition]}: the end comes first"
                )
        return [LogRange(p, start, max(start, ends[p])) for p, start in sorted(starts.items())]

    def _resolved(self, client: BulkClient, place: Position) -> Offsets:
        _, partitions = described(client, self._topic, place.ts_ms)
        return resolve(place, self._topic, partitions, fail_on_data_loss=self._options.fail_on_data_loss)

    def _narrowed(self, client: BulkClient, ranges: list[LogRange]) -> list[LogRange]:
        """Without what filters on partition, offset and time drop anyway."""
        filters, decoded = self._reading.filters, self._reading.form.table is not None
        offset, partition, ts = ("_offset", "_partition", "_ts") if decoded else ("offset", "partition_id", "ts")
        ranges = [_within(piece, *bounds(filters, offset)) for piece in ranges]
        first, beyond = bounds(filters, partition)
        ranges = [
            r for r in ranges if (first is None or r.partition >= first) and (beyond is None or r.partition < beyond)
        ]
        least, later = (self._at(client, time) for time in bounds(filters, ts))
        return [
            _within(r, None if least is None else least[r.partition], None if later is None else later[r.partition])
            for r in ranges
        ]

    def _at(self, client: BulkClient, microseconds: int | None) -> Offsets | None:
        """The first offsets whose time, in whole milliseconds, is not before. Times grow with offsets."""
        if microseconds is None or microseconds < 0:
            return None
        _, partitions = described(client, self._topic, -(-microseconds // 1000))
        return {known.partition: _stood(known) for known in partitions}


def _is_given(place: Position) -> bool:
    return bool(place.each) or place.word == EARLIEST


def _stood(known: PartitionRange) -> int:
    return known.end if known.at_time is None else known.at_time


def _within(piece: LogRange, least: int | None, beyond: int | None) -> LogRange:
    start = piece.start if least is None else min(max(piece.start, least), piece.end)
    end = piece.end if beyond is None else max(min(piece.end, beyond), start)
    return LogRange(piece.partition, start, end)
