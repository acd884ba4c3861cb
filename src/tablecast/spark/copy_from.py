"""COPY … FROM: files into a table, on Spark.

    files ──▶ chunks ──▶ for each, in order:  begin a load ──▶ tasks stage its rows ──▶ commit
                                                                    └──▶ rejects

Every chunk is one load, known by the job and the chunk's number, so that it is committed once however often the COPY is
run: after a kill, the same statement goes on with the first chunk that is not there. The job is known by what it reads
and how (`Input.fingerprint`), or by the name that JOB gives it, for a week.

An insert first goes the short way: rows are sealed as they come. If a key turns out to come twice, or to be in the table
already, the chunk is done again the long way: rows are brought together by key and compared with the table's, and the
ones too many are rejects like any other.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField, StructType

from tablecast.client.bulk import BulkClient, LoadBegun, LoadDone, Server
from tablecast.codec.result import Result
from tablecast.core.seal import require_sealable
from tablecast.errors import DuplicateKey, NotSealable, StaleLoad, TablecastError, TooManyRejects, UnknownLoad
from tablecast.model.schema import ColumnType, TypeName
from tablecast.model.spark_job import CopyFrom, CopyMode
from tablecast.spark.arrow_map import map_arrow
from tablecast.spark.copy_files import Chunk, Input, look_at
from tablecast.spark.copy_rows import AddKeys
from tablecast.spark.copy_task import KEY, REJECTS, RESULT, STAGED, THERE, TOLD_REASONS, CopyTask, StagedRows
from tablecast.spark.options import SOURCE_NAME
from tablecast.spark.pipelines.query import reader_options
from tablecast.spark.progress import Watcher, moving

ROWS, SEALED = "rows", "sealed"
COMMIT_ROWS = {SEALED: 2_000_000, ROWS: 500_000}  # of a chunk, about; the server holds those that are not sealed
ATTEMPTS = 4  # at a chunk whose table changes, or gets rows of the same keys, while it is made
JOB = "job:copy:"
_PLACE = "_place"  # of a row among those of a chunk


def copy_from(spark: SparkSession, server: Server, job: CopyFrom, watcher: Watcher) -> Result:
    with BulkClient(server) as client:
        kind, found = _looked_at(client, spark, job)
        most = job.commit_rows or COMMIT_ROWS[kind]
        chunks = found.chunks(most, cut=kind == ROWS or job.commit_rows is not None)
        copying = _Copying(client, spark, found, kind, _writer_id(found, kind, most), watcher)
        watcher.began(f"COPY {job.table}", found.rows)
        return copying.rehearse(chunks) if job.dry_run else copying.load(chunks)


def _looked_at(client: BulkClient, spark: SparkSession, job: CopyFrom) -> tuple[str, Input]:
    """The kind of loads that fit table and files, and what there is to load."""
    begun = _begun(client, job, f"{JOB}look:{uuid.uuid4()}")
    client.abort_load(begun.load_id)
    found = look_at(spark, job, begun.table)
    try:
        if job.mode is not CopyMode.INSERT:
            return ROWS, found
        require_sealable(begun.table, begun.routes, found.fitted.names)
    except NotSealable:
        return ROWS, found
    return SEALED, found


def _begun(client: BulkClient, job: CopyFrom, writer_id: str) -> LoadBegun:
    return client.begin_load(job.table, writer_id, 0, mode=job.mode, kind=ROWS)


def _writer_id(found: Input, kind: str, most: int) -> str:
    return f"{JOB}{found.job.job or found.fingerprint(kind, most)}"


@dataclass
class _Done:
    """What was loaded so far."""

    rows: int = 0
    already: int = 0
    rejects: int = 0
    seq: int | None = None
    written: int = 0  # by the commits of this run, as the server counts them


@dataclass
class _Copying:
    client: BulkClient
    spark: SparkSession
    found: Input
    kind: str
    writer_id: str
    watcher: Watcher
    done: _Done = field(default_factory=_Done)
    passed: int = 0  # rows of chunks that are over, as they were counted

    @property
    def job(self) -> CopyFrom:
        return self.found.job

    # --- all chunks ---

    def load(self, chunks: Iterable[Chunk]) -> Result:
        for chunk in chunks:
            self._load_chunk(chunk)
            self._move_on(chunk)
        return self._result("COPY")

    def rehearse(self, chunks: Iterable[Chunk]) -> Result:
        """Nothing is staged, and nothing committed; the long way tells of keys that come twice, too."""
        load = self._begin(f"{JOB}dry:{uuid.uuid4()}", 0)
        try:
            for chunk in chunks:
                self._count(self._staged(chunk, load, keyed=self._has_keys, dry=True))
                self._move_on(chunk)
        finally:
            self.client.abort_load(load.load_id)
        return self._result("COPY, dry run:")

    def _move_on(self, chunk: Chunk) -> None:
        self.passed += chunk.rows
        self.watcher.reached(self.passed, self.done.rejects)

    # --- one chunk ---

    def _load_chunk(self, chunk: Chunk) -> None:
        keyed = False
        problem: TablecastError | None = None
        for _ in range(ATTEMPTS):
            load = self._begin(self.writer_id, chunk.number)
            if load.committed is not None:
                self._found(load.committed)
                return
            staged = self._staged(chunk, load, keyed=keyed)
            if not keyed and any(each.twice for each in staged):
                keyed = True
                continue
            self._check_rejects(load, staged)
            try:
                self._committed(staged, self._commit(load, staged))
                return
            except DuplicateKey as e:
                if not self._has_keys or self.job.mode is not CopyMode.INSERT:
                    raise
                keyed, problem = True, e
            except (StaleLoad, UnknownLoad) as e:
                problem = e
        assert problem is not None
        raise problem

    def _begin(self, writer_id: str, number: int) -> LoadBegun:
        job = self.job
        return self.client.begin_load(job.table, writer_id, number, mode=job.mode, kind=self.kind)

    def _commit(self, load: LoadBegun, staged: Iterable[StagedRows]) -> LoadDone:
        return self.client.commit_load(load.load_id, sorted(part for each in staged for part in each.parts))

    def _committed(self, staged: Iterable[StagedRows], committed: LoadDone) -> None:
        if committed.already:  # by another run of the same COPY, just now
            self._found(committed)
        else:
            self._count(staged)
            self.done.seq = committed.seq
            self.done.written += committed.row_count

    def _found(self, committed: LoadDone) -> None:
        """The server counts the last chunk, and all of them: a chunk before the last has no count of its own."""
        if committed.total_rows:
            self.done.already = committed.total_rows - self.done.written
        else:  # a server older than the total
            self.done.already += committed.row_count

    def _count(self, staged: Iterable[StagedRows]) -> None:
        for each in staged:
            self.done.rows += each.rows
            self.done.rejects += each.rejects

    def _check_rejects(self, load: LoadBegun, staged: list[StagedRows]) -> None:
        """Without REJECTS there is no place for them: then none is borne."""
        most = self.job.max_rejects if self.job.rejects is not None else 0
        count = self.done.rejects + sum(each.rejects for each in staged)
        if most is None or count <= most:
            return
        with contextlib.suppress(TablecastError):
            self.client.abort_load(load.load_id)
        reasons = [reason for each in staged for reason in each.reasons][:TOLD_REASONS]
        hint = "with REJECTS 'directory' they are kept there, and the rest is loaded"
        where = hint if self.job.rejects is None else f"they are in {self._rejects_path()}"
        raise TooManyRejects(
            f"{count:,} rows do not fit {self.job.table}: {'; '.join(reasons)}{'; …' if count > len(reasons) else ''} "
            f"({where}). {self.done.rows + self.done.already:,} rows are loaded; the same COPY goes on after them",
            rejects=count, rows=self.done.rows, already=self.done.already,
        )  # fmt: skip

    # --- tasks ---

    @property
    def _has_keys(self) -> bool:
        return set(self.found.table.primary_key) <= set(self.found.fitted.names)

    def _staged(self, chunk: Chunk, load: LoadBegun, *, keyed: bool, dry: bool = False) -> list[StagedRows]:
        frame = self.found.frame(self.spark, chunk)
        if keyed and self.job.mode is CopyMode.INSERT:
            frame = self._by_key(frame)
        task = CopyTask(self.client.server, load, self.kind == SEALED, self.job.rejects is not None, dry)
        results = map_arrow(frame, task, RESULT)
        with moving(self.spark, self.watcher, self.passed, chunk.rows, self.done.rejects):
            told = self._collected(results) if self.job.rejects is None else self._kept(results, chunk)
        return [msgspec.json.decode(text, type=StagedRows) for text in told]

    def _by_key(self, frame: DataFrame) -> DataFrame:
        """Rows of one key together, the first of the files first, and whether the table has it."""
        table = self.found.table
        frame = frame.withColumn(_PLACE, f.monotonically_increasing_id())
        with_key = StructType([*frame.schema.fields, StructField(KEY, BinaryType())])
        keyed = map_arrow(frame, AddKeys(table, KEY), with_key)
        rows = self.spark.read.format(SOURCE_NAME).options(**reader_options(self.client.server), table=self.job.table)
        there = map_arrow(rows.load(), AddKeys(table, KEY, alone=True), f"{KEY} binary")
        joined = keyed.join(there.withColumn(THERE, f.lit(True)), KEY, "left")
        apart = f.coalesce(f.col(KEY), f.col(_PLACE).cast("string").cast("binary"))
        marked = joined.withColumn(THERE, f.coalesce(f.col(THERE), f.lit(False)))
        return marked.repartition(apart).sortWithinPartitions(KEY, _PLACE).drop(_PLACE)

    def _collected(self, results: DataFrame) -> list[str]:
        return [row[1] for row in results.collect() if row[0] == STAGED]

    def _kept(self, results: DataFrame, chunk: Chunk) -> list[str]:
        """Rejects become files, which are there before the chunk is committed; a chunk that is done again replaces
        them."""
        place = f"{self._rejects_place()}/chunk-{chunk.number:05d}"
        results.write.mode("overwrite").partitionBy("what").text(place)
        try:
            return [row[0] for row in self.spark.read.text(f"{place}/what={STAGED}").collect()]
        except AnalysisException:
            return []  # not a single task ran: there were no rows

    def _rejects_place(self) -> str:
        assert self.job.rejects is not None
        return f"{self.job.rejects.rstrip('/')}/{self.writer_id.removeprefix(JOB).replace('/', '_')}"

    def _rejects_path(self) -> str:
        return f"{self._rejects_place()}/*/what={REJECTS}"

    # --- the answer ---

    def _result(self, what: str) -> Result:
        done = self.done
        path = self._rejects_path() if self.job.rejects is not None and done.rejects else None
        message = f"{what} {done.rows}"
        if done.already:
            message += (
                f" ({done.already:,} rows were loaded by an earlier run of the same COPY; JOB 'name' makes it another)"
            )
        row = (self.job.table, done.rows, done.already, done.rejects, path)
        return Result.of_rows(_COLUMNS, _TYPES, [row], message=message, seq=done.seq, row_count=done.rows)


_COLUMNS = ("table", "rows", "already", "rejects", "rejects_path")
_TYPES = tuple(
    ColumnType(name) for name in (TypeName.TEXT, TypeName.BIGINT, TypeName.BIGINT, TypeName.BIGINT, TypeName.TEXT)
)
