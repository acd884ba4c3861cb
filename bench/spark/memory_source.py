"""A data source that does nothing: Arrow batches that lie ready in memory. No Python source can be faster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class Slice(InputPartition):
    def __init__(self, first: int, last: int) -> None:
        super().__init__(first)
        self.first, self.last = first, last


class MemoryReader(DataSourceReader):
    def __init__(self, path: str, partitions: int) -> None:
        self._path, self._partitions = path, partitions

    def partitions(self) -> list[InputPartition]:
        with pa.memory_map(self._path) as file:
            count = pa.ipc.open_file(file).num_record_batches
        cuts = [count * i // self._partitions for i in range(self._partitions + 1)]
        return [Slice(first, last) for first, last in pairwise(cuts)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        reader = pa.ipc.open_file(pa.memory_map(self._path))
        for i in range(partition.first, partition.last):
            yield reader.get_batch(i)


class MemorySource(DataSource):
    """Options: `path`, an Arrow file (on a memory file system), and `partitions`."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        with pa.memory_map(self.options["path"]) as file:
            return from_arrow_schema(pa.ipc.open_file(file).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(self.options["path"], int(self.options.get("partitions", "2")))
