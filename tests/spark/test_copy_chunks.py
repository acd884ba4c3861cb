"""How files become chunks: the same ones every time, so that a COPY finds what it did before. No Spark is started."""

from __future__ import annotations

import msgspec
from pyspark.sql.types import LongType, StructType

from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.spark_job import CopyFrom, FileFormat
from tablecast.spark.copy_files import Input, SourceFile
from tablecast.spark.fitting import Fit

TABLE = TableSchema(
    table_id=1,
    namespace="app",
    name="t",
    kind=TableKind.SHARED,
    columns=(Column("id", ColumnType(TypeName.BIGINT), not_null=True),),
    primary_key=("id",),
)
JOB = CopyFrom("app.t", "/in", FileFormat.PARQUET)


def given(*rows: int, job: CopyFrom = JOB, modified_us: int = 1) -> Input:
    files = tuple(SourceFile(f"/in/{n}", 100, modified_us, count) for n, count in enumerate(rows))
    return Input(job, TABLE, StructType().add("id", LongType()), Fit((0,), ("id",)), files)


def test_files_are_together_until_they_are_enough() -> None:
    chunks = given(30, 30, 30, 200, 10).chunks(100, cut=False)
    assert [[file.path for file in chunk.files] for chunk in chunks] == [
        ["/in/0", "/in/1", "/in/2"],
        ["/in/3"],
        ["/in/4"],
    ]
    assert [chunk.number for chunk in chunks] == [0, 1, 2]
    assert [chunk.buckets for chunk in chunks] == [1, 1, 1]


def test_a_file_that_is_too_large_is_cut_where_that_is_wanted() -> None:
    chunks = given(30, 250, 10).chunks(100, cut=True)
    assert [(chunk.number, chunk.files[0].path, chunk.bucket, chunk.buckets) for chunk in chunks] == [
        (0, "/in/0", 0, 1), (1, "/in/1", 0, 3), (2, "/in/1", 1, 3), (3, "/in/1", 2, 3), (4, "/in/2", 0, 1),
    ]  # fmt: skip


def test_the_fingerprint_is_of_what_is_loaded_and_into_which_commits() -> None:
    same = given(1, 2).fingerprint("sealed", 10)
    assert same == given(1, 2).fingerprint("sealed", 10)
    unimportant = msgspec.structs.replace(JOB, rejects="/bad", max_rejects=3)
    assert same == given(1, 2, job=unimportant).fingerprint("sealed", 10)
    others = [
        given(1, 2, 3).fingerprint("sealed", 10),
        given(1, 2, modified_us=2).fingerprint("sealed", 10),
        given(1, 2).fingerprint("rows", 10),
        given(1, 2).fingerprint("sealed", 11),
        given(1, 2, job=msgspec.structs.replace(JOB, null="NA")).fingerprint("sealed", 10),
    ]
    assert len({same, *others}) == 6
