"""AUDIT TOPIC: that every change of a row is on the topic, once, and as it was. On Spark, against a running server.

    log       offsets without a gap, no offset or message id twice, every content as its hash says
    source    the rows of each source table, as of one commit, against what the topic last said of each

What can be known of a source depends on what it asks for:

| a source of | judged by | tells |
|---|---|---|
| INSERT and UPDATE | last writes | of each row: that its last write is on the topic, with this content |
| all three, without WHERE | fold | that too; rows on the topic that the table has not; inserts and deletes told twice |
| others | nothing | a row's last change may be one that the topic did not ask for |

Rows older than the source (unless it was backfilled), and rows whose messages retention may have removed, are counted as
`unjudged`, not as missing. A table that keeps users apart, and a topic that drops repeats, are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f

from tablecast.client.bulk import BulkClient, Server, SnapshotOpened
from tablecast.codec.result import Result
from tablecast.model.change import Op
from tablecast.model.names import spelled
from tablecast.model.schema import ColumnType, TableSchema, TypeName
from tablecast.model.spark_job import AuditTopic
from tablecast.model.topic import PayloadMode, Route, Topic
from tablecast.spark.arrow_map import map_arrow, map_values
from tablecast.spark.audit_task import MESSAGES, ROWS, Messages, SnapshotRows, agrees
from tablecast.spark.log_reading import described
from tablecast.spark.offsets import PartitionRange
from tablecast.spark.options import SOURCE_NAME
from tablecast.spark.pipelines.query import reader_options
from tablecast.spark.progress import Watcher

EXAMPLES = 10  # keys that are named for each source
SPLITS = 32  # ranges of a table's snapshot, at most
COVERED, MISSING, DIFFERING, EXTRA, UNJUDGED = "covered", "missing", "differing", "extra", "unjudged"
_NOTHING = "nothing"
_WRONG = (MISSING, DIFFERING, EXTRA)


@dataclass
class Finding:
    """One row of the answer. `source` is None for the log itself."""

    source: str | None
    judged_by: str
    rows: int = 0
    covered: int = 0
    missing: int = 0
    differing: int = 0
    extra: int = 0
    unjudged: int = 0
    messages: int = 0
    repeated: int = 0
    gaps: int = 0
    examples: str = "[]"

    def answer(self, topic: str) -> tuple[Any, ...]:
        judged = self.covered + self.missing + self.differing
        coverage = round(100 * self.covered / judged, 4) if judged else None
        duplication = round(self.messages / max(self.messages - self.repeated, 1), 4) if self.messages else None
        return (
            topic, self.source, self.judged_by, coverage, duplication, self.rows, self.covered, self.missing,
            self.differing, self.extra, self.unjudged, self.messages, self.repeated, self.gaps, self.examples,
        )  # fmt: skip

    @property
    def is_sound(self) -> bool:
        return not (self.missing or self.differing or self.extra or self.repeated or self.gaps)


def audit(spark: SparkSession, server: Server, job: AuditTopic, watcher: Watcher) -> Result:
    with BulkClient(server) as client:
        topic, partitions = described(client, job.topic)
        watcher.began(f"AUDIT {job.topic}", sum(known.end - known.start for known in partitions))
        auditing = _Auditing(client, spark, job.topic)
        findings = [auditing.log()]
        for table in topic.tables:
            routes = [route for _, route in topic.routes if route.table_id == table.table_id]
            findings.append(auditing.source(topic.routes[0][0], table, routes))
    sound = all(finding.is_sound for finding in findings)
    rows = [finding.answer(job.topic) for finding in findings]
    message = f"AUDIT {job.topic}{_left_open(findings)}: {'sound' if sound else 'NOT SOUND'}"
    return Result.of_rows(_COLUMNS, _TYPES, rows, message=message)


def _left_open(findings: Sequence[Finding]) -> str:
    """What the verdict says nothing about: a topic of which nothing could be judged is not to be taken for one that was."""
    rows = sum(finding.unjudged for finding in findings)
    sources = sum(finding.judged_by.startswith(_NOTHING) for finding in findings)
    left = [f"{rows:,} rows not judged"] if rows else []
    left += [f"{sources} source{'s' if sources > 1 else ''} not judged"] if sources else []
    return f" ({', '.join(left)})" if left else ""


@dataclass
class _Auditing:
    client: BulkClient
    spark: SparkSession
    topic: str

    # --- the log ---

    def log(self) -> Finding:
        _, partitions = described(self.client, self.topic)
        messages = self._messages(partitions, None)
        by_partition = messages.groupBy("partition_id").agg(
            f.count(f.lit(1)).alias("count"),
            f.count_distinct("offset").alias("offsets"),
            f.sum(f.when(f.col("sound"), 0).otherwise(1)).alias("unsound"),
        )
        found = {row.partition_id: row for row in by_partition.collect()}
        ids = messages.agg(f.count(f.lit(1)) - f.count_distinct("message_id")).collect()[0][0]
        return self._log_finding(partitions, found, ids)

    def _log_finding(self, partitions: Sequence[PartitionRange], found: dict[int, Row], ids: int) -> Finding:
        finding = Finding(None, "log", repeated=ids)
        offsets_twice = 0
        for known in partitions:
            row = found.get(known.partition)
            count, offsets, unsound = (row["count"], row["offsets"], row["unsound"]) if row else (0, 0, 0)
            finding.messages += count
            finding.gaps += known.end - known.start - offsets
            finding.differing += unsound
            offsets_twice += count - offsets
        finding.repeated = max(ids, offsets_twice)  # a message that stands twice is twice both
        return finding

    def _messages(self, partitions: Sequence[PartitionRange], payload_of: str | None) -> DataFrame:
        starts = {str(known.partition): known.start for known in partitions}
        ends = {str(known.partition): known.end for known in partitions}
        options = reader_options(self.client.server) | {
            "topic": self.topic,
            "startingOffsets": msgspec.json.encode(starts).decode(),
            "endingOffsets": msgspec.json.encode(ends).decode(),
        }
        envelopes = self.spark.read.format(SOURCE_NAME).options(**options).load()
        return map_arrow(envelopes, Messages(payload_of), MESSAGES)

    # --- a source ---

    def source(self, topic: Topic, table: TableSchema, routes: Sequence[Route]) -> Finding:
        route = next((each for each in routes if {Op.INSERT, Op.UPDATE} <= set(each.ops)), None)
        why_not = _not_judged(topic, table, route)
        if route is None or why_not is not None:
            return Finding(table.full_name, f"{_NOTHING}: {why_not}")
        snapshot = self.client.open_snapshot(spelled(table.full_name), splits=SPLITS)
        try:
            return _Source(self, snapshot, route).finding()
        finally:
            self.client.close_snapshot(snapshot.snapshot_id)

    def rows(self, snapshot: SnapshotOpened, route: Route) -> DataFrame:
        table = snapshot.table
        reading = SnapshotRows(
            self.client.server, snapshot.snapshot_id, snapshot.ranges, table, route.filter, table.version > 1
        )
        numbers = self.spark.range(0, len(snapshot.ranges), 1, len(snapshot.ranges))
        return map_arrow(numbers, reading, ROWS)


def _not_judged(topic: Topic, table: TableSchema, route: Route | None) -> str | None:
    if route is None:
        return "no source asks for both INSERT and UPDATE"
    if table.per_user:
        return "the table keeps users apart"
    if topic.dedup_window_seconds:
        return "the topic drops repeats"
    return None


@dataclass
class _Source:
    """One source table at one commit."""

    audit: _Auditing
    snapshot: SnapshotOpened
    route: Route

    @property
    def folds(self) -> bool:
        table, route = self.snapshot.table, self.route
        return route.filter is None and Op.DELETE in route.ops and table.ttl_seconds is None

    def finding(self) -> Finding:
        _, partitions = described(self.audit.client, self.audit.topic)  # all that the snapshot holds is told by now
        name = self.snapshot.table.full_name
        needs_payload = name if self.snapshot.table.version > 1 else None
        told = self.audit._messages(partitions, needs_payload).where(
            (f.col("source_table") == name) & (f.col("seq") <= self.snapshot.seq)
        )
        unkept = self._unkept(partitions)
        compared = self._compared(told, unkept).persist()
        try:
            counts = {row["verdict"]: row["count"] for row in compared.groupBy("verdict").count().collect()}
            examples = self._examples(compared)
        finally:
            compared.unpersist()
        how = ("fold" if self.folds else "last writes") + (f", of commits after {unkept}" if unkept else "")
        rows = sum(count for verdict, count in counts.items() if verdict != EXTRA)
        return Finding(
            name, how, rows, messages=told.count(), repeated=self._repeated(told), examples=examples, **counts
        )

    def _unkept(self, partitions: Sequence[PartitionRange]) -> int:
        """The last commit of which retention may have removed messages; 0 if none."""
        last = 0
        for known in partitions:
            if known.start and known.start == known.end:
                return self.snapshot.seq
            if known.start:
                last = max(last, self._first_seq(known))
        return last

    def _first_seq(self, known: PartitionRange) -> int:
        """Of the oldest message that is there: what was removed is not younger."""
        only = [known._replace(end=known.start + 1)]
        _, every = described(self.audit.client, self.audit.topic)
        others = [each._replace(end=each.start) for each in every if each.partition != known.partition]
        first = self.audit._messages([*only, *others], None).agg(f.max("seq")).collect()[0][0]
        return int(first)

    # --- comparing ---

    def _last_words(self, told: DataFrame) -> DataFrame:
        """What the topic last said of each key: one word, or, of a row that moved between partitions in one commit,
        the last of each."""
        of_key = Window.partitionBy("key")
        in_partition = Window.partitionBy("key", "partition_id").orderBy(f.col("offset").desc())
        marked = told.withColumn("last_seq", f.max("seq").over(of_key)).withColumn(
            "back", f.row_number().over(in_partition)
        )
        last = marked.where((f.col("seq") == f.col("last_seq")) & (f.col("back") == 1))
        return last.groupBy("key").agg(
            f.max("seq").alias("last_seq"),
            f.collect_list(f.struct("op", "content_hash", "payload")).alias("words"),
            f.min(f.col("op") != Op.DELETE.label).alias("alive"),
        )

    def _compared(self, told: DataFrame, unkept: int) -> DataFrame:
        rows = self.audit.rows(self.snapshot, self.route)
        both = rows.join(self._last_words(told), "key", "full_outer")
        return both.select("key", "row_seq", "last_seq", self._verdict(unkept).alias("verdict")).where(
            f.col("verdict").isNotNull()
        )

    def _verdict(self, unkept: int) -> Column:
        row, last, route = f.col("row_seq"), f.col("last_seq"), self.route
        first = 0 if route.backfilled else route.from_seq + 1
        if route.backfilled:  # older rows were told with the source
            row = f.greatest(row, f.when(row.isNotNull(), route.from_seq))
        extra = f.lit(EXTRA if self.folds else None)
        told_elsewhere = row.isNull() & f.col("alive") & (last >= route.from_seq)
        return (
            f.when(told_elsewhere, extra)
            .when(row.isNull() | ~f.col("asked"), f.lit(None))
            .when((row < first) | ((row <= unkept) & last.isNull()), UNJUDGED)
            .when(last.isNull() | (last < row), f.when(row <= unkept, UNJUDGED).otherwise(MISSING))
            .when(last > row, DIFFERING)
            .when(self._same(), COVERED)
            .otherwise(DIFFERING)
        )

    def _same(self) -> Column:
        """Whether one of the last words says what the row says; only full payloads say all of it."""
        if self.route.payload is not PayloadMode.FULL:
            return f.lit(True)
        update = f.lit(Op.UPDATE.label)

        def says(word: Column) -> Column:
            hashed = f.when(word["op"] == update, f.col("as_update")).otherwise(f.col("as_insert"))
            return (word["content_hash"] == hashed) & (word["op"] != Op.DELETE.label)

        same = f.exists("words", says)
        if self.snapshot.table.version == 1:
            return same
        return f.when(same, True).otherwise(map_values(agrees, "boolean", "row_payload", "words"))

    def _repeated(self, told: DataFrame) -> int:
        """Inserts and deletes that were told twice. An update may well be made twice."""
        if self.folds and self.route.partition_by is None:
            order = Window.partitionBy("key").orderBy("seq", "offset")
            before = f.lag("op").over(order)
            again = ((f.col("op") == Op.INSERT.label) & (before != Op.DELETE.label)) | (
                (f.col("op") == Op.DELETE.label) & (before == Op.DELETE.label)
            )
            return told.select(again.alias("again")).where("again").count()
        kept = told.where(f.col("op") != Op.UPDATE.label)
        same = kept.groupBy("key", "seq", "op", "content_hash", "partition_id").count()
        return int(same.agg(f.sum(f.col("count") - 1)).collect()[0][0] or 0)

    def _examples(self, compared: DataFrame) -> str:
        wrong = compared.where(f.col("verdict").isin(*_WRONG)).orderBy("key").limit(EXAMPLES).collect()
        told = [{"key": row.key, "what": row.verdict, "row": row.row_seq, "topic": row.last_seq} for row in wrong]
        return msgspec.json.encode(told).decode()


_COLUMNS = (
    "topic", "source", "judged_by", "coverage", "duplication", "rows", COVERED, MISSING, DIFFERING, EXTRA, UNJUDGED,
    "messages", "repeated", "gaps", "examples",
)  # fmt: skip
_TYPES = (
    *(ColumnType(TypeName.TEXT),) * 3,
    *(ColumnType(TypeName.DOUBLE),) * 2,
    *(ColumnType(TypeName.BIGINT),) * 9,
    ColumnType(TypeName.JSON),
)
