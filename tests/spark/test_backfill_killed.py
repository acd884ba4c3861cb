"""A backfill on Spark whose driver, and then whose server, is killed: the source is there with all messages, or not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from processes import PASSWORD, Run, Server, environment, until

import tablecast

pytestmark = pytest.mark.long

ROWS = 100_000
QUICK_START = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
FINISH_SECONDS = 500.0  # a machine under load: Spark's start alone may take a minute there


def backfilling(server: Server, log: Path) -> Run:
    command = [sys.executable, "-m", "tablecast", "copy", "backfill", server.url, "app.told", "app.orders"]
    spark = ["--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", QUICK_START]
    options = ["--on", "insert,update", "--where", "n % 10 <> 3", "--partition-by", "n % 7", "--output", "csv"]
    return Run([*command, *options, *spark], log, environment())


def until_staged(client: tablecast.Client, job: Run) -> None:
    """Until parts of it are at the server."""

    def parts() -> bool:
        found = client.query("SELECT sum(parts) FROM system.loads WHERE state = 'open'").scalar()
        return (found or 0) >= 2 or not job.running

    until("parts are staged", parts, FINISH_SECONDS)
    assert job.running, job.log.read_text()[-4000:]


def test_killed_driver_and_killed_server(tmp_path: Path, spark: Any) -> None:
    with (
        Server(tmp_path) as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        client.execute_all(
            "CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY, n INT);"
            "CREATE TOPIC app.told PARTITIONS 3; CREATE TOPIC app.reference PARTITIONS 3"
        )
        client.insert("app.orders", pa.table({"id": range(ROWS), "n": pa.array(range(ROWS), pa.int32())}))

        with backfilling(server, tmp_path / "first.log") as first:
            until_staged(client, first)
            first.kill()
        assert client.query("SELECT count(*) FROM system.topic_sources WHERE topic = 'app.told'").scalar() == 0
        assert client.read_arrow("app.told").num_rows == 0

        with backfilling(server, tmp_path / "second.log") as second:
            until_staged(client, second)
            server.kill()
            server.restart()
            client.execute("UPDATE app.orders SET n = n + 1 WHERE id < 5000")
            second.finish(seconds=FINISH_SECONDS)
        client.execute(
            "ALTER TOPIC app.reference ADD SOURCE app.orders ON INSERT, UPDATE WHERE n % 10 <> 3 PARTITION BY n % 7 "
            "WITH (backfill = TRUE)"
        )
        assert told(client, "app.told") == told(client, "app.reference")
        assert client.query("SELECT count(*) FROM system.loads WHERE state <> 'committed'").scalar() == 0
        assert client.execute("AUDIT TOPIC app.told").message == "AUDIT app.told: sound"
        server.end()
        with tablecast.open(str(server.data)) as db:
            assert db.verify().problems == []


def told(client: tablecast.Client, topic: str) -> list[tuple[Any, ...]]:
    found = client.read_arrow(topic)
    names = ("partition_id", "source_table", "op", "payload_mode", "key", "payload", "content_hash")
    return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))
