"""What tests of reading share: a server with tables and topics, and Spark's readers pointed at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from processes import until
from pyspark.sql import DataFrame, SparkSession
from server_fixture import PASSWORD

COLUMNS = (
    "id BIGINT PRIMARY KEY, customer TEXT, amount DECIMAL(12,2), n INT, note JSON, uid UUID, day DATE, at TIME, "
    "moment TIMESTAMP, raw BYTES, small SMALLINT, f FLOAT, d DOUBLE, ok BOOLEAN"
)


class Shop:
    """One server, one Spark. Every test makes tables and topics of its own, by name."""

    def __init__(self, server: Any, spark: SparkSession) -> None:
        self.server, self.spark = server, spark  # a ServerThread or a ServerProcess

    def sql(self, *statements: str) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = self.server.sql("; ".join(statements))
        return results

    def topic(self, name: str, *, partitions: int = 1, columns: str = "id BIGINT PRIMARY KEY, v TEXT") -> None:
        """Table app.NAME, and topic app.NAME_ev of all its changes."""
        self.sql(
            f"CREATE TABLE app.{name} ({columns})",
            f"CREATE TOPIC app.{name}_ev PARTITIONS {partitions}",
            f"ALTER TOPIC app.{name}_ev ADD SOURCE app.{name} ON ANY",
        )

    def insert(self, name: str, first: int, count: int, text: str = "v") -> None:
        values = ", ".join(f"({i}, '{text}{i}')" for i in range(first, first + count))
        self.sql(f"INSERT INTO app.{name} VALUES {values}")

    def expire(self, topic: str) -> None:
        """Lets the retention job take all that the topic has; what comes later is kept."""
        self.sql(f"ALTER TOPIC {topic} SET (retention_seconds = 1)")
        kept = f"SELECT sum(end_offset - start_offset) AS n FROM system.topic_partitions WHERE topic = '{topic}'"

        def is_taken() -> bool:
            self.server.db.database.run_job("retention")
            return bool(self.sql(kept)[-1]["rows"] == [["0"]])

        until("retention took all", is_taken)
        self.sql(f"ALTER TOPIC {topic} SET (retention_seconds = 86400)")

    def options(self, **more: Any) -> dict[str, Any]:
        return {"url": self.server.url, "user": "system", "password": PASSWORD, **more}

    def read(self, **more: Any) -> DataFrame:
        return self.spark.read.format("tablecast").options(**self.options(**more)).load()

    def stream(self, **more: Any) -> DataFrame:
        return self.spark.readStream.format("tablecast").options(**self.options(**more)).load()

    def drained(self, frame: DataFrame, checkpoint: Path) -> list[tuple[int, list[Any]]]:
        """Everything that is there now, as (batch id, rows), through a checkpoint."""
        batches: list[tuple[int, list[Any]]] = []

        def take(rows: DataFrame, number: int) -> None:
            if found := rows.collect():
                batches.append((number, found))

        query = (
            frame.writeStream.foreachBatch(take)
            .trigger(availableNow=True)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return batches
