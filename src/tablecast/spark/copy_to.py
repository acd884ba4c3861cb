"""COPY TOPIC … TO: the messages of a topic into files, on Spark. Run again, it adds what is new.

    DIRECTORY/
      _tablecast/archive.json        which topic this is, and in what form; written first
      _tablecast/next-000007/        files of a batch that is being written; nobody sees it
      batch=000000/                  a batch: Parquet or JSON files, for any reader; `batch` is a column of it
        _tablecast.json              its offsets: from where, to where
      batch=000001/ …

A batch is written aside, with its offsets, and renamed into its place: it is there with its offsets, or not at all. The
last batch says where the next one begins, so a copy that was killed goes on with the message after the last that is
there, and nothing comes twice. What a killed copy left behind is removed by the next one. Names that begin with an
underscore are passed over by Spark, DuckDB, pandas and others. The directory is one that Spark's executors and this
process share. Delta tables have a log of their own for this: see `copy_delta`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from pyspark.sql import DataFrame, SparkSession

from tablecast.client.bulk import BulkClient, Server
from tablecast.codec.result import Result
from tablecast.errors import Conflict, InvalidRequest
from tablecast.model.schema import ColumnType, TypeName
from tablecast.model.spark_job import CopyTopic, FileFormat
from tablecast.spark.log_reading import described
from tablecast.spark.offsets import (
    Offsets,
    PartitionRange,
    Position,
    StreamOffset,
    check_same,
    limited,
    position,
    resolve,
)
from tablecast.spark.options import SOURCE_NAME, milliseconds
from tablecast.spark.pipelines.query import reader_options
from tablecast.spark.progress import Watcher, moving
from tablecast.storage.home import sync_directory, sync_tree

COMMIT_ROWS = 5_000_000  # messages of a batch: what is not committed is done again after a kill
HIDDEN = "_tablecast"
OFFSETS_FILE = "_tablecast.json"
ARCHIVE_FILE = "archive.json"
_BATCH = re.compile(r"batch=(\d{6,})\Z")


class Archive(msgspec.Struct, frozen=True):
    """What a directory holds. A copy of anything else into it is refused."""

    topic: str
    topic_id: int
    format: str
    decode: bool
    source_table: str | None
    starting: str


class Span(msgspec.Struct, frozen=True):
    """The messages of a batch: offsets from `start` to before `end`, by partition."""

    batch: int
    topic_id: int
    start: dict[int, int]
    end: dict[int, int]

    @property
    def rows(self) -> int:
        return sum(end - self.start[partition] for partition, end in self.end.items())


class Keeper(Protocol):
    """Where batches are kept. `last` is the newest that is there, `keep` makes one be there, whole or not at all."""

    def last(self) -> Span | None: ...
    def keep(self, messages: DataFrame, span: Span) -> None: ...


def copy_to(spark: SparkSession, server: Server, job: CopyTopic, watcher: Watcher) -> Result:
    directory = local_path(job.target)
    with BulkClient(server) as client:
        topic, _ = described(client, job.topic)
        job = msgspec.structs.replace(job, topic=topic.name)
        known = _known(directory, job, topic.topic_id)
        archive = _claimed(directory, job, topic.topic_id) if known is None and not job.dry_run else known
        keeper = _Nothing() if archive is None else _keeper(directory, job)
        copying = _Copying(client, spark, job, archive or _wanted(job, topic.topic_id), keeper, watcher)
        return copying.counted() if job.dry_run else copying.run()


def local_path(target: str) -> Path:
    parts = urlsplit(target)
    if parts.scheme not in ("", "file"):
        raise InvalidRequest(
            f"{target}: batches are renamed into place, so the directory is a path that this process and the executors "
            "share, not an address",
            path=target,
        )
    return Path(unquote(parts.path) if parts.scheme else target).absolute()


def _keeper(directory: Path, job: CopyTopic) -> Keeper:
    if job.format is FileFormat.DELTA:
        from tablecast.spark.copy_delta import DeltaTableKeeper

        return DeltaTableKeeper(directory)
    return FileKeeper(directory, job.format)


class _Nothing:
    """The keeper of a directory that is not there yet, and that a dry run does not make."""

    def last(self) -> Span | None:
        return None

    def keep(self, messages: DataFrame, span: Span) -> None:
        raise AssertionError("a dry run keeps nothing")


def _wanted(job: CopyTopic, topic_id: int) -> Archive:
    return Archive(job.topic, topic_id, job.format, job.decode, job.source_table, job.starting)


def _known(directory: Path, job: CopyTopic, topic_id: int) -> Archive | None:
    """What the directory holds, if that is what is wanted; None if it is free. Raises Conflict."""
    file, wanted = directory / HIDDEN / ARCHIVE_FILE, _wanted(job, topic_id)
    if file.exists():
        found = msgspec.json.decode(file.read_bytes(), type=Archive)
        if msgspec.structs.replace(found, starting=wanted.starting) != wanted:
            raise Conflict(
                f"{directory} holds topic {found.topic} (id {found.topic_id}) as {found.format}, "
                f"{'decoded' if found.decode else 'as messages'}: what is added to it must be the same, or go elsewhere",
                path=str(directory),
            )
        return found
    if directory.exists() and any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty, and holds no copy of a topic", path=str(directory))
    return None


def _claimed(directory: Path, job: CopyTopic, topic_id: int) -> Archive:
    """The directory is for this job, from its first run on."""
    hidden, wanted = directory / HIDDEN, _wanted(job, topic_id)
    hidden.mkdir(parents=True)
    write_whole(hidden / ARCHIVE_FILE, msgspec.json.encode(wanted))
    return wanted


@dataclass
class _Copying:
    client: BulkClient
    spark: SparkSession
    job: CopyTopic
    known: Archive
    keeper: Keeper
    watcher: Watcher

    def run(self) -> Result:
        start, number, ends = self._planned()
        before = sum(start.values())
        self.watcher.began(f"COPY TOPIC {self.job.topic}", sum(ends.values()) - before)
        for span in self._spans(start, number, ends):
            with moving(self.spark, self.watcher, sum(span.start.values()) - before, span.rows, 0):
                self.keeper.keep(self._messages(span), span)
            self.watcher.reached(sum(span.end.values()) - before, 0)
        return self._result(sum(ends.values()) - before)

    def counted(self) -> Result:
        """What `run` would do now. Raises OffsetOutOfRange as it would."""
        start, number, ends = self._planned()
        if start != ends:
            resolve(position("STARTING", _json(start)), self.job.topic, self._described(None)[1])
        spans = list(self._spans(start, number, ends))
        messages = sum(span.rows for span in spans)
        row = (self.job.topic, messages, number + len(spans), self.job.target)
        return Result.of_rows(_COLUMNS, _TYPES, [row], message=f"COPY TOPIC, dry run: {messages}", row_count=messages)

    def _planned(self) -> tuple[Offsets, int, Offsets]:
        """Where to begin, the number of the next batch, and where to end."""
        last = self.keeper.last()
        _, partitions = self._described(None)
        ending = _place("ENDING", self.job.ending)
        ends = resolve(ending, self.job.topic, self._described(ending.ts_ms)[1])
        if last is None:
            starting = _place("STARTING", self.known.starting)
            starts = resolve(starting, self.job.topic, self._described(starting.ts_ms)[1])
        else:
            check_same(StreamOffset(last.topic_id, last.end), self.job.topic, self.known.topic_id, partitions)
            starts = dict(last.end)
        return starts, 0 if last is None else last.batch + 1, {p: max(ends[p], starts[p]) for p in ends}

    def _described(self, ts_ms: int | None) -> tuple[int, list[PartitionRange]]:
        topic, partitions = described(self.client, self.job.topic, ts_ms)
        return topic.topic_id, partitions

    def _spans(self, start: Offsets, number: int, ends: Offsets) -> Iterator[Span]:
        most = self.job.commit_rows or COMMIT_ROWS
        while start != ends:
            end = limited(start, ends, most)
            yield Span(number, self.known.topic_id, start, end)
            start, number = end, number + 1

    def _messages(self, span: Span) -> DataFrame:
        options = reader_options(self.client.server)
        options |= {"topic": self.job.topic, "decode": str(self.job.decode).lower()}
        options |= {"startingOffsets": _json(span.start), "endingOffsets": _json(span.end)}
        if self.job.source_table is not None:
            options["sourceTable"] = self.job.source_table
        return self.spark.read.format(SOURCE_NAME).options(**options).load()

    def _result(self, messages: int) -> Result:
        last = self.keeper.last()
        row = (self.job.topic, messages, 0 if last is None else last.batch + 1, self.job.target)
        return Result.of_rows(_COLUMNS, _TYPES, [row], message=f"COPY TOPIC {messages}", row_count=messages)


def _json(offsets: Offsets) -> str:
    return msgspec.json.encode({str(p): offset for p, offset in sorted(offsets.items())}).decode()


def _place(name: str, text: str) -> Position:
    """`earliest`, `latest`, offsets by partition as JSON, or a time."""
    if text.strip().lower() in ("earliest", "latest") or text.lstrip().startswith("{"):
        return position(name, text)
    return Position(name, ts_ms=milliseconds(name, text))


# --- files ----------------------------------------------------------------------------------------------------------


class FileKeeper:
    """Batches as directories."""

    def __init__(self, directory: Path, file_format: FileFormat) -> None:
        self._directory, self._format = directory, file_format

    def last(self) -> Span | None:
        found = [entry for entry in self._directory.iterdir() if _BATCH.match(entry.name)]
        if not found:
            return None
        newest = max(found, key=lambda entry: int(entry.name.partition("=")[2]))
        return msgspec.json.decode((newest / OFFSETS_FILE).read_bytes(), type=Span)

    def keep(self, messages: DataFrame, span: Span) -> None:
        aside = self._directory / HIDDEN / f"next-{span.batch:06d}"
        for left in (self._directory / HIDDEN).glob("next-*"):
            shutil.rmtree(left)
        messages.write.format(self._format).save(aside.as_uri())
        write_whole(aside / OFFSETS_FILE, msgspec.json.encode(span))
        sync_tree(aside)  # Spark leaves its files to the system; before they count they are on disk
        aside.rename(self._directory / f"batch={span.batch:06d}")
        sync_directory(self._directory)


def write_whole(file: Path, data: bytes) -> None:
    """The file is there with all of it, or not at all."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    partial.replace(file)
    sync_directory(file.parent)


_COLUMNS = ("topic", "messages", "batches", "path")
_TYPES = tuple(ColumnType(name) for name in (TypeName.TEXT, TypeName.BIGINT, TypeName.BIGINT, TypeName.TEXT))
