"""Reading and writing over TLS, with a certificate of one's own (option caFile)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from server_fixture import PASSWORD, ServerProcess

from tablecast.client.bulk import BulkClient, Server

pytestmark = pytest.mark.long

SETUP = """
CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY, word TEXT); CREATE TOPIC app.told PARTITIONS 2;
ALTER TOPIC app.told ADD SOURCE app.t ON ANY WITH (payload = 'full')
"""


def certificate(directory: Path) -> tuple[Path, Path]:
    made, key = directory / "c.pem", directory / "k.pem"
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run([*new.split(), *names], check=True, capture_output=True)
    return made, key


def test_executors_and_driver_trust_the_file(spark: SparkSession, tmp_path: Path) -> None:
    trusted, key = certificate(tmp_path)
    with ServerProcess(tmp_path / "db", "--tls-certificate", str(trusted), "--tls-key", str(key)) as process:
        url = f"https://{process.host}:{process.port}"
        with BulkClient(Server(url, "system", PASSWORD, ca_file=str(trusted))) as client:
            client.sql(SETUP)

        def ours(builder: Any, **options: str) -> Any:
            return builder.format("tablecast").options(url=url, user="system", password=PASSWORD, **options)

        rows = spark.range(0, 500, 1, 3).selectExpr("id", "cast(id AS string) AS word")
        ours(rows.write, caFile=str(trusted), table="app.t", bulk="always").mode("append").save()
        ours(rows.write, caFile=str(trusted), table="app.t", mode="upsert").mode("append").save()
        messages = ours(spark.read, caFile=str(trusted), topic="app.told", decode="true").load()
        assert messages.groupBy("_op").count().orderBy("_op").collect() == [("insert", 500), ("update", 500)]
        assert ours(spark.read, caFile=str(trusted), table="app.t").load().agg({"id": "sum"}).collect() == [(124750,)]
        with pytest.raises(PySparkException, match="certificate"):
            ours(spark.read, table="app.t", timeoutSeconds="5").load()
