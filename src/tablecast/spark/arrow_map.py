"""Python functions in Spark's plans, without a word about pandas: PySpark warns of pandas 3 wherever it could be used, and
here it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_arrow(frame: DataFrame, function: Mapped, schema: StructType | str) -> DataFrame:
    """What `function`, which travels to the executors, makes of each partition's batches."""
    with _without_pandas():
        return frame.mapInArrow(function, schema)


def map_values(function: Callable[..., Any], kind: str, *columns: str) -> Column:
    """What `function`, which travels to the executors, makes of the values of each row."""
    with _without_pandas():
        made: Column = f.udf(lambda *given: function(*given), kind)(*columns)  # Spark has its own idea of type hints
        return made


@contextmanager
def _without_pandas() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield
