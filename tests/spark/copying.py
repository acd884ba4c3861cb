"""What the tests of COPY share: a server, Spark, and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from writing import Writing

from tablecast import Result

ORDERS = "id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2)"


class Copying(Writing):
    """`client.execute` finds the Spark of these tests: it is the active one."""

    def copy(self, statement: str) -> Result:
        return self.client.execute(statement)

    def copied(self, statement: str) -> dict[str, Any]:
        """The one row that a COPY answers."""
        result = self.copy(statement)
        (row,) = result.rows
        return dict(zip(result.columns, row, strict=True))


def orders(spark: SparkSession, first: int, last: int, partitions: int = 2) -> DataFrame:
    return spark.range(first, last, 1, partitions).selectExpr(
        "id", "concat('customer ', id % 7) AS customer", "cast(id % 1000 / 4 AS decimal(12,2)) AS amount"
    )


def rejects_of(directory: Path) -> list[dict[str, Any]]:
    """Every reject that is in a directory of rejects."""
    files = sorted(directory.glob("*/chunk-*/what=rejects/part-*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
