"""tablecast on Spark: the format `tablecast` for reading and writing, and a session that suits it.

    spark = tablecast.spark.session()
    spark.read.format("tablecast").option("url", …).option("topic", "app.order_events").load()

A session that exists already learns the format with `tablecast.spark.register(spark)`. `pipeline`, `topic` and `table`
declare pipelines: see tablecast.spark.pipelines.declare.
"""

from __future__ import annotations

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as e:
    raise ImportError('tablecast.spark needs PySpark: pip install "tablecast[spark]"') from e

from tablecast.spark.java import Java, find_java
from tablecast.spark.pipelines.declare import pipeline, table, topic
from tablecast.spark.registration import register
from tablecast.spark.session import session
from tablecast.spark.source import TablecastDataSource

__all__ = ["Java", "TablecastDataSource", "find_java", "pipeline", "register", "session", "table", "topic"]
