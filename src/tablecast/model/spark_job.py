"""Statements that run on Spark: COPY, AUDIT and backfills, as values that travel from whoever parsed them to where Spark is.

A server parses such a statement and looks its names up, but never runs it: it would read and write files of the machine
it runs on. It answers `runs_on_spark` with the job in it, and the client, the command line or a notebook runs that.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from tablecast.errors import InvalidRequest


class FileFormat(enum.StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    DELTA = "delta"


class CopyMode(enum.StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"


class CopyFrom(msgspec.Struct, frozen=True, tag="copy_from", omit_defaults=True):
    """COPY table FROM files. `columns` are those that the files give; None: as the files say."""

    table: str
    source: str
    format: FileFormat
    columns: tuple[str, ...] | None = None
    mode: CopyMode = CopyMode.INSERT
    header: bool = False
    delimiter: str = ","
    quote: str = '"'
    null: str = ""
    multiline: bool = False
    rejects: str | None = None
    max_rejects: int | None = None
    dry_run: bool = False
    commit_rows: int | None = None
    job: str | None = None


class CopyTopic(msgspec.Struct, frozen=True, tag="copy_topic", omit_defaults=True):
    """COPY TOPIC topic TO directory."""

    topic: str
    target: str
    format: FileFormat
    decode: bool = False
    source_table: str | None = None
    starting: str = "earliest"
    ending: str = "latest"
    commit_rows: int | None = None
    dry_run: bool = False


class AuditTopic(msgspec.Struct, frozen=True, tag="audit_topic"):
    """AUDIT TOPIC topic."""

    topic: str


class Backfill(msgspec.Struct, frozen=True, tag="backfill", omit_defaults=True):
    """ALTER TOPIC topic ADD SOURCE table … WITH (backfill = 'spark'). `ops` are labels of `model.change.Op`."""

    topic: str
    table: str
    ops: tuple[str, ...]
    filter: str | None = None
    partition_by: str | None = None
    payload: str = "full"
    dry_run: bool = False


SparkJob = CopyFrom | CopyTopic | AuditTopic | Backfill


def job_fields(job: SparkJob) -> dict[str, Any]:
    """As plain values, for the details of an error."""
    fields: dict[str, Any] = msgspec.to_builtins(job)
    return fields


def job_of(fields: Any) -> SparkJob:
    try:
        job: SparkJob = msgspec.convert(fields, SparkJob)
        return job
    except msgspec.ValidationError as e:
        raise InvalidRequest(f"the server describes a job that this version does not know: {e}") from None
