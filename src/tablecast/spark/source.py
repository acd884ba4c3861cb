"""The data source that Spark knows as `tablecast`: one class for reading and writing, batch and stream.

Spark makes an instance in a Python process of the driver, asks for the schema, and takes the pickled instance to wherever
readers and writers are needed. Writers are imported when they are asked for: a reader's process needs none of them.
"""

from __future__ import annotations

import importlib
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from tablecast.errors import InvalidRequest
from tablecast.spark.connect import is_behind_connect, refuse_secrets
from tablecast.spark.log_reading import described
from tablecast.spark.options import SOURCE_NAME, ReadOptions, read_options
from tablecast.spark.stream_reader import TopicStreamReader
from tablecast.spark.table_reader import TableReader, table_schema
from tablecast.spark.topic_reader import TopicReader, form_of
from tablecast.spark.types import table_struct


class TablecastDataSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        """On the driver, which for a client of Spark Connect is another machine."""
        if is_behind_connect():
            refuse_secrets(options)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return SOURCE_NAME

    def schema(self) -> StructType:
        return offered(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        return TopicReader(options, schema) if options.topic is not None else TableReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        options = read_options(self.options)
        if options.topic is None:
            raise InvalidRequest(
                'a table is not a stream: stream the topic that it feeds, with option "topic", or use spark.read'
            )
        return TopicStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        made: DataSourceArrowWriter = _part("writer").batch_writer(self.options, schema, overwrite)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        made: DataSourceStreamArrowWriter = _part("stream_writer").stream_writer(self.options, schema, overwrite)
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.get('topic') or self.options.get('table')!r})"


def _part(name: str) -> Any:
    return importlib.import_module(f"tablecast.spark.{name}")


def offered(options: ReadOptions) -> StructType:
    """Every column that such a read can give."""
    if options.table is not None:
        return table_struct(table_schema(options), with_seq=options.include_seq)
    assert options.topic is not None
    with options.connect() as client:
        topic, _ = described(client, options.topic)
    return form_of(options, topic).struct()
