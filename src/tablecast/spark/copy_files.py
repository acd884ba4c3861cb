"""The files of a COPY: what they hold, how Spark reads them, and how they are cut into chunks.

    files ──▶ columns ──▶ which of them go into the table ──▶ chunks, each of which is one commit

Text formats are read as text: what a value means is for the table's casts to say, as in SQL. A line that cannot be taken
apart is carried along whole, in `_corrupt`, to be rejected with its file. Files are never cut, so a chunk is one file or
several; the same files make the same chunks whenever and wherever the COPY is run, which is what lets it go on after a
kill.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from tablecast.errors import InvalidRequest, UnknownColumn
from tablecast.model.schema import TableSchema
from tablecast.model.spark_job import CopyFrom, FileFormat
from tablecast.spark.fitting import Fit, fit

FILE, CORRUPT = "_file", "_corrupt"
_SAID = re.compile(r"\[[A-Z][A-Z0-9_.]+\] (.+)")
_NO_FILES = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str
    size: int
    modified_us: int
    rows: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is committed together: whole files, or, of one that has too many rows for a commit, those of one bucket."""

    number: int
    files: tuple[SourceFile, ...]
    bucket: int = 0
    buckets: int = 1

    @property
    def rows(self) -> int:
        """About so many."""
        return sum(file.rows for file in self.files) // self.buckets


@dataclass(frozen=True, slots=True)
class Input:
    """What is to be loaded. `given` are columns of the files, in their order; `fitted` says which go where."""

    job: CopyFrom
    table: TableSchema
    given: StructType
    fitted: Fit
    files: tuple[SourceFile, ...] = field(default=())

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def chunks(self, most: int, *, cut: bool) -> list[Chunk]:
        """Files in the order of their names, together until they have `most` rows. With `cut`, a file that has more is
        read once for every chunk of it."""
        made: list[Chunk] = []
        for files in _together(self.files, most):
            buckets = -(-sum(file.rows for file in files) // most) if cut else 1
            made += [Chunk(len(made) + bucket, files, bucket, buckets) for bucket in range(buckets)]
        return made

    def frame(self, spark: SparkSession, chunk: Chunk) -> DataFrame:
        """The rows of a chunk under the table's names, with the file that each came from."""
        rows = _read(spark, self.job, self.given, [file.path for file in chunk.files])
        named = zip(self.fitted.taken, self.fitted.names, strict=True)
        columns = [f.col(_quoted(self.given.fields[i].name)).alias(name) for i, name in named]
        corrupt = [f.col(CORRUPT)] if CORRUPT in rows.columns else []
        frame = rows.select(*columns, *corrupt, f.col("_metadata.file_path").alias(FILE))
        if chunk.buckets == 1:
            return frame
        return frame.where(f.pmod(f.xxhash64(*self._spread_by()), f.lit(chunk.buckets)) == chunk.bucket)

    def _spread_by(self) -> list[str]:
        """Columns that decide a row's bucket: its key, so that rows of one key stay together."""
        keys = [name for name in self.fitted.names if name in self.table.primary_key]
        return keys if len(keys) == len(self.table.primary_key) else list(self.fitted.names)

    def fingerprint(self, kind: str, most: int) -> str:
        """The same for the same files, read in the same way into the same commits."""
        job = self.job
        how = (job.table, job.format, job.mode, job.header, job.delimiter, job.quote, job.null, job.multiline)
        what = [(file.path, file.size, file.modified_us) for file in self.files]
        told = repr((how, kind, most, self.fitted.names, [each.name for each in self.given.fields], what))
        return hashlib.sha256(told.encode()).hexdigest()[:32]


def _together(files: Sequence[SourceFile], most: int) -> Iterator[tuple[SourceFile, ...]]:
    taken: list[SourceFile] = []
    for file in files:
        if taken and sum(each.rows for each in taken) + file.rows > most:
            yield tuple(taken)
            taken = []
        taken.append(file)
    if taken:
        yield tuple(taken)


def look_at(spark: SparkSession, job: CopyFrom, table: TableSchema) -> Input:
    """Raises InvalidRequest if there are no files, and what `fit` raises if their columns do not fit the table."""
    try:
        given = _given(spark, job, table)
        files = _files(spark, job, given)
    except (PySparkException, Py4JJavaError) as e:
        if isinstance(e, PySparkException) and e.getCondition() in _NO_FILES:
            raise InvalidRequest(f"{job.source}: there is no such file, or nothing in it", path=job.source) from None
        raise InvalidRequest(f"{job.source} cannot be read as {job.format}: {_said(e)}", path=job.source) from e
    return Input(job, table, given, fit(given, table, job.mode), files)


def _files(spark: SparkSession, job: CopyFrom, given: StructType) -> tuple[SourceFile, ...]:
    """With their rows; files without any do not matter."""
    of_file = [f.col(f"_metadata.{name}") for name in ("file_path", "file_size", "file_modification_time")]
    counted = _read(spark, job, given, [job.source]).groupBy(*of_file).agg(f.count(f.lit(1)).alias("rows"))
    modified = f.unix_micros("file_modification_time")
    found = counted.select("file_path", "file_size", modified, "rows").collect()
    return tuple(sorted((SourceFile(unquote(row[0]), *row[1:]) for row in found), key=lambda file: file.path))


# --- columns --------------------------------------------------------------------------------------------------------


def _given(spark: SparkSession, job: CopyFrom, table: TableSchema) -> StructType:
    """The columns to be read, as text unless the files have types."""
    if job.format is FileFormat.PARQUET:
        found = spark.read.parquet(job.source).schema
        return found if job.columns is None else StructType([_named(found, name, job) for name in job.columns])
    return StructType([StructField(name, StringType()) for name in _text_columns(spark, job, table)])


def _named(found: StructType, name: str, job: CopyFrom) -> StructField:
    alike = [field for field in found.fields if field.name.lower() == name.lower()]
    if not alike:
        raise UnknownColumn(f"{job.source} has no column {name!r}; it has: {', '.join(found.names)}", column=name)
    return alike[0]


def _text_columns(spark: SparkSession, job: CopyFrom, table: TableSchema) -> Sequence[str]:
    if job.format is FileFormat.JSON:
        return job.columns or _json_columns(spark, job)
    if not job.header:
        return job.columns or table.column_names
    in_header = _csv(spark.read, job).csv(job.source).columns
    if job.columns is not None and [name.lower() for name in in_header] != list(job.columns):
        raise InvalidRequest(
            f"the header of {job.source} says {', '.join(in_header)}, and the statement {', '.join(job.columns)}: leave "
            "the columns out, the header names them",
            path=job.source,
        )
    return in_header


def _json_columns(spark: SparkSession, job: CopyFrom) -> list[str]:
    """Every name that an object has: a pass over the files, which a list of columns spares."""
    reader = _json(spark.read, job).option("primitivesAsString", True)
    return [name for name in reader.json(job.source).columns if name != CORRUPT]


def _read(spark: SparkSession, job: CopyFrom, given: StructType, paths: list[str]) -> DataFrame:
    if job.format is FileFormat.PARQUET:
        return spark.read.parquet(*paths)
    reader = spark.read.schema(StructType([*given.fields, StructField(CORRUPT, StringType())]))
    if job.format is FileFormat.JSON:
        return _json(reader, job).json(paths)
    return _csv(reader, job).csv(paths)


def _json(reader: DataFrameReader, job: CopyFrom) -> DataFrameReader:
    return reader.option("columnNameOfCorruptRecord", CORRUPT).option("multiLine", job.multiline)


def _csv(reader: DataFrameReader, job: CopyFrom) -> DataFrameReader:
    """Quotes are doubled within quotes, as nearly every program writes them."""
    options: dict[str, str | bool] = {
        "header": job.header, "enforceSchema": not job.header, "sep": job.delimiter, "quote": job.quote,
        "escape": job.quote, "nullValue": job.null, "multiLine": job.multiline, "columnNameOfCorruptRecord": CORRUPT,
    }  # fmt: skip
    return reader.options(**options)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _said(error: Exception) -> str:
    """What Spark says itself, without the traces around it."""
    found = _SAID.search(str(error))
    return found[1] if found else str(error).partition("\n")[0]
