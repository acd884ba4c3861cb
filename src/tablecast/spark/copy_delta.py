"""COPY TOPIC … TO … (FORMAT delta): a Delta table that grows by one transaction per batch.

Executors write Parquet files; the transaction that adds them to the table's log carries the batch's number, as Delta's
own (application, version) pair, so a batch is in the table once. The offsets of a batch stand beside the table, in
`_tablecast/offsets-000007.json`, written before its transaction: if that is there, so are they; if a kill came between
the two, they are written anew.

This module is the only import of deltalake.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import TimeType

from tablecast.errors import SparkMissing
from tablecast.spark.copy_to import HIDDEN, Span, write_whole
from tablecast.storage.home import sync_directory, sync_tree

try:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import AddAction
except ImportError as e:
    raise SparkMissing('FORMAT delta needs the library deltalake: pip install "tablecast[delta]"') from e

APPLICATION = "tablecast-copy"


class DeltaTableKeeper:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def last(self) -> Span | None:
        table = self._table()
        version = None if table is None else table.transaction_version(APPLICATION)
        if version is None:
            return None
        return msgspec.json.decode(self._offsets_file(version).read_bytes(), type=Span)

    def keep(self, messages: DataFrame, span: Span) -> None:
        self._remove_left_behind(span)
        aside = self._directory / HIDDEN / f"next-{span.batch:06d}"
        _without_times(messages).write.parquet(aside.as_uri())
        sync_tree(aside)
        files = [self._moved(file, span) for file in sorted(aside.glob("*.parquet"))]
        shutil.rmtree(aside)
        sync_directory(self._directory)
        write_whole(self._offsets_file(span.batch), msgspec.json.encode(span))
        self._add(files, span)

    def _table(self) -> DeltaTable | None:
        return DeltaTable(self._directory) if DeltaTable.is_deltatable(str(self._directory)) else None

    def _offsets_file(self, batch: int) -> Path:
        return self._directory / HIDDEN / f"offsets-{batch:06d}.json"

    def _remove_left_behind(self, span: Span) -> None:
        """By a run that was killed before its transaction."""
        for left in (self._directory / HIDDEN).glob("next-*"):
            shutil.rmtree(left)
        for file in self._directory.glob(f"{_prefix(span)}*.parquet"):
            file.unlink()

    def _moved(self, file: Path, span: Span) -> Path:
        return file.rename(self._directory / f"{_prefix(span)}{file.name}")

    def _add(self, files: list[Path], span: Span) -> None:
        schema = pa.unify_schemas([pq.read_schema(file).remove_metadata() for file in files])
        table = self._table() or DeltaTable.create(self._directory, Schema.from_arrow(schema))
        known = {field.name for field in table.schema().fields}
        added = [field for field in Schema.from_arrow(schema).fields if field.name not in known]
        if added:  # columns that the source table got since
            table.alter.add_columns(added)
        table.create_write_transaction(
            [_action(file) for file in files],
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, span.batch)]),
        )


def _prefix(span: Span) -> str:
    return f"batch-{span.batch:06d}-"


def _action(file: Path) -> AddAction:
    about = file.stat()
    rows = pq.read_metadata(file).num_rows
    return AddAction(file.name, about.st_size, {}, int(about.st_mtime * 1000), True, f'{{"numRecords": {rows}}}')


def _without_times(messages: DataFrame) -> DataFrame:
    """Delta has no type for a time of day: it goes as text."""
    times = [field.name for field in messages.schema.fields if isinstance(field.dataType, TimeType)]
    return messages.withColumns({name: f.col(name).cast("string") for name in times}) if times else messages
